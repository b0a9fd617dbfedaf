"""Link prediction to import: fit, recommend, score, evaluate, save, load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from topshelf.config import LinksConfig, assemble, of_task
from topshelf.data.graphs import LinkData
from topshelf.data.ids import UNKNOWN
from topshelf.data.links import with_negatives
from topshelf.errors import DataError, TopshelfError, at_least
from topshelf.evaluation import Evaluation
from topshelf.graphs import LinkGraph
from topshelf.models.link_base import LinkModel
from topshelf.training import Fitted, fit, load, save
from topshelf.training.build import resolve

_SCORES_AT_ONCE = 1 << 24


class LinkPredictor:
    """Finds the links that a graph lacks, by any model and loss.

    ``model`` and ``loss`` are names, or settings with a name, such as ``{"name": "gcn", "dim": 64}``. ``more`` are the
    other sections of the run's config, such as ``data={"features": "x.npy"}`` or ``train={"epochs": 50}``.
    """

    def __init__(
        self,
        *,
        k: int = 20,
        model: str | Mapping[str, Any] = "gcn",
        loss: str | Mapping[str, Any] = "slatk",
        seed: int = 0,
        **more: Any,
    ) -> None:
        parts = {"model": model, "loss": loss}
        self._sections = {name: {"name": one} if isinstance(one, str) else dict(one) for name, one in parts.items()}
        self._more, self._k, self._seed = more, k, seed
        self._fitted: Fitted | None = None
        resolve(self._config("edges"))  # bad settings fail here, not after the data is read

    def fit(self, data: str | Path | LinkData, *, out: str | Path | None = None, quiet: bool = True) -> LinkPredictor:
        """Fit on a file of edges, on HeaRT's or Planetoid's files, or on a :class:`LinkData`.

        Edges are split as the ``data`` section says. ``out`` keeps the run in a folder.
        """
        if isinstance(data, LinkData):
            config = self._config(data.name)
            evaluate, seed = config.evaluate, config.data.split_seed
            data = with_negatives(data.check(), evaluate.protocol, evaluate.n_negatives, seed)
            self._fitted = fit(config, data, out=out, quiet=quiet)
        else:
            self._fitted = fit(self._config(str(data)), out=out, quiet=quiet)
        return self

    @classmethod
    def load(cls, out: str | Path, *, allow: Collection[str] = ()) -> LinkPredictor:
        """The predictor of a run folder."""
        fitted = load(out, allow=allow)
        of_task(fitted.config, LinksConfig, "a LinkPredictor")
        predictor = cls()
        predictor._fitted = fitted
        return predictor

    def save(self, out: str | Path) -> None:
        save(self.fitted, out)

    @property
    def fitted(self) -> Fitted:
        if self._fitted is None:
            raise TopshelfError("this LinkPredictor is not fitted yet: call fit(data), or load(folder)")
        return self._fitted

    @property
    def data(self) -> LinkData:
        data: LinkData = self.fitted.dataset
        return data

    def evaluate(self, cutoffs: Sequence[int] | None = None) -> Evaluation:
        """The metrics of the test part."""
        return self.fitted.evaluate(cutoffs=None if cutoffs is None else tuple(cutoffs))

    def recommend(
        self, nodes: Iterable[Any] | None = None, k: int | None = None, *, filter_known: bool = True
    ) -> pl.DataFrame:
        """The best ``k`` new links of each node (default: of all nodes), one row per place.

        Columns ``node``, ``rank``, ``other`` and ``score``. ``filter_known`` leaves out the edges that are in the data,
        also those of the held-out parts. In a directed graph the node is the source.
        """
        k = at_least("k", self.fitted.config.k if k is None else k, 1)
        data, known = self.data, self.data.graph("all")
        asked = torch.arange(data.n_nodes) if nodes is None else torch.tensor(data.nodes.index(list(nodes)))
        model, graph, vectors = self._ready()
        everyone, tables = torch.arange(data.n_nodes), []
        for part in asked.split(max(1, _SCORES_AT_ONCE // data.n_nodes)):
            with torch.no_grad():
                scores = model.score_others(vectors, part, everyone, graph)
            mask = known.known_mask(part, everyone, torch.zeros_like(part))
            if not filter_known:
                mask = part.unsqueeze(1) == everyone.unsqueeze(0)
            tables.append(self._listed(part, scores.masked_fill(mask, -torch.inf), k))
        return pl.concat(tables)

    def _listed(self, nodes: Tensor, scores: Tensor, k: int) -> pl.DataFrame:
        # A stable sort, so that ties are in the order of the nodes.
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
        best = scores.gather(1, order)
        row, place = (best > -torch.inf).nonzero(as_tuple=True)
        ids = self.data.nodes
        return pl.DataFrame(
            {
                "node": ids.values.gather(nodes[row].numpy()),
                "rank": (place + 1).numpy(),
                "other": ids.values.gather(order[row, place].numpy()),
                "score": best[row, place].numpy(),
            }
        )

    def score(self, pairs: Any) -> pl.DataFrame:
        """The score of each pair of nodes, known edge or not: columns ``source``, ``target`` and ``score``.

        ``pairs``: a list of (source, target), or a frame whose first two columns they are.
        """
        sources, targets = _ends(pairs)
        ids = self.data.nodes
        index = np.column_stack([_known(ids.find(one), one) for one in (sources, targets)]).reshape(-1, 2)
        model, graph, vectors = self._ready()
        scores = model.score_all(vectors, torch.from_numpy(index), graph)
        ends = {"source": ids.values.gather(index[:, 0]), "target": ids.values.gather(index[:, 1])}
        return pl.DataFrame({**ends, "score": scores.numpy()})

    @torch.no_grad()
    def _ready(self) -> tuple[LinkModel, LinkGraph, Tensor]:
        """The model on the CPU, the graph that it has seen, and the vectors of all nodes."""
        model: LinkModel = self.fitted.model.to("cpu").eval()
        graph = self.data.graph("all" if self.fitted.through == "below" else self.fitted.through)
        model.attach(graph)
        return model, graph, model.encode_nodes(graph)

    def _config(self, source: str) -> LinksConfig:
        data = {**dict(self._more.get("data", {})), "source": source}
        more = {**{key: one for key, one in self._more.items() if key != "data"}, **self._sections, "data": data}
        config = assemble(task="links", k=self._k, seed=self._seed, more=more)
        return of_task(config, LinksConfig, "a LinkPredictor")


def _ends(pairs: Any) -> tuple[list[Any], list[Any]]:
    if hasattr(pairs, "columns"):
        if len(pairs.columns) < 2:
            raise DataError(f"pairs must have two columns of nodes, got {list(pairs.columns)}")
        first, second = list(pairs.columns)[:2]
        return list(pairs[first]), list(pairs[second])
    rows = list(pairs)
    if any(len(row) != 2 for row in rows):
        raise DataError("pairs must be (source, target), got a row of another length")
    return [row[0] for row in rows], [row[1] for row in rows]


def _known(index: np.ndarray, ids: list[Any]) -> np.ndarray:
    if (index == UNKNOWN).any():
        first = int(np.flatnonzero(index == UNKNOWN)[0])
        raise DataError(
            f"pairs must be of nodes of the run's data, got {ids[first]!r} in row {first + 1}; leave it out, or train "
            "on a graph that has it"
        )
    return index
