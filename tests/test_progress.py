"""Bars where something can move, else a line now and then."""

from __future__ import annotations

import io

import pytest

from command_line import run_topshelf
from topshelf import progress
from topshelf.data import generate
from topshelf.progress import ProgressLines, has_bars, progress_bar
from topshelf.terminal import Console, Progress


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def text():
    return io.StringIO()


def test_without_a_terminal_there_is_a_line_every_half_minute_and_at_the_end(monkeypatch, text):
    clock = Clock(monkeypatch)
    with ProgressLines(Console(file=text)) as bar:
        task = bar.add_task("train", total=200, shown="0/20")
        for step in range(200):
            clock.now += 1
            bar.advance(task)
            if step % 10 == 9:
                bar.update(task, shown=f"{(step + 1) // 10}/20  loss [0.5]")
    said = text.getvalue().splitlines()
    assert said == [
        *(f"train  {n * 15}%  {n * 3 - 1}/20  loss [0.5]  {n * 30} s" for n in range(1, 7)),
        "train  100%  20/20  loss [0.5]  200 s",
    ]


def test_work_that_is_soon_done_says_nothing(monkeypatch, text):
    clock = Clock(monkeypatch)
    with ProgressLines(Console(file=text)) as bar:
        task = bar.add_task("train", total=3, shown="")
        for _ in range(3):
            clock.now += 5
            bar.advance(task)
    assert text.getvalue() == ""


def test_control_characters_are_escaped_and_the_total_may_be_unknown(monkeypatch, text):
    clock = Clock(monkeypatch)
    with ProgressLines(Console(file=text)) as bar:
        task = bar.add_task("\x1b[31mred", total=None, shown="")
        clock.now += 31
        bar.advance(task, 1500)
    assert text.getvalue().splitlines()[0] == "\\x1b[31mred  1,500  31 s"


@pytest.mark.parametrize(
    ("is_terminal", "is_notebook", "has_widgets", "moves"),
    [(True, False, False, True), (False, False, True, False), (False, True, True, True), (False, True, False, False)],
)
def test_bars_are_for_terminals_and_notebooks_with_widgets(monkeypatch, is_terminal, is_notebook, has_widgets, moves):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: object() if has_widgets else None)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=io.StringIO(), force_jupyter=is_notebook))
    assert has_bars(progress.Console(stderr=True)) is moves
    bar = progress_bar(False)
    assert isinstance(bar, ProgressLines) is not moves
    assert bar.disable is not moves
    assert type(progress_bar(True)) is Progress
    assert progress_bar(True).disable


def test_a_long_training_without_a_terminal_leaves_lines_on_stderr_unless_quiet(monkeypatch, tmp_path):
    monkeypatch.setattr(ProgressLines.__init__, "__defaults__", (0.0,))
    generate(60, 30, interactions_per_user=8, seed=1).to_frame().write_csv(tmp_path / "a.csv")
    command = ("train", "--data", tmp_path / "a.csv", "--k", 5, "--set", "train.epochs=2", "--set", "loss.tau_weight=3")
    _, errors = run_topshelf(*command, "--out", tmp_path / "loud")
    assert "train  100%  2/2  loss" in errors
    _, errors = run_topshelf(*command, "--out", tmp_path / "quiet", "--quiet")
    assert "loss" not in errors
    _, errors = run_topshelf("recommend", tmp_path / "loud", "--out", tmp_path / "lists.csv")
    assert "writing lists  100%" in errors
