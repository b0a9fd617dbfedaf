"""A study as files: the best config, the numbers, and one page with everything."""

from __future__ import annotations

import io
import json
import shlex
from typing import Any

from topshelf.errors import CheckpointError
from topshelf.files import read_json, write_text
from topshelf.report import Page
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.outcome import TrialRow, Tuned
from topshelf.tuning.ranges import text

NO_PLOTS = "No plots: matplotlib is not installed (pip install 'topshelf[plot]')."
_HEADINGS = {
    "history": ("History", "Every trial in its order."),
    "curves": (
        "Validation by epoch",
        "A line a trial. A pruned trial was behind others at the same epoch and was stopped there.",
    ),
    "importances": (
        "Importances",
        "How much of the difference between good and bad trials each setting explains. With few trials, or where the "
        "search settled early, they are hints, not findings.",
    ),
    "by_setting": ("Score by setting", "A point a trial."),
    "coordinates": ("Parallel coordinates", "A line a trial, through its settings to its score."),
}


def write(found: Tuned, folder: StudyFolder) -> None:
    """best.toml, trials.json and report.html, unless another process has written them with more trials meanwhile."""
    drawn = page(found)  # takes a second or two, in which the trials of others may end
    if _is_outdated(found, folder):
        return
    if found.config is not None:
        folder.save_best(found.config)
    write_text(folder.trials, json.dumps(found.to_json(), indent=1) + "\n")
    drawn.write(folder.report)


def command(found: Tuned) -> str | None:
    """The command that trains the best config."""
    if found.folder is None or found.config is None:
        return None
    best = shlex.quote(str(found.folder / "best.toml"))
    return f"topshelf train {best} --out {shlex.quote(str(found.folder / 'best'))}"


def page(found: Tuned) -> Page:
    """The study's page; plots where matplotlib is at hand."""
    result = Page(f"Tuning {found.method} on {found.data}")
    result.paragraph(
        f"Chosen by {found.metric} on the validation part; the test part was not read. Sampler: {found.sampler}; "
        f"pruning: {'Hyperband' if found.budget.epochs else 'none, for there are no epochs'}."
    )
    budget = str(found.budget)
    result.paragraph(f"{budget[0].upper()}{budget[1:]}.")
    result.heading("The best")
    result.paragraph(verdict(found))
    result.table(*comparison(found))
    if (line := command(found)) is not None:
        result.paragraph(f"Train it: {line}")
    drawings = _drawings(found)
    if not drawings:
        result.paragraph(NO_PLOTS if not can_plot() else "No trial has a score yet.", note=True)
    for name, drawing in drawings.items():
        title, explanation = _HEADINGS[name]
        result.heading(title)
        result.paragraph(explanation)
        result.drawing(drawing)
    if drawings and not found.importances and len(found.ranges) > 1:
        result.paragraph("No importances: they need four complete trials with different scores.", note=True)
    result.heading("Trials")
    best = found.best
    result.table(*trials_table(found), best=None if best is None else found.rows.index(best))
    return result


def verdict(found: Tuned) -> str:
    """The best against the defaults, in a sentence."""
    best, default = found.best, found.default
    if best is None:
        return "No trial is complete yet."
    said = f"Trial {best.number}: {found.metric} {best.score:.4f} on validation"
    if default is None:
        return f"{said}; the defaults are not complete yet."
    if best is default:
        return f"{said}: the defaults; no other trial was better."
    assert best.score is not None
    assert default.score is not None
    return f"{said}, {best.score - default.score:+.4f} against the defaults ({default.score:.4f})."


def comparison(found: Tuned) -> tuple[list[str], list[list[str]]]:
    """What was searched, with the best and the default values."""
    best, default = found.best, next((row for row in found.rows if row.is_default and row.settings), None)
    rows = [[name, _value(best, name), _value(default, name), str(range_)] for name, range_ in found.ranges.items()]
    return ["setting", "best", "default", "searched"], rows


def trials_table(found: Tuned) -> tuple[list[str], list[list[str]]]:
    """A row a trial; without columns that no trial has anything for."""
    epochs = ["best epoch", "epochs"] if found.budget.epochs else []
    notes = ["note"] if any(row.note for row in found.rows) else []
    header = ["trial", found.metric, "state", *epochs, "seconds", *found.ranges, *notes]
    rows = [
        [
            str(row.number),
            "" if row.score is None else f"{row.score:.4f}",
            f"{row.state} (defaults)" if row.is_default else row.state,
            *(str(number or "") for number in (row.best_epoch, row.epochs) if epochs),
            f"{row.seconds:.1f}",
            *(_value(row, name) for name in found.ranges),
            *(row.note for _ in notes),
        ]
        for row in found.rows
    ]
    return header, rows


def _is_outdated(found: Tuned, folder: StudyFolder) -> bool:
    """Whether a trial that ran elsewhere when ``found`` was made has been written down as ended since."""
    if not found.budget.spent["running"] or not folder.trials.exists():
        return False
    try:
        there = read_json(folder.trials)["budget"]["spent"]
        return _ended(there) > _ended(found.budget.spent)
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return False  # damaged, or edited: written anew


def _ended(spent: dict[str, int]) -> int:
    return sum(count for state, count in spent.items() if state != "running")


def can_plot() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def _drawings(found: Tuned) -> dict[str, str]:
    if not can_plot():
        return {}
    from topshelf.tuning import plots  # needs matplotlib

    return {name: _svg(figure) for name, figure in plots.draw(found).items()}


def _svg(figure: Any) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})  # no date: the same study gives the same page
    return drawn.getvalue()


def _value(row: TrialRow | None, name: str) -> str:
    return text(row.settings[name]) if row is not None and name in row.settings else ""
