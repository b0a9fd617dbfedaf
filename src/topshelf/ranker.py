"""The estimator for documents: fit, rank, evaluate, save, load."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from topshelf import registry
from topshelf.config import RankingConfig, assemble, of_task
from topshelf.data.documents import Documents, RankingData
from topshelf.data.ranking_sources import read_documents, split_documents
from topshelf.data.ranking_tables import TableColumns, documents_of_frame
from topshelf.errors import ConfigError, DataError, TopshelfError
from topshelf.evaluation import Evaluation
from topshelf.list_evaluation import evaluate_scores, order_of
from topshelf.models.lists import ListModel
from topshelf.training import Fitted, fit, save
from topshelf.training.build import components, resolve
from topshelf.training.folder import RunFolder
from topshelf.training.run import load as load_run
from topshelf.training.run import load_model
from topshelf.training.tasks.ranking import graded_lists, read_about

IN_MEMORY = "a table in memory"


class Ranker:
    """Ranks the documents of queries by their features, with any model and listwise loss.

    >>> import polars as pl
    >>> from topshelf import Ranker
    >>> table = pl.DataFrame({"query": [n // 4 for n in range(80)], "grade": [n % 4 for n in range(80)],
    ...                       "clicks": [n % 4 for n in range(80)]})
    >>> ranker = Ranker(k=3, model="linear_ranker", loss="softmax", train={"epochs": 2}).fit(table)
    >>> ranker.rank(table.head(8)).columns
    ['query', 'document', 'score', 'rank']

    ``model`` and ``loss`` are names, settings such as ``loss={"name": "slatk", "tau": 0.5}``, or your own classes and
    instances. ``more`` are the other sections of the run's config, such as ``train={"epochs": 50}``.
    """

    def __init__(
        self, *, k: int = 10, model: Any = "transformer", loss: Any = "slatk", seed: int = 0, **more: Any
    ) -> None:
        self._named: dict[str, Any] = {"k": k, "seed": seed}
        self._more: Mapping[str, Any] = components({"model": model, "loss": loss, **more}, "ranking")
        self._fitted: Fitted | None = None
        self._model: ListModel | None = None
        self._features: tuple[str, ...] = ()
        self._folder: Path | None = None
        resolve(self._config("mq2008"))  # bad settings fail here, not after the data are read

    def fit(self, data: Any, *, out: str | Path | None = None, quiet: bool = True) -> Ranker:
        """Fit on a file, a folder, the name of a dataset, a polars or pandas frame, or a RankingData.

        The data are split by query into train, validation and test as the ``data`` section says, unless they come in
        parts. ``out`` keeps the run in a folder.
        """
        if isinstance(data, str | Path):
            return self._set(fit(self._config(str(data)), out=out, quiet=quiet))
        config = self._config(IN_MEMORY)
        parts = data if isinstance(data, RankingData) else _parts(data, config)
        parts.warn()
        return self._set(fit(config, parts, out=out, quiet=quiet))

    def rank(self, data: Any, k: int | None = None) -> pl.DataFrame:
        """Scores of new queries: a file or a frame with the features of the training; grades are not needed.

        One row per document in the order of the data: ``query``, ``document`` (its place in the query's list, from 1),
        ``score``, and ``rank`` (1 is best, equal scores in the order of the data). With ``k``, the first k places of
        each query, best first.
        """
        documents = self._documents(data, needs_grades=False)
        scores = self.scores(documents)
        order, indptr = order_of(scores, torch.tensor(documents.indptr)).numpy(), documents.indptr
        owner = np.repeat(np.arange(len(documents)), documents.lengths)
        place = np.arange(documents.n_documents) - indptr[owner] + 1
        rank = np.empty_like(place)
        rank[order] = place
        columns = {"query": documents.query_ids[owner], "document": place, "score": scores.numpy(), "rank": rank}
        table = pl.DataFrame(columns)
        return table if k is None else table[order].filter(pl.col("rank") <= _at_least_one(k))

    @torch.no_grad()
    def scores(self, documents: Documents) -> Tensor:
        """A score per document, (D,), on the CPU."""
        lists = graded_lists(documents)
        return self.model.score(lists.features, lists.indptr).cpu()

    def evaluate(self, data: Any = None, cutoffs: Sequence[int] | None = None) -> Evaluation:
        """The metrics on the test part, or on a file or frame with grades."""
        if data is None:
            return self.fitted.evaluate(cutoffs=None if cutoffs is None else tuple(cutoffs))
        documents, settings = self._documents(data, needs_grades=True), self.config.evaluate
        return evaluate_scores(
            self.scores(documents),
            documents.grades,
            documents.indptr,
            cutoffs or self.config.cutoffs,
            empty=settings.empty,
            gain=settings.gain,
        )

    def save(self, path: str | Path) -> None:
        """Write the fitted model as a run folder, which the command line takes too."""
        save(self.fitted, path)

    @classmethod
    def load(cls, path: str | Path, *, allow: Collection[str] = ()) -> Ranker:
        """The model of a run folder. Its data are read only where they are needed, by :meth:`evaluate`."""
        registry.allow(allow)
        folder = RunFolder.open(path)
        config = of_task(folder.load_config(), RankingConfig, "a Ranker")
        ranker = cls.__new__(cls)
        ranker._named, ranker._more, ranker._fitted = {}, {}, None
        ranker._folder, ranker._loaded_config = Path(path), config
        ranker._features = read_about(folder).feature_names
        if folder.is_finished:
            ranker._model = load_model(folder, config, len(ranker._features))
        else:
            ranker._model = None
            ranker._model = ranker.fitted.model
        return ranker

    _loaded_config: RankingConfig | None = None

    @property
    def config(self) -> RankingConfig:
        """The resolved config of the fitted model."""
        return self.fitted.config if self._loaded_config is None else self._loaded_config

    @property
    def model(self) -> ListModel:
        if self._model is None:
            raise TopshelfError("this Ranker is not fitted: call fit(data) first")
        return self._model

    @property
    def fitted(self) -> Fitted:
        """The fitted model with its data; of a loaded Ranker the data are read now."""
        if self._fitted is None:
            if self._folder is None:
                raise TopshelfError("this Ranker is not fitted: call fit(data) first")
            self._fitted = load_run(self._folder)
        return self._fitted

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return self._features

    def _set(self, fitted: Fitted) -> Ranker:
        self._fitted, self._model = fitted, fitted.model
        self._features, self._loaded_config = fitted.dataset.feature_names, None
        return self

    def _config(self, source: str) -> RankingConfig:
        config = assemble(task="ranking", data=source, more=self._more, **self._named)
        return of_task(config, RankingConfig, "a Ranker")

    def _documents(self, data: Any, *, needs_grades: bool) -> Documents:
        """New queries with the features of the model."""
        self.model  # noqa: B018  refuses a Ranker that is not fitted
        settings = self.config.data
        if isinstance(data, Documents):
            if data.n_features != len(self._features):
                raise DataError(f"the documents must have {len(self._features)} features, got {data.n_features}")
            return data.check("the documents")
        columns = TableColumns(settings.query, settings.grade, self._features)
        if isinstance(data, str | Path):
            return read_documents(data, columns, needs_grades=needs_grades)
        return documents_of_frame(data, columns, needs_grades=needs_grades).documents


def _parts(data: Any, config: RankingConfig) -> RankingData:
    settings = config.data
    columns = TableColumns(settings.query, settings.grade, settings.features)
    documents, names = documents_of_frame(data, columns)
    fractions = {"valid_fraction": settings.valid_fraction, "test_fraction": settings.test_fraction}
    return split_documents(
        documents, names, name=IN_MEMORY, seed=config.seed, split_seed=settings.split_seed, **fractions
    )


def _at_least_one(k: int) -> int:
    if k < 1:
        raise ConfigError(f"k must be >= 1, got {k}")
    return k
