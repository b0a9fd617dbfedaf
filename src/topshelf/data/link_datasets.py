"""The named datasets of links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from topshelf.data.local_datasets import LocalDataset

_HEART = "https://github.com/Juanhui28/HeaRT"


@dataclass(frozen=True)
class LinkInfo(LocalDataset):
    """A graph: its nodes, edges and features. ``graph``: its name in Planetoid's files, which have its features."""

    folder: ClassVar[str] = "links"
    nodes: int
    edges: int
    features: int
    graph: str


class LinkFiles(NamedTuple):
    """Where a named graph is: its edges, and its features unless they come with the edges."""

    edges: Path
    features: Path | None


def _planetoid(name: str, nodes: int, edges: int, features: int) -> LinkInfo:
    return LinkInfo(
        name,
        f"Planetoid's {name.title()}",
        ("planetoid.zip", "planetoid"),
        nodes,
        edges,
        features,
        name,
        recipe=f"Planetoid's files ind.{name}.x, .allx, .tx, .graph, .test.index; split 85/5/10 by data.split_seed",
        address="https://github.com/kimiyoung/planetoid",
    )


_KNOWN = [
    _planetoid("cora", 2_708, 5_278, 1_433),
    LinkInfo(
        "citeseer",
        "Citeseer, HeaRT's split and negatives",
        ("heart-citeseer.zip", "heart-citeseer"),
        3_327,
        4_552,
        3_703,
        "citeseer",
        recipe="HeaRT's train_pos.txt, valid_pos.txt, test_pos.txt, heart_valid_samples.npy, heart_test_samples.npy; "
        "features from planetoid.zip beside it",
        address=_HEART,
    ),
]
LINK_DATASETS: dict[str, LinkInfo] = {info.name: info for info in _KNOWN}


def locate(name: str) -> LinkFiles:
    """The files of a named graph."""
    info = LINK_DATASETS[name]
    planetoid = _planetoid(info.graph, info.nodes, info.edges, info.features)
    if info.files == planetoid.files:
        return LinkFiles(info.locate(), None)
    return LinkFiles(info.locate(), planetoid.locate())
