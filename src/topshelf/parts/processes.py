"""Several processes of this machine that fill one folder of parts."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

import torch

from topshelf.errors import TopshelfError, TopshelfWarning, at_least
from topshelf.parts.folder import PartsFolder


class Writer(Protocol):
    """Writes the parts of a folder."""

    @property
    def folder(self) -> PartsFolder: ...

    def __call__(self, number: int, users: range) -> object: ...


AnyWriter = TypeVar("AnyWriter", bound=Writer)
_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


def fill(opens: Callable[[Any], AnyWriter], job: Any, processes: int, *, quiet: bool) -> AnyWriter:
    """Fill the folder of the writer that ``opens(job)`` gives, by this process and others; returns the writer.

    The others call ``opens``, a function of a module, with ``job`` too. If one is lost, the rest write its parts.
    """
    at_least("processes", processes, 1)
    writer = opens(job)
    threads = max(1, (os.cpu_count() or 1) // processes)
    with _helpers(opens, job, processes - 1, threads) as helpers, _few_threads(threads if processes > 1 else None):
        writer.folder.work(writer, quiet=quiet)
        for helper in helpers:
            helper.join()
    if lost := [one.exitcode for one in helpers if one.exitcode]:
        warnings.warn(
            f"{len(lost)} of {processes} processes ended early (exit code {lost[0]}); the others wrote all parts",
            TopshelfWarning,
            stacklevel=3,
        )
    return writer


def _help(opens: Callable[[Any], Writer], job: Any) -> None:
    """The life of another process. What it refuses, the first process refuses too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the first process ends the others
    warnings.simplefilter("ignore", TopshelfWarning)
    try:
        writer = opens(job)
        writer.folder.work(writer)
    except TopshelfError:
        sys.exit(3)


@contextmanager
def _helpers(opens: Callable[[Any], Writer], job: Any, n: int, threads: int) -> Iterator[list[BaseProcess]]:
    context = get_context("spawn")
    helpers: list[BaseProcess] = [context.Process(target=_help, args=(opens, job), daemon=True) for _ in range(n)]
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ |= dict.fromkeys(_THREADS, str(threads))
    try:
        for helper in helpers:
            helper.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield helpers
    finally:
        for helper in helpers:
            helper.terminate()  # those that have ended are not there any more


@contextmanager
def _few_threads(threads: int | None) -> Iterator[None]:
    """This process's share of the processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else min(before, threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
