"""The commands that measure auto and the leaderboard: references, tables and the choice of weights."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.harness import MOVIELENS, RESULTS, ROOT
from benchmarks.quality import auto, leaderboard, processes
from benchmarks.studies import graph_filter_rule, sparse_ease
from topshelf.blending import blend
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split
from topshelf.models import GraphFilter, graph_filter
from topshelf.queries import Context
from topshelf.registry import settings
from topshelf.training import fit
from topshelf.training.build import resolve


def test_the_reference_is_the_best_single_model_of_the_committed_results():
    name, score = auto.tuned(MOVIELENS)
    assert (name, round(score, 4)) == ("iALS", 0.4173)
    assert "| classics | iALS | 0.1452 | 0.0638 | 0.4173" in (ROOT / "docs/models/measured.md").read_text()


def test_the_table_says_whether_the_aim_is_met():
    best = auto.tuned(MOVIELENS)[1]
    rows = [
        {"data": MOVIELENS, "seed": seed, "minutes": 5.0, "method": "auto", "test": best * share}
        for seed, share in enumerate((0.98, 1.002))
    ]
    rows.append({"data": MOVIELENS, "seed": 0, "method": "train", "test": 0.25})
    assert "| 2 |" in auto.table(rows)
    assert "| 0.2500 |" in auto.table(rows)
    assert auto.table(rows).endswith("| -0.9% | yes |")
    assert auto.table(rows[:1]).endswith("| -2.0% | no |")


@pytest.mark.parametrize("part", leaderboard.PARTS)
def test_every_part_of_the_leaderboard_has_a_config(part, monkeypatch, tmp_path):
    monkeypatch.setattr(leaderboard, "source", lambda: str(tmp_path / "x.zip"))
    config = resolve(leaderboard.config_of(part))
    assert config.model.name == leaderboard.PARTS[part]["model"]["name"]
    assert (config.k, config.train.refit) == (20, False)


def test_weights_are_those_of_a_blend_and_the_test_part_is_measured_with_refitted_parts(tmp_path, monkeypatch):
    dataset = Dataset("generated", make_split(generate(80, 50, interactions_per_user=10, seed=3), seed=0))
    made = {"item-kNN": "itemknn", "iALS": "ials"}

    def configs(**more):
        return [assemble(data="generated", model=model, k=5, more={"train": more}) for model in made.values()]

    fits = {part: fit(config, dataset) for part, config in zip(made, configs(), strict=True)}
    choice = leaderboard.chosen(fits)
    expected = blend([fit(config, dataset) for config in configs(refit=True)])
    assert choice["valid"] == pytest.approx(expected.valid_score)
    monkeypatch.setattr(leaderboard, "_measured", lambda fitted: {"ndcg@5": fitted.evaluate().mean()["ndcg@5"]})
    rows = leaderboard.tested(fits, choice, tmp_path)
    assert rows[-1]["ndcg@5"] == pytest.approx(expected.evaluate().mean()["ndcg@5"])
    assert leaderboard.tested(fits, choice, tmp_path) == rows  # read from their folders


@pytest.mark.parametrize(
    ("command", "page"),
    [
        (auto, "auto.md"),
        (leaderboard, "models/measured.md"),
        (sparse_ease, "models/measured.md"),
        (graph_filter_rule, "models/measured.md"),
    ],
)
def test_the_pages_have_the_committed_results(command, page):
    rows = json.loads((RESULTS / f"{command.__name__.rpartition('.')[2]}.json").read_text())["rows"]
    assert command.table(rows) in (ROOT / "docs" / page).read_text()
    if command is auto:
        assert auto.unseen_table(rows) in (ROOT / "docs" / page).read_text()


def test_two_processes_are_compared_with_one_of_the_same_epochs():
    def row(world, epochs, seed, loss, test):
        return {
            "data": "food",
            "label": "MF, SL",
            "world": world,
            "epochs": epochs,
            "seed": seed,
            "loss": loss,
            "test": test,
        }

    rows = [
        row("one", 2, 0, [4.0, 2.0], 0.10),
        row("one", 2, 1, [4.0, 2.0], 0.12),
        row("two", 2, 0, [4.0, 2.00002], 0.11),
        row("one", 1, 0, [4.0], 0.05),
        row("two, sliced", 1, 0, [4.0], 0.05),
    ]
    both, short = processes.compared(rows).splitlines()[2:]
    assert both == "| food | 2 | MF, SL | 2 | 0.1100 | 0.0141 | 1e-05 | 1e-05 | +0.0100 | - | - | - |"
    assert short == "| food | 1 | MF, SL | 1 | 0.0500 | - | - | - | - | 0e+00 | 0e+00 | +0.0000 |"


def test_the_page_of_processes_has_the_committed_results():
    rows = json.loads((RESULTS / "processes.json").read_text())["rows"]
    assert processes.compared(rows) in (ROOT / "docs" / "scale-out.md").read_text()


def test_settings_of_a_part_are_measured_alone_and_in_the_sum(monkeypatch):
    dataset = Dataset("generated", make_split(generate(80, 50, interactions_per_user=10, seed=3), seed=0))

    def configured(part, changed=None):
        model = {"item-kNN": "itemknn", "iALS": "ials"}[part]
        return assemble(data="generated", model=model, k=5, more={"model": changed or {}})

    monkeypatch.setattr(leaderboard, "config_of", configured)
    monkeypatch.setattr(leaderboard, "SHARE", 1)
    monkeypatch.setitem(leaderboard.GRIDS, "iALS", [{"dim": 4}, {"dim": 8}])
    fits = {"item-kNN": fit(configured("item-kNN"), dataset)}
    rows = list(leaderboard.choices("iALS", fits, dataset, []))
    assert [row["settings"] for row in rows] == [{"dim": 4}, {"dim": 8}]
    alone = fit(configured("iALS", {"dim": 8}), dataset)
    assert rows[1]["alone"] == pytest.approx(alone.evaluate(part="valid").mean()["ndcg@5"])
    assert rows[1]["sum"] == pytest.approx(blend([fits["item-kNN"], alone], weights=[1.0, 1.0]).valid_score)
    assert "| iALS | dim 8 |" in leaderboard.choice_table(rows)
    assert [row["settings"] for row in leaderboard.choices("iALS", fits, dataset, rows[:1])] == [{"dim": 8}]


def test_the_rule_of_the_study_is_that_of_the_graph_filter_and_not_worse_than_what_was_before():
    rows = json.loads((RESULTS / "graph_filter_rule.json").read_text())["rows"]
    assert (graph_filter_rule.PER_DIRECTION, graph_filter_rule.DENSE_CELLS) == (
        graph_filter._PER_DIRECTION,
        graph_filter._DENSE_CELLS,
    )
    found = graph_filter_rule.grids(rows)
    for row in rows:
        dim, low_pass, item_power, user_power = graph_filter_rule.by_rule(row)
        assert dim == graph_filter.dim_of(row["interactions"])
        defaults = settings(GraphFilter)
        assert (low_pass, user_power) == (defaults["low_pass"], defaults["user_power"])
        before = found[row["data"]][graph_filter_rule.BEFORE]
        assert found[row["data"]][dim, low_pass, item_power, user_power] >= 0.99 * before


def test_points_of_the_grid_are_those_of_separate_fits():
    """The study scales one wide fit; each point must rank as a fit with those settings does."""
    split = make_split(generate(80, 50, interactions_per_user=10, seed=3), seed=0)
    score = graph_filter_rule.sampled(split)
    users = torch.bincount(split.train.ragged().indices)

    def fitted(**more):
        model = GraphFilter(split.n_users, split.n_items, **more)
        model.fit(Context(split.train.ragged(), split.n_items))
        return model

    wide, points = fitted(dim=32, item_power=0.5, low_pass=1.0), 0
    for dim, low_pass, item_power in graph_filter_rule.pointed(wide, float(users[users > 0].double().mean())):
        alone = fitted(dim=dim, low_pass=low_pass, item_power=item_power)
        assert score(wide) == pytest.approx(score(alone), rel=0.02)
        points += 1
    assert points == len(graph_filter_rule.ITEM_POWERS) * (1 + 2 * (len(graph_filter_rule.LOW_PASS) - 1))
