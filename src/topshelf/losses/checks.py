"""What a loss refuses before it computes: tensors whose shapes or types do not fit, and indices out of range."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.errors import ConfigError

# The kind of numbers, the accepted shapes, and the remedy for others. A letter is a size: the first tensor that has it
# sets it for the rest.
_SHAPES = {
    "positive": ("floating-point numbers", ("P",), "pass one score per positive, without further axes"),
    "negative": ("floating-point numbers", ("Q N",), "pass one row per query; unsqueeze(1) a single negative of each"),
    "log_partition": ("floating-point numbers", ("Q",), "pass one number per query"),
    "threshold": ("floating-point numbers", ("Q",), "pass one number per query"),
    "owner": ("integers", ("P",), "pass the batch row of each positive's query"),
    "query": ("integers", ("Q",), "pass one index per query, not one per positive"),
    "mask": ("bool", ("Q N",), "pass True where a negative does not count; expand a row that all queries share"),
    "log_q": ("floating-point numbers", ("1", "N", "Q N"), "pass one number per negative"),
    "negative_item": ("integers", ("N", "Q N"), "pass one index per negative"),
    "pair": ("integers", ("P",), "pass one index per positive"),
    "query_vector": ("floating-point numbers", ("Q d",), "pass one row per query"),
    "item_vector": ("floating-point numbers", ("P d",), "pass one row per positive"),
}

_CONVERTED = {"floating-point numbers": ".float()", "integers": ".long()", "bool": ".bool()"}

# What an index counts, and the remedy for one that is out of range.
_RANGES = {
    "owner": ("rows of the batch", "pass the batch row of each positive's query"),
    "query": ("queries", "pass the index of each query, and make the loss with a larger n_queries"),
    "pair": ("training positives", "pass the index of each positive, and make the loss with a larger n_positives"),
    "negative_item": ("items", "pass the index of each item, and make the loss with a larger n_items"),
}


def check_batch(counts: dict[str, int], **tensors: Tensor | None) -> None:
    """Refuse tensors of a batch that do not fit each other, and indices that do not fit ``counts``.

    ``counts`` is the number of queries, pairs and items ("query", "pair", "negative_item"), as far as the loss knows
    it. Values other than indices are not checked.
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
    if index.device.type != "cpu":  # reading the values would stall the device; it reports the error itself, later
        torch._assert_async((index >= 0 if count is None else (index >= 0) & (index < count)).all())
        return
    low, high = (int(end) for end in torch.aminmax(index))
    if low < 0 or (count is not None and high >= count):
        what, remedy = _RANGES[name]
        wanted = ">= 0" if count is None else f"from 0 to {count - 1} ({count} {what})"
        raise ConfigError(f"{name} must be {wanted}, got {low if low < 0 else high}; {remedy}")


def _check_shapes(tensors: dict[str, Tensor | None]) -> int | None:
    """The number of queries in the batch, if its tensors show it."""
    sizes = {"1": 1}
    for name, (kind, shapes, remedy) in _SHAPES.items():
        value = tensors.get(name)
        if value is None or ("N" in shapes[-1] and "N" not in sizes and name != "negative"):
            continue  # not used without negatives
        fits = [axes for axes in map(str.split, shapes) if _fits(value, axes, sizes)]
        if fits and not _is_kind(value, kind):
            remedy = f"convert it with {_CONVERTED[kind]}"
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
    """``(Q, N) = (4, 5)``, as far as the sizes are set."""
    names, numbers = (
        f"({', '.join(map(str, x))}{',' * (len(x) == 1)})" for x in (axes, [sizes.get(axis, axis) for axis in axes])
    )
    return names if names == numbers else f"{names} = {numbers}"
