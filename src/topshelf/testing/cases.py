"""A batch with everything that a loss may need, and batches that a loss must refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from topshelf.losses import Loss


@dataclasses.dataclass
class Case:
    """The arguments of a loss's call: 4 queries, 7 positives and 5 negatives per query, unless asked otherwise."""

    positive: Tensor
    negative: Tensor
    owner: Tensor | None
    query: Tensor
    pair: Tensor
    negative_item: Tensor
    query_vector: Tensor
    item_vector: Tensor
    mask: Tensor | None = None
    log_q: Tensor | None = None

    def but(self, **changes: Any) -> Case:
        return dataclasses.replace(self, **changes)

    def tracked(self, scale: float = 1.0) -> Case:
        """With new scores that collect gradients."""
        scores = (self.positive, self.negative)
        positive, negative = ((one.detach() * scale).requires_grad_() for one in scores)
        return self.but(positive=positive, negative=negative)

    def run(self, loss: Loss) -> Tensor:
        extras = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[3:]}
        return loss(self.positive, self.negative, self.owner, **extras)

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if value is not None}


def case(
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    n_queries: int = 4,
    n_positives: int = 7,
    n_negatives: int = 5,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1).to(dtype)

    more = torch.randint(n_queries, (n_positives - n_queries,), generator=generator)
    return Case(
        positive=uniform(n_positives),
        negative=uniform(n_queries, n_negatives),
        owner=torch.cat([torch.arange(n_queries), more]),
        query=torch.randperm(max(10, n_queries), generator=generator)[:n_queries],
        pair=torch.randperm(n_positives, generator=generator),
        negative_item=torch.randint(12, (n_queries, n_negatives), generator=generator),
        query_vector=uniform(n_queries, 3),
        item_vector=uniform(n_positives, 3),
    )


def empty_case() -> Case:
    none = torch.zeros(0, dtype=torch.long)
    return Case(
        positive=torch.zeros(0, requires_grad=True),
        negative=torch.zeros(0, 3),
        owner=none,
        query=none,
        pair=none,
        negative_item=torch.zeros(0, 3, dtype=torch.long),
        query_vector=torch.zeros(0, 3),
        item_vector=torch.zeros(0, 3),
    )


def misfits() -> list[tuple[dict[str, Tensor], str]]:
    """Tensors that do not fit the usual case, and how the error about them begins."""
    rows, ones, index = torch.ones(4, 5), torch.ones(7), torch.zeros(7, dtype=torch.long)
    return [
        ({"positive": ones.unsqueeze(1)}, r"positive must be \(P,\) of floating-point numbers, got \(7, 1\)"),
        ({"positive": ones.long()}, r"positive must be \(P,\) of floating-point numbers, got \(7,\) of torch.int64"),
        ({"negative": rows[0]}, r"negative must be \(Q, N\) of floating-point numbers, got \(5,\)"),
        ({"owner": index[:4]}, r"owner must be \(P,\) = \(7,\) of integers, got \(4,\)"),
        ({"owner": ones}, r"owner must be \(P,\) = \(7,\) of integers, got \(7,\) of torch.float32"),
        ({"query": index}, r"query must be \(Q,\) = \(4,\) of integers, got \(7,\)"),
        ({"mask": rows[:1] > 0}, r"mask must be \(Q, N\) = \(4, 5\) of bool, got \(1, 5\)"),
        ({"mask": rows}, r"mask must be \(Q, N\) = \(4, 5\) of bool, got \(4, 5\) of torch.float32"),
        ({"log_q": rows[:, 0]}, r"log_q must be \(1,\) or \(N,\) = \(5,\) or \(Q, N\) = \(4, 5\) of .*, got \(4,\)"),
        ({"pair": index[:4]}, r"pair must be \(P,\) = \(7,\) of integers, got \(4,\)"),
        ({"negative_item": index[:4]}, r"negative_item must be \(N,\) = \(5,\) or .* of integers, got \(4,\)"),
        ({"query_vector": ones}, r"query_vector must be \(Q, d\) = \(4, d\) of floating-point numbers, got \(7,\)"),
        ({"item_vector": torch.ones(7, 2)}, r"item_vector must be \(P, d\) = \(7, 3\) of .*, got \(7, 2\)"),
    ]
