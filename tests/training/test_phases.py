"""Which part of the data is used for what: selection never sees the test, the refit sees train and validation."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from topshelf.config import make_config
from topshelf.data import Split, generate, make_split
from topshelf.evaluation import ndcg
from topshelf.ragged import merge
from topshelf.training.build import build_objective, resolve
from topshelf.training.phases import Phases
from topshelf.training.tasks import InteractionsTask
from topshelf.training.tasks import interactions as task_module


@pytest.fixture
def split():
    return make_split(generate(60, 40, interactions_per_user=8, seed=2), seed=0)


def same(first, second):
    return torch.equal(first.indptr, second.indptr) and torch.equal(first.indices, second.indices)


@pytest.fixture
def spied(monkeypatch):
    """What was ranked at every validation, and what was trained on."""
    validated, trained = [], []

    def spy_ndcg(queries, items, relevant, exclude, k, world):
        validated.append((relevant, exclude, k))
        return ndcg(queries, items, relevant, exclude, k, world)

    def spy_objective(config, model, context):
        trained.append(context.histories)
        return build_objective(config, model, context)

    monkeypatch.setattr(task_module, "ndcg", spy_ndcg)
    monkeypatch.setattr(task_module, "build_objective", spy_objective)
    return validated, trained


def run(split, **train):
    config = resolve(make_config({"k": 4, "train": {"epochs": 4, "validate_every": 2, **train}}))
    return Phases(
        config, InteractionsTask(split), quiet=True, measure=lambda outcome: {"epoch": outcome.best_epoch}
    ).run(None, None)


def test_epochs_are_chosen_on_validation_with_train_masked_and_trained_on_train(split, spied):
    validated, trained = spied
    run(split)
    assert len(validated) == 2
    for relevant, exclude, k in validated:
        assert same(relevant, split.valid.ragged())
        assert same(exclude, split.train.ragged())
        assert k == 4
    assert len(trained) == 1
    assert same(trained[0], split.train.ragged())


def test_the_refit_trains_on_train_and_validation_for_the_chosen_epochs(split, spied):
    validated, trained = spied
    outcome = run(split, refit=True)
    assert same(trained[-1], merge(split.train.ragged(), split.valid.ragged()))
    assert len(validated) == 2  # none in the refit
    assert outcome.best_epoch in (2, 4)
    assert outcome.valid_score == pytest.approx(run(split).valid_score)


def test_a_refit_on_everything_is_measured_before_it_sees_the_test_part(split, spied):
    _, trained = spied
    outcome = run(split, refit="all")
    everything = merge(merge(split.train.ragged(), split.valid.ragged()), split.test.ragged())
    assert same(trained[0], split.train.ragged())
    assert same(trained[-1], everything)
    assert outcome.measured == {"epoch": outcome.best_epoch}
    assert run(split, refit=True).measured is None


def test_a_closed_form_model_sees_validation_only_when_refitted(split):
    def counts(**train):
        config = resolve(make_config({"k": 4, "model": {"name": "popularity"}, "train": train}))
        phases = Phases(
            config,
            InteractionsTask(split),
            quiet=True,
            measure=lambda outcome: {"counts": outcome.model.counts.sum().item()},
        )
        outcome = phases.run(None, None)
        if train.get("refit") == "all":
            assert outcome.measured == {"counts": len(split.train)}
        return outcome.model.counts.sum()

    assert counts() == len(split.train)
    assert counts(refit=True) == len(split.train) + len(split.valid)
    assert counts(refit="all") == len(split.train) + len(split.valid) + len(split.test)


def test_neither_the_test_part_nor_its_absence_changes_what_is_learned(split):
    other = Split(split.train, split.valid, split.test.where(split.test.rows() < 5), split.kind)
    first, second = run(split).model.state_dict(), run(other).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_moments_and_best_weights_are_let_go_before_the_artifact_is_made(split):
    config = resolve(make_config({"k": 4, "train": {"epochs": 4, "validate_every": 2}}))
    phases = Phases(config, InteractionsTask(split), quiet=True, measure=lambda outcome: {})
    trainer = weakref.ref(phases._first_trainer)
    outcome = phases.run(None, None)
    gc.collect()
    assert outcome.best_epoch in (2, 4)
    assert trainer() is None
