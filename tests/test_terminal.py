from __future__ import annotations

import json
import signal
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run_topshelf
from topshelf import demo
from topshelf.data import Dataset, generate, make_split
from topshelf.terminal import as_json, cell, printable

CLEAR = "\033[2J"
HOSTILE = [CLEAR, "\x9b2J", "\x07bell", "a\rb", "\u202etxt.exe", "\x00", "[red]x[/red]", ":cat:", "\x1b]0;title\x07"]


@given(st.text())
def test_nothing_in_a_text_moves_the_cursor(text):
    for shown in (printable(text), cell(text), as_json({"id": text})):
        assert all(character.isprintable() or character == "\n" for character in shown)
    assert json.loads(as_json({text: [text]})) == {text: [text]}
    if text.isprintable():
        assert printable(text) == text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    frame = generate(40, 20, interactions_per_user=6, seed=1).to_frame()
    for name in ("user", "item"):
        texts = pl.Series([f"{HOSTILE[id % len(HOSTILE)]}{id}".replace("\r", "") for id in frame[name]])
        frame = frame.with_columns(texts.alias(name))
    frame.write_parquet(folder / "a.parquet")
    run_topshelf("train", "--data", folder / "a.parquet", "--model", "ease", "--k", "5", "--out", folder / "run")
    return folder


def test_escapes_in_ids_do_not_reach_the_terminal(hostile):
    first = pl.read_parquet(hostile / "a.parquet")["user"][0]
    for command in (
        ("data", "show", hostile / "a.parquet"),
        ("data", "show", hostile / "a.parquet", "--json"),
        ("recommend", hostile / "run", "--user", first),
    ):
        shown, _ = run_topshelf(*command)
        assert not [character for character in shown if not character.isprintable() and character not in "\n"]
    _, errors = run_topshelf("recommend", hostile / "run", "--user", f"{CLEAR}nobody", code=2)
    assert "\\x1b[2Jnobody" in errors
    assert "\033" not in errors


def test_the_demo_and_its_page_show_hostile_titles_as_text(tmp_path, monkeypatch, capsys):
    split = make_split(generate(150, 60, interactions_per_user=10, seed=3))
    script = "<script>alert(1)</script>"
    titles = [f"{script}{CLEAR}[red]$x$ {item}" for item in range(split.n_items)]
    monkeypatch.setattr(demo, "_data", lambda seed, offline: [(Dataset("synthetic", split, titles), script)])
    methods = {"popularity": ("Popularity", "popularity", "slatk"), demo.OURS: (script, "ease", "slatk")}
    monkeypatch.setattr(demo, "METHODS", methods)
    monkeypatch.setenv("COLUMNS", "300")
    demo.run(tmp_path / "demo", budget=None)
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.lower().count("<script") == 1  # the page's own
    assert script not in page
    assert "&lt;script&gt;" in page
    shown = capsys.readouterr().out
    assert "\033" not in shown
    assert "\\x1b[2J[red]" in shown


def start(*arguments, **more):
    return subprocess.Popen([sys.executable, "-m", "topshelf", *arguments], text=True, stderr=subprocess.PIPE, **more)


def test_a_reader_that_has_enough_is_no_error():
    process = start("losses", "--json", stdout=subprocess.PIPE)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=120) == 1


@pytest.mark.parametrize(
    "module", ["torch.nn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("numpy", "polars"))]
)
def test_ctrl_c_while_it_starts_is_no_traceback(module):
    command = [sys.executable, "-X", "importtime", "-m", "topshelf", "evaluate", "nowhere"]
    process = subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it for jobs in the background
    )
    for line in process.stderr:  # the modules, as they are imported
        if line.split("|")[-1].strip().startswith(module):
            break
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "stopped" in errors
    assert not shown
