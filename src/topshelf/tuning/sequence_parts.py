"""The data of a study of next items: sequences without their test part."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from topshelf.data import IdMap
from topshelf.data.memory import available
from topshelf.data.sequence_data import SequenceData
from topshelf.data.sequence_split import SequenceSplit
from topshelf.errors import CheckpointError, DataError
from topshelf.training import checkpoint
from topshelf.training.tasks import SequencesTask
from topshelf.training.tasks.sequences import data_of, state_of

_MAX_SIZE = 2**31  # more users or items than any table of vectors holds


@dataclass(frozen=True, eq=False)
class SequenceParts:
    """The train and validation events of sequences; there is no test part."""

    data: SequenceData

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def split(self) -> SequenceSplit:
        return self.data.split

    @property
    def n_items(self) -> int:
        return self.split.n_items

    def task(self, device: str) -> SequencesTask:
        return SequencesTask(self.data, device)

    @classmethod
    def of(cls, data: SequenceData) -> SequenceParts:
        """The parts of sequences; their test part is left out."""
        if not len(data.split.asked("valid", data.targets).rows):
            raise DataError(
                f"the valid part of the {data.split.kind} split is empty, and tuning is measured on it. Use more data, "
                "or another data.split"
            )
        return cls(replace(data, split=data.split.without_test()))

    @classmethod
    def read(cls, state: dict[str, Any], path: Path) -> SequenceParts:
        """What :meth:`save` wrote, checked: every index may reach compiled code."""
        try:
            sizes = [checked_size(name, state[name]) for name in ("n_users", "n_items")]
            if 8 * sum(sizes) > available():  # before ids are made for them
                raise DataError(f"{sizes[0]} users and {sizes[1]} items do not fit into memory")
            return cls.of(data_of(state, *(IdMap.range(size) for size in sizes), titles=None))
        except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; restore it from a copy") from None

    def save(self, path: Path) -> None:
        sizes = {"task": "sequences", "n_users": self.split.n_users, "n_items": self.n_items}
        checkpoint.save(path, {**sizes, **state_of(self.data)})

    @property
    def fingerprint(self) -> str:
        """Equal for equal events and cuts, so that processes that share a study can compare their data."""
        events, split = self.split.events, self.split
        total = zlib.crc32(f"{split.n_users} {self.n_items} {self.data.exclude_seen} {self.data.targets}".encode())
        for array in (events.indptr, events.indices.astype(np.int64), split.train_end, split.valid_end, split.left_out):
            total = zlib.crc32(np.ascontiguousarray(array).data, total)
        return f"{total:08x}"


def checked_size(name: str, value: Any) -> int:
    """How many users or items a file says there are."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MAX_SIZE:
        raise ValueError(f"{name} must be a whole number from 1 to {_MAX_SIZE - 1}, got {value!r}")
    return value
