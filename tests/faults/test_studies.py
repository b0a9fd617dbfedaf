"""Studies killed at every point between two changes on disk, and study folders that were damaged or crafted.

A killed study has its whole budget: no trial is lost, none counts twice, and the best is the same. A damaged or crafted
folder, valid checksums included, is refused or gives the same result.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from faults import studies
from faults.studies import TRIALS, Server, cases, looked_at, rewrite
from topshelf import files
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.tuning import resume
from topshelf.tuning.folder import StudyFolder


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)


@pytest.fixture(scope="module")
def server():
    with closing(Server()) as started:
        yield started


@pytest.fixture(scope="module")
def pristine(server, tmp_path_factory):
    """A study killed in its last trial, and what it comes to."""
    place = tmp_path_factory.mktemp("pristine")
    assert server("begin", place / "study", "trials", TRIALS - 1) is None
    shutil.copytree(place / "study", place / "ended")
    found = server("begin_or_resume", place / "ended")
    return place / "study", {name: found[name] for name in ("best", "done", "budget")}


def killed(server, place, whole, kind, at, again="begin_or_resume"):
    """Kill a study at a point, continue it, and hold it to one that nobody killed."""
    out = place / f"{kind}-{at}" / "study"
    assert server("begin", out, kind, at) is None
    continued(server, out, whole, at, again)


def continued(server, out, whole, at, again):
    found = server(again, out)
    what = whole["points"][at], at, found
    assert found["budget"] == TRIALS, what
    assert sorted(map(str, found["done"])) == sorted(map(str, whole["done"])), what
    assert found["best"] == whole["best"], what
    left = [path.name for path in out.parent.rglob(".*")]
    assert not left, (what, left)
    shutil.rmtree(out.parent)


def whole_study(server, place, kind):
    found = server("begin", place / "whole" / "study", kind, -1)
    assert found["budget"] == len(found["done"]) == TRIALS
    return found


@pytest.mark.slow
def test_a_study_killed_at_every_write_has_its_whole_budget(server, tmp_path):
    """Issue 13: killed 0.1 s after its folder appeared, `--trials 2` was forgotten and 30 ran.

    Until the folder is there, the next process begins again, and sweeps what the one before left.
    """
    whole = whole_study(server, tmp_path, "files")
    assert {"move study", "move study.json", "move best.toml", "move trials.json", "done report.html"} <= {
        *whole["points"]
    }
    appeared = whole["points"].index("done study")
    for at in range(appeared):
        assert server("begin", tmp_path / "again" / "study", "files", at) is None
        assert not (tmp_path / "again" / "study").exists()
        assert len(list((tmp_path / "again").iterdir())) <= 1, whole["points"][at]
    continued(server, tmp_path / "again" / "study", whole, appeared - 1, "begin")
    for at in range(appeared, len(whole["points"])):
        killed(server, tmp_path, whole, "files", at, ("begin_or_resume", "begin")[at % 2])


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 151])
def test_a_study_killed_at_its_transactions_has_its_whole_budget(server, tmp_path, share):
    """Every one in the slow form; else one of 151."""
    whole = whole_study(server, tmp_path, "commits")
    assert len(whole["points"]) > 100
    for at in range(share // 2, len(whole["points"]), share):
        killed(server, tmp_path, whole, "commits", at)


def test_a_trial_that_was_given_up_and_not_queued_again_is_not_lost(pristine, tmp_path, monkeypatch):
    """A process that releases the trial of a dead one may be killed in the middle of that."""
    out = copy_of(pristine, tmp_path)
    monkeypatch.setattr("topshelf.tuning.queue.requeue", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resume(out)
    monkeypatch.undo()
    assert studies.result_of(resume(out)) == pristine[1]


def copy_of(pristine, place, name="study"):
    return Path(shutil.copytree(pristine[0], place / name))


COUNTS: Counter[str] = Counter()


def judged(pristine, place, name, case):
    """How a case ends; a traceback and another result are failures."""
    folder = copy_of(pristine, place)
    case(folder)
    before = {path.name for path in place.iterdir()}
    outcome, found = looked_at(folder)
    assert {path.name for path in place.iterdir()} == before, f"{name}: something was made beside the folder"
    shutil.rmtree(folder)
    if outcome == "done":
        outcome = "same" if json.loads(json.dumps(found)) == pristine[1] else "silently different"
    return outcome, found


def check_cases(pristine, place, chosen):
    found = {name: judged(pristine, place, name, case) for name, case in chosen.items()}
    COUNTS.update(outcome for outcome, _ in found.values())
    bad = {name: what for name, what in found.items() if what[0] in ("traceback", "silently different")}
    assert not bad, f"{len(bad)} of {len(found)}:\n" + "\n\n".join(
        f"{name}: {outcome}\n{str(text)[-1500:]}" for name, (outcome, text) in bad.items()
    )
    return found


@pytest.mark.slow
def test_a_damaged_or_crafted_study_is_refused_or_the_same(pristine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = cases()
    found = check_cases(pristine, tmp_path, chosen)
    assert len(chosen) >= 80
    same = {name for name, (outcome, _) in found.items() if outcome == "same"}
    assert {"study.toml: a comment", "trials.json: garbage", "study.json: trials = 1, checksum valid"} <= same
    assert [name for name, (outcome, _) in found.items() if outcome == "noted"] == ["study.toml: the data moved"]
    assert COUNTS["refused"] > 0.9 * len(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_more_damage_is_refused_or_the_same(pristine, tmp_path, seed):
    flips = {name: case for name, case in cases(seed, 60).items() if "flipped" in name}
    check_cases(pristine, tmp_path, flips)


@pytest.mark.slow
def test_more_values_in_the_database_are_refused_or_the_same(pristine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_cases(pristine, tmp_path, cases(is_thorough=True))


@pytest.mark.parametrize("what", ["empty", "missing", "another's", "of the same command"])
def test_a_lost_database_is_said_with_the_remedy(pristine, tmp_path, server, what):
    """Issue 13: an empty or deleted study.db restarted the study without notice."""
    out = copy_of(pristine, tmp_path)
    database = StudyFolder(out).database
    for path in out.glob("study.db*"):
        path.unlink()
    if what == "empty":
        database.touch()
    elif what != "missing":
        server("begin", tmp_path / "other")
        shutil.copy(tmp_path / "other" / "study.db", database)
    if what == "another's":
        studies.sql("UPDATE studies SET study_name = 'another'", out)
    with pytest.raises(CheckpointError, match=r"Restore it from a copy.*another --out"):
        resume(out)
    assert database.exists() == (what != "missing")


def test_a_storage_in_a_file_makes_and_opens_no_database(pristine, tmp_path):
    """Issue 13: a `storage` in study.json made a database at any path."""
    out, made = copy_of(pristine, tmp_path), tmp_path / "made.db"
    rewrite(out, storage=f"sqlite:///{made}")
    with pytest.raises(ConfigError, match=r"is kept in sqlite:///.*made\.db; give it again"):
        resume(out)
    assert not made.exists()
    with pytest.raises(CheckpointError, match=r"made\.db is missing: its trials cannot be read"):
        resume(out, storage=f"sqlite:///{made}")
    assert not made.exists()


@pytest.mark.parametrize("name", ["notes.txt", "best.toml", "parts.safetensors"])
def test_somebody_elses_files_are_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="--out must be a new or empty folder, or hold this study"):
        studies.begin(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_an_edited_place_of_the_data_is_said(pristine, tmp_path):
    out = copy_of(pristine, tmp_path)
    path = StudyFolder(out).config
    path.write_text(path.read_text().replace("shop/clicks.csv", "moved/clicks.csv"))
    with pytest.warns(TopshelfWarning, match=r"was edited after the study began: data\.source is 'moved/clicks\.csv'"):
        assert studies.result_of(resume(out)) == pristine[1]


def test_a_study_of_the_first_format_is_continued(pristine, tmp_path):
    """Without checksums, id and budget, as the version before wrote it."""
    out = copy_of(pristine, tmp_path)
    content = files.read_json(out / "study.json")
    for name in ("checksum", "study", "trials", "config", "parts_sha256"):
        del content[name]
    (out / "study.json").write_text(json.dumps({**content, "format": 1}))
    with closing(sqlite3.connect(out / "study.db")) as database:
        database.execute("DELETE FROM study_user_attributes WHERE key NOT IN ('data', 'trials')")
        database.execute(f"UPDATE study_user_attributes SET value_json = '{TRIALS}' WHERE key = 'trials'")
        database.execute("DELETE FROM trial_user_attributes WHERE key = 'checksum'")
        for trial, text in database.execute(
            "SELECT trial_id, value_json FROM trial_user_attributes WHERE key = 'result'"
        ).fetchall():
            old = {k: v for k, v in json.loads(text).items() if k not in ("ticket", "attempt", "settings", "checksum")}
            database.execute(
                "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'result' AND trial_id = ?",
                (json.dumps(old), trial),
            )
        database.commit()
    assert studies.result_of(resume(out)) == pristine[1]


@pytest.mark.parametrize(
    "name", [name for name in cases() if name.startswith(("parts: train: item", "parts: valid: item"))]
)
def test_an_item_that_is_not_there_is_refused_where_it_enters(pristine, tmp_path, name):
    out = copy_of(pristine, tmp_path)
    cases()[name](out)
    with pytest.raises(CheckpointError, match=r"parts\.safetensors is damaged: (train|valid) names item"):
        resume(out)


def test_leftovers_of_killed_processes_are_swept(pristine, tmp_path):
    out = copy_of(pristine, tmp_path)
    machine, _, _ = files.this_process()
    for name in ("best.toml", "trials.json", "report.html"):
        (out / f".{name}.{machine}-{2**22 + 1}-7-0.tmp").touch()
    (tmp_path / f".study.{machine}-{2**22 + 1}-7-0.tmp").mkdir()
    resume(out)
    assert not list(tmp_path.rglob(".*"))
