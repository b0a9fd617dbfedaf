"""What TAB offers. Everything here must be fast, so names and settings come from the source code, not from imports."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, MutableMapping
from glob import escape, glob
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperOption

from topshelf.cli import source

_PREFIX = "_TOPSHELF_PREFIX"


def models(ctx: typer.Context) -> list[str]:
    return source.models(_task(ctx))


def losses(ctx: typer.Context) -> list[str]:
    return source.losses(_task(ctx))


def listed(names: Callable[[str | None], list[str]]) -> Callable[[typer.Context], list[str]]:
    """A completer of names of the task that is given, else of all tasks."""

    def completed(ctx: typer.Context) -> list[str]:
        return names(ctx.params.get("task"))

    return completed


def several_losses(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names separated by commas."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in losses(ctx)]


def data(ctx: typer.Context, incomplete: str) -> list[str]:
    """Named datasets and files. If no name matches, the shell completes files itself."""
    names = [name for name in source.datasets(_task(ctx)) if name.startswith(incomplete)]
    return [*names, *(f"{path}/" if Path(path).is_dir() else path for path in _paths(incomplete, "*"))] if names else []


def _task(ctx: typer.Context) -> str:
    """The task that is given before, else the default one."""
    return ctx.params.get("task") or source.tasks()[0]


def folders(marker: str) -> Callable[[str], list[str]]:
    """A completer of folders that hold the marker file, here or one level down."""

    def completed(incomplete: str) -> list[str]:
        files = [*_paths(incomplete, f"*/{marker}"), *_paths(incomplete, f"*/*/{marker}")]
        return [path.removesuffix(f"/{marker}") for path in files]

    return completed


runs, studies = folders("run.json"), folders("study.json")


def plans(incomplete: str) -> list[str]:
    """Plans of the package, and TOML files."""
    return [name for name in source.plans() if name.startswith(incomplete)] + _paths(incomplete, "*.toml")


def _paths(start: str, pattern: str) -> list[str]:
    return sorted(glob(escape(start) + pattern))  # noqa: PTH207  Path would drop a "./" that was typed


def choice(*values: str) -> Callable[[], list[str]]:
    return lambda: list(values)


def setting(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """``section.key=`` for ``--set`` and ``--range``, then the accepted values, or the default."""
    prefix = os.environ.get(_PREFIX, "")
    name, equals, _ = (prefix + incomplete).partition("=")
    rows = source.settings(_task(ctx), model=ctx.params.get("model"), loss=ctx.params.get("loss"))
    matching = [key for key in rows if (key == name if equals else key.startswith(name))]
    offers = [] if equals else [(f"{key}=", rows[key].about) for key in matching]
    if len(matching) == 1:  # a second offer keeps the shell from adding a space after "="
        row = rows[matching[0]]
        offers += [(f"{matching[0]}={value}", row.about) for value in row.choices or (row.default,) if value]
    return [(text.removeprefix(prefix), about) for text, about in offers]


def prepare(environ: MutableMapping[str, str]) -> None:
    """Prepare the process if the shell asks for completions."""
    if "_TOPSHELF_COMPLETE" in environ:
        for kind in (TyperArgument, TyperOption):  # to check values, Typer would import pydantic
            kind.process_value = lambda self, ctx, value: value  # type: ignore[method-assign]  # noqa: ARG005
    if environ.get("_TOPSHELF_COMPLETE") == "complete_bash":
        _join_words(environ)


def _join_words(environ: MutableMapping[str, str]) -> None:
    """Undo bash's splitting at "=": in ``--set train.order=pa`` the words are ``train.order``, ``=`` and ``pa``.

    What comes before the last "=" is taken off the last word, since bash replaces only the rest.
    """
    words = environ["COMP_WORDS"].split("\n")[: int(environ["COMP_CWORD"]) + 1]
    text = re.sub(r"\n=(\n|\Z)", "=", "\n".join(words))
    text = re.sub(r"^(--[\w-]+)=", r"\1\n", text, flags=re.MULTILINE)
    before, _, last = text.rpartition("\n")
    name, equals, value = last.rpartition("=")
    joined = {"COMP_WORDS": f"{before}\n{value}", "COMP_CWORD": str(before.count("\n") + 1)}
    environ.update({_PREFIX: name + equals, **joined})
