"""Ragged lists against plain Python lists."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from topshelf.ragged import Ragged, merge, ragged_from_pairs

LISTS = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=6).map(sorted), min_size=1, max_size=6)
modest = settings(deadline=None, max_examples=60)


def ragged(lists) -> Ragged:
    bounds = [0]
    for row in lists:
        bounds.append(bounds[-1] + len(row))
    return Ragged(tensor(bounds), torch.tensor([index for row in lists for index in row], dtype=torch.int64))


def lists_of(found: Ragged) -> list[list[int]]:
    bounds = found.indptr.tolist()
    return [found.indices[a:b].tolist() for a, b in itertools.pairwise(bounds)]


@modest
@given(lists=LISTS)
def test_counts_and_owners_say_whose_each_index_is(lists):
    found = ragged(lists)
    assert len(found) == len(lists)
    assert found.counts.tolist() == [len(row) for row in lists]
    assert found.owner().tolist() == [q for q, row in enumerate(lists) for _ in row]


@modest
@given(lists=LISTS, data=st.data())
def test_selecting_gives_the_lists_of_the_rows_in_that_order(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    found = ragged(lists).select(torch.tensor(rows, dtype=torch.int64))
    assert lists_of(found) == [lists[row] for row in rows]
    assert found.indptr.dtype == found.indices.dtype == torch.int64


@modest
@given(lists=LISTS, data=st.data())
def test_merging_is_the_sorted_union_of_each_two_lists(lists, data):
    first = [[index for index in row if data.draw(st.booleans())] for row in lists]
    second = [sorted(set(row) - set(kept)) for row, kept in zip(lists, first, strict=True)]
    assert lists_of(merge(ragged(first), ragged(second))) == lists


@modest
@given(lists=LISTS, seed=st.integers(0, 99))
def test_pairs_in_any_order_make_sorted_lists(lists, seed):
    pairs = ragged(lists)
    order = torch.randperm(pairs.indices.numel(), generator=torch.Generator().manual_seed(seed))
    found = ragged_from_pairs(pairs.owner()[order], pairs.indices[order], len(lists))
    assert lists_of(found) == lists


def test_lists_of_no_query_at_all_are_allowed():
    none = torch.zeros(0, dtype=torch.int64)
    empty = ragged_from_pairs(none, none, 0)
    assert len(empty) == 0
    assert lists_of(merge(empty, empty)) == lists_of(empty.select(none)) == lists_of(empty.to("cpu")) == []
