"""A row's shard depends on the row, or its person, and the site's key alone."""

from __future__ import annotations

import csv
import hmac

import pytest

from dpfedadamw.extensions.gate import sharding
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.sharding import shard_of, sharding_key, write_shards


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def rows_of(folder):
    """The rows of each shard's table, after its header."""
    found = {}
    for path in sorted(folder.glob("shard-*/*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert header == ["patient", "value"]
        found[path.parent.name] = [tuple(row) for row in rows]
    return found


def table(path, count):
    rows = [(f"p{number % 60}", f'line\r\n{number}, "quoted"') for number in range(count)]
    return write(path, [("patient", "value"), *rows]), rows


def test_every_row_lies_in_one_shard_and_all_of_a_person_in_the_same(begin, tmp_path, monkeypatch):
    # The rows are written in several portions.
    monkeypatch.setattr(sharding, "_ROWS_AT_ONCE", 7)
    gate = begin(unit="person")
    path, rows = table(tmp_path / "t.csv", 600)
    counts = write_shards(gate.settings, path, tmp_path / "out", "patient")
    found = rows_of(tmp_path / "out")
    assert sorted(row for each in found.values() for row in each) == sorted(rows)
    assert counts == [len(each) for each in found.values()]
    places = {}
    for shard, each in found.items():
        for patient, _ in each:
            places.setdefault(patient, set()).add(shard)
    assert len(places) == 60
    assert all(len(one) == 1 for one in places.values())
    assert len({one for each in places.values() for one in each}) == 4


def test_a_row_more_moves_no_other(begin, tmp_path):
    gate = begin()
    one, rows = table(tmp_path / "one.csv", 200)
    two = write(tmp_path / "two.csv", [("patient", "value"), ("new", "0"), *rows[::-1]])
    write_shards(gate.settings, one, tmp_path / "a", None)
    write_shards(gate.settings, two, tmp_path / "b", None)
    before, after = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    for shard, each in before.items():
        assert sorted(each) == sorted(set(after[shard]) - {("new", "0")})


def changed_shards(begin, tmp_path, unit, person, change):
    """How many shards differ when the first row is another."""
    gate = begin(unit=unit)
    one, rows = table(tmp_path / "one.csv", 200)
    two = write(tmp_path / "two.csv", [("patient", "value"), change, *rows[1:]])
    write_shards(gate.settings, one, tmp_path / "a", person)
    write_shards(gate.settings, two, tmp_path / "b", person)
    before, after = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    return sum(before.get(shard) != after.get(shard) for shard in before | after)


@pytest.mark.parametrize(
    ("unit", "person", "change", "most"),
    [
        ("person", "patient", ("p0", "another value"), 1),
        ("person", "patient", ("p7", "another value"), 2),
        ("record", None, ("p0", "another value"), 2),
    ],
)
def test_other_rows_of_a_person_change_one_shard_and_an_exchange_two(
    begin, tmp_path, unit, person, change, most
):
    assert 1 <= changed_shards(begin, tmp_path, unit, person, change) <= most


def test_another_key_divides_otherwise():
    named = [[f"p{number}"] for number in range(1000)]
    one, two = ([shard_of(bytes([key]) * 32, who, 10) for who in named] for key in (1, 2))
    assert 50 < sum(a == b for a, b in zip(one, two, strict=True)) < 200
    assert min(one.count(shard) for shard in range(10)) > 50


def test_cells_are_not_confused_by_where_they_end():
    key = bytes(32)
    assert shard_of(key, ["ab", "c"], 1 << 62) != shard_of(key, ["a", "bc"], 1 << 62)


def test_later_versions_divide_a_table_as_this_one_does():
    key, shards = bytes(range(32)), 4096
    named = b"dpfedadamw gate shard 1\0" + b"\0\0\0\3\xc3\xa9a" + b"\0\0\0\0"
    digest = hmac.new(key, named, "sha256").digest()
    assert shard_of(key, ["éa", ""], shards) == int(digest[:16].hex(), 16) % shards


def test_a_sites_key_is_made_once_and_is_its_own_secret(gate):
    key = sharding_key(gate.settings)
    path = gate.settings.ledger / "sharding.key"
    assert sharding_key(gate.settings) == key == path.read_bytes()
    assert (len(key), len(set(key)) > 16) == (32, True)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_not_used(gate, length):
    (gate.settings.ledger / "sharding.key").write_bytes(bytes(length))
    with pytest.raises(GateError, match=f"has {length} bytes, not 32; put the key back"):
        sharding_key(gate.settings)


def test_a_folder_that_exists_is_left_as_it_is(gate, tmp_path):
    path, _ = table(tmp_path / "t.csv", 3)
    (tmp_path / "out").mkdir()
    with pytest.raises(GateError, match="out: exists; name a new folder"):
        write_shards(gate.settings, path, tmp_path / "out", None)
    assert list((tmp_path / "out").iterdir()) == []
    assert len(list(tmp_path.glob("*out*"))) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"a\n\xff\n", "is no CSV table in UTF-8"),
        (b'a\n"x', "is no CSV"),
        (b"a\n" + b"1" * (2**20 + 1), "a line is longer than 1,048,576 characters"),
    ],
)
def test_what_cannot_be_read_as_a_table_is_one_line(gate, tmp_path, content, said):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GateError, match=f"t.csv: {said}"):
        write_shards(gate.settings, path, tmp_path / "out", None)
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("unit", "person", "rows", "said"),
    [
        ("person", None, [["a"]], "name the column that tells people apart"),
        ("record", "a", [["a"]], "the unit is a record"),
        ("person", "b", [["a"]], "has 0 columns b"),
        ("person", "a", [["a", "a"]], "has 2 columns a"),
        ("person", "a", [["a", "b"], ["1"]], "row 2: has 1 cells, not 2"),
        ("person", "a", [["a", "b"], ["1", "2"], [" ", "2"]], "row 3: the column a is empty"),
        ("person", "a", [["a", "b"], ["1 ", "2"]], "row 2: the column a has blanks around it"),
        (
            "person",
            "a",
            [["a", "b"], ["Zoe\u0301", "2"]],
            "row 2: .* letters with separate accents",
        ),
    ],
)
def test_a_table_that_cannot_be_divided_is_one_line(begin, tmp_path, unit, person, rows, said):
    gate = begin(unit=unit)
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(GateError, match=said):
        write_shards(gate.settings, path, tmp_path / "out", person)
    # Half a table does not stay, and the next try needs no other name.
    assert not list(tmp_path.glob("*out*"))


def test_line_ends_in_a_cell_are_read_back_as_they_were(gate, tmp_path):
    rows = [["a", "b"], ["1", "first\rsecond"], ["2", "first\nsecond"], ["3", "both\r\n"]]
    path = tmp_path / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    write_shards(gate.settings, path, tmp_path / "out", None)
    found = []
    for one in (tmp_path / "out").glob("*/t.csv"):
        with one.open(encoding="utf-8", newline="") as file:
            found += list(csv.reader(file, strict=True))[1:]
        assert b"\r\n" not in one.read_bytes().replace(b'both\r\n"', b"")
    assert sorted(found) == rows[1:]


def test_a_site_has_no_shards(begin, tmp_path):
    gate = begin(unit="site", shards=1)
    with pytest.raises(GateError, match="a site is one shard"):
        write_shards(gate.settings, tmp_path / "t.csv", tmp_path / "out", None)
