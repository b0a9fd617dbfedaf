"""What is searched, and the errors of those who ask for something else."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from topshelf.config import assemble, make_config
from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.models import MODELS
from topshelf.training.build import resolve
from topshelf.tuning.ranges import Choice, Interval, parse, settings_of, space


def config(**values):
    return make_config({"k": 5, **values})


def test_the_ranges_are_those_of_the_loss_with_the_default_among_them():
    found = space(config(loss={"name": "slatk", "tau": 0.225}))
    assert found.ranges["loss.tau"] == Choice((0.01, 0.05, 0.1, 0.2, 0.225, 0.5))
    assert found.ranges["threshold.every"] == Choice((5, 20))
    assert found.default["loss.tau"] == 0.225
    assert set(LOSSES["slatk"].ranges) <= found.ranges.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_brings_ranges_that_its_config_accepts(name):
    found = space(assemble(data="synthetic", loss=name, k=5))
    assert set(LOSSES[name].ranges) <= found.ranges.keys()
    assert found.config(found.default) == resolve(found.base)
    for key, range_ in found.ranges.items():
        for value in (range_.values[0], range_.values[-1]):
            assert settings_of(found.config({key: value}))[key] == value


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if getattr(cls, "ranges", {})])
def test_every_model_brings_ranges_that_its_config_accepts(name):
    found = space(assemble(data="synthetic", model=name, k=5))
    ranges = {key: values for key, values in MODELS[name].ranges.items() if len(set(values)) > 1}
    assert ranges.keys() <= found.ranges.keys()
    assert all(set(values) <= set(found.ranges[key].values) for key, values in ranges.items())
    for key, range_ in found.ranges.items():
        for value in (range_.values[0], range_.values[-1]):
            assert settings_of(found.config({key: value}))[key] == value


def test_given_ranges_go_before_those_of_the_metadata_and_none_leaves_one_out():
    given = parse(["loss.tau=0.05, 0.1,0.2", "train.learning_rate=1e-3:0.1:log", "model.dim=8:64"])
    found = space(config(), {**given, "threshold.every": None})
    assert found.ranges["loss.tau"] == Choice((0.05, 0.1, 0.2))
    assert found.ranges["train.learning_rate"] == Interval(1e-3, 0.1, log=True)
    assert found.ranges["model.dim"] == Interval(8, 64, whole=True)
    assert "threshold.every" not in found.ranges


def test_a_point_becomes_a_resolved_config():
    found = space(config(), {"model.dim": "8:64"})
    made = found.config({**found.default, "model.dim": 16, "loss.tau": 0.5})
    assert made.model.settings["dim"] == 16
    assert made.loss.settings["tau"] == 0.5
    assert made.loss.settings["k"] == 5


def test_a_range_is_widened_to_hold_the_default():
    found = space(config(train={"learning_rate": 0.3}), {"train.learning_rate": "0.01:0.1", "model.score": ["dot"]})
    assert found.ranges["train.learning_rate"] == Interval(0.01, 0.3)
    assert found.ranges["model.score"] == Choice(("dot", "cosine"))


def test_one_value_alone_is_not_searched():
    assert "loss.tau" not in space(config(loss={"tau": 0.1}), {"loss.tau": "0.1"}).ranges


def test_a_closed_form_model_has_only_its_own_settings():
    found = space(config(model={"name": "ease"}), {"model.l2": "10,100"})
    assert found.ranges == {"model.l2": Choice((10.0, 100.0, 300.0))}
    with pytest.raises(ConfigError, match=r"loss\.tau cannot be searched here; accepted: model\.l2"):
        space(config(model={"name": "ease"}), {"loss.tau": "0.1,0.2"})


def test_the_grid_holds_every_point_once_and_begins_with_the_default():
    found = space(config(), {**dict.fromkeys(LOSSES["slatk"].ranges), "loss.tau": "0.1,0.2", "model.dim": "8,16,64"})
    points = list(found.grid(seed=1))
    assert points[0] == {"loss.tau": 0.2, "model.dim": 64}
    assert len(points) == found.size == 6
    expected = itertools.product((0.1, 0.2), (8, 16, 64))
    assert sorted(tuple(point.values()) for point in points) == sorted(expected)
    assert points == list(found.grid(seed=1))
    assert points != list(found.grid(seed=2))


def test_a_range_of_numbers_is_endless_and_no_grid():
    found = space(config(), {"loss.tau": "0.1:0.2"})
    assert found.size == math.inf
    with pytest.raises(ConfigError, match=r"a grid needs lists of values, got loss\.tau=0\.1 to 0\.2"):
        next(found.grid(0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "loss.temperature=0.1,0.2",
            "loss.temperature cannot be searched here; accepted: model.*loss.tau, .*train.learn",
        ),
        ("train.epochs=10,20", "train.epochs cannot be searched here"),
        ("data.noise=0,1", "data.noise cannot be searched here"),
        ("loss.tau=", "range loss.tau=: it is empty; give name=value,value"),
        ("loss.tau=,", "it is empty"),
        ("loss.tau=0,0.1", r"range loss.tau=0,0.1: tau must be > 0, got 0"),
        ("model.dim=0,32", r"range model.dim=0,32: dim must be >= 1, got 0"),
        ("loss.tau=0.2:0.1", "a range must have low < high, got 0.2:0.1"),
        ("loss.tau=nan:1", "a range must have low < high, got nan:1"),
        ("loss.tau=0:1:log", "a logarithmic range must have low > 0, got 0.0:1.0"),
        (
            "train.weight_decay=1e-6:1e-2:log",
            "a logarithmic range cannot hold the default, which is 0.0; set another",
        ),
        ("loss.tau=0.1:1:cubic", "a range of numbers is low:high or low:high:log, got '0.1:1:cubic'"),
        ("loss.tau=a:b", "a range of numbers is low:high or low:high:log"),
        ("loss.weight=0.1:1", "the setting is not a number"),
        ("model.dim=8.5:64", "the setting is a whole number, got 8.5:64"),
        ("model.dim=8,16.5", "model.dim: input should be a valid integer"),
        ("threshold.estimator=exact,rough", "threshold.estimator must be one of exact, sampled"),
    ],
)
def test_a_wrong_range_is_one_message(given, message):
    with pytest.raises(ConfigError, match=message):
        space(config(), parse([given]))


def test_an_interval_of_a_whole_number_holds_whole_numbers():
    assert space(config(), {"model.dim": Interval(8, 128.0)}).ranges["model.dim"] == Interval(8, 128, whole=True)
    with pytest.raises(ConfigError, match=r"range model.dim=.*: the setting is a whole number, got 8.5:128"):
        space(config(), {"model.dim": Interval(8.5, 128)})


def test_values_may_come_as_anything_that_gives_them_but_not_as_one_number():
    for given in ([0.1, 0.2, 0.5], np.array([0.1, 0.2, 0.5]), (value for value in (0.1, 0.2, 0.5))):
        found = space(config(), {"loss.tau": given}).ranges["loss.tau"]
        assert found == Choice((0.1, 0.2, 0.5))
        assert {type(value) for value in found.values} == {float}
    with pytest.raises(
        ConfigError, match=r"range loss.tau=0.1: a range must be a list of values, an Interval or a text"
    ):
        space(config(), {"loss.tau": 0.1})


def test_a_setting_that_is_a_list_is_not_searched():
    with pytest.raises(ConfigError, match="a setting that is a list cannot be searched"):
        space(config(model={"name": "ncf"}), {"model.hidden": [[32], [64]]})


@pytest.mark.parametrize("text", ["loss.tau", "=0.1", ""])
def test_a_range_needs_a_name_and_values(text):
    with pytest.raises(ConfigError, match="--range takes name=value,value"):
        parse([text])


def test_a_method_without_settings_has_nothing_to_search():
    with pytest.raises(ConfigError, match="popularity has nothing to search: it has no settings"):
        space(config(model={"name": "popularity"}))


def test_a_method_whose_every_setting_is_fixed_says_what_could_be_searched():
    with pytest.raises(ConfigError, match=r"mf with bpr has nothing to search; give a range: .*model\.dim"):
        space(config(loss={"name": "bpr"}), dict.fromkeys(space(config(loss={"name": "bpr"})).ranges))


def test_a_setting_that_is_derived_when_left_out_can_be_searched_by_a_list():
    config = make_config({"model": {"name": "ials"}})
    found = space(config, {"model.l2": [0.01, 0.1], "model.l2_ratio": None})
    assert found.ranges["model.l2"] == Choice((0.01, 0.1, None))
    assert found.default["model.l2"] is None
    assert found.config({"model.l2": 0.1}).model.settings["l2"] == 0.1
    assert "l2" not in found.config({"model.l2": None}).model.settings
    with pytest.raises(ConfigError, match="which is None; set a number as the default, or give a list of values"):
        space(config, {"model.l2": "0.01:0.1:log"})
    numbers = space(make_config({"model": {"name": "ials", "l2": 0.05}}), {"model.l2": "0.01:0.1:log"})
    assert numbers.ranges["model.l2"] == Interval(0.01, 0.1, log=True)
