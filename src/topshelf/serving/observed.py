"""What the server counts and measures, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from topshelf.answers import VariantState
from topshelf.serving.loaded import Prepared

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Observed:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "topshelf_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "topshelf_request_seconds", "Time of requests.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.answers = Counter(
            "topshelf_answers", "Lists by variant, version and source.", ["variant", "version", "source"],
            registry=registry,
        )  # fmt: skip
        self.refused = Counter("topshelf_refused", "Requests refused, by reason.", ["reason"], registry=registry)
        self.batch = Histogram("topshelf_batch_queries", "Queries per batch.", buckets=_SIZES, registry=registry)
        self.scoring = Histogram("topshelf_batch_seconds", "Time of batches.", buckets=_SECONDS, registry=registry)
        self.waiting = Gauge("topshelf_queue_queries", "Queries that wait to be scored.", registry=registry)
        self.in_flight = Gauge("topshelf_in_flight_requests", "Requests that are not answered yet.", registry=registry)
        self.events = Counter("topshelf_events", "Events stored and known before.", ["result"], registry=registry)
        self.commits = Histogram(
            "topshelf_event_commit_seconds", "Time of transactions of events.", buckets=_SECONDS, registry=registry
        )
        self.served = Gauge(
            "topshelf_served", "Percent of the users per variant and version.", ["variant", "version"],
            registry=registry,
        )  # fmt: skip
        self.recall = Gauge(
            "topshelf_index_recall", "Recall of an approximate index when it was loaded.", ["variant"],
            registry=registry,
        )  # fmt: skip
        self.changes = Counter("topshelf_changes", "Reloads and rollbacks.", ["kind", "result"], registry=registry)
        self._answered: dict[tuple[str, str, str], Counter] = {}

    def saw_batch(self, n: int, seconds: float) -> None:
        self.batch.observe(n)
        self.scoring.observe(seconds)

    def saw_commit(self, _n: int, seconds: float) -> None:
        self.commits.observe(seconds)

    def saw_answers(self, answered: Iterable[Prepared]) -> None:
        for one in answered:
            source = "model" if one.fallback is None else "popular"
            labels = (one.variant, one.loaded.version, source)
            if labels not in self._answered:
                self._answered[labels] = self.answers.labels(*labels)
            self._answered[labels].inc()

    def serves(self, states: Iterable[VariantState]) -> None:
        """What is served now; versions that are gone are no longer shown."""
        self.served.clear()
        self.recall.clear()
        for one in states:
            self.served.labels(one.name, one.version).set(one.share)
            if one.recall is not None:
                self.recall.labels(one.name).set(one.recall)

    def text(self) -> bytes:
        return generate_latest(self.registry)
