"""Lists and metrics in parts: those of the whole, to the last bit, however often it was stopped and whoever wrote."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings

import polars as pl
import pytest
import torch

from command_line import run_topshelf
from documents import table
from topshelf import Ranker, Recommender, compare, files
from topshelf.data import generate
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.parts import PartsFolder, evaluate_parts, metrics, read_evaluation, recommend_parts
from topshelf.parts import lists as list_parts

N_USERS = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same data, with users who have no training items and so no scores."""
    path = tmp_path_factory.mktemp("runs")
    generator = torch.Generator().manual_seed(0)
    users = torch.arange(N_USERS).repeat_interleave(8)
    items = torch.randint(90, users.shape, generator=generator)
    times = torch.randperm(len(users), generator=generator) + 10**6 * (users >= N_USERS - 20)  # who came after training
    clicks = pl.DataFrame({"user": users.numpy(), "item": items.numpy(), "timestamp": times.numpy()})
    clicks.unique(["user", "item"], maintain_order=True).write_csv(path / "clicks.csv")
    for model in ("mf", "ease"):
        train = {"epochs": 2} if model == "mf" else {}
        recommender = Recommender(k=10, model=model, data={"split": "time"}, train=train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopshelfWarning)  # what the split leaves out
            recommender.fit(str(path / "clicks.csv"), out=path / model)
        assert 0 < recommender.recommend()["score"].null_count() < 10 * N_USERS
    return path


def whole(folder):
    return pl.concat(pl.read_parquet(path) for path in sorted(folder.glob("part-*.parquet")))


def test_the_parts_one_after_the_other_are_the_table_and_the_single_file(runs, tmp_path):
    table = Recommender.load(runs / "mf").recommend()
    assert recommend_parts(runs / "mf", tmp_path / "lists", part_users=37) == table.height
    assert len(list((tmp_path / "lists").glob("part-*.parquet"))) == 9
    assert whole(tmp_path / "lists").equals(table)
    run_topshelf("recommend", runs / "mf", "--out", tmp_path / "one.parquet")
    assert whole(tmp_path / "lists").equals(pl.read_parquet(tmp_path / "one.parquet"))


def test_k_reasons_titles_and_seen_items_are_those_asked_for(runs, tmp_path):
    titles = pl.DataFrame({"item": range(90), "title": [f"Film {item}" for item in range(90)]})
    recommend_parts(runs / "ease", tmp_path, 3, filter_seen=False, why=2, titles=titles, part_users=100)
    recommender = Recommender.load(runs / "ease").set_titles(titles)
    assert whole(tmp_path).equals(recommender.recommend(k=3, filter_seen=False, why=2))


def test_a_stopped_call_goes_on_where_it_was(runs, tmp_path, monkeypatch):
    writes, real = [], list_parts.write_lists

    def stops(path, blocks):
        if len(writes) == 3:
            raise KeyboardInterrupt
        writes.append(path.name)
        return real(path, blocks)

    monkeypatch.setattr(list_parts, "write_lists", stops)
    with pytest.raises(KeyboardInterrupt):
        recommend_parts(runs / "mf", tmp_path, part_users=50)
    folder = PartsFolder.open(tmp_path)
    assert folder.done() == {0, 1, 2}
    with pytest.raises(CheckpointError, match="is not finished: 3 of 6 parts are missing"):
        folder.check_whole()
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("part-*"))]
    writes.clear()
    recommend_parts(runs / "mf", tmp_path)  # with the users per part that the folder has
    assert writes == [f"part-{number:05}.parquet" for number in (3, 4, 5)]
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("part-*"))][:3] == before
    assert whole(tmp_path).equals(Recommender.load(runs / "mf").recommend())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": "ease"}, "run is"),
        ({"k": 5}, "k is 10, not 5"),
        ({"filter_seen": False}, "filter_seen is True, not False"),
        ({"why": 1}, "why is 0, not 1"),
        ({"part_users": 10}, "part_users is 50, not 10"),
        ({"titles": {0: "A film"}}, "titles_sha256 is None"),
    ],
)
def test_parts_of_something_else_are_refused(runs, tmp_path, changed, said):
    recommend_parts(runs / "mf", tmp_path, part_users=50)
    with pytest.raises(ConfigError, match=f"holds parts of something else \\({said}"):
        recommend_parts(runs / changed.pop("run", "mf"), tmp_path, **changed)


def test_other_files_an_unfinished_run_and_a_damaged_manifest_are_refused(runs, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="must be a new or empty folder, or one that holds these parts"):
            recommend_parts(runs / "mf", out)
    (tmp_path / "copy").mkdir()
    for path in (runs / "mf").iterdir():
        if path.name != "metrics.json":
            (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="is not finished, and parts must be of one model"):
        recommend_parts(tmp_path / "copy", tmp_path / "lists")
    recommend_parts(runs / "mf", tmp_path / "lists")
    manifest = tmp_path / "lists" / "_topshelf" / "parts.json"
    manifest.write_text(manifest.read_text().replace('"k": 10', '"k": 11'))
    with pytest.raises(CheckpointError, match="checksum"):
        recommend_parts(runs / "mf", tmp_path / "lists", 11)


def test_a_part_that_another_process_holds_is_left_to_it_and_taken_when_it_is_gone(runs, tmp_path):
    recommend_parts(runs / "mf", tmp_path, part_users=50)
    for number in (0, 4):
        (tmp_path / f"part-{number:05}.parquet").unlink()
    with files.claimed(tmp_path / "_topshelf" / "claims" / "00000") as is_ours:
        assert is_ours
        thread = threading.Thread(target=recommend_parts, args=(runs / "mf", tmp_path))
        thread.start()
        until = time.monotonic() + 60
        while not (tmp_path / "part-00004.parquet").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert thread.is_alive()
        assert PartsFolder.open(tmp_path).done() == {1, 2, 3, 4, 5}
    thread.join(60)
    assert whole(tmp_path).equals(Recommender.load(runs / "mf").recommend())


def test_two_processes_write_one_folder(runs, tmp_path, monkeypatch):
    threads, real, mine = torch.get_num_threads(), list_parts.write_lists, []

    def waits_for_the_other(path, blocks):
        until = time.monotonic() + 120
        while PartsFolder.open(tmp_path).done() <= set(mine) and time.monotonic() < until:
            time.sleep(0.05)
        mine.append(int(path.stem.removeprefix("part-")))
        return real(path, blocks)

    monkeypatch.setattr(list_parts, "write_lists", waits_for_the_other)
    recommend_parts(runs / "mf", tmp_path, part_users=10, processes=2)
    assert 0 < len(mine) < 30
    assert whole(tmp_path).equals(Recommender.load(runs / "mf").recommend())
    assert torch.get_num_threads() == threads


def test_the_parts_of_a_lost_process_are_written_by_the_others(runs, tmp_path, monkeypatch):
    real = list_parts.write_lists

    def kills_the_other(path, blocks):
        for child in multiprocessing.active_children():
            child.kill()
        return real(path, blocks)

    monkeypatch.setattr(list_parts, "write_lists", kills_the_other)
    with pytest.warns(TopshelfWarning, match=r"1 of 2 processes ended early \(exit code -9\); the others wrote all"):
        recommend_parts(runs / "mf", tmp_path, part_users=50, processes=2)
    assert whole(tmp_path).equals(Recommender.load(runs / "mf").recommend())


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 32 users in place of 8,192, for evaluations whole and in parts."""
    monkeypatch.setattr("topshelf.measurement.BLOCK", 32)
    monkeypatch.setattr(metrics, "BLOCK", 32)
    monkeypatch.setattr(metrics, "PART_USERS", 64)


def assert_same_evaluation(first, second):
    assert torch.equal(first.users, second.users)
    assert list(first.per_user) == list(second.per_user)
    for name, values in first.per_user.items():
        torch.testing.assert_close(values, second.per_user[name], rtol=0, atol=0, equal_nan=True)
    for name in ("protocol", "cutoffs", "n_skipped", "extras", "fingerprint", "empty", "gain", "units"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("protocol", ["standard", "paper"])
@pytest.mark.parametrize("model", ["mf", "ease"])
def test_an_evaluation_in_parts_is_that_of_the_whole(runs, tmp_path, small_blocks, model, protocol):
    expected = Recommender.load(runs / model).evaluate(protocol, (5, 10, 40))
    found = evaluate_parts(runs / model, tmp_path, protocol, (5, 10, 40))
    assert_same_evaluation(found, expected)
    assert_same_evaluation(read_evaluation(tmp_path), expected)
    table = whole(tmp_path)
    assert len(list(tmp_path.glob("part-*.parquet"))) > 2
    assert table.columns[:3] == ["query", "user", "ndcg@5"]
    assert table["user"].to_list() == Recommender.load(runs / model).artifact.users.ids(expected.users)


def test_paired_tests_from_folders_are_those_of_the_runs(runs, tmp_path, small_blocks):
    found = {model: evaluate_parts(runs / model, tmp_path / model, part_users=32) for model in ("mf", "ease")}
    expected = compare(*(Recommender.load(runs / model).evaluate() for model in ("mf", "ease")), "ndcg@10")
    assert compare(found["mf"], found["ease"], "ndcg@10") == expected
    by_runs = run_topshelf("evaluate", runs / "mf", "--against", runs / "ease", "--json")[0]
    kept = run_topshelf("evaluate", tmp_path / "mf", "--against", tmp_path / "ease", "--json")[0]
    assert kept == by_runs.replace(str(runs), str(tmp_path))
    shown = run_topshelf("evaluate", tmp_path / "mf", "--against", runs / "ease", "--cutoffs", "5,10")[0]
    assert "paired sign-flip test" in shown
    assert "@50" not in shown


def test_an_evaluation_goes_on_where_it_was_and_refuses_another(runs, tmp_path, small_blocks):
    expected = evaluate_parts(runs / "mf", tmp_path)
    (tmp_path / "part-00001.parquet").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        read_evaluation(tmp_path)
    assert_same_evaluation(evaluate_parts(runs / "mf", tmp_path), expected)
    for options in ({"protocol": "paper"}, {"cutoffs": (7,)}):
        with pytest.raises(ConfigError, match="holds parts of something else"):
            evaluate_parts(runs / "mf", tmp_path, **options)
    with pytest.raises(ConfigError, match="part_users must be a multiple of 32"):
        evaluate_parts(runs / "mf", tmp_path, part_users=33)
    with pytest.raises(ConfigError, match="holds parts of something else"):
        recommend_parts(runs / "mf", tmp_path)
    pl.DataFrame({"query": [1]}).write_parquet(tmp_path / "part-00000.parquet")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_evaluation(tmp_path)


@pytest.mark.filterwarnings("ignore::topshelf.errors.TopshelfWarning")  # a user with a single event
@pytest.mark.parametrize("model", ["sasrec", "markov"])
def test_next_items_in_parts_are_those_of_the_whole(tmp_path, small_blocks, model):
    frame = generate(120, 30, interactions_per_user=9, seed=5).to_frame().select("user", "item")
    more = {"train": {"epochs": 1, "validate_every": 1}} if model == "sasrec" else {}
    recommender = Recommender(k=5, task="sequences", model=model, **more)
    recommender.fit(frame.with_columns(timestamp=pl.int_range(pl.len())), out=tmp_path / "run")
    assert_same_evaluation(evaluate_parts(tmp_path / "run", tmp_path / "metrics"), recommender.evaluate())
    recommend_parts(tmp_path / "run", tmp_path / "lists", part_users=7)
    assert whole(tmp_path / "lists").equals(Recommender.load(tmp_path / "run").recommend())


def test_a_run_without_a_catalogue_is_refused(tmp_path):
    Ranker(k=3, model="linear_ranker", train={"epochs": 1}).fit(table(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="an evaluation in parts"):
        evaluate_parts(tmp_path / "run", tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()


def test_the_command_line_writes_and_explains(runs, tmp_path):
    said = run_topshelf("recommend", runs / "mf", "--out", tmp_path / "lists", "--part-users", "100", "--k", "3")
    assert f"{3 * N_USERS:,} rows in the parts of" in said[0]
    assert whole(tmp_path / "lists").equals(Recommender.load(runs / "mf").recommend(k=3))
    shown = run_topshelf("evaluate", runs / "mf", "--out", tmp_path / "metrics")[0]
    assert shown == run_topshelf("evaluate", runs / "mf")[0]
    for words, message in (
        (["recommend", runs / "mf", "--out", "lists.parquet", "--processes", "2"], "are for the lists of all users"),
        (["recommend", runs / "mf", "--user", "1", "--out", tmp_path / "lists"], "--out must end in"),
        (["evaluate", runs / "mf", "--processes", "2"], "are for the parts of --out FOLDER"),
        (["evaluate", tmp_path / "metrics", "--out", tmp_path / "more"], "has the metrics of one"),
        (["evaluate", tmp_path / "metrics", "--protocol", "paper"], "was evaluated by protocol 'standard'"),
        (["evaluate", tmp_path / "metrics", "--cutoffs", "7"], "was evaluated at the cut-offs"),
        (["evaluate", tmp_path / "lists"], "must hold metrics per user"),
    ):
        assert message in run_topshelf(*words, code=2)[1].replace("\n", " ")


@pytest.mark.parametrize("model", ["mf", "lightgcn", "ease", "sparse_ease", "slim", "itemknn", "history", "ials"])
def test_the_list_of_a_user_does_not_depend_on_who_else_is_asked(model):
    recommender = Recommender(k=10, model=model, train={"epochs": 1}).fit("synthetic")
    table = recommender.recommend()
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    try:
        for threads, size in ((1, 1), (2, 1), (1, 3), (2, 7), (1, 18), (5, 33), (2, 400)):
            torch.set_num_threads(threads)
            users = torch.randperm(1000, generator=generator)[:size]
            expected = pl.DataFrame({"user": users.numpy()}).join(table, on="user", maintain_order="left_right")
            assert recommender.recommend(users).equals(expected)
    finally:
        torch.set_num_threads(before)
