"""The paper's table of links: GCN with BCE, SL and SL@20 on Cora and Citeseer, beside heuristics and stronger models.

    python -m benchmarks.quality.links [--quick] [--data citeseer cora] [--methods LABEL ...] [--seeds 0 1 2 3 4]
        [--page] [--json FILE]

The named datasets of ``topshelf data list --task links``, which says where to get them. Citeseer has HeaRT's split and
negatives. HeaRT's files of Cora could not be had: it is split 85/5/10 by seed 0, and its negatives are made by their
recipe.

Protocol: HeaRT's. 500 hard negatives per edge, rank as the mean of the optimistic and the pessimistic one, the epoch
chosen by validation MRR. Every loss of the GCN has a grid of 4 points, tried with seed 0 on train and validation
alone (the test part is not read); then every seed is trained with the best point. GCN as published with HeaRT (1 layer,
256 wide, dropout 0.5, batches of 1024 edges that are taken out of the graph, gradients clipped at 1), one random pair
per edge and an MLP for BCE. The paper says nothing of scores and negatives for SL and SL@20: here cosines and 1000
nodes shared by the batch, one end of each edge asking. Rows that FILE holds already are not made again, so a stopped
call goes on where it was. ``--quick`` trains two epochs with one seed and one point of each grid. ``--page`` trains
nothing: it writes the tables of FILE into docs/links.md.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.harness import ROOT, Benchmark, Row, table
from topshelf.config import make_config, merged
from topshelf.data.graphs import LinkData
from topshelf.edge_ranks import rank_metrics
from topshelf.evaluation import Evaluation
from topshelf.files import write_text
from topshelf.statistics import paired_test
from topshelf.training import fit
from topshelf.training.build import resolve
from topshelf.training.tasks.links import LinksTask
from topshelf.tuning.runner import Parts, Runner

DATA = ("citeseer", "cora")
METRICS = ("hits@20", "mrr")
# Hits@20 and MRR of the paper's table 7.
PAPER = {
    ("citeseer", "GCN BCE"): (0.3560, 0.1424),
    ("citeseer", "GCN SL"): (0.4989, 0.1942),
    ("citeseer", "GCN SL@20"): (0.5099, 0.1963),
    ("cora", "GCN BCE"): (0.3643, 0.1482),
    ("cora", "GCN SL"): (0.4668, 0.1772),
    ("cora", "GCN SL@20"): (0.4839, 0.1812),
}
HEURISTICS = {
    "common neighbours": "common_neighbours",
    "Adamic-Adar": "adamic_adar",
    "resource allocation": "resource_allocation",
    "Katz": "katz",
    "PageRank": "pagerank",
}
COMPARED = (("GCN SL@20", "GCN SL"), ("GCN SL@20", "GCN BCE"), ("GCN SL", "GCN BCE"))
BEGIN, END = "<!-- measured: benchmarks/quality/links.py --page -->", "<!-- end of measured -->"
TRAIN = {"batch_size": 1024, "clip_norm": 1.0, "epochs": 300, "validate_every": 2, "patience": 10}
PAIRS: Row = {"loss": {"name": "bce"}, "negatives": {"kind": "pairs", "n": 1}, "train": {"anchor": "source"}}
SHARED: Row = {
    "negatives": {"kind": "shared", "n": 1000},
    "threshold": {"estimator": "weighted", "scope": "batch"},
    "train": {"anchor": "random"},
}
RATES = (3e-4, 1e-3)
TAUS = (0.1, 0.2)
UNTRAINED = "GCN untrained"  # initial values and cosines: what the features and the graph alone are worth


class Method(NamedTuple):
    """What is trained: settings, and the values that are searched by their dotted names."""

    settings: Row
    grid: dict[str, tuple[Any, ...]]

    def points(self) -> list[Row]:
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


def _gcn(score: str, **more: Any) -> Row:
    return {"model": {"name": "gcn", "dim": 256, "dropout": 0.5, "score": score, **more}}


def _slatk(model: Row) -> Row:
    return merged(merged(SHARED, {"loss": {"name": "slatk"}}), model)


METHODS: dict[str, Method] = {
    "GCN BCE": Method(
        merged(PAIRS, _gcn("mlp")),
        {"train.learning_rate": (1e-3, 1e-2), "model.score_layers": (2, 3)},
    ),
    "GCN SL": Method(
        merged(merged(SHARED, {"loss": {"name": "softmax"}}), _gcn("cosine")),
        {"train.learning_rate": RATES, "loss.tau": TAUS},
    ),
    "GCN SL@20": Method(
        _slatk(_gcn("cosine")),
        {"train.learning_rate": RATES, "loss.tau": TAUS, "loss.tau_weight": (1.0,)},
    ),
    "SAGE SL@20": Method(
        _slatk({"model": {"name": "sage", "dim": 256, "dropout": 0.5, "score": "cosine"}}),
        {"train.learning_rate": RATES, "loss.tau": TAUS, "loss.tau_weight": (1.0,)},
    ),
    "NCN BCE": Method(
        merged(PAIRS, {"model": {"name": "ncn", "dim": 256, "dropout": 0.3}}),
        {"train.learning_rate": (1e-3,), "model.dropout": (0.3, 0.5)},
    ),
}


def config_of(data: str, settings: Row, *, seed: int = 0) -> Any:
    common = {"task": "links", "seed": seed, "k": 20, "data": {"source": data}, "train": TRAIN}
    return resolve(make_config(merged(common, settings)))


def nested(point: Row) -> Row:
    values: Row = {}
    for name, value in point.items():
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
    return values


def searched(data: str, loaded: LinkData, label: str, point: Row, quick: Row) -> Row:
    """One point of a grid with seed 0: its validation MRR."""
    config = config_of(data, merged(merged(METHODS[label].settings, nested(point)), quick))
    result = Runner(Parts.of(config, loaded)).run(config)
    row = {"data": data, "label": label, "point": point, "valid": result.score, "epoch": result.best_epoch}
    print("search", data, label, point, f"{result.score:.4f}", f"{result.seconds:.0f} s", flush=True)
    return row


def trained(data: str, loaded: LinkData, label: str, settings: Row, seed: int) -> Row:
    """One run: its metrics on validation and test, and the rank of every test edge, doubled to be whole."""
    started = time.perf_counter()
    fitted = fit(config_of(data, settings, seed=seed), loaded)
    parts = {"test": fitted.test, "valid": fitted.evaluate(part="valid")}
    return row_of(data, label, seed, parts, epoch=fitted.best_epoch, seconds=round(time.perf_counter() - started, 1))


def untrained(data: str, loaded: LinkData, seed: int) -> Row:
    """The GCN with its initial values."""
    config, task = config_of(data, METHODS["GCN SL"].settings, seed=seed), LinksTask(loaded)
    model = task.model(config)
    model.attach(task.context("train"))
    parts = {part: task.measure(model, part, config) for part in ("valid", "test")}
    return row_of(data, UNTRAINED, seed, parts)


def row_of(data: str, label: str, seed: int, parts: dict[str, Evaluation], **more: Any) -> Row:
    means = parts["test"].mean()
    metrics = {metric: means[metric] for metric in METRICS}
    print("run", data, label, seed, {metric: round(value, 4) for metric, value in metrics.items()}, flush=True)
    doubled = [round(2 / value) for value in parts["test"].per_user["mrr"].tolist()]
    known = {"data": data, "label": label, "seed": seed, **metrics, "valid_mrr": parts["valid"].mean()["mrr"]}
    return {**known, **more, "doubled_ranks": doubled}


def best_point(points: list[Row], data: str, label: str) -> Row:
    own = [row for row in points if (row["data"], row["label"]) == (data, label)]
    return max(own, key=lambda row: row["valid"])["point"]


def table_of(runs: list[Row], data: str) -> str:
    """Means and standard deviations over seeds, beside the published ones."""
    lines = []
    for label in [*HEURISTICS, UNTRAINED, *METHODS]:
        own = [run for run in runs if (run["data"], run["label"]) == (data, label)]
        if not own:
            continue
        cells = []
        for metric in METRICS:
            values = [run[metric] for run in own]
            spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.4f}{spread}")
        published = PAPER.get((data, label))
        lines.append([label, *cells, *(f"{one:.4f}" for one in published or ()), *([""] * (0 if published else 2))])
    return table(("method", "Hits@20", "MRR", "paper Hits@20", "paper MRR"), lines)


def paired(runs: list[Row], data: str, first: str, second: str) -> dict[str, Row]:
    """Paired tests over edges: metrics of every edge are means over the seeds that both have."""
    found: dict[str, Row] = {}
    for metric in METRICS:
        values = [_per_edge(runs, data, label, metric) for label in (first, second)]
        if all(value is not None for value in values):
            found[metric] = vars(paired_test(*values))
    return found


def _per_edge(runs: list[Row], data: str, label: str, metric: str) -> np.ndarray | None:
    own = [run["doubled_ranks"] for run in runs if (run["data"], run["label"]) == (data, label)]
    if not own:
        return None
    each = [rank_metrics(torch.tensor(ranks, dtype=torch.float64) / 2, (20,))[metric] for ranks in own]
    return torch.stack(each).mean(0).numpy()


def page(runs: list[Row]) -> str:
    """The tables and paired tests of all data, as docs/links.md has them."""
    parts = []
    for data in DATA:
        if not any(run["data"] == data for run in runs):
            continue
        lines = []
        for first, second in COMPARED:
            for metric, found in paired(runs, data, first, second).items():
                p_value = f"{found['p_value']:.3f}" if found["p_value"] >= 0.001 else "< 0.001"
                interval = f"{found['low']:+.4f} to {found['high']:+.4f}, p {p_value}"
                lines.append(f"- {first} minus {second}, {metric}: {found['difference']:+.4f} ({interval})")
        parts.append("\n\n".join([f"**{data.title()}**", table_of(runs, data), *(["\n".join(lines)] if lines else [])]))
    return "\n\n".join(parts)


def write_page(runs: list[Row]) -> None:
    file = ROOT / "docs" / "links.md"
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    write_text(file, f"{before}{BEGIN}\n\n{page(runs)}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    bench = Benchmark("benchmarks.quality.links", __doc__, data=DATA, known=DATA, seeds=range(5), quick={"seeds": [0]})
    labels = [*HEURISTICS, UNTRAINED, *METHODS]
    bench.parser.add_argument("--methods", nargs="+", default=labels, metavar="LABEL")
    bench.parser.add_argument("--page", action="store_true", help="write the tables of FILE into docs/links.md")
    options = bench.parse()
    if options.page:
        write_page(bench.held("runs"))
        return
    bench.check("--methods", options.methods, labels)
    torch.set_num_threads(1)
    points, runs = bench.held("points"), bench.held("runs")
    quick: Row = {"train": {"epochs": 2}} if options.quick else {}

    def kept() -> None:
        comparisons = {
            f"{data}: {first} minus {second}": paired(runs, data, first, second)
            for data in options.data
            for first, second in COMPARED
        }
        bench.write(points=points, runs=runs, paired=comparisons)

    for data in options.data:
        loaded = LinksTask.load(config_of(data, METHODS["GCN BCE"].settings))
        for label in options.methods:
            work(data, loaded, label, options, points, runs, quick, kept)
        print(f"\n{data}\n\n{table_of(runs, data)}\n", flush=True)


def work(
    data: str, loaded: LinkData, label: str, options: Any, points: list[Row], runs: list[Row], quick: Row, kept: Any
) -> None:
    """The grid and the runs of one method that are not made yet."""
    done = {(run["data"], run["label"], run["seed"]) for run in runs}
    if label in HEURISTICS:
        if (data, label, 0) not in done:
            settings = {"model": {"name": HEURISTICS[label]}, "loss": {"name": "bce"}}
            runs.append(trained(data, loaded, label, settings, 0))
            kept()
        return
    if label == UNTRAINED:
        for seed in [seed for seed in options.seeds if (data, label, seed) not in done]:
            runs.append(untrained(data, loaded, seed))
            kept()
        return
    tried = [row["point"] for row in points if (row["data"], row["label"]) == (data, label)]
    grid = METHODS[label].points()[: 1 if options.quick else None]
    for point in [point for point in grid if point not in tried]:
        points.append(searched(data, loaded, label, point, quick))
        kept()
    chosen = merged(merged(METHODS[label].settings, nested(best_point(points, data, label))), quick)
    for seed in [seed for seed in options.seeds if (data, label, seed) not in done]:
        runs.append(trained(data, loaded, label, chosen, seed))
        kept()


if __name__ == "__main__":
    main()
