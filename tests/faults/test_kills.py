"""Commands killed at every point between two changes on disk: what was there, or the new thing, is whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from faults.driver import must
from faults.layer import Fault, leftovers, tree
from faults.scenes import options, write_clicks
from runs import assert_same, state_of
from topshelf.training.folder import RunFolder

N_KILLS = 414  # points of all commands below, slow tests too; each is hit. docs/reliability.md says so.
N_BY_DEFAULT = 64  # without the slow tests
COUNTS: list[int] = []
CUTS = ("kill", "cut")  # before, and in the middle of the content


@dataclass(frozen=True)
class Hit:
    """A command that was killed at a point, in a folder of its own."""

    point: str
    place: Path


def killed_everywhere(driver, tmp_path, run, before=lambda place: None, kinds=("kill",)):
    """Kill ``run(place, fault)`` at each of its points, each time in a new folder made by ``before``.

    A state that an earlier kill at the same kind of point left is not given again. Where nothing has changed, the next
    kill goes to the same folder, and there are leftovers of one process at most.
    """
    whole, start = tmp_path / "whole", tmp_path / "start"
    for place in (whole, start):
        place.mkdir()
        before(place)
    points = must(run(whole, None)).points
    COUNTS.append(len(points) * len(kinds))
    place, looked = tmp_path / "place", set()
    for at, point in enumerate(points):
        for kind in kinds:
            if not place.exists():
                place.mkdir()
                before(place)
            ended = run(place, Fault(kind, at))
            assert ended.was_killed, (point, ended)
            files = tree(place)
            state = (kind, point.split()[0], hash(tuple(files.items())))
            if state not in looked:
                looked.add(state)
                yield Hit(point, place)
                shutil.rmtree(place)
            elif files != tree(start):
                shutil.rmtree(place)
            else:
                assert len({name.split("-")[1] for name in leftovers(place)}) <= 1, leftovers(place)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        pytest.param("mf", {"model__dim": 8, "train__refit": '"all"'}, marks=pytest.mark.slow, id="trained"),
        pytest.param("ease", {"train__refit": "true"}, id="closed form"),
    ],
)
def test_training_killed_anywhere_ends_as_the_uninterrupted_run(driver, tmp_path, clicks, model, settings):
    arguments = ["train", "--data", clicks, "--model", model, *options(**settings)]

    def train(place, fault):
        return driver.topshelf(*arguments, "--out", place / "run", fault=fault)

    for hit in killed_everywhere(driver, tmp_path, train):
        out = hit.place / "run"
        if RunFolder(out).config.exists():  # the folder came whole: it can be resumed
            must(driver.topshelf("train", "--resume", out, "--quiet"))
        else:
            assert not out.exists(), hit.point
            must(train(hit.place, None))
        assert_same(state_of(tmp_path / "whole" / "run"), state_of(out))
        assert leftovers(hit.place) == [], hit.point


@pytest.mark.slow
def test_a_resumed_run_killed_anywhere_ends_as_the_uninterrupted_one(driver, tmp_path, clicks):
    arguments = ["train", "--data", clicks, *options(model__dim=8, train__refit="true")]
    points = must(driver.topshelf(*arguments, "--out", tmp_path / "uninterrupted")).points
    assert {f"{step} artifact.safetensors" for step in ("write", "move", "done")} <= {*points}
    middle = points.index("done log.jsonl", points.index("done run.json") + 8)  # within the first phase
    assert driver.topshelf(*arguments, "--out", tmp_path / "begun", fault=Fault("kill", middle)).was_killed

    def resume(place, fault):
        return driver.topshelf("train", "--resume", place / "run", "--quiet", fault=fault)

    def begun(place):
        shutil.copytree(tmp_path / "begun", place / "run")

    for hit in killed_everywhere(driver, tmp_path, resume, begun):
        must(resume(hit.place, None))
        assert_same(state_of(tmp_path / "uninterrupted"), state_of(hit.place / "run"))
        assert leftovers(hit.place) == [], hit.point


@pytest.mark.slow
def test_a_blend_killed_anywhere_is_no_dead_end(driver, tmp_path, runs):
    """Blend said "resume it", and resume said "blend it"."""

    def blend(place, fault):
        return driver.topshelf("blend", runs / "mf", runs / "ease", "--out", place / "both", fault=fault)

    for hit in killed_everywhere(driver, tmp_path, blend):
        out = hit.place / "both"
        if not out.exists():
            must(blend(hit.place, None))
        else:  # it came whole
            must(driver.topshelf("evaluate", out))
        assert_same(state_of(tmp_path / "whole" / "both"), state_of(out))
        assert leftovers(hit.place) == [] or "done" in hit.point


@pytest.mark.slow
def test_a_saved_recommender_is_there_whole_or_not_at_all(driver, tmp_path, runs):
    def save(place, fault):
        return driver.call("faults.scenes:save", str(runs / "mf"), str(place / "saved"), fault=fault)

    for hit in killed_everywhere(driver, tmp_path, save):
        out = hit.place / "saved"
        if not out.exists():
            must(save(hit.place, None))
        assert_same(state_of(tmp_path / "whole" / "saved"), state_of(out))
        assert leftovers(hit.place) == [], hit.point


@pytest.mark.slow
@pytest.mark.parametrize("has_earlier", [False, True], ids=["new", "over an earlier one"])
def test_prepared_data_killed_anywhere_can_be_read(driver, tmp_path, clicks, has_earlier):
    other = write_clicks(tmp_path / "other.csv", seed=1)

    def before(place):
        if has_earlier:
            shutil.copytree(tmp_path / "earlier", place / "data")

    def prepare(place, fault, source=clicks):
        return driver.topshelf("data", "prepare", source, "--out", place / "data", fault=fault)

    (tmp_path / "old").mkdir()
    must(prepare(tmp_path / "old", None, other))
    (tmp_path / "old" / "data").rename(tmp_path / "earlier")
    for hit in killed_everywhere(driver, tmp_path, prepare, before):
        out = hit.place / "data"
        shown = driver.topshelf("data", "show", out)  # a reader too finds what was moved away last
        assert shown.code == (0 if has_earlier or out.exists() else 2), shown.errors
        if out.exists():
            assert tree(out) in (tree(tmp_path / "earlier"), tree(tmp_path / "whole" / "data")), hit.point
        must(prepare(hit.place, None))
        assert tree(out) == tree(tmp_path / "whole" / "data")
        assert leftovers(hit.place) == [], hit.point


@pytest.mark.parametrize("name", ["lists.csv", "lists.parquet"])
def test_lists_killed_anywhere_are_the_old_or_the_new_ones(driver, tmp_path, runs, name):
    """A kill turned 91,740,156 bytes into 0."""
    old = b"the lists of last week\n" * 4000

    def recommend(place, fault):
        return driver.topshelf("recommend", runs / "all", "--out", place / name, fault=fault)

    for hit in killed_everywhere(driver, tmp_path, recommend, lambda place: (place / name).write_bytes(old), CUTS):
        new = (tmp_path / "whole" / name).read_bytes()
        assert (hit.place / name).read_bytes() == (new if hit.point.startswith("done") else old)
        must(recommend(hit.place, None))
        assert (hit.place / name).read_bytes() == new
        assert leftovers(hit.place) == []


@pytest.mark.slow
def test_a_diagnosis_killed_anywhere_is_the_old_or_the_new_one(driver, tmp_path, diagnosis):
    for hit in killed_everywhere(driver, tmp_path, diagnosis.make, diagnosis.before):
        out = hit.place / "found"
        if out.exists():
            assert {"diagnose.json", "diagnose.html"} == set(tree(out))
            json.loads((out / "diagnose.json").read_text())
        must(diagnosis.make(hit.place))
        assert {"diagnose.json", "diagnose.html"} == set(tree(out))
        assert leftovers(hit.place) == [], hit.point


def test_a_report_page_killed_anywhere_is_the_old_or_the_new_one(driver, tmp_path):
    def write(place, fault, text="new"):
        return driver.call("faults.scenes:write_page", str(place / "report.html"), text, fault=fault)

    for hit in killed_everywhere(driver, tmp_path, write, lambda place: write(place, None, "old"), CUTS):
        expected = "new" if hit.point.startswith("done") else "old"
        page = (hit.place / "report.html").read_text()
        assert f"<title>{expected}</title>" in page
        assert page.rstrip().endswith("</html>")
        must(write(hit.place, None))
        assert leftovers(hit.place) == []


@pytest.mark.slow
def test_a_demonstration_killed_anywhere_can_be_run_again(driver, tmp_path):
    def demonstrate(place, fault):
        return driver.call("faults.scenes:demonstrate", str(place / "demo"), fault=fault)

    for hit in killed_everywhere(driver, tmp_path, demonstrate):
        must(demonstrate(hit.place, None))
        assert tree(hit.place / "demo").keys() == tree(tmp_path / "whole" / "demo").keys()
        assert leftovers(hit.place) == [], hit.point


def test_every_point_was_counted():
    """After all others: the number of kills that docs/reliability.md gives, or that of the default suite."""
    assert sum(COUNTS) in (N_BY_DEFAULT, N_KILLS)


@pytest.mark.slow
def test_a_real_kill_while_lists_are_written_keeps_the_old_ones(tmp_path, runs):
    """Without the fault layer: the process dies while it writes, as with `kill -9`."""
    out = tmp_path / "lists.csv"
    old = "user,rank,item,score\n" * 10_000
    out.write_text(old)
    code = (
        "import os, signal, sys, threading, time, pathlib\n"
        "import polars as pl\n"
        "write = pl.DataFrame.write_csv\n"
        "def half(table, file, *more, **named):\n"
        "    file.write(b'user,rank'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "pl.DataFrame.write_csv = half\n"
        f"sys.argv = ['topshelf', 'recommend', {str(runs / 'all')!r}, '--out', {str(out)!r}]\n"
        "from topshelf.cli import main; main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert out.read_text() == old
    assert pl.read_csv(out).height > 0
    assert len(leftovers(tmp_path)) == 1  # for the next command to sweep
    assert os.path.getmtime(out) <= time.time()  # noqa: PTH204
