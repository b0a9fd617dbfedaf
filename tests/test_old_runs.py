"""Runs that an earlier version wrote still load and list the same; damaged ones are refused, with the file's name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_line import run_topshelf
from old_runs import EXPECTED, NAMES, given, lists_of
from topshelf.errors import TopshelfError
from topshelf.training import load

FOLDERS = sorted((Path(__file__).parent / "fixtures").glob("runs-*"))
OLD = FOLDERS[0]


def near(value):
    """Numbers may differ in the last digits on another machine; everything else must be the same."""
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    if isinstance(value, list):
        return pytest.approx(value, rel=1e-4, abs=1e-6) if value and isinstance(value[0], float) else value
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


def test_there_are_old_runs():
    assert [path.name for path in FOLDERS] == ["runs-0.1.0"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_old_run_loads_and_lists_the_same(folder, name, tmp_path):
    shutil.copytree(folder / name, tmp_path / name)
    expected = json.loads((folder / EXPECTED).read_text())[name]
    assert given(tmp_path / name) == near(expected)


def test_every_command_takes_an_old_run(tmp_path):
    shutil.copytree(OLD / "mf", tmp_path / "mf")
    run = tmp_path / "mf"
    assert "NDCG" in run_topshelf("evaluate", run)[0].upper()
    assert "rows written" in run_topshelf("recommend", run, "--out", tmp_path / "lists.jsonl")[0]
    assert "kept in" in run_topshelf("train", "--resume", run, "--no-report")[0]


def _edit(name, change):
    def damage(run):
        (run / name).write_bytes(change((run / name).read_bytes()))

    return damage


def _flip(raw):
    at = len(raw) // 2
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def _of(other, name):
    return lambda run: shutil.copy(OLD / other / name, run / name)


DAMAGE = {
    "config.toml: missing": lambda run: (run / "config.toml").unlink(),
    "config.toml: cut off": _edit("config.toml", lambda raw: raw[: len(raw) // 2]),
    "config.toml: of another run": _of("ease", "config.toml"),
    "run.json: of a later format": _edit("run.json", lambda raw: raw.replace(b'"format": 1', b'"format": 9')),
    "run.json: empty": _edit("run.json", lambda raw: b""),
    "model.safetensors: a bit flipped": _edit("model.safetensors", _flip),
    "model.safetensors: of another run": _of("ease", "model.safetensors"),
    "artifact.safetensors: cut off": _edit("artifact.safetensors", lambda raw: raw[:-100]),
    "artifact.safetensors: of another run": _of("ease", "artifact.safetensors"),
    "metrics.json: no object": _edit("metrics.json", lambda raw: b"[]"),
    "interactions.safetensors: a bit flipped": _edit("interactions.safetensors", _flip),
    "users.parquet: zeros": _edit("users.parquet", lambda raw: bytes(len(raw))),
    "items.parquet: missing": lambda run: (run / "items.parquet").unlink(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_old_run_is_refused_by_name_or_lists_the_same(what, tmp_path):
    run = tmp_path / "mf"
    shutil.copytree(OLD / "mf", run)
    DAMAGE[what](run)
    refused = []
    for use in (load, lambda folder: lists_of(folder, "interactions")):
        try:
            found = use(run)
        except TopshelfError as error:
            refused.append(str(error))
        else:
            if isinstance(found, dict):
                assert found == near(json.loads((OLD / EXPECTED).read_text())["mf"]["lists"])
    assert refused
    assert what.partition(":")[0].partition(".")[0] in refused[0]
    arguments = ("evaluate", run) if "artifact" not in what else ("recommend", run, "--user", "3")
    shown, errors = run_topshelf(*arguments, code=2)
    assert "error: " in errors
    assert "Traceback" not in shown + errors
