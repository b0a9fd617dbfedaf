"""Negatives to rank an edge against: uniform ones, and hard ones by the recipe of HeaRT.

HeaRT (Li et al., Evaluating graph neural networks for link prediction, NeurIPS 2023, datasets and benchmarks): for each
held-out edge, half of the negatives keep its source and half its target. The other ends are those nodes that are ranked
best by any of resource allocation, personalised PageRank and the cosine of features. Known edges, the edge itself and
the kept end are no negatives. All scores are of the training graph; for test, validation edges are known as well.

Their ranks are kept: among scores above 0, the rank of a score is the number of scores not below it, less the ties of
the best score, plus 1; all zeros share the rank after that. So where few nodes share a neighbour with the kept end,
most nodes tie at the rank of "no common neighbour", and which of them are negatives is arbitrary: here the seed
decides.
Their script overwrites the table of feature similarities with ranks while it goes; here every row is made anew. Where
it draws zeros with repeats, this draws without.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from topshelf.data.graphs import HELD_OUT, LinkData, Table
from topshelf.errors import ConfigError, DataError, at_least
from topshelf.proximity import adjacency, pagerank, resource_allocation

ROWS_BYTES = 1 << 21  # of a dense table that is worked on at once: it stays in the cache


def cosine(features: Table, rows: np.ndarray) -> np.ndarray:
    """Cosine of the features of ``rows`` (R,) with those of all nodes, (R, N); 0 where a node has none."""
    table = sparse.csr_array(features).astype(np.float64)
    length = np.sqrt(table.power(2).sum(1))
    unit = sparse.csr_array(sparse.diags_array(1 / np.where(length > 0, length, 1.0)) @ table)
    return sparse.csr_array(unit[rows] @ unit.T).toarray()


def score_ranks(scores: np.ndarray, is_excluded: np.ndarray) -> np.ndarray:
    """HeaRT's rank of each score, (N,): 1 is best; what is 0 comes last, and what is excluded after it."""
    is_above = (scores > 0) & ~is_excluded
    ascending = np.sort(scores[is_above])
    n_ties = len(ascending) - np.searchsorted(ascending, ascending[-1]) if len(ascending) else 0
    n_not_below = len(ascending) - np.searchsorted(ascending, scores)
    ranks = np.where(is_above, n_not_below - n_ties + 1, 0)
    last = ranks.max(initial=0)
    ranks[~is_above] = last + 1
    ranks[is_excluded] = last + 2
    return ranks


def hard_negatives(data: LinkData, part: str, *, n: int = 500, seed: int = 0) -> np.ndarray:
    """The negatives of a held-out part by HeaRT's recipe, (E, n, 2): n/2 keep the source, n/2 the target.

    Without features two scores are left. Ties at the last place are broken by the seed.
    """
    edges, half = data.edges[part], _half(n)
    graph = adjacency(data.edges["train"], data.n_nodes)
    known = _Known(data, part)
    _check_enough(data, part, known, half)
    sides = []
    for side in (0, 1):
        other = np.empty((len(edges), half), dtype=np.int64)
        for place, scores in _scored(graph, data.features, edges[:, side]):
            random = np.random.default_rng(np.random.SeedSequence([seed, 16, side, place, part == "test"]))
            other[place] = _best(scores, known.of(edges[place], side), half, random)
        sides.append(_pairs(edges, other, side))
    return np.concatenate(sides, axis=1)


def uniform_negatives(data: LinkData, part: str, *, n: int = 500, seed: int = 0) -> np.ndarray:
    """Negatives drawn evenly from the nodes that are no known ends, (E, n, 2): n/2 keep the source, n/2 the target."""
    edges, half = data.edges[part], _half(n)
    known = _Known(data, part)
    _check_enough(data, part, known, half)
    sides = []
    for side in (0, 1):
        other = np.empty((len(edges), half), dtype=np.int64)
        for place, edge in enumerate(edges):
            random = np.random.default_rng(np.random.SeedSequence([seed, 17, side, place, part == "test"]))
            other[place] = _uniform(known.ends(edge, side), data.n_nodes, half, random)
        sides.append(_pairs(edges, other, side))
    return np.concatenate(sides, axis=1)


def _half(n: int) -> int:
    if at_least("evaluate.n_negatives", n, 2) % 2:
        raise ConfigError(f"evaluate.n_negatives must be even, half for each end of an edge, got {n}")
    return n // 2


def _check_enough(data: LinkData, part: str, known: _Known, half: int) -> None:
    """Refuse more negatives than some end of a held-out edge has; the remedy holds for both parts."""
    if half <= known.at_least or half <= (found := known.fewest(data.edges[part])):
        return
    most = min(_Known(data, one).fewest(data.edges[one]) for one in HELD_OUT)
    raise DataError(
        f"{data.name}: evaluate.n_negatives = {2 * half} needs {half:,} nodes that an end of a held-out edge is not "
        f"linked with; of the {data.n_nodes:,} nodes, one end has only {found:,}. "
        + (f"Set evaluate.n_negatives={2 * most} or less" if most else "Use a larger graph")
    )


def _pairs(edges: np.ndarray, other: np.ndarray, side: int) -> np.ndarray:
    kept = np.repeat(edges[:, side, None], other.shape[1], axis=1)
    return np.stack([kept, other] if side == 0 else [other, kept], axis=2)


class _Known:
    """Which nodes are no negatives for an end of an edge."""

    def __init__(self, data: LinkData, part: str) -> None:
        edges = data.known("valid" if part == "test" else "train")
        if not data.is_directed:
            edges = np.concatenate([edges, edges[:, ::-1]])
        self.n_nodes = data.n_nodes
        self.by_side = []
        for side in (0, 1):
            order = np.argsort(edges[:, side], kind="stable")
            starts = np.searchsorted(edges[order, side], np.arange(data.n_nodes + 1))
            self.by_side.append((starts, edges[order, 1 - side]))
        most_known = max(int(np.diff(starts).max(initial=0)) for starts, _ in self.by_side)
        self.at_least = data.n_nodes - most_known - 2  # nodes that are left for any end

    def ends(self, edge: np.ndarray, side: int) -> np.ndarray:
        """The kept end, the other end of the edge, and the known other ends."""
        starts, ends = self.by_side[side]
        own = edge[side]
        return np.concatenate([ends[starts[own] : starts[own + 1]], edge])

    def fewest(self, edges: np.ndarray) -> int:
        """How many nodes are left for the end of the edges (E, 2) that has the fewest."""
        left = (self.n_nodes - len(np.unique(self.ends(edge, side))) for edge in edges for side in (0, 1))
        return min(left, default=self.n_nodes)

    def of(self, edge: np.ndarray, side: int) -> np.ndarray:
        """The same as a mask (N,)."""
        mask = np.zeros(self.n_nodes, dtype=bool)
        mask[self.ends(edge, side)] = True
        return mask


def _scored(
    graph: sparse.csr_array, features: Table | None, nodes: np.ndarray
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """For each of the nodes, its place and its scores with all nodes, some rows at a time."""
    n_nodes = graph.shape[0]
    at_once = max(1, ROWS_BYTES // (8 * max(n_nodes, 1)))
    for start in range(0, len(nodes), at_once):
        rows = nodes[start : start + at_once]
        tables = [resource_allocation(graph, rows), pagerank(graph, rows)]
        if features is not None:
            tables.append(cosine(features, rows))
        for offset in range(len(rows)):
            # float32, so that ties do not depend on how sums were rounded
            yield start + offset, [table[offset].astype(np.float32) for table in tables]


def _best(scores: list[np.ndarray], is_known: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
    """The n nodes with the best of their ranks; where fewer have a score, those and others drawn evenly."""
    is_reached = np.any([one > 0 for one in scores], axis=0) & ~is_known
    missing = n - int(is_reached.sum())
    if missing >= 0:
        others = random.choice(np.flatnonzero(~is_reached & ~is_known), missing, replace=False)
        return np.concatenate([np.flatnonzero(is_reached), others])
    candidates = np.flatnonzero(~is_known)
    ranks = np.min([score_ranks(one, is_known) for one in scores], axis=0)[candidates]
    return candidates[np.lexsort((random.random(len(candidates)), ranks))[:n]]


def _uniform(known: np.ndarray, n_nodes: int, n: int, random: np.random.Generator) -> np.ndarray:
    """n different nodes that are not known; of many nodes by drawing again, so that the others need no list."""
    known = np.unique(known)
    if n_nodes < 4 * (n + len(known)):
        return random.choice(np.setdiff1d(np.arange(n_nodes), known), n, replace=False)
    chosen = np.zeros(0, dtype=np.int64)
    while len(chosen) < n:
        more = np.concatenate([chosen, random.integers(n_nodes, size=2 * n)])
        _, first = np.unique(more, return_index=True)
        different = more[np.sort(first)]  # in the order of the draws
        chosen = different[~np.isin(different, known)][:n]
    return chosen
