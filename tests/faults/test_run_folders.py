"""A run folder has one owner, one id, and a config that nothing cuts off unnoticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from faults.driver import must
from faults.edits import seal
from faults.layer import Fault
from faults.scenes import config_of, options, small_data
from topshelf import files
from topshelf.data import Dataset
from topshelf.errors import CheckpointError, ConfigError, TopshelfError, TopshelfWarning
from topshelf.recommender import Recommender
from topshelf.training import checkpoint, fit, load, resume, save
from topshelf.training.folder import RunFolder

FILES = (
    "config.toml", "model.safetensors", "checkpoint.safetensors", "metrics.json", "interactions.safetensors",
    "users.parquet", "items.parquet", "run.json", "artifact.safetensors",
)  # fmt: skip

# Two processes meet at the point where the folder of a run is about to be moved into place, or wait for a second.
RIVAL = """
import pathlib, sys, time
from topshelf import files
from faults.scenes import config_of, small_data
from topshelf.errors import ConfigError
from topshelf.training import fit
out, name, point = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def step(what, path):
    if f"{what} {path.name}" == point:
        out.with_name(f"{name}-is-there").touch()
        until = time.monotonic() + 20
        while len(list(out.parent.glob("*-is-there"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)

files.step = step
try:
    fit(config_of(learning_rate=0.1 if name == "one" else 0.05), small_data(), out=out)
    print("done")
except ConfigError as error:
    print(f"refused: {error}")
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two finished runs, and two that were killed before their numbers were written; of other data."""
    place = tmp_path_factory.mktemp("two")
    for name, more in (("one", 0), ("other", 1)):
        fit(config_of(), small_data(3 + more, 40 + more, 24 + more), out=place / name)
        shutil.copytree(place / name, place / f"{name}-begun")
        RunFolder(place / f"{name}-begun").metrics.unlink()
    return place


def copy(source, target):
    shutil.copytree(source, target)
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["move run", *(pytest.param(point, marks=pytest.mark.slow) for point in ("write run", "write log.jsonl"))]
)
def test_two_fits_into_one_folder_leave_the_run_of_one(tmp_path, point):
    """Both were "done", and 3 of 9 folders had the config of one with the model of the other."""
    out, tests = tmp_path / "run", Path(__file__).parents[1]
    script = tmp_path / "rival.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(tests)!r})\n{RIVAL}")
    rivals = [
        subprocess.Popen([sys.executable, script, out, name, point], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("one", "other")
    ]
    said = [rival.communicate(timeout=300) for rival in rivals]
    texts = sorted(output.decode() + errors.decode() for output, errors in said)
    assert texts[0] == "done\n"
    assert texts[1].startswith("refused: ")
    assert str(out) in texts[1]
    rate = load(out).config.train.learning_rate
    fit(config_of(learning_rate=rate), small_data(), out=tmp_path / "alone")
    assert load(out).test.to_json() == load(tmp_path / "alone").test.to_json()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_run_that_is_being_written_cannot_be_resumed(driver, tmp_path, clicks):
    """While one process holds the lock, another one is told so; when it is killed, the lock is free."""
    out = tmp_path / "run"
    ended = driver.topshelf("train", "--data", clicks, *options(model__dim=8), "--out", out, fault=Fault("kill", 50))
    assert ended.was_killed
    with files.owned(out):
        refused = driver.topshelf("train", "--resume", out, "--quiet")
    assert refused.code == 2
    assert "is in use: another process is writing to it" in refused.errors
    must(driver.topshelf("train", "--resume", out, "--quiet"))


def test_a_folder_whose_config_was_deleted_is_not_trained_again(tmp_path, two):
    """Trained again, killed and resumed, it showed the old model as the new one."""
    out = copy(two / "one", tmp_path / "run")
    (out / "config.toml").unlink()
    with pytest.raises(ConfigError, match="already holds a run"):
        fit(config_of(), small_data(), out=out)
    for read in (load, resume):
        with pytest.raises(CheckpointError, match=r"its config\.toml is missing"):
            read(out)
    (out / "run.json").unlink()
    with pytest.raises(ConfigError, match="holds something else"):
        fit(config_of(), small_data(), out=out)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("state", ["", "-begun"], ids=["finished", "unfinished"])
def test_files_of_two_runs_are_never_taken_for_one(tmp_path, two, name, state):
    if not (two / f"one{state}" / name).exists():
        pytest.skip("an unfinished run has no metrics")
    out = copy(two / f"one{state}", tmp_path / "run")
    shutil.copy(two / f"other{state}" / name, out / name)
    reads = [load, resume, Recommender.load]
    if name == "checkpoint.safetensors":  # a finished run does not need it, nor does serving
        reads = [resume] if state else []
    if name == "model.safetensors":
        reads = [load, Recommender.load] if state else [load, resume]  # a resumed run makes its model again
    if name == "artifact.safetensors":
        reads = [] if state else [Recommender.load]
    if name == "interactions.safetensors" and not state:
        reads = [load, resume]  # lists of a finished run are made without the data
    for read in reads:
        with pytest.raises(TopshelfError, match=r"of another run|belongs to run|damaged"):
            read(out)


def test_the_artifact_of_a_copy_that_was_trained_on_is_refused(tmp_path, two):
    """It has the id of the same run, and sound vectors."""
    out = copy(two / "one", tmp_path / "run")
    fitted = load(out)
    fitted.model.load_state_dict({name: values.flip(0) for name, values in fitted.model.state_dict().items()})
    RunFolder(out).save_artifact(fitted.task.answers(fitted.model, fitted.through))
    with pytest.raises(CheckpointError, match=r"metrics\.json is of another artifact than artifact\.safetensors"):
        Recommender.load(out)
    RunFolder(out).artifact.unlink()  # what answers is then made of the model
    assert Recommender.load(out).recommend().equals(Recommender.load(two / "one").recommend())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_vectors_of_any_type_are_kept_as_they_are_multiplied(tmp_path, two, dtype):
    fitted = load(two / "one")
    fitted.model.to(dtype)
    save(fitted, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").load_artifact()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert kept["queries"].dtype == kept["items"].dtype == wide
    assert Recommender.load(tmp_path / "run").recommend().equals(Recommender.of(fitted).recommend())


def as_earlier(out, *, has_identity):
    """A folder as earlier versions wrote it: without artifact and events; before that, without ids and checksums."""
    folder = RunFolder(out)
    folder.artifact.unlink()
    state = checkpoint.load(folder.interactions)
    del state["below"]
    for part in ("train", "valid", "test", "left_out"):
        state[part].pop("events", None)
    checkpoint.save(folder.interactions, state)
    seal(out)
    metrics = {name: value for name, value in files.read_sealed(folder.metrics).items() if name != "artifact_sha256"}
    files.write_sealed(folder.metrics, metrics)
    if has_identity:
        return
    for path, content in ((folder.model, folder.load_model()), (folder.checkpoint, folder.load_checkpoint())):
        if content is not None:
            checkpoint.save(path, content)
    folder.metrics.write_text(json.dumps({name: metrics[name] for name in metrics.keys() - {"run", "model_sha256"}}))
    folder.identity_file.unlink()


@pytest.mark.parametrize("has_identity", [True, False], ids=["with run.json", "without"])
@pytest.mark.parametrize("model", ["mf", "ease"])
def test_a_folder_of_an_earlier_version_gives_the_same_lists(tmp_path, model, has_identity, driver):
    split = small_data().split
    fit(config_of(model), Dataset("small", replace(split, below=split.train.none())), out=tmp_path / "now")
    as_earlier(copy(tmp_path / "now", tmp_path / "earlier"), has_identity=has_identity)
    now, earlier = (Recommender.load(tmp_path / name) for name in ("now", "earlier"))
    assert earlier.fitted.dataset.split.train.events is None
    assert now.fitted.dataset.split.train.events is not None
    user, item = split.users.values[0], split.items.values[0]
    for lists in (
        lambda some: some.recommend(),
        lambda some: some.recommend([user], filter_seen=False),
        lambda some: some.recommend_new({user: [item]}),
        lambda some: some.similar_items([item]),
    ):
        with warnings.catch_warnings(action="ignore", category=TopshelfWarning):
            assert lists(now).equals(lists(earlier))
    assert now.evaluate().to_json() == earlier.evaluate().to_json()
    shown = [must(driver.topshelf("recommend", tmp_path / name, "--user", str(user))) for name in ("now", "earlier")]
    assert shown[0].output == shown[1].output
    assert "note: " not in shown[1].errors
    assert resume(tmp_path / "earlier").test.to_json() == now.fitted.test.to_json()


def test_a_config_cut_off_at_any_byte_is_refused_or_says_the_same(tmp_path, two):
    """It was filled with defaults: `evaluate` gave 0.1186 for 0.1164, and `--resume` of 6 epochs trained 120."""
    out = copy(two / "one", tmp_path / "run")
    config = RunFolder(out).config
    whole, expected = config.read_bytes(), RunFolder(out).load_config()
    n_refused = 0
    for length in range(len(whole)):
        config.write_bytes(whole[:length])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert RunFolder(out).load_config() == expected, length
        except TopshelfError:
            n_refused += 1
    assert n_refused >= len(whole) - 1  # the last line break may be missing
    config.write_bytes(whole[: len(whole) // 2])
    for read in (load, resume):
        with pytest.raises(TopshelfError, match=r"config\.toml"):
            read(out)


def test_an_edited_config_is_said(tmp_path, two, driver):
    out = copy(two / "one-begun", tmp_path / "run")
    config = RunFolder(out).config
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 3"))
    with pytest.warns(TopshelfWarning, match=r"was edited after the run began: train\.epochs is 3, was 2"):
        RunFolder(out).load_config()
    noted = must(driver.topshelf("evaluate", out)).errors
    assert "note: " in noted
    assert "train.epochs is 3, was 2" in noted


@pytest.mark.parametrize("command", ["train", "blend", "diagnose", "tune"])
def test_foreign_files_are_never_overwritten(driver, tmp_path, clicks, runs, command):
    """Train, blend and diagnose wrote into a folder that holds something else."""
    out = tmp_path / "out"
    out.mkdir()
    kept = {"notes.txt": "mine", "model.safetensors": "mine too", "diagnose.json": "{}"}
    for name, text in kept.items():
        (out / name).write_text(text)
    arguments = {
        "train": ["train", "--data", clicks, *options(model__dim=8)],
        "blend": ["blend", runs / "mf", runs / "ease"],
        "diagnose": ["diagnose", runs / "mf", "--epochs", "1", "--users", "5"],
        "tune": ["tune", "--data", clicks, "--trials", "1"],
    }[command]
    ended = driver.topshelf(*arguments, "--out", out)
    assert ended.code == 2, ended
    assert str(out) in ended.errors
    assert "Traceback" not in ended.errors
    assert {path.name: path.read_text() for path in out.iterdir()} == kept


def test_an_unfinished_run_says_so(driver, two):
    for arguments in (["evaluate", two / "one-begun"], ["recommend", two / "one-begun", "--user", "1"]):
        noted = must(driver.topshelf(*arguments)).errors
        assert f"note: {two / 'one-begun'} is not finished" in noted
        assert "topshelf train --resume" in noted
    found = json.loads(must(driver.topshelf("evaluate", two / "one-begun", "--json")).output)
    assert found["finished"] is False
    assert json.loads(must(driver.topshelf("evaluate", two / "one", "--json")).output)["finished"] is True
