"""Classes that break a promise each, for the tests of the contract suites."""

from __future__ import annotations

from typing import ClassVar

import torch

from topshelf.losses import Loss, SoftmaxLoss
from topshelf.losses.base import margins, owners
from topshelf.models import MF, History
from topshelf.negatives import Draw, Layout, Negatives, columns_of
from topshelf.queries import QuerySet
from topshelf.ragged import ragged_from_pairs
from topshelf.thresholds import exact_thresholds
from topshelf.training.thresholding import Estimator, Exact

# Losses


class Mutates(SoftmaxLoss):
    def each(self, positive, negative, owner, extras):
        loss = super().each(positive, negative, owner, extras)
        with torch.no_grad():
            positive.add_(1)
        return loss


class IgnoresMask(Loss):
    def each(self, positive, negative, owner, extras):
        return margins(positive, negative, owners(positive, len(negative), owner)).exp().sum(1)


class FirstNegativeOnly(Loss):
    def each(self, positive, negative, owner, extras):
        rows = margins(positive, negative, owners(positive, len(negative), owner))
        return rows[:, :1].sum(1)


class AddsInFloat32(SoftmaxLoss):
    def each(self, positive, negative, owner, extras):
        return super().each(positive, negative, owner, extras) * torch.tensor([3]).sqrt().mean()


class BadScope(SoftmaxLoss):
    scope = "positive"

    def each(self, positive, negative, owner, extras):
        losses = super().each(positive, negative, owner, extras)
        return losses + losses.mean()


class DetachedScale(SoftmaxLoss):
    def each(self, positive, negative, owner, extras):
        losses = super().each(positive, negative, owner, extras)
        return losses * losses.detach()


class NoReduction(SoftmaxLoss):
    def __init__(self):
        super().__init__()


class NeedsTheUnknown(SoftmaxLoss):
    needs = ("negative", "the_moon")


class MovesInEvaluation(SoftmaxLoss):
    def __init__(self, *, reduction="mean"):
        super().__init__(reduction=reduction)
        self.register_buffer("calls", torch.zeros(()))

    def each(self, positive, negative, owner, extras):
        self.calls += 1
        return super().each(positive, negative, owner, extras)


class Ascends(SoftmaxLoss):
    def each(self, positive, negative, owner, extras):
        return -super().each(positive, negative, owner, extras)


# Models


class RandomEncode(MF):
    def encode_queries(self, queries):
        vectors = super().encode_queries(queries)
        return vectors + 0.01 * torch.randn_like(vectors)


class CentredRows(MF):
    """Its vectors depend on who else is in the call."""

    def encode_queries(self, queries):
        vectors = super().encode_queries(queries)
        return vectors - vectors.mean(0)


class RandomItems(MF):
    def encode_items(self):
        vectors = super().encode_items()
        return vectors + 0.01 * torch.randn_like(vectors)


class UnusedParameter(MF):
    def __init__(self, n_queries, n_items, *, dim=8):
        super().__init__(n_queries, n_items, dim=dim)
        self.spare = torch.nn.Parameter(torch.zeros(3))


class KeepsData(MF):
    def attach(self, context):
        super().attach(context)
        self.register_buffer("seen", context.histories.indices.float())


class ForgetsSomething(MF):
    """What is learned beside the parameters is not saved."""

    def encode_items(self):
        vectors = super().encode_items()
        if self.training and torch.is_grad_enabled():
            self.scale = getattr(self, "scale", 0) + 1
        return vectors * (1 + getattr(self, "scale", 0))


class IgnoresOrder(History):
    """Takes sequences and reads them as sets."""

    takes = frozenset({"rows", "sequence"})

    def encode_queries(self, queries):
        if queries.sequence is None:
            return super().encode_queries(queries)
        lists = queries.sequence
        pairs = torch.unique(torch.stack([lists.owner(), lists.indices]), dim=1)
        return super().encode_queries(QuerySet(history=ragged_from_pairs(*pairs, len(lists))))


# Negatives


class DrawsPositives(Negatives):
    layout: ClassVar[Layout] = "shared"

    def draw(self, batch, encoded, generator):
        return Draw(torch.randperm(self.population.n_items, generator=generator)[:10], None)


class MasksOnlyTheBatch(Negatives):
    """Positives that the batch does not train on count as negatives."""

    layout: ClassVar[Layout] = "own"

    def draw(self, batch, encoded, generator):
        n_items = self.population.n_items
        items = torch.randint(n_items, (len(batch.positives), 12), generator=generator)
        row, column = torch.isin(items, batch.item).nonzero().T
        return Draw(items, ragged_from_pairs(row, column, len(batch.positives)))


class WrongLayout(Negatives):
    layout: ClassVar[Layout] = "own"

    def draw(self, batch, encoded, generator):
        items = torch.randperm(self.population.n_items, generator=generator)[:10]
        return Draw(items, columns_of(batch.positives, items, self.population.n_items))


class GlobalStream(Negatives):
    layout: ClassVar[Layout] = "shared"

    def draw(self, batch, encoded, generator):
        items = torch.randperm(self.population.n_items)[:10]
        return Draw(items, columns_of(batch.positives, items, self.population.n_items))


class ClaimsTheCatalogue(Negatives):
    """The popular half of the items, without a correction."""

    layout: ClassVar[Layout] = "shared"
    stands_for_catalogue: ClassVar[bool] = True

    def draw(self, batch, encoded, generator):
        items = self.population.item_counts.argsort(descending=True)[:5]
        log_q = torch.full((5,), 1.0)
        return Draw(items, columns_of(batch.positives, items, self.population.n_items), log_q)


# Estimators


class WithGradients(Exact):
    def refresh(self, now, queries, items, positives, k, generator):
        with torch.enable_grad():
            return (queries @ items.T).topk(k).values[:, -1]


class WrongShape(Exact):
    def refresh(self, now, queries, items, positives, k, generator):
        return super().refresh(now, queries, items, positives, k, generator).unsqueeze(1)


class InPlace(Estimator):
    def refresh(self, now, queries, items, positives, k, generator):
        return now.copy_(exact_thresholds(queries, items, k))


class FarOff(Estimator):
    def refresh(self, now, queries, items, positives, k, generator):
        return exact_thresholds(queries, items, items.size(0))


class NoMethod(Exact):
    updates: ClassVar = "steps"


class UnseededNoise(Exact):
    def refresh(self, now, queries, items, positives, k, generator):
        return super().refresh(now, queries, items, positives, k, generator) + 1e-3 * torch.randn(len(now))
