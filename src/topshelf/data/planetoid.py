"""Planetoid's graphs (Cora, Citeseer, PubMed), whose files are pickles of Python 2.

Nothing is unpickled. The opcodes are read as data by a small stack machine that knows the few that these files have,
calls nothing and imports nothing. What it builds is then taken for arrays only where it has their exact form.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from topshelf.data.unpack import member_bytes, open_zip
from topshelf.errors import DataError

GRAPHS = ("cora", "citeseer", "pubmed")
_DTYPES = {"f4": np.float32, "f8": np.float64, "i4": np.int32, "i8": np.int64}
_DICT = ("collections defaultdict", "__builtin__ list")
_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype")
_MATRIX = ("scipy.sparse.csr csr_matrix", *_ARRAY)
_NAMES = {*_DICT, *_MATRIX}
_MOST_STEPS = 50_000_000  # opcodes; PubMed's graph has about 130,000


@dataclass
class Made:
    """What a pickle would make: a name applied to arguments, and the state that it is given. Never called."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_planetoid(path: Path, name: str) -> tuple[np.ndarray, sparse.csr_array]:
    """The edges (E, 2), as they are listed, and the features (N, f) of one graph in a folder or a zip.

    A node that is in the graph but in no file of features has zeros.
    """
    read = _opener(path, name)
    lists = graph_of(load_plain(read("graph"), f"{path} ind.{name}.graph"), f"{path} ind.{name}.graph")
    parts = {kind: matrix_of(load_plain(read(kind), f"{path} ind.{name}.{kind}"), kind) for kind in ("allx", "tx")}
    order = _test_order(read("test.index"), f"{path} ind.{name}.test.index")
    n_nodes = max([*lists, *order.tolist(), parts["allx"].shape[0] - 1, -1]) + 1
    features = _features(parts["allx"], parts["tx"], order, n_nodes, f"{path} ind.{name}")
    edges = [(node, other) for node, others in lists.items() for other in others]
    table = np.array(edges, dtype=np.int64).reshape(-1, 2)
    if len(table) and not (table.min() >= 0 and table.max() < n_nodes):
        raise DataError(
            f"{path}: the graph {name} must name nodes 0 to {n_nodes - 1}, got {table.min()}, {table.max()}."
        )
    return table, features


def _opener(path: Path, name: str) -> Callable[[str], bytes]:
    if name not in GRAPHS:
        raise DataError(f"the name of a Planetoid graph must be one of {', '.join(GRAPHS)}, got {name!r}.")

    def read(kind: str) -> bytes:
        file = f"ind.{name}.{kind}"
        if path.is_dir():
            found = next((folder / file for folder in (path, path / "planetoid") if (folder / file).is_file()), None)
            content = None if found is None else found.read_bytes()
        else:
            with open_zip(path) as archive:
                names = [one for one in archive.namelist() if one.rpartition("/")[2] == file]
                content = member_bytes(archive, names[0]) if names else None
        if content is None:
            raise DataError(f"{path} has no {file}. Planetoid's files are ind.{name}.graph, .allx, .tx, .test.index.")
        return content

    return read


def load_plain(content: bytes, where: str) -> Any:
    """The plain value of a pickle, with :class:`Made` in place of objects; any other opcode or name is refused."""
    try:
        return _run(content)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeError) as error:
        raise DataError(f"{where} is damaged, or no file of Planetoid: {error}.") from None


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING"}


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for step, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if step > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS} opcodes")
        if name == "STOP":
            return stack.pop()
        if name in _LITERALS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        else:
            _build(name, argument, stack)
    raise ValueError("it is cut off")


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    """The opcodes that make something of what is on the stack."""
    if name in _MAKERS:
        _MAKERS[name](stack)
    elif name == "GLOBAL":
        if argument not in _NAMES:
            raise ValueError(f"it names {argument!r}, which is none of {', '.join(sorted(_NAMES))}")
        stack.append(Made(argument, ()))
    elif name != "PROTO":
        raise ValueError(f"it has the opcode {name}, which none of these files has")


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1 - stack[::-1].index(_MARK)
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _tuple(n: int) -> Callable[[list[Any]], None]:
    def make(stack: list[Any]) -> None:
        if len(stack) < n:
            raise ValueError("a tuple is longer than what was read before it")
        values = tuple(stack[len(stack) - n :])
        del stack[len(stack) - n :]
        stack.append(values)

    return make


def _apply(stack: list[Any]) -> None:
    arguments, made = stack.pop(), stack.pop()
    if not isinstance(made, Made) or not isinstance(arguments, tuple):
        raise ValueError("it applies what is no name")
    stack.append(Made(made.name, arguments))


def _set_state(stack: list[Any]) -> None:
    state = stack.pop()
    if not isinstance(stack[-1], Made):
        raise ValueError("it gives a state to what has none")
    stack[-1].state = state


def _append_all(stack: list[Any], values: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise ValueError("it appends to what is no list")
    stack[-1].extend(values)


def _set_items(stack: list[Any], values: list[Any]) -> None:
    target = stack[-1]
    if isinstance(target, Made):  # of a defaultdict
        target.state = {} if target.state is None else target.state
        target = target.state
    if not isinstance(target, dict) or len(values) % 2:
        raise ValueError("it sets items of what is no dictionary")
    target.update(zip(values[::2], values[1::2], strict=True))


_MAKERS: Mapping[str, Callable[[list[Any]], None]] = {
    "MARK": lambda stack: stack.append(_MARK),
    "EMPTY_TUPLE": lambda stack: stack.append(()),
    "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_LIST": lambda stack: stack.append([]),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "REDUCE": _apply,
    "NEWOBJ": _apply,
    "BUILD": _set_state,
    "APPEND": lambda stack: _append_all(stack, [stack.pop()]),
    "APPENDS": lambda stack: _append_all(stack, _since_mark(stack)),
    "SETITEM": lambda stack: _set_items(stack, [stack.pop(), stack.pop()][::-1]),
    "SETITEMS": lambda stack: _set_items(stack, _since_mark(stack)),
}


def graph_of(value: Any, where: str) -> dict[int, list[int]]:
    """Lists of neighbours by node."""
    lists = value.state if isinstance(value, Made) and value.name == _DICT[0] else None
    if not isinstance(lists, dict) or not all(
        type(node) is int and isinstance(others, list) and all(type(other) is int for other in others)
        for node, others in lists.items()
    ):
        raise DataError(f"{where} must hold a dictionary of lists of nodes; it is damaged, or no file of Planetoid.")
    return lists


def array_of(value: Any, where: str) -> np.ndarray:
    """An array, from the form in which NumPy pickles it."""
    try:
        assert isinstance(value, Made) and value.name == _ARRAY[0]  # noqa: PT018
        _, shape, dtype, is_fortran, raw = value.state
        assert isinstance(dtype, Made) and dtype.name == _ARRAY[2] and not is_fortran  # noqa: PT018
        kind = np.dtype(_DTYPES[dtype.arguments[0]]).newbyteorder(dtype.state[1])
        return np.frombuffer(raw.encode("latin-1"), dtype=kind).reshape(shape).astype(kind.newbyteorder("="))
    except (AssertionError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} must hold an array of numbers; it is damaged ({error!r}).") from None


def matrix_of(value: Any, where: str) -> sparse.csr_array:
    """A sparse matrix with its indices checked."""
    state = value.state if isinstance(value, Made) and value.name == _MATRIX[0] else None
    state = state if isinstance(state, dict) else {}
    shape = state.get("_shape")
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape)):
        raise DataError(f"{where} must hold a sparse matrix; it is damaged, or no file of Planetoid.")
    data, indices, indptr = (array_of(state.get(name), f"{where} {name}") for name in ("data", "indices", "indptr"))
    try:
        matrix = sparse.csr_array((data, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{where} is damaged: {error}.") from None
    return matrix


def _test_order(content: bytes, where: str) -> np.ndarray:
    try:
        return np.array([int(line) for line in content.split()], dtype=np.int64)
    except (ValueError, OverflowError):
        raise DataError(f"{where} must hold one whole number on each line; it is damaged.") from None


def _features(
    known: sparse.csr_array, test: sparse.csr_array, order: np.ndarray, n_nodes: int, where: str
) -> sparse.csr_array:
    """The rows of ``known`` first, and those of ``test`` where ``order`` says; the others are zero."""
    n_known = known.shape[0]
    if known.shape[1] != test.shape[1] or len(order) != test.shape[0] or len(np.unique(order)) != len(order):
        raise DataError(f"{where}: .allx, .tx and .test.index do not fit together; they are of different graphs.")
    if len(order) and (order.min() < n_known or order.max() >= n_nodes):
        raise DataError(f"{where}.test.index must name nodes {n_known} to {n_nodes - 1}, got {order.min()}.")
    place = np.full(n_nodes, known.shape[0] + test.shape[0])
    place[:n_known], place[order] = np.arange(n_known), n_known + np.arange(len(order))
    nothing = sparse.csr_array((1, known.shape[1]), dtype=known.dtype)
    return sparse.csr_array(sparse.vstack([known, test, nothing]).tocsr()[place]).astype(np.float32)
