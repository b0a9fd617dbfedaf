"""Optimizers: dense Adam, and Adam that touches only the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from topshelf.errors import at_least, positive


class RowAdam(torch.optim.Optimizer):
    r"""Adam for embedding tables: a row moves only when it has a gradient, and counts its own steps.

    Parameters with sparse gradients (``F.embedding(..., sparse=True)``) are updated at their touched rows alone, with
    moments and bias correction by each row's own number of steps; the cost of a step is then that of the batch, not of
    the table. Parameters with dense gradients get Adam's usual update. Weight decay is L2, on touched rows.

    Relations: on a row that is touched at every step it is Adam. Between touches Adam would go on moving the row by its
    momentum; this does not, so a user who comes once an epoch moves once an epoch.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": positive("lr", lr),
            "betas": betas,
            "eps": positive("eps", eps),
            "weight_decay": at_least("weight_decay", weight_decay, 0.0),
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            # In the parameter's type, which is what torch's load_state_dict would make of it.
            state["count"] = torch.zeros(parameter.size(0), dtype=parameter.dtype, device=parameter.device)
        if not gradient.is_sparse:
            state["count"] += 1
            _adam(parameter, gradient, state["mean"], state["square"], state["count"], group)
            return
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        table = {name: state[name][rows] for name in ("mean", "square", "count")}
        table["count"] += 1
        moved = parameter[rows]
        _adam(moved, gradient.values(), table["mean"], table["square"], table["count"], group)
        parameter[rows] = moved
        for name, values in table.items():
            state[name][rows] = values


def _adam(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, count: Tensor, group: dict[str, Any]
) -> None:
    """Adam's update in place; ``count`` (rows,) is each row's number of steps."""
    beta1, beta2 = group["betas"]
    if group["weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    shape = (-1,) + (1,) * (parameter.dim() - 1)
    steps = count.double().view(shape)  # 1 - 0.999 in float32 is off by 0.005%
    correction1, correction2 = ((1 - beta**steps).to(parameter.dtype) for beta in (beta1, beta2))
    parameter.sub_(group["lr"] * (mean / correction1) / ((square / correction2).sqrt_().add_(group["eps"])))
