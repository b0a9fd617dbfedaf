"""Options that several commands share, each defined once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Option

from topshelf import registry
from topshelf.cli import completion, source
from topshelf.errors import ConfigError

if TYPE_CHECKING:
    from topshelf.config import BaseConfig

Number = TypeVar("Number", int, float)


def option(help: str, *names: str, tab: Callable[..., Any] | None = None, panel: str | None = None) -> Any:
    """An option; ``tab`` completes its values."""
    return Option(*names, help=help, autocompletion=tab, rich_help_panel=panel)


def argument(metavar: str, help: str, tab: Callable[..., Any] | None = None) -> Any:
    return Argument(metavar=metavar, help=help, autocompletion=tab)


ListFile = Annotated[Path | None, option("Write a .parquet, .csv or .jsonl file instead of printing.")]
ListFileOrFolder = Annotated[
    Path | None,
    option(
        "Write a .parquet, .csv or .jsonl file instead of printing; any number of users. A name without an ending is a "
        "folder of Parquet parts, for the lists of all users."
    ),
]
SEVERAL = "Several processes"
Processes = Annotated[int | None, option("Write the parts of a folder by several processes.", panel=SEVERAL)]
PartUsers = Annotated[int | None, option("Users per part; default: those of a million rows.", panel=SEVERAL)]
Titles = Annotated[Path | None, option("Titles of items to show: a CSV, TSV or Parquet file with items and titles.")]
AsJson = Annotated[bool, option("Print JSON instead of tables.", "--json")]
Quiet = Annotated[bool, option("No progress bar.", "--quiet")]
WithReport = Annotated[
    bool | None,
    option("Write the page of the result; default: after 10 s of work, with matplotlib.", "--report/--no-report"),
]
ConfigFile = Annotated[Path | None, argument("FILE", "TOML file with the run's settings.")]
RunPath = Annotated[Path, argument("RUN", "Run folder.", tab=completion.runs)]


def numbers(text: str, kind: Callable[[str], Number], option: str, form: str) -> list[Number]:
    """Numbers separated by commas; ``form`` says in an error what the option takes."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes {form}; got {text!r}") from None


def search_here() -> None:
    """Find classes of the user's own in the current folder too, after everything that is installed."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _allow(packages: list[str] | None) -> list[str] | None:
    if packages:
        registry.allow(packages)
        search_here()
    return packages


# What it does is done when it is read: the commands need not look at it.
Allow = Annotated[
    list[str] | None,
    Option("--allow", help="Package with classes that the run may import. Repeatable.", callback=_allow),
]

# The options that say how a data file is read, and the data settings that they are.
_READING = {"user_column": "user", "item_column": "item", "rating_column": "weight", "time_column": "timestamp"}
_READING |= {name: name for name in ("dates", "min_rating", "separator")}
_reading = partial(option, panel="Reading a data file")


@dataclass(frozen=True)
class ColumnOptions:
    """Where a file has what."""

    user_column: Annotated[str | None, _reading("User column; detected by default.")] = None
    item_column: Annotated[str | None, _reading("Item column; detected by default.")] = None
    rating_column: Annotated[str | None, _reading("Rating column; 'none' ignores ratings.")] = None
    time_column: Annotated[str | None, _reading("Time column; 'none' ignores times.")] = None
    dates: Annotated[
        str | None,
        _reading(
            "Dates such as 12/01/2020: day-first or month-first.", tab=completion.choice("day-first", "month-first")
        ),
    ] = None

    def reading(self) -> dict[str, Any]:
        """The given ones of the options that say how a file is read, as data settings."""
        given = {setting: getattr(self, option, None) for option, setting in _READING.items()}
        if given["separator"] is not None:
            given["separator"] = given["separator"].replace("\\t", "\t")  # a tab is hard to type in most shells
        return {setting: value for setting, value in given.items() if value is not None}


@dataclass(frozen=True)
class FileOptions(ColumnOptions):
    min_rating: Annotated[float | None, _reading("Keep only interactions rated at least this.")] = None


@dataclass(frozen=True)
class TableOptions(FileOptions):
    separator: Annotated[str | None, _reading("One character or '::'; detected by default.")] = None


@dataclass(frozen=True)
class RunOptions(FileOptions):
    """What defines a run."""

    task: Annotated[
        str | None,
        option("What is ranked: interactions (default), ranking, sequences or links.", tab=source.tasks),
    ] = None
    data: Annotated[
        str | None, option("Dataset name, file or folder; see topshelf data list.", tab=completion.data)
    ] = None
    model: Annotated[
        str | None,
        option(
            "Default: mf; for ranking transformer, for sequences sasrec, for links gcn. Others: see topshelf models.",
            tab=completion.models,
        ),
    ] = None
    loss: Annotated[
        str | None, option("Default: slatk. Others: softmax, bpr, ...; see topshelf losses.", tab=completion.losses)
    ] = None
    k: Annotated[int | None, option("Length of the list to optimize; default: 20, for ranking 10.")] = None
    seed: Annotated[int | None, option("Random seed; default: 0.")] = None
    set_: Annotated[
        list[str] | None,
        option("Override a setting: section.key=value. Repeatable.", "--set", tab=completion.setting),
    ] = None

    def is_given(self) -> bool:
        return any(value is not None for value in astuple(self))

    def config(self, file: Path | None = None) -> BaseConfig:
        """The checked config of these options, and of the file if there is one."""
        from topshelf.config import allow_options, assemble, merged, overrides
        from topshelf.training.build import model_class

        given = overrides(self.set_ or [])
        self._check_sections(given)
        more = merged({"data": self.reading()}, given)
        named: dict[str, Any] = {name: getattr(self, name) for name in ("task", "data", "model", "loss", "k", "seed")}
        config = assemble(file=file, **named, more=more)
        if allow_options(config):
            search_here()
        if self.loss is not None and config.model.name != "blend" and model_class(config).is_closed_form:
            raise ConfigError(f"--loss does not go with --model {config.model.name}, which is fitted in closed form")
        return config

    def _check_sections(self, given: dict[str, Any]) -> None:
        """Refuse --set with a setting of a section, model or loss, but without the section's name."""
        from topshelf.config import in_sections

        known = source.settings(self.task or source.tasks()[0], model=self.model, loss=self.loss)
        top = {name.partition(".")[0] for name in known}
        for key, value in given.items():
            if key not in top and not isinstance(value, dict) and (hint := in_sections(key, known)):
                raise ConfigError(f"--set takes section.key=value, got {key!r} without its section{hint}")


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
