"""A diagnosis as files: a page, JSON, and every plot as PNG and SVG."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from topshelf import files
from topshelf.diagnose import tables
from topshelf.diagnose.run import Diagnosis
from topshelf.errors import CheckpointError, ConfigError
from topshelf.report import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
)
_ENDINGS = ("png", "svg")
NO_PLOTS = "No plots: matplotlib is not installed (pip install 'topshelf[plot]')."


def write(found: Diagnosis, out: str | Path) -> list[Path]:
    """Write diagnose.html, diagnose.json and the plots into ``out``; without matplotlib, no plots.

    The folder appears whole; an earlier diagnosis there is replaced.
    """
    check_folder(Path(out))
    content = {"diagnose.json": (json.dumps(found.to_json(), indent=1) + "\n").encode()}
    drawings: dict[str, str] = {}
    for name, figure in _figures(found).items():
        content |= {f"{name}.{ending}": _bytes(figure, ending) for ending in _ENDINGS}
        drawings[name] = content[f"{name}.svg"].decode()
    content["diagnose.html"] = page(found, drawings).html().encode()
    with files.new_folder(out, replace=True) as fresh:
        for name, raw in content.items():
            files.write_bytes(fresh / name, raw)
    return [Path(out) / name for name in content]


def check_folder(folder: Path) -> None:
    """Better before hours of training than after: new, empty, or an earlier diagnosis and nothing else."""
    if not (files.is_free(folder) or _is_ours(folder)):
        raise ConfigError(
            f"--out must be a new or empty folder, or an earlier diagnosis, and {folder} holds something else; choose "
            "another --out"
        )
    if not folder.exists():  # made and removed, to see that it can be
        with suppress(_Tried), files.new_folder(folder):
            raise _Tried


class _Tried(Exception):  # noqa: N818  not an error
    """The folder can be made."""


def _is_ours(folder: Path) -> bool:
    """Whether nothing of anybody else is lost when the folder is replaced."""
    written = {"diagnose.json", "diagnose.html", *(f"{name}.{ending}" for name in PLOTS for ending in _ENDINGS)}
    try:
        is_diagnosis = "advice" in files.read_json(folder / "diagnose.json")
        return is_diagnosis and {path.name for path in folder.iterdir()} <= written
    except (CheckpointError, OSError):
        return False


def can_plot() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def _figures(found: Diagnosis) -> dict[str, Figure]:
    if not can_plot():
        return {}
    from topshelf.diagnose import plots  # needs matplotlib

    return plots.draw(found)


def _bytes(figure: Figure, ending: str) -> bytes:
    drawn = io.BytesIO()
    # No date: the same diagnosis gives the same file.
    figure.savefig(drawn, format=ending, dpi=130, metadata={"Date": None} if ending == "svg" else None)
    return drawn.getvalue()


def page(found: Diagnosis, drawings: Mapping[str, str]) -> Page:
    """The page, with plots given as SVG."""
    result = Page(f"What {found.label} does on {found.data}")
    result.paragraph(tables.caption(found))
    if not drawings:
        result.paragraph(NO_PLOTS, note=True)
    result.heading("Advice")
    for line in tables.advice_lines(found):
        result.paragraph(line)
    for section in tables.sections(found):
        result.heading(section.title)
        result.paragraph(section.text)
        if section.rows:
            result.table(section.header, section.rows)
        for name in section.plots:
            if name in drawings:
                result.drawing(drawings[name])
        for note in section.notes:
            result.paragraph(note, note=True)
    return result
