"""A small dataset with a plan, and configs that train on it in a moment."""

from __future__ import annotations

import pytest

from topshelf.config import make_config, merged
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset

SMALL = {
    "k": 5,
    "data": {"source": "generated"},
    "model": {"dim": 8},
    "train": {"epochs": 9, "batch_size": 64, "validate_every": 1, "patience": 0},
}
TAUS = {"train.learning_rate": None, "train.weight_decay": None, "threshold.every": None, "loss.tau_weight": None}


@pytest.fixture(autouse=True)
def _no_plots(request):
    """Pages without plots, which take a second each; tests of plots ask for them."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo what it patched itself
        if "plots" not in request.fixturenames:
            patch.setattr("topshelf.charts.can_plot", lambda: False)
        yield


@pytest.fixture
def plots():
    """Asks for pages with plots."""


@pytest.fixture(scope="session")
def dataset():
    return Dataset("generated", make_split(generate(60, 40, interactions_per_user=8, seed=3), seed=0))


@pytest.fixture(scope="session")
def config():
    return make_config(SMALL)


@pytest.fixture(scope="session")
def small():
    """A config of the small kind with other values."""
    return lambda values: make_config(merged(SMALL, values))


@pytest.fixture(scope="session")
def only_tau():
    """Ranges with which the loss's tau alone is searched."""
    return TAUS
