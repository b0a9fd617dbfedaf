"""Documents examined: by the length of the list, by what there is to find, and by what the features are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from topshelf.data.splits import Through
from topshelf.evaluation import Evaluation
from topshelf.graded_lists import GradedLists, in_rows
from topshelf.list_evaluation import evaluate_scores, mean_ndcg
from topshelf.losses.listwise import ListNet
from topshelf.losses.listwise_softmax import ListwiseSLatK, ListwiseSoftmax, list_thresholds
from topshelf.models.list_base import ListModel
from topshelf.ranking_settings import RankingConfig
from topshelf.training.batches import stream
from topshelf.training.build import build_loss
from topshelf.training.examination import Advice, Examination, Gap, ScoreSample, Trait, effective_count

if TYPE_CHECKING:
    from topshelf.training.tasks.ranking import RankingTask

EMPTY = 0.1  # share of queries with nothing to find
CONSTANT = 0.1  # share of the features
OUTSIDE = 0.05  # share of the documents with a value that train does not have
_STREAM = 14  # a branch of the seed's random streams
_BLOCK = 1 << 16
_NAMED = 5  # features in a sentence


@torch.no_grad()
def examine_lists(
    task: RankingTask, model: ListModel, config: RankingConfig, part: Any, through: Through, n: int
) -> Examination:
    """The queries of a part, by their documents."""
    model.eval()
    documents, known = task.data.parts[part], task.context(through).train
    n_relevant = _relevant(documents.grades, documents.indptr)
    sample = _sample(known, config, n)
    scores = model.score(sample.features, sample.indptr)
    low, high = (edges.values.cpu().numpy() for edges in (known.features.min(0), known.features.max(0)))
    constant, outside = low == high, _outside(low, high, documents.features)
    names, is_empty = task.data.feature_names, n_relevant == 0
    return Examination(
        part,
        task.metric(config),
        task.measure(model, part, config),
        _references(task, sample, config, part),
        [
            Trait.of_counts("documents of the query", documents.lengths, (1, 5, 10, 20, 50, 100)),
            Trait.of_counts("relevant documents", n_relevant, (0, 1, 2, 5, 10)),
        ],
        _gap(scores, sample, task, model, part, config.k),
        None if model.is_closed_form else _scores(config, scores, sample),
        [
            ("documents per query, median and most", f"{np.median(documents.lengths):g}, {documents.lengths.max():,}"),
            ("queries with nothing to find, %", f"{100 * is_empty.mean():.1f}"),
            ("grades of training documents", _grades(known.grades.cpu().numpy())),
            ("features with one value in train", f"{constant.sum():,} of {len(names):,}"),
            ("documents outside the range of train", _worst(outside, names)),
        ],
    ).with_advice(
        nothing_to_find(float(is_empty.mean()), config.evaluate.empty),
        short_lists(documents.lengths, config.k, weighs_top=not model.is_closed_form and config.loss.name == "slatk"),
        constant_features(constant, names),
        features_outside(outside, names),
    )


def _relevant(grades: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """The number of relevant documents of each query, (Q,)."""
    counts: np.ndarray = np.diff(np.concatenate([[0], np.cumsum(grades > 0)])[indptr])
    return counts


def _sample(known: GradedLists, config: RankingConfig, n: int) -> GradedLists:
    """Some of the training queries with something to find."""
    rows = np.nonzero(_relevant(known.grades.cpu().numpy(), known.indptr.cpu().numpy()))[0]
    order = torch.randperm(len(rows), generator=stream(config.seed, _STREAM, 0)).numpy()
    return known.select(torch.from_numpy(np.sort(rows[order[:n]])).to(known.indptr.device))


def _gap(scores: torch.Tensor, sample: GradedLists, task: RankingTask, model: ListModel, part: Any, k: int) -> Gap:
    """Both over the queries with something to find, whatever evaluate.empty says."""
    held = task.lists(part)
    held_out = mean_ndcg(model.score(held.features, held.indptr), held.grades, held.indptr, k)
    how = f"{len(sample):,} training queries with something to find"
    return Gap(mean_ndcg(scores, sample.grades, sample.indptr, k), held_out, how)


def _references(task: RankingTask, sample: GradedLists, config: RankingConfig, part: Any) -> dict[str, Evaluation]:
    """A random order, and the one feature that orders the training documents best."""
    best, sign, column = -1.0, 1, 0
    for place in range(sample.features.size(1)):
        for direction in (1, -1):
            found = mean_ndcg(direction * sample.features[:, place], sample.grades, sample.indptr, config.k)
            if found > best:
                best, sign, column = found, direction, place
    lists, settings = task.lists(part), config.evaluate
    chance = torch.rand(lists.grades.numel(), generator=stream(config.seed, _STREAM, 1))
    label = f"feature {task.data.feature_names[column]} alone, {'highest' if sign > 0 else 'lowest'} first"
    return {
        name: evaluate_scores(
            scores, lists.grades, lists.indptr, task.cutoffs(config), empty=settings.empty, gain=settings.gain
        )
        for name, scores in (("a random order", chance), (label, sign * lists.features[:, column]))
    }


def _scores(config: RankingConfig, scores: torch.Tensor, sample: GradedLists) -> ScoreSample:
    """The scores of training documents; a list's threshold is exact."""
    table, mask = in_rows(scores, sample.indptr)
    grades, _ = in_rows(sample.grades, sample.indptr)
    k = int(config.loss.settings.get("k", config.k))
    threshold = list_thresholds(table, ~mask, k).expand_as(table)
    loss, tau = build_loss(config, 1, 1, 1), config.loss.settings.get("tau")
    has_partition = isinstance(loss, ListwiseSoftmax | ListwiseSLatK | ListNet)
    is_positive = (grades > 0) & ~mask
    return ScoreSample(
        table[is_positive].cpu().numpy(),
        threshold[is_positive].cpu().numpy(),
        None,
        table[(grades == 0) & ~mask].cpu().numpy(),
        effective_count(table, float(tau), mask) if has_partition and tau is not None else None,
        sample.lengths.cpu().numpy(),
    )


def _outside(low: np.ndarray, high: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The share of the documents with a value that no training document reaches, per feature, (f,)."""
    total = np.zeros(len(low))
    for start in range(0, len(features), _BLOCK):  # in blocks: a mask of all cells may not fit into memory
        block = features[start : start + _BLOCK]
        total += ((block < low) | (block > high)).sum(0)
    return total / max(1, len(features))


def _worst(outside: np.ndarray, names: tuple[str, ...]) -> str:
    return f"{outside.max():.1%} in feature {names[int(outside.argmax())]}" if outside.any() else "none"


def _grades(grades: np.ndarray) -> str:
    values, counts = np.unique(grades + 0.0, return_counts=True)  # -0 is 0
    return ", ".join(f"{value:g}: {count / grades.size:.1%}" for value, count in zip(values, counts, strict=True))


def nothing_to_find(share: float, convention: str) -> Advice | None:
    if share <= EMPTY:
        return None
    worth = {"skip": "left out", "zero": "worth 0", "one": "worth 1"}[convention]
    return Advice(
        "queries with nothing to find",
        f"{share:.0%} of the queries have no relevant document; evaluate.empty = {convention!r}: they are {worth}.",
        f"The convention alone moves every metric: with 'zero' it is at most {1 - share:.2f}, with 'one' at least "
        f"{share:.2f}.",
        "Compare only with numbers of the same convention, and name it beside yours.",
    )


def short_lists(lengths: np.ndarray, k: int, *, weighs_top: bool = True) -> Advice | None:
    """``weighs_top``: the loss is SL@K."""
    middle = float(np.median(lengths))
    if middle > k:
        return None
    selects = " SL@K has nothing to select." if weighs_top else ""
    other = ', or use loss.name = "softmax"' if weighs_top else ""
    return Advice(
        "K reaches the end of the lists",
        f"Half of the queries have {middle:g} documents or fewer, and K = {k}.",
        f"For them every document is in the top K, and NDCG@K is that of the whole list.{selects}",
        f"Set k to the places that people look at, under {max(2, int(middle))}{other}.",
    )


def constant_features(constant: np.ndarray, names: tuple[str, ...]) -> Advice | None:
    if constant.mean() <= CONSTANT:
        return None
    return Advice(
        "constant features",
        f"{int(constant.sum())} of the {len(names)} features have one value in all training documents: "
        f"{_listed(constant, names)}.",
        "Nothing can be learned from them; often a join or an export has failed.",
        "Check how they were made, or leave them out.",
    )


def features_outside(outside: np.ndarray, names: tuple[str, ...]) -> Advice | None:
    wrong = outside > OUTSIDE
    if not wrong.any():
        return None
    return Advice(
        "features outside the range of train",
        f"{outside.max():.0%} of the held-out documents have a value of {names[int(outside.argmax())]} that train does "
        f"not reach; over {OUTSIDE:.0%} in {_listed(wrong, names)}.",
        "Networks are not trained there, and their scores can be anything.",
        'Check that the feature is made alike in all parts; set model.transform = "quantile", which has no outside.',
    )


def _listed(flags: np.ndarray, names: tuple[str, ...]) -> str:
    chosen = [names[place] for place in np.nonzero(flags)[0]]
    return ", ".join(chosen[:_NAMED]) + (f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else "")
