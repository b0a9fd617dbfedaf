"""The helpers that every plot is made with."""

from __future__ import annotations

import sys

import pytest

from topshelf import charts

pytest.importorskip("matplotlib")


def test_the_same_figure_gives_the_same_file():
    """No date in it, and no random names of clip paths."""

    def drawn():
        drawing, (axes,) = charts.figure(3, 2)
        axes.plot([1, 2], [3, 4])
        return charts.render(drawing)

    first, second = drawn(), drawn()
    assert b"clip-path" in first
    assert first == second
    assert b"<dc:date>" not in first
    assert charts.render(charts.figure(3, 2)[0], "png").startswith(b"\x89PNG")


def test_panels_stand_side_by_side_without_a_frame():
    figure, panels = charts.figure(6, 2, 3)
    assert figure.axes == panels
    assert not any(panel.spines[side].get_visible() for panel in panels for side in ("top", "right"))


def test_panels_in_rows_leave_no_empty_one():
    figure, panels = charts.figure(6, 4, 3, rows=2)
    assert figure.axes == panels
    assert [panel.get_subplotspec().rowspan.start for panel in panels] == [0, 0, 1]


def test_bars_are_labelled_from_top_to_bottom():
    _, (axes,) = charts.figure(3, 2)
    charts.bars(axes, ["a", "b$c$"], [1.0, 3.0], ["one", "three"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", r"b\$c\$"]
    assert [text.get_text() for text in axes.texts] == ["one", "three"]
    assert axes.yaxis_inverted()


def test_shares_are_shown_in_percent():
    figure, (axes,) = charts.figure(3, 2)
    axes.set_yticks([0, 0.125, 1])
    charts.percent(axes.yaxis)
    figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "12.5%", "100%"]


def test_without_matplotlib_there_are_no_plots(monkeypatch):
    assert charts.can_plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not charts.can_plot()
