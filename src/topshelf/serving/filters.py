"""Conditions on item attributes, such as ``category = 'book' and (price < 20 or not sold_out)``.

    condition  := all ("or" all)*
    all        := one ("and" one)*
    one        := "not" one | "(" condition ")" | column [test]
    test       := ("=" | "!=" | "<" | "<=" | ">" | ">=") value
                | ["not"] "in" "(" value ("," value)* ")" | ["not"] "between" value "and" value
                | ["not"] "has" value | "is" ["not"] "null"
    value      := 'text' ('' is a quote) | number | true | false

A column alone must hold true and false. ``has`` is for columns of lists. A comparison with a missing value is neither
true nor false, as in SQL: such an item is not listed, whether under ``not`` or without it. Nothing but this grammar is
read: there are no functions, and no names but those of the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import polars as pl

from topshelf.errors import ConfigError, suggestion

MOST_CHARACTERS = 2000
MOST_LEVELS = 32
_WORDS = ("and", "or", "not", "in", "between", "has", "is", "null", "true", "false")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<quoted>\"[^\"]+\")"
    r"|(?P<name>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,))"
)
_COMPARISONS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_SAME = {"==": "=", "<>": "!="}


class _Token(NamedTuple):
    kind: str  # number, text, name, word, sign, end
    text: str
    place: int


def parse(text: str, schema: pl.Schema) -> pl.Expr:
    """The condition as an expression over columns of the schema; a ConfigError says where it is wrong."""
    return _Parser(text, schema).condition_alone()


def _tokens(text: str) -> list[_Token]:
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"filter must have at most {MOST_CHARACTERS} characters, got {len(text)}")
    found, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _wrong(text, place + len(text[place:]) - len(text[place:].lstrip()), "a column, a value or a sign")
        kind, value = str(match.lastgroup), str(match[str(match.lastgroup)])
        start = match.start(kind)
        if kind == "name" and value.lower() in _WORDS:
            kind, value = "word", value.lower()
        elif kind == "quoted":
            kind, value = "name", value[1:-1]
        elif kind == "text":
            value = value[1:-1].replace("''", "'")
        found.append(_Token(kind, _SAME.get(value, value) if kind == "sign" else value, start))
        place = match.end()
    return [*found, _Token("end", "", end)]


def _wrong(text: str, place: int, wanted: str) -> ConfigError:
    rest = text[place : place + 20]
    got = f"{rest!r} at character {place + 1}" if rest else "its end"
    return ConfigError(f"filter must have {wanted} here, got {got}: {text[:100]!r}")


class _Parser:
    """Recursive descent: one method per rule of the grammar."""

    def __init__(self, text: str, schema: pl.Schema) -> None:
        self.text, self.schema = text, schema
        self.tokens = _tokens(text)
        self.at, self.level = 0, 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def is_next(self, *texts: str) -> bool:
        return self.token.kind in ("word", "sign") and self.token.text in texts

    def took(self, *texts: str) -> bool:
        if not self.is_next(*texts):
            return False
        self.at += 1
        return True

    def take(self, text: str) -> None:
        if not self.took(text):
            raise _wrong(self.text, self.token.place, repr(text))

    def condition_alone(self) -> pl.Expr:
        found = self.condition()
        if self.token.kind != "end":
            raise _wrong(self.text, self.token.place, "'and', 'or' or its end")
        return found

    def condition(self) -> pl.Expr:
        found = self.all()
        while self.took("or"):
            found = found | self.all()
        return found

    def all(self) -> pl.Expr:
        found = self.one()
        while self.took("and"):
            found = found & self.one()
        return found

    def one(self) -> pl.Expr:
        self.level += 1
        if self.level > MOST_LEVELS:
            raise ConfigError(f"filter must be nested at most {MOST_LEVELS} levels deep: {self.text[:100]!r}")
        if self.took("not"):
            found = ~self.one()
        elif self.took("("):
            found = self.condition()
            self.take(")")
        else:
            found = self.test()
        self.level -= 1
        return found

    def test(self) -> pl.Expr:
        name = self.column()
        column, dtype = pl.col(name), self.schema[name]
        if self.took("is"):
            is_not = self.took("not")
            self.take("null")
            return column.is_not_null() if is_not else column.is_null()
        if self.token.kind == "sign" and self.token.text in _COMPARISONS:
            return self.comparison(name, column, dtype)
        is_not = self.took("not")
        found = self.listed(name, column, dtype)
        if found is None:
            if is_not:
                raise _wrong(self.text, self.token.place, "'in', 'between' or 'has'")
            if dtype != pl.Boolean:
                raise _wrong(self.text, self.token.place, f"a comparison of column {name!r} ({dtype})")
            return column
        return ~found if is_not else found

    def comparison(self, name: str, column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        sign = self.token.text
        self.at += 1
        if isinstance(dtype, pl.List):
            raise ConfigError(f"filter: column {name!r} has lists: ask for a value with has, got {sign}")
        if dtype == pl.Boolean and sign not in ("=", "!="):
            raise ConfigError(f"filter: column {name!r} is true or false and has no order, got {sign}")
        return _COMPARISONS[sign](column, self.value(name, dtype))

    def listed(self, name: str, column: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
        """``in``, ``between`` and ``has``; None where there is none of them."""
        if self.took("has"):
            if not isinstance(dtype, pl.List):
                raise ConfigError(f"filter: has is for columns of lists, and {name!r} is {dtype}: use = or in")
            return column.list.contains(self.value(name, dtype.inner))  # type: ignore[arg-type]
        if not self.is_next("in", "between"):
            return None
        if isinstance(dtype, pl.List):
            raise ConfigError(f"filter: column {name!r} has lists: ask for a value with has, got {self.token.text}")
        if self.took("between"):
            if dtype == pl.Boolean:
                raise ConfigError(f"filter: column {name!r} is true or false and has no order, got between")
            low = self.value(name, dtype)
            self.take("and")
            return (column >= low) & (column <= self.value(name, dtype))
        self.take("in")
        self.take("(")
        found = column == self.value(name, dtype)
        while self.took(","):
            found = found | (column == self.value(name, dtype))
        self.take(")")
        return found

    def column(self) -> str:
        token = self.token
        if token.kind != "name":
            raise _wrong(self.text, token.place, "a column")
        if token.text not in self.schema:
            names = list(self.schema)
            listed = ", ".join(names[:20]) or "none: give a table of attributes"
            raise ConfigError(
                f"filter: {token.text!r} is not a column of the attributes; there are {listed}"
                f"{suggestion(token.text, names)}"
            )
        self.at += 1
        return token.text

    def value(self, name: str, dtype: pl.DataType) -> pl.Expr:
        token = self.token
        self.at += 1
        if token.kind == "text":
            if dtype == pl.String:
                return pl.lit(token.text)
            if dtype.is_temporal():
                return _moment(name, token.text, dtype)
        elif token.kind == "number" and dtype.is_numeric():
            return _number(token.text)
        elif token.kind == "word" and token.text in ("true", "false") and dtype == pl.Boolean:
            return pl.lit(token.text == "true")
        wanted = (
            "'text'" if dtype == pl.String else "a date such as '2026-01-31'" if dtype.is_temporal() else "a number"
        )
        raise _wrong(
            self.text, token.place, f"{'true or false' if dtype == pl.Boolean else wanted} for column {name!r}"
        )


def _number(text: str) -> pl.Expr:
    """Whole numbers stay whole, so that large ids are compared exactly."""
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return pl.lit(int(text))
    return pl.lit(float(text))


def _moment(name: str, text: str, dtype: pl.DataType) -> pl.Expr:
    try:
        moment: Any = date.fromisoformat(text) if dtype == pl.Date else datetime.fromisoformat(text)
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise ConfigError(f"filter: column {name!r} takes dates such as '2026-01-31', got {text!r}") from None
    return pl.lit(moment).cast(dtype)
