"""A run and the budget of its data set: reserved before it begins, settled when it ends.

`reserving` and `reserve_resumed` go before anything is charged to the ledger, `settle` goes before
the claim.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedadamw.budget import charges, reservations
from dpfedadamw.budget.charges import Cost, Entries
from dpfedadamw.budget.database import Account, BudgetError
from dpfedadamw.budget.reservations import Request
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.rundir import RunDirectory


@dataclass
class Reservation:
    """The reservation of a run whose directory is being made.

    Attributes:
        experiment: What is to be run.
        noted: What the ledger's header says of it; None where nothing is reserved.
    """

    experiment: Experiment
    noted: dict[str, Any] | None = None

    def reserve(self, run: RunDirectory) -> dict[str, Any] | None:
        """Reserve the most that the run can cost.

        Args:
            run: Its directory, at the place where it will appear. The caller holds its lock.

        Returns:
            What the ledger's header says of it; None where the spec names no budget.

        Raises:
            BudgetError: If the run could exceed the budget.
        """
        experiment = self.experiment
        account = _account(experiment)
        if account is not None:
            made = reservations.reserve(_file(experiment), _request(experiment, account, run))
            self.noted = {"epsilon": account.epsilon, "delta": account.delta, "reservation": made}
        return self.noted


@contextlib.contextmanager
def reserving(experiment: Experiment) -> Iterator[Reservation]:
    """Reserve for a new run within the block, which makes its directory.

    After the block the reservation is confirmed; if it fails, what was reserved is given back.

    Raises:
        BudgetError: If the reservation is gone.
    """
    one = Reservation(experiment)
    try:
        yield one
    except BaseException:
        if one.noted is not None:
            # If this fails, the next reservation finds that the run never began.
            with contextlib.suppress(BudgetError):
                reservations.settle(_file(experiment), one.noted["reservation"], ())
        raise
    if one.noted is not None:
        reservations.confirm(_file(experiment), one.noted["reservation"])


def reserve_resumed(
    experiment: Experiment, run: RunDirectory, entries: Entries, completed: int
) -> None:
    """Reserve for a run that is continued.

    Args:
        experiment: What is run.
        run: Its directory.
        entries: Its ledger.
        completed: Rounds that are not run again.

    Raises:
        BudgetError: If the budget does not know the run, or could be exceeded.
    """
    noted, account = entries[0].get("budget"), _account(experiment)
    if noted is None and account is None:
        return
    if noted is None or account is None:
        raise RunError(f"{run.path}: spec.yaml and the ledger do not name the same budget")
    request = _request(experiment, account, run, entries, completed)
    reservations.reserve_again(_file(experiment), noted["reservation"], request)


def settle(experiment: Experiment, entries: Entries) -> dict[str, Any]:
    """Give back what a run did not spend.

    Args:
        experiment: What was run.
        entries: The run's whole ledger but for its claim.

    Returns:
        For the claim, ``budget``: ε and δ of the budget, and the ε that is charged to it now, null
        where its file cannot be written; then the next run settles this one. Nothing without a
        budget.
    """
    noted = entries[0].get("budget")
    if noted is None:
        return {}
    charged = None
    with contextlib.suppress(BudgetError):
        charged = reservations.settle(_file(experiment), noted["reservation"], entries).epsilon
    return {"budget": {"epsilon": noted["epsilon"], "delta": noted["delta"], "charged": charged}}


def _file(experiment: Experiment) -> Path:
    file = experiment.spec.budget.file
    assert file is not None
    return Path(file)


def _account(experiment: Experiment) -> Account | None:
    budget, plan = experiment.spec.budget, experiment.plan
    if budget.file is None:
        return None
    assert budget.epsilon is not None
    assert budget.delta is not None
    held = None
    if plan.unit.noises_updates:
        held = hashlib.sha256(experiment.owner.astype("<i8").tobytes()).hexdigest()
    elif plan.unit.of_people and experiment.dataset.people is not None:
        people = experiment.dataset.people.stored
        held = hashlib.sha256(people.astype("<i8").tobytes()).hexdigest()
    return Account(
        data_sha256=experiment.dataset.sha256,
        dataset=experiment.spec.data.dataset,
        unit=plan.unit.name,
        adjacency=plan.adjacency,
        partition_sha256=held,
        epsilon=float(budget.epsilon),
        delta=float(budget.delta),
    )


def _request(
    experiment: Experiment,
    account: Account,
    run: RunDirectory,
    entries: Entries = (),
    completed: int = 0,
) -> Request:
    plan = experiment.plan

    def cost_of(rounds: int) -> Cost:
        return charges.reserved(replace(plan, rounds=rounds))

    return Request(
        account=account,
        run=run.identifier,
        directory=run.path,
        cost=charges.reserved(plan, entries, completed),
        cost_of_rounds=None if entries else cost_of,
        most_rounds=plan.rounds,
        spent=charges.charged(entries) if entries else (),
    )
