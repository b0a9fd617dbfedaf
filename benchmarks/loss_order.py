"""The order of the paper's table: MF on Health with every loss at the paper's optimal hyperparameters.

    python benchmarks/loss_order.py [--quick] [--losses 'LABEL;...'] [--seeds N,...] [--jobs N] [--json FILE]

As published: d 64, pairs in batches of 1024, Adam, 200 epochs, no early stop, the epoch chosen by validation NDCG@20,
learning rate, decay and temperatures of the appendix's table. Cosine losses start at N(0, 1) as the authors' MF does,
dot losses at Xavier's values. Where the paper draws 1000 of Health's 1,200 items for each pair, all of them are taken:
the partition is scaled to 1000 (docs/losses/slatk.md); BPR draws 1 and GuidedRec 9 as released. Seeds 0, 1, ...: a
validation split and a start of its own each; both protocols. Runs that FILE holds already are not made
again. ``--quick`` trains two epochs with one seed.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record
import torch

from topshelf.config import assemble
from topshelf.training import fit

DATA = "amazon2014-health"
METRIC = "ndcg@20"
# label: loss, learning rate, the loss's settings (all with a weight decay of 0 but BPR's), published NDCG@20.
PAPER: dict[str, tuple[str, float, dict[str, Any], float]] = {
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


def settings(label: str, epochs: int) -> dict[str, Any]:
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
        "evaluate": {"auc": False, "cutoffs": [20]},
    }


def measure(task: tuple[str, int, int]) -> dict[str, Any]:
    """One loss with one seed, in a process of its own."""
    label, seed, epochs = task
    torch.set_num_threads(1)
    more = settings(label, epochs)
    fitted = fit(assemble(data=DATA, loss=more["loss"]["name"], seed=seed, more=more), quiet=True)
    found = {name: fitted.evaluate(name, (20,)).mean()[METRIC] for name in ("paper", "standard")}
    print(label, seed, found, flush=True)
    return {"label": label, "seed": seed, "epoch": fitted.best_epoch, **found}


def table(runs: list[dict[str, Any]]) -> str:
    """A row a loss in the paper's order, means over its seeds."""
    lines = ["| loss | published | `paper` | `standard` | best epochs |", "|---|---|---|---|---|"]
    for label, (_, _, _, published) in PAPER.items():
        own = sorted((run for run in runs if run["label"] == label), key=lambda run: run["seed"])
        if own:
            means = [f"{statistics.mean(run[name] for run in own):.4f}" for name in ("paper", "standard")]
            epochs = ", ".join(str(run["epoch"]) for run in own)
            lines.append(f"| {label} | {published:.4f} | {' | '.join(means)} | {epochs} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--losses", default=";".join(PAPER))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    epochs, seeds = (2, [0]) if arguments.quick else (200, [int(seed) for seed in arguments.seeds.split(",")])
    runs = record.held(arguments.json, "runs")
    done = {(run["label"], run["seed"]) for run in runs}
    wanted = [(label, seed) for seed in seeds for label in arguments.losses.split(";")]
    tasks = [(label, seed, epochs) for label, seed in wanted if (label, seed) not in done]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for waited in as_completed([pool.submit(measure, task) for task in tasks]):
            runs.append(waited.result())
            facts = {"data": DATA, "metric": METRIC, "epochs": epochs, "runs": runs}
            record.write(arguments.json, "python benchmarks/loss_order.py", **facts)
    print(table(runs))


if __name__ == "__main__":
    main()
