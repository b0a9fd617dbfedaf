"""A diagnosis from its stored form: the same tables and plots, and nothing that is damaged."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from topshelf.config import assemble
from topshelf.data.synthetic import generate
from topshelf.diagnose import diagnose, plots
from topshelf.diagnose.measures import PLOTTED, thinned
from topshelf.diagnose.stored import restored, stored
from topshelf.errors import CheckpointError, ConfigError
from topshelf.training.run import fit


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    generate(50, 40, interactions_per_user=8, seed=1).to_frame().write_csv(folder / "clicks.csv")
    more = {"train": {"epochs": 2}, "model": {"dim": 8}}
    return fit(assemble(data=str(folder / "clicks.csv"), k=5, more=more), out=folder / "run"), folder / "run"


@pytest.fixture(scope="module")
def diagnosis(fitted):
    return diagnose(fitted[0], losses=["lambdaloss_at_k"], epochs=1, users=15)


@pytest.fixture
def content(diagnosis):
    return json.loads(json.dumps(stored(diagnosis)))


def test_a_fitted_model_is_diagnosed_as_its_run_folder_is(fitted, diagnosis):
    other = diagnose(fitted[1], losses=["lambdaloss_at_k"], epochs=1, users=15)
    left_out = ("target", "timings", "advice")
    one, two = ({k: v for k, v in x.to_json().items() if k not in left_out} for x in (diagnosis, other))
    assert one == two
    assert diagnosis.target == "a fitted model"


def assert_near(some, others):
    """The same words; numbers may differ in their last digit, because the stored form has five digits."""
    number = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")
    one, two = str(some), str(others)
    assert number.sub("#", one) == number.sub("#", two)
    values = zip(number.findall(one), number.findall(two), strict=True)
    assert all(float(a) == pytest.approx(float(b), rel=1e-3, abs=10.0 ** -len(b.partition(".")[2])) for a, b in values)


def test_tables_and_plots_are_the_same_from_the_stored_form(diagnosis, content):
    again = restored(content, "it")
    assert_near(again.sections(), diagnosis.sections())
    assert (again.caption(), again.title, again.advice) == (diagnosis.caption(), diagnosis.title, diagnosis.advice)
    assert stored(again) == content
    for one, other in zip(again.estimates, diagnosis.estimates, strict=True):
        assert one.error == pytest.approx(other.error, abs=1e-4)


def test_the_stored_form_draws_the_same_figures(diagnosis, content):
    """To a grey value of a few pixels: five digits are kept."""
    again = restored(content, "it")
    for plot in (plots.gradient_concentration, plots.score_densities, plots.step_times):
        one, two = (_pixels(plot(found)) for found in (again, diagnosis))
        assert one.shape == two.shape
        assert np.abs(one - two).mean() < 0.01


def test_no_more_values_are_kept_than_a_density_is_drawn_from():
    values = np.arange(10_000.0)
    kept = thinned(values, PLOTTED)
    assert (len(kept), kept[0], kept[-1]) == (PLOTTED, 0, 9999)
    assert np.array_equal(thinned(kept, PLOTTED), kept)
    assert thinned(values[:7], PLOTTED).tolist() == values[:7].tolist()


def _pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), dtype=np.float64)


def _set(content, path, value):
    *parents, last = path
    for name in parents:
        content = content[name]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("k",), "5", "must be of type int, got '5'"),
        (("k",), True, "must be of type int"),
        (("two_positives",), float("nan"), "must be a finite number, got nan"),
        (("scores", "positive"), "0.1 inf", "must be a finite number"),
        (("scores", "positive"), "0.1 x", "could not convert string"),
        (("scores", "negative"), [], "scores must not be empty"),
        (("estimates", 0, "exact"), "0.1 0.2", "lists of different lengths"),
        (("estimates",), [], "estimates must not be empty"),
        (("timings",), [], "timings must not be empty"),
        (("gradients", 0, "by_positive", "top"), {}, "the share of the top 5%"),
        (("gradients", 0, "colour"), "red", "'colour' is not as expected"),
        (("weights",), 3, "must be of type dict, got 3"),
    ],
)
def test_a_damaged_form_is_refused(content, path, value, message):
    damaged = copy.deepcopy(content)
    _set(damaged, path, value)
    with pytest.raises(CheckpointError, match="the diagnosis of A is damaged, or of another version") as error:
        restored(damaged, "the diagnosis of A")
    assert message in str(error.value)


@pytest.mark.parametrize("damaged", [None, [], "text", {}])
def test_what_is_no_diagnosis_is_refused(damaged):
    with pytest.raises(CheckpointError, match="run its cell again"):
        restored(damaged, "it")


def test_a_fitted_model_of_another_task_is_refused():
    from types import SimpleNamespace

    from topshelf.ranking_settings import RankingConfig
    from topshelf.training import Fitted

    config = RankingConfig.model_construct(task="ranking", loss=SimpleNamespace(name="softmax"))
    with pytest.raises(ConfigError, match="of the task ranking is diagnosed from its run folder"):
        diagnose(Fitted(config, None, None))
