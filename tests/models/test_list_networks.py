"""Networks of lists: padding, order, statistics of the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import QuantileTransformer
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.graded_lists import GradedLists, ListContext, in_rows
from topshelf.models import list_networks
from topshelf.models.list_features import FeatureTransform
from topshelf.models.list_networks import LinearRanker, MLPRanker, TransformerRanker

MODELS = [TransformerRanker, MLPRanker, LinearRanker]
EVERY = pytest.mark.parametrize("model", MODELS)


def lists(n_queries=12, seed=0, width=5):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (n_queries,), generator=generator)
    features = torch.randn(int(lengths.sum()), width, generator=generator).exp()
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return GradedLists(features, torch.randint(3, (features.size(0),), generator=generator).float(), indptr)


def made(model, data):
    torch.manual_seed(0)
    ranker = model(5)
    ranker.prepare(ListContext(data))
    return ranker


@EVERY
def test_a_list_alone_is_scored_as_among_others(model):
    data = lists()
    ranker = made(model, data)
    with torch.no_grad():
        everything = ranker.score(data.features, data.indptr)
        for query in (0, 5, 11):
            alone = data.select(torch.tensor([query]))
            mine = everything[data.indptr[query] : data.indptr[query + 1]]
            assert_close(ranker.score(alone.features, alone.indptr), mine, rtol=1e-5, atol=1e-6)


@EVERY
def test_another_order_of_documents_gives_the_same_scores_in_that_order(model):
    data = lists(1, seed=3)
    ranker = made(model, data)
    order = torch.randperm(data.features.size(0), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mixed = ranker.score(data.features[order], data.indptr)
        assert_close(mixed, ranker.score(data.features, data.indptr)[order], rtol=1e-5, atol=1e-6)


def test_blocks_of_lists_give_the_scores_of_all_at_once(monkeypatch):
    data = lists(40)
    ranker = made(TransformerRanker, data)
    with torch.no_grad():
        whole = ranker.score(data.features, data.indptr)
        monkeypatch.setattr(list_networks, "CELLS", 40)
        assert_close(ranker.score(data.features, data.indptr), whole, rtol=1e-5, atol=1e-6)


def test_the_transformer_looks_at_the_other_documents_and_the_mlp_does_not():
    data = lists(1, seed=3)
    changed = data.features.clone()
    changed[0] += 1
    for model, looks in ((TransformerRanker, True), (MLPRanker, False)):
        ranker = made(model, data)
        with torch.no_grad():
            before, after = (ranker.score(features, data.indptr)[1:] for features in (data.features, changed))
        assert torch.equal(before, after) is not looks


def test_lists_without_documents_harm_nobody():
    data, ranker = lists(2), made(TransformerRanker, lists(2))
    gap = torch.cat([data.indptr[:2], data.indptr[1:]])
    with torch.no_grad():
        assert_close(ranker.score(data.features, gap), ranker.score(data.features, data.indptr))
        assert ranker.score(data.features[:0], torch.tensor([0, 0])).shape == (0,)


@EVERY
def test_scores_have_no_noise_and_steps_have_dropout(model):
    data = lists()
    ranker = made(model, data)
    assert torch.equal(ranker.score(data.features, data.indptr), ranker.score(data.features, data.indptr))
    noisy = [ranker.score_batch(data.features, data.indptr) for _ in range(2)]
    assert torch.equal(*noisy) is (model is LinearRanker)


def test_padding_of_a_table_is_marked():
    table, mask = in_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1, 3]))
    assert table.tolist() == [[1, 0], [0, 0], [2, 3]]
    assert mask.tolist() == [[False, True], [True, True], [False, False]]


@pytest.mark.parametrize("kind", ["standardise", "log1p"])
def test_training_features_get_mean_0_and_deviation_1(kind):
    features = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)).exp() * torch.tensor([1.0, 1e3, 0.0])
    transform = FeatureTransform(3, kind)
    transform.fit(features)
    out = transform(features)
    assert_close(out[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert_close(out[:, :2].std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)
    assert out[:, 2].tolist() == [0] * 2000, "a constant feature says nothing"
    assert transform(torch.full((1, 3), -5.0)).isfinite().all()


def test_log1p_keeps_the_sign():
    transform = FeatureTransform(1, "log1p")
    assert_close(transform(torch.tensor([[-1.0], [3.0]])), torch.tensor([[-np.log(2.0)], [np.log(4.0)]]).float())


def test_quantiles_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1000, 2, generator=generator).exp()
    features[:, 1] = (features[:, 1] * 2).round()  # many equal ones
    transform = FeatureTransform(2, "quantile")
    transform.fit(features)
    theirs = QuantileTransformer(n_quantiles=129, subsample=None).fit(features.numpy())
    new = torch.randn(300, 2, generator=generator).exp()
    new[:, 1] = (new[:, 1] * 2).round()
    expected = (theirs.transform(new.numpy()) - 0.5) * 12**0.5
    inside = (new > features.amin(0)) & (new < features.amax(0))
    assert_close(transform(new)[inside], torch.from_numpy(expected).float()[inside], atol=2e-2, rtol=0)
    outside = transform(torch.tensor([[1e9, -1e9]]))[0]
    assert outside.tolist() == pytest.approx([0.5 * 12**0.5, -0.5 * 12**0.5])


def test_equal_values_get_the_middle_of_their_shares_also_at_the_ends():
    features = torch.tensor([0.0] * 60 + [1.0] * 40).unsqueeze(1)
    transform = FeatureTransform(1, "quantile")
    transform.fit(features)
    shares = transform(torch.tensor([[0.0], [1.0]])).squeeze(1) / 12**0.5 + 0.5
    assert shares.tolist() == pytest.approx([0.3, 0.8], abs=0.01)


def test_statistics_are_kept_with_the_weights():
    data = lists()
    ranker = made(TransformerRanker, data)
    again = TransformerRanker(5)
    again.load_state_dict(ranker.state_dict())
    assert torch.equal(again.score(data.features, data.indptr), ranker.score(data.features, data.indptr))


def test_tanh_bounds_the_scores():
    data = lists()
    scores = TransformerRanker(5, output="tanh", transform="none").score(1e3 * data.features, data.indptr)
    assert scores.abs().max() <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 10, "heads": 3}, "dim must be a multiple of heads"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"output": "relu"}, "output must be one of"),
        ({"transform": "cubic"}, "transform must be one of"),
        ({"blocks": -1}, "blocks must be >= 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TransformerRanker(5, **settings)
