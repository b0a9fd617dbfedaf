"""How evenly the losses spread their gradient: the paper's figure 1c, by `topshelf diagnose`.

    python -m benchmarks.studies.concentration [--quick] [--data NAME ...] [--epochs N] [--without-lambda]
        [--json FILE] [--image FILE]

Every loss trains MF (d 64) for N epochs (10) from the same initial values; then the gradients of 1,000 users' training
positives are taken over the whole catalogue. docs/diagnose.md defines the three readings of "instance": the positive,
the user, the pair. SL@20 and SL have the settings that ship; SONG@20 the paper's optimum for Electronic (learning rate
0.1, gamma 0.1, eta 0.001), as a sum (the paper's formula) and as a mean; LambdaLoss@20 the shipped general ones (the
paper names no optimum here), and may be left out: its epoch costs 66 of SL's. Seed 0. Rows are added to those that FILE
holds of other data (default: Electronic) and other numbers of epochs. ``--quick``: Health, two epochs, 100 users.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import ELECTRONIC, HEALTH, Benchmark, Row
from benchmarks.harness import table as table_of
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


def rows(diagnosis: Diagnosis) -> list[Row]:
    seconds = {timing.label: timing.seconds for timing in diagnosis.timings}
    return [
        {
            "data": diagnosis.data,
            "loss": one.label,
            "epochs": diagnosis.epochs,
            "positives": one.by_positive.top["5%"],
            "users": one.by_user.top["5%"],
            "pairs": one.by_pair.top["5%"],
            "decades": one.by_positive.decades,
            "more_hits": diagnosis.bounds[one.label][-1].more_hits,
            "step_over_sl": seconds[one.label] / seconds["softmax"],
        }
        for one in diagnosis.gradients
    ]


def table(result: list[Row]) -> str:
    heads = ("data", "loss", "epochs", "positives", "users", "pairs", "decades", "users with H > 1", "step, over SL's")
    lines = []
    for row in result:
        shares = [f"{row[name]:.1%}" for name in ("positives", "users", "pairs")]
        rest = [f"{row['decades']:.1f}", f"{row['more_hits']:.1%}", f"{row['step_over_sl']:.1f}x"]
        lines.append([row["data"], row["loss"], row["epochs"], *shares, *rest])
    return table_of(heads, lines)


def main() -> None:
    quick = {"data": [HEALTH], "epochs": 2}
    benchmark = Benchmark(__spec__.name, __doc__, data=(ELECTRONIC,), quick=quick)
    add = benchmark.parser.add_argument
    add("--image", type=Path, help="where the plot of the shares goes")
    add("--epochs", type=int, default=10, help="default: 10")
    add("--without-lambda", action="store_true")
    options = benchmark.parse()
    users = 100 if options.quick else 1000
    result = benchmark.held()
    for data in options.data:
        diagnosis = measure(data, options.epochs, users, not options.without_lambda)
        result = [row for row in result if (row["data"], row["epochs"]) != (data, options.epochs)] + rows(diagnosis)
    print(table(result))
    if options.image:
        with tempfile.TemporaryDirectory() as folder:
            write(diagnosis, folder)
            options.image.write_bytes((Path(folder) / "gradient-concentration.svg").read_bytes())
    benchmark.write(users=users, seed=0, rows=result)


if __name__ == "__main__":
    main()
