"""The best run for a budget: what is tried, that the test part is measured once, stops, kills, and wrong inputs."""

from __future__ import annotations

import json
import signal

import polars as pl
import pytest

from command_line import run_topshelf
from topshelf import Recommender, load
from topshelf.auto import auto, race
from topshelf.auto import candidates as candidates_module
from topshelf.auto import run as run_module
from topshelf.auto.budget import Clock, seconds_of, shown
from topshelf.auto.candidates import Candidate, candidates, expected_seconds, least_epoch_seconds
from topshelf.auto.finish import finished, parts
from topshelf.auto.race import Race, Runner
from topshelf.blending import blend
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split
from topshelf.errors import ConfigError, DataError, TopshelfWarning, TrainingError
from topshelf.models import MODELS
from topshelf.training import StoppedEarly, fit
from topshelf.training.tasks.interactions import InteractionsTask

FEW = [Candidate("item-kNN", "itemknn"), Candidate("EASE", "ease"), Candidate("popularity", "popularity")]


@pytest.fixture(scope="module")
def dataset():
    return Dataset("generated", make_split(generate(80, 50, interactions_per_user=10, seed=3), seed=0))


@pytest.fixture
def few(monkeypatch):
    """Three candidates that are fitted in a moment."""
    monkeypatch.setattr(run_module, "candidates", lambda k, split: FEW)


@pytest.mark.parametrize(
    ("given", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("45", 45), (30, 30), (2.5, 2.5)]
)
def test_budgets_are_times(given, seconds):
    assert seconds_of(given) == seconds


def test_times_are_shown_as_people_say_them():
    assert [shown(t) for t in (0, 0.034, 0.5, 1, 42, 600, 7200)] == [
        *("0 s", "0.1 s", "0.5 s", "1.0 s", "42 s", "10 min"), "2.0 h",
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["soon", "10 days", "-5m", "0", "nan", True, None, float("inf")])
def test_other_budgets_are_refused(given):
    with pytest.raises(ConfigError, match="budget must be"):
        seconds_of(given)


def test_data_with_nothing_to_recommend_are_refused_before_anything_is_fitted(few):
    frame = pl.DataFrame({"user": [u for u in range(12) for _ in range(9)], "item": [*range(9)] * 12})
    with pytest.raises(DataError, match="each of 12 users has all 9: there is nothing to recommend"):
        auto(frame, k=3, budget=1)
    found = auto(frame[:-1], k=3, budget=1)  # one user has one item less
    assert found.fitted.test_json()["mean"]


def rows_of(n_users, n_items, of_each, user="{}", item="{}", first=None):
    """Users with different items each, as text, and with times if the first is given."""
    pairs = [(u, (u * 7 + step * (step + u % 3)) % n_items) for u in range(n_users) for step in range(of_each)]
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row").unique(maintain_order=True)
    if first is not None:
        frame = frame.with_columns(timestamp=first + 86_400_000 * (pl.int_range(pl.len()) * 37 % 300))
    return frame.with_columns(pl.format(user, "user").alias("user"), pl.format(item, "item").alias("item"))


@pytest.mark.parametrize(
    "frame",
    [
        rows_of(30, 40, 8),
        rows_of(40, 12, 11),
        rows_of(60, 40, 10, first=1_700_000_000_000),
        rows_of(40, 30, 9, user="Žofia-{} 🎉", item="本 {}"),
    ],
    ids=["30 users", "dense", "times in milliseconds", "unicode"],
)
def test_unusual_data_become_a_run_that_lists_items_nobody_had(frame, tmp_path, few):
    recommender = Recommender.auto(frame, k=5, budget=1, out=tmp_path / "best")
    some = frame["user"].unique(maintain_order=True)[:5].to_list()
    listed = recommender.recommend(some, k=1)
    assert set(listed["user"]) <= set(some)
    pairs = set(frame.select("user", "item").iter_rows())
    assert listed.height > 0
    assert not pairs & set(listed.select("user", "item").iter_rows())


def test_repeated_rows_are_said_and_count_once(few):
    once = rows_of(40, 30, 8)
    with pytest.warns(TopshelfWarning, match="rows repeat a user and an item"):
        found = auto(pl.concat([once] * 3), k=5, budget=1)
    assert found.fitted.dataset.split.n_users == once["user"].n_unique()
    assert (
        sum(len(found.fitted.dataset.split.lists(part).indices) for part in ("train", "valid", "test")) == once.height
    )


@pytest.mark.parametrize(
    "frame", [rows_of(1, 60, 30), rows_of(200, 20, 1), rows_of(30, 1, 1)], ids=["one user", "one row each", "one item"]
)
def test_data_that_cannot_be_measured_are_refused_with_a_remedy(frame, few):
    with pytest.raises(DataError, match=r"leaves no test interactions.* Use more data"):
        auto(frame, k=3, budget=1)


def test_a_table_becomes_a_run_that_every_command_takes(tmp_path, few):
    rows = [(user, (user * 7 + step * step) % 40) for user in range(60) for step in range(9)]
    frame = pl.DataFrame(rows, schema=["buyer", "sku"], orient="row").unique()
    recommender = Recommender.auto(frame, k=5, budget=1, out=tmp_path / "best")
    table = recommender.recommend([1, 2], k=3)
    assert table.equals(Recommender.load(tmp_path / "best").recommend([1, 2], k=3))
    found = json.loads((tmp_path / "best" / "auto.json").read_text())
    assert {one["name"] for one in found["tried"]} == {one.name for one in FEW}
    metrics = json.loads((tmp_path / "best" / "metrics.json").read_text())
    assert metrics["refit"] == "all"
    assert metrics["test"]["ndcg@5"] > 0
    assert not (tmp_path / "best.auto").exists()
    assert "rows written" in run_topshelf("recommend", tmp_path / "best", "--out", tmp_path / "all.parquet")[0]
    assert pl.read_parquet(tmp_path / "all.parquet").height == 60 * 5


def test_the_test_part_is_measured_once_and_at_the_end(few, monkeypatch, tmp_path):
    measured, measure = [], InteractionsTask.measure

    def watched(self, model, part, *given, **more):
        measured.append(part)
        return measure(self, model, part, *given, **more)

    monkeypatch.setattr(InteractionsTask, "measure", watched)
    auto("synthetic", k=5, budget=1)
    assert measured.count("test") == 1
    assert measured.index("test") == len(measured) - 1


def runner_of(model, dataset, seconds=0.0):
    config = assemble(data="generated", model=model, loss="softmax", k=5)
    fitted = fit(config, dataset)
    score = fitted.evaluate(part="valid").mean()["ndcg@5"]
    return Runner(Candidate(model, model), config, score, seconds, 1, seconds)


def test_the_result_is_the_blend_of_its_parts(dataset):
    """By the other way: runs refitted on validation, blended by ``topshelf blend``."""
    chosen = [runner_of(model, dataset) for model in ("ease", "itemknn")]
    fitted, weights = finished(chosen, dataset, lambda line: None)
    runs = [
        fit(assemble(data="generated", model=model, loss="softmax", k=5, more={"train": {"refit": True}}), dataset)
        for model in ("ease", "itemknn")
    ]
    expected = blend(runs)
    assert weights == pytest.approx(expected.config.model.settings["weights"])
    assert fitted.measured["mean"]["ndcg@5"] == pytest.approx(expected.evaluate().mean()["ndcg@5"])
    assert fitted.valid_score == pytest.approx(expected.valid_score)
    assert fitted.through == "all"


def test_parts_are_of_several_families_as_far_as_the_time_goes(dataset):
    scores = {"mf": 0.5, "ials": 0.45, "ease": 0.4, "slim": 0.39, "history": 0.3, "popularity": 0.1}
    ranked = [Runner(Candidate(name, name), None, score, 1.0) for name, score in scores.items()]
    names = [one.candidate.model for one in parts(ranked, Clock(1000), is_hurried=False)]
    assert names == ["mf", "ease", "history", "ials"]
    assert [one.candidate.model for one in parts(ranked, Clock(1000), is_hurried=True)] == ["mf"]
    ranked.insert(0, ranked.pop())  # popularity is in a blend only where nothing is better
    assert parts(ranked, Clock(1000), is_hurried=True)[0].candidate.model == "popularity"
    ranked.append(ranked.pop(0))
    assert [one.candidate.model for one in parts(ranked, Clock(7.5), is_hurried=False)] == ["mf", "ease"]


def test_the_candidates_are_those_of_the_issue_and_the_long_ones_are_known_before(dataset):
    found = candidates(7, dataset.split)
    assert [one.name for one in found][-1] == "history, SL@7"
    assert {one.model for one in found} == {
        *("popularity", "itemknn", "rp3beta", "graph_filter", "ials", "ease", "sparse_ease", "slim", "mf", "history")
    }
    assert expected_seconds(Candidate("x", "ease"), dataset.split) < 1
    assert expected_seconds(Candidate("x", "mf", "softmax"), dataset.split) is None
    assert expected_seconds(Candidate("x", "itemknn"), dataset.split) is None  # short
    large = make_split(generate(300, 6000, interactions_per_user=200, blocks=1), seed=0)
    for model in ("itemknn", "rp3beta", "graph_filter"):
        assert 0.01 < expected_seconds(Candidate("x", model), large) < 600
    assert 0 < least_epoch_seconds(64, dataset.split) < least_epoch_seconds(64, large)


def test_a_model_with_another_loss_joins_a_blend_last():
    entrants = [
        *(Candidate("a", "mf", "softmax"), Candidate("b", "mf", "slatk"), Candidate("c", "history", "softmax")),
        *(Candidate("d", "history", "slatk"), Candidate("e", "slim"), Candidate("f", "ials"), Candidate("g", "slim")),
    ]
    ranked = [Runner(one, None, 1.0 - place / 10, 1.0) for place, one in enumerate(entrants)]
    assert "".join(one.candidate.name for one in race.blend_order(ranked)) == "acefbdg"


def test_the_time_for_the_result_is_that_of_the_parts_that_will_be_blended(dataset, tmp_path):
    scores = {"slim": 0.5, "ease": 0.49, "itemknn": 0.48, "rp3beta": 0.47, "mf": 0.3}
    running = Race([], dataset, configured, tmp_path, Clock(1000), lambda line: None)
    running.runners = [
        Runner(Candidate(name, name), None, score, 10.0 if name == "mf" else 1.0) for name, score in scores.items()
    ]
    assert [one.candidate.model for one in race.blend_order(running.ranked())] == [
        *("slim", "mf", "ease", "itemknn", "rp3beta")
    ]
    assert running.reserve() == pytest.approx(race.MARGIN * race.FITS * 13.0)


@pytest.mark.parametrize(("free", "limit"), [(64e9, None), (4.5e9, 3e9), (1e9, 8e8), (1e6, 1e8)])
def test_item_item_models_have_a_limit_of_the_free_memory(free, limit, dataset, monkeypatch):
    monkeypatch.setattr(candidates_module, "available", lambda: free)
    found = {one.model: one.settings for one in candidates(7, dataset.split)}
    assert found["ease"] == ({} if limit is None else {"model": {"memory": pytest.approx(limit)}})
    assert found["ials"] == {}
    for model, most in candidates_module._MEMORY.items():
        assert MODELS[model](5, 5).memory == most


def configured(candidate, more):
    return assemble(data="generated", model=candidate.model, loss=candidate.loss or "softmax", k=5, more=more)


def test_what_cannot_be_fitted_is_left_out_with_its_reason(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(race, "ROUNDS", 0)
    monkeypatch.setattr(race, "expected_seconds", lambda one, split: 1e6 if one.model == "slim" else None)
    broken = Candidate("broken", "ease", settings={"model": {"l2": -1}})
    entrants = [FEW[0], broken, Candidate("SLIM", "slim")]
    running = Race(
        entrants,
        dataset,
        lambda one, more: configured(one, {**one.settings, **more}),
        tmp_path,
        Clock(1000.0),
        lambda line: None,
    )
    running.run()
    notes = {one.candidate.name: one.note for one in running.runners}
    assert notes["broken"].startswith("left out: ")
    assert "l2" in notes["broken"]
    assert "one fit takes about 277.8 h" in notes["SLIM"]
    assert [one.candidate.name for one in running.ranked()] == ["item-kNN"]


def test_a_trained_candidate_gets_the_epochs_that_its_share_allows(dataset, tmp_path, monkeypatch):
    trained = Candidate("MF", "mf", "softmax", {"model": {"dim": 8}, "train": {"epochs": 120}})
    running = Race([trained], dataset, lambda one, more: configured(one, more), tmp_path, Clock(100), lambda line: None)
    monkeypatch.setattr(running, "_epoch_seconds", lambda one: 2.0)
    assert running._timed(trained, 100.0).train.epochs == 12  # a fourth of 100 s, because there is nothing yet
    running.runners.append(Runner(Candidate("EASE", "ease"), None, 0.2, 1.0))
    assert running._timed(trained, 100.0).train.epochs == 10  # a fifth
    with pytest.raises(
        TrainingError, match=r"an epoch takes 2\.0 s, and 6 must fit into its share of the budget, which is 5\.0 s"
    ):
        running._timed(trained, 25.0)


def test_ials_has_as_many_iterations_as_the_time_allows(dataset, tmp_path, monkeypatch):
    one = Candidate("iALS", "ials")
    running = Race([one], dataset, configured, tmp_path, Clock(100), lambda line: None)
    monkeypatch.setattr(race, "iteration_seconds", lambda dim, split: 1.0)
    settings = [running._timed(one, spare).model.settings for spare in (1000.0, 20.0, 8.0)]
    assert [one.get("iterations") for one in settings] == [None, 5, 2]  # None: the model's own 16
    with pytest.raises(TrainingError, match=r"2 iterations take about 2\.0 s, and its share of the budget is 1\.8 s"):
        running._timed(one, 7.0)


def test_the_first_evaluation_of_a_process_does_not_count_as_the_time_of_a_model(dataset, tmp_path, monkeypatch):
    first = Candidate("popularity", "popularity")
    running = Race([first], dataset, configured, tmp_path, Clock(100), lambda line: None)
    fitted = fit(configured(first, {}), dataset)
    monkeypatch.setattr(race, "fit", lambda config, data: fitted)
    monkeypatch.setattr(type(fitted), "evaluate", lambda self, part: Evaluated())
    times = iter([0.0, 60.0, 60.0, 60.5])  # it compiles for a minute, once
    monkeypatch.setattr(race.time, "perf_counter", lambda: next(times))
    running._measure(running.runners[0])
    assert (running.runners[0].trial_seconds, running.runners[0].seconds) == (0.5, 60.5)
    assert running.runners[0].last_seconds == pytest.approx(race.MARGIN * race.FITS * 0.5)
    assert running.reserve() == 0.0  # no time is kept for popularity: what comes next takes its place


class Evaluated:
    def mean(self):
        return {"ndcg@5": 0.25}


@pytest.mark.parametrize("is_between", [False, True], ids=["in a search", "between two"])
def test_asked_to_stop_it_leaves_the_best_so_far(few, monkeypatch, tmp_path, is_between):
    calls, tune = [], race.tune

    def stopped(*given, **more):
        calls.append(more)
        if len(calls) > 2 and not is_between:
            raise StoppedEarly("asked to stop")
        found = tune(*given, **more)
        if len(calls) == 2 and is_between:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(race, "tune", stopped)
    found = auto("synthetic", k=5, budget=200, out=tmp_path / "best")
    assert sum(one.weight > 0 for one in found.tried) == 1
    assert "the best when the search was stopped" in found.why()[0]
    assert load(tmp_path / "best").is_finished


def test_stopped_before_anything_was_measured_it_says_so(few, monkeypatch, tmp_path):
    monkeypatch.setattr(race.Race, "_first", lambda *given: signal.raise_signal(signal.SIGINT))
    with pytest.raises(StoppedEarly, match="stopped before a candidate was measured"):
        auto("synthetic", k=5, budget=200, out=tmp_path / "best")
    assert not (tmp_path / "best").exists()


@pytest.mark.slow
def test_after_a_kill_it_goes_on_with_what_is_left(few, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "finished", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            auto("synthetic", k=5, budget=2, out=tmp_path / "best")
    kept = json.loads((tmp_path / "best.auto" / "auto.json").read_text())
    assert kept["spent"] > 0
    assert not (tmp_path / "best").exists()
    trials = []
    tune = race.tune
    monkeypatch.setattr(race, "tune", lambda *given, **more: trials.append(more["timeout"]) or tune(*given, **more))
    found = auto("synthetic", k=5, budget=2, out=tmp_path / "best")
    assert race.NO_TIME in trials  # the searches were read, not begun again
    assert found.spent > kept["spent"]
    assert (tmp_path / "best" / "auto.json").exists()


def test_another_search_in_the_folder_is_refused(few, tmp_path):
    work = tmp_path / "best.auto"
    run_module._state(work, {"k": 5, "seed": 0, "source": "synthetic", "settings": {}})
    with pytest.raises(ConfigError, match=r"has a search with k = 5, got 6; go on with the same"):
        auto("synthetic", k=6, budget=2, out=tmp_path / "best")
    (work / "auto.json").write_text("{}")
    with pytest.raises(Exception, match="it has no checksum"):
        auto("synthetic", k=5, budget=2, out=tmp_path / "best")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x"], "give --data PATH|NAME"),
        (["--data", "synthetic"], "give --out FOLDER"),
        (["--data", "synthetic", "--out", "x", "--budget", "soon"], "budget must be a time such as 90s, 10m or 2h"),
        (
            ["--data", "synthetic", "--out", "x", "--set", "model.name=ease"],
            "must be of data, evaluate or train, got model",
        ),
        (["--data", "nothing.csv", "--out", "x"], "nothing.csv"),
        (["--data", "synthetic", "--out", "x", "--k", "801"], "k must be <= 800 (synthetic has 800 items), got 801"),
        (["--data", "cora", "--out", "x"], "use topshelf train --task links --data cora"),
    ],
)
def test_wrong_inputs_are_one_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in run_topshelf("auto", *arguments, code=2)[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_line_shows_what_was_tried_and_why(few, tmp_path):
    output, progress = run_topshelf(
        "auto", "--data", "synthetic", "--k", "5", "--budget", "1s", "--out", tmp_path / "b"
    )
    for one in FEW:
        assert one.name in output
        assert f"{one.name}: " in progress
    assert "on validation" in output
    assert "before it was refitted on everything" in output
