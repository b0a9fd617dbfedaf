"""What every model of links promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from topshelf.config import LinksConfig, make_config
from topshelf.data.graphs import LinkData, simple_edges, split_edges
from topshelf.data.hard_negatives import uniform_negatives
from topshelf.data.ids import IdMap
from topshelf.graphs import LinkGraph
from topshelf.models.link_base import LinkModel
from topshelf.models.links import LINK_MODELS
from topshelf.training import fit

N_BLOCKS, BLOCK = 4, 12


def planted_links(*, is_directed: bool = False, has_features: bool = True, seed: int = 0) -> LinkData:
    """Blocks of nodes with edges inside of them and hardly any between; one node has no edge."""
    random = np.random.default_rng(seed)
    n_nodes = N_BLOCKS * BLOCK + 1
    first = random.integers(n_nodes - 1, size=1200)
    second = np.where(
        random.random(1200) < 0.97,
        first // BLOCK * BLOCK + random.integers(BLOCK, size=1200),
        random.integers(n_nodes - 1, size=1200),
    )
    edges, _ = simple_edges(np.column_stack([first, second])[:600], n_nodes, is_directed=is_directed)
    features = None
    if has_features:
        block = np.minimum(np.arange(n_nodes) // BLOCK, N_BLOCKS - 1)
        features = (np.eye(N_BLOCKS)[block] + random.normal(0, 0.3, (n_nodes, N_BLOCKS))).astype(np.float32)
    parts = split_edges(edges, valid=0.1, test=0.1, seed=seed)
    data = LinkData("planted", IdMap.range(n_nodes), parts, features, is_directed)
    negatives = {part: uniform_negatives(data, part, n=20, seed=seed) for part in ("valid", "test")}
    return LinkData("planted", IdMap.range(n_nodes), parts, features, is_directed, negatives).check()


class LinkModelContract:
    """Inherit it and name the model::

        class TestMyModel(topshelf.testing.LinkModelContract):
            model = MyLinkModel

    settings  of the model, such as {"dim": 16}; its defaults are tested when left out
    train     settings of the training, such as {"learning_rate": 0.01}
    losses    those that it is trained with
    least     the MRR on planted blocks that it must reach; a coin has about 0.17
    """

    model: type[LinkModel]
    settings: Mapping[str, Any] = {}
    train: Mapping[str, Any] = {"learning_rate": 0.01}
    losses: tuple[str, ...] = ("slatk", "bce")
    least: float = 0.3

    def config(self, loss: str | None = None, **train: Any) -> LinksConfig:
        names = {one: name for name, one in LINK_MODELS.items()}
        name = names.get(self.model, f"{self.model.__module__}:{self.model.__qualname__}")
        settings = {"epochs": 20, "batch_size": 64, "patience": 0, **self.train, **train}
        config = make_config(
            {
                "task": "links",
                "k": 5,
                "data": {"source": "planted"},
                "model": {"name": name, **self.settings},
                "loss": {"name": loss or self.losses[0]},
                "train": settings,
                "evaluate": {"n_negatives": 20},
            }
        )
        assert isinstance(config, LinksConfig)
        return config

    def built(self, data: LinkData, seed: int = 0) -> LinkModel:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = dict(
            zip(self.model.sizes, (data.n_nodes, data.n_features, data.is_directed), strict=True)
        )
        model = self.model(**sizes, **self.settings)
        graph = data.graph()
        model.fit(graph) if model.is_closed_form else model.attach(graph)
        return model.eval()

    @pytest.mark.parametrize("is_directed", [False, True])
    @pytest.mark.parametrize("has_features", [False, True])
    def test_scores_are_finite_and_have_the_shape_of_the_pairs(self, is_directed: bool, has_features: bool) -> None:
        data = planted_links(is_directed=is_directed, has_features=has_features)
        model, graph = self.built(data), data.graph()
        pairs = torch.from_numpy(data.negatives["test"])
        scores = model.score(model.encode_nodes(graph), pairs, graph)
        assert scores.shape == pairs.shape[:-1]
        assert scores.dtype == torch.float32
        assert bool(scores.isfinite().all())

    def test_an_undirected_score_does_not_depend_on_the_order_of_the_ends(self) -> None:
        data = planted_links()
        model, graph = self.built(data), data.graph()
        nodes, pairs = model.encode_nodes(graph), torch.from_numpy(data.edges["train"])
        torch.testing.assert_close(model.score(nodes, pairs, graph), model.score(nodes, pairs.flip(1), graph))

    @pytest.mark.parametrize("is_directed", [False, True])
    def test_scores_with_many_others_are_those_of_the_pairs(self, is_directed: bool) -> None:
        data = planted_links(is_directed=is_directed)
        model, graph = self.built(data), data.graph()
        nodes = model.encode_nodes(graph)
        kept, others = torch.tensor([3, 0, 48]), torch.tensor([5, 48, 1, 20])
        for side in (0, 1):
            ends = torch.stack([kept[:, None].expand(3, 4), others[None].expand(3, 4)][:: 1 - 2 * side], dim=-1)
            found = model.score_others(nodes, kept, others, graph, side=side)
            torch.testing.assert_close(found, model.score(nodes, ends, graph), rtol=1e-4, atol=1e-5)

    def test_a_score_depends_on_the_graph_that_is_given_and_not_on_the_attached_one(self) -> None:
        data = planted_links()
        model, less = self.built(data), data.graph().without(torch.arange(100))
        pairs = torch.from_numpy(data.edges["valid"])
        before = model.score(model.encode_nodes(less), pairs, less)
        model.attach(less)
        torch.testing.assert_close(before, model.score(model.encode_nodes(less), pairs, less), rtol=0, atol=0)

    def test_a_graph_without_edges_is_encoded(self) -> None:
        data = planted_links()
        empty = LinkGraph.of(torch.zeros(0, 2, dtype=torch.int64), data.n_nodes, features=data.graph().features)
        model = self.built(data)
        scores = model.score(model.encode_nodes(empty), torch.tensor([[0, 1], [2, 3]]), empty)
        assert bool(scores.isfinite().all())

    def test_evaluation_mode_is_deterministic(self) -> None:
        data = planted_links()
        model, graph = self.built(data), data.graph()
        assert torch.equal(model.encode_nodes(graph), model.encode_nodes(graph))

    @pytest.mark.parametrize("place", [0, 1])
    def test_it_finds_planted_blocks(self, place: int) -> None:
        data = planted_links()
        if place and self.model.is_closed_form:
            pytest.skip("it is fitted in closed form")
        fitted = fit(self.config(self.losses[place % len(self.losses)]), data)
        assert fitted.test.mean()["mrr"] > self.least

    def test_the_same_seed_gives_the_same_model(self) -> None:
        data = planted_links()
        states = [fit(self.config(epochs=2), data).model.state_dict() for _ in range(2)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
