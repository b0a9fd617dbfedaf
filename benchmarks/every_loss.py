"""Every loss of the registry with MF on MovieLens-100K, as a person types it: quality, seconds and memory.

    python benchmarks/every_loss.py [--quick] [--losses NAME,...] [--json FILE]

Each row is a process of its own: `topshelf train --data movielens-100k --loss NAME --set train.epochs=20`, with the
settings that ship and nothing tuned. NDCG@20 on the test part under `standard`; seconds an epoch without validation
would be a little less; the peak is the process's, of which about 400 MiB is Python, torch and the data (popularity's
row shows it). ``--quick`` trains two epochs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from topshelf.losses import LOSSES

DATA = "movielens-100k"


def measure(epochs: int, *arguments: str) -> dict[str, Any]:
    """One run of the command line, and what its folder says."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = ["--set", f"train.epochs={epochs}", "--set", "train.patience=0", "--set", "evaluate.auc=false"]
        command = [sys.executable, "-m", "topshelf", "train", "--data", DATA]
        done = subprocess.run(
            [*command, *arguments, *settings, "--quiet", "--out", str(out)], check=False, capture_output=True, text=True
        )
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


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| loss | NDCG@20 | over popularity | seconds an epoch | peak MiB |", "|---|---|---|---|---|"]
    floor = rows[0]["ndcg"]
    for row in rows:
        over = "" if row is rows[0] else f"{row['ndcg'] / floor:.2f}x"
        seconds = f"{row['seconds']:.3f}" if row["epochs"] else ""
        lines.append(f"| {row['name']} | {row['ndcg']:.4f} | {over} | {seconds} | {row['peak_mib']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    epochs = 2 if arguments.quick else 20
    rows = [{"name": "popularity", **measure(epochs, "--model", "popularity")}]
    for name in arguments.losses.split(","):
        rows.append({"name": name, **measure(epochs, "--loss", name)})
        print(rows[-1], flush=True)
    print(table(rows))
    facts = {"data": DATA, "epochs": epochs, "seed": 0, "protocol": "standard", "rows": rows}
    record.write(arguments.json, "python benchmarks/every_loss.py", **facts)


if __name__ == "__main__":
    main()
