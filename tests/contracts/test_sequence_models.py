"""What every model that reads sequences promises."""

from __future__ import annotations

import pytest

from topshelf.models import SEQUENCE_MODELS
from topshelf.testing import SequenceModelContract

READERS = [name for name, cls in SEQUENCE_MODELS.items() if "sequence" in cls.takes and name != "popularity"]


class TestEverySequenceModel(SequenceModelContract):
    @pytest.fixture(autouse=True, params=READERS)
    def name(self, request):
        self.model = SEQUENCE_MODELS[request.param]
        self.is_causal = request.param != "sequence_knn"  # similarities have no direction
        self.settings = {} if self.model.is_closed_form else {"dim": 32, "dropout": 0.1}
