"""Places of ranked lists turned into metrics: the one engine behind every evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from topshelf.candidates import ranked_candidates
from topshelf.evalset import EvalSet
from topshelf.item_table import ItemVectors
from topshelf.metrics import auc, every_metric, item_exposure
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors, ranked_tiles

BLOCK = 1 << 13  # users whose lists are measured at once


def ranked_places(
    queries: QueryVectors, items: ItemVectors, evalset: EvalSet, k: int, with_auc: bool
) -> Iterator[tuple[Tensor, ...]]:
    """Places (B, k) of the evaluated queries in tiles; with AUC, also the counts above and equal of their targets."""
    rows, targets = evalset.evaluated, evalset.targets if with_auc else None
    if evalset.candidates is not None:
        ranked = ranked_candidates(queries, items, k, evalset.candidates, rows=rows, targets=targets)
    else:
        ranked = ranked_tiles(queries, items, k, exclude=evalset.exclude, rows=rows, targets=targets)
    for _, _, places, *counts in ranked:
        yield places, *counts


def measure(
    tiles: Iterable[tuple[Tensor, ...]], evalset: EvalSet, cutoffs: tuple[int, ...], n_items: int
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """Every metric of the evaluated queries, "ndcg@20" -> (n,), and how often each item was listed at each cut-off.

    ``tiles`` as of :func:`ranked_places`, in the order of ``evalset.evaluated``, of which there must be one.
    """
    users, counts, blocks = evalset.evaluated, list[list[Tensor]](), list[Tensor]()
    between = torch.zeros(len(cutoffs), n_items, dtype=torch.int64)
    for part, places in in_blocks(users, tiles, counts):
        gains, n_relevant, ideal = evalset.ranked_gains(part, places)
        values = every_metric(gains, n_relevant, cutoffs, ideal)
        blocks.append(torch.stack(list(values.values())))
        if evalset.empty == "one":
            blocks[-1][:, n_relevant == 0] = 1.0
        for row, above, k in zip(between, (0, *cutoffs), cutoffs, strict=False):
            row += item_exposure(places[:, above:k], n_items)
    per_user = dict(zip(values, torch.cat(blocks, 1), strict=True))
    if counts[0]:
        per_user["auc"] = _user_auc(counts, evalset.targets.select(users), evalset.n_ranked(users, n_items))
    exposure = between.cumsum(0)  # lists are nested: K places hold those of smaller K
    return per_user, dict(zip(cutoffs, exposure, strict=True))


def in_blocks(
    users: Tensor, tiles: Iterable[tuple[Tensor, ...]], counts: list[list[Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of ``BLOCK`` users with their places, on the CPU; what else is in a tile is put into ``counts``.

    Many small operations on each tile would cost more than its ranking, and a product of a whole block gives the same
    bits whatever the tiles were.
    """
    waiting: list[Tensor] = []
    for places, *rest in tiles:
        waiting.append(places.cpu())
        counts.append([tensor.cpu() for tensor in rest])
        if sum(map(len, waiting)) >= BLOCK:
            blocks = torch.cat(waiting).split(BLOCK)
            waiting = [block for block in blocks if len(block) < BLOCK]
            for block in blocks[: len(blocks) - len(waiting)]:
                yield users[:BLOCK], block
                users = users[BLOCK:]
    if waiting:
        yield users, torch.cat(waiting)


def _user_auc(counts: list[list[Tensor]], targets: Ragged, n_ranked: Tensor) -> Tensor:
    """AUC of the users (U,), given how many items are above their targets, and equal to them, (P,) each, in tiles."""
    both = torch.stack([torch.cat(parts) for parts in zip(*counts, strict=True)])
    above, equal = torch.zeros(2, len(targets), dtype=torch.int64).index_add_(1, targets.owner(), both)
    return auc(above, equal, targets.counts, n_ranked)
