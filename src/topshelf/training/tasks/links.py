"""Links: pairs of nodes of a graph, each held-out edge ranked against pairs that are none."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

from topshelf import files
from topshelf.config import BaseConfig
from topshelf.data.graphs import LinkData, from_state, to_state
from topshelf.data.ids import IdMap
from topshelf.data.links import load_links, warn_of, with_negatives
from topshelf.data.memory import available
from topshelf.data.splits import Through
from topshelf.edge_ranks import edge_ranks, rank_metrics
from topshelf.errors import CheckpointError, ConfigError, DataError, at_most, one_of
from topshelf.evaluation import Evaluation
from topshelf.graphs import LinkGraph
from topshelf.link_settings import LinksConfig
from topshelf.models.link_base import LinkModel
from topshelf.training import checkpoint
from topshelf.training.build import build_loss
from topshelf.training.examination import Examination
from topshelf.training.folder import RunFolder
from topshelf.training.link_build import build_link_objective, link_sizes
from topshelf.training.link_examination import examine_links
from topshelf.training.link_objective import LinkObjective
from topshelf.training.tasks.base import Part, Task

_FILES = ("links.safetensors", "nodes.parquet")
_MAX_NODES = 2**31  # more nodes than any table of vectors holds


class LinksTask(Task):
    """A graph whose missing edges are to be found."""

    name: ClassVar[str] = "links"
    units: ClassVar[str] = "edges"
    validated: ClassVar[str] = "every edge ranked against its own negatives"

    def __init__(self, data: LinkData, device: str = "cpu") -> None:
        self.data, self.device = data.check(), device

    @classmethod
    def load(cls, config: LinksConfig, *, test: bool = True) -> LinkData:
        settings = config.data.model_dump()
        data = load_links(settings.pop("source"), **settings, test=test)
        warn_of(data)
        evaluate = config.evaluate
        return with_negatives(data, evaluate.protocol, evaluate.n_negatives, config.data.split_seed)

    @classmethod
    def of(cls, data: LinkData, device: str) -> LinksTask:
        return cls(data, device)

    @classmethod
    def save(cls, folder: RunFolder, data: LinkData) -> Sequence[Path]:
        links, nodes = (folder.path / name for name in _FILES)
        checkpoint.save(links, to_state(data))
        files.write(nodes, pl.DataFrame({"id": data.nodes.values}).write_parquet)
        return links, nodes

    @classmethod
    def read(cls, folder: RunFolder, config: LinksConfig) -> LinkData:  # noqa: ARG003
        links, nodes = (folder.path / name for name in _FILES)
        folder.check_data_files(links, nodes)
        state = checkpoint.load(links)
        try:
            ids = pl.read_parquet(nodes, glob=False)["id"]
            if ids.dtype not in (pl.Int64, pl.String):
                raise DataError(f"ids must be whole numbers or text, got {ids.dtype}")
            data = from_state(state, IdMap(ids))
            if not len(data.edges["train"]):
                raise DataError("there must be train edges, got none")
            return data
        except (OSError, DataError, pl.exceptions.PolarsError) as error:
            raise CheckpointError(f"{folder.path} is damaged: its data do not fit together: {error}") from None

    @classmethod
    def for_tuning(cls, data: LinkData) -> LinkData:
        if not len(data.edges["valid"]):
            raise DataError(
                f"{data.name} has no valid edges, and tuning is measured on them. Use more data, or a larger "
                "data.valid_fraction"
            )
        return data.without_test()

    @classmethod
    def save_parts(cls, path: Path, data: LinkData) -> None:
        checkpoint.save(path, to_state(data))

    @classmethod
    def load_parts(cls, path: Path, config: LinksConfig) -> LinkData:  # noqa: ARG003
        state = checkpoint.load(path)
        n_nodes = state["n_nodes"]
        if type(n_nodes) is not int or not 1 <= n_nodes < _MAX_NODES or 8 * n_nodes > available():
            raise DataError(f"n_nodes must be a whole number from 1 on that fits into memory, got {n_nodes!r}")
        return cls.for_tuning(from_state(state, IdMap.range(n_nodes)))

    @classmethod
    def fingerprint(cls, data: LinkData) -> str:
        total = zlib.crc32(f"{data.n_nodes} {data.n_features} {data.is_directed}".encode())
        for table in (data.edges["train"], data.edges["valid"], data.negatives["valid"]):
            total = zlib.crc32(np.ascontiguousarray(table).data, total)
        return f"{total:08x}"

    @property
    def n_items(self) -> int:
        return self.data.n_nodes

    def sizes(self) -> tuple[int, ...]:
        return self.data.n_nodes, self.data.n_features, int(self.data.is_directed)

    def has(self, part: Part) -> bool:
        return len(self.data.edges[part]) > 0

    def context(self, through: Through) -> LinkGraph:
        return self.data.graph("all" if through == "below" else through).to(self.device)

    def objective(self, config: LinksConfig, model: LinkModel, through: Through) -> LinkObjective:
        graph = self.context(through)
        loss = build_loss(config, **link_sizes(graph)).to(self.device)
        return build_link_objective(config, model, loss, graph)

    def lines(self, through: Through) -> list[str]:
        data = self.data
        parts = ", ".join(f"{len(data.edges[part]):,} {part}" for part in ("train", "valid", "test"))
        kind = "directed" if data.is_directed else "undirected"
        lines = [f"{data.n_nodes:,} nodes, {data.n_features:,} features; {kind} edges: {parts}"]
        if n_alone := int((self.context(through).degrees == 0).sum()):
            lines.append(f"nodes without an edge that the model has seen: {n_alone:,}")
        return lines

    def examine(self, model: LinkModel, config: LinksConfig, part: Part, through: Through, *, n: int) -> Examination:
        return examine_links(self, model, config, part, through, n)

    def usage(self, out: str) -> str:
        return f"new links of a node: topshelf links {out} --node ID"

    def metric(self, config: BaseConfig) -> str:  # noqa: ARG002
        return "mrr"

    def validate(self, model: LinkModel, k: int) -> float:  # noqa: ARG002
        """The mean reciprocal rank, as HeaRT's runs are chosen by."""
        return float((1 / self._ranks(model, "valid")).mean())

    def measure(
        self,
        model: LinkModel,
        part: Part,
        config: LinksConfig,
        *,
        protocol: str | None = None,
        cutoffs: Sequence[int] | None = None,
    ) -> Evaluation:
        if protocol not in (None, config.evaluate.protocol):
            one_of("protocol", protocol, ("heart", "uniform"))
            raise ConfigError(
                f"this run was evaluated by protocol {config.evaluate.protocol!r}, and its folder has the negatives of "
                f"no other, got {protocol!r}; train with --set evaluate.protocol={protocol}"
            )
        chosen = tuple(cutoffs or self.cutoffs(config))
        ranks = self._ranks(model, part)
        return Evaluation(
            config.evaluate.protocol,
            chosen,
            torch.arange(ranks.numel()),
            rank_metrics(ranks, chosen),
            fingerprint=self._print_of(part),
            units=self.units,
        )

    def cutoffs(self, config: BaseConfig) -> tuple[int, ...]:
        return config.cutoffs

    @torch.no_grad()
    def _ranks(self, model: LinkModel, part: Part) -> Tensor:
        """The rank of each held-out edge among its negatives, by the graph that the model has seen."""
        was_training = model.training
        model.eval()
        try:
            graph = model.graph
            nodes = model.encode_nodes(graph)
            pairs = [self._tensor(table) for table in (self.data.edges[part], self._negatives(part))]
            return edge_ranks(*(model.score_all(nodes, some, graph) for some in pairs)).cpu()
        finally:
            model.train(was_training)

    def _tensor(self, table: np.ndarray) -> Tensor:
        return torch.from_numpy(table.copy()).to(self.device)

    def _negatives(self, part: Part) -> np.ndarray:
        if part not in self.data.negatives:
            raise DataError(f"{self.data.name} has no negatives for its {part} edges; see with_negatives")
        return self.data.negatives[part]

    def _print_of(self, part: Part) -> int:
        """Equal for equal edges and negatives: only such evaluations can be compared."""
        total = zlib.crc32(np.ascontiguousarray(self.data.edges[part]).data)
        return zlib.crc32(np.ascontiguousarray(self._negatives(part)).data, total)

    def check_sizes(self, config: BaseConfig, name: str) -> None:
        for setting, k in (("k", config.k), ("loss.k", config.loss.settings.get("k", 1))):
            at_most(setting, k, self.data.n_nodes - 1, f"{name} has {self.data.n_nodes} nodes")

    def check(self, config: BaseConfig, name: str) -> None:
        assert isinstance(config, LinksConfig)
        self.check_sizes(config, name)
        wanted: dict[Part, str] = {"valid": "data.valid_fraction", "test": "data.test_fraction"}
        if config.data.test_fraction == 0:
            del wanted["test"]
        for part, setting in wanted.items():
            if not self.has(part):
                raise DataError(f"{name} has no {part} edges. Use more data, or a larger {setting}")
        if not len(self.data.edges["train"]):
            raise DataError(f"{name} has no train edges. Use more data, or smaller held-out parts")
