"""Ragged lists against plain Python lists."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from topshelf.errors import DataError
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
@given(lists=st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=6), data=st.data())
def test_ordered_lists_with_repeats_are_selected_as_they_are(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    sequences = ragged(lists).check(21, "sequences")
    chosen = sequences.checked_select(torch.tensor(rows, dtype=torch.int64), 21, "sequences")
    assert lists_of(chosen) == [lists[row] for row in rows]


def test_one_list_is_selected_without_a_copy():
    lists = ragged([[1], [4, 2, 9], []])
    one = lists.select(tensor([1]))
    assert lists_of(one) == [[4, 2, 9]]
    assert one.indices.data_ptr() == lists.indices[1:].data_ptr()


@pytest.mark.parametrize(
    ("indptr", "indices", "row"),
    [([0, 1, 9], [2, 0], 1), ([0, -1, 2], [2, 0], 0), ([0, 2, 1], [2, 0], 1), ([0, 1, 2], [2, 5], 1)],
)
def test_a_checked_selection_refuses_its_own_lists_only(indptr, indices, row):
    lists = Ragged(tensor(indptr), tensor(indices))
    with pytest.raises(DataError, match="seen"):
        lists.checked_select(tensor([row]), 5, "seen")
    if indptr[1] == 1:
        assert lists_of(lists.checked_select(tensor([0]), 5, "seen")) == [[2]]


@modest
@given(lists=LISTS, data=st.data())
def test_finding_gives_the_place_of_an_index_in_its_list(lists, data):
    where = st.tuples(st.integers(0, len(lists) - 1), st.integers(-1, 30))
    pairs = data.draw(st.lists(where, max_size=10))
    rows, indices = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    flat = [(row, index) for row, some in enumerate(lists) for index in some]
    expected = [flat.index(pair) if pair in flat else -1 for pair in pairs]
    assert ragged(lists).find(rows, indices).tolist() == expected


@modest
@given(lists=LISTS, data=st.data())
def test_entries_under_a_mask_stay_in_their_lists(lists, data):
    kept = [[data.draw(st.booleans()) for _ in row] for row in lists]
    mask = torch.tensor([flag for row in kept for flag in row], dtype=torch.bool)
    expected = [
        [index for index, flag in zip(row, flags, strict=True) if flag] for row, flags in zip(lists, kept, strict=True)
    ]
    assert lists_of(ragged(lists).where(mask)) == expected


@modest
@given(lists=LISTS, data=st.data())
def test_merging_is_the_sorted_union_of_each_two_lists(lists, data):
    first = [[index for index in row if data.draw(st.booleans())] for row in lists]
    second = [sorted(set(row) - set(kept)) for row, kept in zip(lists, first, strict=True)]
    assert lists_of(merge(ragged(first), ragged(second))) == lists


@modest
@given(lists=LISTS, data=st.data(), at_once=st.integers(1, 9))
def test_merging_a_few_lists_at_a_time_gives_the_same(lists, data, at_once):
    first = [[index for index in row if data.draw(st.booleans())] for row in lists]
    second = [sorted(set(row) - set(kept)) for row, kept in zip(lists, first, strict=True)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("topshelf.ragged.MERGED", at_once)
        merged = merge(narrow(ragged(first)), narrow(ragged(second)))
    assert lists_of(merged) == lists
    assert merged.indices.dtype == torch.int32


def narrow(lists: Ragged) -> Ragged:
    """As lists are that are mapped from a file."""
    return Ragged(lists.indptr, lists.indices.int())


@modest
@given(lists=LISTS, data=st.data())
def test_lists_of_narrow_numbers_are_the_same_lists(lists, data):
    wide, small = ragged(lists), narrow(ragged(lists)).check(21, "lists", unique=True)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8)), dtype=torch.int64)
    for one, other in ((wide.select(rows), small.select(rows)), (wide.slice(0, 1), small.slice(0, 1))):
        assert torch.equal(one.indices, other.indices)
        assert other.indices.dtype == torch.int64
    asked = torch.tensor([data.draw(st.integers(-1, 30)) for _ in rows], dtype=torch.int64)
    assert torch.equal(wide.find(rows, asked), small.find(rows, asked))
    values = torch.ones(wide.indices.numel())
    assert torch.equal(wide.matrix(values, 21).to_dense(), small.matrix(values, 21).to_dense())


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


@modest
@given(lists=LISTS)
def test_lists_in_order_pass_the_check_and_come_back_as_they_are(lists):
    found = ragged(lists)
    assert found.check(21, "seen", n_lists=len(lists), unique=True) is found


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 3], [2, 0, 5], r"seen names item 5 in list 1, but there are 5 items \(0 to 4\)"),
        ([0, 0, 2], [-1, 4], "seen names item -1 in list 1"),
        ([0, 2, 2, 3], [0, 4, 9], "seen names item 9 in list 2"),
        ([1, 2, 3], [0, 1, 2], r"seen.indptr must ascend from 0 to the number of indices \(3\), got 1 to 3"),
        ([0, 1, 2], [0, 1, 2], r"seen.indptr must ascend from 0 to the number of indices \(3\), got 0 to 2"),
        ([0, 1, 4], [0, 1, 2], "got 0 to 4"),
        ([0, 4, 1, 3], [0, 1, 2], "got 0 to 3, with a step down after list 1"),
        ([0, -2, 3], [0, 1, 2], "with a step down after list 0"),
        ([0, 2**63 - 1, -(2**63), -1, 3], [0, 1, 2], "got 0 to 3, by -9223372036854775808 and 9223372036854775807"),
        ([], [], "seen.indptr must be a one-dimensional int64 tensor with at least 1 number, got"),
    ],
)
def test_lists_that_compiled_code_could_not_trust_are_refused(indptr, indices, message):
    lists = Ragged(torch.tensor(indptr, dtype=torch.int64), torch.tensor(indices, dtype=torch.int64))
    with pytest.raises(DataError, match=message):
        lists.check(5, "seen")


def test_lists_of_another_type_or_number_are_refused():
    whole, narrow = tensor([0, 1]), tensor([0], dtype=torch.int16)
    with pytest.raises(DataError, match=r"seen.indices must be .* int64 tensor, got \(1,\) of torch.int16"):
        Ragged(whole, narrow).check(3, "seen")
    with pytest.raises(DataError, match=r"seen.indptr must be .* got list"):
        Ragged([0, 1], tensor([0])).check(3, "seen")
    with pytest.raises(DataError, match=r"seen.indptr must be .* got \(1, 2\)"):
        Ragged(tensor([[0, 1]]), tensor([0])).check(3, "seen")
    with pytest.raises(DataError, match=r"seen must have one list per query \(2\), got 1 lists"):
        Ragged(whole, tensor([0])).check(3, "seen", n_lists=2)
    with pytest.raises(DataError, match="but there are no items"):
        Ragged(whole, tensor([0])).check(0, "seen")


@pytest.mark.parametrize(("indices", "item"), [([1, 1, 0], 1), ([2, 1, 0], 1)])
def test_repeats_within_a_list_are_refused_when_asked(indices, item):
    lists = Ragged(tensor([0, 2, 2, 3]), tensor(indices))
    assert lists.check(3, "seen") is lists
    with pytest.raises(DataError, match=f"seen names item {item} in list 0, but the items of a list must ascend"):
        lists.check(3, "seen", unique=True)
