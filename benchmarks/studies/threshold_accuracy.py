"""How far the threshold estimators that draw items are from the exact thresholds, in scores and in places.

    python -m benchmarks.studies.threshold_accuracy [--quick] [--data NAME ...] [--n N] [--json FILE]
    python -m benchmarks.studies.threshold_accuracy --quality [--quick] [--data NAME ...] [--seeds 0 1 2] [--json FILE]

MF with SL@20, trained once with the shipped settings and once with the paper's (its learning rate, tau, tau_w, N(0, 1)
start and batches of 1024 pairs; its 1000 negatives are shared by a batch here, which is faster). At the start and after
some epochs the thresholds of up to 3000 users are estimated by every estimator, 16 users to a draw, and set against the
exact ones. ``place`` is the rank of the estimate in the user's list of all items, the median over users (the exact
threshold has rank 20); ``predicted`` is the expected rank of the paper's estimate: the first one where the positives so
far and the drawn share n / |N_u| of the negatives so far number K.

``--quality`` measures the effect of the errors on the model: SL@20, shipped settings, each estimator in turn, early
stopping on validation, whose NDCG@20 is the figure. Its file keeps the rows of other datasets. ``--quick``:
MovieLens-100K, at the start and after one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.harness import ELECTRONIC, HEALTH, MOVIELENS, Benchmark, Row, mean_and_spread
from benchmarks.harness import line as line_of
from benchmarks.harness import table as table_of
from benchmarks.trained import METRIC, PAPER, epoch_of, paper_settings, trainer_of, vectors
from topshelf.config import assemble
from topshelf.data import Dataset, load_split
from topshelf.ragged import Ragged
from topshelf.thresholds import exact_thresholds
from topshelf.training import fit
from topshelf.training.batches import stream
from topshelf.training.thresholding import ESTIMATORS, Sampled, drawn_thresholds
from topshelf.training.trainer import Trainer

DATA = {HEALTH: 1000, ELECTRONIC: 1000, MOVIELENS: 200}  # the paper's sample sizes
EVERY_FEW_EPOCHS = tuple(name for name, estimator in ESTIMATORS.items() if estimator.updates == "epochs")
DRAWN = tuple(name for name, estimator in ESTIMATORS.items() if issubclass(estimator, Sampled))
K, USERS, SHARED_BY = 20, 3000, 16
GROUPS = {"all": (1, 10**9), "under 10": (1, 10), "10 to 19": (10, 20), "20 and more": (20, 10**9)}
EPOCHS = (0, 5, 20, 60)
SHOWN = (0, 5, 60)  # in the page


def trainings(data: str) -> dict[str, Row]:
    return {"shipped": {}} | ({"paper's": paper_settings(data, "shared")} if data in PAPER else {})


def states(trained: Trainer, epochs: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The model's vectors after each of some numbers of epochs."""
    for wanted in epochs:
        while trained.progress.epoch < wanted:
            epoch_of(trained)()
        yield wanted, *vectors(trained.model)


def places(queries: Tensor, items: Tensor, positives: Ragged, n: int, levels: list[Tensor]) -> list[Tensor]:
    """The rank of each level in its user's list of all items, and the expected rank of the paper's, (U,) each."""
    columns: list[list[Tensor]] = [[] for _ in range(len(levels) + 1)]
    for start in range(0, queries.size(0), 500):
        part = slice(start, min(start + 500, queries.size(0)))
        lists = positives.slice(part.start, part.stop)
        scores = queries[part] @ items.T
        for column, level in enumerate(levels):
            columns[column].append((scores > level[part].unsqueeze(1) + 1e-6).sum(1) + 1)
        is_own = torch.zeros_like(scores, dtype=torch.bool)
        is_own[lists.owner(), lists.indices] = True
        own = is_own.gather(1, scores.argsort(1, descending=True)).cumsum(1)
        n_negatives = (items.size(0) - lists.counts).unsqueeze(1)
        others = torch.arange(1, items.size(0) + 1) - own
        seen = own + others * (n / n_negatives).clamp(max=1.0)
        columns[-1].append(1 + (seen < K - 1e-9).sum(1))
    return [torch.cat(column) for column in columns]


def measure(queries: Tensor, items: Tensor, positives: Ragged, n: int) -> Row:
    """Errors and places of every estimator, by the users' number of positives."""
    exact = exact_thresholds(queries, items, K)
    estimates = [
        drawn_thresholds(name, queries, items, positives, K, n, stream(0, number), block=SHARED_BY)
        for number, name in enumerate(DRAWN)
    ]
    *place, predicted = places(queries, items, positives, n, estimates)
    owner = positives.owner()
    hit = ((queries[owner] * items[positives.indices]).sum(1) >= exact[owner] - 1e-6).long()
    hits, counts = torch.bincount(owner, hit, minlength=queries.size(0)), positives.counts
    groups = {}
    for label, (least, below) in GROUPS.items():
        chosen = (counts >= least) & (counts < below)
        if not bool(chosen.any()):
            continue
        groups[label] = {
            "users": int(chosen.sum()),
            "hits": float(hits[chosen].mean()),
            "predicted": float(predicted[chosen].median()),
            "estimates": {
                name: {**summary((estimate - exact)[chosen]), "place": float(where[chosen].median())}
                for name, estimate, where in zip(DRAWN, estimates, place, strict=True)
            },
        }
    return {"mean_threshold": float(exact.mean()), "groups": groups}


def summary(error: Tensor) -> dict[str, float]:
    return {"mean": float(error.mean()), "std": float(error.std()), "absolute": float(error.abs().mean())}


def rows_of(data: str, dataset: Dataset, n: int, epochs: Sequence[int]) -> Iterator[Row]:
    positives = dataset.split.train.ragged()
    eligible = (positives.counts > 0).nonzero().squeeze(1)
    users = eligible[torch.randperm(eligible.numel(), generator=stream(0))[:USERS]]
    lists = positives.select(users)
    for label, more in trainings(data).items():
        for epoch, queries, items in states(trainer_of(dataset.split, data, "slatk", more), epochs):
            accuracy = measure(queries[users], items, lists, n)
            yield {"data": data, "items": items.size(0), "n": n, "training": label, "epoch": epoch, **accuracy}


HEAD = table_of(
    (
        *("data", "training", "epochs", "positives", "hits", "sampled", "place", "predicted", "iid", "place"),
        *("weighted", "place"),
    ),
    [],
)


def table(rows: list[Row]) -> str:
    """Two tables of the page on SL@K: all users of most states, and the last shipped states by number of positives."""
    last = [row for row in rows if row["training"] == "shipped" and row["epoch"] == max(EPOCHS)]
    by_state = "\n".join([HEAD, *(line(row, "all") for row in rows if row["epoch"] in SHOWN)])
    by_group = "\n".join([HEAD, *(line(row, label) for row in last for label in row["groups"] if label != "all")])
    return f"{by_state}\n\n{by_group}"


def line(row: Row, label: str) -> str:
    group = row["groups"][label]
    sample = f"{row['data']}, {row['n']:,} of {row['items']:,}"
    cells = [sample, row["training"], row["epoch"], label, f"{group['hits']:.1f}"]
    for name, one in group["estimates"].items():
        cells += [f"{one['mean']:+.3f} ± {one['std']:.3f}, {one['absolute']:.3f}", f"{one['place']:.0f}"]
        cells += [f"{group['predicted']:.0f}"] if name == "sampled" else []
    return line_of(cells)


def quality(data: str, seeds: list[int], quick: bool) -> Row:
    """Validation NDCG@20 by estimator, one value per seed."""
    scores: dict[str, list[float]] = {name: [] for name in EVERY_FEW_EPOCHS}
    for seed in seeds:
        dataset = load_split(data, seed=seed)
        for name, values in scores.items():
            more: Row = {"threshold": {"estimator": name, "n": DATA[data]}}
            if quick:
                more["train"] = {"epochs": 5}
            run = fit(assemble(data=data, loss="slatk", k=K, seed=seed, more=more), dataset)
            values.append(run.evaluate(part="valid").mean()[METRIC])
    return {"data": data, "seeds": seeds, "valid": scores}


def quality_table(rows: list[Row]) -> str:
    lines = [[row["data"], len(row["seeds"]), *map(mean_and_spread, row["valid"].values())] for row in rows]
    return table_of(("data", "seeds", *EVERY_FEW_EPOCHS), lines)


def main() -> None:
    names, quick = tuple(DATA), {"data": [MOVIELENS], "seeds": [0]}
    benchmark = Benchmark(__spec__.name, __doc__, data=names, known=names, seeds=(0, 1, 2), quick=quick)
    benchmark.parser.add_argument("--n", type=int, help="items drawn; default: the paper's number")
    benchmark.parser.add_argument("--quality", action="store_true", help="the effect on validation NDCG@20")
    options = benchmark.parse()
    rows = []
    if options.quality:
        rows = [row for row in benchmark.held() if row["data"] not in options.data]
        rows += [quality(data, options.seeds, options.quick) for data in options.data]
        print(quality_table(rows))
        benchmark.write(metric="validation ndcg@20", rows=rows)
        return
    print(HEAD)
    for data in options.data:
        for row in rows_of(
            data, load_split(data, seed=0), options.n or DATA[data], [0, 1] if options.quick else EPOCHS
        ):
            rows.append(row)
            print("\n".join(line(row, label) for label in row["groups"]), flush=True)
    benchmark.write(rows=rows)


if __name__ == "__main__":
    main()
