"""The two ledgers: who may run a cell, what is kept of it, and what is refused as damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import numpy as np
import polars as pl
import pytest
import sqlalchemy as sa

from benches import PLAN, plan_of, work_here
from topshelf import files
from topshelf.bench import Report, database, of_plan, run
from topshelf.bench.cells import cells
from topshelf.bench.database import DatabaseLedger
from topshelf.bench.folder import BenchFolder
from topshelf.bench.worker import Job, work
from topshelf.errors import CheckpointError, TopshelfError

RESULT = {
    "metrics": {"standard": {"ndcg@5": 0.1}},
    "fingerprints": {"standard": 12345678901234567},
    "seconds": 1.5,
    "best_epoch": 3,
    "epochs": 4,
    "config": {"k": 5},
}
USERS = pl.DataFrame({"standard/ndcg@5": np.array([0.25, np.nan, 1.0], dtype=np.float32)})


@pytest.fixture
def key():
    return uuid4().hex[:20]


@pytest.fixture(params=["folder", "sqlite", "postgresql"])
def opened(request, tmp_path):
    """Opens the same ledger once more, as another process would."""
    if request.param == "folder":
        return BenchFolder(tmp_path / "b").make
    is_server = request.param == "postgresql"
    url = request.getfixturevalue("postgres") if is_server else f"sqlite:///{tmp_path / 'cells.db'}"
    return lambda: DatabaseLedger(url)


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path / 'cells.db'}"


def test_one_of_two_gets_a_cell_and_the_other_when_it_is_given_back(opened, key):
    one, two = opened(), opened()
    with one.claim(key) as is_first:
        assert is_first
        assert key in two.running()
        with two.claim(key) as is_second:
            assert not is_second
        assert key in two.running()  # the refused one took nothing away
    assert key not in two.running()
    with two.claim(key) as is_second:
        assert is_second


def test_a_result_comes_back_as_it_was_and_its_cell_is_never_claimed_again(opened, key):
    with opened().claim(key):
        opened().finish(key, RESULT, USERS)
    found = opened().results()[key]
    assert {name: found[name] for name in RESULT} == RESULT
    assert opened().per_user(key).equals(USERS, null_equal=True)
    assert key not in opened().running()
    with opened().claim(key) as is_ours:
        assert not is_ours


def test_a_failure_is_kept_until_the_cell_is_finished(opened, key):
    with opened().claim(key):
        opened().fail(key, {"reason": "no luck"})
    assert opened().failures()[key]["reason"] == "no luck"
    assert key not in opened().results()
    with opened().claim(key) as is_ours:
        assert is_ours
        opened().finish(key, RESULT, USERS)
    assert key not in opened().failures()
    assert key in opened().results()


def test_a_cell_without_values_of_users_is_refused(opened, key):
    with opened().claim(key):
        pass
    with pytest.raises(CheckpointError):
        opened().per_user(key)


def change(url, statement, **values):
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
    engine.dispose()


def test_a_cell_of_a_dead_process_is_taken_over(sqlite, key, monkeypatch):
    monkeypatch.setattr(database, "BEAT", 600.0)
    one, two = DatabaseLedger(sqlite), DatabaseLedger(sqlite)
    with one.claim(key) as is_first:
        assert is_first
        change(sqlite, "UPDATE topshelf_bench_cells SET beat = beat - :old", old=database.DEAD + 1)
        assert two.running() == set()
        with two.claim(key) as is_second:
            assert is_second
            with one.claim(key) as is_third:
                assert not is_third
    with two.claim(key) as is_fourth:  # the first one's end did not set it free twice
        assert is_fourth


def test_a_live_process_renews_its_cell_also_after_a_failure_of_the_database(sqlite, key, monkeypatch):
    monkeypatch.setattr(database, "BEAT", 0.01)
    ledger, calls = DatabaseLedger(sqlite), []
    execute = ledger._execute

    def sometimes(statement):
        if "beat" in str(statement) and len(calls) < 3:
            calls.append(statement)
            raise CheckpointError("the database is away")
        return execute(statement)

    with ledger.claim(key):
        monkeypatch.setattr(ledger, "_execute", sometimes)
        change(sqlite, "UPDATE topshelf_bench_cells SET beat = 0")
        deadline = 500
        while not ledger.running() and (deadline := deadline - 1):
            time.sleep(0.01)
        assert ledger.running() == {key}
    assert len(calls) == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"format": 1}', "[" * 100_000],
    ids=["empty", "cut", "list", "null", "object", "unsealed", "deep"],
)
def test_a_damaged_row_is_refused_and_kept(sqlite, key, content):
    DatabaseLedger(sqlite).finish(key, RESULT, USERS)
    change(sqlite, "UPDATE topshelf_bench_cells SET content = :content", content=content)
    with pytest.raises(CheckpointError, match=rf"the row {key} of the bench's storage .* is damaged"):
        DatabaseLedger(sqlite).results()
    change(sqlite, "UPDATE topshelf_bench_cells SET per_user = :content", content=b"PAR1 no table")
    with pytest.raises(CheckpointError, match=f"no values per user of {key}"):
        DatabaseLedger(sqlite).per_user(key)


def test_a_row_under_another_key_is_refused(sqlite, key):
    DatabaseLedger(sqlite).finish(key, RESULT, USERS)
    change(sqlite, "UPDATE topshelf_bench_cells SET key = :other", other="0" * 20)
    with pytest.raises(CheckpointError, match="its format or key is not as expected"):
        DatabaseLedger(sqlite).results()


def test_a_database_that_is_none_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(TopshelfError, match="cannot be opened"):
        DatabaseLedger(f"sqlite:///{tmp_path / 'text.db'}")
    with pytest.raises(TopshelfError):
        DatabaseLedger("nonsense")


CLAIMS = """
import sys, time
from pathlib import Path
from topshelf.bench.database import DatabaseLedger
ledger, folder, name = DatabaseLedger(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
(folder / f"ready-{name}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
for number in range(20):
    with ledger.claim(f"{number:020x}") as is_ours:
        if is_ours:
            with (folder / f"won-{name}").open("a") as file:
                print(number, file=file)
            time.sleep(0.01)
            ledger._put(f"{number:020x}", "done", {}, None)
"""


@pytest.mark.slow
def test_two_processes_share_the_cells_of_a_database(sqlite, tmp_path):
    DatabaseLedger(sqlite)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    both = [
        subprocess.Popen([sys.executable, "-c", CLAIMS, sqlite, str(tmp_path), name], env=environment) for name in "ab"
    ]
    try:
        while not all((tmp_path / f"ready-{name}").exists() for name in "ab"):
            assert all(process.poll() is None for process in both)
        (tmp_path / "go").touch()
        assert [process.wait(60) for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
            process.wait()
    won = [(tmp_path / f"won-{name}") for name in "ab"]
    numbers = [int(line) for path in won if path.exists() for line in path.read_text().splitlines()]
    assert sorted(numbers) == list(range(20))


def test_a_bench_in_a_database_gives_the_report_of_one_in_a_folder(clicks, tmp_path, sqlite, here):
    plan = plan_of(PLAN, clicks)
    run(plan, tmp_path / "one")
    first = run(plan, tmp_path / "two", storage=sqlite)
    again = run(plan, tmp_path / "three", storage=sqlite)  # another machine
    assert (first.done, again.done, again.known) == (4, 0, 4)
    made = [
        Report.of(of_plan("mine", plan, ledger)).markdown([])
        for ledger in (BenchFolder.open(tmp_path / "one"), DatabaseLedger(sqlite))
    ]
    assert made[0] == made[1]
    assert not list((tmp_path / "two" / "results").iterdir())


@pytest.fixture
def bench(clicks, tmp_path):
    """A finished cell, its bench, and the file of its result."""
    plan = plan_of(PLAN.replace("[0, 1]", "[0]"), clicks)
    assert work_here(plan, tmp_path / "b") == ["done", "done"]
    return plan, BenchFolder(tmp_path / "b"), tmp_path / "b" / "results" / f"{cells(plan)[0].key}.json"


def edited(content):
    content["metrics"]["standard"]["ndcg@5"] = 0.99
    return content


def forged(change):
    def write(path):
        content = json.loads(path.read_text())
        content.pop("checksum")
        change(content)
        files.write_sealed(path, content)

    return write


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(b"\xff\x00" * 50),
    "deep": lambda path: path.write_text("[" * 100_000),
    "edited": lambda path: path.write_text(json.dumps(edited(json.loads(path.read_text())))),
    "unsealed": lambda path: path.write_text('{"format": 1, "metrics": {}}'),
    "another format": forged(lambda content: content.update(format=99)),
    "another key": forged(lambda content: content.update(key="0" * 20)),
    "no metrics": forged(lambda content: content.update(metrics={})),
    "words": forged(lambda content: content["metrics"]["standard"].update({"ndcg@5": "high"})),
    "no protocol": forged(lambda content: content.update(metrics={"standard": 0.5})),
    "no config": forged(lambda content: content.pop("config")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_refused_and_run_again_when_it_was_deleted(bench, damage, here):
    plan, folder, path = bench
    others = {one: one.read_bytes() for one in path.parent.iterdir() if one != path}
    DAMAGES[damage](path)
    for action in (folder.results, lambda: run(plan, folder.path), lambda: of_plan("mine", plan, folder)):
        with pytest.raises(CheckpointError, match=rf"{path.name} is damaged.*; delete it, and run the cell again"):
            action()
    assert {one: one.read_bytes() for one in path.parent.iterdir() if one != path} == others
    path.unlink()
    assert run(plan, folder.path).done == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 no table PAR1", "cut", "words", "other"])
def test_damaged_values_of_users_are_refused(bench, content):
    plan, folder, path = bench
    table = path.with_suffix(".parquet")
    whole = table.read_bytes()
    if content == "words":
        pl.DataFrame({"standard/ndcg@5": ["high"], "standard/recall@5": ["low"]}).write_parquet(table)
    elif content == "other":
        pl.DataFrame({"other": [1.0]}).write_parquet(table)
    else:
        table.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    with pytest.raises(CheckpointError, match="delete it"):
        Report.of(of_plan("mine", plan, folder))


def test_a_flipped_byte_of_the_values_of_users_never_ends_in_a_traceback(bench):
    plan, folder, path = bench
    table = path.with_suffix(".parquet")
    whole = table.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(whole), 40):
        table.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            Report.of(of_plan("mine", plan, folder))
        except TopshelfError:
            continue


def test_other_files_in_the_folder_are_left_alone(bench):
    _, folder, path = bench
    (path.parent / "notes.json").write_text("mine")
    (path.parent / ".KEY.tmp").touch()
    assert len(folder.results()) == 2


def test_a_metric_that_no_cell_measured_is_refused_by_name(bench):
    plan, folder, _ = bench
    other = plan.model_copy(update={"metrics": ("ndgc@5",)})
    with pytest.raises(TopshelfError, match=r"metrics must be among those measured .*ndcg@5.*, got ndgc@5"):
        of_plan("mine", other, folder)


def test_a_job_goes_to_another_process_and_back(clicks, tmp_path):
    import pickle

    cell = cells(plan_of(PLAN, clicks))[0]
    job = pickle.loads(pickle.dumps(Job(cell, BenchFolder(tmp_path / "b").make().path)))
    assert work(job) == "done"
