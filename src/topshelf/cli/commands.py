"""topshelf train, evaluate, recommend, losses, models and demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topshelf import terminal
from topshelf.cli import completion, lists, measured, pages, show, source, workers
from topshelf.cli.options import (
    SEVERAL,
    Allow,
    AsJson,
    ColumnOptions,
    ConfigFile,
    ListFile,
    ListFileOrFolder,
    PartUsers,
    Processes,
    Quiet,
    RunOptions,
    RunPath,
    Titles,
    WithReport,
    argument,
    expanded,
    numbers,
    option,
)
from topshelf.errors import ConfigError, one_of

if TYPE_CHECKING:
    from topshelf.recommender import Recommender
    from topshelf.sequence_settings import SequenceDataSettings
    from topshelf.settings import DataSettings


@expanded
def train(
    options: RunOptions,
    config: ConfigFile = None,
    out: Annotated[Path | None, option("Folder for the run.")] = None,
    resume: Annotated[Path | None, option("Continue the run in this folder.", tab=completion.runs)] = None,
    processes: Annotated[int | None, option("Train with several processes of this machine.", panel=SEVERAL)] = None,
    restarts: Annotated[int, option("How often lost processes are started again.", panel=SEVERAL)] = 3,
    timeout: Annotated[float, option("Seconds that a process waits for the others.", panel=SEVERAL)] = 300.0,
    allow: Allow = None,  # noqa: ARG001
    with_report: WithReport = None,
    quiet: Quiet = False,
) -> None:
    """Train a recommender, evaluate it, and save the run in a folder.

    Named datasets come with tuned settings; other data get general ones.

    Examples:

      topshelf train --data clicks.csv --out runs/clicks

      topshelf train --data amazon2014-health --loss slatk --k 20 --seed 1 --out runs/health

      topshelf train --data reviews.csv --user-column reviewer --min-rating 4 --out runs/reviews

      topshelf train --data clicks.parquet --set train.epochs=50 --set loss.tau=0.1 --out runs/short

      topshelf train --task ranking --data queries.txt --out runs/ranker

      topshelf train my-run.toml --out runs/mine

      topshelf train --data clicks.parquet --processes 4 --out runs/large

      topshelf train --resume runs/mine
    """
    if resume is not None and (options.is_given() or config is not None or out is not None):
        raise ConfigError("--resume continues a run as it was configured; leave the other options out")
    if resume is None and config is None and options.data is None:
        raise ConfigError("give --data PATH|NAME or a TOML file; see topshelf train --help")
    if (kept := resume or out) is None:
        raise ConfigError("give --out FOLDER: where the run is kept")
    from topshelf import training
    from topshelf.world import joined

    chosen = None if resume is not None else options.config(config)
    if processes is not None:
        training.check_start(chosen, kept)
        workers.start(processes, restarts)
        return
    with joined(timeout, training.device_of(chosen, kept)) as world:
        fitted = training.resume(kept, quiet=quiet) if chosen is None else training.fit(chosen, out=kept, quiet=quiet)
        if world.is_main:
            show.run(fitted, kept)
            pages.of_run(kept, fitted.seconds, with_report)


def evaluate(
    run: RunPath,
    protocol: Annotated[
        str | None, option("standard or paper; default: the run's.", tab=completion.choice("standard", "paper"))
    ] = None,
    cutoffs: Annotated[str | None, option("List lengths, such as 5,10,20; default: the run's.")] = None,
    against: Annotated[
        Path | None,
        option(
            "Run on the same data, or folder of its metrics, to compare with by a paired test.", tab=completion.runs
        ),
    ] = None,
    out: Annotated[Path | None, option("Folder for the metrics of every user, as Parquet parts.")] = None,
    processes: Processes = None,
    part_users: Annotated[int | None, option("Users per part, a multiple of 8192.", panel=SEVERAL)] = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on its test part, ranking all items.

    With --out the metrics of every user are kept, and the work is divided into parts: the same command goes on where a
    stopped one was, and helps one that runs. RUN and --against may be such a folder.

    Examples:

      topshelf evaluate runs/health --protocol paper --cutoffs 5,10,20

      topshelf evaluate runs/slatk --against runs/softmax

      topshelf evaluate runs/slatk --out measured/slatk --processes 2

      topshelf evaluate measured/slatk --against measured/softmax
    """
    from topshelf.evaluation import compare

    if out is None and (processes or part_users):
        raise ConfigError("--processes and --part-users are for the parts of --out FOLDER; give it too")
    form = "whole numbers such as 5,10,20"
    lengths = None if cutoffs is None else tuple(sorted(set(numbers(cutoffs, int, "--cutoffs", form))))
    parts = None if out is None else {"out": out, "processes": processes or 1, "part_users": part_users}
    about, evaluation = measured.evaluated(run, protocol, lengths, parts)
    metric = about.pop("metric")
    result: dict[str, Any] = {"run": str(run), **about, **evaluation.to_json()}
    if against is not None:
        if metric not in evaluation.per_user:
            metric = f"ndcg@{evaluation.cutoffs[-1]}"
        other = measured.evaluated(against, protocol, evaluation.cutoffs)[1]
        paired = vars(compare(evaluation, other, metric))
        result["against"] = {"run": str(against), "metric": metric, **paired, "mean": other.to_json()["mean"]}
    if as_json:
        typer.echo(terminal.as_json(result))
    else:
        show.evaluation(result, f"{run} on {about['data']}")
        if against is not None:
            show.against(result)


@expanded
def recommend(
    run: RunPath,
    columns: ColumnOptions,
    user: Annotated[list[str] | None, option("User id; with --new, only this user's list. Repeatable.")] = None,
    items: Annotated[
        str | None, option("Items of a user who is not in the data, such as 3,7,12; the oldest first.")
    ] = None,
    new: Annotated[Path | None, option("File of interactions since training, of known and new users.")] = None,
    k: Annotated[int | None, option("List length; default: the run's K.")] = None,
    keep_seen: Annotated[bool, option("Include items that the user already has.", "--keep-seen")] = False,
    why: Annotated[bool, option("Name the user's own items that speak most for each listed one.", "--why")] = False,
    titles: Titles = None,
    out: ListFileOrFolder = None,
    processes: Processes = None,
    part_users: PartUsers = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
) -> None:
    """List the best items per user, without those the user already has.

    With --out alone, every user gets a list. If --out is a folder, they are written as Parquet parts: the same command
    goes on where a stopped one was, and helps one that runs, on this machine or another that sees the folders.

    With --new, users get lists from what they have in the run's data and in
    the file, if the model can score new interactions (see topshelf models). The file is read like the run's data,
    unless its columns are given. Where the model takes sequences, items count in the order of --items, or of the
    file's times; without times, in the order of its rows. Items that are not in the run's data are counted and
    skipped. Items that a user rated below the run's data.min_rating are not listed either.

    Examples:

      topshelf recommend runs/clicks --user 42 --k 10

      topshelf recommend runs/clicks --user 42 --why --titles items.csv

      topshelf recommend runs/clicks --out lists.parquet

      topshelf recommend runs/clicks --out lists --processes 2

      topshelf recommend runs/ease --items 3,7,12

      topshelf recommend runs/ease --new week.csv --out lists.csv

      topshelf recommend runs/ease --new week.csv --user 42
    """
    if user is None and items is None and new is None and out is None:
        raise ConfigError(
            "give --user ID (may be given again), --items IDS for a new user, --new FILE for what came since training, "
            "or --out FILE for the lists of all users"
        )
    is_for_all = user is None and items is None and new is None
    lists.check(out, as_json=as_json, may_be_folder=is_for_all)
    if (processes or part_users) and not (is_for_all and lists.is_folder(out)):
        raise ConfigError("--processes and --part-users are for the lists of all users in a folder: --out FOLDER")
    if items is not None and (user is not None or new is not None):
        raise ConfigError("--items IDS describes a new user: leave out --user and --new")
    if columns.reading() and new is None:
        raise ConfigError("--user-column and the other columns are those of --new FILE; give it too")
    options: dict[str, Any] = {"filter_seen": False if keep_seen else None, "why": lists.REASONS if why else 0}
    if is_for_all and out is not None and lists.is_folder(out):
        shared = {"k": k, "titles": titles, "part_users": part_users, "processes": processes or 1}
        lists.write_parts(run, out, {**options, **shared})
        return
    recommender = lists.opened(run, titles)
    if new is not None:
        histories = show.chosen(_histories(recommender, new, columns), user)
        table = recommender.recommend_new(histories, k, **options)
    elif items is not None:
        table = lists.of_new_user(recommender, items, k, options)
    elif user is None:  # and --out is given
        lists.write_all(recommender, k, out, options)
        return
    else:
        table = recommender.recommend(show.ids("--user", recommender.artifact.users, user), k, **options)
    lists.give(table, out, recommender=recommender, as_json=as_json)


def similar(
    run: RunPath,
    item: Annotated[list[str], option("Item id. Repeatable.")],
    k: Annotated[int, option("How many similar items to list.")] = 10,
    titles: Titles = None,
    out: ListFile = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
) -> None:
    """List the items that are most similar to an item, by the cosine of their vectors.

    Example: topshelf similar runs/clicks --item 42 --k 10
    """
    lists.check(out, as_json=as_json)
    recommender = lists.opened(run, titles)
    items = show.ids("--item", recommender.artifact.items, item)
    lists.give(recommender.similar_items(items, k), out, as_json=as_json)


OfTask = Annotated[str | None, option("Those of this task; default: interactions.", tab=source.tasks)]


def losses(
    name: Annotated[
        str | None, argument("NAME", "Show this loss in full.", tab=completion.listed(source.losses))
    ] = None,
    task: OfTask = None,
    as_json: AsJson = False,
) -> None:
    """List the losses of a task: what they are, and when to use them.

    The names are for `topshelf train --loss` and `topshelf tune --loss`. Some names stand for two losses: one of
    positives against negatives, and one of graded lists, for `--task ranking`. Both are shown.

    Examples:

      topshelf losses

      topshelf losses --task ranking

      topshelf losses slatk
    """
    from topshelf.training import describe

    _registered("loss", describe.losses(task), name, task, as_json)


def models(
    name: Annotated[
        str | None, argument("NAME", "Show this model in full.", tab=completion.listed(source.models))
    ] = None,
    task: OfTask = None,
    as_json: AsJson = False,
) -> None:
    """List the models of a task: what they are, when to use them, and their cost.

    The names are for `topshelf train --model` and `topshelf tune --model`.

    Examples:

      topshelf models

      topshelf models --task links

      topshelf models lightgcn
    """
    from topshelf.training import describe

    _registered("model", describe.models(task), name, task, as_json)


def demo(
    out: Annotated[Path, option("Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, option("Random seed.")] = 0,
    offline: Annotated[bool, option("Use generated data; download nothing.", "--offline")] = False,
    budget: Annotated[str, option("Time for topshelf auto on each dataset.")] = "20s",
) -> None:
    """Compare methods on MovieLens-100K, and on Amazon Health if it is here or can be downloaded.

    Simple models, softmax, SL@20 and a short topshelf auto: a table in the terminal, and a page with all of it.

    Example: topshelf demo --out runs/demo
    """
    from topshelf import demo as demonstration

    demonstration.run(out, seed=seed, offline=offline, budget=budget)


def _registered(what: str, rows: list[dict[str, Any]], name: str | None, task: str | None, as_json: bool) -> None:
    """The rows of a task's registry, or those of one name, which may be in several registries."""
    if name is not None:
        one_of(what, name, dict.fromkeys(row["name"] for row in rows))
        rows = [row for row in rows if row["name"] == name]
    if as_json:
        typer.echo(terminal.as_json(rows))
    elif name is not None:
        show.entries(what, rows)
    else:
        show.listing(what, rows, task)


def _histories(recommender: Recommender, path: Path, columns: ColumnOptions) -> dict[Any, list[Any]]:
    """The users of a file with their items, read by the rules of the run's data; says how many are new."""
    settings: Any = recommender.artifact.config.data
    in_order = "sequence" in recommender.artifact.model.kinds
    if not in_order and columns.time_column not in (None, "none"):
        raise ConfigError(
            f"--time-column must be left out here: the order of items does not matter to model "
            f"{recommender.artifact.config.model.name}, got {columns.time_column!r}"
        )
    if settings.min_rating is None and columns.rating_column not in (None, "none"):
        raise ConfigError(
            "--rating-column must be left out here: the run has no data.min_rating, so every row of --new counts, "
            f"got {columns.rating_column!r}"
        )
    histories = _read_histories(path, settings.model_copy(update=columns.reading()), in_order)
    known = int((recommender.artifact.users.find(list(histories)) >= 0).sum())
    terminal.say(f"{known:,} users of the run's data, {len(histories) - known:,} new users", stderr=True)
    return histories


def _read_histories(path: Path, settings: DataSettings | SequenceDataSettings, in_order: bool) -> dict[Any, list[Any]]:
    """The items per user, with ``in_order`` by time; those rated below the run's min_rating do not count."""
    import polars as pl

    from topshelf.data import read
    from topshelf.data.readers import are_user_lines, read_user_lines
    from topshelf.sequence_settings import SequenceDataSettings

    least = settings.min_rating
    columns = settings.model_dump(include={"user", "item", "weight", "timestamp", "dates"})
    columns |= {"weight": "none"} if least is None else {}
    if isinstance(settings, SequenceDataSettings) and are_user_lines(path):
        table = read_user_lines(path).frame
    else:
        table = read(path, **columns if in_order else {**columns, "timestamp": "none"})
    is_taken = pl.col("weight") >= least if "weight" in table.columns else pl.lit(True)
    taken = pl.col("item").filter(is_taken)
    if "timestamp" in table.columns:
        taken = taken.sort_by(pl.col("timestamp").filter(is_taken), maintain_order=True)  # else as the file has them
    return dict(table.group_by("user", maintain_order=True).agg(taken).iter_rows())
