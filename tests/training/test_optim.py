from __future__ import annotations

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


def test_with_dense_gradients_it_is_adam():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizers = RowAdam([ours], lr=0.05), torch.optim.Adam([theirs], lr=0.05)
    for _ in range(20):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (parameter - 1).square().sum().backward()
            optimizer.step()
    assert_close(ours, theirs)


def test_a_row_read_twice_in_a_step_is_moved_once():
    table = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = RowAdam([table], lr=0.1)
    F.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    optimizer.step()
    assert_close(table.detach(), torch.tensor([[0.0], [-0.1]]))


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ConfigError, match="lr must be > 0, got 0"):
        RowAdam([torch.nn.Parameter(torch.zeros(1, 1))], lr=0)
