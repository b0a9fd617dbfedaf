"""Training says which columns of a table it has guessed."""

from __future__ import annotations

import pytest

from topshelf.config import assemble
from topshelf.training import fit, load_dataset

ROWS = [(user, (user * 7 + step * 3) % 40, 1000 + step * 60 + user) for user in range(60) for step in range(8)]
EDGES = sorted(
    {tuple(sorted((user, (user * 3 + item) % 60))) for user, item, _ in ROWS if user != (user * 3 + item) % 60}
)
FILES = {
    "interactions": ("uid,iid,ts", ROWS),
    "sequences": ("uid,iid,ts", ROWS),
    "ranking": ("qid,label,f1", [(user, time % 7 % 3, item) for user, item, time in ROWS]),
    "links": ("src,dst", EDGES),
}
GUESSED = {
    "interactions": 'user = "uid", item = "iid", time = "ts"',
    "sequences": 'user = "uid", item = "iid", time = "ts"',
    "ranking": 'query = "qid", grade = "label"',
    "links": 'source = "src", target = "dst"',
}
NAMED = {
    "interactions": {"user": "uid", "item": "iid", "timestamp": "ts"},
    "sequences": {"user": "uid", "item": "iid", "timestamp": "ts"},
    "ranking": {"query": "qid", "grade": "label"},
    "links": {"source_column": "src", "target_column": "dst"},
}
MODELS = {"interactions": "popularity", "sequences": "popularity", "ranking": "linear_ranker", "links": "katz"}


@pytest.fixture(params=FILES)
def task(request):
    return request.param


@pytest.fixture
def config(task, tmp_path):
    header, rows = FILES[task]
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    more = {"train": {"epochs": 1}, "evaluate": {"n_negatives": 4} if task == "links" else {}}

    def made(**columns):
        return assemble(task=task, data=str(path), model=MODELS[task], k=5, more={**more, "data": columns})

    return made


def test_a_run_says_in_one_line_which_columns_it_guessed(task, config, capsys):
    fit(config(), quiet=False)
    said = [line for line in capsys.readouterr().err.splitlines() if "guessed" in line]
    (line,) = said
    assert line.endswith(f"columns guessed: {GUESSED[task]}")


def test_nothing_is_said_of_columns_that_the_user_named_or_in_a_quiet_run(task, config, capsys):
    fit(config(**NAMED[task]), quiet=False)
    fit(config(), quiet=True)
    assert "guessed" not in capsys.readouterr().err


def test_those_that_were_not_named_are_still_said(task, config):
    first, *others = NAMED[task].items()
    guessed = load_dataset(config(**dict([first]))).guessed
    assert [name for _, name in guessed] == [name for _, name in others]


def test_columns_of_a_file_without_a_header_are_numbered(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("".join(f"{user},{item},3,{time}\n" for user, item, time in ROWS))
    expected = (("user", "column 1"), ("item", "column 2"), ("rating", "column 3"), ("time", "column 4"))
    assert load_dataset(assemble(data=str(path))).guessed == expected


def test_a_file_with_one_user_per_line_has_no_columns_to_guess(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{user} 1 2 3 4 5\n{user + 50} 5 4 3 2 1\n" for user in range(9)))
    assert load_dataset(assemble(task="sequences", data=str(path), model="markov")).guessed == ()
