"""What a check of a signed run found: problems by file, how far the check reaches, who signed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from reports.errors import ReportError
from reports.signatures.inventory import Problem
from reports.signatures.keys import Role


class Outcome(StrEnum):
    """What a check comes to, in the words that are printed."""

    ALL_HOLD = "ALL HOLD"
    SIGNER_UNKNOWN = "INTACT, SIGNER UNKNOWN"
    NOT_VALID = "NOT VALID"


@dataclass(frozen=True)
class Signer:
    """Who signed what.

    Attributes:
        role: "trainer", "auditor", or "signer" for whoever signs a report off.
        fingerprint: Of the key under which the signature holds.
        envelope: Name of the signed file.
        pinned: Whether the key was given by the caller rather than found in the run.
        time: When, as a time-stamping authority says whom the caller trusts; ISO 8601, or None.
        own: Whether the key lies in the caller's own key folder.
        person: The name in the certificate, of somebody who signs a report off; else None.
        decision: The decision that such a person signed; None where only the pages can say it.
    """

    role: Role | Literal["signer"]
    fingerprint: str
    envelope: str
    pinned: bool
    time: str | None = None
    own: bool = False
    person: str | None = None
    decision: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the caller knows the key from elsewhere than the run."""
        return self.pinned or self.own


@dataclass(frozen=True)
class VerificationResult:
    """What was found.

    Attributes:
        problems: What does not hold, each naming its file.
        statements: How far the check reaches: integrity, independence, the verdict, evidence.
        signers: The signatures that hold.
        sequence: Each attestation's number, by the envelope's name; 0 where it has none.
        level: How much stands behind the verdict, from 1 to 4 (`reports.content.assurance`); None
            where the verdict is not PASS, something does not hold, or not the whole run is there.
    """

    problems: tuple[Problem, ...]
    statements: tuple[str, ...]
    signers: tuple[Signer, ...]
    sequence: dict[str, int]
    level: int | None = None

    @property
    def is_intact(self) -> bool:
        """Whether nothing was found that does not hold, whoever signed."""
        return not self.problems

    @property
    def outcome(self) -> Outcome:
        """What the check comes to."""
        if self.problems:
            return Outcome.NOT_VALID
        known = bool(self.signers) and all(signer.is_known for signer in self.signers)
        return Outcome.ALL_HOLD if known else Outcome.SIGNER_UNKNOWN

    @property
    def ok(self) -> bool:
        """Whether everything holds, by keys that the caller knows from elsewhere."""
        return self.outcome is Outcome.ALL_HOLD

    def to_json(self) -> dict[str, Any]:
        """Return all of it for a machine."""
        return {"outcome": self.outcome.value, "ok": self.ok, **asdict(self)}


@dataclass
class Found:
    """Collects what is found.

    Attributes:
        problems: What does not hold.
        statements: What is to be said besides.
        signers: The signatures that hold.
        sequence: Each attestation's number, by the envelope's name.
    """

    problems: list[Problem] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    signers: list[Signer] = field(default_factory=list)
    sequence: dict[str, int] = field(default_factory=dict)

    def add(self, file: str, reason: str) -> None:
        """Note that a file does not hold; the same again is noted once."""
        problem = Problem(file, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_error(self, file: str, error: ReportError | str) -> None:
        """Note an error, or its text, that is about a file."""
        self.add(file, str(error).removeprefix(f"{file}: ").rstrip("."))

    def say(self, statement: str) -> None:
        """Note what is no problem, but must be known; the same again is noted once."""
        if statement not in self.statements:
            self.statements.append(statement)

    def result(self) -> VerificationResult:
        """Return all of it."""
        return VerificationResult(
            tuple(self.problems), tuple(self.statements), tuple(self.signers), dict(self.sequence)
        )
