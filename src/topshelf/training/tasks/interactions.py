"""Interactions: users and their items, ranked over the whole catalogue."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from topshelf.config import BaseConfig, RunConfig
from topshelf.data import Dataset, Split, load_split
from topshelf.data.splits import Through
from topshelf.errors import DataError
from topshelf.evalset import EvalSet, protocol_set
from topshelf.evaluation import ndcg
from topshelf.models import Model
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.training import checkpoint
from topshelf.training.build import build_objective
from topshelf.training.folder import RunFolder, part_of, part_state
from topshelf.training.objective import Objective
from topshelf.training.tasks.base import Part
from topshelf.training.tasks.catalogue import CatalogueTask, known_vectors, numbered, popularity, vectors_for

NOTES = {
    "dropped_test": "test interactions dropped, because their user or item is not in train",
    "dropped_valid": "validation interactions dropped, because their user or item is not in train",
}
_TUNED = ("train", "valid")


class InteractionsTask(CatalogueTask):
    """Users and their items, ranked over the whole catalogue."""

    name: ClassVar[str] = "interactions"
    split: Split

    def __init__(self, split: Split, device: str = "cpu") -> None:
        self.split, self.device = split.check(), device
        self.evaluation = cache(self._evaluation)  # sets are checked when made, and used at every validation

    @classmethod
    def load(cls, config: RunConfig, *, test: bool = True) -> Dataset:
        settings = config.data.model_dump()
        dataset = load_split(settings.pop("source"), **settings, seed=config.seed, test=test)
        dataset.warn()
        return dataset

    @classmethod
    def of(cls, data: Dataset, device: str) -> InteractionsTask:
        return cls(data.split, device)

    @classmethod
    def save(cls, folder: RunFolder, data: Dataset) -> Sequence[Path]:
        return folder.save_dataset(data)

    @classmethod
    def read(cls, folder: RunFolder, config: RunConfig) -> Dataset:  # noqa: ARG003
        return folder.load_dataset()

    @classmethod
    def for_tuning(cls, data: Dataset) -> Dataset:
        split = data.split
        if not len(split.valid):
            raise DataError(
                f"the valid part of the {split.kind} split is empty, and tuning is measured on it. Use more data, a "
                "larger data.valid_fraction, or another data.split"
            )
        return Dataset(
            data.name, Split(split.train, split.valid, split.train.none(), split.kind, measured=split.measured)
        )

    @classmethod
    def save_parts(cls, path: Path, data: Dataset) -> None:
        split = data.split
        state: dict[str, Any] = {"name": data.name, "n_users": split.n_users, "n_items": split.n_items}
        state["measured"] = None if split.measured is None else torch.from_numpy(split.measured)
        checkpoint.save(path, {**state, **{name: part_state(getattr(split, name)) for name in _TUNED}})

    @classmethod
    def load_parts(cls, path: Path, config: RunConfig) -> Dataset:  # noqa: ARG003
        state = checkpoint.load(path)
        ids = numbered(state)
        train, valid = (part_of(state[name], name, *ids) for name in _TUNED)
        if not len(valid):
            raise DataError("valid is empty, and tuning is measured on it")
        measured = None if state.get("measured") is None else state["measured"].numpy()
        return Dataset(str(state["name"]), Split(train, valid, train.none(), "tuned", measured=measured))

    @classmethod
    def fingerprint(cls, data: Dataset) -> str:
        total = zlib.crc32(f"{data.split.n_users} {data.split.n_items}".encode())
        for name in _TUNED:
            for tensor in vars(data.split.lists(name)).values():
                total = zlib.crc32(tensor.to(torch.int64).contiguous().cpu().numpy().data, total)
        if data.split.measured is not None:
            total = zlib.crc32(data.split.measured.data, total)
        return f"{total:08x}"

    def has(self, part: Part) -> bool:
        return self.split.lists(part).indices.numel() > 0

    def context(self, through: Through) -> Context:
        def events() -> EventLists | None:
            part = self.split.events(through)
            return None if part is None else EventLists(part.ragged(), part.times())

        return Context(self.split.seen(through), self.n_items, events).to(self.device)

    def objective(self, config: RunConfig, model: Model, through: Through) -> Objective:
        return build_objective(config, model, self.context(through))

    def _evaluation(self, part: Part, protocol: str = "standard") -> EvalSet:
        """The users of the training as queries, their held-out items, and the excluded items."""
        lists, n_users = self.split.lists, self.split.n_users
        valid = lists("valid") if part == "test" else None
        evalset, _ = protocol_set(lists(part), lists("train"), valid, protocol, None, n_users, self.n_items)
        evalset = replace(evalset, queries=QuerySet.known(n_users, self.device))
        if self.split.measured is None:
            return evalset
        measured = torch.from_numpy(self.split.measured)
        is_measured = torch.zeros(n_users, dtype=torch.bool).index_fill_(0, measured, True)
        relevant = evalset.relevant.where(is_measured[evalset.relevant.owner()])
        return replace(evalset, relevant=relevant, measured=measured).trusted(self.n_items)

    def validate(self, model: Model, k: int) -> float:
        evalset = self.evaluation("valid")
        queries, items = vectors_for(model, evalset)
        if model.held is not None and isinstance(items, torch.Tensor):
            items = model.held.whole(items)
        return ndcg(queries, items, evalset.relevant, evalset.exclude, k, self.world)

    def asked(self, model: Model, part: Part, protocol: str) -> tuple[EvalSet, torch.Tensor]:  # noqa: ARG002
        counts = torch.bincount(self.split.lists("train").indices, minlength=self.n_items)
        return self.evaluation(part, protocol), counts

    @torch.no_grad()
    def answers(self, model: Model, through: Through) -> dict[str, Any]:
        """As plain tensors: vectors of known queries if they are a table, else the histories that they are made of."""
        learned = self.split.seen(through)
        state: dict[str, Any] = {
            "seen": dict(vars(self.split.seen("below"))),
            "n_learned": learned.counts,
            "counts": popularity(learned, model.n_items),
        }
        if len(self.split.below):
            state["taken"] = dict(vars(self.split.seen("all")))
        vectors = known_vectors(model, QuerySet.known(model.n_queries, self.device))
        return {**state, **({"learned": dict(vars(learned))} if vectors is None else vectors)}

    def lines(self, through: Through) -> list[str]:
        split = self.split
        parts = ", ".join(f"{len(getattr(split, part)):,} {part}" for part in ("train", "valid", "test"))
        lines = [f"{split.n_users:,} users, {split.n_items:,} items; split {split.kind}: {parts}"]
        if split.kind == "ratio":
            lines.append(
                "the split is random, so the model may have seen a user's later choices; with timestamps, split by time"
            )
        if split.measured is not None:
            lines.append(f"measured on {len(split.measured):,} of the users, drawn at random (data.measured_users)")
        lines += [f"{NOTES.get(note, note)}: {count:,}" for note, count in split.notes.items() if count]
        learned = split.seen(through)
        if n_new := int((learned.counts == 0).sum()):
            lines.append(f"{n_new:,} users have no training interactions; they get the most popular items")
        if through == "all":
            lines.append(f"the model was trained on all {learned.indices.numel():,} interactions")
        return lines

    def usage(self, out: str) -> str:
        user = str(self.split.users.ids([0])[0])
        named = [f"--user={user}"] if user.startswith("-") else ["--user", user]
        return f"recommend: {shlex.join(['topshelf', 'recommend', out, *named])}"

    def check(self, config: BaseConfig, name: str) -> None:
        super().check(config, name)
        assert isinstance(config, RunConfig)
        wanted: dict[Part, str] = {"valid": "data.valid_fraction", "test": "data.test_fraction"}
        if config.data.test_fraction == 0:
            del wanted["test"]
        for part, setting in wanted.items():
            if not self.has(part):
                raise DataError(
                    f"the {part} part of the {self.split.kind} split is empty: no user has held-out items. Use more "
                    f"data, a larger {setting}, or another data.split"
                )
