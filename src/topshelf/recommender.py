"""The estimator to import: fit, recommend, recommend_new, similar_items, evaluate, update, forget, save, load."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import polars as pl
import torch

from topshelf.arrivals import Arrivals, arrive
from topshelf.artifact import Artifact, Ranked
from topshelf.config import CatalogueConfig, SequenceConfig, assemble, of_task
from topshelf.data import IdMap
from topshelf.data.titles import read_titles
from topshelf.errors import CheckpointError, DataError, TopshelfError, TopshelfWarning, at_least, whole
from topshelf.evaluation import Evaluation
from topshelf.in_memory import dataset_of, held_out_ndcg
from topshelf.parameters import Parameters
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.reasons import reasons
from topshelf.reprs import html_table, lines
from topshelf.training import Fitted, fit, load, save
from topshelf.training.build import components, resolve
from topshelf.training.folder import RunFolder

if TYPE_CHECKING:
    from topshelf.versions import Forgotten

_BLOCK_ROWS = 1_000_000  # of a table of recommend_blocks: about 40 MB


class Recommender(Parameters):
    """Recommends the best K items, by any model and loss.

    >>> from topshelf import Recommender
    >>> recommender = Recommender(k=10, train={"epochs": 5}).fit("synthetic")
    >>> recommender.recommend([0, 1], k=3).columns
    ['user', 'rank', 'item', 'score']

    ``model`` and ``loss`` are names, settings such as ``loss={"name": "slatk", "tau": 0.1}``, or your own classes and
    instances; a name may be ``"package.module:Class"``. Of an instance only the class and settings are used. The model
    is mf by default, and sasrec with ``task="sequences"``, which recommends next items: what comes after a user's items
    in order. ``more`` are the other sections of the run's config, such as ``train={"epochs": 50}``; ``negatives`` and
    ``threshold`` may be classes or instances too.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {
        "k": 20,
        "model": None,
        "loss": "slatk",
        "seed": 0,
        "task": "interactions",
    }

    def __init__(
        self,
        *,
        k: int = 20,
        model: Any = None,
        loss: Any = "slatk",
        seed: int = 0,
        task: str = "interactions",
        **more: Any,
    ) -> None:
        self._fitted: Fitted | None = None
        self._artifact: Artifact | None = None
        self._load: Callable[[], Fitted] | None = None
        self._configure({"k": k, "model": model, "loss": loss, "seed": seed, "task": task, **more})

    def _configure(self, given: dict[str, Any]) -> None:
        """Bad settings fail here, not after the data is read."""
        named = {name: given[name] for name in ("k", "seed", "task")}
        more = {name: value for name, value in given.items() if name not in named}
        if more["model"] is None:
            more["model"] = "mf" if given["task"] == "interactions" else "sasrec"
        more = components(more)
        config = of_task(assemble(**named, more=more), CatalogueConfig, "a Recommender")
        resolve(config, is_fitted=True)  # a blend is always fitted: it comes from load or of
        self._given, self._named, self._more = given, named, more

    def __repr__(self) -> str:
        return lines(self._call(), self._facts())

    def _repr_html_(self) -> str:
        return html_table(self._call(), [], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """What is known without further work: nothing is loaded or measured."""
        fitted, known = self._fitted, self._fitted.dataset.split if self._fitted is not None else self._artifact
        if known is None:
            return [("state", "not fitted yet: call fit(data)")]
        facts = [("fitted", f"{len(known.users):,} users, {len(known.items):,} items")]
        if fitted is not None:
            facts += [("data", fitted.dataset.name), ("trained on", f"{fitted.through}, {fitted.seconds:,.1f} s")]
            if fitted.valid_score is not None:
                metric = fitted.task.metric(fitted.config)
                facts += [("validation", f"{metric} {fitted.valid_score:.4f} at epoch {fitted.best_epoch}")]
        return facts

    def fit(
        self, data: Any, *, out: str | Path | None = None, quiet: bool = True, callbacks: Sequence[Any] = ()
    ) -> Recommender:
        """Fit on a file, the name of a dataset, a polars or pandas frame, a SciPy or NumPy matrix, or a Split.

        The data is split into train, validation and test as the ``data`` section says. The final model learns from
        train; with ``train={"refit": True}`` also from validation, with ``"all"`` from everything, after the test
        evaluation. ``out`` keeps the run in a folder. ``callbacks`` are told of every epoch
        (:mod:`topshelf.callbacks`).
        """
        options: dict[str, Any] = {"out": out, "quiet": quiet, "callbacks": callbacks}
        if isinstance(data, str | Path):
            self._set(fit(self._config(str(data)), **options))
        else:
            config = self._config("a table in memory")
            dataset = dataset_of(data, config)
            dataset.warn()
            self._set(fit(config, dataset, **options))
        return self

    def recommend(
        self,
        users: Sequence[Any] | pl.Series | None = None,
        k: int | None = None,
        *,
        filter_seen: bool | None = None,
        why: int = 0,
    ) -> pl.DataFrame:
        """The best ``k`` items per user (default: all users), one row per place.

        ``filter_seen`` leaves out all items of the user in the data, also in the test part and with low ratings; that
        is the default, but for runs with ``data.exclude_seen = false``. A user with fewer than k items left gets a
        shorter list; a user without training items gets the most popular items, without scores. ``why`` adds the column
        "because": so many of the user's own items, those that speak most for the listed one (:mod:`topshelf.reasons`).
        """
        users_here = self.artifact.users
        queries = QuerySet.known(len(users_here)) if users is None else QuerySet(rows=_rows(users_here, users))
        return self._lists(queries, k, filter_seen, why)

    def recommend_blocks(
        self,
        users: Sequence[Any] | pl.Series | None = None,
        k: int | None = None,
        *,
        filter_seen: bool | None = None,
        why: int = 0,
    ) -> Iterator[pl.DataFrame]:
        """The tables of :meth:`recommend`, some thousand users at a time, for more users than fit into memory.

        ``topshelf.list_files.write_lists(path, blocks)`` writes them to one Parquet, CSV or JSON lines file.
        """
        known = self.artifact.users
        rows = torch.arange(len(known)) if users is None else _rows(known, users)
        length = self.artifact.config.k if k is None else k
        for some in rows.split(max(1, _BLOCK_ROWS // max(1, min(length, len(self.artifact.items))))):
            yield self._lists(QuerySet(rows=some), k, filter_seen, why)

    def _lists(self, queries: QuerySet, k: int | None, filter_seen: bool | None, why: int) -> pl.DataFrame:
        artifact, rows, exclude = self.artifact, queries.known_rows(), None
        if self.filters(filter_seen):
            exclude = artifact.seen if queries.is_all else artifact.seen.select(rows)
        ranked = artifact.rank(queries, k, exclude=exclude)
        table = self._table("user", artifact.users, rows, ranked)
        return self._with_reasons(table, artifact.taken.select(rows), ranked, why) if why else table

    def recommend_new(
        self,
        histories: Mapping[Any, Iterable[Any]] | Iterable[Iterable[Any]],
        k: int | None = None,
        *,
        filter_seen: bool | None = None,
        why: int = 0,
    ) -> pl.DataFrame:
        """The same table from new interactions, also for users who are not in the data.

        >>> recommender = Recommender(k=10, model="ease").fit("synthetic")
        >>> recommender.recommend_new({"anna": [3, 7], "ben": [12]}, k=2)["user"].to_list()
        ['anna', 'anna', 'ben', 'ben']

        ``histories`` maps user ids to item ids: a known user keeps the items in the data and gains the new ones, which
        come after them, in the given order, for a model that takes sequences. In a sequence of such lists, all users
        are new and their positions are their names. Items that are not in the data are skipped, with a warning.
        ``filter_seen`` leaves out the user's items; a user without any gets the most popular items, without scores.
        Models with one vector per training user, such as MF, score known users as before and give new users the most
        popular items; if all users are new, they raise an error.
        """
        artifact = self.artifact
        events = artifact.events if "sequence" in artifact.model.kinds else None
        arrived = arrive(histories, artifact.taken, artifact.seen, artifact.users, artifact.items, events)
        exclude = arrived.seen if self.filters(filter_seen) else None
        ranked = artifact.rank(self._arrived_queries(arrived), k, exclude=exclude)
        table = self._table("user", arrived.users, torch.arange(len(arrived.users)), ranked)
        return self._with_reasons(table, arrived.lists, ranked, why) if why else table

    def _arrived_queries(self, arrived: Arrivals) -> QuerySet:
        """What they did in order, or their histories, or their rows, by what the model can encode."""
        model = self.artifact.model
        if "sequence" in model.kinds and arrived.sequences is not None:
            return QuerySet(sequence=arrived.sequences)
        if "history" in model.kinds:
            return QuerySet(history=arrived.lists)
        if "sequence" in model.kinds:
            raise DataError(
                f"{type(model).__name__} takes what a user did in order, and the run's data do not say it for known "
                "users: give users who are not in the data, or train again with rows of events (a file, or a frame)"
            )
        if not bool(arrived.is_known.any()):
            model.check_takes("history")
        n_new = int((~arrived.is_known).sum())
        new = f"; {n_new:,} new users get the most popular items, without scores" if n_new else ""
        warnings.warn(
            f"{type(model).__name__} cannot use new interactions without training: known users are scored as before, "
            f"and their new items are only left out{new}. topshelf models says which models can",
            TopshelfWarning,
            stacklevel=3,
        )
        return QuerySet(rows=arrived.rows)

    def similar_items(self, items: Sequence[Any], k: int = 10) -> pl.DataFrame:
        """The ``k`` items most similar to each of ``items``, by the cosine of their vectors; the item is left out."""
        rows = _rows(self.artifact.items, items)
        return self._table("item", self.artifact.items, rows, self.artifact.similar(rows, k))

    def evaluate(self, protocol: str | None = None, cutoffs: tuple[int, ...] | None = None) -> Evaluation:
        """Full-ranking evaluation on the test part."""
        return self.fitted.evaluate(protocol, cutoffs)

    def score(self, data: Any = None, y: Any = None) -> float:  # noqa: ARG002  scikit-learn's tools pass y
        """NDCG@K, as scikit-learn's tools ask for it: on the test part, or on interactions that fit has not seen.

        ``data`` is a frame. Its users and items must be known; rows of others are left out, and so are pairs of
        training.
        """
        k = self.artifact.config.k
        if data is None:
            return self.evaluate(cutoffs=(k,)).mean()[f"ndcg@{k}"]
        return held_out_ndcg(self.artifact, data, k)

    def set_titles(self, titles: Any) -> Recommender:
        """Show these titles of items: a CSV, TSV or Parquet file, a frame, or a mapping of ids to titles."""
        self.artifact.titles = read_titles(titles, self.artifact.items, self.artifact.titles)
        return self

    def update(
        self, data: Any, *, out: str | Path | None = None, titles: Any = None, quiet: bool = True, **columns: Any
    ) -> Recommender:
        """Learn from new interactions, users and items too, without starting again (:mod:`topshelf.versions`).

        >>> recommender = Recommender(k=10, model="ease").fit("synthetic")
        >>> _ = recommender.update(pl.DataFrame({"user": [0, 9_999], "item": [3, 7]}))
        >>> recommender.recommend([9_999], k=2)["user"].to_list()
        [9999, 9999]

        ``data`` is a file or a frame, read as the data of :meth:`fit` were, unless ``columns`` names other columns
        (``user``, ``item``, ``weight``, ``timestamp``, ``dates``). ``titles`` are those of new items.
        """
        from topshelf.versions import update

        self._set(update(self.fitted, data, out=out, columns=columns, titles=titles, quiet=quiet))
        return self

    def forget(
        self, users: Sequence[Any], *, out: str | Path | None = None, refit: bool = False, quiet: bool = True
    ) -> Forgotten:
        """Remove users and what belongs to them; says what was removed (:func:`topshelf.versions.forget`).

        ``refit`` also trains what all users share again, without them. ``out`` keeps the result in a folder, which is
        searched for their ids.
        """
        from topshelf.versions import forget

        forgotten = forget(self.fitted, users, out=out, refit=refit, quiet=quiet)
        self._set(forgotten.fitted)
        return forgotten

    def save(self, path: str | Path) -> None:
        """Write the run folder that :meth:`load` and the command line read."""
        save(self.fitted, path)

    @classmethod
    def auto(
        cls,
        data: Any,
        *,
        k: int = 20,
        budget: str | float = "10m",
        seed: int = 0,
        out: str | Path | None = None,
        quiet: bool = True,
        **settings: Any,
    ) -> Recommender:
        """The best recommender that is found in a budget of time, without choosing a model: see :mod:`topshelf.auto`.

        ``settings`` are sections such as ``data={"user": "buyer"}``. Needs ``pip install 'topshelf[tune]'``.
        """
        from topshelf.auto import auto

        return cls.of(auto(data, k=k, budget=budget, seed=seed, out=out, settings=settings, quiet=quiet).fitted)

    @classmethod
    def load(cls, path: str | Path, *, allow: Collection[str] = ()) -> Recommender:
        """The recommender of a run folder; ``allow`` as in :func:`topshelf.load`."""
        artifact, run = Artifact.open(path, allow=allow), RunFolder(path).run
        recommender = cls._configured(artifact.config)
        recommender._artifact, recommender._load = artifact, lambda: _same_run(path, run)
        return recommender

    @classmethod
    def of(cls, fitted: Fitted) -> Recommender:
        """The recommender of a fitted model."""
        recommender = cls._configured(fitted.config)
        recommender._set(fitted)
        return recommender

    @classmethod
    def _configured(cls, config: CatalogueConfig) -> Recommender:
        sections = config.model_dump(include={"negatives", "threshold", "train", "evaluate"})
        sections["data"] = config.data.model_dump(exclude={"source"})
        model, loss = config.model.model_dump(), config.loss.model_dump()
        return cls(k=config.k, seed=config.seed, task=config.task, model=model, loss=loss, **sections)

    @property
    def fitted(self) -> Fitted:
        """The config, data and model of the recommendations; loaded from a run folder on first use."""
        if self._fitted is None:
            self._fitted = self._checked(self._load)()
        return self._fitted

    @property
    def artifact(self) -> Artifact:
        """What recommendations are computed from."""
        if self._artifact is None:
            self._artifact = Artifact.of(self.fitted)
        return self._artifact

    def _set(self, fitted: Fitted) -> None:
        self._fitted, self._artifact = fitted, None

    def filters(self, filter_seen: bool | None) -> bool:
        """Whether items that a user has are left out; by default as the run was measured."""
        if filter_seen is not None:
            return filter_seen
        config = self.artifact.config
        return config.data.exclude_seen if isinstance(config, SequenceConfig) else True

    def _config(self, source: str | None) -> CatalogueConfig:
        return of_task(assemble(data=source, **self._named, more=self._more), CatalogueConfig, "a Recommender")

    def _checked(self, loader: Callable[[], Fitted] | None) -> Callable[[], Fitted]:
        if loader is None:
            raise TopshelfError("the recommender is not fitted yet: call fit(data) or Recommender.load(path)")
        return loader

    def _table(self, name: str, ids: IdMap, rows: torch.Tensor, ranked: Ranked) -> pl.DataFrame:
        """One row per place, external ids, titles where there are any."""
        artifact = self.artifact
        n, k = ranked.items.shape
        places, is_there = ranked.items.flatten().numpy(), (ranked.items >= 0).flatten().numpy()
        places = places[is_there]
        columns = {
            name: ids.take(rows.repeat_interleave(k).numpy()[is_there]),
            "rank": np.tile(np.arange(1, k + 1), n)[is_there],
            "similar" if name == "item" else "item": artifact.items.take(places),
            "score": pl.Series(ranked.scores.flatten().numpy()[is_there], nan_to_null=True),
        }
        if artifact.titles is not None:
            columns["title"] = pl.Series([artifact.titles[place] for place in places], dtype=pl.String)
        return pl.DataFrame(columns)

    def _with_reasons(self, table: pl.DataFrame, owned: Ragged, ranked: Ranked, why: int) -> pl.DataFrame:
        n = at_least("why", whole("why", why), 1)
        found = reasons(self.artifact, owned, ranked.items, n)[ranked.items >= 0].numpy()  # (rows of the table, n)
        ids = self.artifact.items.take(found[found >= 0])
        ends = (found >= 0).sum(axis=1).cumsum()
        starts = [0, *ends[:-1].tolist()] if len(ends) else []
        lists = [ids[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
        return table.with_columns(pl.Series("because", lists, dtype=pl.List(ids.dtype)))


def _same_run(path: str | Path, run: str | None) -> Fitted:
    """The run of a folder that was opened before."""
    if (now := RunFolder.open(path).run) != run:
        raise CheckpointError(f"{path} holds another run ({now}) than the one that was opened ({run}); load it again")
    return load(path)


def _rows(ids: IdMap, wanted: Any) -> torch.Tensor:
    """Dense indices of external ids; a single id is a list of one."""
    if isinstance(wanted, pl.Series):
        return torch.from_numpy(ids.index(wanted).astype(np.int64))
    if isinstance(wanted, torch.Tensor | np.ndarray | np.generic):
        wanted = wanted.tolist()
    listed = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    return torch.from_numpy(ids.index(listed).astype(np.int64)) if listed else torch.empty(0, dtype=torch.int64)
