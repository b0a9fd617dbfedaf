"""Features of nodes from files; nothing is unpickled."""

from __future__ import annotations

import pickle

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from topshelf.data.node_features import read_features
from topshelf.errors import DataError


def test_arrays_are_read_as_float32(tmp_path):
    values = np.arange(6).reshape(3, 2)
    np.save(tmp_path / "x.npy", values)
    table, ids = read_features(tmp_path / "x.npy")
    assert table.dtype == np.float32
    assert table.tolist() == values.tolist()
    assert ids is None


def test_sparse_matrices_are_read(tmp_path):
    dense = np.array([[0, 1.5], [0, 0], [2, 0]])
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(dense))
    table, _ = read_features(tmp_path / "x.npz")
    assert table.dtype == np.float32
    assert table.toarray().tolist() == dense.tolist()


def test_parquet_has_ids_and_numbers_or_lists_of_them(tmp_path):
    frame = pl.DataFrame({"a": [1, 2], "node": ["x", "y"], "flag": [True, False], "v": [[1.0, 2.0], [3.0, 4.0]]})
    frame.write_parquet(tmp_path / "x.parquet")
    table, ids = read_features(tmp_path / "x.parquet")
    assert table.tolist() == [[1, 1, 1, 2], [2, 0, 3, 4]]
    assert ids.values.to_list() == ["x", "y"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused(tmp_path, bad):
    values = np.ones((3, 2))
    values[1, 0] = bad
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(DataError, match=r"must be finite, got .* for node 1"):
        read_features(tmp_path / "x.npy")
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(values))
    with pytest.raises(DataError, match="for node 1"):
        read_features(tmp_path / "x.npz")


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="Nothing is unpickled"):
        read_features(tmp_path / "x.npy")
    (tmp_path / "y.npy").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="Nothing is unpickled"):
        read_features(tmp_path / "y.npy")
    np.savez(tmp_path / "z.npz", format=np.array([{}], dtype=object), shape=[1], data=[1], indices=[1], indptr=[1])
    with pytest.raises(DataError, match="Nothing is unpickled"):
        read_features(tmp_path / "z.npz")


def test_matrices_with_indices_out_of_range_are_refused(tmp_path):
    matrix = sparse.csr_array(np.eye(3))
    matrix.indices[1] = 9
    np.savez(
        tmp_path / "x.npz",
        format=b"csr",
        shape=[3, 3],
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
    )
    with pytest.raises(DataError, match="damaged"):
        read_features(tmp_path / "x.npz")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="must be a file"):
        read_features(tmp_path / "nothing.npy")
    (tmp_path / "x.txt").write_text("1 2")
    with pytest.raises(DataError, match=r"must end in .npy, .npz or .parquet"):
        read_features(tmp_path / "x.txt")
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(DataError, match="one row per node"):
        read_features(tmp_path / "x.npy")
    with pytest.raises(DataError, match=r"data.id_column is for Parquet"):
        read_features(tmp_path / "x.npy", id_column="id")
    sparse.save_npz(tmp_path / "x.npz", sparse.coo_array(np.eye(2)))
    with pytest.raises(DataError, match=r"compressed rows|has no indices"):
        read_features(tmp_path / "x.npz")
    pl.DataFrame({"a": [1.0]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="must name the column of node ids"):
        read_features(tmp_path / "x.parquet")
    pl.DataFrame({"id": [1, 1], "a": [1.0, 2.0]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="unique"):
        read_features(tmp_path / "x.parquet")
    pl.DataFrame({"id": [1, 2], "a": ["x", "y"]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="must hold numbers in every row"):
        read_features(tmp_path / "x.parquet")
    pl.DataFrame({"id": [1, 2], "a": [[1.0], [1.0, 2.0]]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="of one length"):
        read_features(tmp_path / "x.parquet")
