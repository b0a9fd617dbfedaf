"""The key of a cell: what makes it another run, and what does not."""

from __future__ import annotations

import sys

import pytest

from benches import PLAN, plan_of, write_clicks
from topshelf.bench import cells as module
from topshelf.bench.cells import cells
from topshelf.bench.plan import parse_plan
from topshelf.bench.runner import unique


@pytest.fixture
def clicks(tmp_path):
    return write_clicks(tmp_path / "clicks.csv")


def keys(plan):
    return [cell.key for cell in cells(plan)]


def changed(data, settings):
    return plan_of(f"settings = {settings}\n{PLAN}", data)


def test_the_same_cells_have_the_same_keys_and_all_differ(clicks):
    found = keys(plan_of(PLAN, clicks))
    assert keys(plan_of(PLAN, clicks)) == found
    assert len(set(found)) == 4
    assert all(len(key) == 20 and set(key) <= set("0123456789abcdef") for key in found)


def test_a_key_does_not_depend_on_where_the_data_are(clicks, tmp_path, monkeypatch):
    found = keys(plan_of(PLAN, clicks))
    moved = tmp_path / "elsewhere" / "other.csv"
    moved.parent.mkdir()
    moved.write_bytes(clicks.read_bytes())
    assert keys(plan_of(PLAN, moved)) == found
    monkeypatch.chdir(moved.parent)
    assert keys(plan_of(PLAN, "other.csv")) == found


def test_other_content_is_another_key_also_in_the_same_process(clicks):
    found = keys(plan_of(PLAN, clicks))
    write_clicks(clicks, seed=2)
    assert not set(keys(plan_of(PLAN, clicks))) & set(found)


def test_a_folder_is_its_files(clicks, tmp_path):
    folder = tmp_path / "split"
    folder.mkdir()
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text("1\t2\n3\t4\n")
    found = keys(plan_of(PLAN, folder))
    assert keys(plan_of(PLAN, folder)) == found
    (folder / "test.tsv").write_text("1\t2\n3\t5\n")
    assert not set(keys(plan_of(PLAN, folder))) & set(found)


@pytest.mark.parametrize("settings", ["{ train = { checkpoint_seconds = 7.0 } }", '{ train = { device = "cpu" } }'])
def test_what_decides_no_number_is_not_in_the_key(clicks, settings):
    assert keys(changed(clicks, settings)) == keys(plan_of(PLAN, clicks))


@pytest.mark.parametrize(
    "settings", ["{ train = { refit = true } }", "{ data = { noise = 0.1 } }", "{ evaluate = { cutoffs = [5, 7] } }"]
)
def test_another_setting_is_another_key(clicks, settings):
    assert not set(keys(changed(clicks, settings))) & set(keys(plan_of(PLAN, clicks)))


def test_another_version_is_another_key(clicks, monkeypatch):
    found = keys(plan_of(PLAN, clicks))
    monkeypatch.setattr(module, "version", lambda: "99.0")
    assert not set(keys(plan_of(PLAN, clicks))) & set(found)


def test_a_tuned_cell_is_keyed_by_its_budget(clicks):
    plan = plan_of('choose = "tuned"\n' + PLAN, clicks)
    more = plan.model_copy(update={"trials": 17})
    other = plan.model_copy(update={"tune_seed": 11})
    found = [set(keys(one)) for one in (plan_of(PLAN, clicks), plan, more, other)]
    assert len(set.union(*found)) == 16
    assert found[0] == set(keys(plan_of(PLAN, clicks).model_copy(update={"trials": 17})))  # of no use there


OWN = """
title = "Own"
metrics = ["ndcg@5"]
k = 5
seeds = [0]
data = [{ label = "clicks", source = "DATA" }]
method = [{ label = "mine", settings = { loss = { name = "keyed_losses:Mine" } } }]
"""


def test_an_edited_class_of_ones_own_is_another_run(clicks, tmp_path, monkeypatch):
    code = "from topshelf.losses import SoftmaxLoss\n\n\nclass Mine(SoftmaxLoss):\n    pass\n"
    (tmp_path / "keyed_losses.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = keys(plan_of(OWN, clicks))
    assert keys(plan_of(OWN, clicks)) == found
    (tmp_path / "keyed_losses.py").write_text(code + "    weight = 2\n")
    assert keys(plan_of(OWN, clicks)) != found
    sys.modules.pop("keyed_losses")


def test_data_that_are_not_here_leave_a_cell_without_a_run():
    (cell, *_) = cells(plan_of(PLAN, "nowhere.csv"))
    assert cell.key == ""
    assert "'nowhere.csv' is neither a file nor a named dataset" in cell.absent


def test_cells_of_two_labels_that_are_one_run_are_run_once(clicks):
    plan = plan_of(
        PLAN.replace("method = [", 'method = [{ label = "again", settings = { model = { name = "ease" } } },'), clicks
    )
    assert len(cells(plan)) == 6
    assert len(unique(cells(plan))) == 4


def test_plans_share_cells():
    both = [parse_plan(PLAN.replace("DATA", "synthetic").replace("Two models", title), title) for title in "ab"]
    assert keys(both[0]) == keys(both[1])
