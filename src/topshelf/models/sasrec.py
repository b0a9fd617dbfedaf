"""Transformers over sequences of items: SASRec, and eSASRec with gated blocks."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least, at_most, one_of
from topshelf.models.dropout import Dropout, dropped
from topshelf.models.sequence import SequenceModel
from topshelf.models.tables import Score, empty_tables, for_score
from topshelf.registry import SearchSpace
from topshelf.sequences import Packed, padded, unpadded

Positions = Literal["start", "end", "none"]
POSITIONS = ("start", "end", "none")
_SPREAD = 0.02  # standard deviation of the initial vectors, as in BERT


class SASRec(SequenceModel):
    r"""Self-attention over the items so far: a Transformer with causal blocks, normalised before each of them.

    .. math:: q_t = \text{LN}(x_t^{(L)}), \qquad
        x^{(l+1)} = z + \text{FFN}(\text{LN}(z)), \quad z = x^{(l)} + \text{Attention}(\text{LN}(x^{(l)})), \qquad
        x_t^{(0)} = \sqrt{d} \, e_{i_t} + p_t

    Settings: ``dim``, ``blocks``, ``heads``; ``inner``, the width of the FFN over ``dim``; ``max_length``, how many of
        the last items are read; ``dropout``; ``positions`` counted from the "start" of what is read, from the "end", or
        "none"; ``tied``: items are scored by the vectors e that they are read with, else by vectors of their own;
        ``score`` "cosine" or "dot".
    Use when: the order of the items matters.
    Cost: (n_items + max_length) x dim parameters and 2 (2 + inner) x dim^2 per block; the product with the catalogue
        costs most of a step.
    Paper: Kang and McAuley, Self-attentive sequential recommendation, ICDM 2018; there normalised inside the residual,
        with dot products and one sampled negative.
    Relations: :class:`ESASRec` has gated blocks.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.dropout": (0.1, 0.2, 0.3, 0.4, 0.5),
        "model.blocks": (1, 2, 3),
        "train.learning_rate": (0.0003, 0.001, 0.003),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        blocks: int = 2,
        heads: int = 1,
        inner: int = 1,
        max_length: int = 50,
        dropout: float = 0.2,
        positions: Positions = "start",
        tied: bool = True,
        score: Score = "cosine",
    ) -> None:
        super().__init__(n_queries, n_items, max_length)
        self.dim, self.tied = dim, tied
        self.score: Score = one_of("score", score, ("cosine", "dot"))
        self.positions: Positions = one_of("positions", positions, POSITIONS)
        self.dropout = at_most("dropout", at_least("dropout", dropout, 0.0), 0.9)
        if at_least("dim", dim, 1) % at_least("heads", heads, 1):
            raise ConfigError(f"heads must divide dim = {dim}, got {heads}")
        inputs, outputs = empty_tables(n_items, 0 if tied else n_items, dim)
        self.item_vectors = nn.Parameter(nn.init.normal_(inputs, std=_SPREAD))
        self.output_vectors = None if tied else nn.Parameter(nn.init.normal_(outputs, std=_SPREAD))
        if positions != "none":
            self.position_vectors = nn.Parameter(nn.init.normal_(torch.empty(max_length, dim), std=_SPREAD))
        self.layers = nn.ModuleList(self.new_block(heads, inner) for _ in range(at_least("blocks", blocks, 1)))
        self.norm = nn.LayerNorm(dim)
        self.eval()

    def new_block(self, heads: int, inner: int) -> nn.Module:
        return Block(self.dim, heads, at_least("inner", inner, 1) * self.dim, self.dropout)

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors if self.output_vectors is None else self.output_vectors)

    def encode_positions(self, packed: Packed) -> Tensor:
        rows = F.embedding(packed.lists.indices, self.item_vectors) * math.sqrt(self.dim)
        if self.positions != "none":
            place = packed.position if self.positions == "start" else packed.from_end
            rows = rows + F.embedding(place, self.position_vectors)
        rows = dropped(rows, self.dropout, self.training)
        for layer in self.layers:
            rows = layer(rows, packed)
        return for_score(self.score, self.norm(rows))


class Attention(nn.Module):
    """Causal attention with several heads over packed sequences."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, rows: Tensor, packed: Packed) -> Tensor:
        mixed, groups = self.inputs(rows), packed.groups
        parts = [unpadded(self._attend(padded(mixed, group)), group) for group in groups]
        return self.output(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _attend(self, table: Tensor) -> Tensor:
        n, length, width = table.shape
        query, key, value = table.view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).reshape(n, length, width // 3)


class Block(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to what it got."""

    def __init__(self, dim: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention, self.attention_norm = Attention(dim, heads), nn.LayerNorm(dim)
        self.network = nn.Sequential(nn.Linear(dim, inner), nn.GELU(), Dropout(dropout), nn.Linear(inner, dim))
        self.network_norm = nn.LayerNorm(dim)

    def forward(self, rows: Tensor, packed: Packed) -> Tensor:
        found = self.attention(self.attention_norm(rows), packed)
        rows = rows + dropped(found, self.dropout, self.training)
        found = self.network(self.network_norm(rows))
        return rows + dropped(found, self.dropout, self.training)


class ESASRec(SASRec):
    r"""SASRec whose blocks are added through gates, with SwiGLU networks.

    .. math:: z = x + \sigma(W_a x) \odot \text{Attention}(\text{LN}(x)), \qquad
        x' = z + \sigma(W_f z) \odot \text{SwiGLU}(\text{LN}(z))

    Settings: those of :class:`SASRec`.
    Use when: SASRec is good, and a fifth more time per step is affordable.
    Cost: that of :class:`SASRec` and (2 + inner) x dim^2 more parameters per block.
    Paper: the blocks are those of LiGR (Borisyuk et al., From features to transformers: redefining ranking for scalable
        impact, 2025), as in eSASRec (Tikhonovich et al., eSASRec: enhancing transformer-based recommendations in a
        modular fashion, RecSys 2025), which trains them by a sampled softmax.
    """

    def new_block(self, heads: int, inner: int) -> nn.Module:
        return GatedBlock(self.dim, heads, at_least("inner", inner, 1) * self.dim, self.dropout)


class GatedBlock(nn.Module):
    """A block whose parts are added through gates that their inputs open, with a SwiGLU network."""

    def __init__(self, dim: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention, self.attention_norm = Attention(dim, heads), nn.LayerNorm(dim)
        self.attention_gate, self.network_gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.network_norm = nn.LayerNorm(dim)
        self.inputs, self.output = nn.Linear(dim, 2 * inner, bias=False), nn.Linear(inner, dim, bias=False)

    def forward(self, rows: Tensor, packed: Packed) -> Tensor:
        found = self.attention(self.attention_norm(rows), packed)
        rows = rows + dropped(found * torch.sigmoid(self.attention_gate(rows)), self.dropout, self.training)
        gate, value = self.inputs(self.network_norm(rows)).chunk(2, dim=1)
        found = self.output(dropped(F.silu(gate) * value, self.dropout, self.training))
        return rows + dropped(found * torch.sigmoid(self.network_gate(rows)), self.dropout, self.training)
