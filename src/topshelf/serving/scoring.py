"""Exact lists of a few queries at a time, each with its own items to leave out and its own filter.

The order is that of :mod:`topshelf.ranking`: by score, then by item index. The buffers are kept per thread, because
fresh ones of this size cost more than the scores in them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from topshelf.item_table import ItemTable, ItemVectors, products, rows_of
from topshelf.ragged import Ragged
from topshelf.ranking import CACHED, MAX_TILE, ROW_MULTIPLE, hide, keep_best, no_places, refuse_nan, reused

_kept = threading.local()


def ragged(lists: Sequence[np.ndarray]) -> Ragged:
    """Lists of indices as one Ragged."""
    indptr = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=indptr[1:])
    indices = np.concatenate(lists) if lists else np.zeros(0, np.int64)
    return Ragged(torch.from_numpy(indptr), torch.from_numpy(indices.astype(np.int64, copy=False)))


@torch.no_grad()
def best_items(
    vectors: Tensor, items: ItemVectors, k: int, exclude: Ragged, masks: Sequence[np.ndarray | None]
) -> tuple[Tensor, Tensor]:
    """The k best items per query, best first; -inf and -1 where there are fewer.

    Shapes: vectors (B, d), dense or CSR; items (I, d); exclude: B lists of items to leave out; masks: per query the
        items that may be listed, (I,) of bool, None for all; returns scores and items (B, k).
    """
    n_rows, n_items = vectors.size(0), items.size(0)
    dtype = torch.float64 if torch.float64 in (vectors.dtype, items.dtype) else torch.float32
    vectors = vectors.to(dtype)
    values, indices = no_places(n_rows, k, dtype, items.device)
    width = n_items if n_rows * n_items * 4 <= CACHED else MAX_TILE
    stride = -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
    _kept.buffer = reused(getattr(_kept, "buffer", None), n_rows * stride, dtype, items.device)
    for start in range(0, n_items, width):
        stop = min(start + width, n_items)
        tile = _kept.buffer[: n_rows * stride].view(n_rows, stride)[:, : stop - start]
        if isinstance(items, ItemTable):
            items.scores(vectors, start, tile)
        else:
            torch.mm(vectors, items[start:stop].to(dtype).T, out=tile)
        hide(tile, exclude, start)
        for row, mask in enumerate(masks):
            if mask is not None:
                tile[row].masked_fill_(~torch.from_numpy(mask[start:stop]), -torch.inf)
        keep_best(tile, values, indices, start)
    refuse_nan(values, torch.arange(n_rows))
    return values, indices


@torch.no_grad()
def best_of(vector: Tensor, items: ItemVectors, k: int, candidates: np.ndarray) -> tuple[Tensor, Tensor]:
    """The same for one query (1, d) and given candidates, ascending; the lists have at most k places."""
    chosen = torch.from_numpy(candidates)
    scores = candidate_scores(vector, items, chosen)
    order = torch.sort(scores, descending=True, stable=True).indices[:k]
    return scores[order], chosen[order]


@torch.no_grad()
def candidate_scores(vector: Tensor, items: ItemVectors, chosen: Tensor) -> Tensor:
    """Scores of one query (1, d) for the chosen items (C,)."""
    dtype = torch.float64 if torch.float64 in (vector.dtype, items.dtype) else torch.float32
    some = rows_of(items, chosen)
    return products(vector.to(dtype), some if isinstance(some, ItemTable) else some.to(dtype))[0]
