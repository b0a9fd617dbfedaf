"""Models: two tables of vectors, trained by a loss or fitted in closed form.

``MODELS`` names every model for the command line, the configuration and the contract tests.
"""

from topshelf.models.base import HistoryRows, Model
from topshelf.models.classics import Popularity
from topshelf.models.ials import IALS
from topshelf.models.linear import EASE
from topshelf.models.mf import MF
from topshelf.models.neighbours import ItemKNN, RP3beta
from topshelf.models.slim import SLIM

__all__ = ["EASE", "IALS", "MF", "MODELS", "SLIM", "HistoryRows", "ItemKNN", "Model", "Popularity", "RP3beta"]

MODELS: dict[str, type[Model]] = {
    "mf": MF,
    "ease": EASE,
    "slim": SLIM,
    "ials": IALS,
    "itemknn": ItemKNN,
    "rp3beta": RP3beta,
    "popularity": Popularity,
}
