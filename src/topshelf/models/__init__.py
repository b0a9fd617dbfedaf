"""Models: two tables of vectors, trained by a loss or fitted in closed form.

``MODELS`` names every model for the command line, the configuration and the contract tests.
"""

from topshelf.models.base import HistoryRows, Model
from topshelf.models.classics import Popularity
from topshelf.models.linear import EASE
from topshelf.models.mf import MF

__all__ = ["EASE", "MF", "MODELS", "HistoryRows", "Model", "Popularity"]

MODELS: dict[str, type[Model]] = {"mf": MF, "ease": EASE, "popularity": Popularity}
