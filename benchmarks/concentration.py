"""How evenly the losses spread their gradient: the paper's figure 1c, by `topshelf diagnose`.

    python benchmarks/concentration.py [--quick] [--data NAME] [--epochs N] [--without-lambda] [--json FILE] [--image F]

Every loss trains MF (d 64) for N epochs (10) from the same initial values; then the gradients of 1,000 users' training
positives are taken over the whole catalogue. docs/diagnose.md defines the three readings of "instance": the positive,
the user, the pair. SL@20 and SL have the settings that ship; SONG@20 the paper's optimum for Electronic (learning rate
0.1, gamma 0.1, eta 0.001), as a sum (the paper's formula) and as a mean; LambdaLoss@20 the shipped general ones (the
paper names no optimum here), and may be left out: its epoch costs 66 of SL's. Seed 0. Rows are added to those that FILE
holds of other data (default: Electronic) and other numbers of epochs. ``--quick``: Health, two epochs, 100 users.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from topshelf.config import assemble
from topshelf.diagnose import write
from topshelf.diagnose.run import Diagnosis, plan

SONG = """
[loss]
name = "song_at_k"
gamma = 0.1
eta = 0.001
rank = "{rank}"

[train]
learning_rate = 0.1
batch_size = 1024
"""


def measure(data: str, epochs: int, users: int, with_lambda: bool) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for rank in ("sum", "mean"):
            files.append(Path(folder) / f"song_at_k, {rank}.toml")
            files[-1].write_text(SONG.format(rank=rank), encoding="utf-8")
        losses = ["softmax", *(["lambdaloss_at_k"] if with_lambda else []), *map(str, files)]
        chosen = plan(assemble(data=data, loss="slatk"), losses=losses, users=users, epochs=epochs)
    return chosen.run(lambda text: print(text, flush=True))


def rows(found: Diagnosis) -> list[dict[str, Any]]:
    seconds = {timing.label: timing.seconds for timing in found.timings}
    return [
        {
            "data": found.data,
            "loss": one.label,
            "epochs": found.epochs,
            "positives": one.by_positive.top["5%"],
            "users": one.by_user.top["5%"],
            "pairs": one.by_pair.top["5%"],
            "decades": one.by_positive.decades,
            "more_hits": found.bounds[one.label][-1].more_hits,
            "step_over_sl": seconds[one.label] / seconds["softmax"],
        }
        for one in found.gradients
    ]


def table(result: list[dict[str, Any]]) -> str:
    lines = [
        "| data | loss | epochs | positives | users | pairs | decades | users with H > 1 | step, over SL's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result:
        shares = " | ".join(f"{row[name]:.1%}" for name in ("positives", "users", "pairs"))
        lines.append(
            f"| {row['data']} | {row['loss']} | {row['epochs']} | {shares} | {row['decades']:.1f} "
            f"| {row['more_hits']:.1%} | {row['step_over_sl']:.1f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--image", type=Path, help="where the plot of the shares goes")
    parser.add_argument("--data", default="amazon2014-electronic")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--without-lambda", action="store_true")
    arguments = parser.parse_args()
    data, users = ("amazon2014-health", 100) if arguments.quick else (arguments.data, 1000)
    epochs = 2 if arguments.quick else arguments.epochs
    found = measure(data, epochs, users, not arguments.without_lambda)
    result = _kept(arguments.json, data, epochs) + rows(found)
    print(table(result))
    if arguments.image:
        with tempfile.TemporaryDirectory() as folder:
            write(found, folder)
            arguments.image.write_bytes((Path(folder) / "gradient-concentration.svg").read_bytes())
    command = shlex.join(["python", "benchmarks/concentration.py", *sys.argv[1:]])
    record.write(arguments.json, command, users=users, seed=0, rows=result)


def _kept(file: Path | None, data: str, epochs: int) -> list[dict[str, Any]]:
    """The rows of other data and other numbers of epochs that the file holds already."""
    return [row for row in record.held(file) if (row["data"], row["epochs"]) != (data, epochs)]


if __name__ == "__main__":
    main()
