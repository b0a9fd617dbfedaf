"""Load for a server: wrk, which sends as fast as it is answered or at a rate, and a probe with a fixed schedule.

The probe is open-loop: request n is due at n / rate, whatever became of those before it, and its time runs from then.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.harness import ROOT, Row

BODY = '{"user": "%d", "k": 20}'
HEAD = "POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
PATIENCE = 15  # seconds after the last request was due in which answers still count
LUA = """
local threads, names = {}, {"good", "busy", "failed", "mixed"}
function setup(thread) thread:set("seed", #threads + 1); table.insert(threads, thread) end
function init(args)
  math.randomseed(seed + tonumber(args[2])); users = tonumber(args[1])
  good, busy, failed, mixed = 0, 0, 0, 0
end
function request()
  local body = '{"user": "' .. math.random(0, users - 1) .. '", "k": 20}'
  return wrk.format("POST", "/recommend", {["content-type"] = "application/json"}, body)
end
function done(summary, latency, requests)
  local counts = {good = 0, busy = 0, failed = 0, mixed = 0}
  for _, thread in ipairs(threads) do
    for _, name in ipairs(names) do counts[name] = counts[name] + thread:get(name) end
  end
  local sockets = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format(
    '\\n{"requests": %d, "seconds": %f, "not_200": %d, "sockets": %d, "p50": %f, "p99": %f, ' ..
    '"good": %d, "busy": %d, "failed": %d, "mixed": %d}\\n', summary.requests, summary.duration / 1e6,
    summary.errors.status, sockets, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    counts.good, counts.busy, counts.failed, counts.mixed))
end
"""
# Each answer's items must be those of the version that it names: the two runs have items "a..." and "b...".
CHECKED = """
local letter = {VERSIONS}
function response(status, headers, body)
  if status == 503 then busy = busy + 1; return end
  local version = status == 200 and body:match('"version":"(%x+)"')
  if not version then failed = failed + 1; return end
  local own, other = letter[version], nil
  for one in body:gmatch('"item":"(%a)') do if one ~= own then other = one end end
  if other or not own or not body:find('"item":"' .. own, 1, true) then mixed = mixed + 1 else good = good + 1 end
end
"""
PACED = """
function delay() return -math.log(1 - math.random()) * {MILLISECONDS} end
"""


def check_wrk() -> None:
    if shutil.which("wrk") is None:
        raise SystemExit("this benchmark needs wrk, which is not there; on Debian: apt install wrk")


@contextmanager
def wrk_running(
    url: str,
    seconds: float,
    users: int,
    connections: int,
    *,
    rate: float | None = None,
    versions: dict[str, str] | None = None,
    seed: int = 0,
) -> Iterator[subprocess.Popen[str]]:
    """wrk, started; ``rate``: about so many requests per second; ``versions``: the letter of each run's items."""
    script = LUA
    if rate is not None:
        script += PACED.replace("{MILLISECONDS}", str(1000 * connections / rate))
    if versions is not None:
        script += CHECKED.replace("{VERSIONS}", "{" + ", ".join(f'["{v}"]="{a}"' for v, a in versions.items()) + "}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load.lua"
        file.write_text(script)
        words = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s", "-s", str(file)]
        command = ["wrk", *words, url, "--", str(users), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()


def finished(process: subprocess.Popen[str]) -> Row:
    """What wrk counted. ``rate`` counts answers of status 200 only."""
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"wrk ended with code {process.returncode}: {said}")
    row: Row = json.loads(said.splitlines()[-1])
    row["rate"] = (row["requests"] - row["not_200"]) / row["seconds"]
    return row


def wrk(url: str, seconds: float, users: int, connections: int, **how: Any) -> Row:
    with wrk_running(url, seconds, users, connections, **how) as process:
        return finished(process)


class Times:
    """What the probe saw: when each request was due (seconds from the start), its seconds and its status, 0: none."""

    def __init__(self, due: np.ndarray, seconds: np.ndarray, status: np.ndarray) -> None:
        self.due, self.seconds, self.status = due, seconds, status

    def between(self, start: float, stop: float) -> Times:
        some = (self.due >= start) & (self.due < stop)
        return Times(self.due[some], self.seconds[some], self.status[some])

    def row(self) -> Row:
        """Counts, and percentiles of accepted and of refused requests; None where there are none."""
        good, busy = self.status == 200, self.status == 503
        counts = {"requests": len(self.due), "good": int(good.sum()), "busy": int(busy.sum())}
        counts["failed"] = counts["requests"] - counts["good"] - counts["busy"]
        return {**counts, "p50": self.percentile(50), "p99": self.percentile(99), "busy_p99": self.percentile(99, 503)}

    def percentile(self, share: float, status: int = 200) -> float | None:
        some = self.seconds[self.status == status]
        return float(np.percentile(some, share)) if len(some) else None


@contextmanager
def probe_running(url: str, rate: float, seconds: float, users: int) -> Iterator[Any]:
    """The probe in its own process; yields a call that waits for it and gives its Times."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.npz"
        words = [url, str(rate), str(seconds), str(users), str(file)]
        with subprocess.Popen([sys.executable, "-m", "benchmarks.load", *words], cwd=ROOT) as process:

            def result() -> Times:
                if process.wait(seconds + 10 * PATIENCE):
                    raise SystemExit("the probe failed")
                with np.load(file) as kept:
                    return Times(kept["due"], kept["seconds"], kept["status"])

            try:
                yield result
            finally:
                if process.poll() is None:
                    process.terminate()


def probe(url: str, rate: float, seconds: float, users: int) -> Times:
    with probe_running(url, rate, seconds, users) as result:
        times: Times = result()
        return times


class _Connection(asyncio.Protocol):
    """One connection; it takes the next request that is due when it has its answer."""

    def __init__(self, schedule: _Schedule) -> None:
        self.schedule, self.number, self.buffer = schedule, -1, b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, number: int) -> None:
        self.number, self.buffer = number, b""
        body = BODY % self.schedule.users[number]
        self.transport.write((HEAD % len(body) + body).encode())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.index(b"content-length: ") + 16
        if len(self.buffer) >= end + 4 + int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None]):
            self.schedule.answered(self, int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.schedule.lost(self)


class _Schedule:
    """Requests at fixed times, over as many connections as are free; those that find none wait, and their time runs."""

    def __init__(self, rate: float, seconds: float, users: int) -> None:
        n = max(1, round(rate * seconds))
        self.due = np.arange(n) / rate
        self.seconds, self.status = np.zeros(n), np.zeros(n, np.int64)
        self.users = np.random.default_rng(0).integers(users, size=n).tolist()
        self.free: deque[_Connection] = deque()
        self.n_open = self.n_done = 0
        self.began = 0.0

    async def run(self, host: str, port: int, connections: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, connection = await loop.create_connection(lambda: _Connection(self), host, port)
            self.free.append(connection)
            self.n_open += 1
        self.began = time.perf_counter()
        due, n_sent = self.due.tolist(), 0
        while n_sent < len(due):
            now = time.perf_counter() - self.began
            while n_sent < len(due) and due[n_sent] <= now and self.free:
                self.free.popleft().send(n_sent)
                n_sent += 1
            if not self.n_open:
                return
            await asyncio.sleep(0.001 if self.free else 0.0002)
            if now > due[-1] + PATIENCE:
                return
        until = time.perf_counter() + PATIENCE
        while self.n_done < len(due) and self.n_open and time.perf_counter() < until:
            await asyncio.sleep(0.01)

    def answered(self, connection: _Connection, status: int) -> None:
        number = connection.number
        self.seconds[number] = time.perf_counter() - self.began - self.due[number]
        self.status[number] = status
        self.n_done += 1
        connection.number = -1
        self.free.append(connection)

    def lost(self, connection: _Connection) -> None:
        self.n_open -= 1
        if connection in self.free:
            self.free.remove(connection)


def main() -> None:
    """The probe's process."""
    import uvloop

    url, rate, seconds, users, file = sys.argv[1:]
    schedule = _Schedule(float(rate), float(seconds), int(users))
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    connections = int(min(512, max(16, 0.25 * float(rate))))
    uvloop.run(schedule.run(parts.hostname, parts.port, connections))
    np.savez(file, due=schedule.due, seconds=schedule.seconds, status=schedule.status)


if __name__ == "__main__":
    main()
