"""Plain numbers about a source."""

from __future__ import annotations

import json

import numpy as np

from topshelf.data import Interactions, generate, make_split
from topshelf.data.datasets import whole
from topshelf.data.named import NAMED
from topshelf.data.summary import dataset_table, describe, describe_split


def test_a_description_counts_and_fits_json():
    facts = describe(whole("tiny", Interactions.from_csr(np.array([[1, 2], [0, 4]]))))
    assert (facts["users"], facts["items"], facts["interactions"], facts["density"]) == (2, 2, 3, 0.75)
    assert (facts["per_user"]["p0"], facts["per_user"]["p100"]) == (1, 2)
    assert facts["ratings"] == [1.0, 4.0]
    assert facts["first_rows"][0] == {"user": 0, "item": 0, "weight": 1.0}
    json.dumps(facts)


def test_a_split_is_described_by_its_parts():
    split = make_split(generate(60, 40, timestamps=True))
    facts = describe_split(split)
    assert facts["train"] + facts["valid"] + facts["test"] + facts["dropped_test"] + facts["dropped_valid"] == len(
        generate(60, 40, timestamps=True)
    )


def test_the_catalogue_says_which_files_are_there_or_damaged(cache):
    cache.mkdir()
    (cache / "food.zip").write_bytes(b"x")
    files = {entry["name"]: entry["local_file"] for entry in dataset_table()}
    assert list(files) == [name for known in NAMED.values() for name in known]
    assert files["synthetic"] == "generated"
    assert files["food"] == "damaged file"
    assert files["gowalla"] is None
