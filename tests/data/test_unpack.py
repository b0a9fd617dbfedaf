"""Packed files: damaged ones say so, and none may fill the memory."""

from __future__ import annotations

import gzip
import io
import os
import resource
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import polars as pl
import pytest

from topshelf.data import load_split, memory, read, read_interactions, readers, unpack
from topshelf.data.given import read_given
from topshelf.errors import DataError

TEXT = b"user,item,rating\n" + b"".join(b"%d,%d,3\n" % (row, row % 97) for row in range(3_000))
BOMB = b"user,item\n" + b"1,2\n" * 400_000  # 1.6 MB, and 40 MB as a table


def zipped(method: int = zipfile.ZIP_DEFLATED, train: bytes = b"user\titem\n0\t0\n0\t1\n") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("train.tsv", train)
        archive.writestr("test.tsv", "user\titem\n0\t2\n")
    return file.getvalue()


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10_000_000)


def test_a_gz_that_grows_too_large_is_refused(tmp_path, little_memory):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(BOMB))
    assert path.stat().st_size < 20_000
    with pytest.raises(
        DataError, match=r"bomb.csv.gz does not fit into memory: its .* kB unpack to .* MB or more .*10.0 MB are"
    ):
        read(path)


def test_a_zip_that_grows_too_large_is_refused(tmp_path, little_memory):
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        (tmp_path / "bomb.zip").write_bytes(zipped(method, BOMB.replace(b",", b"\t")))
        with pytest.raises(DataError, match=r"bomb.zip: train.tsv does not fit into memory.*10.0 MB are free"):
            load_split(tmp_path / "bomb.zip")


def test_a_parquet_with_too_many_rows_is_refused(tmp_path, little_memory):
    pl.DataFrame({"user": pl.repeat(1, 200_000, eager=True), "item": pl.repeat(1, 200_000, eager=True)}).write_parquet(
        tmp_path / "bomb.parquet"
    )
    assert (tmp_path / "bomb.parquet").stat().st_size < 20_000
    with pytest.raises(DataError, match=r"bomb.parquet does not fit into memory: it holds 200,000 rows"):
        read(tmp_path / "bomb.parquet")


def test_the_size_in_a_zips_header_is_not_believed(tmp_path, little_memory):
    raw = bytearray(zipped(train=BOMB.replace(b",", b"\t")))
    size = len(BOMB).to_bytes(4, "little")
    for _ in range(2):  # in the local header and in the directory
        place = raw.find(size)
        raw[place : place + 4] = (20).to_bytes(4, "little")
    (tmp_path / "liar.zip").write_bytes(raw)
    with pytest.raises(DataError, match=r"liar.zip: train.tsv cannot be unpacked: Bad CRC"):
        load_split(tmp_path / "liar.zip")


@pytest.mark.slow
def test_3_mb_that_unpack_to_3_gb_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1_000_000_000)
    pack = zlib.compressobj(9, wbits=31)
    with (tmp_path / "bomb.csv.gz").open("wb") as file:
        file.write(pack.compress(b"user,item\n"))
        for _ in range(750):
            file.write(pack.compress(b"1,2\n" * 1_000_000))
        file.write(pack.flush())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="does not fit into memory"):
        read(tmp_path / "bomb.csv.gz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_members_of_a_gz_are_read_one_after_the_other(tmp_path):
    parts = [TEXT[:1_000], TEXT[1_000:1_001], TEXT[1_001:]]
    (tmp_path / "parts.csv.gz").write_bytes(b"".join(map(gzip.compress, parts)) + bytes(512))  # padded, as tapes are
    (tmp_path / "plain.csv").write_bytes(TEXT)
    assert read(tmp_path / "parts.csv.gz").equals(read(tmp_path / "plain.csv"))


DAMAGED_GZ = {
    "cut off": gzip.compress(TEXT)[:-100],
    "no end": gzip.compress(TEXT)[:-4],
    "wrong checksum": gzip.compress(TEXT)[:-8] + bytes(8),
    "wrong bytes": gzip.compress(TEXT)[:60] + b"\xff" * 40 + gzip.compress(TEXT)[100:],
    "garbage behind": gzip.compress(TEXT) + b"garbage",
    "no gzip": b"user,item\n1,2\n",
    "empty": b"",
}


@pytest.mark.parametrize("name", DAMAGED_GZ)
def test_a_damaged_gz_is_refused(name, tmp_path):
    (tmp_path / "f.csv.gz").write_bytes(DAMAGED_GZ[name])
    with pytest.raises(DataError, match=r"f.csv.gz (cannot be opened: .*damaged|is empty)"):
        read(tmp_path / "f.csv.gz")


def encrypted() -> bytes:
    raw = bytearray(zipped())
    raw[6] |= 1  # of the first local header
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    return bytes(raw)


def unknown_method() -> bytes:
    raw = bytearray(zipped())
    raw[8] = raw[raw.find(b"PK\x01\x02") + 10] = 99
    return bytes(raw)


def damaged(method: int) -> bytes:
    raw = bytearray(zipped(method, TEXT.replace(b",", b"\t")))
    raw[60:90] = b"\xff" * 30
    return bytes(raw)


@pytest.mark.parametrize(
    "raw",
    [
        encrypted(),
        unknown_method(),
        *(damaged(method) for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
        zipped()[:-10],
        zipped()[10:],
    ],
    ids=["encrypted", "unknown method", "deflate", "bzip2", "lzma", "no end", "no start"],
)
def test_a_damaged_zip_is_refused(raw, tmp_path):
    (tmp_path / "f.zip").write_bytes(raw)
    with pytest.raises(DataError, match=r"f.zip(: train.tsv cannot be unpacked| is not a sound zip)"):
        read_given(tmp_path / "f.zip")


def test_sound_zips_of_every_method_are_read(tmp_path):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        (tmp_path / "f.zip").write_bytes(zipped(method))
        with zipfile.ZipFile(tmp_path / "f.zip") as archive:
            assert {member.compress_type for member in archive.infolist()} == {method}
        assert len(read_given(tmp_path / "f.zip").train) == 2


def test_the_free_memory_is_measured(monkeypatch):
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.available() <= pages
    files = {"/proc/meminfo": ["MemTotal: 9", "MemAvailable: 5000 kB"], "/proc/self/cgroup": ["0::/box"]}
    files |= {"/sys/fs/cgroup/box/memory.max": ["4000000"], "/sys/fs/cgroup/box/memory.current": ["1500000"]}
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(str(Path(path)), []))
    assert memory.available() == 2_500_000
    files["/sys/fs/cgroup/box/memory.max"] = ["max"]
    assert memory.available() == 5_000 << 10
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000_000, 1_000_000))
    assert memory.available() == 1_000_000


V2 = ("", "memory.max", "memory.current", "")
V1 = ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


@pytest.mark.parametrize("version", [V2, V1], ids=["v2", "v1"])
def test_files_that_the_kernel_keeps_are_free_memory(version, monkeypatch):
    kind, limit, usage, total = version
    box = f"/sys/fs/cgroup/{kind}outer/inner"
    files = {"/proc/meminfo": ["MemAvailable: 9000 kB"], "/proc/self/cgroup": ["0::/outer/inner"]}
    files |= {f"{box}/{limit}": ["4000000"], f"{box}/{usage}": ["3900000"]}
    stat = ["anon 500000", f"{total}inactive_file 3000000", f"{total}active_file 200000", "file 9", "odd", "a b c"]
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(str(Path(path)), []))
    assert memory.available() == 100_000
    files[f"{box}/memory.stat"] = stat
    assert memory.available() == 3_300_000
    outer = f"/sys/fs/cgroup/{kind}outer"
    files |= {f"{outer}/{limit}": ["5000000"], f"{outer}/{usage}": ["4000000"]}  # shared with other groups
    assert memory.available() == 1_000_000
    files[f"{outer}/memory.stat"] = stat
    assert memory.available() == 3_300_000


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_unpacking_takes_the_memory_of_the_content_once(kind, tmp_path):
    text, path = BOMB * 20, tmp_path / f"f.{kind}"
    path.write_bytes(gzip.compress(text, 1) if kind == "gz" else zipped(train=text))
    tracemalloc.start()
    try:
        if kind == "gz":
            content = unpack.gunzip(path)
        else:
            with unpack.open_zip(path) as archive:
                content = unpack.member_bytes(archive, "train.tsv")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert content == text
    assert peak < 1.4 * len(text)


def test_files_of_a_split_are_unpacked_once(tmp_path, monkeypatch):
    paths = [tmp_path / f"{name}.csv.gz" for name in ("train", "test")]
    for path in paths:
        path.write_bytes(gzip.compress(TEXT))
    unpacked = []
    monkeypatch.setattr(readers, "gunzip", lambda path: unpacked.append(path) or unpack.gunzip(path))
    tables = readers.read_alike(paths)
    assert [len(table.frame) for table in tables] == [3_000, 3_000]
    assert unpacked == paths


def test_pieces_stay_small_while_unpacking(tmp_path, monkeypatch):
    sizes = []
    take = memory.Allowance.take

    def watch(allowance, n_bytes, n_rows):
        sizes.append(n_bytes)
        take(allowance, n_bytes, n_rows)

    monkeypatch.setattr(unpack.Allowance, "take", watch)
    (tmp_path / "f.csv.gz").write_bytes(gzip.compress(BOMB))
    assert len(read_interactions(tmp_path / "f.csv.gz")) == 1
    assert max(sizes) <= unpack.CHUNK
    assert sum(sizes) == len(BOMB)
