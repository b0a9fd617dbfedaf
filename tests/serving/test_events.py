"""Events: on disk when acknowledged, once by id, in the next answer, and out again as a table."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import polars as pl
import pytest

from topshelf.data import Interactions
from topshelf.errors import ConfigError, DataError
from topshelf.serving import Event
from topshelf.serving.events import EventStore, export_events
from topshelf.serving.refusals import OverloadedError, UnavailableError
from topshelf.serving.settings import EventSettings

# Writes events forever, and prints each id after it is acknowledged.
WRITER = """
import sys, threading
from topshelf.serving.events import EventStore
from topshelf.serving.bodies import Event
store, start = EventStore(sys.argv[1]), int(sys.argv[2])
lock = threading.Lock()
def write(thread):
    n = start
    while True:
        id = f"{thread}-{n}"
        store.record([Event(id=id, user=f"u{n % 7}", item=f"i{n}"), Event(id=f"{id}-b", user="b", item="x")])
        with lock:
            print(id, flush=True)
        n += 1
for thread in range(4):
    threading.Thread(target=write, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


@pytest.fixture
def store(tmp_path):
    made = EventStore(tmp_path / "events.db")
    yield made
    made.close()


def event(n, user="u", **more):
    return Event(id=f"e{n}", user=user, item=f"i{n}", **more)


def test_an_event_is_stored_once_by_its_id(store):
    assert vars_of(store.record([event(1), event(2), event(1)])) == (2, 1)
    assert vars_of(store.record([event(2), event(3)])) == (1, 1)
    assert store.of("u") == ("i1", "i2", "i3")
    assert store.count() == 3


def vars_of(recorded):
    return recorded.stored, recorded.duplicates


def test_without_an_id_every_event_is_new(store):
    store.record([Event(user="u", item="i"), Event(user="u", item="i")])
    assert store.of("u") == ("i", "i")


def test_events_are_in_the_order_of_their_times_and_the_latest_are_used(tmp_path):
    store = EventStore(tmp_path / "events.db", EventSettings(per_user=2))
    store.record([event(1, time=30), event(2, time=10), event(3, time="1970-01-01T00:00:20Z")])
    assert store.of("u") == ("i3", "i1")
    store.close()


def test_ids_are_the_same_as_numbers_and_as_text(store):
    store.record([Event(user=7, item=1), Event(user="7", item="2")])
    assert store.of(7) == store.of("7") == ("1", "2")


def test_what_was_read_before_a_write_is_read_again_after_it(store):
    assert store.of("u") == ()
    for n in range(50):
        store.record([event(n)])
        assert len(store.of("u")) == n + 1  # the memory of an earlier answer must not win


def test_many_threads_share_transactions_and_lose_nothing(store):
    commits = []
    store.observe = lambda n, _seconds: commits.append(n)
    threads = [
        threading.Thread(target=lambda t=t: [store.record([event(f"{t}-{n}", f"u{t}")]) for n in range(50)])
        for t in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(commits) == store.count() == 400
    assert len(commits) < 400
    assert all(len(store.of(f"u{t}")) == 50 for t in range(8))


def test_memory_is_bounded(tmp_path):
    store = EventStore(tmp_path / "events.db", EventSettings(cached_users=3))
    store.record([event(n, f"u{n}") for n in range(10)])
    assert [store.of(f"u{n}") for n in range(10)] == [(f"i{n}",) for n in range(10)]
    assert len(store._kept) == 3
    store.close()


def test_a_full_queue_is_refused_and_a_closed_store_too(tmp_path, monkeypatch):
    store = EventStore(tmp_path / "events.db", EventSettings(queue=5))
    held, entered = threading.Event(), threading.Event()
    plain = store._store
    monkeypatch.setattr(store, "_store", lambda *given: (entered.set(), held.wait(), plain(*given)))
    first = store.submit([event(1)])
    entered.wait()
    waiting = store.submit([event(n) for n in range(2, 6)])
    with pytest.raises(OverloadedError, match="5 events wait to be stored"):
        store.submit([event(9)])
    held.set()
    store.close()  # finishes what it took
    assert vars_of(first.result()) == (1, 0)
    assert vars_of(waiting.result()) == (4, 0)
    with pytest.raises(UnavailableError, match="shutting down"):
        store.submit([event(10)])
    again = EventStore(tmp_path / "events.db")
    assert len(again.of("u")) == 5
    again.close()


def test_a_failure_of_the_disk_is_told_and_nothing_of_the_request_is_kept(store, monkeypatch):
    class Failing:
        in_transaction = True

        def __init__(self, connection):
            self.connection, self.n = connection, 0

        def execute(self, *given):
            if given[0].startswith("INSERT"):
                self.n += 1
                if self.n == 2:
                    raise sqlite3.OperationalError("database or disk is full")
            return self.connection.execute(*given)

    plain = store._writing
    store._writing = Failing(plain)
    with pytest.raises(UnavailableError, match="could not be stored: database or disk is full; send them again"):
        store.record([event(1), event(2)])
    store._writing = plain
    assert store.of("u") == ()
    assert vars_of(store.record([event(1), event(2)])) == (2, 0)


def test_the_file_has_one_server(tmp_path, store):
    with pytest.raises(ConfigError, match="in use by another server"):
        EventStore(tmp_path / "events.db")
    with pytest.raises(ConfigError, match="does not exist; make it first"):
        EventStore(tmp_path / "nowhere" / "events.db")


def test_another_file_is_not_taken_for_events(tmp_path):
    (tmp_path / "text.db").write_text("this is no database, but long enough to look like a file of one" * 20)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    for name in ("text.db", "other.db"):
        with pytest.raises(DataError, match=r"cannot be used for events|is no file of events"):
            EventStore(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        with pytest.raises(DataError, match=r"cannot be read as a file of events|is no file of events"):
            export_events(tmp_path / name, tmp_path / "out.csv")
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(DataError, match="does not exist"):
        export_events(tmp_path / "nothing.db", tmp_path / "out.csv")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_export_is_data_to_train_with(tmp_path, store, ending):
    store.record([event(n, f"u{n % 3}", time=1e9 + n, weight=n, kind="click") for n in range(12)])
    out = tmp_path / f"events.{ending}"
    assert export_events(store.path, out) == (12, 12)
    table = pl.read_csv(out) if ending == "csv" else pl.read_parquet(out)
    assert table.columns == ["user", "item", "timestamp", "rating", "kind", "event"]
    data = Interactions.from_frame(table)
    assert (data.n_users, data.n_items, len(data)) == (3, 12, 12)
    store.record([event(20)])
    assert export_events(store.path, out, after=12) == (1, 13)
    with pytest.raises(DataError, match="has no events after number 13"):
        export_events(store.path, out, after=13)


def test_a_user_can_be_forgotten(store):
    store.record([event(1), event(2), event(3, "other")])
    assert store.of("u") == ("i1", "i2")
    assert store.forget("u") == 2
    assert store.of("u") == ()
    assert store.of("other") == ("i3",)
    assert [row["event"] for row in store.after(0, 10)] == ["e3"]


@pytest.mark.parametrize("value", ["soon", -1, float("nan"), float("inf"), 1763467200000, True, "99999-01-01"])
def test_times_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match="time"):
        Event(user="u", item="i", time=value)


def killed(path, kills, seed=0):
    """Start the writer, kill it while it writes, and read what it said was stored; as often as asked."""
    acknowledged, starts = [], []
    for n in range(kills):
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(n * 1_000_000)], stdout=subprocess.PIPE, text=True
        )
        acknowledged.append(process.stdout.readline().strip())
        starts.append(time.monotonic() - began)
        time.sleep(0.02 + 0.013 * ((n * 7 + seed) % 11))
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += process.stdout.read().split()
        process.wait()
        process.stdout.close()
    return [id for id in acknowledged if id], starts


def check_killed(path, acknowledged):
    store = EventStore(path)
    kept = [row["event"] for row in store.after(0, 10_000_000)]
    store.close()
    assert len(kept) == len(set(kept))
    lost = set(acknowledged) - set(kept)
    assert not lost
    halves = {id for id in kept if not id.endswith("-b")} ^ {id[:-2] for id in kept if id.endswith("-b")}
    assert not halves  # the events of one request are all there, or none is
    return kept


def test_no_acknowledged_event_is_lost_when_the_process_is_killed(tmp_path):
    acknowledged, _ = killed(tmp_path / "events.db", 3)
    assert len(check_killed(tmp_path / "events.db", acknowledged)) >= 2 * len(acknowledged) > 6


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    acknowledged, starts = killed(tmp_path / "events.db", 50, seed=3)
    kept = check_killed(tmp_path / "events.db", acknowledged)
    told = {"acknowledged": len(acknowledged), "kept": len(kept) // 2, "slowest_start": round(max(starts), 2)}
    sys.stdout.write(json.dumps(told))
    assert len(acknowledged) > 500
