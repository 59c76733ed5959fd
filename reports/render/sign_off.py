"""An annex on which a person signs off a report, here or with any program that signs PDF files.

The report itself is certified and allows no change, not even another signature. The annex names it
by its digests, says what it promises, what is stated of the processing, what is answered or still
open, and the decision; it lies outside the run, whose files are all signed. `check` says who signed
it, and whether it is about the report at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reports.content.build import as_json, read
from reports.content.findings import Qualifications, Verdict
from reports.content.identity import Governance, Identity
from reports.content.meaning import Meaning
from reports.content.parts import INTERNAL, PUBLIC, Report
from reports.document import (
    AUDIENCES_IN_WORDS,
    LEFT,
    Block,
    Document,
    Section,
    Text,
    blank,
    bullets,
    code,
    ended,
    fields,
    paragraph,
    sentence,
    table,
)
from reports.errors import PdfSignatureError, ReportError, SourceError, local
from reports.files import Snapshot, clean, mapping, parse_json, read_bytes, write_atomic
from reports.render import pdf
from reports.render.pages import band, claim, date_in_words
from reports.signatures import pades, persons, verification
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import public_fingerprint
from reports.signatures.statements import written_time
from reports.signatures.timestamps import Authority
from reports.signatures.verification import envelopes
from reports.signatures.verification.results import Found, Signer, VerificationResult

ATTACHMENT = "sign-off.json"
_FORMAT = 2
_MODEL = "model.safetensors"
# Of a text of the decision, or of an answer, in characters.
_MOST = 4_000
_DECIDED_BY = ("text", "name", "date")
_REPORTS = ("report.pdf", "report.json", "report-public.pdf", "report-public.json")
_TO_BE_SIGNED = (
    "It is not signed yet: fill it in and sign it with whatever your office signs PDF files with."
)
_DECIDED = "It counts once it is signed; dpfedadamw verify says whether it is, and by whom."
_DECISION = (
    "Decision (approved, approved with conditions, refused), and conditions",
    "Name and office",
    "Date and signature",
)


@dataclass(frozen=True)
class Decision:
    """What a person decides.

    Attributes:
        text: The decision, and its conditions.
        name: Name and office of who decides.
        date: The day, ISO 8601.
    """

    text: str
    name: str
    date: str


def write(
    run_dir: Path,
    target: Path,
    audience: str = INTERNAL,
    *,
    answers: Mapping[str, str] | None = None,
    decision: Decision | None = None,
    key: SigningKey | None = None,
    authority: Authority | None = None,
) -> None:
    """Write the annex on a run's report, and sign it where there is a decision and a key.

    Args:
        run_dir: A run with its signed report, or its public files alone.
        target: The PDF to write. It must not exist, and must not lie in the run.
        audience: Which report it is about: "internal" or "public".
        answers: What the run's spec leaves open, by key of its section report.
        decision: What is decided; None leaves boxes for it.
        key: The key of who decides; None leaves it to be signed with another program.
        authority: Timestamps the signature.

    Raises:
        SourceError: The target is taken or lies in the run, a file of the run is missing, or a
            text is too long, or the decision empty.
        ReportError: The report's data cannot be read, or the pages cannot be made.
    """
    if target.exists() or target.is_symlink():
        raise SourceError(f"{target}: exists and is never overwritten; choose another name")
    if run_dir.resolve() in target.resolve().parents:
        raise SourceError(f"{target}: lies in the run, whose files are all signed; choose another")
    answers = {name: _written(name, text) for name, text in (answers or {}).items()}
    if decision is not None:
        texts = {name: _written(name, text) for name, text in asdict(decision).items()}
        decision = Decision(**texts)
        if not decision.text:
            raise SourceError("the decision: is empty; say what is decided")
    pages = _pages(run_dir, audience, answers, decision)
    if key is not None and decision is not None:
        pages = pades.sign_off(pages, key, decision.name, target.name, authority)
    write_atomic(target, pages, 0o600 if audience == INTERNAL else 0o644)


def _written(name: str, text: str) -> str:
    """Return a text as `check` will read it: it compares the pages to the byte.

    Raises:
        SourceError: It is longer than what is read.
    """
    found = clean(text, 2 * _MOST + len(text))
    while (again := clean(found, 2 * _MOST + len(found))) != found:
        found = again
    if len(found) > _MOST:
        what = "the decision" if name in _DECIDED_BY else name
        raise SourceError(f"{what}: has {len(found):,} characters; give at most {_MOST:,}")
    return found


def _pages(
    run_dir: Path, audience: str, answers: Mapping[str, str], decision: Decision | None
) -> bytes:
    """Return the annex unsigned; same run, same answers, same bytes."""
    files = Snapshot(run_dir)
    stem = "report" if audience == INTERNAL else f"report-{audience}"
    digests = {name: files.sha256(name) for name in (f"{stem}.pdf", f"{stem}.json", _MODEL)}
    # The report's own data, not the run's files: who reads the public report has only that.
    report = read(files.read(f"{stem}.json"), f"{stem}.json")
    return pdf.typeset(document(report, digests, answers, decision))


def is_annex(path: Path) -> bool:
    """Whether a PDF carries what an annex does; a report's own pages carry the report."""
    try:
        return bool(pades.attached(read_bytes(path), path.name, ATTACHMENT))
    except (SourceError, PdfSignatureError):
        return False


def check(
    annex: Path,
    run_dir: Path | None,
    signers: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
    revocations: Iterable[Path] = (),
) -> VerificationResult:
    """Check a signed annex: who signed what, and whether it is about the report at hand.

    Args:
        annex: The PDF, possibly hostile.
        run_dir: The run whose report was signed off; None says nothing of the report, nor of the
            decision: only the run shows that the pages say the same as the data inside them.
            Whether the run itself holds is for `verify` to say.
        signers: Public keys or certificates, PEM, of those who must have signed; everybody else is
            unknown.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.
        revocations: Lists of revoked keys. Those in the caller's own key folder count as well.

    Returns:
        Problems, statements and signers, each with the decision that it is under. Nothing in the
        files makes this raise.

    Raises:
        KeyFileError: What the caller gave cannot be read, or others may write to the caller's key
            folder.
        EnvelopeError: A list of revoked keys is damaged, or not signed by who may.
    """
    wanted = [public_fingerprint(path) for path in signers]
    trust = verification.trust_of({}, revocations, tsa_roots, ())
    found, name = Found(), annex.name
    try:
        data = read_bytes(annex)
        signatures = persons.check_sign_off(data, name, trust.roots)
    except (SourceError, PdfSignatureError) as error:
        found.add(name, local(error, annex.parent).removeprefix(f"{name}: "))
        return found.result()
    made = pades.made_as(data, name)
    stated = _stated(made, name, found)
    known = _check_subject(made, name, stated, run_dir, found)
    signed = [_stated(one.signed, name, found) for one in signatures]
    drawn = False
    for one, said in zip(signatures, signed, strict=True):
        own, person = one.fingerprint in wanted, _quoted(one.name)
        _tell_signer(one, own, found)
        if one.changed is not None:
            found.add(name, f"was changed after {person} signed it: {one.changed}")
        if one.shows and not own and len(signatures) > 1:
            found.add(name, f"{person}, whose key you did not give, drew on pages of others")
        decision = None
        if one.prepared is None and said == stated and not drawn:
            decision = _tell_decision(person, stated, found) if known else None
        elif known and stated.get("decision") is not None:
            why = one.prepared or "someone else drew on it"
            found.add(name, f"was changed before {person} signed it: {why}")
        else:
            found.say(
                f"{person} signed pages that were filled in since they were made: read the "
                "decision on these pages, as they were signed. The data inside do not show it."
            )
        if own and said != stated and any(said != other for other in signed):
            _tell_other(person, said, found)
        drawn = drawn or (one.shows and not own)
        stamp = envelopes.trusted_time(one.timestamp, name, found)
        if envelopes.refuse_revoked(one.fingerprint, name, trust, stamp, found):
            continue
        envelopes.refuse_expired((one.certificate,), name, stamp, found)
        time = written_time(stamp.time) if stamp is not None else None
        found.signers.append(
            Signer("signer", one.fingerprint, name, own, time, person=one.name, decision=decision)
        )
    for key in wanted:
        if key not in {one.fingerprint for one in signatures}:
            found.add(name, f"nobody signed it with the key you gave, {key}")
    if run_dir is None:
        found.say(
            "No run was given (--of), so that nothing is said of the report that it names, nor of "
            "the decision. Without the run nothing shows that pages and data say the same."
        )
    return found.result()


def _stated(signed: bytes, name: str, found: Found) -> dict[str, Any]:
    """Return the data inside the file that one person signed."""
    try:
        return mapping(parse_json(pades.attached(signed, name, ATTACHMENT), ATTACHMENT))
    except (SourceError, PdfSignatureError) as error:
        found.add_error(name, error)
        return {}


def _quoted(name: str) -> str:
    """Return a certificate's name as it cannot be taken for words of this program."""
    return '"' + name.replace('"', "'") + '"'


def _tell_signer(one: persons.PersonsSignature, own: bool, found: Found) -> None:
    """Say whom a certificate names, and whether that is to be believed."""
    issued = "by itself" if one.name == one.issuer else f"by {_quoted(one.issuer)}"
    when = f" on {one.claimed:%Y-%m-%d}, as the signer says" if one.claimed else ""
    known = "which you gave" if own else "which is unknown: anyone can make such a certificate"
    found.say(
        f"Signed by {_quoted(one.name)} (certificate issued {issued}){when}, with the key "
        f"{one.fingerprint}, {known}."
    )
    if one.shows:
        found.say(f"The signature of {_quoted(one.name)} draws a mark on a page.")


def _tell_decision(person: str, stated: dict[str, Any], found: Found) -> str | None:
    """Return and say what someone decided, whose pages are known to say what the data say."""
    decision = mapping(stated.get("decision"))
    text, by, date = (clean(decision.get(key), _MOST) for key in _DECIDED_BY)
    if not text:
        found.say(f"{person} signed pages that hold no decision.")
        return None
    found.say(f"{person} signed this decision: {text} ({by}, {date})")
    return text


def _tell_other(person: str, said: dict[str, Any], found: Found) -> None:
    """Say what the data say that one of several signed, where those of the others say another."""
    text = clean(mapping(said.get("decision")).get("text"), _MOST)
    if text:
        found.say(
            f"{person} signed data that others did not sign. They say: {text} Whether the pages "
            "say so too is not known."
        )


def _check_subject(
    made: bytes, name: str, stated: dict[str, Any], run_dir: Path | None, found: Found
) -> bool:
    """Check that the annex is about this run's files, and that its pages say what its data say.

    Returns:
        Whether the file as it was made is what this run and the data inside give, to the byte.
    """
    if run_dir is None or found.problems:
        return False
    files = Snapshot(run_dir)
    named = mapping(stated.get("files"))
    if not named or not set(named) <= {*_REPORTS, _MODEL}:
        found.add(name, "names no report by its digests")
    for file, digest in named.items():
        try:
            if file in {*_REPORTS, _MODEL} and files.sha256(file) != digest:
                found.add(name, f"is about another {file} than the one here")
        except SourceError as error:
            found.add(file, local(error, run_dir).removeprefix(f"{file}: "))
    if found.problems:
        return False
    audience = PUBLIC if any("public" in file for file in named) else INTERNAL
    decision = mapping(stated.get("decision"))
    texts = {key: clean(decision.get(key), _MOST) for key in _DECIDED_BY}
    answers = {clean(k, 80): clean(v, _MOST) for k, v in mapping(stated.get("answered")).items()}
    try:
        again = _pages(run_dir, audience, answers, Decision(**texts) if texts["text"] else None)
    except ReportError as error:
        found.add(name, f"cannot be compared with the run: {local(error, run_dir)}")
        return False
    if made == again:
        found.say("Its pages are those that this run and these answers give, to the byte.")
        return True
    found.say(
        "Its pages were not made by this version of dpfedadamw, or were written again by another "
        "program: read the decision on them. The data inside do not show it."
    )
    return False


def document(
    report: Report,
    digests: dict[str, str],
    answers: Mapping[str, str] | None = None,
    decision: Decision | None = None,
) -> Document:
    """Return what the annex shows.

    Args:
        report: The report on the run.
        digests: SHA-256 of what is signed off, by file.
        answers: What the spec leaves open, by key of its section report.
        decision: What is decided; None leaves boxes for it.
    """
    identity, verdict = report[Identity], report[Verdict]
    stated = {one.label: one.text for one in report[Governance].root if one.text is not None}
    given = {name: text for name, text in (answers or {}).items() if text}
    answered = {
        one.label: given[one.field]
        for one in report[Governance].root
        if one.text is None and one.field in given
    }
    left = [
        one.label for one in report[Governance].root if one.text is None and one.field not in given
    ]
    data: dict[str, Any] = {
        "format": _FORMAT,
        "run": identity.run,
        "files": digests,
        "verdict": verdict.value,
        "audit": verdict.statement,
        "promise": report[Meaning].promise,
        "stated": stated,
        "answered": given,
        "open": left,
        "decision": None if decision is None else asdict(decision),
    }
    rows: list[list[Text]] = [[name, [code(digest)]] for name, digest in digests.items()]
    subject = (
        paragraph(
            "This annex is about these files and no others. Compare their digests (sha256sum) "
            "before you sign. " + (_TO_BE_SIGNED if decision is None else _DECIDED)
        ),
        table("SHA-256 of what is signed off", ("File", "SHA-256"), rows, (LEFT, LEFT), (0, 1)),
    )
    sections = [
        Section("subject", "What is signed off", subject),
        Section("stated", "Stated before the run", (fields(list(stated.items())),)),
        Section("answered", "Answered for this decision", (fields(list(answered.items())),)),
        Section("open", "Left open" if decision else "To be answered", (_open(left, decision),)),
        Section("decision", "Decision", (_decided(decision),)),
    ]
    kept = {"stated": bool(stated), "answered": bool(answered), "open": bool(left)}
    return Document(
        title=f"Sign-off: {identity.name}",
        label="Annex to a privacy report",
        audience=AUDIENCES_IN_WORDS[report.audience],
        description=f"To be signed by the person who answers for the processing: {identity.name}.",
        keywords=(f"run {identity.run}", report.audience, verdict.value),
        identifier=identity.run,
        created=identity.created,
        date=f"Run of {date_in_words(identity.created)}",
        paper=identity.paper,
        band=band(report),
        qualifications=tuple(ended(sentence(text)) for text in report[Qualifications].root),
        introduction="",
        claim=claim(report),
        front=(),
        summary=(),
        glance=(),
        sections=tuple(one for one in sections if kept.get(one.identifier, True)),
        pictures={},
        footer="Annex, to be signed" if decision is None else "Annex, decided",
        attachment=ATTACHMENT,
        data=as_json(data),
    )


def _open(left: Sequence[str], decision: Decision | None) -> Block:
    """Return boxes to answer in; once it is decided, what was left open."""
    return blank(left) if decision is None else bullets(left)


def _decided(decision: Decision | None) -> Block:
    if decision is None:
        return blank(_DECISION)
    texts = (decision.text, decision.name, decision.date)
    return fields(
        list(zip(("Decision and conditions", "Name and office", "Date"), texts, strict=True))
    )
