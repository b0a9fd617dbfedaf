"""What all benchmarks share: arguments, processes, interleaved timing, peak memory, tables, and the result file.

Nothing of topshelf is imported with this module, so that a worker may run another source tree.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

# As the topshelf command does, before torch is imported: threads that wait by spinning starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
HEALTH, ELECTRONIC, GOWALLA = "amazon2014-health", "amazon2014-electronic", "gowalla"
MOVIELENS, FOOD = "movielens-100k", "food"
GIB = 2**30
Row = dict[str, Any]
Task = TypeVar("Task")
Result = TypeVar("Result")


class Benchmark:
    """The arguments of a script and its result file.

    Every script has ``--quick`` and ``--json``; ``--data``, ``--seeds``, ``--rounds`` and ``--jobs`` are there where a
    default is given. ``quick`` are the values that ``--quick`` puts in their place.
    """

    def __init__(
        self,
        name: str,
        doc: str | None,
        *,
        data: Sequence[str] = (),
        known: Sequence[str] = (),
        seeds: Sequence[int] = (),
        rounds: int = 0,
        jobs: int = 0,
        quick: Row | None = None,
    ) -> None:
        self.parser = argparse.ArgumentParser(
            prog=f"python -m {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.known, self._quick = known, quick or {}
        add = self.parser.add_argument
        add("--quick", action="store_true", help="the smallest setting, to see that it works")
        add("--json", type=Path, metavar="FILE", help="where the result goes")
        if data:
            add("--data", nargs="+", default=list(data), metavar="NAME", help=f"default: {' '.join(data)}")
        if seeds:
            add("--seeds", nargs="+", type=int, default=list(seeds), metavar="N", help=f"default: {_words(seeds)}")
        if rounds:
            add("--rounds", type=int, default=rounds, help=f"default: {rounds}; the best round counts")
        if jobs:
            add("--jobs", type=int, default=jobs, help=f"processes, one thread each; default: {jobs}")

    def parse(self) -> argparse.Namespace:
        """The options; unknown data and a quick call into the file of a whole one are refused."""
        options = self.parser.parse_args()
        if self.known:
            self.check("--data", options.data, self.known)
        if options.quick:
            if options.json and options.json.exists():
                self.parser.error(f"--quick must have a new file, got --json {options.json}")
            vars(options).update(self._quick)
        self.options = options
        return options

    def check(self, option: str, given: Iterable[str], known: Sequence[str]) -> None:
        """Refuse a name that would be skipped in silence."""
        if unknown := [name for name in given if name not in known]:
            self.parser.error(f"{option} must be of: {'; '.join(known)}, got {'; '.join(unknown)}")

    @property
    def command(self) -> str:
        """As it was called, without the result file."""
        words = sys.argv[1:]
        if "--json" in words:
            at = words.index("--json")
            words = words[:at] + words[at + 2 :]
        return shlex.join([*self.parser.prog.split(), *words])

    def facts(self) -> Row:
        """The command, the date, the machine, the seeds, and the data and rounds where the script has them."""
        from topshelf.training.folder import environment

        machine = environment() | ({"threads": 1} if hasattr(self.options, "jobs") else {})
        del machine["command"]  # the one below has no paths of this machine
        given = {key: value for key in ("data", "seeds", "rounds") if (value := getattr(self.options, key, None))}
        return {"command": self.command, "date": today(), "environment": machine, "seeds": [0], **given}

    def write(self, **results: Any) -> None:
        """Update the result file, if there is one; other keys of an older file stay."""
        if self.options.json is not None:
            keep(self.options.json, **(self.facts() | results))

    def held(self, name: str = "rows") -> Any:
        """What an earlier call left in the result file."""
        return held(self.options.json, name)


def keep(file: Path, **content: Any) -> None:
    """Update a JSON file."""
    from topshelf.files import write_text

    older = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    write_text(file, json.dumps(older | content, indent=1) + "\n")


def held(file: Path | None, name: str = "rows") -> Any:
    """A list of a result file; empty without the file, or where it has none of that name."""
    return json.loads(file.read_text(encoding="utf-8")).get(name, []) if file and file.exists() else []


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _words(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "|---" * len(heads) + "|" if line is lines[1] else f"| {' | '.join(map(str, line))} |" for line in lines
    )


def write_page(page: str, begin: str, end: str, content: str) -> None:
    """Put content between two marks of a page of docs."""
    from topshelf.files import write_text

    path = ROOT / "docs" / page
    before, rest = path.read_text(encoding="utf-8").split(begin)
    write_text(path, f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}")


def head(heads: Sequence[str]) -> str:
    return table(heads, [])


def line(cells: Iterable[object]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def mean_and_spread(values: Sequence[float], digits: int = 4) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def seconds_of(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    run()
    return clock() - started


def interleaved(
    runs: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every run in every round: each once to warm up, then all in turn, so a busy moment hits all alike."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            seconds[label].append(seconds_of(run, clock))
    return seconds


def best(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {label: min(values) for label, values in seconds.items()}


def each(measure: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """The results as they come, every task in a new process with one thread."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _one_thread, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(measure, task) for task in tasks]):
            yield done.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def apart(call: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a call in a new process: nothing compiled, cached or allocated serves another one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def in_tree(module: str, source: Path, *words: str, **how: Any) -> subprocess.Popen[str]:
    """A worker ``python -m module`` that imports topshelf from a source tree."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, **how)


def check_tree(source: Path) -> None:
    """Refuse to go on where topshelf is not that of the tree, or a path is no source tree."""
    import topshelf

    if not Path(topshelf.__file__).is_relative_to(source.resolve()):
        raise SystemExit(f"topshelf must come from {source}, got {topshelf.__file__}; give the path of a src folder")


class Memory:
    """Seconds and peak memory (GiB) of the phases of this process; Linux only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again with what is resident now
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        lines = Path("/proc/self/status").read_text().splitlines()
        self.peak[name] = next(int(row.split()[1]) for row in lines if row.startswith("VmHWM")) * 1024 / GIB
