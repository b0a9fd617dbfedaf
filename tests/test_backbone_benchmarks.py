"""benchmarks/studies/backbone_ideas.py, speed/backbone_cost.py and studies/blends.py measure what they say."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from benchmarks.speed import backbone_cost as cost
from benchmarks.studies import backbone_ideas as bench
from benchmarks.studies import blends, history_variants
from topshelf.blending import WeightSearch
from topshelf.config import assemble, make_config, preset
from topshelf.data import Dataset, generate, make_split
from topshelf.evaluation import evaluate
from topshelf.models import EASE, MODELS, History
from topshelf.queries import Batch, Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.training import fit
from topshelf.training.build import resolve

QUERY, OWNER, ITEM = torch.tensor([2, 0]), torch.tensor([0, 1]), torch.tensor([3, 1])
EVERYBODY = QuerySet.known(3)


@pytest.fixture
def positives():
    return Ragged(torch.tensor([0, 2, 3, 6]), torch.tensor([0, 1, 4, 1, 3, 4]))  # 3 users, 5 items


@pytest.fixture
def batch(positives):
    return Batch(QUERY, OWNER, ITEM, positives.select(QUERY), False, positives.indptr[QUERY])


@pytest.fixture
def histories(positives):
    dense = torch.zeros(3, 5)
    dense[positives.owner(), positives.indices] = 1.0
    return dense


def attached(cls, positives, **settings):
    torch.manual_seed(0)
    model = cls(3, 5, **settings)
    model.attach(Context(positives, 5))
    return model


def cosine(queries, items):
    return F.normalize(queries, dim=1) @ F.normalize(items, dim=1).T


def scores(encoded):
    return encoded[0] @ encoded[1].T


def test_one_table_serves_histories_and_scores(positives, histories, batch):
    model = attached(history_variants.OneTable, positives, dim=4, drop=0.0)
    (table,) = model.parameters()
    assert_close(scores(model.encode(EVERYBODY)), cosine(histories @ table, table))
    assert_close(scores(model.encode_batch(batch)), scores(model.encode(EVERYBODY))[QUERY])


def test_a_user_vector_is_added(positives, histories, batch):
    model = attached(history_variants.OwnVector, positives, dim=4, drop=0.0, own=0.3)
    summed = histories @ model.history_vectors / histories.sum(1, keepdim=True).sqrt()
    assert_close(scores(model.encode(EVERYBODY)), cosine(summed + 0.3 * model.query_vectors, model.item_vectors))
    assert_close(scores(model.encode_batch(batch)), scores(model.encode(EVERYBODY))[QUERY])


def test_rare_items_weigh_more(positives, histories):
    model = attached(history_variants.RareFirst, positives, dim=4, drop=0.0)
    weights = histories / histories.sum(0).clamp(min=1).sqrt()
    assert_close(scores(model.encode(EVERYBODY)), cosine(weights @ model.history_vectors, model.item_vectors))


def test_the_predicted_items_are_left_out_of_their_users_alone(positives, histories, batch):
    model = attached(history_variants.LeftOut, positives, dim=4, drop=0.0)
    without = histories.clone()
    without[2, 3] = without[0, 1] = 0.0
    expected = cosine(without @ model.history_vectors, model.item_vectors)[QUERY]
    assert_close(scores(model.encode_batch(batch)), expected)
    assert_close(scores(model.encode(EVERYBODY)), cosine(histories @ model.history_vectors, model.item_vectors))


def test_smoothing_adds_items_two_steps_away(positives, histories, batch):
    model = attached(history_variants.Smoothed, positives, dim=4, drop=0.0, share=2.0)
    edges = histories / histories.sum(1, keepdim=True).sqrt() / histories.sum(0).clamp(min=1).sqrt()
    items = model.item_vectors + 2.0 * edges.T @ edges @ model.item_vectors
    assert_close(scores(model.encode(EVERYBODY)), cosine(histories @ model.history_vectors, items))
    assert_close(scores(model.encode_batch(batch)), scores(model.encode(EVERYBODY))[QUERY])


def test_the_average_is_over_all_steps_at_first_and_then_exponential(positives, batch):
    model = attached(history_variants.Averaged, positives, dim=4, decay=0.6)
    for value in (1.0, 3.0, 8.0):  # shares 1, 1/2, and 0.4 in place of 1/3
        torch.nn.init.constant_(model.item_vectors, value)
        model.encode_batch(batch)
    assert_close(model.mean.item_vectors, torch.full((5, 4), 0.6 * 2.0 + 0.4 * 8.0))
    assert_close(model.encode(EVERYBODY), model.mean.encode(EVERYBODY))
    assert all(parameter.requires_grad != name.startswith("mean.") for name, parameter in model.named_parameters())


def test_all_factors_of_ease_are_its_weights(positives):
    model = attached(history_variants.FromEASE, positives, dim=5, l2=0.5)
    weights = history_variants.ease_weights(positives, 5, 0.5)
    weights.fill_diagonal_(float(weights.max()))
    product = model.history_vectors @ model.item_vectors.T
    assert_close(product / product.norm(), weights / weights.norm())
    assert_close(model.item_vectors.std(), attached(History, positives, dim=5).item_vectors.std())


def test_all_singular_vectors_are_the_root_of_the_graphs_square(positives, histories):
    model = attached(history_variants.FromSpectrum, positives, dim=5)
    edges = histories / histories.sum(1, keepdim=True).sqrt() / histories.sum(0).clamp(min=1).sqrt()
    product = model.history_vectors @ model.item_vectors.T
    square = product @ product
    assert_close(square / square.norm(), edges.T @ edges / (edges.T @ edges).norm(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("for_itself", [True, False])
def test_the_full_rank_begins_as_ease_and_its_diagonal_moves_when_it_may(positives, histories, for_itself, batch):
    model = attached(history_variants.Linear, positives, l2=0.5, for_itself=for_itself)
    ease = EASE(3, 5, l2=0.5)
    ease.fit(Context(positives, 5))
    assert_close(scores(model.encode(EVERYBODY)), histories @ ease.weights)
    encoded = model.encode_batch(batch)
    torch.autograd.backward([encoded.queries, encoded.items], [torch.ones(2, 5), torch.ones(5, 5)])
    torch.optim.Adam(model.parameters(), lr=0.1).step()
    moved = model.item_vectors.detach() - ease.weights.T
    assert_close(moved, torch.where(torch.eye(5, dtype=torch.bool) & (not for_itself), 0.0, -0.1), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_every_idea_is_a_run_that_can_be_built_and_the_names_are_given_back():
    before = dict(MODELS)
    with bench.registered():
        for data in bench.BASE:
            for label, idea in bench.ideas(data).items():
                for run in (idea.run, idea.beside or idea.run):
                    config = resolve(assemble(data=data, loss="slatk", k=20, more=run.settings(data, 2)))
                    assert config.model.name == run.model
                    assert MODELS[run.model].is_closed_form or config.train.epochs == 2
                    if label.startswith("full rank"):
                        assert config.model.settings["score"] == label.split(", ")[1]
    assert before == MODELS


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A small dataset with settings for the benchmarks."""
    data = generate(60, 40, interactions_per_user=10, seed=0).ragged()
    file = tmp_path / "small.csv"
    lines = [f"{user},{item}" for user, item in zip(data.owner().tolist(), data.indices.tolist(), strict=True)]
    file.write_text("\n".join(["user,item", *lines]) + "\n")
    monkeypatch.setitem(bench.BASE, str(file), bench.base(0.2, 2.5, 40))
    for settings in (bench.MF_RATE, bench.EASE_L2):
        monkeypatch.setitem(settings, str(file), 0.1)
    threads = torch.get_num_threads()
    yield str(file)
    torch.set_num_threads(threads)


def test_rows_are_of_validation_alone_and_are_not_made_again(small):
    labels = ("History + 1 EASE", "EASE", "weights averaged over steps")
    wanted = bench.Task(small, labels, (10, 11), 2)
    todo = bench.tasks(wanted, [])
    assert [task.labels for task in todo] == [labels[:1], labels[1:2], labels[2:]]
    rows = [row for task in todo for row in bench.measure(task)]
    assert [row["epochs"] for row in rows] == [[2, 2], [0, 0], [2, 2]]
    assert all(len(row["valid"]) == 2 and 0 < row["mean"] < 1 for row in rows)
    assert bench.tasks(wanted, rows) == []
    assert bench.tasks(bench.Task(small, labels[1:2], (10,), 2), rows) != []  # other seeds
    assert bench.tasks(bench.Task(small, labels[2:], (10, 11), None), rows) != []  # other epochs
    assert len(bench.Trials(small, 10, 2).split.test) == 0


def test_a_sum_is_of_scores_of_one_spread(small):
    trials = bench.Trials(small, 10, 2)
    history, ease = bench.of_history(), bench.Run("ease", {"l2": 1.0})
    alone, nothing_added = bench.Idea(history), bench.Idea(history, ease, 0.0)
    assert trials.score(nothing_added) == trials.score(alone)
    assert trials.score(bench.Idea(history, ease, 1e6))[0] == trials.score(bench.Idea(ease))[0]
    (model, _), (other, _) = trials._made.values()  # each was made once
    assert_close(bench.spread_scores(model).std(), torch.tensor(1.0))
    assert_close(bench.spread_scores(other).std(), torch.tensor(1.0))


def test_the_table_of_ideas_puts_every_dataset_beside_history():
    def row(data, idea, *valid):
        return {"data": data, "idea": idea, "valid": list(valid)}

    old = [row("movielens-100k", "EASE", 0.5), row("movielens-100k", "History", 0.2, 0.3)]
    rows = bench.joined(old, [row("movielens-100k", "EASE", 0.2), row("amazon2014-health", "drop 0", 0.1)])
    assert bench.table(rows).splitlines()[2:] == [
        "| History |  |  | 0.2500 | +0.0% |",
        "| drop 0 | 0.1000 |  |  |  |",
        "| EASE |  |  | 0.2000 | -20.0% |",
    ]


def test_every_trained_model_is_timed_with_the_settings_of_mf(small):
    seconds, sizes = cost.seconds_of(small, 2)
    assert list(seconds) == cost.TRAINED
    assert not any(MODELS[name].is_closed_form for name in cost.TRAINED)
    assert all(len(own) == 2 and min(own) > 0 for own in seconds.values())
    assert sizes["mf"] == sizes["lightgcn"] == 4 * 64 * (60 + 40)
    assert sizes["history"] == 4 * 64 * (40 + 40)
    shipped = preset("gowalla", "mf", "slatk")
    trained = cost.build("gowalla", "xsimgcl", generate(60, 40, interactions_per_user=10).ragged(), 40)
    assert trained.settings.learning_rate == shipped["train"]["learning_rate"]
    assert trained.loss.tau == shipped["loss"]["tau"]
    cost.few_steps(trained)
    assert (trained.loss.threshold != 0).all()


def test_the_table_of_costs_and_the_verdict():
    def cost_of(over):
        return {"seconds": 2.0 * over, "over_mf": over, "parameter_bytes": 2**20, "peak_bytes": 3 * 2**20}

    result = {"data": "gowalla", "models": {"mf": cost_of(1.0), "lightgcn": cost_of(1.5)}}
    assert cost.table([result]).splitlines()[-1] == "| gowalla | lightgcn | 3.000 | 1.50 | 1.0 MiB | 3.0 MiB |"
    assert cost.verdict(result) == "lightgcn on gowalla: 1.50 times MF, within the bound of 3"
    result["models"]["lightgcn"] = cost_of(3.1)
    assert "above" in cost.verdict(result)
    assert cost.verdict({**result, "data": "food"}) == ""


def rows_of_best(valid=lambda at: at / 100):
    """A row for every method on Electronic, the later the better on validation and the worse on test."""
    for at, ((data, name), case) in enumerate(blends.places().items()):
        row = {"data": data, "method": name, "is_classic": case.group.own, "standard": 0.5 - at / 100}
        if data == blends.ELECTRONIC:
            yield row if name == "popularity" else {**row, "valid": valid(at)}


def test_validation_decides_what_is_blended_and_each_model_is_in_it_once():
    rows = list(rows_of_best())
    first = blends.ranked(rows, blends.ELECTRONIC)
    assert [row["method"] for row in first[:3]] == ["History SL@20", "MF SL@20", "SLIM"]
    assert len(first) == 7
    with pytest.raises(SystemExit, match="best must hold every model on amazon2014-electronic; it lacks ease"):
        blends.ranked([row for row in rows if row["method"] != "EASE"], blends.ELECTRONIC)


def test_the_table_of_blends_takes_the_best_classic_by_test_and_the_trained_model_by_validation():
    rows = list(rows_of_best(valid=lambda at: -at / 100))
    blended = {"data": blends.ELECTRONIC, "runs": [{"standard": 0.6}, {"standard": 0.7}]}
    classic = max((row for row in rows if row["is_classic"]), key=lambda row: row["standard"])
    trained = next(row for row in rows if not row["is_classic"])
    names = [f"{row['standard']:.4f} ({row['method']})" for row in (classic, trained)]
    expected = f"| amazon2014-electronic | {names[0]} | {names[1]} | 0.6500 | {0.65 / classic['standard'] - 1:+.1%} |"
    assert blends.table(rows, [blended]).splitlines()[2:] == [expected]


def test_the_models_to_blend_have_the_settings_that_were_chosen_for_them(monkeypatch):
    monkeypatch.setattr(blends, "fit", lambda config: config)
    best = blends.measured(blends.BEST)
    assert {(row["data"], row["method"]) for row in best} <= set(blends.places())
    for row in (row for row in best if "valid" in row):
        config = resolve(blends.fitted(row, 7, {"train": {"refit": False}}))
        values = config.model_dump()
        assert (config.seed, config.train.refit, config.data.source) == (7, False, row["data"])
        for text in row["settings"].split():
            name, _, value = text.partition("=")
            section, _, key = name.partition(".")
            assert values[section][key] == json.loads(value)


def test_one_half_of_the_users_chooses_what_is_blended_and_the_other_judges():
    dataset = Dataset("generated", make_split(generate(120, 80, seed=0)))
    runs = [fit(make_config({"model": {"name": name}, "k": 5}), dataset) for name in ("popularity", "ease", "rp3beta")]
    search = WeightSearch(runs)
    split = dataset.split
    each = [
        evaluate(
            *run.model.encode(QuerySet.known(120)), split.valid, train=split.train, cutoffs=(5,), auc=False
        ).per_user["ndcg@5"]
        for run in runs
    ]
    chooses, judges = search.users[::2], search.users[1::2]
    scores = blends.by_size(search, chooses, judges)
    assert [len(scores[rule]) for rule in blends.RULES] == [3, 3]
    best = max(range(3), key=lambda at: each[at][chooses].mean())
    assert_close(scores["chosen"][0], float(each[best][judges].mean()), rtol=0, atol=1e-6)
    weights, _ = blends.some(search, [0, 1, 2], chooses).weights()
    assert scores["chosen"][2] == blends.some(search, [0, 1, 2], judges).valid_score(weights)
    assert scores["all 1"][2] == blends.some(search, [0, 1, 2], judges).valid_score([1.0] * 3)


def test_the_table_of_blends_is_of_means_over_splits():
    rows = [{"data": "food", "seed": seed, "chosen": [0.1, 0.2 + seed], "all 1": [0.1, 0.3]} for seed in (0, 1)]
    assert blends.sizes_table(rows).splitlines()[2:] == [
        "| food | chosen | 0.1000 | 0.7000 |",
        "| food | all 1 | 0.1000 | 0.3000 |",
    ]
