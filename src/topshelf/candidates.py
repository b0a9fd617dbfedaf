"""The best of a given list of items per query, ordered as in :mod:`topshelf.ranking`: by score, then by item index."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from topshelf import kernels
from topshelf.errors import DataError, at_least
from topshelf.item_table import ItemVectors
from topshelf.ragged import Ragged
from topshelf.ranking import WORKSPACE, QueryVectors, chosen_rows, count_in, keep_best, no_places, refuse_nan


@torch.no_grad()
def ranked_candidates(
    queries: QueryVectors,
    items: ItemVectors,
    k: int,
    candidates: Ragged,
    *,
    rows: Tensor | None = None,
    targets: Ragged | None = None,
    workspace: int = WORKSPACE,
) -> Iterator[tuple[Tensor, ...]]:
    """:func:`topshelf.ranking.ranked_tiles` over each query's own candidates, a block of queries at a time.

    Shapes: queries (U, d); items (I, d); candidates: U sets of items; targets: U sets of candidates; rows (Q,).
    Yields (rows (B,), values (B, k), indices (B, k)) and, with targets, (above (P,), equal (P,)), as
        :func:`topshelf.ranking.ranked_tiles` does. A list with fewer than k candidates ends with index -1, value -inf.
    Cost: a dot product per candidate. Memory O(workspace), but never less than the longest list.
    """
    at_least("k", k, 1)
    candidates.check(items.size(0), "candidates", n_lists=len(queries), unique=True)
    longest = max(1, int(candidates.counts.max())) if len(candidates) else 1
    cells = at_least("workspace", workspace, 1) // (4 * items.size(1))  # scores of which the vectors fit
    for part in torch.split(chosen_rows(queries, rows), max(1, cells // longest)):
        lists = candidates.select(part.to(candidates.indptr.device)).to(items.device)
        scores, entries = _padded_scores(queries[part], items, lists)
        values, places = no_places(part.numel(), k, scores.dtype, items.device)
        keep_best(scores, values, places, 0)
        refuse_nan(values, part)
        indices = torch.where(places < 0, places, entries.gather(1, places.clamp(min=0)))
        if targets is None:
            yield part, values.float(), indices
            continue
        wanted = targets.select(part.to(targets.indptr.device)).to(items.device)
        yield part, values.float(), indices, *count_in(scores, _positions(wanted, lists))


def _padded_scores(vectors: Tensor, items: ItemVectors, lists: Ragged) -> tuple[Tensor, Tensor]:
    """Scores (B, L) of the lists, -inf after the last, and the items (B, L) they are of."""
    length = max(1, int(lists.counts.max()))
    inside = torch.arange(length, device=items.device) < lists.counts.unsqueeze(1)
    vectors = (vectors if vectors.layout == torch.strided else vectors.to_dense()).to(items.device)
    dtype = torch.float64 if torch.float64 in (vectors.dtype, items.dtype) else torch.float32
    vectors, flat = vectors.to(dtype), torch.empty(lists.indices.numel(), dtype=dtype, device=items.device)
    if isinstance(items, Tensor) and kernels.fits(vectors, items) and items.is_contiguous():
        kernels.list_scores(vectors.contiguous(), items, lists.indptr, lists.indices, flat)
    else:
        flat = (vectors[lists.owner()] * items[lists.indices].to(dtype)).sum(1)
    scores = torch.full(inside.shape, -torch.inf, dtype=dtype, device=items.device)
    entries = torch.zeros(inside.shape, dtype=torch.int64, device=items.device)
    scores[inside], entries[inside] = flat, lists.indices
    return scores, entries


def _positions(wanted: Ragged, lists: Ragged) -> Ragged:
    """The position of each wanted item in its list."""
    owner = wanted.owner()
    entry = lists.find(owner, wanted.indices)
    if bool((entry < 0).any()):
        raise DataError(f"targets must be candidates, got item {int(wanted.indices[entry < 0][0])}, which is not")
    return Ragged(wanted.indptr, entry - lists.indptr[owner])
