"""A study's page and plots, of trials made up for the purpose."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from topshelf.config import make_config
from topshelf.training.tasks import TASKS
from topshelf.tuning import Budget, Choice, Interval, TrialRow, Tuned, page
from topshelf.tuning.folder import StudyFolder

pytest.importorskip("matplotlib")
from topshelf.tuning import plots as drawn

TAU, RATE = Choice((0.05, 0.1, 0.2)), Interval(0.001, 0.1, log=True)
ROWS = [
    TrialRow(0, "complete", {"loss.tau": 0.2, "train.learning_rate": 0.1}, 0.3, True, 2, 2, history={1: 0.2, 2: 0.3}),
    TrialRow(1, "complete", {"loss.tau": 0.1, "train.learning_rate": 0.01}, 0.4, False, 2, 2, history={1: 0.1, 2: 0.4}),
    TrialRow(2, "pruned", {"loss.tau": 0.05, "train.learning_rate": 0.001}, 0.1, False, 1, 1, history={1: 0.1}),
    TrialRow(3, "interrupted", {"loss.tau": 0.2, "train.learning_rate": 0.02}),
    TrialRow(4, "pruned", {"loss.tau": 0.2, "train.learning_rate": 0.02}, 0.2, False, 1, 1, history={1: 0.2}),
]


def a_study(rows=ROWS, ranges=None, epochs=2, importances=None):
    ranges = ranges or {"loss.tau": TAU, "train.learning_rate": RATE}
    budget = Budget.of(rows, len(rows), epochs, None)
    return Tuned("mf with slatk", "clicks", "ndcg@5", "tpe", ranges, rows, None, budget, importances or {})


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("interactions", "users with nothing to find left out"),
        ("sequences", "users whose next item cannot be found count as 0"),
        ("ranking", "queries with nothing to find left out"),
        ("links", "every edge ranked against its own negatives"),
    ],
)
def test_a_score_is_shown_with_what_counts_in_its_task(task, expected):
    tuned = replace(a_study(), validated=TASKS[task].validated)
    assert page.chosen_by(tuned) == f"Chosen by ndcg@5 on the validation part, {expected}; the test part was not read."


def labels(figure):
    return figure.axes[0].get_legend_handles_labels()[1]


def test_the_line_of_the_best_goes_on_to_the_last_trial():
    figure = drawn.history(a_study())
    (line,) = figure.axes[0].get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 1, 4], [0.3, 0.4, 0.4])
    assert labels(figure) == ["complete", "pruned, best before", "the defaults", "best so far"]


def test_a_history_without_a_complete_trial_has_no_best():
    assert labels(drawn.history(a_study(ROWS[2:]))) == ["pruned, best before"]


def test_the_curves_say_which_is_which():
    figure = drawn.curves(a_study())
    assert labels(figure) == ["other trials", "the defaults", "the best", "pruned here"]
    *_, best, pruned = figure.axes[0].get_lines()
    assert list(best.get_ydata()) == [0.1, 0.4]
    assert list(zip(pruned.get_xdata(), pruned.get_ydata(), strict=True)) == [(1, 0.1), (1, 0.2)]
    assert labels(drawn.curves(a_study(ROWS[:1]))) == ["the best: the defaults"]


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        (TAU, ["0.05", "0.1", "0.2"]),
        (RATE, ["0.001", "0.0032", "0.01", "0.032", "0.1"]),
        (Interval(32, 256, whole=True), ["32", "88", "144", "200", "256"]),
        (Interval(1, 2, whole=True), ["1", "2"]),
    ],
)
def test_an_axis_has_its_labels_where_its_values_are(range_, expected):
    ticks = drawn._ticks(range_)
    assert [label for _, label in ticks] == expected
    heights = [height for height, _ in ticks]
    assert heights == sorted(heights)
    assert (heights[0], heights[-1]) == (0, 1)
    assert heights == pytest.approx([drawn._height(range_, float(label)) for label in expected])


def test_one_setting_is_drawn_against_the_score_and_several_side_by_side(plots):
    one = a_study(ranges={"loss.tau": TAU})
    assert list(drawn.draw(one)) == ["history", "curves", "by_setting"]
    dots = drawn.by_setting(one).axes[0].collections[0].get_offsets()
    assert [tuple(dot) for dot in dots] == [(1.0, 0.3), (0.5, 0.4)]
    assert "<h2>Score by setting</h2>" in page.page(one).html()
    several = a_study(importances={"loss.tau": 0.7, "train.learning_rate": 0.3})
    assert list(drawn.draw(several)) == ["history", "curves", "importances", "coordinates"]


def test_the_page_says_why_it_has_no_importances(plots):
    without = "No importances: they need four complete trials"
    assert without in page.page(a_study()).html()
    assert without not in page.page(a_study(importances={"loss.tau": 0.7, "train.learning_rate": 0.3})).html()
    assert without not in page.page(a_study(ranges={"loss.tau": TAU})).html()


def test_the_table_of_trials_has_no_column_without_content():
    header, rows = page.trials_table(a_study())
    assert header == ["trial", "ndcg@5", "state", "best epoch", "epochs", "seconds", "loss.tau", "train.learning_rate"]
    assert rows[0] == ["0", "0.3000", "complete (defaults)", "2", "2", "0.0", "0.2", "0.1"]
    assert rows[3] == ["3", "", "interrupted", "", "", "0.0", "0.2", "0.02"]
    failed = TrialRow(1, "failed", {"loss.tau": 0.1}, note="too large")
    header, rows = page.trials_table(a_study([ROWS[0], failed], {"loss.tau": TAU}, epochs=0))
    assert header == ["trial", "ndcg@5", "state", "seconds", "loss.tau", "note"]
    assert rows[1] == ["1", "", "failed", "0.0", "0.1", "too large"]


def test_a_process_that_ends_beside_others_takes_nothing_back_from_their_files(tmp_path):
    """It read the trials, drew its page for a second, and another process ended its trial and wrote in between."""
    folder = StudyFolder(tmp_path)
    at_work = [*ROWS[:4], TrialRow(4, "running", {})]
    before, after = (replace(a_study(rows), config=make_config({"k": k})) for k, rows in ((3, at_work), (5, ROWS)))
    page.write(before, folder)
    assert json.loads(folder.trials.read_text())["budget"]["spent"]["running"] == 1
    page.write(after, folder)
    written = [path.read_text() for path in (folder.best, folder.trials, folder.report)]
    assert "k = 5" in written[0]
    page.write(before, folder)
    assert [path.read_text() for path in (folder.best, folder.trials, folder.report)] == written
    folder.trials.write_text("[]")
    page.write(before, folder)
    assert "k = 3" in folder.best.read_text()
