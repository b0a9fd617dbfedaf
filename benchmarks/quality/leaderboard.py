"""The public leaderboard of Gowalla, in LightGCN's split: Recall@20 and NDCG@20 with train masked.

    python -m benchmarks.quality.leaderboard --json benchmarks/results/leaderboard.json --work FOLDER [--parts NAME ...]

The split has no validation part: a tenth of train is held out. Every part is fitted on the rest; the weights of their
sum are chosen on what was held out, as `topshelf auto` does. The parts with a weight are fitted again on all of train,
with the same settings and number of epochs. The test part is measured once for the sum, and once for the part that
validation puts first. PUBLISHED is the best row of the public leaderboard and our own row before there was a blend.
Finished fits are kept in ``--work``: the same command goes on where it was stopped. ``--valid`` stops before the test
part is measured. ``--quick`` takes item-kNN and sparse EASE.

    python -m benchmarks.quality.leaderboard --json benchmarks/results/leaderboard.json --work FOLDER --choose NAME

finds the settings of a part: each point of ``GRIDS`` is fitted on what was not held out, and measured on a fifth of the
users of what was: alone, and in the sum with the ``--parts``, all with the weight 1. The test part is not read. Points
that the file has are not made again. ``PARTS`` has the point with the best sum.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Row, keep
from benchmarks.harness import table as table_of
from topshelf.blending import WeightSearch, combined
from topshelf.config import RunConfig, assemble
from topshelf.training import Fitted, fit, load, load_dataset, refit, resume, save

K, SEED, NAME = 20, 10, "gowalla-lightgcn"
PUBLISHED = {"the best published": (0.1941, 0.1617), "LightGCN, SL@20, d 64 (ours, before)": (0.1799, 0.1455)}
TRAIN = {"epochs": 40, "patience": 2, "validate_every": 4, "learning_rate": 0.1, "batch_size": 2048}
PARTS: dict[str, Row] = {
    "sparse EASE": {"model": {"name": "sparse_ease", "l2": 50.0, "neighbours": 200}},
    "graph filter": {
        "model": {"name": "graph_filter", "dim": 1024, "low_pass": 1.0, "item_power": 0.3, "neighbours": 200},
    },
    "item-kNN": {"model": {"name": "itemknn"}},
    "iALS": {"model": {"name": "ials", "dim": 256, "alpha_ratio": 30.0, "l2_ratio": 0.15, "iterations": 4}},
    "MF, softmax": {
        "model": {"name": "mf", "dim": 256}, "loss": {"name": "softmax", "tau": 0.08},
        "negatives": {"kind": "shared", "n": 4096}, "train": {**TRAIN, "batch_size": 1024},
    },
    "MF, SL@20": {
        "model": {"name": "mf", "dim": 64}, "loss": {"name": "slatk", "tau": 0.1, "tau_weight": 1.0},
        "threshold": {"every": 5}, "train": TRAIN,
    },
}  # fmt: skip
GRIDS: dict[str, list[Row]] = {
    "graph filter": [
        {"dim": dim, "low_pass": low_pass, "item_power": item_power}
        for dim, low_pass, item_power in ((512, 1.0, 0.3), (1024, 1.0, 0.3), (2048, 1.0, 0.3), (2048, 0.5, 0.3))
    ],
    "iALS": [
        {"dim": dim, "alpha_ratio": alpha, "l2_ratio": l2}
        for dim, alpha, l2 in (
            (128, 10.0, 0.6), (256, 10.0, 0.4), (256, 10.0, 0.2), (256, 30.0, 0.3), (256, 30.0, 0.15),
        )
    ],
}  # fmt: skip
SHARE = 5  # every so many-th user, in the choice of settings
DEFAULT, QUICK = ("sparse EASE", "graph filter", "iALS"), ("item-kNN", "sparse EASE")


def source() -> str:
    """Train and test as the leaderboard has them, in TOPSHELF_DATA."""
    path = Path(os.environ["TOPSHELF_DATA"]) / "recommendation" / f"{NAME}.zip"
    if not path.exists():
        raise SystemExit(f"{NAME}.zip (train.tsv, test.tsv) must be in TOPSHELF_DATA/recommendation, got {path}")
    return str(path)


def config_of(part: str, changed: Row | None = None) -> RunConfig:
    settings = PARTS[part]
    more = {**settings, "model": settings["model"] | (changed or {}), "evaluate": {"cutoffs": [K], "auc": False}}
    config = assemble(
        data=source(), model=settings["model"]["name"], loss=settings.get("loss", {}).get("name", "softmax"), k=K,
        seed=SEED, more=more,
    )  # fmt: skip
    assert isinstance(config, RunConfig)
    return config


def made(part: str, dataset: Any, folder: Path) -> Fitted:
    """The part, fitted on what was not held out; a finished one is read, one that was stopped goes on."""
    return resume(folder, quiet=False) if folder.exists() else fit(config_of(part), dataset, out=folder, quiet=False)


def refitted(fitted: Fitted, folder: Path) -> Fitted:
    """The same settings and epochs on all of train."""
    if folder.exists():
        return load(folder)
    again = refit(fitted, True, quiet=False)
    save(again, folder)
    return again


def chosen(fits: dict[str, Fitted]) -> Row:
    """Every part's own score on what was held out, and the weights of the sum with its score."""
    search = WeightSearch(list(fits.values()))
    own = [search.valid_score([float(one == part) for one in fits]) for part in fits]
    weights, score = search.weights(any_number=True) if len(fits) > 1 else ([1.0], own[0])
    rows = [
        {"part": part, "valid": valid, "weight": weight, "seconds": round(fitted.seconds, 1), "config": PARTS[part]}
        for (part, fitted), valid, weight in zip(fits.items(), own, weights, strict=True)
    ]
    return {"parts": rows, "valid": score, "scales": search.scales}


def choices(part: str, fits: dict[str, Fitted], dataset: Any, done: list[Row]) -> Iterator[Row]:
    """A row for each point of the part's grid that is not done: its score alone, and in the sum with the fits."""
    made = {json.dumps([row["part"], row["settings"], row["with"]]) for row in done}
    for settings in GRIDS[part]:
        if json.dumps([part, settings, list(fits)]) in made:
            continue
        fitted = fit(config_of(part, settings), dataset)
        search = WeightSearch([*fits.values(), fitted])
        search.users = search.users[::SHARE]
        alone, total = (search.valid_score([*[weight] * len(fits), 1.0]) for weight in (0.0, 1.0))
        row = {"part": part, "settings": settings, "with": list(fits), "alone": alone, "sum": total}
        yield {**row, "seconds": round(fitted.seconds, 1)}


def choice_table(rows: list[Row]) -> str:
    """What the grids gave."""
    lines = []
    for row in rows:
        said = ", ".join(f"{name} {value:g}" for name, value in row["settings"].items())
        lines.append([row["part"], said, f"{row['alone']:.4f}", " + ".join(row["with"]), f"{row['sum']:.4f}"])
    return table_of(("part", "settings", "alone", "in the sum with", "the sum"), lines)


def tested(fits: dict[str, Fitted], choice: Row, work: Path) -> list[Row]:
    """The test part, once for the sum and once for the part that validation puts first."""
    used = [(row, scale) for row, scale in zip(choice["parts"], choice["scales"], strict=True) if row["weight"] > 0]
    best = max(choice["parts"], key=lambda row: row["valid"])
    again = {row["part"]: refitted(fits[row["part"]], work / _folder(row["part"], "-refit")) for row, _ in used}
    rows = [{"method": best["part"], "valid": best["valid"], **_measured(again[best["part"]])}]
    if len(used) > 1:
        parts = [again[row["part"]] for row, _ in used]
        both = combined(parts, [row["weight"] for row, _ in used], [scale for _, scale in used])
        rows.append({"method": "the blend", "valid": choice["valid"], **_measured(both)})
    return rows


def _measured(fitted: Fitted) -> Row:
    mean = fitted.evaluate().mean()
    return {name: mean[name] for name in ("recall@20", "ndcg@20")}


def _folder(part: str, ending: str = "") -> str:
    return part.lower().replace(", ", "-").replace(" ", "-").replace("@", "") + ending


def table(rows: list[Row]) -> str:
    """Ours and what is published."""
    known = [[name, "", f"{recall:.4f}", f"{ndcg:.4f}"] for name, (recall, ndcg) in PUBLISHED.items()]
    ours = [[row["method"], f"{row['valid']:.4f}", f"{row['recall@20']:.4f}", f"{row['ndcg@20']:.4f}"] for row in rows]
    return table_of(("method", "validation NDCG@20", "Recall@20", "NDCG@20"), [*known, *ours])


def main() -> None:
    bench = Benchmark("benchmarks.quality.leaderboard", __doc__, seeds=(), quick={"parts": list(QUICK)})
    add = bench.parser.add_argument
    add("--work", type=Path, required=True, help="where finished fits are kept")
    add("--parts", nargs="+", default=list(DEFAULT), metavar="NAME", help=f"of: {'; '.join(PARTS)}")
    add("--choose", metavar="NAME", help=f"find the settings of a part, of: {'; '.join(GRIDS)}")
    add("--valid", action="store_true", help="stop before the test part is measured")
    options = bench.parse()
    bench.check("--parts", options.parts, list(PARTS))
    bench.check("--choose", [options.choose] if options.choose else [], list(GRIDS))
    dataset = load_dataset(config_of(options.parts[0]))
    options.work.mkdir(parents=True, exist_ok=True)
    fits = {part: made(part, dataset, options.work / _folder(part)) for part in options.parts}
    if options.choose:
        rows = bench.held("choices")
        for row in choices(options.choose, fits, dataset, rows):
            rows.append(row)
            if options.json is not None:
                keep(options.json, choices=rows)
        print(choice_table(rows))
        return
    choice = chosen(fits)
    for row in choice["parts"]:
        print(f"{row['part']}: validation NDCG@20 {row['valid']:.4f}, weight {row['weight']:g}")
    print(f"the sum: {choice['valid']:.4f}")
    if options.valid:
        return
    rows = tested(fits, choice, options.work)
    command = bench.command.replace(shlex.quote(str(options.work)), "FOLDER")
    bench.write(rows=rows, parts=choice["parts"], published=PUBLISHED, command=command)
    print(table(rows))


if __name__ == "__main__":
    main()
