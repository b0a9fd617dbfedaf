"""Next items examined: by the length of the history, by how popular the next item is, and what no model can find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from topshelf.data.sequence_split import Asked
from topshelf.data.splits import Through
from topshelf.models import Model
from topshelf.models.sequence import SequenceModel
from topshelf.sequence_settings import SequenceConfig
from topshelf.training.batches import stream
from topshelf.training.build import DRAWN, build_loss
from topshelf.training.examination import Advice, Examination, Gap, ScoreSample, Trait, effective_count
from topshelf.training.sequence_batches import SequenceBatches
from topshelf.training.thresholding import drawn_thresholds

if TYPE_CHECKING:
    from topshelf.training.tasks.sequences import SequencesTask

REFERENCES = ("popularity", "markov")
LOST = 0.05  # share of next items that no list can hold
CUT = 0.25  # share of histories longer than what the model reads
HEAD = 0.1  # of the items: the most popular ones
MISSED = 0.1  # the metric of the other items, relative to that of the most popular
TAIL = 0.2  # share of next items that are no popular ones, for that to matter
_DRAWN = ("sampled", "weighted", "iid")
_STREAM = 13  # a branch of the seed's random streams
_CELLS, _MOST_CELLS = 2**22, 200_000_000  # scores of one block, and of all


def examine_sequences(
    task: SequencesTask, model: Model, config: SequenceConfig, part: Any, through: Through, n: int
) -> Examination:
    """The next items of a part, by what is known of their users and of themselves."""
    model.eval()
    asked = task.split.asked(part, task.data.targets)
    counts = torch.bincount(task.split.sequences(through).indices, minlength=task.n_items).numpy()
    popularity, is_repeat = counts[asked.item], task.split.is_repeat(asked)
    is_popular = _is_popular(counts)[asked.item]
    traits = [
        Trait.of_counts("events before", asked.place, (1, 5, 10, 20, 50)),
        Trait.of_counts("training events of the next item", popularity, (0, 1, 5, 20, 100)),
        Trait("next item", is_repeat.astype(int), ("new to the user", "had before")),
        Trait("popularity", (~is_popular).astype(int), (f"most popular {HEAD:.0%} of items", "other items")),
    ]
    metric = task.metric(config)
    evaluation = task.measure(model, part, config)
    found = Examination(
        part,
        metric,
        evaluation,
        task.references(REFERENCES, part, config, through),
        traits,
        _gap(task, model, config, through, n, float(evaluation.per_user[metric].mean())),
        _scores(task, model, config, through, n),
        [
            ("next items asked for", f"{len(asked.item):,}"),
            ("events before, median", f"{np.median(asked.place):g}"),
            ("next items that the user had before, %", f"{100 * is_repeat.mean():.1f}"),
            ("next items without a training event, %", f"{100 * (popularity == 0).mean():.1f}"),
        ],
    )
    lost = {"cold": float((popularity == 0).mean()), "repeat": float((is_repeat & (popularity > 0)).mean())}
    longer = float((asked.place > getattr(model, "max_length", np.inf)).mean())
    return found.with_advice(
        unknown_items(lost["cold"]),
        excluded_repeats(lost["repeat"], excluded=task.data.exclude_seen),
        cut_histories(longer, getattr(model, "max_length", 0)),
        missed_tail(found, traits[-1]),
    )


def _is_popular(counts: np.ndarray) -> np.ndarray:
    """Which items are among the most popular, (I,)."""
    flags = np.zeros(len(counts), dtype=bool)
    flags[np.argsort(-counts, kind="stable")[: max(1, round(HEAD * len(counts)))]] = True
    return flags


def _gap(task: SequencesTask, model: Model, config: SequenceConfig, through: Through, n: int, held: float) -> Gap:
    """The last training event of some users, as it is predicted from those before it."""
    split = task.split
    ends = split.train_end if through == "train" else split.valid_end
    rows = np.nonzero(ends > 1)[0]
    order = torch.randperm(len(rows), generator=stream(config.seed, _STREAM, 0)).numpy()
    rows = np.sort(rows[order[:n]])
    place = ends[rows] - 1
    asked = Asked(rows, place, split.events.indices[split.events.indptr[rows] + place].astype(np.int64))
    return Gap(task.ndcg_of(model, asked, config.k), held, f"the last training event of {len(rows):,} users")


@torch.no_grad()
def _scores(task: SequencesTask, model: Model, config: SequenceConfig, through: Through, n: int) -> ScoreSample | None:
    """The positions of some users' training sequences against the catalogue."""
    if not isinstance(model, SequenceModel):
        return None
    generator = stream(config.seed, _STREAM, 1)
    lists = task.split.sequences(through).to(task.device)
    lists = lists.select(torch.randperm(len(lists), generator=generator)[:n].to(task.device))
    batches = SequenceBatches(lists, size=1, max_length=model.max_length, slots="user")
    n_users = min(len(batches.sequences), max(1, _MOST_CELLS // (task.n_items * max(1, model.max_length))))
    batch = batches.batch(torch.arange(n_users, device=lists.indptr.device))
    queries, items = model.encode_every_position(batch.sequences), model.encode_items()
    loss = build_loss(config, 2, 2, 2)
    tau = config.loss.settings.get("tau") if "log_partition" in loss.needs else None
    k, rows, effective = int(config.loss.settings.get("k", config.k)), [], []
    for part in torch.arange(queries.size(0)).split(max(1, _CELLS // task.n_items)):
        scores = queries[part] @ items.T
        rows.append(scores.topk(k, dim=1).values[:, -1])
        if tau is not None:
            effective.append(effective_count(scores, tau))
    exact = torch.cat(rows)
    drawn = torch.randint(task.n_items, (queries.size(0),), generator=generator).to(items.device)
    return ScoreSample(
        (queries * items[batch.item]).sum(1).cpu().numpy(),
        exact.cpu().numpy(),
        _used(config, queries, items, batch, exact, k, generator) if loss.keeps_thresholds else None,
        (queries * items[drawn]).sum(1).cpu().numpy(),
        None if tau is None else np.concatenate(effective),
        np.full(queries.size(0), task.n_items),
    )


def _used(
    config: SequenceConfig, queries: Tensor, items: Tensor, batch: Any, exact: Tensor, k: int, generator: Any
) -> np.ndarray | None:
    """The thresholds as the run's settings make them, without what is old; None where they are the exact ones."""
    settings, used = config.threshold, exact
    if settings.estimator in _DRAWN:
        used = drawn_thresholds(
            settings.estimator, queries, items, batch.positives, k, settings.n or DRAWN, generator, block=16
        )
    if settings.of == "user":
        sums = torch.zeros(int(batch.query.max()) + 1, dtype=torch.float64, device=used.device)
        sums.index_add_(0, batch.query, used.double())
        used = (sums / torch.bincount(batch.query).clamp(min=1))[batch.query].to(used.dtype)
    return None if used is exact else used.cpu().numpy()


def unknown_items(share: float) -> Advice | None:
    if share <= LOST:
        return None
    return Advice(
        "next items that train does not know",
        f"{share:.0%} of the next items have no training event.",
        f"No model of item ids finds them: hit rate and NDCG are at most {1 - share:.2f}.",
        'Leave rare items out (data.core = 5), or set data.split = "time", which does not ask for them.',
    )


def excluded_repeats(share: float, *, excluded: bool) -> Advice | None:
    if not excluded or share <= LOST:
        return None
    return Advice(
        "repeats counted as misses",
        f"{share:.0%} of the next items are ones that the user had before, and data.exclude_seen = true.",
        f"Lists never hold them, so hit rate and NDCG are at most {1 - share:.2f}.",
        "Where users come back to items, set data.exclude_seen = false.",
    )


def cut_histories(share: float, max_length: int) -> Advice | None:
    if share <= CUT:
        return None
    return Advice(
        "histories cut",
        f"{share:.0%} of the histories are longer than the {max_length} events that the model reads.",
        f"Over {CUT:.0%}, much of what users did is never looked at.",
        f"Set model.max_length to {2 * max_length}, and compare the validation metric.",
    )


def missed_tail(found: Examination, trait: Trait) -> Advice | None:
    """Lists of popular items only."""
    by_label = {group.label: group for group in found.groups(trait)}
    head, tail = (by_label.get(label) for label in trait.labels)
    if head is None or tail is None or tail.n < TAIL * (head.n + tail.n) or tail.mean >= MISSED * head.mean:
        return None
    return Advice(
        "only popular items found",
        f"{found.metric} is {head.mean:.3f} where the next item is one of the {trait.labels[0]}, and {tail.mean:.3f} "
        f"for the other {tail.n / (head.n + tail.n):.0%} of next items.",
        f"Under {MISSED:.0%} of it, the lists are little more than what is popular.",
        "Train longer, lower loss.tau, or add capacity (model.dim); compare with the popularity baseline above.",
    )
