"""Every format gives the same interactions; files that cannot be used are refused with a reason."""

from __future__ import annotations

import gzip

import polars as pl
import pytest

from topshelf.data import Interactions, read, read_interactions
from topshelf.data.readers import first_rows, read_user_lines
from topshelf.errors import DataError

ROWS = [(10, 7, 4.0, 900), (10, 3, 3.5, 800), (9, 7, 5.0, 700), (9, 11, 1.0, 650), (100, 3, 2.0, 600)]
PAIRS = {(user, item) for user, item, _, _ in ROWS}


def lines(separator: str, header: str | None) -> str:
    body = [separator.join(map(str, row)) for row in ROWS]
    return "\n".join(([] if header is None else [header.replace(",", separator)]) + body) + "\n"


TEXTS = {
    "comma.csv": lines(",", "userId,movieId,rating,timestamp"),
    "tab.tsv": lines("\t", "user,item,rating,timestamp"),
    "semicolon.csv": lines(";", "user,item,rating,timestamp"),
    "bar.txt": lines("|", "user,item,rating,timestamp"),
    "space.txt": lines(" ", "user,item,rating,timestamp"),
    "bom.csv": "\ufeff" + lines(",", "user,item,rating,timestamp"),
    "windows.csv": lines(",", "user,item,rating,timestamp").replace("\n", "\r\n"),
    "u.data": lines("\t", None),
    "headerless.csv": lines(",", None),
    "ratings.dat": lines("::", None),
    "named.dat": lines("::", "user,item,rating,timestamp"),
}


@pytest.fixture
def write(tmp_path):
    def write_file(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.mark.parametrize("name", TEXTS)
def test_text_formats_give_the_same_interactions(name, write):
    data = read_interactions(write(name, TEXTS[name]))
    assert sorted(data.to_frame().rows()) == sorted(ROWS)
    assert data.users.values.to_list() == [9, 10, 100]


def test_gzip_and_parquet_give_the_same_interactions(write, tmp_path):
    zipped = read_interactions(write("data.csv.gz", gzip.compress(TEXTS["comma.csv"].encode())))
    pl.DataFrame(ROWS, schema=["user", "item", "rating", "timestamp"], orient="row").write_parquet(
        tmp_path / "d.parquet"
    )
    stored = read_interactions(tmp_path / "d.parquet")
    assert sorted(zipped.to_frame().rows()) == sorted(stored.to_frame().rows()) == sorted(ROWS)


@pytest.mark.parametrize("name", ["comma.csv", "ratings.dat"])
def test_names_with_brackets_and_stars_are_no_patterns(name, write, tmp_path):
    read_interactions(write(f"[a]*{name}", TEXTS[name])).to_frame().write_parquet(tmp_path / "[b]*.parquet")
    assert sorted(read_interactions(tmp_path / "[b]*.parquet").to_frame().rows()) == sorted(ROWS)
    assert len(read_interactions(write("[c]*.txt", "1 2 3\n4 5\n"))) == 3


def test_recbole_tokens_are_text(write):
    path = write("data.inter", lines("\t", "user_id:token,item_id:token,rating:float,timestamp:float"))
    data = read_interactions(path)
    assert sorted(data.to_frame().rows()) == sorted((str(user), str(item), *rest) for user, item, *rest in ROWS)
    assert data.users.values.to_list() == ["10", "100", "9"]


def test_lists_of_items_give_the_same_pairs(write):
    data = read_interactions(write("train.txt", "9 7 11\n10 7 3 \n100 3\n101\n"))
    assert set(data.to_frame().rows()) == PAIRS
    assert data.weight is None


def test_one_long_list_is_no_table(write):
    assert len(read_interactions(write("train.txt", "0 1 2 3 4 5\n"))) == 5


AMBIGUOUS = "1 5 3\n2 5 4\n3 6 5\n"


@pytest.mark.parametrize("content", [AMBIGUOUS, "1 5 3 900\n2 5 4 901\n", "0 1 2\n"])
def test_lists_and_tables_that_look_the_same_are_not_guessed(content, write):
    with pytest.raises(
        DataError, match=r"cannot tell whether '. . .*\.csv, or prepare it with topshelf data prepare --separator ' '"
    ):
        read_interactions(write("ratings.txt", content))


def test_what_settles_it_is_a_name_a_header_a_separator_or_a_user_named_twice(write):
    expected = [(1, 5, 3.0), (2, 5, 4.0), (3, 6, 5.0)]
    assert read(write("ratings.csv", AMBIGUOUS)).rows() == expected
    assert read(write("headed.txt", "user item rating\n" + AMBIGUOUS)).rows() == expected
    assert read(write("ratings.txt", AMBIGUOUS), separator=" ").rows() == expected
    assert read(write("twice.txt", AMBIGUOUS + "3 7 1\n")).rows() == [*expected, (3, 7, 1.0)]
    assert read(write("lists.txt", AMBIGUOUS + "4 7 1 8\n")).rows() == [
        (user, item) for user, *items in ([1, 5, 3], [2, 5, 4], [3, 6, 5], [4, 7, 1, 8]) for item in items
    ]


def test_two_numbers_a_line_are_pairs_either_way(write):
    assert read(write("pairs.txt", "1 5\n2 6\n")).rows() == [(1, 5), (2, 6)]


def test_a_separator_of_several_characters_is_refused(write):
    with pytest.raises(DataError, match="separator must be one character or '::', got 'ab'"):
        read(write("ratings.txt", AMBIGUOUS), separator="ab")


def test_ids_with_leading_zeros_stay_apart(write):
    data = read_interactions(write("books.csv", "user,isbn\n1,0071\n1,71\n"))
    assert data.items.values.to_list() == ["0071", "71"]


def test_a_word_for_nothing_may_be_the_name_of_a_text_id(write):
    data = read_interactions(write("names.csv", "user,item\nNone,1\nNull,2\nada,1\n"))
    assert data.users.values.to_list() == ["None", "Null", "ada"]


def test_text_ids_deep_in_the_file_do_not_break_the_reading(write):
    numbers = "".join(f"{row},1,3\n" for row in range(20_000))
    data = read_interactions(write("late.csv", f"user,item,rating\n{numbers}x,1,2.5\n"))
    assert data.users.get("x") is not None
    assert data.weight.min() == 2.5


def test_rows_keep_their_order_when_they_come_in_batches(write, tmp_path):
    rows = range(200_000)
    text = write("long.csv", "title,user,item\n" + "".join(f"title {row},{row},{row % 7}\n" for row in rows))
    pl.DataFrame({"user": rows, "item": [row % 7 for row in rows]}).write_parquet(
        tmp_path / "long.parquet", row_group_size=5_000
    )
    for path in (text, tmp_path / "long.parquet"):
        assert read(path)["user"].to_list() == list(rows)


def test_only_the_columns_in_use_are_collected_and_in_batches(write, monkeypatch):
    collected = []
    collect = pl.LazyFrame.collect

    def watch(frame, **options):
        collected.append((frame.collect_schema().names(), options))
        return collect(frame, **options)

    path = write("wide.csv", "title,user,review,item\na,1,b,2\n")
    monkeypatch.setattr(pl.LazyFrame, "collect", watch)
    read(path)
    assert collected[0] == (["user", "item"], {"engine": "streaming"})


def test_quoted_fields_may_hold_the_separator(write):
    path = write("titles.csv", 'user,title,item\n1,"Good, Bad",5\n2,Alien,6\n')
    assert set(read_interactions(path).to_frame().rows()) == {(1, 5), (2, 6)}


def test_headerless_text_ids_are_known_by_their_numbers(write):
    data = read_interactions(write("ratings_Books.csv", "AH2L,0001501348,5.0,1391040000\nAZ0I,X,4.0,1391040001\n"))
    assert data.to_frame().rows() == [("AH2L", "0001501348", 5.0, 1391040000), ("AZ0I", "X", 4.0, 1391040001)]


def test_named_columns_and_separator_are_used(write):
    path = write("odd.txt", "who^what^stars\na^x^1\nb^y^2\n")
    frame = read(path, user="who", item="what", weight="none", separator="^")
    assert frame.rows() == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", "", "is empty"),
        ("blank.csv", "\n\n", "is empty"),
        ("header.csv", "user,item\n", "is empty"),
        ("latin.csv", "user,item\nJos\xe9,1\n".encode("latin1"), "latin.csv is not UTF-8 text.*iconv"),
        ("columns.csv", "who,what\na,b\n", r"columns.csv: cannot tell .* 'who', 'what'.*--user-column"),
        ("hole.csv", "user,item\na,1\n,2\n", r"column 'user' has 1 missing .* data row 2"),
        ("quoted.csv", 'user,item\na,1\n"",2\n', r"column 'user' has 1 missing .* data row 2"),
        ("nan.csv", "user,item\n1,1\nNaN,2\n3,1\nNULL,5\n", r"column 'user' has 2 missing .* data row 2"),
        ("none.csv", "user,item\na,1\nb,None\n", r"column 'item' has 1 missing .* data row 2"),
        (
            "stars.csv",
            "user,item,rating\na,1,good\n",
            r"column 'rating' has 1 missing or unreadable.*data row 1",
        ),
        (
            "times.csv",
            "user,item,time\na,1,soon\n",
            r"column 'time' has 1 missing or unreadable.*--time-column none",
        ),
        ("single.csv", "user\na\n", "cannot tell the separator"),
        ("ragged.csv", "user,item\na,1\nb,2,3,4\n", "cannot be read as a table"),
        ("binary.csv", b"\1\2\0\0\0", "is not a text file"),
        ("book.csv", b"PK\x03\x04\0\0\0", r"no text file but one of Excel .*Save it as CSV"),
        ("old.txt", b"\xd0\xcf\x11\xe0\0", "one of Excel"),
        ("broken.parquet", b"not parquet at all", "is named like a Parquet file but is none"),
        ("broken.csv.gz", b"not gzip", "cannot be opened"),
        ("split.zip", b"PK", "Unpack it first"),
    ],
)
def test_files_that_cannot_be_used_say_why(name, content, message, write):
    with pytest.raises(DataError, match=message):
        read_interactions(write(name, content))


def test_bad_bytes_deep_in_the_file_name_the_file(write):
    content = "user,item\n" + "abcdefgh,1\n" * 40_000
    with pytest.raises(DataError, match=r"deep.csv is not UTF-8"):
        read_interactions(write("deep.csv", content.encode() + b"\xff\xfe,2\n"))


def test_a_missing_file_points_to_the_list(tmp_path):
    with pytest.raises(DataError, match=r"is not a file.*topshelf data list"):
        read(tmp_path / "nothing.csv")


def test_one_user_per_line_with_ids_of_any_kind(tmp_path):
    path = tmp_path / "sequences.txt.gz"
    path.write_bytes(gzip.compress(b"ann tea milk tea\nbob\nkim milk\n"))
    data = Interactions.from_canonical(read_user_lines(path).frame)
    assert data.to_frame(events=True).rows() == [("ann", "tea"), ("ann", "milk"), ("ann", "tea"), ("kim", "milk")]
    (tmp_path / "empty.txt").write_text("ann\nbob\n")
    with pytest.raises(DataError, match="must have a user and then its items"):
        read_user_lines(tmp_path / "empty.txt")
    with pytest.raises(DataError, match="is not a file"):
        read_user_lines(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", '[{"user": 1, "item": 2}]', r"is JSON, .*polars.read_json\('a.json'\).write_parquet\('a.parquet'\)"),
        ("a.json", '[\n  {"user": 1, "item": 2}\n]\n', r"is JSON, .*read_json"),
        ("a.json", '{\n  "user": [1], "item": [2]\n}\n', r"is JSON, .*read_json"),
        (
            "a.jsonl",
            '{"user": 1, "item": 2}\n{"user": 1, "item": 3}\n',
            r"JSON with an object per line.*read_ndjson\('a.jsonl'",
        ),
        ("clicks.csv", '{"user": 1, "item": 2}\n', r"JSON with an object per line"),
        (
            "a.parquet",
            "user,item\n1,2\n",
            r"is named like a Parquet file but is none: it begins with b'user'.*rename it to .csv",
        ),
        ("a.parquet", "", r"is none: it begins with b''"),
        ("a.pq", "PAR1" + "x" * 50, r"is a damaged Parquet file: its end is missing.*54 bytes.*Copy it again"),
        ("a.pq", "PAR1", r"its end is missing"),
        ("a.pq", "PAR1" + "x" * 50 + "PAR1", r"It is damaged or no Parquet file; write it again"),
    ],
)
@pytest.mark.parametrize("reader", [read, lambda path: first_rows(path, 3)], ids=["read", "first_rows"])
def test_json_and_broken_parquet_say_what_they_are(tmp_path, name, text, what, reader):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=what):
        reader(tmp_path / name)


def test_a_title_in_brackets_is_no_json(tmp_path):
    (tmp_path / "a.csv").write_text("[user],{item}\n1,2\n1,3\n")
    assert read(tmp_path / "a.csv", user="[user]", item="{item}").shape == (2, 2)
