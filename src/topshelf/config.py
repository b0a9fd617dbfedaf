"""What a run is: settings read from and written to TOML, checked against their schemas (:mod:`topshelf.settings`)."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pydantic
from pydantic import BaseModel, ConfigDict

from topshelf.errors import ConfigError, closest, one_of, suggestion
from topshelf.link_settings import LinksConfig
from topshelf.ranking_settings import RankingConfig
from topshelf.sequence_settings import SequenceConfig
from topshelf.settings import (
    BaseConfig,
    CatalogueConfig,
    Component,
    DataSettings,
    NegativesSettings,
    RunConfig,
    Settings,
    ThresholdSettings,
    TrainSettings,
)

__all__ = [
    "CONFIGS",
    "BaseConfig",
    "CatalogueConfig",
    "Component",
    "DataSettings",
    "LinksConfig",
    "NegativesSettings",
    "RankingConfig",
    "RunConfig",
    "SequenceConfig",
    "ThresholdSettings",
    "TrainSettings",
]

# The config class of each task.
CONFIGS: dict[str, type[BaseConfig]] = {
    "interactions": RunConfig,
    "ranking": RankingConfig,
    "sequences": SequenceConfig,
    "links": LinksConfig,
}
C = TypeVar("C", bound=BaseConfig)
S = TypeVar("S", bound=BaseModel)
_MOST_LEVELS = 16  # of nested values; our own settings have four


def class_names(config: BaseConfig) -> dict[str, str]:
    """The classes that a config names, by setting."""
    names = {"model.name": config.model.name, "loss.name": config.loss.name}
    if isinstance(config, CatalogueConfig):
        names |= {"negatives.kind": config.negatives.kind, "threshold.estimator": config.threshold.estimator}
    return {**names, **_names_in("model.parts", config.model.settings.get("parts"))}


def _names_in(where: str, parts: Any) -> dict[str, str]:
    """The classes of a blend's parts, and of theirs: a class of topshelf may be named by its module too."""
    names: dict[str, str] = {}
    for at, part in enumerate(parts if isinstance(parts, list) else []):
        if isinstance(part, Mapping):
            named = {f"{where}.{at}.name": part["name"]} if isinstance(part.get("name"), str) else {}
            names |= {**named, **_names_in(f"{where}.{at}.parts", part.get("parts"))}
    return names


def allow_options(config: BaseConfig) -> str:
    """The options that a command needs to open a run of this config: " --allow PACKAGE" per package of the user's."""
    packages = {name.partition(":")[0].partition(".")[0] for name in class_names(config).values() if ":" in name}
    return "".join(f" --allow {package}" for package in sorted(packages))


def make_config(values: Mapping[str, Any]) -> BaseConfig:
    """A checked config of the task that the values name; a model or loss without a name is the task's default one."""
    schema = CONFIGS[one_of("task", values.get("task", RunConfig().task), CONFIGS)]
    return checked(schema, merged(_default_names(schema), values))


def checked(schema: type[S], values: Mapping[str, Any]) -> S:
    """Settings of a schema; a ConfigError says what is wrong with the values."""
    try:
        return schema.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(explained(error, schema)) from None


def of_task(config: BaseConfig, schema: type[C], what: str) -> C:
    """The config, refused unless it is of the task that ``what`` is for."""
    if not isinstance(config, schema):
        wanted = [task for task, one in CONFIGS.items() if issubclass(one, schema)]
        command = {"links": "; use topshelf links", "ranking": "; use topshelf rank"}.get(config.task, "")
        raise ConfigError(f"{what} takes runs of task {' or '.join(wanted)}, got task {config.task!r}{command}")
    return config


def assemble(
    *,
    file: str | Path | None = None,
    task: str | None = None,
    data: str | None = None,
    model: str | None = None,
    loss: str | None = None,
    k: int | None = None,
    seed: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> BaseConfig:
    """A config from the settings shipped for its dataset, a TOML file, and the arguments. Later ones override.

    ``more`` holds nested values, such as ``{"train": {"epochs": 50}}``, and overrides all others.
    """
    named: dict[str, Any] = {"task": task, "seed": seed, "k": k}
    named |= {
        "data": {"source": data} if data is not None else None,
        "model": {"name": model} if model is not None else None,
        "loss": {"name": loss} if loss is not None else None,
    }
    named = merged({key: value for key, value in named.items() if value is not None}, more or {})
    if file is not None:
        named = merged(read_config(file), named)
    chosen = make_config(named)
    shipped = preset(chosen.data.source, chosen.model.name, chosen.loss.name, chosen.task)
    if {"kind", "n"} & set(named.get("negatives", {})):  # n and effective_n were shipped for other negatives
        kept = {key: value for key, value in shipped.get("negatives", {}).items() if key in ("kind", "paper_n")}
        shipped = {**shipped, "negatives": kept}
    return make_config(merged(shipped, named))


def read_config(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file, unchecked."""
    path = Path(path)
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a text that may hold anything; a ValueError says what is wrong with it."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    level: list[Any] = [values]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return values
    raise ValueError(f"its values are nested in more than {_MOST_LEVELS} levels")


def preset(data: str, model: str, loss: str, task: str = "interactions") -> dict[str, Any]:
    """The settings shipped for a model and loss on a dataset, else the general ones for the model and loss, else none.

    They override the settings shipped for the dataset itself, which apply to every model and loss. General files begin
    with "default", those of other tasks than interactions with the name of the task.
    """
    folder = resources.files("topshelf") / "configs"
    shipped = {entry.name: entry for entry in folder.iterdir()} if folder.is_dir() else {}
    parts = (f"{model}.{loss}", model)  # a closed-form model has no loss
    names = [f"{owner}.{part}" for owner in (data, "default" if task == "interactions" else task) for part in parts]
    first = [name for name in names if f"{name}.toml" in shipped][:1]
    values: dict[str, Any] = {}
    for name in [task, data, *first]:
        if entry := shipped.get(f"{name}.toml"):
            values = merged(values, tomllib.loads(entry.read_text(encoding="utf-8")))
    return values


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, overridden by those of ``over``. A component of another name replaces the old one whole."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            old = _common(key, old, value)
            renamed = "name" in value and "name" in old and value["name"] != old["name"]
            result[key] = dict(value) if renamed else merged(old, value)
        else:
            result[key] = value
    return result


def _common(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """The old values of a section, without those that belong to another kind of negatives, or another estimator."""
    kinds: dict[str, tuple[str, type[Settings]]] = {
        "negatives": ("kind", NegativesSettings),
        "threshold": ("estimator", ThresholdSettings),
    }
    name, schema = kinds.get(section, ("", Settings))
    if not name or new.get(name, old.get(name)) == old.get(name):
        return old
    return {key: value for key, value in old.items() if key in schema.model_fields}


def edits(before: str, now: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Changes to a config file since it was written: missing settings, and a sentence for each changed one."""
    old, new = flat(parse_toml(before)), flat(now)
    changed = {
        name: f"{name} is {value!r}, was {old.get(name, 'not set')!r}"
        for name, value in new.items()
        if name not in old or old[name] != value
    }
    return [name for name in old if name not in new], changed


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their whole names."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Nested values from ``section.key=value`` texts; a value is TOML where it can be, else a string."""
    result: dict[str, Any] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not all(path.strip().split(".")):
            raise ConfigError(f"--set takes section.key=value, such as train.epochs=50; got {text!r}")
        nested: Any = _toml_value(value.strip())
        for key in reversed(path.strip().split(".")):
            nested = {key: nested}
        result = merged(result, nested)
    return result


def to_toml(config: BaseConfig) -> str:
    """The config as TOML; unset values are left out."""
    values = config.model_dump(mode="json", exclude_none=True)
    values["evaluate"] = values.pop("evaluate")  # last: it ends in no number, so a file that is cut off is noticed
    lines = [f"{key} = {_toml_text(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml_text(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def complete(section: str, cls: type[Any], settings: Mapping[str, Any], given: Iterable[str] = ()) -> dict[str, Any]:
    """All settings of a component, defaults included, checked against its constructor.

    ``given`` names the constructor arguments that the user cannot set.
    """
    schema = _schema(cls, cls.__init__, tuple(given))  # type: ignore[arg-type]  # a class can be hashed
    try:
        values = schema.model_validate(dict(settings)).model_dump()
    except pydantic.ValidationError as error:
        raise ConfigError(explained(error, schema, prefix=f"{section}.")) from None
    for name, value in values.items():
        if not _is_plain(value):
            raise ConfigError(f"{section}.{name} must be a number, text or a list of them, got {type(value).__name__}")
    return values


def _is_plain(value: Any) -> bool:
    """Whether a config file can hold the value."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@lru_cache(maxsize=512)  # a search asks for the same few thousands of times, and one takes milliseconds
def _schema(cls: type[Any], init: Callable[..., None], given: tuple[str, ...]) -> type[BaseModel]:
    """The settings of a class, as its constructor has them."""
    fields: dict[str, Any] = {}
    try:
        hints = get_type_hints(init)
        for parameter in list(inspect.signature(init).parameters.values())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in given:
                continue
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
        return pydantic.create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    except (NameError, TypeError, pydantic.errors.PydanticUserError) as error:  # a class of the user's own
        raise ConfigError(
            f"the settings of {cls.__module__}:{cls.__name__} must be constructor arguments of plain types (numbers, "
            f"text, lists of them), and cannot be read: {str(error).partition('. ')[0]}"
        ) from error


def _default_names(schema: type[BaseConfig]) -> dict[str, Any]:
    fields = schema.model_fields
    return {name: {"name": fields[name].default.name} for name in ("model", "loss")}


def _toml_value(text: str) -> Any:
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text  # no setting is a date


def _toml_text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{key} = {_toml_text(inner)}" for key, inner in value.items() if inner is not None)
        return f"{{{', '.join(pairs)}}}"
    # JSON's strings, numbers and booleans are TOML's, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def explained(error: pydantic.ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    """Pydantic's errors as sentences: the setting, the rule, the value received, and the accepted names."""
    lines = []
    for finding in error.errors():
        name = prefix + ".".join(str(part) for part in finding["loc"])
        rule = finding["msg"][0].lower() + finding["msg"][1:]
        if finding["type"] == "extra_forbidden":
            accepted = list(_section(schema, finding["loc"][:-1]).model_fields)
            hint = suggestion(finding["loc"][-1], accepted) or _elsewhere(schema, str(finding["loc"][-1]))
            lines.append(f"{name} is not a setting; accepted here: {', '.join(accepted) or 'none'}{hint}")
        elif finding["type"] == "missing":
            lines.append(f"{name} must be given")
        elif finding["type"] == "value_error":  # of a check of ours, which says all of it
            lines.append(f"{name + ': ' if name else ''}{finding['msg'].removeprefix('Value error, ')}")
        elif finding["type"] != "too_short" or not finding["input"]:  # else the list is short of its wrong entries only
            values = re.findall("'(.*?)'", finding["msg"]) if finding["type"] == "literal_error" else []
            lines.append(f"{name}: {rule}, got {finding['input']!r}{suggestion(finding['input'], values)}")
    return "\n".join(lines)


def _elsewhere(schema: type[BaseModel], key: str) -> str:
    """The settings of this name in the sections, as the end of a message."""
    kinds = {name: field.annotation for name, field in schema.model_fields.items()}
    sections = {
        name: list(kind.model_fields)
        for name, kind in kinds.items()
        if inspect.isclass(kind) and issubclass(kind, Settings)
    }
    return in_sections(key, [f"{section}.{setting}" for section, own in sections.items() for setting in own])


def in_sections(key: str, names: Iterable[str]) -> str:
    """The whole names (``train.epochs``) of the settings that a key without its section may be."""
    whole: dict[str, list[str]] = {}
    for name in names:
        whole.setdefault(name.rpartition(".")[2], []).append(name)
    places = [name for setting in closest(key, whole) for name in whole[setting]]
    return f"; did you mean {' or '.join(places)}?" if places else ""


def _section(schema: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    """The settings at a place; a number in it is that of an entry of a list."""
    for part in path:
        if isinstance(part, str):
            kind = schema.model_fields[part].annotation
            kinds = [one for one in (kind, *typing.get_args(kind)) if inspect.isclass(one)]
            schema = next(one for one in kinds if issubclass(one, BaseModel))
    return schema
