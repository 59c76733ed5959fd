"""What a check of a signed run found, and what its reader saw of the run before.

A result names problems by file, how far the check reaches, and who signed.

An earlier signed state of a run was rightly signed, so nothing in the run can tell that it was put
back. The reader can: like ssh with the hosts it knows, `verify` keeps, with the reader's keys, the
highest number that it saw of each attestation under a key that the reader knows. A first check has
nothing to compare with. Numbers are kept by run and by signing key. Else somebody whose key the
reader knows as well could sign a copy of another's run with a high number, and the true run would
not hold any more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from reports.errors import KeyFileError, ReportError, SourceError
from reports.files import alone, clean, integer, mapping, parse_json, read_bytes, write_atomic
from reports.signatures.inventory import Problem
from reports.signatures.keys import Role, default_directory


class Outcome(StrEnum):
    """What a check comes to, in the words that are printed."""

    ALL_HOLD = "ALL HOLD"
    SIGNER_UNKNOWN = "INTACT, SIGNER UNKNOWN"
    NOT_VALID = "NOT VALID"


@dataclass(frozen=True)
class Signer:
    """Who signed what.

    Attributes:
        role: "trainer", "auditor", or "signer" for a person who signs a report off.
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
        """Whether everything holds, regardless of who signed."""
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
    # A hostile envelope may name very many files: a search of the list would take days.
    _known: set[Problem] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, file: str, reason: str) -> None:
        """Note that a file does not hold; the same again is noted once."""
        problem = Problem(file, reason)
        if problem not in self._known:
            self._known.add(problem)
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


MEMORY_FILE = "verified.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Nothing is forgotten for something new: else many runs could push out the one that matters.
_MOST_STATES, _LONGEST_NAME = 20_000, 200


@dataclass(frozen=True)
class Seen:
    """One attestation as it was seen.

    Attributes:
        sequence: Its number.
        sha256: Of its envelope.
    """

    sequence: int
    sha256: str


@dataclass(frozen=True)
class Present:
    """One attestation as it lies there now.

    Attributes:
        seen: Its number and digest.
        keys: Fingerprints of the key that signed it and of those that this one replaced.
    """

    seen: Seen
    keys: frozenset[str]


@dataclass(frozen=True)
class Memory:
    """What was seen.

    Attributes:
        states: By run, envelope, and fingerprint of the key that signed it.
        without_keys: By run and envelope, as versions wrote it that kept no keys. The signer is
            not known, so it is told and refuses nothing.
    """

    states: dict[str, dict[str, dict[str, Seen]]] = field(default_factory=dict)
    without_keys: dict[str, dict[str, Seen]] = field(default_factory=dict)


def own_memory() -> Path:
    """Return the file with the states seen, in the caller's own key folder.

    Raises:
        KeyFileError: There is no home folder that it could be in.
    """
    return default_directory() / MEMORY_FILE


def read_memory(path: Path) -> Memory:
    """Return what was seen; nothing where there is no such file.

    Raises:
        KeyFileError: The file is damaged.
    """
    if not os.path.lexists(path):
        return Memory()
    try:
        document = mapping(parse_json(read_bytes(path), path.name))
    except SourceError as error:
        raise KeyFileError(
            f"{path.parent}/{error}; move it away to start again, or verify with --no-memory"
        ) from error
    runs = mapping(document.get("runs"))
    if document.get("format") != 2:
        return Memory(without_keys=_envelopes(runs, path))
    states = {
        run: {
            name: {key: _seen(entry, path) for key, entry in mapping(keys).items()}
            for name, keys in mapping(entries).items()
        }
        for run, entries in runs.items()
    }
    return Memory(states, _envelopes(mapping(document.get("without_keys")), path))


def _envelopes(runs: Mapping[str, Any], path: Path) -> dict[str, dict[str, Seen]]:
    return {
        run: {name: _seen(entry, path) for name, entry in mapping(entries).items()}
        for run, entries in runs.items()
    }


def _seen(entry: object, path: Path) -> Seen:
    fields = mapping(entry)
    sequence, digest = integer(fields.get("sequence")), fields.get("sha256")
    if sequence is None or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise KeyFileError(
            f"{path}: is damaged; move it away to start again, or verify with --no-memory"
        )
    return Seen(sequence, digest)


def refuse_earlier(
    known: Memory, run: str, present: Mapping[str, Present], path: Path, found: Found
) -> None:
    """Note attestations that are older than what was seen by the same signer, or others of it."""
    for name, now in present.items():
        of_signer = known.states.get(run, {}).get(name, {})
        for before in {of_signer[key] for key in now.keys & of_signer.keys()}:
            _refuse(before, now.seen, name, path, found)
        old = known.without_keys.get(run, {}).get(name)
        if old is not None and old.sequence > now.seen.sequence:
            found.say(
                f"{name}: number {old.sequence} of this run was verified here before, by a version "
                f"that did not keep whose key signed it; this is number {now.seen.sequence}. If "
                "the same key signed both, an earlier state was put back: ask the signer."
            )


def _refuse(before: Seen, now: Seen, name: str, path: Path, found: Found) -> None:
    if now.sequence < before.sequence:
        found.add(
            name,
            f"is number {now.sequence} of this run, and number {before.sequence} was verified "
            f"here before: an earlier state was put back ({path} remembers)",
        )
    elif now.sequence == before.sequence and now.sha256 != before.sha256:
        found.add(
            name,
            f"is another number {now.sequence} than the one verified here before: the run was "
            f"signed twice from one state ({path} remembers)",
        )


def remember(run: str, present: Mapping[str, Present], path: Path, found: Found) -> None:
    """Keep the present numbers, and say so where that cannot be."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(path.parent):
            _add(read_memory(path), run, present, path)
    except (OSError, SourceError, KeyFileError) as error:
        found.say(f"This state could not be remembered ({clean(str(error), 160)}).")


def _add(known: Memory, run: str, present: Mapping[str, Present], path: Path) -> None:
    """Write what is newer than what another process may have written by now.

    Raises:
        SourceError: There is no more room.
    """
    states, without_keys = deepcopy(known.states), deepcopy(known.without_keys)
    for name, now in present.items():
        keys = states.setdefault(run, {}).setdefault(name, {})
        for key in now.keys:
            if key not in keys or keys[key].sequence < now.seen.sequence:
                keys[key] = now.seen
        old = without_keys.get(run, {}).get(name)
        if old is not None and old.sequence <= now.seen.sequence:
            del without_keys[run][name]
    without_keys = {one: entries for one, entries in without_keys.items() if entries}
    if (states, without_keys) == (known.states, known.without_keys):
        return
    count = sum(len(keys) for entries in states.values() for keys in entries.values())
    if count > _MOST_STATES or len(run) > _LONGEST_NAME:
        raise SourceError(f"{path.name}: has no room for more than {_MOST_STATES} states")
    content = {
        "format": 2,
        "runs": {
            one: {
                name: {key: _written(seen) for key, seen in sorted(keys.items())}
                for name, keys in sorted(entries.items())
            }
            for one, entries in sorted(states.items())
        },
        "without_keys": {
            one: {name: _written(seen) for name, seen in sorted(entries.items())}
            for one, entries in sorted(without_keys.items())
        },
    }
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode("utf-8"), 0o600)


def _written(seen: Seen) -> dict[str, Any]:
    return {"sequence": seen.sequence, "sha256": seen.sha256}
