"""Which keys are revoked, read from lists that their holders gave out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from reports.errors import KeyFileError, SourceError, local
from reports.files import read_bytes
from reports.signatures.keys import ROLES, refuse_open
from reports.signatures.trust.statements import Revocation, Sealed, read_bundle, read_revocation

_MOST_BYTES = 4_000_000

Revoked = dict[str, Revocation]


def list_path(directory: Path, role: str) -> Path:
    """Return where a key folder keeps the revocations of one role's keys."""
    return directory / f"{role}.revocations.json"


def own_revocations(directory: Path) -> Revoked:
    """Return what a key folder says of revoked keys, by fingerprint.

    Raises:
        KeyFileError: A list cannot be read, or others may write to the folder.
        EnvelopeError: A list is damaged, or not signed by who may.
    """
    refuse_open(directory)
    paths = (list_path(directory, role) for role in ROLES)
    return read_lists(path for path in paths if os.path.lexists(path))


def read_lists(paths: Iterable[Path]) -> Revoked:
    """Read lists of revocations; of several for one key, the earliest date counts.

    Raises:
        KeyFileError: A file cannot be read.
        EnvelopeError: It is damaged, or a revocation is not signed by who may.
    """
    found: Revoked = {}
    for path in paths:
        for revocation in (read_revocation(e.envelope, str(path)) for e in read_entries(path)):
            known = found.get(revocation.key)
            if known is None or revocation.since < known.since:
                found[revocation.key] = revocation
    return found


def read_entries(path: Path) -> tuple[Sealed, ...]:
    """Return the signed entries of one list.

    Raises:
        KeyFileError: The file cannot be read.
        EnvelopeError: It is no such list.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
    except SourceError as error:
        raise KeyFileError(f"{path.parent}/{local(error, path.parent)}") from error
    return read_bundle(data, "revocations", str(path))
