"""Advice on runs of any task: each rule speaks where it is broken, alone and with its number, and keeps quiet else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from topshelf.diagnose.examine import Epoch, RunDiagnosis
from topshelf.evaluation import Evaluation
from topshelf.training import link_examination as links
from topshelf.training import list_examination as lists
from topshelf.training import sequence_examination as sequences
from topshelf.training.examination import Examination, Gap, ScoreSample, Trait, effective_count

N = 400
SCORES = ScoreSample(
    positive=np.linspace(-1.0, 2.0, 200),
    threshold=np.full(200, 0.5),
    used=None,
    negative=np.linspace(-2.0, 0.5, 200),
    effective=np.full(50, 30.0),
    n_candidates=np.full(50, 100),
)
RISING = [Epoch(at, 2.0 - 0.1 * at, valid) for at, valid in enumerate((0.2, 0.3, 0.38, 0.4, 0.4), start=1)]


def evaluation(mean: float, n: int = N) -> Evaluation:
    """Half of the queries twice as good as the mean, the others 0."""
    values = torch.zeros(n, dtype=torch.float64)
    values[: n // 2] = 2 * mean
    return Evaluation("standard", (5,), torch.arange(n), {"ndcg@5": values})


HALVES = Trait("popularity", np.repeat([0, 1], N // 2), ("most popular 10% of items", "other items"))


def examination(**changes) -> Examination:
    usual = {
        "part": "valid",
        "metric": "ndcg@5",
        "evaluation": evaluation(0.4),
        "references": {"popularity": evaluation(0.1), "markov": evaluation(0.3)},
        "traits": [HALVES],
        "gap": Gap(0.5, 0.4, "some users"),
        "scores": SCORES,
    }
    return Examination(**{**usual, **changes})


def diagnosis(**changes) -> RunDiagnosis:
    usual = {
        "target": "run",
        "task": "sequences",
        "model": "sasrec",
        "loss": "slatk",
        "data": "clicks",
        "k": 5,
        "n_items": 100,
        "loss_settings": {"tau": 0.1, "tau_weight": 1.0, "k": 5},
        "best_epoch": 4,
        "epochs": RISING,
        "examination": examination(),
    }
    return RunDiagnosis(**{**usual, **changes})


def epochs(*valid: float, loss=lambda at: 2.0 - 0.1 * at) -> list[Epoch]:
    return [Epoch(at, loss(at), value) for at, value in enumerate(valid, start=1)]


def scores(**changes) -> dict[str, Examination]:
    return {"examination": examination(scores=replace(SCORES, **changes))}


def test_a_healthy_run_gets_no_advice():
    assert diagnosis().advice == []
    assert diagnosis(loss=None, epochs=[], examination=examination(gap=None, scores=None)).advice == []


@pytest.mark.parametrize(
    ("topic", "numbers", "changes"),
    [
        ("a simple reference is better", ("markov", "0.4500", "0.4000"),
         {"examination": examination(references={"popularity": evaluation(0.1), "markov": evaluation(0.45)})}),
        ("loss does not fall", ("1.1 in epoch 1", "1.5 in epoch 5"),
         {"epochs": epochs(0.2, 0.3, 0.4, 0.4, 0.4, loss=lambda at: 1 + 0.1 * at)}),
        ("still improving", ("epoch (5)", "0.3800 to 0.4500", "train.epochs to 10"),
         {"epochs": epochs(0.2, 0.3, 0.37, 0.38, 0.45), "best_epoch": 5}),
        ("overfits after the best epoch", ("0.4000 in epoch 2", "0.3000 in epoch 4"),
         {"epochs": epochs(0.2, 0.4, 0.35, 0.3), "best_epoch": 2}),
        ("far better on training data", ("0.700", "0.400", "some users"),
         {"examination": examination(gap=Gap(0.7, 0.4, "some users"))}),
        ("far better on training data", ("0.300", "0.090"),
         {"examination": examination(gap=Gap(0.3, 0.09, "some users"))}),
        ("held-out part is small", ("0.4000 ± 0.1753", "20 users"),
         {"examination": examination(evaluation=evaluation(0.4, 20), references={"markov": evaluation(0.1, 20)})}),
        ("positives are not above the others", ("0.500", "1.250"), scores(negative=SCORES.negative + 2)),
        ("temperature is low", ("1.10", "loss.tau, to 0.2"), scores(effective=np.full(50, 1.1))),
        ("temperature is high", ("98%", "loss.tau, to 0.025"), scores(effective=np.full(50, 98.0))),
        ("thresholds off", ("0.12", "threshold.n"), scores(used=SCORES.threshold - 0.6)),
        ("weights saturated", ("tau_weight = 0.01",), {"loss_settings": {"tau": 0.1, "tau_weight": 0.01}}),
        ("weights flat", ("tau_weight = 100",), {"loss_settings": {"tau": 0.1, "tau_weight": 100.0}}),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found_alone_and_named_with_its_number(topic, numbers, changes):
    (advice,) = diagnosis(**changes).advice
    assert advice.topic == topic
    for number in numbers:
        assert number in advice.sentences()


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": epochs(0.2, 0.3, 0.38, 0.4, 0.401), "best_epoch": 5},  # the last is best, by a hair
        {"epochs": epochs(0.2, 0.4, 0.39, 0.38), "best_epoch": 2},
        {"epochs": [Epoch(at, 2.0 - at, None) for at in (1, 2)]},  # nothing was validated
        {"model": "markov", "loss": None, "epochs": [],
         "examination": examination(references={"markov": evaluation(0.4)}, scores=None)},  # it is its own reference
        scores(used=SCORES.threshold + 0.01),
        scores(effective=None),
        {"loss_settings": {"tau": 0.1, "tau_weight": 0.01, "weight": "step"}},  # no sigmoid to saturate
    ],
)  # fmt: skip
def test_rules_that_are_kept_are_quiet(changes):
    assert diagnosis(**changes).advice == []


@pytest.mark.parametrize(
    ("broken", "kept", "topic", "number"),
    [
        (lambda: sequences.unknown_items(0.2), lambda: sequences.unknown_items(0.04), "train does not know", "0.80"),
        (lambda: sequences.excluded_repeats(0.3, excluded=True),
         lambda: sequences.excluded_repeats(0.3, excluded=False),
         "repeats counted", "0.70"),
        (lambda: sequences.cut_histories(0.4, 50), lambda: sequences.cut_histories(0.2, 50), "histories cut", "to 100"),
        (lambda: sequences.missed_tail(examination(), HALVES),
         lambda: sequences.missed_tail(examination(traits=[]), Trait("", 1 - HALVES.group, HALVES.labels)),
         "only popular", "0.800"),
        (lambda: lists.nothing_to_find(0.24, "skip"), lambda: lists.nothing_to_find(0.05, "skip"),
         "nothing to find", "at most 0.76"),
        (lambda: lists.short_lists(np.array([3, 4, 9]), 5), lambda: lists.short_lists(np.array([3, 6, 9]), 5),
         "end of the lists", "4 documents"),
        (lambda: lists.constant_features(np.array([True, False]), ("age", "match")),
         lambda: lists.constant_features(np.array([False, False]), ("age", "match")), "constant features", ": age."),
        (lambda: lists.features_outside(np.array([0.0, 0.3]), ("age", "match")),
         lambda: lists.features_outside(np.array([0.0, 0.01]), ("age", "match")), "outside the range", "30%"),
        (lambda: links.nodes_alone(0.5, has_features=False, found=examination()),
         lambda: links.nodes_alone(0.05, has_features=False, found=examination()), "unknown nodes", "data.features"),
        (lambda: links.nodes_alone(0.5, has_features=True, found=examination()),
         lambda: links.nodes_alone(0.0, has_features=True, found=examination()), "unknown nodes", '"sage"'),
        (lambda: links.unused_neighbours(examination(references={"adamic_adar": evaluation(0.45)}), HALVES.group == 0,
                                         is_ncn=False),
         lambda: links.unused_neighbours(examination(references={"adamic_adar": evaluation(0.45)}), HALVES.group == 0,
                                         is_ncn=True), "common neighbours not used", "adamic_adar reaches ndcg@5 0.9"),
        (lambda: links.unused_neighbours(examination(references={"adamic_adar": evaluation(0.45)}), HALVES.group == 0,
                                         is_ncn=False),
         lambda: links.unused_neighbours(examination(references={"adamic_adar": evaluation(0.3)}), HALVES.group == 0,
                                         is_ncn=False), "common neighbours not used", "50% of edges"),
    ],
)  # fmt: skip
def test_a_tasks_own_rule_speaks_where_it_is_broken_only(broken, kept, topic, number):
    advice = broken()
    assert topic in advice.topic
    assert number in advice.sentences()
    assert kept() is None


def test_models_without_sl_at_k_are_not_told_to_change_their_loss():
    lengths = np.array([3, 4, 9])
    told = [str(lists.short_lists(lengths, 5, weighs_top=one)) for one in (True, False)]
    assert ["softmax" in one for one in told] == ["SL@K" in one for one in told] == [True, False]


def test_groups_have_their_numbers_and_share_the_metric():
    found = examination()
    head, tail = found.groups(HALVES)
    assert (head.n, head.mean, head.share) == (200, 0.8, 1.0)
    assert (tail.n, tail.mean, tail.share) == (200, 0.0, 0.0)


def test_counts_fall_into_the_groups_that_are_named():
    trait = Trait.of_counts("events", np.array([0, 1, 4, 5, 19, 20, 1000]), (0, 1, 5, 20))
    assert trait.labels == ("0", "1 to 4", "5 to 19", "20 and more")
    assert trait.group.tolist() == [0, 1, 1, 2, 2, 3, 3]


def test_a_softmax_is_spread_over_as_many_candidates_as_are_equally_likely():
    table = torch.tensor([[1.0, 1.0, 1.0, 1.0], [9.0, 9.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    assert effective_count(table, 0.1) == pytest.approx([4, 2, 1])
    mask = torch.tensor([False, False, False, True]).expand(3, 4)
    assert effective_count(table, 0.1, mask) == pytest.approx([3, 2, 1])
    assert effective_count(table, 1e6) == pytest.approx([4, 4, 4])
