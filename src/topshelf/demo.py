"""The demo: simple models, softmax, SL@20 and a short automatic search on two datasets, in tables and as one page.

On MovieLens-100K, which is dense, the weight of SL@K does not pay; on the paper's Health it does. Both are shown.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from topshelf.config import assemble
from topshelf.data import Dataset, load_split
from topshelf.data.download import cache_folder
from topshelf.data.movielens import fetch_movielens_from_registry
from topshelf.errors import ConfigError, DataError
from topshelf.evaluation import compare, conditions
from topshelf.files import is_free, write_text
from topshelf.page import Cell, Page
from topshelf.report.build import add_sections
from topshelf.report.people import Lister, typical
from topshelf.report.shown import Shown, open_runs
from topshelf.statistics import PairedResult
from topshelf.terminal import print_table, say
from topshelf.training import fit

K = 20
BUDGET = "20s"  # of the search, on each dataset
MARK = "made-by-topshelf-demo.txt"
TITLES = {"movielens-100k": "MovieLens-100K", "amazon2014-health": "Amazon Health", "synthetic": "Generated data"}
# Name of the run, what it is called, its model and loss. All are refitted on train and validation, as auto's result is.
METHODS = {
    "slatk": (f"MF, SL@{K}", "mf", "slatk"),
    "softmax": ("MF, softmax", "mf", "softmax"),
    "ease": ("EASE", "ease", "slatk"),
    "ials": ("iALS", "ials", "slatk"),
    "item-knn": ("Item-kNN", "itemknn", "slatk"),
    "popularity": ("Popularity", "popularity", "slatk"),
}
OURS, OTHER, SEARCHED = "slatk", "softmax", "auto"
PERSON = ("has", f"SL@{K} lists", "in the test part")
COLUMNS = ("method", f"NDCG@{K}", "95% interval", f"Recall@{K}", f"coverage@{K}", "seconds")
SURE = 0.05  # a p-value below this is called a difference


@dataclass(frozen=True)
class Story:
    """The runs on one dataset, and our loss against the others."""

    dataset: Dataset
    runs: list[Shown]
    tests: dict[str, PairedResult]
    searched: list[str]  # what the search says of its result

    @property
    def title(self) -> str:
        return TITLES.get(self.dataset.name, self.dataset.name)

    @property
    def caption(self) -> str:
        split = self.dataset.split
        sizes = f"{split.n_users:,} users, {split.n_items:,} items, {len(split.train):,} train, "
        parts = f"{len(split.valid):,} validation, {len(split.test):,} test"
        return f"{self.title}: {sizes}{parts}; {conditions({'protocol': 'standard'})}"

    @property
    def scores(self) -> list[float]:
        return [run.mean(f"ndcg@{K}") or 0.0 for run in self.runs]

    @property
    def best(self) -> list[int]:
        """The rows with the highest score, as it is printed."""
        rounded = [round(score, 4) for score in self.scores]
        return [at for at, score in enumerate(rounded) if score == max(rounded)]

    def ends(self) -> list[tuple[float, float]]:
        return [run.interval(f"ndcg@{K}") or (score, score) for run, score in zip(self.runs, self.scores, strict=True)]

    def rows(self) -> list[tuple[str, ...]]:
        """One for each method, as the columns have it."""
        rows: list[tuple[str, ...]] = []
        for run, score, ends in zip(self.runs, self.scores, self.ends(), strict=True):
            others = (f"{run.mean(f'recall@{K}') or 0:.4f}", f"{run.mean(f'coverage@{K}') or 0:.2f}")
            interval = "{:.4f} to {:.4f}".format(*ends)
            rows.append((_label(run), f"{score:.4f}", interval, *others, f"{run.fitted.seconds:.1f}"))
        return rows

    def sentences(self) -> list[str]:
        """Our loss against the others, what the search says, and which is best."""
        said = []
        if (test := self.tests.get(OTHER)) is not None:
            gain = test.difference / (self._score(OTHER) or 1.0)
            pays = "does not pay" if test.p_value > SURE else "pays" if gain > 0 else "costs"
            said.append(f"The weight of SL@{K} {pays} here: {gain:+.1%} against softmax. {_tested('softmax', test)}")
        said += [_tested(METHODS[name][0], test) for name, test in self.tests.items() if name != OTHER]
        said += [f"auto: {line}" for line in self.searched]
        return [*said, f"The best of these on {self.title}: {', '.join(_label(self.runs[at]) for at in self.best)}."]

    def _score(self, name: str) -> float:
        return next(score for run, score in zip(self.runs, self.scores, strict=True) if run.name == name)


def run(out: Path, *, seed: int = 0, offline: bool = False, budget: str | None = BUDGET) -> None:
    """Fit, compare, print, and write ``out/report.html``; without a ``budget`` nothing is searched."""
    _claim(out)
    stories, notes = [], []
    for dataset, note in _data(seed, offline):
        if note:
            notes.append(note)
            say(note, style="yellow")
        if dataset is not None:
            stories.append(_story(dataset, out, seed, budget))
            _print(stories[-1])
    if ours := [run for run in stories[0].runs if run.name == OURS]:
        _print_person(ours[0])
    report = out / "report.html"
    _page(stories, notes, out, seed).write(report)
    say(f"\nreport: {report}")


def _data(seed: int, offline: bool) -> list[tuple[Dataset | None, str]]:
    """What there is of the two datasets, each with a note that says what is missing; generated data when offline."""
    if offline:
        return [(load_split("synthetic", seed=seed), "Generated data, as asked: the numbers mean nothing.")]
    found: list[tuple[Dataset | None, str]] = []
    try:
        fetch_movielens_from_registry(cache_folder())  # for the titles, even if the interactions are cached
        found.append((load_split("movielens-100k", seed=seed), ""))
    except DataError as error:
        note = f"MovieLens-100K could not be downloaded. These are generated data; the numbers mean nothing. ({error})"
        found.append((load_split("synthetic", seed=seed), note))
    try:
        found.append((load_split("amazon2014-health", seed=seed), ""))
    except DataError as error:
        note = f"The paper's Health, where the weight of SL@{K} pays, is not here. ({error})"
        found.append((None, note))
    return found


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


def _story(dataset: Dataset, out: Path, seed: int, budget: str | None) -> Story:
    place = out / dataset.name
    if place.exists():
        shutil.rmtree(place)
    say(f"\n{TITLES.get(dataset.name, dataset.name)}", style="bold")
    for name in METHODS:
        _fit(name, dataset, place / name, seed)
    names, searched = list(METHODS), list[str]()
    if budget is not None and find_spec("optuna") is None:
        say("without topshelf auto, which needs Optuna: pip install 'topshelf[tune]'", style="yellow")
    elif budget is not None:
        from topshelf.auto import auto  # needs Optuna

        say(f"auto: every model that fits, for {budget}", style="dim")
        found = auto(dataset.name, k=K, budget=budget, seed=seed, out=place / SEARCHED, quiet=False)
        names.insert(2, SEARCHED)  # its lists are shown beside those of the two losses
        searched = [*found.why(), found.more_budget()]
    runs = open_runs([place / name for name in names])
    return Story(dataset, runs, _tests(runs), searched)


def _fit(name: str, dataset: Dataset, folder: Path, seed: int) -> None:
    label, model, loss = METHODS[name]
    config = assemble(data=dataset.name, model=model, loss=loss, k=K, seed=seed, more={"train": {"refit": True}})
    fitted = fit(config, dataset, out=folder, quiet=False)
    say(f"{label}: fitted in {fitted.seconds:.1f} s, kept in {folder}", style="dim")


def _tests(runs: list[Shown]) -> dict[str, PairedResult]:
    """Our loss against each of the others, user by user; the search has no values per user, because it refits."""
    ours = next((run.evaluation for run in runs if run.name == OURS), None)
    others = {run.name: run.evaluation for run in runs if run.name != OURS and run.evaluation is not None}
    return {} if ours is None else {name: compare(ours, other, f"ndcg@{K}") for name, other in others.items()}


def _label(run: Shown) -> str:
    return METHODS[run.name][0] if run.name in METHODS else run.name


def _tested(label: str, test: PairedResult) -> str:
    return (
        f"SL@{K} minus {label}: {test.difference:+.4f} NDCG@{K} "
        f"(95% interval {test.low:+.4f} to {test.high:+.4f}, p = {test.p_value:.4f})."
    )


def _print(story: Story) -> None:
    styles = ["bold" if at in story.best else "" for at in range(len(story.runs))]
    print_table(COLUMNS, story.rows(), title=story.caption, left=1, styles=styles)
    for line in story.sentences():
        say(line)


def _print_person(run: Shown) -> None:
    """What a typical user has, beside the list of a run."""
    lister = Lister.of(run, None)
    rows = typical(lister)
    if not rows:
        return
    row = rows[len(rows) // 2]
    own, listed = [lister.title(item) for item in lister.own(row)], lister.listed(row)
    columns = (own[: len(listed)], [cell.text for cell in listed], ["yes" if cell.hit else "" for cell in listed])
    user = lister.artifact.users.ids([row])[0]
    print_table(PERSON, list(zip_longest(*columns, fillvalue="")), title=f"User {user}: {len(own):,} items")


def _with_intervals(story: Story) -> tuple[Sequence[str], list[Sequence[str | Cell]]]:
    """The table of a story for the page, where an interval stands below its number."""
    rows: list[Sequence[str | Cell]] = []
    for label, score, interval, *others in story.rows():
        rows.append((label, Cell(score, interval), *others))
    return (*COLUMNS[:2], *COLUMNS[3:]), rows


def _page(stories: list[Story], notes: list[str], out: Path, seed: int) -> Page:
    names = " and ".join(story.title for story in stories)
    lead = f"Simple models, softmax, SL@{K} and a short automatic search on {names}, seed {seed}."
    page = Page("topshelf demo", lead=lead, footer=f"Made by topshelf demo --out {out}.")
    for note in notes:
        page.paragraph(note, warning=True)
    for story in stories:
        page.heading(story.title)
        page.paragraph(f"{story.caption}.")
        with page.beside():
            page.table(*_with_intervals(story), best=story.best, caption=f"Methods on {story.title}; the best is bold")
            page.intervals([_label(run) for run in story.runs], story.scores, story.ends(), f"NDCG@{K}")
        for line in story.sentences():
            page.paragraph(line)
    page.paragraph(
        "Intervals: percentile bootstrap over users. p: two-sided sign-flip test on the same users. Epochs are chosen "
        "on validation, then every model is refitted on train and validation. How the settings were chosen: "
        "docs/where-we-stand.md.",
        note=True,
    )
    for story in stories:
        with page.named(story.title if len(stories) > 1 else ""):
            add_sections(page, story.runs)
    return page
