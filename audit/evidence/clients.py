"""Several clients, each with a folder of its own, as one training: what holds for all of them.

A federated client that trains by itself, with Opacus for instance, leaves one folder for all of its
rounds. Each is audited alone. With disjoint records, one record is in one client's steps only, so
that the largest ε holds for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.protection import Against, protects_nothing
from audit.reading.ledger import Header
from audit.verdict import Findings, Verdict

_WORST_FIRST = (Verdict.FAIL, Verdict.NOT_VERIFIED, Verdict.NO_CLAIM, Verdict.PASS)
DISJOINT = (
    "assumed, because the folders do not show it: no record is held by two clients; otherwise "
    "their losses on it add up"
)


@dataclass(frozen=True)
class Client:
    """One client's folder, audited.

    Attributes:
        folder: its name.
        header: of its ledger; None where that cannot be read.
        findings: what the audit found.
    """

    folder: str
    header: Header | None
    findings: Findings

    @property
    def costs(self) -> float | None:
        """ε that its steps cost, as the auditor composes them; None where it could not."""
        found = self.findings.named("accounting").details.get("epsilon")
        return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True)
class Merged:
    """All clients together.

    Attributes:
        verdict: the worst of the clients', or FAIL where they are no one training.
        epsilon: the largest that any client's steps cost; None where one could not be composed.
        delta: δ of all of them; None where they differ.
        reasons: why they are no one training.
        clients: one entry a client, with folder, run, verdict, epsilon and the failed checks.
        qualifications: what must qualify the verdict.
    """

    verdict: Verdict
    epsilon: float | None
    delta: float | None
    reasons: tuple[str, ...]
    clients: tuple[Mapping[str, Any], ...]
    qualifications: tuple[str, ...]

    @property
    def unprotected(self) -> Against | None:
        """Against whom all of them together have no meaningful protection."""
        return "anyone" if protects_nothing(self.epsilon) else None

    def to_json(self) -> dict[str, Any]:
        """Everything, JSON-ready; it tells how much each client trained and is restricted."""
        return {
            "verdict": self.verdict.value,
            **({} if self.unprotected is None else {"unprotected_against": self.unprotected}),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "reasons": list(self.reasons),
            "clients": [dict(one) for one in self.clients],
            "qualifications": list(self.qualifications),
        }


def merge(clients: list[Client]) -> Merged:
    """Judge clients together.

    Args:
        clients: at least one.
    """
    reasons = _apart(clients)
    verdicts = [one.findings.verdict for one in clients]
    verdict = next(worst for worst in _WORST_FIRST if worst in verdicts)
    costs = [one.costs for one in clients]
    known = [cost for cost in costs if cost is not None]
    deltas = {one.header.delta for one in clients if one.header is not None}
    qualifications = [text for one in clients for text in one.findings.qualifications]
    return Merged(
        verdict=Verdict.FAIL if reasons else verdict,
        epsilon=max(known) if len(known) == len(costs) else None,
        delta=deltas.pop() if len(deltas) == 1 else None,
        reasons=tuple(reasons),
        clients=tuple(_entry(one) for one in clients),
        qualifications=(DISJOINT, *dict.fromkeys(qualifications)),
    )


def _entry(one: Client) -> dict[str, Any]:
    return {
        "folder": one.folder,
        "run": one.findings.run,
        "verdict": one.findings.verdict.value,
        "epsilon": one.costs,
        "failed": [found.name for found in one.findings.findings if found.verdict is Verdict.FAIL],
    }


def _apart(clients: list[Client]) -> list[str]:
    """Why the folders are not those of one training's clients."""
    reasons = []
    runs = [one.findings.run for one in clients]
    if len(set(runs)) < len(runs):
        reasons.append("one folder is given twice, or two hold the same run")
    headers = [one.header for one in clients if one.header is not None]
    if len(headers) < len(clients):
        reasons.append("the ledger of a client cannot be read")
    for what, values in (
        ("delta", {one.delta for one in headers}),
        ("unit of protection", {one.of_clients for one in headers}),
        ("adjacency", {one.adjacency for one in headers}),
        ("number of parameters", {one.parameters for one in headers}),
    ):
        if len(values) > 1:
            reasons.append(f"the clients do not have the same {what}")
    return reasons
