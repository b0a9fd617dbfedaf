"""Options that several commands share."""

from __future__ import annotations

import pytest
from typer.main import get_command

from command_line import run_topshelf
from topshelf.cli import app
from topshelf.data import generate
from topshelf.diagnose.run import EPOCHS, USERS

READING = ["user_column", "item_column", "rating_column", "time_column", "dates", "min_rating"]


def options(name):
    command = get_command(app)
    for part in name.split():
        command = command.commands[part]
    return {option.name: option for option in command.params}


@pytest.mark.parametrize("command", ["train", "tune", "diagnose", "data show", "data prepare"])
def test_every_command_that_reads_a_file_has_the_same_options_for_it(command):
    first, own = options("train"), options(command)
    for name in READING:
        assert (own[name].opts, own[name].help) == (first[name].opts, first[name].help)
    assert ("separator" in own) == command.startswith("data")


def test_the_defaults_of_a_diagnosis_are_those_of_the_library():
    assert (options("diagnose")["users"].default, options("diagnose")["epochs"].default) == (USERS, EPOCHS)


@pytest.mark.slow
def test_a_diagnosis_reads_the_columns_that_are_named(tmp_path):
    frame = generate(120, 40, interactions_per_user=8, seed=1).to_frame().rename({"user": "who", "item": "what"})
    frame.write_csv(tmp_path / "clicks.csv")
    data = ("diagnose", "--data", tmp_path / "clicks.csv", "--k", 5, "--epochs", 1, "--losses", "", "--out")
    _, errors = run_topshelf(*data, tmp_path / "new", code=2)
    assert "--user-column" in errors
    run_topshelf(*data, tmp_path / "out", "--user-column", "who", "--item-column", "what")
    assert (tmp_path / "out" / "diagnose.html").exists()


def test_a_diagnosis_of_a_run_refuses_columns(tmp_path):
    _, errors = run_topshelf("diagnose", tmp_path, "--user-column", "who", "--out", tmp_path / "new", code=2)
    assert "leave --data, --model, --loss, --k and --set out" in errors


def commands(group, before=()):
    for name, command in group.commands.items():
        yield (*before, name)
        yield from commands(command, (*before, name)) if hasattr(command, "commands") else ()


@pytest.mark.parametrize("command", [(), *commands(get_command(app))], ids=" ".join)
def test_h_is_help_everywhere(command):
    assert run_topshelf(*command, "-h") == run_topshelf(*command, "--help")
