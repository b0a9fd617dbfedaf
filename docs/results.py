"""Write the committed results: a folder per plan that has finished cells, and the index.

python docs/results.py BENCH      reports of the plans in a bench folder, and the index
python docs/results.py            the index alone, and every page again from its report.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from topshelf.bench import Report, of_plan, read_plan, read_report
from topshelf.bench.folder import BenchFolder
from topshelf.bench.plan import shipped_plans
from topshelf.bench.tables import Grid, markdown
from topshelf.data.interaction_datasets import DATASETS
from topshelf.files import write_text

RESULTS = Path(__file__).parent / "results"
# Users, items, interactions and density of the paper's tables 1 and 9.
PAPER = {
    "amazon2014-health": ("Health", 1_974, 1_200, 48_189, "0.02034"),
    "amazon2014-electronic": ("Electronic", 13_455, 8_360, 234_521, "0.00208"),
    "gowalla": ("Gowalla", 29_858, 40_988, 1_027_464, "0.00084"),
    "amazon2014-book": ("Book", 135_109, 115_172, 4_042_382, "0.00026"),
    "movielens-100k": ("MovieLens", 939, 1_016, 80_393, "0.08427"),
    "food": ("Food", 5_875, 9_852, 233_038, "0.00403"),
}
INTRODUCTION = """# Results

Tables and figures of the SL@K paper, measured with `topshelf bench` ([how](../bench.md)) under the protocols `paper`
and `standard`. Every page is made of its folder's `report.json` by `python docs/results.py`; the tests hold them to
it. A cell that was not run is a dash, and the page says so. To make a row again:
`topshelf bench run PLAN --method LABEL`.
"""


def pages() -> list[Path]:
    """The folders of committed reports."""
    return sorted(path.parent for path in RESULTS.glob("*/report.json"))


def page(folder: Path) -> str:
    """The page of a committed report."""
    drawings = [path.stem for path in sorted(folder.glob("*.svg"))]
    return read_report(folder).markdown(drawings)


def index() -> str:
    """All reports with how far they are, and the statistics of the data."""
    rows = []
    for folder in pages():
        results = read_report(folder).results
        last = max(str(run.facts.get("date")) for run in results.runs)
        done = f"{len(results.runs)} of {results.n_wanted}"
        rows.append((f"[{folder.name}]({folder.name}/report.md)", results.title, done, last))
    shown = markdown(Grid("Plans", ("plan", "what it compares", "cells", "last run"), tuple(rows)))
    return f"{INTRODUCTION}\n{shown}\n\n{markdown(statistics())}\n"


def statistics() -> Grid:
    """The data beside the paper's tables 1 and 9; counts are compared with the files whenever they are read."""
    rows = []
    for name, (label, users, items, interactions, density) in PAPER.items():
        info = DATASETS[name]
        ours = f"{(info.interactions or 0) / (info.users * info.items):.5f}"
        counts = [f"{value:,}" for value in (info.users, info.items, info.interactions or 0)]
        same = (info.users, info.items, info.interactions, ours) == (users, items, interactions, density)
        rows.append(
            (label, *counts, ours, "the same" if same else f"{users:,} / {items:,} / {interactions:,} / {density}")
        )
    heads = ("data", "users", "items", "interactions", "density", "the paper's tables 1 and 9")
    return Grid("Statistics of the data", heads, tuple(rows))


def write(bench: Path) -> None:
    """Reports of all shipped plans of which a third or more is finished in a bench."""
    ledger = BenchFolder.open(bench)
    for name in shipped_plans():
        results = of_plan(*read_plan(name), ledger)
        if 3 * len(results.runs) >= results.n_wanted:
            folder = Report.of(results).write(RESULTS / name)
            for file in ("report.html", "cells.parquet"):  # for a browser, and the CSV again
                (folder / file).unlink()


def main() -> None:
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    for folder in pages():
        write_text(folder / "report.md", page(folder))
    write_text(RESULTS / "README.md", index())


if __name__ == "__main__":
    main()
