"""What follows a run: the independent audit, the report, and the signatures.

The command line is the only part of the engine that knows the auditor and the reports; this is its
half without a terminal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import reports
from audit import auditor
from audit.errors import AuditError
from audit.probe import probing
from audit.probe.probing import Probe
from audit.reading import leaks
from audit.verdict import Findings
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.rundir import RunDirectory
from reports.errors import KeyFileError, TimestampError
from reports.signatures import bundles, keys, signing
from reports.signatures.trust import keyring, signer
from reports.signatures.trust.signer import SigningKey
from reports.signatures.trust.timestamps import Authority

PASSPHRASE_VARIABLE = "DPFEDADAMW_PASSPHRASE"
PIN_VARIABLE = "DPFEDADAMW_PIN"


class FilingError(DpfedadamwError):
    """A run cannot be audited, reported or signed as asked."""


@dataclass(frozen=True)
class Signers:
    """The two private keys.

    Attributes:
        trainer: Signs what was run.
        auditor: Signs what was found.
        created: Files of keys that were made just now.
    """

    trainer: SigningKey
    auditor: SigningKey
    created: tuple[Path, ...]


@dataclass(frozen=True)
class Filed:
    """A report that was written and signed.

    Attributes:
        files: Where it is.
        unstamped: Why it has no timestamp although one was asked for, or None.
    """

    files: reports.ReportFiles
    unstamped: str | None


def passphrase() -> str | None:
    """The keys' passphrase from the environment, if one is set."""
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def load_signers(trainer: str | Path | None, auditor_key: str | Path | None) -> Signers:
    """Load the two keys; those not named come from the key folder and are made on first use.

    Raises:
        reports.errors.ReportError: If a key cannot be read, has expired or is revoked.
    """
    made: list[Path] = []
    loaded = [load_key("trainer", trainer, made), load_key("auditor", auditor_key, made)]
    return Signers(loaded[0], loaded[1], tuple(made))


def load_key(role: keys.Role, named: str | Path | None, made: list[Path]) -> SigningKey:
    """Load one key; if none is named, the newest of the key folder, made on first use.

    Args:
        role: Who signs.
        named: A file or a PKCS#11 address.
        made: Gets the file of a key that was made.

    Raises:
        reports.errors.ReportError: If the key cannot be read, has expired or is revoked.
    """
    if named is not None:
        return signer.load(role, named, _secret(named))
    folder = keys.default_directory()
    if keyring.current(role, folder) is None:
        try:
            made.append(keyring.new(role, folder, passphrase()).private)
        except KeyFileError:
            # Another first run, at the same time, may have made it.
            if keyring.current(role, folder) is None:
                raise
    present = keyring.current(role, folder)
    assert present is not None
    return signer.load(role, present.private, passphrase())


def refuse_foreign(run: RunDirectory, role: keys.Role) -> None:
    """Refuse to replace a signature that is not by one of the user's own keys.

    Raises:
        FilingError: If the run carries another holder's key in this role, or the user has none.
    """
    folder = keys.default_directory()
    own = {
        keys.fingerprint(keys.load_public(entry.public))
        for entry in keyring.generations(role, folder)
        if entry.public.exists()
    }
    if not own:
        raise FilingError(
            f"{folder}: no {role} key; make one with dpfedadamw keys new, or sign in one role "
            "only, with --role"
        )
    path = run.path / f"{role}.pub"
    signed = keys.fingerprint(keys.load_public(path)) if path.exists() else None
    if signed is not None and signed not in own:
        raise FilingError(
            f"{path.name}: the {role} signed with {signed}, which is no key of yours; to replace "
            f"that signature say --role {role}, to leave it name the other role"
        )


def _secret(named: str | Path) -> str | None:
    in_hardware = str(named).startswith(signer.HARDWARE_SCHEME)
    return os.environ.get(PIN_VARIABLE) or None if in_hardware else passphrase()


def attest_training(
    run: RunDirectory, probe: Probe | None, signers: Signers, authority: Authority | None = None
) -> None:
    """Record the active probe and sign what was run."""
    if probe is not None:
        probing.record_probe(run.path, probe)
    signing.sign(run.path, trainer=signers.trainer, authority=authority)


def audit(run: RunDirectory, progress: Callable[[str], None] | None = None) -> Findings:
    """Judge a run's evidence; writes nothing."""
    return auditor.audit_run(run.path, progress=progress)


def authority(url: str | None) -> Authority | None:
    """Return the time-stamping authority at an address, after it answered once.

    Raises:
        TimestampError: If the address is none, or nobody answers as an authority does.
    """
    if url is None:
        return None
    found = Authority(url)
    found.stamp(b"dpfedadamw")
    return found


def model_bundle(run: RunDirectory, key: SigningKey) -> bytes:
    """Return the model's own signature by the trainer's key (OpenSSF Model Signing)."""
    return bundles.sign_model(run.path, key, passphrase())


def file_report(
    run: RunDirectory,
    findings: Findings | None,
    key: SigningKey,
    audience: str = "internal",
    authority: Authority | None = None,
) -> Filed:
    """Write findings (where given) and the report, and sign all of it as the auditor."""
    if findings is not None:
        auditor.write_findings(run.path, findings)
    files = reports.build_report(run.path, audience)
    _refuse_leaks(run, files)
    unstamped = stamped(lambda by: signing.sign(run.path, auditor=key, authority=by), authority)
    return Filed(files, unstamped)


def _refuse_leaks(run: RunDirectory, files: reports.ReportFiles) -> None:
    """Take a report back, before it is signed, in which the auditor finds a private number.

    Raises:
        FilingError: If it does.
    """
    try:
        found = leaks.search(run.path)
    except AuditError:
        # Evidence that is away or unreadable has its own finding, and nothing to compare with.
        return
    names = {path.name for path in (files.json, files.pdf, files.html)}
    for leak in found:
        if leak.file in names:
            for name in names:
                (run.path / name).unlink(missing_ok=True)
            raise FilingError(
                f"{leak.file} would show a number of the private evidence ({leak.array} of round "
                f"{leak.round}); the report was not kept, please report this as a fault"
            )


def stamped(act: Callable[[Authority | None], object], authority: Authority | None) -> str | None:
    """Do something with a timestamp; without one if the authority fails, so that no work is lost.

    Returns:
        Why there is no timestamp, or None.
    """
    try:
        act(authority)
    except TimestampError as error:
        act(None)
        return str(error)
    return None


def same_as_filed(run: RunDirectory, findings: Findings) -> bool:
    """Whether the audit.json beside the run says exactly what these findings say."""
    try:
        filed = json.loads((run.path / "audit.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(filed == findings.to_json())
