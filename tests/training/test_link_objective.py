"""What a step of links minimises, against the formula written out."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf import thresholds
from topshelf.errors import ConfigError
from topshelf.losses import BCE, LOSSES, SLatK, SoftmaxLoss
from topshelf.models.links import GCN, NCN
from topshelf.testing.links import planted_links
from topshelf.training.batches import stream
from topshelf.training.link_batches import LINK_NEGATIVES, LinkBatches, LinkNegatives
from topshelf.training.link_build import link_sizes
from topshelf.training.link_objective import LinkObjective, LinkThresholds


@pytest.fixture(params=[False, True])
def graph(request):
    return planted_links(is_directed=request.param).graph()


def model_of(graph, score="dot", cls=GCN, **settings):
    torch.manual_seed(0)
    more = {} if cls is NCN else {"score": score}
    return cls(graph.n_nodes, 4, graph.is_directed, dim=8, dropout=0.0, **more, **settings)


def made_loss(name, graph, **settings):
    cls = LOSSES[name]
    wanted = inspect.signature(cls.__init__).parameters
    given = {key: size for key, size in {**link_sizes(graph), "k": 5}.items() if key in wanted}
    return cls(**given, **settings)


def objective_of(graph, loss, *, kind="per_node", n=6, anchor="both", score="dot", owner=None, model=None, **more):
    model = model_of(graph, score) if model is None else model
    batches = LinkBatches(graph, size=16, anchor=anchor)
    return LinkObjective(model, loss, graph, batches, LinkNegatives(kind, n), owner=owner, **more)


def first_batch(objective):
    return next(iter(objective.batches.epoch(stream(0, 0, 1))))


@pytest.mark.parametrize("anchor", ["both", "random", "source"])
def test_an_epoch_has_every_edge_once_with_the_ends_that_ask(graph, anchor):
    batches = LinkBatches(graph, size=16, anchor=anchor)
    seen = list(batches.epoch(stream(0, 0, 1)))
    assert len(seen) == len(batches)
    assert sorted(torch.cat([batch.edge for batch in seen]).tolist()) == list(range(len(graph.edges)))
    for batch in seen:
        rows = batch.edge.repeat(2) if anchor == "both" else batch.edge
        assert torch.equal(batch.pairs, graph.edges[rows])
        assert torch.equal(batch.pair, 2 * rows + batch.side)
        ends = torch.stack([batch.kept, batch.other], 1)
        assert torch.equal(torch.where(batch.side[:, None] == 0, ends, ends.flip(1)), batch.pairs)
        slots = batch.kept + batch.side * graph.n_nodes * graph.is_directed
        assert torch.equal(batch.query, slots)
    again = list(batches.epoch(stream(0, 0, 1)))
    assert all(torch.equal(one.pairs, two.pairs) for one, two in zip(seen, again, strict=True))


def test_a_step_does_not_see_its_own_edges(graph, monkeypatch):
    objective = objective_of(graph, BCE(), kind="pairs", n=1)
    seen = []
    encode = objective.model.encode_nodes
    monkeypatch.setattr(objective.model, "encode_nodes", lambda given: seen.append(given) or encode(given))
    batch = first_batch(objective)
    objective.backward(batch, stream(0, 1, 1, 0))
    left = seen[0]
    assert len(left.edges) == len(graph.edges) - batch.edge.numel()
    taken = {tuple(edge) for edge in graph.edges[batch.edge].tolist()}
    assert not taken & {tuple(edge) for edge in left.edges.tolist()}
    if not graph.is_directed:
        a, b = graph.edges[batch.edge[0]].tolist()
        assert b not in left.sets.slice(a, a + 1).indices.tolist()
        assert a not in left.sets.slice(b, b + 1).indices.tolist()


@pytest.mark.parametrize("kind", LINK_NEGATIVES)
def test_negatives_that_count_are_no_known_edges(graph, kind):
    objective = objective_of(graph, SoftmaxLoss(), kind=kind, n=10)
    batch = first_batch(objective)
    nodes = objective.model.encode_nodes(graph)
    draw = objective.negatives.draw(objective.model, nodes, batch, (graph, graph), stream(0, 1, 1, 0))
    assert draw.scores.shape == draw.mask.shape == (batch.query.numel(), 10)
    known = {tuple(edge) for edge in graph.edges.tolist()}
    known |= set() if graph.is_directed else {(b, a) for a, b in known}
    if kind == "pairs":
        return
    for row, node in enumerate(batch.kept.tolist()):
        for other, is_masked in zip(draw.items[row].tolist(), draw.mask[row].tolist(), strict=True):
            pair = (node, other) if batch.side[row] == 0 else (other, node)
            assert is_masked == (pair in known or node == other)
            score = objective.model.score(nodes, torch.tensor([pair]), graph)
            column = draw.items[row].tolist().index(other)
            assert_close(draw.scores[row, column], score[0])


def test_pairs_are_scored_as_drawn_with_no_regard_to_the_query(graph):
    objective = objective_of(graph, BCE(), kind="pairs", n=400)
    batch = first_batch(objective)
    nodes = objective.model.encode_nodes(graph)
    draw = objective.negatives.draw(objective.model, nodes, batch, (graph, graph), stream(0, 1, 1, 0))
    share = draw.mask.float().mean()
    expected = (len(graph.edges) * (2 - graph.is_directed) + graph.n_nodes) / graph.n_nodes**2
    assert abs(share - expected) < 0.02  # uniform over all pairs


def test_hard_negatives_are_the_best_scored_of_the_pool(graph):
    model = model_of(graph).eval()
    nodes = model.encode_nodes(graph)
    batch = next(iter(LinkBatches(graph, size=8).epoch(stream(0, 0, 1))))
    wide = LinkNegatives("per_node", 40).draw(model, nodes, batch, (graph, graph), stream(0, 1, 1, 0))
    hard = LinkNegatives("hard", 5, pool=40).draw(model, nodes, batch, (graph, graph), stream(0, 1, 1, 0))
    expected = wide.scores.masked_fill(wide.mask, -torch.inf).topk(5, dim=1).values
    assert_close(hard.scores, expected)


def test_the_loss_is_that_of_the_scores(graph):
    objective = objective_of(graph, SoftmaxLoss(tau=0.5), kind="shared", n=10**6)
    batch, generator = first_batch(objective), stream(0, 1, 1, 0)
    value = objective(batch, generator)
    left = graph.without(batch.edge)
    nodes = objective.model.encode_nodes(left)
    sources, targets = objective.model.ends(nodes)
    total = 0.0
    for row, (node, other) in enumerate(zip(batch.kept.tolist(), batch.other.tolist(), strict=True)):
        own, others = (sources[node], targets) if batch.side[row] == 0 else (targets[node], sources)
        scores = others @ own
        known = graph.known_mask(torch.tensor([node]), torch.arange(graph.n_nodes), batch.side[row : row + 1])[0]
        total += torch.logsumexp(scores[~known] / 0.5, 0) - scores[other] / 0.5
    assert_close(value, total / batch.query.numel())


def test_bce_with_one_random_pair_is_the_reference(graph):
    objective = objective_of(graph, BCE(), kind="pairs", n=1, score="mlp")
    batch = first_batch(objective)
    value = objective(batch, stream(0, 1, 1, 0))
    left = graph.without(batch.edge)
    nodes = objective.model.encode_nodes(left)
    draw = objective.negatives.draw(objective.model, nodes, batch, (left, graph), stream(0, 1, 1, 0))
    positive = objective.model.score(nodes, batch.pairs, left)
    each = F.softplus(-positive) + F.softplus(draw.scores[:, 0])
    assert_close(value, each.masked_fill(draw.mask[:, 0], 0.0).mean())


def test_effective_n_scales_the_partition_sum(graph):
    plain, scaled = (objective_of(graph, SoftmaxLoss(), effective_n=n) for n in (None, 60))
    batch = first_batch(plain)
    difference = scaled(batch, stream(0, 1, 1, 0)) - plain(batch, stream(0, 1, 1, 0))
    assert_close(difference, torch.tensor(10.0).log())
    with pytest.raises(ConfigError, match="effective_n"):
        objective_of(graph, BCE(), effective_n=5)


@pytest.mark.parametrize("estimator", ["sampled", "weighted", "exact"])
def test_thresholds_of_the_batch_are_those_of_the_formulas(graph, estimator):
    loss = made_loss("slatk", graph)
    owner = LinkThresholds(loss, graph, estimator=estimator)
    objective = objective_of(graph, loss, n=8, owner=owner)
    batch = first_batch(objective)
    left = graph.without(batch.edge)
    nodes = objective.model.encode_nodes(left).detach()
    draw = objective.negatives.draw(objective.model, nodes, batch, (left, graph), stream(0, 1, 1, 0))
    found = owner.of_step(objective.model, nodes, batch, draw, left)
    sources, targets = objective.model.ends(nodes)
    everyone = torch.arange(graph.n_nodes)
    for row, node in enumerate(batch.kept.tolist()):
        side = batch.side[row]
        own, others = (sources[node], targets) if side == 0 else (targets[node], sources)
        scores = others @ own
        known = graph.known_mask(torch.tensor([node]), everyone, side[None])[0] & (everyone != node)
        if estimator == "exact":
            expected = scores[everyone != node].sort(descending=True).values[4]
        elif estimator == "sampled":
            drawn = draw.scores[row][~draw.mask[row]]
            expected = torch.cat([scores[known], drawn]).sort(descending=True).values[:5][-1]
        else:
            expected = thresholds.weighted_thresholds(
                scores[known], draw.scores[row : row + 1], torch.zeros(int(known.sum()), dtype=torch.int64), 5,
                torch.tensor([graph.n_nodes - 1 - int(known.sum())]), mask=draw.mask[row : row + 1],
            )[0]  # fmt: skip
        assert_close(found[row], expected)


def test_all_nodes_as_negatives_give_the_exact_threshold_without_scoring_again(graph):
    loss = made_loss("slatk", graph)
    owners = [LinkThresholds(loss, graph, estimator=one) for one in ("weighted", "exact")]
    objective = objective_of(graph, loss, kind="shared", n=10**6, owner=owners[0])
    batch = first_batch(objective)
    nodes = objective.model.encode_nodes(graph).detach()
    draw = objective.negatives.draw(objective.model, nodes, batch, (graph, graph), stream(0, 1, 1, 0))
    assert draw.is_all
    found = owners[0].of_step(objective.model, nodes, batch, draw, graph)
    assert_close(found, owners[1].of_step(objective.model, nodes, batch, draw._replace(is_all=False), graph))


def test_a_table_of_thresholds_is_written_after_the_steps_of_its_epochs(graph):
    loss = made_loss("slatk", graph)
    owner = LinkThresholds(loss, graph, estimator="exact", scope="table", every=2)
    objective = objective_of(graph, loss, owner=owner)
    batch = first_batch(objective)
    owner.begin_epoch(1)
    before = objective.backward(batch, stream(0, 1, 1, 0)).loss
    assert not loss.threshold.any()  # every second epoch
    owner.begin_epoch(2)
    objective.model.zero_grad()
    assert objective.backward(batch, stream(0, 1, 1, 0)).loss == before  # the loss saw the old table
    written = torch.zeros_like(loss.threshold, dtype=torch.bool)
    written[batch.query] = True
    assert bool((loss.threshold != 0).eq(written).all())


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_that_takes_pairs_trains(name):
    graph = planted_links().graph()
    loss = made_loss(name, graph)
    model = model_of(graph, "cosine")
    owner = LinkThresholds(loss, graph, estimator="weighted") if loss.keeps_thresholds else None
    if "whole_queries" in loss.needs:
        with pytest.raises(ConfigError, match="needs all positives of a query"):
            objective_of(graph, loss, model=model, owner=owner)
        return
    objective = objective_of(graph, loss, model=model, owner=owner)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.01)
    loss.begin_epoch(1)
    for step, batch in enumerate(objective.batches.epoch(stream(0, 0, 1))):
        optimizer.zero_grad()
        assert abs(objective.backward(batch, stream(0, 1, 1, step)).loss) < 1e6
        assert any(bool((p.grad != 0).any()) for p in model.parameters() if p.grad is not None)
        optimizer.step()


@pytest.mark.parametrize("kind", LINK_NEGATIVES)
def test_the_gradient_of_a_step_is_the_same_to_the_last_bit(graph, kind):
    gradients = []
    for _ in range(2):
        objective = objective_of(graph, SoftmaxLoss(), kind=kind, model=model_of(graph, cls=NCN), n=7)
        objective.backward(first_batch(objective), stream(0, 1, 1, 0))
        gradients.append([parameter.grad for parameter in objective.model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_settings_that_do_not_go_together_are_refused(graph):
    with pytest.raises(ConfigError, match=r"negatives.pool is for kind"):
        LinkNegatives("per_node", 5, pool=50)
    with pytest.raises(ConfigError, match=r"negatives.pool must be >= 5"):
        LinkNegatives("hard", 5, pool=4)
    with pytest.raises(ConfigError, match=r"negatives.kind must be one of"):
        LinkNegatives("nearest", 5)
    with pytest.raises(ConfigError, match="reduction must be 'mean'"):
        objective_of(graph, SoftmaxLoss(reduction="sum"))
    with pytest.raises(ConfigError, match="all positives of a query"):
        objective_of(graph, SLatK(graph.n_nodes * 2, keep_hits=True))
