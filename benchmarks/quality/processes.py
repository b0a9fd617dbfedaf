"""Two processes equal one: the loss of every epoch and the final NDCG@20, with whole and with divided item tables.

    python -m benchmarks.quality.processes [--quick] [--data amazon2014-health amazon2014-electronic] [--seeds 0 1 2]
        [--methods LABEL ...] [--epochs 50] [--page] [--json FILE]

Every method is trained by ``topshelf train`` with the shipped settings, a fixed number of epochs and no early stop
(``--epochs``; fewer make the final metrics those of a model that is not done, and the table says how many), so that
the runs differ in nothing but their processes: one; two, each with all items; two, each with half of the items
(``train.shard_items``). One thread per process. A row has the loss of every epoch, the validation NDCG@20 and the test
NDCG@20 of the best epoch. The noise that a difference is compared with is the standard deviation over the seeds of one
process. Rows that FILE holds already are not made again. ``--quick`` trains two epochs of one method with one seed.
``--page`` trains nothing: it writes the table of FILE into docs/scale-out.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ELECTRONIC, HEALTH, ROOT, Benchmark, Row, table
from topshelf.files import write_text

METHODS = {
    "MF, SL": ("mf", "softmax"),
    "MF, SL@20": ("mf", "slatk"),
    "MF, BPR": ("mf", "bpr"),
    "LightGCN, SL@20": ("lightgcn", "slatk"),
    "history, SL": ("history", "softmax"),
}
WORLDS = {
    "one": [],
    "two": ["--processes", "2"],
    "two, sliced": ["--processes", "2", "--set", "train.shard_items=true"],
}
BEGIN, END = "<!-- measured: benchmarks/quality/processes.py --page -->", "<!-- end of quality -->"


def trained(data: str, seed: int, label: str, world: str, epochs: int) -> Row:
    """One run, as a person would start it."""
    model, loss = METHODS[label]
    settings = [f"train.epochs={epochs}", "train.patience=0", "evaluate.auc=false", "evaluate.cutoffs=[20]"]
    if model == "history":
        settings.append("model.dim=64")
    given = [part for one in settings for part in ("--set", one)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["--data", data, "--model", model, "--loss", loss, "--k", "20", "--seed", str(seed), "--quiet"]
        command = [sys.executable, "-m", "topshelf", "train", *words, *given, *WORLDS[world], "--out", str(out)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        done = subprocess.run(command, env=one_thread, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        metrics = json.loads((out / "metrics.json").read_text())
    scores = {str(record["epoch"]): record["ndcg@20"] for record in log if "ndcg@20" in record}
    row = {"data": data, "seed": seed, "label": label, "world": world, "epochs": epochs}
    row |= {"loss": [record["loss"] for record in log], "valid": scores, "test": metrics["test"]["ndcg@20"]}
    print(data, seed, label, world, f"{row['test']:.4f}", f"{metrics['seconds']:.0f} s", flush=True)
    return row


def compared(rows: list[Row]) -> str:
    """For each method: the largest relative difference of a loss from one process, and the final metrics."""
    lines = []
    found = {(row["data"], row["epochs"], row["label"], row["world"], row["seed"]): row for row in rows}
    for data, epochs in dict.fromkeys((row["data"], row["epochs"]) for row in rows):
        for label in METHODS:
            here = (data, epochs, label)
            alone = {key[-1]: row for key, row in found.items() if key[:-1] == (*here, "one")}
            if not alone:
                continue
            noise = f"{statistics.stdev(row['test'] for row in alone.values()):.4f}" if len(alone) > 1 else "-"
            cells = [*here, len(alone), f"{statistics.mean(row['test'] for row in alone.values()):.4f}", noise]
            for world in list(WORLDS)[1:]:
                pairs = [(alone[s], found[*here, world, s]) for s in alone if (*here, world, s) in found]
                cells += _differences(pairs)
            lines.append(cells)
    heads = ["data", "epochs", "method", "seeds", "NDCG@20 of one process", "sd over seeds"]
    for world in list(WORLDS)[1:]:
        heads += [f"{world}: loss, first 10 epochs", f"{world}: loss, all epochs", f"{world}: NDCG@20"]
    return table(heads, lines)


def _differences(pairs: list[tuple[Row, Row]]) -> list[str]:
    if not pairs:
        return ["-", "-", "-"]
    apart = [[abs(a - b) / abs(a) for a, b in zip(one["loss"], two["loss"], strict=True)] for one, two in pairs]
    test = statistics.mean(two["test"] - one["test"] for one, two in pairs)
    return [f"{max(max(each[:10]) for each in apart):.0e}", f"{max(map(max, apart)):.0e}", f"{test:+.4f}"]


def write_page(rows: list[Row]) -> None:
    page = ROOT / "docs" / "scale-out.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    write_text(page, f"{before}{BEGIN}\n\n{compared(rows)}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    quick = {"data": [HEALTH], "seeds": [0], "methods": ["MF, SL@20"], "epochs": 2}
    benchmark = Benchmark(
        "benchmarks.quality.processes",
        __doc__,
        data=(HEALTH, ELECTRONIC),
        known=(HEALTH, ELECTRONIC),
        seeds=(0, 1, 2),
        quick=quick,
    )
    benchmark.parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="LABEL")
    benchmark.parser.add_argument("--epochs", type=int, default=50, help="of every run; default: 50")
    benchmark.parser.add_argument("--page", action="store_true", help="write the table into docs/scale-out.md")
    options = benchmark.parse()
    benchmark.check("--methods", options.methods, list(METHODS))
    rows: list[Row] = benchmark.held()
    if options.page:
        write_page(rows)
        return
    for data in options.data:
        for seed in options.seeds:
            for label in options.methods:
                for world in WORLDS:
                    key = {"data": data, "seed": seed, "label": label, "world": world, "epochs": options.epochs}
                    if not any(key.items() <= row.items() for row in rows):
                        rows.append(trained(data, seed, label, world, options.epochs))
                        benchmark.write(rows=rows)
    print(compared(rows))


if __name__ == "__main__":
    main()
