"""What a check of a signed run found: problems by file, how far the check reaches, who signed."""

from __future__ import annotations

from dataclasses import dataclass, field

from reports.errors import ReportError
from reports.signatures.inventory import Problem
from reports.signatures.keys import Role


@dataclass(frozen=True)
class Signer:
    """Who signed what.

    Attributes:
        role: "trainer" or "auditor".
        fingerprint: Of the key under which the signature holds.
        envelope: Name of the signed file.
        pinned: Whether the key was given by the caller rather than found in the run.
        time: When, as a time-stamping authority says whom the caller trusts; ISO 8601, or None.
    """

    role: Role
    fingerprint: str
    envelope: str
    pinned: bool
    time: str | None = None


@dataclass(frozen=True)
class VerificationResult:
    """What was found.

    Attributes:
        ok: Whether there is no problem.
        problems: What does not hold, each naming its file.
        statements: How far the check reaches: integrity, independence, the verdict, evidence.
        signers: The signatures that hold.
    """

    ok: bool
    problems: tuple[Problem, ...]
    statements: tuple[str, ...]
    signers: tuple[Signer, ...]


@dataclass
class Found:
    """Collects what is found.

    Attributes:
        problems: What does not hold.
        statements: What is to be said besides.
        signers: The signatures that hold.
    """

    problems: list[Problem] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    signers: list[Signer] = field(default_factory=list)

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
            not self.problems, tuple(self.problems), tuple(self.statements), tuple(self.signers)
        )
