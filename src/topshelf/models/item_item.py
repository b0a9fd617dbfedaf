"""What item-item models share: a query is the set of its items, and each of them votes for others with a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from topshelf import kernels
from topshelf.errors import ConfigError, DataError, at_least
from topshelf.item_table import ItemTable, ItemVectors, SparseRows
from topshelf.models.base import HistoryRows, Model
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors

BLOCK = 1 << 26  # bytes of weights that are dense at once while a model is fitted
LEAST_MEMORY = 1000  # bytes: a smaller number was probably meant in gigabytes
_DENSE = 1 << 28  # bytes of a dense table that is scored faster than lists, or about as fast
_CELL = 4  # bytes of a weight
_LISTED = 4 + 8 + 8  # bytes of a weight in a list, with its index in the model and in the table that is scored


class ItemItem(Model):
    """Base of the item-item models: the vector of a query is its history, so known and new users are served alike."""

    is_closed_form: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"rows", "history"})

    def attach(self, context: Context) -> None:
        self._histories = context.histories

    def encode_queries(self, queries: QuerySet) -> QueryVectors:
        return HistoryRows(self.histories_of(queries), self.n_items)


class SparseItemItem(ItemItem):
    """Base of the item-item models with few weights per item; a subclass has ``weights_from``.

    Weights are kept and saved as lists: item j is scored by ``indices[indptr[j]:indptr[j + 1]]``. Scoring turns them
    into a dense table of 4 n_items^2 bytes, or into lists if that is more than 256 MiB. ``most`` is how many weights an
    item has, if that is known: a catalogue is refused if they need more than ``memory`` bytes.
    """

    indptr: Tensor  # (n_items + 1,), a buffer
    indices: Tensor  # (n_weights,), a buffer: the items that vote
    values: Tensor  # (n_weights,), a buffer: their weights

    def __init__(self, n_queries: int, n_items: int, memory: float, most: int = 0) -> None:
        super().__init__(n_queries, n_items)
        self.memory = memory
        self._check_memory(most)
        self.register_buffer("indptr", torch.zeros(n_items + 1, dtype=torch.int64))
        self.register_buffer("indices", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(0))

    def _check_memory(self, most: int) -> None:
        listed = _LISTED * self.n_items * min(self.n_items, most)
        needed = _CELL * self.n_items**2 if self._is_dense() else listed
        check_memory(type(self).__name__, self.n_items, needed, self.memory)

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        """The weights (n_items, n_items) from histories (n_queries, n_items): row j has those that item j is scored by.

        The diagonal is 0: no item votes for itself.
        """
        raise NotImplementedError

    def fit(self, context: Context) -> None:
        self._keep(self.weights_from(history_matrix(context.histories, self.n_items)))
        self.attach(context)

    def _keep(self, weights: scipy.sparse.csr_array) -> None:
        device = self.values.device
        self.indptr = torch.from_numpy(weights.indptr.astype(np.int64)).to(device)
        self.indices = torch.from_numpy(weights.indices.astype(np.int32)).to(device)
        self.values = torch.from_numpy(weights.data.astype(np.float32)).to(device)

    def _is_dense(self) -> bool:
        return self.n_items**2 * _CELL <= _DENSE

    def encode_items(self) -> ItemVectors:
        lists = Ragged(self.indptr, self.indices.long())
        if not self._is_dense() and self.values.device.type == "cpu":
            return ItemTable([(1.0, SparseRows(lists, self.values, self.n_items))])
        table = torch.zeros(self.n_items, self.n_items, device=self.values.device)
        table[lists.indices, lists.owner()] = self.values  # transposed: histories are multiplied with rows of it
        return table.T

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        """The number of weights is known only from the file."""
        for name in ("indices", "values"):
            if (stored := state.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state, prefix, *more)
        if not all(prefix + name in state for name in ("indptr", "indices", "values")):
            return  # torch reports missing names
        # Weights come from a file, and later code trusts their indices.
        lists = Ragged(self.indptr, self.indices.long()).check(self.n_items, "the weights", n_lists=self.n_items)
        keys = lists.owner() * self.n_items + lists.indices
        if keys.unique().numel() != keys.numel():
            raise DataError("the weights must name an item at most once per list, got a repeated one")
        if self.values.shape != self.indices.shape:
            raise DataError(
                f"there must be a weight for each of {self.indices.numel()} items, got {self.values.numel()}"
            )


def check_memory(what: str, n_items: int, needed: float, memory: float) -> None:
    """Refuse a model that does not fit in memory, before anything is allocated."""
    if needed > at_least("memory", memory, LEAST_MEMORY):
        others = "mf" if what == "SparseEASE" else "sparse_ease or mf"
        raise ConfigError(
            f"{what} over {n_items} items needs {needed / 1e9:.6g} GB, and memory allows {memory / 1e9:.6g} GB; raise "
            f"model.memory if the machine has it, drop rare items (data.core), or use --model {others}"
        )


def history_matrix(positives: Ragged, n_items: int) -> scipy.sparse.csr_array:
    """A row of ones and zeros for each query, (n_queries, n_items) float64."""
    indptr, indices = positives.indptr.cpu().numpy(), positives.indices.cpu().numpy()
    return scipy.sparse.csr_array((np.ones(indices.size), indices, indptr), shape=(len(positives), n_items))


def gram_matrix(histories: scipy.sparse.csr_array) -> np.ndarray:
    """Number of queries with both of two items, (n_items, n_items) float64; nothing else of that size is allocated."""
    by_item, n_items = scipy.sparse.csr_array(histories.T), histories.shape[1]
    gram = np.empty((n_items, n_items))
    for rows in blocks(n_items, BLOCK):
        gram[rows] = (by_item[rows] @ histories).toarray()
    return gram


def blocks(n_items: int, size: int) -> list[slice]:
    """Slices of the rows of a float64 matrix (n_items, n_items), each at most ``size`` bytes."""
    width = max(1, size // (8 * n_items))
    return [slice(start, min(start + width, n_items)) for start in range(0, n_items, width)]


def strongest(weights: Callable[[slice], np.ndarray], n_items: int, k: int) -> scipy.sparse.csr_array:
    """The k largest weights above 0 per row, the first of equal ones; the diagonal is left out.

    ``weights`` gives some rows of the matrix (n_items, n_items), dense.
    """
    k = min(k, n_items)
    values, indices = torch.full((n_items, k), -torch.inf), torch.full((n_items, k), -1)
    for rows in blocks(n_items, BLOCK):
        tile = torch.from_numpy(weights(rows).astype(np.float32))
        tile[tile <= 0] = -torch.inf
        tile.diagonal(rows.start).fill_(-torch.inf)
        kernels.keep_best(tile, values[rows], indices[rows])
    is_there = values > -torch.inf
    indptr = np.concatenate([[0], is_there.sum(1).cumsum(0).numpy()])
    return scipy.sparse.csr_array(
        (values[is_there].numpy(), indices[is_there].numpy(), indptr), shape=(n_items, n_items)
    )
