"""Approximate lists by an index of Faiss, whose recall is measured before it serves."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topshelf import files
from topshelf.errors import ConfigError
from topshelf.ranking import top_k
from topshelf.serving.settings import IndexSettings

_MOST_OVER = 4096  # an index is asked for at most so many items; a longer exclude list is ranked exactly
_EFFORTS = (64, 128, 256, 512, 1024)
_SAMPLE = 200


class Index:
    """An index over the item vectors; ``recall`` is the share of the exact top k that it finds."""

    def __init__(self, vectors: Tensor, settings: IndexSettings, queries: Tensor, k: int) -> None:
        self.settings, self.n_items = settings, vectors.size(0)
        self._faiss = _faiss(settings.kind)
        self._index = self._kept(vectors) or self._built(vectors)
        self._local = threading.local()
        self.effort = 0
        self.recall = self._measured(vectors, queries, min(k, self.n_items))

    def search(
        self, vectors: Tensor, k: int, exclude: Sequence[np.ndarray], mask: np.ndarray | None
    ) -> list[np.ndarray | None]:
        """At least k items for each query of vectors (Q, d); None where the index does not find so many."""
        wanted = k + max(len(one) for one in exclude)
        if wanted > min(_MOST_OVER, self.n_items):
            return [None] * len(exclude)
        n = min(2 * wanted, self.n_items)
        rows = self._index.search(vectors.float().numpy(), n, params=self._parameters(mask))[1]
        lists = [row[(row >= 0) & ~np.isin(row, own)] for row, own in zip(rows, exclude, strict=True)]
        return [one if len(one) >= k else None for one in lists]

    def _parameters(self, mask: np.ndarray | None) -> Any:
        faiss, options = self._faiss, {}
        if mask is not None:
            self._local.bits = np.packbits(mask, bitorder="little")  # faiss does not own it
            bits = self._local.bits
            options["sel"] = faiss.IDSelectorBitmap(bits.size, faiss.swig_ptr(bits))
        if self.settings.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=self.effort, **options)
        return faiss.SearchParameters(**options)

    def _built(self, vectors: Tensor) -> Any:
        faiss, rows = self._faiss, np.ascontiguousarray(vectors.float().numpy())
        if self.settings.kind == "hnsw":
            index = faiss.IndexHNSWFlat(rows.shape[1], self.settings.links, faiss.METRIC_INNER_PRODUCT)
        else:
            index = faiss.IndexScalarQuantizer(rows.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
            index.train(rows)
        index.add(rows)
        place = self._place(vectors)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write(place, lambda file: faiss.write_index(index, str(file)))
            files.write_sealed(place.with_suffix(".json"), {"sha256": files.digest(place)})
        return index

    def _kept(self, vectors: Tensor) -> Any:
        """The index of an earlier start; None unless it is whole and of these vectors."""
        place = self._place(vectors)
        if place is None or not place.is_file() or not place.with_suffix(".json").is_file():
            return None
        if files.read_sealed(place.with_suffix(".json"), is_always_sealed=True).get("sha256") != files.digest(place):
            return None
        return self._faiss.read_index(str(place))

    def _place(self, vectors: Tensor) -> Path | None:
        """Named for the vectors and the settings, so that another run's index is never taken for this one's."""
        if self.settings.folder is None:
            return None
        total = hashlib.sha256(np.ascontiguousarray(vectors.float().numpy()).view(np.uint8).data).hexdigest()[:24]
        return Path(self.settings.folder) / f"{self.settings.kind}-{self.settings.links}-{total}.faiss"

    def _measured(self, vectors: Tensor, queries: Tensor, k: int) -> float:
        """Recall over a sample of queries; hnsw searches more until it is as wanted."""
        some = queries[torch.linspace(0, len(queries) - 1, min(_SAMPLE, len(queries))).long()].float()
        exact = top_k(some, vectors.float(), k)[1].numpy()
        recall = 0.0
        for effort in _EFFORTS if self.settings.kind == "hnsw" else (0,):
            self.effort = effort
            found = self.search(some, k, [np.zeros(0, np.int64)] * len(some), None)
            recall = float(np.mean([_share(want, got) for want, got in zip(exact, found, strict=True)]))
            if recall >= self.settings.recall:
                return recall
        raise ConfigError(
            f"index.kind {self.settings.kind} reaches recall@{k} {recall:.3f}, and index.recall asks for "
            f"{self.settings.recall}; give index.links more, lower index.recall, or use index.kind exact"
        )


def _share(wanted: np.ndarray, found: np.ndarray | None) -> float:
    return 1.0 if found is None else float(np.isin(wanted, found).mean())


def _faiss(kind: str) -> Any:
    if find_spec("faiss") is None:
        raise ConfigError(f"index.kind {kind} needs the package faiss-cpu: pip install 'topshelf[export]'")
    import faiss

    return faiss
