"""Why the first K places need a loss of their own: two rankings of the same items, on which NDCG and NDCG@K disagree.

The paper's figure 1a shows such a pair without its numbers. This one is found by a rule: of all pairs of rankings in
which the first has the better NDCG and the worse NDCG@K, the pair whose smaller difference is the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch

from topshelf import charts
from topshelf.bench.tables import Grid
from topshelf.metrics import ndcg_at_k

ITEMS, RELEVANT, K = 10, 4, 5


@dataclass(frozen=True)
class Ranking:
    """The places of the relevant items, from 1, and what the metrics say of them."""

    places: tuple[int, ...]
    ndcg: float
    ndcg_at_k: float


def inconsistent(n_items: int = ITEMS, n_relevant: int = RELEVANT, k: int = K) -> tuple[Ranking, Ranking]:
    """The pair: the first ranking has the better NDCG and the worse NDCG@K; the first pair of several as clear."""
    chosen = torch.tensor(list(combinations(range(n_items), n_relevant)))  # (R, n_relevant)
    gains = torch.zeros(len(chosen), n_items).scatter_(1, chosen, 1.0)
    all_relevant = torch.full((len(chosen),), n_relevant)
    whole, top = ndcg_at_k(gains, all_relevant), ndcg_at_k(gains[:, :k], all_relevant)
    margin = torch.minimum(whole[:, None] - whole, top - top[:, None])  # (R, R), of the first against the second
    first, second = (
        Ranking(tuple((chosen[at] + 1).tolist()), float(whole[at]), float(top[at]))
        for at in divmod(int(margin.argmax()), len(chosen))
    )
    return first, second


def inconsistency_grid() -> Grid:
    rows = [
        (f"Ranking {at}", ", ".join(map(str, one.places)), f"{one.ndcg:.4f}", f"{one.ndcg_at_k:.4f}")
        for at, one in enumerate(inconsistent(), start=1)
    ]
    title = f"Figure 1a: two rankings of {ITEMS} items, {RELEVANT} of them relevant; the NDCGs disagree"
    return Grid(title, ("", "places of the relevant items", "NDCG", f"NDCG@{K}"), tuple(rows))


def inconsistency_caption() -> str:
    first, second = inconsistent()
    return (
        f"Figure 1a. Two rankings of the same {ITEMS} items; filled circles are relevant. Ranking 1 (places "
        f"{', '.join(map(str, first.places))}) has the better NDCG, {first.ndcg:.3f} against {second.ndcg:.3f}, and "
        f"the worse NDCG@{K}, {first.ndcg_at_k:.3f} against {second.ndcg_at_k:.3f}; Ranking 2 has places "
        f"{', '.join(map(str, second.places))}."
    )


def draw_inconsistency() -> bytes:
    """Two rows of circles, filled where relevant, with both metrics beside them."""
    drawing, (axes,) = charts.figure(7.2, 1.9)
    pair = inconsistent()
    for row, one in enumerate(pair):
        other = pair[1 - row]
        for place in range(1, ITEMS + 1):
            is_relevant = place in one.places
            face, ink = (charts.BLUE, "white") if is_relevant else ("white", "#555555")
            axes.plot(place, row, "o", markersize=19, markerfacecolor=face, markeredgecolor="#333333")
            axes.text(place, row, str(place), color=ink, ha="center", va="center_baseline", fontsize=9)
        axes.text(0.3, row, f"Ranking {row + 1}", ha="right", va="center", fontsize=10)
        numbers = ((1.6, one.ndcg, other.ndcg), (3.2, one.ndcg_at_k, other.ndcg_at_k))
        for right, value, against in numbers:
            weight = "bold" if value > against else "normal"
            axes.text(ITEMS + right, row, f"{value:.3f}", ha="center", va="center", fontsize=10, fontweight=weight)
    for right, name in ((1.6, "NDCG"), (3.2, f"NDCG@{K}")):
        axes.text(ITEMS + right, -0.75, name, ha="center", va="center", fontsize=10)
    axes.axvline(K + 0.5, color="#333333", linestyle="--", linewidth=1, ymin=0.02, ymax=0.86)
    axes.text((K + 1) / 2, -0.75, f"top {K}", ha="center", va="center", fontsize=10)
    axes.set(xlim=(-1.6, ITEMS + 4), ylim=(1.6, -1.1))
    axes.axis("off")
    return charts.render(drawing, title=inconsistency_caption())
