"""iALS beside implicit 0.7.3, from the same first vectors.

Run by ``pytest -m parity tests/parity/test_implicit.py`` where implicit is installed. implicit weighs observed cells by
1 + a, takes 1 as their target and adds a constant penalty b: our ``alpha`` = 1 / a, ``l2`` = b / (1 + a), ``scaling``
= 0, and its vectors are sqrt((1 + a) / a) times ours. It solves queries, then items, and leaves the queries there.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.testing import assert_close

from topshelf.models import IALS
from topshelf.ragged import ragged_from_pairs
from vectors import fit_to

pytestmark = pytest.mark.parity
als = pytest.importorskip("implicit.cpu.als")

N_QUERIES, N_ITEMS, DIM = 200, 80, 8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # implicit's advice about the threads of OpenBLAS
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.1), (10.0, 3.0), (40.0, 0.5)])
def test_items_are_those_of_implicit_but_for_a_length(a, b):
    matrix = np.random.default_rng(0).random((N_QUERIES, N_ITEMS)) < 0.1
    rows, items = (torch.from_numpy(x) for x in matrix.nonzero())
    torch.manual_seed(0)
    ours = IALS(N_QUERIES, N_ITEMS, dim=DIM, alpha=1 / a, l2=b / (1 + a), scaling=0.0, iterations=5)
    first = torch.randn(N_ITEMS, DIM, generator=torch.Generator().manual_seed(ours._seed)) * 0.1 / DIM**0.5
    fit_to(ours, ragged_from_pairs(rows, items, N_QUERIES))

    length = ((1 + a) / a) ** 0.5
    theirs = als.AlternatingLeastSquares(
        factors=DIM, regularization=b, alpha=1.0, iterations=5, use_cg=False, num_threads=1, dtype=np.float64
    )
    theirs.item_factors = first.double().numpy() * length
    theirs.user_factors = np.zeros((N_QUERIES, DIM))
    theirs.fit(scipy.sparse.csr_matrix(matrix * (1 + a)), show_progress=False)
    assert_close(ours.item_vectors.double() * length, torch.from_numpy(theirs.item_factors), rtol=1e-3, atol=1e-4)
