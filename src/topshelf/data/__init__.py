"""Interactions: reading, cleaning, splitting, and the named datasets."""

from topshelf.data.datasets import DATASETS, Dataset, load_split, split_interactions
from topshelf.data.events import Events
from topshelf.data.interactions import IdMap, Interactions, concatenate
from topshelf.data.noise import add_false_positives
from topshelf.data.prepare import prepare
from topshelf.data.readers import read, read_interactions
from topshelf.data.splits import Split, make_split, through_refit
from topshelf.data.synthetic import generate

__all__ = [
    "DATASETS",
    "Dataset",
    "Events",
    "IdMap",
    "Interactions",
    "Split",
    "add_false_positives",
    "concatenate",
    "generate",
    "load_split",
    "make_split",
    "prepare",
    "read",
    "read_interactions",
    "split_interactions",
    "through_refit",
]
