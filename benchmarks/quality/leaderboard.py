"""The public leaderboard of Gowalla, in LightGCN's split: Recall@20 and NDCG@20 with train masked.

    python -m benchmarks.quality.leaderboard --json benchmarks/results/leaderboard.json --work FOLDER [--parts NAME ...]

The split has no validation part: a tenth of train is held out. Every part is fitted on the rest; the weights of their
sum are chosen on what was held out, as `topshelf auto` does. The parts with a weight are fitted again on all of train,
with the same settings and number of epochs. The test part is measured once for the sum, and once for the part that
validation puts first. PUBLISHED is the best row of the public leaderboard and our own row before there was a blend.
Finished fits are kept in ``--work``: the same command goes on where it was stopped. ``--valid`` stops before the test
part is measured. ``--quick`` takes item-kNN and sparse EASE.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Row
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
    "iALS": {"model": {"name": "ials", "dim": 128, "iterations": 8}},
    "MF, softmax": {
        "model": {"name": "mf", "dim": 256}, "loss": {"name": "softmax", "tau": 0.08}, "train": TRAIN,
    },
    "MF, SL@20": {
        "model": {"name": "mf", "dim": 64}, "loss": {"name": "slatk", "tau": 0.1, "tau_weight": 1.0},
        "threshold": {"every": 5}, "train": TRAIN,
    },
}  # fmt: skip
DEFAULT, QUICK = ("sparse EASE", "graph filter", "MF, softmax", "MF, SL@20"), ("item-kNN", "sparse EASE")


def source() -> str:
    """Train and test as the leaderboard has them, in TOPSHELF_DATA."""
    path = Path(os.environ["TOPSHELF_DATA"]) / "recommendation" / f"{NAME}.zip"
    if not path.exists():
        raise SystemExit(f"{NAME}.zip (train.tsv, test.tsv) must be in TOPSHELF_DATA/recommendation, got {path}")
    return str(path)


def config_of(part: str) -> RunConfig:
    settings = PARTS[part]
    more = {**settings, "evaluate": {"cutoffs": [K], "auc": False}}
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
    add("--valid", action="store_true", help="stop before the test part is measured")
    options = bench.parse()
    bench.check("--parts", options.parts, list(PARTS))
    dataset = load_dataset(config_of(options.parts[0]))
    options.work.mkdir(parents=True, exist_ok=True)
    fits = {part: made(part, dataset, options.work / _folder(part)) for part in options.parts}
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
