"""iALS against explicit solves in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError, TrainingError
from topshelf.models import IALS, ials
from topshelf.ragged import Ragged, ragged_from_pairs

N_QUERIES, N_ITEMS, DIM = 30, 12, 4


def problem(seed=0):
    matrix = np.random.default_rng(seed).random((N_QUERIES, N_ITEMS)) < 0.3
    matrix[3] = matrix[:, 5] = False  # somebody without items, an item without users
    rows, items = matrix.nonzero()
    return matrix.astype(float), ragged_from_pairs(torch.tensor(rows), torch.tensor(items), N_QUERIES)


def make(**settings):
    torch.manual_seed(0)
    return IALS(N_QUERIES, N_ITEMS, **{"dim": DIM, "l2": 0.05, "iterations": 3, **settings})


def fitted(positives, **settings):
    model = make(**settings)
    model.fit(positives)
    return model


def first_items(dim=DIM):
    """The items as a fit of :func:`make` begins: normal, of spread 0.1 / sqrt(dim)."""
    generator = torch.Generator().manual_seed(make(dim=dim)._seed)
    return (torch.randn(N_ITEMS, dim, generator=generator) * 0.1 / dim**0.5).double().numpy()


def by_loops(matrix, items, alpha, l2, scaling, iterations):
    """One row at a time, over every cell: weight alpha everywhere, and 1 more where there is an interaction."""

    def solved(rows, others):
        found = []
        for row in rows:
            system, right = np.zeros((others.shape[1], others.shape[1])), np.zeros(others.shape[1])
            for seen, vector in zip(row, others, strict=True):
                system += (alpha + seen) * np.outer(vector, vector)
                right += seen * vector
            system += l2 * (row.sum() + alpha * len(others)) ** scaling * np.eye(len(system))
            found.append(np.linalg.solve(system, right))
        return np.array(found)

    for _ in range(iterations):
        queries = solved(matrix, items)
        items = solved(matrix.T, queries)
    return solved(matrix, items), items


def objective(matrix, queries, items, alpha, l2, scaling):
    scores = queries @ items.T
    of_queries = (matrix.sum(1) + alpha * matrix.shape[1]) ** scaling
    of_items = (matrix.sum(0) + alpha * matrix.shape[0]) ** scaling
    penalty = (of_queries * queries.square().sum(1)).sum() + (of_items * items.square().sum(1)).sum()
    return (matrix * (scores - 1).square()).sum() + alpha * scores.square().sum() + l2 * penalty


@pytest.mark.parametrize(("alpha", "l2", "scaling"), [(0.1, 0.05, 1.0), (1.0, 0.01, 0.5), (0.03, 0.3, 0.0)])
@pytest.mark.parametrize(("dim", "iterations"), [(1, 2), (DIM, 1), (DIM, 4), (20, 3)])  # lists of 0 to 12
def test_vectors_are_those_of_explicit_solves(alpha, l2, scaling, dim, iterations):
    matrix, positives = problem()
    model = fitted(positives, dim=dim, alpha=alpha, l2=l2, scaling=scaling, iterations=iterations)
    queries, items = by_loops(matrix, first_items(dim), alpha, l2, scaling, iterations)
    assert_close(model.query_vectors.double(), torch.from_numpy(queries), rtol=1e-4, atol=1e-6)
    assert_close(model.item_vectors.double(), torch.from_numpy(items), rtol=1e-4, atol=1e-6)


def test_each_iteration_lowers_the_objective_and_the_last_solve_has_no_slope():
    matrix, positives = problem(1)
    matrix, values = torch.from_numpy(matrix), []
    for iterations in (1, 2, 5, 300):
        model = fitted(positives, alpha=0.2, iterations=iterations)
        values.append(float(objective(matrix, *(x.double() for x in model.encode()), 0.2, 0.05, 1.0)))
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] + 0.01
    queries, items = (x.double().requires_grad_() for x in model.encode())
    objective(matrix, queries, items, 0.2, 0.05, 1.0).backward()
    assert queries.grad.abs().max() < 1e-4  # solved last
    assert items.grad.abs().max() < 1e-3  # solved for the queries before, which hardly moved since


def test_it_is_the_factorisation_of_hu_et_al_but_for_a_length():
    """c_ui = 1 + a where there is a 1, penalty b: its vectors are ours times sqrt((1 + a) / a)."""
    matrix, positives = problem(2)
    a, b = 4.0, 0.5
    length = ((1 + a) / a) ** 0.5
    model = fitted(positives, alpha=1 / a, l2=b / (1 + a), scaling=0.0, iterations=3)

    def solved(rows, others):
        found = []
        for row in rows:
            confidence = np.diag(1 + a * row)
            system = others.T @ confidence @ others + b * np.eye(DIM)
            found.append(np.linalg.solve(system, others.T @ confidence @ row))
        return np.array(found)

    items = first_items() * length
    for _ in range(3):
        queries = solved(matrix, items)
        items = solved(matrix.T, queries)
    assert_close(model.query_vectors.double() * length, torch.from_numpy(solved(matrix, items)), rtol=1e-3, atol=1e-5)
    assert_close(model.item_vectors.double() * length, torch.from_numpy(items), rtol=1e-3, atol=1e-5)


def test_an_unseen_user_is_solved_as_the_seen_one_with_the_same_items():
    _, positives = problem(3)
    model = fitted(positives)
    rows = torch.tensor([4, 9, 3])
    assert_close(model.queries_of(positives.select(rows)), model.query_vectors[rows])
    alone = model.queries_of(positives.select(rows[:1]))
    assert_close(alone, model.queries_of(positives.select(rows))[:1])
    assert (model.queries_of(positives.select(rows))[2] == 0).all()  # no items, no vector
    assert (model.item_vectors[5] == 0).all()


def test_blocks_of_rows_do_not_change_the_vectors(monkeypatch):
    _, positives = problem(4)
    whole = fitted(positives)
    monkeypatch.setattr(ials, "_BLOCK", 1000)
    parts = fitted(positives)
    assert_close(parts.query_vectors, whole.query_vectors)
    assert_close(parts.item_vectors, whole.item_vectors)


def test_one_long_list_does_not_make_a_block_of_short_ones_as_long():
    counts = torch.cat([torch.ones(5000, dtype=torch.int64), torch.tensor([30, 40_000])])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    lists = Ragged(indptr, torch.cat([torch.arange(int(n)) for n in counts]))
    blocks = list(ials._blocks(lists, 40_000, 64))
    assert sorted(torch.cat([rows for rows, _ in blocks]).tolist()) == list(range(5002))
    assert all(members.numel() * 64 * 8 <= ials._BLOCK or len(rows) == 1 for rows, members in blocks)
    assert sum(members.numel() for _, members in blocks) < 2 * 45_030 + 30 * 5001


def test_a_second_fit_begins_as_the_first_did_and_another_seed_elsewhere():
    _, positives = problem(5)
    model = fitted(positives)
    first = model.item_vectors.clone()
    model.fit(positives)
    assert torch.equal(model.item_vectors, first)
    torch.manual_seed(1)
    other = IALS(N_QUERIES, N_ITEMS, dim=DIM, l2=0.05, iterations=3)
    other.fit(positives)
    assert not torch.equal(other.item_vectors, first)


def test_vectors_that_are_not_determined_say_what_to_raise():
    _, positives = problem(6)
    with pytest.raises(TrainingError, match=r"raise model\.l2, which is 1e-30"):
        fitted(positives, dim=64, l2=1e-30)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim must be >= 1, got 0"),
        ({"alpha": 0.0}, r"alpha must be > 0, got 0\.0"),
        ({"l2": float("nan")}, "l2 must be > 0, got nan"),
        ({"scaling": -1.0}, r"scaling must be >= 0\.0, got -1\.0"),
        ({"iterations": 0}, "iterations must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        IALS(2, 3, **settings)
