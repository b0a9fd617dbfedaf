"""Which runs are served: variants by share of the users, switched and rolled back as a whole.

A :class:`Deployment` does not change. A request takes the current one once, so it never sees half a switch; what it
was prepared with answers it, and the old version is freed when the last such request is done.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from topshelf.answers import Answer, Change, VariantState
from topshelf.errors import CheckpointError, ConfigError, TopshelfError
from topshelf.serving.bodies import Query
from topshelf.serving.documents import LoadedRanker
from topshelf.serving.loaded import Loaded
from topshelf.serving.opening import open_run, sample_queries
from topshelf.serving.refusals import ConflictError
from topshelf.serving.settings import ServeSettings

_RECENT = 200  # queries that are kept in memory to check a new version with
_UNDER_WAY = "another change of versions is under way; try again when it is done"
Run = Loaded | LoadedRanker


@dataclass(frozen=True)
class Variant:
    name: str
    share: float  # percent of the users
    run: Run
    previous: Run | None = None

    def state(self) -> VariantState:
        run, is_list = self.run, isinstance(self.run, Loaded)
        config = run.artifact.config if isinstance(run, Loaded) else run.ranker.config
        index = run.index if isinstance(run, Loaded) else None
        return VariantState(
            name=self.name,
            version=run.version,
            run=run.path.name,
            task=config.task,
            model=config.model.name,
            share=self.share,
            users=len(run.artifact.users) if isinstance(run, Loaded) else 0,
            items=len(run.artifact.items) if isinstance(run, Loaded) else 0,
            k=config.k,
            takes=sorted(run.kinds) if isinstance(run, Loaded) else [],
            index="exact" if index is None else index.settings.kind,
            recall=None if index is None else index.recall,
            columns=run.attributes.columns if isinstance(run, Loaded) else [],
            features=[] if is_list else list(run.features),  # type: ignore[union-attr]
            previous=None if self.previous is None else self.previous.version,
        )


@dataclass(frozen=True)
class Deployment:
    """What answers now."""

    variants: tuple[Variant, ...]

    def choose(self, user: object, name: str | None = None) -> Variant:
        """The variant that is asked for, or the user's, which is always the same. Without a user: the first."""
        if name is not None:
            return self.named(name)
        if user is None or len(self.variants) == 1:
            return self.variants[0]
        place = int.from_bytes(hashlib.blake2b(str(user).encode(errors="replace"), digest_size=8).digest()) / 2**64
        total = 0.0
        for variant in self.variants:
            total += variant.share / 100
            if place < total:
                return variant
        return self.variants[0]

    def named(self, name: str) -> Variant:
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ConfigError(f"variant must be one of {', '.join(one.name for one in self.variants)}, got {name!r}")

    def having(self, variant: Variant) -> Deployment:
        """With this variant in place of the one of its name, or added."""
        names = [one.name for one in self.variants]
        if variant.name not in names:
            return Deployment((*self.variants, variant))
        return Deployment(tuple(variant if one.name == variant.name else one for one in self.variants))


class Versions:
    """Loads, checks and switches. One change at a time; answers go on meanwhile."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.recent: deque[Query] = deque(maxlen=_RECENT)
        self._changing = threading.Lock()
        given = settings.variants
        names = ["a", *(one.name for one in given)]
        if len(set(names)) != len(names):
            raise ConfigError(f"each variant must have its own name, and the main run is a; got {', '.join(names)}")
        rest = 100 - sum(one.share for one in given)
        if rest < 0:
            raise ConfigError(f"the shares of the variants must be at most 100 together, got {100 - rest:g}")
        first = Variant("a", rest, open_run(settings.run, settings))
        more = [Variant(one.name, one.share, open_run(one.run, settings)) for one in given]
        self.current = _same_task(Deployment((first, *more)))

    def reload(self, run: str | None = None, variant: str = "a", share: float | None = None) -> Change:
        """Load a run beside the old one, check it, and switch; the old one stays for a rollback."""
        with self._held():
            began = time.perf_counter()
            old = next((one for one in self.current.variants if one.name == variant), None)
            if old is None and (run is None or share is None):
                names = ", ".join(one.name for one in self.current.variants)
                raise ConfigError(f"variant must be one of {names}, or new with a run and a share; got {variant!r}")
            if old is not None and share is not None:
                raise ConfigError("share is for a new variant; change the shares of served ones with their own call")
            path = old.run.path if run is None and old is not None else self._path(str(run))
            loaded = open_run(path, self.settings)
            new = Variant(variant, 0, loaded) if old is None else replace(old, run=loaded, previous=old.run)
            deployment = _same_task(self.current.having(new))
            queries, overlap = self._checked(loaded, None if old is None else old.run)
            if old is None:
                assert share is not None
                deployment = _shared(deployment, _with_share(deployment, variant, share))
            self.current = deployment  # one assignment: a request sees the old or the new one
            del old, new
            gc.collect()
            _give_back()
            previous = self.current.named(variant).previous
            before = None if previous is None else previous.version
            return Change(variant, loaded.version, before, queries, overlap, time.perf_counter() - began)

    def rollback(self, variant: str = "a") -> Change:
        """Switch back to the version before, which is still loaded; a second call switches forth again."""
        with self._held():
            now = self.current.named(variant)
            if now.previous is None:
                raise ConflictError(f"variant {variant} has no earlier version to go back to")
            self.current = self.current.having(replace(now, run=now.previous, previous=now.run))
            return Change(variant, now.previous.version, now.run.version, 0, None, 0.0)

    def set_shares(self, shares: Mapping[str, float]) -> list[VariantState]:
        """Percent of the users per variant; one that is left out is removed."""
        with self._held():
            self.current = _shared(self.current, shares)
            return self.states()

    def check_free(self) -> None:
        """Refuse a change while another one is under way, rather than keep it waiting."""
        if self._changing.locked():
            raise ConflictError(_UNDER_WAY)

    def states(self) -> list[VariantState]:
        return [variant.state() for variant in self.current.variants]

    def _held(self) -> _Held:
        return _Held(self._changing)

    def _path(self, run: str) -> Path:
        """A run inside the folder of runs: callers must not open any other place."""
        root = Path(self.settings.runs or Path(self.settings.run).absolute().parent).resolve()
        try:
            path = (root / run).resolve()
        except (OSError, ValueError) as error:
            raise CheckpointError(f"run {run!r} cannot be opened: {error}") from None
        if not path.is_relative_to(root) or path == root:
            raise ConfigError(f"run must be the name of a run in the folder of runs (setting runs), got {run!r}")
        return path

    def _checked(self, new: Run, old: Run | None) -> tuple[int, float | None]:
        """Ask the new version a sample of queries; refuse it where it fails."""
        if not isinstance(new, Loaded):
            return 0, None
        settings = self.settings.check
        shared: list[float] = []
        queries = sample_queries(new, list(self.recent), settings.queries)
        for query in queries:
            plain = query.model_copy(update={"variant": None})
            try:
                answer = new.answer([new.prepare(plain, "")])[0]
            except TopshelfError as error:
                raise CheckpointError(f"{new.path} does not answer a sample query: {error}; it is not served") from None
            if not answer.items and plain.allow is None:
                raise CheckpointError(f"{new.path} answers a sample query with an empty list; it is not served")
            if isinstance(old, Loaded):
                shared.append(_overlap(answer, old.answer([old.prepare(plain, "")])[0]))
        overlap = sum(shared) / len(shared) if shared else None
        if overlap is not None and overlap < settings.overlap:
            raise CheckpointError(
                f"{new.path} shares {overlap:.3f} of its lists with the version that is served, and check.overlap asks "
                f"for {settings.overlap}; it is not served"
            )
        return len(queries), overlap


class _Held:
    """The right to change what is served; a second change is refused rather than kept waiting."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConflictError(_UNDER_WAY)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _give_back() -> None:
    """Give the memory of the freed version back to the system, where the C library can: it would keep much of it."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _same_task(deployment: Deployment) -> Deployment:
    if len({type(one.run) for one in deployment.variants}) > 1:
        raise ConfigError("all variants must be of one task: recommendations and documents are served apart")
    return deployment


def _with_share(deployment: Deployment, name: str, share: float) -> dict[str, float]:
    """The shares with a new one, taken from the first variant."""
    shares = {one.name: one.share for one in deployment.variants}
    shares[deployment.variants[0].name] -= share
    return {**shares, name: share}


def _shared(deployment: Deployment, shares: Mapping[str, float]) -> Deployment:
    for name in shares:
        deployment.named(name)
    if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 100) > 1e-6:
        raise ConfigError(f"shares must be from 0 to 100 and 100 together, got {dict(shares)}")
    kept = [replace(one, share=shares[one.name]) for one in deployment.variants if one.name in shares]
    return Deployment(tuple(kept))


def _overlap(one: Answer, other: Answer) -> float:
    items = {listed.item for listed in one.items}
    return len(items & {listed.item for listed in other.items}) / max(1, len(items))
