"""Micro-batches: what waits is scored together, the queue is bounded, one failure is not another's."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from topshelf.serving.batching import Batcher
from topshelf.serving.refusals import OverloadedError, UnavailableError
from topshelf.serving.settings import BatchSettings


class Work:
    """Doubles numbers; keeps the sizes of the batches, and waits while it is held."""

    def __init__(self):
        self.sizes, self.free, self.entered = [], threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, asked):
        self.entered.set()
        self.free.wait(10)
        self.sizes.append(len(asked))
        if any(one < 0 for one in asked):
            raise ValueError("negative")
        return [2 * one for one in asked]


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def batcher(work):
    made = []

    def make(**settings):
        made.append(Batcher(work, BatchSettings(**settings)))
        return made[-1]

    yield make
    work.free.set()
    for one in made:
        one.close()


async def held(batcher, work, jobs):
    """The results of jobs that all wait while the first is worked on."""
    work.free.clear()
    first = asyncio.create_task(batcher.answers(jobs[0]))
    await asyncio.to_thread(work.entered.wait)
    others = [asyncio.create_task(batcher.answers(job)) for job in jobs[1:]]
    await asyncio.sleep(0.05)
    work.free.set()
    return await asyncio.gather(first, *others, return_exceptions=True)


def test_what_waits_is_scored_together_and_each_gets_its_own(batcher, work):
    made = batcher(size=4)
    jobs = [[1], [2], [3, 4], [5], [6], [7]]
    assert asyncio.run(held(made, work, jobs)) == [[2], [4], [6, 8], [10], [12], [14]]
    assert work.sizes == [1, 4, 2]
    assert made.waiting == 0


def test_size_one_is_no_batching(batcher, work):
    assert asyncio.run(held(batcher(size=1), work, [[1], [2], [3]])) == [[2], [4], [6]]
    assert work.sizes == [1, 1, 1]


def test_a_batch_may_wait_for_more(batcher, work):
    made = batcher(size=3, wait_ms=1000)

    async def run():
        began = time.perf_counter()
        results = await asyncio.gather(*(made.answers([n]) for n in range(3)))
        return results, time.perf_counter() - began

    results, seconds = asyncio.run(run())
    assert results == [[0], [2], [4]]
    assert work.sizes == [3]
    assert seconds < 0.9  # a full batch waits no longer


def test_a_full_queue_is_refused(batcher, work):
    results = asyncio.run(held(batcher(size=1, queue=3), work, [[1], [2], [3], [4], [5, 6]]))
    assert results[:3] == [[2], [4], [6]]
    assert all(isinstance(one, OverloadedError) for one in results[3:])


def test_a_long_expected_wait_is_refused_and_passes(batcher, work):
    made = batcher(budget_ms=10)
    made._seconds = 1.0
    results = asyncio.run(held(made, work, [[1], [2]]))
    assert results[0] == [2]
    assert isinstance(results[1], OverloadedError)
    assert not made.is_full()
    assert asyncio.run(made.answers([4])) == [8]


def test_one_pause_of_the_machine_is_not_taken_for_load(batcher, work):
    made = batcher(size=1)
    made._seconds = 0.001
    work.free.clear()
    threading.Timer(0.5, work.free.set).start()
    assert asyncio.run(made.answers([1])) == [2]
    assert made._seconds < 0.002


def test_the_failure_of_one_is_not_that_of_the_others(batcher, work):
    results = asyncio.run(held(batcher(size=10), work, [[0], [1], [-1], [2]]))
    assert [results[0], results[1], results[3]] == [[0], [2], [4]]
    assert isinstance(results[2], ValueError)


def test_who_does_not_wait_any_more_is_not_scored(batcher, work):
    made = batcher(size=10)

    async def run():
        work.free.clear()
        first = asyncio.create_task(made.answers([1]))
        await asyncio.to_thread(work.entered.wait)
        gone, there = asyncio.create_task(made.answers([2])), asyncio.create_task(made.answers([3]))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0.02)
        work.free.set()
        return await asyncio.gather(first, there)

    assert asyncio.run(run()) == [[2], [6]]
    assert work.sizes == [1, 1]
    assert made.waiting == 0


def test_closing_finishes_what_was_taken(work):
    made = Batcher(work, BatchSettings(size=2))

    async def run():
        work.free.clear()
        jobs = [asyncio.create_task(made.answers([n])) for n in range(5)]
        await asyncio.to_thread(work.entered.wait)
        threading.Timer(0.05, work.free.set).start()
        await asyncio.to_thread(made.close)
        with pytest.raises(UnavailableError, match="shutting down"):
            await made.answers([9])
        return await asyncio.gather(*jobs)

    assert asyncio.run(run()) == [[0], [2], [4], [6], [8]]
