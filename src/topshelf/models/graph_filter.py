"""A graph filter: common users as a linear filter on the graph of items, and its low frequencies once more."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from topshelf.errors import at_least
from topshelf.item_table import ItemTable, ItemVectors
from topshelf.models.base import JoinedRows
from topshelf.models.item_item import SparseItemItem, strongest
from topshelf.queries import QuerySet
from topshelf.ranking import QueryVectors
from topshelf.registry import SearchSpace

_MORE = 32  # directions that are iterated beside those that are kept
_STEPS = 4  # of subspace iteration
_LEAST = 1e-6  # of the largest squared singular value; below it is rounding in float32
_SEED = 0  # of the first directions; the subspace hardly depends on them
# Of what follows from the data: benchmarks/studies/graph_filter_rule.py.
_PER_DIRECTION, _DIMS = 2560, (16, 512)
_DENSE_CELLS, _DENSE_POWER, _SPARSE_POWER = 0.01, 0.5, 0.3


class GraphFilter(SparseItemItem):
    r"""Two filters on the graph of items that have common users: a linear one, and an ideal low-pass one.

    .. math:: s_{uj} = \sum_{i \in u,\, i \neq j} \frac{1}{\sqrt{n_i}} \Big( \frac{\bar n^{q - 1/2}}{n_j^q}
        \sum_v \frac{\bar m^{p - 1}}{m_v^p} x_{vi} x_{vj} + \alpha \sqrt{n_j} \sum_{k \le d} e_{ik} e_{jk} \Big)

    n_i is the number of users of item i, m_v that of items of user v, both with their means over those that have any.
    e_k are the first d eigenvectors of the graph,
    :math:`G_{ij} = \sum_v x_{vi} x_{vj} m_v^{-p} / \sqrt{n_i n_j}`: what is smooth between items with common users.

    Settings: ``dim`` d, if not given one for every 2,560 interactions, as the nearest power of two from 16 to 512;
        ``low_pass`` :math:`\alpha`, 0 for the linear filter alone; ``user_power`` p, more to count users with many
        items less; ``item_power`` q, more to favour rare items, if not given 0.5 where at least 1% of all cells of
        users and items that have any are interactions, else 0.3; ``neighbours``, the number of weights of the linear
        filter that are kept per item j; ``memory``, the maximum bytes of the weights.
    Use when: a catalogue is too large for EASE and seconds or minutes must do; a part of a blend with EASE.
    Cost: the counts of common users, a block of items at a time; a few products of the interactions with dim + 32
        columns; neighbours weights and dim numbers per item, scored as a dense table over all pairs of items up to
        8,192 items, else as they are (similar items are then those with both parts alike); refused above ``memory``
        bytes.
    Error: ``weight_error`` in the run's ``metrics.json``, under ``derived``: the norm of the weights of the linear
        filter that were not kept, relative to that of all. The low-pass filter is kept whole. What the data decided is
        there too, as ``dim`` and ``item_power``.
    Paper: the filters of Shen et al., How powerful is graph convolution for recommendation?, CIKM 2021, which has
        p = 1 and q = 1/2. The two powers, the scale that keeps :math:`\alpha` comparable between them, and the rules
        are ours, by validation (docs/models/measured.md).
    Relations: the linear filter is that of :class:`RP3beta` with other powers; ``low_pass`` alone is PureSVD on the
        normalised matrix.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.dim": (16, 32, 64, 128, 256, 512),
        "model.low_pass": (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0),
        "model.user_power": (0.4, 0.6, 0.7, 0.8, 1.0),
        "model.item_power": (0.2, 0.3, 0.4, 0.5, 0.6),
    }
    basis: Tensor  # (n_items, dim), a buffer: the eigenvectors, of length 1; (n_items, 0) before dim is known
    counts: Tensor  # (n_items,), a buffer: the users of every item, at least 1
    error: Tensor  # (), a buffer: of the linear filter in the last fit
    power: Tensor  # (), a buffer if it is derived: the item_power of the last fit

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int | None = None,
        low_pass: float = 0.3,
        user_power: float = 0.7,
        item_power: float | None = None,
        neighbours: int = 500,
        memory: float = 4e9,
    ) -> None:
        self.dim = None if dim is None else at_least("dim", dim, 1)
        self.low_pass = at_least("low_pass", low_pass, 0.0)
        self.user_power = at_least("user_power", user_power, 0.0)
        self.item_power = None if item_power is None else at_least("item_power", item_power, 0.0)
        self.neighbours = at_least("neighbours", neighbours, 1)
        super().__init__(n_queries, n_items, memory, most=self._most(dim or _DIMS[0]))
        self.register_buffer("basis", torch.zeros(n_items, 0 if dim is None else min(dim, n_items)))
        self.register_buffer("counts", torch.ones(n_items))
        self.register_buffer("error", torch.zeros((), dtype=torch.float64))
        if item_power is None:
            self.register_buffer("power", torch.full((), _SPARSE_POWER, dtype=torch.float64))

    def _most(self, dim: int) -> int:
        """A weight in a list is as large as five numbers; the low-pass filter has the basis and two tables of it."""
        return self.neighbours + 1 + 3 * dim // 5

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        """The strongest weights of the linear filter; the diagonal is what the low-pass filter has there, negative."""
        users, items = histories.sum(axis=1), histories.sum(axis=0)
        item_power = self._derive(users, items)
        counts = np.maximum(items, 1.0)
        self.counts.copy_(torch.from_numpy(counts))
        shares = np.maximum(users, 1.0) ** (-self.user_power / 2) * _mean(users) ** ((self.user_power - 1) / 2)
        weighted = scipy.sparse.csr_array(histories * shares[:, None])
        graph = scipy.sparse.csr_array(weighted * counts**-0.5)
        self.basis.copy_(low_frequencies(graph, self.basis.size(1)))
        scored = _mean(items) ** (item_power - 0.5) * counts**-item_power
        had, low = self._sides()
        own = (had * low).sum(1).cpu().numpy()
        return scipy.sparse.csr_array(self._linear(weighted, counts**-0.5, scored) - scipy.sparse.diags_array(own))

    def _derive(self, users: np.ndarray, items: np.ndarray) -> float:
        """The item_power, and room for the basis; from the data where they are not given."""
        n = float(users.sum())
        if self.dim is None:
            dim = dim_of(n)
            self._check_memory(self._most(dim))
            self.basis = self.basis.new_zeros(self.n_items, min(dim, self.n_items))
        if self.item_power is not None:
            return self.item_power
        cells = float((users > 0).sum()) * float((items > 0).sum())
        self.power.fill_(_DENSE_POWER if n >= _DENSE_CELLS * max(1.0, cells) else _SPARSE_POWER)
        return float(self.power)

    def _linear(self, weighted: scipy.sparse.csr_array, had: np.ndarray, scored: np.ndarray) -> scipy.sparse.csr_array:
        by_item, whole = scipy.sparse.csr_array(weighted.T), 0.0

        def weights(rows: slice) -> np.ndarray:
            nonlocal whole
            tile = (by_item[rows] @ weighted).toarray() * had * scored[rows, None]
            places = np.arange(rows.start, rows.stop)
            tile[places - rows.start, places] = 0.0
            whole += float(np.square(tile).sum())
            return tile

        kept = strongest(weights, self.n_items, self.neighbours)
        left_out = max(0.0, 1.0 - float(np.square(kept.data.astype(np.float64)).sum()) / whole) if whole else 0.0
        self.error.fill_(left_out**0.5)
        return kept

    def derived(self) -> dict[str, float]:
        """The error of the last fit, and what the data decided."""
        found = {"weight_error": float(self.error)}
        if self.dim is None:
            found["dim"] = self.basis.size(1)
        return found if self.item_power is not None else {**found, "item_power": float(self.power)}

    def encode_queries(self, queries: QuerySet) -> QueryVectors:
        rows = super().encode_queries(queries)
        if not self._is_listed():
            return rows
        histories = self.histories_of(queries)
        matrix = histories.matrix(torch.ones(histories.indices.shape), self.n_items)
        return JoinedRows([(1.0, rows), (1.0, matrix @ self._sides()[0])])

    def encode_items(self) -> ItemVectors:
        had, scored = self._sides()
        linear = super().encode_items()
        if isinstance(linear, ItemTable):
            return ItemTable.joined([(1.0, linear), (1.0, scored)])
        return linear + scored @ had.T

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        """The size of a basis that the data decided is known only from the file."""
        stored = state.get(f"{prefix}basis")
        if self.dim is None and stored is not None and stored.ndim == 2:
            self.basis = self.basis.new_empty(self.n_items, stored.size(1))
        super()._load_from_state_dict(state, prefix, *more)

    def _is_listed(self) -> bool:
        return not self._is_dense() and self.values.device.type == "cpu"

    def _sides(self) -> tuple[Tensor, Tensor]:
        """The low-pass filter as the product of two tables (n_items, dim): of items that are had, of scored ones."""
        roots = self.counts.sqrt().unsqueeze(1)
        return self.basis / roots, self.low_pass * self.basis * roots


def dim_of(n_interactions: float) -> int:
    """The number of directions that so many interactions can tell from chance, a power of two."""
    least, most = _DIMS
    return min(most, max(least, 2 ** round(math.log2(max(1.0, n_interactions / _PER_DIRECTION)))))


def low_frequencies(matrix: scipy.sparse.csr_array, dim: int) -> Tensor:
    """The right singular vectors (n_items, dim) of the largest singular values, by subspace iteration.

    A singular value of 0 has zeros: its direction is not determined.
    """
    n_items = matrix.shape[1]
    whole, turned = matrix.astype(np.float32), scipy.sparse.csr_array(matrix.T).astype(np.float32)
    width = min(dim + _MORE, n_items)
    generator = torch.Generator().manual_seed(_SEED)
    found = torch.randn(n_items, width, generator=generator)
    for _ in range(_STEPS):
        found = torch.linalg.qr(torch.from_numpy(turned @ (whole @ found.numpy()))).Q
    image = torch.from_numpy(whole @ found.numpy()).double()
    squares, turns = torch.linalg.eigh(image.T @ image)
    squares, turns = squares.flip(0)[:dim], turns.flip(1)[:, :dim]
    is_there = squares > _LEAST * squares.clamp(min=_LEAST)[0]
    return (found.double() @ turns * is_there).float()


def _mean(counts: np.ndarray) -> float:
    """The mean of those above 0."""
    return float(counts[counts > 0].mean()) if counts.any() else 1.0
