"""Lists and metrics of very many users, part by part, by any number of processes on one machine or several."""

from topshelf.parts.folder import PartsFolder
from topshelf.parts.lists import recommend_parts
from topshelf.parts.metrics import evaluate_parts, read_evaluation

__all__ = ["PartsFolder", "evaluate_parts", "read_evaluation", "recommend_parts"]
