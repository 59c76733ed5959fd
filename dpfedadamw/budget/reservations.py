"""Reserving, settling and reading a data set's budget: no run begins that could overspend it.

Before a run's first charge the most that it can cost is reserved, in one transaction with the sum
of all that others hold and have spent. When it ends, it is settled at what its ledger says. A run
that died is settled by whichever run reserves next.

A run is alive while some process holds its directory. Whatever cannot be seen from here, because it
is on another machine, gone or damaged, keeps all that was reserved for it (`examine`).
"""

from __future__ import annotations

import hashlib
import platform
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dpfedadamw.accounting.calibration import largest_count
from dpfedadamw.budget import database
from dpfedadamw.budget.charges import Cost, Entries, charged, composed, epsilon_of
from dpfedadamw.budget.database import (
    RUNNING,
    SETTLED,
    STARTING,
    Account,
    BudgetError,
    Reservation,
)
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.ledger import GENESIS, canonical
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import MOST_TEXT_BYTES, parse
from dpfedadamw.storage.lock import is_held as lock_is_held


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run asks of a budget.

    Attributes:
        account: The data set's budget, as the run's spec states it.
        run: The run's identifier.
        directory: Where it is, or will be once it appears.
        cost: The most that it can spend, with what it has spent before if it is continued.
        cost_of_rounds: What a number of rounds would cost at most, to say how many would fit; None
            where that is no way out.
        most_rounds: How many rounds the run has.
        spent: What its ledger says that it has spent before, if it is continued.
    """

    account: Account
    run: str
    directory: Path
    cost: Cost
    cost_of_rounds: Callable[[int], Cost] | None = None
    most_rounds: int = 1
    spent: Cost = ()


@dataclass(frozen=True)
class Standing:
    """How a data set's budget stands.

    Attributes:
        account: The budget.
        reservations: What each run holds or has spent, with what is known of it.
        spent: ε of all that is settled.
        epsilon: ε of all that is settled or reserved, which is what must fit.
        by_accountant: The same by every accountant.
    """

    account: Account
    reservations: tuple[tuple[Reservation, Condition], ...]
    spent: float
    epsilon: float
    by_accountant: dict[str, float]

    @property
    def left(self) -> float:
        """Budget minus what is charged; a run may cost more than this and fit, never less."""
        return max(0.0, self.account.epsilon - self.epsilon)


def reserve(path: Path, request: Request, is_held: Held = lock_is_held) -> str:
    """Reserve the most that a new run can cost, in one transaction.

    Args:
        path: The budget's file; made if there is none.
        request: What is asked for.
        is_held: Whether some process holds a run directory.

    Returns:
        The reservation's identifier. `confirm` it before anything is spent.

    Raises:
        BudgetError: If the run could exceed the budget; nothing is reserved then.
    """
    new = Reservation(
        identifier=secrets.token_hex(16),
        data_sha256=request.account.data_sha256,
        run=request.run,
        directory=str(request.directory.absolute()),
        machine=this_machine(),
        state=STARTING,
        cost=request.cost,
    )
    _add(path, new, request, is_held)
    return new.identifier


def confirm(path: Path, identifier: str) -> None:
    """Say that a run's directory is there, before its first charge.

    Raises:
        BudgetError: If the reservation was given away because the run seemed to have died.
    """
    with database.change(path) as budget:
        found = budget.find(identifier)
        if found is None or found.state != STARTING:
            raise BudgetError(
                f"{path}: the reservation of this run was settled before the run began; start a "
                "new run"
            )
        budget.write(replace(found, state=RUNNING))


def reserve_again(
    path: Path, identifier: str, request: Request, is_held: Held = lock_is_held
) -> None:
    """Reserve for a run that is continued what it has spent and the most that it still can.

    A process that continues a run holds its directory, so no other settles it meanwhile.

    Raises:
        BudgetError: If the budget does not know the run, or could be exceeded. Also if another copy
            of the run's folder is being trained, or spent more than this one's ledger says.
    """
    if not path.exists():
        raise BudgetError(
            f"budget.file: {path} is missing, and the run has spent from it; use the folder in "
            "which the run was started, or restore the file"
        )
    with database.read(path) as budget:
        found = budget.find(identifier)
    if found is None:
        raise BudgetError(
            f"budget.file: {path} has no entry for this run: it is another budget, or an older "
            "copy; restore the one that the run was started with"
        )
    _refuse_an_older_copy(found, request, is_held)
    continued = replace(
        found,
        directory=str(request.directory.absolute()),
        machine=this_machine(),
        state=RUNNING,
        cost=request.cost,
    )
    _add(path, continued, request, is_held)


def _refuse_an_older_copy(found: Reservation, request: Request, is_held: Held) -> None:
    """What copies of one folder spend is charged to one reservation, which must forget none of it.

    Copies that are the same to the last charge may go on, one of them. A copy on another machine
    is not seen until it is settled.
    """
    here, there = request.directory.absolute(), Path(found.directory)
    condition, cost = examine(found, is_held)
    if condition in (Condition.starting, Condition.running):
        if not _is_one(here, there):
            raise BudgetError(
                f"{here}: another copy of this run is being trained in {there}; let that one go on"
            )
    elif condition in (Condition.settled, Condition.stopped) and not _contains(request.spent, cost):
        raise BudgetError(
            f"{here}: this run has spent more than its ledger says, so this is an older copy of "
            "its folder; continue the newest one, or start a new run"
        )


def _is_one(one: Path, other: Path) -> bool:
    """Whether two paths are of one folder."""
    try:
        return one.samefile(other)
    except OSError:
        return one == other


def _contains(ledger: Cost, other: Cost) -> bool:
    """Whether a ledger holds all steps of what may be its beginning."""
    return all(
        any(
            (own.step_noise_multiplier, own.sampling) == (part.step_noise_multiplier, part.sampling)
            and own.sampling_rate >= part.sampling_rate
            and own.steps >= part.steps
            for own in ledger
        )
        for part in other
    )


def settle(path: Path, identifier: str, entries: Entries) -> Standing:
    """Give back what a run did not spend, and say how the budget stands then.

    Args:
        path: The budget's file.
        identifier: The reservation.
        entries: The run's whole ledger; of a run that never began, nothing.

    Raises:
        BudgetError: If the budget does not know the reservation.
    """
    cost = charged(entries) if entries else ()
    with database.change(path) as budget:
        found = budget.find(identifier)
        if found is None:
            raise BudgetError(f"{path}: has no reservation {identifier}")
        budget.write(replace(found, state=SETTLED, cost=cost))
        account = budget.account(found.data_sha256)
        assert account is not None
        every = budget.reservations(account.data_sha256)
    return _standing(account, [(one, Condition(one.state)) for one in every])


def standings(path: Path, is_held: Held = lock_is_held) -> list[Standing]:
    """How the budget of every data set stands; nothing is changed.

    Raises:
        BudgetError: If there is no such budget, or it cannot be read.
    """
    with database.read(path) as budget:
        found = [
            (account, budget.reservations(account.data_sha256)) for account in budget.accounts()
        ]
    return [
        _standing(account, [(one, examine(one, is_held)[0]) for one in every])
        for account, every in found
    ]


def _add(path: Path, new: Reservation, request: Request, is_held: Held) -> None:
    wanted = request.account
    with database.change(path) as budget:
        known = budget.account(wanted.data_sha256)
        account = known or wanted
        _agree(path, account, wanted)
        others = []
        for one in budget.reservations(wanted.data_sha256):
            if one.identifier == new.identifier:
                continue
            condition, cost = examine(one, is_held)
            if condition in (Condition.stopped, Condition.never_began):
                budget.write(replace(one, state=SETTLED, cost=cost))
            others.append(cost)
        if _fits([*others, new.cost], account):
            if known is None:
                budget.open_account(account)
            budget.write(new)
            return
    # What is said of the refusal takes time, and the budget is free meanwhile.
    raise _exceeded(path, account, others, request)


def _fits(costs: list[Cost], account: Account) -> bool:
    return epsilon_of(costs, account.delta) <= account.epsilon


def _exceeded(path: Path, account: Account, others: list[Cost], request: Request) -> BudgetError:
    before = epsilon_of(others, account.delta)
    after = epsilon_of([*others, request.cost], account.delta)
    advice = "wait until other runs have ended, or spend less"
    if request.cost_of_rounds is not None and request.most_rounds > 1:
        cost_of = request.cost_of_rounds
        try:
            rounds = largest_count(
                lambda count: epsilon_of([*others, cost_of(count)], account.delta),
                account.epsilon,
                "round",
                request.most_rounds,
            )
            fitting = "1 round" if rounds == 1 else f"{rounds} rounds"
            advice = f"{fitting} would fit instead of {request.most_rounds}"
        except PrivacyError:
            advice = "not even one round would fit"
    return BudgetError(
        f"budget: this run could cost ε = {epsilon_of([request.cost], account.delta):.4g}, and "
        f"together with the {before:.4g} already charged to {path} that makes {after:.4g} of "
        f"{account.epsilon:g} at δ = {account.delta:g}; {max(0.0, account.epsilon - before):.4g} "
        f"is left, and {advice}"
    )


def _agree(path: Path, account: Account, wanted: Account) -> None:
    """Refuse what cannot be composed with what is charged to a budget."""
    data = f"{path}, data set {account.dataset}"
    if wanted.unit != account.unit:
        raise BudgetError(
            f"privacy.unit: is {wanted.unit}, and runs on {data} protect the unit {account.unit}; "
            f"these do not compose; use {account.unit}"
        )
    if wanted.adjacency != account.adjacency:
        raise BudgetError(
            f"privacy.adjacency: is {wanted.adjacency}, and runs on {data} are accounted under "
            f"{account.adjacency}; these do not compose, because replacing a record is not the "
            f"same as adding or removing one; use {account.adjacency}"
        )
    if wanted.partition_sha256 != account.partition_sha256 and wanted.unit == "person":
        raise BudgetError(
            f"data.person: names people otherwise than in earlier runs on {data}; what protects a "
            "person then and now does not compose. Name the same column"
        )
    if wanted.partition_sha256 != account.partition_sha256:
        raise BudgetError(
            f"data.partition: divides the records differently from earlier runs on {data}, so the "
            "protection of a client then and now does not compose; use the same partition, seed "
            "and test_fraction"
        )
    for key, given, noted in (
        ("epsilon", wanted.epsilon, account.epsilon),
        ("delta", wanted.delta, account.delta),
    ):
        if given != noted:
            raise BudgetError(
                f"budget.{key}: is {given:g}, but the budget of {data} has been {noted:g} since "
                f"its first run; set {noted:g}, because a budget that could be raised would bound "
                "nothing"
            )


def _standing(account: Account, found: list[tuple[Reservation, Condition]]) -> Standing:
    settled = [one.cost for one, _ in found if one.state == SETTLED]
    every = [one.cost for one, _ in found]
    return Standing(
        account,
        tuple(found),
        spent=epsilon_of(settled, account.delta),
        epsilon=epsilon_of(every, account.delta),
        by_accountant=composed(every, account.delta),
    )


Held = Callable[[Path], bool]


class Condition(StrEnum):
    """What is known of a reservation's run."""

    settled = "settled"
    starting = "starting"
    running = "running"
    stopped = "stopped"
    never_began = "never began"
    elsewhere = "on another machine"
    gone = "directory gone"
    unreadable = "ledger unreadable"


def examine(one: Reservation, is_held: Held) -> tuple[Condition, Cost]:
    """What is known of a reservation's run, and what it must be counted at.

    Args:
        one: The reservation.
        is_held: Whether some process holds a run directory, as `storage.lock.is_held` says.
    """
    if one.state == SETTLED:
        return Condition.settled, one.cost
    if one.machine != this_machine():
        return Condition.elsewhere, one.cost
    directory = Path(one.directory)
    # While a run starts, its folder is hidden under this name; it is there under one of the two.
    if one.state == STARTING and is_held(hidden(directory)):
        return Condition.starting, one.cost
    if is_held(directory):
        return Condition.running, one.cost
    try:
        directory.stat()
    except FileNotFoundError:
        # A run that starts asks for its reservation once more before it spends anything.
        if one.state == STARTING:
            return Condition.never_began, ()
        return Condition.gone, one.cost
    except OSError:
        return Condition.unreadable, one.cost
    entries = read_ledger(directory / "ledger.jsonl")
    if not entries or not _belongs(entries[0], one):
        return Condition.unreadable, one.cost
    try:
        return Condition.stopped, charged(entries)
    except (PrivacyError, ValueError, KeyError, TypeError, AttributeError):
        return Condition.unreadable, one.cost


def hidden(directory: Path) -> Path:
    """Where a run's folder lies while it is made."""
    return directory.with_name(f".{directory.name}.starting")


def this_machine() -> str:
    """The name of the machine, without which nobody can tell whether a process is alive."""
    return platform.node()


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The entries of a ledger whose chain holds, without touching it; none if it does not.

    A last line without its end paid for nothing and is passed over.
    """
    try:
        content = DISK.read(path, MOST_TEXT_BYTES)
    except OSError:
        return []
    entries: list[dict[str, Any]] = []
    previous = GENESIS
    for line in content.split(b"\n")[:-1]:
        try:
            entry = parse(line, path.name)
            unsigned = {key: value for key, value in entry.items() if key != "digest"}
            good = (
                entry["previous"] == previous
                and entry["digest"] == hashlib.sha256(canonical(unsigned)).hexdigest()
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if not good:
            return []
        entries.append(entry)
        previous = hashlib.sha256(line).hexdigest()
    return entries


def _belongs(header: Mapping[str, Any], one: Reservation) -> bool:
    """Whether a ledger is that of the run for which was reserved."""
    noted = header.get("budget")
    return (
        header.get("kind") == "header"
        and header.get("data_sha256") == one.data_sha256
        and isinstance(noted, dict)
        and noted.get("reservation") == one.identifier
    )
