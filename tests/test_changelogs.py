"""The texts by author are read from changelogs: whose each is, its class, and its other words."""

from __future__ import annotations

import csv
import gzip
import io

import pytest

from tests.changelogs import Item, descriptions, items, texts, write_table, write_texts

CHANGELOG = """\
bread (1.0-2) unstable; urgency=medium

  [ Ada Lovelace ]
  * d/control: Drop the dependency
    on yeast. (Closes: #123456)
  * New upstream release.

  [ Emmy Noether ]
  * Fixed spelling, and added crumbs.

 -- Ada Lovelace <ada@example.org>  Mon, 01 Jan 2024 00:00:00 +0000

bread (1.0-1) unstable; urgency=low

  * Update the oven.
  * Update the oven.
  * Bump.

 -- Grace Hopper <grace@example.org>  Mon, 01 Jan 2023 00:00:00 +0000
"""
FOUND = [
    Item("Ada Lovelace", "remove", ("the", "dependency", "on", "yeast")),
    Item("Emmy Noether", "fix", ("spelling", "and", "crumbs")),
    Item("Grace Hopper", "update", ("the", "oven")),
]


@pytest.fixture
def folder(tmp_path):
    for package in ("bread", "bread-doc"):
        (tmp_path / package).mkdir()
        file = tmp_path / package / "changelog.Debian.gz"
        file.write_bytes(gzip.compress(CHANGELOG.encode()))
    return tmp_path


def test_items_have_their_author_and_class_and_no_word_that_names_a_class(folder):
    assert items(folder) == FOUND


def test_rows_of_the_table_have_length_one(folder):
    stream = io.StringIO()
    write_table(stream, items(folder), columns=8)
    header, *rows = csv.reader(io.StringIO(stream.getvalue()))
    assert header == ["author", "change", *(f"w{column}" for column in range(8))]
    assert [row[:2] for row in rows] == [[item.author, item.change] for item in FOUND]
    for row in rows:
        assert sum(float(value) ** 2 for value in row[2:]) == pytest.approx(1.0, abs=1e-3)


def test_texts_are_items_as_they_stand_of_those_who_wrote_them_first(folder):
    assert texts(folder) == [
        ("Ada Lovelace", "d/control: Drop the dependency on yeast. (Closes: #123456)"),
        ("Emmy Noether", "Fixed spelling, and added crumbs."),
    ]


def test_no_author_has_more_texts_than_are_asked_for(tmp_path):
    (tmp_path / "bread").mkdir()
    lines = "".join(f"  * Bake a loaf of kind {number}.\n" for number in range(5))
    signed = " -- Ada Lovelace <ada@example.org>  Mon, 01 Jan 2024 00:00:00 +0000\n"
    file = tmp_path / "bread" / "changelog.Debian.gz"
    file.write_bytes(
        gzip.compress(f"bread (1.0-1) unstable; urgency=low\n\n{lines}\n{signed}".encode())
    )
    assert len(texts(tmp_path)) == 5
    assert len(texts(tmp_path, most=2)) == 2


def test_descriptions_are_paragraphs_of_packages(tmp_path):
    file = tmp_path / "status"
    file.write_text(
        "Package: bread\nDescription: a loaf\n It is baked of rye and\n wheat.\n .\n Eat it.\n"
        "Homepage: https://example.org\n\nPackage: air\nDescription: nothing but a line\n"
    )
    assert descriptions(file) == [("bread", "It is baked of rye and wheat.")]


def test_a_table_of_texts_names_author_and_text(folder):
    stream = io.StringIO()
    write_texts(stream, texts(folder))
    assert [row["author"] for row in csv.DictReader(io.StringIO(stream.getvalue()))] == [
        "Ada Lovelace",
        "Emmy Noether",
    ]
