"""The operations over a whole catalogue: the log-partition that training needs, and the top K.

All are matrix products in tiles; none forms a (queries, items, dim) gather. :func:`log_partition` is the
differentiable function; :class:`CatalogueHead` is the same arithmetic by hand, for a trainer's inner loop.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from topshelf.errors import positive
from topshelf.ragged import Ragged
from topshelf.ranking import count_above, kth_best, top_k

__all__ = ["CatalogueHead", "Workspace", "count_above", "log_partition", "top_k"]

# exp() of +-60 and the sum of a billion such terms stay inside float32, so no shift by the row maximum is needed.
_SAFE_LOGIT = 60.0


class Workspace:
    """A buffer for score tiles that is used again at every step: fresh large tensors cost page faults.

    ``budget`` is in bytes. One tile of scores never exceeds it (but holds at least one column).
    """

    def __init__(self, budget: int = 256 * 2**20) -> None:
        self.budget = int(positive("budget", budget))
        self.stamp = 0  # counts the loans, so that a backward pass knows whether its tile is still there
        self._buffer: Tensor | None = None

    def columns(self, n_rows: int, n_columns: int, dtype: torch.dtype) -> int:
        """How many columns a tile of ``n_rows`` may have."""
        return max(1, min(n_columns, self.budget // max(1, n_rows * dtype.itemsize)))

    def tile(self, n_rows: int, n_columns: int, like: Tensor) -> Tensor:
        """An uninitialised (n_rows, n_columns) tile; the tile lent before is no longer valid."""
        self.stamp += 1
        size = n_rows * n_columns
        buffer = self._buffer
        if buffer is None or buffer.numel() < size or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffer = torch.empty(size, dtype=like.dtype, device=like.device)
        return buffer[:size].view(n_rows, n_columns)


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
        A query with nothing left to sum over gets -inf and no gradient.
    Cost: three products of Q x I x d and one tile of scores; when the scores do not fit the workspace's budget they
        are made again by tiles in the backward pass (a fourth product).
    bfloat16 and float16 tables are summed in float32.
    """
    positive("tau", tau)
    dtype = torch.promote_types(queries.dtype, torch.float32)
    return _LogPartition.apply(queries.to(dtype), items.to(dtype), tau, exclude, log_weight, workspace or Workspace())


class _Tiles:
    """Score tiles of one call, made the same way forwards and backwards."""

    def __init__(
        self,
        scaled: Tensor,
        items: Tensor,
        exclude: Ragged | None,
        log_weight: Tensor | None,
        workspace: Workspace,
    ) -> None:
        self.scaled, self.items, self.log_weight, self.workspace = scaled, items, log_weight, workspace
        self.width = workspace.columns(scaled.size(0), items.size(0), scaled.dtype)
        self.starts = range(0, items.size(0), self.width)
        self.row = exclude.owner() if exclude is not None else None
        self.column = exclude.indices if exclude is not None else None

    def logits(self, start: int) -> Tensor:
        """Logits of the columns from ``start``, excluded ones at -inf."""
        items = self.items[start : start + self.width]
        tile = self.workspace.tile(self.scaled.size(0), items.size(0), self.scaled)
        torch.mm(self.scaled, items.T, out=tile)
        if self.log_weight is not None:
            tile += self.log_weight[start : start + self.width]
        if self.row is not None and self.column is not None:
            row, column = self.row, self.column - start
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
            total += tile.exp_().sum(1)
        result = torch.log(total) + shift.masked_fill(shift == -math.inf, 0.0)
        ctx.tiles, ctx.tau, ctx.stamp = tiles, tau, workspace.stamp
        # One tile holds everything: its exponentials serve the backward pass as they are.
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
            return to_queries, torch.mm(ctx.kept.T, scaled * rate), None, None, None, None
        rate = gradient.unsqueeze(1)
        base = torch.where(alive, result, 0.0).unsqueeze(1)
        to_queries, to_items = torch.zeros_like(scaled), torch.empty_like(items)
        for start in tiles.starts:
            share = tiles.logits(start).sub_(base).exp_()  # softmax probabilities
            part = slice(start, start + tiles.width)
            to_queries.addmm_(share, items[part])
            torch.mm(share.T, scaled * rate, out=to_items[part])
        return to_queries.mul_(rate / ctx.tau), to_items, None, None, None, None


def _is_safe(scaled: Tensor, items: Tensor) -> bool:
    """Whether no logit can leave [-60, 60], by Cauchy-Schwarz: true for cosine scores with tau >= 1/60."""
    if scaled.numel() == 0 or items.numel() == 0:
        return True
    return bool(scaled.norm(dim=1).max() * items.norm(dim=1).max() <= _SAFE_LOGIT)


class CatalogueHead:
    r"""Forward and backward over a catalogue, a block of queries at a time, while the block's scores are in the cache.

    For each block the caller gets the scores of its positives :math:`s_i` and its log-partitions :math:`z`, and hands
    back their gradients; the gradients of both tables grow in buffers that are used again at every step. With
    :math:`E = \exp(S)` and the rate :math:`c = \partial L / \partial z / \sum E` of each row, the two products
    :math:`(E I) c` and :math:`E^\top (Q c)` are the whole backward pass: the positives' own gradients ride along in
    the places of E that the exclusion left at zero. Three products in all, no recomputation, no fresh large tensor.

    A block's scores take about ``cached`` bytes, to stay in the last-level cache, but a block has ``least_rows``
    queries, to keep the products busy, as long as ``budget`` bytes allow it.
    """

    def __init__(self, budget: int = 256 * 2**20, *, cached: int = 16 * 2**20, least_rows: int = 256) -> None:
        self.budget = int(positive("budget", budget))
        self.cached, self.least_rows = cached, least_rows
        self._tile = torch.empty(0)
        self._gradients = (torch.empty(0), torch.empty(0))

    def begin(self, queries: Tensor, items: Tensor, tau: float) -> list[tuple[int, int]]:
        """Take the tables of a step; the blocks to go through, as (start, stop) of the queries."""
        self.tau = positive("tau", tau)
        self.scaled, self.items = queries / tau, items
        self.needs_shift = not _is_safe(self.scaled, items)
        n, n_items = queries.size(0), items.size(0)
        self.stride = -(-n_items // 32) * 32  # rows that start on a cache line make the product faster
        row = self.stride * items.element_size()
        rows = max(1, min(max(self.least_rows, self.cached // row), self.budget // row))
        rows = -(-n // max(1, -(-n // rows)))  # blocks of one size
        if (
            self._tile.numel() < rows * self.stride
            or self._tile.dtype != items.dtype
            or self._tile.device != items.device
        ):
            self._tile = items.new_empty(rows * self.stride)
        if self._gradients[0].shape != queries.shape or self._gradients[1].shape != items.shape:
            self._gradients = (torch.empty_like(queries), torch.empty_like(items))
        self._gradients[1].zero_()
        return [(start, min(start + rows, n)) for start in range(0, n, rows)]

    def forward(
        self, start: int, stop: int, exclude: Ragged, owner: Tensor, item: Tensor, k: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Positive scores (P,), log-partitions (B,), and with ``k`` the k-th best scores (B,), of one block.

        ``exclude`` holds the block's lists; ``owner`` (0 to B - 1) and ``item`` its positives, all of them excluded.
        """
        padded = self._tile[: (stop - start) * self.stride].view(stop - start, self.stride)
        tile = padded[:, : self.items.size(0)]
        torch.mm(self.scaled[start:stop], self.items.T, out=tile)
        padded[:, self.items.size(0) :] = -math.inf
        threshold = kth_best(padded, k) * self.tau if k is not None else None
        self._place = owner * self.stride + item
        scores = padded.view(-1)[self._place] * self.tau
        padded.view(-1).index_fill_(0, exclude.owner() * self.stride + exclude.indices, -math.inf)
        shift = None
        if self.needs_shift:
            shift = padded.amax(1)
            shift.masked_fill_(shift == -math.inf, 0.0)
            padded -= shift.unsqueeze(1)
        self._total = padded.exp_().sum(1)
        partition = self._total.log()
        self._block = (start, stop, padded)
        return scores, partition if shift is None else partition + shift, threshold

    def backward(self, to_positive: Tensor, to_partition: Tensor, owner: Tensor) -> None:
        """Add the block's share to the gradients, given those of its positive scores (P,) and partitions (B,)."""
        start, stop, padded = self._block
        rate = to_partition / self._total
        # A row whose partition does not matter (or has no items) cannot carry its positives' gradients by its rate.
        is_idle = ~(rate.abs() > 1e-30) | (self._total == 0)
        if bool(is_idle.any()):
            padded[is_idle] = 0.0
            rate = torch.where(is_idle, torch.ones_like(rate), rate)
        padded.view(-1)[self._place] = to_positive * self.tau / rate[owner]
        tile = padded[:, : self.items.size(0)]
        part = self._gradients[0][start:stop]
        torch.mm(tile, self.items, out=part)
        part *= (rate / self.tau).unsqueeze(1)
        self._gradients[1].addmm_(tile.T, self.scaled[start:stop] * rate.unsqueeze(1))

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of the queries (Q, d) and the items (I, d); valid until the next ``begin``."""
        return self._gradients
