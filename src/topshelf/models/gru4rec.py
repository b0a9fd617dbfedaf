"""A recurrent network over sequences of items: GRU4Rec."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import at_least, at_most, one_of
from topshelf.models.dropout import dropped
from topshelf.models.sequence import SequenceModel
from topshelf.models.tables import Score, empty_tables, for_score
from topshelf.registry import SearchSpace
from topshelf.sequences import Packed, padded, unpadded

_SPREAD = 0.02  # standard deviation of the initial vectors


class GRU4Rec(SequenceModel):
    r"""A gated recurrent network: each item changes a state, and the state is the query.

    .. math:: h_t = \text{GRU}(e_{i_t}, h_{t-1}), \qquad q_t = W h_t

    Settings: ``dim``, of the items; ``hidden``, of the state; ``layers``; ``max_length``, how many of the last items
        are read; ``dropout``; ``tied``: items are scored by the vectors that they are read with; ``score`` "cosine" or
        "dot".
    Use when: the baseline of networks for sequences is needed.
    Cost: n_items x dim parameters and about 6 hidden^2 per layer; positions are read one after another.
    Paper: Hidasi et al., Session-based recommendations with recurrent neural networks, ICLR 2016; tied vectors of
        Hidasi and Karatzoglou, Recurrent neural networks with top-k gains, CIKM 2018.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.dropout": (0.1, 0.2, 0.3, 0.4, 0.5),
        "model.hidden": (64, 128, 256),
        "train.learning_rate": (0.0003, 0.001, 0.003),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        hidden: int = 128,
        layers: int = 1,
        max_length: int = 50,
        dropout: float = 0.2,
        tied: bool = True,
        score: Score = "cosine",
    ) -> None:
        super().__init__(n_queries, n_items, max_length)
        self.dim = at_least("dim", dim, 1)
        self.score: Score = one_of("score", score, ("cosine", "dot"))
        self.dropout = at_most("dropout", at_least("dropout", dropout, 0.0), 0.9)
        inputs, outputs = empty_tables(n_items, 0 if tied else n_items, dim)
        self.item_vectors = nn.Parameter(nn.init.normal_(inputs, std=_SPREAD))
        self.output_vectors = None if tied else nn.Parameter(nn.init.normal_(outputs, std=_SPREAD))
        self.norm = nn.LayerNorm(dim)
        self.network = nn.GRU(dim, at_least("hidden", hidden, 1), at_least("layers", layers, 1), batch_first=True)
        self.output = nn.Linear(hidden, dim)
        self.eval()

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors if self.output_vectors is None else self.output_vectors)

    def encode_positions(self, packed: Packed) -> Tensor:
        rows = self.norm(F.embedding(packed.lists.indices, self.item_vectors))
        rows = dropped(rows, self.dropout, self.training)
        # Padding is at the end of a sequence, so that no state of a real position has read it.
        parts = [unpadded(self.network(padded(rows, group))[0], group) for group in packed.groups]
        states = dropped(torch.cat(parts), self.dropout, self.training)
        return for_score(self.score, self.output(states))
