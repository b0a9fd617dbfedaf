"""Which column is the user, the item, the rating and the time, by the names that real files use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypedDict

from topshelf.errors import DataError

IGNORE = "none"  # given as a column name: do not use such a column even if there is one

# Compared without case and punctuation: "User ID", "user_id" and "userId" are one name. Of two, the first wins.
KNOWN_NAMES = {
    "user": "userid user uid userprocid userorgid reviewerid reviewer customerid customer clientid client buyerid "
    "buyer shopperid shopper purchaserid purchaser visitorid visitor fullvisitorid memberid member accountid account "
    "profileid profile subscriberid subscriber consumerid consumer patronid householdkey householdid playerid player "
    "personid person kundenid kundennummer kundennr kunde käuferid käufer kaeuferid kaeufer nutzerid nutzer "
    "benutzerid benutzer email emailaddress useremail customeremail "
    "clientemail buyeremail billingemail mail username login sessionid queryid query",
    "item": "itemid item iid itemprocid itemorgid movieid movie productid product sku productsku itemsku lineitemsku "
    "variantsku asin parentasin articleid article stockcode businessid business locationid location poi venueid venue "
    "trackid track songid song artistid artist bookid book isbn recipeid recipe gameid game videoid video contentid "
    "listingid hotelid courseid newsid artikelid artikelnummer artikelnr artikel produktid produktnummer produkt "
    "ean gtin upc barcode lineitemname",
    "weight": "rating ratings weight score stars value overall",
    "timestamp": "timestamp datetime ts unixtimestamp unixtime date time unixreviewtime eventtime createdat tdat datum "
    "zeitstempel",
}
OPTIONS = {
    "user": "--user-column",
    "item": "--item-column",
    "weight": "--rating-column",
    "timestamp": "--time-column",
}
WORDS = {"weight": "rating", "timestamp": "time"}  # as people are told of roles
ROLES = tuple(KNOWN_NAMES)
ID_ROLES = ("user", "item")


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOUNS = {
    "user": _words_of(
        "user customer client buyer shopper purchaser visitor member account subscriber consumer reviewer kunde kunden"
    ),
    "item": _words_of("item product article sku stock movie book song track artist video recipe game artikel produkt"),
}
# After a noun, these make an id; after them come names, which serve where there is no id.
_SUFFIXES = (
    _words_of("id code no nr num number key uuid guid ref reference handle slug hash email"),
    _words_of("name title"),
)
_TIME_WORDS = {"date", "datetime", "timestamp", "ts", "dt", "time", "datum", "zeit", "zeitpunkt"}
# Verbs of interactions: their time is the time of the interaction.
_EVENTS = _words_of(
    "order ordered purchase purchased buy bought transaction trans event click clicked view viewed visit visited rate "
    "rated rating review reviewed watch watched listen listened play played checkin checkedin sale sales sold invoice "
    "invoiced billing billed payment paid add added create created creation interaction action activity log logged "
    "read rented rental borrowed loan liked like saved seen consumed booking booked reservation checkout bestell "
    "bestellung kauf rechnung completed placed submitted confirmed recorded happened occurred tx"
)
# Moments of a user, of an item or of what comes after: never taken without being asked for.
_ATTRIBUTES = _words_of(
    "birth born birthday dob release released publish published publication expiry expire expires expired expiration "
    "register registered registration signup join joined since launch launched manufacture manufactured due delete "
    "deleted removed login first last next end ended until valid"
)
_MADE = _words_of("create created creation add added log logged")  # of a user or an item, these are its own
_LENGTHS = _words_of(  # "watch_time" and "time_spent" are lengths, not moments
    "watch watched watching play played playing listen listened listening view viewed viewing session delivery prep "
    "preparation cook cooking spent spend on dwell run life over lead response load loading read reading elapsed total "
    "avg average mean median max min per to zone slot day left remaining wait waiting processing shipping screen "
    "sec secs seconds ms minutes mins hours days"
)
_ID_WORDS = _words_of("id code no nr num number key phone tel zip plz ean gtin upc isbn price amount")


class Columns(NamedTuple):
    """Names of the columns to use; None means: guess it from the common names.

    ``dates`` is the order of day and month in dates such as 12/01/2020: "day-first", "month-first", or None.
    """

    user: str | None = None
    item: str | None = None
    weight: str | None = None
    timestamp: str | None = None
    dates: str | None = None


class ColumnNames(TypedDict, total=False):
    """The same as keyword arguments."""

    user: str | None
    item: str | None
    weight: str | None
    timestamp: str | None
    dates: str | None


GUESS = Columns()  # all of them


def bare(name: str) -> str:
    """Column name without RecBole's type: ``user_id:token`` is ``user_id``."""
    return name.partition(":")[0]


def resolve(
    present: list[str], wanted: Columns, source: str, holds_times: Callable[[str], bool] = lambda _: True
) -> dict[str, str]:
    """Role to column name, for every role that has one; users and items must have one.

    ``holds_times`` looks into a column whose name alone says that it is a time: ``bought_at`` may be a shop.
    """
    chosen = {}
    for role in ROLES:
        name = getattr(wanted, role)
        if name is not None and name.lower() == IGNORE:
            continue
        column = _guess(present, role, source, holds_times) if name is None else _named(present, role, name, source)
        if column is not None:
            chosen[role] = column
        elif role in ID_ROLES:
            raise DataError(
                f"{source}: cannot tell which column holds the {role}s; the columns are {_listed(present)}. "
                f"Name it with {OPTIONS[role]} (in Python {role}=...); a file with no header line needs one."
            )
    return chosen


def _guess(present: list[str], role: str, source: str, holds_times: Callable[[str], bool]) -> str | None:
    by_key: dict[str, list[str]] = {}
    for name in present:
        by_key.setdefault(_key(name), []).append(name)
    known = next((by_key[key] for key in KNOWN_NAMES[role].split() if key in by_key), None)
    if known is not None:
        return _only(known, role, source)
    if role == "timestamp":
        for tier in (1, 2):
            fitting = [name for name in present if time_tier(name) == tier and holds_times(name)]
            if fitting:
                return _only(fitting, role, source)
    for suffixes in _SUFFIXES if role in ID_ROLES else ():
        keys = {noun + suffix for noun in _NOUNS[role] for suffix in suffixes}
        fitting = [name for name in present if _key(name) in keys]
        if fitting:
            return _only(fitting, role, source)
    return None


def _only(fitting: list[str], role: str, source: str) -> str:
    if len(fitting) == 1:
        return fitting[0]
    if len(set(fitting)) == 1:
        raise DataError(f"{source} has {len(fitting)} columns named {fitting[0]!r}. Rename or drop all but one.")
    neither = "" if role in ID_ROLES else f", or pass {IGNORE} to use none of them"
    word = f"{WORDS.get(role, role)}s"
    raise DataError(
        f"{source}: cannot tell which column holds the {word}: {_listed(fitting)} fit equally well. "
        f"Name one with {OPTIONS[role]} (in Python {role}=...){neither}."
    )


def is_known(name: str, role: str) -> bool:
    """Whether the name alone says that the column has this role."""
    try:
        return _guess([name], role, "", lambda _: True) is not None
    except DataError:
        return False


def time_tier(name: str) -> int | None:
    """How well a name says "time of the interaction": 1 ``purchased_at``, 2 ``shipped_at``; 3 is a time of something
    else, such as ``birth_date``; None says nothing of a time.
    """
    words = _words(name)
    if len(words) == 1:
        words = _parted(words[0])
    if len(words) < 2:
        return None
    rest = _without_time_word(words)
    if rest is None:
        return None
    is_of_one = bool(rest & (_NOUNS["user"] | _NOUNS["item"]))
    if rest & _ATTRIBUTES or (is_of_one and not rest & (_EVENTS - _MADE)):
        return 3
    return 1 if rest & _EVENTS else 2


def _without_time_word(words: list[str]) -> set[str] | None:
    """The other words of a name that begins or ends like a time; None if it does not."""
    for word, rest in ((words[-1], words[:-1]), (words[0], words[1:])):
        is_last = rest == words[:-1]
        if word == "at" or (word == "on" and rest[-1].endswith(("ed", "bought", "sold"))):
            return set(rest) if is_last else None
        if word in _TIME_WORDS:
            return None if word == "time" and set(rest) & _LENGTHS else set(rest)
    return None


def says_id(name: str) -> bool:
    """Whether numbers under this name are codes or amounts, whatever they look like."""
    return bool(set(_words(name)) & _ID_WORDS) or _key(name).endswith(("id", "code", "number", "nr"))


def _words(name: str) -> list[str]:
    """``purchasedAt``, ``Purchased At`` and ``purchased_at`` are two words."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", bare(name))
    return [word for word in re.split(r"[\W_]+", spaced.lower()) if word]


def _parted(word: str) -> list[str]:
    """``orderdate`` is two words as well, and ``update`` is one."""
    known = _EVENTS | _ATTRIBUTES | _NOUNS["user"] | _NOUNS["item"]
    for time in sorted((*_TIME_WORDS, "at"), key=len, reverse=True):
        start, end = word.removesuffix(time), word.removeprefix(time)
        if start != word and start in known:
            return [start, time]
        if time != "at" and end != word and end in known:
            return [time, end]
    return [word]


def _key(name: str) -> str:
    return re.sub(r"[\W_]", "", bare(name).lower())


def _named(present: list[str], role: str, name: str, source: str) -> str:
    for candidate in present:
        if name in (candidate, bare(candidate)):
            return candidate
    raise DataError(
        f"{source}: there is no {WORDS.get(role, role)} column {name!r}; the columns are {_listed(present)}. "
        f"Give one of them to {OPTIONS[role]} (in Python {role}=...)."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")
