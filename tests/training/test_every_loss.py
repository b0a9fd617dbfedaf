"""Every loss of the registry trains a model on data whose right answer is known."""

from __future__ import annotations

import polars as pl
import pytest
import torch

from topshelf.config import assemble
from topshelf.data import Dataset, Interactions, make_split
from topshelf.losses import LOSSES
from topshelf.training import fit
from vectors import vectors_of

N_BLOCKS, USERS, ITEMS = 4, 12, 10
LEAST = torch.tensor(-1e9)


@pytest.fixture(scope="module")
def blocks():
    """Users of a block have seven of its ten items; the other three are what they should get."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        (f"u{block}-{user}", f"i{block}-{int(item)}")
        for block in range(N_BLOCKS)
        for user in range(USERS)
        for item in torch.randperm(ITEMS, generator=generator)[:7]
    ]
    return Dataset(
        "blocks", make_split(Interactions.from_frame(pl.DataFrame(rows, ["user", "item"], orient="row")), seed=0)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_it_finds_the_blocks(name, blocks):
    # Rates that suit a handful of users; the shipped ones are for real data.
    more = {
        "train": {"epochs": 40, "batch_size": 16, "order": "query", "learning_rate": 0.05, "patience": 0},
        "evaluate": {"auc": False},
        "model": {"dim": 8},
    }
    if name == "gbce":  # more of them outweigh the positive for longer than this test lasts
        more["negatives"] = {"n": 4}
    fitted = fit(assemble(loss=name, k=3, more=more), blocks, quiet=True)
    split = blocks.split
    with torch.no_grad():
        queries, items = vectors_of(fitted.model)
    scores = (queries @ items.T).index_put((split.train.ragged().owner(), split.train.ragged().indices), LEAST)
    block_of = [torch.tensor([int(name[1]) for name in ids.values]) for ids in (split.users, split.items)]
    found = block_of[1][scores.topk(3).indices]
    assert (found == block_of[0].unsqueeze(1)).float().mean() > 0.6  # by chance 0.14
