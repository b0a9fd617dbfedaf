"""Run folders of documents, next items and links, damaged and crafted as those of interactions are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch

from documents import svmlight, table
from faults.artifacts import sealed_artifact
from faults.crafting import checkpoints, damage, edit_weights, id_tables, model_fields, texts
from faults.edits import WRONG_TENSORS, Case, list_edits, seal
from faults.judging import TRACEBACK, StopAfter, copied, judge, judge_each, look
from topshelf import files
from topshelf.config import make_config, merged
from topshelf.diagnose import diagnose
from topshelf.link_predictor import LinkPredictor
from topshelf.ranker import Ranker
from topshelf.recommender import Recommender
from topshelf.testing.links import planted_links
from topshelf.training import StoppedEarly, checkpoint, fit, load, resume
from topshelf.training import phases as phases_module

SQUARE = "transposed"  # the weights of the GCN are square: sound ones
TASKS = ("ranking", "sequences", "links")
KINDS = tuple(f"{task}{state}" for task in TASKS for state in ("", "-begun"))
SHARE = 20  # one of so many cases is judged by default
N_ITEMS, N_NODES = 12, 48
DATA = {"ranking": "documents.json", "sequences": "sequences.safetensors", "links": "links.safetensors"}
IDS = {"ranking": (), "sequences": ("users.parquet", "items.parquet"), "links": ("nodes.parquet",)}
ALWAYS = ("run.json", "config.toml", "metrics.json", "model.safetensors", "checkpoint.safetensors", "log.jsonl")
UNSEALED = "log.jsonl: a byte flipped"  # it has no checksum: a digit may be another one, which only a plot shows
SMALL: dict[str, Any] = {
    "k": 3,
    "train": {"epochs": 2, "batch_size": 8, "validate_every": 1, "checkpoint_seconds": 0.0, "patience": 0},
    "evaluate": {"cutoffs": [3]},
}
MODELS: dict[str, Any] = {
    "ranking": {"model": {"name": "mlp"}},
    "sequences": {"model": {"name": "gru4rec", "dim": 4, "max_length": 4}},
    "links": {"model": {"name": "gcn", "dim": 4}, "evaluate": {"n_negatives": 6}, "train": {"batch_size": 64}},
}


# Another graph, as sound as the first, and all checksums are made anew.
SOUND = ("edges.train: one row fewer", "negatives.valid: int64", "negatives.test: int64")


def source_of(task: str, place: Path) -> Path:
    return place / {"ranking": "lists.txt", "sequences": "events.csv", "links": "edges.csv"}[task]


def write_source(task: str, place: Path) -> None:
    path = source_of(task, place)
    if task == "ranking":
        path.write_text(svmlight(table(20)))
    elif task == "sequences":
        rows = [(user, (user + t) % N_ITEMS, t) for user in range(16) for t in range(5 + user % 3)]
        pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_csv(path)
    else:
        edges = np.concatenate([*planted_links().edges.values()])
        pl.DataFrame(edges, schema=["source", "target"]).write_csv(path)


def build(place: str) -> None:
    """A finished run of each task, and one that was stopped in training."""
    folder = Path(place)
    for task in TASKS:
        write_source(task, folder)
        values = merged(SMALL, {"task": task, "data": {"source": str(source_of(task, folder))}, **MODELS[task]})
        values = merged({**values, "train": SMALL["train"], "evaluate": SMALL["evaluate"]}, MODELS[task])
        fit(make_config(values), out=folder / task)
        _stopped(values, folder / f"{task}-begun")


def _stopped(values: dict[str, Any], out: Path) -> None:
    class Stop:
        def __enter__(self) -> StopAfter:
            return StopAfter(3)

        def __exit__(self, *_: object) -> None:
            pass

    with mock.patch.object(phases_module, "stop_on_signals", Stop):
        try:
            fit(make_config(merged(values, {"train": {"epochs": 4}})), out=out)
        except StoppedEarly:
            return
    raise AssertionError("the run was not stopped")


# What a person gets of a run.


def _numbers(fitted: Any) -> str:
    return json.dumps(fitted.evaluate().to_json()["mean"])


def served(folder: Path) -> Any:
    return _numbers(load(folder))


def resumed(folder: Path) -> Any:
    fitted = resume(folder)
    return _numbers(fitted), [values.tolist() for values in fitted.model.state_dict().values()]


def listed(folder: Path) -> Any:
    """Lists as the commands give them; a ranker needs no data for them, a recommender only its artifact."""
    task = folder.joinpath("task").read_text()
    if task == "ranking":
        return Ranker.load(folder).rank(table(3, seed=5).drop("grade")).write_csv()
    if task == "links":
        return LinkPredictor.load(folder).recommend(k=2).write_csv()
    recommender = Recommender.load(folder)
    item = recommender.artifact.items.values[0]
    tables = (recommender.recommend(), recommender.recommend_new({"new": [item]}), recommender.similar_items([item]))
    return [one.write_csv() for one in tables]


def diagnosed(folder: Path) -> Any:
    return json.dumps({**diagnose(folder, users=4).to_json(), "target": ""})


ACTIONS = {"served": served, "listed": listed, "resumed": resumed}
OF_THE_LOG = {"diagnosed": diagnosed}


def judge_cases(place: str, kind: str, names: list[str], progress: str, seed: int, flips: int) -> None:
    """As for interactions; the log is read by a diagnosis alone."""
    torch.set_num_threads(1)
    task, is_begun = kind.partition("-")[::2]
    pristine, work = Path(progress).parent / "pristine", Path(progress).parent / "work"
    if not pristine.exists():
        shutil.copytree(Path(place) / kind, pristine)
        (pristine / "task").write_text(task)
    actions = {name: action for name, action in ACTIONS.items() if (name != "listed") or not is_begun}
    every = actions if is_begun else {**actions, **OF_THE_LOG}
    expected = {name: look(lambda action=action: action(copied(pristine, work))) for name, action in every.items()}
    assert TRACEBACK not in {seen.outcome for seen in expected.values()}, expected

    def judge_one(folder: Path) -> tuple[str, str]:
        is_log = tree_differs(folder, pristine, "log.jsonl")
        return judge(folder, {n: e for n, e in expected.items() if is_log or n in actions}, {**ACTIONS, **OF_THE_LOG})

    judge_each(cases(kind, seed, flips), names, pristine, Path(progress), judge_one)


def tree_differs(folder: Path, other: Path, name: str) -> bool:
    first, second = folder / name, other / name
    return not first.is_file() or first.read_bytes() != second.read_bytes()


# The cases.


def cases(kind: str, seed: int = 0, flips: int = 2) -> dict[str, Case]:
    """Every case for a kind of run, by name; another seed gives other damage."""
    task, is_begun = kind.partition("-")[::2]
    names = [*ALWAYS, DATA[task], *IDS[task], *(["artifact.safetensors"] if task == "sequences" else [])]
    found = (
        {what: case for what, case in damage(names, seed, flips).items() if not what.startswith(UNSEALED)}
        | texts()
        | id_tables(IDS[task], seed)
    )
    found |= {f"data, sealed: {what}": case for what, case in DATA_CASES[task]().items()}
    if is_begun:
        found |= checkpoints("training")
        return {what: case for what, case in found.items() if not (task == "links" and what.endswith(SQUARE))}
    found |= model_fields() | (_artifact() if task == "sequences" else {})
    for place in range(12):
        for at, (what, change) in enumerate(WRONG_TENSORS.items()):
            if (at + place) % 4 == 0 and not (task == "links" and what == SQUARE):
                found[f"model, sealed: tensor {place}: {what}"] = partial(edit_weights, place, change)
    return found


def some(kind: str) -> list[str]:
    """A share of the cases, another one for each kind of run, and all those of an index that does not exist."""
    turn = KINDS.index(kind) % SHARE
    always = ("equal to the number", "wrap around")
    return [name for at, name in enumerate(cases(kind)) if at % SHARE == turn or any(text in name for text in always)]


def _edit_data(name: str, change: Callable[[dict[str, Any]], Any], folder: Path) -> None:
    state = checkpoint.load(folder / name)
    change(state)
    checkpoint.save(folder / name, state)
    seal(folder)


def _odd(*path: str) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Something else in the place of a value, or nothing."""

    def inner(state: dict[str, Any]) -> dict[str, Any]:
        for key in path[:-1]:
            state = state[key]
        return state

    values = (None, "x", 5, -1, [], {}, [1], float("nan"))
    found = {
        f"{'.'.join(path)} = {value!r}": lambda state, v=value: inner(state).update({path[-1]: v}) for value in values
    }
    return {**found, f"no {'.'.join(path)}": lambda state: inner(state).pop(path[-1])}


def _tensors(*path: str) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """A tensor of another shape or type."""

    def edit(change: Callable[[torch.Tensor], Any], state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = change(state[path[-1]])

    return {f"{'.'.join(path)}: {what}": partial(edit, change) for what, change in WRONG_TENSORS.items()}


def _sequence_data() -> dict[str, Case]:
    edits: dict[str, Callable[[dict[str, Any]], Any]] = {}
    sets = ("a list unsorted", "all items repeated", "int32 items")  # these may be events
    for what, change in list_edits(N_ITEMS).items():
        if what not in sets:
            edits[f"events have {what}"] = change
    for name in ("indptr", "indices", "train_end", "valid_end", "left_out", "notes", "exclude_seen", "targets"):
        edits |= _odd(name)
    for name in ("timestamp", "train_end", "valid_end"):
        edits |= _tensors(name)
    flags = _tensors("left_out")
    edits |= {
        what: change for what, change in flags.items() if not what.endswith(("NaN", "place"))
    }  # flags are neither
    edits |= {
        "train ends after the events": lambda state: state["train_end"].add_(100),
        "train ends before they begin": lambda state: state["train_end"].fill_(-1),
        "validation before train": lambda state: state["valid_end"].zero_(),
        "no train": lambda state: (state["train_end"].zero_(), state["valid_end"].zero_()),
        "no test": lambda state: state.update(valid_end=state["indptr"].diff()),
    }
    return {what: partial(_edit_data, DATA["sequences"], change) for what, change in edits.items()}


def _artifact() -> dict[str, Case]:
    """What answers of sequences: vectors, the items of each user as a set, and the events in order."""
    edits: dict[str, Callable[[dict[str, Any]], Any]] = {}
    sets = ("a list unsorted", "all items repeated")  # events may be so, and are then others
    for what, change in list_edits(N_ITEMS).items():
        for name in ("seen", "events"):
            if name == "seen" or what not in sets:
                edits[f"{name}: {what}"] = lambda state, n=name, f=change: f(state[n])
    for name in ("queries", "items", "n_learned", "counts"):
        edits |= _tensors(name) | _odd(name)
    for name in ("seen", "events"):
        edits |= _odd(name)
    return {f"artifact, sealed: {what}": partial(sealed_artifact, change) for what, change in edits.items()}


def _link_data() -> dict[str, Case]:
    edits: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def put(group: str, part: str, value: int) -> Callable[[dict[str, Any]], None]:
        def change(state: dict[str, Any]) -> None:
            state[group][part].view(-1)[1] = value

        return change

    for group, parts in (("edges", ("train", "valid", "test")), ("negatives", ("valid", "test"))):
        for part in parts:
            edits[f"{group} of {part}: a node equal to the number of nodes"] = put(group, part, N_NODES)
            for value in (-1, 2**62, -(2**62)):
                edits[f"{group} of {part}: node {value}"] = put(group, part, value)
            edits |= _odd(group, part) | _tensors(group, part)
    for name in ("n_nodes", "is_directed", "notes", "edges", "negatives", "features"):
        edits |= _odd(name)
    for sound in SOUND:
        del edits[sound]
    edits |= {
        "a self-loop": lambda state: state["edges"]["train"].__setitem__((0, 1), int(state["edges"]["train"][0, 0])),
        "an edge twice": lambda state: state["edges"]["train"].__setitem__(0, state["edges"]["train"][1].clone()),
        "a test edge in train": lambda state: state["edges"]["train"].__setitem__(0, state["edges"]["test"][0].clone()),
        "no train": lambda state: state["edges"].update(train=torch.zeros(0, 2, dtype=torch.int64)),
        "a part more": lambda state: state["edges"].update(more=state["edges"]["test"] * 10**9),
        "negatives of train": lambda state: state["negatives"].update(train=state["negatives"]["test"]),
        "features of too few nodes": lambda state: state.update(features={"dense": torch.ones(3, 2)}),
        "features that are not numbers": lambda state: state.update(
            features={"dense": torch.full((N_NODES, 2), torch.nan)}
        ),
        "sparse features with a column equal to the number of columns": lambda state: state.update(
            features=_sparse(indices=torch.full((N_NODES,), 2))
        ),
        "sparse features with bounds that wrap around": lambda state: state.update(
            features=_sparse(indptr=torch.tensor([0, 2**62, *range(2, N_NODES + 1)]))
        ),
        "sparse features with -1 columns": lambda state: state.update(features=_sparse(n_columns=-1)),
        "sparse features with huge columns": lambda state: state.update(features=_sparse(n_columns=2**62)),
    }
    return {what: partial(_edit_data, DATA["links"], change) for what, change in edits.items()}


def _sparse(**changes: Any) -> dict[str, Any]:
    """One feature of two per node, with these changes."""
    usual = {
        "data": torch.ones(N_NODES),
        "indices": torch.zeros(N_NODES, dtype=torch.int64),
        "indptr": torch.arange(N_NODES + 1),
        "n_columns": 2,
    }
    return {**usual, **changes}


def _about_documents() -> dict[str, Case]:
    def reseal(change: Callable[[dict[str, Any]], Any], folder: Path) -> None:
        path = folder / DATA["ranking"]
        content = files.read_sealed(path)
        change(content)
        files.write_sealed(path, content)
        seal(folder)

    edits: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name in ("format", "name", "feature_names", "fingerprints"):
        edits |= _odd(name)
    edits |= {f"path = {value!r}": lambda content, v=value: content.update(path=v) for value in (None, 5, [], {})}
    edits |= {
        "one feature fewer": lambda content: content["feature_names"].pop(),
        "one feature more": lambda content: content["feature_names"].append("more"),
        "a feature twice": lambda content: content["feature_names"].__setitem__(0, content["feature_names"][1]),
        "a feature of another name": lambda content: content["feature_names"].__setitem__(0, "other"),
        "features named by numbers": lambda content: content.update(feature_names=[1, 2, 3, 4]),
        "another fingerprint": lambda content: content["fingerprints"].update(test="0" * 64),
        "a fingerprint that is a number": lambda content: content["fingerprints"].update(test=5),
        "no fingerprint of train": lambda content: content["fingerprints"].pop("train"),
        "no fingerprint of test": lambda content: content["fingerprints"].pop("test"),
        "a part more": lambda content: content["fingerprints"].update(more="0" * 64),
    }
    return {what: partial(reseal, change) for what, change in edits.items()}


DATA_CASES: dict[str, Callable[[], dict[str, Case]]] = {
    "ranking": _about_documents,
    "sequences": _sequence_data,
    "links": _link_data,
}
