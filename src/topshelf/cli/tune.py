"""topshelf tune."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from topshelf.cli import completion
from topshelf.cli.options import Allow, ConfigFile, Quiet, RunOptions, expanded, option
from topshelf.errors import ConfigError
from topshelf.terminal import print_table, say

if TYPE_CHECKING:
    from topshelf.config import BaseConfig
    from topshelf.tuning import Tuned


@expanded
def tune(
    options: RunOptions,
    config: ConfigFile = None,
    trials: Annotated[int | None, option("Trials of all processes together; default: 30.")] = None,
    sampler: Annotated[str | None, option("tpe (default) or grid.", tab=completion.choice("tpe", "grid"))] = None,
    timeout: Annotated[float | None, option("Start no trial after this many seconds.")] = None,
    range_: Annotated[
        list[str] | None,
        option(
            "Values to search: name=value,value,... or name=low:high[:log]. Repeatable.",
            "--range",
            tab=completion.setting,
        ),
    ] = None,
    out: Annotated[Path | None, option("Folder; default: runs/tune-DATA-MODEL-LOSS.")] = None,
    storage: Annotated[str | None, option("Database url; default: SQLite in the folder.")] = None,
    resume: Annotated[Path | None, option("Continue the study in this folder.", tab=completion.studies)] = None,
    allow: Allow = None,  # noqa: ARG001
    quiet: Quiet = False,
) -> None:
    """Search for the settings with the best validation NDCG@K.

    The first trial uses the shipped settings. The loss and the model define what is searched; settings given by --set
    stay fixed. The test part is never read. To use several processes, run the same command, or --resume, again.

    Examples:

      topshelf tune --data clicks.csv --out runs/tune-clicks

      topshelf tune --data amazon2014-health --loss slatk --k 20 --trials 30 --out runs/tune-health

      topshelf tune --data clicks.csv --range loss.tau=0.05,0.1,0.2 --range train.learning_rate=1e-3:1e-1:log --out t

      topshelf tune --data clicks.csv --model ease --sampler grid --out runs/tune-ease

      topshelf tune --resume runs/tune-clicks --trials 60
    """
    if find_spec("optuna") is None:
        raise ConfigError("topshelf tune needs Optuna: pip install 'topshelf[tune]'")
    from topshelf import tuning

    limits: dict[str, Any] = {"trials": trials, "timeout": timeout, "storage": storage, "quiet": quiet}
    if resume is not None:
        if options.is_given() or any(value is not None for value in (config, sampler, range_, out)):
            raise ConfigError(
                "--resume continues a study as it was defined; only --trials, --timeout and --storage go with it"
            )
        _show(tuning.resume(resume, **limits))
        return
    if config is None and options.data is None:
        raise ConfigError("give --data PATH|NAME or a TOML file; see topshelf tune --help")
    chosen = options.config(config)
    ranges = _ranges(chosen, options.set_ or [], range_ or [])
    _show(tuning.tune(chosen, sampler=sampler or "tpe", ranges=ranges, out=out or _folder(chosen), **limits))


def _ranges(config: BaseConfig, assignments: list[str], ranges: list[str]) -> dict[str, Any]:
    """The given ranges; what is set is not searched, unless a range is given too."""
    from topshelf.tuning.ranges import default_ranges, parse

    fixed = [text.partition("=")[0].strip() for text in assignments]
    searched = default_ranges(config)
    return {**{name: None for name in fixed if name in searched}, **parse(ranges)}


def _folder(config: BaseConfig) -> Path:
    from topshelf.training.build import model_class

    names = [config.model.name]
    if not model_class(config).is_closed_form:
        names.append(config.loss.name)
    short = [name.rpartition(":")[2] for name in names]  # of package.module:Class
    return Path("runs") / "-".join(["tune", Path(config.data.source).stem, *short])


def _show(tuned: Tuned) -> None:
    from topshelf.tuning.page import chosen_by, command, comparison, verdict

    print_table(*comparison(tuned), title=f"{tuned.method} on {tuned.data}")
    say(verdict(tuned))
    say(chosen_by(tuned))
    say(f"{tuned.budget} (sampler {tuned.sampler})")
    if running := tuned.budget.spent["running"]:
        say("1 trial is still running elsewhere" if running == 1 else f"{running} trials are still running elsewhere")
    if tuned.folder is not None:
        say(f"page: {tuned.folder / 'report.html'}")
    if (text := command(tuned)) is not None:
        say(f"train the best: {text}")
