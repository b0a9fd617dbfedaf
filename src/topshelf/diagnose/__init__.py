"""How a loss behaves on your data: the paper's analyses, as numbers, plots and advice."""

from topshelf.diagnose.advice import Advice, advise
from topshelf.diagnose.examine import RunDiagnosis, RunPlan
from topshelf.diagnose.files import write
from topshelf.diagnose.run import Diagnosis, Plan, diagnose, plan

__all__ = ["Advice", "Diagnosis", "Plan", "RunDiagnosis", "RunPlan", "advise", "diagnose", "plan", "write"]
