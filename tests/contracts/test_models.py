"""What every model of the registry promises: the contract suite, and what holds for our own models only."""

from __future__ import annotations

import inspect

import pytest

from topshelf.config import make_config
from topshelf.data import Dataset, generate, make_split
from topshelf.losses import LOSSES
from topshelf.models import MODELS
from topshelf.testing import ModelContract
from topshelf.testing.promises import check_training, run_config
from topshelf.training import fit
from topshelf.training.build import build_model, resolve

EVERY = pytest.mark.parametrize("name", MODELS)
TRAINABLE = [name for name, cls in MODELS.items() if not cls.is_closed_form]
NETWORKS = ("ncf", "simplex")


class TestEveryModel(ModelContract):
    @pytest.fixture(autouse=True, params=MODELS)
    def name(self, request):
        self.model = MODELS[request.param]
        self.is_personal = request.param != "popularity"
        self.tolerance = 1e-5 if request.param in NETWORKS else 0.0


# Every loss with three of the models. The contract has two losses with the others: what they share is in the step,
# tested below.
@pytest.mark.parametrize("name", ["mf", "lightgcn", "xsimgcl"])
@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_the_loss_or_improves_what_it_stands_for(name, loss):
    check_training(run_config(model=name, loss=loss, epochs=5, batch_size=32))


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_every_loss_moves_every_parameter(name, loss):
    contract = ModelContract()
    contract.model = MODELS[name]
    contract.check_step(loss)


@EVERY
def test_what_a_model_keeps_is_as_large_as_it_says(name):
    """Bytes, of two sizes: dim numbers a user and twice as many an item, or a weight for every two
    items or for every item and neighbour."""
    for n_users, n_items in ((50, 40), (90, 160)):
        done = fit(
            run_config(model=name, epochs=1), Dataset("generated", make_split(generate(n_users, n_items, seed=1)))
        )
        kept = sum(value.numel() * value.element_size() for value in done.model.state_dict().values())
        dim = int(done.config.model.settings.get("dim", done.model.derived().get("dim", 1)))  # or what the data decided
        networks = 16 * dim * dim
        if "n_items^2" in inspect.getdoc(MODELS[name]):
            assert kept <= 8 * n_items**2 + 8 * (n_items + 1)
        else:
            neighbours = min(n_items, done.config.model.settings.get("neighbours", 0))  # weights, each with its index
            assert kept <= 4 * dim * (n_users + 2 * n_items) + networks + 8 * neighbours * n_items


@EVERY
def test_search_ranges_name_settings_and_values_that_it_takes(name):
    for key, values in MODELS[name].ranges.items():
        section, setting = key.split(".")
        assert len(set(values)) == len(values) > 1
        for value in values:
            component = {"name": name, setting: value} if section == "model" else {"name": name}
            more = {} if section == "model" else {section: {setting: value}}
            settings = resolve(make_config({"model": component, **more}))
            build_model(settings, 3, 4)


@EVERY
def test_its_documentation_says_when_to_use_it_and_what_it_costs(name):
    text = inspect.getdoc(MODELS[name])
    assert text.partition("\n\n")[0].endswith(".")
    for word in ("Use when:", "Cost:"):
        assert word in text
