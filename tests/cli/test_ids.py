"""Ids on the command line are matched as they are written."""

from __future__ import annotations

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
