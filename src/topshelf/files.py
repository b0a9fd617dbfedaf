"""Atomic writes, folders with one owner, and cleaning up after killed processes.

Every output goes through :func:`write`, :func:`new_folder` or :func:`append`. Downloads, which are resumed in place,
and a study's SQLite database are the exceptions. A file is written under a temporary name in the same folder,
which says which process writes it, then synced to disk and moved into place. If that process is killed, the next one
that writes to the same path removes the temporary file.

``step`` is called wherever a crash would leave another state on disk. It does nothing; ``tests/faults`` replaces it to
kill the process, or to fill the disk, at each of these points.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from topshelf.errors import CheckpointError, ConfigError

LOCK = ".lock"
_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d*)-\d+\.(?P<kind>tmp|old)"
)
_NUMBERS = itertools.count()  # so that threads do not share a temporary file
_DAY = 24 * 3600  # seconds after which leftovers of another machine are removed too
_SEAL = "checksum"
_FAILURES = (OSError, pl.exceptions.PolarsError, SafetensorError)


def step(what: str, path: Path) -> None:
    """A point between two changes on disk, named for the tests: ``write``, ``sync``, ``move``, ``done``."""


def write(path: str | Path, content: Callable[[Path], object]) -> None:
    """Call ``content(temporary)``, sync the file and move it into place; when that fails, the old file is kept."""
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary, is_moved = _beside(path), False
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot write {path}: the folder {path.parent} does not exist; make it first")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"cannot write {path}: it must be a file, or a new name; choose another")
    try:
        sweep(path.parent, path.name)
        step("write", path)
        temporary.touch(exist_ok=False)
        mode = (path if path.exists() else temporary).stat().st_mode  # an old file's rights, or those of a new one
        content(temporary)
        step("sync", path)
        _sync(temporary)
        temporary.chmod(stat.S_IMODE(mode))  # safetensors writes for the owner alone
        step("move", path)
        temporary.replace(path)
        is_moved = True
        step("done", path)
        _sync(path.parent)
    except _FAILURES as error:
        kept = "the file that was there before is kept" if path.exists() else "nothing was written"
        if is_moved:
            kept = "the new file is there, but a power failure may undo it"
        raise CheckpointError(f"cannot write {_final(path)}: {error}; {kept}{_remedy(error)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    write(path, lambda file: file.write_bytes(content))


def append(path: Path, text: str) -> None:
    """Add a line to a log. A crash can cut the line, never an earlier one."""
    try:
        step("write", path)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        step("done", path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}; the last checkpoint is kept") from error


def write_sealed(path: str | Path, content: dict[str, Any]) -> None:
    """Write JSON with a checksum, so that a damaged or edited file is noticed."""
    write_text(path, json.dumps(sealed(content), indent=2) + "\n")


def read_sealed(path: Path, *, is_always_sealed: bool = False) -> dict[str, Any]:
    """Read and check what :func:`write_sealed` wrote.

    A file without a checksum, of an earlier version, is accepted unless ``is_always_sealed``.
    """
    content = read_json(path)
    if is_always_sealed and _SEAL not in content:
        raise CheckpointError(f"{path} is damaged, or was edited: it has no checksum")
    if content.get(_SEAL) is not None and not is_intact(content):
        raise CheckpointError(f"{path} is damaged, or was edited: its checksum does not match its content")
    return {name: value for name, value in content.items() if name != _SEAL}


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    text = json.dumps(content, sort_keys=True)
    return {**content, _SEAL: hashlib.sha256(text.encode()).hexdigest()[:16]}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Whether the result of :func:`sealed` is unchanged."""
    return content.get(_SEAL) == sealed({key: content[key] for key in content if key != _SEAL})[_SEAL]


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; anything else is a :class:`CheckpointError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it cannot be read as JSON ({reason(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it must hold a JSON object, got {type(content).__name__}")
    return content


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}") from None


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, moved to ``path`` when the block ends without an error; a crash leaves nothing there.

    What is at ``path`` must be an empty folder or nothing, unless ``replace`` is given.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and path.samefile("."):  # a shell would be left in a deleted folder
        raise ConfigError(
            f"--out must not be the current folder ({path}), which is replaced whole; name a folder in it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        fresh = _beside(path)
        step("write", path)
        fresh.mkdir()
    except OSError as error:
        raise CheckpointError(f"cannot make the folder {path}: {reason(error)}; choose another --out") from None
    try:
        yield fresh
        step("sync", path)
        _sync(fresh)
        _move_folder(fresh, path, replace)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise ConfigError(f"{path} is not empty; choose another --out, or delete what is there") from None
        raise CheckpointError(f"cannot write {path}: {reason(error)}{_remedy(error)}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _move_folder(fresh: Path, path: Path, replace: bool) -> None:
    old = _beside(path, "old") if replace and path.exists() else None
    if old is not None:
        step("replace", path)
        path.rename(old)
    try:
        step("move", path)
        fresh.rename(path)  # onto an empty folder at most: the system refuses any other
    except BaseException:  # Ctrl-C too
        if old is not None:
            old.rename(path)
        raise
    try:
        step("done", path)
        _sync(path.parent)
    finally:
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two processes never write to one run. The lock of a killed process is free."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{folder} is in use: another process is writing to it. Wait until it ends, or choose another --out"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {reason(error)}; choose another --out") from None
    try:
        for path in sorted(folder.iterdir()):
            # The lock's last holder has ended. Lists and reports are written without the lock, so keep live ones.
            writer = _TEMPORARY.fullmatch(path.name)
            if writer and is_running(writer["machine"], int(writer["pid"]), writer["started"]) is not True:
                _remove(path)
        yield
    finally:
        lock.release()


@contextmanager
def claimed(path: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Hold one piece of the work that several processes share, by its lock file; False if another process has it.

    The lock of a killed process is free. ``wait``: seconds, -1 for as long as it takes.
    """
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire(poll_interval=0.02)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise CheckpointError(f"cannot write to {path.parent}: {reason(error)}; choose another --out") from None
    try:
        yield True
    finally:
        lock.release()


def is_free(folder: Path) -> bool:
    """Whether the path is unused: nothing there, or an empty folder."""
    if not folder.exists():
        return not folder.is_symlink()
    # A lock and the leftovers of a killed process do not count as content.
    return folder.is_dir() and all(path.name == LOCK or _TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def restore(path: Path) -> None:
    """Move back a folder that was being replaced when its process was killed; for readers of a missing path."""
    sweep(path.parent, path.name)


def sweep(parent: Path, name: str) -> None:
    """Remove the leftovers of killed processes for a file or folder; a folder that was moved away is moved back."""
    try:
        left = [(path, writer) for path in parent.iterdir() if (writer := _TEMPORARY.fullmatch(path.name))]
    except (OSError, ValueError):  # ValueError: no name of a folder, such as one with a zero byte
        return
    for path, writer in left:
        if writer["name"] != name or _is_alive(writer, path):
            continue
        if writer["kind"] == "old" and not (parent / name).exists():
            with suppress(OSError):  # a disk that cannot be written keeps it for later
                path.rename(parent / name)
        else:
            _remove(path)


def this_process() -> tuple[str, int, str]:
    """The machine, the id of this process, and its start time: enough to see later whether it still runs."""
    return _machine(), os.getpid(), started(os.getpid()) or ""


def is_running(machine: str, pid: int, began: str) -> bool | None:
    """Whether that process still runs; None if it is another machine's, or this system cannot tell."""
    if os.name != "posix" or machine != _machine():
        return None
    try:
        os.kill(pid, 0)  # asks whether it is there; sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return began == (started(pid) or "")


def started(pid: int) -> str | None:
    """The start time of a process, in the system's units; None where it is not known."""
    try:
        # After the name, which is in parentheses and may contain anything, the start time is the 20th number.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@cache
def _machine() -> str:
    """A short name of the machine; on Linux also of the namespace of its process ids (containers)."""
    namespace = Path("/proc/self/ns/pid")
    inode = namespace.stat().st_ino if namespace.exists() else ""
    return f"{zlib.crc32(f'{socket.gethostname()}/{inode}'.encode()):08x}"


def _beside(path: Path, kind: str = "tmp") -> Path:
    machine, pid, began = this_process()
    return path.with_name(f".{path.name}.{machine}-{pid}-{began}-{next(_NUMBERS)}.{kind}")


def _final(path: Path) -> Path:
    """Where a file of a folder that is being made will be, for messages."""
    return Path(*((match["name"] if (match := _TEMPORARY.fullmatch(part)) else part) for part in path.parts))


def _is_alive(writer: re.Match[str], path: Path) -> bool:
    running = is_running(writer["machine"], int(writer["pid"]), writer["started"])
    if running is not None:
        return running
    try:
        return time.time() - path.lstat().st_mtime < _DAY
    except OSError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    """So that a file, or a move in a folder, survives a power failure. Only POSIX systems sync folders."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remedy(error: BaseException) -> str:
    is_space = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
    return ". Free some space or choose another place" if is_space else ". Choose another place"


def reason(error: BaseException) -> str:
    """The first line of an error, for a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
