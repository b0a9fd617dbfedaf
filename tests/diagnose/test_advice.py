"""Advice is given where a rule is broken, says what to set, and keeps quiet otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from topshelf.diagnose import Diagnosis
from topshelf.diagnose.gradients import Gradients, concentration
from topshelf.diagnose.measures import Bound, Estimate, Scores, Weights, weights_of
from topshelf.diagnose.states import Timing
from topshelf.diagnose.tables import HEALTHY, advice_lines

REACH = np.linspace(-0.8, 0.4, 400)  # of s - beta
FEW = Bound(20, 0.5, 0.3, 0.2, 0.9, 0, None)
BETA = np.linspace(0.3, 0.5, 50)


def weights(tau_weight, distance):
    return Weights(tau_weight, distance, weights_of(distance, tau_weight))


def spread(*sizes):
    found = concentration(np.array(sizes))
    return Gradients("slatk", "20", False, found, found, found)


@pytest.fixture
def healthy():
    return Diagnosis(
        target="run",
        label="slatk",
        data="data",
        n_users=500,
        n_items=5000,
        sampled_users=50,
        k=20,
        epochs=20,
        seed=0,
        state="the kept model of the run",
        estimator="sampled",
        effective_n=1000,
        is_cosine=True,
        two_positives=0.9,
        gradients=[spread(*np.linspace(1, 2, 200))],
        estimates=[
            Estimate("sampled (with the trick)", 1000, BETA, BETA - 0.02, 0.002),
            Estimate("iid (without it)", 1000, BETA, BETA + 0.5, 0.2),
        ],
        held=Estimate("the loss's own, after 20 epochs", None, BETA, BETA + 0.01, 0.001),
        scores=Scores(BETA, BETA - 0.5, BETA),
        weights=weights(2.0, REACH),
        bound=Bound(20, 0.0, 0.1, 0.9, 1.0, 0, {"50%": 3.0, "mean": 4.0}),
        bounds={"slatk": [], "softmax": []},
        mean_thresholds={"slatk": 0.31, "softmax": 0.46},
        timings=[Timing("slatk", 0.01, 100, 10, "catalogue")],
        small_lambda=0.99,
    )


def test_a_healthy_run_gets_no_advice(healthy):
    assert healthy.advice == []
    assert advice_lines(healthy.advice) == [HEALTHY]


@pytest.mark.parametrize(
    ("topic", "numbers", "changes"),
    [
        ("weights saturated", ("64% of", "31% over", "= 0.01", "at 0.23"), {"weights": weights(0.01, REACH)}),
        ("weights flat", ("tau_weight = 50", "0.005", "try 1.1"), {"weights": weights(50.0, REACH)}),
        ("K is large", ("30%", "under 500"), {"k": 1500}),
        ("thresholds stale", ("0.300", "0.12"), {"held": Estimate("", 1, BETA, BETA - 0.3, 0.12)}),
        ("thresholds misestimated", ("iid", "+0.500", "threshold.n"), {"estimator": "iid"}),
        ("effective N too large", ("-0.1", "0.5", "to 333"), {"mean_thresholds": {"slatk": -0.1, "softmax": 0.5}}),
        ("few users with two hits", ("20%", "50% have none", "Train longer"), {"bound": FEW}),
        (
            "few users with two hits",
            ("Only 30% of users have two training positives",),
            {"bound": FEW, "two_positives": 0.3},
        ),
        ("gradient concentrated", ("92%", "slatk"), {"gradients": [spread(*[0.01] * 190, *[2.2] * 10)]}),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found_alone_and_named_with_its_number(healthy, topic, numbers, changes):
    (advice,) = replace(healthy, **changes).advice
    assert advice.topic == topic
    for number in numbers:
        assert number in advice.sentences()


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": None, "held": None},  # a loss without thresholds
        {"mean_thresholds": {"slatk": -0.07}},  # nothing to compare with
        {"is_cosine": False, "mean_thresholds": {"slatk": -5.0, "softmax": 2.0}},  # the rule is for cosines
        {"estimator": "exact"},
    ],
)
def test_rules_that_do_not_apply_keep_quiet(healthy, changes):
    assert replace(healthy, **changes).advice == []
