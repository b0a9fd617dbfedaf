"""Who asks: a set of queries is described in one way, and gives its rows of tables."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from lists import ragged
from topshelf.errors import ConfigError
from topshelf.queries import KINDS, QuerySet
from topshelf.ragged import Ragged

VALUES = {
    "rows": tensor([4, 0, 4]),
    "history": ragged([1, 2], [], [0, 3]),
    "sequence": Ragged(tensor([0, 3, 3, 5]), tensor([2, 1, 2, 3, 0])),
    "features": tensor([[0.5, 1.0], [2.0, 0.0], [3.0, 3.0]]),
}
EVERY = pytest.mark.parametrize("kind", KINDS)


def same(one, other):
    if isinstance(one, Ragged):
        return torch.equal(one.indptr, other.indptr) and torch.equal(one.indices, other.indices)
    return torch.equal(one, other)


def test_the_cases_below_are_all_kinds():
    assert tuple(VALUES) == KINDS


@EVERY
def test_a_set_has_the_kind_it_is_described_by_and_its_length(kind):
    queries = QuerySet(**{kind: VALUES[kind]})
    assert queries.kind == kind
    assert len(queries) == 3
    assert not queries.is_all


def test_a_set_without_a_description_or_with_two_is_refused():
    with pytest.raises(ConfigError, match="exactly one of rows, history, sequence, features, got none"):
        QuerySet()
    for kind in KINDS[1:]:
        with pytest.raises(ConfigError, match=rf"exactly one of .*, got \['rows', '{kind}'\]"):
            QuerySet(rows=VALUES["rows"], **{kind: VALUES[kind]})


@EVERY
def test_selected_queries_are_those_at_the_places_in_their_order(kind):
    queries = QuerySet(**{kind: VALUES[kind]}).select(tensor([2, 0]))
    expected = {
        "rows": tensor([4, 4]),
        "history": ragged([0, 3], [1, 2]),
        "sequence": Ragged(tensor([0, 2, 5]), tensor([3, 0, 2, 1, 2])),  # in the order they happened, repeats included
        "features": tensor([[3.0, 3.0], [0.5, 1.0]]),
    }[kind]
    assert queries.kind == kind
    assert same(getattr(queries, kind), expected)


@EVERY
def test_a_set_is_the_same_on_the_device_that_it_is_on(kind):
    queries = QuerySet(**{kind: VALUES[kind]}).to("cpu")
    assert queries.kind == kind
    assert same(getattr(queries, kind), VALUES[kind])


@EVERY
def test_a_set_is_carried_to_another_device(kind):
    value = getattr(QuerySet(**{kind: VALUES[kind]}).to("meta"), kind)
    assert all(part.is_meta for part in ((value.indptr, value.indices) if isinstance(value, Ragged) else (value,)))


def test_all_known_queries_take_the_table_itself_and_stay_all_on_another_device():
    queries, table = QuerySet.known(5), torch.randn(5, 2)
    assert queries.rows.tolist() == [0, 1, 2, 3, 4]
    assert queries.take(table) is table
    assert queries.to("cpu").take(table) is table


def test_a_selection_of_all_is_no_longer_all():
    queries, table = QuerySet.known(5).select(tensor([3, 1])), torch.randn(5, 2)
    assert not queries.is_all
    assert torch.equal(queries.take(table), table[[3, 1]])


@pytest.mark.parametrize("sparse", [False, True])
def test_some_rows_take_their_rows_and_give_them_their_gradients(sparse):
    table = torch.randn(5, 2, requires_grad=True)
    taken = QuerySet(rows=VALUES["rows"]).take(table, sparse=sparse)
    assert torch.equal(taken, table[[4, 0, 4]])
    taken.sum().backward()
    assert table.grad.is_sparse is sparse
    assert table.grad.to_dense()[:, 0].tolist() == [1, 0, 0, 0, 2]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_queries_that_are_not_known_rows_have_no_rows_of_a_table(kind):
    message = rf"queries must be known rows here, got a {kind}: .* Train again with the new ones, or use a model that"
    with pytest.raises(ConfigError, match=message):
        QuerySet(**{kind: VALUES[kind]}).take(torch.randn(5, 2))
