"""Fetching files: resumed when cut off, checked before use, and never half there."""

from __future__ import annotations

import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from topshelf.errors import DataError

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30
PIP_TIMEOUT_SECONDS = 180


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
    if sha256 is not None and (got := _digest(path)) != sha256:
        raise DataError(f"{path} must have sha256 {sha256}, got {got}. Delete it and fetch it again.")
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: Path, sha256: str | None = None) -> Path:
    """Fetch ``url`` to ``target``: a cut-off ``.part`` file is resumed, a wrong checksum leaves nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        _fetch(url, part)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(
            f"cannot fetch {url}: {getattr(error, 'reason', None) or error}. "
            f"Run again to go on where it stopped, or fetch the file by hand and put it at {target}, "
            "or into a folder named by TOPSHELF_DATA."
        ) from error
    if sha256 is not None and (got := _digest(part)) != sha256:
        part.unlink()
        raise DataError(f"{url} must have sha256 {sha256}, got {got}. The file was not kept; try again later.")
    return part.replace(target)


def _fetch(url: str, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # nothing is missing; the checksum decides
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # the server sends everything again
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if start else "wb") as file, _progress(part.stem, start, total) as progress:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                progress.advance(progress.task_ids[0], len(chunk))
    if total is not None and part.stat().st_size != total:
        raise OSError(f"connection lost after {part.stat().st_size} of {total} bytes")


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
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, requirement, "-d", place]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"cannot fetch {requirement} from the package registry: {error}.") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise DataError(
                f"cannot fetch {requirement} from the package registry: {reason} "
                f"Fetch the wheel by hand and put it at {target}."
            )
        verify(Path(place) / file_name, sha256).replace(target)
    return target
