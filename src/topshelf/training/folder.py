"""A run on disk: what was asked, what was used, what came out.

RUN/
  config.toml               the resolved config: every setting, defaults included
  environment.json          versions, machine, threads, seed
  log.jsonl                 one line an epoch
  metrics.json              the numbers, with their protocol
  model.safetensors         the chosen weights
  interactions.safetensors  train, validation and test lists (the seen lists of serving)
  users.parquet items.parquet   id maps, and titles where there are any
  checkpoint.safetensors    the trainer's whole state, for --resume
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from topshelf.config import RunConfig, make_config, read_config, to_toml
from topshelf.data import Dataset, IdMap, Interactions, Split
from topshelf.errors import CheckpointError, ConfigError
from topshelf.training import checkpoint

_PARTS = ("train", "valid", "test")


class RunFolder:
    """Paths and formats of a run. Nothing in it is ever unpickled."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.metrics = self.path / "metrics.json"
        self.model = self.path / "model.safetensors"
        self.interactions = self.path / "interactions.safetensors"
        self.users = self.path / "users.parquet"
        self.items = self.path / "items.parquet"
        self.checkpoint = self.path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: str | Path, config: RunConfig, dataset: Dataset) -> RunFolder:
        """A new run folder; one that already holds a run is left alone."""
        folder = cls(path)
        folder.check_new()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot make the folder {folder.path}: {error}") from None
        folder._save_dataset(dataset)
        checkpoint.write_text(folder.environment, json.dumps({**environment(), "seed": config.seed}, indent=2) + "\n")
        # Last, because its presence says that the folder can be resumed.
        checkpoint.write_text(folder.config, to_toml(config))
        return folder

    def check_new(self) -> None:
        if self.config.exists():
            raise ConfigError(
                f"{self.path} already holds a run; go on with it (topshelf train --resume {self.path}), "
                "or choose another --out"
            )
        if (self.path / "study.json").exists():  # what topshelf tune keeps; it would not go on in a run's folder
            raise ConfigError(f"{self.path} holds a study; choose another --out, such as {self.path / 'best'}")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if not folder.path.exists():
            raise CheckpointError(f"{path} does not exist; a run folder is what topshelf train --out makes")
        if not folder.config.is_file():
            raise CheckpointError(f"{path} is not a run folder: it has no config.toml")
        return folder

    def load_config(self) -> RunConfig:
        return make_config(read_config(self.config))

    def _save_dataset(self, dataset: Dataset) -> None:
        split = dataset.split
        state: dict[str, Any] = {"name": dataset.name, "kind": split.kind, "notes": dict(split.notes)}
        for part in _PARTS:
            interactions = getattr(split, part)
            state[part] = {"indptr": _tensor(interactions.indptr), "indices": _tensor(interactions.indices)}
        checkpoint.save(self.interactions, state)
        items = {"id": split.items.values}
        if dataset.titles is not None:
            items["title"] = pl.Series(dataset.titles, dtype=pl.String)
        _write_parquet(self.users, pl.DataFrame({"id": split.users.values}))
        _write_parquet(self.items, pl.DataFrame(items))

    def load_dataset(self) -> Dataset:
        state = checkpoint.load(self.interactions)
        users, items = _read_parquet(self.users), _read_parquet(self.items)
        maps = IdMap(users["id"]), IdMap(items["id"])
        try:
            parts = {
                part: Interactions(state[part]["indptr"].numpy(), state[part]["indices"].numpy(), *maps)
                for part in _PARTS
            }
            split = Split(**parts, kind=state["kind"], notes=state["notes"])
            titles = items["title"].to_list() if "title" in items.columns else None
            return Dataset(state["name"], split, titles)
        except (KeyError, AttributeError) as error:
            raise CheckpointError(f"{self.interactions} is damaged: {error}") from None

    def save_model(self, state: dict[str, Any]) -> None:
        checkpoint.save(self.model, state)

    def load_model(self) -> dict[str, Any]:
        if not self.model.exists():
            raise CheckpointError(
                f"{self.path} has no finished model yet; go on with it: topshelf train --resume {self.path}"
            )
        return checkpoint.load(self.model)

    def load_metrics(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.metrics.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.metrics} cannot be read: {error}") from None


def environment() -> dict[str, Any]:
    """What the numbers depend on besides the config. Another thread count can change the last bits of a sum."""
    packages = ("topshelf", "torch", "numpy", "scipy", "polars", "numba", "safetensors", "pydantic")
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def peak_mib() -> float | None:
    """The most memory this process has held, imports and data included; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource  # not there on Windows

    units = 1024**2 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units, 1)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64).copy())


def _write_parquet(path: Path, frame: pl.DataFrame) -> None:
    checkpoint.write_atomically(path, frame.write_parquet)


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from None
