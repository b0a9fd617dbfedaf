"""The site: every page is in its navigation, formulas and links are turned, figures are those of the results."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
import time
import tomllib

import pytest

import pages
from chromium import browser
from pages import ROOT
from test_docs import module

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def site():
    return module(ROOT / "docs" / "build_site.py")


@pytest.fixture(scope="module")
def figures():
    return module(ROOT / "docs" / "figures.py")


def in_navigation(entries) -> list[str]:
    found = []
    for entry in entries:
        for target in entry.values():
            found += in_navigation(target) if isinstance(target, list) else [target]
    return found


def test_every_page_is_in_the_navigation_once(site):
    listed = in_navigation(CONFIG["nav"])
    assert len(listed) == len(set(listed))
    there = {place for place in site.places().values() if place.endswith(".md")}
    missing = {place for place in there - set(listed) if not place.startswith(("results/", "examples/"))}
    assert not missing, "add these to nav in zensical.toml"
    assert set(listed) <= there


def test_every_page_is_in_the_list_of_all_pages():
    text = (ROOT / "docs" / "README.md").read_text()
    for page in pages.PAGES:
        name = pages.name_of(page)
        if name not in ("README.md", "docs/README.md") and not re.match(r"docs/results/\w", name):
            target = name.removeprefix("docs/") if name.startswith("docs/") else f"../{name}"
            assert f"]({target})" in text, name


def test_links_follow_their_pages(site, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "src.py").touch()
    where = {"README.md": "index.md", "docs/a.md": "a.md", "docs/losses/b.md": "losses/b.md"}
    for name in where:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# x\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    text = "[a](docs/a.md#x) ![`p`](docs/losses/b.md) [src](src.py) [w](https://x.org) `[k](no.md)`\n"
    (tmp_path / "README.md").write_text(text + "\n```text\n[k](no.md)\n```\n")
    staged = site.staged("README.md", where)
    assert staged.startswith("[a](a.md#x) ![`p`](losses/b.md) src [w](https://x.org) `[k](no.md)`\n")
    assert "```text\n[k](no.md)\n```" in staged
    (tmp_path / "docs" / "losses" / "b.md").write_text("[home](../../README.md) [a](../a.md)")
    assert site.staged("docs/losses/b.md", where) == "[home](../index.md) [a](../a.md)"
    (tmp_path / "docs" / "a.md").write_text("[gone](gone.md)")
    with pytest.raises(SystemExit, match=r"docs/a\.md has a link to gone\.md, which does not exist"):
        site.staged("docs/a.md", where)


def test_formulas_become_mathml_that_markdown_leaves_alone(site):
    text = site.mathml(r"\sum_i \sigma(s_i) * x", "block")
    assert text.startswith("<math ")
    assert 'display="block"' in text
    assert not re.search(r"[*_`\\\n]", text)
    for page in pages.PAGES:
        for block in pages.blocks(page, "math"):
            assert site.mathml(block.text, "block").endswith("</math>")


@pytest.mark.parametrize("name", ["readme", "weights", "effective-n"])
def test_the_figures_are_those_of_the_committed_results(figures, name):
    drawn, kept = figures.drawn(name).decode(), (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    assert list(figures.FIGURES) == ["readme", "weights", "effective-n"]
    assert drawn == kept, "run python docs/figures.py"


def test_the_readme_is_read_in_two_minutes():
    text = pages.BLOCK.sub("", (ROOT / "README.md").read_text())
    text = re.sub(r"<!-- results.*?end of results -->|!\[.*?\]\(.*?\)|\]\(.*?\)", " ", text, flags=re.DOTALL)
    assert len(text.split()) <= 450  # 600 with its commands
    assert [
        name
        for name in (
            "make demo",
            "make test",
            "topshelf auto",
            "--out lists.parquet",
            "topshelf report",
            "topshelf update",
        )
        if name not in (ROOT / "README.md").read_text()
    ] == []


@pytest.mark.slow
def test_a_broken_anchor_stops_the_build(site, tmp_path):
    """zensical's own check: the names of headings are made another way than GitHub's."""
    (tmp_path / "build" / "docs").mkdir(parents=True)
    (tmp_path / "build" / "docs" / "index.md").write_text("# Hello\n\n[there](#nowhere)\n")
    (tmp_path / "zensical.toml").write_text(
        '[project]\nsite_name = "x"\ndocs_dir = "build/docs"\nnav = [{ "x" = "index.md" }]\n'
    )
    program = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr


class Address:
    """What a browser opens, in place of a path."""

    def __init__(self, address: str):
        self.address = address

    def as_uri(self) -> str:
        return self.address


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    subprocess.run([sys.executable, ROOT / "docs" / "build_site.py"], check=True, capture_output=True)
    handler = functools.partial(Quiet, directory=ROOT / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_the_site_is_quiet_and_loads_nothing_from_elsewhere(address, tmp_path):
    with browser(tmp_path) as page:
        for name in ("index.html", "tutorial.html", "losses/reference.html", "results/index.html"):
            for width in (1280, 390):
                visit = page.open(Address(address + name), width)
                assert visit.messages == []
                assert [one for one in visit.requests if not one.startswith((address, "data:", "blob:"))] == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_search_finds_a_section_by_its_words(address, tmp_path):
    with browser(tmp_path) as page:
        page.open(Address(address + "index.html"), 1280)
        shown = "document.activeElement.shadowRoot ? document.activeElement.shadowRoot.textContent : ''"
        button = "[...document.querySelectorAll('button')].find(one => one.textContent.includes('Search'))"
        wait(lambda: page.evaluate(f"Boolean({button})"))
        page.evaluate(f"{button}.click()")
        wait(lambda: page.evaluate("Boolean(document.activeElement.shadowRoot)"))
        page.call("Input.insertText", text="effective")
        wait(lambda: "How SL@K works" in page.evaluate(shown))


def wait(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
