"""Refuses to sign anew what was changed since it was signed: a signature judges nothing.

Whoever signs as the auditor without an audit takes over what an earlier audit found. So what lies
there must be what that audit's signature covers. Otherwise a verdict that somebody changed would
get the auditor's signature when a report is written, and lose the evidence against it by an
erasure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError, PdfSignatureError, SourceError
from reports.files import clean, read_bytes, sha256_file
from reports.signatures import pades, signing
from reports.signatures.bundles import BUNDLE
from reports.signatures.dsse import (
    RUN_TYPE,
    SHA256,
    TRAINING_TYPE,
    Envelope,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
)
from reports.signatures.inventory import (
    EVIDENCE,
    EvidenceDigests,
    evidence_digests,
    has_evidence,
    list_run,
)
from reports.signatures.keys import fingerprint

_TYPES = {signing.TRAINING_ENVELOPE: TRAINING_TYPE, signing.RUN_ENVELOPE: RUN_TYPE}
# What signing writes in each role, whatever lies there: a signing that was cut off is done again.
# The trainer signs before the auditor, who covers all that was trained file by file besides.
BY_TRAINER = frozenset(
    (
        signing.TRAINING_ENVELOPE,
        signing.TRAINING_ENVELOPE + signing.STAMP_SUFFIX,
        signing.TRAINER_KEY,
        signing.TRAINER_ROTATIONS,
        BUNDLE,
    )
)
BY_AUDITOR = frozenset(
    (
        signing.AUDITOR_KEY,
        signing.AUDITOR_ROTATIONS,
        signing.INSTRUCTIONS,
        signing.PUBLIC_INSTRUCTIONS,
        signing.PUBLIC_ENVELOPE,
        signing.PUBLIC_ENVELOPE + signing.STAMP_SUFFIX,
    )
)


def refuse_changed(
    run_dir: Path,
    name: str,
    keys: Iterable[ec.EllipticCurvePublicKey],
    rewritten: Collection[str],
) -> Statement:
    """Refuse to supersede an envelope if what it covers is not what lies there any more.

    Pages are signed in themselves before the envelope covers them: those of a signing that was cut
    off count as unchanged where one of the keys signed them.

    Args:
        run_dir: A run directory.
        name: The envelope, the trainer's or the auditor's.
        keys: Keys of its signer; one of them must have signed it.
        rewritten: Files that are written anew whatever they are. Evidence that is not here is
            passed over.

    Returns:
        What the envelope says.

    Raises:
        SourceError: The envelope or a file that it covers is missing, changed, or cannot be read;
            or a file lies there that the auditor's envelope does not cover.
        EnvelopeError: The envelope is damaged, or none of the keys signed it.
    """
    envelope = parse_envelope(read_bytes(run_dir / name), name)
    known = tuple(keys)
    if not any(_is_by(envelope, key, name) for key in known):
        raise EnvelopeError(f"{name}: was not signed by a key of yours, or was changed since")
    statement = parse_statement(envelope.payload, _TYPES[name], name)
    present, problems = list_run(run_dir)
    if problems:
        raise SourceError(str(problems[0]))
    for file, (kind, digest) in statement.subjects.items():
        if file in rewritten or (file == EVIDENCE and not has_evidence(run_dir)):
            continue
        if kind != SHA256:
            same = digest == due_digest(name, statement, evidence_digests(run_dir))
        elif file not in present:
            raise SourceError(f"{clean(file, 200)}: missing, though {name} covers it")
        else:
            same = digest == sha256_file(run_dir / file)
        if not same and not (file in signing.SIGNED_PAGES and _are_by(run_dir / file, known)):
            raise SourceError(f"{file}: changed since {name} was signed")
    if name == signing.RUN_ENVELOPE:
        itself = {name, name + signing.STAMP_SUFFIX}
        left = set(present) - set(statement.subjects) - itself - set(rewritten)
        if left:
            raise SourceError(f"{min(left)}: is not covered by {name}")
    return statement


def due_digest(envelope: str, statement: Statement, digests: EvidenceDigests) -> str:
    """Return the digest of the evidence that an envelope should name.

    The auditor's covers the findings too; in the form before sequence numbers neither did.
    """
    judged = envelope == signing.RUN_ENVELOPE and statement.is_numbered
    return digests.judged if judged else digests.trained


def _is_by(envelope: Envelope, key: ec.EllipticCurvePublicKey, name: str) -> bool:
    try:
        check_signature(envelope, key, name)
    except EnvelopeError:
        return False
    return True


def _are_by(pages: Path, keys: Collection[ec.EllipticCurvePublicKey]) -> bool:
    """Whether a PDF's own signature holds, by one of the keys."""
    try:
        key = pades.check(read_bytes(pages), pages.name).key
    except (SourceError, PdfSignatureError, KeyFileError):
        return False
    return fingerprint(key) in map(fingerprint, keys)
