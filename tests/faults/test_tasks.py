"""Damaged and crafted run folders of documents, next items and links: refused, or the same, as for interactions."""

from __future__ import annotations

from collections import Counter

import pytest

from faults.driver import must
from faults.judging import FAILURES, REFUSED, counted, judged
from faults.layer import tree
from faults.tasks import KINDS, TASKS, cases, some, source_of, write_source
from faults.test_disks import failed_everywhere

N_CRAFTED = 150  # the least number of cases below; docs/reliability.md says so
FLIPS = 6
OWN = {
    "ranking": ("model.name=mlp",),
    "sequences": ("model.dim=4",),
    "links": ("model.dim=4", "evaluate.n_negatives=6"),
}
COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="module")
def pristine(driver, tmp_path_factory):
    place = tmp_path_factory.mktemp("pristine-tasks")
    must(driver.call("faults.tasks:build", str(place)))
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_a_crafted_run_is_refused_or_the_same(driver, pristine, tmp_path, kind):
    check(driver, pristine, tmp_path, kind, some(kind))


def test_most_are_refused():
    """After the tests above."""
    assert COUNTS.total() >= N_CRAFTED
    assert COUNTS[REFUSED] >= 0.8 * COUNTS.total()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_damage_is_refused_or_the_same(driver, pristine, tmp_path, kind):
    check(driver, pristine, tmp_path, kind, list(cases(kind, 1, FLIPS)), seed=1, flips=FLIPS)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_disk_that_fails_in_training_leaves_a_run_that_can_be_resumed(driver, tmp_path, task):
    write_source(task, tmp_path)
    data = ("--task", task, "--data", source_of(task, tmp_path), "--k", "3", "--quiet")
    settings = ("train.epochs=1", "train.checkpoint_seconds=0.0", "evaluate.cutoffs=[3]", *OWN[task])
    arguments = ["train", *data, *(word for text in settings for word in ("--set", text))]

    def train(place, fault):
        return driver.topshelf(*arguments, "--out", place / "run", fault=fault)

    seen = set()
    for point, place, ended in failed_everywhere(driver, tmp_path, train):
        assert ended.code == 2, point
        if (place / "run").exists() and point not in seen:  # points of the same name leave the same state
            seen.add(point)
            must(driver.topshelf("train", "--resume", place / "run", "--quiet"))
            assert tree(place / "run").keys() == tree(tmp_path / "whole" / "run").keys()
    assert seen


def check(driver, pristine, tmp_path, kind, names, **more):
    outcomes = judged(driver, pristine, kind, names, tmp_path, action="faults.tasks:judge_cases", **more)
    COUNTS.update(counted(outcomes))
    bad = {name: found for name, found in outcomes.items() if found[0] in FAILURES}
    assert not bad, f"{len(bad)} of {len(outcomes)}:\n" + "\n\n".join(
        f"{name}\n  {outcome}: {details[:1500]}" for name, (outcome, details) in list(bad.items())[:40]
    )
