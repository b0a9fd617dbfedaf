"""Planetoid's pickles: read without unpickling, and anything else refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from topshelf.data.planetoid import array_of, graph_of, load_plain, matrix_of, read_planetoid
from topshelf.errors import DataError

ARRAY = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85U\x01b\x87R(K\x01"
DTYPE = b"cnumpy\ndtype\nU\x02%sK\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def text(raw: bytes) -> bytes:
    """A string of Python 2, which Planetoid's files keep their numbers in."""
    return b"T" + len(raw).to_bytes(4, "little") + raw


def array(values, code):
    """An array as Python 2's NumPy pickled it, without the first two bytes."""
    values = np.asarray(values, dtype=np.dtype(code).newbyteorder("<"))
    shape = b"".join(b"M" + n.to_bytes(2, "little") for n in values.shape)
    shape += {1: b"\x85", 2: b"\x86"}[values.ndim]
    return ARRAY[2:] + shape + DTYPE % code.encode() + b"\x89" + text(values.tobytes()) + b"tb"


def matrix(dense):
    from scipy import sparse

    table = sparse.csr_matrix(dense)
    shape = b"".join(b"M" + n.to_bytes(2, "little") for n in table.shape) + b"\x86"
    parts = [("data", "f4"), ("indices", "i4"), ("indptr", "i4")]
    items = b"U\x06_shape" + shape
    items += b"".join(
        b"U" + bytes([len(name)]) + name.encode() + array(getattr(table, name), code) for name, code in parts
    )
    return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + items + b"ub."


def folder_of(tmp_path: Path, graph, known, test, order):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "ind.cora.graph").write_bytes(graph)
    (tmp_path / "ind.cora.allx").write_bytes(matrix(known))
    (tmp_path / "ind.cora.tx").write_bytes(matrix(test))
    (tmp_path / "ind.cora.test.index").write_text("\n".join(map(str, order)))
    return tmp_path


def graph_pickle(lists):
    """A defaultdict of lists in protocol 2, with Python 2's name of the built-in module."""
    raw = pickle.dumps(defaultdict(list, lists), protocol=2)
    assert b"c__builtin__\nlist\n" in raw
    return raw


def test_a_graph_and_its_features_are_read(tmp_path):
    lists = {0: [1, 2], 1: [0], 2: [0, 2], 4: []}
    folder = folder_of(tmp_path / "f", graph_pickle(lists), [[1, 0], [0, 2]], [[3, 0], [0, 4]], [4, 2])
    edges, features = read_planetoid(folder, "cora")
    assert edges.tolist() == [[0, 1], [0, 2], [1, 0], [2, 0], [2, 2]]
    # node 3 is in no file: zeros; the rows of .tx are where .test.index says
    assert features.toarray().tolist() == [[1, 0], [0, 2], [0, 4], [0, 0], [3, 0]]


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    for protocol in (0, 1, 2):
        with pytest.raises(DataError, match="no file of Planetoid"):
            load_plain(pickle.dumps(Evil(), protocol=protocol), "x")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02}q\x00.extra"[:4],
        b"\x80\x02R.",
        b"\x80\x02(t(.",
        b"\x80\x02K\x01a.",
        b"\x80\x02h\x05.",
        b"\x80\x02\x87.",
        b"\x80\x02cbuiltins\neval\n.",
        b"\x80\x02cos\nsystem\nU\x02ls\x85R.",
        pickle.dumps([1, 2], protocol=4),
        pickle.dumps({"a": 1.5}, protocol=2),
    ],
)
def test_damaged_and_foreign_pickles_are_refused(content):
    with pytest.raises(DataError):
        graph_of(load_plain(content, "x"), "x")


def test_the_few_allowed_names_are_not_called():
    made = load_plain(b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R.", "x")
    assert made.name == "collections defaultdict"
    with pytest.raises(DataError, match="must hold a sparse matrix"):
        matrix_of(made, "x")
    with pytest.raises(DataError, match="must hold an array"):
        array_of(made, "x")


def test_matrices_with_indices_out_of_range_are_refused():
    raw = matrix([[0.0, 1.0], [1.0, 0.0]])
    assert matrix_of(load_plain(raw, "x"), "x").toarray().tolist() == [[0, 1], [1, 0]]
    old = np.array([1, 0], dtype="<i4").tobytes()  # the columns
    assert old in raw
    with pytest.raises(DataError, match="damaged"):
        matrix_of(load_plain(raw.replace(old, np.array([7, 0], dtype="<i4").tobytes(), 1), "x"), "x")


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    folder = folder_of(tmp_path / "a", graph_pickle({0: [1]}), [[1.0, 0]], [[1.0, 0]], [0])
    with pytest.raises(DataError, match=r"test.index must name nodes 1 to"):
        read_planetoid(folder, "cora")
    folder = folder_of(tmp_path / "b", graph_pickle({0: [9]}), [[1.0, 0]], [[1.0, 0]], [1])
    with pytest.raises(DataError, match=r"must name nodes 0 to 1"):
        read_planetoid(folder, "cora")
    with pytest.raises(DataError, match=r"has no ind.citeseer.graph"):
        read_planetoid(folder, "citeseer")
    with pytest.raises(DataError, match="must be one of cora"):
        read_planetoid(folder, "../../etc")


def test_a_zip_is_read_as_its_folder_is(tmp_path):
    folder = folder_of(tmp_path / "f", graph_pickle({0: [1], 2: []}), [[1.0, 0], [0, 1]], [[2.0, 0]], [2])
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"planetoid/{path.name}")
    edges, features = read_planetoid(tmp_path / "z.zip", "cora")
    assert edges.tolist() == [[0, 1]]
    assert features.toarray().tolist() == [[1, 0], [0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("name", "n_nodes", "n_edges", "n_features"), [("cora", 2708, 5278, 1433), ("citeseer", 3327, 4552, 3703)]
)
def test_the_published_graphs_have_the_published_counts(paper_data, name, n_nodes, n_edges, n_features):
    path = paper_data.parent / "links" / "planetoid.zip"
    if not path.is_file():
        pytest.skip("TOPSHELF_DATA has no links/planetoid.zip")
    edges, features = read_planetoid(path, name)
    assert features.shape == (n_nodes, n_features)
    simple = {tuple(sorted(edge)) for edge in edges.tolist() if edge[0] != edge[1]}
    assert len(simple) == n_edges
