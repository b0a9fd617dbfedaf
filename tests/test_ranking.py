"""top_k and count_above against a full sort in plain Python, on vectors of small integers.

Integers make every dot product exact, so that ties are plenty and no tile size can change a score.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from topshelf import kernels
from topshelf.errors import ConfigError, DataError, TopshelfError
from topshelf.models import HistoryRows
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.ranking import count_above, ranked_tiles, top_k


def integer_vectors(n: int, dim: int, seed: int, spread: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-spread, spread + 1, (n, dim), generator=generator).float()


def random_lists(n_rows: int, n_items: int, share: float, seed: int) -> Ragged:
    chosen = torch.rand(n_rows, n_items, generator=torch.Generator().manual_seed(seed)) < share
    return ragged_from_pairs(*chosen.nonzero(as_tuple=True), n_rows)


def lists_of(ragged: Ragged) -> list[list[int]]:
    return [
        ragged.indices[start:stop].tolist()
        for start, stop in zip(ragged.indptr[:-1].tolist(), ragged.indptr[1:].tolist(), strict=True)
    ]


def plain_scores(queries: Tensor, items: Tensor) -> list[list[float]]:
    return [
        [sum(a * b for a, b in zip(query, item, strict=True)) for item in items.tolist()] for query in queries.tolist()
    ]


def plain_top_k(
    scores: list[list[float]], k: int, exclude: list[list[int]]
) -> tuple[list[list[float]], list[list[int]]]:
    values, indices = [], []
    for row, hidden in zip(scores, exclude, strict=True):
        order = sorted((j for j in range(len(row)) if j not in hidden), key=lambda j: (-row[j], j))[:k]
        values.append([row[j] for j in order] + [-math.inf] * (k - len(order)))
        indices.append(order + [-1] * (k - len(order)))
    return values, indices


@pytest.mark.parametrize("tile", [1, 2, 3, 7, 12, 13, 50, None])
@pytest.mark.parametrize("k", [1, 2, 5, 13])
def test_lists_equal_a_full_sort_for_every_tile_size(tile, k):
    queries, items = integer_vectors(9, 3, seed=1), integer_vectors(13, 3, seed=2)
    exclude = random_lists(9, 13, 0.3, seed=3)
    expected = plain_top_k(plain_scores(queries, items), k, lists_of(exclude))
    for workspace in (1, 4 * 13 * 2, 1 << 20):
        values, indices = top_k(queries, items, k, exclude=exclude, tile=tile, workspace=workspace)
        assert indices.tolist() == expected[1]
        assert values.tolist() == expected[0]


@pytest.mark.parametrize(("k", "tile"), [(1, None), (3, None), (10, None), (3, 400), (10, 777)])
def test_the_search_by_chunks_equals_a_full_sort(k, tile):
    queries, items = integer_vectors(6, 4, seed=4), integer_vectors(1501, 4, seed=5)
    exclude = random_lists(6, 1501, 0.2, seed=6)
    expected = plain_top_k(plain_scores(queries, items), k, lists_of(exclude))
    values, indices = top_k(queries, items, k, exclude=exclude, tile=tile)
    assert indices.tolist() == expected[1]
    assert values.tolist() == expected[0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 300),
    st.integers(0, 3),
    st.data(),
    st.floats(0, 1),
    st.integers(0, 2**20),
)
def test_any_catalogue_is_ranked_as_by_a_full_sort(n_queries, n_items, spread, data, share, seed):
    k = data.draw(st.integers(1, n_items))
    tile = data.draw(st.one_of(st.none(), st.integers(1, n_items)))
    queries, items = (
        integer_vectors(n_queries, 2, seed, spread),
        integer_vectors(n_items, 2, seed + 1, spread),
    )
    exclude = random_lists(n_queries, n_items, share, seed)
    expected = plain_top_k(plain_scores(queries, items), k, lists_of(exclude))
    values, indices = top_k(queries, items, k, exclude=exclude, tile=tile, workspace=4 * n_items)
    assert indices.tolist() == expected[1]
    assert values.tolist() == expected[0]


def test_items_of_one_score_come_in_index_order():
    _, indices = top_k(torch.ones(2, 1), torch.ones(4000, 1), 7)
    assert indices.tolist() == [list(range(7))] * 2


def test_a_tie_at_the_end_of_the_list_goes_to_the_lower_index():
    scores = torch.tensor([[1.0], [3.0], [2.0], [2.0], [2.0]])
    assert top_k(torch.ones(1, 1), scores, 2)[1].tolist() == [[1, 2]]


def test_minus_zero_ties_with_zero():
    items = torch.tensor([[-0.0], [0.0], [-0.0], [0.0]])
    assert top_k(torch.ones(1, 1), items, 3)[1].tolist() == [[0, 1, 2]]


def test_a_catalogue_of_one_item_gives_that_item():
    values, indices = top_k(torch.ones(3, 2), torch.ones(1, 2), 1)
    assert values.tolist() == [[2.0]] * 3
    assert indices.tolist() == [[0]] * 3


def test_a_query_without_items_left_gets_empty_places():
    exclude = Ragged(torch.tensor([0, 4, 5]), torch.tensor([0, 1, 2, 3, 2]))
    values, indices = top_k(torch.ones(2, 1), torch.ones(4, 1), 4, exclude=exclude)
    assert indices.tolist() == [[-1, -1, -1, -1], [0, 1, 3, -1]]
    assert values.tolist() == [[-math.inf] * 4, [1.0, 1.0, 1.0, -math.inf]]


def test_rows_choose_queries_in_their_order_and_with_their_own_exclusions():
    queries, items = integer_vectors(8, 3, seed=7), integer_vectors(20, 3, seed=8)
    exclude = random_lists(8, 20, 0.5, seed=9)
    rows = torch.tensor([5, 0, 5, 7])
    values, indices = top_k(queries, items, 6, exclude=exclude, rows=rows, workspace=200)
    all_values, all_indices = top_k(queries, items, 6, exclude=exclude)
    assert torch.equal(indices, all_indices[rows])
    assert torch.equal(values, all_values[rows])


def test_no_rows_give_empty_lists():
    values, indices = top_k(torch.ones(2, 1), torch.ones(3, 1), 2, rows=torch.tensor([], dtype=torch.int64))
    assert values.shape == indices.shape == (0, 2)


class RowGiver:
    """Queries that exist only when asked for, as the sparse rows of a linear model do."""

    def __init__(self, table: Tensor) -> None:
        self.sparse = table.to_sparse()
        self.largest_request = 0

    def __len__(self) -> int:
        return self.sparse.size(0)

    def __getitem__(self, rows: Tensor) -> Tensor:
        self.largest_request = max(self.largest_request, rows.numel())
        return self.sparse.index_select(0, rows).to_dense()


def test_queries_may_be_anything_that_gives_rows():
    table, items = integer_vectors(10, 5, seed=10), integer_vectors(12, 5, seed=11)
    giver = RowGiver(table)
    expected = top_k(table, items, 4)
    found = top_k(giver, items, 4, workspace=4 * 12 * 3)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0], expected[0])
    assert giver.largest_request == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("tile", [None, 7])
def test_sparse_queries_are_ranked_and_counted_as_dense_ones(tile, share, dtype):
    histories, exclude = random_lists(12, 30, share, seed=3), random_lists(12, 40, 0.2, seed=4)
    targets = random_lists(12, 40, 0.2, seed=5)
    items = integer_vectors(40, 30, seed=6).to(dtype)
    rows = HistoryRows(histories, 30)
    assert rows[torch.arange(3)].layout == torch.sparse_csr
    dense = rows[torch.arange(12)].to_dense()
    assert dense.sum() == histories.indices.numel()
    for stored in (items, items.T.contiguous().T):
        sparse = top_k(rows, stored, 5, exclude=exclude, tile=tile)
        assert all(map(torch.equal, sparse, top_k(dense, items, 5, exclude=exclude, tile=tile)))
        assert all(map(torch.equal, count_above(rows, stored, targets), count_above(dense, items, targets)))


def test_long_query_vectors_count_as_workspace():
    giver = RowGiver(torch.eye(50))
    top_k(giver, torch.ones(2, 50), 1, workspace=4 * 50 * 5)
    assert giver.largest_request == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_gives_the_same_order_and_float32_values(dtype):
    queries, items = integer_vectors(5, 3, seed=12), integer_vectors(30, 3, seed=13)
    values, indices = top_k(queries.to(dtype), items.to(dtype), 8)
    expected = top_k(queries, items, 8)
    assert values.dtype == torch.float32
    assert indices.dtype == torch.int64
    assert torch.equal(indices, expected[1])
    assert torch.equal(values, expected[0])


def test_float64_scores_are_told_apart_beyond_float32():
    items = torch.tensor([[1.0], [1.0 + 1e-12]], dtype=torch.float64)
    assert top_k(torch.ones(1, 1, dtype=torch.float64), items, 2)[1].tolist() == [[1, 0]]


def test_vectors_that_require_gradients_are_ranked_without_them():
    queries = torch.ones(2, 1, requires_grad=True)
    values, _ = top_k(queries, torch.ones(3, 1, requires_grad=True), 2)
    assert not values.requires_grad
    with torch.enable_grad():
        for _ in ranked_tiles(queries, torch.ones(3, 1), 2, workspace=12):
            assert torch.is_grad_enabled()


def test_the_inputs_are_left_as_they_were():
    queries, items = integer_vectors(4, 3, seed=14), integer_vectors(9, 3, seed=15)
    copies = queries.clone(), items.clone()
    top_k(queries, items, 3, exclude=random_lists(4, 9, 0.5, seed=16))
    assert torch.equal(queries, copies[0])
    assert torch.equal(items, copies[1])


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_outside_the_catalogue_is_refused(k):
    with pytest.raises(ConfigError, match=rf"k must be .*, got {k}"):
        top_k(torch.ones(1, 1), torch.ones(3, 1), k)


@pytest.mark.parametrize("setting", ["tile", "workspace"])
def test_empty_tiles_are_refused(setting):
    with pytest.raises(ConfigError, match=f"{setting} must be >= 1, got 0"):
        top_k(torch.ones(1, 1), torch.ones(3, 1), 1, **{setting: 0})


def test_exclusions_for_other_queries_are_refused():
    with pytest.raises(DataError, match=r"one list per query \(2\), got 3 lists"):
        top_k(torch.ones(2, 1), torch.ones(3, 1), 1, exclude=random_lists(3, 3, 0.5, seed=0))


def test_exclusions_outside_the_catalogue_are_refused():
    exclude = Ragged(torch.tensor([0, 1]), torch.tensor([3]))
    with pytest.raises(DataError, match=r"exclude names item 3 in list 0, but there are 3 items \(0 to 2\)"):
        top_k(torch.ones(1, 1), torch.ones(3, 1), 1, exclude=exclude)


@pytest.mark.parametrize(
    ("indptr", "indices"), [([0, 9], [1]), ([0, -3], [1]), ([3, 4], [1]), ([0, 1], [-1]), ([0, 1], [2**40])]
)
def test_lists_that_reach_past_their_memory_are_refused_before_compiled_code_sees_them(indptr, indices):
    lists = Ragged(torch.tensor(indptr), torch.tensor(indices))
    with pytest.raises(DataError, match="exclude"):
        top_k(torch.ones(1, 1), torch.ones(3, 1), 1, exclude=lists)
    with pytest.raises(DataError, match="targets"):
        count_above(torch.ones(1, 1), torch.ones(3, 1), lists)


def test_only_the_lists_of_the_rows_are_read():
    """Of two million interactions, one query's list is checked: the others may be on disk, or wrong."""
    lists = Ragged(torch.tensor([0, 1, 2]), torch.tensor([1, 9]))
    assert top_k(torch.ones(2, 1), torch.ones(3, 1), 2, exclude=lists, rows=torch.tensor([0]))[1].tolist() == [[0, 2]]
    for rows in (torch.tensor([1]), None):
        with pytest.raises(DataError, match="exclude names item 9 in list 1"):
            top_k(torch.ones(2, 1), torch.ones(3, 1), 2, exclude=lists, rows=rows)


@pytest.mark.parametrize("row", [-1, 2])
def test_rows_that_are_not_there_are_refused(row):
    with pytest.raises(DataError, match="rows must be from 0 to 1, there being 2 queries, got"):
        top_k(torch.ones(2, 1), torch.ones(3, 1), 1, rows=torch.tensor([0, row]))


@pytest.mark.parametrize("n_items", [1, 3, 5000])
def test_nan_scores_are_refused_with_the_query(n_items):
    queries = torch.tensor([[1.0], [1.0], [math.nan]])
    with pytest.raises(TopshelfError, match="NaN for query 2"):
        top_k(queries, torch.ones(n_items, 1), 1, rows=torch.tensor([0, 2]))


def test_one_nan_item_is_noticed_among_thousands():
    items = torch.ones(5000, 1)
    items[4321] = math.nan
    with pytest.raises(TopshelfError, match="NaN for query 0"):
        top_k(torch.ones(1, 1), items, 2)


def plain_counts(
    scores: list[list[float]], targets: list[list[int]], exclude: list[list[int]]
) -> tuple[list[int], list[int]]:
    above, equal = [], []
    for row, wanted, hidden in zip(scores, targets, exclude, strict=True):
        others = [j for j in range(len(row)) if j not in hidden]
        for target in wanted:
            above.append(sum(row[j] > row[target] for j in others))
            equal.append(sum(row[j] == row[target] for j in others if j != target))
    return above, equal


@pytest.mark.parametrize("workspace", [1, 500, 1 << 20])
def test_counts_equal_plain_counting(workspace):
    queries, items = integer_vectors(11, 3, seed=17), integer_vectors(40, 3, seed=18)
    kind = torch.rand(11, 40, generator=torch.Generator().manual_seed(19))
    targets = ragged_from_pairs(*(kind < 0.2).nonzero(as_tuple=True), 11)
    exclude = ragged_from_pairs(*(kind > 0.7).nonzero(as_tuple=True), 11)
    rows = torch.tensor([3, 1, 10, 4])
    scores = plain_scores(queries[rows], items)
    expected = plain_counts(scores, lists_of(targets.select(rows)), lists_of(exclude.select(rows)))
    found = count_above(queries, items, targets, exclude=exclude, rows=rows, workspace=workspace)
    assert (found[0].tolist(), found[1].tolist()) == expected


def test_counts_are_the_rank_of_an_item_in_its_list():
    queries, items = torch.randn(6, 4), torch.randn(30, 4)
    every = ragged_from_pairs(torch.arange(6).repeat_interleave(30), torch.arange(30).repeat(6), 6)
    above, equal = count_above(RowGiver(queries), items, every)
    ranks = above.view(6, 30).gather(1, top_k(queries, items, 30)[1])
    assert ranks.tolist() == [list(range(30))] * 6
    assert not equal.any()


def test_queries_without_targets_take_no_part_in_the_counts():
    targets = Ragged(torch.tensor([0, 0, 1, 1]), torch.tensor([2]))
    above, equal = count_above(torch.ones(3, 1), torch.tensor([[3.0], [1.0], [1.0]]), targets)
    assert above.tolist() == [1]
    assert equal.tolist() == [1]


@pytest.mark.parametrize(("query", "item"), [(math.nan, 1.0), (1.0, math.nan)])
def test_counting_refuses_nan_scores(query, item):
    targets = Ragged(torch.tensor([0, 1]), torch.tensor([0]))
    with pytest.raises(TopshelfError, match="got NaN for"):
        count_above(torch.tensor([[query]]), torch.tensor([[1.0], [item]]), targets)


@pytest.mark.parametrize("tile", [None, 400])
@pytest.mark.parametrize("k", [1, 10, 300])
def test_torch_alone_gives_the_same_lists_and_counts(k, tile, monkeypatch):
    queries, items = integer_vectors(20, 4, seed=20), integer_vectors(1501, 4, seed=21)
    kind = torch.rand(20, 1501, generator=torch.Generator().manual_seed(22))
    targets = ragged_from_pairs(*(kind < 0.02).nonzero(as_tuple=True), 20)
    exclude = ragged_from_pairs(*(kind > 0.7).nonzero(as_tuple=True), 20)

    def everything() -> list[Tensor]:
        lists = top_k(queries, items, k, exclude=exclude, tile=tile)
        return [*lists, *count_above(queries, items, targets, exclude=exclude)]

    fast = everything()
    monkeypatch.setattr(kernels, "fits", lambda *_: False)
    for found, wanted in zip(everything(), fast, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("workspace", [1, 4 * 40 * 3, 1 << 20])
def test_lists_and_counts_of_one_product_are_those_of_two(workspace):
    queries, items = integer_vectors(11, 3, seed=23), integer_vectors(40, 3, seed=24)
    targets, exclude = random_lists(11, 20, 0.2, seed=25), Ragged(torch.arange(12), torch.arange(20, 31))
    rows = torch.tensor([3, 1, 10, 4])
    parts = list(ranked_tiles(queries, items, 5, targets=targets, exclude=exclude, rows=rows, workspace=workspace))
    part, values, indices, above, equal = (torch.cat(some) for some in zip(*parts, strict=True))
    assert torch.equal(part, rows)
    wanted = top_k(queries, items, 5, exclude=exclude, rows=rows)
    assert torch.equal(values, wanted[0])
    assert torch.equal(indices, wanted[1])
    counts = count_above(queries, items, targets, exclude=exclude, rows=rows)
    assert torch.equal(above, counts[0])
    assert torch.equal(equal, counts[1])


def test_no_rows_give_no_counts():
    targets = Ragged(torch.tensor([0, 1]), torch.tensor([0]))
    above, equal = count_above(torch.ones(1, 1), torch.ones(3, 1), targets, rows=torch.tensor([], dtype=torch.int64))
    assert above.shape == equal.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n_items", "dim"), [(5, 3), (37, 64), (100, 8), (333, 7), (2_000, 64), (17_001, 16)])
def test_scores_are_the_same_bits_in_any_block_and_with_any_number_of_threads(n_items, dim, dtype):
    # Plain products are not: a BLAS has other loops for a few rows or columns, also of one thread's share.
    generator = torch.Generator().manual_seed(n_items)
    queries = torch.randn(700, dim, generator=generator, dtype=dtype)
    items = torch.randn(n_items, dim, generator=generator, dtype=dtype)
    k, before = min(20, n_items), torch.get_num_threads()
    values, indices = top_k(queries, items, k)
    try:
        for threads in (1, 2, 5, 16):
            torch.set_num_threads(threads)
            for size in (1, 2, 3, 5, 7, 11, 17, 18, 33, 100, 513):
                rows = torch.randperm(700, generator=generator)[:size]
                for targets in (None, Ragged(torch.arange(701), torch.zeros(700, dtype=torch.int64))):
                    parts = list(ranked_tiles(queries, items, k, rows=rows, targets=targets))
                    assert torch.equal(torch.cat([part[1] for part in parts]), values[rows])
                    assert torch.equal(torch.cat([part[2] for part in parts]), indices[rows])
    finally:
        torch.set_num_threads(before)
