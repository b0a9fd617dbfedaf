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
KEYS = {"Enter": (13, "\r"), "Space": (32, " "), "Tab": (9, "")}
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
        self.press("Enter")

    def press(self, name):
        code, text = KEYS[name]
        key = {"key": text if name == "Space" else name, "code": name, "windowsVirtualKeyCode": code}
        self.chromium.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.chromium.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector):
        """By the mouse, where the element is."""
        at = self.shows(f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            if (!one) return null;
            one.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = one.getBoundingClientRect();
            return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.chromium.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def choose(self, id, value):
        self.chromium.evaluate(f"""(() => {{ const one = document.getElementById({json.dumps(id)});
            one.value = {json.dumps(value)}; one.dispatchEvent(new Event("change", {{bubbles: true}})); }})()""")

    def heading(self, text):
        self.shows(
            f"[...document.querySelectorAll('#results h2')].some((one) => one.textContent === {json.dumps(text)})"
        )

    def table(self, caption):
        """The texts of a table's body by its caption."""
        return self.shows(f"""(() => {{
            const named = (one) => one.caption.textContent === {json.dumps(caption)};
            const rows = [...document.querySelectorAll("table")].find(named)?.tBodies[0].rows;
            return rows && [...rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim())); }})()""")

    def check(self):
        """Nothing was logged, and nobody else was asked."""
        assert self.visit.messages == []
        assert {one.startswith(self.url + "/") for one in self.visit.requests} == {True}
        assert self.chromium.evaluate("window.hurt === undefined")


def shown(one):
    return str(one.item) if one.title is None else f"{one.title}\n{one.item}"


def asked(chromium, titled, user):
    """The page, with the list of a user."""
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    page.type("user", user)
    page.enter()
    page.heading(f"List of user {user}")
    return page


def test_a_user_is_typed_and_the_list_and_history_appear(titled, chromium):
    page = asked(chromium, titled, "u1")
    answer, owned = titled.service.engine.recommend(user="u1", explain=3), titled.service.engine.history("u1").items
    rows = page.table("List of user u1")
    listed, under = rows[::2], rows[1::2]
    assert [row[1] for row in listed] == [shown(one) for one in answer.items]
    assert [float(row[2]) for row in listed] == pytest.approx([one.score for one in answer.items], rel=1e-3)
    titles = {one.item: one.title for one in owned}
    for one, (_, text) in zip(answer.items, under, strict=True):
        assert one.because
        assert text.startswith("because of")
        assert all(titles[own] in text for own in one.because)
    assert [row[1] for row in page.table("History of user u1")] == [shown(one) for one in owned]
    status = chromium.evaluate("document.querySelector('[role=status]').textContent")
    assert re.fullmatch(rf"List of user u1: 5 items. History: {len(owned)} items. [\d.,]+ ms.", status)
    times = {row[0]: int(row[1]) for row in page.table("Requests of this page: milliseconds in the browser")}
    assert times == {"/model": 1, "/recommend": 2, "/history": 1}
    page.check()


def test_similar_items_get_the_focus_and_give_it_back(titled, chromium):
    page = asked(chromium, titled, "u1")
    first = titled.service.engine.recommend(user="u1").items[0]
    page.click("#results .buttons button")
    page.shows("document.activeElement.tagName === 'H2'")
    (answer,) = titled.service.engine.similar([first.item])
    assert [row[1] for row in page.table(f"Similar to {first.title}")] == [shown(one) for one in answer.similar]
    page.click("#similar > button")
    label = page.shows("document.activeElement.getAttribute('aria-label')")
    assert label == f"Similar to {first.title}"
    assert chromium.evaluate("document.getElementById('similar') === null")
    page.check()


def test_the_keyboard_is_enough(titled, chromium):
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    assert chromium.evaluate("document.activeElement.id") == "user"
    chromium.call("Input.insertText", text="u1")
    page.press("Tab")
    page.press("Space")
    page.heading("List of user u1")
    reached = []
    while not reached or not reached[-1].startswith("Similar to"):
        page.press("Tab")
        name = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
        reached.append(chromium.evaluate(name))
        assert len(reached) < 30, reached
        outline = chromium.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached
    assert {"text", "k", "variant", "other", "filter", "List of user u1"} <= set(reached)
    page.press("Enter")
    page.heading(reached[-1])
    page.shows("document.activeElement.closest('#similar') !== null")
    page.check()


def test_titles_and_ids_full_of_markup_are_text(titled, chromium):
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    page.type("text", "<IMG")
    page.enter()
    assert page.table("Items with “<IMG”")[0][1] == f"{MARKUP}\ni0"
    page.click("#results .buttons button:nth-child(1)")
    page.heading(f"Similar to {MARKUP}")
    page.click("#results .buttons button:nth-child(2)")
    page.shows("!document.getElementById('basket').hidden")
    page.click("#basket-form button")
    page.heading("List of a new user")
    assert [row[1] for row in page.table("List of a new user")[::2]] == [
        shown(one) for one in titled.service.engine.recommend(history=["i0"]).items
    ]
    page.type("user", MARKUP)
    page.enter()
    page.heading(f"List of user {MARKUP}")
    assert "The run does not know this user: these are the popular items." in page.text()
    assert chromium.evaluate("document.querySelectorAll('img, td script, th script').length") == 0
    page.check()


def test_items_of_a_new_user_can_be_removed(titled, chromium):
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    for row in (1, 2):
        page.click(f"#results tbody tr:nth-child({row}) .buttons button:nth-child(2)")
    assert chromium.evaluate("document.querySelectorAll('#basket-items li').length") == 2
    page.click("#basket-items button")
    assert chromium.evaluate("document.activeElement.id") == "basket-title"
    page.click("#basket-empty")
    assert chromium.evaluate("[document.getElementById('basket').hidden, document.activeElement.id]") == [True, "text"]
    page.check()


def test_two_variants_are_compared_side_by_side(titled, chromium):
    page = asked(chromium, titled, "u1")
    page.choose("variant", "a")
    page.choose("other", "b")
    found = [titled.service.engine.recommend(user="u1", variant=name).items for name in "ab"]
    ids = [[one.item for one in items] for items in found]
    for at, name in enumerate("ab"):
        rows = page.table(f"List of user u1, variant {name}")[::2]
        assert [row[1] for row in rows] == [shown(one) for one in found[at]]
        other = ids[1 - at]
        assert [row[2] for row in rows] == [str(other.index(one) + 1) if one in other else "–" for one in ids[at]]
    assert f"In both lists: {len(set(ids[0]) & set(ids[1]))} of 5 items." in page.text()
    page.check()


def test_options_change_the_list_and_a_wrong_filter_is_an_alert(titled, chromium):
    page = asked(chromium, titled, "u1")
    page.type("k", "3")
    page.type("filter", "category = 'a'")
    page.enter()
    page.shows("document.querySelectorAll('#results tr.above').length === 3")
    expected = titled.service.engine.recommend(user="u1", k=3, filter="category = 'a'").items
    assert [row[1] for row in page.table("List of user u1")[::2]] == [shown(one) for one in expected]
    page.type("filter", "colour = 'red'")
    page.enter()
    assert "colour" in page.shows("document.querySelector('[role=alert]:not([hidden])')?.textContent")
    page.type("filter", " ")
    page.enter()
    page.shows("document.querySelector('[role=alert]').hidden")


def test_the_servers_times_are_shown_while_they_are_open(titled, chromium):
    page = asked(chromium, titled, "u1")
    page.click("#server-times summary")
    rows = page.table("Requests to this server: milliseconds in the server")
    times = {row[0]: row for row in rows}
    assert {"/model", "/recommend", "/history"} <= set(times)
    assert not any(name == "/" or name.startswith("/page") for name in times)
    assert re.fullmatch(r"[≤>] [\d.,]+", times["/recommend"][2])
    page.check()


def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(runs, chromium, tmp_path):
    key = make_key(tmp_path / "keys.json", "read")
    with running(Engine(runs / "ease", port=0, keys=str(tmp_path / "keys.json"))) as server:
        page = Page(chromium, server.url)
        page.shows("!document.getElementById('locked').hidden && document.activeElement.id === 'key'")
        assert (
            chromium.evaluate("document.getElementById('open').hidden && document.getElementById('key').type")
            == "password"
        )
        page.type("key", "ts_wrong")
        page.enter()
        assert (
            page.shows("document.querySelector('[role=alert]:not([hidden])')?.textContent")
            == "The server says: the key is not valid."
        )
        page.type("key", key)
        page.enter()
        page.heading("Popular items")
        kept = chromium.evaluate(
            "[localStorage.length, document.cookie, location.href, document.getElementById('key').value]"
        )
        assert kept == [0, "", server.url + "/", ""]
        chromium.open(server.url, 1280)
        page.heading("Popular items")
        page.click("#forget-key")
        page.shows("!document.getElementById('locked').hidden")
        assert chromium.evaluate("sessionStorage.length") == 0
        assert "Popular items" not in page.text()


def test_a_run_that_ranks_documents_says_so(serve, chromium):
    page = Page(chromium, serve("ranker").server.url)
    page.heading("Documents")
    assert "Features: clicks, age" in page.text()
    page.check()


def test_an_answer_that_comes_late_is_not_shown_and_no_answer_is_an_alert(titled, chromium):
    page = Page(chromium, titled.url)
    page.heading("Popular items")
    chromium.evaluate("""(() => { const real = window.fetch; window.late = 0; window.fetch = async (path, given) => {
        const answer = await real(path, given);
        if (!given.body?.includes("u1")) return answer;
        await new Promise((go) => setTimeout(go, 150));
        window.late += 1;
        return answer; }; })()""")
    for user in ("u1", "u2"):
        page.type("user", user)
        page.enter()
    page.heading("List of user u2")
    page.shows("window.late === 2")
    chromium.evaluate("new Promise((go) => setTimeout(go, 20))")
    page.heading("List of user u2")
    page.check()
    chromium.evaluate("window.fetch = async () => { throw new TypeError('no network'); }")
    page.enter()
    alert = page.shows("document.querySelector('[role=alert]:not([hidden])')?.textContent")
    assert alert == "The server does not answer."


def test_ids_beyond_the_numbers_of_javascript_stay_exact(titled, chromium):
    Page(chromium, titled.url).heading("Popular items")
    found = chromium.evaluate("""import("./page/asking.js").then(async (asking) => {
        window.fetch = async () => new Response('{"items": [9223372036854775807, -9007199254740993, 12, 1e300, 0.5]}');
        return (await asking.ask("x")).items; })""")
    assert found == ["9223372036854775807", "-9007199254740993", 12, 1e300, 0.5]


WIDER = """[...document.querySelectorAll("body *")].filter((one) => !one.closest(".wide, .skip, .hidden")
  && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80))"""
UNNAMED = ("button", "textbox", "searchbox", "spinbutton", "combobox", "table", "region", "link", "columnheader")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_and_everything_has_a_name(titled, chromium, width, dark):
    page = Page(chromium, titled.url, width, dark=dark)
    page.heading("Popular items")
    page.type("user", "u" * 512)
    page.enter()
    page.heading(f"List of user {'u' * 512}")
    page.choose("other", "b")
    page.shows("!!document.querySelector('.pair')")
    page.click("#results .buttons button:nth-child(2)")
    page.click("#results .buttons button")
    page.shows("!!document.getElementById('similar')")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate(WIDER) == []
    ground = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 150) == dark
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    named = [(one["role"]["value"], one["name"]["value"]) for one in nodes if not one["ignored"] and "name" in one]
    assert {"button", "textbox", "searchbox", "table", "columnheader", "rowheader"} <= {role for role, _ in named}
    assert [role for role, name in named if role in UNNAMED and not name] == []
    page.check()
