"""What a run is: frozen, checked settings, read from and written to TOML.

Run-level settings are the models below. The settings of a loss or a model are its constructor's keyword arguments:
the constructor is the schema, so a hyper-parameter is spelled once.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from topshelf.errors import ConfigError

T = TypeVar("T")
_MOST_LEVELS = 16  # of nested values; our own settings have four


class Settings(BaseModel):
    """Base of every section: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Component(BaseModel):
    """A loss or a model: its name, and its constructor's settings. None is a setting left out, as in a file."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_unset(cls, values: Any) -> Any:
        return {key: one for key, one in values.items() if one is not None} if isinstance(values, dict) else values

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSettings(Settings):
    source: str = "movielens-100k"
    """A file, a folder, or the name of a dataset (`topshelf data list`)."""
    user: str | None = None
    """Column of the users; guessed from the common names."""
    item: str | None = None
    """Column of the items; guessed from the common names."""
    weight: str | None = None
    """Column of ratings or weights; guessed from the common names."""
    timestamp: str | None = None
    """Column of times; guessed from the common names."""
    dates: Literal["day-first", "month-first"] | None = None
    """Order of day and month in dates such as 12/01/2020, where the values do not show it."""
    min_rating: float | None = None
    """Lowest rating that counts as a positive."""
    core: int = Field(0, ge=0)
    """Drop users and items with fewer interactions, until none is left."""
    split: Literal["auto", "ratio", "last", "time"] = "auto"
    """auto: time where there are timestamps, else ratio."""
    test_fraction: float = Field(0.2, ge=0, lt=1)
    """Share of interactions held out for the test; 0: no test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of train held out for validation."""
    last_n: int = Field(1, ge=1)
    """With split = "last": how many of each user's latest interactions are the test."""
    split_seed: int = Field(0, ge=0)
    """With split = "ratio": decides the test part. Runs that differ in seed alone share it."""
    noise: float = Field(0.0, ge=0)
    """False positives added to train, as a share of each user's positives."""


class OpenSettings(Settings):
    """A section with the further settings of its class; they are checked against its constructor."""

    model_config = ConfigDict(extra="allow")

    @property
    def more(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class NegativesSettings(OpenSettings):
    kind: str = "auto"
    """auto: the exact catalogue where the loss takes a log-partition, else per_query; or shared, in_batch, mixed."""
    n: int | None = Field(None, ge=1)
    """How many to draw, for shared and per_query; default: paper_n, with auto the loss's own number (BPR: 1)."""
    effective_n: int | None = Field(None, ge=1)
    """Number of negatives that the partition is scaled to; default: paper_n for the catalogue, n for samples."""
    paper_n: int = Field(1000, ge=1)
    """The paper's N, the default of n and effective_n: 1000, and 200 as shipped for MovieLens-100K."""


class ThresholdSettings(OpenSettings):
    estimator: str = "exact"
    """How the top-K thresholds are estimated: exact, sampled, iid, weighted, regression, incremental."""
    every: int = Field(5, ge=1)
    """exact, sampled, iid, weighted: epochs between two updates (the paper's T_beta)."""
    n: int | None = Field(None, ge=1)
    """sampled, iid, weighted, regression, and incremental without the exact catalogue: items drawn for an estimate."""
    rate: float | None = Field(None, gt=0)
    """regression (0.1), incremental (0.5): size of a step."""


class TrainSettings(Settings):
    epochs: int = Field(200, ge=1)
    """Maximum number of epochs."""
    order: Literal["query", "pair"] = "query"
    """Batches of queries with all their positives, or of shuffled (query, positive) pairs as in the paper."""
    batch_size: int = Field(2048, ge=1)
    """Queries, or pairs, per batch."""
    optimizer: Literal["adam", "row_adam"] = "adam"
    """adam: dense; row_adam: only the users of a batch are updated, for large tables and small batches."""
    learning_rate: float = Field(0.1, gt=0)
    """Adam's learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty, added to the gradient."""
    validate_every: int = Field(5, ge=1)
    """Epochs between two validations."""
    patience: int = Field(10, ge=0)
    """Stop after this many validations without a better NDCG@K; 0: never."""
    refit: bool | Literal["all"] = False
    """Train again for the chosen epochs: true, on train + validation; all, on every interaction, after the test."""
    checkpoint_seconds: float = Field(30.0, ge=0)
    """Minimum seconds between two checkpoints; 0: after every epoch."""
    device: str = "cpu"
    """Where to train."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: gradients over the whole catalogue by bfloat16 products (float32 where logits exceed 40)."""
    workspace_mib: int = Field(512, ge=1)
    """Memory for one block of scores."""


class EvaluateSettings(Settings):
    protocol: Literal["standard", "paper"] = "standard"
    """standard: train and validation items masked, users with nothing to find left out."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (5, 10, 20, 50)
    """Lengths of the lists to report; K is added, and those longer than the catalogue are left out."""
    auc: bool = True
    """Also report the AUC, which needs every score."""


class RunConfig(Settings):
    """Everything that decides a run's numbers."""

    seed: int = Field(0, ge=0)
    """Decides the validation part, initial values, batches and draws; the test part depends on data.split_seed."""
    k: int = Field(20, ge=1)
    """Length of the recommended list: the K of SL@K and of the NDCG@K that chooses the epoch."""
    data: DataSettings = DataSettings()
    model: Component = Component(name="mf")
    loss: Component = Component(name="slatk")
    negatives: NegativesSettings = NegativesSettings()
    threshold: ThresholdSettings = ThresholdSettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return tuple(sorted({*self.evaluate.cutoffs, self.k}))


def class_names(config: RunConfig) -> dict[str, str]:
    """The classes that a config names, by setting."""
    names = {
        "model.name": config.model.name,
        "loss.name": config.loss.name,
        "negatives.kind": config.negatives.kind,
        "threshold.estimator": config.threshold.estimator,
    }
    return {**names, **_names_in("model.parts", config.model.settings.get("parts"))}


def _names_in(where: str, parts: Any) -> dict[str, str]:
    """The classes of a blend's parts, and of theirs: a class of topshelf may be named by its module too."""
    names: dict[str, str] = {}
    for at, part in enumerate(parts if isinstance(parts, list) else []):
        if isinstance(part, Mapping):
            named = {f"{where}.{at}.name": part["name"]} if isinstance(part.get("name"), str) else {}
            names |= {**named, **_names_in(f"{where}.{at}.parts", part.get("parts"))}
    return names


def allow_options(config: RunConfig) -> str:
    """The options that a command needs to open a run of this config: " --allow PACKAGE" per package of the user's."""
    packages = {name.partition(":")[0].partition(".")[0] for name in class_names(config).values() if ":" in name}
    return "".join(f" --allow {package}" for package in sorted(packages))


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """A checked config from nested values; a model or loss without a name is the default one."""
    try:
        return RunConfig.model_validate(merged(_default_names(), values))
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error, RunConfig)) from None


def assemble(
    *,
    file: str | Path | None = None,
    data: str | None = None,
    model: str | None = None,
    loss: str | None = None,
    k: int | None = None,
    seed: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A config from the settings shipped for its dataset, a TOML file, and the arguments. Later ones override.

    ``more`` holds nested values, such as ``{"train": {"epochs": 50}}``, and overrides all others.
    """
    named: dict[str, Any] = {"seed": seed, "k": k}
    named |= {
        "data": {"source": data} if data is not None else None,
        "model": {"name": model} if model is not None else None,
        "loss": {"name": loss} if loss is not None else None,
    }
    named = merged({key: value for key, value in named.items() if value is not None}, more or {})
    if file is not None:
        named = merged(read_config(file), named)
    chosen = make_config(named)
    shipped = preset(chosen.data.source, chosen.model.name, chosen.loss.name)
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


def preset(data: str, model: str, loss: str) -> dict[str, Any]:
    """The settings shipped for a model and loss on a dataset, else the general ones for the model and loss, else none.

    They override the settings shipped for the dataset itself, which apply to every model and loss.
    """
    folder = resources.files("topshelf") / "configs"
    shipped = {entry.name: entry for entry in folder.iterdir()} if folder.is_dir() else {}
    parts = (f"{model}.{loss}", model)  # a closed-form model has no loss
    names = [f"{owner}.{part}" for owner in (data, "default") for part in parts]
    first = [name for name in names if f"{name}.toml" in shipped][:1]
    values: dict[str, Any] = {}
    for name in [data, *first]:
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


def to_toml(config: RunConfig) -> str:
    """The config as TOML; unset values are left out."""
    values = config.model_dump(mode="json", exclude_none=True)
    lines = [f"{key} = {_toml_text(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml_text(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def complete(section: str, cls: type[Any], settings: Mapping[str, Any], given: Iterable[str] = ()) -> dict[str, Any]:
    """All settings of a component, defaults included, checked against its constructor.

    ``given`` names the constructor arguments that the user cannot set.
    """
    schema = _schema(cls, given)
    try:
        values = schema.model_validate(dict(settings)).model_dump()
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error, schema, prefix=f"{section}.")) from None
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


def _schema(cls: type[Any], given: Iterable[str]) -> type[BaseModel]:
    """The settings of a class, as its constructor has them."""
    fields: dict[str, Any] = {}
    try:
        hints = get_type_hints(cls.__init__)
        for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
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


def _default_names() -> dict[str, Any]:
    fields = RunConfig.model_fields
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


def _explain(error: pydantic.ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    """Pydantic's errors as sentences: the setting, the rule, the value received, and the accepted names."""
    lines = []
    for finding in error.errors():
        name = prefix + ".".join(str(part) for part in finding["loc"])
        if finding["type"] == "extra_forbidden":
            accepted = ", ".join(_section(schema, finding["loc"][:-1]).model_fields) or "none"
            lines.append(f"{name} is not a setting; accepted here: {accepted}")
        else:
            rule = finding["msg"][0].lower() + finding["msg"][1:]
            lines.append(f"{name}: {rule}, got {finding['input']!r}")
    return "\n".join(lines)


def _section(schema: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    for part in path:
        inner = schema.model_fields[str(part)].annotation
        assert inspect.isclass(inner)
        assert issubclass(inner, BaseModel)
        schema = inner
    return schema
