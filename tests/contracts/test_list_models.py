"""What every model of documents promises: the contract suite, with every listwise loss, and suites that must fail."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from topshelf.graded_lists import ListContext
from topshelf.losses import LISTWISE
from topshelf.models.list_base import ListModel
from topshelf.models.lists import LIST_MODELS
from topshelf.testing import ListModelContract
from topshelf.testing.list_models import planted_lists
from topshelf.training import fit

SMALL = {
    "transformer": {"dim": 16, "hidden": 16},
    "mlp": {"hidden": [16]},
    "linear_ranker": {},
    "lambdamart": {"trees": 40, "least_in_leaf": 3},
    "xgboost": {"trees": 40},
    "catboost": {"trees": 40, "depth": 3},
}


class TestEveryListModel(ListModelContract):
    @pytest.fixture(autouse=True, params=LIST_MODELS)
    def name(self, request):
        self.model = LIST_MODELS[request.param]
        package = getattr(self.model, "package", None)
        if package is not None and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        self.settings = SMALL[request.param]


def test_every_model_of_documents_is_held_to_the_contract():
    assert SMALL.keys() == LIST_MODELS.keys()


@pytest.mark.parametrize("loss", LISTWISE)
@pytest.mark.parametrize("name", ["transformer", "mlp", "linear_ranker"])
def test_every_loss_trains_every_network(name, loss):
    contract = ListModelContract()
    contract.model, contract.settings, contract.loss = LIST_MODELS[name], SMALL[name], loss
    settings = contract.config(epochs=3)
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"patience": 0})})
    done = fit(settings, planted_lists())
    assert all(value.isfinite().all() for value in done.model.parameters())
    assert done.best_epoch >= 1


class Broken(ListModel):
    """It learns nothing, and a score depends on the place in the list."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features)
        self.weight = torch.nn.Parameter(torch.ones(1))

    def score(self, features, indptr):
        return self.weight * torch.arange(features.size(0), dtype=torch.float32)

    def prepare(self, context: ListContext) -> None:
        pass


@pytest.mark.parametrize(
    "promise",
    [
        "test_a_list_alone_is_scored_as_among_others",
        "test_documents_in_another_order_get_their_own_scores",
        "test_it_learns_an_order",
    ],
)
def test_a_broken_model_fails_the_suite(promise):
    contract = ListModelContract()
    contract.model = Broken
    with pytest.raises(AssertionError):
        getattr(contract, promise)()
