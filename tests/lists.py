"""Lists of items, one a user, as the library holds them."""

from __future__ import annotations

import torch

from topshelf.ragged import Ragged, ragged_from_pairs


def ragged(*lists: list[int]) -> Ragged:
    pairs = [(row, item) for row, some in enumerate(lists) for item in some]
    return ragged_from_pairs(*torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T, len(lists))
