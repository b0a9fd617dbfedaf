"""API keys: made once, shown once, kept as hashes, compared in constant time.

A key is ``ts_NAME_SECRET``: 8 hex digits and 32 random bytes. The file has the SHA-256 of the secret; a slow hash
would add nothing to 256 random bits. Roles: read answers queries, write also stores events, admin also changes what is
served.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limits import RateLimitItem, parse

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError, TopshelfError, one_of
from topshelf.serving.logs import log

ROLES = ("read", "write", "admin")
_LOOK = 2.0  # seconds between looks at the file, so that a removed key ends soon
_FORM = re.compile(r"ts_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_NO_DIGEST = hashlib.sha256(b"no key").hexdigest()


@dataclass(frozen=True)
class Key:
    id: str
    role: str
    name: str
    digest: str
    rate: RateLimitItem | None = None

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


# Without a file of keys, every caller on this machine is this one.
ANYBODY = Key("none", "admin", "", "")


class KeyRing:
    """The keys of a file, which is read again when it changes."""

    def __init__(self, path: str | Path, rate: str | None = None) -> None:
        self.path, self._rate = Path(path), parse_rate("limits.rate", rate)
        self._keys = self._read()
        self._stamp, self._looked = self._stamp_now(), time.monotonic()

    def find(self, text: str) -> Key | None:
        """The key of this text, or None; the time does not depend on what is wrong with it."""
        self._look()
        form = _FORM.fullmatch(text)
        id, secret = form.groups() if form else ("", text[:64])
        key = self._keys.get(id)
        digest = hashlib.sha256(secret.encode(errors="replace")).hexdigest()
        is_same = hmac.compare_digest(digest, _NO_DIGEST if key is None else key.digest)
        return key if is_same else None

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked, stamp = now, self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._keys = self._read()
            except TopshelfError:  # half written, or removed by mistake: nobody is locked out by it
                log("keys", level=logging.ERROR, result="the file of keys cannot be read; the old ones stay")

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            about = self.path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size

    def _read(self) -> dict[str, Key]:
        if not self.path.is_file():
            raise ConfigError(
                f"the file of keys {self.path} does not exist; make a key: topshelf serve-key {self.path}"
            )
        entries = files.read_sealed(self.path, is_always_sealed=True).get("keys")
        try:
            keys = [self._key(entry) for entry in entries]  # type: ignore[union-attr]
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"{self.path} is damaged: {error}; make new keys: topshelf serve-key") from None
        return {key.id: key for key in keys}

    def _key(self, entry: dict[str, Any]) -> Key:
        own = parse_rate("rate", entry.get("rate"))
        role = one_of("role", entry["role"], ROLES)
        return Key(str(entry["id"]), role, str(entry["name"]), str(entry["sha256"]), own or self._rate)


def parse_rate(name: str, rate: str | None) -> RateLimitItem | None:
    if rate is None:
        return None
    try:
        return parse(rate)
    except ValueError:
        raise ConfigError(f"{name} must be a number per time, such as 600/minute, got {rate!r}") from None


def make_key(path: str | Path, role: str, name: str = "", rate: str | None = None) -> str:
    """Add a key to a file, which is made where there is none; the key is returned, and kept nowhere."""
    path = Path(path)
    one_of("--role", role, ROLES)
    parse_rate("--rate", rate)
    id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    entry = {"id": id, "role": role, "name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()}
    _write(path, [*_entries(path), entry | ({} if rate is None else {"rate": rate})])
    return f"ts_{id}_{secret}"


def remove_key(path: str | Path, id: str) -> None:
    """Take a key out of a file, by the 8 digits after ``ts_``; a running server notices within seconds."""
    path = Path(path)
    entries = _entries(path)
    left = [entry for entry in entries if entry.get("id") != id]
    if len(left) == len(entries):
        raise ConfigError(
            f"{path} has no key {id!r}; it has {', '.join(str(one.get('id')) for one in entries) or 'none'}"
        )
    _write(path, left)


def _entries(path: Path) -> list[dict[str, Any]]:
    return list(files.read_sealed(path, is_always_sealed=True)["keys"]) if path.exists() else []


def _write(path: Path, entries: list[dict[str, Any]]) -> None:
    if not path.exists():
        path.touch(mode=0o600)
    files.write_sealed(path, {"keys": entries})
