"""topshelf blend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from topshelf.cli import completion, show
from topshelf.cli.options import Allow, Quiet, argument, numbers, option
from topshelf.errors import ConfigError
from topshelf.terminal import print_table, say

if TYPE_CHECKING:
    from topshelf.training import Fitted


def blend(
    runs: Annotated[list[Path], argument("RUN", "Run folders with one split and one K.", tab=completion.runs)],
    weights: Annotated[str | None, option("One weight per run, such as 1,0.1; default: chosen on validation.")] = None,
    out: Annotated[Path | None, option("Folder for the blend.")] = None,
    allow: Allow = None,  # noqa: ARG001
    quiet: Quiet = False,
) -> None:
    """Combine several runs: a weighted sum of their scores.

    Without --weights, every run has weight 1 unless other weights are clearly better by NDCG@K on the validation part.
    If the sum is not better than the best run, only that run has a weight. The order of runs does not matter. Runs
    that were refitted are trained again without the refit to choose the weights.

    Examples:

      topshelf blend runs/history runs/slim --out runs/blend

      topshelf blend runs/history runs/slim --weights 1,0.1 --out runs/blend
    """
    if out is None:
        raise ConfigError("give --out FOLDER: where the blend is kept")
    form = "one number per run, such as 1,0.1"
    given = None if weights is None else numbers(weights, float, "--weights", form)
    from topshelf import blending

    alone = [_valid(run) for run in runs]  # damaged files are noticed before anything is written
    blended = blending.blend(runs, weights=given, quiet=quiet, out=out)
    _show(runs, alone, blended)
    show.run(blended, out)


def _valid(run: Path) -> dict[str, Any]:
    """The run's own metrics on its validation part."""
    from topshelf.training.folder import RunFolder

    folder = RunFolder(run)
    metrics = folder.load_metrics().get("valid") if folder.metrics.exists() else None
    return metrics if isinstance(metrics, dict) else {}


def _show(runs: list[Path], alone: list[dict[str, Any]], blended: Fitted) -> None:
    """The weight and the validation metric of each run, and the metric of the blend."""
    metric, settings = f"ndcg@{blended.config.k}", blended.config.model.settings
    rows = [
        (str(run), part["name"], f"{weight:g}", _score(valid.get(metric)))
        for run, valid, part, weight in zip(runs, alone, settings["parts"], settings["weights"], strict=True)
    ]
    rows.append(("blend", "", "", _score(blended.valid_score)))
    print_table(("run", "model", "weight", f"validation {metric}"), rows, styles=[*[""] * len(runs), "bold"])
    say("validation: users with nothing to find left out")


def _score(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float | int) else "unknown"
