"""Why an item is listed: own items by their share of the score, or by nearness."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from topshelf import Recommender
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.reasons import reasons


@pytest.fixture(scope="module")
def ease():
    return Recommender(k=5, model="ease").fit("synthetic")


@pytest.fixture(scope="module")
def mf():
    return Recommender(k=5, model="mf", train={"epochs": 2}).fit("synthetic")


def test_shares_of_an_item_item_model_are_its_weights(ease):
    """An independent slow way: the score that a history of one item gives."""
    artifact = ease.artifact
    own, listed = artifact.taken.select(torch.tensor([3])), torch.tensor([[5, 9]])
    found = reasons(artifact, own, listed, 4)[0]
    for place, item in enumerate(listed[0].tolist()):
        weights = []
        for other in own.indices.tolist():
            history = Ragged(torch.tensor([0, 1]), torch.tensor([other]))
            query = artifact.model.encode_queries(QuerySet(history=history))[torch.tensor([0])]
            dense = query.to_dense() if query.layout != torch.strided else query
            weights.append((float(dense[0] @ artifact.vectors[item]), other))
        expected = [other for weight, other in sorted(weights, key=lambda one: -one[0]) if weight > 0 and other != item]
        assert found[place][found[place] >= 0].tolist() == expected[:4]


def test_shares_of_an_item_item_model_sum_to_the_score(ease):
    table = ease.recommend_new({"x": [3, 7, 12]}, k=3)
    artifact = ease.artifact
    own = torch.from_numpy(artifact.items.index([3, 7, 12]))
    listed = torch.from_numpy(artifact.items.index(table["item"].to_list()))
    alone = artifact.encode(QuerySet(history=Ragged(torch.arange(4), own)))[torch.arange(3)]
    shares = (alone.to_dense() if alone.layout != torch.strided else alone) @ artifact.vectors[listed].T
    torch.testing.assert_close(shares.sum(0), torch.tensor(table["score"].to_list()), rtol=1e-4, atol=1e-6)


def test_other_models_name_the_nearest_items(mf):
    artifact = mf.artifact
    own, listed = artifact.taken.select(torch.tensor([3])), torch.tensor([[5]])
    unit = F.normalize(artifact.vectors, dim=1)
    cosines = unit[own.indices] @ unit[5]
    expected = own.indices[cosines.argsort(descending=True)][:2]
    expected = expected[cosines.sort(descending=True).values[:2] > 0]
    assert reasons(artifact, own, listed, 2)[0, 0][: len(expected)].tolist() == expected.tolist()


def test_a_listed_item_is_no_reason_for_itself_and_nobody_has_reasons_without_items(ease):
    artifact = ease.artifact
    own = Ragged(torch.tensor([0, 1, 1]), torch.tensor([4]))
    found = reasons(artifact, own, torch.tensor([[4, -1], [2, 3]]), 3)
    assert (found == -1).all()


@pytest.mark.parametrize("model", ["ease", "mf"])
def test_reasons_are_a_column_of_own_items(model, request):
    recommender = request.getfixturevalue(model)
    table = recommender.recommend([1, 2], k=3, why=2)
    assert table.columns == ["user", "rank", "item", "score", "because"]
    assert table["because"].list.len().max() == 2
    for user, item, own in table.select("user", "item", "because").iter_rows():
        has = recommender.artifact.taken.select(torch.from_numpy(recommender.artifact.users.index([user]))).indices
        assert {*own} <= {*recommender.artifact.items.ids(has.tolist())} - {item}
    assert recommender.recommend([1, 2], k=3).equals(table.drop("because"))
