"""Tuning: the best settings of a model and a loss by validation NDCG@K, with Optuna; the test part is never read.

Needs ``pip install 'topshelf[tune]'``.
"""

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError("tuning needs Optuna: pip install 'topshelf[tune]'") from error

from topshelf.tuning.outcome import Budget, TrialRow, Tuned
from topshelf.tuning.ranges import Choice, Interval, Space, space
from topshelf.tuning.run import resume, tune

__all__ = ["Budget", "Choice", "Interval", "Space", "TrialRow", "Tuned", "resume", "space", "tune"]
