"""Every loss of the registry with MF on MovieLens-100K, by the command line: quality, seconds and memory.

    python -m benchmarks.quality.every_loss [--quick] [--losses NAME ...] [--json FILE]

Each row is a new process: `topshelf train --data movielens-100k --loss NAME --set train.epochs=20`, with the settings
that ship and nothing tuned. NDCG@20 on the test part under `standard`; seconds per epoch include the validations; the
peak is that of the process, of which about 400 MiB is Python, torch and the data (popularity's row shows it).
``--quick`` trains two epochs with the first three losses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import MOVIELENS, Benchmark, Row
from benchmarks.harness import table as table_of
from topshelf.losses import LOSSES

HEADS = ("loss", "NDCG@20", "over popularity", "seconds per epoch", "peak MiB")


def measure(epochs: int, *arguments: str) -> Row:
    """One run of the command line, and the numbers of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "topshelf", "train", "--data", MOVIELENS, *arguments]
        for setting in (f"train.epochs={epochs}", "train.patience=0", "evaluate.auc=false"):
            command += ["--set", setting]
        done = subprocess.run([*command, "--quiet", "--out", str(out)], check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
        metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        log = (out / "log.jsonl").read_text(encoding="utf-8").splitlines() if (out / "log.jsonl").exists() else []
    return {
        "ndcg": metrics["test"]["ndcg@20"],
        "epochs": len(log),
        "seconds": metrics["seconds"] / max(1, len(log)),
        "peak_mib": metrics["peak_mib"],
    }


def table(rows: list[Row]) -> str:
    """Popularity, which has no loss, comes first."""
    lines = []
    for row in rows:
        over = "" if row is rows[0] else f"{row['ndcg'] / rows[0]['ndcg']:.2f}x"
        seconds = f"{row['seconds']:.3f}" if row["epochs"] else ""
        lines.append([row["name"], f"{row['ndcg']:.4f}", over, seconds, f"{row['peak_mib']:.0f}"])
    return table_of(HEADS, lines)


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"losses": list(LOSSES)[:3]})
    benchmark.parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES), metavar="NAME")
    options = benchmark.parse()
    epochs = 2 if options.quick else 20
    rows = [{"name": "popularity", **measure(epochs, "--model", "popularity")}]
    for name in options.losses:
        rows.append({"name": name, **measure(epochs, "--loss", name)})
        print(rows[-1], flush=True)
    print(table(rows))
    benchmark.write(data=MOVIELENS, epochs=epochs, seed=0, protocol="standard", rows=rows)


if __name__ == "__main__":
    main()
