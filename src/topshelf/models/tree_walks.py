"""The walk of documents through trees, compiled by numba on first use. Import it where it is called."""

from __future__ import annotations

from topshelf.compiled import Array, jit


@jit
def add_trees(
    features: Array,
    scores: Array,
    roots: Array,
    feature: Array,
    level: Array,
    left: Array,
    right: Array,
    value: Array,
) -> None:
    """Add the values of a document's leaves to its score, tree by tree in their order."""
    for d in range(features.shape[0]):
        row = features[d]
        for t in range(roots.shape[0]):
            node = roots[t]
            while left[node] >= 0:
                node = left[node] if row[feature[node]] <= level[node] else right[node]
            scores[d] += value[node]
