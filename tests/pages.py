"""The pages of README and docs, their blocks of code, and small files for these blocks to work on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

import documents
from topshelf.data import generate

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    page: str
    language: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Block]:
    found = [Block(name_of(page), *match.groups()) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if not languages or block.language in languages]


def commands(block: Block) -> list[str]:
    """The commands of a block; a line that ends in a backslash goes on."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def write_files(folder: Path) -> None:
    """What the pages call clicks.csv, purchases.parquet, friends.csv and so on, small."""
    clicks = generate(80, 60, interactions_per_user=16, blocks=4, timestamps=True).to_frame()
    rng = np.random.default_rng(0)
    rated = clicks.with_columns(rating=pl.Series(rng.choice([3.0, 4.0, 5.0], clicks.height)))
    clicks.write_csv(folder / "clicks.csv")
    rated.write_csv(folder / "ratings.csv")
    clicks.rename({"user": "buyer", "item": "article"}).write_csv(folder / "purchases.csv")
    clicks.rename({"user": "buyer", "item": "article"}).write_parquet(folder / "orders.parquet")
    clicks.write_parquet(folder / "purchases.parquet")
    later = clicks.sample(30, seed=1).with_columns(pl.col("timestamp") + 10**7)
    for name in ("week.csv", "today.csv"):
        later.write_csv(folder / name)
    titles = clicks.select("item").unique().sort("item").with_columns(title=pl.format("Item {}", "item"))
    titles.write_csv(folder / "items.csv")
    names = ["anna", "ben", "carla", *(f"person-{number}" for number in range(317))]  # 500 negatives need so many
    groups = [rng.choice(40, 2, replace=False) + 40 * group for group in range(8) for _ in range(120)]
    edges = {(int(min(pair)), int(max(pair))) for pair in groups} | {(0, 1), (1, 2), (0, 2)}
    text = "".join(f"{names[a]},{names[b]}\n" for a, b in sorted(edges))
    (folder / "friends.csv").write_text("source,target\n" + text)
    (folder / "candidates.csv").write_text("source,target\nanna,ben\nanna,person-3\n")
    (folder / "queries.txt").write_text(documents.svmlight(documents.table()))
    (folder / "new.txt").write_text(documents.svmlight(documents.table(5, seed=1, first=900)))
    hotels = documents.table().rename({"query": "session", "grade": "clicked"})
    hotels.rename(dict(zip(documents.NAMES[:3], ("price", "stars", "distance"), strict=True))).write_parquet(
        folder / "pairs.parquet"
    )
    (folder / "my.toml").write_text('k = 5\n[data]\nsource = "clicks.csv"\n[train]\nepochs = 2\n')
