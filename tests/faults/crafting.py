"""Damaged and crafted run folders. Crafted ones have valid checksums: they come from somebody who knows the format."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from faults import artifacts, classes
from faults.edits import WRONG_TENSORS, Case, list_edits, seal
from faults.judging import FINISHED, UNFINISHED
from topshelf import files
from topshelf.training import checkpoint
from topshelf.training.folder import RunFolder

FILES = ("run.json", "config.toml", "metrics.json", "model.safetensors", "checkpoint.safetensors",
         "interactions.safetensors", "users.parquet", "items.parquet", "artifact.safetensors")  # fmt: skip
PARTS = ("train", "valid", "test", "below")
DEEP = 3000  # more than Python recurses
SHARE = 12  # one of so many cases is judged by default


def cases(kind: str, seed: int = 0, flips: int = 2) -> dict[str, Case]:
    """Every case for a kind of run, by name; another seed gives other damage."""
    found = damage(FILES, seed, flips) | texts() | _data(seed) | classes.cases()
    if kind in UNFINISHED:
        found |= checkpoints(kind) if kind in ("training", "refitting") else {}
    if not kind.endswith("-begun"):
        found |= _models(kind)
    if kind in FINISHED:
        found |= artifacts.cases(kind)
    return found


def some(kind: str) -> list[str]:
    """A twelfth of the cases, another one for each kind of run, and all that once corrupted memory or ran code."""
    turn = [*FINISHED, *UNFINISHED].index(kind) % SHARE
    always = ("equal to the number of items", "wrap around", "another package")
    return [name for at, name in enumerate(cases(kind)) if at % SHARE == turn or any(text in name for text in always)]


# Damage: the checksums no longer match, or the file is no longer what it was.


def damage(names: Iterable[str], seed: int, flips: int) -> dict[str, Case]:
    """Damage of each of the files."""
    found: dict[str, Case] = {}
    for name in names:
        for number in range(flips):
            found[f"{name}: a byte flipped, {seed}.{number}"] = partial(_flip, name, f"{seed}.{number}")
        for share in (0.0, 0.5, 0.999):
            found[f"{name}: cut at {share}"] = partial(_cut, name, share)
        found[f"{name}: zeros"] = partial(_edit_bytes, name, lambda raw: bytes(len(raw)))
        found[f"{name}: twice"] = partial(_edit_bytes, name, lambda raw: raw + raw)
        found[f"{name}: missing"] = partial(_remove, name)
        found[f"{name}: a folder"] = partial(_make_folder, name)
    return found


def _flip(name: str, seed: str, folder: Path) -> None:
    def flipped(raw: bytes) -> bytes:
        draw = random.Random(f"{name}/{seed}")
        place = draw.randrange(len(raw))
        return raw[:place] + bytes([raw[place] ^ (1 << draw.randrange(8))]) + raw[place + 1 :]

    _edit_bytes(name, flipped, folder)


def _cut(name: str, share: float, folder: Path) -> None:
    _edit_bytes(name, lambda raw: raw[: int(len(raw) * share)], folder)


def _edit_bytes(name: str, change: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / name
    if path.exists():
        path.write_bytes(change(path.read_bytes()))


def _remove(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)


def _make_folder(name: str, folder: Path) -> None:
    _remove(name, folder)
    (folder / name).mkdir()


# JSON and TOML of other kinds.


def texts() -> dict[str, Case]:
    found: dict[str, Case] = {}
    odd = {"null": "null", "a number": "7", "a list": "[1, 2]", "text": '"run"', "an empty object": "{}",
           "nested lists": "[" * DEEP + "]" * DEEP, "nested objects": '{"a":' * DEEP + "1" + "}" * DEEP,
           "a long number": '{"run": ' + "9" * 5000 + "}", "a surrogate": '{"run": "\\ud800"}'}  # fmt: skip
    for name in ("run.json", "metrics.json"):
        for what, text in odd.items():
            found[f"{name} is {what}"] = partial(_write_text, name, text)
    for field, values in {
        "run": (None, 3, "0" * 16), "format": (2, None), "config": (None, 5, "seed = ", "", "k = [["),
        "sha256": (None, [], {}, {"users.parquet": 1}),
    }.items():  # fmt: skip
        for value in values:
            found[f"run.json, sealed: {field} = {value!r}"] = partial(_reseal, "run.json", field, value)
    for field, values in {
        "run": (None, 3), "model_sha256": (None, 3, "0" * 64), "valid": (None, []),
        "artifact_sha256": (None, 3, "0" * 64),
    }.items():  # fmt: skip
        for value in values:
            found[f"metrics.json, sealed: {field} = {value!r}"] = partial(_reseal, "metrics.json", field, value)
    for name in ("run.json", "metrics.json"):
        found[f"{name} without its checksum"] = partial(_unseal, name)
    tomls = {
        "nested lists": "a = " + "[" * DEEP + "]" * DEEP, "nested keys": ".".join(["a"] * DEEP) + " = 1",
        "nested tables": "[" + ".".join(["a"] * DEEP) + "]", "a long number": "k = " + "9" * 5000, "empty": "",
    }  # fmt: skip
    for what, text in tomls.items():
        found[f"config.toml is {what}"] = partial(_write_text, "config.toml", text)
        found[f"config.toml ends with {what}"] = partial(_append_text, "config.toml", f"\n[more]\n{text}\n")
    for old, new in CONFIG_EDITS:
        found[f"config.toml: {old} -> {new}"] = partial(_replace_text, "config.toml", old, new)
    return found


CONFIG_EDITS = (
    ('[loss]\nname = "slatk"', '[loss]\nname = "unknown"'), ('[loss]\nname = "slatk"', '[loss]\nname = 3'),
    ('[model]\nname = "', '[model]\nname = "un'), ("[model]\n", "[model]\nshelf = 1\n"), ("[loss]\n", "[los]\n"),
    ("k = 5", "k = 1000000"), ("k = 5", "k = -1"), ("k = 5", "k = nan"), ("k = 5", "k = 1979-05-27"),
    ("k = 5", "k = 6"),
    ("seed = 0", "seed = 1"), ("seed = 0", "seed = -1"), ("learning_rate = 0.1", "learning_rate = inf"),
    ("learning_rate = 0.1", "learning_rate = 0.2"), ("batch_size = 16", "batch_size = 8"),
    ("refit = false", 'refit = "all"'),
    ('refit = "all"', "refit = false"), ("refit = true", "refit = false"), ('device = "cpu"', 'device = "shelf"'),
    ("dim = 8", "dim = 9"), ("dim = 8", "dim = 0"), ("tau = 0.2", "tau = 0.0"), ("cutoffs = [5]", "cutoffs = []"),
    ("cutoffs = [5]", "cutoffs = [99]"), ("cutoffs = [5]", "cutoffs = [[5]]"), ('order = "query"', 'order = "pair"'),
)  # fmt: skip


def _write_text(name: str, text: str, folder: Path) -> None:
    if (folder / name).exists():
        (folder / name).write_text(text)


def _append_text(name: str, text: str, folder: Path) -> None:
    with (folder / name).open("a") as file:
        file.write(text)


def _replace_text(name: str, old: str, new: str, folder: Path) -> None:
    path = folder / name
    path.write_text(path.read_text().replace(old, new, 1))


def _reseal(name: str, field: str, value: Any, folder: Path) -> None:
    if (folder / name).exists():
        files.write_sealed(folder / name, {**files.read_sealed(folder / name), field: value})


def _unseal(name: str, folder: Path) -> None:
    if (folder / name).exists():
        (folder / name).write_text(json.dumps(files.read_sealed(folder / name)))


# Data, with valid checksums.


def _edit_data(change: Callable[[dict[str, Any]], None], folder: Path) -> None:
    path = RunFolder(folder).interactions
    state = checkpoint.load(path)
    change(state)
    checkpoint.save(path, state)
    seal(folder)


def _event_edits() -> dict[str, Callable[[dict[str, Any]], None]]:
    def column(name: str, how: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], None]:
        return lambda events: events.update({name: how(events[name])})

    others = {
        "times that fall": column("timestamp", lambda x: -x - torch.arange(len(x))),
        "times that are not numbers": column("timestamp", lambda x: torch.full_like(x, torch.nan, dtype=torch.float64)),
        "too few times": column("timestamp", lambda x: x[:-1]), "times as text": column("timestamp", lambda x: "x"),
        "times of int32": column("timestamp", lambda x: x.int()),
        "infinite weights": lambda events: events.update(weight=torch.full((len(events["indices"]),), torch.inf)),
        "weights in a table": lambda events: events.update(weight=torch.ones(len(events["indices"]), 1)),
        "no bounds": lambda events: events.pop("indptr"), "no items": lambda events: events.pop("indices"),
        "another column": lambda events: events.update(more=events["indices"]),
    }  # fmt: skip
    sets = ("a list unsorted", "all items repeated", "int32 items")  # these may be events
    lists = {what: change for what, change in list_edits().items() if what not in sets}
    return {**lists, **others}


def _data(seed: int) -> dict[str, Case]:
    found: dict[str, Case] = {}
    edits = list_edits()
    for at, (what, change) in enumerate(edits.items()):
        part = PARTS[(at + seed) % len(PARTS)] if at > 4 else "train"
        found[f"data, sealed: {part} has {what}"] = partial(
            _edit_data, lambda state, part=part, change=change: change(state[part])
        )
    odd: dict[str, Callable[[dict[str, Any]], None]] = {
        "no train": lambda state: state.pop("train"), "no test": lambda state: state.pop("test"),
        "no notes": lambda state: state.pop("notes"), "no kind": lambda state: state.pop("kind"),
        "train is nothing": lambda state: state.update(train=None),
        "train is text": lambda state: state.update(train="x"),
        "notes are a list": lambda state: state.update(notes=[1, 2]),
        "notes are text": lambda state: state.update(notes="x"),
        "a note is text": lambda state: state.update(notes={"dropped_test": "many"}),
        "a note is a list": lambda state: state.update(notes={"dropped_test": [1]}),
        "a note is named by a number": lambda state: state.update(notes={3: 1}),
        "test is train": lambda state: state.update(test=state["train"]),
        "valid is train": lambda state: state.update(valid=dict(state["train"])),
        "left out is test": lambda state: state.update(left_out=dict(state["test"])),
        "below is nothing": lambda state: state.update(below=None),
        "below is text": lambda state: state.update(below="x"), "below is empty": lambda state: state.update(below={}),
        "below is test": lambda state: state.update(below=dict(state["test"])),
        "below is train": lambda state: state.update(below=dict(state["train"])),
        "an empty train": lambda state: state["train"].update(
            indptr=torch.zeros_like(state["train"]["indptr"]), indices=torch.zeros(0, dtype=torch.int64)
        ),
        "an empty test": lambda state: state["test"].update(
            indptr=torch.zeros_like(state["test"]["indptr"]), indices=torch.zeros(0, dtype=torch.int64)
        ),
    }  # fmt: skip
    found |= {f"data, sealed: {what}": partial(_edit_data, change) for what, change in odd.items()}
    for at, (what, change) in enumerate(_event_edits().items()):
        part = PARTS[(at + seed) % len(PARTS)]
        found[f"data, sealed: the events of {part} have {what}"] = partial(
            _edit_data, lambda state, part=part, change=change: change(state[part]["events"])
        )
    found["data, sealed: events are text"] = partial(_edit_data, lambda state: state["train"].update(events="x"))
    return found | id_tables(("users.parquet", "items.parquet"), seed)


def id_tables(names: Iterable[str], seed: int) -> dict[str, Case]:
    """Tables of ids that are none, with valid checksums."""
    found: dict[str, Case] = {}
    tables: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "no id": lambda table: table.rename({"id": "name"}), "no column": lambda table: table.select([]),
        "equal ids": lambda table: table.with_columns(id=pl.lit(1)), "one id twice": lambda table: table.with_columns(
            id=pl.when(pl.int_range(pl.len()) == 0).then(pl.col("id").last()).otherwise(pl.col("id"))),
        "a missing id": lambda table: table.with_columns(id=pl.col("id").shift(1)),
        "lists as ids": lambda table: table.with_columns(id=pl.concat_list("id")),
        "structs as ids": lambda table: table.with_columns(id=pl.struct("id")),
        "nothing as ids": lambda table: table.with_columns(id=pl.lit(None)),
        "not a number as an id": lambda table: table.with_columns(id=pl.lit(float("nan"))),
        "one row fewer": lambda table: table.head(-1), "one row more": lambda table: pl.concat(
            [table, table.head(1).with_columns(id=pl.col("id").cast(pl.Int64) + 10**6)]),
        "no rows": lambda table: table.clear(),
    }  # fmt: skip
    for name in names:
        for what, change in tables.items():
            found[f"{name}, sealed: {what}"] = partial(_edit_table, name, change)
        for number in range(3):
            found[f"{name}, sealed: a byte flipped, {seed}.{number}"] = partial(
                _sealed, partial(_flip, name, f"s{seed}.{number}")
            )
        found[f"{name}, sealed: half"] = partial(_sealed, partial(_cut, name, 0.5))
        found[f"{name}, sealed: CSV"] = partial(_sealed, partial(_edit_bytes, name, lambda raw: b"id\n1\n2\n"))
    return found


def _sealed(change: Case, folder: Path) -> None:
    change(folder)
    seal(folder)


def _edit_table(name: str, change: Callable[[pl.DataFrame], pl.DataFrame], folder: Path) -> None:
    change(pl.read_parquet(folder / name)).write_parquet(folder / name)
    seal(folder)


# Weights and checkpoints, with valid checksums.


def _models(kind: str) -> dict[str, Case]:
    found: dict[str, Case] = {}
    for place in range(2 if kind in ("mf", "all", "training", "refitting") else 4):
        for what, change in WRONG_TENSORS.items():
            if (kind, what) == ("ease", "transposed"):
                continue  # square: another model, as sound as the first, and all checksums are made anew
            found[f"model, sealed: tensor {place}: {what}"] = partial(edit_weights, place, change)
    if kind in ("slim", "itemknn", "rp3beta"):
        for what, change in list_edits().items():
            found[f"model, sealed: weights: {what}"] = partial(
                _edit_model, lambda state, f=change: _on_weights(f, state)
            )
    return found | model_fields()


def model_fields() -> dict[str, Case]:
    """Numbers beside the weights that are none."""
    found: dict[str, Case] = {}
    for field, values in {
        "best_epoch": (None, -1, 1.5, "1", True, [1]), "seconds": (None, "1", float("nan"), -1.0, {}),
        "valid_score": ("1", [], float("nan"), float("inf")), "measured": (5, [], {}, {"mean": {}}, "x"),
        "model": (None, [], {}, 5, "x"), "refit": (None, 7, "none"),
    }.items():  # fmt: skip
        for value in values:
            found[f"model, sealed: {field} = {value!r}"] = partial(_edit_model, partial(_set, (field,), value))
        found[f"model, sealed: no {field}"] = partial(_edit_model, lambda state, field=field: state.pop(field, None))
    found["model, sealed: one more tensor"] = partial(
        _edit_model, lambda state: state["model"].update(more=torch.zeros(3))
    )
    found["model, sealed: measured inside out"] = partial(_edit_model, _turned_measures)
    return found


def _on_weights(change: Callable[[dict[str, Any]], None], state: dict[str, Any]) -> None:
    weights = state["model"]
    weights["indices"] = weights["indices"].long()
    change(weights)
    if isinstance(weights["indices"], torch.Tensor) and weights["indices"].dtype == torch.int64:
        weights["indices"] = weights["indices"].clamp(-(2**31), 2**31 - 1).int()


def _turned_measures(state: dict[str, Any]) -> None:
    if isinstance(state.get("measured"), dict):
        state["measured"] = {key: [value] for key, value in state["measured"].items()}
    else:
        state["measured"] = {"cutoffs": [5], "mean": {}, "interval": {}, "extras": {}}


def edit_weights(place: int, change: Callable[[torch.Tensor], Any], folder: Path) -> None:
    def edit(state: dict[str, Any]) -> None:
        names = list(state["model"])
        name = names[place % len(names)]
        state["model"][name] = change(state["model"][name])

    _edit_model(edit, folder)


def _edit_model(change: Callable[[dict[str, Any]], None], folder: Path) -> None:
    run = RunFolder(folder)
    state = run.load_model()
    change(state)
    run.save_model(state)
    seal(folder)


def _edit_checkpoint(change: Callable[[dict[str, Any]], None], folder: Path) -> None:
    run = RunFolder(folder)
    state = run.load_checkpoint()
    assert state is not None
    change(state)
    run.save_checkpoint(state)


ODD_VALUES = (None, "x", -1, 10**9, 1.5, [], {}, float("nan"), True)
PATHS = (
    ("phase",), ("extra",), ("trainer",), ("trainer", "model"), ("trainer", "loss"), ("trainer", "optimizer"),
    ("trainer", "best_weights"), ("trainer", "progress"), ("trainer", "optimizer", "state"),
    ("trainer", "optimizer", "state", 0), ("trainer", "optimizer", "state", 0, "step"),
    ("trainer", "optimizer", "state", 0, "exp_avg"), ("trainer", "optimizer", "param_groups"),
    ("trainer", "optimizer", "param_groups", 0, "lr"), ("trainer", "optimizer", "param_groups", 0, "betas"),
    ("trainer", "optimizer", "param_groups", 0, "params"), ("trainer", "optimizer", "param_groups", 0, "eps"),
    ("trainer", "loss", "threshold"), *(("trainer", "progress", name) for name in (
        "epoch", "step", "loss_sum", "best_epoch", "best_score", "history")),
)  # fmt: skip
REFIT_PATHS = tuple(("extra", name) for name in ("best_epoch", "valid_score", "measured", "log"))
TENSORS = (
    ("trainer", "optimizer", "state", 0, "exp_avg"), ("trainer", "optimizer", "state", 1, "exp_avg_sq"),
    ("trainer", "optimizer", "state", 0, "step"), ("trainer", "loss", "threshold"), ("trainer", "model", 0),
    ("trainer", "best_weights", 1),
)  # fmt: skip


def checkpoints(kind: str) -> dict[str, Case]:
    found: dict[str, Case] = {}
    paths = (*PATHS, *REFIT_PATHS) if kind == "refitting" else PATHS
    for path in paths:
        named = ".".join(map(str, path))
        found[f"checkpoint, sealed: no {named}"] = partial(_edit_checkpoint, partial(_drop, path))
        for value in ODD_VALUES:
            found[f"checkpoint, sealed: {named} = {value!r}"] = partial(_edit_checkpoint, partial(_set, path, value))
    for path in TENSORS:
        for what, change in WRONG_TENSORS.items():
            named = ".".join(map(str, path))
            found[f"checkpoint, sealed: {named}: {what}"] = partial(_edit_checkpoint, partial(_change, path, change))
    found["checkpoint, sealed: moments swapped"] = partial(_edit_checkpoint, _swap_moments)
    found["checkpoint, sealed: a parameter more"] = partial(
        _edit_checkpoint, lambda state: state["trainer"]["optimizer"]["state"].update({7: {}})
    )
    return found


def _swap_moments(state: dict[str, Any]) -> None:
    moments = state["trainer"]["optimizer"]["state"]
    moments[0], moments[1] = moments[1], moments[0]


def _set(path: tuple[Any, ...], value: Any, state: dict[str, Any]) -> None:
    inner = _inner(path, state)
    if isinstance(inner, list | dict):
        inner[_key(inner, path[-1])] = value


def _drop(path: tuple[Any, ...], state: dict[str, Any]) -> None:
    inner = _inner(path, state)
    if isinstance(inner, dict):
        inner.pop(_key(inner, path[-1]), None)


def _change(path: tuple[Any, ...], change: Callable[[torch.Tensor], Any], state: dict[str, Any]) -> None:
    inner = _inner(path, state)
    if isinstance(inner, dict):
        key = _key(inner, path[-1])
        if isinstance(old := inner.get(key), torch.Tensor):
            inner[key] = change(old if old.dim() else old[None])


def _inner(path: tuple[Any, ...], state: Any) -> Any:
    for key in path[:-1]:
        if state is None:
            return None
        state = state[_key(state, key)]
    return state


def _key(inner: Any, key: Any) -> Any:
    """A key of a dict or list; a number also stands for the place of a named tensor."""
    return list(inner)[key] if isinstance(inner, dict) and isinstance(key, int) and key not in inner else key
