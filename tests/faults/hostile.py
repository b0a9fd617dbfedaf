"""Valid files of every format, and ways to spoil them; shared by the tests of hostile inputs."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import random
import zipfile
from collections.abc import Callable

import polars as pl

ROWS = [(10 + row % 7, 3 + row * row % 11, 1.5 + row % 4, 1_600_000_000 + 7 * row) for row in range(40)]
TABLE = pl.DataFrame(ROWS, schema=["user", "item", "rating", "timestamp"], orient="row")


def lines(separator: str, header: str | None, rows: list[tuple] = ROWS) -> bytes:
    body = [separator.join(map(str, row)) for row in rows]
    return ("\n".join(([] if header is None else [header.replace(",", separator)]) + body) + "\n").encode()


def parquet() -> bytes:
    file = io.BytesIO()
    TABLE.write_parquet(file)
    return file.getvalue()


def zipped(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("train.tsv", "user\titem\n" + "".join(f"{row % 5}\t{row % 7}\n" for row in range(30)))
        archive.writestr("test.tsv", "user\titem\n0\t7\n1\t8\n")
        archive.writestr("user_list.tsv", "id\tnew\n" + "".join(f"u{row}\t{row}\n" for row in range(5)))
        archive.writestr("item_list.tsv", "id\tnew\n" + "".join(f"{row}\t{row}\n" for row in range(9)))
    return file.getvalue()


HEADER = "user,item,rating,timestamp"
DATES = [(user, item, f"{1 + row % 28:02}/{1 + row % 12:02}/2020") for row, (user, item, *_) in enumerate(ROWS)]
FILES: dict[str, bytes] = {
    "comma.csv": lines(",", HEADER),
    "tab.tsv": lines("\t", HEADER),
    "bar.txt": lines("|", HEADER),
    "semicolon.csv": lines(";", HEADER).replace(b".", b","),
    "u.data": lines("\t", None),
    "ratings.dat": lines("::", None),
    "shop.csv": lines(",", "email,sku,purchased_at", DATES),
    "quoted.csv": b'user,title,item\n1,"Good, Bad",5\n2,"a ""b""\nc",6\n3,x,5\n',
    "data.inter": lines("\t", "user_id:token,item_id:token,rating:float,timestamp:float"),
    "lists.txt": b"".join(b"%d %s\n" % (row, b" ".join(b"%d" % item for item in range(row % 5))) for row in range(30)),
    "data.csv.gz": gzip.compress(lines(",", HEADER), mtime=0),
    "data.parquet": parquet(),
    "split.zip": zipped(),
    "lzma.zip": zipped(zipfile.ZIP_LZMA),
    "bzip2.zip": zipped(zipfile.ZIP_BZIP2),
}

WORDS = [
    *(b"nan", b"inf", b"-inf", b"NULL", b"", b" ", b'"', b'""', b"\\", b"\t", b"::", b";", b",", b"|", b"\r", b"\r\n"),
    *(b"1e999", b"-0", b"007", b"1_000", b"9" * 40, b"0x10", b"1,234.5", b"12/31/2020", b"2020-02-30", b"24:61"),
    *(codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b"\0", b"\x1a", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"),
    *("\u2028\u0085\u202e\U0001f600e\u0301".encode(), b"\x1b[2J", b"=1+1", b"{" * 500, b"[" * 500, b"'; DROP TABLE"),
    *(b"a" * 70_000, b'"' + b"b" * 5_000, b"\n" * 50, b"user,item\n", b"sep=;\n", b"# comment\n"),
]


def _cut(draw: random.Random, raw: bytes) -> bytes:
    return raw[: draw.randrange(len(raw) + 1)]


def _flip(draw: random.Random, raw: bytes) -> bytes:
    spoiled = bytearray(raw)
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        if spoiled:
            spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
    return bytes(spoiled)


def _insert(draw: random.Random, raw: bytes) -> bytes:
    place = draw.randrange(len(raw) + 1)
    return raw[:place] + draw.choice(WORDS) + raw[place:]


def _replace_field(draw: random.Random, raw: bytes) -> bytes:
    rows = raw.split(b"\n")
    row = draw.randrange(len(rows))
    mark = draw.choice([b",", b"\t", b";", b"|", b" "])
    fields = rows[row].split(mark)
    fields[draw.randrange(len(fields))] = draw.choice(WORDS)
    rows[row] = mark.join(fields)
    return b"\n".join(rows)


def _move(draw: random.Random, raw: bytes) -> bytes:
    one, other = sorted(draw.randrange(len(raw) + 1) for _ in range(2))
    return draw.choice(
        [raw[:one] + raw[other:], raw[:other] + raw[one:], raw[other:] + raw[:other], raw[one:other] * 2]
    )


def _ragged(draw: random.Random, raw: bytes) -> bytes:
    rows = raw.split(b"\n")
    row = draw.randrange(len(rows))
    rows[row] = draw.choice([rows[row] + b",1,2", rows[row][: len(rows[row]) // 2], rows[row].replace(b",", b""), b""])
    return b"\n".join(rows)


def _ends(draw: random.Random, raw: bytes) -> bytes:
    return b"".join(row + draw.choice([b"\n", b"\n", b"\r\n", b"\r", b"\n\n"]) for row in raw.split(b"\n"))


def _encode(draw: random.Random, raw: bytes) -> bytes:
    text = raw.decode("latin1")
    return text.replace("1", "\u00e9").encode(
        draw.choice(["latin1", "utf-8-sig", "utf-16", "utf-32", "utf-7", "cp037"]), "replace"
    )


SPOIL: list[Callable[[random.Random, bytes], bytes]] = [
    _cut,
    _flip,
    _insert,
    _replace_field,
    _move,
    _ragged,
    _ends,
    _encode,
]


def spoiled(draw: random.Random, raw: bytes) -> bytes:
    """The file after one to three accidents."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        raw = draw.choice(SPOIL)(draw, raw)
    return raw


IDS = [
    "7",
    "007",
    "10",
    "a b",
    "Ann, Lee",
    'say "hi"',
    "NaN",
    "None",
    "\u00e9t\u00e9",
    "a;b",
    "x|y",
    "-3",
    "1.0",
    "#1",
    "tab",
]


def written(draw: random.Random) -> tuple[bytes, list[tuple[str, str, float]]]:
    """A sound file in some dialect, and what it says."""
    rows = [
        (draw.choice(IDS), draw.choice(IDS), draw.choice([0.5, 1.0, 3.5, 4.25])) for _ in range(draw.randrange(1, 30))
    ]
    file, comma = io.StringIO(), draw.random() < 0.3
    mark = draw.choice([";", "|"] if comma else [",", ";", "|", "\t"])
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    writer = csv.writer(file, delimiter=mark, quoting=quoting, lineterminator=draw.choice(["\n", "\r\n"]))
    writer.writerow(
        draw.choice([("user_id", "item_id", "rating"), ("client", "sku", "Stars"), ("Email", "product", "score")])
    )
    for user, item, rating in rows:
        writer.writerow((user, item, str(rating).replace(".", ",") if comma else rating))
    return draw.choice([b"", codecs.BOM_UTF8]) + file.getvalue().encode(), rows
