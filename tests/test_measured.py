"""The measured numbers on the pages are those of the committed results.

A result decides by its own rows what a page must hold: a loss or a model that is not in it needs no row.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import RESULTS
from benchmarks.speed import backbone_cost, latency, scaling
from benchmarks.studies import blends, concentration, item_prior, safe_defaults, threshold_accuracy, tuning
from topshelf.config import TrainSettings
from topshelf.losses import LOSSES
from topshelf.training import race

ROOT = Path(__file__).parents[1]


def result_of(name):
    """A committed result. Its rows decide what a page must hold: a loss or a model that is not in it needs no row."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_the_accuracy_of_thresholds_is_the_committed_result():
    page = (ROOT / "docs" / "losses" / "slatk.md").read_text()
    accuracy, quality = (result_of(f"threshold_{name}") for name in ("accuracy", "quality"))
    for table in threshold_accuracy.table(accuracy["rows"]).split("\n\n"):
        assert table in page
    assert threshold_accuracy.quality_table(quality["rows"]) in page
    assert accuracy["date"] in page
    # What the page says of the estimators holds for the users of every state.
    for row in accuracy["rows"]:
        group = row["groups"]["all"]
        errors = {name: one["absolute"] for name, one in group["estimates"].items()}
        assert min(errors, key=errors.get) == "weighted"
        assert group["estimates"]["sampled"]["place"] == pytest.approx(group["predicted"], rel=0.1)


def test_the_speed_table_is_the_committed_result():
    page = (ROOT / "docs" / "speed.md").read_text()
    result = result_of("training")
    assert result["date"] in page
    for row in result["results"]:
        for label, speedup in row["speedup"].items():
            assert f"| {row['data']} | {label} | {row['seconds'][label]:.3f} | {speedup:,.0f}x |" in page


def test_the_speed_page_has_the_committed_overheads():
    page = (ROOT / "docs" / "speed.md").read_text()
    overhead = result_of("overhead")
    for row in overhead["results"]:
        for label, seconds in row["seconds"].items():
            assert f"| {row['data']} | {label} | {seconds:.4f} | {row['ratio'][label] - 1:+.1%} |" in page


def test_the_scaling_page_is_the_committed_result():
    result = result_of("scaling")
    assert scaling.figures(result) in (ROOT / "docs" / "scaling.md").read_text()


def test_the_cost_of_evaluation_is_the_committed_result():
    page = (ROOT / "docs" / "evaluation.md").read_text()
    result = result_of("evaluation")
    assert result["date"] in page
    for row in result["results"]:
        for label, over in row["over_product"].items():
            assert f"| {row['data']} | {label} | {row['seconds'][label]:.3f} | {over:.2f}x |" in page


def test_the_speed_of_where_we_stand_is_the_committed_result():
    page = " ".join((ROOT / "docs" / "where-we-stand.md").read_text().split())
    training = result_of("training")
    for row in training["results"]:
        assert f"{row['speedup']['SL@20, exact catalogue']:,.0f}x" in page
    assert f"{result_of('scaling')['results']['runs'][-2]['peak']:.1f} GiB" in page


@pytest.mark.parametrize("name", ["backbone_ideas", "backbone_ideas_wide"])
def test_what_was_tried_for_models_is_the_committed_result(name):
    page = (ROOT / "docs" / "models" / "measured.md").read_text()
    result = result_of(name)
    script = importlib.import_module(re.match(r"python -m (\S+)", result["command"])[1])
    assert script.table(result["rows"]) in page
    assert result["command"] in page
    assert result["date"] in page


def test_the_evenness_of_losses_is_the_committed_result():
    page = (ROOT / "docs" / "losses" / "measured.md").read_text()
    result = result_of("concentration")
    assert concentration.table(result["rows"]) in page
    assert result["date"] in page


@pytest.mark.parametrize("page", ["docs/where-we-stand.md", "docs/models/measured.md"])
def test_the_best_lists_are_the_committed_results(page):
    text, result = (ROOT / page).read_text(), result_of("blends")
    assert blends.table(blends.measured(blends.BEST), result["rows"]) in text
    assert result["command"] in text
    assert result["date"] in text


def test_the_number_of_models_to_blend_is_the_committed_result():
    page = (ROOT / "docs" / "models" / "measured.md").read_text()
    result = result_of("blend_sizes")
    assert blends.sizes_table(result["rows"]) in page
    assert result["command"] in page
    assert result["date"] in page


def test_the_study_is_the_committed_result():
    page = (ROOT / "docs" / "tuning.md").read_text()
    result = result_of("tuning")
    assert tuning.table(result["rows"]) in page
    assert tuning.verdict(result["study"], result["rows"]) in page
    assert result["command"] in page
    assert result["date"] in page
    general = result_of("tuning_general")
    assert f"came to {max(row['score'] or 0 for row in general['study']['trials']):.4f}" in page


def test_the_cost_of_models_is_the_committed_result():
    page = (ROOT / "docs" / "models" / "measured.md").read_text()
    result = result_of("backbone_cost")
    assert backbone_cost.table(result["results"]) in page
    assert result["date"] in page


def test_the_general_settings_are_the_committed_result():
    page = (ROOT / "docs" / "models" / "measured.md").read_text()
    result = result_of("safe_defaults")
    assert safe_defaults.table(result["rows"]) in page
    assert safe_defaults.ratios_table(result["rows"]) in page
    assert result["command"] in page
    assert result["date"] in page
    for danger in safe_defaults.dangers(result["rows"]):
        assert danger in page
        assert not danger.startswith("ials")


def test_the_strength_and_the_prior_are_the_committed_result():
    page = (ROOT / "docs" / "losses" / "popularity.md").read_text()
    result = result_of("item_prior")
    race = (item_prior.race_table, item_prior.left_out_table, item_prior.slack_table)
    for made in (item_prior.table, item_prior.chosen_table, *race):
        assert made(result["rows"]) in page
    assert result["date"] in page
    for row in item_prior.race_table(result["rows"]).splitlines()[2:]:
        assert float(row.split("|")[6].strip(" %")) >= 0.0, row  # "On none of these rows is the default below softmax."
    # What the page says of popularity holds at every point: stronger weights and lower priors make lists more popular.
    for name in {row["data"] for row in result["rows"]}:
        points = item_prior.by_point(result["rows"], name)
        lifts = {point: item_prior.mean(rows, "valid", "popularity_lift@20") for point, rows in points.items()}
        by_weight = [lifts[tau_weight, 0.0] for tau_weight in (2.0, 3.0, 5.0, 10.0, None) if (tau_weight, 0.0) in lifts]
        by_prior = [lifts[None, prior] for prior in (-0.75, -0.5, -0.25, 0.0, 0.25) if (None, prior) in lifts]
        assert by_weight == sorted(by_weight, reverse=True), name
        assert by_prior == sorted(by_prior, reverse=True), name


def test_the_replayed_race_has_the_constants_of_the_race():
    raced = LOSSES["slatk"].raced["tau_weight"]
    assert [*item_prior.RACED[:-1], 500.0] == list(raced)
    assert TrainSettings().race_epochs == item_prior.RULE.epochs
    assert (item_prior.RULE.far_behind, item_prior.RULE.near) == (race._FAR_BEHIND, race._NEAR)
    assert TrainSettings().validate_every == item_prior.EVERY


def test_constants_are_chosen_without_the_dataset_that_is_left_out():
    """Splits of one dataset are left out together, and of equally good rules the cheapest is taken."""
    scores = {  # epochs 5, 10, 15, 20, ..., 40 for tau_weight 3, 5 and the softmax loss
        "a": ([0.20] * 8, [0.15] * 8, [0.195] * 3 + [0.1999] * 5),
        "b": ([0.20] * 8, [0.15] * 8, [0.10] * 8),
        "b-temporal": ([0.20] * 8, [0.15] * 8, [0.10] * 8),
    }
    rows = [
        {"data": data, "seed": 10, "prior": 0.0, "tau_weight": tau_weight, "valid": {"ndcg@20": curve[-1]}}
        | {"curve": " ".join(map(str, curve))}
        for data, curves in scores.items()
        for tau_weight, curve in zip(item_prior.RACED, curves, strict=True)
    ]
    runs = item_prior.default_runs(rows)
    assert item_prior.best_rule({key: found for key, found in runs.items() if key[0] != "a"}).epochs == 10
    first, *others = item_prior.left_out_table(rows).splitlines()[2:]
    assert first.startswith("| a | 10 | 10,")
    assert [line.split("|")[1].strip() for line in others] == ["b", "b-temporal"]
    assert all(line.split("|")[3] == others[0].split("|")[3] for line in others)  # left out together


def test_the_comparison_of_trees_is_the_committed_result():
    result = result_of("same_numbers")
    assert f"{result['equal']} of {result['compared']} combinations" in (ROOT / "docs" / "speed.md").read_text()
    assert result["different"] == []


def test_the_latency_table_is_the_committed_result():
    page = (ROOT / "docs" / "speed.md").read_text()
    result = result_of("latency")
    assert latency.page_table(result["results"]) in page
    assert result["date"] in page
    for tree in result["results"].values():
        assert {key: tree[key] for key in latency.SIZES} == latency.SIZES
