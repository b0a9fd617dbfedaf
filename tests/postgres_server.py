"""A PostgreSQL server of the tests' own, on loopback, or the one that TOPSHELF_TEST_POSTGRES names."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER = "postgres"


@contextmanager
def running() -> Iterator[str]:
    """The url of a server; skips the test, with the reason, where there cannot be one."""
    if given := os.environ.get("TOPSHELF_TEST_POSTGRES"):
        yield given
        return
    programs = _programs()
    if os.geteuid() == 0 and not _has_user():
        pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        data, port = Path(folder) / "data", _free_port()
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:  # the server refuses to run as root
            for path in (Path(folder), data):
                shutil.chown(path, USER)
        _run(programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -c unix_socket_directories={folder}"
        _run(programs / "pg_ctl", "-D", data, "-w", "-o", options, "-l", data / "log", "start")
        try:
            yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
        finally:
            _run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _programs() -> Path:
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    for path in (shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)):
        if path is not None:
            return Path(path).parent
    pytest.skip("initdb and pg_ctl of PostgreSQL are not here, and TOPSHELF_TEST_POSTGRES names no server")


def _has_user() -> bool:
    try:
        return bool(pwd.getpwnam(USER))
    except KeyError:
        return False


def _run(program: Path, *arguments: Any) -> None:
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    if os.geteuid() == 0:
        options |= {"user": USER, "group": USER}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, timeout=120, cwd="/", check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
