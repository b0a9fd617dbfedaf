"""The trees of boosting libraries as arrays."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from topshelf.errors import DataError
from topshelf.models.trees import TreeBuilder

NO_PARENT = -2


def trees_of_lightgbm(model: dict[str, Any]) -> TreeBuilder:
    """The trees of LightGBM's own description; its sums are theirs to the last bit."""
    built = TreeBuilder()
    for tree in model["tree_info"]:
        built.begin()
        waiting: list[tuple[dict[str, Any], int, bool]] = [(tree["tree_structure"], NO_PARENT, False)]
        while waiting:
            node, parent, is_right = waiting.pop()
            if "split_feature" in node:
                if node["decision_type"] != "<=":
                    raise DataError(f"LightGBM made a split of kind {node['decision_type']!r}, which is not supported")
                place = built.add(node["split_feature"], node["threshold"])
                waiting += [(node["right_child"], place, True), (node["left_child"], place, False)]
            else:
                place = built.add(value=node["leaf_value"])
            _attach(built, parent, place, is_right)
    return built


def _attach(built: TreeBuilder, parent: int, place: int, is_right: bool) -> None:
    if parent != NO_PARENT:
        (built.right if is_right else built.left)[parent] = place


def trees_of_xgboost(booster: Any) -> TreeBuilder:
    """The trees of XGBoost; scores differ from its own by a constant, which no order depends on, and by rounding."""
    built = TreeBuilder()
    for text in booster.get_dump(dump_format="json"):
        built.begin()
        waiting: list[tuple[dict[str, Any], int, bool]] = [(json.loads(text), NO_PARENT, False)]
        while waiting:
            node, parent, is_right = waiting.pop()
            if "leaf" in node:
                place = built.add(value=node["leaf"])
            else:
                # Left where x < level, in float32: the same as x <= the number before it.
                level = np.nextafter(np.float32(node["split_condition"]), np.float32(-np.inf))
                place = built.add(int(node["split"][1:]), float(level))
                children = {child["nodeid"]: child for child in node["children"]}
                waiting += [(children[node["no"]], place, True), (children[node["yes"]], place, False)]
            _attach(built, parent, place, is_right)
    return built


def trees_of_catboost(booster: Any) -> TreeBuilder:
    """CatBoost's symmetric trees, each level spelled out."""
    with tempfile.TemporaryDirectory() as folder:
        booster.save_model(str(Path(folder) / "model.json"), format="json")
        model = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    indices = [feature["flat_feature_index"] for feature in model["features_info"]["float_features"]]
    built = TreeBuilder()
    for tree in model["oblivious_trees"]:
        built.begin()
        _spell_out(built, tree["splits"] or [], tree["leaf_values"], indices)
    return built


def _spell_out(built: TreeBuilder, splits: list[dict[str, Any]], values: list[float], indices: list[int]) -> int:
    """A symmetric tree: the last split decides the highest bit of the leaf's number; returns its root."""
    if not splits:
        return built.add(value=values[0])
    *rest, last = splits
    node = built.add(indices[last["float_feature_index"]], float(np.float32(last["border"])))
    half = len(values) // 2
    left = _spell_out(built, rest, values[:half], indices)
    right = _spell_out(built, rest, values[half:], indices)
    built.link(node, left, right)
    return node
