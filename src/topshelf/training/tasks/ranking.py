"""Ranking: the documents of each query, by their features. A run keeps a fingerprint of its data, not a copy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from topshelf import files
from topshelf.config import BaseConfig, RankingConfig
from topshelf.data.documents import Documents, RankingData
from topshelf.data.ranking_sources import PARTS, load_ranking
from topshelf.data.splits import Through
from topshelf.errors import CheckpointError, ConfigError, DataError, one_of
from topshelf.evaluation import Evaluation
from topshelf.graded_lists import GradedLists, ListContext
from topshelf.list_evaluation import evaluate_scores, mean_ndcg
from topshelf.models.lists import ListModel
from topshelf.training import checkpoint
from topshelf.training.build import build_loss
from topshelf.training.examination import Examination
from topshelf.training.folder import RunFolder
from topshelf.training.list_examination import examine_lists
from topshelf.training.list_objective import ListBatches, ListObjective
from topshelf.training.objective import Objective
from topshelf.training.tasks.base import Part, Task

ABOUT = "documents.json"
_FORMAT = 1
_TUNED = ("train", "valid")


class AboutData(NamedTuple):
    """What a run keeps of its data. ``path`` is where they were, None for tables in memory."""

    name: str
    path: str | None
    feature_names: tuple[str, ...]
    fingerprints: dict[str, str]


class RankingTask(Task):
    """Queries with a list of documents each."""

    name: ClassVar[str] = "ranking"
    units: ClassVar[str] = "queries"
    validated: ClassVar[str] = "queries with nothing to find left out"

    def __init__(self, data: RankingData, device: str = "cpu") -> None:
        self.data, self.device = data, device
        self.lists = cache(self._lists)

    @classmethod
    def load(cls, config: RankingConfig, *, test: bool = True) -> RankingData:
        data = _load(config, test)
        data.warn()
        return data

    @classmethod
    def of(cls, data: RankingData, device: str) -> RankingTask:
        return cls(data, device)

    @classmethod
    def save(cls, folder: RunFolder, data: RankingData) -> Sequence[Path]:
        path = folder.path / ABOUT
        files.write_sealed(path, _description(data, PARTS))
        return [path]

    @classmethod
    def read(cls, folder: RunFolder, config: RankingConfig) -> RankingData:
        """The data as they were, read again from their source; refused if they have changed."""
        return _read_again(read_about(folder), config, f"the run in {folder.path}", test=True)

    @classmethod
    def for_tuning(cls, data: RankingData) -> RankingData:
        data = replace(data, test=data.train.none())
        if not cls(data).has("valid"):
            raise DataError(
                f"the valid part of {data.name} has no relevant document (a grade above 0), and tuning is measured on "
                "it. Use more queries, or a larger data.valid_fraction"
            )
        return data

    @classmethod
    def save_parts(cls, path: Path, data: RankingData) -> None:
        """A study keeps a fingerprint too, and reads its data again."""
        checkpoint.save(path, _description(data, _TUNED))

    @classmethod
    def load_parts(cls, path: Path, config: RankingConfig) -> RankingData:
        return _read_again(_about(checkpoint.load(path), path), config, f"the study in {path.parent}", test=False)

    @classmethod
    def fingerprint(cls, data: RankingData) -> str:
        sums = "".join(data.parts[name].fingerprint() for name in _TUNED)
        return f"{zlib.crc32(sums.encode()):08x}"

    def sizes(self) -> tuple[int, ...]:
        return (self.data.n_features,)

    def has(self, part: Part) -> bool:
        return bool((self.data.parts[part].grades > 0).any())

    def _lists(self, part: str) -> GradedLists:
        return graded_lists(self.data.parts[part]).to(self.device)

    def context(self, through: Through) -> ListContext:
        if through == "train":
            return ListContext(self.lists("train"), self.lists("valid") if self.has("valid") else None)
        return ListContext(graded_lists(self.data.through(through)).to(self.device))

    def objective(self, config: RankingConfig, model: ListModel, through: Through) -> Objective:
        context, train = self.context(through), config.train
        model.prepare(context)
        batches = ListBatches(context.train, size=train.batch_size, slate=train.slate)
        return ListObjective(model, build_loss(config, 1, 1, 1).to(self.device), batches)

    @torch.no_grad()
    def validate(self, model: ListModel, k: int) -> float:
        lists = self.lists("valid")
        return mean_ndcg(model.score(lists.features, lists.indptr), lists.grades, lists.indptr, k)

    @torch.no_grad()
    def measure(
        self,
        model: ListModel,
        part: Part,
        config: RankingConfig,
        *,
        protocol: str | None = None,
        cutoffs: Sequence[int] | None = None,
    ) -> Evaluation:
        one_of("protocol", protocol or "standard", ["standard"])
        lists, settings = self.lists(part), config.evaluate
        return evaluate_scores(
            model.score(lists.features, lists.indptr),
            lists.grades,
            lists.indptr,
            cutoffs or self.cutoffs(config),
            empty=settings.empty,
            gain=settings.gain,
            highest=self.data.highest_grade,
            protocol=settings.protocol,
        )

    def lines(self, through: Through) -> list[str]:  # noqa: ARG002
        counts = ", ".join(f"{len(part):,} {name}" for name, part in self.data.parts.items())
        return [f"{self.data.n_features:,} features, grades up to {self.data.highest_grade:g}; queries: {counts}"]

    def examine(self, model: ListModel, config: RankingConfig, part: Part, through: Through, *, n: int) -> Examination:
        return examine_lists(self, model, config, part, through, n)

    def usage(self, out: str) -> str:
        return f"rank new queries: topshelf rank {out} FILE --out scores.csv"

    def check(self, config: BaseConfig, name: str) -> None:
        super().check(config, name)
        assert isinstance(config, RankingConfig)
        for setting, value, wanted in (
            ("order", config.train.order, "query"),
            ("optimizer", config.train.optimizer, "adam"),
            ("precision", config.train.precision, "float32"),
        ):
            if value != wanted:
                raise ConfigError(f"train.{setting} must be {wanted!r} for task ranking, got {value!r}")
        wanted_parts: list[Part] = ["valid"] if config.data.test_fraction == 0 else ["valid", "test"]
        for part in wanted_parts:
            if not self.has(part):
                raise DataError(
                    f"the {part} part of {name} has no relevant document (a grade above 0), so nothing can be "
                    f"measured on it. Use more queries, or a larger data.{part}_fraction"
                )


def _load(config: RankingConfig, test: bool) -> RankingData:
    settings = config.data.model_dump()
    return load_ranking(settings.pop("source"), **settings, seed=config.seed, with_test=test)


def graded_lists(documents: Documents) -> GradedLists:
    """The same arrays as tensors; copied only where they cannot be written to, which torch warns of."""
    arrays = (documents.features, documents.grades, documents.indptr)
    return GradedLists(*(torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays))


def _read_again(about: AboutData, config: RankingConfig, owner: str, *, test: bool) -> RankingData:
    """The data of a run or a study, refused if they have changed."""
    if about.path is None:
        raise CheckpointError(
            f"the data of {owner} were tables in memory, and only their fingerprint is kept. Its model ranks new "
            "queries (topshelf rank), but it cannot be continued or evaluated on its own data"
        )
    try:
        data = _load(config, test)
    except (DataError, OSError) as error:
        raise CheckpointError(
            f"the data of {owner} cannot be read again from data.source = {config.data.source!r} (they were at "
            f"{about.path}): {error} Put them back, or correct data.source in its config.toml"
        ) from None
    if changed := [name for name, kept in about.fingerprints.items() if data.parts[name].fingerprint() != kept]:
        raise CheckpointError(
            f"the data of {owner} have changed since it began: {config.data.source} gives another "
            f"{' and '.join(changed)} part. Put the old file back, or begin anew"
        )
    return data


def _description(data: RankingData, parts: Sequence[str]) -> dict[str, Any]:
    fingerprints = {name: data.parts[name].fingerprint() for name in parts}
    about = AboutData(data.name, data.path, data.feature_names, fingerprints)
    return {"format": _FORMAT, **about._asdict(), "feature_names": list(data.feature_names)}


def read_about(folder: RunFolder) -> AboutData:
    """What a run kept of its data."""
    path = folder.path / ABOUT
    folder.check_data_files(path)
    return _about(files.read_sealed(path, is_always_sealed=True), path)


def _about(content: dict[str, Any], path: Path) -> AboutData:
    """A description that was read from a file, which is untrusted."""
    names, sums = content.get("feature_names"), content.get("fingerprints")
    is_sound = (
        content.get("format") == _FORMAT
        and isinstance(content.get("name"), str)
        and isinstance(content.get("path"), str | None)
        and isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) for name in names)
        and isinstance(sums, dict)
        and set(_TUNED) <= sums.keys() <= {*_TUNED, "test"}
    )
    if not is_sound:
        raise CheckpointError(f"{path} is damaged, or of another version of topshelf: its content cannot be used")
    assert isinstance(names, list)
    assert isinstance(sums, dict)
    return AboutData(content["name"], content["path"], tuple(names), sums)
