"""SciPy and NumPy matrices as cells of known values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from topshelf.data.columns import LARGEST_RATING
from topshelf.data.memory import available, size
from topshelf.errors import DataError


class Cells(NamedTuple):
    """The interactions in a matrix, and how many of its cells are unknown."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]
    n_unknown: int


def cells_of(matrix: Any) -> Cells:
    """The cells that are neither zero nor unknown, checked."""
    table = _coordinates(matrix)
    is_unknown = np.isnan(table.data) if table.data.dtype.kind == "f" else np.zeros(table.data.shape, dtype=bool)
    kept = (table.data != 0) & ~is_unknown
    if not kept.any():
        raise DataError(f"matrix must hold at least one interaction, got none in shape {table.shape}.")
    rows, cols, values = table.coords[0][kept], table.coords[1][kept], table.data[kept]
    beyond = np.abs(values.astype(np.float64)) > LARGEST_RATING
    if beyond.any():
        place = int(beyond.argmax())
        raise DataError(
            f"matrix must hold finite numbers up to {LARGEST_RATING:.3g}, got {values[place]} in row "
            f"{rows[place]}, column {cols[place]}. Put NaN where a value is unknown."
        )
    if 8 * sum(table.shape) > (free := available()):
        raise DataError(f"matrix of shape {table.shape} has more ids than fit into memory ({size(free)} are free).")
    return Cells(rows, cols, values, table.shape, int(is_unknown.sum()))


def _coordinates(matrix: Any) -> sparse.coo_array:
    """A matrix of real numbers; its indices are checked before compiled code follows them."""
    try:
        if sparse.issparse(matrix):
            if hasattr(matrix, "check_format"):
                matrix.check_format(full_check=True)
        else:
            hidden = np.ma.getmaskarray(matrix) if np.ma.isMaskedArray(matrix) else None
            matrix = np.asarray(matrix) if hidden is None else np.where(hidden, 0, np.asarray(matrix))
        if matrix.ndim != 2:
            raise DataError(f"matrix must have 2 dimensions (users, items), got {matrix.ndim}.")
        if matrix.dtype.kind not in "biuf":
            raise DataError(f"matrix must hold real numbers, got {matrix.dtype}.")
        return sparse.coo_array(matrix)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise DataError(f"matrix cannot be read: {error}. It must hold numbers, users by items.") from error
