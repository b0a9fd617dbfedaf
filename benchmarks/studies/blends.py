"""Blends of the models of the plan ``best``: what they give on test, and how many models to blend.

    python -m benchmarks.studies.blends [--quick] [--data NAME ...] [--seeds 0 1 2] [--jobs 2] [--json FILE]
    python -m benchmarks.studies.blends --sizes [--quick] [--data NAME ...] [--seeds 20 21 22 23] [--json FILE]

The models are those of docs/results/best (``--best``), each with the settings that were chosen for it; one per model,
with its better loss by the score of its search. Without ``--sizes``: weighted sums (``topshelf blend``) of the four
that validation puts first, refitted, NDCG@20 on test under ``standard``. With ``--sizes``: the same models trained on
train alone, on validation splits that were not tuned on. One half of the users chooses the order and the weights, as
``topshelf blend`` does; NDCG@20 is of the other half; then the halves change places. For comparison, the same models
with the weight 1 each; the test part is not measured. Large datasets have the first seed only. Rows that FILE holds
already are not made again. ``--quick``: MovieLens-100K, one seed, four epochs.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch import Tensor

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, ROOT, Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.trained import METRIC
from topshelf.bench import read_plan, read_report
from topshelf.bench.plan import Case, cases, values_of
from topshelf.blending import WeightSearch, blend
from topshelf.config import assemble, merged, overrides
from topshelf.training import fit
from topshelf.training.run import Fitted

BEST = ROOT / "docs" / "results" / "best"
DATA = (HEALTH, ELECTRONIC, MOVIELENS, FOOD)
SMALL = (HEALTH, MOVIELENS)
SEEDS, OTHER_SEEDS = (0, 1, 2), (20, 21, 22, 23)
BLENDED, MOST = 4, 5
RULES = ("chosen", "all 1")


@cache
def places() -> dict[tuple[str, str], Case]:
    """The cases of the plan, by dataset and name."""
    return {(case.data.source, name_of(case)): case for case in cases(read_plan("best")[1])}


def name_of(case: Case) -> str:
    assert case.group is not None
    return case.method.label if case.group.own else f"{case.group.label} {case.method.label}"


def measured(folder: Path) -> list[Row]:
    """A row per method and dataset: test scores, and the settings and the score of its search."""
    runs = read_report(folder).results.runs
    rows = []
    for (data, name), case in places().items():
        assert case.group is not None
        own = [run for run in runs if (run.data, run.group, run.method) == _labels(case)]
        if own:
            scores = [run.metrics["standard"][METRIC] for run in own]
            row: Row = {"data": data, "method": name, "is_classic": case.group.own, "standard": statistics.mean(scores)}
            facts = own[0].facts
            tuned = {"settings": facts["settings"], "valid": facts["score"]} if facts.get("settings") else {}
            rows.append(row | tuned)
    return rows


def _labels(case: Case) -> tuple[str, str, str]:
    assert case.group is not None
    return case.data.label, case.group.label, case.method.label


def ranked(rows: Sequence[Row], data: str) -> list[Row]:
    """The rows of a dataset by validation score, best first; one per model, with its better loss."""
    own = [row for row in rows if row["data"] == data and "valid" in row]
    found = {_model(row) for row in own}
    wanted = {_model({"data": data, "method": name}) for source, name in places() if source == data}
    if missing := wanted - {"popularity"} - found:
        raise SystemExit(f"best must hold every model on {data}; it lacks {', '.join(sorted(missing))}")
    best: dict[str, Row] = {}
    for row in sorted(own, key=lambda row: -row["valid"]):
        best.setdefault(_model(row), row)
    return list(best.values())


def _model(row: Row) -> str:
    case = places()[row["data"], row["method"]]
    return str(values_of(read_plan("best")[1], case)["model"]["name"])


def fitted(row: Row, seed: int, more: Row) -> Fitted:
    """A method with the settings that were chosen for it."""
    chosen = overrides(row["settings"].split())
    values = merged(values_of(read_plan("best")[1], places()[row["data"], row["method"]]), chosen)
    return fit(assemble(more=merged(merged(values, more), {"seed": seed})))


def measure(asked: tuple[str, tuple[int, ...], list[Row], Row]) -> Row:
    """The blend of the first four, on test."""
    data, seeds, rows, more = asked
    started, runs, parts = time.perf_counter(), [], rows[:BLENDED]
    for seed in seeds:
        blended = blend([fitted(row, seed, more) for row in parts])
        score = blended.evaluate("standard", (20,)).mean()[METRIC]  # the paper's protocol is for models not refitted
        weights = blended.config.model.settings["weights"]
        runs.append({"seed": seed, "weights": weights, "valid": blended.valid_score, "standard": score})
    names = [row["method"] for row in parts]
    print(data, names, [(run["weights"], round(run["standard"], 4)) for run in runs], flush=True)
    return {"data": data, "parts": names, "runs": runs, "seconds": round(time.perf_counter() - started, 1)}


def measure_sizes(asked: tuple[str, tuple[int, ...], list[Row], Row]) -> Row:
    """The scores of every number of models, on one validation split."""
    data, (seed,), rows, more = asked
    search = WeightSearch([fitted(row, seed, merged(more, {"train": {"refit": False}})) for row in rows])
    halves = search.users[::2], search.users[1::2]
    scores = [by_size(search, *both) for both in (halves, halves[::-1])]
    means = {
        rule: [statistics.mean(of_size) for of_size in zip(*(half[rule] for half in scores), strict=True)]
        for rule in RULES
    }
    print(data, seed, *(f"{rule}: " + " ".join(f"{score:.4f}" for score in means[rule]) for rule in RULES), flush=True)
    return {"data": data, "seed": seed, "methods": [row["method"] for row in rows], **means}


def by_size(search: WeightSearch, chooses: Tensor, judges: Tensor) -> dict[str, list[float]]:
    """NDCG@20 of the users who judge: of the best model alone, of the best two, and so on, up to ``MOST``."""
    n_parts = len(search.encoded)
    alone = [some(search, [part], chooses).valid_score([1.0]) for part in range(n_parts)]
    order = sorted(range(n_parts), key=lambda part: -alone[part])
    scores: dict[str, list[float]] = {rule: [] for rule in RULES}
    for size in range(1, min(MOST, n_parts) + 1):
        first = order[:size]
        weights = some(search, first, chooses).weights()[0] if size > 1 else [1.0]
        judge = some(search, first, judges)
        scores["chosen"].append(judge.valid_score(weights))
        scores["all 1"].append(judge.valid_score([1.0] * size))
    return scores


def some(search: WeightSearch, parts: Sequence[int], users: Tensor) -> WeightSearch:
    """The search, of some models and some users."""
    smaller = copy.copy(search)
    smaller.encoded = [search.encoded[part] for part in parts]
    smaller.scales = [search.scales[part] for part in parts]
    smaller.users = users
    return smaller


def compared(best: Sequence[Row], blends: Sequence[Row]) -> list[Row]:
    """Per dataset: the classic that *test* puts first, the trained model that validation chooses, the blend."""
    rows = []
    for row in sorted(blends, key=lambda row: DATA.index(row["data"])):
        own = [other for other in best if other["data"] == row["data"]]
        classic = max((other for other in own if other["is_classic"]), key=lambda other: other["standard"])
        trained = max((other for other in own if not other["is_classic"]), key=lambda other: other["valid"])
        rows.append(
            {
                "data": row["data"],
                "classic": classic["standard"],
                "trained": trained["standard"],
                "blend": statistics.mean(run["standard"] for run in row["runs"]),
                "names": (classic["method"], trained["method"]),
            }
        )
    return rows


def table(best: Sequence[Row], blends: Sequence[Row]) -> str:
    """One row per dataset, with the gain of the blend."""
    lines = []
    for row in compared(best, blends):
        names = [f"{row[kind]:.4f} ({name})" for kind, name in zip(("classic", "trained"), row["names"], strict=True)]
        lines.append([row["data"], *names, f"{row['blend']:.4f}", f"{row['blend'] / row['classic'] - 1:+.1%}"])
    trained_head = "the trained model that validation chooses"
    return table_of(("data", "the best classic", trained_head, "the blend", "over the best classic"), lines)


def sizes_table(rows: Sequence[Row]) -> str:
    """One line per dataset and rule: the mean over splits for each number of models."""
    sizes = range(1, len(rows[0][RULES[0]]) + 1)
    lines = []
    for data in (name for name in DATA if any(row["data"] == name for row in rows)):
        for rule in RULES:
            splits = [row[rule] for row in rows if row["data"] == data]
            means = [statistics.mean(of_size) for of_size in zip(*splits, strict=True)]
            lines.append([data, rule, *(f"{mean:.4f}" for mean in means)])
    return table_of(("data", "weights", *map(str, sizes)), lines)


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, known=DATA, jobs=2, quick={"data": [MOVIELENS]})
    add = benchmark.parser.add_argument
    add("--sizes", action="store_true", help="how many to blend, on validation")
    add("--seeds", nargs="+", type=int, metavar="N", help="default: 0 1 2, with --sizes 20 21 22 23")
    add("--best", type=Path, default=BEST, metavar="FOLDER", help="a report of topshelf bench report best")
    options = benchmark.parse()
    options.seeds = options.seeds or list(OTHER_SEEDS if options.sizes else SEEDS)
    best, rows = measured(options.best), benchmark.held()
    more = {"train": {"epochs": 4}} if options.quick else {}
    tasks = []
    for data in options.data:
        seeds = tuple(options.seeds if data in SMALL and not options.quick else options.seeds[:1])
        done = {(row["data"], row.get("seed")) for row in rows}
        for part in [(seed,) for seed in seeds] if options.sizes else [seeds]:
            if (data, part[0] if options.sizes else None) not in done:
                tasks.append((data, part, ranked(best, data), more))
    for row in each(measure_sizes if options.sizes else measure, tasks, options.jobs):
        rows.append(row)
        benchmark.write(metric="validation ndcg@20" if options.sizes else "test ndcg@20, standard", rows=rows)
    print(sizes_table(rows) if options.sizes else table(best, rows))


if __name__ == "__main__":
    main()
