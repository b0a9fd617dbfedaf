"""Draw the figures of README and docs from committed results: python docs/figures.py. A test compares the files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from topshelf import charts
from topshelf.bench import read_report
from topshelf.bench.diagnosed import diagnosed
from topshelf.bench.results import Results
from topshelf.bench.summary import scores
from topshelf.diagnose.measures import weights_of
from topshelf.files import write_bytes

DOCS = Path(__file__).parent
IMAGES, RESULTS = DOCS / "images", DOCS / "results"
METRIC, PROTOCOL = "ndcg@20", "standard"
# What a browser draws in dark mode instead. The files are shown as images, which follow the reader's setting.
DARK = {
    "#000000": "#e6e9ee",
    charts.BLUE: "#4aa8e0",
    charts.RED: "#ff8a3d",
    charts.GREEN: "#2fc79a",
    charts.GREY: "#a7b0bc",
}


def readme() -> Figure:
    """What SL@K gains over softmax on noisy data, and what blends gain over the best classic."""
    drawing, (left, right) = charts.figure(10, 3.4, 2)
    results = read_report(RESULTS / "noise-health").results
    for place, method in enumerate(("SL", "SL@20")):
        _line(left, results, method, charts.line(place, "softmax (SL)" if method == "SL" else method))
    left.set(xlabel="false positives put into train", ylabel="NDCG@20 on test")
    left.set_title("Amazon Health, MF: 3 seeds and their range", fontsize=11)
    left.legend(frameon=False)
    charts.percent(left.xaxis)
    _gains(right)
    return drawing


def weights() -> Figure:
    """The weight of SL@20, and the training positives that it weighs."""
    drawing, axes = charts.figure(10, 3.2, 2)
    for panel, plan, name in zip(axes, ("figures-health", "figures-electronic"), ("Health", "Electronic"), strict=True):
        (one,) = diagnosed(read_report(RESULTS / plan).results)
        kept = one.diagnosis.weights
        assert kept is not None
        panel.hist(kept.distance, bins=60, color=charts.GREY, density=True)
        panel.axvline(0, color="black", linewidth=1)
        panel.set(xlabel="score of a positive minus the user's threshold", yticks=[], xlim=(-1.2, 1.2))
        panel.set_title(f"{name}, tau_weight = {kept.tau_weight:g}", fontsize=11)
        curve = panel.twinx()
        curve.spines[["top", "left"]].set_visible(False)
        grid = np.linspace(-1.2, 1.2, 100)
        for tau, style in ((kept.tau_weight, "-"), (0.5, "--")):
            curve.plot(grid, weights_of(grid, tau), style, color=charts.RED, label=f"weight, tau_weight {tau:g}")
        curve.set_ylim(0, 1)
        curve.legend(frameon=False, fontsize=9, loc="upper left")
    return drawing


def effective_n() -> Figure:
    """NDCG@20 by N and tau_weight; plans that were not run are left out."""
    plans = {"effective-n-health": "Health, 1,200 items", "effective-n-electronic": "Electronic, 8,360 items"}
    run = {plan: title for plan, title in plans.items() if (RESULTS / plan / "report.json").exists()}
    drawing, (first, *axes) = charts.figure(5 * (1 + len(run)), 3.2, 1 + len(run))
    _by_tau(first, read_report(RESULTS / "weighting").results)
    for panel, (plan, title) in zip(axes, run.items(), strict=True):
        results = read_report(RESULTS / plan).results
        _line(panel, results, "SL@20", charts.line(0, "mean"))
        runs = [(float(str(one.x)), one.metrics[PROTOCOL][METRIC]) for one in results.runs]
        panel.plot(*zip(*runs, strict=True), "o", color=charts.BLUE, label="a seed")
        panel.set(xscale="log", xlabel="effective N", ylabel="NDCG@20 on test")
        panel.set_xticks(sorted({x for x, _ in runs}), [f"{x:,.0f}" for x in sorted({x for x, _ in runs})])
        panel.minorticks_off()
        panel.set_title(title, fontsize=11)
        panel.legend(frameon=False)
    return drawing


def _by_tau(axes: Any, results: Results) -> None:
    """On Health, a line for each group of the plan; its methods are values of tau_weight."""
    table = scores(results)
    for at, group in enumerate(("N = 1000", "N = 50", "no gradient through the weight", "softmax")):
        places = [place for place in results.places if (place.data, place.group) == ("Health", group)]
        means = [table[place, PROTOCOL, METRIC].mean for place in places]
        if group == "softmax":
            axes.axhline(means[0], color="black", linewidth=1, linestyle=":", label=group)
        else:
            taus = [float(str(place.method).split()[-1]) for place in places]
            axes.plot(taus, means, marker="o", **charts.line(at, group))
    axes.set(xlabel="tau_weight", ylabel="NDCG@20 on test", ylim=(0, None))
    axes.set_title("Health, N and tau_weight", fontsize=11)
    axes.legend(frameon=False, fontsize=9)


def _line(axes: Any, results: Results, method: str, style: dict[str, Any]) -> None:
    """Means over seeds along what the plan varies, in a band from the lowest to the highest."""
    table = scores(results)
    places = [place for place in results.places if place.method == method and (place, PROTOCOL, METRIC) in table]
    x = [float(str(place.x)) for place in places]
    seeds = [[run.metrics[PROTOCOL][METRIC] for run in results.runs if run.place == place] for place in places]
    axes.plot(x, [fmean(values) for values in seeds], **style)
    axes.fill_between(
        x, [min(values) for values in seeds], [max(values) for values in seeds], color=style["color"], alpha=0.2, lw=0
    )


def _gains(axes: Any) -> None:
    """The trained model that validation chooses and the blend, over the best classic."""
    sys.path.insert(0, str(DOCS.parent))  # where benchmarks are found
    from benchmarks.studies import blends

    rows = json.loads((DOCS.parent / "benchmarks" / "results" / "blends.json").read_text(encoding="utf-8"))["rows"]
    best = blends.compared(blends.measured(blends.BEST), rows)
    height = 0.36
    for shift, label, colour in ((-0.5, "trained", charts.GREY), (0.5, "blend", charts.BLUE)):
        gains = [row[label] / row["classic"] - 1 for row in best]
        places = [place + shift * height for place in range(len(best))]
        axes.barh(places, gains, height, color=colour, label={"trained": "trained model"}.get(label, label))
        for place, gain in zip(places, gains, strict=True):
            axes.annotate(f" {gain:+.1%} ", (gain, place), va="center", ha="left" if gain >= 0 else "right", fontsize=9)
    axes.set_yticks(range(len(best)), [row["data"].removeprefix("amazon2014-") for row in best])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlim(-0.09, 0.17)
    axes.set_title("NDCG@20 over the best classic model, all tuned", fontsize=11)
    charts.percent(axes.xaxis)
    axes.legend(frameon=False, loc="upper right")


FIGURES: dict[str, tuple[Callable[[], Figure], str]] = {
    "readme": (readme, "What SL@20 gains over softmax on noisy data, and what blends gain over the best classic model"),
    "weights": (weights, "The weight of SL@20 and the scores of training positives, relative to the threshold"),
    "effective-n": (effective_n, "NDCG@20 of SL@20 by the effective N of the partition"),
}


def drawn(name: str) -> bytes:
    """A figure as SVG on no background, with the colours of dark mode for those who want it."""
    draw, title = FIGURES[name]
    drawing = draw()
    drawing.patch.set_alpha(0)
    for axes in drawing.axes:
        axes.patch.set_alpha(0)
    return _themed(charts.render(drawing, title=title).decode()).encode()


def _themed(svg: str) -> str:
    """Colours as variables, which dark mode changes; matplotlib leaves black out where it is the default."""
    for colour in DARK:
        svg = re.sub(rf"\b(fill|stroke): {colour}\b", rf"\1: var(--c{colour[1:]})", svg)
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in DARK)
    dark = " ".join(f"--c{colour[1:]}: {other};" for colour, other in DARK.items())
    style = f"svg {{ {light} fill: var(--c000000) }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    return svg.replace("<defs>", f"<style>{style}</style>\n <defs>", 1)


if __name__ == "__main__":
    for name in FIGURES:
        write_bytes(IMAGES / f"{name}.svg", drawn(name))
