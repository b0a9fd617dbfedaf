"""What is tried: cheap strong models, then trained ones, with where the search of each begins and what it searches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from topshelf import kernels
from topshelf.data import Split
from topshelf.data.memory import SHARE, available

_RATES = (0.01, 0.03, 0.1)
_SHARED: dict[str, Any] = {
    "train.batch_size": (256, 512, 2048),
    "train.weight_decay": (0.0, 1e-6, 1e-5),
    "loss.tau": (0.15, 0.2, 0.225, 0.25),
    "model.dim": (64, 128, 256, 512),
}
_WEIGHT: dict[str, Any] = {
    "loss.tau_weight": (1.5, 2.0, 2.5, 3.0, 4.0),
    "negatives.effective_n": (200, 500, 1000, 1500),
    "threshold.every": (5, 20),
}
_MANY = 500_000  # users and items of which vectors of 256 numbers would take long to train
# One fit of SLIM over 8,360 items took 80 s of two cores; it grows with about the 2.5th power of their number.
_SLIM_SECONDS, _SLIM_ITEMS, _SLIM_POWER = 80.0, 8_360, 2.5
_SYSTEM_SECONDS = 2e-3  # of one item's system in sparse EASE, with 200 neighbours, on two cores
_TILED, _FEW_ITEMS = ("itemknn", "rp3beta", "graph_filter"), 5_000  # they look at every pair of items
_TILE, _KEPT = (64, 16_384), 200  # pairs of items that their rate is measured by, and the neighbours that are kept
# iALS: what one list costs beside its products, and how much slower its small products are than large ones.
_LIST_SECONDS, _SLOWER, LEAST_ITERATIONS = 2e-5, 8.0, 2
# Their defaults
_MEMORY = {"ease": 8e9, "sparse_ease": 4e9, "slim": 8e9, "itemknn": 8e9, "rp3beta": 8e9, "graph_filter": 4e9}


@dataclass(frozen=True)
class Candidate:
    """A model, with a loss if it is trained by one, the settings of its first trial, and the ranges of its search."""

    name: str
    model: str
    loss: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] | None = None

    @property
    def is_trained(self) -> bool:
        return self.loss is not None

    @property
    def family(self) -> str:
        """Models of one family make similar mistakes: a blend wants several families."""
        families = {"mf": "factors", "ials": "factors", "history": "history", "popularity": "popularity"}
        return families.get(self.model, "items")


def candidates(k: int, split: Split) -> list[Candidate]:
    """In the order in which they are tried.

    First what is cheap, or has a time that is known before it runs. MF comes before iALS and SLIM, of which one fit can
    take all of a short budget, so that a result is never below what training alone would have given.
    """
    cheap = {"popularity": "popularity", "item-kNN": "itemknn", "RP3beta": "rp3beta", "graph filter": "graph_filter"}
    cheap |= {"EASE": "ease", "sparse EASE": "sparse_ease"}
    dim = 256 if split.n_users + split.n_items < _MANY else 64
    return [
        *_closed(cheap),
        *(_trained(f"MF, {name}", "mf", loss, dim, 0.03, _RATES) for loss, name in _losses(k)),
        *_closed({"iALS": "ials", "SLIM": "slim"}),
        *(_trained(f"history, {name}", "history", loss, dim, 0.01, (0.003, 0.01, 0.03)) for loss, name in _losses(k)),
    ]


def _closed(models: dict[str, str]) -> list[Candidate]:
    return [Candidate(name, model, settings=_within_memory(model)) for name, model in models.items()]


def _losses(k: int) -> tuple[tuple[str, str], ...]:
    return ("softmax", "softmax"), ("slatk", f"SL@{k}")


def _trained(name: str, model: str, loss: str, dim: int, rate: float, rates: tuple[float, ...]) -> Candidate:
    train = {"learning_rate": rate, "batch_size": 512, "weight_decay": 0.0, "epochs": 120, "patience": 5}
    settings: dict[str, Any] = {"model": {"dim": dim}, "loss": {"tau": 0.2}, "train": train}
    ranges = {**_SHARED, "train.learning_rate": rates}
    if loss == "slatk":
        settings["loss"]["tau_weight"] = 2.5
        ranges |= _WEIGHT
    if model == "history":
        ranges["model.drop"] = (0.1, 0.2, 0.35)
    return Candidate(name, model, loss, settings, ranges)


def _within_memory(model: str) -> dict[str, Any]:
    """A limit below the model's own where less memory is free, in steps of a gigabyte or a tenth of one."""
    free = SHARE * available()
    if model not in _MEMORY or free >= _MEMORY[model]:
        return {}
    step = 1e9 if free > 1e9 else 1e8
    return {"model": {"memory": max(step, free // step * step)}}


def expected_seconds(candidate: Candidate, split: Split) -> float | None:
    """A rough time of one fit that cannot be stopped in the middle; None where it is short or not known."""
    if candidate.model == "ease":
        return 2.0 * split.n_items**3 / _product_rate()
    if candidate.model == "sparse_ease":
        return _SYSTEM_SECONDS * split.n_items
    if candidate.model == "slim":
        return _SLIM_SECONDS * (split.n_items / _SLIM_ITEMS) ** _SLIM_POWER
    if candidate.model in _TILED and split.n_items > _FEW_ITEMS:
        return _cell_seconds() * split.n_items**2
    return None


def iteration_seconds(dim: int, split: Split) -> float:
    """What an iteration of iALS takes, roughly: a system for every user and every item, as large as its list."""
    train = split.lists("train")
    seconds, rate = 0.0, _product_rate()
    for counts in (train.counts, torch.bincount(train.indices, minlength=split.n_items)):
        sizes = counts.double().clamp(max=dim)
        work = float((counts * sizes * dim + sizes**3 / 3 + dim**2).sum())
        seconds += _LIST_SECONDS * counts.numel() + _SLOWER * work / rate
    return seconds


def least_epoch_seconds(dim: int, split: Split) -> float:
    """What an epoch over the whole catalogue takes at least: all scores, and the gradients of both sides."""
    return 3.0 * split.n_users * split.n_items * dim / _product_rate()


def _product_rate(size: int = 768) -> float:
    """Multiply-adds of this machine per second, in a product of two matrices; the second of two."""
    table = torch.ones(size, size)
    table @ table
    started = time.perf_counter()
    table @ table
    return float(size**3 / max(time.perf_counter() - started, 1e-6))


def _cell_seconds() -> float:
    """What a model that looks at every pair of items spends on one: a dense block, of which the strongest are kept."""
    values, indices = torch.empty(_TILE[0], _KEPT), torch.empty(_TILE[0], _KEPT, dtype=torch.int64)
    draw, seconds = torch.Generator().manual_seed(0), 0.0
    cells = torch.rand(*_TILE, generator=draw, dtype=torch.float64)
    for _ in range(2):  # the first compiles
        started = time.perf_counter()
        tile = (cells * 0.5).float()
        tile[tile <= 0] = -torch.inf
        kernels.keep_best(tile, values.fill_(-torch.inf), indices.fill_(-1))
        seconds = time.perf_counter() - started
    return seconds / tile.numel()
