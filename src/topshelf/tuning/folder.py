"""A study on disk.

STUDY/
  study.toml         the config that is tuned: the defaults
  study.json         the study's id, ranges, sampler, storage and budget; the original config; a checksum of the data
  parts.safetensors  train and validation lists; tuning needs no other data
  study.db           the trials (SQLite), unless they are kept elsewhere
  best.toml          the best config so far, complete: topshelf train best.toml
  trials.json        the trials and the budget, as numbers
  report.html        the page

The folder appears whole, with its database and every slot of the budget, or not at all. Several processes may write to
it: the last three files are replaced as a whole. They are output only; the study's state is never read from them.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.config import BaseConfig, class_names, edits, flat, make_config, read_config, to_toml
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning, one_of
from topshelf.registry import check_allowed
from topshelf.tuning.ranges import Choice, Interval, Range, Space, assigned, default_ranges, is_closed_form, space
from topshelf.tuning.runner import Parts

SAMPLERS = ("tpe", "grid")
FORMAT = 2  # format 1 had no checksums, no id and no budget
_TYPES_1: dict[str, Any] = {"name": str, "sampler": str, "ranges": dict, "default": dict, "storage": (str, type(None))}
_TYPES_2 = {**_TYPES_1, "study": str, "trials": int, "config": str, "parts_sha256": str}
_INTERVAL: dict[str, Any] = {"low": (int, float), "high": (int, float), "log": bool, "whole": bool}
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Definition:
    """What a study is: a config, the searched space, and the sampler. Equal definitions are the same study."""

    space: Space
    sampler: str

    def __post_init__(self) -> None:
        one_of("sampler", self.sampler, SAMPLERS)
        if self.sampler == "grid":
            next(self.space.grid(0))  # refuses intervals

    @property
    def config(self) -> BaseConfig:
        return self.space.base

    @property
    def method(self) -> str:
        model = self.config.model.name
        return model if is_closed_form(self.config) else f"{model} with {self.config.loss.name}"

    @property
    def name(self) -> str:
        """The study's name in its storage: the same for the same command, wherever the data are.

        Hyperband's brackets depend on it too.
        """
        source = Path(self.config.data.source).name
        readable = re.sub(r"[^\w.-]+", "-", f"{source}-{self.method.replace(' with ', '-')}")
        config = self.config.model_copy(update={"data": self.config.data.model_copy(update={"source": source})})
        content = json.dumps([to_toml(config), _ranges_json(self.space), self.sampler])
        return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    def difference(self, other: Definition) -> str:
        """The first settings that differ from another definition's."""
        mine, theirs = self._settings(), other._settings()
        differing = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        return "; ".join(
            f"{name} is {mine.get(name, 'not there')}, not {theirs.get(name, 'there')}" for name in differing[:3]
        )

    def _settings(self) -> dict[str, str]:
        ranges = {f"the range of {name}": range_ for name, range_ in self.space.ranges.items()}
        settings = {"sampler": self.sampler, **flat(self.config.model_dump(exclude_none=True)), **ranges}
        return {name: str(value) for name, value in settings.items()}


class StudyFolder:
    """The paths and formats of a study. Nothing in it is ever unpickled."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "study.toml"
        self.definition = self.path / "study.json"
        self.parts = self.path / "parts.safetensors"
        self.database = self.path / "study.db"
        self.best = self.path / "best.toml"
        self.trials = self.path / "trials.json"
        self.report = self.path / "report.html"

    @property
    def exists(self) -> bool:
        return self.definition.exists()

    def check(self, definition: Definition) -> None:
        """The folder must be new or empty, or hold this study."""
        if (self.path / "config.toml").exists():
            raise ConfigError(f"{self.path} already holds a run; choose another --out for the study")
        if not self.exists:
            if not files.is_free(self.path):
                raise ConfigError(
                    f"--out must be a new or empty folder, or hold this study, and {self.path} holds something else; "
                    "choose another --out"
                )
        elif (stored := self.load()) != definition:
            raise ConfigError(
                f"{self.path} holds a study of something else ({stored.difference(definition)}); continue that one "
                f"(topshelf tune --resume {self.path}), or choose another --out"
            )

    def fill(self, definition: Definition, parts: Parts, *, study: str, trials: int, storage: str | None) -> None:
        """Write the definition and the data. ``study`` is the id, which the database holds too."""
        parts.save(self.parts)
        text = to_toml(definition.config)
        files.write_text(self.config, text)
        content = {
            "format": FORMAT,
            "study": study,
            "name": definition.name,
            "sampler": definition.sampler,
            "trials": trials,
            "ranges": _ranges_json(definition.space),
            "default": definition.space.default,
            "storage": storage,
            "config": text,
            "parts_sha256": files.digest(self.parts),
        }
        files.write_sealed(self.definition, content)

    def sweep(self) -> None:
        """Remove temporary files of killed processes."""
        files.sweep(self.path.resolve().parent, self.path.resolve().name)
        for path in (self.best, self.trials, self.report):
            files.sweep(self.path, path.name)

    def load(self) -> Definition:
        content = self.content()
        try:
            ranges = {name: _range(value) for name, value in content["ranges"].items()}
            stored = Space(self._config(content), ranges, content["default"])
            self._check_classes(stored)
            _check_space(stored)
            definition = Definition(stored, content["sampler"])
        except CheckpointError:
            raise
        except _UNREADABLE as error:
            raise CheckpointError(f"{self.path} is damaged, or of another version of topshelf: {error}") from None
        if definition.name != content["name"]:
            raise CheckpointError(
                f"{self.path} is damaged: its study.toml and study.json do not belong together. Put both back as they "
                "were, or begin another study with another --out"
            )
        return definition

    def load_parts(self, config: BaseConfig) -> Parts:
        """The data that the study began with, checked."""
        checksum = self.content().get("parts_sha256")
        if not self.parts.is_file():
            raise CheckpointError(f"{self.path} is damaged: parts.safetensors is missing; restore it from a copy")
        if checksum is not None and checksum != files.digest(self.parts):
            raise CheckpointError(
                f"{self.parts} is damaged or of another study: its checksum is not the one in {self.definition.name}. "
                "Restore it from a copy"
            )
        return Parts.load(self.parts, config)

    def save_best(self, config: BaseConfig) -> None:
        files.write_text(self.best, to_toml(config))

    def content(self) -> dict[str, Any]:
        """The content of study.json, with the type of every field checked."""
        if not self.exists:
            raise CheckpointError(f"{self.path} is not a study: it has no study.json; begin one with topshelf tune")
        is_sealed = "checksum" in files.read_json(self.definition)
        content = files.read_sealed(self.definition)
        version = content.get("format")
        if version not in (1, FORMAT) or isinstance(version, bool):
            raise CheckpointError(
                f"{self.definition} must have format 1 or {FORMAT}, got {version!r}; it is damaged, or of a newer "
                "version of topshelf"
            )
        wrong = wrong_types(content, _TYPES_1 if version == 1 else _TYPES_2)
        if wrong or is_sealed != (version == FORMAT):
            fault = f"{wrong[0]} is {content.get(wrong[0])!r}" if wrong else "its checksum is missing"
            raise CheckpointError(f"{self.definition} is damaged: {fault}. Restore it from a copy")
        return content

    def _config(self, content: Mapping[str, Any]) -> BaseConfig:
        """The config that is tuned. It must be the original one; only the path of the data may change."""
        values = read_config(self.config)
        check_allowed(class_names(make_config(values)), self.config)
        if content["format"] == 1:
            return make_config(values)
        missing, edited = edits(content["config"], values)
        if missing:
            named = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
            raise CheckpointError(
                f"{self.config} is damaged: it must have every setting of the study, and has no {named}. The original "
                'is in study.json, under "config"'
            )
        changes = "; ".join(edited.values())
        if edited.keys() - {"data.source"}:
            raise CheckpointError(
                f"{self.config} was edited after the study began: {changes}. Trials of different settings cannot be "
                "compared: put it back, or begin another study with another --out"
            )
        if edited:
            warnings.warn(f"{self.config} was edited after the study began: {changes}", TopshelfWarning, stacklevel=2)
        return make_config(values)

    def _check_classes(self, stored: Space) -> None:
        """A range may name classes too, as negatives.kind does."""
        for name, range_ in stored.ranges.items():
            for value in range_.values if isinstance(range_, Choice) else ():
                check_allowed(class_names(assigned(stored.base, {name: value})), self.definition)


def _check_space(stored: Space) -> None:
    """Refuse a space that this version would not make of its config and ranges; every value of a range is tried."""
    again = space(stored.base, {**dict.fromkeys(default_ranges(stored.base)), **stored.ranges})
    if again.ranges != stored.ranges:
        changed = [name for name in stored.ranges if again.ranges.get(name) != stored.ranges[name]]
        raise ValueError(f"the range of {', '.join(changed)} cannot be searched as it is written there")
    if again.default != stored.default:
        raise ValueError(f"the defaults are {again.default} in this version, and {stored.default} in study.json")


def _ranges_json(space: Space) -> dict[str, Any]:
    return {
        name: list(range_.values) if isinstance(range_, Choice) else vars(range_)
        for name, range_ in space.ranges.items()
    }


def _range(value: Any) -> Range:
    if isinstance(value, list):
        return Choice(tuple(value))
    if not isinstance(value, dict) or set(value) != set(_INTERVAL) or wrong_types(value, _INTERVAL):
        raise ValueError(f"a range must be a list, or have low, high, log and whole, got {value!r}")
    return Interval(**value)


def wrong_types(content: Mapping[str, Any], types: Mapping[str, Any]) -> list[str]:
    """The fields that are missing or of another type; true and false are not numbers."""
    return [
        name
        for name, kind in types.items()
        if not (name in content and isinstance(content[name], kind))
        or (isinstance(content[name], bool) and kind is not bool)
    ]
