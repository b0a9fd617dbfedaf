"""The page at /: its route and headers, and what it does in Chromium."""

from __future__ import annotations

import json
import re
import time
from importlib import resources
from urllib.parse import urljoin

import pytest

from chromium import WAIT, browser
from servers import running
from topshelf.serving import Engine
from topshelf.serving.keys import make_key
from topshelf.serving.page import FILES, POLICY

from .test_http import ask

MARKUP = """<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"'&amp;</td>"""
STATIC = resources.files("topshelf.serving") / "static"


def test_every_file_is_given_with_a_strict_policy(serve):
    client = serve()
    assert {one.name for one in STATIC.iterdir()} == set(FILES.values())
    for path, name in FILES.items():
        status, headers, content = ask(client, "GET", path)
        assert (status, content) == (200, (STATIC / name).read_bytes())
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    assert ask(client, "GET", "/")[1]["content-type"] == "text/html; charset=utf-8"
    assert ask(client, "GET", "/page/page.js")[1]["content-type"] == "text/javascript; charset=utf-8"
    assert ask(client, "POST", "/", b"{}")[0] == 405
    for path in ("/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/index.html"):
        assert ask(client, "GET", path)[0] == 404


def test_the_policy_allows_this_server_only():
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert {name for name, value in rules.items() if value == "'self'"} == {
        "script-src", "style-src", "connect-src", "img-src",
    }  # fmt: skip
    assert "unsafe" not in POLICY
    assert {rules[name] for name in ("form-action", "frame-ancestors", "base-uri", "trusted-types")} == {"'none'"}


def test_it_needs_no_key_and_its_requests_do(serve, tmp_path):
    make_key(tmp_path / "keys.json", "read")
    client = serve(keys=str(tmp_path / "keys.json"))
    assert {ask(client, "GET", path)[0] for path in FILES} == {200}
    assert ask(client, "GET", "/model")[0] == 401


def test_it_can_be_switched_off(serve):
    client = serve(page=False)
    assert {ask(client, "GET", path)[0] for path in FILES} == {404}


def test_it_is_refused_to_other_hosts_without_keys(serve):
    assert ask(serve(), "GET", "/", host="evil.example")[0] == 403


def test_its_files_have_nothing_inline_and_name_no_other_server():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    named = [urljoin("/", link) for link in re.findall(r'(?:src|href)="([^"#]+)"', page)]
    assert set(named) - {"/openapi.json"} <= set(FILES)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:for|aria-labelledby|aria-describedby)="([^"]+)"', page)) <= set(ids)
    for name in FILES.values():
        text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def titled(runs, attributes, tmp_path_factory):
    """A server of two variants with titles, one of them full of markup."""
    folder = tmp_path_factory.mktemp("titled")
    titles = ["item,title", *(f"i{n},Title {n}" for n in range(1, 50))]
    quoted = MARKUP.replace('"', '""')
    (folder / "titles.csv").write_text("\n".join([*titles, f'i0,"{quoted}"']))
    settings = {"titles": str(folder / "titles.csv"), "events": {"path": str(folder / "events.db")}}
    variants = [{"run": str(runs / "mf"), "name": "b", "share": 50}]
    engine = Engine(runs / "ease", port=0, variants=variants, attributes=str(attributes), **settings)
    with running(engine) as server:
        yield server


class Page:
    """The page of a server, as its user sees it."""

    def __init__(self, chromium, url, width=1280, *, dark=False):
        self.chromium, self.url = chromium, url
        self.visit = chromium.open(url, width, dark=dark)

    def shows(self, script):
        """Wait until a script gives something true, and give it."""
        end = time.monotonic() + WAIT
        while not (found := self.chromium.evaluate(script)):
            assert time.monotonic() < end, (script, self.text()[:2000])
            time.sleep(0.02)
        return found

    def text(self):
        return self.chromium.evaluate("document.body.innerText")

    def type(self, id, text):
        """Keys, not a value that is set: the field must have the focus."""
        self.chromium.evaluate(f"document.getElementById({json.dumps(id)}).focus()")
        self.chromium.evaluate("document.activeElement.select()")
        self.chromium.call("Input.insertText", text=text)

    def enter(self):
        for kind in ("keyDown", "keyUp"):
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
            self.chromium.call("Input.dispatchKeyEvent", type=kind, **key, **({"text": "\r"} if kind == "keyDown" else {}))

    def click(self, selector):
        """By the mouse, where the element is."""
        at = self.shows(f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            if (!one) return null;
            one.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = one.getBoundingClientRect();
            return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.chromium.call(
                "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1
            )

    def choose(self, id, value):
        self.chromium.evaluate(f"""(() => {{ const one = document.getElementById({json.dumps(id)});
            one.value = {json.dumps(value)}; one.dispatchEvent(new Event("change", {{bubbles: true}})); }})()""")

    def heading(self, text):
        self.shows(f"[...document.querySelectorAll('#results h2')].some((one) => one.textContent === {json.dumps(text)})")

    def table(self, caption):
        """The texts of a table's body by its caption."""
        return self.shows(f"""(() => {{
            const one = [...document.querySelectorAll("table")].find((one) => one.caption.textContent === {json.dumps(caption)});
            return one && [...one.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim())); }})()""")

    def check(self):
        """Nothing was logged, and nobody else was asked."""
        assert self.visit.messages == []
        assert {one.startswith(self.url + "/") for one in self.visit.requests} == {True}
        assert self.chromium.evaluate("window.hurt === undefined")


def shown(one):
    return one.title if one.title is None else f"{one.title}\n{one.item}"


def test_a_user_is_typed_and_the_list_and_history_appear(titled, chromium):
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    page.type("user", "u1")
    page.enter()
    page.heading("List of user u1")
    answer = titled.service.engine.recommend(user="u1", explain=3)
    rows = page.table("List of user u1")
    assert [row[1] for row in rows] == [shown(one) for one in answer.items]
    titles = {one.item: one.title for one in titled.service.engine.history("u1").items}
    assert [row[3].split("\n") for row in rows] == [[titles[own] for own in one.because] for one in answer.items]
    assert [float(row[2]) for row in rows] == pytest.approx([one.score for one in answer.items], rel=1e-3)
    assert [row[1] for row in page.table("History of user u1")] == [shown(one) for one in titled.service.engine.history("u1").items]
    assert "List of user u1: 5 items." in chromium.evaluate("document.querySelector('[role=status]').textContent")
    page.check()
