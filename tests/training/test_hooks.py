"""Estimators of a user's own, and when the thresholds' hook asks them."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from lists import ragged
from topshelf.config import make_config
from topshelf.data import Dataset, generate, make_split
from topshelf.errors import ConfigError
from topshelf.losses import SLatK
from topshelf.models import MF
from topshelf.queries import Batch, Context, Encoded, QuerySet
from topshelf.training import fit
from topshelf.training.batches import stream
from topshelf.training.build import build_estimator, build_model, build_trainer, resolve
from topshelf.training.thresholding import Estimator, Exact, Incremental, ThresholdHook
from topshelf.training.trainer import Interrupted

LISTS, N_ITEMS, K = ragged([0, 1], [1, 2, 4], [3], [0]), 6, 2


class Steady(Estimator):
    """Every few epochs: one more than before."""

    def __init__(self, *, step: float = 1.0) -> None:
        self.step, self.seen = step, []

    def refresh(self, now, queries, items, positives, k, generator):
        self.seen.append((queries, items, positives, k, torch.rand(1, generator=generator)))
        return now + self.step


class Following(Estimator):
    """Every step: the row of the batch that the query has, plus one."""

    updates = "steps"

    def __init__(self) -> None:
        self.seen = []

    def follow(self, now, batch, encoded, k, generator):
        self.seen.append((now, batch, encoded, k, torch.rand(1, generator=generator)))
        return torch.arange(1.0, now.numel() + 1)


class Reading(Estimator):
    """Every few epochs, off the scores of a step where they are exact."""

    reads = "kth"

    def refresh(self, now, queries, items, positives, k, generator):
        return now + 1.0

    def read(self, now, block, loss):
        return block.threshold + 10.0


def hook_of(estimator, **settings):
    loss = SLatK(len(LISTS), k=K)
    return ThresholdHook(loss, estimator, QuerySet.known(len(LISTS)), LISTS, **settings)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MF(len(LISTS), N_ITEMS, dim=3)


def test_an_estimator_of_epochs_is_asked_in_those_divisible_by_every(model):
    hook = hook_of(Steady(step=0.5), every=2)
    levels = []
    for epoch in range(1, 6):
        hook.begin_epoch(epoch, model, stream(epoch))
        hook.after_step(None, None, stream(0))
        levels.append(hook.loss.threshold.tolist())
    assert levels == [[0.0] * 4, [0.5] * 4, [0.5] * 4, [1.0] * 4, [1.0] * 4]


def test_an_estimator_of_epochs_is_given_all_queries_and_items_without_gradients(model):
    hook = hook_of(Steady(), every=1)
    hook.begin_epoch(1, model, stream(3))
    ((queries, items, positives, k, drawn),) = hook.estimator.seen
    assert_close(queries, model.encode_queries(QuerySet.known(4)).detach())
    assert_close(items, model.encode_items().detach())
    assert not queries.requires_grad
    assert (positives, k) == (LISTS, K)
    assert torch.equal(drawn, torch.rand(1, generator=stream(3)))
    assert hook.wanted(tensor([0])) == {}


def a_batch(query):
    query = tensor(query)
    own = LISTS.select(query)
    return Batch(query, own.owner(), own.indices, own, is_whole=True, begin=LISTS.indptr[query])


def test_an_estimator_of_steps_moves_the_queries_of_the_batch_after_the_step(model):
    hook, batch = hook_of(Following()), a_batch([2, 0])
    hook.begin_epoch(5, model, stream(0))
    assert (hook.loss.threshold == 0).all()
    hook.loss.threshold.copy_(tensor([0.1, 0.2, 0.3, 0.4]))
    encoded = Encoded(torch.ones(2, 3), torch.ones(N_ITEMS, 3))
    hook.after_step(batch, encoded, stream(3))
    assert_close(hook.loss.threshold, tensor([2.0, 0.2, 1.0, 0.4]))
    ((now, same_batch, same_encoded, k, drawn),) = hook.estimator.seen
    assert_close(now, tensor([0.3, 0.1]))
    assert (same_batch, k) == (batch, K)
    assert same_encoded is encoded
    assert torch.equal(drawn, torch.rand(1, generator=stream(3)))


def test_of_a_query_that_comes_twice_in_a_batch_the_first_row_decides():
    hook = hook_of(Following())
    hook.after_step(a_batch([3, 1, 3, 1, 0]), Encoded(torch.ones(5, 3), torch.ones(N_ITEMS, 3)), stream(0))
    assert_close(hook.loss.threshold, tensor([5.0, 2.0, 0.0, 1.0]))


@pytest.mark.parametrize("estimator", [Steady(), Exact()])
def test_a_resumed_epoch_does_not_refresh(model, estimator):
    hook = hook_of(estimator, every=1)
    hook.begin_epoch(1, model, stream(0), is_resumed=True)
    assert (hook.loss.threshold == 0).all()
    hook.begin_epoch(2, model, stream(0), is_resumed=False)
    assert (hook.loss.threshold != 0).all()


def test_the_steps_of_a_resumed_epoch_go_on_reading_their_scores(model):
    hook = hook_of(Exact(), every=5, in_steps=True)
    for epoch, is_resumed, wanted in ((4, False, {}), (5, False, {"k": K}), (5, True, {"k": K}), (6, True, {})):
        hook.begin_epoch(epoch, model, stream(0), is_resumed=is_resumed)
        assert hook.wanted(tensor([1])) == wanted
        assert (hook.loss.threshold == 0).all()


def test_counts_above_the_threshold_are_wanted_at_every_step(model):
    hook = hook_of(Incremental(), in_steps=True)
    hook.loss.threshold.copy_(tensor([0.1, 0.2, 0.3, 0.4]))
    hook.begin_epoch(1, model, stream(0))
    assert_close(hook.wanted(tensor([2, 0]))["level"], tensor([0.3, 0.1]))
    hook.after_step(a_batch([2, 0]), None, stream(0))  # the step has done it
    assert_close(hook.loss.threshold, tensor([0.1, 0.2, 0.3, 0.4]))


def test_an_estimator_that_reads_is_asked_otherwise_where_steps_do_not_score_everything(model):
    hook = hook_of(Reading(), every=1, in_steps=False)
    hook.begin_epoch(1, model, stream(0))
    assert hook.wanted(tensor([0])) == {}
    assert (hook.loss.threshold == 1).all()


MODULE = """
import torch
from topshelf.training.thresholding import Estimator

class Steady(Estimator):
    def __init__(self, *, step: float = 1.0):
        self.step = step

    def refresh(self, now, queries, items, positives, k, generator):
        return now + self.step

class Following(Estimator):
    updates = "steps"

    def __init__(self, *, n: int, step: float = 1.0):
        self.n, self.step = n, step

    def follow(self, now, batch, encoded, k, generator):
        return now + self.step
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "their_estimators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_estimators"
    sys.modules.pop("their_estimators", None)


def test_a_users_estimators_are_built_by_name_with_their_settings(theirs):
    steady = build_estimator(make_config({"threshold": {"estimator": f"{theirs}:Steady", "step": 0.25}}))
    following = build_estimator(make_config({"threshold": {"estimator": f"{theirs}:Following", "n": 7}}))
    assert (type(steady).__name__, steady.step) == ("Steady", 0.25)
    assert (following.n, following.step) == (7, 1.0)
    with pytest.raises(ConfigError, match=r"threshold\.stride is not a setting; accepted here: step"):
        build_estimator(make_config({"threshold": {"estimator": f"{theirs}:Steady", "stride": 1}}))


@pytest.mark.parametrize("negatives", ["catalogue", "shared"])
@pytest.mark.parametrize(("name", "expected"), [("Steady", 3.0), ("Following", 6.0)])
def test_a_run_trains_with_a_users_estimator(theirs, name, negatives, expected):
    """Six epochs, refreshed in every second one, or one step for every user in each."""
    threshold = {"estimator": f"{theirs}:{name}", "every": 2, "n": 20}
    train = {"epochs": 6, "batch_size": 16, "order": "query"}
    values = {"k": 3, "threshold": threshold, "negatives": {"kind": negatives}, "train": train}
    split = make_split(generate(40, 25, interactions_per_user=6, seed=0), seed=0)
    config = resolve(make_config(values))
    trainer = build_trainer(config, build_model(config, 40, 25), Context(split.train.ragged(), 25))
    trainer.run()
    counts = split.train.ragged().counts
    in_batches = (counts > 0) & (counts < 25)
    assert (trainer.loss.threshold[in_batches] == expected).all()
    assert fit(config, Dataset("generated", split)).config.threshold.more == config.threshold.more


def test_the_trainer_says_which_epochs_are_resumed():
    split = make_split(generate(40, 25, interactions_per_user=6, seed=0), seed=0)
    config = resolve(make_config({"k": 3, "train": {"epochs": 3, "batch_size": 16}}))

    def trainer():
        made = build_trainer(config, build_model(config, 40, 25), Context(split.train.ragged(), 25))
        made.objective.hooks.append(told)
        return made

    class Told:
        def __init__(self):
            self.epochs = []

        def begin_epoch(self, epoch, model, generator, *, is_resumed):
            self.epochs.append((epoch, is_resumed))

        def after_step(self, batch, encoded, generator): ...

    class Stopping:
        def on_step(self, trainer): ...

        def on_epoch(self, trainer, record): ...

        def wants_to_stop(self):
            return first.progress.epoch == 1 and first.progress.step == 1

    told = Told()
    first = trainer()
    assert len(first.batches) > 1
    with pytest.raises(Interrupted):
        first.run(Stopping())
    second = trainer()
    second.load_state_dict(first.state_dict())
    second.run()
    assert told.epochs == [(1, False), (2, False), (2, True), (3, False)]


class KthAtEveryStep(Reading):
    """The K-th best score at every step, not every few epochs."""

    updates = "steps"


def test_an_estimator_that_reads_the_kth_score_at_every_step_does(model):
    hook = hook_of(KthAtEveryStep(), every=5, in_steps=True)
    for epoch in (1, 2, 5):
        hook.begin_epoch(epoch, model, stream(epoch))
        assert hook.wanted(tensor([0, 2])) == {"k": K}
    every_few = hook_of(Reading(), every=5, in_steps=True)
    every_few.begin_epoch(2, model, stream(2))
    assert every_few.wanted(tensor([0])) == {}
