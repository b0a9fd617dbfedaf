"""A diagnosis as files: a page, JSON, and every plot as PNG and SVG."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from topshelf.diagnose import tables
from topshelf.diagnose.run import Diagnosis
from topshelf.errors import ConfigError
from topshelf.report import Page
from topshelf.training.checkpoint import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_PLOTS = "No plots: matplotlib is not installed (pip install 'topshelf[plot]')."


def write(found: Diagnosis, out: str | Path) -> list[Path]:
    """Write diagnose.html, diagnose.json and the plots into ``out``; without matplotlib, no plots."""
    folder = Path(out)
    check_folder(folder)
    files = [folder / "diagnose.json", folder / "diagnose.html"]
    write_text(files[0], json.dumps(found.to_json(), indent=1) + "\n")
    drawings: dict[str, str] = {}
    for name, figure in _figures(found).items():
        for ending in ("png", "svg"):
            files.append(folder / f"{name}.{ending}")
            files[-1].write_bytes(_bytes(figure, ending))
        drawings[name] = files[-1].read_text(encoding="utf-8")
    page(found, drawings).write(files[1])
    return files


def check_folder(folder: Path) -> None:
    """Better before hours of training than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made: {error}") from None


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
