"""Guessing columns by the names that real files use, without wrong guesses."""

from __future__ import annotations

import pytest

from topshelf.data.names import Columns, resolve, time_tier
from topshelf.errors import DataError

EXPORTS = {
    "Shopify": (["Name", "Email", "Created at", "Lineitem sku", "Paid at"], "Email", "Lineitem sku", "Created at"),
    "UCI Online Retail": (
        ["InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"],
        "CustomerID",
        "StockCode",
        "InvoiceDate",
    ),
    "H&M": (["t_dat", "customer_id", "article_id", "price"], "customer_id", "article_id", "t_dat"),
    "Ta Feng": (
        ["TRANSACTION_DT", "CUSTOMER_ID", "AGE_GROUP", "PRODUCT_ID", "AMOUNT"],
        "CUSTOMER_ID",
        "PRODUCT_ID",
        "TRANSACTION_DT",
    ),
    "Retailrocket": (["timestamp", "visitorid", "event", "itemid"], "visitorid", "itemid", "timestamp"),
    "REES46": (["event_time", "event_type", "product_id", "price", "user_id"], "user_id", "product_id", "event_time"),
    "Diginetica": (["session_id", "user_id", "item_id", "timeframe", "eventdate"], "user_id", "item_id", "eventdate"),
    "German": (["Kundennummer", "Artikelnummer", "Bestelldatum"], "Kundennummer", "Artikelnummer", "Bestelldatum"),
    "names only": (["buyer_email", "product_name", "orderDate"], "buyer_email", "product_name", "orderDate"),
    "shop": (["client", "sku", "purchased_at"], "client", "sku", "purchased_at"),
    "camel": (["shopperId", "productCode", "purchasedAt"], "shopperId", "productCode", "purchasedAt"),
    "ids before names": (["product_name", "product_id", "user", "user_id"], "user_id", "product_id", None),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_columns_of_real_exports_are_found(name):
    present, user, item, time = EXPORTS[name]
    found = resolve(present, Columns(), "file")
    assert (found["user"], found["item"], found.get("timestamp")) == (user, item, time)


TIMES = [
    "order_date",
    "purchased_at",
    "purchase_time",
    "date_added",
    "time_of_purchase",
    "orderdate",
    "PurchaseDate",
    "clickedAt",
    "viewed_on",
    "transaction_ts",
    "sale_timestamp",
    "date_of_order",
    "shipped_at",
    "product_viewed_at",
]
OTHERS = [
    "update",
    "candidate",
    "lifetime",
    "playtime",
    "watch_time",
    "time_spent",
    "time_of_day",
    "delivery_time",
    "time_zone",
    "format",
    "lat",
    "birth_date",
    "release_date",
    "date_of_birth",
    "expiry_date",
    "product_created_at",
    "user_registered_at",
    "last_login_at",
    "valid_until",
]


@pytest.mark.parametrize("name", TIMES)
def test_names_of_times_are_known(name):
    assert resolve(["user", "item", name], Columns(), "file")["timestamp"] == name


@pytest.mark.parametrize("name", OTHERS)
def test_other_columns_are_not_taken_for_the_time(name):
    assert "timestamp" not in resolve(["user", "item", name], Columns(), "file")


def test_a_well_known_name_wins_and_an_event_wins_over_the_rest():
    assert resolve(["user", "item", "shipped_at", "timestamp"], Columns(), "f")["timestamp"] == "timestamp"
    assert resolve(["user", "item", "shipped_at", "order_date"], Columns(), "f")["timestamp"] == "order_date"
    assert resolve(["user", "item", "time", "date"], Columns(), "f")["timestamp"] == "date"  # the time may be a clock


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (["user", "item", "read_at", "started_at", "bought_on"], r"the times: 'read_at', 'bought_on' fit equally well"),
        (["user", "item", "shipped_at", "packed_at"], r"'shipped_at', 'packed_at' .*--time-column .*or pass none"),
        (["user", "sku_code", "product_code"], r"holds the items: 'sku_code', 'product_code' .*--item-column .*item="),
        (["User ID", "user_id", "item"], r"holds the users: 'User ID', 'user_id' fit equally well"),
        (["user", "user", "item"], r"has 2 columns named 'user'"),
    ],
)
def test_columns_that_fit_equally_well_are_asked_about(present, message):
    with pytest.raises(DataError, match=message):
        resolve(present, Columns(), "file")
    if "shipped_at" in present:
        assert "timestamp" not in resolve(present, Columns(timestamp="none"), "file")


@pytest.mark.parametrize(("name", "tier"), [("paid_at", 1), ("shipped_at", 2), ("birth_date", 3), ("colour", None)])
def test_names_are_told_apart(name, tier):
    assert time_tier(name) == tier
