"""Runs blended: what is added up, which weights are found, and what cannot be blended."""

from __future__ import annotations

import functools
import itertools
import json
from statistics import mean, pstdev

import polars as pl
import pytest
import torch

from command_line import run_topshelf
from topshelf import blending
from topshelf.blending import GRID, blend, clearly_best, spread
from topshelf.config import make_config, read_config
from topshelf.data import Dataset, Interactions, generate, make_split
from topshelf.errors import CheckpointError, ConfigError, DataError, TrainingError
from topshelf.evaluation import evaluate
from topshelf.models import HistoryRows
from topshelf.models.base import JoinedRows
from topshelf.models.blend import Blend
from topshelf.ragged import Ragged
from topshelf.recommender import Recommender
from topshelf.training import fit, load, resume, save
from vectors import attach, dense, vectors_of

K = 5
USERS, ITEMS = 120, 80


@functools.cache
def data(seed=0) -> Dataset:
    return Dataset("generated", make_split(generate(USERS, ITEMS, seed=seed)))


def config(name, k=K, refit=False, **model):
    train = {"epochs": 6, "validate_every": 2, "learning_rate": 0.03, "refit": refit}
    return make_config({"model": {"name": name, **model}, "k": k, "train": train})


@functools.cache
def fitted(name, refit=False):
    return fit(config(name, refit=refit), data())


def all_scores(model) -> torch.Tensor:
    """Every cell, by the model's own vectors, in float64."""
    with torch.no_grad():
        queries, items = vectors_of(model)
        return queries[torch.arange(len(queries))].double() @ items.double().T


def valid_ndcgs(weights, runs) -> torch.Tensor:
    """Of every user, by the sum of standardised scores made whole: its rows are queries against the unit matrix."""
    tables = [all_scores(run.model) for run in runs]
    total = sum(weight * scores / scores.std(correction=0) for weight, scores in zip(weights, tables, strict=True))
    split = runs[0].dataset.split
    unit = torch.eye(ITEMS, dtype=torch.float64)
    found = evaluate(total, unit, split.valid, train=split.train, cutoffs=(K,), auc=False)
    return found.per_user[f"ndcg@{K}"]


def valid_ndcg(weights, runs) -> float:
    return float(valid_ndcgs(weights, runs).mean())


PAIRS = [("mf", "ease"), ("mf", "history"), ("slim", "itemknn"), ("popularity", "lightgcn")]


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_scores_are_the_weighted_sum_of_the_parts(names):
    runs = [fitted(name) for name in names]
    done = blend(runs, weights=[1, 0.3])
    tables = [all_scores(run.model) for run in runs]
    expected = tables[0] / tables[0].std(correction=0) + 0.3 * tables[1] / tables[1].std(correction=0)
    torch.testing.assert_close(all_scores(done.model), expected, rtol=1e-4, atol=1e-5)
    assert done.valid_score == pytest.approx(valid_ndcg([1, 0.3], runs), abs=1e-9)
    assert done.evaluate(part="valid").mean()[f"ndcg@{K}"] == pytest.approx(done.valid_score, abs=1e-9)


def test_vectors_stay_unmade_only_where_a_part_has_histories_for_vectors():
    with torch.no_grad():
        assert isinstance(vectors_of(blend([fitted("mf"), fitted("history")], weights=[1, 1]).model)[0], torch.Tensor)
        model = blend([fitted("mf"), fitted("ease")], weights=[1, 1]).model
        queries, items = vectors_of(model)
        assert isinstance(queries, JoinedRows)
        assert isinstance(vectors_of(fitted("ease").model)[0], HistoryRows)
        assert len(queries) == USERS
        rows = torch.tensor([5, 0, 41, 5])
        some, same = vectors_of(model, rows)
    assert torch.equal(dense(some), queries[rows])
    assert torch.equal(items, same)


def searched(runs) -> tuple[list[float], float]:
    """Weights and NDCG by plain loops: 1, or one that gains more than a standard error beside it; or the best alone."""
    alone = [valid_ndcg([1], [run]) for run in runs]
    best, *others = sorted(range(len(runs)), key=lambda at: -alone[at])
    only = weights = [float(at == best) for at in range(len(runs))]
    for at in others:
        tried = {weight: valid_ndcgs([*weights[:at], weight, *weights[at + 1 :]], runs).tolist() for weight in GRID}
        gains = {weight: [a - b for a, b in zip(tried[weight], tried[1.0], strict=True)] for weight in GRID}
        clear = {weight: mean(gain) for weight, gain in gains.items() if mean(gain) > pstdev(gain) / len(gain) ** 0.5}
        weights = [*weights[:at], max(clear, key=clear.get, default=1.0), *weights[at + 1 :]]
    score = valid_ndcg(weights, runs)
    return (weights, score) if score > alone[best] else (only, alone[best])


THREE = ("popularity", "mf", "ease")


@pytest.mark.parametrize("names", [*PAIRS, THREE, ("lightgcn", "slim", "history")], ids="-".join)
def test_the_weights_found_are_1_unless_another_is_clearly_better(names):
    runs = [fitted(name) for name in names]
    weights, score = searched(runs)
    done = blend(runs)
    assert done.config.model.settings["weights"] == weights
    assert done.valid_score == pytest.approx(score, abs=1e-9)
    assert done.valid_score >= max(valid_ndcg([1], [run]) for run in runs) - 1e-9


def test_these_weights_are_not_all_the_same():
    pairs = [*PAIRS, PAIRS[0][::-1]]
    found = {tuple(blend([fitted(name) for name in names]).config.model.settings["weights"]) for names in pairs}
    assert len({min(weights) for weights in found}) > 1
    assert {weights.index(1.0) for weights in found} == {0, 1}  # the best run is not always the first


def test_the_order_of_the_runs_does_not_matter():
    first = blend([fitted(name) for name in THREE])
    expected = dict(zip(THREE, first.config.model.settings["weights"], strict=True))
    for names in itertools.permutations(THREE):
        done = blend([fitted(name) for name in names])
        settings = done.config.model.settings
        assert [part["name"] for part in settings["parts"]] == list(names)
        assert dict(zip(names, settings["weights"], strict=True)) == expected
        assert done.valid_score == pytest.approx(first.valid_score, abs=1e-9)


def test_a_run_that_brings_nothing_has_no_weight():
    done = blend([fitted("ease"), fitted("ease")])
    assert done.config.model.settings["weights"] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([[0, 0, 0, 0], [4, -1, -1, 0]], 0),  # 0.5, with an error of 1.03
        ([[0, 0, 0, 0], [2, 1, 2, 1]], 1),
        ([[0, 0, 0, 0], [2, 1, 2, 1], [3, 1, 3, 1]], 2),
        ([[0, 0, 0, 0], [-2, -1, -2, -1]], 0),
        ([[0], [1]], 1),  # of one user no error is known
    ],
)
def test_only_gains_above_their_error_count(gains, expected):
    assert clearly_best(torch.tensor(gains, dtype=torch.float64), 0) == expected


def test_a_sum_may_end_before_a_run_that_does_not_help(monkeypatch):
    search = blending.WeightSearch([fitted(name) for name in ("ease", "mf", "popularity")])
    alone, two, three = 0.5, 0.6, 0.55  # of the best, with a second, with a third
    scores = {0: torch.full((len(blending.GRID), 4), two), 1: torch.full((len(blending.GRID), 4), three)}
    calls = []

    def ndcg(weights, part, candidates):
        if len(candidates) == 1:
            return torch.full((1, 4), alone - part / 100)
        calls.append(part)
        return scores[len(calls) - 1]

    monkeypatch.setattr(search, "_ndcg", ndcg)
    assert search.weights(any_number=True) == ([1.0, 1.0, 0.0], pytest.approx(two))
    calls.clear()
    assert search.weights() == ([1.0, 1.0, 1.0], pytest.approx(three))


def test_users_with_nothing_in_validation_do_not_count():
    split = data().split
    some = split.valid.to_frame().filter(pl.col("user") < USERS // 2)
    valid = Interactions.from_indices(some["user"].to_numpy(), some["item"].to_numpy(), split.users, split.items)
    less = Dataset("less", type(split)(split.train, valid, split.test, split.kind))
    runs = [fit(config(name), less) for name in ("popularity", "ease")]
    assert blend(runs, weights=[1, 1]).valid_score == pytest.approx(valid_ndcg([1, 1], runs), abs=1e-9)


def test_blocks_of_users_change_nothing(monkeypatch):
    runs = [fitted("mf"), fitted("ease")]
    whole = blend(runs)
    monkeypatch.setattr(blending, "WORKSPACE", 4 * ITEMS * 7)
    parts = blend(runs)
    assert parts.config.model.settings["weights"] == whole.config.model.settings["weights"]
    assert parts.config.model.settings["scales"] == pytest.approx(whole.config.model.settings["scales"], rel=1e-6)
    assert parts.valid_score == pytest.approx(whole.valid_score, abs=1e-12)


def test_the_spread_of_many_scores_is_that_of_a_sample_always_the_same(monkeypatch):
    torch.manual_seed(0)
    queries, items = torch.randn(900, 8), torch.randn(500, 8)
    whole = spread(queries, items)
    assert whole == pytest.approx(float((queries @ items.T).double().std(correction=0)), rel=1e-6)
    monkeypatch.setattr(blending, "SAMPLE", 1 << 16)
    monkeypatch.setattr(blending, "MOST_ROWS", 1 << 7)
    looked = []
    scores = blending._scores
    monkeypatch.setattr(blending, "_scores", lambda *given: looked.append(scores(*given)) or looked[-1])
    some = spread(queries, items)
    assert some == spread(queries, items)
    assert some != whole
    assert some == pytest.approx(whole, rel=0.1)
    assert (1 << 15) < sum(part.numel() for part in looked) / 2 <= 1 << 16


def test_scores_that_are_all_equal_spread_by_one_and_what_is_no_number_is_refused():
    assert spread(torch.zeros(3, 2), torch.ones(4, 2)) == 1.0
    assert spread(torch.full((3, 2), 1e-30), torch.rand(4, 2)) == 1.0  # its factor would be infinite
    with pytest.raises(TrainingError, match="scores must be finite numbers"):
        spread(torch.full((3, 2), torch.nan), torch.ones(4, 2))


@pytest.mark.parametrize("other", ["ease", "history", "popularity"])
def test_with_weight_0_the_lists_are_those_of_the_first(other):
    alone = Recommender.of(fitted("mf")).recommend(k=10)
    both = Recommender.of(blend([fitted("mf"), fitted(other)], weights=[1, 0])).recommend(k=10)
    assert both.drop("score").equals(alone.drop("score"))


def test_weights_count_between_items_too():
    alone = Recommender.of(fitted("mf")).similar_items([0, 7, 12], k=6)
    hardly = blend([fitted("mf"), fitted("ease")], weights=[1, 1e-6])
    much = blend([fitted("mf"), fitted("ease")], weights=[1e-6, 1])
    assert Recommender.of(hardly).similar_items([0, 7, 12], k=6).drop("score").equals(alone.drop("score"))
    assert not Recommender.of(much).similar_items([0, 7, 12], k=6).drop("score").equals(alone.drop("score"))


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("names", [("mf", "slim"), ("lightgcn", "history", "ease")], ids="-".join)
def test_a_saved_blend_is_the_same_when_loaded(names, refit, tmp_path):
    done = blend([fitted(name, refit) for name in names], out=tmp_path / "blend")
    again = load(tmp_path / "blend")
    assert again.config == done.config
    assert again.valid_score == done.valid_score
    assert again.test.mean() == done.test.mean()
    assert torch.equal(all_scores(again.model), all_scores(done.model))
    first, second = Recommender.of(done), Recommender.load(tmp_path / "blend")
    for call in (Recommender.recommend, lambda r: r.similar_items([0, 7], k=4)):
        assert call(second).equals(call(first))
    second.save(tmp_path / "copy")
    assert load(tmp_path / "copy").config == done.config
    metrics = json.loads((tmp_path / "blend" / "metrics.json").read_text())
    assert metrics["model"] == "blend"
    assert metrics["loss"] is None
    assert metrics["valid"][f"ndcg@{K}"] == pytest.approx(done.valid_score, abs=1e-9)
    assert metrics["test"][f"ndcg@{K}"] == done.test.mean()[f"ndcg@{K}"]


def test_runs_are_the_same_from_memory_and_from_their_folders(tmp_path):
    runs = [fitted("mf", True), fitted("ease", True)]
    for name, run in zip("ab", runs, strict=True):
        save(run, tmp_path / name)
    from_folders = blend([tmp_path / "a", str(tmp_path / "b")])
    from_memory = blend(runs)
    assert from_folders.config == from_memory.config
    assert torch.equal(all_scores(from_folders.model), all_scores(from_memory.model))


def test_refitted_runs_get_the_weights_and_spreads_of_models_that_have_not_seen_validation():
    refitted, honest = ([fitted(name, refit) for name in ("mf", "ease")] for refit in (True, False))
    done, expected = blend(refitted), blend(honest)
    assert done.config.model == expected.config.model
    assert done.valid_score == expected.valid_score
    assert done.config.train.refit is True
    factors = done.model.factors
    total = sum(factor * all_scores(run.model) for factor, run in zip(factors, refitted, strict=True))
    torch.testing.assert_close(all_scores(done.model), total, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(all_scores(done.model), all_scores(expected.model))


def test_given_weights_of_refitted_runs_need_no_training(monkeypatch):
    runs = [fitted(name, True) for name in ("mf", "ease")]
    monkeypatch.setattr(blending, "fit", lambda *_, **__: pytest.fail("trained again"))
    done = blend(runs, weights=[1, 0.5])
    assert done.valid_score is None
    assert done.model.factors == [
        weight / spread(*vectors_of(run.model)) for weight, run in zip((1, 0.5), runs, strict=True)
    ]


def test_the_test_part_has_no_say():
    split = data().split
    turned = type(split)(split.train, split.valid, split.test.where(split.test.rows() % 2 == 0), split.kind)
    same = Dataset("generated", turned)
    first = blend([fit(config(name), data()) for name in ("mf", "ease")])
    second = blend([fit(config(name), same) for name in ("mf", "ease")])
    assert first.config == second.config
    assert first.valid_score == second.valid_score


def test_new_users_get_lists_where_every_part_that_counts_can_give_them():
    train = data().split.train.to_frame()
    histories = [train.filter(pl.col("user") == user)["item"].to_list() for user in (41, 7)]
    recommender = Recommender.of(blend([fitted("history"), fitted("ease")], weights=[1, 0.5]))
    known = recommender.recommend([41, 7], filter_seen=False)
    new = recommender.recommend_new(histories, filter_seen=False)
    assert new.drop("score", "user").equals(known.drop("score", "user"))
    assert new["score"].to_list() == pytest.approx(known["score"].to_list(), rel=1e-5)
    with pytest.raises(ConfigError, match="MF has vectors for the users of its training only"):
        Recommender.of(blend([fitted("ease"), fitted("mf")], weights=[1, 0.5])).recommend_new(histories)
    assert len(Recommender.of(blend([fitted("ease"), fitted("mf")], weights=[1, 0])).recommend_new(histories))


def test_runs_of_other_data_or_another_split_are_refused_by_name(tmp_path):
    other = fit(config("ease"), data(seed=1))
    with pytest.raises(DataError, match=r"other \w+ interactions in run 1 \(mf\) than in run 2 \(ease\)"):
        blend([fitted("mf"), other])
    save(fitted("mf"), tmp_path / "a")
    save(other, tmp_path / "b")
    with pytest.raises(DataError, match=f"other train interactions in {tmp_path / 'a'} than in {tmp_path / 'b'}"):
        blend([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(DataError, match="got other users in"):
        blend([fitted("mf"), fit(config("ease"), Dataset("more", make_split(generate(USERS + 9, ITEMS, seed=0))))])
    split = data().split
    swapped = Dataset("swapped", type(split)(split.train, split.test, split.valid, split.kind))
    with pytest.raises(DataError, match="got other valid interactions in"):
        blend([fitted("mf"), fit(config("ease"), swapped)])


def test_runs_that_do_not_go_together_are_refused(tmp_path):
    for other, message in (
        (fit(config("ease", k=7), data()), r"the same k, got 5 in run 1 \(mf\) and 7 in run 2 \(ease\)"),
        (fitted("ease", True), r"the same train.refit, got False in run 1 \(mf\) and True in run 2 \(ease\)"),
        (fit(config("ease", refit="all"), data()), r"run 2 \(ease\) was refitted on everything"),
        (blend([fitted("mf"), fitted("ease")], weights=[1, 1]), r"run 2 \(blend\) is a blend; give the runs"),
    ):
        with pytest.raises(ConfigError, match=message):
            blend([fitted("mf"), other])
    for too_few, message in (([], "got 0$"), ([tmp_path / "a"], "got 1$"), (str(tmp_path / "a"), "a'$")):
        with pytest.raises(ConfigError, match=f"must have a list of at least 2 runs, .*{message}"):
            blend(too_few)
    with pytest.raises(ConfigError, match=r"got Recommender as run 2; for a Recommender, pass its \.fitted"):
        blend([fitted("mf"), Recommender.of(fitted("ease"))])
    with pytest.raises(CheckpointError, match="does not exist"):
        blend([tmp_path / "a", tmp_path / "b"])
    save(fitted("mf"), tmp_path / "a")
    (tmp_path / "a" / "metrics.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished; finish it: topshelf train --resume"):
        blend([tmp_path / "a", fitted("ease")])


@pytest.mark.parametrize(
    "weights",
    [
        [],
        [1],
        [1, 2, 3],
        1,
        "12",
        ["1", "2"],
        [1, None],
        [0, 0],
        [1, -0.1],
        [1, float("nan")],
        [1, float("inf")],
        [1e300, 1],
    ],
)
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ConfigError, match="weights must"):
        blend([fitted("mf"), fitted("ease")], weights=weights)


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path):
    save(fitted("mf"), tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        blend([fitted("mf"), fitted("ease")], out=tmp_path)


def test_a_folder_that_holds_a_study_is_left_alone(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"holds a study; choose another --out, such as {tmp_path / 'best'}"):
        blend([fitted("mf"), fitted("ease")], out=tmp_path)
    with pytest.raises(ConfigError, match="holds a study"):
        fit(config("ease"), data(), out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["study.json"]


def test_a_blend_is_not_trained(tmp_path):
    remedy = "topshelf blend RUN RUN --out FOLDER"
    parts = {"weights": [1.0], "parts": [{"name": "mf"}]}
    for component in ({"name": "blend"}, {"name": "blend", **parts}):
        with pytest.raises(ConfigError, match=remedy):
            fit(make_config({"model": component}), data(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=remedy):
        Recommender(model="blend")
    with pytest.raises(ConfigError, match=remedy):
        Recommender(model={"name": "blend", **parts}).fit(data())
    blend([fitted("mf"), fitted("ease")], weights=[1, 1], out=tmp_path / "blend")
    (tmp_path / "blend" / "metrics.json").unlink()
    with pytest.raises(ConfigError, match=remedy):
        resume(tmp_path / "blend")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weights = [1.0, 0.5]", "weights = [1.0]", "weights must hold one number for each of the 2 parts, got"),
        ("weights = [1.0, 0.5]", "weights = [1.0, nan]", "weights must be numbers >= 0"),
        ("weights = [1.0, 0.5]", 'weights = [1.0, "much"]', "model.weights.1: "),
        ("weights = [1.0, 0.5]", "", "it must have every setting of the run, and has no model.weights"),
        ("weights = [1.0, 0.5]", "weights = [1e300, 0.5]", "weights must be numbers >= 0, at most 1e\\+06"),
        ("scales = [", "scales = [1e-320, 1.0] # ", "scales must be a number > 0 for each of the 2 parts"),
        ("scales = [", "scales = [0.0, ", "scales must be a number > 0 for each of the 2 parts"),
        ('name = "ease"', 'name = "eese"', "model.parts.1.name must be one of mf, .*got 'eese'"),
        ('name = "ease"', 'name = "os.system"', "model.parts.1.name must be a name or .*, got 'os.system'"),
        (
            'name = "ease"',
            'name = "os:system"',
            "model.parts.1.name must name a subclass of topshelf's Model, got .*os:system",
        ),
        ('name = "ease"', 'name = "blend"', "model.parts.1.name must be one of mf, .*got 'blend'"),
        ('name = "ease", ', "", "model.parts.1 must have the name of a model"),
        ('name = "ease"', 'name = "ease", depth = 3', "model.parts.1.depth is not a setting; accepted here: "),
        ("scales = ", "depth = 3\nscales = ", "model.depth is not a setting; accepted here: weights, parts, scales"),
        ("dim = 64", "dim = 32", "does not fit its config"),
        ("parts = [", "parts = [3, ", "model.parts.0: "),
    ],
)
@pytest.mark.filterwarnings("ignore:.*was edited after the run began")
def test_a_damaged_config_is_refused_with_what_is_wrong(old, new, message, tmp_path):
    blend([fitted("mf"), fitted("ease")], weights=[1, 0.5], out=tmp_path)
    text = (tmp_path / "config.toml").read_text()
    assert old in text
    (tmp_path / "config.toml").write_text(text.replace(old, new))
    with pytest.raises((ConfigError, CheckpointError), match=message):
        load(tmp_path)


@pytest.mark.filterwarnings("ignore:.*was edited after the run began")
def test_a_damaged_model_of_any_name_is_refused(tmp_path):
    for at, (old, new) in enumerate((('name = "mf"', 'name = "nothing"'), ("dim = 64", "dim = 64\ndepth = 3"))):
        save(fitted("mf"), tmp_path / str(at))
        file = tmp_path / str(at) / "config.toml"
        file.write_text(file.read_text().replace(old, new))
        with pytest.raises(ConfigError, match=r"model\.name must be one of|model\.depth is not a setting"):
            load(tmp_path / str(at))


def test_the_kept_config_is_plain_toml(tmp_path):
    done = blend([fitted("mf"), fitted("ease")], weights=[1, 0.5], out=tmp_path)
    written = read_config(tmp_path / "config.toml")
    assert written["model"]["weights"] == [1.0, 0.5]
    assert [part["name"] for part in written["model"]["parts"]] == ["mf", "ease"]
    assert make_config(written) == done.config


def test_a_blend_says_what_it_lacks_before_it_is_attached():
    model = Blend(3, 4, weights=[1.0, 2.0], parts=[{"name": "mf"}, {"name": "history"}])
    with pytest.raises(Exception, match="no histories yet"):
        vectors_of(model)
    attach(model, Ragged(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2])))
    queries, items = vectors_of(model)
    parts = [vectors_of(part) for part in model.parts]
    expected = parts[0][0] @ parts[0][1].T + 2 * parts[1][0] @ parts[1][1].T
    torch.testing.assert_close(queries @ items.T, expected)


def topshelf(*arguments, code=0):
    output, errors = run_topshelf(*arguments, code=code)
    return output if code == 0 else errors


def test_from_training_to_lists_on_the_command_line(tmp_path):
    short = ("--k", 5, "--quiet", "--set", "train.epochs=4", "--set", "train.validate_every=2")
    runs = [tmp_path / "history", tmp_path / "ease"]
    for run in runs:
        topshelf("train", "--data", "synthetic", "--model", run.name, *short, "--out", run)
    shown = topshelf("blend", *runs, "--out", tmp_path / "blend", "--quiet")
    kept = load(tmp_path / "blend")
    for run, weight in zip(runs, kept.config.model.settings["weights"], strict=True):
        valid = json.loads((run / "metrics.json").read_text())["valid"]["ndcg@5"]
        row = next(line for line in shown.splitlines() if str(run) in line)
        assert [cell.strip() for cell in row.split("│")[1:-1]] == [str(run), run.name, f"{weight:g}", f"{valid:.4f}"]
    assert f"{kept.valid_score:.4f}" in next(line for line in shown.splitlines() if line.startswith("│ blend"))
    assert "validation: users with nothing to find left out" in shown
    assert "blend on synthetic" in shown
    assert f"{kept.test.mean()['ndcg@5']:.4f}" in shown
    found = json.loads(topshelf("evaluate", tmp_path / "blend", "--json", "--against", runs[0]))
    assert found["mean"]["ndcg@5"] == kept.test.mean()["ndcg@5"]
    assert "score" in topshelf("recommend", tmp_path / "blend", "--user", 3)
    assert "score" in topshelf("recommend", tmp_path / "blend", "--items", "3,7")

    given = topshelf("blend", *itertools.chain(runs, runs[:1]), "--weights", "1,0.5,0", "--out", tmp_path / "given")
    assert load(tmp_path / "given").config.model.settings["weights"] == [1.0, 0.5, 0.0]
    assert "0.5" in given
    assert "one number per run, such as 1,0.1; got '1,x'" in topshelf(
        "blend", *runs, "--weights", "1,x", "--out", tmp_path / "more", code=2
    )
    assert "give --out FOLDER" in topshelf("blend", *runs, code=2)
    metrics = runs[1] / "metrics.json"
    metrics.write_text('{"valid": {"ndcg@5": "high"}}')
    assert "it has no checksum" in topshelf("blend", *runs, "--out", tmp_path / "more", code=2)
    metrics.write_text("{")
    assert "metrics.json is damaged" in topshelf("blend", *runs, "--out", tmp_path / "more", code=2)
    refused = topshelf("train", "--data", "synthetic", "--model", "blend", "--out", tmp_path / "more", code=2)
    assert "topshelf blend RUN RUN" in refused
    assert not (tmp_path / "more").exists()
