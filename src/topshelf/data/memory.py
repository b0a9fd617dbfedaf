"""How much memory a file may take: what is unpacked is bounded by what is free."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from topshelf.errors import DataError

SHARE = 0.8  # of the free memory; the rest is for everything else
ROW_BYTES = 100  # of a row on its way to Interactions, beside its text: 76 with two columns, 114 with four, as measured
ASSUMED_FREE = 4 << 30  # taken as free where the system does not say


def available() -> int:
    """Bytes that this process may still take: free memory, and the limits of its container and its shell."""
    limits = [_free(), *_container_limits(), _address_space()]
    return max(0, min(value for value in limits if value is not None))


def _free() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    try:  # macOS and others: all of it, half of which may be in use
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return ASSUMED_FREE


def _container_limits() -> list[int]:
    """What is left below the limits of control groups, of both versions, and of the groups around them."""
    own = [line.split(":", 2)[2].strip("/") for line in _lines("/proc/self/cgroup") if line.count(":") >= 2]
    groups = {str(group) for name in own for group in (Path(name), *Path(name).parents)} | {"."}
    versions = (
        ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    )
    left = []
    for kind, limit, usage, cached in versions:
        for group in groups:
            folder = Path("/sys/fs/cgroup") / kind / group
            most, used = (_number(folder / file) for file in (limit, usage))
            if most is not None and used is not None:
                left.append(most - max(0, used - _cache(folder, cached)))
    return left


def _cache(folder: Path, kinds: tuple[str, ...]) -> int:
    """Bytes of files that the kernel keeps in memory for a group, and gives up when memory is needed."""
    counts = (line.split() for line in _lines(str(folder / "memory.stat")))
    return sum(int(count[1]) for count in counts if len(count) == 2 and count[0] in kinds and count[1].isdigit())


def _address_space() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return None
    pages = next(iter(_lines("/proc/self/statm")), "0").split()[0]
    return most - int(pages) * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int | None:
    text = next(iter(_lines(str(path))), "")
    return int(text) if text.strip().isdigit() else None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


class Allowance:
    """Counts what is unpacked from one file, and refuses it when it would not fit into memory."""

    def __init__(self, source: str, packed: int | None = None, *, row_bytes: int = ROW_BYTES) -> None:
        self.source, self.packed, self.row_bytes = source, packed, row_bytes
        self.free = available()
        self.n_bytes = self.n_rows = 0

    def take(self, n_bytes: int, n_rows: int) -> None:
        """Count some more bytes and rows."""
        self.n_bytes, self.n_rows = self.n_bytes + n_bytes, self.n_rows + n_rows
        needed = self.n_bytes + self.row_bytes * self.n_rows
        if needed > SHARE * self.free:
            raise DataError(
                f"{self.source} does not fit into memory: {self._size()}, which needs at least {size(needed)}, and "
                f"{size(self.free)} are free. Use a machine with more memory or fewer rows{self._remedy()}; if the "
                "file should be small, it is damaged or made to fill the memory."
            )

    def _remedy(self) -> str:
        if self.packed is not None or self.row_bytes < ROW_BYTES:
            return ""
        return f", or prepare it first: topshelf data prepare {self.source} --mapped --out FOLDER"

    def _size(self) -> str:
        rows = f"{self.n_rows:,} rows"
        if self.packed is None:
            return f"it holds {rows}"
        return f"its {size(self.packed)} unpack to {size(self.n_bytes)} or more and {rows} or more"


def size(n_bytes: float) -> str:
    """A number of bytes, in the unit that suits it."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"
