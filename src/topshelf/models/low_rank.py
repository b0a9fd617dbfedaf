"""EASE's weights after a few histories have changed: the inverse of the Gram matrix is corrected, not made again."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from topshelf.models.item_item import history_matrix
from topshelf.queries import Context
from topshelf.ragged import Ragged

# A correction of rank r costs about 2 r n^2 operations, and an inverse n^3: from n / 8 on there is nothing to gain.
_MOST_RANK = 1 / 8
_TOLERANCE = 1e-3  # of the inverse's columns, beside 1; weights are kept in float32
_CHECKED = 16  # columns
_ROWS = 1 << 12  # histories at once


def updated_weights(old: Tensor, histories: Ragged, context: Context, l2: float) -> Tensor | None:
    r"""EASE's weights (n, n) for the histories of ``context`` from its ``old`` weights for ``histories``.

    .. math:: P' = P - P U (S + U^\top P U)^{-1} U^\top P

    with a column of U and a sign in S for each changed history, as it was (-1) and as it is (+1). The diagonal of P,
    which weights do not keep, follows from :math:`(X^\top X + \lambda I) P = I`. New items have the row
    :math:`I / \lambda` before the correction. None if too many histories have changed, or if the result is not exact
    enough, which is tested on some columns.
    """
    n_items = context.n_items
    was = history_matrix(histories, n_items)
    was.resize((len(context.histories), n_items))
    now = history_matrix(context.histories, n_items)
    changed = np.flatnonzero(abs(now - was).sum(axis=1))
    columns = scipy.sparse.vstack([now[changed], was[changed]]).tocsr()
    signs = np.repeat([1.0, -1.0], len(changed))
    some = np.diff(columns.indptr) > 0
    columns, signs = columns[some], signs[some]
    if columns.shape[0] > _MOST_RANK * n_items:
        return None
    inverse = _grown(_inverse(old, was[:, : old.size(0)], l2), n_items, l2)
    if columns.shape[0]:
        beside = torch.from_numpy(columns @ inverse.numpy())  # (r, n): U'P
        system = torch.from_numpy(columns @ beside.numpy().T) + torch.diag(torch.from_numpy(signs))
        inverse -= beside.T @ torch.linalg.solve(system, beside)
    if not _is_inverse(inverse, now, l2):
        return None
    diagonal = inverse.diagonal().clone()
    weights = inverse.div_(-diagonal)
    return weights.fill_diagonal_(0.0)


def _inverse(weights: Tensor, histories: scipy.sparse.csr_array, l2: float) -> Tensor:
    """P (n, n) of the weights -P_ij / P_jj and of the histories that they were fitted on."""
    table = weights.double().numpy()
    explained = np.zeros(table.shape[0])
    for start in range(0, histories.shape[0], _ROWS):
        block = histories[start : start + _ROWS]
        explained += block.multiply(block @ table).sum(axis=0)
    diagonal = 1.0 / (histories.sum(axis=0) + l2 - explained)
    inverse = -table * diagonal
    np.fill_diagonal(inverse, diagonal)
    return torch.from_numpy((inverse + inverse.T) / 2)  # rounded weights are not symmetric to the last digit


def _grown(inverse: Tensor, n_items: int, l2: float) -> Tensor:
    grown = torch.zeros(n_items, n_items, dtype=inverse.dtype)
    grown.diagonal().fill_(1.0 / l2)
    grown[: inverse.size(0), : inverse.size(0)] = inverse
    return grown


def _is_inverse(inverse: Tensor, histories: scipy.sparse.csr_array, l2: float) -> bool:
    places = np.linspace(0, inverse.size(0) - 1, min(_CHECKED, inverse.size(0))).astype(np.int64)
    columns = inverse[:, torch.from_numpy(places)].numpy()
    product = histories.T @ (histories @ columns) + l2 * columns
    product[places, np.arange(len(places))] -= 1.0
    return bool(np.isfinite(product).all() and np.abs(product).max() <= _TOLERANCE)
