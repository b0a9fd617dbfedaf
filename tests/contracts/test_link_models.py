"""What every model of links promises."""

from __future__ import annotations

import pytest

from topshelf.models.links import LINK_MODELS
from topshelf.testing import LinkModelContract


class TestEveryLinkModel(LinkModelContract):
    @pytest.fixture(autouse=True, params=LINK_MODELS)
    def name(self, request):
        self.model = LINK_MODELS[request.param]
        self.settings = {} if self.model.is_closed_form else {"dim": 16}


class TestGCNWithCosines(LinkModelContract):
    model = LINK_MODELS["gcn"]
    settings = {"dim": 16, "score": "cosine", "n_layers": 2, "dropout": 0.1}  # noqa: RUF012
    losses = ("softmax", "bpr")


class TestGCNWithoutFeatures(LinkModelContract):
    model = LINK_MODELS["gcn"]
    settings = {"dim": 16, "use_features": False, "score": "dot"}  # noqa: RUF012
