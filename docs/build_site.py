"""Build the site: python docs/build_site.py. ``make docs`` installs what it needs and calls it.

The pages are the Markdown that GitHub shows. They are copied to build/docs first, because a site has one folder: README
and the other pages of the top folder move there, examples become pages, formulas become MathML, and links follow. Then
zensical builds site/ from zensical.toml, and fails if a link or an anchor leads nowhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "docs"
# Pages that have another place on the site; docs/x.md is x.md there.
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/own_package/README.md": "examples/own_package.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```+)[^\n]*\n.*?^\1[ ]*$\n?", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)


def places() -> dict[str, str]:
    """Where every file of the repository that is on the site goes, both from their roots."""
    found = dict(PLACES)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", ".svg", ".png", ".css"):
            found.setdefault(path.relative_to(ROOT).as_posix(), path.relative_to(ROOT / "docs").as_posix())
    for path in sorted((ROOT / "examples").glob("*.py")):
        found[f"examples/{path.name}"] = f"examples/{path.stem}.md"
    return found


def staged(name: str, where: dict[str, str]) -> str:
    """The Markdown of one page for the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return f"# {PurePosixPath(name).name}\n\n```python\n{text}```\n"
    text = re.sub(r"^```math\n(.*?)^```$", _block, text, flags=re.DOTALL | re.MULTILINE)
    return outside_code(text, lambda part: _linked(part, name, where))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with everything changed that is no code."""
    done, end = [], 0
    for fence in FENCE.finditer(text):
        done += [_outside_spans(text[end : fence.start()], change), fence[0]]
        end = fence.end()
    return "".join([*done, _outside_spans(text[end:], change)])


def _outside_spans(text: str, change: Callable[[str], str]) -> str:
    """Code in backticks is kept while the rest is changed; a link may have some in its text."""
    text = re.sub(r"\$`(.+?)`\$", lambda found: f'<span class="formula">{mathml(found[1], "inline")}</span>', text)
    kept: list[str] = []

    def hide(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    changed = change(CODE.sub(hide, text))
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], changed)


def _linked(text: str, name: str, where: dict[str, str]) -> str:
    """Links to files of the repository as links within the site; those to files that are not there become text."""

    def moved(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = os.path.normpath((PurePosixPath(name).parent / target).as_posix())
        if file not in where:
            if not (ROOT / file).exists():
                raise SystemExit(f"{name} has a link to {target}, which does not exist")
            return words
        start = PurePosixPath(where[name]).parent.as_posix()
        return f"{image}[{words}]({os.path.relpath(where[file], start)}{anchor})"

    return LINK.sub(moved, text)


def _block(found: re.Match[str]) -> str:
    return f'<div class="formula">{mathml(found[1], "block")}</div>'


def mathml(formula: str, display: str) -> str:
    """A formula as MathML on one line, with nothing in it that Markdown would read."""
    text = convert(" ".join(formula.split()), display=display)
    return re.sub(r"[*_`\\]", lambda found: f"&#{ord(found[0])};", text)


def stage() -> None:
    """All pages and pictures, in a folder made anew."""
    where = places()
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name, place in where.items():
        target = SOURCE / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(staged(name, where), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, target)


def build() -> None:
    stage()
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run([program, "build", "--strict", "--clean"], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    sys.stdout.write("site/index.html is ready. Search needs a server: python -m http.server -d site\n")


if __name__ == "__main__":
    build()
