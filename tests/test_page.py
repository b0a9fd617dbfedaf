"""The page of HTML."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

from topshelf.errors import CheckpointError
from topshelf.page import Page

HOSTILE = """<script>alert("x")</script> & 'y' $\\frac{$ --> ]]>"""


class Reader(HTMLParser):
    """Tags, texts, and the rows of tables with their classes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[tuple[str, str | None, str]] = []
        self.texts: list[str] = []
        self.rows: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append((tag, dict(attrs).get("class"), ""))
        if tag == "tr":
            self.rows.append(dict(attrs).get("class"))

    def handle_data(self, data):
        self.texts.append(data)
        if self.cells and data.strip():
            tag, kind, text = self.cells[-1]
            self.cells[-1] = (tag, kind, text + data)


def test_everything_that_comes_from_data_is_escaped():
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.paragraph(HOSTILE)
    page.paragraph(HOSTILE, note=True)
    page.table([HOSTILE], [[HOSTILE]])
    page.intervals([HOSTILE], [0.5], [(0.4, 0.6)], HOSTILE)
    html = page.html()
    assert "<script" not in html
    found = Reader(html)
    assert "script" not in found.tags
    assert found.texts.count(HOSTILE) == 7  # title, h1, h2, two paragraphs, two cells


def test_columns_of_numbers_are_set_to_the_right():
    page = Page("t")
    page.table(["name", "n", "score", "mixed"], [["a", "1,234", "-0.5", "3"], ["b", "7", "+1.25", "none"]])
    assert Reader(page.html()).cells == [
        ("th", None, "name"), ("th", "number", "n"), ("th", "number", "score"), ("th", None, "mixed"),
        ("td", None, "a"), ("td", "number", "1,234"), ("td", "number", "-0.5"), ("td", None, "3"),
        ("td", None, "b"), ("td", "number", "7"), ("td", "number", "+1.25"), ("td", None, "none"),
    ]  # fmt: skip


def test_intervals_are_numbers_and_no_number_is_broken_over_lines():
    page = Page("t")
    page.table(["interval", "words"], [["0.1 to 0.2", "1 to many"], ["-0.1 to +0.2", "to"], ["", ""]])
    kinds = {text: kind for _, kind, text in Reader(page.html()).cells}
    assert (kinds["-0.1 to +0.2"], kinds["to"], kinds["1 to many"]) == ("number", None, None)
    assert "td.number { white-space: nowrap; }" in page.html()


def test_headings_break_inside_names_of_settings_and_not_inside_numbers():
    page = Page("t")
    page.table(["train.learning_rate", "under 0.05, %"], [["1", "2"]])
    assert "train.<wbr>learning_rate" in page.html()
    assert "under 0.05, %" in page.html()


def test_plots_can_be_read_on_a_phone():
    page = Page("t")
    page.intervals(["first"], [0.1], [(0.05, 0.15)], "NDCG@20")
    width = float(re.search(r'<div class=plot><svg [^>]*width="([\d.]+)pt"', page.html())[1])
    assert width * 4 / 3 <= 430  # pixels: letters are shrunk by less than a fifth on a screen of 390
    page.drawing(b'<?xml?><svg width="700pt"></svg>')
    assert '<div class=wide><svg width="700pt"></svg></div>' in page.html()
    assert ".wide svg { min-width" in page.html()


def test_the_best_row_is_marked_and_a_table_may_be_empty():
    page = Page("t")
    page.table(["a"], [["x"], ["y"]], best=1)
    page.table(["b"], [])
    assert Reader(page.html()).rows == [None, None, "best", None]


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="zip"):
        Page("t").table(["a", "b"], [["1", "2", "3"]])


def test_a_plot_shows_every_label_and_leaves_the_callers_plots_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    page = Page("t")
    page.intervals(["first", "second"], [0.1, 0.2], [(0.05, 0.15), (0.15, 0.25)], "NDCG@20")
    html = page.html()
    assert html.count("<svg") == html.count("</svg>") == 1
    assert "<?xml" not in html
    for text in ("first", "second", "NDCG@20", "0.1000", "0.2000"):
        assert text in html
    assert "matplotlib.pyplot" not in sys.modules  # it would choose a backend


def test_without_matplotlib_the_page_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = Page("t")
    page.intervals(["a"], [0.1], [(0.0, 0.2)], "x")
    assert "pip install 'topshelf[plot]'" in " ".join(Reader(page.html()).texts)


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    page = Page("é")
    page.write(path)
    assert path.read_text(encoding="utf-8") == page.html()
    page.paragraph("more")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"report\.html.*No space left.*before is kept"):
        page.write(path)
    assert "more" not in path.read_text(encoding="utf-8")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
