"""The budget's file: an SQLite database with an account for each data set and a row for each run.

It is written completely before it gets its name, readable by its owner alone: like the ledger, it
reveals how often each client took part. Every change is one transaction that no other process can
interrupt. A file that is not a budget, or is truncated, is refused and never started over.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.budget.charges import Cost, from_plain, to_plain
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.privacy.composition import SMALLEST_DELTA
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE
from dpfedadamw.storage.foreign import parse

VERSION = 1
# "dpFB": tells a budget from any other SQLite file.
APPLICATION = 0x64704642
# Composing hundreds of runs takes seconds, and as many processes may wait for one another.
PATIENCE_SECONDS = 180.0
STARTING, RUNNING, SETTLED = "starting", "running", "settled"
# Of a run's cost, some kilobytes; and the tables with their indices, four.
_LONGEST_TEXT = 1 << 24
_MOST_TABLES = 16
_MOST_BYTES = 1 << 28
_STATES = (STARTING, RUNNING, SETTLED)

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE account (
    data_sha256 TEXT PRIMARY KEY NOT NULL,
    dataset TEXT NOT NULL,
    unit TEXT NOT NULL CHECK (unit IN ('record', 'person', 'client')),
    adjacency TEXT NOT NULL CHECK (adjacency IN ('add-remove', 'replace-one')),
    partition_sha256 TEXT,
    epsilon REAL NOT NULL CHECK (epsilon > 0),
    delta REAL NOT NULL CHECK (delta > 0 AND delta < 1)
);
CREATE TABLE reservation (
    identifier TEXT PRIMARY KEY NOT NULL,
    data_sha256 TEXT NOT NULL REFERENCES account (data_sha256),
    run TEXT NOT NULL,
    directory TEXT NOT NULL,
    machine TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('{STARTING}', '{RUNNING}', '{SETTLED}')),
    cost TEXT NOT NULL
);
"""
_ACCOUNT = "data_sha256, dataset, unit, adjacency, partition_sha256, epsilon, delta"
_RESERVATION = "identifier, data_sha256, run, directory, machine, state, cost"


class BudgetError(DpfedadamwError):
    """A budget would be exceeded, or its file cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A data set's budget, and what it is a budget of.

    Attributes:
        data_sha256: Digest of the data set.
        dataset: Its name, for people.
        unit: What every run on it must protect, "record", "person" or "client".
        adjacency: Under which neighbouring data sets every run on it must be accounted.
        partition_sha256: For the unit "client", who holds which record; for "person", whom each
            is about; None for "record".
        epsilon: ε that all runs together may spend.
        delta: δ at which that ε is computed, of all runs together.
    """

    data_sha256: str
    dataset: str
    unit: str
    adjacency: str
    partition_sha256: str | None
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one run holds of a budget, or has spent of it.

    Attributes:
        identifier: 32 hexadecimal digits, also in the header of the run's ledger.
        data_sha256: Digest of the data set it draws on.
        run: The run's identifier.
        directory: Absolute path of its directory.
        machine: Name of the machine on which it runs.
        state: "starting" until its directory is there, "running" while it may spend, "settled"
            once its cost is what its ledger says.
        cost: The most that it can spend, or what it spent.
    """

    identifier: str
    data_sha256: str
    run: str
    directory: str
    machine: str
    state: str
    cost: Cost


@dataclass(frozen=True)
class Budget:
    """An open budget.

    Attributes:
        path: Its file.
        connection: The database; a transaction is open.
    """

    path: Path
    connection: sqlite3.Connection

    def accounts(self) -> list[Account]:
        """Every data set's budget."""
        rows = self.connection.execute(f"SELECT {_ACCOUNT} FROM account ORDER BY rowid").fetchall()
        return [self._account(row) for row in rows]

    def account(self, data_sha256: str) -> Account | None:
        """A data set's budget, if it has one."""
        return next((one for one in self.accounts() if one.data_sha256 == data_sha256), None)

    def reservations(self, data_sha256: str) -> list[Reservation]:
        """What runs on a data set hold or have spent, in the order in which they came."""
        rows = self.connection.execute(
            f"SELECT {_RESERVATION} FROM reservation WHERE data_sha256 = ? ORDER BY rowid",
            (data_sha256,),
        ).fetchall()
        return [self._reservation(row) for row in rows]

    def find(self, identifier: str) -> Reservation | None:
        """A reservation by its identifier."""
        row = self.connection.execute(
            f"SELECT {_RESERVATION} FROM reservation WHERE identifier = ?", (identifier,)
        ).fetchone()
        return None if row is None else self._reservation(row)

    def open_account(self, account: Account) -> None:
        """Write down a data set's budget."""
        self.connection.execute(
            f"INSERT INTO account ({_ACCOUNT}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                account.data_sha256,
                account.dataset,
                account.unit,
                account.adjacency,
                account.partition_sha256,
                account.epsilon,
                account.delta,
            ),
        )

    def write(self, one: Reservation) -> None:
        """Write down a reservation, in the place of one that has its identifier."""
        self.connection.execute(
            f"INSERT INTO reservation ({_RESERVATION}) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (identifier) DO UPDATE SET "
            "directory = excluded.directory, machine = excluded.machine, "
            "state = excluded.state, cost = excluded.cost",
            (
                one.identifier,
                one.data_sha256,
                one.run,
                one.directory,
                one.machine,
                one.state,
                json.dumps(to_plain(one.cost)),
            ),
        )

    def _account(self, row: tuple[object, ...]) -> Account:
        data, dataset, unit, adjacency, held, epsilon, delta = row
        texts = (data, dataset, unit, adjacency, held or "")
        # SQLite stores whatever type it is given; what somebody else wrote is not believed.
        if (
            not all(isinstance(text, str) for text in texts)
            or not isinstance(epsilon, float)
            or not isinstance(delta, float)
            or not (0 < epsilon < math.inf and SMALLEST_DELTA <= delta < 1)
        ):
            raise self._damaged("an account")
        return Account(
            data_sha256=str(data),
            dataset=str(dataset),
            unit=str(unit),
            adjacency=str(adjacency),
            partition_sha256=None if held is None else str(held),
            epsilon=epsilon,
            delta=delta,
        )

    def _reservation(self, row: tuple[object, ...]) -> Reservation:
        if not all(isinstance(text, str) for text in row) or row[5] not in _STATES:
            raise self._damaged("a reservation")
        *texts, cost = (str(text) for text in row)
        identifier, data, run, directory, machine, state = texts
        try:
            parts = from_plain(parse(cost.encode("utf-8", "replace"), self.path.name))
        except (ValueError, PrivacyError):
            raise self._damaged(f"the reservation of {run}") from None
        return Reservation(
            identifier=identifier,
            data_sha256=data,
            run=run,
            directory=directory,
            machine=machine,
            state=state,
            cost=parts,
        )

    def _damaged(self, what: str) -> BudgetError:
        return BudgetError(
            f"{self.path}: {what} in this budget is damaged; restore a copy, and charge by hand "
            "the runs made since"
        )


@contextlib.contextmanager
def change(path: Path) -> Iterator[Budget]:
    """Open a budget for one transaction, which is on the disk after the block or not at all.

    No other process changes it meanwhile. The file is made if there is none.

    Raises:
        BudgetError: If the file is no budget, or cannot be read or written.
    """
    if not os.path.lexists(path):
        _create(path)
    with _transaction(path, "BEGIN IMMEDIATE") as budget:
        yield budget


@contextlib.contextmanager
def read(path: Path) -> Iterator[Budget]:
    """Open a budget that is there for reading, as it is at one moment.

    Raises:
        BudgetError: As for `change`, or if there is none.
    """
    with _transaction(path, "BEGIN") as budget:
        yield budget


@contextlib.contextmanager
def _transaction(path: Path, begin: str) -> Iterator[Budget]:
    if not path.is_file():
        raise BudgetError(f"{path}: there is no such file; give a budget's file")
    if path.stat().st_size > _MOST_BYTES:
        raise BudgetError(f"{path}: is larger than {_MOST_BYTES} bytes; give a budget's file")
    with _explained(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=PATIENCE_SECONDS,
            isolation_level=None,
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(begin)
            _check(path, connection)
            try:
                yield Budget(path, connection)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        finally:
            connection.close()


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file that is no budget, or one of a later version.

    Anybody may have made it: a view or a trigger would run queries of theirs.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
    kinds = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    if any(kind not in ("table", "index") for kind, _ in kinds) or len(kinds) > _MOST_TABLES:
        raise BudgetError(f"{path}: not a budget file; give another one in budget.file")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION:
        raise BudgetError(f"{path}: not a budget file; give another one in budget.file")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise BudgetError(
            f"{path}: this budget has format {version}, but this dpfedadamw reads format "
            f"{VERSION}; use the version that wrote it, or a later one"
        )


def _create(path: Path) -> None:
    """Make an empty budget, which has its name only once it is whole."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))
        try:
            with _explained(path), contextlib.closing(sqlite3.connect(temporary)) as connection:
                connection.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
            # Unlike a rename, a link never replaces the budget that another process has just made.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            DISK.sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BudgetError(
            f"budget.file: {path} cannot be made ({error.strerror}); name a file in a folder that "
            "you may write to"
        ) from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in one line what SQLite has against a file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "locked" in text:
            reason = f"other processes have kept it locked for {PATIENCE_SECONDS:g} seconds"
            advice = "wait until their runs have started, and try again"
        elif "not a database" in text or "malformed" in text or "no such table" in text:
            reason, advice = f"not a budget, or damaged ({text})", "put back a copy"
        elif "CHECK constraint failed" in text:
            reason = "it was made by an earlier version, which knows no budgets of people"
            advice = "name another file in budget.file"
        elif "full" in text:
            reason, advice = "the disk is full", "make room, and try again"
        elif "readonly" in text:
            reason, advice = "it cannot be written", "give yourself the right to write to it"
        else:
            reason, advice = f"it cannot be read or written ({text})", "check its disk"
        raise BudgetError(f"{path}: {reason}; {advice}") from None
