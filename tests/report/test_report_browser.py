"""The page in Chromium: no message, no request, no wider than the screen; sorting, filtering and the keyboard work."""

from __future__ import annotations

import pytest

from chromium import browser

WIDER = """
[...document.querySelectorAll("main *")].filter((one) => !one.closest(".wide, svg")
  && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80))
"""
COLUMN = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map((row) => parseFloat(row.cells[1].textContent))"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_the_screen_and_asks_for_nothing(page, chromium, width, dark):
    visit = chromium.open(page, width, dark=dark)
    chromium.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate(WIDER) == []
    ground = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 18, 22)" if dark else "rgb(244, 246, 248)")
    assert [url for url in visit.requests if not url.startswith("data:")] == [page.as_uri()]
    assert visit.messages == []


def test_tables_are_sorted_and_filtered_and_a_sorted_one_is_not_cut_off(page, chromium):
    chromium.open(page, 1200)
    before = chromium.evaluate(COLUMN)
    click = "document.querySelectorAll('table')[0].tHead.rows[0].cells[1].querySelector('button').click()"
    chromium.evaluate(click)
    assert chromium.evaluate(COLUMN) == sorted(before, reverse=True)
    chromium.evaluate(click)
    assert chromium.evaluate(COLUMN) == sorted(before)
    box = "(() => { const box = document.querySelector('.wide'); return box.scrollWidth - box.clientWidth; })()"
    assert chromium.evaluate(box) <= 0
    chromium.evaluate(click)
    assert chromium.evaluate(COLUMN) == before
    chromium.evaluate("document.querySelectorAll('details')[0].open = true")
    typed = """(() => { const input = document.querySelector('.filter input'); input.value = 'NDCG';
        input.dispatchEvent(new Event('input')); return document.querySelector('.filter span').textContent; })()"""
    assert chromium.evaluate(typed) == "3 of 22 rows"


def test_everything_can_be_reached_and_is_named(page, chromium):
    visit = chromium.open(page, 1200)
    unnamed = """[...document.querySelectorAll("svg")].filter((one) => !one.getAttribute("aria-label")).length
      + [...document.querySelectorAll("table")].filter((one) => !one.caption.textContent.trim()).length
      + [...document.querySelectorAll("thead th")].filter((one) => one.scope !== "col").length
      + [...document.querySelectorAll("input, button")]
        .filter((one) => !(one.labels?.length || one.textContent)).length"""
    assert chromium.evaluate(unnamed) == 0
    ids = "[...document.querySelectorAll('[id]')].map((one) => one.id)"
    assert chromium.evaluate(f"{ids}.length === new Set({ids}).size")
    lost = "[...document.querySelectorAll('nav a')].filter((one) => !document.querySelector(one.hash)).length"
    assert chromium.evaluate(lost) == 0
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert chromium.evaluate("document.activeElement.className") == "skip"
    assert visit.messages == []


def test_it_is_whole_without_scripts(page, chromium):
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page, 390)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
        assert chromium.evaluate("document.querySelectorAll('thead button').length") == 0
        assert chromium.evaluate("document.querySelectorAll('table').length") > 5
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
