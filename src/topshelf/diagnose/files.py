"""A diagnosis on disk: a page, JSON, and every plot as PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from topshelf import charts, files
from topshelf.diagnose import tables
from topshelf.diagnose.examine import RunDiagnosis
from topshelf.diagnose.run import Diagnosis
from topshelf.errors import CheckpointError, ConfigError
from topshelf.page import Page

PLOTS = (
    "gradient-concentration",
    "gradient-sizes",
    "thresholds",
    "threshold-errors",
    "scores",
    "hits",
    "bound",
    "lambda-weights",
    "time",
    "weights",
    "references",
    "groups",
    "training",
)
_ENDINGS = ("png", "svg")


def write(diagnosis: Diagnosis | RunDiagnosis, out: str | Path) -> list[Path]:
    """Write diagnose.html, diagnose.json and the plots into ``out``; without matplotlib, no plots.

    The folder appears whole; an earlier diagnosis there is replaced.
    """
    check_folder(Path(out))
    content = {"diagnose.json": (json.dumps(diagnosis.to_json(), indent=1) + "\n").encode()}
    drawings: dict[str, bytes] = {}
    if charts.can_plot():
        for name, figure in diagnosis.draw().items():
            content |= {f"{name}.{ending}": charts.render(figure, ending) for ending in _ENDINGS}
            drawings[name] = content[f"{name}.svg"]
    content["diagnose.html"] = page(diagnosis, drawings).html().encode()
    with files.new_folder(out, replace=True) as fresh:
        for name, raw in content.items():
            files.write_bytes(fresh / name, raw)
    return [Path(out) / name for name in content]


def check_folder(folder: Path) -> None:
    """The folder must be new, empty, or an earlier diagnosis and nothing else; checked before hours of training."""
    if not (files.is_free(folder) or _is_ours(folder)):
        raise ConfigError(
            f"--out must be a new or empty folder, or an earlier diagnosis, and {folder} holds something else; choose "
            "another --out"
        )
    if not folder.exists():  # made and removed at once
        with suppress(_CanBeMade), files.new_folder(folder):
            raise _CanBeMade


class _CanBeMade(Exception):  # noqa: N818  not an error
    """Leaves ``new_folder`` without a folder."""


def _is_ours(folder: Path) -> bool:
    """Whether the folder holds an earlier diagnosis only, so that it may be replaced."""
    written = {"diagnose.json", "diagnose.html", *(f"{name}.{ending}" for name in PLOTS for ending in _ENDINGS)}
    try:
        is_diagnosis = "advice" in files.read_json(folder / "diagnose.json")
        return is_diagnosis and {path.name for path in folder.iterdir()} <= written
    except (CheckpointError, OSError):
        return False


def page(diagnosis: Diagnosis | RunDiagnosis, drawings: Mapping[str, bytes]) -> Page:
    """The page, with plots given as SVG."""
    result = Page(diagnosis.title)
    result.paragraph(diagnosis.caption())
    if not drawings:
        result.paragraph(charts.NO_PLOTS, note=True)
    result.heading("Advice")
    for line in tables.advice_lines(diagnosis.advice):
        result.paragraph(line)
    for section in diagnosis.sections():
        result.heading(section.title)
        if section.text:
            result.paragraph(section.text)
        if section.rows:
            result.table(section.header, section.rows)
        for name in section.plots:
            if name in drawings:
                result.drawing(drawings[name])
        for note in section.notes:
            result.paragraph(note, note=True)
    return result
