"""iALS: matrix factorisation of all cells, observed or not, by alternating least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from topshelf.errors import TrainingError, at_least, positive
from topshelf.models.base import Model
from topshelf.models.tables import empty_tables
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.registry import SearchSpace

_BLOCK = 1 << 26  # bytes of gathered vectors and systems per block; a longer list has its own block
_FIRST_SPREAD = 0.1  # of the first vectors' entries, over sqrt(dim): the paper's
_LEAST_SHARE = 1e-12  # a penalty beside the largest sum of squares; float64 resolves no less


class IALS(Model):
    r"""Matrix factorisation of every cell: 1 where there is an interaction, 0 with a small weight elsewhere.

    .. math:: \sum_{(u, i) \in X} (q_u^\top v_i - 1)^2 + \alpha_0 \sum_{u, i} (q_u^\top v_i)^2
        + \lambda \Big( \sum_u (|u| + \alpha_0 I)^\nu \lVert q_u \rVert^2
        + \sum_i (|i| + \alpha_0 U)^\nu \lVert v_i \rVert^2 \Big)

    Settings: ``dim``; ``alpha`` :math:`\alpha_0`, the weight of all cells, and ``l2`` :math:`\lambda`. Good values of
        both change with the size and the density of the data, so each is derived from the data unless it is given:
        :math:`\alpha_0 = c\,n / (U I)` gives all cells together c = ``alpha_ratio`` times the weight of the n
        interactions; :math:`\lambda = r (\sqrt a + \sqrt b) / ((a + \alpha_0 I) (b + \alpha_0 U))^{\nu/2}`
        with r = ``l2_ratio``, for users with a items and items with b users on average. :math:`\sqrt a + \sqrt b` is
        the strongest component that chance alone gives a table of that density: a larger ratio leaves popularity
        only, a smaller one fits noise. Users without items, and items without users, are not counted in n, a, b and
        the density. ``scaling`` :math:`\nu`, 1 for a penalty in proportion to the amount of data, 0 for one penalty
        for all; ``iterations``, each of which solves all queries, then all items, exactly.
    Use when: you want a factorisation without learning rates; the vectors of new users are solved from their items.
    Cost: (n_queries + n_items) x dim numbers; an iteration solves one system per query and per item, as large as its
        list but at most dim, in blocks of 64 MiB.
    Paper: Hu et al., Collaborative filtering for implicit feedback datasets, ICDM 2008, in the form of Rendle et al.,
        Revisiting the performance of iALS on item recommendation benchmarks, RecSys 2022. The two ratios and the
        ranges are ours, by validation on every dataset we have (docs/models/measured.md).
    Relations: weight 1 + a of observed cells and penalty b, as in Hu et al., is ``alpha`` 1 / a, ``l2`` b / (1 + a)
        and ``scaling`` 0, except for the length of the vectors.
    """

    is_closed_form: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"rows", "history"})
    ranges: ClassVar[SearchSpace] = {
        "model.dim": (32, 64, 128, 256),
        "model.alpha_ratio": (1.0, 3.0, 10.0, 30.0, 100.0),
        "model.l2_ratio": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5),
        "model.iterations": (8, 16),
    }
    query_vectors: Tensor  # (n_queries, dim), a buffer
    item_vectors: Tensor  # (n_items, dim), a buffer
    weights: Tensor  # (2,), a buffer if either is derived: the alpha and the l2 of the last fit

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        alpha: float | None = None,
        l2: float | None = None,
        alpha_ratio: float = 10.0,
        l2_ratio: float = 0.6,
        scaling: float = 1.0,
        iterations: int = 16,
    ) -> None:
        super().__init__(n_queries, n_items)
        self.alpha = None if alpha is None else positive("alpha", alpha)
        self.l2 = None if l2 is None else positive("l2", l2)
        self.alpha_ratio, self.l2_ratio = positive("alpha_ratio", alpha_ratio), positive("l2_ratio", l2_ratio)
        self.scaling = at_least("scaling", scaling, 0.0)
        self.iterations = at_least("iterations", iterations, 1)
        self.dim = dim
        queries, items = empty_tables(n_queries, n_items, dim)
        self.register_buffer("query_vectors", queries.zero_())
        self.register_buffer("item_vectors", items.zero_())
        if alpha is None or l2 is None:  # new users need the same two, also after loading
            self.register_buffer("weights", torch.ones(2, dtype=torch.float64))
        self._seed = int(torch.randint(2**62, ()))  # depends on the run's seed; a second fit starts as the first did

    @torch.no_grad()
    def fit(self, context: Context) -> None:
        positives = context.histories
        by_item = ragged_from_pairs(positives.indices, positives.owner(), self.n_items)
        self._derive(positives.counts, by_item.counts)
        generator = torch.Generator().manual_seed(self._seed)
        first = torch.randn(self.n_items, self.dim, generator=generator) * _FIRST_SPREAD / self.dim**0.5
        self.item_vectors.copy_(first)
        for _ in range(self.iterations):
            self.query_vectors.copy_(self._solve(positives, self.item_vectors))
            self.item_vectors.copy_(self._solve(by_item, self.query_vectors))
        self.query_vectors.copy_(self._solve(positives, self.item_vectors))  # known and new users alike

    @torch.no_grad()
    def fit_from(self, old: IALS, context: Context) -> None:
        """One iteration from the old items; those of the data that are new start at 0 and are solved like the others.

        The settings that the data decide are derived again.
        """
        positives = context.histories
        by_item = ragged_from_pairs(positives.indices, positives.owner(), self.n_items)
        self._derive(positives.counts, by_item.counts)
        self.item_vectors.zero_()[: old.n_items] = old.item_vectors
        self.query_vectors.copy_(self._solve(positives, self.item_vectors))
        self.item_vectors.copy_(self._solve(by_item, self.query_vectors))
        self.query_vectors.copy_(self._solve(positives, self.item_vectors))

    @torch.no_grad()
    def encode_queries(self, queries: QuerySet) -> Tensor:
        if queries.history is None:
            return queries.take(self.query_vectors)
        return self._solve(queries.history, self.item_vectors)

    def encode_items(self) -> Tensor:
        return self.item_vectors

    def derived(self) -> dict[str, float]:
        values = {"alpha": self.alpha, "l2": self.l2}
        return {name: float(self.weights[at]) for at, name in enumerate(values) if values[name] is None}

    @classmethod
    def searched(cls, settings: Mapping[str, Any]) -> SearchSpace:
        """A ratio is not searched if the number that it derives is given."""
        given = {f"model.{name}_ratio" for name in ("alpha", "l2") if settings.get(name) is not None}
        return {name: values for name, values in cls.ranges.items() if name not in given}

    def _derive(self, of_queries: Tensor, of_items: Tensor) -> None:
        """Derive what is not given from the lengths of all lists, as in the docstring."""
        if self.alpha is not None and self.l2 is not None:
            return
        n = max(1, int(of_queries.sum()))
        n_active = [max(1, int((counts > 0).sum())) for counts in (of_queries, of_items)]
        per_query, per_item = (n / active for active in n_active)
        alpha = self.alpha_ratio * n / math.prod(n_active) if self.alpha is None else self.alpha
        weight = (per_query + alpha * self.n_items) * (per_item + alpha * self.n_queries)
        l2 = self.l2_ratio * (per_query**0.5 + per_item**0.5) / weight ** (self.scaling / 2)
        in_use = [alpha, l2 if self.l2 is None else self.l2]
        self.weights.copy_(torch.tensor(in_use, dtype=torch.float64))

    def _solve(self, lists: Ragged, others: Tensor) -> Tensor:
        """The best vectors (len(lists), dim) for these lists of the others; computed in float64.

        In the eigenbasis of the others' Gram matrix, all rows share a diagonal except for their penalties.
        """
        in_use: dict[str, Any] = {"alpha": self.alpha, "l2": self.l2} | self.derived()
        alpha, l2 = in_use["alpha"], in_use["l2"]
        others = others.double()
        spectrum, basis = torch.linalg.eigh(alpha * (others.T @ others))
        penalty = l2 * (lists.counts + alpha * others.size(0)).double() ** self.scaling
        if bool((penalty <= _LEAST_SHARE * spectrum[-1]).any()):
            name, value = ("l2_ratio", self.l2_ratio) if self.l2 is None else ("l2", self.l2)
            raise TrainingError(
                f"iALS's vectors are not determined by so small a penalty; raise model.{name}, which is {value}"
            )
        turned = torch.cat([others @ basis, others.new_zeros(1, self.dim)])
        solutions = others.new_empty(len(lists), self.dim)
        for rows, members in _blocks(lists, others.size(0), self.dim):
            diagonal = spectrum.clamp(min=0) + penalty[rows].unsqueeze(1)  # (B, dim)
            solve = _solve_few if members.size(1) < self.dim else _solve_many
            solutions[rows] = solve(turned[members], diagonal)
        return (solutions @ basis.T).float()


def _solve_many(theirs: Tensor, diagonal: Tensor) -> Tensor:
    """The solutions x (B, d) of (A'A + D) x = A'1: A (B, L, d) are the vectors of a list, D (B, d) is a diagonal."""
    system = torch.bmm(theirs.mT, theirs)
    system.diagonal(dim1=1, dim2=2).add_(diagonal)
    return torch.cholesky_solve(theirs.sum(1).unsqueeze(2), torch.linalg.cholesky(system)).squeeze(2)


def _solve_few(theirs: Tensor, diagonal: Tensor) -> Tensor:
    """The same for L < d: x = D^-1 A' (A D^-1 A' + I)^-1 1, a system of L."""
    scaled = theirs / diagonal.unsqueeze(1)
    system = torch.bmm(scaled, theirs.mT)
    system.diagonal(dim1=1, dim2=2).add_(1.0)
    shares = torch.cholesky_solve(torch.ones_like(system[:, :, :1]), torch.linalg.cholesky(system))
    return torch.bmm(scaled.mT, shares).squeeze(2)


def _blocks(lists: Ragged, filler: int, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (B,) of similar length, and their lists as a table, (B, L), padded with ``filler``."""
    order = torch.argsort(lists.counts, stable=True)
    lengths = lists.counts[order].tolist()
    start = 0
    while start < len(lengths):
        stop = start + 1
        while stop < len(lengths):
            longest = lengths[stop]  # every list of the block is padded to it
            if (stop + 1 - start) * 16 * (longest * dim + min(longest, dim) ** 2) > _BLOCK:
                break
            stop += 1
        rows = order[start:stop]
        chosen = lists.select(rows)
        members = torch.full((rows.numel(), max(1, lengths[stop - 1])), filler, device=rows.device)
        owner = chosen.owner()
        members[owner, torch.arange(owner.numel(), device=rows.device) - chosen.indptr[owner]] = chosen.indices
        yield rows, members
        start = stop
