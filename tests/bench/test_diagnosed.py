"""Plans with [diagnose]: their keys, cells and results, and the figures of the report."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest

from benches import TRAINED, measured, plan_of, results_of, work_here
from topshelf import files
from topshelf.bench import Report, of_plan, run
from topshelf.bench.cells import cells
from topshelf.bench.database import DatabaseLedger
from topshelf.bench.folder import BenchFolder
from topshelf.bench.inconsistency import inconsistency_grid, inconsistent
from topshelf.bench.plan import narrowed, parse_plan
from topshelf.bench.report import read_report
from topshelf.bench.worker import Job, work
from topshelf.diagnose import states
from topshelf.diagnose.stored import stored
from topshelf.errors import CheckpointError, ConfigError
from topshelf.training.folder import RunFolder

ONE = TRAINED.replace("seeds = [0, 1]", "seeds = [0]")
DIAGNOSE = '\n[diagnose]\nlosses = ["softmax", "lambdaloss_at_k"]\nepochs = 1\nusers = 20\n'
FIGURES = ["figure-1a", "figure-1b", "figure-1c", "figure-2a", "figure-2b", "figure-4", "figure-5", "figure-6"]


# Of a plan without a diagnosis: other keys would run finished benches again. The second changed when the strength of
# SL@K became "auto" on data without shipped settings.
KEYS = ["867afe221ad6e83dbcaf", "3c415ad5c8762a18b235"]


def planned(data, more=DIAGNOSE):
    """The plan with one of its two methods."""
    return narrowed(plan_of(ONE + more, data), methods=["SL@5"])


def keys(plan):
    return [cell.key for cell in cells(plan)]


@pytest.fixture(scope="module")
def bench(clicks, tmp_path_factory):
    out = tmp_path_factory.mktemp("diagnosed") / "bench"
    assert work_here(planned(clicks), out) == ["done"]
    return out


@pytest.fixture(scope="module")
def report(clicks, bench):
    return Report.of(of_plan("small", planned(clicks), BenchFolder.open(bench)))


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    return report.write(tmp_path_factory.mktemp("written") / "report")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[diagnose]\nepochs = 0", "diagnose.epochs: input should be greater than or equal to 1, got 0"),
        ("[diagnose]\nusers = -1", "diagnose.users: input should be greater than or equal to 1, got -1"),
        ("[diagnose]\nlosses = 'bpr'", "diagnose.losses: "),
        ("[diagnose]\nlosses = ['bpr', 'bpr']", "diagnose.losses: must differ, got 'bpr' twice"),
        ("[diagnose]\nlosses = ['a.toml']", "must be names of losses, not files, got 'a.toml'"),
        (
            "[diagnose]\nloss = ['bpr']",
            "diagnose.loss is not a setting; accepted here: losses, epochs, users; did you mean losses?",
        ),
        ("[diagnose]\nlosses = ['bprr']", "clicks, SL: diagnose.losses must be one of"),
    ],
)
def test_wrong_values_are_refused_before_any_cell_is_run(clicks, more, message):
    with pytest.raises(ConfigError) as error:
        cells(plan_of(f"{ONE}\n{more}\n", clicks))
    assert message in str(error.value)


def test_other_tasks_and_models_without_a_loss_are_refused(clicks):
    with pytest.raises(ConfigError, match=r"\[diagnose\] must be of the task interactions, got 'ranking'"):
        parse_plan(f'task = "ranking"\n{ONE}{DIAGNOSE}'.replace("EPOCHS", "1"), "mine")
    ease = ONE.replace('{ loss = { name = "softmax" } }', '{ model = { name = "ease" } }').replace("dim = 8", "")
    with pytest.raises(ConfigError, match=r"clicks, SL: a plan with \[diagnose\] must have trained models alone"):
        cells(plan_of(ease + DIAGNOSE, clicks))


def test_a_diagnosis_is_part_of_the_key_only_where_a_plan_has_one(clicks):
    plain = keys(plan_of(ONE, clicks))
    variants = [DIAGNOSE, DIAGNOSE.replace("20", "21"), DIAGNOSE.replace("epochs = 1", "epochs = 2")]
    variants += [DIAGNOSE.replace(', "lambdaloss_at_k"', "")]
    found = [keys(plan_of(ONE + more, clicks)) for more in variants]
    assert len({key for some in [plain, *found] for key in some}) == 2 * 5
    assert keys(plan_of(ONE + DIAGNOSE, clicks)) == found[0]


def test_keys_of_cells_without_a_diagnosis_are_those_of_before(monkeypatch):
    monkeypatch.setattr("topshelf.bench.cells.version", lambda: "0")
    text = ONE.replace("DATA", "synthetic").replace("EPOCHS", "2")
    assert keys(parse_plan(text, "mine")) == KEYS


def test_the_result_has_the_diagnosis_in_a_folder_and_in_a_database(clicks, bench, tmp_path):
    (result,) = BenchFolder.open(bench).results().values()
    assert [one["label"] for one in result["diagnosis"]["timings"]] == ["slatk", "softmax", "lambdaloss_at_k"]
    assert result["diagnosis"]["target"] == "clicks, SL@5"
    assert str(clicks.parent) not in json.dumps(result["diagnosis"])
    ledger = DatabaseLedger(f"sqlite:///{tmp_path / 'bench.db'}")
    (key,) = keys(planned(clicks))
    ledger.finish(key, {k: v for k, v in result.items() if k != "key"}, BenchFolder.open(bench).per_user(key))
    again = Report.of(of_plan("small", planned(clicks), ledger))
    one = Report.of(of_plan("small", planned(clicks), BenchFolder.open(bench)))
    assert again.markdown(FIGURES) == one.markdown(FIGURES)


def test_the_report_has_the_figures_and_is_made_again_from_its_file(report, folder):
    assert sorted(path.stem for path in folder.glob("figure*.svg")) == FIGURES
    for name in FIGURES:
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text.startswith(f"Figure {name[7:]}. ")
    html = (folder / "report.html").read_text()
    assert html.count("<svg") == html.count('role="img" aria-label=') == len(FIGURES)
    again = read_report(folder)
    assert again.markdown(FIGURES) == (folder / "report.md").read_text()
    assert stored(again.diagnosed[0].diagnosis) == stored(report.diagnosed[0].diagnosis)


def test_the_tables_have_our_numbers_beside_the_papers(report):
    (beside,) = [grid for grid in report.grids() if grid.title == "Beside the paper"]
    rows = {row[:2]: row[2:] for row in beside.rows}
    (found,) = report.diagnosed
    times = {one.label: one.seconds for one in found.diagnosis.timings}
    ratio = f"{times['lambdaloss_at_k'] / times['slatk']:.3g} times"
    assert rows["1b", "time of a step, lambdaloss_at_k / slatk"] == ("60 times", ratio)
    top = next(one for one in found.diagnosis.gradients if one.label == "lambdaloss_at_k").by_positive.top["5%"]
    paper, ours = rows["1c", "share of the gradient in the top 5%, lambdaloss_at_k"]
    assert paper == "over 90%"
    assert ours.startswith(f"{top:.1%} of positives, ")
    paper, ours = rows["2b", "absolute error of thresholds, sampled with the trick"]
    assert (paper, ours) == ("0.06 ± 0.03", "0.000 ± 0.000")  # more are drawn than there are
    assert rows["4", "lambda weights of LambdaLoss@5 over 0.005"][0] == "under 1%"
    titles = [grid.title for grid in report.grids()]
    assert "clicks, SL@5: Gradient concentration (figure 1c)" in titles


def test_a_diagnosis_that_lost_a_loss_says_so(report):
    (one,) = report.diagnosed
    lame = replace(one, diagnosis=replace(one.diagnosis, failed={"bpr": "the loss is NaN"}))
    assert "clicks, SL@5: bpr is left out: the loss is NaN" in replace(report, diagnosed=[lame]).markdown([])


def test_a_damaged_diagnosis_is_refused(folder, tmp_path):
    content = files.read_sealed(folder / "report.json")
    content["results"]["runs"][0]["diagnosis"]["scores"]["positive"] = "1 2 x"
    files.write_sealed(tmp_path / "report.json", content)
    with pytest.raises(CheckpointError, match="the diagnosis of clicks, SL@5 is damaged"):
        read_report(tmp_path)


def test_without_a_diagnosis_there_is_no_figure_and_none_is_stored(tmp_path):
    folder = Report.of(results_of([measured("one", [0.1, 0.2])])).write(tmp_path / "report")
    assert not list(folder.glob("figure*"))
    assert '"diagnosis"' not in (folder / "report.json").read_text()
    assert read_report(folder).diagnosed == []


def test_a_failing_diagnosis_is_a_failed_cell_with_its_reason(clicks, tmp_path, here, monkeypatch):
    def broken(*_args, **_options):
        raise RuntimeError("no gradient")

    monkeypatch.setattr("topshelf.bench.worker.diagnose", broken)
    summary = run(planned(clicks), tmp_path / "b")
    assert (summary.done, summary.failed) == (0, 1)
    (failure,) = BenchFolder.open(tmp_path / "b").failures().values()
    assert failure["reason"] == "RuntimeError: no gradient"


def test_a_cell_stopped_in_its_diagnosis_goes_on_without_training_again(clicks, tmp_path, monkeypatch):
    plan, out = planned(clicks), tmp_path / "b"
    (cell,) = cells(plan)
    folder = BenchFolder(out).make()
    real = states.trained

    def stopped(label, *args):
        if label == "lambdaloss_at_k":  # the second loss: one that fails is left out, a stop is not
            os.kill(os.getpid(), signal.SIGTERM)
        return real(label, *args)

    monkeypatch.setattr(states, "trained", stopped)
    assert work(Job(cell, folder.path)) == "stopped"
    assert not folder.results()
    assert not folder.failures()
    monkeypatch.setattr(states, "trained", real)
    kept = [RunFolder(folder.cell(cell.key)).log, folder.cell(cell.key) / "metrics.json"]
    before = [path.stat().st_mtime_ns for path in kept]
    assert work(Job(cell, folder.path)) == "done"
    assert [path.stat().st_mtime_ns for path in kept] == before


def slow_ndcg(places, n_relevant, k):
    gain = sum(1 / math.log2(place + 1) for place in places if place <= k)
    return gain / sum(1 / math.log2(place + 1) for place in range(1, min(n_relevant, k) + 1))


@pytest.mark.parametrize(("n_items", "n_relevant", "k"), [(10, 4, 5), (7, 3, 3), (8, 2, 4)])
def test_the_first_ranking_has_the_better_ndcg_and_the_worse_ndcg_at_k(n_items, n_relevant, k):
    first, second = inconsistent(n_items, n_relevant, k)
    assert first.ndcg > second.ndcg
    assert first.ndcg_at_k < second.ndcg_at_k
    for one in (first, second):
        assert len(one.places) == n_relevant
        assert one.ndcg == pytest.approx(slow_ndcg(one.places, n_relevant, n_items), rel=1e-12)
        assert one.ndcg_at_k == pytest.approx(slow_ndcg(one.places, n_relevant, k), rel=1e-12)
    every = list(combinations(range(1, n_items + 1), n_relevant))
    whole, top = ({one: slow_ndcg(one, n_relevant, depth) for one in every} for depth in (n_items, k))
    best = max(min(whole[a] - whole[b], top[b] - top[a]) for a in every for b in every)
    assert min(first.ndcg - second.ndcg, second.ndcg_at_k - first.ndcg_at_k) == pytest.approx(best, rel=1e-12)


def test_the_example_is_a_table():
    grid = inconsistency_grid()
    assert [row[0] for row in grid.rows] == ["Ranking 1", "Ranking 2"]
    assert grid.rows[0][2] > grid.rows[1][2]
    assert grid.rows[0][3] < grid.rows[1][3]
