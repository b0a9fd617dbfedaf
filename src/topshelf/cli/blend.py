"""topshelf blend: a few lines over one library call, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from topshelf import blending
from topshelf.cli import show
from topshelf.errors import ConfigError
from topshelf.terminal import Table, cell, console
from topshelf.training import Fitted
from topshelf.training.folder import RunFolder


def blend(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders, of one split and one K.")],
    weights: Annotated[
        str | None, typer.Option(help="One a run, such as 1,0.1; found on validation if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the blend.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Add up what the models of several runs score, with weights that validation chooses.

    Every run has the weight 1, unless another one is clearly better by NDCG@K on the validation part; where the sum
    does not gain, only the best run has a weight. Their order does not matter. Runs that were refitted are trained
    again without the refit to find the weights.

    Examples:

      topshelf blend runs/history runs/slim --out runs/blend

      topshelf blend runs/history runs/slim --weights 1,0.1 --out runs/blend
    """
    if out is None:
        raise ConfigError("give --out FOLDER: where the blend is kept")
    given = None if weights is None else _numbers(weights)
    alone = [_valid(run) for run in runs]  # a damaged file is found before anything is written
    blended = blending.blend(runs, weights=given, quiet=quiet, out=out)
    _parts(runs, alone, blended)
    show.run(blended, out)


def _valid(run: Path) -> dict[str, Any]:
    """What the run's own numbers say of its validation part."""
    folder = RunFolder(run)
    found = folder.load_metrics().get("valid") if folder.metrics.exists() else None
    return found if isinstance(found, dict) else {}


def _parts(runs: list[Path], alone: list[dict[str, Any]], blended: Fitted) -> None:
    """What went into the blend, and what validation says of each and of all."""
    metric = f"ndcg@{blended.config.k}"
    table = Table("run", "model", "weight", f"validation {metric}")
    settings = blended.config.model.settings
    for run, valid, part, weight in zip(runs, alone, settings["parts"], settings["weights"], strict=True):
        table.add_row(cell(run), part["name"], f"{weight:g}", _score(valid.get(metric)))
    table.add_row("blend", "", "", _score(blended.valid_score), style="bold")
    console().print(table)


def _score(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float | int) else "not known"


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--weights takes one number a run, such as 1,0.1; got {text!r}") from None
