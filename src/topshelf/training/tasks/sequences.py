"""Next items: sequences of events, and the item that comes next, ranked over the whole catalogue."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from topshelf.config import BaseConfig, SequenceConfig
from topshelf.data import Events, IdMap
from topshelf.data.sequence_data import SequenceData, load_sequences, said
from topshelf.data.sequence_split import TARGETS, Asked, SequenceSplit, as_sets
from topshelf.data.splits import Through
from topshelf.errors import CheckpointError, DataError, one_of
from topshelf.evalset import NEXT_ITEM, EvalSet
from topshelf.evaluation import evaluate_set
from topshelf.models import Model
from topshelf.models.sequence import SequenceModel
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.ragged import ragged_from_pairs
from topshelf.training import checkpoint
from topshelf.training.build import build_objective
from topshelf.training.examination import Examination
from topshelf.training.folder import RunFolder
from topshelf.training.objective import Objective
from topshelf.training.sequence_examination import examine_sequences
from topshelf.training.sequence_objective import build_sequence_objective
from topshelf.training.tasks.base import Part
from topshelf.training.tasks.catalogue import CatalogueTask, known_vectors, numbered, popularity, vectors_for


class SequencesTask(CatalogueTask):
    """Users' events in order. A query is who has these items so far; what it should find is the next one."""

    name: ClassVar[str] = "sequences"
    validated: ClassVar[str] = "users whose next item cannot be found count as 0"
    split: SequenceSplit

    def __init__(self, data: SequenceData, device: str = "cpu") -> None:
        self.data, self.split, self.device = data, data.split.check(), device
        self.evaluation = cache(self._evaluation)

    @classmethod
    def load(cls, config: SequenceConfig, *, test: bool = True) -> SequenceData:
        settings = config.data.model_dump()
        data = load_sequences(settings.pop("source"), **settings, test=test)
        data.warn()
        return data

    @classmethod
    def of(cls, data: SequenceData, device: str) -> SequencesTask:
        return cls(data, device)

    @classmethod
    def save(cls, folder: RunFolder, data: SequenceData) -> Sequence[Path]:
        path = folder.path / "sequences.safetensors"
        checkpoint.save(path, state_of(data))
        return [path, *folder.save_ids(data.split.users, data.split.items, data.titles)]

    @classmethod
    def read(cls, folder: RunFolder, config: SequenceConfig) -> SequenceData:  # noqa: ARG003
        path = folder.path / "sequences.safetensors"
        folder.check_data_files(path)
        state = checkpoint.load(path)
        users, items, titles = folder.load_ids()
        try:
            return data_of(state, users, items, titles)
        except (KeyError, AttributeError, TypeError, ValueError, DataError) as error:
            raise CheckpointError(f"{folder.path} is damaged: its data do not fit together: {error}") from None

    @classmethod
    def for_tuning(cls, data: SequenceData) -> SequenceData:
        if not len(data.split.asked("valid", data.targets).rows):
            raise DataError(
                f"the valid part of the {data.split.kind} split is empty, and tuning is measured on it. Use more data, "
                "or another data.split"
            )
        return replace(data, split=data.split.without_test())

    @classmethod
    def save_parts(cls, path: Path, data: SequenceData) -> None:
        sizes = {"n_users": data.split.n_users, "n_items": data.split.n_items}
        checkpoint.save(path, {**sizes, **state_of(data)})

    @classmethod
    def load_parts(cls, path: Path, config: SequenceConfig) -> SequenceData:  # noqa: ARG003
        state = checkpoint.load(path)
        return cls.for_tuning(data_of(state, *numbered(state), None))

    @classmethod
    def fingerprint(cls, data: SequenceData) -> str:
        split, events = data.split, data.split.events
        total = zlib.crc32(f"{split.n_users} {split.n_items} {data.exclude_seen} {data.targets}".encode())
        for array in (events.indptr, events.indices.astype(np.int64), split.train_end, split.valid_end, split.left_out):
            total = zlib.crc32(np.ascontiguousarray(array).data, total)
        return f"{total:08x}"

    def has(self, part: Part) -> bool:
        return len(self.split.asked(part, self.data.targets).rows) > 0

    def context(self, through: Through) -> Context:
        lists = self.split.sequences(through)

        def events() -> EventLists:
            return EventLists(lists, None)

        return Context(as_sets(lists, self.n_items), self.n_items, events).to(self.device)

    def objective(self, config: SequenceConfig, model: Model, through: Through) -> Objective:
        build = build_sequence_objective if isinstance(model, SequenceModel) else build_objective
        return build(config, model, self.context(through))  # type: ignore[arg-type]

    def _evaluation(self, part: Part, kind: str) -> EvalSet:
        return self.asked_set(self.split.asked(part, self.data.targets), kind)

    def asked_set(self, asked: Asked, kind: str) -> EvalSet:
        """Events as queries of a kind that the model takes, each with its one item."""
        before, n = self.split.before(asked), len(asked.rows)
        histories = as_sets(before, self.n_items)
        item, everyone = torch.from_numpy(asked.item), torch.arange(n)
        exclude = None
        if self.data.exclude_seen:
            exclude, is_new = histories, torch.from_numpy(~self.split.is_repeat(asked))
            item, everyone = item[is_new], everyone[is_new]  # what is never listed cannot be found: a miss
        asking: dict[str, Any] = {
            "sequence": before,
            "history": histories,
            "rows": torch.from_numpy(asked.rows),
        }
        queries = QuerySet(**{kind: asking[kind].to(self.device)})
        relevant = ragged_from_pairs(everyone, item, n)
        protocol = NEXT_ITEM[self.data.exclude_seen]
        return EvalSet(queries, relevant, exclude=exclude, empty="zero", protocol=protocol).checked(self.n_items)

    def validate(self, model: Model, k: int) -> float:
        evalset = self.evaluation("valid", kind_for(model))
        found = evaluate_set(*vectors_for(model, evalset), evalset, (k,), auc=False)
        return found.mean()[f"ndcg@{k}"]

    def ndcg_of(self, model: Model, asked: Asked, k: int) -> float:
        """The mean NDCG@k of any events."""
        evalset = self.asked_set(asked, kind_for(model))
        return evaluate_set(*vectors_for(model, evalset), evalset, (k,), auc=False).mean()[f"ndcg@{k}"]

    def asked(self, model: Model, part: Part, protocol: str) -> tuple[EvalSet, torch.Tensor]:  # noqa: ARG002
        """There is one protocol, given by data.exclude_seen."""
        counts = torch.bincount(self.split.sequences("train").indices, minlength=self.n_items)
        return self.evaluation(part, kind_for(model)), counts

    @torch.no_grad()
    def answers(self, model: Model, through: Through) -> dict[str, Any]:
        """Vectors of known users from all their events, the events themselves, and what was learned from."""
        every, learned = self.split.sequences("all"), self.split.sets(through)
        seen = as_sets(every, self.n_items)
        state: dict[str, Any] = {
            "seen": dict(vars(seen)),
            "events": dict(vars(every)),
            "n_learned": learned.counts,
            "counts": popularity(learned, model.n_items),
        }
        asking: dict[str, Any] = {"sequence": every, "history": seen, "rows": torch.arange(self.split.n_users)}
        kind = kind_for(model)
        vectors = known_vectors(model, QuerySet(**{kind: asking[kind].to(self.device)}))
        return {**state, **({"learned": dict(vars(learned))} if vectors is None else vectors)}

    def lines(self, through: Through) -> list[str]:  # noqa: ARG002
        split, ends = self.split, (self.split.train_end, self.split.valid_end, np.diff(self.split.events.indptr))
        parts = zip(("train", "valid", "test"), np.diff([0, *(int(end.sum()) for end in ends)]), strict=True)
        counts = ", ".join(f"{n:,} {part}" for part, n in parts)
        return [
            f"{split.n_users:,} users, {split.n_items:,} items; split {split.kind}, events: {counts}",
            *(f"{count:,} {said(note, split.kind)}" for note, count in split.notes.items() if count),
        ]

    def examine(self, model: Model, config: SequenceConfig, part: Part, through: Through, *, n: int) -> Examination:
        return examine_sequences(self, model, config, part, through, n)

    def usage(self, out: str) -> str:
        return f"recommend: topshelf recommend {out} --user ID, or --items ID,ID,... in order"

    def check(self, config: BaseConfig, name: str) -> None:
        super().check(config, name)
        for part in ("valid", "test"):
            if not self.has(part):
                raise DataError(
                    f"the {part} part of the {self.split.kind} split is empty: no user has held-out events after "
                    "others. Use more data, or another data.split"
                )


def state_of(data: SequenceData) -> dict[str, Any]:
    """Events and cuts, as a file keeps them."""
    split = data.split
    arrays = {name: getattr(split.events, name) for name in ("indptr", "indices", "timestamp", "weight")}
    arrays |= {name: getattr(split, name) for name in ("train_end", "valid_end", "left_out")}
    state: dict[str, Any] = {name: None if x is None else torch.from_numpy(x.copy()) for name, x in arrays.items()}
    state |= {"name": data.name, "kind": split.kind, "notes": dict(split.notes)}
    return state | {"exclude_seen": data.exclude_seen, "targets": data.targets}


def data_of(state: dict[str, Any], users: IdMap, items: IdMap, titles: list[str] | None) -> SequenceData:
    """What :func:`state_of` made, from a file: checked."""
    columns = ("indptr", "indices", "timestamp", "weight")
    arrays: dict[str, Any] = {name: None if state[name] is None else state[name].numpy() for name in columns}
    cuts = {name: state[name].numpy() for name in ("train_end", "valid_end", "left_out")}
    notes, targets = state["notes"], one_of("targets", state["targets"], TARGETS)
    if not isinstance(notes, dict) or not all(type(key) is str and type(n) is int for key, n in notes.items()):
        raise DataError(f"notes must be counts by name, got {notes!r}")
    if type(state["exclude_seen"]) is not bool:
        raise DataError(f"exclude_seen must be true or false, got {state['exclude_seen']!r}")
    split = SequenceSplit(Events(**arrays), users, items, kind=str(state["kind"]), notes=notes, **cuts).check()
    return SequenceData(str(state["name"]), split, titles, (), state["exclude_seen"], targets)


def kind_for(model: Model) -> str:
    """How a model is asked: by the sequence if it reads one, else by the set of its items, else by the user alone."""
    return next(kind for kind in ("sequence", "history", "rows") if kind in model.kinds)
