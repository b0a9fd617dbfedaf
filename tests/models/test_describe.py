"""What the registry says of its models."""

from __future__ import annotations

import inspect
import json

import pytest
import torch

from topshelf.config import make_config
from topshelf.data import generate
from topshelf.models import EASE, IALS, MF, MODELS, LightGCN, Popularity, SimpleX
from topshelf.models.describe import describe, takes_new_users
from topshelf.training.build import build_model, resolve


def test_every_model_has_a_row_with_what_its_class_says():
    rows = describe()
    assert [row["name"] for row in rows] == list(MODELS)
    for row in rows:
        cls = MODELS[row["name"]]
        assert row["form"] == ("closed form" if cls.is_closed_form else "trained")
        assert row["ranges"] == cls.ranges
        parameters = inspect.signature(cls).parameters
        assert row["settings"] == {
            key: p.default for key, p in parameters.items() if key not in ("n_queries", "n_items")
        }
        text = " ".join(inspect.getdoc(cls).replace("``", "").split())
        for key in ("summary", "use_when", "cost", "paper"):
            assert row[key].endswith((".", ")"))
            assert row[key][:20] in text


def test_the_rows_are_json_without_markup():
    text = json.dumps(describe())
    assert "``" not in text
    assert ":math:" not in text
    assert json.loads(text)[0]["settings"] == {"dim": 64, "score": "cosine", "init": "xavier"}


def test_describing_draws_nothing_from_the_random_stream():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    describe()
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("cls", "expected"),
    [(MF, False), (LightGCN, False), (SimpleX, False), (EASE, True), (IALS, True), (Popularity, True)],
)
def test_models_with_something_of_each_user_do_not_take_new_ones(cls, expected):
    assert takes_new_users(cls) is expected


@pytest.mark.parametrize("name", [row["name"] for row in describe() if row["new_users"]])
def test_a_model_that_takes_new_users_gives_them_what_the_same_items_give_known_ones(name):
    positives = generate(60, 30, seed=2).ragged()
    known = build_model(resolve(make_config({"model": {"name": name}})), 60, 30)
    if known.is_closed_form:
        known.fit(positives)
    known.attach(positives)
    some = torch.tensor([7, 31, 2])
    if hasattr(known, "solve"):
        queries, items = known.solve(positives.select(some)), known.item_vectors
    else:
        fresh = MODELS[name](3, 30)
        fresh.load_state_dict(known.state_dict())
        fresh.attach(positives.select(some))
        queries, items = fresh.encode(torch.arange(3))
    expected, its_items = known.encode(some)
    with torch.no_grad():
        torch.testing.assert_close(queries @ items.T, expected @ its_items.T)
        assert (expected @ its_items.T).abs().sum() > 0
