"""iALS against explicit solves in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf import files
from topshelf.blending import blend
from topshelf.config import TrainSettings, make_config
from topshelf.data import generate, split_interactions
from topshelf.errors import ConfigError, TrainingError
from topshelf.evaluation import ndcg
from topshelf.models import EASE, IALS, ials
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.training import fit, load
from topshelf.tuning.ranges import space
from vectors import fit_to, queries_of, vectors_of

N_QUERIES, N_ITEMS, DIM = 30, 12, 4


def problem(seed=0):
    matrix = np.random.default_rng(seed).random((N_QUERIES, N_ITEMS)) < 0.3
    matrix[3] = matrix[:, 5] = False  # somebody without items, an item without users
    rows, items = matrix.nonzero()
    return matrix.astype(float), ragged_from_pairs(torch.tensor(rows), torch.tensor(items), N_QUERIES)


def make(**settings):
    torch.manual_seed(0)
    return IALS(N_QUERIES, N_ITEMS, **{"dim": DIM, "alpha": 0.1, "l2": 0.05, "iterations": 3, **settings})


def fitted(positives, **settings):
    model = make(**settings)
    fit_to(model, positives)
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
        values.append(float(objective(matrix, *(x.double() for x in vectors_of(model)), 0.2, 0.05, 1.0)))
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] + 0.01
    queries, items = (x.double().requires_grad_() for x in vectors_of(model))
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
    assert_close(queries_of(model, positives.select(rows)), model.query_vectors[rows])
    alone = queries_of(model, positives.select(rows[:1]))
    assert_close(alone, queries_of(model, positives.select(rows))[:1])
    assert (queries_of(model, positives.select(rows))[2] == 0).all()  # no items, no vector
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
    fit_to(model, positives)
    assert torch.equal(model.item_vectors, first)
    torch.manual_seed(1)
    other = IALS(N_QUERIES, N_ITEMS, dim=DIM, alpha=0.1, l2=0.05, iterations=3)
    fit_to(other, positives)
    assert not torch.equal(other.item_vectors, first)


def test_vectors_that_are_not_determined_say_what_to_raise():
    _, positives = problem(6)
    with pytest.raises(TrainingError, match=r"raise model\.l2, which is 1e-30"):
        fitted(positives, dim=64, l2=1e-30)
    with pytest.raises(TrainingError, match=r"raise model\.l2_ratio, which is 1e-30"):
        fitted(positives, dim=64, l2=None, l2_ratio=1e-30)


@pytest.mark.slow
def test_general_settings_are_safe_on_a_large_sparse_dataset():
    """Issue 13: of 12,784 x 13,874, NDCG@20 0.013 where EASE has 0.146. Here 0.009, EASE 0.162: everything shrank."""
    data = generate(4000, 4000, interactions_per_user=8, blocks=100, skew=0.5)
    split = split_interactions(data, name="sparse", split="ratio", seed=10).split
    train, valid = split.train.ragged(), split.valid.ragged()

    def score(model):
        fit_to(model, train)
        return ndcg(*vectors_of(model), valid, train, 20)

    ease = score(EASE(4000, 4000))
    assert score(IALS(4000, 4000, dim=16, alpha=0.1, l2=0.03)) < ease / 10  # the settings before
    assert score(IALS(4000, 4000, dim=16)) > 0.75 * ease


@pytest.mark.parametrize("scaling", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("given", [{}, {"alpha": 0.3}, {"l2": 0.02}])
def test_what_is_not_given_is_derived_from_the_data(given, scaling):
    """By the docstring: a user has a items, an item b users; nobody without items and no item without users counts."""
    matrix, positives = problem(7)
    n, n_users, n_items = matrix.sum(), N_QUERIES - 1, N_ITEMS - 1  # of which problem() leaves one empty
    a, b = n / n_users, n / n_items
    alpha = given.get("alpha", 4.0 * n / (n_users * n_items))
    noise = np.sqrt(a) + np.sqrt(b)
    l2 = given.get("l2", 0.7 * noise / ((a + alpha * N_ITEMS) * (b + alpha * N_QUERIES)) ** (scaling / 2))
    ratios = {"alpha": None, "l2": None, "alpha_ratio": 4.0, "l2_ratio": 0.7, "scaling": scaling, **given}
    model = fitted(positives, **ratios)
    expected = {"alpha": alpha, "l2": l2}
    assert model.derived() == pytest.approx({name: expected[name] for name in expected if name not in given})
    same = fitted(positives, alpha=float(alpha), l2=float(l2), scaling=scaling)
    assert_close(model.item_vectors, same.item_vectors)
    assert_close(queries_of(model, positives), queries_of(same, positives))
    assert same.derived() == {}


def test_twice_the_users_leave_alpha_as_it_is_and_need_less_l2():
    matrix, positives = problem(8)
    model = fitted(positives, alpha=None, l2=None)
    rows, items = (torch.from_numpy(one) for one in np.concatenate([matrix, matrix]).nonzero())
    double = IALS(2 * N_QUERIES, N_ITEMS, dim=DIM, iterations=3)
    fit_to(double, ragged_from_pairs(rows, items, 2 * N_QUERIES))
    assert double.derived()["alpha"] == pytest.approx(model.derived()["alpha"])
    assert 0.5 < double.derived()["l2"] / model.derived()["l2"] < 1  # an item has more users: less of it is chance


def test_a_second_fit_derives_from_its_own_data():
    _, positives = problem(9)
    few = Ragged(positives.indptr.clamp(max=40), positives.indices[:40])
    model = make(alpha=None, l2=None)
    fit_to(model, few)
    first = model.derived()
    fit_to(model, positives)
    assert model.derived() == fitted(positives, alpha=None, l2=None).derived() != first


def test_a_state_of_given_numbers_is_as_it_was_before_any_were_derived():
    assert set(make().state_dict()) == {"query_vectors", "item_vectors"}
    assert set(make(l2=None).state_dict()) == {"query_vectors", "item_vectors", "weights"}


def small_config(**settings):
    values = {"name": "ials", "dim": 8, "iterations": 3, **settings}
    return make_config({"k": 5, "model": values, "evaluate": {"auc": False, "cutoffs": [5]}})


@pytest.fixture(scope="module")
def dataset():
    return split_interactions(generate(120, 40, interactions_per_user=8, blocks=4), name="made", split="ratio")


@pytest.mark.parametrize("refit", [False, True])
def test_a_folder_keeps_what_was_derived(dataset, tmp_path, refit):
    config = small_config().model_copy(update={"train": TrainSettings(refit=refit)})
    run = fit(config, dataset, out=tmp_path / "run")
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "alpha_ratio = 10.0" in text
    assert "\nalpha = " not in text  # left out, as it was
    derived = run.model.derived()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["derived"] == derived
    assert set(derived) == {"alpha", "l2"}
    seen = run.dataset.split.train.ragged()
    again = load(tmp_path / "run")
    assert again.model.derived() == derived
    assert torch.equal(queries_of(again.model, seen), queries_of(run.model, seen))


def test_a_folder_from_before_the_ratios_loads_with_its_numbers(dataset, tmp_path):
    run = fit(small_config(alpha=0.2, l2=0.05), dataset, out=tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    lines = [line for line in file.read_text().splitlines() if "_ratio" not in line]
    assert {"alpha = 0.2", "l2 = 0.05"} <= set(lines)
    text, run_file = "\n".join(lines) + "\n", tmp_path / "run" / "run.json"
    file.write_text(text)
    files.write_sealed(run_file, {**files.read_sealed(run_file), "config": text})
    again = load(tmp_path / "run")
    assert set(again.model.state_dict()) == {"query_vectors", "item_vectors"}
    seen = run.dataset.split.train.ragged()
    assert torch.equal(queries_of(again.model, seen), queries_of(run.model, seen))


def test_a_blend_keeps_what_its_part_derived(dataset, tmp_path):
    runs = [fit(small_config(), dataset), fit(make_config({"k": 5, "model": {"name": "popularity"}}), dataset)]
    blended = blend(runs, weights=[1.0, 0.5], out=tmp_path / "blend")
    again = load(tmp_path / "blend")
    assert again.model.parts[0].derived() == runs[0].model.derived()
    seen = dataset.split.train.ragged()
    for one, other in zip(again.model.parts, blended.model.parts, strict=True):
        assert torch.equal(queries_of(one, seen), queries_of(other, seen))


@pytest.mark.parametrize(
    ("given", "searched"),
    [
        ({}, {"dim", "alpha_ratio", "l2_ratio", "iterations"}),
        ({"alpha": 0.1}, {"dim", "l2_ratio", "iterations"}),
        ({"alpha": 0.1, "l2": 0.03}, {"dim", "iterations"}),
    ],
)
def test_the_tuner_searches_the_ratios_of_what_is_not_given(given, searched):
    assert set(space(small_config(**given)).ranges) == {f"model.{name}" for name in searched}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim must be >= 1, got 0"),
        ({"alpha": 0.0}, r"alpha must be > 0, got 0\.0"),
        ({"l2": float("nan")}, "l2 must be > 0, got nan"),
        ({"alpha_ratio": -1.0}, r"alpha_ratio must be > 0, got -1\.0"),
        ({"l2_ratio": 0.0}, r"l2_ratio must be > 0, got 0\.0"),
        ({"scaling": -1.0}, r"scaling must be >= 0\.0, got -1\.0"),
        ({"iterations": 0}, "iterations must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        IALS(2, 3, **settings)
