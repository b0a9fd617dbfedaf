"""A run on disk: its settings, its data and its results.

RUN/
  run.json                  the run's id, the config as it began, and the checksums of the data
  config.toml               the resolved config: every setting, defaults included
  race.json                 what was tried for a setting left to "auto", and what was chosen; only where there is one
  environment.json          versions, machine, threads, seed
  log.jsonl                 one line per epoch
  metrics.json              metrics and their protocol; written when the run is finished
  model.safetensors         the chosen weights
  interactions.safetensors  the lists and events of train, validation and test, and interactions in no part
  users.parquet items.parquet   id maps, and titles where there are any
  artifact.safetensors      what serving needs: vectors, items per user, popularity (:mod:`topshelf.artifact`)
  checkpoint.safetensors    the trainer's whole state, for --resume
  checkpoint-*.safetensors  rows of it, one file per process, where several divided the tables of items
  origin.json               of an updated run, where it comes from; of a blend, how its parts were trained

The folder is created atomically, data included. One process at a time writes to it. The run's id is in the model, the
checkpoint and the metrics, so that files of two runs are never mixed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl
import torch

from topshelf import files
from topshelf.config import BaseConfig, class_names, edits, make_config, parse_toml, read_config, to_toml
from topshelf.data import Dataset, Events, IdMap, Interactions, Split
from topshelf.data.splits import PARTS
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfWarning
from topshelf.ragged import Ragged
from topshelf.registry import check_allowed
from topshelf.training import checkpoint
from topshelf.training.sliced_checkpoint import with_tables
from topshelf.world import current, launch_name

_FORMAT = 1
# Writes what a run must keep of its data into the folder, and returns the files.
SaveData = Callable[["RunFolder"], Sequence[Path]]
_ROWS = re.compile(r"checkpoint-[0-9a-f]+-[0-9]+\.safetensors")
_LABEL = re.compile(r"# topshelf run ([0-9a-f]+)")


class RunFolder:
    """Paths and formats of a run. Nothing in it is ever unpickled."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.identity_file = self.path / "run.json"
        self.config = self.path / "config.toml"
        self.race = self.path / "race.json"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.metrics = self.path / "metrics.json"
        self.model = self.path / "model.safetensors"
        self.interactions = self.path / "interactions.safetensors"
        self.users = self.path / "users.parquet"
        self.items = self.path / "items.parquet"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.artifact = self.path / "artifact.safetensors"

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, config: BaseConfig, save: SaveData) -> Iterator[RunFolder]:
        """A new run folder with the data that ``save`` writes, held by this process while the block runs."""
        cls(path).check_new()
        with ExitStack() as held:
            with files.new_folder(path) as fresh:
                held.enter_context(files.owned(fresh))  # before the move, so that no other process can take it
                cls(fresh)._begin(config, save)
            yield cls(path)

    @classmethod
    @contextmanager
    def whole(
        cls,
        path: str | Path,
        config: BaseConfig,
        save: SaveData,
        *,
        replace: bool = False,
        command: Sequence[str] | None = None,
    ) -> Iterator[RunFolder]:
        """A new run folder that appears when the block ends, for a fitted model; or one that replaces a run."""
        if replace:
            cls.open(path)
        else:
            cls(path).check_new()
        with ExitStack() as held:
            if replace:
                held.enter_context(files.owned(Path(path)))  # nobody resumes it meanwhile
            with files.new_folder(path, replace=replace) as fresh:
                folder = cls(fresh)
                folder._begin(config, save, command)
                yield folder

    @classmethod
    @contextmanager
    def resume(cls, path: str | Path) -> Iterator[RunFolder]:
        """The run in a folder, held by this process while the block runs."""
        folder = cls.open(path)
        with files.owned(folder.path):
            yield folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not folder.path.exists():
            raise CheckpointError(f"{path} does not exist; a run folder is what topshelf train --out makes")
        if not folder.config.is_file():
            if folder.identity_file.is_file():
                raise CheckpointError(f"{path} is damaged: its config.toml is missing; restore it from a copy")
            raise CheckpointError(f"{path} is not a run folder: it has no config.toml")
        return folder

    def check_new(self) -> None:
        """Refuse a folder that holds anything."""
        if self.config.exists() or self.identity_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run; continue it (topshelf train --resume {self.path}), "
                "choose another --out, or delete the folder"
            )
        if (self.path / "study.json").exists():  # what topshelf tune keeps
            raise ConfigError(f"{self.path} holds a study; choose another --out, such as {self.path / 'best'}")
        if not files.is_free(self.path):
            raise ConfigError(
                f"--out must be a new or empty folder, and {self.path} holds something else; choose another --out"
            )

    @cached_property
    def identity(self) -> dict[str, Any] | None:
        """The content of run.json; None for a folder of a version without it."""
        if not self.identity_file.exists():
            return None
        content = files.read_sealed(self.identity_file, is_always_sealed=True)
        if content.get("format") != _FORMAT or not isinstance(content.get("run"), str):
            raise CheckpointError(
                f"{self.identity_file} must have format {_FORMAT} and the id of a run, got format "
                f"{content.get('format')!r}; it is damaged, or of another version of topshelf"
            )
        try:
            parse_toml(content["config"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(f"{self.identity_file} is damaged: its config cannot be read: {error}") from None
        return content

    @property
    def run(self) -> str | None:
        return None if self.identity is None else self.identity["run"]

    @property
    def launch(self) -> str | None:
        """The name of the launch of several processes that began this run; None for one process, or without a run."""
        try:
            content = json.loads(self.environment.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        name = content.get("launch") if isinstance(content, dict) else None
        return name if isinstance(name, str) else None

    @property
    def is_finished(self) -> bool:
        return self.metrics.exists()

    def load_config(self) -> BaseConfig:
        """The run's config. Classes of other packages must be imported already, or allowed."""
        values = read_config(self.config)
        if self.identity is not None:
            self._check_config(values)
        config = make_config(values)
        check_allowed(class_names(config), self.config)
        return config

    def _check_config(self, values: Mapping[str, Any]) -> None:
        """Refuse another run's config and a truncated one; warn of edited settings."""
        text = self.config.read_text(encoding="utf-8")
        began_as = self.identity["config"] if self.identity is not None else text
        if text == began_as:
            return
        label = _LABEL.match(text)
        if label is not None and label[1] != self.run:
            raise CheckpointError(f"{self.config} is of another run ({label[1]}) than {self.path} ({self.run})")
        missing, changed = edits(began_as, values)
        if missing:
            named = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
            raise CheckpointError(
                f"{self.config} is damaged: it must have every setting of the run, and has no {named}. Restore it "
                "from a copy"
            )
        if changed:
            _say(f"{self.config} was edited after the run began: {'; '.join(changed.values())}")

    def _begin(self, config: BaseConfig, save: SaveData, command: Sequence[str] | None = None) -> None:
        run = secrets.token_hex(8)
        kept = save(self)
        made = {"run": run, **environment(), "seed": config.seed}
        if command is not None:
            made["command"] = list(command)
        files.write_text(self.environment, json.dumps(made, indent=2) + "\n")
        text = f"# topshelf run {run}\n{to_toml(config)}"
        files.write_text(self.config, text)
        sums = {path.name: files.digest(path) for path in kept}
        files.write_sealed(self.identity_file, {"format": _FORMAT, "run": run, "config": text, "sha256": sums})

    def save_race(self, race: Mapping[str, Any]) -> None:
        """Why a setting left to "auto" has its value; for people, nothing reads it."""
        files.write_text(self.race, json.dumps(race, indent=2) + "\n")

    def save_dataset(self, dataset: Dataset) -> Sequence[Path]:
        """Interactions: the parts, the ids and the titles."""
        split = dataset.split
        state: dict[str, Any] = {"name": dataset.name, "kind": split.kind, "notes": dict(split.notes)}
        state["n_items"] = split.n_items
        state["measured"] = None if split.measured is None else torch.from_numpy(split.measured)
        for name, part in split.parts.items():
            state[name] = part_state(part)
        checkpoint.save(self.interactions, state)
        return self.interactions, *self.save_ids(split.users, split.items, dataset.titles)

    def save_ids(self, users: IdMap, items: IdMap, titles: list[str] | None) -> Sequence[Path]:
        """The ids of users and items, and the titles of the items where there are any."""
        columns = {"id": items.values}
        if titles is not None:
            columns["title"] = pl.Series(titles, dtype=pl.String)
        files.write(self.users, pl.DataFrame({"id": users.values}).write_parquet)
        files.write(self.items, pl.DataFrame(columns).write_parquet)
        return self.users, self.items

    def load_ids(self) -> tuple[IdMap, IdMap, list[str] | None]:
        """The ids of users and items, and the titles of the items where there are any."""
        self.check_data_files(self.users, self.items)
        users, items = _read_parquet(self.users), _read_parquet(self.items)
        try:
            titles = items["title"].cast(pl.String).to_list() if "title" in items.columns else None
            return _ids(users), _ids(items), titles
        except (TypeError, ValueError, DataError, pl.exceptions.PolarsError) as error:
            raise CheckpointError(f"{self.path} is damaged: its ids cannot be read: {error}") from None

    def load_dataset(self) -> Dataset:
        """The data, checked, because compiled code trusts every index in it."""
        self.check_data_files(self.interactions, self.users, self.items)
        state = checkpoint.load(self.interactions)
        *maps, titles = self.load_ids()
        try:
            if state.get("n_items", len(maps[1])) != len(maps[1]):
                raise DataError(f"there must be {state['n_items']} items, got {len(maps[1])} ids")
            parts = {name: part_of(state[name], name, *maps) for name in PARTS if name in state}
            measured = None if state.get("measured") is None else state["measured"].numpy()
            split = Split(**parts, kind=str(state["kind"]), notes=_notes(state["notes"]), measured=measured).check()
            if not len(split.train):
                raise DataError("the train part must hold interactions, got none")
            return Dataset(str(state["name"]), split, titles)
        except (KeyError, AttributeError, TypeError, ValueError, DataError, pl.exceptions.PolarsError) as error:
            raise CheckpointError(f"{self.path} is damaged: its data do not fit together: {error}") from None

    def check_data_files(self, *paths: Path) -> None:
        """Refuse data files that are missing, or are not those that the run began with."""
        sums = {} if self.identity is None else self.identity.get("sha256")
        for path in paths:
            if not path.is_file():
                raise CheckpointError(f"{self.path} is damaged: {path.name} is missing")
            if self.identity is not None and (not isinstance(sums, dict) or sums.get(path.name) != files.digest(path)):
                raise CheckpointError(
                    f"{path} is damaged or of another run: its checksum is not the one in {self.identity_file.name}"
                )

    def save_model(self, state: dict[str, Any]) -> None:
        checkpoint.save(self.model, state, run=self.run)

    def load_model(self) -> dict[str, Any]:
        if not self.model.exists():
            raise CheckpointError(
                f"{self.path} has no model yet: its run is not finished. Finish it: topshelf train --resume {self.path}"
            )
        return checkpoint.load(self.model, run=self.run)

    def save_artifact(self, state: dict[str, Any]) -> None:
        checkpoint.save(self.artifact, state, run=self.run)

    def load_artifact(self) -> dict[str, Any]:
        """Memory-mapped tensors; their checksums are compared."""
        return checkpoint.load(self.artifact, run=self.run)

    def save_checkpoint(self, state: dict[str, Any], rows: Sequence[str] = ()) -> None:
        """Write the state; ``rows`` are the files with its divided tables, already there.

        Those of older checkpoints, and what killed processes left of them, are removed: none is being written now.
        """
        checkpoint.save(self.checkpoint, {**state, "rows": list(rows)} if rows else state, run=self.run)
        for path in [*self.path.glob("checkpoint-*.safetensors"), *self.path.glob(".checkpoint-*.tmp")]:
            if path.name not in rows:
                path.unlink(missing_ok=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last state, with whole tables."""
        if not self.checkpoint.exists():
            return None
        state = checkpoint.load(self.checkpoint, run=self.run)
        if (names := state.pop("rows", None)) is None:
            return state
        if not isinstance(names, list) or not all(isinstance(one, str) and _ROWS.fullmatch(one) for one in names):
            raise CheckpointError(f"{self.checkpoint} is damaged: its rows must be files of the folder, got {names!r}")
        whole = with_tables(state, [checkpoint.load(self.path / name, run=self.run) for name in names])
        return dict(whole)

    def save_metrics(self, content: dict[str, Any]) -> None:
        """Write the last file of a run, with the checksums of the model and the artifact that it belongs to."""
        made = [path for path in (self.model, self.artifact) if path.exists()]  # not every task has an artifact
        sums = {f"{path.stem}_sha256": files.digest(path) for path in made}
        files.write_sealed(self.metrics, {**content, "run": self.run, **sums})

    def load_metrics(self, used: Path | None = None) -> dict[str, Any]:
        """The metrics, refused if they are not of this run and of the file that is used, by default the model."""
        content = files.read_sealed(self.metrics, is_always_sealed=self.run is not None)
        if self.run is None:
            return content
        remedy = f"Write it again: delete it, then topshelf train --resume {self.path}"
        if content.get("run") != self.run:
            raise CheckpointError(f"{self.metrics} is of another run ({content.get('run')!r}). {remedy}")
        used = used or self.model
        if used.is_file() and content.get(f"{used.stem}_sha256") != files.digest(used):
            if used == self.artifact:
                remedy = f"Delete {used.name}: lists are then made with the model"
            raise CheckpointError(f"{self.metrics} is of another {used.stem} than {used.name}. {remedy}")
        return content

    def say_if_unfinished(self, best_epoch: int) -> None:
        if not self.is_finished:
            _say(
                f"{self.path} is not finished: its model is the best so far (epoch {best_epoch}). Finish it: topshelf "
                f"train --resume {self.path}"
            )


def environment() -> dict[str, Any]:
    """What results depend on besides the config. Another thread count can change the last bits of a sum."""
    packages = ("topshelf", "torch", "numpy", "scipy", "polars", "numba", "safetensors", "pydantic")
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "processes": current().size,
        **({} if launch_name() is None else {"launch": launch_name()}),
    }


def peak_mib() -> float | None:
    """Peak memory of this process, imports and data included; None where the system does not report it."""
    if sys.platform == "win32":
        return None
    import resource  # not there on Windows

    units = 1024**2 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units, 1)


def _say(text: str) -> None:
    warnings.warn(text, TopshelfWarning, stacklevel=2)


def part_state(part: Interactions) -> dict[str, Any]:
    """Pairs and events of a part, as a file keeps them."""
    state: dict[str, Any] = _tensors(part, "indptr", "indices")
    if part.events is not None:
        state["events"] = _tensors(part.events, "indptr", "indices", "timestamp", "weight")
    return state


def part_of(state: Mapping[str, Any], name: str, users: IdMap, items: IdMap) -> Interactions:
    """The part that :func:`part_state` wrote, checked."""
    events = None
    if (kept := state.get("events")) is not None:  # earlier versions have none
        columns: dict[str, Any] = {key: None if values is None else values.numpy() for key, values in kept.items()}
        events = Events(**columns).check(len(users), len(items), f"the events of {name}")
    lists = Ragged(state["indptr"], state["indices"]).check(len(items), name, n_lists=len(users), unique=True)
    return Interactions(lists.indptr.numpy(), lists.indices.numpy(), users, items, events=events)


def _ids(table: pl.DataFrame) -> IdMap:
    if table["id"].dtype not in (pl.Int64, pl.String):  # an IdMap has no others
        raise DataError(f"ids must be whole numbers or text, got {table['id'].dtype}")
    return IdMap(table["id"])


def _notes(notes: Any) -> dict[str, int]:
    if not isinstance(notes, dict) or not all(type(k) is str and type(n) is int for k, n in notes.items()):
        raise DataError(f"notes must be counts by name, got {notes!r}")
    return notes


def _tensors(lists: Interactions | Events, *names: str) -> dict[str, torch.Tensor | None]:
    arrays = {name: getattr(lists, name) for name in names}
    return {
        name: None if x is None else torch.from_numpy(x if x.flags.writeable else x.copy())
        for name, x in arrays.items()
    }


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from None
