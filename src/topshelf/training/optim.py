"""Optimizers: dense Adam, and Adam that touches only the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from topshelf.errors import at_least, positive


class RowAdam(torch.optim.Optimizer):
    r"""Adam for embedding tables: a row is updated only when it has a gradient, and counts its own steps.

    Parameters with sparse gradients (``F.embedding(..., sparse=True)``) are updated at their touched rows alone, with
    moments and bias correction by each row's own number of steps; the cost of a step is then that of the batch, not of
    the table. Parameters with dense gradients get torch's fused Adam. Weight decay is L2, on touched rows.

    Relations: on a row with a gradient at every step it is Adam. Without a gradient, Adam goes on updating the row by
    its momentum; this does not, so a user in one batch per epoch is updated once per epoch.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
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
            "fused": True,  # tells torch's load_state_dict to bring the step counts to the parameter's device
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            dense = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if self._goes_by_rows(parameter):
                    self._step_rows(parameter, group)
                else:
                    dense.append(parameter)
            self._step_dense(dense, group)

    def _goes_by_rows(self, parameter: Tensor) -> bool:
        """Whether rows count their own steps: from the first sparse gradient on. Makes the state."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            # torch's load_state_dict leaves the type of "step" alone; float32 counts to 16 million.
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if gradient.is_sparse and state["step"].dim() == 0:
            state["step"] = state["step"].repeat(parameter.size(0))
        return bool(state["step"].dim())

    def _step_dense(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        adam(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        rows, gradient = _touched(parameter)
        state = self.state[parameter]
        step = state["step"].index_select(0, rows).add_(1)
        mean, square, moved = (table.index_select(0, rows) for table in (state["mean"], state["square"], parameter))
        if group["weight_decay"]:
            gradient = gradient.add(moved, alpha=group["weight_decay"])
        beta1, beta2 = group["betas"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        for name, values in (("step", step), ("mean", mean), ("square", square)):
            state[name].index_copy_(0, rows, values)
        # From here on mean and square are scratch. lr (m / c1) / (sqrt(v / c2) + eps), with the corrections, one per
        # row, moved out of the (rows, dim) arithmetic; in double, because 1 - 0.999 in float32 is off by 0.005%.
        shape = (-1,) + (1,) * (parameter.dim() - 1)
        steps = step.double().view(shape)
        root = (1 - beta2**steps).sqrt_()
        rate = (group["lr"] * root / (1 - beta1**steps)).to(parameter.dtype)
        square.sqrt_().add_((group["eps"] * root).to(parameter.dtype))
        parameter.index_copy_(0, rows, moved.addcdiv_(mean.mul_(rate), square, value=-1))


def _touched(parameter: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a gradient, each once, and their gradients; all of them where it is dense."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return torch.arange(parameter.size(0), device=parameter.device), gradient
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()
