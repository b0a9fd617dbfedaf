"""The best items of each query over a whole catalogue: exact, tiled, and with one order for ties.

The order is score descending, then item index ascending. It holds inside a list and at its end, and it does
not depend on the tile sizes. On a CPU the scores do not either, to the last bit: a query has the same list whichever
other queries are ranked with it, and with any number of threads (:func:`topshelf.item_table.multiply`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import kernels
from topshelf.errors import DataError, TrainingError, at_least, at_most
from topshelf.item_table import MULTIPLE, ItemTable, ItemVectors, multiply
from topshelf.ragged import Ragged

WORKSPACE = 64 << 20  # bytes of scores held at once, at most
CACHED = 16 << 20  # bytes of scores that stay in the cache while they are masked and searched
MAX_TILE = 1 << 14  # items per tile: narrower ones feed the product better, but are searched more often
LEAST_ROWS = 512  # queries per tile, where the workspace allows it: fewer starve the product
COUNTING_BLOCK = 1 << 20  # scores compared at once by torch
ROW_MULTIPLE = MULTIPLE  # also rows of whole cache lines: the product of 40,988 items took 0.6 of the time
NO_ITEM = -1


class QueryVectors(Protocol):
    """A tensor (U, d), or anything that gives the vectors of some rows as a tensor does, dense or CSR."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


def top_k(
    queries: QueryVectors,
    items: ItemVectors,
    k: int,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    tile: int | None = None,
    workspace: int = WORKSPACE,
) -> tuple[Tensor, Tensor]:
    """The k items of highest dot product for each query, best first; equal scores by item index.

    Shapes: queries (U, d); items (I, d); exclude: U lists of items that must not appear; rows (Q,): the
        queries to rank, default all; returns values (Q, k) float32 and item indices (Q, k) int64.
    A query with fewer than k items left gets index -1 and value -inf in the last places.
    ``tile`` is the number of items scored at once and ``workspace`` the bytes of the score buffer; neither
    changes the order. float16 and bfloat16 vectors are multiplied in float32, float64 ones in float64.
    Cost: one matrix product and one pass over the scores; memory O(workspace + Qk). Of ``exclude`` only the lists of
        ``rows`` are read and checked, so one query costs the same however many there are.
    """
    parts = list(ranked_tiles(queries, items, k, exclude=exclude, rows=rows, tile=tile, workspace=workspace))
    if not parts:
        return no_places(0, k, torch.float32, items.device)
    return torch.cat([values for _, values, _ in parts]), torch.cat([indices for _, _, indices in parts])


@torch.no_grad()
def ranked_tiles(
    queries: QueryVectors,
    items: ItemVectors,
    k: int,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    targets: Ragged | None = None,
    tile: int | None = None,
    workspace: int = WORKSPACE,
) -> Iterator[tuple[Tensor, ...]]:
    """:func:`top_k` a tile of queries at a time: (rows (B,), values (B, k), indices (B, k)).

    With ``targets``, of which the rows of the tile have P, also (above (P,), equal (P,)), as of :func:`count_above`;
    whole rows of scores are then kept, so ``tile`` does not count.
    """
    n_items, chosen = items.size(0), chosen_rows(queries, rows)
    at_most("k", at_least("k", k, 1), n_items, "the number of items")
    check_lists("exclude", exclude, len(queries))
    check_lists("targets", targets, len(queries))
    width = n_items if targets is not None else _tile_width(n_items, tile, chosen.numel())
    scorer = _Scorer(items, width, workspace)
    for part in torch.split(chosen, scorer.n_rows):
        scorer.set_queries(queries[part], _select("exclude", exclude, part, items))
        values, indices = _best(scorer, k, width, part)
        wanted = _select("targets", targets, part, items)
        yield part, values.float(), indices, *(() if wanted is None else count_in(scorer.tile, wanted))


@torch.no_grad()
def best_scores(
    vectors: Tensor,
    items: ItemVectors,
    k: int,
    *,
    names: Tensor,
    exclude: Ragged | None = None,
    stop: Tensor | None = None,
) -> Tensor:
    """The k best scores (B, k) of a few queries, best first, -inf where there are fewer: :func:`top_k` in one block.

    Shapes: vectors (B, d); items (I, d); names (B,), what the queries are called in errors; exclude, B lists; stop
        (B,), each query's first item that does not count, nor do those after it.
    """
    at_most("k", at_least("k", k, 1), items.size(0), "the number of items")
    scorer = _Scorer(items, items.size(0), WORKSPACE)
    scorer.set_queries(vectors, exclude, stop)
    return _best(scorer, k, items.size(0), names)[0]


def count_above(
    queries: QueryVectors,
    items: ItemVectors,
    targets: Ragged,
    *,
    exclude: Ragged | None = None,
    rows: Tensor | None = None,
    workspace: int = WORKSPACE,
) -> tuple[Tensor, Tensor]:
    """How many items score above each target, and how many others score the same.

    Shapes: queries (U, d); items (I, d); targets and exclude: U lists each, without a common item; rows (Q,);
        returns two int64 tensors (P,), in the order of ``targets.select(rows)``.
    Excluded items are not counted; the other targets of the query are; the target itself is not.
    Cost: one matrix product and a pass over a row for each of its targets; memory O(workspace + P), but never less
        than one row of scores.
    """
    parts = list(ranked_tiles(queries, items, 1, targets=targets, exclude=exclude, rows=rows, workspace=workspace))
    nothing = torch.empty(0, dtype=torch.int64, device=items.device)
    return torch.cat([nothing, *(part[3] for part in parts)]), torch.cat([nothing, *(part[4] for part in parts)])


class _Scorer:
    """Scores of some queries against tiles of items, in one reused buffer."""

    def __init__(self, items: ItemVectors, width: int, workspace: int) -> None:
        size = max(4, items.element_size())
        # A linear model's vectors can be as long as the catalogue; they count as workspace too.
        allowed = at_least("workspace", workspace, 1) // (max(width, items.size(1)) * size)
        self.items = items
        self.n_rows = max(1, min(allowed, max(LEAST_ROWS, CACHED // (width * size))))
        self.tile = torch.empty(0, device=items.device)  # the scores made last
        self._buffer = self.tile

    def set_queries(self, vectors: Tensor, exclude: Ragged | None, stop: Tensor | None = None) -> None:
        is_table = isinstance(self.items, ItemTable)  # whose numbers are float32
        is_double = not is_table and torch.float64 in (vectors.dtype, self.items.dtype)
        vectors = vectors.to(self.items.device, torch.float64 if is_double else torch.float32)
        self.n_queries = n = vectors.size(0)
        if vectors.layout == torch.strided and n % MULTIPLE:
            vectors = F.pad(vectors, (0, 0, 0, MULTIPLE - n % MULTIPLE))
        self.vectors = vectors
        self.exclude = exclude.to(self.items.device) if exclude is not None else None
        self.stop = stop

    def scores(self, start: int, stop: int) -> Tensor:
        """Scores (B, W) of items start..stop, -inf where excluded; valid until the next call."""
        n_rows, width = self.vectors.size(0), stop - start
        stride = -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
        self._buffer = reused(self._buffer, n_rows * stride, self.vectors.dtype, self.items.device)
        padded = self._buffer[: n_rows * stride].view(n_rows, stride)
        self.tile = padded[: self.n_queries, :width]
        if isinstance(self.items, ItemTable):
            self.items.scores(self.vectors, start, padded)
        elif self.vectors.layout == torch.strided:
            multiply(self.vectors, self.items[start:stop].to(self.vectors.dtype), padded)
        else:
            torch.mm(self.vectors, self.items[start:stop].to(self.vectors.dtype).T, out=self.tile)
        if self.exclude is not None:
            hide(self.tile, self.exclude, start)
        if self.stop is not None and self.stop.numel():
            shortest = min(max(int(self.stop.min()) - start, 0), width)
            places = torch.arange(start + shortest, stop, device=self.items.device)
            self.tile[:, shortest:].masked_fill_(places >= self.stop.unsqueeze(1), -torch.inf)
        return self.tile


def reused(buffer: Tensor | None, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The buffer, or a new one of ``size`` numbers where it is too small or of another kind."""
    if buffer is None or buffer.numel() < size or buffer.dtype != dtype or buffer.device != device:
        return torch.empty(size, dtype=dtype, device=device)
    return buffer


def hide(tile: Tensor, lists: Ragged, first: int) -> None:
    """Set the scores of each row's listed items to -inf; the tile holds the items from ``first`` on."""
    if kernels.fits(tile):
        kernels.hide(tile, lists.indptr, lists.indices, first)
        return
    inside = (lists.indices >= first) & (lists.indices < first + tile.size(1))
    tile[lists.owner()[inside], lists.indices[inside] - first] = -torch.inf


def _best(scorer: _Scorer, k: int, width: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The k best of the scorer's queries, by a running merge over item tiles in index order."""
    values, indices = no_places(scorer.n_queries, k, scorer.vectors.dtype, scorer.items.device)
    n_items = scorer.items.size(0)
    for start in range(0, n_items, width):
        keep_best(scorer.scores(start, min(start + width, n_items)), values, indices, start)
    refuse_nan(values, rows)
    return values, indices


def no_places(n_rows: int, k: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values and indices (n_rows, k) of empty lists, for :func:`keep_best` to fill."""
    values = torch.full((n_rows, k), -torch.inf, dtype=dtype, device=device)
    return values, torch.full((n_rows, k), NO_ITEM, device=device)


def keep_best(tile: Tensor, values: Tensor, indices: Tensor, first: int) -> None:
    """:func:`topshelf.kernels.keep_best`, or the same by torch."""
    if kernels.fits(tile):
        kernels.keep_best(tile, values, indices, first)
        return
    k = values.size(1)
    places = _best_set(tile, min(k, tile.size(1)))
    # What came before has the lower indices and comes first: a stable sort keeps ties in index order.
    merged, order = torch.cat([values, tile.gather(1, places)], 1).sort(dim=1, descending=True, stable=True)
    values.copy_(merged[:, :k])
    indices.copy_(torch.cat([indices, places + first], 1).gather(1, order[:, :k]))
    indices.masked_fill_(values == -torch.inf, NO_ITEM)


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


def count_in(scores: Tensor, wanted: Ragged) -> tuple[Tensor, Tensor]:
    """How many scores of its row (B, I) are above each wanted item, and how many others are equal to it."""
    above, equal = torch.zeros_like(wanted.indices), torch.zeros_like(wanted.indices)
    if kernels.fits(scores):
        kernels.count_above(scores, wanted.indptr, wanted.indices, above, equal)
        return above, equal
    owner = wanted.owner()
    for some in torch.split(torch.arange(owner.numel(), device=owner.device), max(1, COUNTING_BLOCK // scores.size(1))):
        rows = scores[owner[some]]
        mine = rows.gather(1, wanted.indices[some].unsqueeze(1))
        above[some] = (rows > mine).sum(1)
        equal[some] = (rows == mine).sum(1) - 1
    return above, equal


def _tile_width(n_items: int, tile: int | None, n_rows: int) -> int:
    if tile is not None:
        return min(at_least("tile", tile, 1), n_items)
    made = -(-n_rows // MULTIPLE) * MULTIPLE  # rows of a product: a single query is one of 16
    if made * n_items * 4 <= CACHED:  # a few queries: one tile, for every call of a kernel costs them
        return n_items
    n_tiles = -(-n_items // MAX_TILE)
    share = -(-n_items // n_tiles)  # tiles of equal width rather than a thin last one
    return -(-share // MULTIPLE) * MULTIPLE


def chosen_rows(queries: QueryVectors, rows: Tensor | None) -> Tensor:
    """The rows to rank, all by default; those that are not there are refused."""
    if rows is None:
        return torch.arange(len(queries), device=queries.device if isinstance(queries, Tensor) else None)
    if rows.numel():
        low, high = (int(end) for end in torch.aminmax(rows))
        if low < 0 or high >= len(queries):
            n = len(queries)
            raise DataError(f"rows must be from 0 to {n - 1}, there being {n} queries, got {low} to {high}")
    return rows


def _select(name: str, lists: Ragged | None, rows: Tensor, items: ItemVectors) -> Any:
    if lists is None:
        return None
    return lists.checked_select(rows.to(lists.indptr.device), items.size(0), name).to(items.device)


def check_lists(name: str, lists: Ragged | None, n_queries: int, n_items: int | None = None) -> None:
    """Refuse lists that are not one per query, or that name items that are not there: compiled code trusts them.

    Without ``n_items`` no list is read: each is checked when it is selected.
    """
    if lists is None:
        return
    if not isinstance(lists, Ragged):
        raise DataError(f"{name} must be a Ragged, got {type(lists).__name__}; Interactions have .ragged()")
    if n_items is None:
        lists.check_shape(name, n_queries)
    else:
        lists.check(n_items, name, n_lists=n_queries)


def refuse_nan(values: Tensor, rows: Tensor) -> None:
    """Refuse a list (B, k) whose best value is NaN, which comes before every number."""
    is_bad = values[:, 0].isnan()
    if bool(is_bad.any()):
        raise TrainingError(
            f"scores must be numbers, got NaN for query {int(rows[is_bad.to(rows.device)][0])}. The vectors have "
            "diverged: go back to the last good checkpoint and lower the learning rate"
        )
