from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading

import polars as pl
import pytest

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError

DEAD = "-4194304-1-0"  # no process has this number


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith((".tmp", ".old")))


def test_a_file_is_replaced_whole_or_kept(tmp_path):
    file = tmp_path / "a.txt"
    files.write_text(file, "old")

    def half_written(temporary):
        temporary.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        CheckpointError, match=r"cannot write .*a\.txt: .*No space left.*before is kept. Free some space"
    ):
        files.write(file, half_written)
    assert file.read_text() == "old"
    files.write_text(file, "new")
    assert file.read_text() == "new"
    assert not leftovers(tmp_path)


def test_a_parquet_file_that_does_not_fit_is_one_message(tmp_path, monkeypatch):
    frame, file = pl.DataFrame({"a": [1]}), tmp_path / "a.parquet"

    def full(_):
        raise pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", lambda _, where: full(where))
    with pytest.raises(CheckpointError, match="nothing was written"):
        files.write(file, frame.write_parquet)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"the folder .*gone does not exist; make it first"):
        files.write_text(tmp_path / "gone" / "a.txt", "")


def test_files_have_the_rights_that_the_umask_gives_and_links_stay_links(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    before = os.umask(0o027)
    try:
        files.write_text(link, "through")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert target.read_text() == "through"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(CheckpointError, match="it must be a file, or a new name"):
            files.write_text(tmp_path / name, "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_keeps_its_rights(tmp_path):
    file = tmp_path / "customers.csv"
    file.write_text("old")
    file.chmod(0o600)
    files.write_text(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_killed_processes_left_is_swept_and_what_others_write_is_not(tmp_path):
    machine, _, _ = files.this_process()
    dead = tmp_path / f".a.txt.{machine}{DEAD}.tmp"
    other = tmp_path / f".b.txt.{machine}{DEAD}.tmp"  # of another file
    living = tmp_path / f".a.txt.{machine}-{os.getpid()}-{files.started(os.getpid())}-7.tmp"
    elsewhere = tmp_path / f".a.txt.00000000{DEAD}.tmp"  # of another machine, fresh
    for path in (dead, other, living, elsewhere):
        path.write_text("half")
    files.write_text(tmp_path / "a.txt", "whole")
    assert leftovers(tmp_path) == sorted(path.name for path in (other, living, elsewhere))
    os.utime(elsewhere, (0, 0))
    files.write_text(tmp_path / "a.txt", "whole")
    assert not elsewhere.exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "deep" / "out"

    def fail():
        with files.new_folder(out) as fresh:
            (fresh / "a").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list(out.parent.iterdir())
    out.mkdir()
    with files.new_folder(out) as fresh:
        (fresh / "a").write_text("1")
        assert not list(out.iterdir())
    assert (out / "a").read_text() == "1"
    with pytest.raises(ConfigError, match="is not empty; choose another --out"), files.new_folder(out):
        pass
    with files.new_folder(out, replace=True) as fresh:
        (fresh / "b").write_text("2")
    assert [path.name for path in out.iterdir()] == ["b"]
    assert not leftovers(out.parent)


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="must not be the current folder"), files.new_folder("."):
        pass


def test_ctrl_c_between_two_moves_leaves_the_old_folder(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with files.new_folder(out) as fresh:
        (fresh / "a").write_text("old")

    def stop(what, path):
        if what == "move":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "step", stop)
    with pytest.raises(KeyboardInterrupt), files.new_folder(out, replace=True):
        pass
    assert (out / "a").read_text() == "old"
    assert not leftovers(tmp_path)


def test_a_folder_that_was_moved_away_last_is_moved_back(tmp_path):
    machine, _, _ = files.this_process()
    old = tmp_path / f".out.{machine}{DEAD}.old"
    old.mkdir()
    (old / "a").write_text("kept")
    files.sweep(tmp_path, "out")
    assert (tmp_path / "out" / "a").read_text() == "kept"


def test_a_folder_has_one_owner(tmp_path):
    with files.owned(tmp_path):
        with pytest.raises(ConfigError, match="is in use: another process is writing to it"), files.owned(tmp_path):
            pass
        code = f"from pathlib import Path; from topshelf import files\nwith files.owned(Path({str(tmp_path)!r})): pass"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "is in use" in done.stderr
    (tmp_path / f".x.00000000{DEAD}.tmp").write_text("left")
    with files.owned(tmp_path):
        assert not leftovers(tmp_path)  # whoever owned it before is gone
    machine, pid, began = files.this_process()
    lists = tmp_path / f".lists.csv.{machine}-{pid}-{began}-99.tmp"  # of a process that reads the run, and lives
    lists.write_text("half")
    with files.owned(tmp_path):
        assert lists.exists()


def test_threads_do_not_share_a_temporary_file(tmp_path):
    def write(text):
        for _ in range(20):
            files.write_text(tmp_path / "a.txt", text * 1000)

    threads = [threading.Thread(target=write, args=(text,)) for text in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = (tmp_path / "a.txt").read_text()
    assert len(found) == 1000
    assert len(set(found)) == 1


def test_a_sealed_file_notices_every_change(tmp_path):
    file = tmp_path / "a.json"
    content = {"run": "x", "numbers": [1, 2.5, None], "nested": {"a": "ä"}}
    files.write_sealed(file, content)
    assert files.read_sealed(file) == content
    raw = file.read_bytes()
    for place in range(len(raw)):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            found = files.read_sealed(file, is_always_sealed=True)
        except CheckpointError:
            continue
        assert found == content


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", "{", "[" * 100_000, '{"a":' * 100_000, "\xff"])
def test_what_is_no_json_object_is_one_message(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin1"))
    with pytest.raises(CheckpointError, match=r"a\.json is damaged"):
        files.read_json(tmp_path / "a.json")
