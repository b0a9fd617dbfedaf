"""Networks that score the documents of a query: a Transformer that sees them together, an MLP, a linear model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least, one_of
from topshelf.graded_lists import ListContext, places_in_rows
from topshelf.models.list_base import ListModel
from topshelf.models.list_features import FeatureTransform, Transform
from topshelf.ragged import Ragged
from topshelf.registry import SearchSpace

Output = Literal["linear", "tanh"]
CELLS = 1 << 22  # numbers of one attention matrix that are in memory at once when nothing is learned
_BLOCK = 1 << 15  # documents that pointwise networks score at once


class NetworkRanker(ListModel):
    """Base of the networks. ``transform`` is the scale of the features; its statistics are kept with the weights."""

    ranges: ClassVar[SearchSpace] = {"train.learning_rate": (0.003, 0.001, 0.0003), "train.weight_decay": (0.0, 1e-4)}

    def __init__(self, n_features: int, transform: Transform) -> None:
        super().__init__(n_features)
        self.features = FeatureTransform(n_features, transform)

    def prepare(self, context: ListContext) -> None:
        self.features.fit(context.train.features)

    def score(self, features: Tensor, indptr: Tensor) -> Tensor:
        return self.network(features, indptr, is_noisy=False)

    def score_batch(self, features: Tensor, indptr: Tensor) -> Tensor:
        return self.network(features, indptr, is_noisy=True)

    def network(self, features: Tensor, indptr: Tensor, *, is_noisy: bool) -> Tensor:
        """Scores (D,); ``is_noisy`` with dropout."""
        raise NotImplementedError


class TransformerRanker(NetworkRanker):
    r"""A Transformer encoder over the documents of a query, without positions: each score depends on the whole list.

    .. math:: h = W x, \quad h \leftarrow h + \mathrm{Attention}(\mathrm{LN}(h)), \quad
              h \leftarrow h + \mathrm{FF}(\mathrm{LN}(h)), \quad s = w^\top \mathrm{LN}(h)

    Settings: ``dim``, the width of h; ``blocks``; ``heads``; ``hidden``, the width of FF; ``dropout``; ``output``
        "linear", or "tanh" for scores between -1 and 1; ``transform`` of the features: "none", "standardise", "log1p",
        "quantile". The defaults are those of the NeuralNDCG publication's experiments.
    Use when: documents of a query compete, and there are thousands of queries to learn from.
    Cost: O(L^2 dim) per query of L documents; 240,000 parameters at the defaults.
    Paper: Pobrotyn et al., Context-aware learning to rank with self-attention, SIGIR eCom 2020.
    Relations: with ``blocks`` = 0 it is :class:`LinearRanker` on a projection.
    """

    def __init__(
        self,
        n_features: int,
        *,
        dim: int = 96,
        blocks: int = 2,
        heads: int = 1,
        hidden: int = 384,
        dropout: float = 0.1,
        output: Output = "linear",
        transform: Transform = "log1p",
    ) -> None:
        super().__init__(n_features, transform)
        if at_least("dim", dim, 1) % at_least("heads", heads, 1):
            raise ConfigError(f"dim must be a multiple of heads, got dim = {dim} and heads = {heads}")
        self.dim, self.dropout, self.output = (
            dim,
            _share("dropout", dropout),
            one_of("output", output, ("linear", "tanh")),
        )
        self.enter = nn.Linear(n_features, dim)
        self.blocks = nn.ModuleList(
            Block(dim, heads, at_least("hidden", hidden, 1), dropout) for _ in range(at_least("blocks", blocks, 0))
        )
        self.norm, self.leave = nn.LayerNorm(dim), nn.Linear(dim, 1)
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.xavier_uniform_(value)

    def network(self, features: Tensor, indptr: Tensor, *, is_noisy: bool) -> Tensor:
        if is_noisy:
            return self._lists(features, indptr, is_noisy)
        # Lists of one length side by side: then little is padded, and little is computed for nothing.
        lists = Ragged(indptr, torch.arange(features.size(0), device=features.device))
        sorted_lists = lists.select(indptr.diff().argsort(stable=True))
        rows, bounds = sorted_lists.indices, sorted_lists.indptr
        scores = features.new_empty(features.size(0))
        for part in _cells_at_most(bounds, CELLS):
            start, stop = int(bounds[part.start]), int(bounds[part.stop])
            mine = bounds[part.start : part.stop + 1] - start
            scores[rows[start:stop]] = self._lists(features[rows[start:stop]], mine, is_noisy)
        return scores

    def _lists(self, features: Tensor, indptr: Tensor, is_noisy: bool) -> Tensor:
        places, width = places_in_rows(indptr)
        n = indptr.numel() - 1
        entered = self.enter(self.features(features))
        table = entered.new_zeros(n * width, self.dim).index_copy(0, places, entered).view(n, width, self.dim)
        padding = torch.ones(n * width, dtype=torch.bool, device=table.device).index_fill(0, places, False)
        seen = ~padding.view(n, 1, 1, width)
        seen[indptr.diff() == 0] = True  # a list without documents: nothing of it is read, but it must not be NaN
        for block in self.blocks:
            table = block(table, seen, is_noisy)
        scores = self.leave(self.norm(table)).view(-1).index_select(0, places)
        return torch.tanh(scores) if self.output == "tanh" else scores


class Block(nn.Module):
    """A pre-norm encoder block."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first_norm, self.second_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, table: Tensor, seen: Tensor, is_noisy: bool) -> Tensor:
        """Shapes: table (Q, L, dim); seen (Q, 1, 1, L), False at padding; returns (Q, L, dim)."""
        table = table + self._dropped(self._attention(self.first_norm(table), seen, is_noisy), is_noisy)
        inner = self._dropped(F.relu(self.widen(self.second_norm(table))), is_noisy)
        return table + self._dropped(self.narrow(inner), is_noisy)

    def _attention(self, table: Tensor, seen: Tensor, is_noisy: bool) -> Tensor:
        n, width, dim = table.shape
        split = self.query_key_value(table).view(n, width, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (Q, heads, L, dim / heads) each
        rate = self.dropout if is_noisy else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=rate)
        return self.mix(mixed.transpose(1, 2).reshape(n, width, dim))

    def _dropped(self, table: Tensor, is_noisy: bool) -> Tensor:
        return F.dropout(table, self.dropout, training=is_noisy)


class MLPRanker(NetworkRanker):
    """A multilayer perceptron: each document is scored by its own features.

    Settings: ``hidden``, the widths of the layers; ``dropout``; ``transform`` of the features, as in the Transformer.
    Use when: documents arrive one by one, or lists are too long for attention.
    Cost: the sum of the products of neighbouring widths, per document.
    Paper: Burges et al., Learning to rank using gradient descent, ICML 2005 (with one hidden layer).
    Relations: :class:`TransformerRanker` looks at the whole list.
    """

    def __init__(
        self,
        n_features: int,
        *,
        hidden: tuple[int, ...] = (256, 128),
        dropout: float = 0.1,
        transform: Transform = "log1p",
    ) -> None:
        super().__init__(n_features, transform)
        self.dropout = _share("dropout", dropout)
        widths = [n_features, *(at_least("hidden", width, 1) for width in hidden)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:])
        self.leave = nn.Linear(widths[-1], 1)

    def network(self, features: Tensor, indptr: Tensor, *, is_noisy: bool) -> Tensor:  # noqa: ARG002  one document at a time
        scores = [self._documents(block, is_noisy) for block in _blocks(features, is_noisy)]
        return torch.cat(scores)

    def _documents(self, features: Tensor, is_noisy: bool) -> Tensor:
        table = self.features(features)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            table = F.dropout(F.relu(norm(layer(table))), self.dropout, training=is_noisy)
        return self.leave(table).squeeze(1)


class LinearRanker(NetworkRanker):
    r"""A weighted sum of the features.

    .. math:: s = w^\top x

    Settings: ``transform`` of the features, as in the Transformer.
    Use when: a score must be explained, or as the simplest baseline.
    Cost: one product per document.
    Paper: none; the model behind RankSVM and coordinate ascent.
    Relations: :class:`MLPRanker` without hidden layers.
    """

    def __init__(self, n_features: int, *, transform: Transform = "log1p") -> None:
        super().__init__(n_features, transform)
        self.weights = nn.Linear(n_features, 1, bias=False)

    def network(self, features: Tensor, indptr: Tensor, *, is_noisy: bool) -> Tensor:  # noqa: ARG002  no dropout
        return torch.cat([self.weights(self.features(block)).squeeze(1) for block in _blocks(features, is_noisy)])


def _blocks(features: Tensor, is_noisy: bool) -> tuple[Tensor, ...]:
    return (features,) if is_noisy or features.size(0) == 0 else features.split(_BLOCK)


def _cells_at_most(indptr: Tensor, cells: int) -> Iterator[slice]:
    """Consecutive lists whose padded attention matrices have at most so many cells, or single ones that have more."""
    start, width, lengths = 0, 0, indptr.diff().tolist()
    for place, length in enumerate(lengths):
        wider = max(width, length)
        if place > start and (place - start + 1) * wider**2 > cells:
            yield slice(start, place)
            start, wider = place, length
        width = wider
    if len(lengths) > start:
        yield slice(start, len(lengths))


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be at least 0 and below 1, got {value!r}")
    return value
