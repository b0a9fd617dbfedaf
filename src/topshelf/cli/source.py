"""Names and settings, read from the package's source code: importing it takes two seconds, because of torch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from topshelf.registry import GIVEN

_PACKAGE = Path(__file__).parents[1]
_NOTHING = ast.Constant(None)
# Settings that name a class of a registry, or of the user's own, by section.
_NAMED = {
    "negatives": {"kind": ("negatives", "NEGATIVES")},
    "threshold": {"estimator": ("training.thresholding", "ESTIMATORS")},
}
_OTHERS = {"kind": ("auto",)}
_COMPONENTS = ("model", "loss")  # in the order of training.build.Registries


class Setting(NamedTuple):
    """A setting: its default as typed on the command line, its accepted values if they are fixed, and its docstring."""

    default: str = ""
    choices: tuple[str, ...] = ()
    about: str = ""


class _Field(NamedTuple):
    """An annotated field of a config class, and the module that has it."""

    module: str
    name: str
    annotation: ast.expr
    value: ast.expr
    setting: Setting


def tasks() -> list[str]:
    return list(_registry("config", "CONFIGS")[1])


def models(task: str | None = None) -> list[str]:
    """The names of a task's models; of all tasks without one."""
    return _of_tasks(task, lambda one: _classes(one, "model")[1])


def losses(task: str | None = None) -> list[str]:
    return _of_tasks(task, lambda one: _classes(one, "loss")[1])


def datasets(task: str | None = None) -> list[str]:
    return _of_tasks(task, _datasets)


def plans() -> list[str]:
    """The plans of topshelf bench."""
    return sorted(path.stem for path in (_PACKAGE / "bench" / "plans").glob("*.toml"))


def _of_tasks(task: str | None, names: Callable[[str], Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for one in (tasks() if task is None else [task]) for name in names(one)))


def _datasets(task: str) -> list[str]:
    module = _definition("data.named", _registry("data.named", "NAMED")[1].get(task, ""))[0]
    known = _definition(module, "_KNOWN")[1]
    calls = [entry for entry in getattr(known, "elts", ()) if isinstance(entry, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls]


def settings(task: str = "interactions", **chosen: str | None) -> dict[str, Setting]:
    """Every setting of a run by its full name; ``chosen`` names the model and the loss, if not the defaults."""
    rows: dict[str, Setting] = {}
    for field in _fields("config", _registry("config", "CONFIGS")[1].get(task, "")):
        section, kind = field.name, _definition(field.module, ast.unparse(field.annotation))
        if section in _COMPONENTS and isinstance(field.value, ast.Call):
            module, classes = _classes(task, section)
            name = chosen.get(section) or ast.literal_eval(field.value.keywords[0].value)
            rows[f"{section}.name"] = Setting(name, tuple(classes))
            inner = _arguments(module, classes.get(name, ""))
        elif isinstance(kind[1], ast.ClassDef):
            inner = _section(section, kind[0], kind[1].name)
        else:
            rows[section] = field.setting
            continue
        rows |= {f"{section}.{key}": row for key, row in inner.items()}
    return rows


def _classes(task: str, section: str) -> tuple[str, dict[str, str]]:
    """The classes that a task's models, or losses, are named by, and the module of their registry."""
    of_tasks = _definition("training.build", "REGISTRIES")[1]
    assert isinstance(of_tasks, ast.Dict)
    for key, row in zip(of_tasks.keys, of_tasks.values, strict=True):
        if isinstance(row, ast.Call) and key is not None and ast.literal_eval(key) == task:
            return _registry("training.build", ast.unparse(row.args[_COMPONENTS.index(section)]))
    return "", {}


def _section(section: str, module: str, name: str) -> dict[str, Setting]:
    """The settings of a section; where one of them names a class of any package, with those of our own classes."""
    rows = {field.name: field.setting for field in _fields(module, name)}
    for key, registry in _NAMED.get(section, {}).items():
        if not rows[key].choices:
            rows[key] = rows[key]._replace(choices=(*_OTHERS.get(key, ()), *_registry(*registry)[1]))
            rows |= {setting: row for setting, row in _own_settings(key, *registry).items() if setting not in rows}
    return rows


def _own_settings(key: str, module: str, name: str) -> dict[str, Setting]:
    """The settings that only some classes of a registry have, each with the classes that have it."""
    rows: dict[str, Setting] = {}
    owners: dict[str, list[str]] = {}
    for kind, cls in _registry(module, name)[1].items():
        for setting, row in _arguments(module, cls).items():
            rows.setdefault(setting, row)
            owners.setdefault(setting, []).append(kind)
    return {setting: row._replace(about=f"With {key} = {', '.join(owners[setting])}.") for setting, row in rows.items()}


@cache
def _tree(module: str) -> ast.Module:
    path = _PACKAGE.joinpath(*module.split("."))
    try:
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    except OSError:  # installed without its source code: nothing can be completed
        source = ""
    return ast.parse(source)


def _definition(module: str, name: str) -> tuple[str, ast.expr | ast.ClassDef]:
    """What a name of a module stands for, and the module that defines it; imports inside the package are followed."""
    for node in _tree(module).body:
        match node:
            case ast.ClassDef(name=defined) if defined == name:
                return module, node
            case ast.Assign(targets=[ast.Name(id=defined)], value=value) if defined == name:
                return module, value
            case ast.AnnAssign(target=ast.Name(id=defined), value=ast.expr() as value) if defined == name:
                return module, value
            case ast.ImportFrom(module=str(origin)) if origin.startswith("topshelf."):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _definition(origin.removeprefix("topshelf."), alias.name)
    return module, _NOTHING


def _registry(module: str, name: str) -> tuple[str, dict[str, str]]:
    """The module of a registry, and its class names by their keys."""
    module, registry = _definition(module, name)
    if not isinstance(registry, ast.Dict):
        return module, {}
    pairs = zip(registry.keys, registry.values, strict=True)
    return module, {ast.literal_eval(key): ast.unparse(value) for key, value in pairs if key is not None}


def _fields(module: str, name: str) -> list[_Field]:
    """The annotated fields of a class and its bases."""
    rows: dict[str, _Field] = {}
    module, definition = _definition(module, name)
    for base in getattr(definition, "bases", []):
        rows |= {field.name: field for field in _fields(module, ast.unparse(base))}
    return list((rows | {field.name: field for field in _own_fields(module, definition)}).values())


def _own_fields(module: str, definition: ast.expr | ast.ClassDef) -> Iterator[_Field]:
    body = getattr(definition, "body", [])
    for node, below in zip_longest(body, body[1:]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = node.value or _NOTHING
            default = value.args[0] if isinstance(value, ast.Call) and value.args else value
            about = below.value if isinstance(below, ast.Expr) else None
            text = about.value if isinstance(about, ast.Constant) and isinstance(about.value, str) else ""
            setting = Setting(_typed(default), tuple(_choices(module, node.annotation)), text)
            yield _Field(module, node.target.id, node.annotation, value, setting)


def _arguments(module: str, name: str) -> dict[str, Setting]:
    """The settings of a registered class: the arguments of its constructor, or of a base's."""
    module, node = _definition(module, name)
    if not isinstance(node, ast.ClassDef):
        return {}
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            plain = [*inner.args.posonlyargs, *inner.args.args, *inner.args.kwonlyargs]
            defaults = [*inner.args.defaults, *inner.args.kw_defaults]
            pairs = zip(reversed(plain), reversed(defaults), strict=False)  # the first arguments have no default
            return {
                argument.arg: Setting(_typed(default or _NOTHING), tuple(_choices(module, argument.annotation)))
                for argument, default in reversed(list(pairs))
                if argument.arg not in GIVEN
            }
    return next((rows for base in node.bases if (rows := _arguments(module, ast.unparse(base)))), {})


def _choices(module: str, annotation: ast.expr | None) -> list[str]:
    """The values of an annotation that names them: Literal, bool, a union of these, or an alias."""
    match annotation:
        case ast.BinOp(left=left, right=right):
            return [*_choices(module, left), *_choices(module, right)]
        case ast.Name(id="bool"):
            return ["true", "false"]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return [ast.literal_eval(value) for value in getattr(values, "elts", [values])]
        case ast.Name(id=name):
            origin, meaning = _definition(module, name)
            return _choices(origin, meaning) if isinstance(meaning, ast.Subscript) else []
    return []


def _typed(value: ast.expr) -> str:
    """A default as it is typed on the command line; empty where there is none, or it is no single value."""
    try:
        default = ast.literal_eval(value)
    except ValueError:
        return ""
    if isinstance(default, str | bool):
        return str(default) if isinstance(default, str) else str(default).lower()
    return ast.unparse(value) if isinstance(default, int | float) else ""
