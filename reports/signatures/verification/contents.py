"""What a run's files say: unchanged, complete, and about this run, this model and this audit.

Three questions about files whose signatures hold. Are they what was signed, and do all parts of a
run agree? Where the public files lie alone there is no ledger and no audit to compare with, so what
the auditor signed is what counts: these files and no others, by this key, about this run and model,
with the verdict and the claims that the public report states.

May they be signed again? A signature judges nothing: signing as the auditor without an audit takes
over what an earlier audit found. So what lies there must be what that audit's signature
covers. Otherwise a verdict that somebody changed would get the auditor's signature when a report is
written, and lose the evidence against it by an erasure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from audit.protection import Against, unprotected
from audit.untrusted.files import UNFINISHED, FileError, list_files
from audit.untrusted.files import read_bytes as read_plain
from reports.content import findings, guarantee
from reports.content.assurance import Facts, facts_from, facts_of
from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import EnvelopeError, KeyFileError, PdfSignatureError, SourceError, local
from reports.files import (
    Snapshot,
    clean,
    mapping,
    number,
    parse_json,
    read_bytes,
    sequence,
    sha256_file,
)
from reports.signatures import copies, pades, signing
from reports.signatures.dsse import (
    RUN_TYPE,
    SALTED,
    SHA256,
    TRAINING_TYPE,
    Envelope,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
)
from reports.signatures.inventory import (
    BUNDLE,
    CHECKPOINT,
    EVIDENCE,
    EvidenceDigests,
    evidence_digests,
    has_evidence,
    list_run,
)
from reports.signatures.keys import fingerprint, parse_public
from reports.signatures.verification.results import Found
from reports.source import RunSource

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
        rewritten: Files that are always rewritten. Evidence that is not here is
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


REPORTS = ("report", "report-public")
_MODEL = "model.safetensors"
# Who holds it, in a line.
_MOST_LOCK_BYTES = 1024


@dataclass(frozen=True)
class About:
    """What reports must be about.

    Attributes:
        run: The run's identifier.
        verdict: The audit's verdict.
        hashes: SHA-256 of the files that a report may state a digest of, by name.
        complete: Whether these are all such files; of a digest of any other nothing is known.
    """

    run: str
    verdict: str
    hashes: dict[str, str]
    complete: bool = True


def about(source: RunSource) -> About:
    """Return what the reports of a run must be about."""
    return About(source.run, findings.verdict(source, PUBLIC).value, source.hashes)


def check_files(files: Snapshot, statements: dict[str, Statement], last: str, found: Found) -> None:
    """Check that every signed file is unchanged, and that the folder holds nothing unsigned.

    Args:
        files: The files of a run directory, or the public ones alone.
        statements: What was signed, by the envelope's name.
        last: The envelope made last: it covers everything but itself and its own timestamp.
        found: Gets what does not hold.
    """
    try:
        names, problems = list_run(files.folder)
    except SourceError as error:
        found.add_error(files.folder.name, error)
        return
    for problem in problems:
        found.add(problem.file, problem.reason)
    _check_unlisted(files, found)
    present = set(names)
    for envelope, statement in statements.items():
        for name, (kind, digest) in statement.subjects.items():
            if kind != SHA256:
                if name != EVIDENCE:
                    found.add(clean(name, 200), f"{envelope} gives only a salted digest")
                continue
            # Only names that the listing found are opened, so a subject cannot point elsewhere.
            if name not in present:
                found.add(clean(name, 200), f"missing, though {envelope} covers it")
                continue
            try:
                found_digest = files.sha256(name)
            except SourceError as error:
                found.add_error(name, error)
                continue
            if found_digest != digest:
                found.add(name, f"changed since {envelope} was signed")
    if last in statements:
        itself = {last, last + signing.STAMP_SUFFIX}
        for name in sorted(present - set(statements[last].subjects) - itself):
            found.add(name, f"is not covered by {last}")
    for envelope, needed in (
        (signing.TRAINING_ENVELOPE, signing.TRAINED_FILES),
        (signing.PUBLIC_ENVELOPE, signing.PUBLIC_FILES),
    ):
        for name in needed if envelope in statements else ():
            if name not in statements[envelope].subjects:
                found.add(name, f"is not covered by {envelope}")
    _check_withheld(statements.get(signing.PUBLIC_ENVELOPE), found)


def _check_withheld(public: Statement | None, found: Found) -> None:
    """Check that what everybody may see names nothing that is withheld from them."""
    open_to_all = {*signing.PUBLIC_FILES, *signing.PUBLIC_EXTRAS}
    for name in public.subjects if public is not None else ():
        if name not in open_to_all:
            found.add(signing.PUBLIC_ENVELOPE, f"names {clean(name, 80)}, which is not public")


def _check_unlisted(files: Snapshot, found: Found) -> None:
    """Note what no signature covers: the state to resume from, and writes that did not end."""
    if _holds_a_lock_alone(files.folder / UNFINISHED):
        found.say(
            f"{UNFINISHED}/ is there, with nothing in it but the lock of a command that was killed "
            "or is still at work: what is signed is whole. The next command that writes removes it."
        )
    elif files.holds(UNFINISHED):
        remedy = "dpfedadamw run --resume RUN_DIR finishes it"
        if files.holds(copies.ERASURE):
            remedy = (
                "without evidence nothing can be audited again, so repeat the command that was cut "
                "off: dpfedadamw erase, report or sign RUN_DIR"
            )
        found.add(UNFINISHED, f"a write to this run was cut off or is going on; {remedy}")
    if files.holds(CHECKPOINT):
        found.add(
            CHECKPOINT,
            "is not signed: a run that is not finished goes on from it (dpfedadamw run --resume "
            "RUN_DIR), a finished one has none. Only from an older, finished run may it be moved",
        )


def _holds_a_lock_alone(folder: Path) -> bool:
    """Whether nothing lies in a run's place for unfinished files that belongs to the run."""
    try:
        listing = list_files(folder)
        for name in listing.files:
            read_plain(folder, name, _MOST_LOCK_BYTES)
    except FileError:
        return False
    return not (folder.is_symlink() or listing.refused) and set(listing.files) <= {"lock"}


def check_evidence(run_dir: Path, statements: dict[str, Statement], found: Found) -> None:
    """Check the salted digest of the evidence, where the evidence is here."""
    signed = {
        name: statement.subjects.get(EVIDENCE)
        for name, statement in statements.items()
        if name != signing.PUBLIC_ENVELOPE
    }
    if not has_evidence(run_dir):
        try:
            erased = copies.erased_at(run_dir)
        except SourceError as error:
            found.add_error(copies.ERASURE, local(error, run_dir))
            return
        if erased is not None:
            found.say(f"The evidence was erased on {clean(erased, 40)}, as erasure.json says.")
        elif any(signed.values()):
            found.say("The evidence is not here, so its signed digest could not be checked.")
        return
    try:
        digests = evidence_digests(run_dir)
    except SourceError as error:
        found.add(str(error).split(":")[0], str(error).partition(": ")[2])
        return
    for envelope, subject in signed.items():
        if subject is None:
            found.add(EVIDENCE, f"is not covered by {envelope}")
        elif subject != (SALTED, due_digest(envelope, statements[envelope], digests)):
            found.add(EVIDENCE, f"changed since {envelope} was signed, or its salt did")


def _is_attested(told: Facts, source: RunSource) -> bool:
    """Whether attested facts are those of the run's files, whatever the verdict."""
    facts = facts_of(source)
    # Earlier versions attested a challenge of the trainer's own as one of an auditor's.
    coin = bool(mapping(source.header.get("public_coin")))
    return told.attested() in [one.attested() for one in (facts, facts._replace(public_coin=coin))]


def check_claims(source: RunSource, statements: dict[str, Statement], found: Found) -> None:
    """Check that what was signed is what the files say."""
    for note in source.notes:
        file, _, reason = note.rstrip(".").partition(": ")
        found.add(file, reason)
    expected = json.loads(json.dumps(guarantee.attested_claims(source)))
    earlier = guarantee.as_signed_earlier(expected)
    for envelope, statement in statements.items():
        if statement.predicate.get("run") != source.run:
            found.add(envelope, f"speaks of another run than the ledger, {source.run}")
        if statement.predicate.get("claims") not in (expected, earlier):
            found.add(envelope, "claims something else than the ledger")
    verdict = findings.verdict(source, PUBLIC).value
    for envelope in (signing.RUN_ENVELOPE, signing.PUBLIC_ENVELOPE):
        if envelope in statements:
            if statements[envelope].predicate.get("verdict") != verdict:
                found.add(envelope, "states another verdict than audit.json")
            told = facts_from(statements[envelope].predicate)
            if told is not None and not _is_attested(told, source):
                found.add(envelope, "states another re-execution than audit.json and ledger")
            say_verdict(verdict, _unprotected(expected), found)


def say_verdict(verdict: str, against: Against | None, found: Found) -> None:
    """Say what the audit's verdict is and means; first, that the claim protects nobody."""
    told = f"The audit's verdict is {verdict}; {_MEANING.get(verdict, 'which is none')}."
    found.say(findings.warned(told, against))


def _unprotected(claims: Any) -> Against | None:
    """Against whom claims give no meaningful protection, as they were signed for the public."""
    views = map(mapping, sequence(mapping(claims).get("views")))
    return unprotected({clean(one.get("key"), 40): number(one.get("epsilon")) for one in views})


_MEANING = {
    "PASS": "no check contradicts the claim, which is not a proof",
    "FAIL": "the guarantee is contradicted, and valid signatures do not mend that",
    "NOT VERIFIED": "the guarantee is unproven, and valid signatures do not mend that",
    "NOT AUDITED": "the guarantee is unproven, and valid signatures do not mend that",
    "NO CLAIM": "no differential privacy is claimed",
}


def check_reports(
    files: Snapshot, subject: About, found: Found, stems: tuple[str, ...] = REPORTS
) -> None:
    """Check that the reports in the model's folder are about this run, this model and this audit.

    The first of them must be there.
    """
    for stem in stems:
        for suffix, check in (
            (".json", _report_data),
            (".pdf", _report_pages),
            (".html", _report_pages),
        ):
            name = stem + suffix
            try:
                data = files.read(name)
            except SourceError as error:
                needed = stem == stems[0] and suffix != ".html"
                if needed or files.holds(name):
                    found.add_error(name, local(error, files.folder))
                continue
            try:
                check(data, name, subject, found)
            except SourceError as error:
                found.add_error(name, error)
            if suffix == ".pdf":
                _check_attachment(files, stem, data, found)
            elif suffix == ".json":
                _check_independence(files, name, data, found)


_GUARANTEED = ("view", "epsilon", "delta", "unit")


def check_guarantees(files: Snapshot, source: RunSource, found: Found) -> None:
    """Check that the reports lead with the guarantee that the ledger's claim gives.

    Args:
        files: The files of a run directory.
        source: What the run's files say.
        found: Gets what does not hold.
    """
    for stem, audience in zip(REPORTS, (INTERNAL, PUBLIC), strict=True):
        name = f"{stem}.json"
        try:
            stated = mapping(mapping(parse_json(files.read(name), name)).get("guarantee"))
        except SourceError:
            continue  # Named already, or the public report is not there.
        due = guarantee.guarantee(source, audience).model_dump(mode="json")
        if any(stated.get(key) != due[key] for key in _GUARANTEED):
            found.add(name, "states another guarantee than ledger.jsonl")


def _check_attachment(files: Snapshot, stem: str, pages: bytes, found: Found) -> None:
    """Check that the pages carry the data of the JSON file next to them, so that both agree."""
    try:
        if pades.attached(pages, f"{stem}.pdf") != files.read(f"{stem}.json"):
            found.add(f"{stem}.pdf", f"carries other data than {stem}.json in the same folder")
    except PdfSignatureError as error:
        found.add_error(f"{stem}.pdf", error)
    except SourceError:
        pass  # Named already: the data are missing.


def _check_independence(files: Snapshot, name: str, data: bytes, found: Found) -> None:
    """Check that a report which calls its audit independent names the two keys that signed.

    An auditor's key that was replaced since is let pass: the chain of rotations is judged apart.
    """
    try:
        trust = mapping(mapping(parse_json(data, name)).get("trust"))
        keys = {
            role: fingerprint(parse_public(files.read(file), file))
            for role, file in (("auditor", signing.AUDITOR_KEY), ("trainer", signing.TRAINER_KEY))
        }
    except (SourceError, KeyFileError):
        return  # Named already.
    signer = clean(trust.get("signer"), 200)
    if signer not in ("", keys["auditor"]):
        # A key that was replaced since is in order; what the page names is then not what signed.
        found.say(f"{name} names the auditor's key {signer}, and {keys['auditor']} signed it.")
    if trust.get("auditor") != "another key":
        return
    stated = [clean(key, 200) for key in sequence(trust.get("keys"))]
    replaced = files.holds(signing.AUDITOR_ROTATIONS) and keys["auditor"] != keys["trainer"]
    if not replaced and stated[:1] != [keys["auditor"]]:
        found.add(name, "calls its audit independent, but names another auditor’s key than signed")
    elif keys["auditor"] == keys["trainer"]:
        found.add(name, "calls its audit independent, but one key signed as trainer and auditor")


def _report_data(data: bytes, name: str, subject: About, found: Found) -> None:
    report = mapping(parse_json(data, name))
    identity = mapping(report.get("identity"))
    if identity.get("run") != subject.run:
        found.add(name, f"is about another run than {subject.run}")
    stated = {
        clean(mapping(entry).get("file"), 200): mapping(entry).get("sha256")
        for entry in sequence(identity.get("hashes"))
    }
    if stated.get(_MODEL) != subject.hashes.get(_MODEL):
        found.add(name, f"is about another model than {_MODEL} in the same folder")
    for file, digest in stated.items():
        known = subject.complete or file in subject.hashes
        if file != _MODEL and known and digest != subject.hashes.get(file):
            found.add(name, f"was made with another {file}")
    if mapping(report.get("verdict")).get("value") != subject.verdict:
        found.add(name, f"states another verdict than the audit's, {subject.verdict}")


def _report_pages(data: bytes, name: str, subject: About, found: Found) -> None:
    # PDF/A keeps its metadata readable, and the keywords of PDF and page carry run and model.
    model = subject.hashes.get(_MODEL)
    if f"run {subject.run}".encode() not in data:
        found.add(name, f"is about another run than {subject.run}")
    elif model is None or f"model sha256:{model}".encode() not in data:
        found.add(name, f"is about another model than {_MODEL} in the same folder")


_REPORT = "report-public"
# Where one of these lies, it is a run directory, and must hold as one.
_RESTRICTED = (
    signing.RUN_ENVELOPE, signing.TRAINING_ENVELOPE, "ledger.jsonl", "audit.json", "evidence",
)  # fmt: skip


def is_public_alone(files: Snapshot) -> bool:
    """Return whether a folder holds a run's public files and none that others may not see."""
    return files.holds(signing.PUBLIC_ENVELOPE) and not any(map(files.holds, _RESTRICTED))


def check_public(files: Snapshot, statement: Statement, found: Found) -> str:
    """Check that report and model are those that the statement speaks of.

    Returns:
        The run's identifier, as the statement says.
    """
    said = statement.predicate
    run, verdict = clean(said.get("run"), 200), clean(said.get("verdict"), 40)
    hashes = {
        name: digest
        for name, (_, digest) in statement.subjects.items()
        if name not in signing.PUBLIC_REPORTS
    }
    subject = About(run, verdict, hashes, complete=False)
    check_reports(files, subject, found, (_REPORT,))
    _check_claim(files, mapping(said.get("claims")), found)
    say_verdict(verdict, _unprotected(said.get("claims")), found)
    found.say(
        "These are the public files alone. That verdict and claims follow from ledger and evidence "
        "is the auditor's word; the trainer's attestation is not public."
    )
    return run


def _check_claim(files: Snapshot, claims: dict[str, object], found: Found) -> None:
    """Check that the report promises what the statement claims in the view that it leads with."""
    name = f"{_REPORT}.json"
    try:
        guarantee = mapping(mapping(parse_json(files.read(name), name)).get("guarantee"))
    except SourceError:
        return  # Named already.
    views = {
        clean(view.get("key"), 40): (view.get("epsilon"), view.get("delta"))
        for view in map(mapping, sequence(claims.get("views")))
    }
    stated = (guarantee.get("epsilon"), guarantee.get("delta"))
    if guarantee.get("unit") != claims.get("unit") or stated != views.get(
        clean(guarantee.get("view"), 40), (None, None)
    ):
        found.add(name, f"states another guarantee than {signing.PUBLIC_ENVELOPE}")


def public_coin(files: Snapshot) -> dict[str, Any] | None:
    """Return what the ledger's header says of a challenge; None where it or the ledger is not."""
    try:
        first = files.read("ledger.jsonl").partition(b"\n")[0]
        header = mapping(parse_json(first, "ledger.jsonl, line 1"))
    except SourceError:
        return None  # Named already, or these are the public files alone.
    return mapping(header.get("public_coin")) or None
