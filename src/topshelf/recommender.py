"""The estimator that a person imports: fit, recommend, recommend_new, similar_items, evaluate, save, load."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F

from topshelf.arrivals import Arrivals, arrive
from topshelf.catalogue import top_k
from topshelf.config import RunConfig, assemble
from topshelf.data import Dataset, IdMap, Interactions, Split, prepare, split_interactions
from topshelf.errors import ConfigError, TopshelfError, TopshelfWarning, at_least, whole
from topshelf.evaluation import Evaluation
from topshelf.ragged import Ragged
from topshelf.training import Fitted, fit, load, save
from topshelf.training.build import resolve

_UNIT_BLOCK = 1 << 26  # bytes of vectors made of length one at once: an item-item model has as many as items, as long


class Recommender:
    """Recommends the first K items, by any model and loss.

    >>> from topshelf import Recommender
    >>> recommender = Recommender(k=10, train={"epochs": 5}).fit("synthetic")
    >>> recommender.recommend([0, 1], k=3).columns
    ['user', 'rank', 'item', 'score']

    ``model`` and ``loss`` are names, or settings such as ``loss={"name": "slatk", "tau": 0.1}``. ``more`` are the
    other sections of the run's config, such as ``train={"epochs": 50}``.
    """

    def __init__(
        self,
        *,
        k: int = 20,
        model: str | Mapping[str, Any] = "mf",
        loss: str | Mapping[str, Any] = "slatk",
        seed: int = 0,
        **more: Any,
    ) -> None:
        components = {"model": model, "loss": loss}
        chosen = {key: {"name": value} if isinstance(value, str) else value for key, value in components.items()}
        self._named: dict[str, Any] = {"k": k, "seed": seed}
        self._more: Mapping[str, Any] = {**chosen, **more}
        self._fitted: Fitted | None = None
        # Bad settings fail here, not after the data is read. A blend comes fitted, by load or of.
        resolve(self._config(None), is_fitted=True)

    def fit(self, data: Any, *, out: str | Path | None = None, quiet: bool = True) -> Recommender:
        """Fit on a file, the name of a dataset, a polars or pandas frame, a SciPy or NumPy matrix, or a Split.

        The data is split into train, validation and test as the ``data`` section says. The final model learns from
        train; with ``train={"refit": True}`` from validation too, with ``"all"`` from everything, once it is measured.
        ``out`` keeps the run in a folder.
        """
        if isinstance(data, str | Path):
            self._fitted = fit(self._config(str(data)), out=out, quiet=quiet)
        else:
            config = self._config("a table in memory")
            dataset = _dataset(data, config)
            dataset.warn()
            self._fitted = fit(config, dataset, out=out, quiet=quiet)
        return self

    def recommend(
        self, users: Sequence[Any] | None = None, k: int | None = None, *, filter_seen: bool = True
    ) -> pl.DataFrame:
        """The best ``k`` items of each user (default: everybody), one row a place.

        ``filter_seen`` leaves out all that the user has in the data, the test part and low ratings included. A user
        with fewer than k items left gets a shorter list; one of whom the model has seen nothing gets the most popular
        items, without scores.
        """
        fitted = self._checked()
        split = fitted.dataset.split
        rows = torch.arange(split.n_users) if users is None else _rows(split.users, users)
        seen = split.seen("below") if filter_seen else None
        with torch.no_grad():
            queries, items = fitted.model.encode()
        is_known = fitted.histories().counts[rows] > 0
        return self._table("user", split.users, rows, *self._ranked(queries, items, rows, is_known, seen, k))

    def recommend_new(
        self,
        histories: Mapping[Any, Iterable[Any]] | Iterable[Iterable[Any]],
        k: int | None = None,
        *,
        filter_seen: bool = True,
    ) -> pl.DataFrame:
        """The same table from what users did since training, for users who are not in the data too.

        >>> recommender = Recommender(k=10, model="ease").fit("synthetic")
        >>> recommender.recommend_new({"anna": [3, 7], "ben": [12]}, k=2)["user"].to_list()
        ['anna', 'anna', 'ben', 'ben']

        ``histories`` maps user ids to item ids: a user of the data keeps what they have there and gains the new items.
        Of a sequence of such lists, all users are new and the positions are their names. Items that are not in the data
        are skipped, with a warning. ``filter_seen`` leaves out what the user has; one who has nothing gets the most
        popular items, without scores. Models that have a vector for each user of the training, such as MF, score known
        users as before, list the popular items for new ones beside them, and refuse where all users are new.
        """
        fitted = self._checked()
        split = fitted.dataset.split
        arrived = arrive(histories, split.seen("below"), split.users, split.items)
        rows = torch.arange(len(arrived.users))
        with torch.no_grad():
            items = fitted.model.encode(rows[:0])[1]  # of no known user
            queries, is_scored = self._arrived_queries(arrived, items)
        seen = arrived.lists if filter_seen else None
        return self._table("user", arrived.users, rows, *self._ranked(queries, items, rows, is_scored, seen, k))

    def _arrived_queries(self, arrived: Arrivals, items: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Vectors of the users, and for whom they mean something."""
        model = self._checked().model
        try:
            return model.queries_of(arrived.lists.to(items.device)), arrived.lists.counts > 0
        except ConfigError:  # it has vectors for the users of its training only
            if not bool(arrived.is_known.any()):
                raise
        n_new = int((~arrived.is_known).sum())
        new = f"; {n_new:,} new users get the most popular items, without scores" if n_new else ""
        warnings.warn(
            f"{type(model).__name__} cannot learn from new interactions without training: users of the data are scored "
            f"as before, without what they have now{new}. topshelf models says which models can",
            TopshelfWarning,
            stacklevel=3,
        )
        was_seen = self._checked().histories().counts[arrived.rows.clamp(min=0)] > 0
        return model.encode(arrived.rows.clamp(min=0).to(items.device))[0], arrived.is_known & was_seen

    def similar_items(self, items: Sequence[Any], k: int = 10) -> pl.DataFrame:
        """The ``k`` items whose vectors point the same way as each of ``items``, itself left out."""
        fitted = self._checked()
        rows = _rows(fitted.dataset.split.items, items)
        with torch.no_grad():
            vectors = fitted.model.encode(rows[:0])[1].cpu()
            found = _alike(vectors, rows, min(at_least("k", whole("k", k), 1), vectors.size(0)))
        return self._table("item", fitted.dataset.split.items, rows, *found)

    def evaluate(self, protocol: str | None = None, cutoffs: tuple[int, ...] | None = None) -> Evaluation:
        """Full-ranking evaluation on the test part."""
        return self._checked().evaluate(protocol, cutoffs)

    def save(self, path: str | Path) -> None:
        """Write the run folder that :meth:`load` and the command line read."""
        save(self._checked(), path)

    @classmethod
    def load(cls, path: str | Path) -> Recommender:
        """The recommender that a run folder holds."""
        return cls.of(load(path))

    @classmethod
    def of(cls, fitted: Fitted) -> Recommender:
        """The recommender of a model that is fitted already."""
        config = fitted.config
        sections = config.model_dump(include={"negatives", "threshold", "train", "evaluate"})
        sections["data"] = config.data.model_dump(exclude={"source"})
        recommender = cls(
            k=config.k, seed=config.seed, model=config.model.model_dump(), loss=config.loss.model_dump(), **sections
        )
        recommender._fitted = fitted
        return recommender

    @property
    def fitted(self) -> Fitted:
        """The config, data and model behind the recommendations."""
        return self._checked()

    def _config(self, source: str | None) -> RunConfig:
        return assemble(data=source, **self._named, more=self._more)

    def _checked(self) -> Fitted:
        if self._fitted is None:
            raise TopshelfError("the recommender is not fitted yet: call fit(data) or Recommender.load(path)")
        return self._fitted

    def _ranked(
        self,
        queries: Any,
        items: torch.Tensor,
        rows: torch.Tensor,
        is_known: torch.Tensor,
        seen: Ragged | None,
        k: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and items of the first k places, (R, k); those of whom nothing is known get the popular ones."""
        config, split = self._checked().config, self._checked().dataset.split
        k = min(config.k if k is None else at_least("k", whole("k", k), 1), split.n_items)
        values, indices = top_k(queries, items.cpu(), k, exclude=seen, rows=rows)
        if not bool(is_known.all()):
            counts = torch.bincount(self._checked().histories().indices, minlength=split.n_items).float().unsqueeze(1)
            popular = top_k(torch.ones(len(queries), 1), counts, k, exclude=seen, rows=rows[~is_known])[1]
            values[~is_known], indices[~is_known] = torch.nan, popular
        return values, indices

    def _table(
        self, name: str, ids: IdMap, rows: torch.Tensor, values: torch.Tensor, indices: torch.Tensor
    ) -> pl.DataFrame:
        """One row a place, external ids, titles where there are any."""
        dataset = self._checked().dataset
        is_there = (indices >= 0).flatten().numpy()
        n, k = indices.shape
        found = indices.flatten().numpy()[is_there]
        other = "similar" if name == "item" else "item"
        columns = {
            name: ids.values.gather(rows.repeat_interleave(k).numpy()[is_there]),
            "rank": np.tile(np.arange(1, k + 1), n)[is_there],
            other: dataset.split.items.values.gather(found),
            "score": pl.Series(values.flatten().numpy()[is_there]).fill_nan(None),
        }
        if dataset.titles is not None:
            columns["title"] = pl.Series(dataset.titles).gather(found)
        return pl.DataFrame(columns)


class _UnitRows:
    """Vectors of length one, made where they are indexed."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = vectors

    def __len__(self) -> int:
        return self.vectors.size(0)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.vectors[rows], dim=1)


def _alike(vectors: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and items of the k whose vectors are nearest to those of the rows, themselves left out, (R, k)."""
    n_items, found = vectors.size(0), []
    for part in torch.split(torch.arange(n_items), max(1, _UNIT_BLOCK // (4 * vectors.size(1)))):
        start, width = int(part[0]), part.numel()
        itself = Ragged((torch.arange(n_items + 1) - start).clamp(0, width), torch.arange(width))
        unit = F.normalize(vectors[start : start + width], dim=1)
        values, indices = top_k(_UnitRows(vectors), unit, min(k, width), exclude=itself, rows=rows)
        found.append((values, torch.where(indices < 0, indices, indices + start)))
    values, indices = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    best, order = values.sort(dim=1, descending=True, stable=True)  # equal ones stay in the order of the items
    return best[:, :k], indices.gather(1, order[:, :k])


def _rows(ids: IdMap, wanted: Any) -> torch.Tensor:
    """Dense indices of external ids; a single id stands for a list of one."""
    if isinstance(wanted, torch.Tensor | np.ndarray | np.generic):
        wanted = wanted.tolist()
    listed = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    return torch.from_numpy(ids.index(listed).astype(np.int64)) if listed else torch.empty(0, dtype=torch.int64)


def _dataset(data: Any, config: RunConfig) -> Dataset:
    """A split from a table in memory."""
    settings = config.data
    if isinstance(data, Dataset | Split):
        if unused := settings.model_dump(exclude={"source"}, exclude_defaults=True):
            raise ConfigError(f"data settings must be left out for data that are split already, got {unused}")
        return data if isinstance(data, Dataset) else Dataset("split", data)
    if not isinstance(data, Interactions):
        is_matrix = isinstance(data, np.ndarray) or hasattr(data, "tocsr")
        columns = settings.model_dump(include={"user", "item", "weight", "timestamp", "dates"})
        data = Interactions.from_csr(data) if is_matrix else Interactions.from_frame(data, **columns)
    data, below = prepare(data, min_rating=settings.min_rating, core=settings.core)
    kept = {"split", "test_fraction", "valid_fraction", "last_n", "split_seed", "noise"}
    return split_interactions(data, name="table", below=below, seed=config.seed, **settings.model_dump(include=kept))
