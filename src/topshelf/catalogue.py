"""The two operations over a whole catalogue: the log-partition that training needs, and the top K.

Both are matrix products in tiles; neither forms a (queries, items, dim) gather.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from topshelf.errors import positive
from topshelf.ragged import Ragged
from topshelf.ranking import count_above, top_k

__all__ = ["Workspace", "count_above", "log_partition", "top_k"]

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
