"""A file layer with faults: every point between two changes on disk can be hit, one after another.

``topshelf.files`` calls ``step(what, path)`` at each of these points. Within :func:`faulty`, the N-th of them kills the
process, raises an error of the disk, or cuts the temporary file in half and kills; points before it only count.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

DISK_ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO}
KINDS = ("kill", "cut", *DISK_ERRORS)


@dataclass(frozen=True)
class Fault:
    """What happens at the N-th point, counted from 0; ``kind`` is one of ``KINDS``."""

    kind: str
    at: int


@dataclass
class Points:
    """The points that a command came by, as ``write model.safetensors``."""

    fault: Fault | None = None
    seen: list[str] = field(default_factory=list)

    def step(self, what: str, path: Path) -> None:
        """In the place of ``files.step``."""
        self.seen.append(f"{what} {path.name}")
        if self.fault is None or len(self.seen) - 1 != self.fault.at:
            return
        if self.fault.kind == "cut":
            cut_temporaries(path)
        if self.fault.kind in ("kill", "cut"):
            os.kill(os.getpid(), signal.SIGKILL)
        code = DISK_ERRORS[self.fault.kind]
        raise OSError(code, os.strerror(code), str(path))


@contextmanager
def faulty(fault: Fault | None = None) -> Iterator[Points]:
    """Within it, the points of every write are counted, and the fault happens at its own."""
    points = Points(fault)
    # Without syncs: they matter when the power fails, and a killed process leaves the system's cache as it is.
    with mock.patch("topshelf.files.step", points.step), mock.patch("os.fsync"):
        yield points


def cut_temporaries(path: Path) -> None:
    """Leave the first half of what has been written beside ``path``, as a crash in the middle of a write does."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        if temporary.is_file():
            os.truncate(temporary, temporary.stat().st_size // 2)


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders below a folder; there are none when the next command has swept them."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*") if path.suffix in (".tmp", ".old"))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes; locks and leftovers do not count."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        str(inner): path.read_bytes()
        for inner, path in paths.items()
        if not any(part.startswith(".") for part in inner.parts)
    }
