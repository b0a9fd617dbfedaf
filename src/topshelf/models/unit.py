"""Vectors of length one, for models with cosine scores."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from topshelf import kernels


def unit_rows(table: Tensor) -> Tensor:
    """Each row divided by its length, (N, d): ``F.normalize``, in one pass each way if a kernel applies.

    The kernel's gradient cannot be differentiated again.
    """
    if kernels.fits(table) and table.is_contiguous():
        return _UnitRows.apply(table)
    return F.normalize(table, dim=1)


class _UnitRows(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor) -> Tensor:
        unit, norm = table.new_empty(table.shape), table.new_empty(table.size(0))
        kernels.unit_rows(table.detach(), unit, norm)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, norm = ctx.saved_tensors
        result = gradient.new_empty(gradient.shape)
        kernels.unit_rows_gradient(gradient, unit, norm, result)
        return result
