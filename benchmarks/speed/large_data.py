"""Data larger than memory, from making it to lists for its users: seconds and peak memory of every stage.

    python -m benchmarks.speed.large_data [--quick] [--rows 1000000 10000000] [--folder DIR] [--json FILE]

A fractal expansion of MovieLens-100K with a user for each 20 interactions and an item for each 100, as Parquet parts;
prepared into mapped arrays (random split, 2-core); that folder opened and checked, as a run does; one epoch of a few
steps of SL@20 over the exact catalogue, with validation and test on a sample of users; the evaluation of that sample
from the run folder; lists of 20 items for all users, or the first million, written as Parquet. Every stage runs in a
new process, so its peak is its own; it counts the pages of mapped files that were in memory, which the system may drop.
Exponents are slopes on logs over the sizes, of seconds, of processor seconds, and of memory above the library's own;
those of lists are of seconds per list, as not every user of the largest size has one. All files are removed at the end.
Other sizes and stages of the result file stay there, so that the largest can be measured on another day.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import MOVIELENS, Benchmark, Memory, apart, keep, table, today
from topshelf.files import write_text

PER_USER, PER_ITEM = 20, 100
SEED, BATCH, DIM, K = 0, 2048, 64, 20
PART = 50_000  # users with lists that are written at once
NAME = "benchmarks.speed.large_data"
Row = dict[str, Any]


def sizes_of(rows: int) -> dict[str, int]:
    return {"users": rows // PER_USER, "items": max(2000, rows // PER_ITEM), "interactions": rows}


def expand(folder: Path, options: Row) -> Row:
    from topshelf.data.expand import expand as write

    made = write(MOVIELENS, folder / "big", **sizes_of(options["rows"]), seed=SEED)
    return {"interactions": made["interactions"], "bytes": _size(folder / "big")}


def ingest(folder: Path, options: Row) -> Row:  # noqa: ARG001
    from topshelf.data.prepared import prepare_folder

    summary = prepare_folder(folder / "big", folder / "prepared", mapped=True, core=2, split="ratio")
    counts = {name: summary[name] for name in ("users", "items", "train", "valid", "test")}
    return {**counts, "bytes": _size(folder / "prepared")}


def opening(folder: Path, options: Row) -> Row:
    """What a run does with the folder before it trains: every check, and the lists of training and validation."""
    from topshelf.data import load_split
    from topshelf.training.tasks import InteractionsTask

    task = InteractionsTask(load_split(folder / "prepared", measured_users=options["sample"]).split)
    context, asked = task.context("train"), task.evaluation("valid")
    return {"lists": len(context.histories), "measured": int(asked.evaluated.numel())}


def train(folder: Path, options: Row) -> Row:
    from topshelf.config import RunConfig
    from topshelf.training import fit

    settings = {"epochs": 1, "batch_size": BATCH, "epoch_steps": options["steps"], "optimizer": "row_adam"}
    config = RunConfig.model_validate(
        {
            "k": K,
            "data": {"source": str(folder / "prepared"), "measured_users": options["sample"]},
            "model": {"name": "mf", "dim": DIM},
            "train": settings,
        }
    )
    fitted = fit(config, out=folder / "run")
    return {"steps": options["steps"], "training_seconds": fitted.seconds, "bytes": _size(folder / "run")}


def evaluate(folder: Path, options: Row) -> Row:  # noqa: ARG001
    from topshelf.training import load

    test = load(folder / "run").evaluate()
    return {"users": int(test.users.numel()), "ndcg@20": test.mean()["ndcg@20"]}


def recommend(folder: Path, options: Row) -> Row:
    """In parts, so that a stopped stage goes on where it was; its seconds are those of all parts."""
    from topshelf import Recommender
    from topshelf.list_files import write_lists

    recommender = Recommender.load(folder / "run")
    users = recommender.artifact.users.values[: options["lists"]]
    (folder / "lists").mkdir(exist_ok=True)
    written = []
    for start in range(0, len(users), PART):
        part, note = (folder / "lists" / f"{start}.{kind}" for kind in ("parquet", "json"))
        if not note.exists():
            before = time.perf_counter(), time.process_time()
            write_lists(part, recommender.recommend_blocks(users[start : start + PART], k=K))
            spent = time.perf_counter() - before[0], time.process_time() - before[1]
            keep(note, seconds=spent[0], cpu_seconds=spent[1], bytes=part.stat().st_size)
        written.append(json.loads(note.read_text(encoding="utf-8")))
    sums = {name: sum(one[name] for one in written) for name in ("seconds", "cpu_seconds", "bytes")}
    return {"users": len(users), **sums}


STAGES: dict[str, Callable[[Path, Row], Row]] = {
    "expand": expand,
    "ingest": ingest,
    "open": opening,
    "train": train,
    "evaluate": evaluate,
    "recommend": recommend,
}


def measure(stage: str, folder: Path, options: Row) -> Row:
    """One stage in this process; the library alone first, so that its memory is known."""
    memory = Memory()
    with memory.phase("library"):
        import topshelf.data.prepared
        import topshelf.training  # noqa: F401
    before = time.process_time()
    with memory.phase(stage):
        facts = STAGES[stage](folder, options)
    spent = {"seconds": memory.seconds[stage], "cpu_seconds": time.process_time() - before}
    peaks = {"peak_gib": memory.peak[stage], "library_gib": memory.peak["library"]}
    return {"stage": stage, **spent, **peaks, **facts}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def exponents(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Slopes on logs of seconds and of memory above the library's, per stage, where there are two sizes."""
    found = {}
    for stage in STAGES:
        some = [row for row in rows if row["stage"] == stage]
        if len({row["rows"] for row in some}) < 2:
            continue
        at = np.log([row["rows"] for row in some])
        per = [row["users"] if stage == "recommend" else 1 for row in some]
        values = {
            name: [row[name] / n for row, n in zip(some, per, strict=True)] for name in ("seconds", "cpu_seconds")
        }
        values["memory"] = [max(row["peak_gib"] - row["library_gib"], 1e-3) for row in some]
        found[stage] = {name: float(np.polyfit(at, np.log(one), 1)[0]) for name, one in values.items()}
    return found


def shown(rows: list[Row]) -> str:
    names = ("seconds", "cpu_seconds")
    cells = [
        (
            f"{row['rows']:,}",
            row["stage"],
            *(f"{row[name]:.1f}" for name in names),
            f"{row['peak_gib']:.2f}",
            _facts(row),
        )
        for row in rows
    ]
    return table(("interactions", "stage", "seconds", "processor seconds", "peak, GiB", ""), cells)


def _facts(row: Row) -> str:
    left = {"stage", "seconds", "cpu_seconds", "peak_gib", "library_gib", "rows", "interactions", "date"}
    return ", ".join(f"{name} {_number(name, value)}" for name, value in row.items() if name not in left)


def _number(name: str, value: float) -> str:
    if name == "bytes":
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def figures(content: Row) -> str:
    """The part of docs/large-data.md that the rows decide."""
    rows = content["rows"]
    growth = [(stage, *(f"{value:.2f}" for value in one.values())) for stage, one in exponents(rows).items()]
    days = sorted({row["date"] for row in rows})
    return "\n\n".join(
        [
            f"`python -m {NAME}`, {' and '.join(days)}, {content['environment']['cpus']} CPUs shared with "
            "other work, so that seconds are upper bounds.",
            shown(rows),
            "Exponents over the sizes, of seconds, of processor seconds and of memory above the library's own; for "
            "lists of seconds per list:",
            table(("stage", "seconds", "processor seconds", "memory"), growth),
        ]
    )


MARKS = ("<!-- figures: benchmarks/speed/large_data.py writes them -->", "<!-- end of figures -->")


def write_page(path: Path, content: Row) -> None:
    """Put the figures between the marks of a page."""
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    write_text(path, f"{before}{MARKS[0]}\n\n{figures(content)}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main() -> None:
    quick = {"rows": [40_000, 160_000], "steps": 2, "sample": 100, "lists": 500}
    benchmark = Benchmark(__spec__.name, __doc__, quick=quick)
    add = benchmark.parser.add_argument
    add("--rows", nargs="+", type=int, default=[10**6, 10**7], help="interactions of each size")
    add("--steps", type=int, default=10, help="training steps of the epoch; default: 10")
    add("--sample", type=int, default=1000, help="users of validation and test; default: 1000")
    add("--lists", type=int, default=10**6, help="most users with lists; default: a million")
    add("--stages", nargs="+", default=list(STAGES), metavar="STAGE", help="default: all; each needs those before it")
    add("--folder", type=Path, help="where the files are made; default: a temporary folder")
    add("--keep", action="store_true", help="leave the files there, for the stages of a later call")
    add("--page", type=Path, help="also put the figures into this page (docs/large-data.md)")
    options = benchmark.parse()
    benchmark.check("--stages", options.stages, list(STAGES))
    if options.keep and options.folder is None:
        benchmark.parser.error("--keep must have a --folder, got none")
    rows = [] if options.quick else benchmark.held()
    for made in (row for size in options.rows for row in stages_of(size, options)):
        rows = [row for row in rows if (row["rows"], row["stage"]) != (made["rows"], made["stage"])]
        rows = sorted([*rows, made], key=lambda row: (row["rows"], list(STAGES).index(row["stage"])))
        benchmark.write(rows=rows, exponents=exponents(rows))  # after every stage: the next may take an hour, or fail
    content = {**benchmark.facts(), "rows": rows}
    print("", figures(content), sep="\n")
    if options.page:
        write_page(options.page, content)


def stages_of(size: int, options: Any) -> Iterator[Row]:
    """The stages of one size, each in a new process."""
    chosen = {"rows": size, "steps": options.steps, "sample": options.sample, "lists": options.lists}
    with ExitStack() as opened:
        if options.keep:
            folder = options.folder / str(size)
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        for stage in options.stages:
            row = {"rows": size, "date": today(), **apart(measure, stage, folder, chosen)}
            print(shown([row]).splitlines()[-1], flush=True)
            yield row


if __name__ == "__main__":
    main()
