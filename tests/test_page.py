"""The page of HTML."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser

import pytest

from topshelf.errors import CheckpointError
from topshelf.page import Cell, Page

HOSTILE = """<script>alert("x")</script> & 'y' $\\frac{$ --> ]]>"""


class Reader(HTMLParser):
    """Tags, texts, and the rows of tables with their classes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[tuple[str, str | None, str]] = []
        self.texts: list[str] = []
        self.rows: list[str | None] = []
        self.is_in_cell = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append((tag, dict(attrs).get("class"), ""))
            self.is_in_cell = True
        if tag == "tr":
            self.rows.append(dict(attrs).get("class"))

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.is_in_cell = False

    def handle_data(self, data):
        self.texts.append(data)
        if self.is_in_cell and data.strip():
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
    assert html.count("<script") == 1  # the page's own
    found = Reader(html)
    assert found.tags.count("script") == 1
    assert found.texts.count(HOSTILE) == 8  # title, h1, h2, two paragraphs, two cells, the table's caption


def test_columns_of_numbers_are_set_to_the_right():
    page = Page("t")
    page.table(["name", "n", "score", "mixed"], [["a", "1,234", "-0.5", "3"], ["b", "7", "+1.25", "none"]])
    assert Reader(page.html()).cells == [
        ("th", None, "name"), ("th", "number", "n"), ("th", "number", "score"), ("th", None, "mixed"),
        ("th", "short", "a"), ("td", "number", "1,234"), ("td", "number", "-0.5"), ("td", None, "3"),
        ("th", "short", "b"), ("td", "number", "7"), ("td", "number", "+1.25"), ("td", None, "none"),
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
    width = float(re.search(r'<figure><svg [^>]*width="([\d.]+)pt"', page.html())[1])
    assert width * 4 / 3 <= 430  # pixels: letters are shrunk by less than a fifth on a screen of 390
    page.drawing(b'<?xml?><svg width="700pt"></svg>')
    assert '<figure class=wide tabindex=0><svg role="img" aria-label="t" width="700pt"></svg></figure>' in page.html()
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


def test_plots_are_drawn_in_the_colours_of_the_theme_and_share_no_name():
    page = Page("t")
    for _ in range(2):
        page.intervals(["first"], [0.1], [(0.05, 0.15)], "NDCG@20")
    html = page.html()
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 2
    for one in drawings:
        assert "var(--s1)" in one  # the line
        assert "var(--card)" in one  # the ground
        assert not re.search(r"#(ffffff|000000|0072b2)", one)
        assert "<title>first 0.1000 (0.0500 to 0.1500)</title>" in one
        assert 'role="img" aria-label="NDCG@20: first 0.1000 (0.0500 to 0.1500)"' in one
    names = re.findall(r'\bid="?([^" >]+)', html)
    assert len(names) == len(set(names))
    used = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', "".join(drawings))}
    assert used <= set(names)
    page.html()
    assert page.html() == html


def test_a_page_says_that_nothing_may_be_loaded_and_which_script_is_its_own():
    html = Page("t").html()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none';")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_sections_are_listed_and_tables_and_commands_are_named():
    page = Page("t", lead="what it is", footer="made today")
    for title in ("One", "Two", "Three"):
        page.heading(title)
        page.table(["a", ""], [["x", "1"]])
    page.subheading("Below")
    page.table(["a"], [["x"]], caption="Said & seen")
    page.command("topshelf report 'a b' && ls")
    with page.details("More <b>"), page.beside():
        page.chips(["<i>"])
        page.tiles([("n", Cell("1", "small <u>"))])
    html = page.html()
    for at, title in enumerate(("One", "Two", "Three"), start=1):
        assert f'<a href="#part-{at}">{title}</a>' in html
        assert f'<section id=part-{at} aria-label="{title}">' in html
        assert f"<caption>{title}</caption>" in html
    assert html.count("<caption>") == html.count("<table") == 4
    assert "<p class=caption aria-hidden=true>Said &amp; seen</p>" in html
    assert "<code>topshelf report &#x27;a b&#x27; &amp;&amp; ls</code>" in html
    assert "<summary>More &lt;b&gt;</summary>" in html
    assert "<li>&lt;i&gt;</li>" in html
    assert "<small>small &lt;u&gt;</small>" in html
    for mark in ('<html lang="en">', "<main id=content>", "<nav ", "what it is", "<footer><p>made today"):
        assert mark in html


def test_the_colours_of_texts_have_contrast_in_both_themes():
    html = Page("t").html()
    themes = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    assert len(themes) == 3  # light, dark, print
    for theme in themes:
        colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", theme))
        for ink in ("ink", "muted", "accent", "hit"):
            for ground in ("card", "ground", "best"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground, theme)
        for place in range(1, 8):  # lines of plots
            assert contrast(colours[f"s{place}"], colours["card"]) >= 2.9, place


def contrast(one, other):
    """The ratio of WCAG."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
