"""The engine behind a server: answers in batches, other work in a bounded line, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import orjson
import torch

from topshelf.answers import Change, Recorded, VariantState
from topshelf.errors import TopshelfError, at_most
from topshelf.serving.batching import Batcher
from topshelf.serving.bodies import Event, Query, ReloadBody
from topshelf.serving.engine import Engine
from topshelf.serving.loaded import Prepared
from topshelf.serving.logs import log
from topshelf.serving.observed import Observed

T = TypeVar("T")
_LONG = 200  # ids in a query from which it is prepared in a thread


class Service:
    """What the routes call."""

    def __init__(self, engine: Engine, observed: Observed | None = None) -> None:
        self.engine, self.settings = engine, engine.settings
        self.observed = observed or Observed()
        batch = self.settings.batch
        torch.set_num_threads(batch.threads or max(1, torch.get_num_threads() - 1))
        self.lists = Batcher(self._written, batch)
        self.others = Batcher(lambda calls: [call() for call in calls], batch.model_copy(update={"size": 1}))
        # One thread for all changes: the allocator keeps memory per thread, and a run is large.
        self._changes = ThreadPoolExecutor(1, thread_name_prefix="topshelf-changes")
        self.is_draining = False
        self.lists.observe = self.observed.saw_batch
        if engine.events is not None:
            engine.events.observe = self.observed.saw_commit
        self.observed.waiting.set_function(lambda: self.lists.waiting)
        self.observed.serves(engine.states())

    def is_full(self, path: str) -> bool:
        if path == "/recommend":
            return self.lists.is_full()
        return path != "/events" and self.others.is_full()

    async def recommend(self, queries: Sequence[Query]) -> bytes:
        """Answers as JSON."""
        at_most("the number of queries", len(queries), self.settings.limits.queries, "limits.queries")
        if any(map(_is_long, queries)):
            asked = await asyncio.to_thread(self.engine.prepare, queries)
        else:
            asked = self.engine.prepare(queries)
        answers = await self.lists.submit(asked)
        self.observed.saw_answers(asked)
        return b'{"answers":[%b]}' % b",".join(answers)

    def _written(self, asked: Sequence[Prepared]) -> list[bytes]:
        """The answers to prepared queries as JSON, in the thread that scores."""
        return [_answer(one, *some) for one, some in zip(asked, self.engine.find(asked), strict=True)]

    async def do(self, call: Callable[[], T]) -> T:
        """Other work, one at a time."""
        return (await self.others.answers([call]))[0]

    async def record(self, events: Sequence[Event]) -> Recorded:
        at_most("the number of events", len(events), self.settings.limits.ids, "limits.ids")
        done = await asyncio.wrap_future(self.engine.event_store().submit(events))
        self.observed.events.labels("stored").inc(done.stored)
        self.observed.events.labels("duplicate").inc(done.duplicates)
        return done

    async def reload(self, body: ReloadBody) -> Change:
        return await self._change("reload", lambda: self.engine.reload(body.run, body.variant, body.share))

    async def rollback(self, variant: str) -> Change:
        return await self._change("rollback", lambda: self.engine.rollback(variant))

    async def _change(self, kind: str, call: Callable[[], Change]) -> Change:
        # Shielded: a caller who hangs up does not leave a change half counted.
        return await asyncio.shield(asyncio.create_task(self._changed(kind, call)))

    async def _changed(self, kind: str, call: Callable[[], Change]) -> Change:
        try:
            self.engine.versions.check_free()
            change = await asyncio.get_running_loop().run_in_executor(self._changes, call)
        except TopshelfError:
            self.observed.changes.labels(kind, "refused").inc()
            log(kind, level=30, result="refused")
            raise
        self.observed.changes.labels(kind, "done").inc()
        self.observed.serves(self.engine.states())
        log(kind, variant=change.variant, version=change.version, previous=change.previous, overlap=change.overlap)
        return change

    def set_shares(self, shares: dict[str, float]) -> list[VariantState]:
        states = self.engine.versions.set_shares(shares)
        self.observed.serves(states)
        log("shares", shares=shares)
        return states

    def close(self) -> None:
        """Finish what was taken, then close the engine."""
        self.lists.close()
        self.others.close()
        self._changes.shutdown()
        self.engine.close()


def _answer(one: Prepared, scores: Sequence[float | None], places: Sequence[int]) -> bytes:
    """An Answer as JSON. The common one is written from plain values: objects would take half of a request's time."""
    run = one.loaded
    if one.explain or run.artifact.titles is not None:
        return orjson.dumps(run.shown(one, scores, places))
    ids = run.item_ids
    items = [
        {"item": ids[at], "score": score, "title": None, "because": ()}
        for at, score in zip(places, scores, strict=True)
    ]
    return orjson.dumps(
        {
            "items": items,
            "user": one.user,
            "variant": one.variant,
            "version": run.version,
            "fallback": one.fallback,
            "unknown_items": one.unknown,
        }
    )


def _is_long(query: Query) -> bool:
    """Whether preparing it may take longer than the other requests should wait."""
    n = len(query.history) + len(query.exclude) + len(query.allow or ())
    return query.filter is not None or n > _LONG
