"""The compiled loops against torch on the same scores, and what they do with values that are not plain numbers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf import kernels
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.thresholds import weighted_thresholds


def scores(n_rows: int, width: int, seed: int, spread: float = 5.0) -> torch.Tensor:
    return torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed)) * spread


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(0, 300), st.integers(0, 10_000))
def test_exponentials_and_sums_equal_torch(n_rows: int, width: int, seed: int) -> None:
    tile = scores(n_rows, width, seed)
    total = torch.ones(n_rows)
    made = tile.clone()
    kernels.exp_sums(made, total)
    wanted = tile.double().exp()
    torch.testing.assert_close(made.double(), wanted, rtol=1e-6, atol=1e-38)
    torch.testing.assert_close(total.double(), wanted.sum(1) + 1, rtol=1e-5, atol=0.0)


def test_exponentials_work_on_a_strip_of_a_wider_buffer() -> None:
    buffer = torch.full((7, 50), 3.0)
    kernels.exp_sums(buffer[:, 10:20], torch.zeros(7))
    assert (buffer[:, :10] == 3).all()
    assert (buffer[:, 20:] == 3).all()
    torch.testing.assert_close(buffer[:, 10:20], torch.full((7, 10), math.exp(3)))


def test_exponentials_at_the_ends_of_their_range() -> None:
    tile = torch.tensor([[-math.inf, -1e30, -88.0, -87.0, 0.0, 88.0, math.nan]])
    total = torch.zeros(1)
    kernels.exp_sums(tile, total)
    assert tile[0, :3].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(
        tile[0, 3:6].double(), torch.tensor([-87.0, 0.0, 88.0]).double().exp(), rtol=1e-6, atol=0
    )
    assert tile[0, 6].isnan()
    assert total.isnan().all()


def test_half_width_exponentials_are_the_rounded_ones() -> None:
    tile = scores(33, 257, 0)
    whole, total = tile.clone(), torch.zeros(33)
    kernels.exp_sums(whole, total)
    half, again, kept = torch.empty(33, 257, dtype=torch.bfloat16), torch.zeros(33), tile.clone()
    kernels.exp_sums(kept, again, half)
    assert torch.equal(half, whole.bfloat16())
    assert torch.equal(again, total)
    assert torch.equal(kept, tile)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 300), st.integers(0, 10_000))
def test_counts_above_a_level_equal_torch(n_rows: int, width: int, seed: int) -> None:
    tile = scores(n_rows, width, seed)
    if width:
        tile[:, 0] = -math.inf
    level = scores(n_rows, 1, seed + 1).squeeze(1)
    count, excess = torch.zeros(n_rows), torch.zeros(n_rows)
    kernels.exp_sums(tile.clone(), torch.zeros(n_rows), above=(level, count, excess))
    over = (tile - level.unsqueeze(1)).clamp(min=0)
    assert torch.equal(count, (over > 0).float().sum(1))
    torch.testing.assert_close(excess, over.sum(1), rtol=1e-5, atol=1e-4)


def best_by_tiles(table: torch.Tensor, k: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.full((table.size(0), k), -math.inf), torch.full((table.size(0), k), -1)
    for start in range(0, table.size(1), tile):
        kernels.keep_best(table[:, start : start + tile], values, indices, start)
    return values, indices


def assert_best(table: torch.Tensor, k: int, tile: int) -> None:
    values, indices = best_by_tiles(table, k, tile)
    wanted, order = table.sort(dim=1, descending=True, stable=True)
    kept = min(k, table.size(1))
    assert torch.equal(values[:, :kept], wanted[:, :kept])
    assert torch.equal(indices[:, :kept], order[:, :kept].masked_fill(wanted[:, :kept] == -math.inf, -1))
    assert (indices[:, kept:] == -1).all()
    assert (values[:, kept:] == -math.inf).all()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 30), st.integers(1, 900), st.integers(1, 130), st.integers(1, 900), st.integers(0, 10_000))
def test_best_of_tiles_equal_a_stable_sort(n_rows: int, width: int, k: int, tile: int, seed: int) -> None:
    table = scores(n_rows, width, seed, spread=2.0).round()  # many ties
    table[torch.rand(table.shape, generator=torch.Generator().manual_seed(seed)) < 0.1] = -math.inf
    assert_best(table, k, tile)


@pytest.mark.parametrize("k", [1, 20, 100, 1000])
@pytest.mark.parametrize("tile", [1000, 4096, 65_536])
def test_best_of_wide_rows_equal_a_stable_sort(k: int, tile: int) -> None:
    table = scores(4, 65_536, k)
    table[1] = table[1].round()
    table[2] = 0.0
    table[3] = table[3].sort().values  # every tile is better than all before it
    assert_best(table, k, tile)


@pytest.mark.parametrize("step", [64, 80, 256, 400])
def test_best_scores_at_equal_distances_are_all_found(step: int) -> None:
    table = scores(2, 65_536, 0)
    table[:, ::step] += 100
    assert_best(table, 100, 65_536)


def test_rows_with_few_scores_left_and_the_ends_of_the_range() -> None:
    table = torch.full((3, 3000), -math.inf)
    table[0, 2999] = torch.finfo(torch.float32).min
    table[1, [5, 7, 2000]] = torch.tensor([-0.0, 0.0, -0.0])
    table[2, ::2] = math.inf
    for k in (1, 2, 3, 700):
        assert_best(table, k, 3000)
        assert_best(table, k, 1024)


@pytest.mark.parametrize("place", [0, 63, 64, 199])
@pytest.mark.parametrize("tile", [50, 200])
def test_nan_comes_first_and_stays(place: int, tile: int) -> None:
    table = scores(1, 200, 3)
    table[0, 100] = math.inf
    table[0, place] = -math.nan  # with its sign bit set, as the processor makes it
    values, indices = best_by_tiles(table, 5, tile)
    assert values[0, 0].isnan()
    assert indices[0, :2].tolist() == [place, 100]


def test_more_nan_than_places_leave_the_first_ones() -> None:
    table = torch.full((1, 500), math.nan)
    assert best_by_tiles(table, 3, 500)[1].tolist() == [[0, 1, 2]]
    assert best_by_tiles(table, 3, 100)[1].tolist() == [[0, 1, 2]]


def lists(n_rows: int, width: int, seed: int) -> Ragged:
    chosen = torch.rand(n_rows, width, generator=torch.Generator().manual_seed(seed)) < 0.2
    return ragged_from_pairs(*chosen.nonzero(as_tuple=True), n_rows)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 300), st.integers(0, 300), st.integers(0, 1000))
def test_listed_items_inside_the_tile_are_hidden(n_rows: int, width: int, first: int, seed: int) -> None:
    hidden = lists(n_rows, 400, seed)
    tile = scores(n_rows, width, seed)
    wanted = torch.zeros(n_rows, 700)
    wanted[hidden.owner(), hidden.indices] = -math.inf
    wanted = tile + wanted[:, first : first + width]
    kernels.hide(tile, hidden.indptr, hidden.indices, first)
    assert torch.equal(tile, wanted)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 300), st.integers(0, 1000))
def test_counts_around_targets_equal_torch(n_rows: int, repeated: int, seed: int) -> None:
    table = scores(n_rows, 100, seed).round().repeat(1, 1 + 60 * (repeated % 2))  # at times wider than a part
    wanted = lists(n_rows, 100, seed)
    above, equal = torch.zeros_like(wanted.indices), torch.zeros_like(wanted.indices)
    kernels.count_above(table, wanted.indptr, wanted.indices, above, equal)
    rows = table[wanted.owner()]
    mine = rows.gather(1, wanted.indices.unsqueeze(1))
    assert torch.equal(above, (rows > mine).sum(1))
    assert torch.equal(equal, (rows == mine).sum(1) - 1)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 120), st.integers(0, 1000))
def test_hits_are_the_places_of_wanted_items(n_rows: int, k: int, seed: int) -> None:
    wanted = lists(n_rows, 150, seed)
    shown = scores(n_rows, 150, seed).argsort(dim=1)[:, :k]
    shown[:, k // 2] = -1  # an empty place
    table = torch.zeros(n_rows, 151, dtype=torch.float64)
    table[wanted.owner(), wanted.indices] = 1.0
    assert torch.equal(kernels.hits(shown, wanted.indptr, wanted.indices), table.gather(1, shown % 151))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(1, 33), st.integers(0, 10_000))
def test_scores_of_lists_equal_torch(n_rows: int, dim: int, seed: int) -> None:
    wanted = torch.rand(n_rows, 30, generator=torch.Generator().manual_seed(seed)) < 0.2
    lists = ragged_from_pairs(*wanted.nonzero().unbind(1), n_rows)
    queries, items = scores(n_rows, dim, seed, 1.0), scores(30, dim, seed + 1, 1.0)
    found = torch.empty(lists.indices.numel())
    kernels.list_scores(queries, items, lists.indptr, lists.indices, found)
    torch.testing.assert_close(found, (queries @ items.T)[lists.owner(), lists.indices], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000))
def test_weighted_levels_equal_torch(n_rows: int, width: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    best = scores(n_rows, width, seed).round().sort(1, descending=True).values  # with ties
    best[torch.rand(best.shape, generator=generator) < 0.1] = -math.inf
    best = best.sort(1, descending=True).values
    owner = torch.randint(n_rows, (5 * n_rows,), generator=generator).sort().values
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(owner, minlength=n_rows).cumsum(0)])
    own = scores(1, owner.numel(), seed + 1)[0].round()
    n_drawn = (best > -math.inf).sum(1) + 3
    n_negatives = n_drawn * torch.randint(1, 9, (n_rows,), generator=generator)
    level = torch.empty(n_rows)
    kernels.weighted_kth(best, own, indptr, n_negatives, n_drawn, k, level)
    assert torch.equal(level, weighted_thresholds(own, best, owner, k, n_negatives, n_drawn=n_drawn))


def test_only_plain_tensors_fit() -> None:
    assert kernels.fits(torch.zeros(1), torch.zeros(2, 2))
    assert not kernels.fits(torch.zeros(1), torch.zeros(1, dtype=torch.float64))
    assert not kernels.fits(torch.zeros(1, device="meta"))


def test_several_threads_may_call_at_once() -> None:
    tile = scores(200, 2000, 0)
    wanted = torch.zeros(200)
    kernels.exp_sums(tile.clone(), wanted)
    found = [torch.zeros(200) for _ in range(8)]
    threads = [threading.Thread(target=kernels.exp_sums, args=(tile.clone(), total)) for total in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(total, wanted) for total in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_threads_of_its_own() -> None:
    program = """
import os, signal, numpy, torch
from topshelf import kernels
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.thresholds import weighted_thresholds
torch.set_num_threads(2)
tile = torch.from_numpy(numpy.zeros((200, 2000), numpy.float32))  # torch's own threads do not survive a fork
kernels.exp_sums(tile, torch.zeros(200))
child = os.fork()
if child == 0:
    signal.alarm(30)  # without threads it would wait for ever
    kernels.exp_sums(tile, torch.zeros(200))
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60).returncode == 0


def test_the_best_are_found_where_tiny_numbers_are_read_as_zero() -> None:
    table = torch.zeros(1, 600)
    table[0, [7, 300]] = 1.0
    assert torch.set_flush_denormal(True)
    try:
        values, indices = torch.full((1, 5), -math.inf), torch.full((1, 5), -1)
        kernels.keep_best(table, values, indices)
    finally:
        torch.set_flush_denormal(False)
    assert values.tolist() == [[1, 1, 0, 0, 0]]
    assert indices.tolist() == [[7, 300, 0, 1, 2]]


def test_an_error_comes_back_only_when_nobody_writes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    array = torch.zeros(2, 1 << 16).numpy()

    def kernel(part: np.ndarray) -> None:
        if part.base is array and part.__array_interface__["data"] == array.__array_interface__["data"]:
            raise KeyboardInterrupt
        time.sleep(0.2)
        part[:] = 7

    with pytest.raises(KeyboardInterrupt):
        kernels.share_rows(kernel, 2, 1 << 16, array)
    assert (array[1] == 7).all()


def test_a_closed_pool_leaves_the_work_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = kernels.ThreadPoolExecutor(1)
    closed.shutdown()
    monkeypatch.setattr(kernels, "_pool", lambda: closed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    tile, total = torch.zeros(200, 2000), torch.zeros(200)
    kernels.exp_sums(tile, total)
    assert (total == 2000).all()
