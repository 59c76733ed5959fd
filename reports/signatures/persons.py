"""What persons signed: each signature on an annex, judged over the state that its signer saw.

A PDF grows: every program adds its changes behind the bytes that are there. So the bytes that a
signature covers are a whole PDF, the one that its signer signed, and are read as such. What was
added behind it may be further signatures, document timestamps and validation data, and nothing
that changes a page, a field, an attachment or the title. Otherwise an annex could be rewritten
after it was signed ("shadow attacks": Mainka, Mladenov, Rohlmann, NDSS 2021).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from io import BytesIO
from itertools import chain
from typing import Any

from asn1crypto import x509
from cryptography.x509 import Certificate, load_der_x509_certificate
from pyhanko.pdf_utils import generic
from pyhanko.pdf_utils.reader import PdfFileReader
from pyhanko.sign.diff_analysis import (
    CatalogModificationRule,
    DocInfoRule,
    DSSCompareRule,
    FormUpdatingRule,
    MetadataUpdateRule,
    ModificationLevel,
    ObjectStreamRule,
    SigFieldCreationRule,
    SigFieldModificationRule,
    StandardDiffPolicy,
    SuspiciousModification,
    XrefStreamRule,
)
from pyhanko.sign.fields import MDPPerm, enumerate_sig_fields
from pyhanko.sign.validation import async_validate_pdf_signature, async_validate_pdf_timestamp
from pyhanko.sign.validation.status import SignatureCoverageLevel

from reports.errors import PdfSignatureError
from reports.files import clean
from reports.signatures import pades
from reports.signatures.timestamps import (
    Timestamp,
    is_for_timestamps,
    run,
    validation_context,
)

_MOST_SIGNATURES, _MOST_REVISIONS = 16, 64


def _allows(*catalog: str) -> StandardDiffPolicy:
    """Return pyHanko's usual rules but one: fields that are no signatures may not be filled in.

    Args:
        catalog: Entries of the catalog that may change besides those that all signatures bring.
    """
    free = frozenset({"/AcroForm", "/DSS", "/Extensions", "/Metadata", "/Version", *catalog})
    # pyHanko's constructors have no annotations.
    metadata = MetadataUpdateRule()  # type: ignore[no-untyped-call]
    rules = (DocInfoRule(), XrefStreamRule(), ObjectStreamRule(), DSSCompareRule(), metadata)
    # What a signature shows is judged here, by who signed it (`PersonsSignature.shows`).
    created = SigFieldCreationRule(  # type: ignore[no-untyped-call]
        allow_new_visible_after_certify=True
    )
    signed = SigFieldModificationRule(allow_in_place_appearance_stream_changes=False)
    return StandardDiffPolicy(
        global_rules=[
            CatalogModificationRule(free),  # type: ignore[no-untyped-call]
            *(rule.as_qualified(ModificationLevel.LTA_UPDATES) for rule in rules),
        ],
        form_rule=FormUpdatingRule([created, signed]),
    )


# A first signature may certify; later ones may not.
_FIRST, _LATER = _allows("/Perms"), _allows()


@dataclass(frozen=True)
class PersonsSignature:
    """A signature that holds over what its signer saw, by whatever program and kind of key.

    Attributes:
        name: Whom the certificate is for.
        issuer: Who issued it; the same where it is self-signed.
        fingerprint: SHA-256 of the public key, as the keys' fingerprints here are.
        certificate: The signer's own; those of its issuers are the reader's to judge.
        claimed: When, as the signer says, or None.
        timestamp: When, as an authority says, or None.
        signed: The file as this person signed it: the bytes up to the end of this signature.
        prepared: What was changed between the file's first state and this signature; None if only
            others signed.
        shows: Whether the signature shows something on a page.
        changed: What was added to the file since and may not be; None if it is only further
            signatures and what is needed to check them.
    """

    name: str
    issuer: str
    fingerprint: str
    certificate: Certificate
    claimed: datetime | None
    timestamp: Timestamp | None
    signed: bytes
    prepared: str | None
    shows: bool
    changed: str | None


def check_sign_off(
    data: bytes, where: str, roots: tuple[x509.Certificate, ...] = ()
) -> tuple[PersonsSignature, ...]:
    """Check every signature on an annex, by whatever program it was made.

    Args:
        data: The PDF, possibly hostile.
        where: Named in errors.
        roots: Certificates of time-stamping authorities that the reader trusts.

    Returns:
        The signatures, in the order in which they were made. Whose they are, the certificates say;
        whether to believe that is the reader's to judge, and so is `PersonsSignature.changed`.

    Raises:
        PdfSignatureError: There is none, or one does not hold over the state that it is for.
    """
    try:
        return run(_check(data, where, roots))
    except PdfSignatureError:
        raise
    # The parsers of PDF, CMS and ASN.1 meet hostile bytes here and have no common error.
    except Exception as error:
        raise PdfSignatureError(
            f"{where}: its signature cannot be read ({clean(str(error), 100)})"
        ) from error


async def _check(
    data: bytes, where: str, roots: tuple[x509.Certificate, ...]
) -> tuple[PersonsSignature, ...]:
    reader = pades.opened(data)
    embedded = reader.embedded_signatures
    if reader.xrefs.total_revisions > _MOST_REVISIONS or len(embedded) > _MOST_SIGNATURES:
        raise PdfSignatureError(
            f"{where}: has more than {_MOST_SIGNATURES} signatures or {_MOST_REVISIONS} states"
        )
    if reader.encrypted:
        raise PdfSignatureError(f"{where}: is encrypted")
    _check_none_hidden(reader, where)
    found = []
    for one in embedded:
        itself, signed = _itself(one, data, where)
        if one.sig_object_type == "/Sig":
            found.append(await _person(itself, reader, signed, where, roots))
        else:
            await _check_document_timestamp(itself, where, roots)
    if not found:
        raise PdfSignatureError(f"{where}: nobody has signed it")
    return tuple(found)


def _check_none_hidden(reader: PdfFileReader, where: str) -> None:
    """Refuse a file of which a signature was taken away, or is of a kind that is not judged.

    Raises:
        PdfSignatureError: It is.
    """
    judged = {one.field_name for one in reader.embedded_signatures}
    for revision in range(reader.xrefs.total_revisions):
        state = reader.get_historical_resolver(revision)
        if not {name for name, _, _ in enumerate_sig_fields(state, filled_status=True)} <= judged:
            raise PdfSignatureError(
                f"{where}: a signature was taken away, or is of a kind that cannot be checked"
            )


def _itself(one: Any, data: bytes, where: str) -> tuple[Any, bytes]:
    """Return a signature as it stands in the file that its signer signed, and that file.

    Raises:
        PdfSignatureError: What the signature covers is no such file.
    """
    subject = clean(one.signer_cert.subject.human_friendly, 200)
    left_out = PdfSignatureError(f"{where}: the signature of {subject} leaves something out")
    places = [int(place) for place in one.byte_range]
    if len(places) != 4:
        raise left_out
    start, before, after, rest = places
    if start != 0 or not 0 < before < after < after + rest <= len(data):
        raise left_out
    signed = data[: after + rest]
    content = pades.check_gap(data, (before, after), where)
    inside = pades.opened(signed).embedded_signatures
    same = [
        found
        for found in inside
        if found.field_name == one.field_name and list(found.byte_range) == list(one.byte_range)
    ]
    if len(same) != 1 or same[0] is not inside[-1] or same[0].pkcs7_content != content:
        raise left_out
    return same[0], signed


async def _person(
    itself: Any,
    reader: PdfFileReader,
    signed: bytes,
    where: str,
    roots: tuple[x509.Certificate, ...],
) -> PersonsSignature:
    certificates = [itself.signer_cert, *itself.other_embedded_certs]
    status = await async_validate_pdf_signature(
        itself,
        signer_validation_context=validation_context((itself.signer_cert,), certificates),
        ts_validation_context=validation_context(roots),
        skip_diff=True,
    )
    subject = clean(itself.signer_cert.subject.human_friendly, 200)
    if not (status.intact and status.valid):
        raise PdfSignatureError(f"{where}: the signature of {subject} does not hold")
    if status.coverage != SignatureCoverageLevel.ENTIRE_FILE:
        raise PdfSignatureError(f"{where}: the signature of {subject} leaves something out")
    digest = sha256(itself.signer_cert.public_key.dump()).digest()
    own = pades.opened(signed)
    made = pades.opened(pades.made_as(signed, where))
    return PersonsSignature(
        name=subject,
        issuer=clean(itself.signer_cert.issuer.human_friendly, 200),
        fingerprint="SHA256:" + b64encode(digest).decode("ascii").rstrip("="),
        certificate=load_der_x509_certificate(itself.signer_cert.dump()),
        claimed=status.signer_reported_dt,
        timestamp=pades.timestamp_of(status, roots, where),
        signed=signed,
        prepared=_changed(made, own),
        shows=_shows(itself.sig_field),
        changed=_changed(own, reader, itself),
    )


async def _check_document_timestamp(
    itself: Any, where: str, roots: tuple[x509.Certificate, ...]
) -> None:
    """Refuse a timestamp over the whole document that does not hold, or that shows something.

    Raises:
        PdfSignatureError: It does not.
    """
    status = await async_validate_pdf_timestamp(
        itself, validation_context=validation_context(roots), skip_diff=True
    )
    whole = status.coverage == SignatureCoverageLevel.ENTIRE_FILE
    fit = is_for_timestamps(status.signing_cert) and not _shows(itself.sig_field)
    if not (status.intact and status.valid and whole and fit):
        raise PdfSignatureError(f"{where}: a timestamp over the document does not hold")


def _changed(before: PdfFileReader, after: PdfFileReader, signature: Any = None) -> str | None:
    """Return what a later state of a file changes, None if it is only what signatures bring.

    Args:
        before: The file up to some state.
        after: The file, which begins with that.
        signature: The one on the earlier state, which may restrict what follows it; None where
            the earlier state is the file as it was made.
    """
    states = before.xrefs.total_revisions
    added = after.stream.getvalue()[len(before.stream.getvalue()) :]
    if added.count(b"%%EOF") != after.xrefs.total_revisions - states or (
        added and after.xrefs.total_revisions == states
    ):
        return "bytes were added that belong to no state of the file"
    for number in range(states):
        here, there = (one.xrefs.get_startxref_for_revision(number) for one in (before, after))
        if here != there:
            return "what was added does not continue the file"
    try:
        return _changes(before, after, signature)
    # The parser meets hostile bytes here and has no common error.
    except Exception as error:
        return f"what was added cannot be read ({clean(str(error), 100)})"


def _changes(before: PdfFileReader, after: PdfFileReader, signature: Any) -> str | None:
    """Return what states beyond the first ones change, as `_changed`."""
    states = before.xrefs.total_revisions
    old, new = (after.get_historical_resolver(n) for n in (states - 1, after.total_revisions - 1))
    if "/AcroForm" not in old.root and "/AcroForm" in new.root:
        # A file without a form is one with an empty form; the rules know the second kind alone.
        fields = {generic.pdf_name("/Fields"): generic.ArrayObject()}
        form = generic.DictionaryObject(fields)  # type: ignore[no-untyped-call]
        if "/SigFlags" in new.root["/AcroForm"]:
            form[generic.pdf_name("/SigFlags")] = new.root["/AcroForm"].raw_get("/SigFlags")
        form.container_ref = form["/Fields"].container_ref = old.root.container_ref
        old.root[generic.pdf_name("/AcroForm")] = form
    allowed = getattr(signature, "docmdp_level", None)
    rules = _FIRST if signature is None else _LATER
    result = rules.review_file(
        after, old, field_mdp_spec=getattr(signature, "fieldmdp", None), doc_mdp=allowed
    )
    if isinstance(result, SuspiciousModification):
        return "what was added is more than signatures, timestamps and what checks them"
    if allowed is MDPPerm.NO_CHANGES and result.modification_level > ModificationLevel.LTA_UPDATES:
        return "the signature forbids what was added"
    known = {name for name, _, _ in enumerate_sig_fields(old, filled_status=False)}
    for revision in range(states, after.total_revisions):
        state = after.get_historical_resolver(revision)
        empty = {name for name, _, _ in enumerate_sig_fields(state, filled_status=False)}
        if not empty <= known:
            return "a place for a signature was added and left empty"
    if _described(before) != _described(after):
        return "its title, author, subject or keywords were changed"
    return None


def _described(reader: PdfFileReader) -> list[Any]:
    """Return what a file says that it is, in both places, for windows' titles and archives."""
    # Read apart: the library keeps metadata in a form of which it cannot compare states.
    inside = PdfFileReader(BytesIO(reader.stream.getvalue())).document_meta_view
    view = reader.trailer_view
    written: Any = {}
    if "/Info" in view:
        written = view["/Info"]
    keys = ("/Title", "/Author", "/Subject", "/Keywords")
    return [
        *(str(value) for value in (inside.title, inside.author, inside.subject, inside.keywords)),
        *(str(written.get(key)) for key in keys),
    ]


def _shows(field: Any) -> bool:
    """Whether a signature's field takes room on a page."""
    return any(_has_area(one) for one in chain((field,), _kids(field)))


def _kids(field: Any) -> Iterable[Any]:
    return [kid.get_object() for kid in field.get("/Kids", ())]


def _has_area(widget: Any) -> bool:
    if "/Rect" not in widget:
        return False
    try:
        left, bottom, right, top = (float(side.get_object()) for side in widget["/Rect"])
    except (AttributeError, TypeError, ValueError):
        return True
    return left != right and bottom != top
