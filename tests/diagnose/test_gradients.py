"""How evenly a loss spreads its gradient, against one backward pass for every positive."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from topshelf.diagnose.gradients import binned_concentration, concentration, gradients
from topshelf.diagnose.sample import Sample
from topshelf.losses import BPR, SLatK, SoftmaxLoss
from topshelf.losses.base import Extras
from topshelf.losses.lambda_loss import LambdaLossAtK
from topshelf.losses.song import SONGAtK
from topshelf.ragged import ragged_from_pairs

N_USERS, N_ITEMS, DIM = 7, 23, 4


def data(unit: bool):
    generator = torch.Generator().manual_seed(3)
    chosen = torch.rand(N_USERS, N_ITEMS, generator=generator) < 0.2
    chosen[0] = False  # nothing to rank
    chosen[1] = True  # nothing but positives
    chosen[2:, 5] = True
    positives = ragged_from_pairs(*chosen.nonzero().unbind(1), N_USERS)
    queries, items = (torch.randn(n, DIM, generator=generator, dtype=torch.float64) for n in (N_USERS, N_ITEMS))
    if unit:
        queries, items = (torch.nn.functional.normalize(x, dim=1) for x in (queries, items))
    return positives, queries, items, Sample.draw(positives, N_ITEMS, 100, generator)


def make(name, n_positives):
    loss = {
        "softmax": lambda: SoftmaxLoss(tau=0.3),
        "bpr": BPR,
        "slatk": lambda: SLatK(N_USERS, k=3, tau=0.3, tau_weight=0.5),
        "slatk with hits": lambda: SLatK(N_USERS, k=6, tau=0.3, tau_weight=0.5, keep_hits=True),
        "lambdaloss_at_k": lambda: LambdaLossAtK(k=3),
        "song_at_k": lambda: SONGAtK(N_USERS, k=3, n_items=N_ITEMS, n_positives=n_positives),
    }[name]()
    for table in loss.state_dict().values():
        table.copy_(torch.linspace(0.1, 2.0, table.numel()))
    return loss


def slow(loss, positives, queries, items, unit, effective_n):
    """Norms by positive and by user, and the sizes by pair: a loop over positives, in the ragged form."""
    by_positive, by_user, by_pair = [], [], []
    for user in range(2, N_USERS):
        mine = positives.select(torch.tensor([user])).indices
        begin = int(positives.indptr[user])
        total = torch.zeros(DIM, dtype=torch.float64)
        for turn in range(mine.numel()):
            vector = queries[user].clone().requires_grad_()
            scores = (items @ vector).unsqueeze(0)
            mask = torch.zeros(1, N_ITEMS, dtype=torch.bool)
            mask[0, mine] = True
            extras = Extras(
                query=torch.tensor([user]),
                mask=mask,
                log_q=torch.tensor([np.log(N_ITEMS / effective_n)]),
                pair=torch.arange(begin, begin + mine.numel()),
            )
            positive = torch.stack([(items[i] * vector).sum() for i in mine])
            value = loss.each(positive, scores, torch.zeros_like(mine), extras)[turn]
            to_vector, to_scores = torch.autograd.grad(value, (vector, scores))
            if unit:
                to_vector = to_vector - (to_vector @ vector) * vector
            by_positive.append(to_vector.norm().item())
            by_pair += to_scores[~mask].abs().tolist()
            total += to_vector.detach()
        by_user.append(total.norm().item())
    return by_positive, by_user, by_pair


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("name", ["softmax", "bpr", "slatk", "slatk with hits", "lambdaloss_at_k", "song_at_k"])
def test_every_instance_has_the_gradient_of_its_own_term(name, unit, monkeypatch):
    monkeypatch.setattr("topshelf.diagnose.gradients._CELLS", 8 * N_ITEMS)  # several blocks, users cut nowhere
    positives, queries, items, sample = data(unit)
    loss = make(name, positives.indices.numel()).eval()
    expected = slow(loss, positives, queries, items, unit, 10)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    found = gradients(loss.train(), queries, items, sample, label=name, effective_n=10)
    for kind, sizes in zip((found.by_positive, found.by_user), expected[:2], strict=True):
        wanted = concentration(np.array(sizes))
        assert kind.n == wanted.n
        assert kind.curve == pytest.approx(wanted.curve, rel=1e-5)
        assert kind.decades == pytest.approx(wanted.decades, abs=1e-5)
    pairs = concentration(np.array(expected[2]))
    assert found.by_pair.n == pairs.n
    assert found.by_pair.top["20%"] == pytest.approx(pairs.top["20%"], abs=0.02)  # counted in bins
    assert loss.training
    assert all((loss.state_dict()[key] == value).all() for key, value in before.items())


def test_the_concentration_of_a_known_vector():
    found = concentration(np.array([1.0] * 10 + [0.0] * 9 + [90.0]))
    assert found.n == 20
    assert found.top == pytest.approx({"1%": 0.9, "5%": 0.9, "20%": 0.93})
    assert found.zero_share == pytest.approx(0.45)
    assert found.decades == pytest.approx(np.log10(90))
    assert found.curve[0] == 0.0
    assert found.curve[10] == pytest.approx(0.9)  # 5% of twenty is one
    assert found.curve[-1] == pytest.approx(1.0)
    assert sum(found.log10_shares) == pytest.approx(0.55)


def test_equal_sizes_hold_equal_shares_and_nothing_holds_nothing():
    even = concentration(np.full(200, 3.0))
    assert even.top == pytest.approx({"1%": 0.01, "5%": 0.05, "20%": 0.2})
    assert even.decades == 0.0
    nothing = concentration(np.zeros(5))
    assert set(nothing.top.values()) == {0.0}
    assert nothing.zero_share == 1.0


def test_bins_give_the_same_shares_as_the_sizes_themselves():
    sizes = np.sort(np.random.default_rng(0).lognormal(0, 2, 5000))
    groups = np.array_split(sizes, 400)
    binned = binned_concentration(np.array([len(g) for g in groups]), np.array([g.sum() for g in groups]))
    assert binned.top == pytest.approx(concentration(sizes).top, abs=0.01)


def test_a_sample_leaves_out_who_has_nothing_to_rank_and_its_blocks_hold_whole_users():
    positives, _, _, sample = data(True)
    assert sample.rows.tolist() == [2, 3, 4, 5, 6]
    assert sample.n_eligible == 5
    assert sample.pair().tolist() == list(range(int(positives.indptr[2]), int(positives.indptr[-1])))
    blocks = list(sample.blocks(6 * N_ITEMS))
    assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
    assert blocks[-1][1] == 5
    for start, stop in blocks:
        assert stop == start + 1 or sample.part(start, stop).positives.indices.numel() <= 6
