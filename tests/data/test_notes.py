"""What reading leaves out is counted and said, and a time column decides the split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from command_line import run_topshelf
from topshelf.data import Interactions, load_split, read_interactions
from topshelf.data.movielens import read_ratings
from topshelf.data.notes import Notes
from topshelf.errors import TopshelfWarning
from topshelf.recommender import Recommender

START = 1_600_000_000


def drifting(n_users: int = 40, n_items: int = 60) -> pl.DataFrame:
    """Taste moves along the items as time goes on."""
    generator = np.random.default_rng(0)
    moment = np.sort(generator.integers(0, 10_000, size=n_users * 12))
    item = (moment * n_items // 12_000 + generator.integers(0, 10, size=len(moment))) % n_items
    user = generator.integers(0, n_users, size=len(moment))
    frame = pl.DataFrame({"customer": user, "sku": item, "moment": START + moment})
    return frame.unique(["customer", "sku"], keep="first", maintain_order=True)


@pytest.fixture
def shop(tmp_path):
    def write(name: str):
        path = tmp_path / f"{name}.csv"
        drifting().rename({"moment": name}).write_csv(path)
        return path

    return write


@pytest.mark.parametrize("name", ["purchased_at", "order_date", "bought_time", "date_added", "orderedAt"])
def test_a_time_column_of_any_common_name_gives_the_time_split(name, shop):
    dataset = load_split(shop(name))
    assert dataset.split.kind == "time"
    assert dataset.split.train.timestamp.max() < dataset.split.test.timestamp.min()
    assert dataset.notes == ()


def test_movielens_with_purchased_at_is_split_by_time(wheel, tmp_path):
    frame = read_ratings(wheel)
    frame.rename({"timestamp": "purchased_at"}).write_csv(tmp_path / "shop.csv")
    frame.write_csv(tmp_path / "known.csv")
    shop, known = (load_split(tmp_path / name).split for name in ("shop.csv", "known.csv"))
    assert shop.kind == "time"
    assert shop.test.to_frame().equals(known.test.to_frame())


def test_an_unused_column_that_looks_like_a_time_is_named_with_the_remedy(shop, tmp_path):
    path = shop("colour")
    dataset = load_split(path)
    assert dataset.split.kind == "ratio"
    assert dataset.notes == (
        "column 'colour' looks like a time and is not used; the split is random. Use it: --time-column colour "
        "(in Python timestamp='colour')",
    )
    assert load_split(path, timestamp="colour").notes == ()
    assert load_split(path, timestamp="none").notes == ()  # left out on purpose
    assert "split is random" not in load_split(path, split="ratio", timestamp="colour").notes


def test_a_guess_names_the_other_columns_that_look_like_times():
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "order_date": ["2020-01-01", "2020-01-02"]})
    frame = frame.with_columns(shipped=pl.lit("2020-01-03"), shipped_at=pl.lit(1_600_000_000))
    lines = Interactions.from_frame(frame).notes.lines("time")
    assert len(lines) == 1
    assert "times are taken from column 'order_date'; columns 'shipped' and 'shipped_at' look like a time" in lines[0]


@pytest.mark.parametrize("values", [pl.lit("Shop A"), pl.lit("gestern"), pl.lit(None), pl.lit(True)])
def test_a_column_with_the_name_of_a_time_is_named_whatever_it_holds(values, tmp_path):
    path = tmp_path / "shop.csv"
    drifting().drop("moment").with_columns(values.alias("purchased_at")).write_csv(path)
    dataset = load_split(path)
    assert dataset.split.kind == "ratio"
    assert dataset.notes == (
        "column 'purchased_at' has the name of a time but no values that can be read as times, and is not used; the "
        "split is random. Write the times as 2020-12-31 or as numbers to use them",
    )
    assert load_split(path, timestamp="none").notes == ()


def test_names_of_times_are_added_up():
    both = Notes(unread_times=("a_at", "b_at")) + Notes(unread_times=("b_at",), time="date")
    assert both.lines("ratio")[0].startswith("columns 'a_at' and 'b_at' have the name of a time but no values")
    assert "random" not in both.lines("ratio")[0]


def test_the_advice_can_be_pasted_into_a_shell():
    assert "Use it: --time-column 'order date' (in Python" in Notes(unused_times=("order date",)).lines()[0]
    assert "To change it: --time-column '$(x)' (in" in Notes(unused_times=("$(x)",), time="date").lines()[0]
    assert "Use 'colour': --time-column colour (in" in Notes(unused_times=("colour", "size")).lines()[0]


@pytest.mark.parametrize("library", [pl.DataFrame, pd.DataFrame])
def test_repeated_rows_are_counted(library):
    frame = library({"user": [1, 1, 2], "item": [3, 3, 3]})
    assert Interactions.from_frame(frame).notes == Notes(
        repeats=1, rows=3, guessed=(("user", "user"), ("item", "item"))
    )


def test_repeated_rows_of_a_file_are_counted_and_said(tmp_path):
    path = tmp_path / "twice.csv"
    frame = drifting().rename({"moment": "time"})
    pl.concat([frame, frame.head(7)]).write_csv(path)
    assert f"7 of {len(frame) + 7} rows repeat a user and an item" in load_split(path).notes[0]
    assert read_interactions(path).notes.repeats == 7
    assert len(Interactions.from_frame(pl.concat([frame, frame.head(7)]))) == len(frame)


def test_the_recommender_keeps_the_notes(shop):
    frame = pl.read_csv(shop("colour"))
    data = {"core": 2}
    with pytest.warns(TopshelfWarning) as said:
        fitted = Recommender(k=5, model="popularity", data=data).fit(pl.concat([frame, frame.head(3)])).fitted
    assert [line.split()[0] for line in fitted.dataset.notes] == ["column", "3"]
    assert [str(warning.message) for warning in said] == list(fitted.dataset.notes)


def test_a_table_with_527_known_cells_teaches_527():
    generator = np.random.default_rng(0)
    matrix = np.full((60, 30), np.nan)
    known = generator.permutation(1_800)[:527]
    matrix.ravel()[known] = generator.integers(1, 6, size=527)
    with pytest.warns(TopshelfWarning, match="1,273 cells of the matrix are NaN"):
        fitted = Recommender(k=5, model="popularity", data={"split": "ratio"}).fit(matrix).fitted
    split = fitted.dataset.split
    assert len(split.train) + len(split.valid) + len(split.test) + split.notes["dropped_test"] == 527
    assert "1,273 cells of the matrix are NaN" in fitted.dataset.notes[0]


def test_the_command_line_says_it_before_training(shop, tmp_path):
    path = shop("colour")
    train = ("train", "--data", path, "--model", "popularity", "--k", 5, "--out", tmp_path / "run")
    for command in (train, ("data", "prepare", path, "--out", tmp_path / "prepared")):
        _, said = run_topshelf(*command)
        assert "note: column 'colour' looks like a time and is not used; the split is random. Use it: --time" in said
    _, said = run_topshelf("data", "show", path)
    assert "note: column 'colour' looks like a time and is not used. Use it: --time" in said


def test_dates_can_be_told_on_the_command_line(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text("user,item,date\n1,1,12/01/2020\n2,2,11/02/2020\n")
    assert "2020-01-12" in run_topshelf("data", "show", path, "--dates", "day-first")[0]
    assert "2020-11-02" in run_topshelf("data", "show", path, "--dates", "month-first")[0]


def test_training_takes_the_order_of_dates_too(tmp_path):
    path = tmp_path / "dates.csv"
    rows = (f"{day % 6},{day % 11},{1 + day % 12:02}/{1 + day % 11:02}/2020\n" for day in range(60))
    path.write_text("user,item,date\n" + "".join(rows))
    train = ("train", "--data", path, "--model", "popularity", "--k", 3, "--out", tmp_path / "run")
    assert "--dates day-first" in run_topshelf(*train, code=2)[1]
    assert "split time" in run_topshelf(*train, "--dates", "day-first")[0]
