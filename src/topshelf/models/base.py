"""The contract of a model. Most encode queries and items as vectors.

The score of a query and an item is the dot product of their vectors. Some models are trained by a loss; closed-form
models have ``fit``. Both are ``nn.Module``s, so both are saved and loaded the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topshelf.errors import ConfigError, TopshelfError, at_least
from topshelf.item_table import ItemVectors
from topshelf.models.slices import ItemSlice
from topshelf.queries import KINDS, Batch, Encoded, QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors
from topshelf.registry import Recorded, SearchSpace


class Trainable(Recorded, nn.Module):
    """What a run, a trainer and the tuner need of a model, whatever its task.

    - ``sizes``: the constructor arguments that the data decide;
    - ``is_closed_form``: it is fitted once by :meth:`fit` instead of trained;
    - ``ranges``: the values that tuning searches, by the names of a run's settings.

    With ``sparse_rows``, tables that a step reads by rows have sparse gradients, as row_adam needs them.
    """

    sizes: ClassVar[tuple[str, ...]]
    is_closed_form: ClassVar[bool] = False
    ranges: ClassVar[SearchSpace] = {}
    sparse_rows: bool = False

    def attach(self, context: Any) -> None:
        """Give the model the data that its results depend on: histories, their order and times, a graph.

        Called before the first step and after loading. Nothing of it is in ``state_dict``.
        """

    def fit(self, context: Any) -> None:
        """Closed-form models only: compute the parameters from the data, and attach the data."""
        raise NotImplementedError

    def fit_from(self, old: Any, context: Any) -> None:  # noqa: ARG002
        """Closed-form models only: :meth:`fit`, from an older model of some of the same data where that is quicker.

        ``old`` is of the same class and settings; its queries and items are the first ones of this model.
        """
        self.fit(context)

    def place_new(self, n_queries: int, n_items: int, context: Any) -> None:
        """Trained models only: start the rows after the first ``n_queries`` and ``n_items`` from the data.

        The rows before them are trained. By default, the others keep their initial values.
        """

    def derived(self) -> dict[str, float]:
        """Settings that were not given and that the last fit derived from the data, by name."""
        return {}

    @classmethod
    def searched(cls, settings: Mapping[str, Any]) -> SearchSpace:  # noqa: ARG003  for those that override it
        """The ranges to search, given these settings of the model."""
        return dict(cls.ranges)


class Model(Trainable):
    """Base of the models that encode. A subclass has :meth:`encode_queries` and :meth:`encode_items`, and says what it
    ``takes``: the kinds of queries it encodes. All take ``"rows"``, the queries of the training; one that takes
    ``"sequence"`` or ``"history"`` serves new users by the same call, from their items in order or as a set.

    ``item_tables`` names its parameters with a row per item, if several processes can divide them (``held``); then
    :meth:`encode_items` gives the vectors of the slice, and everything else is as if the tables were whole.

    ``by_rows``: it has :meth:`encode_item_rows`, and a batch's vectors depend on the rows of its own queries and items
    alone, so that a step with drawn negatives need not encode all items.
    """

    sizes: ClassVar[tuple[str, ...]] = ("n_queries", "n_items")
    takes: ClassVar[frozenset[str]] = frozenset({"rows"})
    item_tables: ClassVar[tuple[str, ...]] = ()
    by_rows: ClassVar[bool] = False
    held: ItemSlice | None = None
    _histories: Ragged | None = None

    def __init__(self, n_queries: int, n_items: int) -> None:
        super().__init__()
        self.n_queries = at_least("n_queries", n_queries, 1)
        self.n_items = at_least("n_items", n_items, 1)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        encodes = {"encode_queries", "encode_items", "encode", "encode_batch"} & vars(cls).keys()
        if encodes and "by_rows" not in vars(cls):
            cls.by_rows = False  # a subclass that encodes otherwise makes its own claim

    def hold(self, held: ItemSlice | None) -> None:
        """Keep only a slice of the tables of items; with None, gather them again. Then :meth:`attach` the data."""
        for name in self.item_tables:
            table: Tensor = getattr(self, name).data
            whole = table if self.held is None else self.held.whole(table)
            setattr(self, name, nn.Parameter(whole if held is None else held.rows(whole).clone()))
        self.held = held

    @property
    def n_held(self) -> int:
        """How many items have their vectors in this process."""
        return self.n_items if self.held is None else len(self.held)

    def encode_queries(self, queries: QuerySet) -> QueryVectors:
        """Vectors of the queries, (Q, d), or an object that gives rows of them; deterministic."""
        raise NotImplementedError

    def encode_items(self) -> ItemVectors:
        """Vectors of all items, (I, d), a tensor unless most are zeros; deterministic."""
        raise NotImplementedError

    def encode_item_rows(self, rows: Tensor) -> Tensor:
        """Vectors of the items ``rows (R,)``, (R, d), for models that go ``by_rows``."""
        raise NotImplementedError

    def encode(self, queries: QuerySet) -> tuple[QueryVectors, ItemVectors]:
        """Vectors of the queries and of all items. Override it where computing both at once is cheaper."""
        return self.encode_queries(queries), self.encode_items()

    def encode_batch(self, batch: Batch) -> Encoded:
        """The vectors of a training step, called once per step, with the model's own loss of the batch if it has one.

        Only here may a model draw noise. It draws from torch's global generator, which is seeded before every step.
        """
        queries = self.encode_queries(batch.queries)
        items = self.encode_items()
        assert isinstance(queries, Tensor)
        assert isinstance(items, Tensor)
        return Encoded(queries, items)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of queries that this model encodes: those of its class, unless they depend on its settings."""
        return self.takes

    def check_takes(self, kind: str) -> None:
        """Refuse a kind of queries that the model cannot encode."""
        if kind in self.kinds:
            return
        name = type(self).__name__
        if self.kinds == {"rows"}:
            raise ConfigError(
                f"{name} has vectors for the users of its training only, not for new ones, got a {kind}. Train again "
                "with their interactions, or use a model that takes new users; topshelf models says which do"
            )
        taken = ", ".join(one for one in KINDS if one in self.kinds)
        raise ConfigError(f"{name} takes queries of the kinds {taken}, got the kind {kind}; give one of those it takes")

    def histories_of(self, queries: QuerySet) -> Ragged:
        """The history of each query: the given one, or that of its row among the attached ones."""
        if queries.history is not None:
            return queries.history
        if self._histories is None:
            raise TopshelfError(
                f"{type(self).__name__} has no histories yet: call attach(context) with the training data"
            )
        is_all = queries.is_all and len(queries) == len(self._histories)
        return self._histories if is_all else self._histories.select(queries.known_rows())


class HistoryRows:
    """Vectors that are histories: row u is 1 at the items of query u. Rows are sparse (CSR) matrices."""

    def __init__(self, histories: Ragged, n_items: int) -> None:
        self.histories, self.n_items = histories, n_items

    def __len__(self) -> int:
        return len(self.histories)

    def __getitem__(self, rows: Tensor) -> Tensor:
        chosen = self.histories.select(rows)
        return chosen.matrix(torch.ones(chosen.indices.shape, device=rows.device), self.n_items)


class EncodedRows:
    """Vectors of queries, encoded when they are indexed; for models that go ``by_rows``, whose rows cost nothing else.

    So the vectors of all queries are not beside the table that they are made of.
    """

    def __init__(self, model: Model, queries: QuerySet) -> None:
        assert model.by_rows
        self.model, self.queries = model, queries

    def __len__(self) -> int:
        return len(self.queries)

    @torch.no_grad()
    def __getitem__(self, rows: Tensor) -> Tensor:
        vectors = self.model.encode_queries(self.queries.select(rows))
        assert isinstance(vectors, Tensor)
        return vectors


class JoinedRows:
    """Query vectors side by side, each times a factor; computed when indexed, because some are mostly zeros."""

    def __init__(self, parts: Sequence[tuple[float, QueryVectors]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0][1])

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.cat([factor * queries[rows].to_dense() for factor, queries in self.parts], 1)
