"""Link data from files: merged, counted, split, checked, saved and read again."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy import sparse

from topshelf.data.graphs import LinkData, from_state, simple_edges, split_edges, to_state
from topshelf.data.heart import read_heart
from topshelf.data.ids import IdMap
from topshelf.data.links import load_links, with_negatives
from topshelf.errors import ConfigError, DataError


def write_edges(path, n=100, seed=0):
    random = np.random.default_rng(seed)
    pairs = random.integers(30, size=(n, 2))
    path.write_text("source,target\n" + "\n".join(f"n{a},n{b}" for a, b in pairs) + "\n")
    return path


def test_repeats_reverses_and_loops_are_counted_and_merged():
    pairs = np.array([[0, 1], [1, 0], [0, 1], [2, 2], [3, 1], [1, 3], [1, 3]])
    edges, counts = simple_edges(pairs, 4, is_directed=False)
    assert edges.tolist() == [[0, 1], [3, 1]]  # as first written
    assert counts == {"self_loops": 1, "repeated": 2, "reversed": 2}
    edges, counts = simple_edges(pairs, 4, is_directed=True)
    assert edges.tolist() == [[0, 1], [1, 0], [3, 1], [1, 3]]
    assert counts == {"self_loops": 1, "repeated": 2, "reversed": 0}


def test_a_file_is_split_85_5_10_by_the_seed(tmp_path):
    path = write_edges(tmp_path / "friends.csv", 600)
    data = load_links(path)
    total = sum(map(len, data.edges.values()))
    assert (len(data.edges["valid"]), len(data.edges["test"])) == (int(0.05 * total), int(0.1 * total))
    same, other = load_links(path), load_links(path, split_seed=1)
    assert (data.edges["test"] == same.edges["test"]).all()
    assert {tuple(e) for e in data.edges["test"].tolist()} != {tuple(e) for e in other.edges["test"].tolist()}
    assert data.name == "friends"
    assert any("reversed edge(s) merged" in note for note in data.notes)
    assert any("self-loop(s) left out" in note for note in data.notes)


def test_without_test_the_test_edges_are_left_out(tmp_path):
    path = write_edges(tmp_path / "a.csv", 300)
    whole, less = load_links(path), load_links(path, test=False)
    assert len(less.edges["test"]) == 0
    assert (whole.edges["train"] == less.edges["train"]).all()
    assert (whole.edges["valid"] == less.edges["valid"]).all()


def test_nodes_with_features_and_without_edges_are_kept(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("source,target\n" + "\n".join(f"{a},{a + 1}" for a in range(40)))
    np.save(tmp_path / "x.npy", np.ones((50, 3)))
    data = load_links(path, features=tmp_path / "x.npy")
    assert data.n_nodes == 50
    assert int((data.graph("all").degrees == 0).sum()) == 9


def test_edges_to_unknown_nodes_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("source,target\n0,1\n1,7\n")
    np.save(tmp_path / "x.npy", np.ones((5, 3)))
    with pytest.raises(DataError, match=r"target 7 in data row 2 is no node of data.features, which has 5 nodes"):
        load_links(path, features=tmp_path / "x.npy")
    pl.DataFrame({"id": ["a", "b"], "x": [1.0, 2.0]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="source 0 in data row 1 is no node"):
        load_links(path, features=tmp_path / "x.parquet")


def test_features_follow_the_ids_of_their_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("source,target\n" + "\n".join(["b,a", "a,c", "c,b"]))
    pl.DataFrame({"id": ["c", "b", "a"], "x": [3.0, 2.0, 1.0]}).write_parquet(tmp_path / "x.parquet")
    data = load_links(path, features=tmp_path / "x.parquet", valid_fraction=0.34, test_fraction=0.34)
    assert data.nodes.values.to_list() == ["c", "b", "a"]
    assert data.features[:, 0].tolist() == [3, 2, 1]
    assert sum(map(len, data.edges.values())) == 3


def test_a_file_of_self_loops_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("source,target\n1,1\n2,2\n")
    with pytest.raises(DataError, match="at least one edge between two nodes"):
        load_links(tmp_path / "a.csv")


def test_fractions_that_leave_no_train_are_refused():
    with pytest.raises(ConfigError, match="must be < 1"):
        split_edges(np.zeros((4, 2), dtype=np.int64), valid=0.5, test=0.5)
    with pytest.raises(ConfigError, match="valid_fraction must be >= 0"):
        split_edges(np.zeros((4, 2), dtype=np.int64), valid=float("nan"))


def heart_folder(folder, *, negatives=True):
    folder.mkdir()
    (folder / "train_pos.txt").write_text("0\t1\n1\t2\n2\t3\n5\t5\n")
    (folder / "valid_pos.txt").write_text("0\t2\n")
    (folder / "test_pos.txt").write_text("3\t1\n0\t3\n")
    if negatives:
        np.save(folder / "heart_valid_samples.npy", np.array([[[0, 4], [4, 2]]]))
        np.save(folder / "heart_test_samples.npy", np.array([[[3, 4], [4, 1]], [[0, 4], [4, 3]]]))
    return folder


def test_hearts_files_are_read_from_a_folder_and_a_zip(tmp_path):
    folder = heart_folder(tmp_path / "h")
    data = load_links(folder)
    assert data.n_nodes == 6  # a self-loop says that the node is there
    assert data.edges["test"].tolist() == [[3, 1], [0, 3]]  # the order of the ends is kept
    assert data.negatives["valid"].tolist() == [[[0, 4], [4, 2]]]
    assert data.notes == ("1 self-loop(s) left out: an edge joins two nodes",)
    with zipfile.ZipFile(tmp_path / "h.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"inner/{path.name}")
    again = load_links(tmp_path / "h.zip")
    assert (again.negatives["test"] == data.negatives["test"]).all()
    np.save(tmp_path / "x.npy", np.ones((8, 2)))
    assert load_links(folder, features=tmp_path / "x.npy").n_nodes == 8
    assert len(load_links(folder, test=False).edges["test"]) == 0
    assert set(load_links(folder, test=False).negatives) == {"valid"}


def test_damaged_files_of_heart_are_refused(tmp_path):
    folder = heart_folder(tmp_path / "h")
    np.save(tmp_path / "x.npy", np.ones((4, 2)))
    with pytest.raises(DataError, match=r"names node 5, but data.features has 4 nodes"):
        load_links(folder, features=tmp_path / "x.npy")
    with pytest.raises(DataError, match="undirected and has no columns"):
        load_links(folder, directed=True)
    np.save(folder / "heart_valid_samples.npy", np.array([[[0, 9], [4, 2]]]))
    with pytest.raises(DataError, match="name node 9"):
        load_links(folder)
    np.save(folder / "heart_valid_samples.npy", np.zeros((3, 2, 2), dtype=np.int64))
    with pytest.raises(DataError, match=r"table of shape \(1, any, 2\)"):
        load_links(folder)
    np.save(folder / "heart_valid_samples.npy", np.zeros((1, 2, 2)))
    with pytest.raises(DataError, match="must hold pairs of nodes"):
        load_links(folder)
    (folder / "valid_pos.txt").write_text("0 1 2\n")
    with pytest.raises(DataError, match="two nodes"):
        read_heart(folder)
    (folder / "valid_pos.txt").unlink()
    with pytest.raises(DataError, match=r"has no valid_pos.txt"):
        read_heart(folder)


def test_an_edge_in_two_parts_is_refused(tmp_path):
    folder = heart_folder(tmp_path / "h", negatives=False)
    (folder / "test_pos.txt").write_text("1\t0\n")
    with pytest.raises(DataError, match=r"must be in one part and there once, got \(0, 1\)"):
        load_links(folder)


def test_negatives_are_made_where_none_are_given(tmp_path):
    data = load_links(write_edges(tmp_path / "a.csv", 300))
    made = with_negatives(data, "heart", 8, 0)
    assert made.negatives["test"].shape == (len(data.edges["test"]), 8, 2)
    given = replace(made, negatives={"valid": made.negatives["valid"][:, :2]})
    kept = with_negatives(given, "heart", 8, 0)
    assert kept.negatives["valid"].shape[1] == 2  # as given
    assert (kept.negatives["test"] == made.negatives["test"]).all()
    assert with_negatives(given, "uniform", 8, 0).negatives["valid"].shape[1] == 8


def test_negatives_are_read_from_files(tmp_path):
    path = write_edges(tmp_path / "a.csv", 300)
    data = load_links(path)
    np.save(tmp_path / "v.npy", np.zeros((len(data.edges["valid"]), 3, 2), dtype=np.int32))
    assert load_links(path, valid_negatives=tmp_path / "v.npy").negatives["valid"].shape[1] == 3
    np.save(tmp_path / "v.npy", np.zeros((1, 3, 2), dtype=np.int32))
    with pytest.raises(DataError, match="the negatives of valid must be an int64 table of shape"):
        load_links(path, valid_negatives=tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", np.zeros((1, 3)))
    with pytest.raises(DataError, match=r"data.valid_negatives must hold pairs of nodes \(E, n, 2\)"):
        load_links(path, valid_negatives=tmp_path / "v.npy")


def small(features=None, **changes):
    edges = {"train": [[0, 1], [1, 2]], "valid": [[0, 2]], "test": [[2, 3]]}
    tables = {part: np.array(pairs, dtype=np.int64) for part, pairs in edges.items()}
    negatives = {"valid": np.array([[[0, 3], [3, 2]]], dtype=np.int64)}
    return replace(LinkData("small", IdMap.range(4), tables, features, False, negatives, ("a note",)), **changes)


@pytest.mark.parametrize("kind", ["none", "dense", "sparse"])
def test_a_saved_state_is_read_as_it_was(kind):
    table = np.array([[0, 1], [2, 0], [0, 0], [3, 4]], dtype=np.float32)
    features = {"none": None, "dense": table, "sparse": sparse.csr_array(table)}[kind]
    data = small(features)
    again = from_state(to_state(data), IdMap.range(4))
    assert (again.name, again.notes, again.is_directed) == (data.name, data.notes, data.is_directed)
    assert all((again.edges[part] == data.edges[part]).all() for part in data.edges)
    assert (again.negatives["valid"] == data.negatives["valid"]).all()
    if kind != "none":
        dense = again.features if kind == "dense" else again.features.toarray()
        assert (dense == table).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["edges"].update(train=torch.tensor([[0, 4]])), "name node 4"),
        (lambda state: state["edges"].update(train=torch.tensor([[0, -1]])), "name node -1"),
        (lambda state: state["edges"].update(train=torch.tensor([[1, 1]])), "self-loop of node 1"),
        (lambda state: state["edges"].update(train=torch.tensor([[2, 0]])), "more than once"),
        (lambda state: state["edges"].update(train=torch.tensor([[0.0, 1.0]])), "int64 table"),
        (lambda state: state["edges"].pop("train"), "got none of train"),
        (lambda state: state.pop("edges"), "do not fit together"),
        (lambda state: state.update(n_nodes=5), "there must be 5 nodes, got 4 ids"),
        (lambda state: state.update(is_directed="yes"), "is_directed true or false"),
        (lambda state: state["negatives"].update(valid=torch.zeros(2, 1, 2, dtype=torch.int64)), "shape"),
        (lambda state: state["negatives"].update(train=torch.zeros(2, 1, 2, dtype=torch.int64)), "only valid and test"),
        (lambda state: state.update(features={"dense": torch.zeros(3, 2)}), "each of the 4 nodes, got 3 rows"),
        (lambda state: state.update(features={"dense": torch.full((4, 2), torch.nan)}), "for node 0"),
        (lambda state: state.update(features={"dense": torch.zeros(4, 2, dtype=torch.float64)}), "float32"),
        (
            lambda state: state.update(
                features={
                    "indptr": torch.tensor([0, 1, 1, 1, 1]),
                    "indices": torch.tensor([7]),
                    "data": torch.ones(1),
                    "n_columns": 2,
                }
            ),
            "damaged|do not fit|index",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    state = to_state(small())
    change(state)
    with pytest.raises(DataError, match=message):
        from_state(state, IdMap.range(4))


def test_the_published_split_of_citeseer_is_read(paper_data):
    folder = paper_data.parent / "links"
    if not folder.is_dir():
        pytest.skip("TOPSHELF_DATA has no links")
    data = load_links(folder / "heart-citeseer.zip", features=folder / "planetoid.zip", graph="citeseer")
    assert [len(data.edges[part]) for part in ("train", "valid", "test")] == [3870, 227, 455]
    assert data.notes == ("48 self-loop(s) left out: an edge joins two nodes",)
    assert data.negatives["test"].shape == (455, 500, 2)
    assert (data.n_nodes, data.n_features) == (3327, 3703)
