"""The plots of the diagnosis of a run; this module needs matplotlib."""

from __future__ import annotations

from matplotlib.figure import Figure

from topshelf import charts
from topshelf.charts import BLUE, RED
from topshelf.diagnose.examine import RunDiagnosis
from topshelf.diagnose.plots import weight_histogram


def draw(diagnosis: RunDiagnosis) -> dict[str, Figure]:
    """Every plot that the diagnosis has values for, by file name."""
    found = {"references": references(diagnosis), "groups": groups(diagnosis)}
    if diagnosis.epochs:
        found["training"] = training(diagnosis)
    if diagnosis.weights is not None:
        found["weights"] = weight_histogram(diagnosis)
    return found


def references(diagnosis: RunDiagnosis) -> Figure:
    found = diagnosis.examination
    rows = {diagnosis.label: found.evaluation, **found.references}
    means = [float(one.per_user[found.metric].mean()) for one in rows.values()]
    figure, (axes,) = charts.figure(7, 1.2 + 0.45 * len(rows))
    charts.bars(axes, list(rows), means, [f"{mean:.4f}" for mean in means])
    axes.margins(x=0.18)
    axes.set_xlabel(charts.plain(f"{found.metric}, {found.part} part"))
    return figure


def groups(diagnosis: RunDiagnosis) -> Figure:
    found = diagnosis.examination
    n = len(found.traits)
    rows_of_two = -(-n // 2)  # more in a row would be too small to read
    figure, panels = charts.figure(4.2 * min(n, 2), 3.6 * rows_of_two, n, rows=rows_of_two)
    for axes, trait in zip(panels, found.traits, strict=True):
        rows = found.groups(trait)
        charts.bars(axes, [one.label for one in rows], [one.mean for one in rows], [f"n = {one.n:,}" for one in rows])
        axes.axvline(found.mean, color=RED, linewidth=1, linestyle="--")
        axes.margins(x=0.3)
        axes.set_xlabel(charts.plain(found.metric))
        axes.set_title(charts.plain(f"by {trait.title}"), fontsize=10)
    return figure


def training(diagnosis: RunDiagnosis) -> Figure:
    figure, (left, right) = charts.figure(9.6, 3.8, 2)
    left.plot([one.epoch for one in diagnosis.epochs], [one.loss for one in diagnosis.epochs], color=BLUE)
    points = [(one.epoch, one.valid) for one in diagnosis.epochs if one.valid is not None]
    right.plot([epoch for epoch, _ in points], [value for _, value in points], color=BLUE, marker="o", markersize=3)
    right.axvline(diagnosis.best_epoch, color=RED, linewidth=1, linestyle="--")
    for axes, label in ((left, "training loss"), (right, f"validation {diagnosis.examination.metric}")):
        axes.set(xlabel="epoch", ylabel=charts.plain(label))
        charts.whole_numbers(axes.xaxis)
    right.set_xlim(left.get_xlim())  # a single validation has no range of its own
    return figure
