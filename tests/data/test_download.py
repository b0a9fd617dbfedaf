"""Downloads against a server on this machine."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topshelf.data.download import cache_folder, download, fetch_wheel, verify
from topshelf.errors import DataError

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT at /file, honours ranges, and hangs up half-way at /cut."""

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers.get("Range"))
        if self.path not in ("/file", "/cut", "/whole"):
            self.send_error(404)
            return
        asked = self.headers.get("Range") if self.path != "/whole" else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.ranges = []
    running.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def test_a_file_arrives_whole_and_verified(server, tmp_path):
    path = download(f"{server.address}/file", tmp_path / "new" / "data.zip", SHA256)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["data.zip"]


def test_a_cut_off_download_is_resumed(server, tmp_path):
    target = tmp_path / "data.zip"
    with pytest.raises(DataError, match=r"cannot fetch .*connection lost after 128000 of 256000.*Run again"):
        download(f"{server.address}/cut", target, SHA256)
    assert not target.exists()
    download(f"{server.address}/file", target, SHA256)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=128000-"]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(b"old")
    assert download(f"{server.address}/whole", tmp_path / "data.zip", SHA256).read_bytes() == CONTENT


def test_a_complete_part_needs_no_second_download(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(CONTENT)
    assert download(f"{server.address}/file", tmp_path / "data.zip", SHA256).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    with pytest.raises(DataError, match=f"must have sha256 {'0' * 64}, got {SHA256}"):
        download(f"{server.address}/file", tmp_path / "data.zip", "0" * 64)
    assert list(tmp_path.iterdir()) == []


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
    with pytest.raises(DataError, match=r"cannot fetch recbole==0.0.0 from the package registry.*put it at"):
        fetch_wheel("recbole==0.0.0", "recbole.whl", "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []
