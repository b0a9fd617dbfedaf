"""The best items of each query over a whole catalogue: exact, tiled, and with one order for ties.

The order is score descending, then item index ascending. It holds inside a list and at its end, and it does
not depend on the tile sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from topshelf.errors import DataError, TrainingError, at_least, at_most
from topshelf.ragged import Ragged

WORKSPACE = 64 << 20  # bytes of scores held at once; larger gained nothing in the matrix product
MAX_TILE = 1 << 16  # items a tile: leaves 256 queries in the default workspace, enough to feed the product
COUNTING_BLOCK = 1 << 20  # scores compared at once: 4 MiB stay in the cache while every target passes by
MIN_CHUNK = 32  # below it torch takes maxima much more slowly
ROW_MULTIPLE = 16  # rows of whole cache lines: the product of 40,988 items took 0.6 of the time
NO_ITEM = -1


class Queries(Protocol):
    """A tensor (U, d), or anything that hands out the vectors of some rows the way a tensor does."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


def top_k(
    queries: Queries,
    items: Tensor,
    k: int,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    tile: int | None = None,
    workspace: int = WORKSPACE,
) -> tuple[Tensor, Tensor]:
    """The k items of highest dot product for each query, best first; equal scores by item index.

    Shapes: queries (U, d); items (I, d); exclude: U lists of items that must not appear; rows (Q,): the
        queries to rank, all when None; returns values (Q, k) float32 and item indices (Q, k) int64.
    A query with fewer than k items left gets index -1 and value -inf in the last places.
    ``tile`` is the number of items scored at once and ``workspace`` the bytes of the score buffer; neither
    changes the order. float16 and bfloat16 vectors are multiplied in float32, float64 ones in float64.
    Cost: one matrix product and one pass over the scores; memory O(workspace + Qk).
    """
    parts = list(ranked_tiles(queries, items, k, exclude=exclude, rows=rows, tile=tile, workspace=workspace))
    if not parts:
        return items.new_empty(0, k, dtype=torch.float32), items.new_empty(0, k, dtype=torch.int64)
    return torch.cat([values for _, values, _ in parts]), torch.cat([indices for _, _, indices in parts])


@torch.no_grad()
def ranked_tiles(
    queries: Queries,
    items: Tensor,
    k: int,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    tile: int | None = None,
    workspace: int = WORKSPACE,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """:func:`top_k` a tile of queries at a time: (rows (B,), values (B, k), indices (B, k))."""
    at_most("k", at_least("k", k, 1), items.size(0), "the number of items")
    _check_exclude(exclude, len(queries), items.size(0))
    width = _tile_width(items.size(0), tile)
    board = _Board(items, workspace, width)
    for part in torch.split(_all_rows(queries, rows), board.n_rows):
        board.seat(queries[part], _excluded(exclude, part))
        values, indices = _merge_item_tiles(board, k, width)
        if bool(values[:, 0].isnan().any()):  # NaN sorts above every number, so it stands first
            raise _nan_scores(f"query {int(part[values[:, 0].isnan().to(part.device)][0])}")
        indices.masked_fill_(values == -torch.inf, NO_ITEM)
        yield part, values.float(), indices


def kth_best(scores: Tensor, k: int) -> Tensor:
    """The k-th highest of each row: scores (B, W) to (B,). Two short selections where the rows are long."""
    chunk = MIN_CHUNK
    if scores.size(1) % chunk or scores.size(1) < 2 * chunk * k:
        return scores.topk(k, dim=1).values[:, -1]
    chunks = scores.view(scores.size(0), -1, chunk)
    chosen = chunks.amax(-1).topk(k, dim=1, sorted=False).indices  # the k best lie in these chunks
    candidates = chunks.gather(1, chosen.unsqueeze(2).expand(-1, -1, chunk)).flatten(1)
    return candidates.topk(k, dim=1).values[:, -1]


@torch.no_grad()
def count_above(
    queries: Queries,
    items: Tensor,
    targets: Ragged,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    workspace: int = WORKSPACE,
) -> tuple[Tensor, Tensor]:
    """How many items stand above each target, and how many beside it with an equal score.

    Shapes: queries (U, d); items (I, d); targets and exclude: U lists each, without a common item; rows (Q,);
        returns two int64 tensors (P,), in the order of ``targets.select(rows)``.
    Excluded items are not counted; the other targets of the query are; the target itself is not.
    Cost: one matrix product and two comparisons of a row for each of its targets; memory O(workspace + P),
        but never less than one row of scores.
    """
    _check_exclude(exclude, len(queries), items.size(0))
    if bool(items.isnan().any()):  # NaN is neither above nor beside, and would pass unnoticed
        raise _nan_scores("an item")
    rows = _all_rows(queries, rows)
    wanted = targets.select(rows.to(targets.indptr.device)).to(items.device)
    above, equal = torch.zeros_like(wanted.indices), torch.zeros_like(wanted.indices)
    places = Ragged(wanted.indptr, torch.arange(wanted.indices.numel(), device=items.device))
    board = _Board(items, workspace, items.size(0))
    # Queries with like numbers of targets share a tile, so that few comparisons are wasted.
    order = wanted.counts.argsort(descending=True, stable=True)
    for part in torch.split(order[wanted.counts[order] > 0], board.n_rows):
        chosen = rows[part.to(rows.device)]
        board.seat(queries[chosen], _excluded(exclude, chosen))
        scores = board.scores(0, items.size(0))
        block = max(1, COUNTING_BLOCK // items.size(0))
        for some, some_scores in zip(torch.split(part, block), torch.split(scores, block), strict=True):
            _count_block(some_scores, wanted.select(some), places.select(some), above, equal)
    return above, equal


class _Board:
    """One reused buffer of scores: a tile of queries is seated, then scored against tiles of items."""

    def __init__(self, items: Tensor, workspace: int, width: int) -> None:
        # A row-giver (a linear model) can have vectors as long as the catalogue; they count as workspace too.
        widest = max(width, items.size(1))
        self.items = items
        self.n_rows = max(1, at_least("workspace", workspace, 1) // (widest * max(4, items.element_size())))
        self.buffer = torch.empty(0, device=items.device)

    def seat(self, vectors: Tensor, exclude: Ragged | None) -> None:
        is_double = torch.float64 in (vectors.dtype, self.items.dtype)
        self.vectors = vectors.to(self.items.device, torch.float64 if is_double else torch.float32)
        self.exclude = exclude.to(self.items.device) if exclude is not None else None

    def scores(self, start: int, stop: int, multiple: int = ROW_MULTIPLE) -> Tensor:
        """Scores (B, W) of items start..stop, -inf where excluded; -inf also pads W to ``multiple``."""
        n_rows, width = self.vectors.size(0), stop - start
        padded = -(-width // multiple) * multiple
        if self.buffer.numel() < n_rows * padded or self.buffer.dtype != self.vectors.dtype:
            self.buffer = self.vectors.new_empty(n_rows * padded)
        scores = self.buffer[: n_rows * padded].view(n_rows, padded)
        items = self.items[start:stop].to(self.vectors.dtype)
        torch.matmul(self.vectors, items.T, out=scores[:, :width])
        scores[:, width:] = -torch.inf
        if self.exclude is not None:
            inside = (self.exclude.indices >= start) & (self.exclude.indices < stop)
            scores[self.exclude.owner()[inside], self.exclude.indices[inside] - start] = -torch.inf
        return scores


def _merge_item_tiles(board: _Board, k: int, width: int) -> tuple[Tensor, Tensor]:
    """The k best of the seated queries, by a running merge over item tiles in index order."""
    n_items = board.items.size(0)
    best_values, best_indices = board.vectors.new_empty(0), board.vectors.new_empty(0, dtype=torch.int64)
    for start in range(0, n_items, width):
        stop = min(start + width, n_items)
        kept = min(k, stop - start)
        chunk = _chunk_size(stop - start, kept)
        values, positions = _best(board.scores(start, stop, max(chunk, ROW_MULTIPLE)), kept, chunk)
        if start == 0:
            best_values, best_indices = values, positions
            continue
        # The earlier tiles hold the lower indices and come first: a stable sort keeps ties in index order.
        values, order = torch.cat([best_values, values], 1).sort(dim=1, descending=True, stable=True)
        indices = torch.cat([best_indices, positions + start], 1).gather(1, order)
        best_values, best_indices = values[:, :k], indices[:, :k]
    return best_values, best_indices


def _chunk_size(width: int, k: int) -> int:
    """About sqrt(width / k), a power of two: chunk maxima and candidates are then equally many."""
    if width < 2 * MIN_CHUNK * k:
        return 1  # the candidates would be most of the tile
    return max(MIN_CHUNK, 1 << ((width // k).bit_length() // 2))


def _best(scores: Tensor, k: int, chunk: int) -> tuple[Tensor, Tensor]:
    """The k best of each row (B, W), best first and ties by position; ``chunk`` divides W.

    The k best lie in the k chunks of highest maximum (ties to the earlier chunk): were one elsewhere, each of
    those chunks would hold an item before it. So two short selections replace one long one.
    """
    if chunk == 1:
        positions = _best_set(scores, k)
    else:
        chunks = scores.view(scores.size(0), -1, chunk)
        chosen = _best_set(chunks.amax(-1), k)  # (B, k)
        first = torch.arange(0, chunks.size(0) * chunks.size(1), chunks.size(1), device=scores.device)
        flat = (chosen + first.unsqueeze(1)).flatten()
        candidates = chunks.flatten(0, 1).index_select(0, flat).view(scores.size(0), -1)  # (B, k * chunk)
        inner = _best_set(candidates, k)
        positions = chosen.gather(1, inner // chunk) * chunk + inner % chunk
    values, order = scores.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, order)


def _best_set(scores: Tensor, k: int) -> Tensor:
    """Positions (B, k), ascending, of the k best of each row (B, W); ties go to the lower position."""
    if k == scores.size(1):
        return torch.arange(k, device=scores.device).expand(scores.size(0), k)
    values, positions = scores.topk(k + 1, dim=1)
    positions = positions[:, :k].sort(dim=1).values
    # torch.topk picks any of several equal scores; only a tie across the end of the list can pick wrongly.
    tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
    if bool(tied.any()):
        some, last = scores[tied], values[tied, k].unsqueeze(1)
        above = ~(some <= last)  # phrased so that NaN counts as above, as in topk
        equal = some == last
        free = k - above.sum(1, keepdim=True)
        positions[tied] = (above | (equal & (equal.cumsum(1) <= free))).nonzero()[:, 1].view(-1, k)
    return positions


def _count_block(scores: Tensor, wanted: Ragged, places: Ragged, above: Tensor, equal: Tensor) -> None:
    """Write the counts of a block (B, I) whose rows have ever fewer targets: the j-th ones are a prefix."""
    flags = torch.empty_like(scores, dtype=_count_type(scores))
    for j in range(int(wanted.counts[0])):
        n = int((wanted.counts > j).sum())
        at = wanted.indptr[:n] + j
        target = scores[:n].gather(1, wanted.indices[at].unsqueeze(1))  # (n, 1)
        n_above = torch.gt(scores[:n], target, out=flags[:n]).sum(1).long()
        n_not_below = torch.ge(scores[:n], target, out=flags[:n]).sum(1).long()
        above[places.indices[at]] = n_above
        equal[places.indices[at]] = n_not_below - n_above - 1
        if bool(target.isnan().any()):
            raise _nan_scores("a target")


def _count_type(scores: Tensor) -> torch.dtype:
    # Flags are summed as floats, which is faster than as booleans; float32 counts exactly up to 2**24.
    return scores.dtype if scores.size(1) <= 1 << 24 else torch.float64


def _tile_width(n_items: int, tile: int | None) -> int:
    if tile is not None:
        return min(at_least("tile", tile, 1), n_items)
    n_tiles = -(-n_items // MAX_TILE)
    return -(-n_items // n_tiles)  # tiles of equal width rather than a thin last one


def _all_rows(queries: Queries, rows: Tensor | None) -> Tensor:
    if rows is not None:
        return rows
    return torch.arange(len(queries), device=queries.device if isinstance(queries, Tensor) else None)


def _excluded(exclude: Ragged | None, rows: Tensor) -> Ragged | None:
    return exclude.select(rows.to(exclude.indptr.device)) if exclude is not None else None


def _check_exclude(exclude: Ragged | None, n_queries: int, n_items: int) -> None:
    if exclude is None:
        return
    if len(exclude) != n_queries:
        raise DataError(f"exclude must hold one list for each of the {n_queries} queries, got {len(exclude)}")
    if exclude.indices.numel() and not 0 <= int(exclude.indices.min()) <= int(exclude.indices.max()) < n_items:
        raise DataError(
            f"exclude must name items 0 to {n_items - 1}, "
            f"got {int(exclude.indices.min())} to {int(exclude.indices.max())}"
        )


def _nan_scores(whose: str) -> TrainingError:
    return TrainingError(
        f"scores must be numbers, got NaN for {whose}. The vectors have diverged: "
        "go back to the last good checkpoint and lower the learning rate"
    )
