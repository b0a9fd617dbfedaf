"""The order of the paper's table: MF on Health with every loss at the paper's optimal hyperparameters.

    python -m benchmarks.quality.loss_order [--quick] [--losses LABEL ...] [--seeds 0 1] [--jobs 2] [--json FILE]

As published: d 64, pairs in batches of 1024, Adam, 200 epochs, no early stop, the epoch chosen by validation NDCG@20,
learning rate, decay and temperatures of the appendix's table. Cosine losses start at N(0, 1) as the authors' MF does,
dot losses at Xavier's values. Where the paper draws 1000 of Health's 1,200 items for each pair, all of them are taken:
the partition is scaled to 1000 (docs/losses/slatk.md); BPR draws 1 and GuidedRec 9 as released. Every
seed has its own validation split and start; both protocols. Runs that FILE holds already are not made again.
``--quick`` trains two epochs with one seed and three losses.
"""

from __future__ import annotations

import statistics

from benchmarks.harness import HEALTH, Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.trained import METRIC, TEST_AT_20
from topshelf.config import assemble
from topshelf.training import fit

# label: loss, learning rate, the loss's settings (all with a weight decay of 0 but BPR's), published NDCG@20.
PAPER: dict[str, tuple[str, float, Row, float]] = {
    "SL@20": ("slatk", 0.1, {"tau": 0.2, "tau_weight": 2.5}, 0.1390),
    "PSL": ("psl", 0.1, {"tau": 0.1}, 0.1268),
    "BSL": ("bsl", 0.1, {"tau1": 0.2, "tau2": 0.2}, 0.1261),
    "SL": ("softmax", 0.1, {"tau": 0.2}, 0.1261),
    "AdvInfoNCE": ("advinfonce", 0.1, {"tau": 0.2}, 0.1237),
    "BPR": ("bpr", 0.001, {}, 0.1234),
    "LLPAUC": ("llpauc", 0.1, {"alpha": 0.7, "beta": 0.01}, 0.1209),
    "LLPAUC, link = none": ("llpauc", 0.1, {"alpha": 0.7, "beta": 0.01, "link": "none"}, 0.1209),
    "GuidedRec": ("guidedrec", 0.01, {"surrogate_rate": 0.001}, 0.1093),
    "SONG@20": ("song_at_k", 0.1, {"gamma": 0.9, "eta": 0.001}, 0.0650),
    "SONG@20, rank = mean": ("song_at_k", 0.1, {"gamma": 0.9, "eta": 0.001, "rank": "mean"}, 0.0650),
}


def settings(label: str, epochs: int) -> Row:
    loss, rate, own, _ = PAPER[label]
    is_dot = loss == "bpr"
    return {
        "model": {"dim": 64, "init": "xavier" if is_dot else "normal"},
        "loss": {"name": loss, **own},
        "negatives": {} if loss in ("bpr", "guidedrec") else {"kind": "catalogue"},
        "threshold": {"every": 5},
        "train": {
            "order": "pair",
            "batch_size": 1024,
            "learning_rate": rate,
            "weight_decay": 1e-4 if is_dot else 0.0,
            "epochs": epochs,
            "patience": 0,
        },
        **TEST_AT_20,
    }


def measure(task: tuple[str, int, int]) -> Row:
    """One loss with one seed."""
    label, seed, epochs = task
    more = settings(label, epochs)
    fitted = fit(assemble(data=HEALTH, loss=more["loss"]["name"], seed=seed, more=more))
    scores = {name: fitted.evaluate(name, (20,)).mean()[METRIC] for name in ("paper", "standard")}
    print(label, seed, scores, flush=True)
    return {"label": label, "seed": seed, "epoch": fitted.best_epoch, **scores}


def table(runs: list[Row]) -> str:
    """One row per loss in the paper's order, means over its seeds."""
    lines = []
    for label, (_, _, _, published) in PAPER.items():
        own = sorted((run for run in runs if run["label"] == label), key=lambda run: run["seed"])
        if own:
            means = [f"{statistics.mean(run[name] for run in own):.4f}" for name in ("paper", "standard")]
            lines.append([label, f"{published:.4f}", *means, ", ".join(str(run["epoch"]) for run in own)])
    return table_of(("loss", "published", "`paper`", "`standard`", "best epochs"), lines)


def main() -> None:
    labels = list(PAPER)
    benchmark = Benchmark(__spec__.name, __doc__, seeds=(0, 1), jobs=2, quick={"seeds": [0], "losses": labels[:3]})
    benchmark.parser.add_argument("--losses", nargs="+", default=labels, choices=labels, metavar="LABEL")
    options = benchmark.parse()
    epochs, runs = 2 if options.quick else 200, benchmark.held("runs")
    done = {(run["label"], run["seed"]) for run in runs}
    wanted = [(label, seed) for seed in options.seeds for label in options.losses]
    tasks = [(label, seed, epochs) for label, seed in wanted if (label, seed) not in done]
    for run in each(measure, tasks, options.jobs):
        runs.append(run)
        benchmark.write(data=HEALTH, metric=METRIC, protocol=["paper", "standard"], epochs=epochs, runs=runs)
    print(table(runs))


if __name__ == "__main__":
    main()
