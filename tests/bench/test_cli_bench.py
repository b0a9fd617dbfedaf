"""topshelf bench and topshelf compare as a person types them."""

from __future__ import annotations

import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from benches import PLAN, TRAINED
from command_line import run_topshelf
from topshelf.bench.plan import shipped_plans
from topshelf.bench.results import as_text
from topshelf.config import overrides

OWN_LOSS = """
from topshelf.losses import SoftmaxLoss


class MyLoss(SoftmaxLoss):
    pass
"""
MINE = """
title = "My loss on my clicks"
metrics = ["recall@5", "ndcg@5"]
k = 5
seeds = [0, 1]
ours = "mine"
settings = { model = { dim = 8 }, train = { epochs = 2, patience = 0, batch_size = 32 } }
data = [{ label = "clicks", source = "clicks.csv" }]
method = [
  { label = "softmax", settings = { loss = { name = "softmax" } } },
  { label = "mine", settings = { loss = { name = "my_losses:MyLoss", tau = 0.3 } } },
]
"""


def topshelf(*arguments, code=0):
    output, errors = run_topshelf(*arguments, code=code, columns=200)
    return " ".join((output + errors).split())


@pytest.fixture
def desk(clicks, tmp_path, monkeypatch):
    """The current folder of a person: their clicks, plan and loss."""
    (tmp_path / "clicks.csv").write_bytes(clicks.read_bytes())
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "small.toml").write_text(PLAN.replace("DATA", "clicks.csv"))
    (tmp_path / "my_losses.py").write_text(OWN_LOSS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_losses", None)


def test_list_names_every_plan():
    shown = topshelf("bench", "list")
    assert all(f"│ {name} │" in shown for name in shipped_plans())
    assert "Run one: topshelf bench run PLAN" in shown


def test_show_has_the_cases_with_what_was_published():
    shown = topshelf("bench", "show", "quick")
    assert "Health, MF, SL@20 │ train.learning_rate 0.1, train.weight_decay 0, loss.tau 0.2," in shown
    assert "Recall@20 0.1823, NDCG@20 0.1390" in shown
    assert "6 cases, seeds 0; settings: published" in shown


def test_show_takes_an_optimum_of_words(desk):
    extra = 'hyperparameters = ["loss.name"], label = "softmax"'
    more = '\n[[published]]\nmethod = "softmax"\noptimum = ["softmax"]\n'
    (desk / "words.toml").write_text(MINE.replace('label = "softmax"', extra) + more)
    assert "loss.name softmax" in topshelf("bench", "show", "words.toml")


def test_a_plan_with_a_loss_of_ones_own_from_run_to_report(desk, here):
    shown = topshelf("bench", "run", "mine.toml", "--out", "out", "--quiet")
    assert "4 cells run, 0 known before, 0 failed, 0 without data, 0 running elsewhere" in shown
    assert "│ mine │ 2 │ 0." in shown
    assert "write its page: topshelf bench report mine.toml --out out" in shown
    assert "0 cells run, 4 known before" in topshelf("bench", "run", "mine.toml", "--out", "out", "--quiet")
    assert "│ clicks │ 4 │ 0 │ 0 │ 0 │ 0 │" in topshelf("bench", "status", "mine.toml", "--out", "out")
    part = topshelf("bench", "report", "mine.toml", "--out", "out", "--seed", "1", "--to", "part")
    assert "report: part/report.html" in part
    assert (desk / "part" / "report.md").read_text().splitlines()[2].startswith("2 of 2 cells, seeds 1, ")
    topshelf("bench", "report", "mine.toml", "--out", "out")
    assert (desk / "out" / "reports" / "mine" / "table.tex").is_file()
    (desk / "my_losses.py").write_text(OWN_LOSS + "    weight = 1\n")
    assert "│ clicks │ 2 │ 0 │ 2 │" in topshelf("bench", "status", "mine.toml", "--out", "out")  # another loss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run quik", "'quik' is neither a plan of topshelf bench list nor a TOML file; did you mean quick?"),
        ("run nowhere.toml", "'nowhere.toml' is neither a plan"),
        ("run small.toml --choose best", "--choose must be one of published, shipped, tuned, got 'best'"),
        ("run small.toml --jobs 0", "jobs must be >= 1, got 0"),
        ("run small.toml --threads 0", "threads must be >= 1, got 0"),
        ("run small.toml --minutes 0", "--minutes must be above 0, got 0"),
        ("run small.toml --trials -1", "--trials must be above 0, got -1"),
        ("run small.toml --method EASY", "--method must be a label of the plan (popularity, EASE), got 'EASY'"),
        ("run small.toml --seed 1 --seed 1", "seeds must differ, got 1 twice"),
        ("run small.toml --group MF", "--group must be a label of the plan (it has none), got 'MF'"),
        ("run small.toml --storage mysql", "--storage must be the url of a database"),
        ("status small.toml", "out is not a bench: it has no folder results; topshelf bench run makes one"),
        ("report small.toml", "out is not a bench"),
    ],
)
def test_a_wrong_input_is_one_message_and_exit_code_2(desk, arguments, message):
    assert message in topshelf("bench", *arguments.split(), "--out", "out", code=2)
    assert not (desk / "out").exists()


def test_a_folder_of_something_else_and_a_report_of_nothing_are_refused(desk):
    (desk / "letters").mkdir()
    (desk / "letters" / "one.txt").touch()
    shown = topshelf("bench", "run", "small.toml", "--out", "letters", code=2)
    assert "--out must be a bench or a new folder, and letters holds something else" in shown
    for name in ("results", "claims", "failures"):
        (desk / "empty" / name).mkdir(parents=True)
    shown = topshelf("bench", "report", "small.toml", "--out", "empty", code=2)
    assert "small has no finished cell yet; run it: topshelf bench run small" in shown


@pytest.fixture(scope="module")
def trained(clicks, tmp_path_factory):
    """Finished runs: two losses with two seeds, and a closed form."""
    folder = tmp_path_factory.mktemp("runs")
    short = ("--k", "5", "--quiet", "--set", "train.epochs=2", "--set", "model.dim=8")
    for loss in ("slatk", "softmax"):
        for seed in ("0", "1"):
            run_topshelf(
                "train", "--data", clicks, "--loss", loss, "--seed", seed, *short, "--out", folder / f"{loss}{seed}"
            )
    run_topshelf("train", "--data", clicks, "--model", "ease", "--k", "5", "--quiet", "--out", folder / "ease")
    return folder


def test_compare_makes_seeds_one_method_and_tests_ours(trained, tmp_path):
    paths = [trained / name for name in ("slatk0", "slatk1", "softmax0", "softmax1", "ease")]
    shown = topshelf("compare", *paths, "--ours", "mf, softmax", "--to", tmp_path / "report")
    assert "│ mf, slatk │ 2 │" in shown
    assert "│ ease │ 1 │" in shown
    assert "mf, softmax against the best of the others, paired over users" in shown
    assert (tmp_path / "report" / "report.html").is_file()
    metrics = json.loads((trained / "ease" / "metrics.json").read_text())
    assert f"{metrics['test']['ndcg@5']:.4f}" in shown
    both = topshelf("compare", *paths[:2], "--protocol", "paper", "--protocol", "standard")
    assert "protocol paper" in both
    assert "protocol standard" in both


def test_compare_names_the_settings_in_which_runs_differ(trained, clicks, tmp_path):
    run_topshelf(
        "train",
        "--data",
        clicks,
        "--model",
        "ease",
        "--k",
        "5",
        "--quiet",
        "--set",
        "model.l2=7",
        "--out",
        tmp_path / "other",
    )
    shown = topshelf("compare", trained / "ease", tmp_path / "other")
    assert "ease, model.l2 7" in shown
    assert "not measured on the same test lists" not in shown


def test_compare_says_that_runs_have_other_test_parts(trained, clicks, tmp_path):
    given = ["--data", clicks, "--model", "ease", "--k", "5", "--quiet", "--set", "data.split_seed=1"]
    run_topshelf("train", *given, "--out", tmp_path / "other")
    shown = topshelf("compare", trained / "slatk0", tmp_path / "other")
    assert "The runs were not measured on the same test lists" in shown
    assert "paired over users" not in shown


def test_compare_refuses_what_is_no_comparison(trained, clicks, tmp_path):
    run = trained / "slatk0"
    assert f"every run must be given once, got {run} twice" in topshelf("compare", run, run, code=2)
    link = tmp_path / "link"
    link.symlink_to(run)
    assert "every run must be given once" in topshelf("compare", run, link, code=2)
    assert "--ours must be one of mf, slatk; ease, got 'easy'" in topshelf(
        "compare", run, trained / "ease", "--ours", "easy", code=2
    )
    assert "nowhere" in topshelf("compare", run, tmp_path / "nowhere", code=2)


def test_compare_refuses_copies_other_tasks_and_unfinished_runs(trained, monkeypatch, tmp_path):
    copy = shutil.copytree(trained / "slatk0", tmp_path / "copy")
    assert "two runs are the same: mf, slatk with seed 0" in topshelf("compare", trained / "slatk0", copy, code=2)
    (tmp_path / "copy" / "metrics.json").unlink()
    shown = topshelf("compare", trained / "slatk1", copy, code=2)
    assert "is not finished; finish it: topshelf train --resume" in shown
    tasks = {"a": "interactions", "b": "ranking"}
    monkeypatch.setattr(
        "topshelf.bench.compared.load",
        lambda path: SimpleNamespace(is_finished=True, config=SimpleNamespace(task=tasks[path.name])),
    )
    shown = topshelf("compare", tmp_path / "a", tmp_path / "b", code=2)
    assert "runs must be of one task to be compared, got interactions, ranking" in shown


@pytest.mark.slow
def test_tuned_settings_from_beginning_to_end(desk, here):
    pytest.importorskip("optuna")
    (desk / "tuned.toml").write_text(
        'choose = "tuned"\ntrials = 2\n'
        + TRAINED.replace("DATA", "clicks.csv")
        .replace("EPOCHS", "2")
        .replace("data = [", 'data = [{ label = "made", source = "synthetic" },')
    )
    shown = topshelf("bench", "run", "tuned.toml", "--out", "out", "--quiet")
    assert "8 cells run, 0 known before, 0 failed" in shown
    studies = [path for path in (desk / "out" / "studies").iterdir() if path.is_dir()]
    assert len(studies) == 4  # two losses on two datasets, and every seed shares its search
    results = [json.loads(path.read_text()) for path in (desk / "out" / "results").glob("*.json")]
    chosen = {}
    for one in results:
        config = one["config"]
        assert config["seed"] in (0, 1)
        rest = {**config, "seed": None}
        chosen.setdefault((config["data"]["source"], config["loss"]["name"]), []).append(
            json.dumps(rest, sort_keys=True)
        )
        searched = overrides(as_text(one["chosen"]).split())
        assert searched
        assert all(config[section][key] == value for section, own in searched.items() for key, value in own.items())
        assert 0 < one["chosen_score"] < 1
    assert (
        "tuned on validation"
        in topshelf("bench", "report", "tuned.toml", "--out", "out", "--to", "r")
        + (desk / "r" / "report.md").read_text()
    )
    assert {key: (len(some), len(set(some))) for key, some in chosen.items()} == dict.fromkeys(chosen, (2, 1))
    assert "settings,score" in (desk / "r" / "cells.csv").read_text().splitlines()[0]
