"""What every loss shares: the ragged form, the reduction, and how masked or unevenly drawn negatives count.

A batch holds Q queries and all P positives of those queries. ``owner (P,)`` is the query of each positive. Without
``owner`` the batch has the usual form: one query per positive, P = Q.

The modules refuse tensors whose shapes do not fit and indices that are out of range. They blank the scores of masked
negatives, which may hold anything, also infinity or NaN. The pure functions check nothing, and most of them need finite
scores at masked places.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError, one_of
from topshelf.losses.checks import check_batch
from topshelf.losses.tables import Tables
from topshelf.registry import Recorded, SearchSpace

Reduction = Literal["mean", "sum", "none"]
Scope = Literal["positive", "query", "batch"]

# The paper's search space of its optimizer, for cosines; for dot products it goes one step lower.
DECAYS = (0.0, 1e-4, 1e-5, 1e-6)
FOR_COSINES: SearchSpace = {"train.learning_rate": (0.1, 0.01, 0.001), "train.weight_decay": DECAYS}
FOR_DOT_PRODUCTS: SearchSpace = {"train.learning_rate": (0.1, 0.01, 0.001, 0.0001), "train.weight_decay": DECAYS}
TEMPERATURES = (0.01, 0.05, 0.1, 0.2, 0.5)
WEIGHT_TEMPERATURES = tuple(step / 4 for step in range(2, 13))
GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of moving averages


class Extras(NamedTuple):
    """What a loss may be given besides the scores. Its ``needs`` are those that it cannot do without."""

    query: Tensor | None = None  # (Q,), index of each query, for losses that keep state per query
    mask: Tensor | None = None  # (Q, N), True where a negative does not count
    log_q: Tensor | None = None  # (N,) or (Q, N), log of how much likelier than uniform a negative was drawn
    log_partition: Tensor | None = None  # (Q,), in place of the negatives
    threshold: Tensor | None = None  # (Q,), each query's K-th best score, in place of the loss's own table
    pair: Tensor | None = None  # (P,), index of each positive among all training positives
    negative_item: Tensor | None = None  # (N,) or (Q, N), index of each negative's item
    query_vector: Tensor | None = None  # (Q, d)
    item_vector: Tensor | None = None  # (P, d), of the positives


# What a loss can need, and what to pass when it is missing.
_NEEDS = {
    "negative": "negative (Q, N), the scores of negatives; a log_partition does not determine it",
    "log_partition": "negative (Q, N), the scores of negatives, or log_partition (Q,)",
    "query": "query (Q,), the index of each query: it keeps state per query",
    "threshold": "threshold (Q,), each query's K-th best score, because it was made without n_queries",
    "pair": "pair (P,), the index of each positive among all training positives: it keeps state per positive",
    "negative_item": "negative_item (N,) or (Q, N), the index of each negative's item",
    "query_vector": "query_vector (Q, d), the vectors of the queries",
    "item_vector": "item_vector (P, d), the vectors of the positives",
}


class Defaults(NamedTuple):
    """What a run uses where its settings leave the choice open."""

    score: Literal["cosine", "dot"] = "cosine"
    negatives: str = "auto"  # the catalogue for losses that take a log_partition, else per_query
    n: int | None = None  # negatives drawn per query; None: the paper's N (``negatives.paper_n``: 1000, MovieLens 200)
    # The size to which the sum over negatives is scaled: a number, "catalogue" for a sum that stands for the whole
    # catalogue, None where the formula's own sum or mean is meant and ``negatives.effective_n`` may not be set.
    effective_n: int | Literal["catalogue"] | None = None


class ModuleForm:
    """The module form of a pure function: checked settings and state, nothing else.

    formula  the pure function
    ranges   what is searched when the loss is tuned
    """

    formula: ClassVar[Callable[..., Tensor]]
    ranges: ClassVar[SearchSpace]
    _arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction: Reduction = one_of("reduction", reduction, get_args(Reduction))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "formula" in vars(cls):
            cls._arguments = tuple(inspect.signature(cls.formula).parameters)

    @classmethod
    def documented(cls) -> object:
        """What has the documentation: the class, where its docstring says when to use it, else the formula."""
        return cls if "Use when:" in (cls.__doc__ or "") else getattr(cls, "formula", cls)

    def extra_repr(self) -> str:
        """The settings, as ``repr`` and ``print`` show them: as they are now, or as they were given."""
        args, given = self.__dict__["_constructed_with"]
        bound = inspect.signature(type(self)).bind(*args, **given)
        bound.apply_defaults()
        current = {name: getattr(self, name, value) for name, value in bound.arguments.items()}
        plain = (str, int, float, tuple, list, type(None))
        shown = {name: now if isinstance(now, plain) else bound.arguments[name] for name, now in current.items()}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def call_formula(self, **given: Any) -> Tensor:
        """The formula, with each of its arguments from ``given`` or else from the module's attribute of that name."""
        arguments = {name: given[name] if name in given else getattr(self, name) for name in self._arguments}
        return self.formula(**arguments)


class Loss(ModuleForm, Recorded, Tables):
    """Base of the losses. A subclass sets ``formula`` and ``ranges`` (:class:`ModuleForm`) and, where they differ:

    - ``needs``: what a call must have, of ``negative`` and :class:`Extras`. "log_partition" means either the (Q, N)
      negatives or ``log_partition (Q,)``, the log of the partition sum of ``exp(score / tau)``; the loss then has an
      attribute ``tau``. "whole_queries" means that all positives of a query must be in the batch
      (``train.order = "query"``);
    - ``scope``: which scores the gradient of a positive's term reaches. "positive": its own and its query's negatives;
      "query": also the query's other positives; "batch": all of the batch, so that the mean over a batch is not the
      mean over its parts;
    - ``keeps_thresholds``: it has ``k`` and a table ``threshold (n_queries,)`` that the caller updates;
    - ``defaults``: what a run uses where its settings leave the choice open;
    - ``pair_copies``: how many tables of (P, N) floats the loss and its backward pass hold at once, for the memory
      check;
    - ``raced``: a setting that a run may leave to a short race on validation ("auto"), with the values that are tried,
      the safest last: it is taken where others are hardly better;
    - ``own_rate``: the learning rate of its parameters, where it is not the model's;
    - ``each``: the loss of every positive, where it is more than a call of the formula.

    Constructor arguments come in one order: sizes (``n_queries``, ``n_items``, ``n_positives``, filled in by the
    trainer) and ``k`` by position, then by keyword further sizes, temperatures, other settings, ``reduction``.
    """

    ranges: ClassVar[SearchSpace] = FOR_COSINES
    needs: tuple[str, ...] = ("negative",)
    tau: float
    scope: Scope = "positive"
    keeps_thresholds: bool = False
    k: int
    threshold: Tensor
    defaults: ClassVar[Defaults] = Defaults()
    pair_copies: int = 12
    raced: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    own_rate: float | None = None

    def forward(
        self,
        positive: Tensor,
        negative: Tensor | None = None,
        owner: Tensor | None = None,
        *,
        query: Tensor | None = None,
        mask: Tensor | None = None,
        log_q: Tensor | None = None,
        log_partition: Tensor | None = None,
        threshold: Tensor | None = None,
        pair: Tensor | None = None,
        negative_item: Tensor | None = None,
        query_vector: Tensor | None = None,
        item_vector: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch: a number, or (P,) with reduction "none".

        Shapes: positive (P,); negative (Q, N); owner (P,), default one query per positive; the others as in
        :class:`Extras`. Losses with state update it in training mode only. In a distributed run every process must
        make the same calls in training mode, with empty tensors where it has no batch: the processes exchange what
        they have written to the loss's tables (:mod:`topshelf.losses.tables`).
        """
        extras = Extras(query, mask, log_q, log_partition, threshold, pair, negative_item, query_vector, item_vector)
        self._check_needs(negative, extras)
        check_batch(self.index_sizes(), positive=positive, negative=negative, owner=owner, **extras._asdict())
        if self.training and self.is_shared():
            self.synchronise()
        if negative is not None and mask is not None:
            negative = negative.masked_fill(mask, 0.0)  # 0 times infinity is NaN
        losses = self.each(positive, negative, owner, extras)
        if self.training and self.is_shared() and self.has_written():
            self.synchronise()
        return reduce(losses, self.reduction)

    if TYPE_CHECKING:
        __call__ = forward  # nn.Module's takes and returns anything

    def _check_needs(self, negative: Tensor | None, extras: Extras) -> None:
        for name in self.needs:
            in_place = negative if name in ("negative", "log_partition") else None
            if getattr(extras, name, in_place) is None and in_place is None and name != "whole_queries":
                remedy = "one of them" if name == "log_partition" else name
                raise ConfigError(f"{type(self).__name__} needs {_NEEDS[name]}; pass {remedy}")

    def each(self, positive: Tensor, negative: Any, owner: Tensor | None, extras: Extras) -> Tensor:
        """The loss of every positive, (P,). ``negative`` is a Tensor where ``needs`` says so."""
        return self.call_formula(positive=positive, negative=negative, owner=owner, **extras._asdict())

    def thresholds(self, extras: Extras) -> Tensor:
        """The thresholds of the batch's queries, (Q,): those given with the call, else those of the table."""
        return self.threshold[extras.query] if extras.threshold is None else extras.threshold

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 1; for losses whose parts train in turn."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The loss's own parameters as groups of an optimizer, for a model trained at ``learning_rate``.

        Everything is to be *minimised*: what must be maximised has its gradient reversed (:func:`ascending`).
        """
        parameters, rate = list(self.parameters()), learning_rate if self.own_rate is None else self.own_rate
        return [{"params": parameters, "lr": rate, "weight_decay": 0.0}] if parameters else []


def ascending(value: Tensor) -> Tensor:
    """The same value with its gradient reversed, so that an optimizer that minimises maximises it."""
    return 2 * value.detach() - value  # exact in floating point


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Mean, sum or nothing over (P,). The mean of an empty batch is 0."""
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / max(1, losses.numel())


def owners(positive: Tensor, n_queries: int, owner: Tensor | None) -> Tensor:
    """``owner``, or one query per positive."""
    if owner is not None:
        return owner
    if positive.numel() != n_queries:
        raise ConfigError(
            f"without owner there must be one query per positive, got {positive.numel()} positives and {n_queries} "
            "queries; pass owner (P,), the query of each positive"
        )
    return torch.arange(n_queries, device=positive.device)


def widened(scores: Tensor) -> Tensor:
    """Half-precision scores in float32; wider ones as they are."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def margins(positive: Tensor, negative: Tensor, owner: Tensor) -> Tensor:
    """How far each negative is above each positive, s_j - s_i, (P, N)."""
    # F.embedding, not indexing: its backward pass adds in a fixed order.
    return F.embedding(owner, widened(negative)) - widened(positive).unsqueeze(1)


def negative_weights(negative: Tensor, mask: Tensor | None, log_q: Tensor | None) -> Tensor:
    """The weight of each negative, (Q, N): 1 over how much likelier than uniform it was drawn, 0 where masked.

    Scores are multiplied by it, so those of masked negatives must be finite; the modules make sure of that.
    """
    weights = torch.ones_like(widened(negative))
    if log_q is not None:
        weights = weights * torch.exp(-log_q)
    return weights if mask is None else weights.masked_fill(mask, 0.0)


def counted(
    positive: Tensor, negative: Tensor, owner: Tensor | None, mask: Tensor | None, log_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The query of each positive (P,), and the weight of each negative (Q, N)."""
    return owners(positive, negative.size(0), owner), negative_weights(negative, mask, log_q)


def mean_over(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the last axis; 0 where all weights are 0."""
    total = weights.sum(-1)
    return (values * weights).sum(-1) / torch.where(total > 0, total, torch.ones_like(total))


def sampled_log_partition(negative: Tensor, tau: float, mask: Tensor | None, log_q: Tensor | None) -> Tensor:
    r"""Log of the sum of :math:`e^{s_j/\tau - \log q_j}` over each query's negatives, (Q, N) to (Q,).

    A query without negatives gets -inf.
    """
    logits = widened(negative) / tau
    if log_q is not None:
        logits = logits - log_q
    if mask is not None:
        logits = logits.masked_fill(mask, -math.inf)
    return log_sum_exp(logits)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Log-sum-exp over the last axis, (Q, N) to (Q,), with no NaN in the gradient of a row that is all -inf."""
    if logits.size(-1) == 0:
        return logits.sum(-1) - math.inf  # differentiable, as below
    # A row of -inf has no gradient; zeros keep its backward pass free of NaN.
    empty = (logits == -math.inf).all(-1)
    total = logits.masked_fill(empty.unsqueeze(-1), 0.0).logsumexp(-1)
    return total.masked_fill(empty, -math.inf)


def zero_unless(condition: Tensor, losses: Tensor) -> Tensor:
    """The losses, and 0 where the condition is False: a positive without negatives has nothing to be ranked against."""
    return torch.where(condition, losses, torch.zeros_like(losses))
