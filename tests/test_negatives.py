"""Where negatives come from, against enumeration and simulation."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from lists import ragged
from topshelf import drawing
from topshelf.drawing import deal_negatives, draw_distinct, draw_negatives, sampled_scores
from topshelf.errors import ConfigError
from topshelf.negatives import (
    NEGATIVES,
    Catalogue,
    InBatch,
    Mixed,
    PerQuery,
    Population,
    Shared,
)
from topshelf.queries import Context, Encoded
from topshelf.ragged import Ragged
from topshelf.testing import NegativesContract
from topshelf.training.batches import Batches
from vectors import batch_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


NOTHING = Encoded(torch.zeros(0, 1), torch.zeros(0, 1))  # vectors, for sources that do not look at them


def draw_of(source, positives, n_items, stream=None):
    """What a source draws for a batch of everybody with all their positives."""
    batch = batch_of(torch.arange(len(positives)), positives.owner(), positives.indices)
    encoded = Encoded(torch.ones(len(positives), 1), torch.ones(n_items, 1))
    return source.attach(Context(positives, n_items)).draw(batch, encoded, stream or generator())


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.sets(st.integers(0, 7), max_size=7), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_a_positive_is_never_drawn(rows, seed):
    drawn = draw_negatives(ragged(*map(sorted, rows)), 20, 8, generator(seed))
    assert drawn.shape == (len(rows), 20)
    for items, row in zip(drawn.tolist(), rows, strict=True):
        assert set(items) <= set(range(8)) - row


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 399), max_size=300), max_size=5), st.integers(0, 40), st.integers(0, 99))
def test_compiled_draws_are_those_of_torch(rows, n, seed):
    positives = ragged(*map(sorted, rows))  # with more than 256 items a list is searched, not passed over
    drawn = draw_negatives(positives, n, 400, generator(seed))
    uniform = torch.rand(len(rows), n, generator=generator(seed), dtype=torch.float64)
    assert torch.equal(drawn, drawing._nth_others(uniform, positives, 400 - positives.counts, 400))


def test_compiled_draws_of_long_lists_are_those_of_torch():
    positives = ragged(list(range(0, 900, 2)), [], list(range(300, 557)))
    drawn = draw_negatives(positives, 200, 1000, generator(3))
    uniform = torch.rand(3, 200, generator=generator(3), dtype=torch.float64)
    assert torch.equal(drawn, drawing._nth_others(uniform, positives, 1000 - positives.counts, 1000))


def test_draws_are_uniform_over_the_items_that_are_not_positives():
    rows = ([0, 1, 5], [9], [], [2, 3, 4, 6, 7, 8])
    drawn = draw_negatives(ragged(*rows), 20_000, 10, generator(1))
    for items, row in zip(drawn, rows, strict=True):
        counts = torch.bincount(items, minlength=10)
        free = [item for item in range(10) if item not in row]
        assert scipy.stats.chisquare(counts[free].numpy()).pvalue > 1e-3


def test_a_single_negative_is_drawn_every_time():
    assert draw_negatives(ragged([0, 1, 3], [1, 2, 3]), 5, 4, generator()).tolist() == [[2] * 5, [0] * 5]


def test_a_query_with_all_items_as_positives_has_no_negative_to_draw():
    with pytest.raises(ConfigError, match="all 3 items as positives"):
        draw_negatives(ragged([0], [0, 1, 2]), 1, 3, generator())


def test_no_query_at_all_draws_nothing():
    assert draw_negatives(ragged(), 3, 4, generator()).shape == (0, 3)


@pytest.mark.parametrize(("n", "n_items"), [(7, 10), (12, 10), (10, 10), (3, 40), (20, 1000), (1, 1)])
def test_distinct_draws_have_no_repeats(n, n_items):
    for seed in range(50):
        drawn = draw_distinct(n, n_items, generator(seed)).tolist()
        assert len(set(drawn)) == len(drawn) == min(n, n_items)
        assert set(drawn) <= set(range(n_items))


@pytest.mark.parametrize("n_items", [9, 30])  # by a permutation, and by the first distinct draws
def test_distinct_draws_are_uniform_in_every_place(n_items):
    drawn = torch.stack([draw_distinct(4, n_items, generator(seed)) for seed in range(6000)])
    for place in range(4):
        assert scipy.stats.chisquare(torch.bincount(drawn[:, place], minlength=n_items)).pvalue > 1e-3
    pairs = torch.bincount(drawn[:, 0] * n_items + drawn[:, 3], minlength=n_items**2).view(n_items, n_items)
    assert (pairs.diagonal() == 0).all()
    assert scipy.stats.chisquare(pairs[~torch.eye(n_items, dtype=torch.bool)]).pvalue > 1e-3


def dealt_to(dealt, row):
    """The negatives of one query, by its columns."""
    lists = dealt.exclude
    hidden = set(lists.indices[lists.indptr[row] : lists.indptr[row + 1]].tolist())
    return [item for column, item in enumerate(dealt.items[: dealt.stop[row]].tolist()) if column not in hidden]


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.sets(st.integers(0, 11), max_size=11), min_size=1, max_size=6),
    n=st.integers(1, 14),
    seed=st.integers(0, 99),
)
def test_every_query_is_dealt_the_first_negatives_of_one_order(rows, n, seed):
    positives = ragged(*map(sorted, rows))
    dealt = deal_negatives(positives, n, 12, generator(seed))
    order = draw_distinct(n + max(map(len, rows)), 12, generator(seed)).tolist()
    for number, row in enumerate(rows):
        wanted = [item for item in order if item not in row][:n]
        assert dealt_to(dealt, number) == wanted
        assert dealt.counts[number] == len(wanted) == min(n, 12 - len(row))
    slow = torch.zeros_like(dealt.counts)
    drawing._count_taken(dealt.exclude, n, slow)
    assert torch.equal(dealt.stop - dealt.counts, slow.clamp(max=len(order)))


def test_dealt_negatives_are_uniform_over_each_query_s_own():
    rows = ([0, 1, 5], [9], [], [2, 3, 4, 6, 7, 8])
    counts = torch.zeros(4, 10)
    for seed in range(6000):
        dealt = deal_negatives(ragged(*rows), 2, 10, generator(seed))
        for row in range(4):
            counts[row, dealt_to(dealt, row)] += 1
    for row, own in enumerate(rows):
        free = [item for item in range(10) if item not in own]
        assert counts[row].sum() == 12_000
        assert counts[row, own].sum() == 0
        assert scipy.stats.chisquare(counts[row, free]).pvalue > 1e-3


def test_nobody_is_dealt_nothing():
    dealt = deal_negatives(ragged(), 3, 4, generator())
    assert (dealt.items.numel(), dealt.counts.numel()) == (0, 0)


def test_the_whole_catalogue_excludes_exactly_the_positives():
    positives = ragged([0, 2], [], [3])
    draw = draw_of(Catalogue(), positives, 4)
    assert draw.items is None
    assert draw.is_shared
    assert draw.mask(4).tolist() == [[True, False, True, False], [False] * 4, [False, False, False, True]]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_shared_draw_has_no_repeats_and_excludes_exactly_the_drawn_positives(n, seed):
    rows = ([0, 4, 7], [], [1, 2, 3, 4])
    positives = ragged(*rows)
    draw = draw_of(Shared(n), positives, 9, generator(seed))
    items = draw.items.tolist()
    assert len(items) == len(set(items)) == min(n, 9)
    assert draw.is_shared
    assert draw.log_q is None
    assert draw.mask(len(items)).tolist() == [[item in row for item in items] for row in rows]


def test_a_shared_draw_is_uniform():
    positives = ragged([0])
    stream = generator(3)
    drawn = [draw_of(Shared(4), positives, 12, stream).items for _ in range(3000)]
    assert scipy.stats.chisquare(torch.bincount(torch.cat(drawn)).numpy()).pvalue > 1e-3


def test_each_query_has_draws_of_its_own():
    positives = ragged([0, 1], [2])
    draw = draw_of(PerQuery(50), positives, 6)
    assert not draw.is_shared
    assert draw.mask(50) is None
    assert not torch.equal(draw.items[0], draw.items[1])


@pytest.mark.parametrize("source", [Shared, PerQuery])
def test_a_sample_of_none_is_refused(source):
    with pytest.raises(ConfigError, match="n must be >= 1, got 0"):
        source(0)


class TestEverySource(NegativesContract):
    @pytest.fixture(autouse=True, params=NEGATIVES)
    def name(self, request):
        self.negatives = NEGATIVES[request.param]


class TestSmallDraws(NegativesContract):
    """Fewer than there are items."""

    @pytest.fixture(autouse=True, params=["shared", "per_query", "mixed"])
    def name(self, request):
        self.negatives = NEGATIVES[request.param]
        self.settings = {"n_hard": 3, "pool": 12} if request.param == "mixed" else {"n": 7}


class TestCorrectedDraws(NegativesContract):
    """Those with corrections that a setting turns on; ``mixed`` with all of its pool."""

    cases: ClassVar = {
        "shared": {"n": 7, "popularity": 0.75},
        "in_batch": {"n_uniform": 6},
        "mixed": {"n_hard": 12, "pool": 12, "corrected": True},
    }

    @pytest.fixture(autouse=True, params=cases)
    def name(self, request):
        self.negatives, self.settings = NEGATIVES[request.param], self.cases[request.param]


CORRECTED = {
    "popular": lambda: Shared(8, popularity=1.0),
    "half popular": lambda: Shared(8, popularity=0.5),
    "uniform": lambda: Shared(8),
    "in batch and uniform": lambda: InBatch(n_uniform=6),
    "hard, all of the pool": lambda: Mixed(n_hard=10, pool=10, corrected=True),
    "hard, the best of it": lambda: Mixed(n_hard=1, pool=10, corrected=True),
    "hard, not corrected": lambda: Mixed(n_hard=10, pool=10),
}


def log_partitions(source, order, n_batches=400):
    """By how much the corrected log-partition of each query of a batch differs from the exact one, over many batches.

    41 queries have items of very different popularity, and some items have none.
    """
    rows = [[item for item in range(30) if (query * 7 + item * 11) % (2 + item) == 0] or [1] for query in range(41)]
    lists, n_items, stream = ragged(*rows), 36, generator(11)
    source.attach(Context(lists, n_items))
    vectors, everyone = torch.randn(n_items, 3, generator=stream), torch.randn(len(rows), 3, generator=stream)
    scores = (everyone @ vectors.T).double()
    own = torch.zeros_like(scores, dtype=torch.bool)
    own[lists.owner(), lists.indices] = True
    exact = scores.masked_fill(own, -math.inf).logsumexp(1)
    batches, errors = Batches(lists, n_items, order=order, size=9, repeat_queries=source.layout == "own"), []
    while len(errors) < n_batches:
        for batch in batches.epoch(stream):
            draw = source.draw(batch, Encoded(everyone[batch.query], vectors), stream)
            terms = scores[batch.query].gather(1, draw.items.expand(len(batch.query), -1))
            terms += math.log(n_items / terms.size(1)) - (0.0 if draw.log_q is None else draw.log_q)
            drawn = terms.masked_fill(draw.mask(terms.size(1)), -math.inf).logsumexp(1)
            errors.append((drawn - exact[batch.query])[: 9 if order == "query" else 5])
    return torch.stack([one for one in errors if len(one) == len(errors[0])])


@pytest.mark.parametrize("order", ["query", "pair"])
@pytest.mark.parametrize("name", CORRECTED)
def test_the_corrected_partition_is_that_of_the_catalogue_on_average(name, order):
    """The sum has no bias; its logarithm is too low (Jensen)."""
    errors = log_partitions(CORRECTED[name](), order)
    ratio = errors.exp().mean(1)
    error = 4 * float(ratio.std()) / math.sqrt(len(ratio)) + 0.02 * (name != "uniform")  # 2%: chance_drawn
    bias = float(ratio.mean()) - 1
    if name == "hard, not corrected":
        assert bias < -0.08
    elif name == "hard, the best of it":  # less what the easier items stand for
        assert -0.35 < bias < -error
    else:
        assert abs(bias) < error < 0.2
        assert float(errors[errors > -math.inf].mean()) < 0


def test_more_draws_leave_less_of_the_logarithms_bias():
    biases = [float(log_partitions(Shared(n, popularity=0.5), "query").mean()) for n in (6, 12, 24)]
    assert biases == sorted(biases)
    assert biases[-1] > 0.35 * biases[0]


def test_popular_items_are_drawn_in_proportion_to_their_weights():
    lists, stream = ragged([0, 1], [0], [0], [2]), generator(2)
    source = Shared(1, popularity=1.0)
    counts = torch.zeros(5)
    for _ in range(6000):
        counts[draw_of(source, lists, 5, stream).items] += 1
    expected = tensor([4.0, 2, 2, 1, 1])
    assert scipy.stats.chisquare(counts, expected / expected.sum() * 6000).pvalue > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shared(3, popularity=1.5), "popularity must be <= 1.0, got 1.5"),
        (lambda: Shared(3, popularity=-0.1), "popularity must be >= 0.0, got -0.1"),
        (lambda: InBatch(n_uniform=-1), "n_uniform must be >= 0, got -1"),
    ],
)
def test_bad_settings_of_a_source_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("n_items", [30, 100_000])  # by a table, and by a search
def test_places_in_a_draw(n_items):
    items, ids = tensor([7, 2, 29, 11]), tensor([11, 3, 2, 29, 0, 29])
    assert drawing.places_in(items, ids, n_items).tolist() == [3, 4, 1, 2, 4, 2]
    assert drawing.places_in(items[:0], ids, n_items).tolist() == [0] * 6


def test_the_population_leaves_out_queries_that_no_batch_holds():
    population = Population.of(ragged([0, 1, 2], [1], [], [1, 2]), 3)
    assert population.item_counts.tolist() == [0, 2, 1]
    assert (population.n_queries, population.n_items) == (2, 3)


def test_the_chance_of_being_drawn_is_the_hypergeometric():
    for pool in (1, 2, 5, 20, 300, 5000):
        for drawn in {1, min(2, pool), max(1, pool // 10), max(1, pool // 3), pool}:
            marked = np.unique(np.linspace(1, pool, 50).astype(int))
            expected = 1 - scipy.stats.hypergeom.pmf(0, pool, marked, drawn)
            found = drawing.chance_drawn(torch.from_numpy(marked), drawn, pool)
            assert_close(found, torch.from_numpy(expected), rtol=0.02, atol=1e-12)


def skewed(n_queries=60, n_items=40, seed=0) -> Ragged:
    """Popular items first; the last five have no interaction at all."""
    random = np.random.default_rng(seed)
    chance = 1 / np.arange(1, n_items - 4)
    rows = [
        sorted(random.choice(n_items - 5, size=random.integers(1, 12), replace=False, p=chance / chance.sum()).tolist())
        for _ in range(n_queries)
    ]
    return ragged(*rows)


@pytest.mark.parametrize(
    ("order", "size", "n_epochs"), [("query", 60, 1), ("query", 30, 200), ("query", 6, 200), ("pair", 40, 200)]
)
def test_in_batch_partitions_estimate_the_catalogues_without_bias(order, size, n_epochs):
    """Over the batches that hold a positive, the mean of n / N exp(s - log_q) is the sum over the catalogue.

    The sum runs over the query's negatives that have training interactions; n / N with n the size of the catalogue
    and N that of the draw is what ``effective_n`` = n makes of it.
    """
    positives, n_items = skewed(), 40
    exponentials = torch.randn(60, n_items, generator=generator(1), dtype=torch.float64).exp()
    population = Population.of(positives, n_items)
    source = InBatch().attach(Context(positives, n_items))
    batches = Batches(positives, n_items, order=order, size=size)
    total, count = torch.zeros(60, dtype=torch.float64), torch.zeros(60, dtype=torch.float64)
    stream = generator(2)
    for _ in range(n_epochs):
        for batch in batches.epoch(stream):
            draw = source.draw(batch, NOTHING, stream)
            columns = exponentials[batch.query][:, draw.items] * torch.exp(-draw.log_q)
            estimate = columns.masked_fill(draw.mask(draw.items.numel()), 0).sum(1) * n_items / draw.items.numel()
            # Once for every positive of the query: what the loss averages over.
            total.index_add_(0, batch.query[batch.owner], estimate[batch.owner])
            count.index_add_(0, batch.query[batch.owner], torch.ones(batch.owner.numel(), dtype=torch.float64))
    own = torch.zeros(60, n_items, dtype=torch.bool)
    own[positives.owner(), positives.indices] = True
    expected = exponentials.masked_fill(own | (population.item_counts == 0), 0).sum(1)
    ratio = total / count / expected
    assert abs(float(ratio.mean()) - 1) < 0.01
    assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=0.15)


def test_in_batch_items_come_once_and_positives_are_masked():
    positives = ragged([0, 4], [4], [2])
    draw = draw_of(InBatch(), positives, 9)
    assert draw.items.tolist() == [0, 2, 4]
    assert draw.mask(3).tolist() == [[True, False, True], [False, False, True], [False, True, False]]
    # The batch is everything there is: each item was certain to be in it, against 3 / 9.
    assert_close(draw.log_q, torch.full((3,), math.log(3)))


def test_a_batch_of_one_query_has_nothing_but_masked_items():
    positives = ragged([0, 4], [4], [2])
    batch = batch_of(tensor([0]), tensor([0, 0]), tensor([0, 4]))
    draw = InBatch().attach(Context(positives, 9)).draw(batch, NOTHING, generator())
    assert draw.mask(2).all()
    assert draw.log_q.isfinite().all()


@pytest.mark.parametrize("n_items", [50, 200])  # on both sides of 32 items a sample of 4
def test_sampled_scores_and_their_gradients_are_those_of_direct_indexing(n_items):
    stream = generator(4)
    queries = torch.randn(7, 3, generator=stream, dtype=torch.float64, requires_grad=True)
    items = torch.randn(n_items, 3, generator=stream, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(n_items, (7, 4), generator=stream)
    weight = torch.randn(7, 4, generator=stream, dtype=torch.float64)
    direct = (queries.unsqueeze(1) * items[ids]).sum(2)
    found = sampled_scores(queries, items, ids)
    assert_close(found, direct)
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), (queries, items)),
        torch.autograd.grad((direct * weight).sum(), (queries, items)),
        strict=True,
    ):
        assert_close(a, b)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9), st.integers(0, 30), st.integers(1, 70), st.integers(1, 5), st.integers(0, 10_000))
def test_compiled_sampled_scores_are_those_of_torch(n_queries, n, n_items, dim, seed):
    stream = generator(seed)
    queries, items = torch.randn(n_queries, dim, generator=stream), torch.randn(n_items, dim, generator=stream)
    ids = torch.randint(n_items, (n_queries, n), generator=stream)
    weight = torch.randn(n_queries, n, generator=stream)
    found, wanted = [], []
    for given_, dtype in ((found, torch.float32), (wanted, torch.float64)):  # doubles take the way by torch
        vectors = [table.to(dtype).requires_grad_() for table in (queries, items)]
        scores = sampled_scores(*vectors, ids)
        given_ += [scores, *torch.autograd.grad((scores * weight).sum(), vectors)]
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_sampled_scores_are_the_same_bits_with_any_number_of_threads():
    stream = generator(5)
    tables = [torch.randn(size, 24, generator=stream) for size in (300, 90)]
    ids = torch.randint(90, (300, 200), generator=stream)
    made, before = [], torch.get_num_threads()
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            vectors = [table.clone().requires_grad_() for table in tables]
            scores = sampled_scores(*vectors, ids)
            made.append([scores, *torch.autograd.grad((scores**2).sum(), vectors)])
    finally:
        torch.set_num_threads(before)
    for other in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], other, strict=True))


@pytest.mark.parametrize("wrong", [-1, 9])
def test_sampled_scores_refuse_items_that_are_not_there(wrong):
    with pytest.raises(IndexError, match=rf"items must be from 0 to 8, got {min(0, wrong)} to {max(0, wrong)}"):
        sampled_scores(torch.ones(1, 2), torch.ones(9, 2), tensor([[0, wrong]]))


def test_sampled_scores_do_not_depend_on_the_blocks():
    stream = generator(4)
    queries, items = torch.randn(700, 64, generator=stream), torch.randn(5000, 64, generator=stream)
    ids = torch.randint(5000, (700, 120), generator=stream)  # 546 queries a block
    assert_close(sampled_scores(queries, items, ids), (queries @ items.T).gather(1, ids), rtol=1e-4, atol=1e-4)
    assert sampled_scores(queries[:0], items, ids[:0]).shape == (0, 120)
