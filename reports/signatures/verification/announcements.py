"""A run's intent, challenge and draw: who signed them, when, and whether they are the run's."""

from __future__ import annotations

from typing import Any

from reports.errors import EnvelopeError, SourceError, local
from reports.files import Snapshot
from reports.signatures import challenges, signing, transparency
from reports.signatures.challenges import Challenge, Signed
from reports.signatures.inventory import CHALLENGE, DRAW, INTENT
from reports.signatures.keys import Role, fingerprint
from reports.signatures.statements import written_time
from reports.signatures.timestamps import Timestamp
from reports.signatures.verification import envelopes
from reports.signatures.verification.envelopes import Keys, Trust, stamp_beside
from reports.signatures.verification.results import Found


def check(
    files: Snapshot, coin: dict[str, Any] | None, keys: Keys, trust: Trust, found: Found
) -> None:
    """Check what was signed before a run was trained, and before it was opened.

    Args:
        files: The files of a run directory, or the public ones alone.
        coin: What the ledger's header says of the challenge; None where it says nothing.
        keys: The run's keys, of `envelopes.check_keys`.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signatures that do.
    """
    try:
        challenge = challenges.read_challenge(
            files.read(CHALLENGE, challenges.MOST_BYTES), CHALLENGE
        )
    except (SourceError, EnvelopeError) as error:
        found.add_error(CHALLENGE, local(error, files.folder))
        return
    _check_intent(files, challenge, keys, trust, found)
    _signer(challenge, "auditor", CHALLENGE, None, trust, found)
    if coin is not None and coin != {**challenge.header(), "own": coin.get("own")}:
        found.add(CHALLENGE, "is not what the ledger's header says of it")
    seen = challenge.seen
    dropped = f"{seen.dropped_of_trainer} of those before came to no run that passed"
    found.say(
        f"An auditor fixed this run's noise beforehand, with a nonce of "
        f"{written_time(challenge.created)} for intent number {seen.of_trainer} of this trainer "
        f"(number {seen.for_data} for these data; {dropped}). Whether the noise follows from it "
        "is seen where participations are opened and computed again."
    )
    if coin is not None and coin.get("own") is True:
        found.say("Auditor and trainer are one: the challenge is by a key of the trainer's own.")
    if files.holds(DRAW):
        _check_draw(files, challenge, trust, found)


def _check_intent(
    files: Snapshot, challenge: Challenge, keys: Keys, trust: Trust, found: Found
) -> None:
    """Check that the intent is the one that was answered, by the trainer, for this spec."""
    intent, trainer = challenge.intent, keys.get("trainer")
    try:
        if files.read(INTENT, challenges.MOST_BYTES) != intent.envelope:
            found.add(INTENT, f"is not the one that {CHALLENGE} answers")
        if files.holds("spec.yaml") and files.sha256("spec.yaml") != intent.promised.spec_sha256:
            found.add(INTENT, "announces another spec than the run's")
    except SourceError as error:
        found.add_error(INTENT, local(error, files.folder))
    rotations = signing.TRAINER_ROTATIONS
    if (
        trainer is not None
        and fingerprint(trainer) != intent.fingerprint
        and not envelopes.leads_to(files, rotations, "trainer", intent.key, trainer, trust, found)
    ):
        found.add(INTENT, f"is signed by {intent.fingerprint}, not by the run's trainer")
        return
    stamp = stamp_beside(files, INTENT, intent.envelope, trust, found)
    _proof_beside(files, INTENT, intent.envelope, trust, found)
    _signer(intent, "trainer", INTENT, stamp, trust, found, same=trainer is not None)


def _check_draw(files: Snapshot, challenge: Challenge, trust: Trust, found: Found) -> None:
    """Check that the auditor who challenged the run made the draw, for this ledger."""
    try:
        draw = challenges.read_draw(files.read(DRAW, challenges.MOST_BYTES), DRAW)
        if draw.ledger_sha256 != files.sha256("ledger.jsonl"):
            found.add(DRAW, "was drawn for another ledger")
    except (SourceError, EnvelopeError) as error:
        found.add_error(DRAW, local(error, files.folder))
        return
    if draw.fingerprint != challenge.fingerprint:
        found.add(
            DRAW, f"is signed by {draw.fingerprint}, not by the auditor who challenged the run"
        )
        return
    stamp = stamp_beside(files, DRAW, draw.envelope, trust, found)
    _proof_beside(files, DRAW, draw.envelope, trust, found)
    _signer(draw, "auditor", DRAW, stamp, trust, found)


def _signer(
    signed: Signed,
    role: Role,
    name: str,
    stamp: Timestamp | None,
    trust: Trust,
    found: Found,
    same: bool = False,
) -> None:
    """Note a signature that holds, and whether the caller knows its key.

    Args:
        signed: What was read.
        role: Who must have signed.
        name: Of the file.
        stamp: A time to rely on.
        trust: What the caller brings along.
        found: Gets the signature, or that its key is revoked.
        same: Whether the key is known to lead to the one that the run's own signature is by.
    """
    key = signed.fingerprint
    if envelopes.refuse_revoked(key, name, trust, stamp, found):
        return
    time = written_time(stamp.time) if stamp is not None else None
    signer = trust.signer(role, key, name, time)
    pinned = trust.pinned.get(role)
    if pinned is not None and not same and fingerprint(pinned) != key:
        # The caller's key is that of another auditor: this one is not known by it.
        known = key in trust.own[role]
        signer = type(signer)(role, key, name, pinned=False, time=time, own=known)
    found.signers.append(signer)


def _proof_beside(files: Snapshot, name: str, data: bytes, trust: Trust, found: Found) -> None:
    """Check the proof that a transparency log holds an envelope, if there is one."""
    beside = name + signing.PROOF_SUFFIX
    if not files.holds(beside):
        return
    try:
        proof = files.read(beside, transparency.MOST_BYTES)
        entry = transparency.check(proof, data, trust.logs, beside)
    except (SourceError, EnvelopeError) as error:
        found.add_error(beside, local(error, files.folder))
        return
    place = f"entry {entry.index} of {entry.size} of the log {entry.origin}"
    if entry.trusted:
        found.say(f"{name}: is {place}, as the log signed; its other entries tell what else was.")
    else:
        found.say(f"{name}: says that it is {place}; give the log's key (--log-key) to rely on it.")
