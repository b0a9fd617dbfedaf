"""Changes of lists and tensors that a crafted file may have, and the checksums that make it pass for a sound one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from topshelf import files
from topshelf.training.folder import RunFolder

Case = Callable[[Path], None]
MOST = 2**63 - 1


def seal(folder: Path) -> None:
    """Make every checksum right again, of the data in run.json, of the model and the artifact in metrics.json."""
    run = RunFolder(folder)
    content = files.read_sealed(run.identity_file)
    content["sha256"] = {name: files.digest(folder / name) for name in content["sha256"]}
    files.write_sealed(run.identity_file, content)
    if run.metrics.exists():
        sums = {f"{path.stem}_sha256": files.digest(path) for path in (run.model, run.artifact) if path.is_file()}
        files.write_sealed(run.metrics, {**files.read_sealed(run.metrics), **sums})


def list_edits(n_items: int = 24) -> dict[str, Callable[[dict[str, Any]], None]]:
    def put(place: int, value: int) -> Callable[[dict[str, Any]], None]:
        def change(part: dict[str, Any]) -> None:
            part["indices"] = part["indices"].long()  # those of events are shorter
            part["indices"][place] = value

        return change

    def bound(place: int, value: int) -> Callable[[dict[str, Any]], None]:
        def change(part: dict[str, Any]) -> None:
            part["indptr"][place] = value

        return change

    def made(field: str, how: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], None]:
        def change(part: dict[str, Any]) -> None:
            part[field] = how(part[field])

        return change

    return {
        "an item index equal to the number of items": put(-1, n_items), "a negative item": put(0, -1),
        "a huge item": put(3, 2**62), "a huge negative item": put(3, -(2**62)), "one item beyond": put(0, n_items + 1),
        "lists from 1": bound(0, 1), "lists to too far": bound(-1, 10**6), "a list that goes back": bound(1, 10**6),
        "a negative bound": bound(1, -1), "bounds that wrap around": made("indptr", _wrapped),
        "a list unsorted": made("indices", lambda x: x.flip(0)),
        "all items repeated": made("indices", torch.zeros_like), "one item fewer": made("indices", lambda x: x[:-1]),
        "one list fewer": made("indptr", lambda x: x[:-1]),
        "one list more": made("indptr", lambda x: torch.cat([x, x[-1:]])), "no lists": made("indptr", lambda x: x[:0]),
        "int32 items": made("indices", lambda x: x.int()), "float items": made("indices", lambda x: x.double()),
        "float bounds": made("indptr", lambda x: x.double()), "a table of items": made("indices", lambda x: x[:, None]),
        "a number for items": made("indices", lambda x: 5), "nothing for bounds": made("indptr", lambda x: None),
        "boolean items": made("indices", lambda x: x.bool()), "uint8 items": made("indices", lambda x: x.byte()),
    }  # fmt: skip


def _wrapped(indptr: torch.Tensor) -> torch.Tensor:
    """No step down, for the differences wrap around."""
    indptr = indptr.clone()
    indptr[1:4] = torch.tensor([MOST, -MOST - 1, -1])
    return indptr


WRONG_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "NaN": lambda x: torch.full_like(x, torch.nan) if x.is_floating_point() else x - 10**6,
    "inf in one place": lambda x: _put(x, torch.inf), "one row fewer": lambda x: x[:-1],
    "one row more": lambda x: torch.cat([x, x[-1:]]), "transposed": lambda x: x.T if x.dim() > 1 else x[:, None],
    "a number": lambda x: x.sum(), "nothing in it": lambda x: x[:0], "float64": lambda x: x.double(),
    "float16": lambda x: x.half(), "int64": lambda x: x.float().long() + 1, "complex": lambda x: x.to(torch.complex64),
    "a list": lambda x: [1.0, 2.0], "None": lambda x: None, "text": lambda x: "weights",
}  # fmt: skip


def _put(values: torch.Tensor, value: float) -> torch.Tensor:
    values = values.clone()
    values.view(-1)[values.numel() // 2] = value if values.is_floating_point() else 2**31 - 1
    return values
