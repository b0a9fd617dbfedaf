"""Benchmarks answer for themselves, and the plain reference of quality_time is the loss it claims to be."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import record
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf.losses import slatk_loss

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted(set((ROOT / "benchmarks").glob("*.py")) - {ROOT / "benchmarks" / "record.py"})
RESULT = ROOT / "benchmarks" / "results" / "quality_time.json"
# One process for all of them: torch is imported once. Each sees its own folder first, as when it is run.
ASK = """
import contextlib, io, json, runpy, sys
answers = {}
sys.path.insert(0, sys.argv[1])
for file in sys.argv[2:]:
    sys.argv = [file, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_path(file, run_name="__main__")
        except BaseException as ending:
            answers[file] = [said.getvalue(), repr(ending)]
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-c", ASK, str(ROOT / "benchmarks"), *map(str, BENCHMARKS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.fixture(scope="module")
def quality_time():
    spec = importlib.util.spec_from_file_location("quality_time", ROOT / "benchmarks" / "quality_time.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.name)
def test_every_benchmark_answers_help_and_has_quick_and_json(file, answers):
    said, ending = answers[str(file)]
    assert ending == "SystemExit(0)"
    assert "--quick" in said
    assert "--json" in said


def test_what_a_file_holds_beside_the_rows_stays_in_it(tmp_path):
    file = tmp_path / "found.json"
    assert record.held(file) == record.held(None) == []
    record.write(None, "nothing")
    record.write(file, "first", rows=[{"a": 1}])
    file.write_text(json.dumps({**json.loads(file.read_text()), "earlier": ["kept"]}))
    record.write(file, "second", rows=[*record.held(file), {"a": 2}])
    found = json.loads(file.read_text())
    assert (found["command"], found["earlier"], found["rows"]) == ("second", ["kept"], [{"a": 1}, {"a": 2}])
    assert found["environment"]["packages"]["torch"]


@pytest.mark.parametrize("name", ["backbones", "blend_size", "safe_defaults"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--data", "nope"), "--data must be of: "), (("--quick", "--json", "{file}"), "--quick must have a new file")],
)
def test_a_wrong_name_or_a_quick_call_for_a_whole_file_is_refused(
    name, arguments, message, tmp_path, monkeypatch, capsys
):
    file = tmp_path / "whole.json"
    file.write_text("{}")
    monkeypatch.setattr(sys, "argv", [name, *(text.format(file=file) for text in arguments)])
    with pytest.raises(SystemExit):
        importlib.import_module(name).main()
    assert message in capsys.readouterr().err
    assert file.read_text() == "{}"


def test_the_plain_reference_is_slatk(quality_time):
    torch.manual_seed(0)
    users, items, threshold = torch.randn(5, 8), torch.randn(30, 8), torch.rand(5)
    user, item, negative = torch.tensor([0, 3, 3, 4]), torch.tensor([7, 1, 29, 0]), torch.randint(30, (4, 11))
    found = quality_time.plain_loss(users, items, user, item, negative, threshold, tau=0.2, tau_weight=2.5)
    u, i = F.normalize(users, dim=1), F.normalize(items, dim=1)
    scores = u @ i.T
    expected = slatk_loss(
        scores[user, item],
        scores[user].gather(1, negative),
        threshold=threshold[user],
        tau=0.2,
        tau_weight=2.5,
    ).mean()
    assert_close(found, expected)


def test_the_clock_stands_while_it_is_paused(quality_time, monkeypatch):
    now = 100.0
    monkeypatch.setattr(quality_time.time, "perf_counter", lambda: now)
    clock = quality_time.Clock()
    now += 3
    with clock.paused() as seconds:
        assert seconds == 3
        now += 50
    now += 1
    assert clock.seconds == 4


def test_reached_is_the_first_point_at_the_target_and_never_extrapolated(quality_time):
    curve = [
        {"seconds": 1.0, "epoch": 1, "test": 0.1, "valid": 0.05},
        {"seconds": 2.0, "epoch": 2, "test": 0.3, "valid": 0.07},
        {"seconds": 3.0, "epoch": 3, "test": 0.2, "valid": 0.07},
    ]
    run = {"seconds": 3.5, "curve": curve}
    assert quality_time.seconds_to(run, 0.2) == 2.0
    assert quality_time.best_point(run)["test"] == 0.3
    assert quality_time.reached([run], 0.4) == "not reached in 3.5 s (3 epochs)"
    assert quality_time.reached([run, {"seconds": 1.5, "curve": curve[:1]}], 0.2) == "2 (1 of 2 seeds)"


def test_the_quality_time_page_is_the_committed_result(quality_time):
    page = (ROOT / "docs" / "quality-time.md").read_text()
    assert quality_time.table(json.loads(RESULT.read_text())["results"]) in page
    assert all((ROOT / "docs" / name).exists() for name in re.findall(r"\]\((images/[^)]+)\)", page))


def test_the_baselines_ran_with_the_winners_of_their_searches(quality_time):
    result = json.loads(RESULT.read_text())
    for data, methods in result["searches"].items():
        for method, found in methods.items():
            assert found["best"] == max(found["trials"], key=lambda row: row["valid"])["settings"]
            for run in result["results"][data][method]["runs"]:
                assert found["best"].items() <= run["settings"].items()
