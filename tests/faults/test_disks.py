"""Full, read-only and broken disks, closed and full outputs, and Ctrl-C at the start: one message, nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.driver import must
from faults.layer import DISK_ERRORS, Fault, leftovers, tree
from faults.scenes import options

N_BY_DEFAULT = 8  # without the slow tests
N_FAULTS = 162  # points of the commands below times the kinds of errors; docs/reliability.md says so.
COUNTS: list[int] = []
TOPSHELF = [sys.executable, "-m", "topshelf"]


def failed_everywhere(driver, tmp_path, run, before=lambda place: None):
    """Let the disk fail at each point of ``run(place, fault)``; the errors take turns, and all come to every file."""
    whole = tmp_path / "whole"
    whole.mkdir()
    before(whole)
    points = must(run(whole, None)).points
    COUNTS.append(len(points))
    kinds = list(DISK_ERRORS)
    for at, point in enumerate(points):
        place = tmp_path / f"fault-{at}"
        place.mkdir()
        before(place)
        kind = kinds[at % len(kinds)]
        ended = run(place, Fault(kind, at))
        assert ended.code in (0, 2, 3), (point, ended)
        assert "Traceback" not in ended.errors, (point, ended.errors)
        if ended.code:
            assert [line[:7] for line in ended.errors.splitlines()].count("error: ") == 1, ended.errors
            assert os.strerror(DISK_ERRORS[kind]) in ended.errors
        assert leftovers(place) == [], (point, ended.errors)
        yield point, place, ended
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["lists.csv", "lists.parquet"])
def test_a_failing_disk_keeps_the_old_lists(driver, tmp_path, runs, name):
    """A full disk cut the last line of a CSV; Parquet gave a traceback and an empty file."""
    old = b"the lists of last week\n" * 4000

    def recommend(place, fault):
        return driver.topshelf("recommend", runs / "all", "--out", place / name, fault=fault)

    for point, place, ended in failed_everywhere(
        driver, tmp_path, recommend, lambda place: (place / name).write_bytes(old)
    ):
        assert ended.code == 2, point
        new = (tmp_path / "whole" / name).read_bytes()
        assert (place / name).read_bytes() == (new if point.startswith("done") else old)


@pytest.mark.slow
def test_a_disk_that_fails_in_training_leaves_a_run_that_can_be_resumed(driver, tmp_path, clicks):
    arguments = ["train", "--data", clicks, *options(model__dim=8)]

    def train(place, fault):
        return driver.topshelf(*arguments, "--out", place / "run", fault=fault)

    seen = set()
    for point, place, ended in failed_everywhere(driver, tmp_path, train):
        assert ended.code == 2, point
        out = place / "run"
        if out.exists() and point not in seen:  # points of the same name leave the same state
            seen.add(point)
            must(driver.topshelf("train", "--resume", out, "--quiet"))
            assert tree(out).keys() == tree(tmp_path / "whole" / "run").keys()


@pytest.mark.slow
def test_a_failing_disk_leaves_no_half_of_a_blend(driver, tmp_path, runs):
    def blend(place, fault):
        return driver.topshelf("blend", runs / "mf", runs / "ease", "--out", place / "both", fault=fault)

    for point, place, ended in failed_everywhere(driver, tmp_path, blend):
        assert ended.code == 2
        assert not (place / "both").exists() or point == "done both"


@pytest.mark.slow
def test_a_failing_disk_keeps_prepared_data(driver, tmp_path, clicks):
    def prepare(place, fault):
        return driver.topshelf("data", "prepare", clicks, "--core", "1", "--out", place / "data", fault=fault)

    def before(place):
        if place.name != "first":
            shutil.copytree(tmp_path / "first" / "data", place / "data")

    (tmp_path / "first").mkdir()
    must(driver.topshelf("data", "prepare", clicks, "--out", tmp_path / "first" / "data"))
    for point, place, ended in failed_everywhere(driver, tmp_path, prepare, before):
        assert ended.code == 2
        expected = "whole" if point == "done data" else "first"
        assert tree(place / "data") == tree(tmp_path / expected / "data"), point


@pytest.mark.slow
def test_a_failing_disk_keeps_a_diagnosis_and_a_page(driver, tmp_path, diagnosis):
    for point, place, ended in failed_everywhere(driver, tmp_path, diagnosis.make, diagnosis.before):
        assert ended.code == 2
        assert tree(place / "found").keys() == {"diagnose.json", "diagnose.html"}, point
        if point != "done found":
            assert tree(place / "found") == tree(diagnosis.earlier)


def test_every_fault_was_counted():
    """The number that docs/reliability.md gives, or that of the default suite; after the tests above."""
    assert sum(COUNTS) in (N_BY_DEFAULT, N_FAULTS)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 64 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, text=True, check=False
    ) if shutil.which("mount") and sys.platform == "linux" else None  # fmt: skip
    if mounted is None or mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted and mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def remount_read_only(place):
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@pytest.mark.parametrize("name", ["lists.csv", "lists.parquet"])
def test_a_disk_that_is_really_full_keeps_the_old_lists(driver, tiny_disk, runs, name):
    old = b"the lists of last week\n"
    (tiny_disk / name).write_bytes(old)
    (tiny_disk / "other").write_bytes(b"0" * (60 << 10))
    ended = driver.topshelf("recommend", runs / "all", "--k", "24", "--out", tiny_disk / name)
    assert ended.code == 2, ended
    assert "error: cannot write" in ended.errors
    assert "Traceback" not in ended.errors
    assert (tiny_disk / name).read_bytes() == old
    assert leftovers(tiny_disk) == []


def test_training_onto_a_disk_that_is_really_full_or_read_only_is_one_message(driver, tiny_disk, clicks):
    arguments = ["train", "--data", clicks, *options(model__dim=64), "--out", tiny_disk / "run"]
    full = driver.topshelf(*arguments)
    assert full.code == 2, full
    assert "No space left" in full.errors
    remount_read_only(tiny_disk)
    read_only = driver.topshelf(*arguments[:-1], tiny_disk / "another")
    assert read_only.code == 2, read_only
    assert "Read-only file system" in read_only.errors
    assert "Traceback" not in full.errors + read_only.errors


def test_a_run_on_a_read_only_disk_is_evaluated_and_not_resumed(driver, tmp_path, tiny_disk, runs):
    for path in (runs / "ease").iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tiny_disk)
    must(driver.topshelf("evaluate", tiny_disk))
    (tiny_disk / "metrics.json").unlink()
    remount_read_only(tiny_disk)
    must(driver.topshelf("evaluate", tiny_disk))
    resumed = driver.topshelf("train", "--resume", tiny_disk)
    assert resumed.code == 2, resumed
    assert "Read-only file system" in resumed.errors
    assert "Traceback" not in resumed.errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        *(pytest.param(words, marks=pytest.mark.slow) for words in (["models"], ["losses", "--json"])),
        ["--version"],
        ["--help"],
    ],
)
def test_a_full_standard_output_is_one_message(arguments):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*TOPSHELF, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert ended.returncode == 2, ended.stderr
    assert "error: cannot write to standard output" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("line", "codes"),
    [
        pytest.param("{} models >&-", (0, 2), marks=pytest.mark.slow),
        ("{} losses --json >&-", (0, 2)),
        pytest.param("{} models | head -1; exit ${{PIPESTATUS[0]}}", (0, 1, 141), marks=pytest.mark.slow),
        pytest.param("{} losses --json | head -1; exit ${{PIPESTATUS[0]}}", (0, 1, 141), marks=pytest.mark.slow),
        pytest.param("{} models >&- 2>&-", (0, 2), marks=pytest.mark.slow),
    ],
)
def test_a_closed_standard_output_is_no_traceback(line, codes):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    command = line.format(f"{sys.executable} -m topshelf")
    ended = subprocess.run([bash, "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in codes, ended
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("seconds", [0.3, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.1, 0.8))])
def test_ctrl_c_while_the_program_starts_is_no_traceback(seconds):
    _interrupt(seconds)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("step", range(40))
def test_ctrl_c_at_any_time_of_the_start_is_no_traceback(step):
    _interrupt(0.05 + step * 0.05)


def _interrupt(seconds):
    """Ctrl-C, so many seconds after our own code began; before that, it is Python that starts."""
    code = (
        "import os, signal, sys, threading\n"
        f"timer = threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGINT)); timer.daemon = True\n"
        "from topshelf.__main__ import main\n"
        "sys.argv = ['topshelf', 'models']\n"
        "timer.start(); main()\n"
    )
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (0, 130, -signal.SIGINT), ended
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0 or time.monotonic() - started < 60
