"""Queries of several requests are scored together: one thread takes all that wait, up to a batch.

While a batch is scored, the next one gathers, so batches grow with the load and a lone request does not wait. The
queue is bounded by its length and by the expected wait.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from topshelf.serving.refusals import OverloadedError, UnavailableError
from topshelf.serving.settings import BatchSettings

_SMOOTHING = 0.1  # weight of the newest batch in the mean seconds per query
_STALL = 4.0  # a batch that took more times as long counts as so long: a pause of the machine is no load


class _Job(NamedTuple):
    asked: Sequence[Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    since: float


class Batcher:
    """Runs ``work(list of queries) -> list of answers`` in a thread; a request may bring several queries."""

    def __init__(self, work: Callable[[list[Any]], list[Any]], settings: BatchSettings) -> None:
        self._work, self.settings = work, settings
        self.observe: Callable[[int, float], None] = lambda _n, _seconds: None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._seconds = 0.0  # per query, lately
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="topshelf-scoring", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Queries that are not scored yet."""
        return self._waiting

    @property
    def expected_wait(self) -> float:
        return self._waiting * self._seconds

    def is_full(self) -> bool:
        return self._waiting >= self.settings.queue or self.expected_wait * 1000 > self.settings.budget_ms

    async def answers(self, asked: Sequence[Any]) -> list[Any]:
        """The answers of one request's queries; OverloadedError where there is no room for them."""
        return await self.submit(asked)

    def submit(self, asked: Sequence[Any]) -> asyncio.Future[list[Any]]:
        """The same without waiting: the loop that calls this gets the answers."""
        if self._is_closed:
            raise UnavailableError("the server is shutting down")
        if self._waiting and self.is_full():
            raise OverloadedError(f"{self._waiting} queries wait (batch.queue, batch.budget_ms)")
        loop = asyncio.get_running_loop()
        job = _Job(asked, loop, loop.create_future(), time.perf_counter())
        with self._lock:
            self._waiting += len(asked)
        self._jobs.put(job)
        return job.done

    def close(self) -> None:
        """Finish what was taken."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            jobs, is_open = self._gather()
            if jobs:
                self._score(jobs)

    def _gather(self) -> tuple[list[_Job], bool]:
        """The next batch; whether there may be others after it."""
        jobs: list[_Job] = []
        job, n = self._jobs.get(), 0
        until = time.perf_counter() + self.settings.wait_ms / 1000
        while job is not None:
            jobs.append(job)
            n += len(job.asked)
            if n >= self.settings.size:
                return jobs, True
            try:
                left = until - time.perf_counter()
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                return jobs, True
        return jobs, False

    def _score(self, jobs: list[_Job]) -> None:
        began = time.perf_counter()
        live = [job for job in jobs if not job.done.cancelled()]
        results = self._results(live)
        n, seconds = sum(len(job.asked) for job in jobs), time.perf_counter() - began
        with self._lock:
            self._waiting -= n
        newest = min(seconds / n, _STALL * (self._seconds or seconds / n))
        self._seconds += _SMOOTHING * (newest - self._seconds)
        self.observe(n, seconds)
        for loop in {job.loop for job in live}:
            some = [(job, result) for job, result in zip(live, results, strict=True) if job.loop is loop]
            loop.call_soon_threadsafe(_deliver, some)

    def _results(self, jobs: list[_Job]) -> list[Any]:
        """An answer list or an exception per job; one job's failure is not the others'."""
        try:
            answers = iter(self._work([one for job in jobs for one in job.asked]))
            return [[next(answers) for _ in job.asked] for job in jobs]
        except Exception as error:  # noqa: BLE001  whatever it is, the request must be answered
            if len(jobs) == 1:
                return [error]
            return [result for job in jobs for result in self._results([job])]


def _deliver(results: list[tuple[_Job, Any]]) -> None:
    for job, result in results:
        if job.done.done():
            continue
        if isinstance(result, Exception):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)
