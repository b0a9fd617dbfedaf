"""The sample of users, and blocks of them that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from topshelf.ragged import Ragged

# A measurement visits positives x items cells; 5e8 of them take some seconds per loss.
MOST_CELLS = 500_000_000
LEAST_USERS = 50
SAMPLE, DRAWS = 11, 12  # branches of the seed's random streams, beside the trainer's
_BLOCK_CELLS = 2**22  # scores of one block


@dataclass(frozen=True)
class Sample:
    """Some users with all their training positives."""

    rows: Tensor  # (U,), index of each user
    positives: Ragged  # U lists
    begin: Tensor  # (U,), where each user's positives begin among all training positives
    n_items: int
    n_eligible: int  # users with at least one positive and one negative: the sample is drawn from them

    @classmethod
    def draw(cls, positives: Ragged, n_items: int, n_users: int, generator: torch.Generator) -> Sample:
        """At most ``n_users`` of the users with positives and negatives; fewer for large catalogues."""
        counts = positives.counts.cpu()
        eligible = ((counts > 0) & (counts < n_items)).nonzero().squeeze(1)
        chosen = eligible[torch.randperm(eligible.numel(), generator=generator)[:n_users]]
        affordable = int((counts[chosen].cumsum(0) * n_items <= MOST_CELLS).sum())
        chosen = chosen[: max(LEAST_USERS, affordable)].sort().values.to(positives.indptr.device)
        return cls(chosen, positives.select(chosen), positives.indptr[chosen], n_items, eligible.numel())

    @property
    def owner(self) -> Tensor:
        """Which of the U users each positive belongs to, (P,)."""
        return self.positives.owner()

    @property
    def place(self) -> Tensor:
        """Each positive's place among those of its user, (P,)."""
        owner = self.owner
        return torch.arange(owner.numel(), device=owner.device) - self.positives.indptr[:-1][owner]

    def pair(self) -> Tensor:
        """The index of each positive among all training positives, (P,)."""
        return self.begin[self.owner] + self.place

    def part(self, start: int, stop: int) -> Sample:
        """The users ``start`` to ``stop``."""
        lists = self.positives.slice(start, stop)
        return Sample(self.rows[start:stop], lists, self.begin[start:stop], self.n_items, self.n_eligible)

    def blocks(self, cells: int) -> Iterator[tuple[int, int]]:
        """Ranges of whole users with at most ``cells`` positives x items, or of one user."""
        load = self.positives.indptr.tolist()
        start = 0
        for stop in range(1, len(load)):
            if stop == len(load) - 1 or (load[stop + 1] - load[start]) * self.n_items > cells:
                yield start, stop
                start = stop

    def scored(self, queries: Tensor, items: Tensor) -> Iterator[tuple[Ragged, Tensor]]:
        """Blocks of users: their positives, and their scores over the whole catalogue (B, I)."""
        size = max(1, _BLOCK_CELLS // self.n_items)
        for start in range(0, self.rows.numel(), size):
            stop = min(start + size, self.rows.numel())
            yield self.positives.slice(start, stop), queries[self.rows[start:stop]] @ items.T
