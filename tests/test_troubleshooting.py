"""Messages that the page of troubleshooting quotes are messages of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
ROWS = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
VALUE = "\0"  # where the code puts a value


def text_of(node: ast.expr) -> str:
    """A string as it is written; values in it, and what is joined to it, are marked."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return VALUE


@cache
def messages() -> tuple[str, ...]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "topshelf").rglob("*.py")]
    kinds = ast.JoinedStr | ast.Constant | ast.BinOp
    found = {text_of(node) for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}
    return tuple(" ".join(text.split(" ")) for text in found if " " in text)


def is_said(quoted: str) -> bool:
    """Whether a message has the quoted pieces in this order, with a value where the quotation has dots."""
    pattern = re.compile(rf"[^{VALUE}]*{VALUE}[^{VALUE}]*?".join(map(re.escape, quoted.split("..."))), re.DOTALL)
    return any(pattern.search(message) for message in messages())


@pytest.mark.parametrize("quoted", ROWS)
def test_every_message_of_the_page_is_in_the_code(quoted):
    assert is_said(quoted), quoted


def test_the_page_has_messages_and_invented_ones_are_found_out():
    assert len(ROWS) > 50
    assert not is_said("this message does not exist")
    assert not is_said("must have sha256 and something else")
