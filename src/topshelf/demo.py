"""The demo: four methods on MovieLens-100K, compared in a table, and the recommendations of one user."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from topshelf.catalogue import top_k
from topshelf.config import assemble
from topshelf.data import Dataset, load_split
from topshelf.data.download import cache_folder
from topshelf.data.movielens import fetch_movielens_from_registry
from topshelf.errors import ConfigError, DataError
from topshelf.evaluation import Evaluation, compare, conditions
from topshelf.files import is_free, write_text
from topshelf.page import Page
from topshelf.queries import QuerySet
from topshelf.statistics import PairedResult
from topshelf.terminal import print_table, say
from topshelf.training import Fitted, fit

K = 20
MARK = "made-by-topshelf-demo.txt"
SHOWN = 10  # items of a user's history and of the recommendations
METHODS = {
    "Popularity": ("popularity", "slatk"),
    "EASE": ("ease", "slatk"),
    "MF, softmax": ("mf", "softmax"),
    f"MF, SL@{K}": ("mf", "slatk"),
}
COLUMNS = ("method", f"NDCG@{K}", "95% interval", f"Recall@{K}", f"coverage@{K}", "seconds")
PERSON = ("history", f"SL@{K} recommends", "in the test part")


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    label: str
    fitted: Fitted
    evaluation: Evaluation

    @property
    def score(self) -> float:
        return self.evaluation.mean()[f"ndcg@{K}"]

    @property
    def ends(self) -> tuple[float, float]:
        return self.evaluation.intervals()[f"ndcg@{K}"]

    def cells(self) -> tuple[str, ...]:
        recall, coverage = self.evaluation.mean()[f"recall@{K}"], self.evaluation.extras[f"coverage@{K}"]
        numbers = (f"{recall:.4f}", f"{coverage:.2f}", f"{self.fitted.seconds:.1f}")
        return (self.label, f"{self.score:.4f}", "{:.4f} to {:.4f}".format(*self.ends), *numbers)


@dataclass(frozen=True)
class Person:
    """A user's training history beside the recommendations, and which of these are in the test part."""

    title: str
    rows: Sequence[Sequence[str]]


def run(out: Path, *, seed: int = 0, offline: bool = False) -> None:
    """Fit, compare, print, and write ``out/report.html``."""
    _claim(out)
    dataset, note = _data(seed, offline)
    if note:
        say(note, style="yellow")
    entries = [_fit(label, *method, dataset, out, seed) for label, method in METHODS.items()]
    tests = [(entry.label, compare(entries[-1].evaluation, entry.evaluation, f"ndcg@{K}")) for entry in entries[:-1]]
    person = _person(entries[-1].fitted)
    best = max(entry.score for entry in entries)
    styles = ["bold" if entry.score == best else "" for entry in entries]
    print_table(COLUMNS, [entry.cells() for entry in entries], title=_caption(dataset), left=1, styles=styles)
    for label, test in tests:
        say(_sentence(label, test))
    print_table(PERSON, person.rows, title=person.title)
    report = out / "report.html"
    _page(dataset, note, entries, tests, person, seed).write(report)
    say(f"\nreport: {report}")


def _data(seed: int, offline: bool) -> tuple[Dataset, str]:
    """MovieLens-100K with titles; generated data when offline, and a note that says so."""
    if offline:
        return load_split("synthetic", seed=seed), "Generated data, as asked."
    try:
        fetch_movielens_from_registry(cache_folder())  # for the titles, even if the interactions are cached
        return load_split("movielens-100k", seed=seed), ""
    except DataError as error:
        note = f"MovieLens-100K could not be downloaded. These are generated data; the numbers mean nothing. ({error})"
        return load_split("synthetic", seed=seed), note


def _claim(out: Path) -> None:
    """Take a folder that is new, empty, or made by an earlier demo; no other folder is replaced."""
    mark = out / MARK
    if not (is_free(out) or mark.is_file()):
        raise ConfigError(f"{out} holds something that topshelf demo did not make; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error}; choose another --out") from None
    write_text(mark, "Made by topshelf demo, which replaces its runs here.\n")


def _fit(label: str, model: str, loss: str, dataset: Dataset, out: Path, seed: int) -> Entry:
    folder = out / (f"{model}-{loss}" if model == "mf" else model)
    if folder.exists():
        shutil.rmtree(folder)
    config = assemble(data=dataset.name, model=model, loss=loss, k=K, seed=seed)
    fitted = fit(config, dataset, out=folder, quiet=False)
    say(f"{label}: fitted in {fitted.seconds:.1f} s, kept in {folder}", style="dim")
    return Entry(label, fitted, fitted.evaluate("standard"))


def _caption(dataset: Dataset) -> str:
    split = dataset.split
    return (
        f"{dataset.name}: {split.n_users:,} users, {split.n_items:,} items, {len(split.train):,} train, "
        f"{len(split.valid):,} validation, {len(split.test):,} test; {conditions({'protocol': 'standard'})}"
    )


def _sentence(label: str, test: PairedResult) -> str:
    return (
        f"SL@{K} minus {label}: {test.difference:+.4f} NDCG@{K} "
        f"(95% interval {test.low:+.4f} to {test.high:+.4f}, p = {test.p_value:.4f})"
    )


def _person(fitted: Fitted) -> Person:
    """The user with the median number of interactions: a typical one, not a chosen one."""
    split, titles = fitted.dataset.split, fitted.dataset.titles
    counts = torch.from_numpy(split.train.counts.copy())
    row = int(counts.argsort(stable=True)[len(counts) // 2])
    names = titles or [f"item {id}" for id in split.items.values.to_list()]
    train, test = split.train.ragged(), split.test.ragged()
    history = train.select(torch.tensor([row])).indices
    wanted = set(test.select(torch.tensor([row])).indices.tolist())
    # The most popular items first: readers may know them.
    popularity = torch.bincount(train.indices, minlength=split.n_items)[history]
    history = history[popularity.argsort(descending=True, stable=True)]
    # Only train and validation items are excluded, so that test items can be hits.
    with torch.no_grad():
        queries, items = fitted.model.encode(QuerySet.known(fitted.model.n_queries))
        ranked = top_k(queries, items, SHOWN, exclude=split.seen("valid"), rows=torch.tensor([row]))[1][0].tolist()
    known = [names[i] for i in history[: len(ranked)].tolist()]
    columns = (known, [names[i] for i in ranked], ["yes" if i in wanted else "" for i in ranked])
    rows = list(zip_longest(*columns, fillvalue=""))
    return Person(f"User {split.users.ids([row])[0]}: {history.numel()} items in the history", rows)


def _page(
    dataset: Dataset, note: str, entries: list[Entry], tests: list[tuple[str, PairedResult]], person: Person, seed: int
) -> Page:
    page = Page("topshelf demo")
    if note:
        page.paragraph(note)
    page.paragraph(f"{_caption(dataset)}; seed {seed}.")
    scores = [entry.score for entry in entries]
    with page.beside():
        page.table(COLUMNS, [entry.cells() for entry in entries], best=scores.index(max(scores)))
        page.intervals([entry.label for entry in entries], scores, [entry.ends for entry in entries], f"NDCG@{K}")
    for label, test in tests:
        page.paragraph(_sentence(label, test))
    page.paragraph(
        "Intervals: percentile bootstrap over users. p: two-sided sign-flip test on the same users. All models are "
        "trained on train alone; epochs are chosen on validation. How the settings were chosen: README.",
        note=True,
    )
    page.heading(person.title)
    page.table(PERSON, person.rows, sortable=False)
    return page
