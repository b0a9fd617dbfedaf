"""From a file of purchases with odd columns to lists for everybody, a page, and the next week, by commands alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from command_line import run_topshelf
from topshelf.data import generate

N_CUSTOMERS, N_PRODUCTS = 120, 60
COLUMNS = (
    "--user-column",
    "Kundennr.",
    "--item-column",
    "Artikel",
    "--time-column",
    "gekauft am",
    "--dates",
    "day-first",
)


def purchases(seed, *, first_day, customers=N_CUSTOMERS, offset=0):
    """Rows as a shop writes them: a semicolon between columns, dates with the day first, and columns nobody needs."""
    table = generate(customers, N_PRODUCTS, interactions_per_user=8, seed=seed).to_frame()
    days = first_day + np.random.default_rng(seed).integers(0, 7, table.height)
    when = [f"{1 + int(day) % 28:02d}/{1 + int(day) // 28:02d}/2026" for day in days]
    return pl.DataFrame(
        {
            "Beleg": np.arange(table.height),
            "Kundennr.": [f"K-{int(user) + offset:05d}" for user in table["user"]],
            "Artikel": [f"SKU {int(item)}" for item in table["item"]],
            "gekauft am": when,
            "Betrag (EUR)": np.round(np.linspace(1, 90, table.height), 2),
        }
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    purchases(1, first_day=0).write_csv(folder / "purchases.csv", separator=";")
    # The next week: some customers come back, some are new.
    purchases(2, first_day=30, customers=40, offset=100).write_csv(folder / "week.csv", separator=";")
    pl.DataFrame(
        {"item": [f"SKU {at}" for at in range(N_PRODUCTS)], "title": [f"Product {at}" for at in range(N_PRODUCTS)]}
    ).write_csv(folder / "products.csv")
    return folder


def test_purchases_become_lists_a_page_and_next_weeks_lists(desk):
    run, lists = desk / "best", desk / "lists.parquet"
    shown, _ = run_topshelf(
        "auto", "--data", desk / "purchases.csv", *COLUMNS, "--k", "5", "--budget", "2s", "--out", run
    )
    assert "What was tried" in shown
    assert "rows written" in run_topshelf("recommend", run, "--out", lists)[0]
    table = pl.read_parquet(lists)
    bought = pl.read_csv(desk / "purchases.csv", separator=";")
    assert set(table["user"]) == set(bought["Kundennr."])
    assert table.group_by("user").len()["len"].max() == 5
    owned = table.join(bought, left_on=["user", "item"], right_on=["Kundennr.", "Artikel"])
    assert owned.is_empty()  # nobody is offered what they have
    page = desk / "report.html"
    run_topshelf("report", run, "-o", page, "--titles", desk / "products.csv")
    text = page.read_text()
    for part in ("What was tried", "Product ", "NDCG@5", "topshelf report"):
        assert part in text


def test_next_week_changes_the_lists(desk):
    run = desk / "best"
    shown, _ = run_topshelf("update", run, "--data", desk / "week.csv", "--out", desk / "updated")
    assert shown
    lists = desk / "next.parquet"
    run_topshelf("recommend", desk / "updated", "--out", lists)
    table, week = pl.read_parquet(lists), pl.read_csv(desk / "week.csv", separator=";")
    assert set(week["Kundennr."]) <= set(table["user"])  # new customers have lists
    assert table.join(week, left_on=["user", "item"], right_on=["Kundennr.", "Artikel"]).is_empty()
