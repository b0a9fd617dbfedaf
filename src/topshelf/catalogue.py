"""The operations over a whole catalogue: the log-partition that training needs, and the top K.

All are matrix products in tiles; none forms a (queries, items, dim) gather. :func:`log_partition` is the
differentiable function; :class:`CatalogueBlocks` is the same arithmetic by hand, for a trainer's inner loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from topshelf import kernels
from topshelf.errors import at_least, at_most, positive
from topshelf.ragged import Ragged
from topshelf.ranking import check_lists, count_above, keep_best, no_places, reused, top_k

__all__ = ["CatalogueBlocks", "Workspace", "count_above", "log_partition", "top_k"]

# Sums of a million exp(40) stay inside float32, and so do their inverses times a small weight in the backward pass: up
# to there no shift by the row maximum is needed.
_SAFE_LOGIT = 40.0
_EVERY = slice(None)


class Workspace:
    """A buffer for score tiles that is reused at every step: new large tensors cost page faults.

    ``budget`` is in bytes. One tile of scores never exceeds it (but has at least one column).
    """

    def __init__(self, budget: int = 512 * 2**20) -> None:
        self.budget = int(positive("budget", budget))
        self.stamp = 0  # counts the tiles, so that a backward pass knows whether its tile is still valid
        self._buffer: Tensor | None = None

    def columns(self, n_rows: int, n_columns: int, dtype: torch.dtype) -> int:
        """Maximum number of columns of a tile with ``n_rows``."""
        return max(1, min(n_columns, self.budget // max(1, n_rows * dtype.itemsize)))

    def tile(self, n_rows: int, n_columns: int, like: Tensor) -> Tensor:
        """An uninitialised (n_rows, n_columns) tile; the previous tile is no longer valid."""
        self.stamp += 1
        self._buffer = reused(self._buffer, n_rows * n_columns, like.dtype, like.device)
        return self._buffer[: n_rows * n_columns].view(n_rows, n_columns)


def log_partition(
    queries: Tensor,
    items: Tensor,
    tau: float,
    *,
    exclude: Ragged | None = None,
    log_weight: Tensor | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    r"""Log of each query's partition sum over a catalogue, differentiable in both tables.

    .. math:: \log \sum_{j \notin \text{exclude}(q)} \exp(q^\top i_j / \tau + \log w_j)

    Shapes: queries (Q, d); items (I, d); exclude, Q lists of item rows; log_weight log w (I,); returns (Q,).
        A query with an empty sum gets -inf and no gradient.
    Cost: three products of Q x I x d and one tile of scores; if the scores exceed the workspace's budget, they are
        recomputed by tiles in the backward pass (a fourth product).
    bfloat16 and float16 tables are summed in float32.
    """
    positive("tau", tau)
    check_lists("exclude", exclude, queries.size(0), items.size(0))
    dtype = torch.promote_types(queries.dtype, torch.float32)
    return _LogPartition.apply(queries.to(dtype), items.to(dtype), tau, exclude, log_weight, workspace or Workspace())


class _Tiles:
    """Score tiles of one call, computed the same way forwards and backwards."""

    def __init__(
        self, scaled: Tensor, items: Tensor, exclude: Ragged | None, log_weight: Tensor | None, workspace: Workspace
    ) -> None:
        self.scaled, self.items, self.log_weight, self.workspace = scaled, items, log_weight, workspace
        self.width = workspace.columns(scaled.size(0), items.size(0), scaled.dtype)
        self.starts = range(0, items.size(0), self.width)
        self.excluded = None if exclude is None else (exclude.owner(), exclude.indices)

    def logits(self, start: int) -> Tensor:
        """Logits of the columns from ``start``, excluded ones at -inf."""
        items = self.items[start : start + self.width]
        tile = self.workspace.tile(self.scaled.size(0), items.size(0), self.scaled)
        torch.mm(self.scaled, items.T, out=tile)
        if self.log_weight is not None:
            tile += self.log_weight[start : start + self.width]
        if self.excluded is not None:
            row, column = self.excluded[0], self.excluded[1] - start
            if len(self.starts) > 1:
                inside = (column >= 0) & (column < items.size(0))
                row, column = row[inside], column[inside]
            tile.view(-1).index_fill_(0, row * items.size(0) + column, -math.inf)
        return tile


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        items: Tensor,
        tau: float,
        exclude: Ragged | None,
        log_weight: Tensor | None,
        workspace: Workspace,
    ) -> Tensor:
        scaled = queries / tau
        tiles = _Tiles(scaled, items, exclude, log_weight, workspace)
        needs_shift = log_weight is not None or not _is_safe(scaled, items)
        shift = torch.full_like(scaled[:, 0], -math.inf) if needs_shift else torch.zeros_like(scaled[:, 0])
        total = torch.zeros_like(shift)
        tile = scaled
        for start in tiles.starts:
            tile = tiles.logits(start)
            if needs_shift:
                higher = torch.maximum(shift, tile.amax(1))
                # A row with nothing yet has shift -inf; inf - inf must not become NaN.
                base = higher.masked_fill(higher == -math.inf, 0.0)
                total *= torch.exp(shift - base)
                shift = higher
                tile -= base.unsqueeze(1)
            _exp_sums(tile, total)
        result = torch.log(total) + shift.masked_fill(shift == -math.inf, 0.0)
        ctx.tiles, ctx.tau, ctx.stamp = tiles, tau, workspace.stamp
        # With a single tile, the backward pass reuses its exponentials.
        ctx.kept = tile if len(tiles.starts) == 1 else None
        ctx.save_for_backward(scaled, items, result, total)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled, items, result, total = ctx.saved_tensors
        tiles: _Tiles = ctx.tiles
        alive = result != -math.inf
        gradient = torch.where(alive, gradient, 0.0)
        if ctx.kept is not None and ctx.stamp == tiles.workspace.stamp:
            rate = (gradient / torch.where(alive, total, 1.0)).unsqueeze(1)  # (Q, 1)
            to_queries = torch.mm(ctx.kept, items).mul_(rate / ctx.tau)
            return to_queries, _to_items(scaled * rate, ctx.kept), None, None, None, None
        rate = gradient.unsqueeze(1)
        base = torch.where(alive, result, 0.0).unsqueeze(1)
        to_queries, to_items = torch.zeros_like(scaled), torch.empty_like(items)
        for start in tiles.starts:
            share = tiles.logits(start).sub_(base).exp_()  # softmax probabilities
            part = slice(start, start + tiles.width)
            to_queries.addmm_(share, items[part])
            to_items[part] = _to_items(scaled * rate, share)
        return to_queries.mul_(rate / ctx.tau), to_items, None, None, None, None


def _to_items(scaled: Tensor, share: Tensor) -> Tensor:
    """``share.T @ scaled``, by the product along the rows of ``share``, which is faster."""
    return torch.mm(scaled.T, share).T.contiguous()


def _is_safe(scaled: Tensor, items: Tensor, log_weight: Tensor | None = None) -> bool:
    """Whether no logit can leave [-40, 40], by Cauchy-Schwarz: true for cosine scores with tau >= 1/40."""
    if scaled.numel() == 0 or items.numel() == 0:
        return True
    largest = scaled.norm(dim=1).max() * items.norm(dim=1).max()
    return bool((largest if log_weight is None else largest + log_weight.abs().max()) <= _SAFE_LOGIT)


@dataclass(frozen=True)
class Block:
    """Results of a block of B queries with P positives."""

    scores: Tensor  # (P,), of the positives
    partition: Tensor  # (B,), log-partitions
    threshold: Tensor | None = None  # (B,), k-th best score of all items, where ``k`` was given
    above: tuple[Tensor, Tensor] | None = None  # (B,) and (B,): items above ``level``, and by how much in all


class CatalogueBlocks:
    r"""Forward and backward over a catalogue, a block of queries at a time, with the block's scores kept between them.

    For each block the caller gets the scores of its positives :math:`s_i` and its log-partitions :math:`z`, and gives
    back their gradients; the gradients of both tables accumulate in buffers that are reused at every step. With
    :math:`E = \exp(S)` and the rate :math:`c = \partial L / \partial z / \sum E` of each row, the two products
    :math:`(E I) c` and :math:`E^\top (Q c)` are the whole backward pass: the positives' own gradients are written to
    the cells of E that the exclusion set to zero. Three products in all, no recomputation, no new large tensor.

    A block has as many queries as fit ``budget`` bytes of scores: larger blocks have faster products. With ``half``,
    E and the two products of the backward pass are in bfloat16, tile by tile; their sum over the tiles, partitions and
    losses stay float32. (Logits beyond +-40 are shifted by their maxima; E then stays float32 too.)
    """

    def __init__(self, budget: int = 512 * 2**20, *, half: bool = False, half_width: int = 2048) -> None:
        self.budget = int(positive("budget", budget))
        self.wants_half, self.half_width = half, half_width
        self._buffers: dict[str, Tensor] = {}

    def begin(
        self, queries: Tensor, items: Tensor, tau: float, log_weight: Tensor | None = None, *, n_blocks: int = 1
    ) -> list[tuple[int, int]]:
        """Take the tables of a step; returns the blocks, as (start, stop) of the queries; ``n_blocks`` or more.

        ``log_weight (I,)`` is added to the items' logits in the partitions, as in :func:`log_partition`. No score of a
        positive, threshold or count has it.
        """
        self.tau = positive("tau", tau)
        self.n_items, dim = items.shape
        dtype = torch.promote_types(items.dtype, torch.float32)
        queries, items = queries.to(dtype), items.to(dtype)
        self.scaled = queries / tau
        self.needs_shift = not _is_safe(self.scaled, items, log_weight)
        self.half = self.wants_half and not self.needs_shift
        stride = -(-self.n_items // 32) * 32  # whole cache lines make the products faster
        self.items = self._padded(items, stride)
        self.log_weight = log_weight if log_weight is None else F.pad(log_weight.to(dtype), (0, stride - self.n_items))
        width = min(self.half_width, stride) if self.half else stride
        self.tiles = [(first, min(width, stride - first)) for first in range(0, stride, width)]
        row = stride * 2 + width * items.element_size() if self.half else stride * items.element_size()
        n = queries.size(0)
        n_blocks = max(n_blocks, -(-n // max(1, self.budget // row)))
        rows = -(-n // n_blocks)  # blocks of one size
        self.kept = self._buffer("kept", (rows * stride,), items, half=self.half)
        if self.half:
            self.scratch = self._buffer("scratch", (rows * width,), items)
            self.half_items = self._buffer("half items", (stride, dim), items, half=True).copy_(self.items)
        self.to_queries = self._buffer("to queries", (n, dim), items)
        self.to_items = self._buffer("to items", (dim, stride), items).zero_()  # products along long rows are faster
        return [(start, min(start + rows, n)) for start in range(0, n, max(1, rows))]

    def forward(
        self,
        start: int,
        stop: int,
        exclude: Ragged,
        chosen: Tensor | None = None,
        *,
        k: int | None = None,
        level: Tensor | None = None,
    ) -> Block:
        """Scores and partitions of one block of queries, B = stop - start.

        ``exclude``: the block's lists of positives, none of which is in the partition; ``chosen (P,)``: places in
        ``exclude.indices`` of those that are trained on, in the order of their owners; all when None.
        """
        if k is not None:
            at_most("k", at_least("k", k, 1), self.n_items, "the number of items")
        n = stop - start
        owner, place, by_tile, ends = self._places(exclude, n)
        logits = torch.empty_like(place, dtype=self.scaled.dtype)
        total, shift = self.scaled.new_zeros(n), None
        best = None if k is None else no_places(n, k, total.dtype, total.device)
        above = None if level is None else (level / self.tau, torch.zeros_like(total), torch.zeros_like(total))
        for number, (first, width) in enumerate(self.tiles):
            kept = self._tile(n, first, width)
            tile = self.scratch[: n * width].view(n, width) if self.half else kept
            torch.mm(self.scaled[start:stop], self.items[first : first + width].T, out=tile)
            tile[:, max(0, self.n_items - first) :] = -math.inf
            if best is not None:
                keep_best(tile, *best, first)
            part = by_tile if isinstance(by_tile, slice) else by_tile[ends[number] : ends[number + 1]]
            inside = place[part] - n * first
            logits[part] = tile.view(-1)[inside]
            tile.view(-1).index_fill_(0, inside, -math.inf)
            if self.needs_shift:
                shift = tile.amax(1)
                shift.masked_fill_(shift == -math.inf, 0.0)
                tile -= shift.unsqueeze(1)
                above = None if above is None else (above[0] - shift, *above[1:])
            weight = None if self.log_weight is None else self.log_weight[first : first + width]
            _exp_sums(tile, total, kept if self.half else None, above, weight)
        if above is not None:
            above = (above[0] if shift is None else above[0] + shift, *above[1:])
            _list_excess(logits, exclude, *above)
        if chosen is not None:
            owner, place, logits = owner[chosen], place[chosen], logits[chosen]
        self._block = (start, stop, owner, place, total)
        self.best = None if best is None else best[0] * self.tau  # (B, k), for those who have other items
        partition = total.log() if shift is None else total.log() + shift
        return Block(
            logits * self.tau,
            partition,
            None if best is None else best[0][:, -1] * self.tau,
            None if above is None else (above[1], above[2] * self.tau),
        )

    def backward(self, to_positive: Tensor, to_partition: Tensor) -> None:
        """Add the last block's share to the gradients, given those of its positive scores (P,) and partitions (B,)."""
        start, stop, owner, place, total = self._block
        rate = to_partition / total
        # A row with a partition gradient near 0 (or no items) cannot carry its positives' gradients by its rate.
        is_idle = ~(rate.abs() > 1e-30) | (total == 0)
        if bool(is_idle.any()):
            for first, width in self.tiles:
                self._tile(stop - start, first, width)[is_idle] = 0.0
            rate = torch.where(is_idle, torch.ones_like(rate), rate)
        self.kept[place] = (to_positive * self.tau / rate[owner]).to(self.kept.dtype)
        part = self.to_queries[start:stop].zero_()
        scaled = (self.scaled[start:stop] * rate.unsqueeze(1)).to(self.kept.dtype)
        for first, width in self.tiles:
            tile = self._tile(stop - start, first, width)
            if self.half:
                part += torch.mm(tile, self.half_items[first : first + width])
                self.to_items[:, first : first + width] += torch.mm(scaled.T, tile)
            else:
                part.addmm_(tile, self.items[first : first + width])
                self.to_items[:, first : first + width].addmm_(scaled.T, tile)
        part *= (rate / self.tau).unsqueeze(1)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of the queries (Q, d) and the items (I, d); valid until the next ``begin``."""
        items = self._buffer("items' gradient", (self.n_items, self.to_items.size(0)), self.to_items)
        return self.to_queries, items.copy_(self.to_items[:, : self.n_items].T)

    def _tile(self, n: int, first: int, width: int) -> Tensor:
        """The exponentials of items from ``first``, (n, width): tiles are consecutive in the buffer."""
        return self.kept[n * first : n * (first + width)].view(n, width)

    def _places(self, exclude: Ragged, n: int) -> tuple[Tensor, Tensor, Tensor | slice, list[int]]:
        """Owners of the excluded items, their places in the buffer, and which of them are in each tile.

        The last two: an order by tile, and where each tile's part of it ends.
        """
        owner, column = exclude.owner(), exclude.indices
        if len(self.tiles) == 1:
            return owner, owner * self.tiles[0][1] + column, _EVERY, [0, column.numel()]
        number = column // self.tiles[0][1]
        first, width = (torch.tensor(x, device=column.device)[number] for x in zip(*self.tiles, strict=True))
        place = n * first + owner * width + column - first
        by_tile = torch.argsort(number, stable=True)
        counts = torch.bincount(number, minlength=len(self.tiles))
        return owner, place, by_tile, [0, *counts.cumsum(0).tolist()]

    def _padded(self, items: Tensor, stride: int) -> Tensor:
        if stride == items.size(0):
            return items
        padded = self._buffer("items", (stride, items.size(1)), items)
        padded[: items.size(0)] = items
        padded[items.size(0) :] = 0.0
        return padded

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor, *, half: bool = False) -> Tensor:
        dtype = torch.bfloat16 if half else like.dtype
        self._buffers[name] = buffer = reused(self._buffers.get(name), math.prod(shape), dtype, like.device)
        return buffer[: math.prod(shape)].view(shape)


def _exp_sums(
    tile: Tensor,
    total: Tensor,
    half: Tensor | None = None,
    above: tuple[Tensor, Tensor, Tensor] | None = None,
    log_weight: Tensor | None = None,
) -> None:
    """:func:`kernels.exp_sums`, or the same by torch."""
    if kernels.fits(tile, total):
        kernels.exp_sums(tile, total, half, above, log_weight)
        return
    if above is not None:
        level, count, excess = above
        over = (tile - level.unsqueeze(1)).clamp_(min=0)
        count += (over > 0).sum(1)
        excess += over.sum(1)
    if log_weight is not None:
        tile += log_weight
    total += tile.exp_().sum(1)
    if half is not None:
        half.copy_(tile)


def _list_excess(values: Tensor, lists: Ragged, level: Tensor, count: Tensor, excess: Tensor) -> None:
    """:func:`kernels.list_excess`, or the same by torch."""
    if kernels.fits(values, level):
        kernels.list_excess(values, lists.indptr, level, count, excess)
        return
    owner = lists.owner()
    over = (values - level[owner]).clamp_(min=0)
    count.index_add_(0, owner, (over > 0).to(count.dtype))
    excess.index_add_(0, owner, over)
