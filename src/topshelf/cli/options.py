"""Options that several commands share, each defined once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.models import OptionInfo

from topshelf.cli import completion, source
from topshelf.errors import ConfigError

if TYPE_CHECKING:
    from topshelf.config import RunConfig

AsJson = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]
Quiet = Annotated[bool, Option("--quiet", help="No progress bar.")]
ConfigFile = Annotated[Path | None, Argument(metavar="FILE", help="TOML file with the run's settings.")]
RunPath = Annotated[Path, Argument(metavar="RUN", help="Run folder.", autocompletion=completion.runs)]

# The options that say how a data file is read, and the data settings that they are.
_READING = {"user_column": "user", "item_column": "item", "rating_column": "weight", "time_column": "timestamp"}
_READING |= {name: name for name in ("dates", "min_rating", "separator")}


def _reading(help: str, **more: Any) -> OptionInfo:
    option: OptionInfo = Option(help=help, rich_help_panel="Reading a data file", **more)
    return option


@dataclass(frozen=True)
class IdColumns:
    user_column: Annotated[str | None, _reading("User column; detected by default.")] = None
    item_column: Annotated[str | None, _reading("Item column; detected by default.")] = None
    rating_column: Annotated[str | None, _reading("Rating column; 'none' ignores ratings.")] = None

    def reading(self) -> dict[str, Any]:
        """The given ones of the options that say how a file is read, as data settings."""
        given = {setting: getattr(self, option, None) for option, setting in _READING.items()}
        if given["separator"] is not None:
            given["separator"] = given["separator"].replace("\\t", "\t")  # a tab is hard to type in most shells
        return {setting: value for setting, value in given.items() if value is not None}


@dataclass(frozen=True)
class Columns(IdColumns):
    time_column: Annotated[str | None, _reading("Time column; 'none' ignores times.")] = None
    dates: Annotated[
        str | None,
        _reading(
            "How to read dates such as 12/01/2020: day-first or month-first.",
            autocompletion=completion.choice("day-first", "month-first"),
        ),
    ] = None
    min_rating: Annotated[float | None, _reading("Keep only interactions rated at least this.")] = None


@dataclass(frozen=True)
class TableOptions(Columns):
    separator: Annotated[str | None, _reading("One character or '::'; detected by default.")] = None


@dataclass(frozen=True)
class RunOptions(Columns):
    """What defines a run."""

    data: Annotated[str | None, Option(help="Dataset name, file or folder.", autocompletion=completion.data)] = None
    model: Annotated[
        str | None,
        Option(
            help=f"Default: mf. One of {', '.join(source.models())}; see topshelf models.",
            autocompletion=completion.models,
        ),
    ] = None
    loss: Annotated[
        str | None,
        Option(
            help="Default: slatk. Others: softmax, bpr, ...; see topshelf losses.", autocompletion=completion.losses
        ),
    ] = None
    k: Annotated[int | None, Option(help="Length of the list to optimize; default: 20.")] = None
    seed: Annotated[int | None, Option(help="Random seed; default: 0.")] = None
    set_: Annotated[
        list[str] | None,
        Option("--set", help="Override a setting: section.key=value. Repeatable.", autocompletion=completion.setting),
    ] = None

    def is_given(self) -> bool:
        return any(value is not None for value in astuple(self))

    def config(self, file: Path | None = None) -> RunConfig:
        """The checked config of these options, and of the file if there is one."""
        from topshelf.config import assemble, merged, overrides
        from topshelf.models import MODELS

        more = merged({"data": self.reading()}, overrides(self.set_ or []))
        named: dict[str, Any] = {
            "data": self.data,
            "model": self.model,
            "loss": self.loss,
            "k": self.k,
            "seed": self.seed,
        }
        config = assemble(file=file, **named, more=more)
        if self.loss is not None and config.model.name in MODELS and MODELS[config.model.name].is_closed_form:
            raise ConfigError(f"--loss does not go with --model {config.model.name}, which is fitted in closed form")
        return config


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of the option groups it takes, such as RunOptions, as options of its own."""
    signature = inspect.signature(command, eval_str=True)
    kinds: dict[str, Any] = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        own = inspect.signature(groups[name], eval_str=True).parameters.values() if name in groups else [parameter]
        parameters += own

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
