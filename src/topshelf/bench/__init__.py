"""Plans of many runs, and reports on them: the paper's tables and figures, and your own."""

from __future__ import annotations

from topshelf.bench.plan import Plan, narrowed, read_plan
from topshelf.bench.report import Report, read_report
from topshelf.bench.results import Results, of_plan
from topshelf.bench.runner import Summary, run, status

__all__ = ["Plan", "Report", "Results", "Summary", "narrowed", "of_plan", "read_plan", "read_report", "run", "status"]
