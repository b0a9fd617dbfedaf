"""Rows of length one: the compiled form against torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf.models.unit import unit_rows


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (700, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients_equal_normalize(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    weights = torch.randn(shape, generator=generator).to(dtype)
    made, expected = unit_rows(table), F.normalize(table, dim=1)
    assert_close(made, expected)
    assert_close(*(torch.autograd.grad((x * weights).sum(), table)[0] for x in (made, expected)), rtol=1e-4, atol=1e-5)


def test_a_row_of_zeros_stays_and_has_a_finite_gradient():
    table = torch.zeros(2, 3, requires_grad=True)
    made = unit_rows(table)
    made.sum().backward()
    assert torch.equal(made, torch.zeros(2, 3))
    assert table.grad.isfinite().all()


def test_a_gradient_that_is_not_contiguous_is_taken():
    table = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (unit_rows(table).T @ torch.ones(5, 2)).sum().backward()
    found = table.grad.clone()
    table.grad = None
    (F.normalize(table, dim=1).T @ torch.ones(5, 2)).sum().backward()
    assert_close(found, table.grad, rtol=1e-4, atol=1e-5)
