"""train, evaluate, recommend, losses, models and demo: each a few lines over one library call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from topshelf import demo as demonstration
from topshelf import terminal, training
from topshelf.cli import show
from topshelf.config import DataSettings, assemble, merged, overrides
from topshelf.data import read
from topshelf.errors import ConfigError, one_of
from topshelf.evaluation import Evaluation, compare
from topshelf.losses.describe import describe as describe_losses
from topshelf.models import MODELS
from topshelf.models.describe import describe as describe_models
from topshelf.recommender import Recommender

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
OnlyName = Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one, and all that is known of it.")]


def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file with the run's settings.")] = None,
    data: Annotated[str | None, typer.Option(help="A file, a folder, or the name of a dataset.")] = None,
    model: Annotated[
        str | None, typer.Option(help=f"mf if left out; one of {', '.join(MODELS)}: see topshelf models.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="slatk (the default), softmax, bpr, ...: see topshelf losses.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Length of the list that people see; 20.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, initial values and draws; 0.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting: section.key=value.")] = None,
    user_column: Annotated[str | None, typer.Option(help="Column of the users; guessed if left out.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of the items; guessed if left out.")] = None,
    rating_column: Annotated[str | None, typer.Option(help="Column of the ratings; 'none' to ignore it.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column of the times; 'none' to ignore it.")] = None,
    dates: Annotated[
        str | None, typer.Option(help="Order of dates such as 12/01/2020: day-first, month-first.")
    ] = None,
    min_rating: Annotated[float | None, typer.Option(help="Only ratings of at least this are positives.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a recommender, evaluate it, and keep the run in a folder.

    A named dataset comes with tuned settings; a file of your own gets good general ones.

    Examples:

      topshelf train --data clicks.csv --out runs/clicks

      topshelf train --data amazon2014-health --loss slatk --k 20 --seed 1 --out runs/health

      topshelf train --data reviews.csv --user-column reviewer --min-rating 4 --out runs/reviews

      topshelf train --data clicks.parquet --set train.epochs=50 --set loss.tau=0.1 --out runs/short

      topshelf train my-run.toml --out runs/mine

      topshelf train --resume runs/mine
    """
    if resume is not None:
        others = (config, data, model, loss, k, seed, set_, out, user_column, item_column, rating_column, time_column)
        if any(value is not None for value in (*others, dates, min_rating)):
            raise ConfigError("--resume goes on with a run as it was configured; leave the other options out")
        fitted, out = training.resume(resume, quiet=quiet), resume
    else:
        if config is None and data is None:
            raise ConfigError("give --data PATH|NAME or a TOML file; see topshelf train --help")
        columns = {"user": user_column, "item": item_column, "weight": rating_column, "timestamp": time_column}
        settings = {**columns, "dates": dates, "min_rating": min_rating}
        given = {key: value for key, value in settings.items() if value is not None}
        more = merged({"data": given}, overrides(set_ or []))
        chosen = assemble(file=config, data=data, model=model, loss=loss, k=k, seed=seed, more=more)
        if loss is not None and chosen.model.name in MODELS and MODELS[chosen.model.name].is_closed_form:
            raise ConfigError(f"--loss does not go with --model {chosen.model.name}, which is fitted in closed form")
        if out is None:
            raise ConfigError("give --out FOLDER: where the run is kept")
        fitted = training.fit(chosen, out=out, quiet=quiet)
    show.run(fitted, out)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    protocol: Annotated[str | None, typer.Option(help="standard or paper; default: the run's.")] = None,
    cutoffs: Annotated[str | None, typer.Option(help="Lengths of lists, such as 5,10,20.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another run on the same data: a paired test.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on its test part, over the whole catalogue.

    Examples:

      topshelf evaluate runs/health --protocol paper --cutoffs 5,10,20

      topshelf evaluate runs/slatk --against runs/softmax
    """
    fitted, found = _evaluated(run, protocol, _cutoffs(cutoffs))
    result: dict[str, Any] = {"run": str(run), "finished": fitted.is_finished, "data": fitted.dataset.name}
    result |= found.to_json()
    paired = None
    if against is not None:
        metric = f"ndcg@{fitted.config.k if fitted.config.k in found.cutoffs else found.cutoffs[-1]}"
        paired = compare(found, _evaluated(against, protocol, found.cutoffs)[1], metric)
        result["against"] = {"run": str(against), "metric": metric, **vars(paired)}
    if as_json:
        typer.echo(terminal.as_json(result))
    else:
        show.evaluation(found.to_json(), f"{run} on {fitted.dataset.name}")
        if paired is not None:
            show.paired(paired, result["against"]["metric"], str(run), str(against))


def recommend(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    user: Annotated[list[str] | None, typer.Option(help="A user's id; may be given again.")] = None,
    items: Annotated[str | None, typer.Option(help="Items of a user who is not in the data, such as 3,7,12.")] = None,
    new: Annotated[
        Path | None, typer.Option(help="A file of interactions since training, of known and new users.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Length of the list; default: the run's K.")] = None,
    keep_seen: Annotated[bool, typer.Option("--keep-seen", help="Also list what the user has already.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a .csv or .parquet instead of printing.")] = None,
    user_column: Annotated[str | None, typer.Option(help="Column of the users in --new; as in the run's data.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of the items in --new; as in the run's data.")] = None,
    rating_column: Annotated[
        str | None, typer.Option(help="Column of the ratings in --new; 'none' to take every row.")
    ] = None,
) -> None:
    """List the best items of some users, or of all; nothing they have in the data already.

    With --new, users get lists from what they have in the data and in the file, where the model can score new
    interactions: see topshelf models. Items that are not in the run's data are counted and skipped. What is rated below
    the run's data.min_rating is not in its data, and may be listed.

    Examples:

      topshelf recommend runs/clicks --user 42 --k 10

      topshelf recommend runs/clicks --out lists.parquet

      topshelf recommend runs/ease --items 3,7,12

      topshelf recommend runs/ease --new week.csv --out lists.csv
    """
    if user is None and items is None and new is None and out is None:
        raise ConfigError(
            "give --user ID (may be given again), --items IDS for a new user, --new FILE for what came since training, "
            "or --out FILE for everybody's lists"
        )
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out must end in .csv or .parquet, got {out}")
    if sum(whose is not None for whose in (user, items, new)) > 1:
        raise ConfigError("give only one of --user ID, --items IDS and --new FILE")
    columns = {"user": user_column, "item": item_column, "weight": rating_column}
    columns = {role: name for role, name in columns.items() if name is not None}
    if columns and new is None:
        raise ConfigError("--user-column, --item-column and --rating-column are those of --new FILE; give it too")
    recommender = Recommender.load(run)
    if new is not None:
        settings = recommender.fitted.config.data
        if settings.min_rating is None and rating_column not in (None, "none"):
            raise ConfigError(
                "--rating-column must be left out here: the run has no data.min_rating, so every row of --new counts, "
                f"got {rating_column!r}"
            )
        histories = _histories(new, settings.model_copy(update=columns))
        known = sum(recommender.fitted.dataset.split.users.get(user) is not None for user in histories)
        terminal.say(f"{known:,} users of the run's data, {len(histories) - known:,} new users", stderr=True)
        table = recommender.recommend_new(histories, k, filter_seen=not keep_seen)
    elif items is not None:
        has = [item.strip() for item in items.split(",") if item.strip()]
        table = recommender.recommend_new([has], k, filter_seen=not keep_seen)
        table = table.with_columns(pl.lit("new").alias("user"))
    else:
        table = recommender.recommend(show.ids(recommender, user), k, filter_seen=not keep_seen)
    show.recommendations(table, out)


def losses(name: OnlyName = None, as_json: AsJson = False) -> None:
    """List every loss: what it is, when to use it, and what is searched when it is tuned.

    The names of the first table go with `topshelf train --loss`; those of the second rank graded lists, from Python.

    Examples:

      topshelf losses

      topshelf losses slatk
    """
    _registered("loss", describe_losses(), show.losses, name, as_json)


def models(name: OnlyName = None, as_json: AsJson = False) -> None:
    """List every model: what it is, when to use it, what it costs, and what is searched when it is tuned.

    The names go with `topshelf train --model` and `topshelf tune --model`.

    Examples:

      topshelf models

      topshelf models lightgcn
    """
    _registered("model", describe_models(), show.models, name, as_json)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the validation split, initial values and draws.")] = 0,
    offline: Annotated[bool, typer.Option("--offline", help="Use generated data; fetch nothing.")] = False,
) -> None:
    """Popularity, EASE, softmax and SL@20 on MovieLens-100K: a table, a person's list, and an HTML report.

    Example: topshelf demo --out runs/demo
    """
    demonstration.run(out, seed=seed, offline=offline)


def _registered(
    what: str,
    rows: list[dict[str, Any]],
    listing: Callable[[list[dict[str, Any]]], None],
    name: str | None,
    as_json: bool,
) -> None:
    """The rows of a registry, or the one of that name; a loss may have a form of the same name for graded lists."""
    if name is not None:
        one_of(what, name, dict.fromkeys(row["name"] for row in rows))
        rows = [row for row in rows if row["name"] == name]
    if as_json:
        typer.echo(terminal.as_json(rows))
    elif name is not None:
        show.entries(what, rows)
    else:
        listing(rows)


def _evaluated(run: Path, protocol: str | None, cutoffs: tuple[int, ...] | None) -> tuple[training.Fitted, Evaluation]:
    fitted = training.load(run)
    if fitted.config.train.refit and (protocol or fitted.config.evaluate.protocol) == "paper":
        raise ConfigError(
            f"the paper protocol leaves validation items in the ranking, and {run} was refitted on them; "
            "use --protocol standard"
        )
    return fitted, fitted.evaluate(protocol, cutoffs)


def _histories(path: Path, settings: DataSettings) -> dict[Any, list[Any]]:
    """The users of a file with their items, by the rules of the run's data; those below its min_rating do not count."""
    floor = settings.min_rating
    weight = "none" if floor is None else settings.weight
    table = read(path, user=settings.user, item=settings.item, weight=weight, timestamp="none")
    is_taken = pl.col("weight") >= floor if "weight" in table.columns else pl.lit(True)
    return dict(table.group_by("user", maintain_order=True).agg(pl.col("item").filter(is_taken)).iter_rows())


def _cutoffs(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--cutoffs takes whole numbers such as 5,10,20; got {text!r}") from None
