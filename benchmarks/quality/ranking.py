"""The losses of the paper's table 5 with the Transformer, and LambdaMART, on MQ2008, OHSUMED and Yandex 2009.

    python -m benchmarks.quality.ranking --json benchmarks/results/ranking.json [--data NAME ...] [--quick]

NDCG@5 and NDCG@10, gain 2^y - 1; queries without relevant documents are left out ("skip"), and the means by the other
two conventions ("zero", "one") stand beside them. MQ2008 is the five folds with seed 0, all test queries pooled;
OHSUMED (fold 1) and Yandex have the seeds given, and a query's value is the mean over them. Intervals are by bootstrap
over queries. SL@5 is compared with the best other loss of the Transformer by a paired test over queries.

Every loss has four settings to choose from, of which validation NDCG@5 of the first fold or seed chooses one;
LambdaMART has four too. "lightgbm" is LightGBM called without this library, with LambdaMART's chosen settings.

Rows that the file has are not made again, so the same command goes on where it was stopped. The data must be in
TOPSHELF_DATA (docs/ranking.md). To run the paper's own table, name the full datasets: --data web10k web30k istella.
``--page`` writes the tables of the committed result into docs/ranking.md.
``--quick`` takes two losses, one setting and two epochs on the sample of WEB30K.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import RESULTS, ROOT, Benchmark, Row, held
from benchmarks.harness import table as table_of
from topshelf.config import RankingConfig, assemble
from topshelf.data.documents import Documents, RankingData
from topshelf.data.ranking_datasets import RANKING_DATASETS
from topshelf.data.ranking_sources import load_ranking
from topshelf.files import write_text
from topshelf.list_evaluation import evaluate_scores
from topshelf.models.lists import LambdaMART
from topshelf.statistics import bootstrap_interval, paired_test
from topshelf.training import fit

K, CUTOFFS = 5, (5, 10)
PAGE = ROOT / "docs" / "ranking.md"
MARKS = ("<!-- python -m benchmarks.quality.ranking --page: the tables -->\n", "<!-- the end of the tables -->\n")
DATA = ("mq2008", "ohsumed", "yandex-imat2009")
SEEDS = (0, 1, 2)
OURS, BOOSTED, DIRECT = "slatk", "lambdamart", "lightgbm"
TRAIN = {"epochs": 60, "patience": 10, "batch_size": 32}
LOWER = {"learning_rate": 0.0003}


def _temperatures(name: str, **more: Any) -> list[Row]:
    """Three temperatures, and the middle one with a lower learning rate."""
    choices: list[Row] = [{"loss": {"name": name, "tau": tau, **more}} for tau in (1.0, 0.5, 2.0)]
    return [*choices, {**choices[0], "train": LOWER}]


def _boosted(**settings: Any) -> Row:
    return {"model": {"name": BOOSTED, "k": K, **settings}}


# The settings that each method may choose from. The gradient of SL@K's weight pushes badly ranked positives down where
# scores have no bounds, so three of its four stop that gradient, and the fourth has a soft weight.
CHOICES: dict[str, list[Row]] = {
    "listmle": _temperatures("listmle"),
    "listnet": _temperatures("listnet"),
    "ranknet": _temperatures("ranknet"),
    "lambdaloss_at_k": _temperatures("lambdaloss_at_k", k=K),
    "neural_ndcg": [
        {"loss": {"name": "neural_ndcg", "tau": 1.0}, "model": {"name": "transformer", "output": "tanh"}},
        {"loss": {"name": "neural_ndcg", "tau": 1.0}},
        {"loss": {"name": "neural_ndcg", "tau": 0.1}},
        {"loss": {"name": "neural_ndcg", "tau": 1.0}, "train": LOWER},
    ],
    "softmax": _temperatures("softmax"),
    OURS: [
        {"loss": {"name": OURS, "k": K, "detach_weight": True}},
        {"loss": {"name": OURS, "k": K, "tau": 0.5, "detach_weight": True}},
        {"loss": {"name": OURS, "k": K, "tau_weight": 3.0, "detach_weight": True}},
        {"loss": {"name": OURS, "k": K, "tau_weight": 5.0}},
    ],
    BOOSTED: [
        _boosted(),
        _boosted(leaves=31, learning_rate=0.1),
        _boosted(leaves=7),
        _boosted(leaves=31, least_in_leaf=50),
    ],
}


def parts_of(name: str, seeds: list[int]) -> list[Row]:
    """The splits of a dataset: its folds, or its seeds where there is one fold."""
    folds = RANKING_DATASETS[name].folds
    return [{"fold": fold, "seed": 0} for fold in range(1, folds + 1)] if folds > 1 else [
        {"fold": 1, "seed": seed} for seed in seeds
    ]  # fmt: skip


def config_of(data: str, part: Row, choice: Row, epochs: int | None) -> RankingConfig:
    train = {**TRAIN, **choice.get("train", {}), **({} if epochs is None else {"epochs": epochs})}
    more = {**choice, "train": train, "data": {"fold": part["fold"]}, "evaluate": {"cutoffs": list(CUTOFFS)}}
    config = assemble(task="ranking", data=data, k=K, seed=part["seed"], more=more)
    assert isinstance(config, RankingConfig)
    return config


def measure(data: RankingData, name: str, part: Row, method: str, place: int, epochs: int | None = None) -> Row:
    """One run: its validation score and its test metrics, NDCG@5 of every query too."""
    fitted = fit(config_of(name, part, CHOICES[method][place], epochs), data)
    valid = fitted.evaluate(part="valid").mean()[f"ndcg@{K}"]
    row = {"data": name, **part, "method": method, "choice": place, "valid": valid}
    return {**row, "epoch": fitted.best_epoch, "seconds": round(fitted.seconds, 1), **tested(fitted.test)}


def tested(evaluation: Any) -> Row:
    """The means, how many queries were left out, and the values of all others as text, so that a row is one line."""
    values = evaluation.per_user[f"ndcg@{K}"].tolist(), evaluation.per_user["ndcg@10"].tolist()
    texts = [",".join(f"{value:.3f}".rstrip("0").rstrip(".") for value in some) for some in values]
    return {
        **{f"ndcg@{k}": evaluation.mean()[f"ndcg@{k}"] for k in CUTOFFS},
        "skipped": evaluation.n_skipped,
        "per_query@5": texts[0],
        "per_query@10": texts[1],
    }


def direct(data: RankingData, name: str, part: Row, place: int) -> Row:
    """LightGBM by its own interface, as its documentation has it: nothing of this library but the reading of files."""
    import lightgbm

    settings = {key: value for key, value in CHOICES[BOOSTED][place]["model"].items() if key != "name"}
    shown = LambdaMART(data.n_features, **settings)
    parameters = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [K],
        "learning_rate": shown.learning_rate,
        "num_leaves": shown.leaves,
        "min_data_in_leaf": shown.least_in_leaf,
        "num_threads": 1,
        "verbose": -1,
    }

    def dataset(part: Documents, reference: Any = None) -> Any:
        return lightgbm.Dataset(part.features, part.grades, group=part.lengths, reference=reference)

    train = dataset(data.train)
    stop = lightgbm.early_stopping(shown.patience, verbose=False)
    held_out = [dataset(data.valid, train)]
    booster = lightgbm.train(parameters, train, shown.trees, valid_sets=held_out, callbacks=[stop])
    scores = booster.predict(data.test.features, num_threads=1)
    evaluation = evaluate_scores(scores, data.test.grades, data.test.indptr, CUTOFFS)
    return {"data": name, **part, "method": DIRECT, "choice": place, **tested(evaluation)}


def place_of(rows: list[Row], name: str, method: str) -> int:
    """The setting with the best validation score on the first split."""
    method = BOOSTED if method == DIRECT else method
    tried = [row for row in rows if row["data"] == name and row["method"] == method and row["is_search"]]
    return max(tried, key=lambda row: (row["valid"], -row["choice"]))["choice"]


def work(
    name: str,
    rows: list[Row],
    keep: Callable[[list[Row]], None],
    *,
    seeds: list[int],
    methods: list[str],
    epochs: int | None,
) -> None:
    """Make every missing row of a dataset, one at a time: the search on the first split, then all splits."""
    parts = parts_of(name, seeds)
    done = {(row["data"], row["fold"], row["seed"], row["method"], row["choice"]) for row in rows}
    for number, part in enumerate(parts):
        data = load_ranking(name, fold=part["fold"], seed=part["seed"])
        for method in [*methods, *([DIRECT] if BOOSTED in methods else [])]:
            is_search = number == 0 and method != DIRECT
            places = (
                range(len(CHOICES[method]) if epochs is None else 1) if is_search else [place_of(rows, name, method)]
            )
            for place in places:
                if (name, part["fold"], part["seed"], method, place) in done:
                    continue
                made = (
                    direct(data, name, part, place)
                    if method == DIRECT
                    else measure(data, name, part, method, place, epochs)
                )
                rows.append({"is_search": is_search, **made})
                print({key: value for key, value in rows[-1].items() if "per_query" not in key}, flush=True)
                keep(rows)
            _forget(rows, name, method)


def _forget(rows: list[Row], name: str, method: str) -> None:
    """Drop the values of single queries where the setting was not chosen."""
    for row in rows:
        if row["data"] == name and row["method"] == method and row["choice"] != place_of(rows, name, method):
            row.pop("per_query@5", None), row.pop("per_query@10", None)


def values_of(rows: list[Row], name: str, method: str, k: int) -> tuple[np.ndarray, int] | None:
    """NDCG@k of every test query with the chosen setting, and how many were left out; None while rows are missing."""
    source = BOOSTED if method == DIRECT else method
    if not any(row["data"] == name and row["method"] == source and row["is_search"] for row in rows):
        return None
    place = place_of(rows, name, method)
    mine = [row for row in rows if row["data"] == name and row["method"] == method and row["choice"] == place]
    if not mine:
        return None
    per_part = [np.array([float(value) for value in row[f"per_query@{k}"].split(",")]) for row in mine]
    if len({row["fold"] for row in mine}) > 1:
        return np.concatenate(per_part), sum(row["skipped"] for row in mine)
    return np.mean(per_part, 0), mine[0]["skipped"]


def summary(rows: list[Row], name: str, seeds: list[int]) -> Row:
    """The table of a dataset, and SL@5 against the best other loss."""
    n_parts, table, at_5 = len(parts_of(name, seeds)), [], {}
    for method in [*CHOICES, DIRECT]:
        found = {k: values_of(rows, name, method, k) for k in CUTOFFS}
        if found[K] is None:
            continue
        row: Row = {"method": method, "setting": CHOICES.get(method, CHOICES[BOOSTED])[place_of(rows, name, method)]}
        row["splits"] = sum(one["method"] == method and one["choice"] == place_of(rows, name, method)
                            for one in rows if one["data"] == name)  # fmt: skip
        row["is_complete"] = row["splits"] == n_parts
        for k in CUTOFFS:
            values, n_skipped = found[k]  # type: ignore[misc]
            total = values.size + n_skipped
            row[f"ndcg@{k}"] = float(values.mean())
            row[f"interval@{k}"] = list(bootstrap_interval(values))
            row[f"zero@{k}"], row[f"one@{k}"] = float(values.sum() / total), float((values.sum() + n_skipped) / total)
        row["queries"], row["skipped"] = values.size, n_skipped
        if row["is_complete"]:
            at_5[method] = found[K][0]  # type: ignore[index]
        table.append(row)
    return {"data": name, "table": table, **_paired(at_5)}


def _paired(at_5: dict[str, np.ndarray]) -> Row:
    others = {name: values for name, values in at_5.items() if name not in (OURS, BOOSTED, DIRECT)}
    if OURS not in at_5 or not others:
        return {}
    best = max(others, key=lambda name: others[name].mean())
    if others[best].size != at_5[OURS].size:
        return {}
    result = {"against_best": {"loss": best, **vars(paired_test(at_5[OURS], others[best]))}}
    if BOOSTED in at_5 and at_5[BOOSTED].size == at_5[OURS].size:
        result["against_lambdamart"] = vars(paired_test(at_5[OURS], at_5[BOOSTED]))
    return result


def shown(made: Row) -> str:
    heads = ("method", "NDCG@5", "95%", "NDCG@10", "95%", "@10 zero / one", "splits")
    lines = [
        (
            row["method"],
            f"{row['ndcg@5']:.4f}",
            "{:.4f} to {:.4f}".format(*row["interval@5"]),
            f"{row['ndcg@10']:.4f}",
            "{:.4f} to {:.4f}".format(*row["interval@10"]),
            f"{row['zero@10']:.4f} / {row['one@10']:.4f}",
            row["splits"],
        )
        for row in made["table"]
    ]
    return f"**{made['data']}**\n\n{table_of(heads, lines)}"


def page(tables: list[Row]) -> str:
    """docs/ranking.md with the tables."""
    begin, end = MARKS
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    tables_text = "\n".join([*map(told, tables), ""])
    return f"{before}{begin}{tables_text}{end}{rest.partition(end)[2]}"


def told(made: Row) -> str:
    """A table of the methods that are finished, with what it means for SL@5."""
    finished = [row for row in made["table"] if row["is_complete"]]
    lines = [f"\n{shown({**made, 'table': finished})}\n"]
    if found := made.get("against_best"):
        lines.append(
            f"SL@5 minus {found['loss']}, the best other loss: {found['difference']:+.4f} NDCG@5 ({found['low']:+.4f} "
            f"to {found['high']:+.4f}, {_chance(found)}, {found['n']:,} queries)."
        )
    if found := made.get("against_lambdamart"):
        lines.append(f"SL@5 minus LambdaMART: {found['difference']:+.4f} ({_chance(found)}).")
    if missing := [row["method"] for row in made["table"] if not row["is_complete"]]:
        lines.append(f"Not finished, so not in the table: {', '.join(missing)}.")
    return "\n".join(lines)


def _chance(found: Row) -> str:
    return "p < 0.001" if found["p_value"] < 0.001 else f"p = {found['p_value']:.3f}"


def main() -> None:
    quick = {"data": ["web30k-sample"], "seeds": [0], "methods": ["softmax", OURS]}
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, known=list(RANKING_DATASETS), seeds=SEEDS, quick=quick)
    benchmark.parser.add_argument("--methods", nargs="+", default=list(CHOICES), metavar="NAME", help="default: all")
    benchmark.parser.add_argument("--page", action="store_true", help="only write the tables into docs/ranking.md")
    options = benchmark.parse()
    if options.page:
        write_text(PAGE, page(held(RESULTS / "ranking.json", "tables")))
        return
    benchmark.check("--methods", options.methods, list(CHOICES))
    torch.set_num_threads(1)
    rows: list[Row] = benchmark.held() or []

    def keep(rows: list[Row]) -> None:
        tables = [summary(rows, name, options.seeds) for name in dict.fromkeys(row["data"] for row in rows)]
        benchmark.write(k=K, empty="skip", gain="exponential", train=TRAIN, rows=rows, tables=tables)

    epochs = 2 if options.quick else None
    for name in options.data:
        work(name, rows, keep, seeds=options.seeds, methods=options.methods, epochs=epochs)
        print(shown(summary(rows, name, options.seeds)), flush=True)
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    print(f"{len(rows)} rows, {statistics.mean(seconds):.0f} s of training each")


if __name__ == "__main__":
    main()
