"""How a trained model is updated: epochs, learning rate, the optimizer's moments, and where new rows start.

    python -m benchmarks.studies.update_rule --json benchmarks/results/update_rule.json [--data NAME ...] [--seeds 0]
        [--quick]

The steps and the measure of ``benchmarks.quality.update``, weekly: NDCG@20 of one update after another against a full
refit after every step. The first row is a twelfth of the epochs, rounded down, at the full learning rate, an optimizer
without a past and random new rows; every other row changes one of these. What ``topshelf update`` does was chosen by
it: the first row with the last one, and epochs rounded up. "means": a new row starts as the mean of the unit vectors of
its users, or items, at the mean length of the others (MF); for ``history``, as that of the vectors of its users.
Rows that the file has are not made again. ``--quick`` takes a few generated users.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.harness import Benchmark, Row, table
from benchmarks.quality.update import MODELS, K, Wanted, interval, steps_of
from topshelf import Recommender
from topshelf.data.growth import grown
from topshelf.models import History, Model
from topshelf.queries import Context
from topshelf.training import Fitted
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.training.trainer import Trainer
from topshelf.versions.learning import again, keep_rows
from topshelf.versions.updating import updated

DATA = ("MovieLens-100K, weekly", "drift, weekly")
STUDIED = ("mf, SL@20", "history, SL@20")


class Variant(NamedTuple):
    share: float = 1 / 12  # of the first training's epochs
    rate: float = 1.0  # of its learning rate
    keeps_moments: bool = False
    starts_at_means: bool = False


VARIANTS = {
    "epochs / 12": Variant(),
    "epochs / 24": Variant(share=1 / 24),
    "epochs / 6": Variant(share=1 / 6),
    "learning rate x 0.3": Variant(rate=0.3),
    "learning rate x 0.1": Variant(rate=0.1),
    "Adam's moments kept": Variant(keeps_moments=True),
    "new rows at means": Variant(starts_at_means=True),
}


class State(NamedTuple):
    model: Model
    moments: dict[str, Any]


def trained(config: Any, model: Model, task: InteractionsTask, epochs: int, rate: float, past: Any = None) -> State:
    """The model trained on everything, from the moments of ``past`` where they are given."""
    changes = {"epochs": epochs, "learning_rate": config.train.learning_rate * rate}
    often = config.threshold.model_copy(update={"every": 1}) if past is not None or rate != 1 else config.threshold
    settings = config.model_copy(update={"train": config.train.model_copy(update=changes), "threshold": often})
    trainer = Trainer(task.objective(settings, model, "all"), settings)
    if past is not None:
        _continue(trainer, past)
    trainer.run()
    return State(model, trainer.optimizer.state_dict())


def _continue(trainer: Trainer, past: dict[str, Any]) -> None:
    """Adam's moments of an older, smaller model; new rows have none, and the mean of the squares."""
    state, kept = trainer.optimizer.state_dict(), copy.deepcopy(past["state"])
    for parameter, moments in zip(trainer.optimizer.param_groups[0]["params"], kept.values(), strict=True):
        for name, fill in (("exp_avg", 0.0), ("exp_avg_sq", float(moments["exp_avg_sq"].mean()))):
            old = moments[name]
            moments[name] = torch.full_like(parameter.detach(), fill)
            moments[name][tuple(slice(0, size) for size in old.shape)] = old
    trainer.optimizer.load_state_dict({**state, "state": kept})


@torch.no_grad()
def start_at_means(model: Any, old: Model, context: Context) -> None:
    """Give new rows the mean direction of what they met, and the mean length of the others."""
    lists, owner = context.histories, context.histories.owner()
    if isinstance(model, History):
        known = lists.where(lists.indices < old.n_items)
        sums = torch.zeros(len(lists), model.history_vectors.size(1))
        users = F.normalize(sums.index_add_(0, known.owner(), model.history_vectors[known.indices]), dim=1)
        for rows in (model.item_vectors, model.history_vectors):
            _placed(rows, old.n_items, lists.indices, users[owner])
        return
    is_old = owner < old.n_queries
    users = F.normalize(model.query_vectors, dim=1)
    _placed(model.item_vectors, old.n_items, lists.indices[is_old], users[owner[is_old]])
    items = F.normalize(model.item_vectors, dim=1)
    _placed(model.query_vectors, old.n_queries, owner, items[lists.indices])


def _placed(rows: torch.Tensor, n_old: int, index: torch.Tensor, vectors: torch.Tensor) -> None:
    sums = torch.zeros_like(rows).index_add_(0, index, vectors)
    is_met = (torch.arange(len(rows)) >= n_old) & (sums.norm(dim=1) > 0)
    rows[is_met] = F.normalize(sums[is_met], dim=1) * rows[:n_old].norm(dim=1).mean()


def next_state(variant: Variant, state: State, config: Any, task: InteractionsTask, best_epoch: int) -> State:
    model = task.model(config)
    keep_rows(state.model, model)
    if variant.starts_at_means:
        start_at_means(model, state.model, task.context("all"))
    epochs = max(1, int(best_epoch * variant.share))
    often = config.model_copy(update={"threshold": config.threshold.model_copy(update={"every": 1})})
    return trained(often, model, task, epochs, variant.rate, state.moments if variant.keeps_moments else None)


def measured(name: str, label: str, seed: int, quick: bool) -> list[Row]:
    steps = steps_of(name, quick)
    settings: Row = {"k": K, "seed": seed, **MODELS[label], "train": {"refit": "all"}}
    if quick:
        settings["train"] |= {"epochs": 15}
    version: Fitted = Recommender(**settings).fit(steps.until(0, steps.first)).fitted
    task, config, best = InteractionsTask(version.dataset.split), version.config, version.best_epoch
    first = trained(config, task.model(config), task, max(1, best), 1.0)
    states = dict.fromkeys(VARIANTS, first)
    scores: dict[str, dict[Any, list[float]]] = {name: defaultdict(list) for name in (*VARIANTS, "refit")}
    for now in range(steps.first + steps.step, steps.last + 1, steps.step):
        version = updated(version, grown(version.dataset, steps.until(now - steps.step, now)), name="step")
        task = InteractionsTask(version.dataset.split)
        wanted = Wanted(version, steps.until(now, now + 4))
        models = {"refit": again(config, task, "all", best)}
        for variant, settings_of in VARIANTS.items():
            states[variant] = next_state(settings_of, states[variant], config, task, best)
            models[variant] = states[variant].model
        for method, model in models.items():
            model.attach(task.context("all"))
            wanted.add(scores[method], wanted.ranked(model))
    refit = _mean(scores["refit"])
    facts = {"data": name, "model": label, "seed": seed, "epochs": best, "refit": refit}
    return [
        {**facts, "variant": one, "ndcg": _mean(scores[one]), "interval": interval(scores[one], scores["refit"])}
        for one in VARIANTS
    ]


def _mean(scores: dict[Any, list[float]]) -> float:
    return float(np.mean([value for some in scores.values() for value in some]))


def table_of(rows: list[Row]) -> str:
    """The relative difference from a refit of each variant, by data and model, as Markdown."""
    columns = list(dict.fromkeys((row["data"], row["model"]) for row in rows))
    lines = []
    for variant in VARIANTS:
        cells = []
        for column in columns:
            some = [row for row in rows if (row["data"], row["model"], row["variant"]) == (*column, variant)]
            cells.append(f"{np.mean([row['ndcg'] / row['refit'] - 1 for row in some]):+.1%}" if some else "")
        lines.append((variant, *cells))
    return table(("", *(f"{model}: {data}" for data, model in columns)), lines)


def main() -> None:
    bench = Benchmark(
        "benchmarks.studies.update_rule", __doc__, data=DATA, known=DATA, seeds=range(1), quick={"data": DATA[:1]}
    )
    options = bench.parse()
    rows = bench.held()
    for name in options.data:
        for label in STUDIED:
            for seed in options.seeds:
                if not any((row["data"], row["model"], row["seed"]) == (name, label, seed) for row in rows):
                    rows += measured(name, label, seed, options.quick)
                    bench.write(rows=rows)
    print(table_of(rows), flush=True)


if __name__ == "__main__":
    main()
