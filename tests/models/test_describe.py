"""What the registry says of its models."""

from __future__ import annotations

import inspect
import json

import pytest
import torch

from topshelf.models import EASE, IALS, MF, MODELS, SLIM, History, LightGCN, Popularity, SimpleX
from topshelf.models.describe import describe, takes_new_users


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
    assert json.loads(text)[0]["settings"] == {
        "dim": 64,
        "score": "cosine",
        "init": "xavier",
        "tables": "float32",
    }


def test_describing_draws_nothing_from_the_random_stream():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    describe()
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        *((cls, False) for cls in (MF, LightGCN, SimpleX)),
        *((cls, True) for cls in (History, EASE, SLIM, IALS, Popularity)),
    ],
)
def test_models_with_something_of_each_user_do_not_take_new_ones(cls, expected):
    assert takes_new_users(cls) is expected


@pytest.mark.parametrize("cls", MODELS.values())
def test_a_model_whose_weights_belong_to_users_does_not_take_new_ones_unless_it_finds_their_weights(cls):
    n_users = 1009  # a size that nothing else has
    has_users = any(n_users in tensor.shape for tensor in cls(n_users, 2).state_dict().values())
    assert takes_new_users(cls) is (not has_users or cls is IALS)
