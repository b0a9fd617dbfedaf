"""Unpacking gzip files and members of zips, in memory and no further than memory allows."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from topshelf.data.memory import Allowance
from topshelf.errors import DataError

CHUNK = 1 << 20
PACKED_CHUNK = 1 << 16
MEMBER_LIMIT = 1 << 30  # bytes unpacked; the largest known file, the paper's Book, has about 50 MB
# Everything that damaged, encrypted or crafted archives make the standard library raise.
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError, struct.error)


def gunzip(path: Path) -> bytes:
    """The content of a gzip file."""
    try:
        with path.open("rb") as file:
            return _collected(_members(file), Allowance(str(path), path.stat().st_size))
    except (zlib.error, EOFError, OSError) as error:
        raise DataError(
            f"{path} cannot be opened: {error or 'it is cut off'}. It is damaged; fetch it again."
        ) from error


def _collected(parts: Iterable[bytes], allowance: Allowance) -> bytes:
    """The parts as one, as far as they fit into memory."""
    content = io.BytesIO()  # not a list of parts: to join them takes the memory twice
    for part in parts:
        allowance.take(len(part), part.count(b"\n"))
        content.write(part)
    return content.getvalue()


def _members(file: BinaryIO) -> Iterator[bytes]:
    """Pieces of the content of all members, one after the other, none larger than CHUNK."""
    packed = file.read(PACKED_CHUNK)
    while packed:
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            if not packed and not (packed := file.read(PACKED_CHUNK)):
                raise EOFError("it is cut off")
            yield unpacker.decompress(packed, CHUNK)
            packed = unpacker.unconsumed_tail
        packed = unpacker.unused_data.lstrip(b"\0")  # some programs pad with zeros
        while not packed and (more := file.read(PACKED_CHUNK)):
            packed = more.lstrip(b"\0")


def open_zip(path: Path) -> zipfile.ZipFile:
    """A zip file, or a reason why it is none."""
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} cannot be opened: {error}.") from error
    except DAMAGE as error:
        raise DataError(f"{path} is not a sound zip file: {error}. Fetch it again.") from error


def member_bytes(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """One member by its exact name, or None; nothing is unpacked to disk, and its header is not believed."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        return None
    where = f"{archive.filename}: {name}"
    if info.file_size > MEMBER_LIMIT:
        raise DataError(f"{where} must be <= {MEMBER_LIMIT} bytes unpacked, got {info.file_size}.")
    allowance = Allowance(where, info.compress_size)
    try:
        with archive.open(info) as file:
            return _collected(iter(lambda: file.read(CHUNK), b""), allowance)
    except DAMAGE as error:  # encrypted, cut off, damaged, or an unknown compression
        raise DataError(f"{where} cannot be unpacked: {error or type(error).__name__}. Fetch it again.") from error
