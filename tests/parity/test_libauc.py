"""SONG and SONG@K beside LibAUC 2.0.1 (``libauc.losses.NDCGLoss``, its authors' own), checked with torch 2.13.0.

Run in an environment of its own, ``pip install --no-deps libauc==2.0.1`` beside the development extra:
``python -m pytest -m parity tests/parity/test_libauc.py``. LibAUC's loss takes a table of P positives and N negatives
for each of B queries. What differs, and how the settings are mapped so that the gradients are equal:

- its smooth rank is |I| times the mean over the row's positives *and* negatives; ours adds up the positives and scales
  the negatives alone. Over the whole catalogue, P + N = |I|, both are the sum over all items;
- it starts the averages at 0, ours take the first estimate whole: ours are set to 0 first;
- it weighs a query by (number of its positives) / (positives sampled) / (ideal DCG): all are set so that this is one;
- it takes the mean over queries of sums over positives, we over positives: our gradients are divided by B;
- its value is another number with the same gradient, so gradients are compared, never values;
- its weight is σ(α (s - λ)); α = 1 is our form "paper", and twice α = 2 our form "original";
- it smooths the indicator in its quantile regression (τ_1), pulls thresholds to 0 (τ_2) and averages their gradients
  (γ_1): τ_1 is made small, τ_2 0 and γ_1 1. Its "theo" version adds a Hessian term that the SL@K paper leaves out;
  "prac" is compared.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from topshelf.losses.song import SONG, SONGAtK

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # of the other library
]

B, P, N, GAMMA = 5, 4, 12, 0.3
N_ITEMS = P + N
OWNER = torch.arange(B).repeat_interleave(P)
QUERY = torch.tensor([2, 0, 6, 1, 4])
PAIR = torch.arange(B * (P + N)).reshape(B, P + N)
POSITIVES = PAIR[:, :P].reshape(-1)


def libauc(**settings):
    losses = pytest.importorskip("libauc.losses")
    return losses.NDCGLoss(N=B * (P + N), num_user=7, num_pos=P, gamma0=GAMMA, **settings)


def their_gradient(loss, scores):
    scores = scores.clone().requires_grad_()
    batch = {
        "rating": torch.cat([torch.ones(B, P), torch.zeros(B, N)], 1),
        "user_id": QUERY,
        "num_pos_items": torch.full((B,), float(P)),
        "ideal_dcg": torch.ones(B),
        "user_item_id": PAIR,
    }
    loss(scores, batch).backward()
    return scores.grad


def our_gradient(loss, scores, **extras):
    scores = scores.clone().requires_grad_()
    loss(scores[:, :P].reshape(-1), scores[:, P:], OWNER, pair=POSITIVES, **extras).backward()
    return scores.grad / B


def steps():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, B, P + N, generator=generator)


def test_gradients_of_song_are_those_of_libauc_step_after_step():
    theirs = libauc(num_item=N_ITEMS, topk=-1)
    ours = SONG(n_positives=B * (P + N), n_items=N_ITEMS, gamma=GAMMA, reduction="sum")
    ours.g.zero_()
    for scores in steps():
        expected, found = their_gradient(theirs, scores), our_gradient(ours, scores)
        assert_close(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("form", "alpha", "factor"), [("paper", 1.0, 1.0), ("original", 2.0, 2.0)])
def test_gradients_of_song_at_k_are_those_of_libauc(form, alpha, factor):
    theirs = libauc(num_item=N_ITEMS, topk=5, topk_version="prac", sigmoid_alpha=alpha)
    ours = SONGAtK(n_queries=7, n_positives=B * (P + N), n_items=N_ITEMS, k=5, gamma=GAMMA, form=form, reduction="sum")
    ours.g.zero_()
    for level, scores in zip(torch.linspace(-1, 1, 4), steps(), strict=True):
        with torch.no_grad():
            theirs.lambda_q.fill_(level)
            ours.threshold.fill_(level)
        expected, found = their_gradient(theirs, scores), our_gradient(ours, scores, query=QUERY)
        assert_close(found, factor * expected, rtol=1e-4, atol=1e-7)


def test_thresholds_move_as_those_of_libauc():
    """Theirs counts a sample's positives as often as its negatives; over the whole catalogue that is right."""
    settings = {"topk": 5, "topk_version": "prac", "eta0": 0.2, "gamma1": 1.0, "tau_1": 1e-5, "tau_2": 0.0}
    theirs = libauc(num_item=N_ITEMS, **settings)
    ours = SONGAtK(n_queries=7, n_positives=B * (P + N), n_items=N_ITEMS, k=5, eta=0.2)
    for scores in steps():
        their_gradient(theirs, scores)
        ours(scores[:, :P].reshape(-1), scores[:, P:], OWNER, query=QUERY, pair=POSITIVES)
        assert_close(ours.threshold[QUERY], theirs.lambda_q[QUERY], rtol=1e-4, atol=1e-5)
    assert (ours.threshold[QUERY] != 0).all()
