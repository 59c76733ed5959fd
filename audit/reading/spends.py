"""What a ledger charges: one client's round at record level, one whole round at client level.

`ledger` reads every line of the kind "spend" through `read_spend`, which tells the two apart by the
unit that the line names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.untrusted import fields
from audit.untrusted.fields import FieldError


@dataclass(frozen=True)
class Spend:
    """One client's charge for one round (and attempt), written before its noise."""

    line: int
    round: int
    client: int
    attempt: int
    records: int
    sampling: str
    sampling_rate: float
    expected_batch_size: float
    clipping_norm: float
    noise_multiplier: float
    steps: int
    queries_per_step: int
    rate_stated: bool = False

    @property
    def stated_rate(self) -> float | None:
        """Q where the charge says that the spec states it; None where it is B/R."""
        return self.sampling_rate if self.rate_stated else None


@dataclass(frozen=True)
class RoundSpend:
    """One round's charge (and attempt) at client level, written before its noise.

    Attributes:
        line: line of the ledger, from 1.
        round: index of the round.
        attempt: from 1; a round that is run again is charged again.
        sampling: how clients come to take part.
        sampling_rate: l, each client's chance to take part.
        expected_clients: S, the public number that the noisy sum is divided by.
        clipping_norm: C of one client's whole update.
        noise_multiplier: sigma of the noise on the sum.
        noise_added_by: "server" or "clients".
        clients: who takes part; may be empty.
        upload_noise_multiplier: sigma of a single upload where clients add the noise.
    """

    line: int
    round: int
    attempt: int
    sampling: str
    sampling_rate: float
    expected_clients: float
    clipping_norm: float
    noise_multiplier: float
    noise_added_by: str
    clients: tuple[int, ...]
    upload_noise_multiplier: float | None


def read_spend(entry: Mapping[str, Any], line: int) -> Spend | RoundSpend:
    """A spend line as the charge that it is.

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    if entry.get("unit", "record") == "record":
        return _spend(entry, line)
    fields.choice(entry, "unit", ("client",))
    return _round_spend(entry, line)


def _spend(entry: Mapping[str, Any], line: int) -> Spend:
    rate = fields.positive(entry, "sampling_rate", most=1.0)
    return Spend(
        line=line,
        round=fields.integer(entry, "round"),
        client=fields.integer(entry, "client"),
        attempt=fields.integer(entry, "attempt", least=1, most=1_000_000),
        records=fields.integer(entry, "records", least=1),
        sampling=fields.text(entry, "sampling"),
        sampling_rate=rate,
        expected_batch_size=fields.positive(entry, "expected_batch_size"),
        clipping_norm=fields.positive(entry, "clipping_norm"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
        steps=fields.integer(entry, "steps", least=1, most=10_000_000),
        queries_per_step=fields.integer(entry, "queries_per_step", least=1, most=1000),
        rate_stated="rate_stated" in entry and fields.flag(entry, "rate_stated"),
    )


def _round_spend(entry: Mapping[str, Any], line: int) -> RoundSpend:
    clients = fields.integers(entry, "clients")
    if len(set(clients)) != len(clients):
        raise FieldError("clients has a client twice")
    upload = None
    if entry.get("upload_noise_multiplier") is not None:
        upload = fields.positive(entry, "upload_noise_multiplier")
    return RoundSpend(
        line=line,
        round=fields.integer(entry, "round"),
        attempt=fields.integer(entry, "attempt", least=1, most=1_000_000),
        sampling=fields.text(entry, "sampling"),
        sampling_rate=fields.positive(entry, "sampling_rate", most=1.0),
        expected_clients=fields.positive(entry, "expected_clients"),
        clipping_norm=fields.positive(entry, "clipping_norm"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
        noise_added_by=fields.choice(entry, "noise_added_by", ("server", "clients")),
        clients=clients,
        upload_noise_multiplier=upload,
    )


def last_spends(spends: Iterable[Spend]) -> dict[tuple[int, int], Spend]:
    """The charge of each (round, client) under which the round was finished: its last attempt's."""
    return {
        (spend.round, spend.client): spend for spend in sorted(spends, key=lambda one: one.attempt)
    }


def last_round_spends(spends: Iterable[RoundSpend]) -> dict[int, RoundSpend]:
    """The charge of each round under which it was finished: that of its last attempt."""
    return {spend.round: spend for spend in sorted(spends, key=lambda one: one.attempt)}
