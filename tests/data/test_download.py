"""Downloads against a server on this machine, which may lie."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topshelf.data import datasets, load_split
from topshelf.data.download import cache_folder, download, fetch_wheel, verify
from topshelf.errors import DataError

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.content``, honours ranges, and does what ``server.tricks`` say, one for each request."""

    def do_GET(self) -> None:
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        trick = server.tricks.pop(0) if server.tricks else {}
        if self.path != "/file":
            self.send_error(404)
            return
        content = trick.get("content", server.content)
        asked = self.headers.get("Range") if trick.get("ranges", True) else None
        condition = self.headers.get("If-Range")
        asked = None if condition is not None and condition != server.etag else asked
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self._send(content, start, bool(asked), trick)

    def _send(self, content: bytes, start: int, is_part: bool, trick: dict) -> None:
        start += trick.get("shift", 0)
        body = content[start:]
        headers = {"Content-Length": str(len(body)), "ETag": self.server.etag}
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers |= trick.get("headers", {})
        self.send_response(206 if is_part else 200)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: trick.get("cut", len(body))])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.content, running.etag, running.ranges, running.tricks = CONTENT, '"one"', [], []
    running.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def names(folder) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock"))


def test_a_file_arrives_whole_and_verified(server, tmp_path):
    path = download(f"{server.address}/file", tmp_path / "new" / "data.zip", SHA256)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["data.zip"]


@pytest.fixture
def cut(server, tmp_path):
    """A download that was cut off half-way."""
    server.tricks = [{"cut": 128_000}]
    with pytest.raises(DataError, match=r"cannot fetch .*connection lost after 128000 of 256000.*Run again"):
        download(f"{server.address}/file", tmp_path / "data.zip", SHA256)
    assert not (tmp_path / "data.zip").exists()
    server.ranges.clear()
    return tmp_path / "data.zip"


def test_a_cut_off_download_is_resumed(server, cut):
    download(f"{server.address}/file", cut, SHA256)
    assert cut.read_bytes() == CONTENT
    assert server.ranges == ["bytes=128000-"]
    assert names(cut.parent) == ["data.zip"]


def test_a_file_that_has_changed_since_is_fetched_anew(server, cut):
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert download(f"{server.address}/file", cut).read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"one"'])
def test_without_mark_and_checksum_two_versions_are_never_joined(etag, server, tmp_path):
    server.tricks = [{"cut": 128_000, "headers": {"ETag": etag}}]
    with pytest.raises(DataError, match=r"Run again to continue, or fetch"):
        download(f"{server.address}/file", tmp_path / "data.zip")
    server.content = CONTENT[::-1]
    assert download(f"{server.address}/file", tmp_path / "data.zip").read_bytes() == CONTENT[::-1]
    assert server.ranges == [None, None]


def test_a_checksum_allows_to_resume_without_a_mark(server, tmp_path):
    server.tricks = [{"cut": 128_000, "headers": {"ETag": None}}]
    with pytest.raises(DataError, match="connection lost"):
        download(f"{server.address}/file", tmp_path / "data.zip", SHA256)
    assert download(f"{server.address}/file", tmp_path / "data.zip", SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=128000-"]


def test_a_file_is_on_disk_before_it_is_moved_into_place(server, tmp_path, monkeypatch):
    target, synced = tmp_path / "data.zip", []
    fsync = os.fsync

    def watch(handle: int) -> None:
        synced.append((os.fstat(handle).st_size, target.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    download(f"{server.address}/file", target, SHA256)
    assert synced == [(len(CONTENT), False)]


def test_what_is_left_of_another_address_is_not_used(server, cut):
    note = cut.with_name("data.zip.part.json")
    note.write_text(note.read_text().replace("/file", "/other"))
    download(f"{server.address}/file", cut, SHA256)
    assert server.ranges == [None]


@pytest.mark.parametrize("note", ["", "[]", '{"url": 1}', "{" * 100_000, '{"url": "x", "mark": [], "total": "a"}'])
def test_a_part_without_a_sound_note_is_deleted(note, server, cut):
    cut.with_name("data.zip.part.json").write_text(note)
    assert download(f"{server.address}/file", cut, SHA256).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_server_without_ranges_starts_over(server, cut):
    server.tricks = [{"ranges": False}]
    assert download(f"{server.address}/file", cut, SHA256).read_bytes() == CONTENT


def test_a_complete_part_needs_no_second_download(server, cut):
    cut.with_name("data.zip.part").write_bytes(CONTENT)
    assert download(f"{server.address}/file", cut, SHA256).read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_fetched_anew(server, cut):
    cut.with_name("data.zip.part").write_bytes(CONTENT + b"more")
    assert download(f"{server.address}/file", cut, SHA256).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    with pytest.raises(DataError, match=f"must have sha256 {'0' * 64}, got {SHA256}.*was not kept"):
        download(f"{server.address}/file", tmp_path / "data.zip", "0" * 64)
    assert names(tmp_path) == []


WRONG_PARTS = {
    "another start": {"shift": 5},
    "another total": {"headers": {"Content-Range": "bytes 128000-299999/300000"}},
    "not to the end": {"headers": {"Content-Range": "bytes 128000-200000/256000"}},
    "no range": {"headers": {"Content-Range": None}},
    "no sense": {"headers": {"Content-Range": "lines 1-2/3"}},
    "another length": {"headers": {"Content-Length": "1000"}},
    "packed": {"headers": {"Content-Encoding": "gzip"}},
}


@pytest.mark.parametrize("trick", WRONG_PARTS)
def test_a_rest_that_does_not_fit_is_refused(trick, server, cut):
    server.tricks = [WRONG_PARTS[trick]]
    with pytest.raises(DataError, match=r"cannot fetch .*the server"):
        download(f"{server.address}/file", cut)
    assert not cut.exists()
    assert download(f"{server.address}/file", cut, SHA256).read_bytes() == CONTENT


def small_zip(items: int = 3, **changes: bytes | None) -> bytes:
    files = {"train.tsv": b"user\titem\n0\t0\n0\t1\n1\t1\n1\t2\n", "test.tsv": b"user\titem\n0\t%d\n" % (items - 1)}
    files |= {f"{name}.tsv": content for name, content in changes.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    return file.getvalue()


def flipped(content: bytes) -> bytes:
    return content[:50] + bytes([content[50] ^ 255]) + content[51:]


BODIES = {
    "a page": {"content": b"<html>Please sign in</html>"},
    "cut off without a length": {"cut": 150, "headers": {"Content-Length": None}},
    "cut off with a length of its own": {"content": small_zip()[:150]},
    "a damaged member": {"content": flipped(small_zip())},
    "another dataset": {"content": small_zip(items=9)},
    "a member too few": {"content": small_zip(test=None)},
    "nothing": {"content": b"\n"},
}


@pytest.fixture
def unverified(server, monkeypatch):
    """A named dataset whose checksum is not known, as Book's."""
    counts = {"users": 2, "items": 3, "interactions": 5, "train": None, "test": None}
    info = replace(datasets.DATASETS["amazon2014-book"], name="small", **counts, address=f"{server.address}/file")
    assert info.sha256 is None
    monkeypatch.setitem(datasets.DATASETS, "small", info)
    server.content = small_zip()
    return server


@pytest.mark.parametrize("body", BODIES)
def test_a_wrong_body_without_a_checksum_is_not_kept(body, unverified, cache):
    unverified.tricks = [BODIES[body]]
    with pytest.raises(DataError, match=r"was not kept; try again later"):
        load_split("small")
    assert names(cache) == []
    assert load_split("small").split.n_items == 3


FETCH = """
import sys
from pathlib import Path
from topshelf.data.download import download
print(download(sys.argv[1], Path(sys.argv[2]), sys.argv[3]).stat().st_size)
"""


@pytest.mark.slow
def test_two_processes_fetch_one_file_and_both_succeed(server, tmp_path):
    command = [sys.executable, "-c", FETCH, f"{server.address}/file", str(tmp_path / "data.zip"), SHA256]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == [str(len(CONTENT))] * 2
    assert server.ranges == [None]


def test_threads_fetch_one_file_and_all_succeed(server, tmp_path):
    found: list[bytes] = []

    def fetch() -> None:
        found.append(download(f"{server.address}/file", tmp_path / "data.zip", SHA256).read_bytes())

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 8
    assert names(tmp_path) == ["data.zip"]


def test_a_missing_page_names_the_address_and_the_ways_out(server, tmp_path):
    with pytest.raises(
        DataError, match=r"cannot fetch http://127.0.0.1:\d+/none: .*put it at .*data.zip.*TOPSHELF_DATA"
    ):
        download(f"{server.address}/none", tmp_path / "data.zip")


def test_being_offline_is_told_the_same_way(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DataError, match=r"cannot fetch http://127.0.0.1:1/file: .*TOPSHELF_DATA"):
        download("http://127.0.0.1:1/file", tmp_path / "data.zip")


def test_a_changed_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(DataError, match=r"must have sha256 abc, got 2d711642"):
        verify(tmp_path / "file", "abc")
    assert verify(tmp_path / "file", None) == tmp_path / "file"


def test_the_cache_follows_its_variable_and_then_the_platform(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TOPSHELF_CACHE")
    assert cache_folder().name == "topshelf"


def test_a_wheel_that_does_not_exist_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / ".pip-killed").mkdir()  # of a process that was killed
    with pytest.raises(DataError, match=r"cannot fetch recbole==0.0.0 from the package registry.*put it at"):
        fetch_wheel("recbole==0.0.0", "recbole.whl", "0" * 64, tmp_path)
    assert names(tmp_path) == []


def test_the_note_beside_a_part_says_what_it_is_of(server, cut):
    known = json.loads(cut.with_name("data.zip.part.json").read_text())
    assert known == {"url": f"{server.address}/file", "mark": '"one"', "total": 256_000}
