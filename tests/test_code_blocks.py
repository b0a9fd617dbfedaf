"""Code in README and docs: every block has a language, every command is one, every block of Python runs.

The default suite parses all commands by the real command line and runs the short blocks. ``-m slow`` runs the rest.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import polars as pl
import pytest
import torch
import typer

import documents
import pages
from command_line import run_topshelf
from pages import ROOT, Block
from topshelf.bench.plan import Plan
from topshelf.cli import app
from topshelf.config import assemble, make_config
from topshelf.data import load_split
from topshelf.errors import TopshelfWarning
from topshelf.training import fit

LANGUAGES = {"python", "bash", "sh", "toml", "csv", "text", "math"}
PROGRAMS = {"topshelf", "make", "pip", "python", "hf"}
# Commands that a page may show before the branch that brings them is merged; nothing is skipped once they are there.
COMING = {"update", "forget", "serve"}
COMMAND_LINE = typer.main.get_command(app)
OF_MAKE = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
# Pages whose blocks of Python are signatures: tests/test_docs.py compares them with the code.
SIGNATURES = {f"docs/{name}.md" for name in ("losses/reference", "models/reference", "api")}
SIGNATURES |= {f"docs/{task}-reference.md" for task in ("ranking", "sequences", "links")}
# Pages whose blocks are parts of files in examples/, which tests/test_docs.py runs.
OF_EXAMPLES = {f"docs/{name}.md" for name in ("losses/examples", "models/README", "extending")}
EACH_PAGE = pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)


@EACH_PAGE
def test_every_block_says_its_language(page):
    assert {block.language for block in pages.blocks(page)} <= LANGUAGES
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, flags=re.MULTILINE)) == 2 * len(pages.blocks(page)), "a fence is not closed"


def parsed(words: list[str]) -> None:
    """Read a command as topshelf would, without running it."""
    command, name = COMMAND_LINE, "topshelf"
    while hasattr(command, "commands"):
        name, *words = words
        if name in COMING and name not in command.commands:
            return
        assert name in command.commands, name
        command = command.commands[name]
    command.make_context(name, list(words))


@EACH_PAGE
def test_every_command_is_one_that_can_be_given(page):
    for block in pages.blocks(page, "bash", "sh"):
        for line in pages.commands(block):
            program, *words = shlex.split(line, comments=True)
            assert program in PROGRAMS, line
            if program == "topshelf":
                parsed(words)
            elif program == "make":
                assert words[0] in OF_MAKE, line


@EACH_PAGE
def test_every_command_within_a_sentence_exists(page):
    text = pages.BLOCK.sub("", page.read_text(encoding="utf-8"))
    for words in re.findall(r"`topshelf ([a-z]+)(?: ([a-z]+))?[^`]*`", text):
        command = COMMAND_LINE.commands.get(words[0])
        assert command is not None or words[0] in COMING, words
        if hasattr(command, "commands") and words[1]:
            assert words[1] in command.commands, words


def test_a_command_with_a_wrong_option_is_refused():
    with pytest.raises(Exception, match=r"--bugdet"):
        parsed(["auto", "--data", "a.csv", "--bugdet", "5m"])
    with pytest.raises(AssertionError):
        parsed(["trian"])


def test_the_toml_blocks_are_settings_of_a_run_or_of_a_plan():
    whole = {"title": "t", "metrics": ["ndcg@5"], "method": [{"label": "a"}], "data": [{"label": "b", "source": "c"}]}
    found = {
        pages.name_of(page): [tomllib.loads(block.text) for block in pages.blocks(page, "toml")] for page in pages.PAGES
    }
    for plan in found.pop("docs/bench.md"):
        Plan.model_validate({**whole, **plan})
    (run,) = found.pop("docs/formats.md")
    assert make_config(run).loss.name == run["loss"]["name"]
    assert not any(found.values())


# Blocks of Python


def tensors() -> dict[str, object]:
    """A batch, and tables, as a loop of one's own has them."""
    generator = torch.Generator().manual_seed(0)
    drawn = lambda *size: torch.randn(*size, generator=generator).requires_grad_()  # noqa: E731
    names = {"n_users": 30, "users": drawn(30, 4), "items": drawn(50, 4), "user": torch.arange(8)}
    return {
        **names,
        "positive": drawn(8),
        "negative": drawn(8, 20),
        "owner": torch.arange(8),
        "threshold": torch.zeros(8),
    }


def loop() -> dict[str, object]:
    from topshelf.losses import SLatK

    return {**tensors(), "SLatK": SLatK}


def scored() -> dict[str, object]:
    """Vectors and parts for the page of evaluation, and lists of another system."""
    split = load_split("clicks.csv").split
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(n, 4, generator=generator) for n in (split.train.n_users, split.train.n_items))
    from topshelf.evaluation import evaluate
    from topshelf.queries import QuerySet
    from topshelf.ragged import ragged_from_pairs

    parts = {"train": split.train, "valid": split.valid, "test": split.test}
    lists = {user: [7, 3, 12] for user in split.test.to_frame()["user"].unique()}
    other = evaluate(-users, items, split.test, train=split.train, valid=split.valid)
    judged = ragged_from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), 2)
    graded = {"queries": QuerySet(rows=torch.arange(2)), "judged": judged, "grades": torch.tensor([2.0, 0.0, 1.0])}
    more = {
        "documents_per_query": ragged_from_pairs(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 3, 2, 4]), 2),
        "vectors": users[:2],
    }
    return {**parts, **graded, **more, "users": users, "items": items, "lists": lists, "other": other}


def trained(*names: str):
    """Short runs on clicks.csv: of a model, or of MF with a loss."""

    def prepare() -> dict[str, object]:
        for name in names:
            loss = name if name in ("slatk", "softmax") else None
            model = "mf" if loss or name in ("clicks", "other") else name
            short = {"train": {"epochs": 2, "validate_every": 1}, "evaluate": {"auc": False}}
            fit(assemble(data="clicks.csv", model=model, loss=loss, k=5, more=short), out=f"runs/{name}")
        return {}

    return prepare


def nothing() -> dict[str, object]:
    return {}


def ranked() -> dict[str, object]:
    numbers = {name: str(number) for number, name in enumerate(documents.NAMES, start=1)}  # as SVMlight text has them
    return {"frame": documents.table(4, seed=2, first=500).rename(numbers)}


def a_user() -> dict[str, object]:
    return {"u": 3}


def lists_of_others() -> dict[str, object]:
    """A file of another system's lists: nobody gets what is in train."""
    split = load_split("clicks.csv").split
    seen = split.seen("valid")
    rows = [
        (user, item, rank)
        for user in range(split.train.n_users)
        for rank, item in enumerate(
            sorted({*range(20)} - {*seen.indices[seen.indptr[user] : seen.indptr[user + 1]].tolist()})
        )
    ]
    ids = [(split.train.users.ids([user])[0], split.train.items.ids([item])[0], rank + 1) for user, item, rank in rows]
    pl.DataFrame(ids, schema=["user", "item", "rank"], orient="row").write_csv("their_lists.csv")
    return {}


def as_parquet() -> dict[str, object]:
    pl.read_csv("clicks.csv").write_parquet("clicks.parquet")
    return {}


PREPARED = {
    "README.md": tensors,
    "docs/data.md": a_user,
    "docs/evaluation.md": scored,
    "docs/large-data.md": as_parquet,
    "docs/losses/calling.md": loop,
    "docs/migration.md": lists_of_others,
}
SLOWLY = {
    "docs/bench.md": nothing,
    "docs/blending.md": trained("history", "slim"),
    "docs/diagnose.md": trained("clicks"),
    "docs/links.md": nothing,
    "docs/python.md": nothing,
    "docs/ranking.md": ranked,
    "docs/report.md": trained("slatk", "softmax"),
    "docs/sequences.md": nothing,
    "docs/tuning.md": nothing,
}
WITH_PYTHON = {pages.name_of(page) for page in pages.PAGES if pages.blocks(page, "python")}


def test_every_page_with_python_is_run_somewhere():
    """The tutorial has a test of its own, tests/test_readme.py."""
    assert SIGNATURES | OF_EXAMPLES | {*PREPARED, *SLOWLY, "docs/tutorial.md"} == WITH_PYTHON


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.write_files(tmp_path)
    return tmp_path


def run_python(page: str, names: dict[str, object]) -> None:
    """All blocks of a page in one namespace, as a reader would type them."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", TopshelfWarning)
        for block in pages.blocks(ROOT / page, "python"):
            exec(compile(block.text, page, "exec"), names)


@pytest.mark.parametrize("page", PREPARED)
def test_the_python_of_a_page_runs(folder, page):
    run_python(page, PREPARED[page]())


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in SLOWLY if page != "docs/bench.md"])
def test_the_python_of_a_page_runs_slowly(folder, page):
    run_python(page, SLOWLY[page]())


@pytest.mark.slow
def test_the_bench_in_python_runs_in_a_process(folder):
    """Its cells are processes of their own, so it must be a file."""
    (block,) = pages.blocks(ROOT / "docs/bench.md", "python")
    Path("bench.py").write_text(block.text)
    subprocess.run([sys.executable, "bench.py"], check=True)
    assert Path("runs/bench/reports/quick/report.md").exists()


# Commands, run

SKIPPED = re.compile(r"amazon2014|runs/health|bench|my_ranking|my-run|data get|data list|1h|--trials|RUN|tune")
RUNS = {
    "docs/blending.md": nothing,
    "docs/data.md": nothing,
    "docs/diagnose.md": trained("clicks"),
    "docs/export.md": trained("clicks"),
    "docs/links.md": nothing,
    "docs/losses/examples.md": nothing,
    "docs/models/README.md": trained("history"),
    "docs/ranking.md": nothing,
    "docs/report.md": trained("clicks", "slatk", "softmax", "ease"),
    "docs/sequences.md": nothing,
    "docs/how-slatk-works.md": nothing,
    "docs/tasks.md": nothing,
    "docs/training.md": trained("slatk", "softmax", "ease"),
}
SHORT = ("--set", "train.epochs=2", "--set", "train.validate_every=1")


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNS)
def test_the_commands_of_a_page_run(folder, page):
    """All but those that take a dataset of the paper, minutes, or somebody's package; trainings have two epochs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)
        RUNS[page]()
        run_blocks(pages.blocks(ROOT / page, "bash"))


def run_blocks(found: list[Block]) -> None:
    n_run = 0
    for line in [line for block in found for line in pages.commands(block)]:
        program, *words = shlex.split(line, comments=True)
        if program != "topshelf" or SKIPPED.search(" ".join(words)) or words[0] in COMING - set(COMMAND_LINE.commands):
            continue
        n_run += 1
        if words[0] == "train" and "--resume" not in words:
            task = words[words.index("--task") + 1] if "--task" in words else ""
            words += () if "lambdamart" in words else SHORT
            other = Path("runs/other")
            run_topshelf(*words)
            if task and not other.exists():  # what the page compares with
                words[words.index("--out") + 1] = str(other)
                run_topshelf(*words, "--seed", 1)
        else:
            run_topshelf(*words)
    assert n_run
