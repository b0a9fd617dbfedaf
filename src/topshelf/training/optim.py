"""Adam that touches only the rows of a batch, and that can keep its tables and moments in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from topshelf.errors import at_least, positive

_ROWS = 1 << 16  # of a bfloat16 table that are float32 at once


class RowAdam(torch.optim.Optimizer):
    r"""Adam for embedding tables: a row is updated only when it has a gradient, and counts its own steps.

    Parameters with sparse gradients (``F.embedding(..., sparse=True)``) are updated at their touched rows alone, with
    moments and bias correction by each row's own number of steps; the cost of a step is then that of the batch, not of
    the table. Parameters with dense gradients get torch's fused Adam. Weight decay is L2, on touched rows.

    bfloat16 parameters have bfloat16 moments, and always go by rows: some rows at a time are float32 while they are
    updated, then rounded up or down at random, so that small steps are kept on average (:func:`rounded`). The draws are
    from ``generator``, which the trainer sets for every step; None: torch's default one.

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
        self.generator: torch.Generator | None = None

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
        if (gradient.is_sparse or parameter.dtype == torch.bfloat16) and state["step"].dim() == 0:
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
        at_once = _ROWS if parameter.dtype == torch.bfloat16 else max(1, rows.numel())
        for some, part in zip(rows.split(at_once), gradient.split(at_once), strict=True):
            self._update(parameter, group, some, part)

    def _update(self, parameter: Tensor, group: dict[str, Any], rows: Tensor, gradient: Tensor) -> None:
        state, working = self.state[parameter], torch.promote_types(parameter.dtype, torch.float32)
        step = state["step"].index_select(0, rows).add_(1)
        tables = (state["mean"], state["square"], parameter)
        mean, square, moved = (table.index_select(0, rows).to(working) for table in tables)
        gradient = gradient.to(working)
        if group["weight_decay"]:
            gradient = gradient.add(moved, alpha=group["weight_decay"])
        beta1, beta2 = group["betas"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["step"].index_copy_(0, rows, step)
        self._put(state["mean"], rows, mean)
        self._put(state["square"], rows, square)
        # From here on mean and square are scratch. lr (m / c1) / (sqrt(v / c2) + eps), with the corrections, one per
        # row, moved out of the (rows, dim) arithmetic; in double, because 1 - 0.999 in float32 is off by 0.005%.
        shape = (-1,) + (1,) * (parameter.dim() - 1)
        steps = step.double().view(shape)
        root = (1 - beta2**steps).sqrt_()
        rate = (group["lr"] * root / (1 - beta1**steps)).to(working)
        square.sqrt_().add_((group["eps"] * root).to(working))
        self._put(parameter, rows, moved.addcdiv_(mean.mul_(rate), square, value=-1))

    def _put(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        table.index_copy_(0, rows, values if table.dtype == values.dtype else rounded(values, self.generator))


def rounded(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """float32 ``values`` as bfloat16, each rounded up or down at random so that its mean is kept.

    bfloat16 is the upper half of float32. The lower half is the probability of the next number away from 0.
    """
    device = values.device if generator is None else generator.device
    noise = torch.randint(1 << 16, values.shape, generator=generator, dtype=torch.int32, device=device)
    bits = values.contiguous().view(torch.int32) + noise.to(values.device)
    return (bits & -(1 << 16)).view(torch.float32).bfloat16()


def _touched(parameter: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a gradient, each once, and their gradients; all of them where it is dense."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return torch.arange(parameter.size(0), device=parameter.device), gradient
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()
