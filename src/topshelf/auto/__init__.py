"""The best list for a budget of time: many models are tried, the best are blended, and the result is one run."""

from topshelf.auto.outcome import Auto, Tried
from topshelf.auto.run import auto

__all__ = ["Auto", "Tried", "auto"]
