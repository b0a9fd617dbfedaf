"""What one training step minimises: a model, a loss and a source of negatives put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from topshelf.catalogue import Workspace
from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models import Model, Trainable
from topshelf.negatives import Negatives, Population, item_prior
from topshelf.queries import Batch, Context, Encoded
from topshelf.training.heads import BlockReader, choose_head
from topshelf.training.item_rows import ItemRows, only_rows


class Hook(Protocol):
    """A callback of the training; the threshold updates are one."""

    def begin_epoch(self, epoch: int, model: Any, generator: torch.Generator, *, is_resumed: bool) -> None:
        """Before the epoch's first step; ``is_resumed`` if some of its steps were done before an interruption."""

    def after_step(self, batch: Any, encoded: Any, generator: torch.Generator) -> None:
        """After the optimizer's step; ``encoded`` is that of its :class:`StepResult`."""


class ThresholdOwner(Hook, BlockReader, Protocol):
    """The hook that updates thresholds."""


class StepBatch(Protocol):
    """What the trainer must know of a batch."""

    @property
    def query(self) -> Tensor:
        """(Q,), index of each query."""


class EpochBatches(Protocol):
    """The batches of an epoch, in an order that only the generator decides."""

    def __len__(self) -> int: ...

    def epoch(self, generator: torch.Generator) -> Iterator[Any]: ...


class StepResult(NamedTuple):
    loss: float
    encoded: Encoded | None = None  # the vectors of the step, detached, for hooks that read them


class Objective(Protocol):
    """What the trainer minimises, whatever the task."""

    @property
    def model(self) -> Trainable: ...

    @property
    def loss(self) -> Any: ...

    @property
    def batches(self) -> EpochBatches: ...

    @property
    def hooks(self) -> Sequence[Hook]: ...

    def backward(self, batch: Any, generator: torch.Generator) -> StepResult:
        """The loss of a batch; its gradients are added to the parameters'."""


class CatalogueObjective:
    """Positives of queries against a catalogue of items that all queries share.

    ``effective_n``: the partition sum over n columns is scaled by effective_n / n. For the softmax loss that is a
    constant; for SL@K it sets how strongly the weight's gradient lowers badly ranked positives (docs/losses/slatk.md).
    Losses that define their own sum or mean over negatives (``Loss.defaults.effective_n`` is None) are never scaled.
    ``prior``: the exponent of an item's weight as a negative (:func:`topshelf.negatives.item_prior`).
    Where the optimizer, the model, the loss and the negatives allow it (``goes_by_rows``), the cost of a step does not
    depend on the number of items.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        negatives: Negatives,
        context: Context,
        *,
        effective_n: int | None = None,
        prior: float = 0.0,
        workspace: Workspace | None = None,
        half: bool = False,
    ) -> None:
        if loss.reduction != "mean":
            raise ConfigError(
                f"training takes the mean over positives: reduction must be 'mean', got {loss.reduction!r}"
            )
        self.model, self.loss, self.negatives = model, loss, negatives
        model.attach(context)
        negatives.attach(context)
        self.hooks: list[Hook] = []
        self._is_checked = False  # whether the vectors of a first step had the right shapes
        self.batches: EpochBatches
        scaled = _effective_n(effective_n, loss, negatives, model.n_items)
        counts = Population.of(context.histories, context.n_items).item_counts
        log_weight = item_prior(counts, prior)
        self.head = choose_head(loss, negatives, scaled, workspace or Workspace(), log_weight=log_weight, half=half)

    def own_thresholds(self, hook: ThresholdOwner) -> None:
        """Set the hook that updates the loss's thresholds; it may read the scores that the head computes."""
        self.hooks.append(hook)
        self.head.reader = hook

    @property
    def goes_by_rows(self) -> bool:
        """Whether a step reads and updates the items of its batch and its draw only."""
        model, source, needs = self.model, self.negatives, self.loss.needs
        can = model.by_rows and source.by_rows and not {"negative_item", "item_vector"} & set(needs)
        return model.sparse_rows and can

    def backward(self, batch: Batch, generator: torch.Generator) -> StepResult:
        if self.goes_by_rows:
            return self._backward_by_rows(batch, generator)
        encoded = self.model.encode_batch(batch)
        if not self._is_checked:
            _check_encoded(self.model, encoded, batch)
            self._is_checked = True
        return StepResult(self.head.backward(batch, encoded, generator), encoded.detach())

    def _backward_by_rows(self, batch: Batch, generator: torch.Generator) -> StepResult:
        queries, table = self.model.encode_queries(batch.queries), cast("Tensor", ItemRows(self.model))
        assert isinstance(queries, Tensor)
        seen = Encoded(queries.detach(), table)
        rows, small, self.head.made = only_rows(batch, self.head.draw(batch, seen, generator))
        if self.model.held is not None:  # several processes: those of the slice, which are consecutive
            self.head.held = self.model.held.among(rows)
            rows = self.head.held.rows(rows) - self.model.held.first
        number = self.head.backward(small, Encoded(queries, self.model.encode_item_rows(rows)), generator)
        self.head.made = None
        return StepResult(number, seen)

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Encoded]:
        """The differentiable loss in one piece, the model's own loss added, and the detached vectors."""
        encoded = self.model.encode_batch(batch)
        value = self.head.value(batch, encoded, generator)
        return value if encoded.auxiliary is None else value + encoded.auxiliary, encoded.detach()


def _check_encoded(model: Model, encoded: Encoded, batch: Batch) -> None:
    """Refuse vectors whose shapes do not fit together: the model may be a class of the user's own."""
    queries, items = encoded.queries, encoded.items
    wanted = (batch.query.numel(), model.n_held)
    shapes = [tuple(one.shape) for one in (queries, items)]
    if any(len(shape) != 2 for shape in shapes) or (len(queries), len(items)) != wanted or shapes[0][1] != shapes[1][1]:
        raise ConfigError(
            f"{type(model).__name__} must encode {wanted[0]} queries and {wanted[1]} items as vectors of one length, "
            f"(Q, d) and (I, d), got {shapes[0]} and {shapes[1]}"
        )


def _effective_n(given: int | None, loss: Loss, negatives: Negatives, n_items: int) -> int | None:
    """The size to which the sum over negatives is scaled; None: as it is."""
    default = loss.defaults.effective_n
    if default is None:
        return None
    if given is None:
        if default == "catalogue":
            return n_items
        return default if negatives.stands_for_catalogue else None
    # A draw has at most all items, so neither has its effective_n.
    return min(given, n_items) if negatives.layout == "shared" and given == negatives.n else given
