"""Every result is a few short lines when it is printed, however large its data."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from benches import measured, results_of
from topshelf import Recommender
from topshelf.bench.report import Report
from topshelf.config import make_config
from topshelf.data import generate
from topshelf.evaluation import Evaluation
from topshelf.in_memory import dataset_of
from topshelf.models import MODELS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.reprs import MOST, by_cutoff, html_table, lines, sketch, text_table
from topshelf.tuning import tune

LIMIT = 1000


def everything(value, found=None, depth=0):
    """The instances of topshelf's classes that a result is made of, by class."""
    found = {} if found is None else found
    if depth > 6 or type(value) in found:
        return found
    if isinstance(value, dict | list | tuple) and not hasattr(value, "_fields"):
        for part in list(value.values() if isinstance(value, dict) else value)[:5]:
            everything(part, found, depth + 1)
    elif type(value).__module__.startswith("topshelf.") and "settings" not in type(value).__module__:
        found[type(value)] = value
        inner = value._asdict() if hasattr(value, "_asdict") else getattr(value, "__dict__", {})
        for part in list(inner.values()):
            everything(part, found, depth + 1)
    return found


@pytest.fixture(scope="module")
def frame():
    return generate(400, 120, interactions_per_user=12, seed=1).to_frame()


@pytest.mark.parametrize("name", list(MODELS))
def test_reprs_of_a_recommender_and_all_that_it_holds_are_short(frame, name):
    trained = {"train": {"epochs": 1, "validate_every": 1}} if not MODELS[name].is_closed_form else {}
    recommender = Recommender(k=5, model=name, **trained).fit(frame)
    ranked = recommender.artifact.rank(QuerySet.known(400))
    parts = everything([recommender, recommender.evaluate(), recommender.artifact, ranked])
    assert {
        "Recommender",
        "Evaluation",
        "Fitted",
        "Dataset",
        "Split",
        "Interactions",
        "Artifact",
        "Ragged",
        "Ranked",
    } <= {kind.__name__ for kind in parts}
    for kind, part in parts.items():
        if not isinstance(part, torch.nn.Module):  # torch's own
            assert len(repr(part)) < LIMIT, kind
            assert repr(part).count("\n") < 15


def test_the_reprs_say_what_one_wants_to_know(frame):
    recommender = Recommender(k=5, model="mf", train={"epochs": 2, "validate_every": 1})
    assert repr(recommender).splitlines() == [
        "Recommender(k=5, model='mf', train={'epochs': 2, 'validate_every': 1})",
        "  state  not fitted yet: call fit(data)",
    ]
    recommender.fit(frame)
    assert "400 users, 120 items" in repr(recommender)
    assert f"ndcg@5 {recommender.fitted.valid_score:.4f}" in repr(recommender)
    evaluation = recommender.evaluate(cutoffs=(5, 10))
    assert f"{evaluation.mean()['ndcg@10']:.4f}" in repr(evaluation)
    assert repr(evaluation).splitlines()[1].split() == ["@5", "@10"]
    assert "train " in repr(recommender.fitted.dataset)


def test_a_loaded_recommender_shows_itself_without_loading_its_data(frame, tmp_path):
    Recommender(k=5, model="ease").fit(frame, out=tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    (tmp_path / "run" / "config.toml").unlink()
    assert "400 users, 120 items" in repr(loaded)


def test_reports_and_studies_are_short(tmp_path):
    runs = [measured(method, [0.1, 0.2] * 250, seed=seed) for method in ("a", "b") for seed in range(40)]
    report = Report.of(results_of(runs, ours="a"))
    assert repr(report).startswith("Report(Results('small', clicks: 80 runs), ")
    config = make_config({"k": 5, "model": {"dim": 8}, "train": {"epochs": 1}})
    tuned = tune(config, dataset_of(generate(60, 40, interactions_per_user=8, seed=3), config), trials=2)
    assert "best" in repr(tuned)
    assert "loss.tau" in repr(tuned)
    for part in everything([report, tuned]).values():
        assert len(repr(part)) < LIMIT, type(part)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, attrs))


def test_html_is_a_plain_table_with_every_text_escaped(frame):
    recommender = Recommender(k=5, model="popularity").fit(frame)
    for page in (
        recommender._repr_html_(),
        recommender.evaluate()._repr_html_(),
        html_table("<script>a</script>", ["<b>"], [["<img src=x onerror=y>", 1]], "<i>"),
    ):
        tags = Tags()
        tags.feed(page)
        assert {tag for tag, _ in tags.seen} <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert all(not attributes for _, attributes in tags.seen)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 2), "float32 (3, 2)"),
        (np.zeros(4, np.int64), "int64 (4,)"),
        (list(range(100)), "list of 100"),
        ([1, 2], "[1, 2]"),
        ({"a": torch.zeros(2)}, "dict of 1"),
        ("x" * 500, "'" + "x" * 78 + "…"),
        (Ragged(torch.tensor([0, 1]), torch.tensor([0])), "Ragged(indptr=int64 (2,), indices=int64 (1,))"),
        (object(), "object(...)"),
        (None, "None"),
    ],
)
def test_a_value_is_sketched(value, text):
    assert sketch(value) == text


def test_tables_line_up_and_long_texts_are_cut():
    header, rows = by_cutoff({"ndcg@5": 0.5, "ndcg@10": 0.25, "auc": 0.75})
    assert text_table(header, rows) == ["          @5     @10", "ndcg  0.5000  0.2500", "auc   0.7500"]
    assert by_cutoff({"auc": 0.5})[1] == [["auc", "0.5000"]]
    assert len(lines("title", [("fact", "x" * 5000)] * 50)) <= MOST
    many = Evaluation("own", (1,), torch.arange(2), {f"ndcg@{k}": torch.ones(2) for k in range(1, 60)})
    assert len(repr(many)) < LIMIT
