"""Vectors corrected by networks: NCF as two tables."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from topshelf.errors import at_least
from topshelf.models.tables import Init, Score, TableModel, for_score
from topshelf.queries import QuerySet


class NCF(TableModel):
    r"""Vectors and a network for users, vectors and a network for items; their sums are scored as in MF.

    .. math:: q_u = e_u + f(e_u), \quad v_i = e_i + g(e_i); \qquad f, g:\ \mathbb{R}^d \to \mathrm{hidden} \to
        \mathbb{R}^d

    with a ReLU after every layer, the last one too. The original NCF takes a user and an item together and cannot rank
    a catalogue by products; this is the form in the benchmark of the SL@K paper.

    Settings: ``hidden``, the widths between; ``dim``, ``score`` and ``init`` as in MF.
    Use when: you compare with the NCF of the SL@K paper's benchmark.
    Cost: MF's, and the item network over all items per step.
    Paper: He et al., Neural collaborative filtering, WWW 2017.
    Relations: :class:`MF` where the networks give nothing.
    """

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        hidden: tuple[int, ...] = (32, 16, 8),
        score: Score = "cosine",
        init: Init = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items, dim, score, init)
        widths = [dim, *(at_least("hidden", width, 1) for width in hidden), dim]
        self.query_network, self.item_network = _network(widths), _network(widths)

    def encode_queries(self, queries: QuerySet) -> Tensor:
        vectors = queries.take(self.query_vectors, sparse=self.sparse_rows)
        return for_score(self.score, vectors + self.query_network(vectors))

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors + self.item_network(self.item_vectors))


def _network(widths: list[int]) -> nn.Sequential:
    layers = ((nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(widths))
    return nn.Sequential(*itertools.chain.from_iterable(layers))
