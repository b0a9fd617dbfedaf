"""What the modules of all losses share: they show their settings, and say what is wrong with a tensor's type."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from topshelf.errors import ConfigError
from topshelf.losses import LISTWISE, LOSSES, SLatK
from topshelf.losses.base import Loss

SIZES = ("n_queries", "n_items", "n_positives")


@pytest.mark.parametrize("cls", [*LOSSES.values(), *LISTWISE.values()])
def test_a_loss_shows_all_its_settings(cls):
    parameters = inspect.signature(cls).parameters
    loss = cls(**{name: 7 for name in SIZES if name in parameters})
    shown = " ".join(repr(loss).split())
    assert shown.startswith(f"{cls.__name__}(")
    for name, parameter in parameters.items():
        assert f"{name}={7 if name in SIZES else parameter.default!r}" in shown


def test_settings_are_shown_as_they_are_now():
    loss = SLatK(10, 5, tau=0.1)
    assert repr(loss).startswith("SLatK(n_queries=10, k=5, tau=0.1, tau_weight=3.0, ")
    loss.tau = 0.3
    assert "tau=0.3" in repr(copy.deepcopy(loss))


def test_a_loss_of_the_users_own_shows_its_settings():
    class Own(Loss):
        def __init__(self, names=("a", "b"), **more):
            super().__init__()
            self.count = len(names) + len(more)

    assert repr(Own(("c",), extra=1)) == "Own(names=('c',), more={'extra': 1})"


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (
            {"query": torch.arange(4.0)},
            r"query must be .* integers, got \(4,\) of torch.float32; convert it with .long\(\)",
        ),
        ({"query": torch.arange(3)}, r"got \(3,\) of torch.int64; pass one index per query, not one per positive"),
        ({"query": torch.arange(3.0)}, r"got \(3,\) of torch.float32; pass one index per query"),
        ({"mask": torch.zeros(4, 3)}, r"of bool, got \(4, 3\) of torch.float32; convert it with .bool\(\)"),
        ({"log_q": torch.zeros(3, dtype=torch.int64)}, r"of floating-point numbers, .*; convert it with .float\(\)"),
    ],
)
def test_a_tensor_of_another_type_is_answered_with_how_to_convert_it(wrong, remedy):
    loss = SLatK(10, 5)
    with pytest.raises(ConfigError, match=remedy):
        loss(torch.rand(4), torch.rand(4, 3), **{"query": torch.arange(4), **wrong})
