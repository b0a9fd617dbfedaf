"""The card of an export: what it is, how good it is, how to load it; and the same for programs, as config.json."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from topshelf.config import to_toml
from topshelf.export.contents import Contents
from topshelf.terminal import as_json, printable

_LOAD = {
    "parquet": """import polars as pl

users, items = pl.read_parquet("users.parquet"), pl.read_parquet("items.parquet")
scores = items["vector"].to_numpy() @ users["vector"][0].to_numpy()  # of the first user
best = items[scores.argsort()[::-1][:10]]""",
    "numpy": """import numpy as np

users, items = np.load("user_vectors.npy"), np.load("item_vectors.npy")
scores = items @ users[0]  # of the first user
best = np.load("item_ids.npy")[scores.argsort()[::-1][:10]]""",
    "onnx": """import numpy as np, onnxruntime, polars as pl

users, items = pl.read_parquet("users.parquet"), pl.read_parquet("items.parquet")
model = onnxruntime.InferenceSession("model.onnx")
given = {"user": np.array([0]), "exclude": np.array([users["seen"][0].to_list()], np.int64)}  # the first user
best, scores = model.run(["items", "scores"], given)
print(items[best[0].tolist()])""",
    "faiss": """import faiss, numpy as np, polars as pl

index, users = faiss.read_index("items.faiss"), np.load("user_vectors.npy")
scores, best = index.search(users[:1], 10)  # of the first user; what the user has is not left out
print(pl.read_parquet("items.parquet")[best[0].tolist()])""",
    "hub": """import polars as pl
from safetensors.numpy import load_file

tensors, items = load_file("model.safetensors"), pl.read_parquet("items.parquet")
scores = tensors["item_vectors"] @ tensors["user_vectors"][0]  # of the first user
best = items[scores.argsort()[::-1][:10]]""",
}
_LOAD_WEIGHTS = {
    "parquet": """import polars as pl

users, weights = pl.read_parquet("users.parquet"), pl.read_parquet("weights.parquet")
votes = weights.filter(pl.col("item").is_in(users["history"][0].to_list()))  # of the first user
scores = votes.group_by("for_item").agg(pl.col("weight").sum()).sort("weight", descending=True)
best = pl.read_parquet("items.parquet")[scores["for_item"].head(10).to_list()]""",
    "numpy": """import numpy as np, scipy.sparse

weights, histories = scipy.sparse.load_npz("weights.npz"), scipy.sparse.load_npz("histories.npz")
scores = (histories[[0]] @ weights).toarray()[0]  # of the first user
best = np.load("item_ids.npy")[scores.argsort()[::-1][:10]]""",
    "hub": """import polars as pl, scipy.sparse
from safetensors.numpy import load_file

t, items = load_file("model.safetensors"), pl.read_parquet("items.parquet")
weights = scipy.sparse.csr_array((t["weights.data"], t["weights.indices"], t["weights.indptr"]))
own = t["histories.indices"][: t["histories.indptr"][1]]  # the items of the first user
best = items[weights[own].sum(axis=0).argsort()[::-1][:10]]""",
}
_BY_HISTORY = """import numpy as np, onnxruntime, polars as pl

items = pl.read_parquet("items.parquet")
model = onnxruntime.InferenceSession("model.onnx")
own = np.array([[0, 1]])  # rows of the items of a user, known or new
best, scores = model.run(["items", "scores"], {"history": own, "exclude": own})
print(items[best[0].tolist()])"""


def write_card(contents: Contents, kind: str, folder: Path, about: dict[str, str]) -> None:
    """README.md and config.json, beside the files that ``about`` describes."""
    facts = _facts(contents, kind, about)
    (folder / "config.json").write_text(as_json(facts) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_text(contents, kind, about), encoding="utf-8")


def how_to_load(contents: Contents, kind: str) -> str:
    """Python that reads the files, run in their folder."""
    if kind == "onnx" and (contents.weights is not None or contents.table is not None):
        return _BY_HISTORY
    return (_LOAD if contents.weights is None else _LOAD_WEIGHTS)[kind]


def _facts(contents: Contents, kind: str, about: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": kind,
        "topshelf": metadata.version("topshelf"),
        "model": contents.config.model.name,
        "loss": contents.metrics.get("loss"),
        "k": contents.k,
        **_statistics(contents),
        "files": about,
        "metrics": {
            name: contents.metrics.get(name) for name in ("protocol", "test", "test_intervals", "valid", "data")
        },
        "settings": _config(contents).model_dump(mode="json", exclude_none=True),
    }


def _config(contents: Contents) -> Any:
    """The settings, with the name of a file in place of its path, which is nobody's business."""
    data = contents.config.data
    return contents.config.model_copy(update={"data": data.model_copy(update={"source": Path(data.source).name})})


def _statistics(contents: Contents) -> dict[str, Any]:
    n_users, n_items, n = len(contents.users), len(contents.items), int(contents.n_learned.sum())
    width = None if contents.item_vectors is None else int(contents.item_vectors.shape[1])
    sizes = {"n_users": n_users, "n_items": n_items, "n_training": n, "density": n / max(1, n_users * n_items)}
    return {**sizes, "vector_length": width}


def _text(contents: Contents, kind: str, about: dict[str, str]) -> str:
    facts, metrics, config = _statistics(contents), contents.metrics, _config(contents)
    loss = metrics.get("loss")
    what = config.model.name + (f" trained with {loss}" if loss else "")
    lines = [
        *(_front_matter(contents) if kind == "hub" else []),
        f"# {what}, for the first {config.k} places",
        "",
        f"Recommends {facts['n_items']:,} items to {facts['n_users']:,} users; learned from {facts['n_training']:,} "
        f"interactions (density {facts['density']:.3%}). Made by topshelf {metadata.version('topshelf')} on the data "
        f"`{_inline(metrics.get('data'))}`.",
        "",
        "Licence: not chosen yet; add yours here. The files hold ids of users, and the items that they have: think of "
        "them before you share it.",
        "",
        "## Metrics",
        "",
        *_metric_lines(metrics),
        "",
        "## Files",
        "",
        *(f"- `{name}`: {text}" for name, text in {**about, "config.json": "all of this for programs"}.items()),
        "",
        "The score of an item for a user is "
        + (
            "the dot product of their vectors."
            if contents.weights is None
            else "the sum of the votes of the user's items."
        ),
        "Users with `n_training` 0 have no score: topshelf shows them the items of highest `n_training`.",
        "",
        "## How to load",
        "",
        "```python",
        how_to_load(contents, kind),
        "```",
        "",
        "## Settings",
        "",
        "```toml",
        printable(to_toml(config)).replace("```", "'''").rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _metric_lines(metrics: dict[str, Any]) -> list[str]:
    """The test metrics as a table, those of validation where there is no test part."""
    part = "test" if metrics.get("test") else "valid"
    values = {name: value for name, value in (metrics.get(part) or {}).items() if isinstance(value, int | float)}
    intervals = metrics.get("test_intervals") or {} if part == "test" else {}
    rows = []
    for name, value in values.items():
        low, high = intervals.get(name) or (None, None)
        rows.append(f"| {name} | {value:.4f} | {'' if low is None or high is None else f'{low:.4f} to {high:.4f}'} |")
    of = "the test part" if part == "test" else "the validation part"
    about = f"On {of}, ranking all items, protocol {_inline(metrics.get('protocol'))}; 95% intervals over users."
    return [about, "", "| metric | mean | interval |", "|---|---|---|", *rows]


def _front_matter(contents: Contents) -> list[str]:
    """What the Hub shows of a repository. The licence is the reader's to fill in."""
    tags = [
        "recommender-system",
        "topshelf",
        contents.config.model.name.partition(":")[2] or contents.config.model.name,
    ]
    return ["---", "library_name: topshelf", "tags:", *(f"- {as_json(tag)}" for tag in tags), "# license: ", "---", ""]


def _inline(value: object) -> str:
    return printable(str(value)).replace("`", "'").replace("\n", " ")
