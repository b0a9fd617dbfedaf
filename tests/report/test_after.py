"""The page that ends a train, auto or bench: when it is written, what auto's says, and that it costs no result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from benches import PLAN, HereContext, write_clicks
from command_line import run_topshelf
from topshelf.bench import runner
from topshelf.cli import pages
from topshelf.errors import CheckpointError
from topshelf.report import report_page
from topshelf.report.tried import Search

AUTO = {
    "metric": "validation ndcg@5",
    "budget": 600,
    "spent": 580.2,
    "score": 0.2,
    "tried": [
        {"name": "EASE", "score": 0.18, "trials": 3, "seconds": 2.0, "weight": 0.4, "note": ""},
        {"name": "<b>MF</b>", "score": None, "trials": 0, "seconds": 0.0, "weight": 0.0, "note": "left out: memory"},
        {"name": "SLIM", "score": 0.19, "trials": 1, "seconds": 9.5, "weight": 0.6, "note": ""},
    ],
    "history": [[1.0, 0.18], [30.0, 0.17], [200.0, 0.19]],
    "said": ["A blend, 0.6 x SLIM + 0.4 x EASE.", "In the last third the best score did not rise."],
}


@pytest.fixture
def found(runs, tmp_path):
    """A run as topshelf auto leaves it."""
    shutil.copytree(runs / "ease", tmp_path / "ease")
    (tmp_path / "ease" / "auto.json").write_text(json.dumps(AUTO))
    return tmp_path / "ease"


def test_the_page_of_auto_says_what_was_tried_and_why(found):
    html = report_page([found]).html()
    tried = html[html.index("<h2>What was tried") : html.index("<h2>Metrics")]
    for text in ("validation NDCG@5", *AUTO["said"], "left out: memory", "had 10 min and took 10 min", "<svg"):
        assert text in tried
    assert "<b>MF" not in tried
    places = [tried.index(name) for name in (">SLIM", ">EASE", "&lt;b&gt;MF")]
    assert places == sorted(places)  # the best first


@pytest.mark.parametrize(
    "change",
    [
        {"tried": 5},
        {"tried": [{"name": "EASE"}]},
        {"tried": [{**AUTO["tried"][0], "name": 5}]},
        {"history": [[1.0, "x"]]},
        {"history": [[1.0, 1e999]]},
        {"budget": True},
        {"said": [5]},
        {"metric": None},
    ],
    ids=str,
)
def test_a_damaged_search_is_said_and_the_rest_is_shown(found, change):
    (found / "auto.json").write_text(json.dumps({**AUTO, **change}))
    with pytest.raises(CheckpointError, match="damaged"):
        Search.read(found / "auto.json")
    html = report_page([found]).html()
    assert "Not shown:" in html
    assert "<h2>Metrics" in html


@pytest.fixture
def clicks(tmp_path):
    return write_clicks(tmp_path / "clicks.csv")


def train(clicks, out, *more):
    arguments = ("--data", clicks, "--model", "popularity", "--k", "5", "--out", out)
    return run_topshelf("train", *arguments, *more)[0]


def test_a_short_run_says_the_command_and_no_report_says_nothing(clicks, tmp_path):
    assert f"write its page: topshelf report {tmp_path / 'short'} -o {tmp_path / 'short' / 'report.html'}" in train(
        clicks, tmp_path / "short"
    )
    assert "page" not in train(clicks, tmp_path / "none", "--no-report")
    assert not list(tmp_path.glob("*/report.html"))


def test_a_longer_run_ends_with_its_page_and_so_does_one_that_is_asked_to(clicks, tmp_path, monkeypatch):
    assert f"page: {tmp_path / 'asked' / 'report.html'}" in train(clicks, tmp_path / "asked", "--report")
    monkeypatch.setattr(pages, "WORTH", 0.0)
    assert "page: " in train(clicks, tmp_path / "long")
    monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)
    assert "write its page: " in train(clicks, tmp_path / "plain")
    made = [path.parent.name for path in tmp_path.glob("*/report.html")]
    assert sorted(made) == ["asked", "long"]
    run_topshelf("train", "--resume", tmp_path / "asked")  # the page in the folder disturbs nothing


def test_a_page_that_cannot_be_written_does_not_cost_the_run(clicks, tmp_path, monkeypatch):
    def full(*given, **more):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr("topshelf.report.write_report", full)
    shown = train(clicks, tmp_path / "run", "--report")
    assert "kept in" in shown
    assert "write its page: " in shown


def test_a_bench_ends_with_its_page(clicks, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "get_context", lambda _: HereContext)
    (tmp_path / "plan.toml").write_text(PLAN.replace("DATA", str(clicks)))
    shown, _ = run_topshelf("bench", "run", tmp_path / "plan.toml", "--out", tmp_path / "bench", "--report")
    page = tmp_path / "bench" / "reports" / "plan" / "report.html"
    assert f"page: {page}" in shown
    assert "EASE" in page.read_text()
    shown, _ = run_topshelf("bench", "run", tmp_path / "plan.toml", "--out", tmp_path / "bench")
    assert "write its page: topshelf bench report" in shown


@pytest.mark.slow
def test_a_page_and_the_demo_need_no_optuna():
    code = "import sys; sys.modules['optuna'] = None; import topshelf.report, topshelf.demo"
    subprocess.run([sys.executable, "-c", code], check=True)
