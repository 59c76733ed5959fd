"""What follows the training of a run: the audit, the report and the signatures.

`finish` does all of it, `resume` what is left of a run that was cut off; each step by itself can be
done again. None of it knows a terminal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reports
from audit import auditor
from audit.errors import AuditError
from audit.probe import probing
from audit.probe.probing import Probe
from audit.reading import leaks
from audit.reexecution import Replay
from audit.verdict import Findings
from dpfedadamw.errors import FilingError
from dpfedadamw.filing.earlier import refuse_changed, with_earlier_replay
from dpfedadamw.profiling import part, within
from dpfedadamw.run.journal import Journal, Outcome
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import UNFINISHED
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.tasks import MEASURES
from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import (
    KeyFileError,
    SourceError,
    TimestampError,
)
from reports.files import mapping, parse_json, read_bytes, write_atomic
from reports.signatures import (
    keyring,
    keys,
    signing,
    verification,
)
from reports.signatures.inventory import Problem
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority

if TYPE_CHECKING:
    from dpfedadamw.run.training import Training

PASSPHRASE_VARIABLE = "DPFEDADAMW_PASSPHRASE"
PIN_VARIABLE = "DPFEDADAMW_PIN"
_STEMS = {INTERNAL: "report", PUBLIC: "report-public"}
_TRAINERS = (
    signing.TRAINING_ENVELOPE,
    signing.TRAINING_ENVELOPE + signing.STAMP_SUFFIX,
    signing.TRAINER_KEY,
    signing.TRAINER_ROTATIONS,
)


Stage = Callable[[str], AbstractContextManager[None]]


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
class Filing:
    """What a run is signed with.

    Attributes:
        signers: The two keys.
        authority: Timestamps the signatures; None for none.
    """

    signers: Signers
    authority: Authority | None


@dataclass(frozen=True)
class Finished:
    """What a run came to once all that follows training was done.

    Attributes:
        summary: What may be told of it wherever output is kept: what ``run --json`` prints.
        findings: The audit's, as audit.json has them.
        unstamped: Why there is no timestamp although one was asked for, or None.
    """

    summary: dict[str, Any]
    findings: dict[str, Any]
    unstamped: str | None


@dataclass(frozen=True)
class Filed:
    """A report that was written and signed.

    Attributes:
        files: Where it is.
        unstamped: Why it has no timestamp although one was asked for, or None.
    """

    files: reports.ReportFiles
    unstamped: str | None


def _unseen(_what: str) -> AbstractContextManager[None]:
    return nullcontext()


def finish(
    outcome: Outcome, filing: Filing, stage: Stage = _unseen, replay: Replay | None = None
) -> Finished:
    """Attest, audit, report and sign; all of it can be done again.

    Args:
        outcome: What training came to.
        filing: What it is signed with.
        stage: Surrounds each stage, whose name it is given.
        replay: Participations to be computed again for the audit; None for none.

    Raises:
        reports.errors.ReportError: If a report cannot be made or signed.
        audit.errors.AuditError: If it is no run directory that can be judged.
    """
    run = outcome.run
    with stage("auditing"):
        # Signed once, right after training: what has changed since must not be signed again.
        attested = is_attested(run)
        unstamped = stamped(
            lambda by: (
                stamp_training(run, by) if attested else attest_training(run, filing.signers, by)
            ),
            filing.authority,
        )
        findings = audit(run, replay=replay)
    with stage("writing and signing the report"):
        filed = file_report(
            run,
            findings,
            filing.signers.auditor,
            authority=None if unstamped else filing.authority,
            one_hand=True,
        )
    found = findings.to_json()
    # What weights that are no numbers score is that of a class by chance, and of no model.
    diverged = "diverged" in outcome.claim
    summary = {
        "run": run.identifier,
        "directory": str(run.path),
        "test_accuracy": None if diverged else outcome.accuracy,
        "test_loss": None if diverged else outcome.loss,
        **({} if diverged else outcome.measures),
        **({"test_own": dict(outcome.own)} if outcome.own and not diverged else {}),
        "privacy": without_participation(outcome.claim),
        "verdict": found["verdict"],
        **{key: found[key] for key in ("unprotected_against",) if key in found},
        "level": findings.level,
        "qualifications": found["qualifications"],
        "engine": outcome.engine,
    }
    return Finished(summary, found, unstamped or filed.unstamped)


def divergence_of(run: RunDirectory) -> str | None:
    """What is said of a run whose training diverged, one line; None of any other.

    Raises:
        DpfedadamwError: If its ledger cannot be read.
    """
    journal = Journal(run)
    ended = (journal.claim or {}).get("diverged")
    if ended is None:
        return None
    charged = ", and nothing was charged after it" if journal.header["unit"] != "none" else ""
    return (
        f"training diverged: after round {ended['rounds']} of {journal.header['rounds']} the model "
        f"held numbers that are not finite, so that it ended there{charged}; there is no model to "
        "use. Try a lower algorithm.learning_rate"
    )


def without_participation(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The claim without who took part how often, because what is printed ends up in logs."""
    shown = {key: value for key, value in claim.items() if key != "profile"}
    if "server" in shown:
        shown["server"] = {key: value for key, value in shown["server"].items() if key != "clients"}
    if "tuning" in shown:
        # That of all trials together tells how many there were.
        shown["tuning"] = {"one_trial": shown["tuning"]["one_trial"]}
    return shown


def passphrase() -> str | None:
    """The keys' passphrase from the environment, if one is set."""
    return os.environ.get(PASSPHRASE_VARIABLE) or None


@part("signatures")
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
        return keyring.load_signing_key(role, named, _secret(named))
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
    key = keyring.load_signing_key(role, present.private, passphrase())
    keys.complete(present.private, key.public)
    return key


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
            f"{path.name}: the {role} signed with {signed}, which is not a key of yours; to "
            f"replace that signature give --role {role}, to keep it give the other role"
        )


def _secret(named: str | Path) -> str | None:
    in_hardware = str(named).startswith(keyring.HARDWARE_SCHEME)
    return os.environ.get(PIN_VARIABLE) or None if in_hardware else passphrase()


@part("probe")
def record_probe(run: RunDirectory, probe: Probe | None) -> None:
    """Poke at the run's own private step, where there is one, and file what came of it.

    Before the claim: once the process that trained is gone, nobody can make it again.
    """
    if probe is not None:
        probing.record_probe(run.path, probe)


def probing_before_claim(
    on_probe: Callable[[], None] | None = None,
) -> Callable[[Training], None]:
    """What `training.train` calls before the claim: it records the probe of the run's own step.

    Args:
        on_probe: Called before the private step is probed.
    """
    from dpfedadamw.run.training import probe_of

    def probed(training: Training) -> None:
        if on_probe is not None:
            on_probe()
        record_probe(training.run, probe_of(training))

    return probed


@part("signatures")
def attest_training(
    run: RunDirectory, signers: Signers, authority: Authority | None = None
) -> None:
    """Sign what was run."""
    signing.sign(run.path, trainer=signers.trainer, authority=authority)


def stamp_training(run: RunDirectory, authority: Authority | None) -> None:
    """Add the timestamp to the trainer's signature of a run that was cut off before it came.

    The signature stays as it is.

    Raises:
        TimestampError: If the authority fails.
    """
    envelope = run.path / signing.TRAINING_ENVELOPE
    stamp = envelope.with_name(envelope.name + signing.STAMP_SUFFIX)
    if authority is not None and not stamp.exists():
        write_atomic(stamp, authority.stamp(read_bytes(envelope)))


def outcome_of(run: RunDirectory) -> Outcome | None:
    """What training came to, from the run's own files; None while it has no claim.

    Raises:
        DpfedadamwError: If they cannot be read.
    """
    journal = Journal(run)
    claim = journal.claim
    if claim is None:
        return None
    journal.tidy()
    last = journal.last_metrics()
    measures = {name: last[name] for name in MEASURES if name in last}
    accuracy, loss = last.get("test_accuracy"), last.get("test_loss")
    return Outcome(
        run=run,
        claim=claim,
        accuracy=accuracy,
        loss=loss,
        measures=measures,
        own=last.get("test_own", {}),
    )


def is_attested(run: RunDirectory) -> bool:
    """Whether the trainer has signed what was run."""
    return (run.path / signing.TRAINING_ENVELOPE).is_file()


def is_signed(run: RunDirectory) -> bool:
    """Whether there is an auditor's signature, which a new one would supersede."""
    return os.path.lexists(run.path / signing.RUN_ENVELOPE)


def is_filed(run: RunDirectory) -> bool:
    """Whether all that ends a run is there: both signatures, and the findings."""
    names = (signing.TRAINING_ENVELOPE, signing.RUN_ENVELOPE, "audit.json")
    return all((run.path / name).is_file() for name in names)


def problems(run: RunDirectory) -> tuple[Problem, ...]:
    """What does not hold of a run that is filed, which the caller holds for writing.

    A write of an audit, a report or a signature that failed half way leaves new files with a
    signature over the old ones.

    Raises:
        reports.errors.ReportError: If the key folder cannot be used.
    """
    found = verification.verify(run.path).problems
    return tuple(problem for problem in found if problem.file != UNFINISHED)


def changed_since_training(found: Iterable[Problem]) -> Problem | None:
    """The first problem that the auditor cannot fix by auditing and signing again, if there is one.

    What the trainer signed is not what lies there, or the trainer's signature itself does not hold.
    """
    for problem in found:
        of_trainer = signing.TRAINING_ENVELOPE in problem.reason
        # A trainer's new signature that the auditor's does not cover yet is none.
        uncovered = f" {signing.RUN_ENVELOPE}" in problem.reason
        if of_trainer or (problem.file in _TRAINERS and not uncovered):
            return problem
    return None


def filed_verdict(run: RunDirectory) -> str:
    """The verdict that was filed with a run."""
    return str(mapping(_filed(run)).get("verdict", "NOT VERIFIED"))


@contextlib.contextmanager
def writing(run: RunDirectory) -> Iterator[None]:
    """Hold a finished run while part of it is rewritten.

    Raises:
        LockedError: If somebody else writes to it.
        FilingError: If it may not be written to.
    """
    try:
        lock = RunLock(run.path)
    except OSError as error:
        raise FilingError(f"{run.path}: cannot be written to ({error.strerror})") from None
    with lock:
        yield


@part("audit")
def audit(
    run: RunDirectory,
    progress: Callable[[str], None] | None = None,
    replay: Replay | None = None,
) -> Findings:
    """Judge a run's evidence; writes nothing.

    Without a replay what an earlier audit found by one is taken over, as `earlier` says.
    """
    findings = auditor.audit_run(run.path, progress=progress, replay=replay)
    return findings if replay is not None else with_earlier_replay(run, findings)


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
    # Asked for by few, and for a library that few have.
    from reports.signatures.bundles import sign_model

    return sign_model(run.path, key, passphrase())


def file_report(
    run: RunDirectory,
    findings: Findings | None,
    key: SigningKey,
    audience: str = INTERNAL,
    authority: Authority | None = None,
    *,
    one_hand: bool = False,
) -> Filed:
    """Write findings (where given) and the report, and sign all of it as the auditor.

    With findings, an existing report for the other audience is rewritten as well. Without, the
    findings must be those that the auditor's last signature covers, or nothing is written.

    Args:
        run: The run.
        findings: What was found, to be filed; None where it lies there already.
        key: The auditor's key.
        audience: For whom the report is.
        authority: Timestamps the signatures.
        one_hand: Whether the person filing it also holds the trainer's key, in any place; a key in
            the key folder is found without this.
    """
    if findings is not None:
        auditor.write_findings(run.path, findings)
    else:
        stem = _STEMS[audience]
        written = {f"{stem}.{kind}" for kind in ("json", "pdf", "html")}
        refuse_changed(run, key, written)
    signed = _auditing(run, key, one_hand)
    files = _report(run, audience, signed)
    other = PUBLIC if audience == INTERNAL else INTERNAL
    if findings is not None and any(run.path.glob(f"{_STEMS[other]}.*")):
        # It tells of earlier findings, or is half of one whose writing was cut off.
        _report(run, other, signed)
    with within("signatures"):
        unstamped = stamped(lambda by: signing.sign(run.path, auditor=key, authority=by), authority)
    return Filed(files, unstamped)


@part("report")
def _report(run: RunDirectory, audience: str, signed: reports.Auditing) -> reports.ReportFiles:
    files = reports.build_report(run.path, audience, signed)
    _refuse_leaks(run, files)
    return files


def _auditing(run: RunDirectory, key: SigningKey, one_hand: bool) -> reports.Auditing:
    """Say whose the auditor's key is, as far as the keys at hand can tell.

    An auditor whose key folder also holds the trainer's key audits their own run. A key folder that
    cannot be read may hold it.
    """
    path = run.path / signing.TRAINER_KEY
    trainer = keys.fingerprint(keys.load_public(path)) if path.exists() else None
    try:
        own = keyring.own_fingerprints("trainer", keys.default_directory())
    except KeyFileError:
        return reports.Auditing(key.fingerprint, trainer, one_hand=True)
    mine = one_hand or trainer == key.fingerprint or trainer in own
    return reports.Auditing(key.fingerprint, trainer, mine, key.replaced)


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
                f"{leak.file} would reveal a number of the private evidence ({leak.array} of round "
                f"{leak.round}); the report was not kept; please report this as a bug"
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
    """Whether the run's audit.json says exactly what these findings say."""
    return bool(_filed(run) == findings.to_json())


def _filed(run: RunDirectory) -> Any:
    """What a run's audit.json says, by any author; None where it cannot be read."""
    try:
        return parse_json(read_bytes(run.path / "audit.json"), "audit.json")
    except SourceError:
        return None
