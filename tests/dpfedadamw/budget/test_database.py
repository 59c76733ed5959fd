"""The budget's file: whole or not there, and whatever is not a budget is refused in one line."""

from __future__ import annotations

import errno
import os
import sqlite3
from dataclasses import replace

import pytest

from dpfedadamw.budget import database, reservations
from dpfedadamw.budget.database import BudgetError
from tests.dpfedadamw.budget.fake_runs import ACCOUNT, ROUNDS, cost, request


def made(path):
    wanted = request(path.parent / "run", 5.0, cost(5.0, ROUNDS))
    return reservations.reserve(path, wanted)


def sql(path, text):
    with sqlite3.connect(path) as connection:
        connection.executescript(text)
    connection.close()


def emptied(path):
    path.write_bytes(b"")


def halved(path):
    path.write_bytes(path.read_bytes()[:5000])


def text_instead(path):
    path.write_text("ε = 8\n" * 100)


def of_somebody_else(path):
    path.unlink()
    sql(path, "CREATE TABLE reservation (name TEXT);")


def of_a_later_version(path):
    sql(path, "PRAGMA user_version = 7;")


def no_composition(path):
    sql(path, """UPDATE reservation SET cost = '[{"noise_multiplier": 0}]';""")


def another_type(path):
    sql(path, "UPDATE account SET epsilon = 1e999;")


def a_blob(path):
    sql(path, "UPDATE account SET dataset = x'00ff';")


HARMS = (
    emptied,
    halved,
    text_instead,
    of_somebody_else,
    of_a_later_version,
    no_composition,
    another_type,
    a_blob,
)


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_no_budget_is_refused_in_one_line_and_left_as_it_is(harm, tmp_path):
    path = tmp_path / "budget.sqlite"
    made(path)
    harm(path)
    before = path.read_bytes()
    for use in (made, reservations.standings):
        with pytest.raises(BudgetError) as caught:
            use(path)
        assert len(str(caught.value).splitlines()) == 1
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["budget.sqlite"]


# Whoever writes into the file without its constraints.
UNBELIEVED = [
    ("account", "UPDATE account SET epsilon = 0.0"),
    ("account", "UPDATE account SET epsilon = -1.0"),
    ("account", "UPDATE account SET epsilon = 'ten'"),
    ("account", "UPDATE account SET delta = 0.0"),
    ("account", "UPDATE account SET delta = 1.0"),
    ("account", "UPDATE account SET delta = 1e-11"),
    ("account", "UPDATE account SET delta = 'ten'"),
    ("account", "UPDATE account SET unit = x'00'"),
    ("account", "UPDATE account SET adjacency = x'00'"),
    ("account", "UPDATE account SET partition_sha256 = x'00'"),
    ("reservation", "UPDATE reservation SET state = 'unheard-of'"),
    ("reservation", "UPDATE reservation SET run = x'00'"),
    ("reservation", "UPDATE reservation SET cost = x'00'"),
    ("reservation of", "UPDATE reservation SET cost = '[{'"),
    ("reservation of", "UPDATE reservation SET cost = '7'"),
    ("reservation of", "UPDATE reservation SET cost = '[7]'"),
    (
        "reservation of",
        'UPDATE reservation SET cost = \'[{"noise_multiplier": 2, "sampling_rate": 0.1, '
        '"steps": 1.5}]\'',
    ),
]


@pytest.mark.parametrize(("what", "statement"), UNBELIEVED)
def test_what_somebody_else_wrote_into_a_budget_is_not_believed(what, statement, tmp_path):
    path = tmp_path / "budget.sqlite"
    made(path)
    sql(path, f"PRAGMA ignore_check_constraints = 1; {statement};")
    with pytest.raises(BudgetError, match=what) as caught:
        reservations.standings(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_budget_that_is_not_there_is_not_made_by_looking_at_it(tmp_path):
    with pytest.raises(BudgetError, match="no such file"):
        reservations.standings(tmp_path / "budget.sqlite")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("missing/budget.sqlite", r"cannot be made \(No such file or directory\); name a file in"),
        ("file/budget.sqlite", r"cannot be made \(Not a directory\); name a file in"),
        (".", "there is no such file; give a budget's file"),
    ],
)
def test_a_budget_that_cannot_be_made_is_one_line(place, said, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BudgetError, match=said) as caught:
        made(tmp_path / place)
    assert len(str(caught.value).splitlines()) == 1


def test_a_budget_is_its_owners_alone_whatever_the_umask(tmp_path):
    path = tmp_path / "budget.sqlite"
    made(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("database is locked", "other processes have kept it locked"),
        ("database or disk is full", "the disk is full"),
        ("attempt to write a readonly database", "it cannot be written"),
        ("disk I/O error", "it cannot be read or written"),
    ],
)
def test_what_ails_the_disk_is_said_in_one_line_and_nothing_is_reserved(
    text, words, tmp_path, monkeypatch
):
    path = tmp_path / "budget.sqlite"
    made(path)

    def fails(self, one):
        raise sqlite3.OperationalError(text)

    with monkeypatch.context() as patch:
        patch.setattr(database.Budget, "write", fails)
        with pytest.raises(BudgetError, match=words):
            made(path)
    (standing,) = reservations.standings(path)
    assert len(standing.reservations) == 1


def forget_and_fail(path):
    with database.change(path) as budget:
        budget.connection.execute("DELETE FROM reservation")
        raise ZeroDivisionError


def test_a_transaction_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "budget.sqlite"
    made(path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        forget_and_fail(path)
    assert path.read_bytes() == before


def test_a_budget_that_cannot_be_made_says_what_the_disk_said(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(database.os, "open", refused)
        with pytest.raises(BudgetError, match=r"cannot be made \(Read-only file system\); name"):
            database._create(tmp_path / "budget.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_budget_that_another_has_just_made_stays_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "budget.sqlite"
    made(path)
    before = path.read_bytes()
    database._create(path)
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".budget*")) == []


def test_a_budget_of_less_than_one_is_a_budget(tmp_path):
    path = tmp_path / "budget.sqlite"
    small = replace(ACCOUNT, epsilon=0.5)
    wanted = replace(request(tmp_path / "run", 100.0, cost(100.0, ROUNDS)), account=small)
    reservations.reserve(path, wanted)
    assert [one.account for one in reservations.standings(path)] == [small]


def test_a_budget_of_an_earlier_version_takes_no_people_and_says_so(tmp_path):
    path = tmp_path / "budget.sqlite"
    sql(path, database._SCHEMA.replace("'record', 'person', ", "'record', "))
    held = replace(ACCOUNT, unit="person", partition_sha256="a" * 64)
    with (
        pytest.raises(BudgetError, match="knows no budgets of people"),
        database.change(path) as budget,
    ):
        budget.open_account(held)
    with database.change(path) as budget:
        budget.open_account(ACCOUNT)
