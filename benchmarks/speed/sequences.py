"""Seconds per epoch of next-item training: SASRec against the exact catalogue, plain PyTorch, and one negative.

    python -m benchmarks.speed.sequences [--data beauty games] [--rounds 3] [--steps 8] [--json FILE]

All variants train the same model (d 64, 2 blocks, dropout 0.5) on the same batches of 128 sequences, in one process
with one thread; every variant in turn, round after round, by the CPU time of the process, and the best round counts:
other processes then change little. ``--steps`` batches are timed and multiplied up to an epoch.

``SL@20``  as topshelf trains it: the mean of five epochs, one of which reads every position's threshold off its scores
``SL@20, reading``, ``SL@20, keeping``  the two kinds of epochs
``SL``  the same without weights and thresholds
``cross-entropy, real positions``  plain PyTorch: the scores of the real positions with all items, F.cross_entropy and
    autograd; the network is topshelf's, without padding
``cross-entropy, padded``  the usual way in plain PyTorch: sequences padded to 50, a Transformer of
    nn.MultiheadAttention over all of them, scores of all positions, padding left out by ignore_index
``BCE, one negative``  the original loss of SASRec, as topshelf trains it
``product``  the three products with the catalogue alone
Peak memory is that of the steps of one variant, in a process of its own, above what the process had before.

``answers`` is the time of one ``Recommender.recommend_new`` for one history of the file, K = 20, by the clock, with one
thread, after the first answer: in another process than the one that trained the run folder (one epoch).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Benchmark, Memory, Row, apart, best, interleaved, line, table
from topshelf import Recommender
from topshelf.config import assemble
from topshelf.ranking import ROW_MULTIPLE
from topshelf.sequences import SequenceBatch
from topshelf.training import fit, load_dataset
from topshelf.training.batches import stream
from topshelf.training.build import resolve
from topshelf.training.tasks import SequencesTask

DATA = ("beauty", "games")

K = 20
OURS, READING, KEEPING = "SL@20", "SL@20, reading", "SL@20, keeping"
PLAIN, PADDED = "cross-entropy, real positions", "cross-entropy, padded"
VARIANTS = (READING, KEEPING, "SL", PLAIN, PADDED, "BCE, one negative", "product")
LOSSES = {READING: "slatk", KEEPING: "slatk", "SL": "softmax", "BCE, one negative": "bce", PLAIN: "softmax"}
MAX_LENGTH, TAU = 50, 0.07


class PaddedSASRec(nn.Module):
    """SASRec as most write it: padded on the left, a mask for the padding, scores of every position."""

    def __init__(self, n_items: int, dim: int = 64, blocks: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.positions = nn.Embedding(MAX_LENGTH, dim)
        self.drop = nn.Dropout(dropout)
        self.attention = nn.ModuleList(nn.MultiheadAttention(dim, 1, dropout, batch_first=True) for _ in range(blocks))
        self.network = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, dim), nn.Dropout(dropout))
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * blocks + 1))

    def forward(self, sequences: Tensor) -> Tensor:
        rows = self.drop(self.items(sequences) * 8 + self.positions.weight)
        causal = torch.ones(MAX_LENGTH, MAX_LENGTH, dtype=torch.bool).triu(1)
        for block, (attention, network) in enumerate(zip(self.attention, self.network, strict=True)):
            read = self.norms[2 * block](rows)
            rows = rows + attention(read, read, read, attn_mask=causal, need_weights=False)[0]
            rows = rows + network(self.norms[2 * block + 1](rows))
        vectors = F.normalize(self.norms[-1](rows), dim=-1)
        return vectors @ F.normalize(self.items.weight, dim=-1).T / TAU  # (B, T, I)


def left_padded(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, 50), items counted from 1, 0 where there is none."""
    lists = batch.sequences
    counts, owner = lists.counts, lists.owner()
    column = MAX_LENGTH - counts[owner] + torch.arange(owner.numel()) - lists.indptr[owner]
    inputs, targets = (torch.zeros(len(lists), MAX_LENGTH, dtype=torch.int64) for _ in range(2))
    inputs[owner, column], targets[owner, column] = lists.indices + 1, batch.item + 1
    return inputs, targets


def steps_of(variant: str, data: str, n_steps: int) -> tuple[Callable[[], None], Row]:
    """A function that trains ``n_steps`` batches, and what an epoch is."""
    loss = LOSSES.get(variant, "softmax")
    more = {"train": {"batch_size": 128}, "model": {"max_length": MAX_LENGTH, "dropout": 0.5}}
    config: Any = resolve(assemble(task="sequences", data=data, model="sasrec", loss=loss, more=more))
    task = SequencesTask(load_dataset(config))
    model = task.model(config)
    objective: Any = task.objective(config, model, "train")
    batches = [batch for _, batch in zip(range(n_steps), objective.batches.epoch(stream(0)), strict=False)]
    positions = sum(batch.item.numel() for batch in batches)
    facts = {"positions": objective.batches.n_positions, "timed": positions, "items": task.n_items}
    if variant == PADDED:
        return padded_steps(batches, task.n_items), facts
    if variant == "product":
        return product_steps(positions, task.n_items), facts
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    for hook in objective.hooks:
        hook.begin_epoch(5 if variant == READING else 4, model, stream(1), is_resumed=False)

    def plain(batch: SequenceBatch) -> None:
        encoded = model.encode_batch(batch)
        F.cross_entropy(encoded.queries @ encoded.items.T / TAU, batch.item).backward()

    def ours(batch: SequenceBatch) -> None:
        objective.backward(batch, stream(2))

    backward = plain if variant == PLAIN else ours

    def run() -> None:
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            backward(batch)
            optimizer.step()

    return run, facts


def padded_steps(batches: list[SequenceBatch], n_items: int) -> Callable[[], None]:
    network = PaddedSASRec(n_items)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001, fused=True)
    made = [left_padded(batch) for batch in batches]

    def run() -> None:
        for inputs, targets in made:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten(), ignore_index=0).backward()
            optimizer.step()

    return run


def product_steps(positions: int, n_items: int, dim: int = 64) -> Callable[[], None]:
    """The three products of the timed positions alone, in blocks of a batch."""
    block = 760
    stride = -(-n_items // ROW_MULTIPLE) * ROW_MULTIPLE
    queries, items, scores = torch.randn(block, dim), torch.randn(stride, dim), torch.empty(block, stride)

    def run() -> None:
        for _ in range(-(-positions // block)):
            torch.mm(queries, items.T, out=scores)
            torch.mm(scores, items)
            torch.mm(queries.T, scores)

    return run


def measure(data: str, rounds: int, n_steps: int) -> list[Row]:
    torch.set_num_threads(1)
    made = {variant: steps_of(variant, data, n_steps) for variant in VARIANTS}
    seconds = best(interleaved({variant: run for variant, (run, _) in made.items()}, rounds, time.process_time))
    rows = []
    for variant, (_, facts) in made.items():
        scale = facts["positions"] / facts["timed"]
        epoch = seconds[variant] * scale
        rows.append({"data": data, "variant": variant, "seconds_per_epoch": round(epoch, 3), **facts})
    ours = (rows[0]["seconds_per_epoch"] + 4 * rows[1]["seconds_per_epoch"]) / 5
    rows.insert(0, {**rows[0], "variant": OURS, "seconds_per_epoch": round(ours, 3)})
    for row in rows:
        row["times_ours"] = round(row["seconds_per_epoch"] / ours, 3)
    return rows


def memory(variant: str, data: str) -> float:
    """Peak GiB of a step, above what the process had before it."""
    torch.set_num_threads(1)
    run, _ = steps_of(variant, data, 2)
    watch = Memory()
    with watch.phase("before"):
        pass
    with watch.phase("steps"):
        run()
    return round(watch.peak["steps"] - watch.peak["before"], 3)


def make_run(data: str, folder: str) -> None:
    torch.set_num_threads(1)
    more = {"train": {"epochs": 1, "validate_every": 1}}
    fit(assemble(task="sequences", data=data, k=K, model="sasrec", loss="bce", more=more), out=folder)


def answers(data: str, folder: str, calls: int) -> Row:
    """Milliseconds of one answer to one history."""
    torch.set_num_threads(1)
    recommender = Recommender.load(folder)
    config: Any = assemble(task="sequences", data=data)
    split = load_dataset(config).split
    chosen = torch.from_numpy(np.random.default_rng(0).choice(split.n_users, calls + 1, replace=False))
    lists = split.sequences("valid").select(chosen)
    events = [split.items.ids(some) for some in lists.indices.split(lists.counts.tolist())]
    seconds = []
    for history in events:
        started = time.perf_counter()
        recommender.recommend_new([history], k=K)
        seconds.append(time.perf_counter() - started)
    p50, p99 = np.percentile(seconds[1:], [50, 99]).tolist()
    lengths = float(np.mean([len(history) for history in events]))
    times = {"first": seconds[0], "p50": p50, "p99": p99}
    return {"data": data, "calls": calls, "mean_length": lengths} | {
        f"{name}_ms": round(1e3 * value, 3) for name, value in times.items()
    }


def main() -> None:
    quick = {"data": ["beauty"], "rounds": 1, "steps": 1}
    benchmark = Benchmark("benchmarks.speed.sequences", __doc__, data=DATA, known=DATA, rounds=3, quick=quick)
    benchmark.parser.add_argument("--steps", type=int, default=8, help="batches that are timed; default: 8")
    options = benchmark.parse()
    rows: list[Row] = []
    answered: list[Row] = []
    for data in options.data:
        found = apart(measure, data, options.rounds, options.steps)
        for row in found:
            if row["variant"] not in (OURS, "product"):
                row["peak_gib"] = apart(memory, row["variant"], data)
        rows += found
        with tempfile.TemporaryDirectory() as folder:
            apart(make_run, data, f"{folder}/run")
            answered.append(apart(answers, data, f"{folder}/run", 20 if options.quick else 500))
        benchmark.write(rows=rows, answers=answered, clock="CPU seconds of the process, one thread")
    heads = ("data", "variant", "CPU seconds per epoch", "times SL@20", "peak GiB of two steps")
    print(table(heads, []))
    for row in rows:
        print(line([row["data"], row["variant"], row["seconds_per_epoch"], row["times_ours"], row.get("peak_gib", "")]))
    for row in answered:
        print("{data}: one answer takes {p50_ms} ms (p99 {p99_ms} ms, the first {first_ms} ms)".format(**row))


if __name__ == "__main__":
    main()
