"""Small runs of every task, kept in tests/fixtures as a version of topshelf wrote them, and what they list.

    python tests/old_runs.py tests/fixtures/runs-0.1.0

makes the folder again, with the version that is installed. A new format of run folders gets a folder beside the old
ones, which stay as they are: runs of users must go on loading.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from documents import svmlight, table
from faults.edits import seal
from faults.scenes import write_clicks
from topshelf import files
from topshelf.blending import blend
from topshelf.config import make_config, merged
from topshelf.link_predictor import LinkPredictor
from topshelf.ranker import Ranker
from topshelf.recommender import Recommender
from topshelf.training import fit, load

EXPECTED = "expected.json"
SMALL: dict[str, Any] = {
    "k": 3,
    "train": {"epochs": 2, "batch_size": 16, "validate_every": 1, "patience": 0},
    "evaluate": {"cutoffs": [3]},
}
RUNS: dict[str, dict[str, Any]] = {
    "mf": {"model": {"name": "mf", "dim": 4}},
    "ease": {"model": {"name": "ease"}, "train": {"refit": True}},
    "lightgcn-all": {"model": {"name": "lightgcn", "dim": 4}, "train": {"refit": "all"}},
    "gru4rec": {"task": "sequences", "model": {"name": "gru4rec", "dim": 4, "hidden": 4, "max_length": 4}},
    "mlp": {"task": "ranking", "model": {"name": "mlp", "hidden": [4]}},
    "gcn": {"task": "links", "model": {"name": "gcn", "dim": 4}, "evaluate": {"n_negatives": 6}},
}
SOURCES = {"interactions": "clicks.csv", "sequences": "events.csv", "ranking": "lists.txt", "links": "edges.csv"}
NAMES = (*RUNS, "blend")


def build(place: Path) -> None:
    """Runs by relative paths: a kept run must not name the machine that made it."""
    os.chdir(place)
    _write_sources()
    for name, settings in RUNS.items():
        source = SOURCES[settings.get("task", "interactions")]
        fit(make_config(merged(merged(SMALL, {"data": {"source": source}}), settings)), out=name)
    fit(make_config(merged(SMALL, {"data": {"source": "clicks.csv"}, "model": {"name": "itemknn"}})), out="other")
    blend(["mf", "other"], weights=[0.5, 0.5], out="blend")
    _without_place(Path("mlp"))
    shutil.rmtree("other")
    for path in (*map(Path, SOURCES.values()), *Path().glob("*/.lock"), *Path().glob("*/checkpoint.safetensors")):
        path.unlink()  # a finished run needs none of them
    Path(EXPECTED).write_text(json.dumps({name: given(Path(name)) for name in NAMES}, indent=1) + "\n")


def _write_sources() -> None:
    write_clicks(Path("clicks.csv"), n_users=20, n_items=16)
    rows = [(f"u{user}", f"i{(user + t) % 12}", t) for user in range(12) for t in range(5 + user % 3)]
    pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_csv("events.csv")
    Path("lists.txt").write_text(svmlight(table(12)))
    edges = [(node, (node + step) % 24) for node in range(24) for step in (1, 2, 3)]
    pl.DataFrame(edges, schema=["source", "target"], orient="row").write_csv("edges.csv")


def _without_place(run: Path) -> None:
    """A run on documents names its file by the whole path, which says where it was made."""
    kept = run / "documents.json"
    content = {name: value for name, value in json.loads(kept.read_text()).items() if name != "checksum"}
    files.write_sealed(kept, {**content, "path": "lists.txt"})
    seal(run)


def given(folder: Path) -> dict[str, Any]:
    """What a person gets of a run: its metrics and its lists. Metrics of documents need the file that they are in."""
    if (folder / "documents.json").exists():
        return {"lists": lists_of(folder, "ranking")}
    fitted = load(folder)
    means = fitted.measured["mean"] if fitted.measured is not None else fitted.evaluate().to_json()["mean"]
    return {"mean": means, "lists": lists_of(folder, fitted.config.task)}


def lists_of(folder: Path, task: str) -> dict[str, list[Any]]:
    if task == "ranking":
        with tempfile.TemporaryDirectory() as place:
            queries = Path(place) / "queries.txt"
            queries.write_text(svmlight(table(3, seed=5)))
            listed = Ranker.load(folder).rank(queries)
    elif task == "links":
        listed = LinkPredictor.load(folder).recommend(k=2)
    else:
        listed = Recommender.load(folder).recommend(k=3)
    return listed.to_dict(as_series=False)


if __name__ == "__main__":
    sys.argv, target = ["topshelf"], Path(sys.argv[1])  # what a run keeps of its command
    target.mkdir(parents=True)
    build(target)
