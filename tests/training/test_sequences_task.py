"""The task of next items: runs, their folders, and lists in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext

import polars as pl
import pytest
import torch

from runs import StopAfter, assert_same, state_of
from topshelf.artifact import Artifact
from topshelf.config import make_config, merged
from topshelf.data import Interactions
from topshelf.data.sequence_data import SequenceData, cut, load_sequences
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfWarning
from topshelf.losses import LOSSES
from topshelf.models import SEQUENCE_MODELS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.recommender import Recommender
from topshelf.training import StoppedEarly, checkpoint, fit, load, resume
from topshelf.training import phases as phases_module
from topshelf.training.build import resolve
from topshelf.training.folder import RunFolder
from topshelf.training.tasks import SequencesTask

N_ITEMS = 40
SMALL = {
    "task": "sequences",
    "k": 5,
    "model": {"name": "sasrec", "dim": 16, "max_length": 6},
    "train": {"epochs": 4, "batch_size": 16, "validate_every": 2, "checkpoint_seconds": 0.0},
    "evaluate": {"cutoffs": [5, 10]},
}
COMMAND = [sys.executable, "-c", "from topshelf.cli import main; main()"]


def circles(n_users: int = 80, seed: int = 0) -> Interactions:
    """Users who go round a circle of items, one or two steps at a time: the next item depends on the last two."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for user in range(n_users):
        place, length, step = (int(torch.randint(n, (), generator=generator)) for n in (N_ITEMS, 8, 2))
        for t in range(length + 5):
            rows.append((user, place, t))
            place = (place + step + 1) % N_ITEMS
    return Interactions.from_frame(pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row"))


@pytest.fixture(scope="module")
def data() -> SequenceData:
    return cut(circles(), "circles")


def config(**settings):
    return make_config(merged(SMALL, settings))


def lists(*some: list[int]) -> Ragged:
    return Ragged(torch.tensor([0, *map(len, some)]).cumsum(0), torch.tensor([item for one in some for item in one]))


@pytest.mark.parametrize(
    "model", ["sasrec", *(pytest.param(name, marks=pytest.mark.slow) for name in ("esasrec", "gru4rec"))]
)
def test_networks_learn_what_comes_next(model, data):
    settings = {"name": model, "dim": 32, "max_length": 6, "dropout": 0.1}
    train = {"epochs": 60, "batch_size": 16, "learning_rate": 0.005, "validate_every": 10}
    fitted = fit(config(model=settings, loss={"name": "slatk", "tau": 0.1}, train=train), data)
    with torch.no_grad():
        queries, items = fitted.model.encode(QuerySet(sequence=lists([3, 4, 5, 6], [3, 5, 7, 9], [20, 21, 22])))
        best = (queries @ items.T).topk(2, dim=1).indices
    for row, wanted in enumerate((7, 11, 23)):  # by one or by two: what came before says it
        assert wanted in best[row].tolist()
    assert fitted.evaluate().mean()["hit_rate@5"] > 0.6
    untrained = fit(config(model=settings, train={"epochs": 1, "learning_rate": 1e-9}), data)
    assert untrained.evaluate().mean()["hit_rate@5"] < 0.4


@pytest.mark.parametrize("name", SEQUENCE_MODELS)
def test_every_model_runs_is_kept_and_recommends(name, data, tmp_path):
    fitted = fit(make_config(merged({**SMALL, "model": {"name": name}}, {})), data, out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.evaluate().mean() == fitted.evaluate().mean()
    first, second = Recommender.of(fitted), Recommender.load(tmp_path / "run")
    assert first.recommend().equals(second.recommend())
    if {"sequence", "history"} & SEQUENCE_MODELS[name].takes:
        news = [[3, 4, 5], [5, 4, 3]]
        assert first.recommend_new(news).equals(second.recommend_new(news))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_positions(name, data):
    settings = {"loss": {"name": name}, "train": {"epochs": 1, "validate_every": 1}}
    if name == "directau":
        settings["model"] = {"score": "cosine"}
    fitted = fit(config(**settings), data)
    untrained = fit(config(**merged(settings, {"train": {"learning_rate": 1e-12}})), data).model.state_dict()
    moved = [not torch.allclose(value, untrained[key]) for key, value in fitted.model.state_dict().items()]
    assert any(moved) or name in ("advinfonce",)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"threshold": {"of": "user"}}, marks=pytest.mark.slow),
        {"threshold": {"of": "batch"}},
        {
            "threshold": {"of": "user", "estimator": "sampled", "every": 2, "n": 20},
            "negatives": {"kind": "shared", "n": 9},
        },
        pytest.param({"threshold": {"estimator": "incremental"}}, marks=pytest.mark.slow),
        {"loss": {"name": "bce"}, "train": {"refit": True}},
        pytest.param({"loss": {"name": "sogclr"}}, marks=pytest.mark.slow),
        {"model": {"name": "gru4rec", "dim": 8, "hidden": 8}, "loss": {"name": "gbce"}, "train": {"refit": "all"}},
        {"model": {"name": "esasrec"}, "loss": {"name": "softmax"}, "negatives": {"kind": "in_batch"}},
        {"model": {"name": "history", "dim": 8}},
    ],
    ids=lambda settings: "-".join(str(v) for part in settings.values() for v in part.values()) or "slatk",
)
def test_stopped_in_the_middle_of_an_epoch_and_resumed(tmp_path, data, settings, monkeypatch):
    chosen = config(**settings)
    fit(chosen, data, out=tmp_path / "whole")
    monkeypatch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(StopAfter(7)))
    with pytest.raises(StoppedEarly):
        fit(chosen, data, out=tmp_path / "stopped")
    monkeypatch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(StopAfter(10**9)))
    resume(tmp_path / "stopped")
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "stopped"))


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_bits(tmp_path):
    circles(300).to_frame(events=True).write_csv(tmp_path / "events.csv")
    options = ["--task", "sequences", "--data", str(tmp_path / "events.csv"), "--k", "5"]
    for setting in ("model.dim=16", "train.epochs=12", "train.checkpoint_seconds=0", "train.patience=0"):
        options += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    train = [*COMMAND, "train", "--quiet"]
    subprocess.run([*train, *options, "--out", str(tmp_path / "whole")], check=True, env=environment, timeout=300)
    running = subprocess.Popen([*train, *options, "--out", str(tmp_path / "killed")], env=environment)
    made, deadline = tmp_path / "killed" / "checkpoint.safetensors", time.time() + 120
    while not made.exists() and running.poll() is None and time.time() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert made.exists()
    assert not RunFolder(tmp_path / "killed").is_finished
    subprocess.run([*train, "--resume", str(tmp_path / "killed")], check=True, env=environment, timeout=300)
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "killed"))


# Lists


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(config(train={"epochs": 20, "learning_rate": 0.01}), data, out=out)
    return out


def test_the_order_of_new_items_is_kept(run):
    recommender = Recommender.load(run)
    forth, back = (recommender.recommend_new([items], k=10)["score"] for items in ([3, 4, 5], [5, 4, 3]))
    assert not forth.equals(back)
    sequence = QuerySet(sequence=lists([3, 4, 5]))
    ranked = Artifact.open(run).rank(sequence, 10, exclude=sequence.sequence)
    assert recommender.recommend_new([[3, 4, 5]], k=10)["item"].to_list() == ranked.items[0].tolist()


def test_new_items_of_a_known_user_come_after_those_it_has(run, data):
    recommender, has = Recommender.load(run), data.split.sequences("all").slice(7, 8).indices.tolist()
    known = recommender.recommend_new({7: [1, 2]}, k=8)
    new = recommender.recommend_new([[*has, 1, 2]], k=8)
    assert known["item"].equals(new["item"])
    assert recommender.recommend([7], k=8)["item"].equals(recommender.recommend_new([has], k=8)["item"])


def test_known_users_are_served_from_all_their_events_and_not_what_they_had(run, data):
    table = Recommender.load(run).recommend(k=10)
    seen = {
        (user, item) for user in range(80) for item in data.split.sets("all").slice(user, user + 1).indices.tolist()
    }
    assert not seen & set(table.select("user", "item").rows())
    kept = Recommender.load(run).recommend(k=10, filter_seen=False)
    assert seen & set(kept.select("user", "item").rows())


def test_items_may_come_again_where_the_run_says_so(data, tmp_path):
    repeated = cut(circles(), "circles", exclude_seen=False)
    fitted = fit(config(data={"exclude_seen": False}), repeated)
    table = Recommender.of(fitted).recommend(k=10)
    seen = {
        (user, item) for user in range(80) for item in data.split.sets("all").slice(user, user + 1).indices.tolist()
    }
    assert seen & set(table.select("user", "item").rows())
    assert fitted.evaluate().protocol == "next-item"


# What is measured


def rows(*some: tuple) -> Interactions:
    return Interactions.from_frame(pl.DataFrame(list(some), schema=["user", "item", "timestamp"], orient="row"))


def test_a_repeat_is_a_miss_that_is_said_and_can_be_found_if_items_may_come_again():
    events = [(user, item, t) for user in range(6) for t, item in enumerate([user, 7, 8, user])]
    events += [(9, item, t) for t, item in enumerate([1, 2, 3, 4])]
    without, among = cut(rows(*events), "repeats"), cut(rows(*events), "repeats", exclude_seen=False)
    assert any("6 of 7 test events are of items that the user had before" in note for note in without.notes)
    assert not any("had before" in note for note in among.notes)
    evalset = SequencesTask(without).evaluation("test", "sequence")
    assert evalset.relevant.counts.tolist() == [0] * 6 + [1]
    assert evalset.evaluated.tolist() == list(range(7))  # misses count
    evalset = SequencesTask(among).evaluation("test", "sequence")
    assert evalset.relevant.counts.tolist() == [1] * 7
    assert evalset.exclude is None


def test_the_test_is_asked_with_the_validation_event_known(data):
    task = SequencesTask(data)
    before = task.evaluation("test", "sequence").queries.sequence
    assert before.counts.tolist() == (data.split.sequences("all").counts - 1).tolist()
    assert task.evaluation("valid", "sequence").queries.sequence.counts.equal(before.counts - 1)
    exclude = task.evaluation("test", "sequence").exclude
    assert exclude.indices.equal(task.evaluation("test", "history").queries.history.indices)


def test_hits_and_ndcg_are_those_of_full_lists(data):
    fitted = fit(config(), data)
    found = fitted.evaluate(cutoffs=(5,)).mean()
    asked = data.split.asked("test")
    with torch.no_grad():
        queries, items = fitted.model.encode(QuerySet(sequence=data.split.before(asked)))
        scores = queries @ items.T
    for row in range(len(asked.rows)):
        before = data.split.before(asked).slice(row, row + 1).indices
        if asked.item[row] not in before:
            scores[row, before] = -torch.inf
    place = (scores > scores[torch.arange(len(asked.rows)), torch.from_numpy(asked.item)].unsqueeze(1)).sum(1)
    repeats = torch.from_numpy(data.split.is_repeat(asked))
    is_hit = (place < 5) & ~repeats
    assert found["hit_rate@5"] == pytest.approx(is_hit.double().mean().item())
    assert found["ndcg@5"] == pytest.approx((is_hit / torch.log2(place + 2.0)).double().mean().item())
    assert found["mrr@5"] == pytest.approx((is_hit / (place + 1.0)).double().mean().item())


# Thresholds


def test_thresholds_of_positions_are_their_kth_best_scores(data):
    fitted_config = resolve(config(threshold={"every": 1}, model={"dropout": 0.0}))
    task = SequencesTask(data)
    model = task.model(fitted_config)
    objective = task.objective(fitted_config, model, "train")
    generator = torch.Generator().manual_seed(0)
    objective.hooks[0].begin_epoch(1, model, generator)
    batch = next(iter(objective.batches.epoch(generator)))
    encoded = objective.backward(batch, generator).encoded
    expected = (encoded.queries @ encoded.items.T).topk(5, dim=1).values[:, -1]
    torch.testing.assert_close(objective.loss.threshold[batch.query], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("negatives", ["catalogue", "shared"])
def test_a_users_threshold_is_the_mean_of_its_positions(data, negatives):
    settings = {"model": {"dropout": 0.0}, "negatives": {"kind": negatives}}
    chosen = resolve(config(threshold={"every": 1, "of": "user"}, **settings))
    task = SequencesTask(data)
    model = task.model(chosen)
    objective = task.objective(chosen, model, "train")
    generator = torch.Generator().manual_seed(0)
    objective.hooks[0].begin_epoch(1, model, generator)
    batch = objective.batches.whole()
    encoded = objective.backward(batch, generator).encoded
    kth = (encoded.queries @ encoded.items.T).topk(5, dim=1).values[:, -1]
    for user in (0, 33, 79):
        torch.testing.assert_close(
            objective.loss.threshold[user], kth[batch.query == user].mean(), rtol=1e-4, atol=1e-5
        )


def test_thresholds_of_the_batch_need_the_whole_catalogue(data):
    with pytest.raises(ConfigError, match=r"threshold\.of = 'batch'"):
        fit(config(threshold={"of": "batch"}, negatives={"kind": "shared", "n": 9}), data)
    with pytest.raises(ConfigError, match="keeps no state"):
        fit(config(threshold={"of": "batch"}, loss={"name": "sogclr"}), data)


# Wrong inputs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"split": "ratio"}}, "data.split"),
        ({"data": {"targets": "last"}}, "data.targets"),
        ({"threshold": {"of": "item"}}, "threshold.of"),
        ({"data": {"noise": 0.1}}, "data.noise is not a setting"),
        ({"model": {"name": "lightgcn"}}, "model.name must be one of sasrec"),
        ({"model": {"name": "sasrec", "heads": 3}}, "heads must divide dim"),
    ],
)
def test_wrong_settings_are_refused(settings, message, data):
    with pytest.raises(ConfigError, match=message):
        fit(config(**settings), data)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("user,item\n1,2\n1,3\n1,4\n", {}, "sequences need an order"),
        ("user,item,time\n1,2,3\n1,3,4\n", {}, "no user has the 3 events"),
        ("a b c\nd e f g\n", {}, "data.format = 'lines'"),
        ("a\nb\n", {"format": "lines"}, "must have a user and then its items"),
        ("1 2 3 4\n2 3 4 5 6\n", {"user": "who"}, "no columns"),
    ],
)
def test_files_that_are_no_sequences_are_refused(text, settings, message, tmp_path):
    (tmp_path / "data.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_sequences(tmp_path / "data.txt", **settings)


def test_sets_that_are_split_already_are_refused():
    with pytest.raises(ConfigError, match="comes as sets of items already split"):
        load_sequences("movielens-100k")


def test_times_and_an_order_of_the_file_contradict(tmp_path):
    (tmp_path / "data.csv").write_text("user,item,time\n1,2,3\n1,3,4\n1,5,1\n1,6,0\n")
    with pytest.raises(ConfigError, match=r"data\.order = 'file' is for rows without times"):
        load_sequences(tmp_path / "data.csv", order="file")


def test_what_is_left_out_is_said(tmp_path):
    (tmp_path / "data.txt").write_text("1 2 3 4 5\n2 9\n3 4 5 6\n")
    chosen = config(data={"source": str(tmp_path / "data.txt")}, k=2, evaluate={"cutoffs": [2]})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(chosen)
    notes = [str(one.message) for one in said if issubclass(one.category, TopshelfWarning)]
    assert notes[0].startswith("1 users with fewer than 3 events, who are in train whole")
    assert notes[1].startswith("2 users with a single event in train")
    assert notes[2].startswith("3 held-out events of items that train does not know, which are counted as misses")


@pytest.mark.parametrize("name", ["indices", "train_end", "valid_end", "left_out", "notes", "targets", "exclude_seen"])
def test_damaged_data_of_a_run_are_refused(name, data, tmp_path):
    fit(config(train={"epochs": 1}), data, out=tmp_path / "run")
    path = tmp_path / "run" / "sequences.safetensors"
    state = checkpoint.load(path)
    state[name] = state[name] - 50 if isinstance(state[name], torch.Tensor) and name != "left_out" else "wrong"
    checkpoint.save(path, state)
    with pytest.raises(CheckpointError, match="checksum"):
        load(tmp_path / "run")
    with pytest.raises(CheckpointError, match="do not fit together"):
        SequencesTask.read(_Unchecked(tmp_path / "run"), config())


class _Unchecked(RunFolder):
    """A folder whose checksums somebody made anew."""

    def check_data_files(self, *paths) -> None:
        pass
