"""Ties a finished run to its intent, its challenge, a draw and what was opened for that draw.

Like `after_training`, the half of the commands without a terminal: it joins signatures (`reports`)
with ledgers and keys (`audit`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.reading import openings as opening
from audit.reading.bundle import MAXIMUM_LEDGER_BYTES
from audit.reading.ledger import read_ledger
from audit.reading.openings import Opening, Tree
from audit.reexecution import Participation, with_the_first_round
from audit.reexecution import draw as draw_from
from audit.untrusted import UntrustedError, files
from audit.untrusted.files import FileError
from dpfedadamw.errors import FilingError
from dpfedadamw.privacy.noise.key_tree import PublicCoin
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run.start_options import Challenged, Promise
from dpfedadamw.rundir import RunDirectory
from reports.signatures import challenges, intent_log, inventory, signing, timestamps
from reports.signatures.challenges import Challenge, Draw
from reports.signatures.dsse import TRAINING_TYPE, check_signature, parse_envelope, parse_statement
from reports.signatures.keyring import SigningKey, own_fingerprints
from reports.signatures.keys import default_directory, fingerprint, load_public, parse_public
from reports.signatures.keys import refuse_open as refuse_open_folder

# Lies with the trainer's keys. Makes the handle of a data set, which tells others nothing.
_DATA_SALT = "data.salt"
_SALT_BYTES = 32
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A challenged run whose ledger is signed.

    Attributes:
        run: Its directory.
        challenge: What it was challenged with, and the intent before that.
        ledger_sha256: Digest of its ledger.
        attestation_sha256: Digest of the trainer's attestation, which names that ledger.
        participations: Every client's part in every finished round.
        commits_to_start: Whether its header states the starting weights; if so, a participation of
            the first round is always drawn.
    """

    run: RunDirectory
    challenge: Challenge
    ledger_sha256: str
    attestation_sha256: str
    participations: tuple[Participation, ...]
    commits_to_start: bool

    @property
    def name(self) -> str:
        """The run's name, as intent and ledger have it; a copy's folder may be called otherwise."""
        return self.challenge.intent.promised.run

    @property
    def tree(self) -> Tree:
        """The keys that were committed to."""
        promised = self.challenge.intent.promised
        return Tree(promised.root, promised.rounds, promised.clients)

    @property
    def coin(self) -> PublicCoin:
        """What its streams are bound to."""
        return PublicCoin(self.challenge.nonce, self.name)

    def drawn(self, draw: Draw) -> tuple[Participation, ...]:
        """The participations that a draw for this run chose.

        Raises:
            FilingError: If it is for another run, or another ledger of it.
        """
        if draw.run != self.name:
            raise FilingError(f"draw.json: is for the run {draw.run}, not {self.name}")
        if draw.ledger_sha256 != self.ledger_sha256:
            raise FilingError(
                f"draw.json: is for another ledger of {draw.run} ({draw.ledger_sha256[:12]}…, and "
                f"the one here is {self.ledger_sha256[:12]}…): the ledger has changed since"
            )
        among, ledger = self.participations, self.ledger_sha256
        drawn = draw_from(among, draw.nonce, ledger, draw.participations)
        if not self.commits_to_start:
            return drawn
        return with_the_first_round(drawn, among, draw.nonce, ledger)


@dataclass(frozen=True, kw_only=True)
class Openings:
    """The part of a run's randomness that an auditor was shown, after all of it was checked.

    Attributes:
        run: The run.
        drawn: The participations to recompute.
        leaves: Their keys, and the server's in the same rounds.
        salts: What hides each drawn client's data in its commitment, by client.
        own: Whether the reader made the draw: its key is in the key folder.
    """

    run: FinishedRun
    drawn: tuple[Participation, ...]
    leaves: tuple[Opening, ...]
    salts: Mapping[int, bytes]
    own: bool


def read_challenged(challenge: Path, escrow: Path, trainer: SigningKey) -> Challenged:
    """What a run is started with, from an auditor's challenge and the escrow file.

    Args:
        challenge: The file that the auditor sent.
        escrow: The file that was written with the intent.
        trainer: The key that will sign the run.

    Raises:
        FilingError: If another trainer announced the run.
        reports.errors.ReportError: If a signature does not hold.
        PrivacyError: If the escrow file cannot be read.
    """
    read = challenges.read_challenge(read_file(challenge), str(challenge))
    if trainer.fingerprint != read.intent.fingerprint:
        raise FilingError(
            f"{challenge}: its intent was signed by {read.intent.fingerprint}, but this run would "
            f"be signed by {trainer.fingerprint}; give --trainer-key with the key that signed the "
            "intent"
        )
    signed = {inventory.INTENT: read.intent.envelope, inventory.CHALLENGE: read.envelope}
    if read.intent_timestamp is not None:
        signed[inventory.INTENT + signing.STAMP_SUFFIX] = read.intent_timestamp
    if read.intent_inclusion is not None:
        signed[inventory.INTENT + signing.PROOF_SUFFIX] = read.intent_inclusion
    promised = read.intent.promised
    coin = PublicCoin(read.nonce, promised.run)
    return Challenged(
        run=promised.run,
        promise=Promise(
            spec_sha256=promised.spec_sha256,
            root=promised.root,
            rounds=promised.rounds,
            clients=promised.clients,
            data=promised.data,
        ),
        randomness=ReleaseRandomness.from_escrow(escrow, coin),
        header={
            **read.header(),
            "own": read.fingerprint in own_fingerprints("auditor", default_directory()),
        },
        files=signed,
    )


def finished(run: RunDirectory) -> FinishedRun:
    """What a draw, and an opening, go by; refused unless all of it holds together.

    Raises:
        FilingError: If the run is not finished, not signed, or had no challenge.
        reports.errors.ReportError: If a signature does not hold.
    """
    try:
        raw = files.read_bytes(run.path, run.ledger.name, MAXIMUM_LEDGER_BYTES)
    except FileError as error:
        raise FilingError(f"{run.ledger}: {error.what}") from error
    ledger, digest = read_ledger(raw), hashlib.sha256(raw).hexdigest()
    header = ledger.header
    if ledger.faults or header is None:
        raise FilingError(f"{run.ledger}: has faults; see dpfedadamw audit {run.path}")
    if ledger.claim is None:
        raise FilingError(
            f"{run.path}: is not finished, and the draw comes after its ledger is signed; finish "
            "it with: dpfedadamw run --resume"
        )
    if header.public_coin is None:
        raise FilingError(
            f"{run.path}: had no intent and no challenge, so its trainer alone chose the key and "
            "an opened key would prove nothing. Audit it with the escrow file: dpfedadamw audit "
            "RUN_DIR --replay N --escrow FILE"
        )
    challenge = challenges.read_challenge(
        read_file(run.path / inventory.CHALLENGE), inventory.CHALLENGE
    )
    coin, promised = header.public_coin, challenge.intent.promised
    if (coin.challenge_sha256, coin.intent_sha256, coin.run, coin.nonce) != (
        challenge.sha256,
        challenge.intent.sha256,
        promised.run,
        challenge.nonce,
    ) or header.run != promised.run:
        raise FilingError(f"{run.path}: its ledger was written under another challenge")
    return FinishedRun(
        run=run,
        challenge=challenge,
        ledger_sha256=digest,
        attestation_sha256=_attested(run, digest, challenge),
        participations=opening.participations(ledger),
        commits_to_start=header.initial is not None,
    )


def read_openings(
    run: RunDirectory, draw: Path, opened: Path, auditor_key: Path | None = None
) -> Openings:
    """Read what a trainer opened for a draw, for the auditor who recomputes it.

    Args:
        run: A finished run.
        draw: The auditor's draw.
        opened: What the trainer opened for it.
        auditor_key: Public key that the draw must be by; one of the reader's own if not given.

    Raises:
        FilingError: If draw, run and openings do not belong together, or the draw is by a key that
            the reader does not know.
        reports.errors.ReportError: If a signature does not hold.
    """
    found, read, own = read_drawn(run, draw, auditor_key)
    drawn, raw = found.drawn(read), read_file(opened)
    try:
        leaves = opening.read_openings(raw, found.tree, drawn)
        salts = opening.read_salts(raw, drawn)
    except UntrustedError as error:
        raise FilingError(f"{opened}: {error}") from error
    return Openings(run=found, drawn=drawn, leaves=leaves, salts=salts, own=own)


def read_drawn(
    run: RunDirectory, draw: Path, auditor_key: Path | None = None
) -> tuple[FinishedRun, Draw, bool]:
    """Read an auditor's draw for a run, and whether its key lies in the reader's key folder.

    Args:
        run: A finished run.
        draw: The auditor's draw.
        auditor_key: Public key that the draw must be by; one of the reader's own if not given.

    Raises:
        FilingError: If draw and run do not belong together, or the draw is by a key that the reader
            does not know.
        reports.errors.ReportError: If a signature does not hold.
    """
    found = finished(run)
    read = challenges.read_draw(read_file(draw), str(draw))
    own = read.fingerprint in own_fingerprints("auditor", default_directory())
    if auditor_key is not None:
        pinned = fingerprint(load_public(auditor_key))
        if read.fingerprint != pinned:
            raise FilingError(f"{draw}: is signed by {read.fingerprint}, not by {pinned}")
    elif not own:
        raise FilingError(
            f"{draw}: is signed by {read.fingerprint}, which is no key of yours, and a draw made "
            "by the trainer would prove nothing; give the public key of an auditor you trust"
        )
    if read.fingerprint != found.challenge.fingerprint:
        raise FilingError(
            f"{draw}: is signed by {read.fingerprint}, but the run was challenged by "
            f"{found.challenge.fingerprint}; the draw must be signed by the same key"
        )
    return found, read, own


def remember(run: FinishedRun, verdict: str) -> None:
    """Note in the auditor's log the outcome of a run whose participations were recomputed.

    Raises:
        reports.errors.ReportError: If the log cannot be written, or was changed.
    """
    with intent_log.opened(default_directory()) as log:
        intent = run.challenge.intent.sha256
        log.judge(intent, run.ledger_sha256, run.name, verdict)


def openings(
    run: FinishedRun,
    draw: Draw,
    drawn: Sequence[Participation],
    randomness: ReleaseRandomness,
    escrow: Path,
) -> bytes:
    """The file that opens what was drawn.

    Raises:
        FilingError: If the key is not the one that the run's intent committed to.
    """
    tree = randomness.tree(run.tree.rounds, run.tree.clients)
    if tree.root != run.tree.root:
        raise FilingError(
            f"--escrow {escrow}: holds another key than the intent of {run.name} committed to"
        )
    content = {
        "format": _FORMAT,
        "run": run.name,
        "draw_sha256": draw.sha256,
        "leaves": [
            {
                "round": one.round,
                "client": one.client,
                "key": randomness.leaf(one.round, one.client).hex(),
                "path": tree.path(one.round, one.client),
            }
            for one in opening.opened_places(drawn)
        ],
        "salts": [
            {"client": client, "salt": randomness.data_salt(client).hex()}
            for client in sorted({one.client for one in drawn})
        ],
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def data_handle(data_sha256: str) -> str:
    """Marks a data set as the same one in all of this trainer's intents, and reveals nothing else.

    Raises:
        FilingError: If the secret that hides it can be neither read nor created.
    """
    folder = default_directory()
    path = folder / _DATA_SALT
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_open_folder(folder)
        if not path.exists():
            files.create(path, os.urandom(_SALT_BYTES), 0o600)
        salt = read_file(path)
    except OSError as error:
        raise FilingError(f"{path}: cannot be written ({error.strerror})") from error
    if len(salt) != _SALT_BYTES:
        raise FilingError(f"{path}: does not have {_SALT_BYTES} bytes; restore a copy of it")
    return hmac.digest(salt, bytes.fromhex(data_sha256), "sha256").hex()


def read_file(path: Path) -> bytes:
    """The bytes of a file that the user named.

    Raises:
        FilingError: If it is missing, too large or cannot be read.
    """
    try:
        return files.read_chosen(path, opening.MAXIMUM_BYTES)[0]
    except FileError as error:
        raise FilingError(f"{path}: {error.what}") from error


def write_new(path: Path, content: bytes, private: bool = False) -> None:
    """Write a new file, whole or not at all.

    Raises:
        FilingError: If it exists or cannot be written.
    """
    try:
        files.create(path, content, 0o600 if private else 0o644)
    except OSError as error:
        raise FilingError(f"{path}: cannot be written ({error.strerror})") from error


def stamp_of(path: Path) -> Path:
    """The path of an envelope's timestamp."""
    return path.with_name(path.name + signing.STAMP_SUFFIX)


def proof_of(path: Path) -> Path:
    """The path of the proof that a transparency log holds an envelope."""
    return path.with_name(path.name + signing.PROOF_SUFFIX)


def check_stamp(stamp: bytes, data: bytes, path: Path) -> None:
    """Refuse a timestamp of other bytes, or one whose signature is not valid.

    Raises:
        TimestampError: If it is.
    """
    timestamps.check(stamp, data, (), str(path))


def _attested(run: RunDirectory, ledger_sha256: str, challenge: Challenge) -> str:
    """Digest of the trainer's attestation, which must hold and name this very ledger."""
    name = signing.TRAINING_ENVELOPE
    data = read_file(run.path / name)
    trainer = parse_public(read_file(run.path / signing.TRAINER_KEY), signing.TRAINER_KEY)
    envelope = parse_envelope(data, name)
    check_signature(envelope, trainer, name)
    named = parse_statement(envelope.payload, TRAINING_TYPE, name).subjects.get("ledger.jsonl")
    if named is None or named[1] != ledger_sha256:
        raise FilingError(
            f"{run.ledger}: is not the ledger that the trainer signed in {name}; see dpfedadamw "
            f"verify {run.path}"
        )
    if fingerprint(trainer) != challenge.intent.fingerprint:
        raise FilingError(
            f"{signing.TRAINER_KEY}: is {fingerprint(trainer)}, but the intent was signed by "
            f"{challenge.intent.fingerprint}; the same key must sign the run"
        )
    return hashlib.sha256(data).hexdigest()
