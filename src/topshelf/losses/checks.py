"""What a loss refuses before it computes: tensors whose shapes or types do not fit, and indices out of range."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.errors import ConfigError

# The kind of numbers, the shapes that will do, and what to do about others. A letter is a size that the first tensor
# to have it settles for the rest.
_SHAPES = {
    "positive": ("floating-point numbers", ("P",), "pass one score a positive, without further axes"),
    "negative": ("floating-point numbers", ("Q N",), "pass one row a query; unsqueeze(1) a single negative of each"),
    "log_partition": ("floating-point numbers", ("Q",), "pass one number a query"),
    "owner": ("integers", ("P",), "pass the row in the batch of each positive's query"),
    "query": ("integers", ("Q",), "pass one index a query, not one a positive"),
    "mask": ("bool", ("Q N",), "pass True where a negative does not count; expand what is the same for all queries"),
    "log_q": ("floating-point numbers", ("1", "N", "Q N"), "pass one number a negative"),
    "negative_item": ("integers", ("N", "Q N"), "pass one index a negative"),
    "pair": ("integers", ("P",), "pass one index a positive"),
    "query_vector": ("floating-point numbers", ("Q d",), "pass one row a query"),
    "item_vector": ("floating-point numbers", ("P d",), "pass one row a positive"),
}


# What an index counts, and what to do about one that is out of range.
_RANGES = {
    "owner": ("rows of the batch", "pass the row in the batch of each positive's query"),
    "query": ("queries", "pass the index of each query, and make the loss with a larger n_queries"),
    "pair": (
        "training positives",
        "pass the index of each positive, and make the loss with a larger n_positives",
    ),
    "negative_item": ("items", "pass the index of each item, and make the loss with a larger n_items"),
}


def check_batch(counts: dict[str, int], **tensors: Tensor | None) -> None:
    """Refuse tensors of a batch that do not fit each other, and indices that do not fit ``counts``.

    ``counts`` is how many queries, pairs and items there are ("query", "pair", "negative_item"), as far as the loss
    knows. Values other than indices are not looked at.
    """
    n_rows = _check_shapes(tensors)
    if torch.compiler.is_compiling():
        return  # a value is not known while the code is traced
    counts = counts if n_rows is None else {**counts, "owner": n_rows}
    for name in _RANGES:
        index = tensors.get(name)
        if isinstance(index, Tensor) and index.numel():
            _check_range(name, index, counts.get(name))


def _check_range(name: str, index: Tensor, count: int | None) -> None:
    if index.device.type != "cpu":  # a look at the values would stop the device; it complains by itself, later
        torch._assert_async((index >= 0 if count is None else (index >= 0) & (index < count)).all())
        return
    low, high = (int(end) for end in torch.aminmax(index))
    if low < 0 or (count is not None and high >= count):
        what, remedy = _RANGES[name]
        wanted = ">= 0" if count is None else f"from 0 to {count - 1}, there being {count} {what}"
        raise ConfigError(f"{name} must be {wanted}, got {low if low < 0 else high}; {remedy}")


def _check_shapes(tensors: dict[str, Tensor | None]) -> int | None:
    """How many queries the batch has, if its tensors say so."""
    sizes = {"1": 1}
    for name, (kind, shapes, remedy) in _SHAPES.items():
        value = tensors.get(name)
        if value is None or ("N" in shapes[-1] and "N" not in sizes and name != "negative"):
            continue  # without negatives what belongs to them is of no use
        fits = [axes for axes in map(str.split, shapes) if _fits(value, axes, sizes)]
        if not fits or not _is_kind(value, kind):
            wanted = " or ".join(_described(axes.split(), sizes) for axes in shapes)
            got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} must be {wanted} of {kind}, got {got}; {remedy}")
        sizes.update(zip(fits[-1], value.shape, strict=True))
    return sizes.get("Q")


def _fits(value: Tensor, axes: list[str], sizes: dict[str, int]) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dim() == len(axes)
        and all(sizes.get(axis, size) == size for axis, size in zip(axes, value.shape, strict=True))
    )


def _is_kind(value: Tensor, kind: str) -> bool:
    if kind == "floating-point numbers":
        return value.is_floating_point()
    return value.dtype == torch.bool if kind == "bool" else value.dtype in (torch.int64, torch.int32)


def _described(axes: list[str], sizes: dict[str, int]) -> str:
    """``(Q, N) = (4, 5)``, as far as the sizes are settled."""
    names, found = [f"({', '.join(map(str, x))}{',' * (len(x) == 1)})" for x in (axes, [sizes.get(a, a) for a in axes])]
    return names if names == found else f"{names} = {found}"
