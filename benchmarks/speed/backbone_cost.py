"""What an epoch of SL@20 costs with every trained model, against MF in the same run.

    python -m benchmarks.speed.backbone_cost [--quick] [--data NAME ...] [--models NAME ...] [--rounds 5]
        [--json FILE]

All models have d = 64 and the settings that ship for MF on the dataset, and train on the same positives in one process,
in turn, round after round; the first epoch of each is not counted, the best of the others is. An epoch that refreshes
the thresholds falls to all models in the same round. Memory is measured apart, each model in a fresh process: the peak
of building it and taking three steps of an epoch with a refresh, above the library's own, data and lists included. It
needs Linux. Issue 5 allows LightGCN 3 times MF's seconds on Gowalla. ``--quick``: LightGCN on MovieLens-100K.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from benchmarks.harness import GIB, GOWALLA, MOVIELENS, Benchmark, Memory, Row, apart, interleaved
from benchmarks.harness import table as table_of
from benchmarks.trained import begin_refreshing, epoch_of, trainer
from topshelf.config import assemble, merged, preset
from topshelf.data import generate, load_split
from topshelf.models import MODELS
from topshelf.ragged import Ragged
from topshelf.training.batches import stream
from topshelf.training.build import resolve
from topshelf.training.trainer import Trainer

REFERENCE, K, DIM, STEPS = "mf", 20, 64, 3
TRAINED = [name for name, model in MODELS.items() if not model.is_closed_form]
BOUND = (GOWALLA, "lightgcn", 3.0)  # of issue 5: data, model, times MF's seconds
HEADS = ("data", "model", "seconds per epoch", "times MF", "parameters", "peak")


def build(data: str, name: str, positives: Ragged, n_items: int) -> Trainer:
    """A model with MF's settings for the dataset, ready to train on these positives."""
    more = merged(preset(data, REFERENCE, "slatk"), {"model": {"name": name, "dim": DIM}})
    config = resolve(assemble(data=data, loss="slatk", k=K, seed=0, more=more))
    return trainer(config, positives, n_items)


def seconds_of(
    data: str, rounds: int, models: Sequence[str] = TRAINED
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """For each model: the seconds of an epoch in every round, and the bytes of its parameters."""
    split = load_split(data, seed=0, test=False).split
    trainers = {name: build(data, name, split.train.ragged(), split.n_items) for name in models}
    seconds = interleaved({name: epoch_of(trained) for name, trained in trainers.items()}, rounds)
    sizes = {
        name: sum(tensor.numel() * tensor.element_size() for tensor in trained.model.parameters())
        for name, trained in trainers.items()
    }
    return seconds, sizes


def memory_of(data: str, name: str) -> int:
    """Bytes at the peak, in this process; a rehearsal loads what is loaded on first use."""
    few_steps(build(data, name, generate(200, 100).ragged(), 100))
    memory = Memory()
    with memory.phase("library"):
        pass
    split = load_split(data, seed=0, test=False).split
    with memory.phase("training"):
        few_steps(build(data, name, split.train.ragged(), split.n_items))
    return int((memory.peak["training"] - memory.peak["library"]) * GIB)


def few_steps(trained: Trainer) -> None:
    epoch = begin_refreshing(trained)
    for step, batch in enumerate(islice(trained.batches.epoch(stream(0)), STEPS)):
        trained._step(batch, epoch, step)


def measure(data: str, rounds: int, models: Sequence[str]) -> Row:
    peaks = {name: apart(memory_of, data, name) for name in models}
    seconds, sizes = seconds_of(data, rounds, models)
    costs = {
        name: {
            "seconds": min(own),
            "over_mf": min(own) / min(seconds[REFERENCE]),
            "parameter_bytes": sizes[name],
            "peak_bytes": peaks[name],
            "rounds": own,
        }
        for name, own in seconds.items()
    }
    return {"data": data, "models": costs}


def table(results: list[Row]) -> str:
    """One row per model of each dataset."""
    rows = []
    for result in results:
        for name, cost in result["models"].items():
            sizes = [f"{cost[key] / 2**20:.1f} MiB" for key in ("parameter_bytes", "peak_bytes")]
            rows.append([result["data"], name, f"{cost['seconds']:.3f}", f"{cost['over_mf']:.2f}", *sizes])
    return table_of(HEADS, rows)


def verdict(result: Row) -> str:
    """Whether the bound of issue 5 holds, on the dataset that it names."""
    data, name, bound = BOUND
    if result["data"] != data:
        return ""
    over = result["models"][name]["over_mf"]
    return f"{name} on {data}: {over:.2f} times MF, {'within' if over <= bound else 'above'} the bound of {bound:g}"


def main() -> None:
    quick = {"data": [MOVIELENS], "rounds": 1, "models": ["lightgcn"]}
    benchmark = Benchmark(__spec__.name, __doc__, data=(GOWALLA,), rounds=5, quick=quick)
    benchmark.parser.add_argument("--models", nargs="+", default=TRAINED, choices=TRAINED, help="MF is always measured")
    options = benchmark.parse()
    models = [name for name in TRAINED if name in (REFERENCE, *options.models)]
    results = [measure(data, options.rounds, models) for data in options.data]
    print(table(results), *filter(None, map(verdict, results)), sep="\n")
    benchmark.write(results=results)


if __name__ == "__main__":
    main()
