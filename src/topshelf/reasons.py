"""Why an item is in a list: which items of the user speak for it.

For a model that scores histories, an owned item speaks for another one by the score that it alone would give it. For
item-item models, whose scores are sums over the history, that is its exact share. For other models it is the cosine of
the two items' vectors, which says what is near, not what the model used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.artifact import Artifact
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged

_BLOCK = 1 << 26  # numbers in the vectors of the owned items at once


@torch.no_grad()
def reasons(artifact: Artifact, owned: Ragged, items: Tensor, n: int) -> Tensor:
    """The ``n`` owned items per query and listed item that speak most for it, best first; -1 where fewer do.

    Shapes: owned: Q lists of items; items (Q, k), -1 where a list is shorter; returns (Q, k, n).
    """
    found = torch.full((*items.shape, n), -1)
    vectors = artifact.vectors
    rows_at_once = max(1, _BLOCK // vectors.size(1))
    for row in range(items.size(0)):
        own = owned.indices[int(owned.indptr[row]) : int(owned.indptr[row + 1])]
        listed = items[row].clamp(min=0)
        if not own.numel() or not listed.numel():
            continue
        wanted = vectors[listed]
        parts = [_spoken(artifact, some, wanted) for some in own.split(rows_at_once)]
        scores = torch.cat(parts).T.masked_fill(own == listed.unsqueeze(1), -torch.inf)  # (k, owned)
        best, places = scores.sort(dim=1, descending=True, stable=True)
        m = min(n, own.numel())
        speaks = (best[:, :m] > 0) & (items[row] >= 0).unsqueeze(1)
        found[row, :, :m] = torch.where(speaks, own[places[:, :m]], -1)
    return found


def _spoken(artifact: Artifact, own: Tensor, wanted: Tensor) -> Tensor:
    """How much each owned item speaks for each wanted one, (owned, wanted)."""
    if "history" in artifact.model.kinds:
        alone = QuerySet(history=Ragged(torch.arange(own.numel() + 1), own))
        encoded = artifact.encode(alone)[torch.arange(own.numel())]
        return (encoded.to_dense() if encoded.layout != torch.strided else encoded) @ wanted.T
    return F.normalize(artifact.vectors[own], dim=1) @ F.normalize(wanted, dim=1).T
