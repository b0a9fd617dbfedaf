"""Tables of users and items in bfloat16: does the rounding cost NDCG@20?

    python -m benchmarks.studies.bfloat16_tables [--quick] [--data NAME ...] [--seeds 0 1 2] [--json FILE]
    python -m benchmarks.studies.bfloat16_tables --page --json FILE

MF with SL@20 by ``row_adam``, the settings of ``benchmarks.studies.approximate`` at 0.3 of its learning rate; over the
exact catalogue, and by rows with the batch's items and uniform draws. After every step the numbers of both tables are
rounded to bfloat16: to the nearest, or up or down at random with the probabilities that keep the mean (stochastic
rounding); once also the optimizer's two moments. The arithmetic of a step stays in float32, and nothing is saved: this
says what a rounding does. ``model.tables = "bfloat16"``, the last column, is the setting that keeps tables and moments
in bfloat16, with stochastic rounding and gradients of bfloat16. Early stopping on validation NDCG@20 (every 5 epochs,
40 without a better one); the test NDCG@20 is that of the best epoch, train masked. ``--page`` writes the table of FILE
into docs/scaling.md. ``--quick``: MovieLens-100K, five epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import HEALTH, MOVIELENS, Benchmark, Row, mean_and_spread, table, write_page
from benchmarks.studies.approximate import EXACT, SHIPPED, settings_of, sources
from benchmarks.trained import trainer, validation
from topshelf.config import assemble, merged
from topshelf.data import load_split
from topshelf.training.batches import stream
from topshelf.training.build import resolve
from topshelf.training.trainer import Trainer

DRAWN, RATE, EPOCHS, PATIENCE, EVERY = 100, 0.3, 200, 40, 5
BEGIN, END = "<!-- measured: benchmarks/studies/bfloat16_tables.py --page -->", "<!-- end of bfloat16 -->"
NEGATIVES = (EXACT, f"in batch + {DRAWN} uniform")
SETTING = 'model.tables = "bfloat16"'
ROUNDINGS = ("float32", "nearest", "stochastic", "stochastic, moments too", SETTING)


def nearest(values: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    return values.bfloat16().float()


def stochastic(values: Tensor, generator: torch.Generator) -> Tensor:
    """The lower 16 bits of float32 as the probability of the next number away from 0."""
    bits = values.view(torch.int32)
    noise = torch.randint(1 << 16, bits.shape, generator=generator, dtype=torch.int32)
    return ((bits + noise) & -(1 << 16)).view(torch.float32)


@torch.no_grad()
def round_tables(run: Trainer, rounding: str, generator: torch.Generator) -> None:
    if rounding in ("float32", SETTING):
        return
    rounded = nearest if rounding == "nearest" else stochastic
    for parameter in run.model.parameters():
        parameter.copy_(rounded(parameter, generator))
        if rounding.endswith("too"):
            for name in ("mean", "square"):
                moment = run.optimizer.state[parameter][name]
                moment.copy_(rounded(moment, generator))


def trained(data: str, seed: int, negatives: str, rounding: str, epochs: int) -> Row:
    split = load_split(data, seed=seed).split
    train = split.train.ragged()
    more = merged(SHIPPED, settings_of(sources(DRAWN)[negatives], DRAWN))
    rate = SHIPPED["train"]["learning_rate"] * RATE
    more = merged(more, {"train": {"optimizer": "row_adam", "learning_rate": rate, "epochs": epochs}})
    more = merged(more, {"model": {"tables": "bfloat16" if rounding == SETTING else "float32"}})
    config = resolve(assemble(data=data, loss="slatk", k=20, seed=seed, more=more))
    run = trainer(config, train, split.n_items)
    generator, plain = stream(seed, 1), run._step

    def step(*given: Any) -> float:
        number = plain(*given)
        round_tables(run, rounding, generator)
        return number

    run._step = step  # type: ignore[method-assign]
    valid, test = (validation(train, part.ragged()) for part in (split.valid, split.test))
    best, found = -1.0, {}
    for epoch in range(1, epochs + 1):
        run._epoch(None)
        if epoch % EVERY == 0 and (score := valid(run.model)) > best:
            best, found = score, {"epoch": epoch, "valid": score, "test": test(run.model)}
        if epoch - found.get("epoch", epoch) >= PATIENCE:
            break
    return {"data": data, "seed": seed, "negatives": negatives, "rounding": rounding, **found}


def page(rows: list[Row]) -> str:
    lines = []
    for data, negatives in dict.fromkeys((row["data"], row["negatives"]) for row in rows):
        some = [row for row in rows if (row["data"], row["negatives"]) == (data, negatives)]
        tests = [[row["test"] for row in some if row["rounding"] == rounding] for rounding in ROUNDINGS]
        lines.append([data, negatives, len(tests[0]), *(mean_and_spread(one) if one else "-" for one in tests)])
    return table(("data", "negatives", "seeds", *ROUNDINGS), lines)


def main() -> None:
    names = (HEALTH, MOVIELENS)
    quick = {"data": [MOVIELENS], "seeds": [0]}
    benchmark = Benchmark(__spec__.name, __doc__, data=names, known=names, seeds=(0, 1, 2), quick=quick)
    benchmark.parser.add_argument("--page", action="store_true", help="write the table of FILE into docs/scaling.md")
    options = benchmark.parse()
    torch.set_num_threads(1)
    rows = benchmark.held()
    if options.page:
        write_page("scaling.md", BEGIN, END, page(rows))
        return
    for data in options.data:
        for seed in options.seeds:
            for negatives in NEGATIVES:
                for rounding in ROUNDINGS:
                    key = {"data": data, "seed": seed, "negatives": negatives, "rounding": rounding}
                    if any(key.items() <= row.items() for row in rows):
                        continue
                    rows.append(trained(*key.values(), EVERY if options.quick else EPOCHS))
                    print(*key.values(), f"{rows[-1]['test']:.4f}", flush=True)
                    benchmark.write(metric="test ndcg@20", rows=rows)
    print(page(rows))


if __name__ == "__main__":
    main()
