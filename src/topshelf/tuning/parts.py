"""What tuning sees of the data: train and validation. The file of a test part is not opened."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from topshelf.config import RunConfig
from topshelf.data import Dataset
from topshelf.errors import CheckpointError, ConfigError, DataError
from topshelf.ragged import Ragged
from topshelf.training import checkpoint, load_dataset

_LISTS = ("train", "valid")
_MOST = 2**31  # more users or items than any table of vectors holds


@dataclass(frozen=True, eq=False)
class Parts:
    """The lists to learn from and those to be measured on, over the same users and items."""

    name: str
    n_users: int
    n_items: int
    train: Ragged
    valid: Ragged

    @classmethod
    def of(cls, dataset: Dataset) -> Parts:
        """Of a split; nothing of its test part is read."""
        split = dataset.split
        if not len(split.valid):
            raise DataError(
                f"the valid part of the {split.kind} split is empty, and tuning is measured on it. Use more data, a "
                "larger data.valid_fraction, or another data.split"
            )
        return cls(dataset.name, split.n_users, split.n_items, split.train.ragged(), split.valid.ragged())

    @classmethod
    def load(cls, path: Path) -> Parts:
        """What :meth:`save` wrote, checked: every index in it may reach compiled code."""
        state = checkpoint.load(path)
        try:
            sizes = {name: _size(name, state[name]) for name in ("n_users", "n_items")}
            lists = {name: Ragged(state[name]["indptr"], state[name]["indices"]) for name in _LISTS}
            for name, some in lists.items():
                some.check(sizes["n_items"], name, n_lists=sizes["n_users"], unique=True)
            if not lists["valid"].indices.numel():
                raise DataError("valid is empty, and tuning is measured on it")
            return cls(str(state["name"]), sizes["n_users"], sizes["n_items"], lists["train"], lists["valid"])
        except (KeyError, TypeError, ValueError, DataError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; restore it from a copy") from None

    def save(self, path: Path) -> None:
        state: dict[str, Any] = {"name": self.name, "n_users": self.n_users, "n_items": self.n_items}
        for name in _LISTS:
            state[name] = vars(getattr(self, name))
        checkpoint.save(path, state)

    def to(self, device: str) -> Parts:
        try:
            lists = {name: getattr(self, name).to(device) for name in _LISTS}
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"train.device must be a device of this machine, such as cpu, got {device!r}: {reason}"
            ) from None
        return Parts(self.name, self.n_users, self.n_items, **lists)

    @property
    def fingerprint(self) -> str:
        """The same for the same lists, so that processes that share a study can tell that they share the data."""
        total = zlib.crc32(f"{self.n_users} {self.n_items}".encode())
        for name in _LISTS:
            for tensor in vars(getattr(self, name)).values():
                total = zlib.crc32(tensor.to(torch.int64).contiguous().cpu().numpy().data, total)
        return f"{total:08x}"


def _size(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MOST:
        raise ValueError(f"{name} must be a whole number from 1 to {_MOST - 1}, got {value!r}")
    return value


def load_parts(config: RunConfig) -> Parts:
    """Train and validation of the source that the config names."""
    return Parts.of(load_dataset(config, test=False))
