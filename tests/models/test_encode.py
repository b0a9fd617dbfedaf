"""Both encodings in one call: the same vectors, and one propagation for graph models."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from lists import ragged
from topshelf.models import MODELS, LightGCN, LightGCNPlusPlus, SimGCL, XSimGCL
from topshelf.queries import Context, QuerySet
from vectors import dense

LISTS = ragged([0, 1], [1, 2], [2], [0, 3])


def attached(cls):
    torch.manual_seed(0)
    model = cls(4, 4)
    context = Context(LISTS, 4)
    if cls.is_closed_form:
        model.fit(context)
    model.attach(context)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("queries", [QuerySet.known(4), QuerySet(rows=tensor([2, 0]))])
def test_encode_is_both_of_the_two_calls(name, queries):
    model = attached(MODELS[name])
    with torch.no_grad():
        vectors, items = model.encode(queries)
        assert torch.equal(dense(vectors), dense(model.encode_queries(queries)))
        assert torch.equal(items, model.encode_items())


@pytest.mark.parametrize("cls", [LightGCN, LightGCNPlusPlus, SimGCL, XSimGCL])
def test_a_graph_model_propagates_once_for_both(cls, monkeypatch):
    model, calls = attached(cls), []
    plain = model.propagated
    monkeypatch.setattr(model, "propagated", lambda: calls.append(1) or plain())
    model.encode(QuerySet.known(4))
    assert len(calls) == 1
