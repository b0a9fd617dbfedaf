"""A study from beginning to end: its budget, its first trial, its pruning, its folder, and what it never reads."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from optuna.study import Study
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from topshelf.config import make_config, read_config
from topshelf.data import generate
from topshelf.errors import CheckpointError, ConfigError, DataError, TrainingError
from topshelf.evaluation import ndcg
from topshelf.files import write_sealed
from topshelf.models import IALS, MODELS
from topshelf.training import StoppedEarly, fit
from topshelf.training.build import resolve
from topshelf.tuning import queue, resume, storage, tune
from topshelf.tuning import study as study_module
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.runner import Runner
from vectors import vectors_of


def without_seconds(found):
    return [replace(row, seconds=0.0) for row in found.rows]


def test_the_first_trial_is_the_defaults_and_the_best_is_the_highest_complete_one(config, dataset):
    found = tune(config, dataset, trials=8)
    assert [row.number for row in found.rows] == list(range(8))
    assert found.rows[0].is_default
    assert found.rows[0].state == "complete"
    assert found.rows[0].settings == {
        "train.learning_rate": 0.1,
        "train.weight_decay": 0.0,
        "loss.tau": 0.2,
        "loss.tau_weight": 3.0,
        "threshold.every": 5,
    }
    complete = [row for row in found.rows if row.state == "complete"]
    assert found.best.score == max(row.score for row in complete)
    assert found.best.score >= found.default.score > 0
    assert len({tuple(row.settings.values()) for row in found.rows}) == 8


def test_a_trial_scores_what_the_same_config_scores_in_training(config, dataset):
    found = tune(config, dataset, trials=3)
    fitted = fit(found.config, dataset)
    assert fitted.valid_score == pytest.approx(found.best.score, abs=1e-12)
    assert fitted.best_epoch == found.best.best_epoch


def test_hyperband_stops_trials_that_are_behind_and_leaves_the_defaults_alone(small, dataset):
    # The defaults learn nothing; whatever learns overtakes them at once.
    found = tune(
        small({"train": {"learning_rate": 1e-9}}), dataset, trials=15, ranges={"train.learning_rate": [1e-9, 1e-8, 0.1]}
    )
    pruned = [row for row in found.rows if row.state == "pruned"]
    assert pruned
    assert all(row.epochs < 9 for row in pruned)
    assert all(list(row.history) == list(range(1, row.epochs + 1)) for row in pruned)
    assert found.rows[0].state == "complete"
    assert found.rows[0].epochs == 9
    assert found.best.settings["train.learning_rate"] == 0.1


def test_the_search_is_decided_by_the_seed(config, small, dataset):
    first, again = tune(config, dataset, trials=4), tune(config, dataset, trials=4)
    assert without_seconds(first) == without_seconds(again)
    other = tune(small({"seed": 1}), dataset, trials=4)
    assert [row.settings for row in other.rows] != [row.settings for row in first.rows]


def test_tpe_finds_the_better_region(small, dataset, only_tau):
    ranges = {**only_tau, "train.learning_rate": "1e-6:1:log", "loss.tau": None}
    found = tune(small({"train": {"learning_rate": 1e-6}}), dataset, trials=24, ranges=ranges)
    early = [math.log10(row.settings["train.learning_rate"]) for row in found.rows[1:11]]
    late = [math.log10(row.settings["train.learning_rate"]) for row in found.rows[14:]]
    good = math.log10(found.best.settings["train.learning_rate"])
    assert sum(abs(x - good) for x in late) / len(late) < 0.7 * sum(abs(x - good) for x in early) / len(early)


def test_a_grid_tries_every_point_once(config, dataset, only_tau):
    found = tune(config, dataset, trials=30, sampler="grid", ranges={**only_tau, "model.score": ["dot", "cosine"]})
    points = {(row.settings["loss.tau"], row.settings["model.score"]) for row in found.rows}
    assert len(found.rows) == len(points) == found.budget.trials == 10
    assert found.sampler == "grid"


def test_a_budget_for_every_point_is_spent_on_every_point(config, dataset, only_tau):
    found = tune(config, dataset, trials=5, ranges=only_tau)
    assert sorted(row.settings["loss.tau"] for row in found.rows) == [0.01, 0.05, 0.1, 0.2, 0.5]


@pytest.mark.parametrize("timeout", [1e-9, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_budget_that_is_raised_to_every_point_is_spent_on_every_point(dataset, tmp_path, seed, timeout):
    config = make_config({"k": 5, "seed": seed, "model": {"name": "ease"}})
    tune(config, dataset, trials=13, out=tmp_path / "study", timeout=timeout)
    found = resume(tmp_path / "study", trials=30)
    points = [row.settings["model.l2"] for row in found.rows if row.state == "complete"]
    assert len(points) == len(set(points)) == len(MODELS["ease"].ranges["model.l2"]) == 14


def test_a_closed_form_model_is_tuned_without_epochs(dataset):
    config = make_config({"k": 5, "model": {"name": "ease"}})
    found = tune(config, dataset, trials=4, ranges={"model.l2": "1:1000:log"})
    assert [row.state for row in found.rows] == ["complete"] * 4
    assert found.rows[0].settings == {"model.l2": 300.0}
    assert found.budget.epochs == found.budget.spent_epochs == 0
    assert "fitted in closed form" in str(found.budget)
    model = fit(found.config, dataset).model
    parts = [getattr(dataset.split, name).ragged() for name in ("valid", "train")]
    assert found.best.score == pytest.approx(ndcg(*vectors_of(model), *parts, 5), abs=1e-12)


def test_the_budget_is_stated(config, dataset):
    found = tune(config, dataset, trials=4)
    budget = found.budget
    assert budget.trials == sum(budget.spent.values()) == 4
    assert budget.spent_epochs == sum(row.epochs for row in found.rows)
    assert budget.spent_seconds == pytest.approx(sum(row.seconds for row in found.rows), abs=0.01)
    assert str(budget).startswith("budget: 4 trials of at most 9 epochs, the first with the defaults; spent: ")


class Untouchable:
    """Any look at it is an error."""

    def __getattribute__(self, name):
        raise AssertionError(f"the test part was touched: {name}")


def test_tuning_never_touches_the_test_part(config, dataset, tmp_path):
    blind = replace(dataset, split=replace(dataset.split, test=Untouchable()))
    with pytest.raises(AssertionError, match="the test part was touched"):
        fit(config, blind)
    found = tune(config, blind, trials=3, out=tmp_path / "study")
    assert without_seconds(found) == without_seconds(tune(config, dataset, trials=3))


def test_a_study_goes_on_with_its_test_file_and_its_data_gone(small, tmp_path):
    frame = generate(60, 40, interactions_per_user=8, seed=3).to_frame().select("user", "item")
    source = tmp_path / "given"
    source.mkdir()
    frame.filter(frame["item"] % 4 != 0).write_csv(source / "train.tsv", separator="\t")
    frame.filter(frame["item"] % 4 == 0).write_csv(source / "test.tsv", separator="\t")
    tune(small({"data": {"source": str(source)}}), trials=1, out=tmp_path / "study")
    (source / "test.tsv").unlink()
    assert len(resume(tmp_path / "study", trials=2).rows) == 2
    (source / "train.tsv").unlink()
    assert len(resume(tmp_path / "study", trials=3).rows) == 3


@pytest.mark.slow
def test_a_study_in_parts_equals_one_in_one_go(config, dataset, tmp_path):
    whole = tune(config, dataset, trials=12)  # the last of them by TPE
    tune(config, dataset, trials=3, out=tmp_path)
    tune(config, dataset, trials=5, out=tmp_path)
    assert without_seconds(resume(tmp_path, trials=12)) == without_seconds(whole)


def test_the_folder_holds_a_config_that_trains_to_the_best_score(config, dataset, tmp_path):
    found = tune(config, dataset, trials=4, out=tmp_path)
    best = make_config(read_config(tmp_path / "best.toml"))
    assert best == found.config == resolve(best)
    assert fit(best, dataset).valid_score == pytest.approx(found.best.score, abs=1e-12)
    numbers = json.loads((tmp_path / "trials.json").read_text())
    assert numbers["best"] == found.best.number
    assert numbers["budget"]["trials"] == len(numbers["trials"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "study.toml", "study.json", "study.db", "parts.safetensors", "best.toml", "trials.json", "report.html",
    }  # fmt: skip


def test_a_stopped_study_gives_its_trial_back_and_goes_on(config, dataset, tmp_path, monkeypatch):
    whole = tune(config, dataset, trials=4)
    asked = iter([False] * 14 + [True] * 1000)
    stop = lambda: next(asked)  # noqa: E731
    monkeypatch.setattr(study_module, "stop_on_signals", lambda: _Given(stop))
    with pytest.raises(StoppedEarly, match="of 4 trials are finished and kept; continue: topshelf tune --resume"):
        tune(config, dataset, trials=4, out=tmp_path)
    monkeypatch.undo()
    assert json.loads((tmp_path / "trials.json").read_text())["budget"]["spent"]["interrupted"] == 1
    found = resume(tmp_path)
    interrupted = [row for row in found.rows if row.state == "interrupted"]
    assert len(interrupted) == 1
    finished = [row for row in found.rows if row.state != "interrupted"]
    assert len(finished) == 4
    assert interrupted[0].settings in [row.settings for row in finished]
    assert [row.settings for row in whole.rows] == [row.settings for row in found.rows][:4]


@pytest.mark.slow
def test_stopping_a_trial_often_costs_it_nothing(config, dataset, tmp_path, monkeypatch):
    for _ in range(queue.MAX_FAILURES + 1):
        asked = iter([False] * 3 + [True] * 1000)
        monkeypatch.setattr(study_module, "stop_on_signals", lambda asked=asked: _Given(lambda: next(asked)))
        with pytest.raises(StoppedEarly, match="0 of 1 trials are finished"):
            tune(config, dataset, trials=1, out=tmp_path)
    monkeypatch.undo()
    states = [row.state for row in resume(tmp_path).rows]
    assert states == ["interrupted"] * (queue.MAX_FAILURES + 1) + ["complete"]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [0, 2])
def test_a_study_killed_while_its_slots_are_queued_has_its_whole_budget(
    config, dataset, tmp_path, monkeypatch, killed_at
):
    enqueue, queued = Study.enqueue_trial, []

    def killed(self, *given, **more):
        if len(queued) == killed_at:
            raise KeyboardInterrupt
        queued.append(given)
        enqueue(self, *given, **more)

    monkeypatch.setattr(Study, "enqueue_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        tune(config, dataset, trials=4, out=tmp_path / "study")
    monkeypatch.undo()
    assert not (tmp_path / "study").exists()  # it appears with all of its slots
    tune(config, dataset, trials=1, out=tmp_path / "study")
    queued.clear()
    monkeypatch.setattr(Study, "enqueue_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "study", trials=4)
    monkeypatch.undo()
    assert len(resume(tmp_path / "study").rows) == 4


@pytest.mark.parametrize("trials", [None, 2])
def test_a_study_killed_right_after_its_folder_appeared_has_its_budget(config, dataset, tmp_path, monkeypatch, trials):
    """Issue 13: killed 0.1 s after its folder appeared, `--trials 2` was forgotten and 30 ran."""
    monkeypatch.setattr(queue, "DEFAULT_BUDGET", 3)
    monkeypatch.setattr(study_module.Worker, "__init__", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tune(config, dataset, out=tmp_path / "study", trials=trials)
    monkeypatch.undo()
    assert len(resume(tmp_path / "study").rows) == (trials or 3)
    assert json.loads((tmp_path / "study" / "study.json").read_text())["trials"] == (trials or 3)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_database_that_is_lost_does_not_restart_the_study(config, dataset, tmp_path, is_empty):
    """Issue 13: an empty or deleted study.db restarted the study without notice."""
    tune(config, dataset, trials=1, out=tmp_path / "study")
    (tmp_path / "study" / "study.db").unlink()
    if is_empty:
        (tmp_path / "study" / "study.db").touch()
    again = (
        lambda: resume(tmp_path / "study", trials=1),
        lambda: tune(config, dataset, trials=1, out=tmp_path / "study"),
    )
    for call in again:
        with pytest.raises(CheckpointError, match=r"study\.db is (empty|missing): its trials cannot be read"):
            call()


def test_a_database_that_cannot_be_written_is_one_message(config, dataset, tmp_path, monkeypatch):
    tune(config, dataset, trials=1, out=tmp_path / "study")

    class ReadOnly(storage._Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.execute("PRAGMA query_only = ON").close()

    monkeypatch.setattr(storage, "_Connection", ReadOnly)
    with pytest.raises(CheckpointError, match="attempt to write a readonly database"):
        resume(tmp_path / "study", trials=2)


def test_a_file_does_not_decide_which_database_is_made(config, dataset, tmp_path):
    """Issue 13: a `storage` in study.json made a database at any path. Here in the format of the version before."""
    tune(config, dataset, trials=1, out=tmp_path / "study")
    path = tmp_path / "study" / "study.json"
    names = ("name", "sampler", "ranges", "default")
    content = {name: value for name, value in json.loads(path.read_text()).items() if name in names}
    path.write_text(json.dumps({**content, "format": 1, "storage": f"sqlite:///{tmp_path / 'made.db'}"}))
    with pytest.raises(ConfigError, match=r"is kept in sqlite:///.*made\.db; give it again"):
        resume(tmp_path / "study", trials=1)
    assert not (tmp_path / "made.db").exists()


def test_files_of_others_in_the_folder_are_left_alone(config, dataset, tmp_path):
    (tmp_path / "best.toml").write_text("mine")
    with pytest.raises(ConfigError, match="--out must be a new or empty folder, or hold this study"):
        tune(config, dataset, trials=1, out=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"best.toml": "mine"}


def test_a_process_that_is_second_to_begin_joins_the_first(config, dataset, tmp_path, monkeypatch):
    out, fill, first = tmp_path / "study", StudyFolder.fill, []

    def after_the_other(self, *given, **more):
        if not first:
            first.append(out)
            first.append(tune(config, dataset, trials=2, out=out))
        fill(self, *given, **more)

    monkeypatch.setattr(StudyFolder, "fill", after_the_other)
    found = tune(config, dataset, trials=2, out=out)
    assert len(found.rows) == 2
    assert without_seconds(found) == without_seconds(first[1])
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_a_trial_that_was_taken_away_from_a_sleeping_process_is_left_to_others(config, dataset, tmp_path, monkeypatch):
    """As when a laptop sleeps: another machine marks the trial failed and queues it again."""
    run, at_work = Runner.run, []

    def taken_away(self, config, watcher):
        if not at_work:
            study = watcher.trial.study
            study.tell(watcher.trial.number, state=TrialState.FAIL)
            queue.requeue(study, study.get_trials()[watcher.trial.number])
        at_work.append(watcher.trial.number)
        return run(self, config, watcher)

    monkeypatch.setattr(Runner, "run", taken_away)
    found = tune(config, dataset, trials=2, out=tmp_path)
    assert at_work == [0, 1, 2]
    assert [(row.number, row.state) for row in found.rows if row.state != "pruned"] == [
        (0, "interrupted"), (1, "complete"), (2, "complete"),
    ]  # fmt: skip
    assert found.rows[2].settings == found.rows[0].settings


class _Given:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        return None


def test_an_error_in_a_trial_is_shown_and_the_trial_is_given_back_three_times(config, dataset, tmp_path, monkeypatch):
    def burst(self, config, watcher):
        raise MemoryError("no more")

    monkeypatch.setattr(Runner, "run", burst)
    for _ in range(queue.MAX_FAILURES):
        with pytest.raises(MemoryError):
            tune(config, dataset, trials=1, out=tmp_path)
    with pytest.raises(TrainingError, match="no trial was completed; trial 0: interrupted"):
        tune(config, dataset, trials=1, out=tmp_path)


def test_settings_that_do_not_fit_fail_alone(config, dataset, only_tau):
    ranges = {**only_tau, "loss.tau": None, "loss.k": [5, 41]}  # 40 items
    found = tune(config, dataset, trials=2, ranges=ranges)
    assert [row.state for row in found.rows] == ["complete", "failed"]
    assert "loss.k must be <= 40" in found.rows[1].note


def test_a_training_that_diverges_counts_as_nothing_and_the_study_goes_on(small, dataset, only_tau):
    ranges = {**only_tau, "loss.tau": None, "train.learning_rate": [0.01, 1e30]}
    dot = small({"model": {"score": "dot"}, "train": {"learning_rate": 0.01}})
    found = tune(dot, dataset, trials=2, ranges=ranges)
    assert found.best.number == 0
    assert found.rows[1].state == "complete"
    assert found.rows[1].score == 0
    assert "the loss became" in found.rows[1].note


def test_a_fit_that_fails_counts_as_nothing_and_the_study_goes_on(dataset):
    config = make_config({"k": 5, "model": {"name": "ials", "dim": 8, "l2": 0.03}})
    ranges = {**dict.fromkeys(IALS.ranges), "model.l2": [0.03, 1e-30]}
    found = tune(config, dataset, trials=2, ranges=ranges)
    assert [row.state for row in found.rows] == ["complete", "complete"]
    assert found.best.number == 0
    assert found.rows[1].score == 0
    assert "not determined by so small a penalty" in found.rows[1].note


def test_points_that_wait_are_not_drawn_again(config, dataset, tmp_path, only_tau, monkeypatch):
    """A budget raised to every point, while a slot whose point TPE chooses still waits."""
    asked = iter([False, True])
    monkeypatch.setattr(study_module, "stop_on_signals", lambda: _Given(lambda: next(asked, True)))
    with pytest.raises(StoppedEarly):
        tune(config, dataset, trials=2, out=tmp_path, ranges=only_tau)
    monkeypatch.undo()
    found = resume(tmp_path, trials=5)
    finished = [row.settings["loss.tau"] for row in found.rows if row.state != "interrupted"]
    assert sorted(finished) == [0.01, 0.05, 0.1, 0.2, 0.5]


def test_a_duplicate_of_a_slot_is_dropped(config, dataset, monkeypatch):
    add_missing = queue._add_missing

    def twice(study, *arguments):
        known = study.get_trials()
        add_missing(study, *arguments)
        if not known:  # as another process would that looked at the same moment
            for trial in study.get_trials():
                study.enqueue_trial(trial.user_attrs["asked"], user_attrs=trial.user_attrs)

    monkeypatch.setattr(queue, "_add_missing", twice)
    found = tune(config, dataset, trials=2)
    assert [row.state in ("complete", "pruned") for row in found.rows] == [True] * 2
    assert [row.number for row in found.rows] == [0, 1]


def test_a_timeout_begins_no_more_trials(config, dataset):
    found = tune(config, dataset, trials=200, timeout=0.3)
    assert 1 <= len(found.rows) < 200
    assert "none begun after 0.3 s" in str(found.budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials must be >= 1, got 0"),
        ({"timeout": 0.0}, "timeout must be > 0, got 0.0"),
        ({"sampler": "random"}, "sampler must be one of tpe, grid, got 'random'"),
        ({"storage": "postgres//x"}, "--storage must be the url of a database"),
        ({"storage": "nosuch://host/db"}, "--storage must be the url of a database"),
        ({"storage": "postgresql://me@host:port/db"}, "--storage must be the url of a database"),
        ({"storage": "oracle://host/db"}, "needs a driver that is not installed"),
        ({"sampler": "grid", "ranges": {"loss.tau": "0.1:0.2"}}, "a grid needs lists of values"),
    ],
)
def test_a_wrong_option_is_one_message_and_no_folder(config, dataset, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        tune(config, dataset, out=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_the_data_fails_before_a_folder_is_made(small, dataset, tmp_path):
    with pytest.raises(ConfigError, match="k must be <= 40"):
        tune(small({"k": 41}), dataset, out=tmp_path / "new")
    with pytest.raises(ConfigError, match=r"train\.device must be a device of this machine"):
        tune(small({"train": {"device": "abacus"}}), dataset, out=tmp_path / "new")
    empty = dataset.split.valid.where(dataset.split.valid.rows() < 0)
    with pytest.raises(DataError, match="the valid part of the ratio split is empty, and tuning is measured on it"):
        tune(small({}), replace(dataset, split=replace(dataset.split, valid=empty)), out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_another_study_or_a_run_is_left_alone(config, small, dataset, tmp_path):
    tune(config, dataset, trials=1, out=tmp_path / "study")
    with pytest.raises(ConfigError, match=r"holds a study of something else \(model.dim is 8, not 16\)"):
        tune(small({"model": {"dim": 16}}), dataset, trials=1, out=tmp_path / "study")
    with pytest.raises(ConfigError, match=r"the range of loss\.tau is 0\.01, 0\.05, 0\.1, 0\.2, 0\.5, not 0\.1, 0\.2"):
        tune(config, dataset, trials=1, out=tmp_path / "study", ranges={"loss.tau": "0.1,0.2"})
    fit(config, dataset, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run"):
        tune(config, dataset, trials=1, out=tmp_path / "run")


def test_a_budget_does_not_shrink(config, dataset, tmp_path):
    tune(config, dataset, trials=2, out=tmp_path)
    with pytest.raises(ConfigError, match="the study has 2 trials already; trials must be >= 2, got 1"):
        resume(tmp_path, trials=1)


def test_other_data_are_refused(config, dataset, tmp_path):
    tune(config, dataset, trials=1, out=tmp_path)
    other = replace(dataset, split=replace(dataset.split, valid=dataset.split.test))
    with pytest.raises(ConfigError, match="the study was begun on other data"):
        tune(config, other, trials=1, out=tmp_path)


def test_damaged_folders_are_one_message(config, dataset, tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a study: it has no study\.json"):
        resume(tmp_path / "nowhere")
    tune(config, dataset, trials=1, out=tmp_path)
    folder = StudyFolder(tmp_path)
    whole = folder.config.read_text()
    folder.config.write_text(whole.replace("dim = 8", "dim = 9"))
    with pytest.raises(CheckpointError, match=r"was edited after the study began: model\.dim is 9, was 8"):
        resume(tmp_path)
    folder.config.write_text(whole)
    folder.database.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(CheckpointError, match="cannot be opened: file is not a database"):
        resume(tmp_path)
    folder.definition.write_text("{}")
    with pytest.raises(CheckpointError, match="is damaged"):
        resume(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@nowhere.invalid/db",
        "postgresql://nowhere.invalid/db?user=me&password=s3cret&sslmode=require",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Ds3cret",
    ],
)
def test_a_password_is_not_kept(config, dataset, tmp_path, url):
    folder = StudyFolder(tmp_path)
    tune(config, dataset, trials=1, out=tmp_path)
    content = json.loads(folder.definition.read_text())
    content["storage"] = storage.shown(url)
    assert "s3cret" not in content["storage"]
    del content["checksum"]
    write_sealed(folder.definition, content)
    with pytest.raises(ConfigError, match=r"give it again, with its password if it has one: --storage URL") as caught:
        resume(tmp_path)
    assert "s3cret" not in str(caught.value)


def test_a_message_about_a_storage_has_no_password_in_it(config, dataset):
    for url in ("me:s3cret@host/db", "nosuch://me:s3cret@host/db", "oracle://me:s3cret@host/db"):
        with pytest.raises(ConfigError) as caught:
            tune(config, dataset, trials=1, storage=url)
        assert "s3cret" not in str(caught.value)


def test_a_storage_that_cannot_be_reached_is_one_message_and_no_folder(config, dataset, tmp_path, monkeypatch):
    asked, connected = [], storage._connect_once
    monkeypatch.setattr(storage, "_connect_once", lambda url: asked.append(url) or connected(url))
    with pytest.raises(CheckpointError, match=r"nowhere/study\.db cannot be opened: unable to open database file"):
        tune(config, dataset, out=tmp_path / "new", storage=f"sqlite:///{tmp_path}/nowhere/study.db")
    assert not (tmp_path / "new").exists()
    assert len(asked) == 1  # a server that does not answer is not asked twenty times


def test_a_storage_whose_tables_another_process_makes_is_tried_again(config, dataset, tmp_path, monkeypatch):
    faster = [OperationalError("CREATE TABLE studies", {}, Exception("table studies already exists")) for _ in range(2)]
    connected = storage._connect_once

    def at_the_third(url):
        if faster:
            raise faster.pop()
        return connected(url)

    monkeypatch.setattr(storage, "_connect_once", at_the_third)
    assert len(tune(config, dataset, trials=1, out=tmp_path).rows) == 1


def test_a_storage_in_memory_is_refused_because_nobody_could_go_on_with_it(config, dataset, tmp_path):
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ConfigError, match="--storage must be a database with a file or a server"):
            tune(config, dataset, trials=1, out=tmp_path / "new", storage=url)
    assert not (tmp_path / "new").exists()


def test_a_storage_by_a_relative_path_is_found_again_from_elsewhere(config, dataset, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tune(config, dataset, trials=1, out=tmp_path / "study", storage="sqlite:///shared.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"--storage must be where the study in .*/elsewhere/shared\.db; give that"):
        resume(tmp_path / "study", storage="sqlite:///shared.db")
    assert len(resume(tmp_path / "study", storage="sqlite:///../shared.db").rows) == 1
    assert not (tmp_path / "elsewhere" / "shared.db").exists()


def test_a_folder_may_have_a_strange_name(config, dataset, tmp_path):
    out = tmp_path / "50%41 {a} #1"
    assert len(tune(config, dataset, trials=1, out=out).rows) == 1
    assert (out / "study.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_study_does_not_move_to_another_storage(config, dataset, tmp_path, own):
    first, other = (f"sqlite:///{tmp_path / name}" for name in ("first.db", "other.db"))
    out = tmp_path / "study"
    tune(config, dataset, trials=2, out=out, storage=None if own else first)
    kept = (out / "trials.json").read_text()
    for again in (lambda: tune(config, dataset, trials=1, out=out, storage=other), lambda: resume(out, storage=other)):
        with pytest.raises(
            ConfigError, match=r"--storage must be where the study in .* is kept, .*got .*other\.db; (leave|give)"
        ):
            again()
    assert (out / "trials.json").read_text() == kept
    assert len(resume(out, trials=3, storage=f"sqlite:///{out / 'study.db'}" if own else first).rows) == 3


def test_the_study_can_be_kept_in_another_database(config, dataset, tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    tune(config, dataset, trials=2, out=tmp_path / "one", storage=url)
    assert not (tmp_path / "one" / "study.db").exists()
    found = tune(config, dataset, trials=3, out=tmp_path / "two", storage=url)  # as from another machine
    assert [row.number for row in found.rows] == [0, 1, 2]
    assert len(resume(tmp_path / "one", storage=url).rows) == 3
