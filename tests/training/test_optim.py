from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.training import optim
from topshelf.training.optim import RowAdam, rounded


def slow_row_adam(start, steps, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8):
    """One row at a time, in plain numbers."""
    rows = start.double().tolist()
    mean, square, count = ([[0.0] * len(row) for row in rows], [[0.0] * len(row) for row in rows], [0] * len(rows))
    for gradients in steps:
        for r, gradient in gradients.items():
            count[r] += 1
            for c, g in enumerate(gradient):
                g += weight_decay * rows[r][c]
                mean[r][c] = betas[0] * mean[r][c] + (1 - betas[0]) * g
                square[r][c] = betas[1] * square[r][c] + (1 - betas[1]) * g * g
                m, s = mean[r][c] / (1 - betas[0] ** count[r]), square[r][c] / (1 - betas[1] ** count[r])
                rows[r][c] -= lr * m / (s**0.5 + eps)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_only_touched_rows_move_and_each_counts_its_own_steps(weight_decay):
    generator = torch.Generator().manual_seed(0)
    table = torch.nn.Parameter(torch.randn(5, 3, generator=generator, dtype=torch.float64))
    start, targets = table.detach().clone(), torch.randn(5, 3, generator=generator, dtype=torch.float64)
    optimizer = RowAdam([table], lr=0.1, weight_decay=weight_decay)
    steps = []
    for rows in ([0, 1], [1], [1, 3, 0], [3], [0, 1, 3]):
        index = torch.tensor(rows)
        optimizer.zero_grad()
        (F.embedding(index, table, sparse=True) * targets[index]).sum().backward()
        steps.append({r: targets[r].tolist() for r in rows})
        optimizer.step()
    assert_close(table.detach(), slow_row_adam(start, steps, 0.1, weight_decay))
    assert_close(table[2].detach(), start[2], rtol=0, atol=0)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_with_dense_gradients_it_is_torchs_fused_adam_to_the_bit(weight_decay):
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator), torch.randn(2, generator=generator)]
    ours, theirs = ([torch.nn.Parameter(values.clone()) for values in start] for _ in range(2))
    settings = {"lr": 0.05, "weight_decay": weight_decay}
    optimizers = RowAdam(ours, **settings), torch.optim.Adam(theirs, **settings, fused=True)
    for _ in range(20):
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            sum((parameter - 1).square().sum() for parameter in parameters).backward()
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_a_table_may_have_dense_and_sparse_gradients_in_turn():
    generator = torch.Generator().manual_seed(1)
    table = torch.nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
    start, targets = table.detach().clone(), torch.randn(4, 3, generator=generator, dtype=torch.float64)
    optimizer, steps = RowAdam([table], lr=0.1), []
    for rows in (None, [0, 2], None, [2], None):
        optimizer.zero_grad()
        index = torch.arange(4) if rows is None else torch.tensor(rows)
        read = table if rows is None else F.embedding(index, table, sparse=True)
        (read * targets[index]).sum().backward()
        steps.append({r: targets[r].tolist() for r in index.tolist()})
        optimizer.step()
    assert_close(table.detach(), slow_row_adam(start, steps, 0.1, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_its_state_goes_through_a_state_dict_without_loss(dtype):
    def begin():
        generator = torch.Generator().manual_seed(2)
        tables = [torch.nn.Parameter(torch.randn(300, 3, generator=generator).to(dtype)) for _ in range(2)]
        return tables, RowAdam(tables, lr=0.01)

    def go_on(tables, optimizer, steps):
        for step in steps:
            rows = torch.randperm(300, generator=torch.Generator().manual_seed(step))[:200]
            optimizer.zero_grad()
            optimizer.generator = torch.Generator().manual_seed(step)
            (F.embedding(rows, tables[0], sparse=True) * tables[1][:200]).square().sum().backward()
            optimizer.step()

    tables, optimizer = begin()
    go_on(tables, optimizer, range(300))
    resumed, other = begin()
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for table, values in zip(resumed, tables, strict=True):
        table.data.copy_(values.data)
    go_on(tables, optimizer, range(300, 320))
    go_on(resumed, other, range(300, 320))
    for table, values in zip(resumed, tables, strict=True):
        assert torch.equal(table, values)
    counts = [torch.randperm(300, generator=torch.Generator().manual_seed(step))[:200] for step in range(320)]
    assert torch.equal(other.state[resumed[0]]["step"].long(), torch.bincount(torch.cat(counts)))


def test_a_row_read_twice_in_a_step_is_moved_once():
    table = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = RowAdam([table], lr=0.1)
    F.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    optimizer.step()
    assert_close(table.detach(), torch.tensor([[0.0], [-0.1]]))


def test_a_number_is_rounded_to_a_neighbour_in_bfloat16_and_its_mean_is_kept():
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(50, generator=generator), torch.tensor([0.0, 1.0, -1.5, 1e-30, -3e30])])
    draws = torch.stack([rounded(values, generator) for _ in range(4000)]).double()
    near = values.bfloat16().double()
    width = 2.0 ** (torch.frexp(values.double()).exponent - 8)  # of 8 bits, the first among them
    assert ((draws - values).abs() < width).all()
    assert ((draws - near).abs() <= width).all()
    error = (draws.mean(0) - values.double()).abs()
    assert (error <= 4 * 0.5 * width / 4000**0.5).all()
    exact = near == values.double()
    assert exact.sum() == 3
    assert (draws[:, exact] == values[exact].double()).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_steps_below_the_spacing_of_bfloat16_are_kept_on_average(sparse):
    start, rate, n = 1.0, 1e-5, 400  # the next number below 1 is 0.996
    table = torch.nn.Parameter(torch.full((2000, 2), start, dtype=torch.bfloat16))
    optimizer = RowAdam([table], lr=rate)
    optimizer.generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        optimizer.zero_grad()
        (F.embedding(torch.arange(2000), table, sparse=True) if sparse else table).float().sum().backward()
        optimizer.step()
    assert (
        table.dtype == optimizer.state[table]["mean"].dtype == optimizer.state[table]["square"].dtype == torch.bfloat16
    )
    moved = start - float(table.detach().double().mean())
    assert moved == pytest.approx(n * rate, rel=0.1)


def test_a_bfloat16_table_follows_its_float32_twin(monkeypatch):
    monkeypatch.setattr(optim, "_ROWS", 7)  # several blocks
    generator = torch.Generator().manual_seed(3)
    start, target = (torch.randn(50, 8, generator=generator).bfloat16().float() for _ in range(2))
    twins = [torch.nn.Parameter(start.to(dtype, copy=True)) for dtype in (torch.float32, torch.bfloat16)]
    optimizers = [RowAdam([table], lr=0.01, weight_decay=0.01) for table in twins]
    optimizers[1].generator = generator
    for _ in range(300):
        rows = torch.randperm(50, generator=generator)[:30]
        for table, optimizer in zip(twins, optimizers, strict=True):
            optimizer.zero_grad()
            (F.embedding(rows, table, sparse=True).float() - target[rows]).square().sum().backward()
            optimizer.step()
    exact, half = (table.detach().double() for table in twins)
    assert (exact - target).norm() < 0.4 * (start - target).norm()
    assert (half - exact).norm() < 0.02 * exact.norm()


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ConfigError, match="lr must be > 0, got 0"):
        RowAdam([torch.nn.Parameter(torch.zeros(1, 1))], lr=0)
