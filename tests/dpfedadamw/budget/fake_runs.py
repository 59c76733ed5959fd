"""Runs that reserve, charge a real ledger, crash and go on, without training anything."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dpfedadamw.budget import reservations
from dpfedadamw.budget.charges import charged
from dpfedadamw.budget.database import Account, BudgetError
from dpfedadamw.budget.reservations import Request, read_ledger
from dpfedadamw.privacy.composition import Composition, merge
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.rundir import appeared, starting
from dpfedadamw.storage.lock import LockedError, RunLock

DELTA = 1e-5
ACCOUNT = Account(
    data_sha256="a" * 64,
    dataset="digits",
    unit="record",
    adjacency="add-remove",
    partition_sha256=None,
    epsilon=4.0,
    delta=DELTA,
)
ROUNDS = 5


def cost(noise: float, steps: int) -> tuple[Composition, ...]:
    """What a fake run's rounds cost: each is one plain Gaussian, which is quick to compose."""
    return (Composition(noise, 1.0, steps),) if steps else ()


def request(folder: Path, noise: float, worst: tuple[Composition, ...]) -> Request:
    return Request(
        account=ACCOUNT,
        run=folder.name,
        directory=folder,
        cost=worst,
        cost_of_rounds=lambda rounds: cost(noise, rounds),
        most_rounds=ROUNDS,
    )


def header(noise: float, reservation: str) -> dict[str, object]:
    return {
        "data_sha256": ACCOUNT.data_sha256,
        "unit": "record",
        "rounds": ROUNDS,
        "local_steps": 1,
        "noise_multiplier": noise,
        "adaptation": None,
        "budget": {"epsilon": ACCOUNT.epsilon, "delta": DELTA, "reservation": reservation},
    }


def spend(index: int, noise: float) -> dict[str, object]:
    return {
        "round": index,
        "client": 0,
        "records": 10,
        "sampling": "poisson",
        "sampling_rate": 1.0,
        "expected_batch_size": 10.0,
        "noise_multiplier": noise,
        "steps": 1,
        "queries_per_step": 1,
    }


def begin(budget: Path, runs: Path, noise: float, crash=lambda where: None):
    """A new run's folder, its lock, ledger and reservation."""
    made = None
    try:
        with starting("fake", runs, datetime.now(UTC)) as (hidden, lock):
            folder = appeared(hidden).path
            made = reservations.reserve(budget, request(folder, noise, cost(noise, ROUNDS)))
            crash("reserved")
            Ledger(hidden.ledger).append("header", header(noise, made))
    except BudgetError:
        if made is not None:
            reservations.settle(budget, made, ())
        raise
    crash("appeared")
    reservations.confirm(budget, made)
    return folder, lock, Ledger(folder / "ledger.jsonl"), made


def work(budget: Path, ledger: Ledger, made: str, noise: float, first: int, crash) -> None:
    for index in range(first, ROUNDS):
        ledger.append("spend", spend(index, noise))
        crash("charged")
        ledger.append("round", {"round": index})
    reservations.settle(budget, made, ledger.entries)
    crash("settled")


def resume(budget: Path, folder: Path, crash) -> None:
    with RunLock(folder):
        ledger = Ledger(folder / "ledger.jsonl")
        noise = float(ledger.entries[0]["noise_multiplier"])
        made = ledger.entries[0]["budget"]["reservation"]
        completed = len(ledger.of_kind("round"))
        spent = charged(ledger.entries)
        worst = merge((*spent, *cost(noise, ROUNDS - completed))) if completed < ROUNDS else spent
        wanted = replace(request(folder, noise, worst), spent=spent)
        reservations.reserve_again(budget, made, wanted)
        crash("reserved again")
        work(budget, ledger, made, noise, completed, crash)


def lives(seed: int, budget: Path, runs: Path, many: int) -> None:
    """Begin runs, or go on with those of others, until this process dies somewhere."""
    chance = random.Random(seed)

    def crash(_where: str) -> None:
        if chance.random() < 0.08:
            os._exit(1)

    for _ in range(many):
        noise = chance.choice([8.0, 12.0, 20.0])
        others = [one for one in runs.glob("fake-*") if not one.is_symlink()]
        try:
            if others and chance.random() < 0.3:
                resume(budget, chance.choice(others), crash)
            else:
                _, lock, ledger, made = begin(budget, runs, noise, crash)
                with lock:
                    work(budget, ledger, made, noise, 0, crash)
        except (BudgetError, LockedError):
            continue


def costs_by_ledgers(runs: Path) -> list[tuple[Composition, ...]]:
    """What every run's ledger says was spent, whatever the budget thinks of it."""
    found = [read_ledger(one / "ledger.jsonl") for one in runs.glob("fake-*")]
    return [charged(entries) for entries in found if entries]
