"""The objective against the loss of scores computed one by one."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch.testing import assert_close

from topshelf.catalogue import CatalogueBlocks, Workspace
from topshelf.config import make_config
from topshelf.data import Dataset, generate, make_split
from topshelf.errors import ConfigError
from topshelf.losses import BPR, LOSSES, DirectAU, SLatK, SoftmaxLoss
from topshelf.models import MF
from topshelf.negatives import NEGATIVES, Catalogue, InBatch, PerQuery, Shared
from topshelf.queries import Context
from topshelf.ragged import ragged_from_pairs
from topshelf.training import fit
from topshelf.training import heads as heads_module
from topshelf.training.batches import Batches, stream
from topshelf.training.build import build_model, build_objective, resolve
from topshelf.training.heads import AutogradHead, PairHead, PartitionHead
from topshelf.training.objective import CatalogueObjective
from vectors import vectors_of

N_QUERIES, N_ITEMS = 8, 13
ORDERS = pytest.mark.parametrize("order", ["query", "pair"])


@pytest.fixture
def positives():
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=torch.Generator().manual_seed(1)) < 0.3
    taken[:, 0] = True  # nobody without positives
    taken[torch.arange(N_ITEMS) % N_QUERIES, torch.arange(N_ITEMS)] = True  # and no item that nobody has
    rows, items = taken.nonzero().T
    return ragged_from_pairs(rows, items, N_QUERIES)


@pytest.fixture
def model():
    torch.manual_seed(2)
    return MF(N_QUERIES, N_ITEMS, dim=4, init="normal").double()


def a_batch(positives, order="query", size=5, repeat=False):
    return next(Batches(positives, N_ITEMS, order=order, size=size, repeat_queries=repeat).epoch(stream(0)))


def objective_of(model, loss, negatives, positives, **more):
    return CatalogueObjective(model, loss, negatives, Context(positives, N_ITEMS), **more)


def slatk(**settings):
    loss = SLatK(N_QUERIES, k=3, tau=0.3, tau_weight=0.8, **settings).double()
    loss.threshold.copy_(torch.linspace(-0.5, 0.5, N_QUERIES))
    return loss


def table(model):
    queries, items = vectors_of(model)
    return (queries @ items.T).tolist()


def rivals(positives, query):
    bounds = positives.indptr.tolist()
    own = positives.indices[bounds[query] : bounds[query + 1]].tolist()
    return [item for item in range(N_ITEMS) if item not in own]


def slow_softmax(scores, positives, query, item, tau, effective_n):
    """log sum exp over all items that are not positives, less log(|I| / N)."""
    total = sum(math.exp((scores[query][j] - scores[query][item]) / tau) for j in rivals(positives, query))
    return math.log(total) - math.log(N_ITEMS / effective_n)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def pairs(batch):
    return list(zip(batch.query[batch.owner].tolist(), batch.item.tolist(), strict=True))


@ORDERS
@pytest.mark.parametrize("effective_n", [None, 1, 50])
def test_softmax_over_the_catalogue_is_scaled_to_the_effective_size(model, positives, order, effective_n):
    objective = objective_of(model, SoftmaxLoss(tau=0.3), Catalogue(), positives, effective_n=effective_n)
    batch, scores = a_batch(positives, order), table(model)
    n = effective_n or SoftmaxLoss.defaults.effective_n
    each = [slow_softmax(scores, positives, query, item, 0.3, n) for query, item in pairs(batch)]
    assert objective(batch, stream(0))[0].item() == pytest.approx(sum(each) / len(each))


@ORDERS
def test_slatk_over_the_catalogue_weighs_the_scaled_softmax(model, positives, order):
    loss = slatk()
    batch, scores, beta = a_batch(positives, order), table(model), loss.threshold.tolist()
    each = [
        sigmoid((scores[query][item] - beta[query]) / 0.8) * slow_softmax(scores, positives, query, item, 0.3, 1000)
        for query, item in pairs(batch)
    ]
    found = objective_of(model, loss, Catalogue(), positives)(batch, stream(0))[0]
    assert found.item() == pytest.approx(sum(each) / len(each))


def gradients(objective, batch):
    value, _ = objective(batch, stream(0))
    return value, torch.autograd.grad(value, list(objective.model.parameters()))


@pytest.mark.parametrize("make", [lambda: SoftmaxLoss(tau=0.3), slatk, lambda: slatk(distance="sigmoid"), BPR])
def test_a_shared_draw_of_everything_is_the_catalogue(model, positives, make):
    batch, loss = a_batch(positives), make()
    exact = gradients(objective_of(model, loss, Catalogue(), positives, effective_n=20), batch)
    shared = gradients(objective_of(model, loss, Shared(N_ITEMS + 5), positives, effective_n=20), batch)
    assert_close(shared, exact)


def test_a_shared_draw_is_as_large_as_drawn_unless_an_effective_size_is_given(model, positives):
    batch, loss = a_batch(positives), SoftmaxLoss(tau=0.3)
    plain = objective_of(model, loss, Shared(6), positives)(batch, stream(0))[0]
    scaled = objective_of(model, loss, Shared(6), positives, effective_n=60)(batch, stream(0))[0]
    # A query whose drawn items are all positives costs nothing either way.
    objective = objective_of(model, loss, Shared(6), positives)
    draw = objective.negatives.draw(batch, model.encode_batch(batch), stream(0))
    with_rivals = (~draw.mask(6)).any(1)[batch.owner].double().mean()
    assert_close(scaled - plain, math.log(10) * with_rivals)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", NEGATIVES)
@ORDERS
def test_every_source_of_negatives_moves_both_tables(model, positives, name, kind, order):
    sizes = {"n_queries": N_QUERIES, "n_items": N_ITEMS, "n_positives": positives.indices.numel()}
    taken = inspect.signature(LOSSES[name].__init__).parameters
    loss = LOSSES[name](**{key: size for key, size in sizes.items() if key in taken}).double()
    objective = objective_of(model, loss, NEGATIVES[kind](), positives, effective_n=100)
    batch = a_batch(positives, order, size=8, repeat=objective.negatives.layout == "own")
    value, (to_queries, to_items) = gradients(objective, batch)
    assert value.isfinite()
    for gradient in (to_queries, to_items):
        assert gradient.isfinite().all()
    moved = to_queries.abs().sum(1) > 0
    assert set(moved.nonzero().squeeze(1).tolist()) == set(batch.query.tolist())
    assert (to_items.abs().sum(1) > 0).sum() > 5


def test_slatk_with_the_sigmoid_distance_takes_the_dense_way_and_follows_its_formula(model, positives):
    loss = slatk(distance="sigmoid")
    assert "log_partition" not in loss.needs
    batch, scores, beta = a_batch(positives), table(model), loss.threshold.tolist()
    each = []
    for query, item in pairs(batch):
        total = sum(sigmoid((scores[query][j] - scores[query][item]) / 0.3) for j in rivals(positives, query))
        weight = sigmoid((scores[query][item] - beta[query]) / 0.8)
        each.append(weight * (math.log(total) - math.log(N_ITEMS / 30)))
    found = objective_of(model, loss, Catalogue(), positives, effective_n=30)(batch, stream(0))[0]
    assert found.item() == pytest.approx(sum(each) / len(each))


def test_bpr_over_the_catalogue_is_the_mean_over_all_negatives(model, positives):
    batch, scores = a_batch(positives), table(model)
    each = []
    for query, item in pairs(batch):
        costs = [math.log1p(math.exp(scores[query][j] - scores[query][item])) for j in rivals(positives, query)]
        each.append(sum(costs) / len(costs))
    found = objective_of(model, BPR(), Catalogue(), positives)(batch, stream(0))[0]
    assert found.item() == pytest.approx(sum(each) / len(each))


def test_negatives_of_its_own_are_looked_at_by_each_pair(model, positives):
    objective = objective_of(model, SoftmaxLoss(tau=0.3), PerQuery(4), positives)
    batch, scores = a_batch(positives, "pair", size=7, repeat=True), table(model)
    drawn = objective.negatives.draw(batch, model.encode_batch(batch), stream(0)).items.tolist()
    each = [
        math.log(sum(math.exp((scores[query][j] - scores[query][item]) / 0.3) for j in items))
        for (query, item), items in zip(pairs(batch), drawn, strict=True)
    ]
    assert objective(batch, stream(0))[0].item() == pytest.approx(sum(each) / len(each))
    assert objective.negatives.layout == "own"


def test_in_batch_negatives_of_a_batch_of_everything_are_the_catalogue(model, positives):
    """All items that anybody has were certain to be there, so nothing is corrected."""
    batch = a_batch(positives, size=N_QUERIES)
    assert set(batch.item.tolist()) == set(range(N_ITEMS))
    exact = gradients(objective_of(model, slatk(), Catalogue(), positives), batch)
    in_batch = gradients(objective_of(model, slatk(), InBatch(), positives), batch)
    assert_close(in_batch, exact)


@pytest.mark.parametrize("kind", ["catalogue", "shared", "in_batch"])
def test_the_way_without_scores_agrees_with_the_dense_way(model, positives, kind):
    batch, loss = a_batch(positives), slatk()
    objective = objective_of(model, loss, NEGATIVES[kind](), positives, effective_n=40)
    short = gradients(objective, batch)
    loss.needs = ("query",)
    assert_close(gradients(objective, batch), short, rtol=1e-6, atol=1e-7)  # log_q is float32


def test_a_small_workspace_changes_nothing(model, positives):
    batch = a_batch(positives)
    whole = gradients(objective_of(model, slatk(), Catalogue(), positives), batch)
    tiled = gradients(objective_of(model, slatk(), Catalogue(), positives, workspace=Workspace(5 * 8 * 3)), batch)
    assert_close(tiled, whole)


def test_what_was_scored_is_handed_on_without_its_graph(model, positives):
    batch = a_batch(positives)
    _, scored = objective_of(model, BPR(), Catalogue(), positives)(batch, stream(0))
    assert not any(tensor.requires_grad for tensor in (scored.queries, scored.items))
    assert scored.auxiliary is None
    everything = table(model)
    assert_close((scored.queries @ scored.items.T).tolist(), [everything[query] for query in batch.query.tolist()])


def test_a_loss_of_every_pair_refuses_a_batch_that_would_not_fit(monkeypatch):
    monkeypatch.setattr(heads_module, "DENSE_BYTES", 100)
    with pytest.raises(ConfigError, match=r"every positive with every negative, .* smaller negatives\.n"):
        fit(
            make_config(
                {"k": 3, "loss": {"name": "bpr"}, "negatives": {"kind": "shared", "n": 20}, "train": {"epochs": 1}}
            ),
            Dataset("generated", make_split(generate(20, 30, interactions_per_user=5))),
        )


@pytest.mark.parametrize("order", ["query", "pair"])
@pytest.mark.parametrize("loss", [{"name": "softmax"}, {"name": "slatk"}])
def test_blocks_give_the_same_loss_and_gradients_as_one_piece(order, loss):
    split = make_split(generate(80, 50, interactions_per_user=8, seed=1), seed=0)
    config = resolve(make_config({"k": 5, "loss": loss}))
    torch.manual_seed(0)
    model, positives = build_model(config, 80, 50), split.train.ragged()
    objective = build_objective(config, model, Context(positives, model.n_items))
    objective.head.blocks = CatalogueBlocks(7 * 64 * 4)  # blocks of seven queries
    if loss["name"] == "slatk":
        objective.loss.threshold.uniform_(-0.2, 0.2)
    batch = next(Batches(positives, 50, order=order, size=60).epoch(stream(0)))
    value, _ = objective(batch, stream(1))
    value.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    number, _ = objective.backward(batch, stream(1))
    assert isinstance(objective.head, PartitionHead)
    assert number == pytest.approx(value.item(), rel=1e-6)
    assert_close([parameter.grad for parameter in model.parameters()], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("order", ["query", "pair"])
@pytest.mark.parametrize("budget", [1, 20_000, 2**20])
@pytest.mark.parametrize("loss", [{"name": "bpr"}, {"name": "slatk", "distance": "sigmoid"}])
def test_every_pair_by_blocks_gives_the_same_loss_and_gradients_as_one_piece(order, budget, loss):
    split = make_split(generate(80, 50, interactions_per_user=8, seed=1), seed=0)
    config = resolve(make_config({"k": 5, "loss": loss, "negatives": {"kind": "catalogue"}}))
    torch.manual_seed(0)
    model, positives = build_model(config, 80, 50), split.train.ragged()
    objective = build_objective(config, model, Context(positives, model.n_items))
    batch = next(Batches(positives, 50, order=order, size=60).epoch(stream(0)))
    value, _ = objective(batch, stream(1))
    value.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    objective.head.workspace = Workspace(budget)
    n, n_queries = len(objective.head.affordable(batch, 50)), batch.query.numel()
    assert {1: n == n_queries, 20_000: 1 < n < n_queries, 2**20: n == 1}[budget]
    number, _ = objective.backward(batch, stream(1))
    assert isinstance(objective.head, PairHead)
    assert number == pytest.approx(value.item(), rel=1e-5)
    assert_close([parameter.grad for parameter in model.parameters()], expected, rtol=1e-4, atol=1e-7)


@ORDERS
@pytest.mark.parametrize("kind", ["catalogue", "per_query", "shared"])
@pytest.mark.parametrize("name", [name for name, cls in LOSSES.items() if "negative" in cls.needs])
def test_every_loss_of_pairs_is_the_same_a_few_queries_at_a_time(name, kind, order, monkeypatch):
    if order == "pair" and "whole_queries" in LOSSES[name].needs:
        order = "query"  # which a run insists on
    split = make_split(generate(40, 30, interactions_per_user=6, seed=1), seed=0)
    n = {} if kind == "catalogue" else {"n": 10}
    config = resolve(make_config({"k": 5, "loss": {"name": name}, "negatives": {"kind": kind, **n}}))
    found = []
    for cells in (2**20, 100):
        monkeypatch.setattr(heads_module, "PAIR_CELLS", cells)
        torch.manual_seed(0)
        model, positives = build_model(config, 40, 30), split.train.ragged()
        objective = build_objective(config, model, Context(positives, model.n_items))
        repeat = objective.negatives.layout == "own"
        batch = next(Batches(positives, 30, order=order, size=30, repeat_queries=repeat).epoch(stream(0)))
        number, _ = objective.backward(batch, stream(1))
        assert isinstance(objective.head, PairHead)
        parameters = [*model.parameters(), *objective.loss.parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        found.append((torch.tensor(number), gradients, objective.loss.state_dict()))
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-7)


def test_a_sample_larger_than_the_catalogue_is_the_catalogue(model, positives):
    batch = a_batch(positives)
    for loss in (SoftmaxLoss(), LOSSES["gbce"](N_ITEMS)):
        small, large = (
            objective_of(model, loss, Shared(n), positives, effective_n=n if loss.defaults.effective_n else None)(
                batch, stream(0)
            )[0]
            for n in (N_ITEMS, 50 * N_ITEMS)
        )
        assert_close(small, large)


def test_sampled_softmax_over_the_catalogue_is_the_cross_entropy(model, positives):
    batch = a_batch(positives)
    queries, items = vectors_of(model, batch.query)
    logits = queries @ items.T / 0.2
    rows = logits[batch.owner].clone()
    others = batch.positives.select(batch.owner)
    rows[others.owner(), others.indices] = -math.inf  # other positives are no rivals
    own = logits[batch.owner, batch.item]
    rows[torch.arange(own.numel()), batch.item] = own
    found = objective_of(model, LOSSES["sampled_softmax"](tau=0.2), Catalogue(), positives)(batch, stream(0))[0]
    assert_close(found, (rows.logsumexp(1) - own).mean())


def test_a_loss_that_is_not_a_mean_is_refused(model, positives):
    with pytest.raises(ConfigError, match="reduction must be 'mean', got 'sum'"):
        objective_of(model, BPR(reduction="sum"), Catalogue(), positives)


@pytest.mark.parametrize("estimator", ["exact", "incremental"])
def test_the_memory_of_a_step_changes_neither_thresholds_nor_loss(estimator):
    split = make_split(generate(80, 50, interactions_per_user=8, seed=1), seed=0)
    config, found = resolve(make_config({"k": 5, "threshold": {"estimator": estimator, "every": 1}})), []
    for budget in (2**20, 3 * 64 * 4):
        torch.manual_seed(0)
        model, positives = build_model(config, 80, 50), split.train.ragged()
        objective = build_objective(config, model, Context(positives, model.n_items))
        objective.head.blocks = CatalogueBlocks(budget)
        objective.hooks[0].begin_epoch(1, model, stream(2))
        batch = next(Batches(positives, 50, order="query", size=60).epoch(stream(0)))
        number, _ = objective.backward(batch, stream(1))
        found.append((torch.tensor(number), objective.loss.threshold))
    assert found[0][1].any()
    assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_gradients_of_two_steps_add_up(score):
    split = make_split(generate(40, 50, interactions_per_user=8, seed=1), seed=0)
    config = resolve(make_config({"k": 5, "model": {"score": score}}))
    torch.manual_seed(0)
    model, positives = build_model(config, 40, 50), split.train.ragged()
    model.sparse_rows = True
    objective = build_objective(config, model, Context(positives, model.n_items))
    batches, parts = list(Batches(positives, 50, order="query", size=20).epoch(stream(0))), []
    for batch in batches:
        model.zero_grad()
        objective.backward(batch, stream(1))
        parts.append([parameter.grad.to_dense().clone() for parameter in model.parameters()])
    model.zero_grad()
    for batch in batches:
        objective.backward(batch, stream(1))
    together = [parameter.grad.to_dense() for parameter in model.parameters()]
    assert_close(together, [a + b for a, b in zip(*parts, strict=True)])


def test_half_width_products_are_for_losses_by_blocks_and_processors_that_have_them(monkeypatch):
    split = make_split(generate(20, 30, interactions_per_user=5))
    config = resolve(make_config({"k": 3, "loss": {"name": "bpr"}, "train": {"precision": "bfloat16"}}))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    with pytest.raises(ConfigError, match="is for losses of the softmax family over the whole catalogue"):
        build_objective(config, build_model(config, 20, 30), Context(split.train.ragged(), 30))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match="needs a processor with bfloat16 products"):
        build_objective(config, build_model(config, 20, 30), Context(split.train.ragged(), 30))


class WithLossOfItsOwn(MF):
    """MF that also wants short vectors of the batch's queries and positives."""

    def encode_batch(self, batch):
        of_queries = 0.3 * (self.query_vectors[batch.query] ** 2).sum()
        of_items = (self.item_vectors[batch.item] ** 2).sum()
        return super().encode_batch(batch)._replace(auxiliary=of_queries + of_items)


@ORDERS
@pytest.mark.parametrize(
    ("make", "negatives", "head"),
    [
        (slatk, Catalogue(), PartitionHead),
        (BPR, Catalogue(), PairHead),
        (BPR, PerQuery(3), PairHead),
        (slatk, Shared(6), AutogradHead),
        (DirectAU, Catalogue(), AutogradHead),
    ],
)
def test_a_models_own_loss_is_added_to_the_loss_and_to_its_gradients(positives, order, make, negatives, head):
    torch.manual_seed(2)
    found = []
    for cls in (MF, WithLossOfItsOwn):
        torch.manual_seed(2)
        model = cls(N_QUERIES, N_ITEMS, dim=4, init="normal").double()
        objective = objective_of(model, make(), negatives, positives, effective_n=20)
        assert type(objective.head) is head
        batch = a_batch(positives, order, repeat=objective.negatives.layout == "own")
        number, _ = objective.backward(batch, stream(0))
        value, _ = objective(batch, stream(0))
        assert number == pytest.approx(value.item())
        found.append((number, [parameter.grad for parameter in model.parameters()]))
    own = 0.3 * (model.query_vectors[batch.query] ** 2).sum() + (model.item_vectors[batch.item] ** 2).sum()
    assert found[1][0] == pytest.approx(found[0][0] + own.item())
    expected = [
        plain + more for plain, more in zip(found[0][1], torch.autograd.grad(own, model.parameters()), strict=True)
    ]
    assert_close(found[1][1], expected)


def test_the_model_is_given_the_positives_before_the_first_step(positives):
    attached = []
    model = MF(N_QUERIES, N_ITEMS, dim=4)
    model.attach = attached.append
    objective_of(model, BPR(), Catalogue(), positives)
    assert [context.histories for context in attached] == [positives]
    assert attached[0].n_items == N_ITEMS


def test_vectors_that_do_not_fit_together_are_refused_with_the_name_of_the_class():
    class Narrow(MF):
        def encode_items(self):
            return super().encode_items()[:, :3]

    positives = ragged_from_pairs(torch.arange(4), torch.arange(4), 4)
    objective = CatalogueObjective(Narrow(4, 6, dim=8), SoftmaxLoss(), Catalogue(), Context(positives, 6))
    batch = next(iter(Batches(positives, 6, order="query", size=4).epoch(torch.Generator())))
    with pytest.raises(ConfigError, match=r"Narrow must encode 4 queries and 6 items .* got \(4, 8\) and \(6, 3\)"):
        objective.backward(batch, torch.Generator())
