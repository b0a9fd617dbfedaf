"""Ids on the command line are matched as they are written."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from topshelf.cli import app
from topshelf.data import generate
from topshelf.errors import TopshelfError


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_1_0_is_not_user_10(tmp_path):
    generate(30, 20).to_frame().write_csv(tmp_path / "clicks.csv")
    run("train", "--data", tmp_path / "clicks.csv", "--model", "popularity", "--k", 3, "--out", tmp_path / "run")
    assert "10" in run("recommend", tmp_path / "run", "--user", "10")
    for wrong in ("1_0", "010", "ten"):
        with pytest.raises(TopshelfError, match=f"--user must be a user of the run's data.*got {wrong}"):
            run("recommend", tmp_path / "run", "--user", wrong)
    with pytest.raises(TopshelfError, match=r"got 010; did you mean 10\?"):
        run("recommend", tmp_path / "run", "--user", "010")


def test_the_command_that_a_run_ends_with_runs_as_it_is(tmp_path):
    rows = "".join(f"-{user:02d} x;A {item}\n" for user in range(12) for item in range(user % 3, 12, 2))
    (tmp_path / "clicks.csv").write_text(f"Kunde;Artikel\n{rows}")
    shown = run(
        "train", "--data", tmp_path / "clicks.csv", "--model", "popularity", "--k", 3, "--out", tmp_path / "a b"
    )
    command = shlex.split(
        next(line for line in shown.splitlines() if "recommend: " in line).partition("recommend: ")[2]
    )
    assert command[:2] == ["topshelf", "recommend"]
    assert "-00 x" in run(*command[1:])
