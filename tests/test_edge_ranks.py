"""Ranks of edges, against a slow count."""

from __future__ import annotations

import math

import pytest
import torch

from topshelf.edge_ranks import edge_ranks, rank_metrics
from topshelf.errors import DataError


def slow_rank(positive, negatives):
    optimistic = 1 + sum(score > positive for score in negatives)
    pessimistic = 1 + sum(score >= positive for score in negatives)
    return (optimistic + pessimistic) / 2


def test_ranks_are_the_mean_of_the_optimistic_and_the_pessimistic_one():
    generator = torch.Generator().manual_seed(0)
    positive = torch.randint(5, (50,), generator=generator).float()
    negative = torch.randint(5, (50, 12), generator=generator).float()
    expected = [slow_rank(p, n) for p, n in zip(positive.tolist(), negative.tolist(), strict=True)]
    assert edge_ranks(positive, negative).tolist() == expected


def test_a_constant_score_has_the_rank_of_a_coin():
    assert edge_ranks(torch.zeros(1), torch.zeros(1, 500)).tolist() == [251.0]


def test_metrics_of_known_ranks():
    metrics = rank_metrics(torch.tensor([1.0, 2.5, 20.0, 20.5], dtype=torch.float64), (1, 20))
    assert metrics["mrr"].tolist() == [1.0, 1 / 2.5, 1 / 20, 1 / 20.5]
    assert metrics["hits@1"].tolist() == [1, 0, 0, 0]
    assert metrics["hits@20"].tolist() == [1, 1, 1, 0]
    assert metrics["ndcg@20"].tolist() == pytest.approx([1, 1 / math.log2(3.5), 1 / math.log2(21), 0])


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(DataError, match="got NaN"):
        edge_ranks(torch.tensor([math.nan]), torch.zeros(1, 2))
    with pytest.raises(DataError, match=r"positive must be \(E,\)"):
        edge_ranks(torch.zeros(2), torch.zeros(3, 2))
