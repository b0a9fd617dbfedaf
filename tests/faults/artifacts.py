"""Crafted artifacts: rewritten with valid checksums of their own, and with those of metrics.json too.

The second kind comes from somebody who has made all checksums anew. It is refused where it does not fit its folder or
itself; a sound one, such as other vectors of the same shape, is another run.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from faults.edits import WRONG_TENSORS, Case, list_edits, seal
from topshelf.training import checkpoint
from topshelf.training.folder import RunFolder

TABLES = ("mf", "all")  # kinds of runs whose known queries are a table
Change = Callable[[dict[str, Any]], Any]


def cases(kind: str) -> dict[str, Case]:
    """Every case for a kind of finished run, by name."""
    found: dict[str, Case] = {f"artifact: {what}": partial(_edit, change) for what, change in _others(kind).items()}
    for what, change in _crafted(kind).items():
        found[f"artifact, sealed: {what}"] = partial(_sealed, partial(_edit, change))
    for what, change in {
        "a huge tensor": _huge,
        "a long header": _long_header,
        "tensors that overlap": _overlap,
    }.items():
        found[f"artifact, sealed: {what}"] = partial(_sealed, change)
    for run in ("0" * 16, None, 5):
        found[f"artifact, sealed: of run {run!r}"] = partial(_sealed, partial(_of_run, run))
    return found


def _edit(change: Change, folder: Path) -> None:
    run = RunFolder(folder)
    state = run.load_artifact()
    change(state)
    run.save_artifact(state)


def _of_run(run: Any, folder: Path) -> None:
    path = RunFolder(folder).artifact
    checkpoint.save(path, RunFolder(folder).load_artifact(), run=run)


def _sealed(change: Case, folder: Path) -> None:
    change(folder)
    seal(folder)


def sealed_artifact(change: Change, folder: Path) -> None:
    """Another content, and all checksums made anew."""
    _sealed(partial(_edit, change), folder)


def _others(kind: str) -> dict[str, Change]:
    """Artifacts as sound as the run's own: those of the same run, with another model, other data or other settings."""
    found: dict[str, Change] = {
        "nothing is seen": lambda state: state.update(seen=_none(state)),
        "what is taken is seen": lambda state: state.update(seen=state["taken"]),
        "low ratings are taken": lambda state: state.pop("taken"),
        "less is taken": lambda state: state.update(taken=_none(state)),
        "other counts": lambda state: state.update(counts=state["counts"].flip(0)),
        "nothing is learned": lambda state: state["n_learned"].zero_(),
    }
    if kind in TABLES:
        found["other vectors of items"] = lambda state: state.update(items=state["items"].flip(0))
        found["other vectors of queries"] = lambda state: state.update(queries=state["queries"] * 2)
    else:
        found["another history"] = lambda state: state.update(learned=state["seen"])
    return found


def _none(state: dict[str, Any]) -> dict[str, Any]:
    indptr = state["seen"]["indptr"]
    return {"indptr": torch.zeros_like(indptr), "indices": indptr[:0]}


def _crafted(kind: str) -> dict[str, Change]:
    """Artifacts that do not fit their folder or themselves."""
    tensors = ("queries", "items", "n_learned", "counts") if kind in TABLES else ("n_learned", "counts")
    lists = ("seen", "taken") if kind in TABLES else ("seen", "taken", "learned")
    found: dict[str, Change] = {}
    for name in tensors:
        for what, change in WRONG_TENSORS.items():
            found[f"{name}: {what}"] = lambda state, n=name, f=change: state.update({n: f(state[n])})
        found[f"{name}: no such tensor"] = lambda state, n=name: state.pop(n)
    for at, (what, change) in enumerate(list_edits().items()):
        name = lists[at % len(lists)]
        found[f"{name} has {what}"] = lambda state, n=name, f=change: f(state[n])
    for name in lists:
        for value in (None, "x", 5, [], {}):
            found[f"{name} = {value!r}"] = lambda state, n=name, v=value: state.update({n: v})
    return found | _parts(kind)


def _parts(kind: str) -> dict[str, Change]:
    """Parts that should not be there, are missing, or do not fit the others."""
    found: dict[str, Change] = {
        "nothing": lambda state: state.clear(),
        "no seen": lambda state: state.pop("seen"),
        "less is seen than taken": lambda state: state.update(seen=_none(state)),
        "less is taken than learned": lambda state: state.update(taken=_none(state)),
        "counts below 0": lambda state: state["counts"].neg_(),
        "more counts than learned": lambda state: state["counts"].add_(1),
        "one more is learned": lambda state: state["n_learned"].add_(1),
        "fewer than none are learned": lambda state: state["n_learned"].neg_(),
        "events of a sequence": lambda state: state.update(events=dict(state["seen"])),
        "a part more": lambda state: state.update(more=torch.zeros(3)),
    }
    if kind in TABLES:
        found |= {
            "vectors without length": lambda state: state.update(
                queries=state["queries"][:, :0], items=state["items"][:, :0]
            ),
            "longer vectors of items": lambda state: state.update(items=torch.cat([state["items"]] * 2, 1)),
            "vectors and histories": lambda state: state.update(learned=state["seen"]),
            "neither vectors nor histories": lambda state: (state.pop("queries"), state.pop("items")),
        }
    else:
        n_users, n_items = 40, 24
        found |= {
            "histories and vectors": lambda state: state.update(
                queries=torch.ones(n_users, 2), items=torch.ones(n_items, 2)
            ),
            "histories and items": lambda state: state.update(items=torch.ones(n_items, n_items)),
            "no histories": lambda state: state.pop("learned"),
            "histories of all that is seen": lambda state: state.update(learned=state["seen"]),
            "histories of nobody": lambda state: state.update(learned=_none(state)),
        }
    return found


# The container: an eight-byte length, a JSON header with shapes and places, then the numbers.


def _header(change: Callable[[dict[str, Any]], None], folder: Path) -> None:
    path = RunFolder(folder).artifact
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def _huge(folder: Path) -> None:
    _header(lambda header: header["t0"].update(shape=[2**40], data_offsets=[0, 2**43]), folder)


def _overlap(folder: Path) -> None:
    _header(lambda header: header.update(t1=header["t0"]), folder)


def _long_header(folder: Path) -> None:
    path = RunFolder(folder).artifact
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])
