"""The benchmark of documents: choices, pairing and the committed tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.harness import RESULTS
from benchmarks.quality import ranking
from topshelf.losses import LISTWISE
from topshelf.models.lists import LIST_MODELS
from topshelf.training.build import resolve

RESULT = RESULTS / "ranking.json"


def test_every_method_has_four_settings_that_make_a_config():
    for method, choices in ranking.CHOICES.items():
        assert len(choices) == 4
        for choice in choices:
            config = resolve(ranking.config_of("mq2008", {"fold": 2, "seed": 0}, choice, None))
            assert method in (config.loss.name, config.model.name)
            assert config.loss.name in LISTWISE
            assert config.model.name in LIST_MODELS
            assert config.data.fold == 2


def row(method, choice, valid, values, *, seed=0, is_search=True):
    text = ",".join(map(str, values))
    return {
        "data": "ohsumed", "fold": 1, "seed": seed, "method": method, "choice": choice, "valid": valid,
        "is_search": is_search, "skipped": 1, "per_query@5": text, "per_query@10": text,
    }  # fmt: skip


def test_validation_of_the_first_split_chooses_and_seeds_are_averaged_per_query():
    rows = [
        row("softmax", 0, 0.2, [1, 1]), row("softmax", 1, 0.3, [0.2, 0.4]), row("slatk", 0, 0.1, [0.5, 0.5]),
        row("softmax", 1, 0.0, [0.4, 0.8], seed=1, is_search=False),
    ]  # fmt: skip
    assert ranking.place_of(rows, "ohsumed", "softmax") == 1
    values, n_skipped = ranking.values_of(rows, "ohsumed", "softmax", 5)
    np.testing.assert_allclose(values, [0.3, 0.6])
    assert n_skipped == 1
    made = ranking.summary(rows, "ohsumed", [0, 1])
    assert [one["method"] for one in made["table"]] == ["softmax", "slatk"]
    assert [one["is_complete"] for one in made["table"]] == [True, False]
    assert "against_best" not in made
    assert "Not finished, so not in the table: slatk." in ranking.told(made)
    made = ranking.summary([*rows, row("slatk", 0, 0.0, [0.5, 0.5], seed=1, is_search=False)], "ohsumed", [0, 1])
    assert made["table"][0]["one@10"] == pytest.approx((0.9 + 1) / 3)
    assert made["against_best"]["loss"] == "softmax"
    assert made["against_best"]["difference"] == pytest.approx(0.05)


def test_lambdamart_is_lightgbm_within_one_percent():
    tables = json.loads(RESULT.read_text())["tables"]
    mq2008 = next(made for made in tables if made["data"] == "mq2008")
    rows = {one["method"]: one for one in mq2008["table"]}
    for name in ("zero@10", "ndcg@10", "one@10"):
        assert rows["lambdamart"][name] == pytest.approx(rows["lightgbm"][name], rel=0.01)
    assert rows["lambdamart"]["is_complete"]


def test_the_page_has_the_committed_tables():
    assert ranking.page(json.loads(RESULT.read_text())["tables"]) == ranking.PAGE.read_text()
