"""Blend runs: the weighted sum of the scores of their models, with weights chosen on validation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from topshelf import kernels
from topshelf.config import Component, RunConfig, TrainSettings
from topshelf.data import Split
from topshelf.errors import CheckpointError, ConfigError, DataError, TrainingError
from topshelf.item_table import ItemVectors, products
from topshelf.metrics import ndcg_at_k
from topshelf.models.blend import LEAST_SCALE, checked_weights
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import NO_ITEM, QueryVectors
from topshelf.training import Fitted, fit, load, save
from topshelf.training.build import build_model, resolve
from topshelf.training.folder import RunFolder
from topshelf.training.origin import Origin, TrainedPart

GRID = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
SAMPLE = 1 << 22  # cells of users x items that the spread of a model's scores is estimated from
WORKSPACE = 64 << 20  # bytes of a block of scores; the search has up to four such blocks
MOST_ROWS = 1 << 11  # users per block

Vectors = tuple[QueryVectors, ItemVectors]


def blend(
    runs: Sequence[Fitted | str | Path],
    *,
    weights: Sequence[float] | None = None,
    quiet: bool = True,
    out: str | Path | None = None,
) -> Fitted:
    """One model of several: the sum of their scores, each divided by its standard deviation and times its weight.

    Every run has the weight 1, unless another value of ``GRID`` is clearly better: if its gain in NDCG@K on the
    validation part, with train masked, is more than one standard error over users. Runs are added one at a time to the
    best single run, from the next best to the worst. If the sum is no better than the best run alone, all others have
    the weight 0. The order of the runs only decides between equally good runs; parts and weights are kept in it.
    ``weights``, one per run, override the search. ``out`` keeps the blend in a run folder.

    Runs are fitted models or run folders. They must have the same split, K and ``train.refit``. Refitted models have
    seen the validation part: models with the same settings and no refit are trained to choose weights and scales, and
    given weights are then not validated (``valid_score`` is None).
    Cost: for every run, the scores of the users with validation items, and their best K; for all but the best run, the
        scores of the runs before it, and their best K for each weight of the grid; for refitted runs, one more
        training each. Memory beside the models: blocks of scores of ``WORKSPACE`` bytes.
    """
    started = time.perf_counter()
    if out is not None:
        RunFolder(out).check_new()
    fitted = _opened(runs)
    first = fitted[0]
    if weights is not None:
        weights = checked_weights("weights", weights, len(fitted))
    is_trained_again = first.config.train.refit and weights is None
    search = WeightSearch([_unrefitted(run, quiet) for run in fitted] if is_trained_again else fitted)
    valid_score: float | None = None
    if weights is None:
        weights, valid_score = search.weights()
    elif not first.config.train.refit:
        valid_score = search.valid_score(weights)
    seconds = time.perf_counter() - started + sum(run.seconds for run in fitted)
    blended = combined(fitted, weights, search.scales, seconds=seconds, valid_score=valid_score)
    if out is not None:
        save(blended, out)
    return blended


def combined(runs: Sequence[Fitted], weights: Sequence[float], scales: Sequence[float], **more: Any) -> Fitted:
    """The blend of fitted models with given weights and scales; ``more`` are other fields of its Fitted."""
    config, first = _config(runs, weights, scales), runs[0]
    model = build_model(config, first.model.n_queries, first.model.n_items)
    model.parts = nn.ModuleList(run.model for run in runs)  # the fitted ones in place of those just made
    parts = tuple(TrainedPart(run.config, run.best_epoch) for run in runs)
    return Fitted(config, first.dataset, model, **{"origin": Origin(parts=parts), **more})


class WeightSearch:
    """Scores of models on a validation part that they have not seen, one block of users at a time."""

    @torch.no_grad()
    def __init__(self, runs: Sequence[Fitted]) -> None:
        self.k, self.n_items = runs[0].config.k, runs[0].model.n_items
        self.train, self.valid = (runs[0].dataset.split.lists(part) for part in ("train", "valid"))
        known = QuerySet.known(runs[0].model.n_queries)
        self.encoded: list[Vectors] = [run.model.encode(known) for run in runs]
        self.users = (self.valid.counts > 0).nonzero().squeeze(1)
        self.scales = [spread(queries, items) for queries, items in self.encoded]

    def weights(self, *, any_number: bool = False) -> tuple[list[float], float]:
        """Weights and their NDCG@K: those of the best run alone if no sum is better.

        With ``any_number``, the sum may also end before a run that does not help.
        """
        chosen = [0.0] * len(self.encoded)
        alone = [float(self._ndcg(chosen, part, (1.0,)).mean()) for part in range(len(chosen))]
        first, *others = sorted(range(len(chosen)), key=lambda part: -alone[part])  # equal ones in the given order
        chosen[first] = 1.0
        sums = [(list(chosen), alone[first])]
        for part in others:
            scores = self._ndcg(chosen, part, GRID)
            at = clearly_best(scores, GRID.index(1.0))
            chosen[part] = GRID[at]
            sums.append((list(chosen), float(scores[at].mean())))
        return max(sums if any_number else (sums[0], sums[-1]), key=lambda some: some[1])  # of equal ones the first

    def valid_score(self, weights: Sequence[float]) -> float:
        return float(self._ndcg([*weights[:-1], 0.0], len(weights) - 1, weights[-1:]).mean())

    @torch.no_grad()
    def _ndcg(self, weights: Sequence[float], part: int, candidates: Sequence[float]) -> Tensor:
        """NDCG@K (C, U) with each candidate as the weight of a part that has the weight 0 in ``weights``."""
        blocks: list[Tensor] = []
        for rows in _blocks(self.users, self.n_items):
            wanted, masked = self.valid.select(rows), self.train.select(rows)
            known = self._sum(rows, weights)
            kernels.hide(known, masked.indptr, masked.indices)  # what is -inf here stays so in every sum
            added = _scores(self.encoded[part], rows).div_(self.scales[part])
            tile = torch.empty_like(known)
            sums = (torch.add(known, added, alpha=weight, out=tile) for weight in candidates)
            blocks.append(torch.stack([_ndcg_of_each(total, wanted, self.k) for total in sums]))
        return torch.cat(blocks, dim=1)

    def _sum(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        total = torch.zeros(rows.numel(), self.n_items)
        for weight, scale, encoded in zip(weights, self.scales, self.encoded, strict=True):
            if weight > 0:
                total.add_(_scores(encoded, rows), alpha=weight / scale)
        return total


def clearly_best(scores: Tensor, usual: int) -> int:
    """The row of (C, U) with the best mean among those more than one standard error above row ``usual``; else that."""
    gain = scores - scores[usual]
    means = gain.mean(1)
    errors = gain.std(1, correction=0) / gain.size(1) ** 0.5
    means[means <= errors] = 0.0
    return int(means.argmax()) if (means > 0).any() else usual


@torch.no_grad()
def spread(queries: QueryVectors, items: ItemVectors) -> float:
    """The standard deviation of the scores of all cells, or of a fixed sample of at most ``SAMPLE``.

    1 if all scores are (almost) equal.
    """
    n_rows, n_columns = len(queries), items.size(0)
    rows, columns = torch.arange(n_rows), torch.arange(n_columns)
    if n_rows * n_columns > SAMPLE:
        draw = torch.Generator().manual_seed(0)
        n_columns = min(n_columns, max(MOST_ROWS, SAMPLE // n_rows))
        rows = torch.randperm(n_rows, generator=draw)[: SAMPLE // n_columns]
        columns = torch.randperm(items.size(0), generator=draw)[:n_columns]
    some = items[columns.to(items.device)]
    scores = torch.cat([_scores((queries, some), part).flatten() for part in _blocks(rows, items.size(0))])
    deviation = float(scores.double().std(correction=0))
    if not math.isfinite(deviation):
        raise TrainingError("scores must be finite numbers, and those of a run are not; train it again")
    return deviation if deviation >= LEAST_SCALE else 1.0


def _blocks(rows: Tensor, n_items: int) -> Iterator[Tensor]:
    yield from torch.split(rows, max(1, min(MOST_ROWS, WORKSPACE // (4 * n_items))))


def _scores(encoded: Vectors, rows: Tensor) -> Tensor:
    queries, items = encoded
    return products(queries[rows.to(items.device)], items).float().cpu()


def _ndcg_of_each(scores: Tensor, wanted: Ragged, k: int) -> Tensor:
    values = scores.new_full((scores.size(0), k), -torch.inf)
    indices = torch.full((scores.size(0), k), NO_ITEM)
    kernels.keep_best(scores, values, indices)
    return ndcg_at_k(kernels.hits(indices, wanted.indptr, wanted.indices), wanted.counts)


def _opened(runs: Sequence[Fitted | str | Path]) -> list[Fitted]:
    """The runs, refused where they cannot be blended."""
    if isinstance(runs, str | Path) or len(runs) < 2:
        what = repr(str(runs)) if isinstance(runs, str | Path) else len(runs)
        raise ConfigError(f"a blend must have a list of at least 2 runs, got {what}")
    named = []
    for at, given in enumerate(runs, start=1):
        if isinstance(given, Fitted):
            named.append((f"run {at} ({given.config.model.name})", given))
            continue
        if not isinstance(given, str | Path):
            raise ConfigError(
                f"a run must be a folder or a Fitted, got {type(given).__name__} as run {at}; for a Recommender, pass "
                "its .fitted"
            )
        if not RunFolder.open(given).metrics.exists():
            raise CheckpointError(f"{given} is not finished; finish it: topshelf train --resume {given}")
        named.append((str(given), load(given)))
    for some in named:
        _check_alone(*some)
        _check_together(*named[0], *some)
    return [run for _, run in named]


def _check_alone(name: str, run: Fitted) -> None:
    if run.config.model.name == "blend":
        raise ConfigError(f"{name} is a blend; give the runs that it was made from")
    if run.config.train.refit == "all":
        raise ConfigError(
            f"{name} was refitted on everything, the test part too, so a blend of it cannot be measured; train it "
            "again with train.refit = true"
        )


def _check_together(name: str, run: Fitted, other_name: str, other: Fitted) -> None:
    pairs = {"k": (run.config.k, other.config.k), "train.refit": (run.config.train.refit, other.config.train.refit)}
    for setting, (a, b) in pairs.items():
        if a != b:
            raise ConfigError(f"blended runs must have the same {setting}, got {a} in {name} and {b} in {other_name}")
    for what in _differences(run.dataset.split, other.dataset.split):
        raise DataError(
            f"blended runs must be of the same data and split, got other {what} in {name} than in {other_name}; "
            "train them on the same data with the same data settings and seed"
        )


def _differences(a: Split, b: Split) -> Iterator[str]:
    for ids in ("users", "items"):
        if not getattr(a, ids).values.equals(getattr(b, ids).values):
            yield ids
    for part in a.parts:
        one, other = (split.lists(part) for split in (a, b))
        if not (torch.equal(one.indptr, other.indptr) and torch.equal(one.indices, other.indices)):
            yield f"{part} interactions"


def _unrefitted(run: Fitted, quiet: bool) -> Fitted:
    train = run.config.train.model_copy(update={"refit": False})
    return fit(run.config.model_copy(update={"train": train}), run.dataset, quiet=quiet)


def _config(runs: Sequence[Fitted], weights: Sequence[float], scales: Sequence[float]) -> RunConfig:
    first = runs[0].config
    parts = [{"name": run.config.model.name, **run.config.model.settings} for run in runs]
    model = Component.model_validate(
        {"name": "blend", "weights": list(weights), "parts": parts, "scales": list(scales)}
    )
    train = TrainSettings(refit=first.train.refit)  # what the parts have seen; other settings are in their own runs
    same = {name: getattr(first, name) for name in ("seed", "k", "data", "evaluate")}
    return resolve(RunConfig(**same, model=model, train=train), is_fitted=True)
