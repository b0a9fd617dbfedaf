"""The tables of the SL@K paper, read from its LaTeX source: independent of the plans that quote them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BACKBONES = ("MF", "LightGCN", "XSimGCL")
_WRAPPED = re.compile(r"\\(?:textbf|uline|textcolor\{\w+\})\{([^{}]*)\}")


def paper_text() -> str:
    """The paper's source; the test is skipped where it is not."""
    places = [os.environ.get("TOPSHELF_PAPER"), ROOT.parent / "shared" / "paper" / "slatk.tex"]
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text(encoding="utf-8")
    pytest.skip("the paper's LaTeX source is not here; set TOPSHELF_PAPER to its path")


def rows(text: str, label: str) -> list[list[str]]:
    """The cells of the table with this label, plain."""
    at = text.index(f"\\label{{{label}}}")
    begin, end = text.find(r"\begin{tabular", at), text.rfind(r"\end{tabular", 0, at)
    is_before = text.rfind(r"\begin{table", 0, at) < end  # the label is below the tabular
    body = (
        text[text.rfind(r"\begin{tabular", 0, end) : end] if is_before else text[begin : text.index(r"\end{tab", begin)]
    )
    return [[_plain(cell) for cell in line.split("&")] for line in re.split(r"\\\\", body)]


def _plain(cell: str) -> str:
    cell = re.sub(r"\\(?:Xhline|cline|cellcolor|bigstrut)(?:\{[^}]*\}|\[[^\]]*\])?|\\hline|\\bigstrut", "", cell)
    cell = re.sub(r"\\multirow\{\d+\}\[\d+\]\{\*\}\{(\w+)\}", r"\1", cell)
    while _WRAPPED.search(cell):
        cell = _WRAPPED.sub(r"\1", cell)
    return cell.replace("(Ours)", "").replace(r"(@$\infty$)", "").replace("@$K$", "@K").strip()


def numbers(cells: list[str]) -> list[float]:
    return [float(cell) for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]


def by_backbone(text: str, label: str) -> dict[tuple[str, str], list[float]]:
    """Numbers by backbone and loss, of a table whose first column names the backbone once."""
    found, backbone = {}, ""
    for line in rows(text, label):
        backbone = line[0] if line[0] in BACKBONES else backbone
        if backbone and len(line) > 2 and (values := numbers(line[2:])):
            found[backbone, line[1]] = values
    return found


def by_loss(text: str, label: str) -> dict[str, list[float]]:
    return {line[0]: values for line in rows(text, label) if (values := numbers(line[1:]))}
