"""Files of lists: every format holds the same rows, in any number of blocks, and a failure keeps the old file."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from command_line import run_topshelf
from topshelf import Recommender
from topshelf import recommender as recommender_module
from topshelf.errors import ConfigError
from topshelf.list_files import by_owner, write_lists


@pytest.fixture(scope="module")
def recommender():
    return Recommender(k=4, model="ease").fit("synthetic")


@pytest.fixture(scope="module")
def folder(recommender, tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "run"
    recommender.save(path)
    return path


def from_lines(path):
    rows = []
    for line in path.read_text().splitlines():
        one = json.loads(line)
        rows += [{"user": one["user"], **place} for place in one["items"]]
    return pl.DataFrame(rows)


def test_blocks_are_the_whole_table_in_order(recommender, monkeypatch):
    whole = recommender.recommend()
    monkeypatch.setattr(recommender_module, "_BLOCK_ROWS", 4 * 7)
    blocks = list(recommender.recommend_blocks())
    assert len(blocks) > 3
    assert max(block["user"].n_unique() for block in blocks) == 7
    assert_frame_equal(pl.concat(blocks), whole)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_every_format_holds_every_row(recommender, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(recommender_module, "_BLOCK_ROWS", 50)
    path, whole = tmp_path / f"lists{ending}", recommender.recommend()
    assert write_lists(path, recommender.recommend_blocks()) == whole.height
    read = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": from_lines}[ending](path)
    assert read.columns == whole.columns
    np.testing.assert_allclose(read["score"], whole["score"], rtol=1e-6)
    assert_frame_equal(read.drop("score"), whole.drop("score"), check_dtypes=False)


def test_reasons_are_written_in_every_format(recommender, tmp_path):
    table = recommender.recommend([1, 2], k=2, why=2)
    for ending in (".parquet", ".csv", ".jsonl"):
        assert write_lists(tmp_path / f"why{ending}", recommender.recommend_blocks([1, 2], 2, why=2)) == 4
    assert pl.read_parquet(tmp_path / "why.parquet")["because"].to_list() == table["because"].to_list()
    assert from_lines(tmp_path / "why.jsonl")["because"].to_list() == table["because"].to_list()
    texts = ["; ".join(map(str, own)) for own in table["because"]]
    assert pl.read_csv(tmp_path / "why.csv", schema_overrides={"because": pl.String})["because"].to_list() == texts


def test_no_lists_are_an_empty_file(tmp_path):
    for ending in (".parquet", ".csv", ".jsonl"):
        assert write_lists(tmp_path / f"none{ending}", []) == 0
        assert (tmp_path / f"none{ending}").exists()


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_a_failure_in_the_middle_keeps_the_old_file(recommender, tmp_path, ending):
    path = tmp_path / f"lists{ending}"
    path.write_text("old")

    def broken():
        yield recommender.recommend([0, 1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lists(path, broken())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.parquet, \.csv or \.jsonl, got"):
        write_lists(tmp_path / "lists.xlsx", [])


def test_lists_by_owner_are_named_for_what_they_hold(recommender):
    lists = list(by_owner(recommender.recommend([0, 1], k=2)))
    assert [one["user"] for one in lists] == [0, 1]
    assert [place["rank"] for place in lists[0]["items"]] == [1, 2]
    assert [*next(by_owner(recommender.similar_items([3], k=2)))] == ["item", "similar"]


def test_the_command_line_gives_json_reasons_titles_and_files(folder, tmp_path):
    (tmp_path / "titles.csv").write_text("item,title\n" + "".join(f"{item},Film {item}\n" for item in range(2000)))
    more = ["--titles", str(tmp_path / "titles.csv")]
    found = json.loads(run_topshelf("recommend", folder, "--user", "1", "--k", "2", "--why", "--json", *more)[0])
    assert [place["title"] for place in found[0]["items"]] == [f"Film {place['item']}" for place in found[0]["items"]]
    assert all(place["because"] for place in found[0]["items"])
    shown = run_topshelf("recommend", folder, "--user", "1", "--k", "2", "--why", *more)[0]
    assert "because you have" in shown
    assert "Film" in shown
    out = tmp_path / "all.csv"
    assert "rows written to" in run_topshelf("recommend", folder, "--why", "--out", out)[0]
    assert ";" in pl.read_csv(out)["because"][0]
    similar = json.loads(run_topshelf("similar", folder, "--item", "3", "--k", "2", "--json")[0])
    assert len(similar[0]["similar"]) == 2
    refused = run_topshelf("recommend", folder, "--user", "1", "--json", "--out", out, code=2)
    assert "give --json or --out FILE, not both" in refused[1]
