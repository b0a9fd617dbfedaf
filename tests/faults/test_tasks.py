"""Damaged and crafted run folders of documents, next items and links: refused, or the same, as for interactions."""

from __future__ import annotations

from collections import Counter

import pytest

from faults.driver import must
from faults.judging import FAILURES, REFUSED, counted, judged
from faults.tasks import KINDS, cases, some

N_CRAFTED = 270  # the least number of cases below; docs/reliability.md says so
FLIPS = 6
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


def check(driver, pristine, tmp_path, kind, names, **more):
    outcomes = judged(driver, pristine, kind, names, tmp_path, action="faults.tasks:judge_cases", **more)
    COUNTS.update(counted(outcomes))
    bad = {name: found for name, found in outcomes.items() if found[0] in FAILURES}
    assert not bad, f"{len(bad)} of {len(outcomes)}:\n" + "\n\n".join(
        f"{name}\n  {outcome}: {details[:1500]}" for name, (outcome, details) in list(bad.items())[:40]
    )
