"""A run of task ranking that is loaded to answer: scores of the documents of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from topshelf.answers import RankAnswer, RankedDocument
from topshelf.data.documents import Documents
from topshelf.errors import DataError
from topshelf.list_evaluation import order_of
from topshelf.ranker import Ranker
from topshelf.serving.bodies import MOST_DOCUMENTS, DocumentQuery


@dataclass(eq=False)
class LoadedRanker:
    """A ranker, with the names of its features. It does not change."""

    path: Path
    version: str
    ranker: Ranker

    @property
    def features(self) -> tuple[str, ...]:
        return self.ranker.features

    def rank(self, queries: Sequence[DocumentQuery], variant: str) -> list[RankAnswer]:
        """The documents of each query, best first; equal scores in the order of the request."""
        lengths = [len(one.documents) for one in queries]
        if sum(lengths) > MOST_DOCUMENTS:
            raise DataError(f"a request must have at most {MOST_DOCUMENTS} documents, got {sum(lengths)}")
        rows = [self._row(document, one) for one in queries for document in one.documents]
        features = np.array(rows, np.float32).reshape(len(rows), len(self.features))
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        documents = Documents(features, np.zeros(len(rows), np.float32), indptr, np.arange(len(queries)))
        scores = self.ranker.scores(documents.check("the documents"))
        order, values = order_of(scores, torch.from_numpy(indptr)).tolist(), scores.tolist()
        answers = []
        for place, one in enumerate(queries):
            start, stop = int(indptr[place]), int(indptr[place + 1])
            ranked = [RankedDocument(at - start, values[at]) for at in order[start:stop]]
            answers.append(RankAnswer(one.query, ranked, variant, self.version))
        return answers

    def _row(self, document: list[float] | dict[str, float], query: DocumentQuery) -> list[float]:
        names = self.features
        named = "" if query.query is None else f" of query {query.query!r}"
        if isinstance(document, dict):
            wrong = [name for name in names if name not in document] or [name for name in document if name not in names]
            if wrong:
                what = "has no feature" if wrong[0] in names else "has a feature that the run does not know,"
                raise DataError(f"a document{named} {what} {wrong[0]!r}; it must have {', '.join(names[:20])}")
            return [document[name] for name in names]
        if len(document) != len(names):
            raise DataError(f"a document{named} must have {len(names)} features, got {len(document)}")
        return document
