"""The texts by author are read from changelogs: whose each is, its class, and its other words."""

from __future__ import annotations

import csv
import gzip
import io

import pytest

from tests.changelogs import Item, items, write_table

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
