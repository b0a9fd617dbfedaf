"""Item-item models that count common users: item-kNN and RP3beta."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import scipy.sparse

from topshelf.errors import at_least, at_most, one_of
from topshelf.models.item_item import SparseItemItem, strongest
from topshelf.registry import SearchSpace

Weighting = Literal["none", "tfidf"]


class ItemKNN(SparseItemItem):
    r"""Items by the similarity of their users: the shrunk cosine of the k nearest.

    .. math:: s_{uj} = \sum_{i \in u \cap N_k(j)} c_{ij}, \quad
        c_{ij} = \frac{a_i^\top a_j}{\lVert a_i \rVert^{2p} \lVert a_j \rVert^{2(1 - p)} + h}, \quad
        a_{ui} = x_{ui} w_u

    Settings: ``k`` neighbours per item, N_k(j); ``shrink`` h, which lowers similarities from few common users;
        ``asymmetry`` p, 0.5 for the cosine, more to favour popular items; ``weighting`` w_u, "none" for 1, "tfidf" for
        :math:`\log(I / |u|)`, so that users with many items count less (what BM25 adds to it cancels in the cosine) and
        ``shrink`` counts less for larger catalogues; ``memory``, the maximum bytes of the weights.
    Use when: lists must be explained ("because you have"), or a quick baseline is needed.
    Cost: the counts of common users, a block of items at a time; k weights per item, scored as a dense table of
        n_items^2 up to 8,192 items, else as lists; refused above ``memory`` bytes.
    Paper: Sarwar et al., Item-based collaborative filtering recommendation algorithms, WWW 2001; asymmetry of Aiolli,
        Efficient top-N recommendation for very large scale binary rated datasets, RecSys 2013. Ranges within those of
        Ferrari Dacrema et al., A troubling analysis of reproducibility and progress in recommender systems research,
        TOIS 2021.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.k": (5, 10, 20, 50, 100, 200, 500, 1000),
        "model.shrink": (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
        "model.asymmetry": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        "model.weighting": ("none", "tfidf"),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        k: int = 100,
        shrink: float = 30.0,
        asymmetry: float = 0.7,
        weighting: Weighting = "none",
        memory: float = 8e9,
    ) -> None:
        super().__init__(n_queries, n_items, memory, most=k)
        self.k = at_least("k", k, 1)
        self.shrink = at_least("shrink", shrink, 0.0)
        self.asymmetry = at_most("asymmetry", at_least("asymmetry", asymmetry, 0.0), 1.0)
        self.weighting = one_of("weighting", weighting, ("none", "tfidf"))

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        weighted = histories
        if self.weighting == "tfidf":
            lengths = np.maximum(np.diff(histories.indptr), 1)
            weighted = scipy.sparse.csr_array(scipy.sparse.diags_array(np.log(self.n_items / lengths)) @ histories)
        by_item = scipy.sparse.csr_array(weighted.T)
        squares = weighted.power(2).sum(axis=0)
        had, scored = squares**self.asymmetry, squares ** (1 - self.asymmetry)

        def similarities(rows: slice) -> np.ndarray:
            common = (by_item[rows] @ weighted).toarray()
            scale = np.outer(scored[rows], had) + self.shrink
            return np.divide(common, scale, out=common, where=scale > 0)

        return strongest(similarities, self.n_items, self.k)


class RP3beta(SparseItemItem):
    r"""A random walk of three steps, user to item to user to item, that discounts popular items at its end.

    .. math:: s_{uj} = \sum_{i \in u} W_{ij}, \quad
        W_{ij} = \frac{1}{|j|^\beta} \sum_v \frac{x_{vi} x_{vj}}{|i|^\alpha |v|^\alpha}

    Settings: ``alpha``, the power of each step's probability; ``beta``, the power of the popularity to divide by;
        ``k``, the number of weights kept per item i; ``memory``, the maximum bytes of the weights.
    Use when: a strong baseline is needed quickly, and rare items should be recommended too.
    Cost: the counts of common users, a block of items at a time; k weights per item, scored as a dense table of
        n_items^2 up to 8,192 items, else as lists; refused above ``memory`` bytes.
    Paper: Paudel et al., Updatable, accurate, diverse, and scalable recommendations for interactive applications, TiiS
        2017; alpha of Cooper et al., Random walks in recommender systems, WWW 2014. Ranges within those of Ferrari
        Dacrema et al., A troubling analysis of reproducibility and progress in recommender systems research, TOIS 2021.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.k": (5, 10, 20, 50, 100, 200, 500, 1000),
        "model.alpha": (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0),
        "model.beta": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        alpha: float = 0.5,
        beta: float = 0.4,
        k: int = 200,
        memory: float = 8e9,
    ) -> None:
        super().__init__(n_queries, n_items, memory, most=k)
        self.alpha = at_least("alpha", alpha, 0.0)
        self.beta = at_least("beta", beta, 0.0)
        self.k = at_least("k", k, 1)

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        popularity = np.maximum(histories.sum(axis=0), 1.0)  # at least 1: no walk uses items without users
        lengths = np.maximum(histories.sum(axis=1), 1.0)
        out = scipy.sparse.csr_array(histories.T)
        back = scipy.sparse.csr_array(histories * lengths[:, None] ** -self.alpha * popularity**-self.beta)

        def walks(rows: slice) -> np.ndarray:
            return (out[rows] @ back).toarray() * popularity[rows, None] ** -self.alpha

        return scipy.sparse.csr_array(strongest(walks, self.n_items, self.k).T)
