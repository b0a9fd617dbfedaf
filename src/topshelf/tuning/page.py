"""The results of a study: the best config, the numbers, and a page with everything."""

from __future__ import annotations

import json
import shlex

from topshelf import charts
from topshelf.errors import CheckpointError
from topshelf.files import read_json, write_text
from topshelf.page import Page
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.outcome import TrialRow, Tuned
from topshelf.tuning.ranges import text

_HEADINGS = {
    "history": ("History", "Every trial in order."),
    "curves": (
        "Validation by epoch",
        "One line per trial. A pruned trial was worse than others at the same epoch and was stopped there.",
    ),
    "importances": (
        "Importances",
        "The share of the difference between good and bad trials that each setting explains. With few trials, or if "
        "the search converged early, they are unreliable.",
    ),
    "by_setting": ("Score by setting", "One point per trial."),
    "coordinates": ("Parallel coordinates", "One line per trial, through its settings to its score."),
}


def write(tuned: Tuned, folder: StudyFolder) -> None:
    """Write best.toml, trials.json and report.html, unless another process has written them with more trials."""
    html = page(tuned)  # takes a second or two; trials of other processes may end meanwhile
    if _is_outdated(tuned, folder):
        return
    if tuned.config is not None:
        folder.save_best(tuned.config)
    write_text(folder.trials, json.dumps(tuned.to_json(), indent=1) + "\n")
    html.write(folder.report)


def command(tuned: Tuned) -> str | None:
    """The command that trains the best config."""
    if tuned.folder is None or tuned.config is None:
        return None
    best = shlex.quote(str(tuned.folder / "best.toml"))
    return f"topshelf train {best} --out {shlex.quote(str(tuned.folder / 'best'))}"


def chosen_by(tuned: Tuned) -> str:
    """The measure that every score of a study is, with what it must be shown with."""
    return f"Chosen by {tuned.metric} on the validation part, {tuned.validated}; the test part was not read."


def page(tuned: Tuned) -> Page:
    """The study's page; without matplotlib it has no plots."""
    result = Page(f"Tuning {tuned.method} on {tuned.data}")
    result.paragraph(
        f"{chosen_by(tuned)} Sampler: {tuned.sampler}; "
        f"pruning: {'Hyperband' if tuned.budget.epochs else 'none (the model has no epochs)'}."
    )
    budget = str(tuned.budget)
    result.paragraph(f"{budget[0].upper()}{budget[1:]}.")
    result.heading("The best")
    result.paragraph(verdict(tuned))
    result.table(*comparison(tuned))
    if (line := command(tuned)) is not None:
        result.paragraph("Train it:")
        result.command(line)
    _draw(result, tuned)
    result.heading("Trials")
    best = tuned.best
    result.table(*trials_table(tuned), best=None if best is None else tuned.rows.index(best))
    return result


def _draw(result: Page, tuned: Tuned) -> None:
    if not charts.can_plot():
        result.paragraph(charts.NO_PLOTS, note=True)
        return
    from topshelf.tuning import plots  # needs matplotlib

    figures = plots.draw(tuned)
    for name, figure in figures.items():
        title, explanation = _HEADINGS[name]
        result.heading(title)
        result.paragraph(explanation)
        result.drawing(charts.render(figure))
    if not figures:
        result.paragraph("No trial has a score yet.", note=True)
    elif not tuned.importances and len(tuned.ranges) > 1:
        result.paragraph("No importances: they need four complete trials with different scores.", note=True)


def verdict(tuned: Tuned) -> str:
    """The best trial against the defaults, in one sentence."""
    best, default = tuned.best, tuned.default
    if best is None:
        return "No trial is complete yet."
    score = f"Trial {best.number}: {tuned.metric} {best.score:.4f} on validation"
    if default is None:
        return f"{score}; the defaults are not complete yet."
    if best is default:
        return f"{score}: the defaults; no other trial was better."
    assert best.score is not None
    assert default.score is not None
    return f"{score}, {best.score - default.score:+.4f} against the defaults ({default.score:.4f})."


def comparison(tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    """The searched settings with their best and default values."""
    best, default = tuned.best, next((row for row in tuned.rows if row.is_default and row.settings), None)
    rows = [[name, _value(best, name), _value(default, name), str(range_)] for name, range_ in tuned.ranges.items()]
    return ["setting", "best", "default", "searched"], rows


def trials_table(tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    """One row per trial, without empty columns."""
    epochs = ["best epoch", "epochs"] if tuned.budget.epochs else []
    notes = ["note"] if any(row.note for row in tuned.rows) else []
    header = ["trial", tuned.metric, "state", *epochs, "seconds", *tuned.ranges, *notes]
    rows = [
        [
            str(row.number),
            "" if row.score is None else f"{row.score:.4f}",
            f"{row.state} (defaults)" if row.is_default else row.state,
            *(str(number or "") for number in (row.best_epoch, row.epochs) if epochs),
            f"{row.seconds:.1f}",
            *(_value(row, name) for name in tuned.ranges),
            *(row.note for _ in notes),
        ]
        for row in tuned.rows
    ]
    return header, rows


def _is_outdated(tuned: Tuned, folder: StudyFolder) -> bool:
    """Whether the files on disk already count more ended trials than ``tuned`` does."""
    if not tuned.budget.spent["running"] or not folder.trials.exists():
        return False
    try:
        return _ended(read_json(folder.trials)["budget"]["spent"]) > _ended(tuned.budget.spent)
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return False  # damaged or edited: replaced


def _ended(spent: dict[str, int]) -> int:
    return sum(count for state, count in spent.items() if state != "running")


def _value(row: TrialRow | None, name: str) -> str:
    return text(row.settings[name]) if row is not None and name in row.settings else ""
