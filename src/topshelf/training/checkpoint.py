"""Nested state in one safetensors file: written atomically, checked when read, never unpickled."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from topshelf import files
from topshelf.errors import CheckpointError

FORMAT = 1


def save(path: str | Path, state: dict[str, Any], *, run: str | None = None) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None; ``run`` is the id of the run it belongs to.

    The write is atomic: if the disk is full, the previous file is kept.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(state, tensors)
    sums = {name: _checksum(tensor) for name, tensor in tensors.items()}
    content = json.dumps({"format": FORMAT, "run": run, "skeleton": skeleton, "crc32": sums})
    header = {"topshelf": content, "crc32": str(zlib.crc32(content.encode()))}
    files.write(path, lambda file: save_file(tensors, file, metadata=header))


def load(path: str | Path, *, run: str | None = None) -> dict[str, Any]:
    """Read what :func:`save` wrote; a damaged file, or one of another run, raises a :class:`CheckpointError`."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        content = metadata["topshelf"]
        if str(zlib.crc32(content.encode())) != metadata["crc32"]:
            raise ValueError("the checksum of its header does not match")
        header = json.loads(content)
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}, and this version reads format {FORMAT}")
        if header.get("run") != run:
            raise ValueError(f"it belongs to run {header.get('run')}, and its folder to run {run}")
        for name, tensor in tensors.items():
            if _checksum(tensor) != header["crc32"][name]:
                raise ValueError(f"the checksum of {name!r} does not match")
        return dict(_restore(header["skeleton"], tensors))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged or not a topshelf file: {error}") from None


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value with every tensor moved to ``tensors`` and a reference left behind."""
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = _alone(value.detach().cpu().contiguous(), tensors)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_flatten(key, tensors), _flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save a {type(value).__name__}")


def _alone(tensor: Tensor, others: dict[str, Tensor]) -> Tensor:
    """The tensor, or a copy if it shares memory with another one: safetensors refuses those.

    Any other copy would double the memory of a large table while it is written; nothing changes it meanwhile.
    """
    place = tensor.untyped_storage().data_ptr()
    is_shared = any(place == other.untyped_storage().data_ptr() for other in others.values())
    return tensor.clone() if is_shared or not tensor.numel() else tensor


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "list" in value:
        return [_restore(item, tensors) for item in value["list"]]
    return {_restore(key, tensors): _restore(item, tensors) for key, item in value["dict"]}


def _checksum(tensor: Tensor) -> int:
    flat = tensor.contiguous().view(-1)
    raw = flat.view(torch.uint8) if flat.numel() else flat
    return zlib.crc32(np.ascontiguousarray(raw.numpy()).data if flat.numel() else b"")
