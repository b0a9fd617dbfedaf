"""The settings of a server: a TOML file, the environment, and the command line. Later ones override."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from topshelf.config import checked, merged, overrides, read_config
from topshelf.settings import Settings

PREFIX = "TOPSHELF_SERVE_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class VariantSettings(Settings):
    run: str
    """Run folder that a share of the users gets."""
    name: str = Field("b", pattern=r"^[a-z0-9_-]{1,32}$")
    """Name of the variant in answers and metrics; the main run is `a`."""
    share: float = Field(ge=0, le=100)
    """Percent of the users."""


class BatchSettings(Settings):
    size: int = Field(128, ge=1, le=4096)
    """Most queries that are scored together; 1 turns batching off."""
    wait_ms: float = Field(0, ge=0, le=1000)
    """How long a batch waits for more queries. 0: it takes what has come while the last one was scored."""
    queue: int = Field(256, ge=1)
    """Waiting queries from which new requests are refused with 503."""
    budget_ms: float = Field(500, gt=0)
    """Expected wait from which new requests are refused with 503."""
    threads: int = Field(0, ge=0)
    """Threads of a product; 0: one less than torch uses, because the requests need a processor too."""


class IndexSettings(Settings):
    kind: Literal["exact", "hnsw", "sq8"] = "exact"
    """exact: every item is scored. hnsw, sq8: an approximate index of Faiss, whose recall is measured."""
    recall: float = Field(0.95, gt=0, le=1)
    """Recall that hnsw is set to reach, by searching more; the start fails if it cannot."""
    links: int = Field(32, ge=4, le=128)
    """Links per item of hnsw; more take memory and find more."""
    exact_below: float = Field(0.1, ge=0, le=1)
    """A filter that leaves less than this share of the items is scored exactly."""
    folder: str | None = None
    """Folder where built indexes are kept, so that the next start is fast."""


class EventSettings(Settings):
    path: str | None = None
    """SQLite file of the events; without it, events are refused."""
    per_user: int = Field(1000, ge=1)
    """Latest events of a user that answers take into account."""
    queue: int = Field(10_000, ge=1)
    """Most events that wait to be stored; more are refused with 503."""
    cached_users: int = Field(100_000, ge=1)
    """Users whose events are kept in memory."""


class LimitSettings(Settings):
    k: int = Field(1000, ge=1)
    """Longest list that can be asked for."""
    queries: int = Field(100, ge=1)
    """Most queries in one request, and most items of /similar."""
    ids: int = Field(10_000, ge=1)
    """Most item ids in a history, an exclude or an allow list, items of /score, and events in one request."""
    body_kib: int = Field(1024, ge=1)
    """Largest body."""
    in_flight: int = Field(1024, ge=1)
    """Most requests at once; more are refused with 503."""
    timeout_s: float = Field(10, gt=0)
    """Longest time of a request, its body included."""
    rate: str | None = None
    """Requests per key, such as 600/minute; a key may have its own. None: no limit."""


class CheckSettings(Settings):
    queries: int = Field(100, ge=1)
    """Sample queries that a new version must answer before it serves: recent ones, then known users."""
    overlap: float = Field(0, ge=0, le=1)
    """Least mean overlap of the new lists with the old ones."""


class ServeSettings(Settings):
    run: str
    """Run folder."""
    variants: tuple[VariantSettings, ...] = ()
    """Further runs that a share of the users gets."""
    runs: str | None = None
    """Folder that new versions may be loaded from; default: the folder that holds the run."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port; 0: any free one."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may name, beside this machine's; without keys, others are refused."""
    keys: str | None = None
    """File of API keys (topshelf serve-key). Without it, every caller may do everything."""
    open: bool = False
    """Listen on a public address without keys."""
    open_metrics: bool = False
    """Give /metrics without a key."""
    page: bool = True
    """Give the page at /, without a key: it holds no data, and asks for a key itself."""
    cors_origins: tuple[str, ...] = ()
    """Origins of pages on other hosts that may call the server; none by default."""
    attributes: str | None = None
    """CSV, TSV or Parquet file of item attributes, for filters."""
    attributes_item: str | None = None
    """Its column of item ids; guessed from the common names."""
    titles: str | None = None
    """CSV, TSV or Parquet file of item titles; default: those of the run."""
    allow: tuple[str, ...] = ()
    """Packages with classes that a run may import."""
    log_personal: bool = False
    """Log the addresses of callers too."""
    drain_s: float = Field(0, ge=0)
    """Seconds between "not ready" and the end of listening, for a load balancer to notice."""
    filter_cache_mib: int = Field(64, ge=1)
    """Memory for results of filters."""
    batch: BatchSettings = BatchSettings()
    index: IndexSettings = IndexSettings()
    events: EventSettings = EventSettings()
    limits: LimitSettings = LimitSettings()
    check: CheckSettings = CheckSettings()


def read_settings(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    given: Iterable[str] = (),
    named: Mapping[str, Any] | None = None,
) -> ServeSettings:
    """Settings from a TOML file, the environment, and ``given`` texts such as ``limits.k=100``; ``named`` come last.

    TOPSHELF_SERVE_PORT is ``port``, TOPSHELF_SERVE_LIMITS__K is ``limits.k``.
    """
    values: dict[str, Any] = {} if file is None else read_config(file)
    variables = os.environ if environment is None else environment
    texts = [
        f"{name.removeprefix(PREFIX).lower().replace('__', '.')}={value}"
        for name, value in sorted(variables.items())
        if name.startswith(PREFIX)
    ]
    for more in (overrides(texts), overrides(given), named or {}):
        values = merged(values, more)
    return checked(ServeSettings, values)
