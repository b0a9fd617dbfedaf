"""Folders of arrays that are mapped into memory: what they hold, damage, kills, and training on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import topshelf
from data.strategies import table_of
from data.test_streaming import same_part
from topshelf import files
from topshelf.config import RunConfig
from topshelf.data import Dataset, generate, make_split
from topshelf.data.datasets import load_split, source_rows
from topshelf.data.given import read_given
from topshelf.data.mapped import SEAL, write_mapped
from topshelf.data.prepared import prepare_folder
from topshelf.data.splits import PARTS
from topshelf.errors import CheckpointError, ConfigError, DataError
from topshelf.training import fit, load, resume
from topshelf.training.tasks import InteractionsTask


@pytest.fixture(scope="module")
def clicks(tmp_path_factory) -> Path:
    data = generate(60, 40, interactions_per_user=12, timestamps=True, seed=1)
    path = tmp_path_factory.mktemp("clicks") / "clicks.parquet"
    data.to_frame().sample(fraction=1, shuffle=True, seed=0).write_parquet(path)
    return path


@pytest.fixture
def folder(clicks, tmp_path) -> Path:
    prepare_folder(clicks, tmp_path / "prepared", mapped=True, split="ratio", rows_at_once=100)
    return tmp_path / "prepared"


def test_any_split_can_be_written_and_read(tmp_path):
    split = make_split(generate(30, 20, interactions_per_user=8, timestamps=True))
    write_mapped(split, tmp_path)
    for name in PARTS:
        same_part(getattr(read_given(tmp_path), name), getattr(split, name))


def test_arrays_are_mapped_and_small(folder):
    train = read_given(folder).train
    assert isinstance(train.indices.base, np.memmap)
    assert train.indices.dtype == np.int32
    kept = (folder / "train-indices.npy").read_bytes()
    train.ragged().indices.zero_()  # on a copy of the page: no file is changed
    assert (folder / "train-indices.npy").read_bytes() == kept
    np.testing.assert_array_equal(np.load(folder / "train-indices.npy"), read_given(folder).train.indices)


def test_a_named_dataset_is_written_too(tmp_path):
    summary = prepare_folder("synthetic", tmp_path / "prepared", mapped=True)
    assert len(read_given(tmp_path / "prepared").train) == summary["train"]


def test_without_test_its_arrays_are_not_needed(folder):
    for path in folder.glob("test-*.npy"):
        path.unlink()
    assert not len(load_split(folder, test=False).split.test)
    with pytest.raises(DataError, match=r"test-indptr.npy must have .* bytes, got no such file"):
        load_split(folder)


def test_the_first_rows_are_shown(folder):
    train = read_given(folder).train
    assert source_rows(folder, 5).equals(train.to_frame().head(5))


def test_an_earlier_folder_is_replaced_and_others_are_not(folder, clicks):
    assert prepare_folder(clicks, folder, mapped=True)["split"] == "time"
    assert prepare_folder(clicks, folder)["split"] == "time"  # as tables
    assert not (folder / SEAL).exists()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="was not made by"):
        prepare_folder(clicks, folder, mapped=True)


def test_a_folder_without_a_test_part_is_refused(clicks, tmp_path):
    with pytest.raises(ConfigError, match="--test-fraction must be > 0"):
        prepare_folder(clicks, tmp_path / "prepared", mapped=True, test_fraction=0.0)


DAMAGED = ["train-indices.npy", "train-indptr.npy", "valid-events_timestamp.npy", "users.parquet", SEAL]


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damage_is_refused(folder, name, damage):
    path = folder / name
    raw = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        place = len(raw) * 3 // 4
        raw[place] ^= 1
        path.write_bytes(raw[:-5] if damage == "cut" else raw)
    with pytest.raises(DataError, match="damaged"):
        read_given(folder)


def _sealed_again(folder: Path, **changes: object) -> None:
    content = json.loads((folder / SEAL).read_text())
    del content["checksum"]
    (folder / SEAL).write_text(json.dumps(files.sealed({**content, **changes})))


@pytest.mark.parametrize(
    "changes", [{"format": 2}, {"arrays": {}}, {"arrays": 3}, {"users": 7}, {"sha256": None}, {"format": None}]
)
def test_a_seal_that_does_not_fit_is_refused(folder, changes):
    _sealed_again(folder, **changes)
    with pytest.raises(DataError, match="damaged"):
        read_given(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train-indices", {"dtype": "|O"}),
        ("train-indices", {"length": -1}),
        ("train-indptr", {"dtype": "<i4"}),
        ("train-timestamp", {"length": "many"}),
    ],
)
def test_types_that_are_not_ours_are_refused(folder, name, change):
    arrays = json.loads((folder / SEAL).read_text())["arrays"]
    arrays[name] |= change
    _sealed_again(folder, arrays=arrays)
    with pytest.raises(DataError, match="damaged"):
        read_given(folder)


def test_indices_that_are_not_there_are_refused(tmp_path):
    split = make_split(generate(30, 20, interactions_per_user=8))
    split.train.indices[3] = 20
    write_mapped(split, tmp_path)
    with pytest.raises(DataError, match="names item 20"):
        read_given(tmp_path)


def test_an_interruption_leaves_nothing_and_keeps_what_was_there(folder, clicks, monkeypatch):
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    points, full = list[str](), {0}

    def stop(what: str, path: Path) -> None:
        points.append(what)
        if len(points) in full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "step", stop)
    prepare_folder(clicks, folder.parent / "other", mapped=True, split="ratio", rows_at_once=100)
    total = len(points)
    for place in range(1, total, 7):
        points.clear()
        full = {place}
        with pytest.raises(CheckpointError, match="No space left"):
            prepare_folder(clicks, folder, mapped=True, split="ratio", rows_at_once=100)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
        assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


KILLED = """
import os, sys
from topshelf import files
from topshelf.data.prepared import prepare_folder
count = 0
def step(what, path):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
files.step = step
prepare_folder(sys.argv[1], sys.argv[2], mapped=True, split="ratio", rows_at_once=100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hit", [3, 20, 60])
def test_a_killed_process_leaves_no_folder_and_the_next_one_cleans_up(clicks, tmp_path, hit):
    out = tmp_path / "prepared"
    source = str(Path(topshelf.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, clicks, out, str(hit)], env={**os.environ, "PYTHONPATH": source}, check=False
    )
    assert ended.returncode == -9
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1  # what it was writing
    prepare_folder(clicks, out, mapped=True, split="ratio", rows_at_once=100)
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("mf", "slatk"),
        ("mf", "bpr"),
        ("lightgcn", "softmax"),
        ("history", "slatk"),
        ("ease", "slatk"),
        ("ials", "slatk"),
    ],
)
def test_training_on_arrays_is_training_on_tables(clicks, tmp_path, model, loss):
    for name, mapped in (("tables", False), ("arrays", True)):
        prepare_folder(clicks, tmp_path / name, mapped=mapped, split="ratio")
    values = {"model": {"name": model}, "loss": {"name": loss}, "train": {"epochs": 2, "batch_size": 16}, "k": 5}
    runs = [
        fit(
            RunConfig.model_validate({**values, "data": {"source": str(tmp_path / name)}}), out=tmp_path / f"{name}-run"
        )
        for name in ("tables", "arrays")
    ]
    one, other = (run.model.state_dict() for run in runs)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)
    assert runs[0].test.mean() == runs[1].test.mean()
    topshelf.evaluation.compare(runs[0].test, runs[1].test, "ndcg@5")  # of one split
    again = load(tmp_path / "arrays-run")
    for name in PARTS:
        same_part_of_run(getattr(again.dataset.split, name), getattr(runs[1].dataset.split, name))
    lists = [topshelf.Recommender.load(tmp_path / f"{name}-run").recommend(k=3) for name in ("tables", "arrays")]
    assert lists[0].equals(lists[1])


def same_part_of_run(one, other) -> None:
    np.testing.assert_array_equal(one.indptr, other.indptr)
    np.testing.assert_array_equal(one.indices, other.indices)


def test_some_users_are_measured(clicks, tmp_path):
    values = {"train": {"epochs": 1}, "k": 5, "data": {"source": str(clicks), "split": "ratio", "measured_users": 10}}
    fitted = fit(RunConfig.model_validate(values), out=tmp_path / "run")
    whole = fit(RunConfig.model_validate({**values, "data": {**values["data"], "measured_users": None}}))
    measured = fitted.dataset.split.measured
    assert fitted.test.users.tolist() == measured.tolist()
    assert len(measured) == 10
    place = {user: at for at, user in enumerate(whole.test.users.tolist())}
    same = whole.test.per_user["ndcg@5"][[place[user] for user in measured.tolist()]]
    torch.testing.assert_close(fitted.test.per_user["ndcg@5"], same, rtol=0, atol=0)
    assert fitted.evaluate("paper").per_user["ndcg@5"].numel() == 10  # users who are not measured are not 0 either
    assert resume(tmp_path / "run").dataset.split.measured.tolist() == measured.tolist()


def test_wrong_measured_users_of_a_run_are_refused():
    split = make_split(generate(30, 20, interactions_per_user=8))
    for wrong in ([3, 2], [1, 1], [-1], [30], [0.5]):
        with pytest.raises(DataError, match="measured must be indices of the 30 users"):
            topshelf.data.Split(split.train, split.valid, split.test, "given", measured=np.array(wrong)).check()


def test_epochs_of_some_steps(clicks):
    settings = {"epochs": 2, "batch_size": 7, "epoch_steps": 3}
    values = {"data": {"source": str(clicks)}, "k": 5, "model": {"name": "mf"}}
    steps: list[int] = []

    class Counted:
        def on_epoch_end(self, record: dict[str, float]) -> None:
            steps.append(int(record["epoch"]))

    short = fit(RunConfig.model_validate({**values, "train": settings}), callbacks=[Counted()])
    assert steps == [1, 2]
    long = fit(RunConfig.model_validate({**values, "train": {**settings, "epoch_steps": 1000}}))
    whole = fit(RunConfig.model_validate({**values, "train": {**settings, "epoch_steps": None}}))
    torch.testing.assert_close(long.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert not torch.equal(*(next(iter(some.model.state_dict().values())) for some in (short, whole)))


def test_small_tables_are_refused_only_where_they_do_not_fit(tmp_path, monkeypatch):
    table_of([(1, 2, 3, 4.0)] * 3).write_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr("topshelf.data.memory.available", lambda: 200)
    with pytest.raises(DataError, match=r"or prepare it first: topshelf data prepare .* --mapped"):
        load_split(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="leaves no test"):  # it is read
        prepare_folder(tmp_path / "rows.parquet", tmp_path / "out", mapped=True)


def test_polars_reads_what_expand_and_spark_write(tmp_path):
    (tmp_path / "out").mkdir()
    pl.DataFrame({"user": [1, 2], "item": [3, 4]}).write_parquet(tmp_path / "out" / "part-00000-a.snappy.parquet")
    (tmp_path / "out" / "_SUCCESS").touch()
    assert source_rows(tmp_path / "out", 5).rows() == [(1, 3), (2, 4)]


def test_a_study_measures_the_same_users(tmp_path):
    split = make_split(generate(30, 20, interactions_per_user=8)).measure_some(5)
    data = InteractionsTask.for_tuning(Dataset("some", split))
    InteractionsTask.save_parts(tmp_path / "parts", data)
    again = InteractionsTask.load_parts(tmp_path / "parts", RunConfig())
    np.testing.assert_array_equal(again.split.measured, split.measured)
    whole = Dataset("some", replace(data.split, measured=None))
    prints = [InteractionsTask.fingerprint(one) for one in (data, again, whole)]
    assert prints[0] == prints[1] != prints[2]
