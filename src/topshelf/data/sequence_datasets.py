"""The named datasets of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topshelf.data.local_datasets import LocalDataset

_LINES = "one user per line, `user item item ...`, oldest first; plain or gzipped"


@dataclass(frozen=True)
class SequenceInfo(LocalDataset):
    """Events in order: how many, and of how many users and items."""

    folder: ClassVar[str] = "sequences"
    users: int
    items: int
    events: int


_KNOWN = [
    SequenceInfo(
        "beauty",
        "Amazon 2014 Beauty, 5-core",
        ("beauty-5core.txt.gz", "beauty-5core.txt"),
        users=22_363,
        items=12_101,
        events=198_502,
        recipe=_LINES,
        address="https://github.com/salesforce/ICLRec",
    ),
    SequenceInfo(
        "games",
        "Amazon 2014 Video Games, 5-core",
        ("games-5core.txt.gz", "games-5core.txt"),
        users=24_303,
        items=10_672,
        events=231_780,
        recipe=_LINES,
        address="https://github.com/KlaineWei/MoCo4SRec",
    ),
]
SEQUENCE_DATASETS: dict[str, SequenceInfo] = {info.name: info for info in _KNOWN}
