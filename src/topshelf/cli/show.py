"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topshelf.cli import source
from topshelf.errors import ConfigError
from topshelf.registry import first_sentence
from topshelf.terminal import Column, Table, cell, console, escape, say

if TYPE_CHECKING:
    from topshelf.data import IdMap
    from topshelf.training import Fitted


def run(fitted: Fitted, out: Path) -> None:
    """The outcome of a training run."""
    from topshelf.config import allow_options

    config, task = fitted.config, fitted.task
    what = config.model.name if fitted.model.is_closed_form else f"{config.model.name} with {config.loss.name}"
    title = f"{what} on {fitted.dataset.name}"
    if (metrics := fitted.test_json()) is not None:
        evaluation(metrics, title)
    else:
        _without_test(fitted, title)
    lines = task.lines(fitted.through)
    if not fitted.model.is_closed_form:
        lines.append(f"best epoch {fitted.best_epoch}, trained in {fitted.seconds:.1f} s")
    if config.train.refit == "all" and fitted.is_finished:
        lines.append("these metrics are of the model before it was refitted on everything, which is the saved one")
    lines.append(f"kept in {out}; {task.usage(str(out))}{allow_options(config)}")
    for line in lines:
        say(line)


def _without_test(fitted: Fitted, title: str) -> None:
    score, metric = fitted.valid_score, fitted.task.metric(fitted.config)
    if score is None:  # a closed-form model that was not refitted
        score = fitted.evaluate(part="valid").mean()[metric]
    how = fitted.task.validated
    say(f"{title}: no test part (data.test_fraction = 0); validation {metric} {score:.4f} ({how})")


def evaluation(result: dict[str, Any], title: str) -> None:
    """Metrics by cutoff, with an interval for the NDCG; ``result`` is an evaluation as JSON."""
    from topshelf.evaluation import conditions

    means, intervals, extras, cutoffs = (result[key] for key in ("mean", "interval", "extras", "cutoffs"))
    units = result.get("units", "users")
    columns = (Column("metric", no_wrap=True), *(Column(f"@{k}", justify="right") for k in cutoffs))
    table = Table(*columns)
    for name in dict.fromkeys(name.partition("@")[0] for name in means if "@" in name):
        table.add_row(name, *(f"{means[f'{name}@{k}']:.4f}" for k in cutoffs))
        if name == "ndcg":
            for place, word in enumerate(("  95% low", "  95% high")):
                table.add_row(word, *(f"{intervals[f'ndcg@{k}'][place]:.4f}" for k in cutoffs), style="dim")
    for name in dict.fromkeys(name.partition("@")[0] for name in extras):
        table.add_row(name, *(f"{extras[f'{name}@{k}']:.4f}" for k in cutoffs))
    for line in (title, conditions(result), f"{result['n_evaluated']:,} {units}, 95% intervals by bootstrap"):
        say(line, style="italic")
    shown = console()
    shown.print(table)
    for name in [name for name in means if "@" not in name and means[name] is not None]:
        low, high = intervals[name]
        shown.print(f"{name} {means[name]:.4f} ({low:.4f} to {high:.4f})", highlight=False)
    if result["n_skipped"]:
        shown.print(f"{result['n_skipped']:,} {units} with nothing to find left out", style="dim", highlight=False)


FORMS = {
    "ragged": "Positives against negatives: topshelf train {}--loss NAME",
    "graded": "Graded lists: topshelf train {}--loss NAME",
    "trained": "Trained by a loss: topshelf train {}--model NAME --loss LOSS",
    "closed form": "Fitted without a loss: topshelf train {}--model NAME",
}
LABELS = {
    "use_when": "Use when",
    "cost": "Cost",
    "paper": "Paper",
    "relations": "Relations",
    "about_settings": "Settings",
}


def listing(what: str, rows: Sequence[dict[str, Any]], task: str | None) -> None:
    """A table per form of a task, the default one if none is given; then which other tasks there are."""
    shown = task or rows[0]["tasks"][0]
    own = [row for row in rows if shown in row["tasks"]]
    keys = ("use_when", "cost") if what == "model" else ("use_when",)
    heading = f"what it is, when to use it, {'its cost, ' * ('cost' in keys)}and what topshelf tune searches"
    for form in dict.fromkeys(row["form"] for row in own):
        columns = (Column("name", no_wrap=True), heading)
        table = Table(*columns, title=_usage(form, shown), title_justify="left", show_lines=True)
        for row in own:
            if row["form"] == form:
                lines = [row["summary"], *(f"{LABELS[key]}: {first_sentence(row[key])}" for key in keys)]
                lines += ["New users: from their items."] if row.get("new_users") else []
                ranges = [f"{key}: {_values(values)}" for key, values in row["ranges"].items()]
                table.add_row(
                    row["name"], "\n".join([*map(escape, lines), *(f"[dim]{escape(x)}[/dim]" for x in ranges)])
                )
        console().print(table)
    if task is None:
        _other_tasks(what, rows, shown)


def _other_tasks(what: str, rows: Sequence[dict[str, Any]], shown: str) -> None:
    """The names that the other tasks have, and the command that describes them."""
    from topshelf.config import CONFIGS

    plural = {"model": "models", "loss": "losses"}[what]
    say(f"These are the {plural} of task {shown}, the default. The other tasks:")
    for task in CONFIGS:
        own = [row for row in rows if task in row["tasks"]]
        if task != shown:
            is_same = own == [row for row in rows if shown in row["tasks"]]
            names = (
                f"the same {plural}"
                if is_same
                else ", ".join(source.models(task) if what == "model" else source.losses(task))
            )
            say(f"--task {task} ({(CONFIGS[task].__doc__ or '').rstrip('.')}): {names}")
    say(f"More on them: topshelf {plural} --task TASK. All of one: topshelf {plural} NAME")


def _usage(form: str, task: str) -> str:
    return FORMS[form].format("" if task == "interactions" else f"--task {task} ")


def entries(section: str, rows: Sequence[dict[str, Any]]) -> None:
    """Everything about each row: its documentation, its settings and their search ranges."""
    if len(rows) > 1:
        owners = "; ".join(f"for --task {' or '.join(row['tasks'])}" for row in rows)
        say(f"{rows[0]['name']} is the name of {len(rows)}: {owners}. --task TASK shows one of them\n")
    for row in rows:
        lines = [row["summary"], *(f"{label}: {row[key]}" for key, label in LABELS.items() if row[key])]
        if "new_users" in row:
            lines.append(f"New users: {'yes, from their items' if row['new_users'] else 'no, only by training again'}.")
        if row["tasks"] != ["interactions"]:
            lines.insert(0, f"Tasks: {', '.join(row['tasks'])}")
        for line in [_usage(row["form"], row["tasks"][0]).replace("NAME", row["name"]), *lines]:
            say(line)
        own = {f"{section}.{key}": value for key, value in row["settings"].items()}
        table = Table("setting", "default", "searched")
        for key in dict.fromkeys([*own, *row["ranges"]]):
            default = _values([own[key]]) if key in own else ""
            table.add_row(escape(key), escape(default), escape(_values(row["ranges"].get(key, ()))))
        if table.row_count:
            console().print(table)


def _values(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def against(result: dict[str, Any]) -> None:
    """Two runs side by side, and the paired test of their difference."""
    other, cutoffs = result["against"], result["cutoffs"]
    table = Table("ndcg", *(f"@{k}" for k in cutoffs))
    for run, means in ((result["run"], result["mean"]), (other["run"], other["mean"])):
        table.add_row(cell(run), *(f"{means[f'ndcg@{k}']:.4f}" for k in cutoffs))
    console().print(table)
    say(
        f"{other['metric']}: {result['run']} minus {other['run']} = {other['difference']:+.4f} (95% interval "
        f"{other['low']:+.4f} to {other['high']:+.4f}; paired sign-flip test, p = {other['p_value']:.4f}, "
        f"{other['n']:,} {result.get('units', 'users')})"
    )


def ids(option: str, known: IdMap, texts: Sequence[str]) -> list[Any]:
    """The ids of the data for those typed on the command line."""
    indices = [known.get(text) for text in texts]
    if unknown := [text for text, index in zip(texts, indices, strict=True) if index is None]:
        like, what = ", ".join(map(str, known.ids(range(min(3, len(known)))))), option.removeprefix("--")
        article = "an" if what == "item" else "a"
        raise ConfigError(
            f"{option} must be {article} {what} of the run's data, such as {like}; got {', '.join(unknown)}"
            f"{_alike(known, unknown[0])}"
        )
    return known.ids([index for index in indices if index is not None])


def _alike(known: IdMap, text: str) -> str:
    """An id that differs from a typed one in leading zeros or capitals only, as the end of a message."""
    plain = text.lower().lstrip("0")
    found = next((one for one in map(str, known.values.to_list()) if one.lower().lstrip("0") == plain), None)
    return "" if found is None else f"; did you mean {found}?"


def chosen(histories: dict[Any, list[Any]], texts: Sequence[str] | None) -> dict[Any, list[Any]]:
    """The histories of the users typed on the command line; all of them if none is."""
    if texts is None:
        return histories
    typed = {str(user): user for user in histories}
    if unknown := [text for text in texts if text not in typed]:
        like = ", ".join(list(typed)[:3])
        raise ConfigError(f"--user must be a user of the --new file, such as {like}; got {', '.join(unknown)}")
    return {typed[text]: histories[typed[text]] for text in texts}
