"""The number of a signature: every attestation says which one of its run it supersedes.

Each signing anew counts one up and names the SHA-256 of the envelope that it replaces. Whoever
knows the latest number, or its digest, sees that an earlier signed state was put back; nothing in
the run directory alone can show that, because the earlier state was rightly signed too.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from reports.errors import EnvelopeError, local
from reports.files import integer, read_bytes
from reports.signatures.dsse import Statement, parse_envelope, parse_statement

# Whole numbers up to here are the same in every reader of JSON.
_MOST = 2**53 - 1


def number(statement: Statement, where: str) -> int:
    """Return a statement's number, counted from 1; 0 for one of the form before numbers.

    Raises:
        EnvelopeError: It has none, or one out of range.
    """
    if not statement.is_numbered:
        return 0
    found = integer(statement.predicate.get("sequence"))
    if found is None or not 1 <= found <= _MOST:
        raise EnvelopeError(f"{where}: its sequence number must be from 1 to {_MOST}")
    return found


def entry(run_dir: Path, name: str, kind: str, run: str) -> dict[str, Any]:
    """Return what a new attestation says of its place: its number, and what it supersedes.

    Args:
        run_dir: The run directory.
        name: The envelope's file, in which the superseded one lies if there is one.
        kind: The predicate's type.
        run: The run's identifier; an envelope that was copied from another run counts as none.

    Raises:
        SourceError: The envelope there cannot be read.
        EnvelopeError: It is damaged, so what follows it is unknown.
    """
    if not os.path.lexists(run_dir / name):
        return {"sequence": 1, "supersedes": None}
    data = read_bytes(run_dir / name)
    try:
        statement = parse_statement(parse_envelope(data, name).payload, kind, name)
        before = number(statement, name)
    except EnvelopeError as error:
        raise EnvelopeError(
            f"{local(error, run_dir)}; what a new signature supersedes is unknown: put the file "
            "back as it was, or move it out of the run directory and begin at number 1"
        ) from error
    if statement.predicate.get("run") != run:
        return {"sequence": 1, "supersedes": None}
    if before == _MOST:
        raise EnvelopeError(f"{name}: no number is left for another signature")
    # The form before numbers was some first signature, so what follows it is the second.
    return {"sequence": max(before, 1) + 1, "supersedes": hashlib.sha256(data).hexdigest()}
