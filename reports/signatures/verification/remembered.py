"""The latest state of each run that its reader verified, so that an earlier one is not believed.

An earlier signed state of a run was rightly signed, so nothing in the run can tell that it was put
back. The reader can: like ssh with the hosts it knows, `verify` keeps, beside the reader's keys,
the highest number that it saw of each attestation under a key that the reader knows. A first check
has nothing to compare with.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from reports.errors import KeyFileError, SourceError
from reports.reading.files import clean, integer, mapping, parse_json, read_bytes, write_atomic
from reports.signatures.verification.results import Found

FILE = "verified.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Seen:
    """One attestation as it was seen.

    Attributes:
        sequence: Its number.
        sha256: Of its envelope.
    """

    sequence: int
    sha256: str


Runs = dict[str, dict[str, Seen]]


def read(path: Path) -> Runs:
    """Return what was seen, by run and envelope; nothing where there is no such file.

    Raises:
        KeyFileError: The file is damaged.
    """
    if not os.path.lexists(path):
        return {}
    try:
        runs = mapping(mapping(parse_json(read_bytes(path), path.name)).get("runs"))
    except SourceError as error:
        raise KeyFileError(f"{path.parent}/{error}; move it away to begin anew") from error
    return {
        run: {name: _seen(entry, path) for name, entry in mapping(entries).items()}
        for run, entries in runs.items()
    }


def _seen(entry: object, path: Path) -> Seen:
    fields = mapping(entry)
    sequence, digest = integer(fields.get("sequence")), fields.get("sha256")
    if sequence is None or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise KeyFileError(f"{path}: is damaged; move it away to begin anew")
    return Seen(sequence, digest)


def refuse_earlier(
    known: Runs, run: str, present: dict[str, Seen], path: Path, found: Found
) -> None:
    """Note attestations that are older than what was seen, or others under the same number."""
    for name, before in known.get(run, {}).items():
        now = present.get(name)
        if now is None:
            continue
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


def remember(known: Runs, run: str, present: dict[str, Seen], path: Path, found: Found) -> None:
    """Keep the present numbers, and say so where that cannot be."""
    if known.get(run, {}).items() >= present.items():
        return
    merged = {**known, run: {**known.get(run, {}), **present}}
    content = {
        "format": 1,
        "runs": {
            name: {
                envelope: {"sequence": seen.sequence, "sha256": seen.sha256}
                for envelope, seen in sorted(entries.items())
            }
            for name, entries in sorted(merged.items())
        },
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(content, indent=2) + "\n").encode("utf-8"), 0o600)
    except (OSError, SourceError) as error:
        found.say(f"This state could not be remembered ({clean(str(error), 160)}).")
