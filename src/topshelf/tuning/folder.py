"""A study on disk.

STUDY/
  study.toml         the config that is tuned: the defaults
  study.json         ranges, sampler, storage
  parts.safetensors  train and validation lists; tuning needs nothing else of the data
  study.db           the trials (SQLite), unless they are kept elsewhere
  best.toml          the best config so far, complete: topshelf train best.toml
  trials.json        the trials and the budget, as numbers
  report.html        the page
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topshelf.config import RunConfig, make_config, read_config, to_toml
from topshelf.errors import CheckpointError, ConfigError, one_of
from topshelf.files import write_text
from topshelf.tuning.parts import Parts
from topshelf.tuning.ranges import Choice, Interval, Range, Space, is_closed_form

SAMPLERS = ("tpe", "grid")
_FORMAT = 1


@dataclass(frozen=True)
class Definition:
    """What a study is: a config, what is searched in it, and how. Two of the same are one study."""

    space: Space
    sampler: str

    def __post_init__(self) -> None:
        one_of("sampler", self.sampler, SAMPLERS)
        if self.sampler == "grid":
            next(self.space.grid(0))  # refuses ranges of numbers

    @property
    def config(self) -> RunConfig:
        return self.space.base

    @property
    def method(self) -> str:
        model = self.config.model.name
        return model if is_closed_form(self.config) else f"{model} with {self.config.loss.name}"

    @property
    def name(self) -> str:
        """The study's name in its storage: the same for the same command, wherever the data lie.

        Hyperband's brackets depend on it too.
        """
        source = Path(self.config.data.source).name
        readable = re.sub(r"[^\w.-]+", "-", f"{source}-{self.method.replace(' with ', '-')}")
        config = self.config.model_copy(update={"data": self.config.data.model_copy(update={"source": source})})
        content = json.dumps([to_toml(config), _ranges_json(self.space), self.sampler])
        return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


class StudyFolder:
    """Paths and formats of a study. Nothing in it is ever unpickled."""

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
        return self.definition.is_file()

    def check(self, definition: Definition) -> None:
        """The folder must be new, or hold this very study."""
        if (self.path / "config.toml").exists():
            raise ConfigError(f"{self.path} already holds a run; choose another --out for the study")
        if self.exists and (found := self.load()) != definition:
            raise ConfigError(
                f"{self.path} holds a study of something else ({_difference(found, definition)}); go on with that one "
                f"(topshelf tune --resume {self.path}), or choose another --out"
            )

    def create(self, definition: Definition, parts: Parts, storage: str | None) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot make the folder {self.path}: {error}") from None
        parts.save(self.parts)
        write_text(self.config, to_toml(definition.config))
        content = {
            "format": _FORMAT,
            "name": definition.name,
            "sampler": definition.sampler,
            "ranges": _ranges_json(definition.space),
            "default": definition.space.default,
            "storage": storage,
        }
        # Last, because its presence says that the study can be resumed.
        write_text(self.definition, json.dumps(content, indent=2) + "\n")

    def load(self) -> Definition:
        content = self._content()
        try:
            ranges = {name: _range(value) for name, value in content["ranges"].items()}
            space = Space(make_config(read_config(self.config)), ranges, content["default"])
            found = Definition(space, content["sampler"])
            if found.name != content["name"]:
                raise ValueError("study.toml and study.json do not belong together")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{self.path} is damaged, or of another version of topshelf: {error}") from None
        return found

    def save_best(self, config: RunConfig) -> None:
        write_text(self.best, to_toml(config))

    def storage(self) -> str | None:
        """The url that the study was begun with, without its password; None: its own database."""
        return self._content().get("storage")

    def _content(self) -> dict[str, Any]:
        if not self.exists:
            raise CheckpointError(f"{self.path} is not a study: it has no study.json; begin one with topshelf tune")
        try:
            content = json.loads(self.definition.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"it has format {content['format']!r}, and this version reads format {_FORMAT}")
            return dict(content)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.definition} is damaged: {error}") from None


def _ranges_json(space: Space) -> dict[str, Any]:
    return {
        name: list(range_.values) if isinstance(range_, Choice) else vars(range_)
        for name, range_ in space.ranges.items()
    }


def _range(value: Any) -> Range:
    return Interval(**value) if isinstance(value, dict) else Choice(tuple(value))


def _difference(found: Definition, wanted: Definition) -> str:
    """The first settings that differ, in words."""
    lines = [_lines(one) for one in (found, wanted)]
    differing = [name for name in lines[0] | lines[1] if lines[0].get(name) != lines[1].get(name)]
    return "; ".join(
        f"{name} is {lines[0].get(name, 'not there')}, not {lines[1].get(name, 'there')}" for name in differing[:3]
    )


def _lines(definition: Definition) -> dict[str, str]:
    values = definition.config.model_dump(exclude_none=True)
    result = {"sampler": definition.sampler}
    for section, content in values.items():
        settings = content if isinstance(content, dict) else {"": content}
        result |= {f"{section}.{key}".rstrip("."): str(value) for key, value in settings.items()}
    return result | {f"the range of {name}": str(range_) for name, range_ in definition.space.ranges.items()}
