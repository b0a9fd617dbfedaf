"""SVMlight text to numbers, compiled by numba on first use. Import it where it is called.

A line is ``grade qid:N index:value index:value ... # comment``. A value beyond the largest float32 becomes that one:
Istella writes the largest float64 where there is no value. Nothing of the text is trusted: every character is
looked at, and :func:`parse` stops at the first line that breaks a rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topshelf.compiled import Array, jit, jit_helper

MOST_FEATURES = 1 << 20

# Places in the array that ``parse`` reports to.
ROWS, VALUES, CODE, POSITION, WIDTH, FIRST_COUNT, OTHER_ROW, GAPS = range(8)
FAULTS = {
    1: "its grade must be a number",
    2: "its grade must be >= 0",
    3: "after the grade must come qid: and the id of the query",
    4: "the id of its query must be a whole number",
    5: "features must be written as index:value",
    6: "feature indices begin at 1",
    7: "feature indices must ascend, each at most once",
    8: "the value of a feature must be a number",
    9: "features must be finite numbers",
    10: f"a feature index must be at most {MOST_FEATURES}",
}

_TAB, _NEWLINE, _RETURN, _BLANK, _HASH, _PLUS, _MINUS, _POINT, _ZERO, _NINE, _COLON = b"\t\n\r #+-.09:"
_LOWER = 32  # between a capital and its small letter
_E, _N, _A, _I, _F, _Q, _D = b"enaifqd"
_MOST_DIGITS = 18  # of a whole number in 64 bits
_FULL = 10**17
_LONG_INDEX = 8
_LARGEST = 3.4028234e38
_POWERS = np.array([float(f"1e{n}") for n in range(309)])


@jit_helper
def is_end(character: int) -> bool:
    """Whether a word ends before this character: a blank, a tab, the end of a line, or a comment."""
    return character <= _BLANK or character == _HASH  # other control characters are refused as the next word


@jit_helper
def skip_blanks(text: Array, at: int) -> int:
    while text[at] == _BLANK or text[at] == _TAB or text[at] == _RETURN:
        at += 1
    return at


@jit_helper
def integer(text: Array, at: int) -> Any:
    """A whole number of at most 18 digits, and where it ends; -1 where there is none."""
    start, sign, total = at, 1, 0
    if text[at] == _MINUS:
        sign, at, start = -1, at + 1, at + 1
    while _ZERO <= text[at] <= _NINE and at - start < _MOST_DIGITS:
        total = 10 * total + (text[at] - _ZERO)
        at += 1
    return sign * total, at if at > start else -1


@jit_helper
def special(text: Array, at: int) -> Any:
    """NaN or infinity in letters, or nothing (-1)."""
    first, second, third = text[at] | _LOWER, text[at + 1] | _LOWER, text[at + 2] | _LOWER
    is_nan = first == _N and second == _A and third == _N
    is_inf = first == _I and second == _N and third == _F
    return np.nan, at + 3 if is_nan or is_inf else -1


@jit_helper
def number(text: Array, at: int) -> Any:
    """A decimal number, and where it ends; -1 where there is none. NaN for NaN and infinity.

    With up to 15 digits and powers to 22 it is rounded once, so exact; beyond that the last bit of a float64 may
    differ, which a float32 does not show but in rare ties.
    """
    sign = 1.0
    if text[at] == _MINUS or text[at] == _PLUS:
        sign = -1.0 if text[at] == _MINUS else 1.0
        at += 1
    if text[at] > _NINE:
        return special(text, at)
    digits, dropped, after = take_digits(text, at, 0)
    n_digits, power = after - at, dropped
    at = after
    if text[at] == _POINT:
        digits, dropped, after = take_digits(text, at + 1, digits)
        n_digits, power = n_digits + (after - at - 1), power - (after - at - 1 - dropped)
        at = after
    if n_digits == 0:
        return 0.0, -1
    if (text[at] | _LOWER) == _E:
        start = at + 2 if text[at + 1] == _PLUS else at + 1
        exponent, at = integer(text, start)
        if at < 0:
            return 0.0, -1
        power += exponent
    return sign * scaled(digits, power), at


@jit_helper
def take_digits(text: Array, at: int, digits: int) -> Any:
    """Digits appended to a number of at most 18; how many were dropped because it was full, and where they end."""
    dropped = 0
    while _ZERO <= text[at] <= _NINE:
        if digits < _FULL:
            digits = 10 * digits + (text[at] - _ZERO)
        else:
            dropped += 1
        at += 1
    return digits, dropped, at


@jit_helper
def scaled(digits: int, power: int) -> float:
    """digits times 10 to a power."""
    if digits == 0 or power < -340:
        return 0.0
    if power > 300:
        return np.inf
    if power == 0:
        return np.float64(digits)
    if power > 0:
        return digits * _POWERS[power]
    return digits / _POWERS[-power] if power >= -300 else digits / _POWERS[300] / _POWERS[-power - 300]


@jit_helper
def query_id(text: Array, at: int) -> Any:
    """The id after ``qid:``, where it ends, and a fault if there is one."""
    if not (
        (text[at] | _LOWER) == _Q
        and (text[at + 1] | _LOWER) == _I
        and (text[at + 2] | _LOWER) == _D
        and text[at + 3] == _COLON
    ):
        return 0, at, 3
    identity, after = integer(text, at + 4)
    if after < 0 or not is_end(text[after]):
        return 0, at, 4
    return identity, after, 0


@jit_helper
def plain_features(text: Array, at: int, last: int, place: int, indices: Array, values: Array) -> Any:
    """Features up to the first that is not ``index:value`` in digits with at most a point; then where that begins, the
    index before it, and how many features there are.

    Nearly all are such; one function for all of a line is several times faster than the steps of :func:`feature`.
    """
    while True:
        index, digits, start = 0, 0, at
        while _ZERO <= text[at] <= _NINE:
            index = 10 * index + (text[at] - _ZERO)
            at += 1
        is_index = text[at] == _COLON and at - start < _LONG_INDEX and last < index <= MOST_FEATURES
        first, n_after = at + 1, 0
        at = first
        while _ZERO <= text[at] <= _NINE:
            digits = 10 * digits + (text[at] - _ZERO)
            at += 1
        n_digits = at - first
        if text[at] == _POINT:
            n_after, at = at + 1, at + 1
            while _ZERO <= text[at] <= _NINE:
                digits = 10 * digits + (text[at] - _ZERO)
                at += 1
            n_after = at - n_after
        if not (is_index and 0 < n_digits + n_after < _MOST_DIGITS and is_end(text[at])):
            return start, last, place
        indices[place], values[place], last = index, digits / _POWERS[n_after], index
        place, at = place + 1, skip_blanks(text, at)


@jit_helper
def feature(text: Array, at: int, last: int) -> Any:
    """One ``index:value`` of any kind: both, where it ends, and a fault if there is one."""
    index, after = integer(text, at)
    if after < 0 or text[after] != _COLON:
        return index, 0.0, at, 5
    if index <= last:
        return index, 0.0, at, 6 if index == 0 else 7
    if index > MOST_FEATURES:
        return index, 0.0, at, 10
    value, end = number(text, after + 1)
    if end < 0 or not is_end(text[end]):
        return index, 0.0, after, 8
    if not abs(value) < np.inf:  # phrased so that NaN fails too
        return index, value, after, 9
    return index, min(max(value, -_LARGEST), _LARGEST), end, 0


@jit_helper
def grade_of(text: Array, at: int) -> Any:
    value, after = number(text, at)
    if after < 0 or not is_end(text[after]) or not abs(value) <= _LARGEST:
        return 0.0, at, 1
    return (value, at, 2) if value < 0 else (value, after, 0)


@jit
def parse(
    text: Array, n_bytes: int, grades: Array, queries: Array, ends: Array, indices: Array, values: Array, report: Array
) -> None:
    """Whole lines of text, of which the last ends with a newline and is followed by at least 4 spare bytes.

    Shapes: text uint8; grades float32 and queries int64, a place per line; ends int64, where the features of a row
        end among indices int32 and values float32, a place per 4 bytes ("1:2 "); report int64 (8,).
    """
    at, row, place = 0, 0, 0
    while at < n_bytes:
        at = skip_blanks(text, at)
        if text[at] != _NEWLINE and text[at] != _HASH:
            grade, at, fault = grade_of(text, at)
            if fault == 0:
                identity, at, fault = query_id(text, skip_blanks(text, at))
            last, first = 0, place
            at = skip_blanks(text, at)
            while fault == 0 and text[at] != _NEWLINE and text[at] != _HASH:
                at, last, place = plain_features(text, at, last, place, indices, values)
                if text[at] != _NEWLINE and text[at] != _HASH:
                    index, value, at, fault = feature(text, at, last)
                    if fault == 0:
                        indices[place], values[place], last = index, value, index
                        place, at = place + 1, skip_blanks(text, at)
            if fault != 0:
                report[CODE], report[POSITION] = fault, at
                return
            grades[row], queries[row], ends[row] = grade, identity, place
            note_width(report, row, last, place - first)
            row += 1
        while text[at] != _NEWLINE:
            at += 1
        at += 1
    report[ROWS], report[VALUES] = row, place


@jit_helper
def note_width(report: Array, row: int, last: int, count: int) -> None:
    """Whether all rows have all features up to one number, and if not, the first row that differs."""
    report[WIDTH] = max(report[WIDTH], last)
    if last != count or count == 0:
        report[GAPS] += 1
    elif report[FIRST_COUNT] == 0:
        report[FIRST_COUNT] = count
    elif report[FIRST_COUNT] != count and report[OTHER_ROW] < 0:
        report[OTHER_ROW] = row


@jit
def spread(dense: Array, ends: Array, indices: Array, values: Array) -> None:
    """Lists of features as rows of a table of zeros, (D, f)."""
    place = 0
    for row in range(dense.shape[0]):
        while place < ends[row]:
            dense[row, indices[place] - 1] = values[place]
            place += 1
