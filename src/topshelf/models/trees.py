"""Sums of decision trees as arrays: what a boosting library has learned, scored without that library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from topshelf.errors import DataError
from topshelf.kernels import share_rows

LEAF = -1
_NAMES = ("roots", "feature", "level", "left", "right", "value")


@dataclass
class TreeBuilder:
    """Trees node by node. A node sends a document left where its feature is at most the level."""

    roots: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    level: list[float] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """The next node is the root of a new tree."""
        self.roots.append(len(self.feature))

    def add(self, feature: int = 0, level: float = 0.0, value: float = 0.0) -> int:
        """A leaf, until :meth:`link` gives it children; returns its number."""
        for column, one in zip(
            (self.feature, self.level, self.left, self.right, self.value),
            (feature, level, LEAF, LEAF, value),
            strict=True,
        ):
            column.append(one)  # type: ignore[attr-defined]
        return len(self.feature) - 1

    def link(self, node: int, left: int, right: int) -> None:
        self.left[node], self.right[node] = left, right


class TreeSum(nn.Module):
    """The sum of the trees' values at a document's leaves, as buffers whose size the training decides.

    roots (T,): the first node of each tree; feature, left, right (N,) int32, level, value (N,) float64. Children come
    after their parent, so a walk always ends; a leaf has no children (-1).
    """

    roots: Tensor
    feature: Tensor
    level: Tensor
    left: Tensor
    right: Tensor
    value: Tensor

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        self.set(TreeBuilder())

    def __len__(self) -> int:
        return self.roots.numel()

    def set(self, built: TreeBuilder) -> None:
        types = {"level": torch.float64, "value": torch.float64}
        for name in _NAMES:
            self.register_buffer(name, torch.tensor(getattr(built, name), dtype=types.get(name, torch.int32)))
        self.check()

    def forward(self, features: Tensor) -> Tensor:
        """Shapes: features (D, f); returns (D,) float64."""
        from topshelf.models import tree_walks  # compiled by numba on first use

        scores = torch.zeros(features.size(0), dtype=torch.float64)
        table = np.ascontiguousarray(features.detach().cpu().numpy(), dtype=np.float32)
        arrays = {name: getattr(self, name).cpu().numpy() for name in _NAMES}
        share_rows(tree_walks.add_trees, scores.numel(), 16 * len(self), table, scores.numpy(), **arrays)
        return scores.to(features.device)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        """The number of nodes is known only from the file."""
        for name in _NAMES:
            if (stored := state.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state, prefix, *more)
        if all(prefix + name in state for name in _NAMES):  # torch reports missing names
            self.check()

    def check(self) -> None:
        """Trees come from a file, and compiled code trusts their numbers."""
        columns = {name: getattr(self, name).cpu().numpy() for name in _NAMES}
        n = columns["feature"].size
        if any(column.ndim != 1 or (name != "roots" and column.size != n) for name, column in columns.items()):
            raise DataError("the trees must have one number per node in each of their lists")
        feature, left, right, roots = (columns[name].astype(np.int64) for name in ("feature", "left", "right", "roots"))
        node = np.arange(n)
        is_leaf = (left == LEAF) & (right == LEAF)
        is_inner = (left > node) & (left < n) & (right > node) & (right < n)
        if not (is_leaf | is_inner).all():
            raise DataError("every node of a tree must be a leaf, or have two children that come after it")
        if n and (feature.min() < 0 or feature.max() >= self.n_features):
            raise DataError(f"the trees must use features 0 to {self.n_features - 1}, got {feature.max()}")
        if roots.size and (roots.min() < 0 or roots.max() >= n):
            raise DataError(f"the trees must begin at one of {n} nodes, got {roots.max()}")
