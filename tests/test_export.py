"""What other programs read has the same best items as the recommender."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import scipy.sparse
from safetensors.numpy import load_file

from command_line import run_topshelf
from topshelf import Recommender, blend
from topshelf.data import generate
from topshelf.errors import CheckpointError, ConfigError
from topshelf.export import KINDS, export, onnx_graph
from topshelf.export.contents import lists, read_run
from topshelf.models import MODELS

K = 7
WEIGHTS = ["ease", "graph_filter", "itemknn", "rp3beta", "slim", "sparse_ease"]
VECTORS = sorted(name for name in MODELS if name not in WEIGHTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder per model, made when it is first asked for; ids are text."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    frame = generate(90, 40, interactions_per_user=9, seed=5).to_frame().select("user", "item")
    frame = frame.with_columns(pl.format("user-{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))

    def get(name):
        if name not in made:
            more = {} if MODELS[name].is_closed_form else {"train": {"epochs": 2, "validate_every": 1}}
            Recommender(k=K, model=name, **more).fit(frame, out=folder / name)
            made[name] = folder / name
        return made[name]

    return get


def ours(path, **options):
    """Ids and scores of the recommender, (users, K)."""
    table = Recommender.load(path).recommend(**options)
    n = table["user"].n_unique()
    return table["item"].to_numpy().reshape(n, -1), table["score"].to_numpy().reshape(n, -1)


def assert_same_lists(path, ids, scores, **options):
    """The same items in the same order; only items whose scores differ by rounding may change places."""
    wanted, expected = ours(path, **options)
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=2e-6)
    for other in np.argwhere(np.asarray(ids) != wanted):
        row, place = other
        assert np.isclose(expected[row], expected[row][place], rtol=2e-5, atol=2e-6).sum() > 1, (row, place)


def best(scores, k=K):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


@pytest.mark.parametrize("name", VECTORS)
def test_numpy_vectors_have_our_lists(run, tmp_path, name):
    out = export(run(name), "numpy", tmp_path / "out")
    scores = np.load(out / "user_vectors.npy") @ np.load(out / "item_vectors.npy").T
    items, values = best(scores)
    assert_same_lists(run(name), np.load(out / "item_ids.npy")[items], values, filter_seen=False)
    seen = scipy.sparse.load_npz(out / "seen.npz").toarray() > 0
    items, values = best(np.where(seen, -np.inf, scores))
    assert_same_lists(run(name), np.load(out / "item_ids.npy")[items], values)
    assert np.load(out / "user_ids.npy")[0] == "user-0"


@pytest.mark.parametrize("name", WEIGHTS)
def test_numpy_weights_have_our_lists(run, tmp_path, name):
    out = export(run(name), "numpy", tmp_path / "out")
    weights, histories = (scipy.sparse.load_npz(out / f"{what}.npz") for what in ("weights", "histories"))
    items, values = best((histories @ weights).toarray())
    assert_same_lists(run(name), np.load(out / "item_ids.npy")[items], values, filter_seen=False)


@pytest.mark.parametrize("name", ["mf", "ease"])
def test_parquet_has_our_lists(run, tmp_path, name):
    out = export(run(name), "parquet", tmp_path / "out")
    users, items = pl.read_parquet(out / "users.parquet"), pl.read_parquet(out / "items.parquet")
    if name == "mf":
        scores = users["vector"].to_numpy() @ items["vector"].to_numpy().T
    else:
        weights = pl.read_parquet(out / "weights.parquet")
        table = np.zeros((40, 40), np.float32)
        table[weights["item"], weights["for_item"]] = weights["weight"]
        scores = np.stack([table[history.to_list()].sum(0) for history in users["history"]])
    places, values = best(scores)
    assert_same_lists(run(name), items["id"].to_numpy()[places], values, filter_seen=False)
    assert users["id"][0] == "user-0"
    assert users["n_training"].sum() == items["n_training"].sum()


@pytest.mark.parametrize("name", VECTORS)
def test_a_faiss_index_has_our_lists(run, tmp_path, name):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed: pip install 'topshelf[export]'")
    out = export(run(name), "faiss", tmp_path / "out")
    scores, items = faiss.read_index(str(out / "items.faiss")).search(np.load(out / "user_vectors.npy"), K)
    ids = pl.read_parquet(out / "items.parquet")["id"].to_numpy()
    assert_same_lists(run(name), ids[items], scores, filter_seen=False)


def session(out):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'topshelf[export]'")
    return runtime.InferenceSession(out / "model.onnx")


def padded(lists):
    """Lists as a table, filled up with -1."""
    width = max(map(len, lists))
    return np.array([[*one, *[-1] * (width - len(one))] for one in lists], np.int64)


@pytest.mark.parametrize("name", sorted(set(VECTORS) - {"history"}))
def test_an_onnx_model_of_users_has_our_lists(run, tmp_path, name):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'topshelf[export]'")
    out = export(run(name), "onnx", tmp_path / "out")
    users, ids = pl.read_parquet(out / "users.parquet"), pl.read_parquet(out / "items.parquet")["id"].to_numpy()
    rows, nothing = np.arange(90), np.empty((90, 0), np.int64)
    items, scores = session(out).run(["items", "scores"], {"user": rows, "exclude": nothing})
    assert_same_lists(run(name), ids[items], scores, filter_seen=False)
    seen = padded(users["seen"].to_list())
    items, scores = session(out).run(["items", "scores"], {"user": rows, "exclude": seen})
    assert_same_lists(run(name), ids[items], scores)
    chosen = session(out).run(["items"], {"user": rows[[5, 3]], "exclude": seen[[5, 3]]})[0]
    assert (chosen == items[[5, 3]]).all()


@pytest.mark.parametrize("name", [*WEIGHTS, "history"])
def test_an_onnx_model_of_histories_has_our_lists_for_known_and_new_users(run, tmp_path, name):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'topshelf[export]'")
    out = export(run(name), "onnx", tmp_path / "out")
    ids = pl.read_parquet(out / "items.parquet")["id"].to_numpy()
    own = [[0, 1, 2], [5], [30, 7]]
    items, scores = session(out).run(["items", "scores"], {"history": padded(own), "exclude": padded(own)})
    table = Recommender.load(run(name)).recommend_new([ids[one].tolist() for one in own])
    for row in range(3):
        expected = table.filter(pl.col("user") == row)
        np.testing.assert_allclose(scores[row], expected["score"], rtol=2e-5, atol=2e-6)
        same = ids[items[row]] == expected["item"].to_numpy()
        ties = [np.isclose(scores[row], value, rtol=2e-5, atol=2e-6).sum() > 1 for value in scores[row]]
        assert (same | ties).all()
    contents = read_run(run(name))
    if contents.histories is not None:
        known = padded(lists(contents.histories).to_list())
        items, scores = session(out).run(["items", "scores"], {"history": known, "exclude": known[:, :0]})
        assert_same_lists(run(name), ids[items], scores, filter_seen=False)


def test_an_onnx_list_ends_with_minus_one_where_everything_is_left_out(run, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'topshelf[export]'")
    out = export(run("mf"), "onnx", tmp_path / "out", k=1000)
    but_two = np.arange(2, 40)[None]
    items, scores = session(out).run(["items", "scores"], {"user": np.array([0]), "exclude": but_two})
    assert items.shape == (1, 40)
    assert set(items[0, :2]) == {0, 1}
    assert (items[0, 2:] == -1).all()
    assert np.isneginf(scores[0, 2:]).all()


@pytest.mark.parametrize("name", ["mf", "ease"])
def test_the_hub_folder_has_tensors_a_card_and_no_licence_of_ours(run, tmp_path, name):
    out = export(run(name), "hub", tmp_path / "out")
    tensors = load_file(out / "model.safetensors")
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: topshelf\n")
    front = card.split("---")[1]
    assert re.findall(r"^(?!#)license", front, flags=re.MULTILINE) == []
    assert ("user_vectors" in tensors) == (name == "mf")
    facts = json.loads((out / "config.json").read_text())
    assert (facts["n_users"], facts["n_items"], facts["k"], facts["model"]) == (90, 40, K, name)
    ndcg = facts["metrics"]["test"][f"ndcg@{K}"]
    assert f"{ndcg:.4f}" in card


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mf", "ease", "history"])
def test_the_code_on_the_card_runs_and_every_file_is_on_it(run, tmp_path, kind, name):
    if (kind, name) == ("faiss", "ease"):
        pytest.skip("an item-item model has no index")
    for package in {"onnx": ("onnx", "onnxruntime"), "faiss": ("faiss",)}.get(kind, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'topshelf[export]'")
    out = export(run(name), kind, tmp_path / "out")
    card = (out / "README.md").read_text()
    assert {path.name for path in out.iterdir()} == {*re.findall(r"^- `(.*?)`", card, flags=re.MULTILINE), "README.md"}
    code = re.search(r"```python\n(.*?)```", card, flags=re.DOTALL)[1]
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code], cwd=out, capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_blend_is_exported_as_vectors(run, tmp_path):
    blend([run("mf"), run("ease")], weights=[1.0, 0.5], out=tmp_path / "blend")
    out = export(tmp_path / "blend", "numpy", tmp_path / "out")
    items, values = best(np.load(out / "user_vectors.npy") @ np.load(out / "item_vectors.npy").T)
    assert_same_lists(tmp_path / "blend", np.load(out / "item_ids.npy")[items], values, filter_seen=False)


def test_a_path_of_the_data_is_not_told(tmp_path):
    frame = generate(30, 20, interactions_per_user=6, seed=5).to_frame().select("user", "item")
    (tmp_path / "secret").mkdir()
    frame.write_csv(tmp_path / "secret" / "clicks.csv")
    Recommender(k=5, model="popularity").fit(tmp_path / "secret" / "clicks.csv", out=tmp_path / "run")
    out = export(tmp_path / "run", "hub", tmp_path / "out")
    text = (out / "README.md").read_text() + (out / "config.json").read_text()
    assert "clicks.csv" in text
    assert "secret" not in text


def test_the_command_writes_a_folder_and_refuses_what_is_wrong(run, tmp_path, monkeypatch):
    printed, _ = run_topshelf("export", run("mf"), "--to", "numpy", "--out", tmp_path / "out")
    assert "README.md" in printed
    _, errors = run_topshelf("export", run("mf"), "--to", "numpi", "--out", tmp_path / "new", code=2)
    assert "--to must be one of parquet, numpy, onnx, faiss, hub, got 'numpi'; did you mean numpy?" in errors
    _, errors = run_topshelf("export", run("mf"), "--to", "numpy", "--out", tmp_path / "out", code=2)
    assert "not empty" in errors
    _, errors = run_topshelf("export", run("mf"), "--to", "onnx", "--k", 0, "--out", tmp_path / "new", code=2)
    assert "k must be >= 1, got 0" in errors
    monkeypatch.setattr("topshelf.export.find_spec", lambda name: None)
    for kind in ("onnx", "faiss"):
        _, errors = run_topshelf("export", run("mf"), "--to", kind, "--out", tmp_path / "new", code=2)
        assert f"--to {kind} needs the package {kind}, which is not installed: pip install 'topshelf[export]'" in errors
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(run, tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed: pip install 'topshelf[export]'")
    with pytest.raises(ConfigError, match="ease is an item-item model"):
        export(run("ease"), "faiss", tmp_path / "out")
    monkeypatch.setattr(onnx_graph, "_MOST_BYTES", 100.0)
    for name in ("ease", "mf"):
        with pytest.raises(ConfigError, match="below 2 GB"):
            export(run(name), "onnx", tmp_path / "out")
    with pytest.raises(CheckpointError, match="does not exist"):
        export(tmp_path / "nowhere", "numpy", tmp_path / "out")
    (tmp_path / "copy").mkdir()
    for path in run("mf").iterdir():
        if path.name != "metrics.json" and path.is_file():
            (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="is not finished, so it cannot be exported"):
        export(tmp_path / "copy", "numpy", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


@pytest.mark.filterwarnings("ignore::topshelf.errors.TopshelfWarning")  # a user with a single event
@pytest.mark.parametrize("name", ["sasrec", "markov"])
def test_next_items_are_exported_by_what_users_did_last(tmp_path, name):
    frame = generate(60, 30, interactions_per_user=9, seed=5).to_frame().select("user", "item")
    frame = frame.with_columns(timestamp=pl.int_range(pl.len()))
    more = {"train": {"epochs": 1, "validate_every": 1}} if name == "sasrec" else {}
    Recommender(k=5, task="sequences", model=name, **more).fit(frame, out=tmp_path / "run")
    out = export(tmp_path / "run", "numpy", tmp_path / "out")
    items, values = best(np.load(out / "user_vectors.npy") @ np.load(out / "item_vectors.npy").T, 5)
    assert_same_lists(tmp_path / "run", np.load(out / "item_ids.npy")[items], values, filter_seen=False)
