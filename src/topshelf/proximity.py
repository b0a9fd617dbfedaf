"""How near two nodes of a graph are, by its edges alone: resource allocation, personalised PageRank, Katz.

All take the symmetric matrix of ones of :func:`adjacency` and some rows, and return the scores of these with all nodes.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

ALPHA = 0.15  # the share of walks that end at each step, as published with HeaRT
EPSILON = 1e-7  # as published for Cora and Citeseer


def adjacency(edges: np.ndarray, n_nodes: int) -> sparse.csr_array:
    """The symmetric matrix of ones, (N, N) float64, whatever the direction of the edges."""
    ends = np.concatenate([edges, edges[:, ::-1]])
    matrix = sparse.csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n_nodes, n_nodes))
    matrix.data[:] = 1.0
    return matrix


def resource_allocation(matrix: sparse.csr_array, rows: np.ndarray) -> np.ndarray:
    r"""The sum of 1 / degree over common neighbours, of ``rows`` (R,) with all nodes, (R, N)."""
    degree = np.maximum(matrix.sum(0), 1.0)
    weighted = sparse.csr_array(matrix[rows] @ sparse.diags_array(1 / degree))
    return (weighted @ matrix).toarray()


def pagerank(
    matrix: sparse.csr_array, rows: np.ndarray, *, alpha: float = ALPHA, epsilon: float = EPSILON
) -> np.ndarray:
    """Personalised PageRank of ``rows`` (R,) over all nodes, (R, N), by pushing what is left until it is small.

    A walk ends with probability ``alpha`` at each step. What is left at a node is below ``alpha * epsilon`` times its
    degree, as in Andersen et al. (2006); nodes that no push reaches have exactly 0.
    """
    degree = matrix.sum(1)
    step = sparse.csr_array(matrix.T @ sparse.diags_array((1 - alpha) / np.maximum(degree, 1.0)))
    least = (alpha * epsilon * degree)[:, None]
    # Columns are the sources: a sparse matrix times a dense one is quickest so.
    found, left = np.zeros((matrix.shape[0], len(rows))), np.zeros((matrix.shape[0], len(rows)))
    left[rows, np.arange(len(rows))] = alpha
    while True:
        pushed = left * (left >= least)
        if not pushed.any():
            return found.T
        found += pushed
        left -= pushed
        left += step @ pushed


def katz(matrix: sparse.csr_array, rows: np.ndarray, *, beta: float, length: int) -> np.ndarray:
    r"""The number of walks from ``rows`` (R,) to all nodes, each of length l counted :math:`\beta^l`, (R, N)."""
    walks = matrix[rows].toarray().T * beta  # columns are the sources
    total = walks.copy()
    for _ in range(length - 1):
        walks = (matrix.T @ walks) * beta
        total += walks
    return total.T
