"""Interactions: reading, cleaning, splitting, and the named datasets."""

from topshelf.data.datasets import DATASETS, Dataset, load_split, split_interactions
from topshelf.data.interactions import IdMap, Interactions, merge
from topshelf.data.noise import add_false_positives
from topshelf.data.prepare import prepare
from topshelf.data.readers import read, read_interactions
from topshelf.data.splits import Split, make_split
from topshelf.data.synthetic import generate

__all__ = [
    "DATASETS",
    "Dataset",
    "IdMap",
    "Interactions",
    "Split",
    "add_false_positives",
    "generate",
    "load_split",
    "make_split",
    "merge",
    "prepare",
    "read",
    "read_interactions",
    "split_interactions",
]
