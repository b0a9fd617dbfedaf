"""The run as an ONNX model: from users, or histories, to the rows and scores of the best K items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from topshelf.errors import ConfigError
from topshelf.export.contents import Contents
from topshelf.export.formats import write_rows

_OPSET, _IR_VERSION = 18, 10  # of 2024: runtimes of the last two years read them
_MOST_BYTES = 1.9e9  # a model file ends at 2 GB


def write_onnx(contents: Contents, folder: Path) -> dict[str, str]:
    """model.onnx, checked, with the ids of its rows."""
    import onnx

    size = sum(table.nbytes for table in _tables(contents).values())
    if size > _MOST_BYTES:
        raise ConfigError(
            f"--to onnx writes one file, below 2 GB, and the tables of this run have {size / 1e9:.1f} GB; "
            "use --to numpy or parquet"
        )
    model = _Graph(contents).model()
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "model.onnx"))
    takes = (
        "user (N,): rows of users" if _is_by_user(contents) else "history (N, H): rows of the items of a user, then -1"
    )
    about = f"takes {takes}; exclude (N, M): rows of items to leave out, then -1; gives items (N, K) and scores (N, K)"
    return {"model.onnx": about, **write_rows(contents, folder)}


def _is_by_user(contents: Contents) -> bool:
    return contents.weights is None and contents.table is None


def _tables(contents: Contents) -> dict[str, np.ndarray]:
    """What the model is made of; weights between items are multiplied as a dense table."""
    if contents.weights is not None:
        n = contents.weights.shape[0]
        if 4.0 * n * n > _MOST_BYTES:
            raise ConfigError(
                f"--to onnx writes the weights of {n:,} items as a table of {4e-9 * n * n:.1f} GB, and a model "
                "file must be below 2 GB; use --to numpy or parquet"
            )
        return {"weights": contents.weights.toarray().astype(np.float32)}
    assert contents.item_vectors is not None
    tables = {"item_vectors": np.ascontiguousarray(contents.item_vectors.T)}
    if contents.table is not None:
        return {**tables, "history_vectors": contents.table.astype(np.float32)}
    assert contents.user_vectors is not None
    return {**tables, "user_vectors": contents.user_vectors}


class _Graph:
    """The nodes of the model, in order. An index of -1 is an empty place: it points to a column that is cut off."""

    def __init__(self, contents: Contents) -> None:
        self.contents, self.n_items = contents, len(contents.items)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = _tables(contents)

    def model(self) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        first = "user" if _is_by_user(self.contents) else "history"
        scores = self._scores_of_users() if first == "user" else self._scores_of_histories()
        self._best(scores)
        shape = ["N"] if first == "user" else ["N", "H"]
        inputs = [(first, shape), ("exclude", ["N", "M"])]
        outputs = [("items", TensorProto.INT64), ("scores", TensorProto.FLOAT)]
        graph = helper.make_graph(
            self.nodes,
            "topshelf",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs],
            [helper.make_tensor_value_info(name, kind, ["N", self.contents.k]) for name, kind in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opset = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION, producer_name="topshelf")

    def _scores_of_users(self) -> str:
        return self._node("MatMul", self._node("Gather", "user_vectors", "user"), "item_vectors")

    def _scores_of_histories(self) -> str:
        """Ones at the items of each history, times the weights; or times a table of vectors and then the items."""
        shape = self._node("Shape", "history")
        rows = self._node("Slice", shape, self._whole("zero", [0]), self._whole("one", [1]))
        nothing = self._filled(self._node("Concat", rows, self._whole("width", [self.n_items + 1]), axis=0), 0.0)
        hot = self._cut(self._put("history", nothing, self._filled(shape, 1.0)))
        if self.contents.weights is not None:
            return self._node("MatMul", hot, "weights")
        vectors = self._node("MatMul", hot, "history_vectors")
        count = self._node("ReduceSum", hot, self._whole("last_axis", [1]), keepdims=1)
        root = self._node("Sqrt", self._node("Max", count, self._constant("least", np.float32(1.0))))
        vectors = self._node("Div", vectors, root)
        if self.contents.is_cosine:
            length = self._node("ReduceL2", vectors, self._whole("last_axis", [1]), keepdims=1)
            vectors = self._node("Div", vectors, self._node("Max", length, self._constant("tiny", np.float32(1e-12))))
        return self._node("MatMul", vectors, "item_vectors")

    def _best(self, scores: str) -> None:
        """The best K that are not excluded; row -1 where nothing is left."""
        rows = self._node("Slice", self._node("Shape", scores), self._whole("zero", [0]), self._whole("one", [1]))
        column = self._filled(self._node("Concat", rows, self._whole("one", [1]), axis=0), 0.0)
        wide = self._node("Concat", scores, column, axis=1)
        refused = self._filled(self._node("Shape", "exclude"), -np.inf)
        left = self._cut(self._put("exclude", wide, refused))
        found = f"best_{len(self.nodes)}"
        self._node("TopK", left, self._whole("k", [self.contents.k]), outputs=["scores", found], axis=1)
        nothing = self._node("IsInf", "scores")
        self._node("Where", nothing, self._whole("empty", [-1]), found, outputs=["items"])

    def _put(self, places: str, table: str, values: str) -> str:
        """The table with values at the columns that each row names; empty places go to the last column."""
        is_empty = self._node("Less", places, self._whole("zero", [0]))
        columns = self._node("Where", is_empty, self._whole("last", [self.n_items]), places)
        return self._node("ScatterElements", table, columns, values, axis=1)

    def _cut(self, table: str) -> str:
        """The table without its last column."""
        ends = self._whole("zero", [0]), self._whole("last", [self.n_items]), self._whole("last_axis", [1])
        return self._node("Slice", table, *ends)

    def _filled(self, shape: str, value: float) -> str:
        from onnx import TensorProto, helper

        return self._node("ConstantOfShape", shape, value=helper.make_tensor("value", TensorProto.FLOAT, [1], [value]))

    def _whole(self, name: str, values: list[int]) -> str:
        return self._constant(name, np.array(values, np.int64))

    def _constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def _node(self, kind: str, *inputs: str, outputs: list[str] | None = None, **attributes: Any) -> str:
        from onnx import helper

        outputs = outputs or [f"{kind.lower()}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs[0]
