from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.training.optim import RowAdam


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


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ConfigError, match="lr must be > 0, got 0"):
        RowAdam([torch.nn.Parameter(torch.zeros(1, 1))], lr=0)
