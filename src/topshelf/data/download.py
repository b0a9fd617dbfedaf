"""Fetching files: resumed when cut off, checked before they are kept, and never half there."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from topshelf.errors import DataError
from topshelf.files import digest
from topshelf.terminal import BarColumn, Console, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30
PIP_TIMEOUT_SECONDS = 180
LIMIT_BYTES = 1 << 33  # of a file whose length the server does not say
PIP_FOLDER = ".pip-"  # names of folders that pip fetches into

Check = Callable[[Path], None]


def cache_folder() -> Path:
    """``TOPSHELF_CACHE``, or ``topshelf`` in the platform's folder for caches."""
    if chosen := os.environ.get("TOPSHELF_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "topshelf"


def verify(path: Path, sha256: str | None) -> Path:
    """Refuse a file whose checksum is known and different."""
    if sha256 is not None and (got := digest(path)) != sha256:
        raise DataError(f"{path} must have sha256 {sha256}, got {got}. Delete it and fetch it again.")
    return path


def download(url: str, target: Path, sha256: str | None = None, *, check: Check | None = None) -> Path:
    """Fetch ``url`` to ``target``; what is not whole and right is not kept.

    A download that was cut off is resumed if the file behind the address is still the same. ``check`` looks at the
    fetched file and raises a DataError if it is not what it should be. Of several processes that want the same file
    one fetches it and the others wait.
    """
    try:
        with _alone(target):
            if target.is_file():  # another process was first
                return verify(target, sha256)
            part = PartialFile.of(url, target)
            if part.mark is None and sha256 is None:
                part.drop()  # nothing would show that its two halves are of different versions
            _fetch(part)
            _check(part, sha256, check)
            return part.keep()
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(
            f"cannot fetch {url}: {getattr(error, 'reason', None) or error}. "
            f"Run again to continue, or fetch the file by hand and put it at {target}, "
            "or into a folder named by TOPSHELF_DATA."
        ) from error


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the lock of a file that is to be fetched. It is deleted with success, for then it guards nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    with FileLock(lock):
        yield
        with suppress(OSError):  # Windows deletes no open files
            lock.unlink()


@dataclass
class PartialFile:
    """The beginning of a file, beside a note on what it is the beginning of."""

    url: str
    path: Path
    target: Path
    mark: str | None = None  # a strong ETag of the server
    total: int | None = None

    @classmethod
    def of(cls, url: str, target: Path) -> PartialFile:
        """What an earlier download of the same address left, or nothing; other remains are deleted."""
        part = cls(url, target.with_name(f"{target.name}.part"), target)
        try:
            known = json.loads(part.note.read_text(encoding="utf-8"))
            part.mark, part.total = known["mark"], known["total"]
            is_same = known["url"] == url and isinstance(part.mark, str | None) and isinstance(part.total, int | None)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            is_same = False
        if not is_same or not part.path.is_file():
            part.drop()
        return part

    @property
    def note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def begin(self, mark: str | None, total: int | None) -> None:
        """Forget what is there, and note what comes."""
        self.drop()
        self.mark, self.total = mark, total
        self.note.write_text(json.dumps({"url": self.url, "mark": mark, "total": total}), encoding="utf-8")

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.mark = self.total = None

    def keep(self) -> Path:
        _move(self.path, self.target)
        self.note.unlink(missing_ok=True)
        return self.target


def _move(path: Path, target: Path) -> None:
    """Move a file into place once all of it is on disk, so that a loss of power leaves no empty file there."""
    with path.open("rb+") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())
    path.replace(target)


def _check(part: PartialFile, sha256: str | None, check: Check | None) -> None:
    try:
        if sha256 is not None and (got := digest(part.path)) != sha256:
            raise DataError(f"{part.url} must have sha256 {sha256}, got {got}.")
        if check is not None:
            check(part.path)
    except DataError as error:
        part.drop()
        raise DataError(f"{error} What {part.url} sent was not kept; try again later.") from None


def _fetch(part: PartialFile) -> None:
    start = part.size
    headers = {} if not start else {"Range": f"bytes={start}-", **({"If-Range": part.mark} if part.mark else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(part.url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if _content_range(error.headers) == (None, start):
            return  # nothing is missing; the checks decide
        part.drop()
        _fetch(part)
        return
    with response:
        _receive(response, part, start)


def _receive(response: http.client.HTTPResponse, part: PartialFile, start: int) -> None:
    expected = _expected(response, part, start)
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        start = 0  # the server sends everything again
        mark = response.headers.get("ETag")
        part.begin(mark if mark and not mark.startswith("W/") else None, expected)
    received = start
    with part.path.open("ab") as file, _progress(part.target.name, start, expected) as progress:
        while chunk := response.read(CHUNK):
            received += len(chunk)
            if received > (LIMIT_BYTES if expected is None else expected):
                part.drop()
                raise OSError(f"the server sent more than the {expected or LIMIT_BYTES} bytes it should")
            file.write(chunk)
            progress.advance(progress.task_ids[0], len(chunk))
    if expected is not None and received != expected:
        raise OSError(f"connection lost after {received} of {expected} bytes")


def _expected(response: http.client.HTTPResponse, part: PartialFile, start: int) -> int | None:
    """Length of the whole file by what the server says; what does not fit together is refused."""
    length = response.headers.get("Content-Length")
    n_bytes = int(length) if length and length.isdecimal() else None
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise OSError(f"the server packed the file ({response.headers['Content-Encoding']}), which was not asked for")
    if response.status == http.HTTPStatus.OK:
        return n_bytes
    first, total = _content_range(response.headers)
    is_sound = response.status == http.HTTPStatus.PARTIAL_CONTENT and first == start > 0 and total is not None
    if is_sound and total == (part.total or total) and n_bytes in (None, total - start):  # type: ignore[operator]
        return total
    part.drop()
    raise OSError(
        f"the server answered {response.status} with Content-Range {response.headers.get('Content-Range')!r} and "
        f"Content-Length {length!r} where bytes {start} to the end were asked for"
    )


def _content_range(headers: Any) -> tuple[int | None, int | None]:
    """First byte and total of a range that goes to the end, such as ``bytes 100-199/200`` or ``bytes */200``."""
    match = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\d+)", (headers.get("Content-Range") or "").strip())
    if match is None:
        return None, None
    first, last, total = (None if group is None else int(group) for group in match.groups())
    return (None, None) if last is not None and last + 1 != total else (first, total)


@contextmanager
def _progress(name: str, start: int, total: int | None) -> Iterator[Progress]:
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        progress.add_task(name, completed=start, total=total)
        yield progress


def fetch_wheel(requirement: str, file_name: str, sha256: str, folder: Path) -> Path:
    """Fetch one wheel from the package registry with pip, without installing it."""
    target = folder / file_name
    if target.is_file():
        return verify(target, sha256)
    try:
        with _alone(target):
            for left in folder.glob(f"{PIP_FOLDER}*"):  # of a process that was killed: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            return verify(target, sha256) if target.is_file() else _pip_download(requirement, target, sha256)
    except OSError as error:
        raise DataError(f"cannot fetch {requirement} from the package registry into {folder}: {error}.") from error


def _pip_download(requirement: str, target: Path, sha256: str) -> Path:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=PIP_FOLDER) as place:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, requirement, "-d", place]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise DataError(f"cannot fetch {requirement} from the package registry: {error}.") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise DataError(
                f"cannot fetch {requirement} from the package registry: {reason} "
                f"Fetch the wheel by hand and put it at {target}."
            )
        _move(verify(Path(place) / target.name, sha256), target)
    return target
