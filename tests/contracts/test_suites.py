"""The contract suites themselves: a class that breaks a promise fails the test of that promise, and is told which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import broken_classes as broken
from topshelf import testing

LOSSES = [
    (broken.Mutates, "test_inputs_are_never_mutated", "a call must not change its inputs"),
    (broken.IgnoresMask, "test_masked_negatives_change_nothing_whatever_they_hold[100.0]", "masked negatives must"),
    (broken.FirstNegativeOnly, "test_order_of_negatives_changes_nothing", "the order of negatives must change nothing"),
    (broken.AddsInFloat32, "test_no_digit_of_float64_is_lost", "float64 scores must be computed in float64"),
    (broken.BadScope, "test_the_gradient_of_a_positives_term_stays_within_its_scope", "with scope = 'positive'"),
    (broken.DetachedScale, "test_gradcheck", "the gradient must be the derivative"),
    (broken.NoReduction, "test_what_it_says_of_itself_is_known_to_the_base", "its constructor must take reduction"),
    (broken.NeedsTheUnknown, "test_what_it_says_of_itself_is_known_to_the_base", "needs must be among"),
    (broken.MovesInEvaluation, "test_evaluation_mode_moves_no_state", "must leave its state alone"),
    (broken.Ascends, "test_a_step_raises_positives_and_lowers_negatives", "must raise positives on the whole"),
]
MODELS = [
    (broken.RandomEncode, "test_two_calls_give_the_same_vectors", "encode_queries: two calls must give the same"),
    (broken.RandomItems, "test_two_calls_give_the_same_vectors", "encode_items: two calls must give the same"),
    (broken.CentredRows, "test_some_rows_are_encoded_as_among_all", "must be those among all rows"),
    (broken.UnusedParameter, "test_a_step_moves_every_parameter", "a step of slatk must move spare"),
    (broken.KeepsData, "test_what_is_kept_of_a_model_is_its_parameters_and_nothing_of_the_data", "must hold the param"),
    (
        broken.ForgetsSomething,
        "test_a_saved_model_recommends_the_same_when_loaded[False]",
        "must be the same after sav",
    ),
    (
        broken.IgnoresOrder,
        "test_the_order_of_items_reaches_a_model_of_sequences",
        "must give the same items in another",
    ),
]
NEGATIVES = [
    (broken.DrawsPositives, "test_a_positive_never_counts_as_a_negative[query]", "must not count as its negative"),
    (broken.MasksOnlyTheBatch, "test_a_positive_never_counts_as_a_negative[pair]", "must not count as its negative"),
    (
        broken.WrongLayout,
        "test_a_draw_has_the_layout_and_the_shapes_it_says[query]",
        "with layout = 'own' items must be",
    ),
    (
        broken.GlobalStream,
        "test_the_same_stream_draws_the_same_whatever_else_is_drawn[query]",
        "the same generator must",
    ),
    (broken.ClaimsTheCatalogue, "test_a_draw_that_stands_for_the_catalogue_estimates_its_sum", "stands_for_catalogue"),
]
ESTIMATORS = [
    (broken.WithGradients, "test_thresholds_carry_no_gradient", "thresholds must carry no gradient"),
    (broken.WrongShape, "test_it_gives_one_finite_threshold_per_query", r"thresholds must be \(25,\), one per query"),
    (broken.InPlace, "test_it_changes_nothing_that_it_is_given", "leave alone what it is given: now"),
    (broken.FarOff, "test_on_frozen_vectors_thresholds_come_near_the_kth_best_scores[query]", "about K = 5 items"),
    (broken.NoMethod, "test_it_has_the_methods_that_it_says", "it must have follow"),
    (broken.UnseededNoise, "test_the_same_stream_gives_the_same_whatever_else_is_drawn", "the same generator must"),
]
BROKEN = [
    *(("Loss", "loss", *row) for row in LOSSES),
    *(("Model", "model", *row) for row in MODELS),
    *(("Negatives", "negatives", *row) for row in NEGATIVES),
    *(("Estimator", "estimator", *row) for row in ESTIMATORS),
]


@pytest.mark.parametrize(("suite", "kind", "cls", "test", "message"), BROKEN, ids=[row[2].__name__ for row in BROKEN])
def test_a_broken_promise_is_found_and_named(suite, kind, cls, test, message, tmp_path):
    contract = getattr(testing, f"{suite}Contract")()
    setattr(contract, kind, cls)
    method, _, parameter = test.removesuffix("]").partition("[")
    given = {"": (), "100.0": (100.0,), "False": (False, tmp_path)}.get(parameter, (parameter,))
    if "tmp_path" in getattr(contract, method).__code__.co_varnames and not given:
        given = (tmp_path,)
    with pytest.raises(AssertionError, match=message):
        getattr(contract, method)(*given)


def test_what_is_not_of_the_base_or_cannot_be_named_is_told_so():
    class Local(broken.SoftmaxLoss):
        pass

    contract = testing.LossContract()
    contract.loss = broken.RandomEncode
    with pytest.raises(AssertionError, match="RandomEncode must be a subclass of topshelf's Loss"):
        contract.test_a_run_can_name_it()
    contract.loss = Local
    with pytest.raises(AssertionError, match="define it at the top level of a module"):
        contract.test_a_run_can_name_it()


STRANGER = """
from broken_classes import FirstNegativeOnly
from topshelf.losses import BPR
from topshelf.testing import LossContract

class TestGood(LossContract):
    loss = BPR

class TestBad(LossContract):
    loss = FirstNegativeOnly
"""


def run(code, *arguments, cwd):
    command = [sys.executable, "-W", "error", *arguments] if code is None else [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.slow
def test_a_test_file_that_inherits_a_suite_shows_what_is_broken(tmp_path):
    (tmp_path / "test_theirs.py").write_text(STRANGER)
    (tmp_path / "broken_classes.py").write_text(Path(broken.__file__).read_text())
    done = run(None, "-m", "pytest", "-p", "no:cacheprovider", "-k", "order_of", "test_theirs.py", cwd=tmp_path)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "TestBad" in done.stdout.split("short test summary")[1]
    assert "the order of negatives must change nothing." in done.stdout


def test_without_pytest_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['pytest'] = None; import topshelf.testing"
    done = run(code, cwd=tmp_path)
    assert "ImportError: topshelf.testing needs pytest: pip install pytest" in done.stderr


def test_nothing_else_imports_pytest(tmp_path):
    code = "import sys, topshelf; [getattr(topshelf, name) for name in topshelf.__all__]; import topshelf.cli, "
    code += "topshelf.tuning, topshelf.diagnose, topshelf.artifact; assert 'pytest' not in sys.modules"
    done = run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
