"""A setting that is left to a race on validation: what is chosen, and that the run is the one with that value."""

from __future__ import annotations

import json
import tomllib
from contextlib import contextmanager

import pytest

from runs import StopAfter, assert_same, state_of
from topshelf import training
from topshelf.bench.cells import cell_key
from topshelf.config import assemble, make_config
from topshelf.data import Dataset, generate, make_split
from topshelf.errors import ConfigError, TrainingError
from topshelf.losses import LOSSES
from topshelf.training import race as module
from topshelf.training.build import automatic, resolve
from topshelf.training.race import settle
from topshelf.training.tasks import InteractionsTask
from topshelf.training.trainer import Trainer
from topshelf.tuning.ranges import space

VALUES = (1.0, 3.0, 500.0)


@pytest.fixture(scope="module")
def dataset():
    split = make_split(generate(80, 60, interactions_per_user=8, blocks=4, seed=2), seed=0)
    return Dataset("generated", split)


@pytest.fixture
def values(monkeypatch):
    monkeypatch.setattr(LOSSES["slatk"], "raced", {"tau_weight": VALUES})
    return VALUES


def config_of(tau_weight="auto", **train):
    train = {
        "epochs": 6,
        "validate_every": 2,
        "race_epochs": 3,
        "learning_rate": 0.05,
        "checkpoint_seconds": 0,
        **train,
    }
    return make_config({"k": 5, "loss": {"name": "slatk", "tau_weight": tau_weight}, "train": train})


def score_after(dataset, value, epochs):
    """Validation NDCG@5 of a run of so many epochs, evaluated after the last alone."""
    fitted = training.fit(config_of(value, epochs=epochs, validate_every=epochs), dataset)
    return fitted.valid_score


def settled(config, dataset):
    config, race, begun = settle(resolve(config, keep_auto=True), InteractionsTask(dataset.split), quiet=True)
    assert begun is not None
    return config, race


def test_the_best_on_validation_is_chosen_and_kept_in_the_config(dataset, values, monkeypatch):
    monkeypatch.setattr(module, "_FAR_BEHIND", 0.0)
    monkeypatch.setattr(module, "_NEAR", 1.0)
    config, race = settled(config_of(validate_every=9), dataset)
    scores = {one.value: one.score for one in race.tried}
    assert scores == {value: score_after(dataset, value, 3) for value in values}
    assert race.chosen == max(values, key=scores.get) == config.loss.settings["tau_weight"]
    assert len(set(scores.values())) > 1
    assert (race.setting, race.metric, race.epochs) == ("loss.tau_weight", "ndcg@5", 3)
    assert str(race).startswith(f"loss.tau_weight = {race.chosen:g}, by ndcg@5 on validation after 3 epochs (1: 0.")
    assert config.train == config_of(validate_every=9).train


def test_a_value_far_behind_is_dropped_after_half_of_the_epochs(dataset, values, monkeypatch):
    monkeypatch.setattr(module, "_FAR_BEHIND", 1.0)  # all but the best
    _, race = settled(config_of(validate_every=9, race_epochs=4), dataset)
    half = {value: score_after(dataset, value, 2) for value in values}
    assert race.chosen == max(values, key=half.get)
    assert {one.value: one.epochs for one in race.tried} == {v: 4 if v == race.chosen else 2 for v in values}
    assert {one.value: one.score for one in race.tried if one.epochs == 2}.items() <= half.items()
    assert "dropped after 2" in str(race)


def test_a_dropped_value_is_not_chosen_even_if_the_others_become_worse(dataset, values, monkeypatch):
    after = {1.0: (0.30, 0.10), 3.0: (0.20, 0.90), 500.0: (0.29, 0.12)}  # at half of the epochs, at the end

    def run_to(runner, epoch, *_):
        runner.score, runner.epochs, runner.state = after[runner.value][epoch > 2], epoch, {"epoch": epoch}

    monkeypatch.setattr(module._Runner, "run_to", run_to)
    config, race = settled(config_of(race_epochs=4), dataset)
    assert (race.chosen, config.loss.settings["tau_weight"]) == (500.0, 500.0)
    assert [one.epochs for one in race.tried] == [4, 2, 4]
    assert "which is the softmax loss" in str(race)


def test_of_near_values_the_last_is_taken(dataset, values, monkeypatch):
    monkeypatch.setattr(module, "_FAR_BEHIND", 0.0)
    monkeypatch.setattr(module, "_NEAR", 0.0)
    _, race = settled(config_of(), dataset)
    assert race.chosen == values[-1]
    is_best = race.tried[-1].score == max(one.score for one in race.tried)
    assert ("near the best and safer" in str(race)) is not is_best


def test_callbacks_are_told_of_every_epoch(dataset, values):
    class Listening:
        def __init__(self):
            self.epochs = []

        def on_epoch_end(self, record):
            self.epochs.append(record["epoch"])

    told = Listening()
    training.fit(config_of(), dataset, callbacks=[told])
    assert told.epochs == [1, 2, 3, 4, 5, 6]


def test_a_run_with_auto_is_the_run_with_the_chosen_value(dataset, values, tmp_path, capsys):
    raced = training.fit(config_of(), dataset, out=tmp_path / "auto", quiet=False)
    kept = json.loads((tmp_path / "auto" / "race.json").read_text())
    assert f"loss.tau_weight = {kept['chosen']:g}, by ndcg@5" in " ".join(capsys.readouterr().err.split())
    given = training.fit(config_of(kept["chosen"]), dataset, out=tmp_path / "given")
    assert raced.config == given.config
    assert not (tmp_path / "given" / "race.json").exists()
    assert_same(state_of(tmp_path / "auto"), state_of(tmp_path / "given"))
    assert [one["value"] for one in kept["tried"]] == list(values)
    text = tomllib.loads((tmp_path / "auto" / "config.toml").read_text())
    assert text["loss"]["tau_weight"] == kept["chosen"]


def stopping(steps):
    @contextmanager
    def stop():
        yield StopAfter(steps)

    return stop


def test_a_resumed_run_does_not_race_again(dataset, values, tmp_path, monkeypatch):
    whole = training.fit(config_of(), dataset, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr("topshelf.training.phases.stop_on_signals", stopping(3))
        with pytest.raises(training.StoppedEarly, match="continue with"):
            training.fit(config_of(), dataset, out=tmp_path / "cut")
    assert (tmp_path / "cut" / "race.json").exists()
    monkeypatch.setattr("topshelf.training.run.settle", None)
    resumed = training.resume(tmp_path / "cut")
    assert resumed.config == whole.config
    assert_same(state_of(tmp_path / "cut"), state_of(tmp_path / "whole"))


def test_stopping_in_the_race_leaves_nothing(dataset, values, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "stop_on_signals", stopping(4))
    with pytest.raises(training.StoppedEarly, match="stopped in the race"):
        training.fit(config_of(), dataset, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_race_is_not_longer_than_the_run(dataset, values):
    _, race = settled(config_of(epochs=2), dataset)
    assert race.epochs == 2


def failing_with(*values):
    class Failing(Trainer):
        def run(self, watcher=None):
            if self.loss.tau_weight in values:
                raise TrainingError("the loss became nan")
            super().run(watcher)

    return Failing


def test_a_value_that_fails_loses_and_if_all_fail_so_does_the_run(dataset, values, monkeypatch):
    monkeypatch.setattr(module, "Trainer", failing_with(1.0))
    _, race = settled(config_of(), dataset)
    assert race.tried[0] == (1.0, None, 0)
    assert race.chosen != 1.0
    assert "1: failed" in str(race)
    monkeypatch.setattr(module, "Trainer", failing_with(*values))
    with pytest.raises(TrainingError, match=r"the race for loss.tau_weight = 'auto' failed.*1, 3, 500"):
        settled(config_of(), dataset)


def test_unknown_data_race_and_given_or_shipped_values_do_not():
    assert automatic(assemble(data="clicks.csv")) == "tau_weight"
    assert automatic(assemble(data="clicks.csv", more={"loss": {"tau_weight": 2.0}})) is None
    for shipped in ("amazon2014-health", "amazon2014-electronic", "gowalla", "movielens-100k"):
        assert automatic(assemble(data=shipped)) is None
    assert automatic(assemble(data="clicks.csv", loss="softmax")) is None
    assert automatic(make_config({})) is None


def test_without_a_run_the_default_takes_its_place():
    config = assemble(data="clicks.csv")
    assert resolve(config).loss.settings["tau_weight"] == 3.0
    assert resolve(config, keep_auto=True).loss.settings["tau_weight"] == "auto"
    assert space(config).default["loss.tau_weight"] == 3.0


def test_the_key_of_a_cell_tells_auto_from_a_number():
    auto, given, left_out = (
        resolve(make_config({"loss": {"name": "slatk", **more}}), keep_auto=True)
        for more in ({"tau_weight": "auto"}, {"tau_weight": 3.0}, {})
    )
    assert cell_key(given, "x") == cell_key(left_out, "x") != cell_key(auto, "x")


def test_a_closed_form_model_has_nothing_to_race(dataset):
    config = make_config({"k": 5, "model": {"name": "ease"}, "loss": {"name": "slatk", "tau_weight": "auto"}})
    fitted = training.fit(config, dataset)
    assert fitted.config.loss.settings["tau_weight"] == 3.0


@pytest.mark.parametrize("loss", [{"name": "softmax", "tau": "auto"}, {"name": "slatk", "tau": "auto"}])
def test_a_setting_that_no_race_chooses_refuses_auto(loss):
    with pytest.raises(ConfigError, match=r"loss.tau: .*number.*got 'auto'"):
        resolve(make_config({"loss": loss}))
