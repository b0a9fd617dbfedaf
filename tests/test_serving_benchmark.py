"""benchmarks/speed/serving.py counts and times what it says, and the page has its figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import load
from benchmarks.served import bare
from benchmarks.speed import serving

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "serving.md"
RESULT = ROOT / "benchmarks" / "results" / "serving.json"
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


def answer(version, items):
    return json.dumps({"items": [{"item": one} for one in items], "version": version}, separators=(",", ":")).encode()


@needs_wrk
def test_answers_are_counted_and_items_of_another_version_are_noticed():
    versions = {"aa": "a", "bb": "b"}
    with bare(answer("aa", ["a1", "a2"])) as server:
        row = load.wrk(server.url, 1, 10, 4, versions=versions)
        assert row["good"] > 10
        assert (row["busy"], row["failed"], row["mixed"], row["not_200"], row["sockets"]) == (0, 0, 0, 0, 0)
        times = load.probe(server.url, 50, 1, 10)
        assert times.row() | {"p50": 0, "p99": 0} == {
            "requests": 50, "good": 50, "busy": 0, "failed": 0, "p50": 0, "p99": 0, "busy_p99": None,
        }  # fmt: skip
        assert 0 < times.percentile(50) < 1
        assert server.cpu > 0
        assert server.rss > 10
    for version, items in (("aa", ["a1", "b1"]), ("cc", ["a1"])):
        with bare(answer(version, items)) as server:
            row = load.wrk(server.url, 1, 10, 4, versions=versions)
            assert row["mixed"] > 0
            assert row["good"] == 0


def test_the_time_of_the_probe_runs_from_the_moment_that_a_request_was_due():
    """A server that stands still for a while: what was due meanwhile has waited, though it was not sent."""
    with bare(b"{}") as server, load.probe_running(server.url, 40, 2, 10) as result:
        time.sleep(1.2)
        subprocess.run(["kill", "-STOP", str(server.process.pid)], check=True)
        time.sleep(1.0)
        subprocess.run(["kill", "-CONT", str(server.process.pid)], check=True)
        times = result()
    late = times.seconds[times.status == 200]
    assert times.row()["requests"] == 80
    assert (late > 0.3).sum() >= 5
    assert late.max() < 10


def times_of(seconds, status, step=0.05):
    return load.Times(np.arange(len(seconds)) * step, np.array(seconds), np.array(status))


def test_recovery_is_when_everything_is_good_and_quick_again():
    times = times_of([0.01] * 20 + [0.5] * 10 + [0.01] * 20, [200] * 15 + [503] * 5 + [200] * 30)
    assert serving._recovery(times, 0.0, 0.02) == 0.0
    assert serving._recovery(times, 0.9, 0.02) == pytest.approx(0.6, abs=0.11)  # slow ones are due until 1.5
    assert serving._recovery(times_of([0.5] * 40, [200] * 40), 0.0, 0.02) is None


def test_memory_is_the_median_of_some_samples():
    samples = [(at / 10, 100.0 + at) for at in range(1000)]
    assert serving._memory(samples, 20, 60) == pytest.approx(295, abs=1)
    assert serving._memory([(1.0, 5.0), (30.0, 7.0)], 20, 60) == 5.0


def test_checks_of_keys_are_timed(tmp_path):
    row = serving.keys(serving.Runs(tmp_path, serving.QUICK), None)
    assert set(row) == {"right", "wrong secret", "unknown name", "another form"}
    assert max(row.values()) < 2 * min(row.values())


def test_the_page_has_the_figures_of_the_result_file(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(serving.BEGIN) < text.index(serving.END)
    if RESULT.exists():
        assert serving.figures(json.loads(RESULT.read_text(encoding="utf-8"))) in text


def test_figures_are_put_between_the_marks(tmp_path, monkeypatch):
    keys = {"right": 1e-6, "another form": 2e-6, "date": "2026-01-01"}
    content = {"stages": {"keys": keys}, "size": serving.SIZE, "environment": {"cpus": 2}}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(content))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "serving.md").write_text(f"before\n{serving.BEGIN}\nold\n{serving.END}\nafter\n")
    monkeypatch.setattr(serving, "ROOT", tmp_path)
    serving.write_page(file)
    said = (tmp_path / "docs" / "serving.md").read_text()
    assert "right 1.00, another form 2.00 | longest / shortest 2.00" in said
    assert said.startswith("before\n")
    assert said.endswith("after\n")
    assert "old" not in said


@needs_wrk
@pytest.mark.slow
def test_all_stages_run_at_a_tiny_size(tmp_path):
    file = tmp_path / "serving.json"
    command = [sys.executable, "-m", "benchmarks.speed.serving", "--quick", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    content = json.loads(file.read_text())
    stages = content["stages"]
    assert set(stages) == set(serving.STAGES)
    assert (stages["startup"]["lost"], stages["startup"]["duplicated"]) == (0, 0)
    assert (stages["reloads"]["failed"], stages["reloads"]["mixed"], stages["reloads"]["sockets"]) == (0, 0, 0)
    assert serving.figures(content).count("\n|") > 15
