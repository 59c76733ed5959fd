"""The report's own signature: PAdES, certifying that no change is allowed, by pyHanko.

The auditor's key signs, because the auditor files the report. The signature is invisible and added
behind the finished file, of which no byte changes; pages and metadata stay PDF/A-3a and PDF/UA-1.
Sources: ETSI EN 319 142-1 (levels B-B and, with a timestamp, B-T); ISO 32000-1, 12.8.2.2 (DocMDP);
ISO 19005-3, 6.3.2 and ISO 14289-1, 7.18 (flags and place of the field).
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from asn1crypto import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_der_x509_certificate

from reports.errors import KeyFileError, PdfSignatureError, ReportError
from reports.files import clean
from reports.signatures import keys
from reports.signatures.certificates import Chain, check_chain
from reports.signatures.keyring import SigningKey
from reports.signatures.library import (
    IncrementalPdfFileWriter,
    PdfFileReader,
    SignatureCoverageLevel,
    SimpleCertificateStore,
    async_validate_pdf_signature,
    fields,
    signers,
)
from reports.signatures.timestamps import (
    Authority,
    Timestamp,
    from_status,
    is_for_timestamps,
    run,
    to_asn1,
    validation_context,
)

FIELD, ATTACHMENT = "Auditor", "report.json"
SIGN_OFF_FIELD = "Signed off"
_END = re.compile(rb"startxref\s{1,2}[0-9]{1,20}\s{1,2}%%EOF\s{0,2}\Z")
_ALT_TEXT = "Certification signature of the auditor"
_REASON = "Certifies this privacy report as the auditor filed it; no change is allowed"
_SIGN_OFF_REASON = "Signs off the report that this annex names by its digests"
_ESIC = "ESIC"


@dataclass(frozen=True)
class PdfSignature:
    """A signature that holds over a whole PDF.

    Attributes:
        key: The key that signed.
        chain: Its certificates as embedded, the signer's first.
        claimed: When, as the signer says, or None.
        timestamp: When, as an authority says, or None.
    """

    key: ec.EllipticCurvePublicKey
    chain: Chain
    claimed: datetime | None
    timestamp: Timestamp | None


class _Writer(IncrementalPdfFileWriter):
    """Adds to a file and leaves metadata and version as they are, which PDF/A depends on.

    pyHanko would rewrite the XMP packet and raise the version to 2.0 for its elliptic curve.
    """

    def _update_meta(self) -> None:
        """Keep the metadata: what is signed is the report as it was made."""

    def ensure_output_version(self, version: tuple[int, int]) -> None:
        """Stay at the version of the file."""

    def register_extension(self, ext: Any) -> None:
        """Declare the one extension that PAdES asks for in PDF 1.7."""
        if ext.prefix_name == f"/{_ESIC}":
            super().register_extension(ext)


class _Signer(signers.Signer):
    """Lets any of our keys, in a file or in hardware, make the signature."""

    def __init__(self, key: SigningKey) -> None:
        """Take the key and its chain."""
        chain = [to_asn1(entry) for entry in key.chain]
        # pyHanko's constructor has no annotations.
        registry = SimpleCertificateStore()  # type: ignore[no-untyped-call]
        registry.register_multiple(chain)
        super().__init__(signing_cert=chain[0], cert_registry=registry)
        self._key = key.private

    async def async_sign_raw(
        self, data: bytes, digest_algorithm: str, dry_run: bool = False
    ) -> bytes:
        """Return an ECDSA signature, or as many bytes as one takes at most."""
        if dry_run:
            return bytes(72)
        if digest_algorithm.lower() != "sha256":
            raise PdfSignatureError("report.pdf: only SHA-256 is used")
        return keys.sign(self._key, data)


def sign(data: bytes, key: SigningKey, where: str, authority: Authority | None = None) -> bytes:
    """Return a PDF with a certification signature behind it.

    Args:
        data: The PDF, unsigned, or signed by `sign` before: that signature is then replaced.
        key: The auditor's key.
        where: Named in errors.
        authority: Adds a timestamp, which makes level B-T of level B-B.

    Raises:
        PdfSignatureError: The bytes are no such PDF.
        TimestampError: The authority does not answer as it should.
    """
    certifying = signers.PdfSignatureMetadata(
        field_name=FIELD,
        certify=True,
        docmdp_permissions=fields.MDPPerm.NO_CHANGES,
        subfilter=fields.SigSeedSubFilter.PADES,
        md_algorithm="sha256",
        reason=_REASON,
        name=f"{key.role}, {key.fingerprint}",
    )
    place = (FIELD, _ALT_TEXT)
    return _signed(unsigned(data, where), key, certifying, place, where, authority)


def sign_off(
    data: bytes, key: SigningKey, name: str, where: str, authority: Authority | None = None
) -> bytes:
    """Return an annex with a person's signature behind it, which lets others sign too.

    Args:
        data: The annex, unsigned.
        key: The person's key.
        name: The person's name and office.
        where: Named in errors.
        authority: Adds a timestamp.

    Raises:
        PdfSignatureError: The bytes are no such PDF.
        TimestampError: The authority does not answer as it should.
    """
    approving = signers.PdfSignatureMetadata(
        field_name=SIGN_OFF_FIELD,
        subfilter=fields.SigSeedSubFilter.PADES,
        md_algorithm="sha256",
        reason=_SIGN_OFF_REASON,
        name=name,
    )
    place = (SIGN_OFF_FIELD, f"Signature of {name}")
    return _signed(data, key, approving, place, where, authority)


def _signed(
    data: bytes,
    key: SigningKey,
    metadata: signers.PdfSignatureMetadata,
    named: tuple[str, str],
    where: str,
    authority: Authority | None,
) -> bytes:
    """Return a PDF with an invisible signature behind it; named is its field, in words too."""
    field, described = named
    place = fields.SigFieldSpec(
        field,
        on_page=0,
        readable_field_name=described,
        # Outside the page: PDF/UA asks no tag for what is not on it, PDF/A forbids to hide it.
        invis_sig_settings=fields.InvisSigSettings(box_out_of_bounds=True),
    )
    client = authority.client() if authority is not None else None
    signer = signers.PdfSigner(
        metadata, signer=_Signer(key), timestamper=client, new_field_spec=place
    )
    try:
        writer = _Writer(io.BytesIO(data))
        request = signer.async_sign_pdf(writer)
        result = authority.guard(request) if authority is not None else run(request)
    except ReportError:
        raise
    # pyHanko's errors for files, fields and signing have no common base.
    except Exception as error:
        raise PdfSignatureError(f"{where}: cannot be signed ({clean(str(error), 120)})") from error
    return bytes(result.getvalue())


@lru_cache(maxsize=4)
def opened(data: bytes) -> PdfFileReader:
    """Open a PDF that may be hostile; the same bytes are parsed once for signature and attachment.

    Raises:
        ValueError: It does not end as a PDF does; pyHanko would look for the end byte by byte.
    """
    if _END.search(data[-128:]) is None:
        raise ValueError("it does not end as a PDF does")
    return PdfFileReader(io.BytesIO(data))


def unsigned(data: bytes, where: str) -> bytes:
    """Return a PDF as it was before `sign` added to it; an unsigned one as it is.

    Raises:
        PdfSignatureError: The bytes are no PDF, or were changed by something else than `sign`.
    """
    try:
        reader = opened(data)
        revisions = reader.xrefs.total_revisions
        if revisions == 1:
            return data
        first = reader.xrefs.get_startxref_for_revision(0)
        names = [found.field_name for found in reader.embedded_signatures]
    except Exception as error:
        raise PdfSignatureError(f"{where}: is no readable PDF") from error
    end = re.search(rb"startxref\s+%d\s+%%%%EOF" % first, data)
    if revisions != 2 or names != [FIELD] or end is None:
        raise PdfSignatureError(f"{where}: was changed after it was made; write the report again")
    return data[: end.end()]


def check(data: bytes, where: str, roots: tuple[x509.Certificate, ...] = ()) -> PdfSignature:
    """Check a PDF's certification signature.

    Args:
        data: The PDF, possibly hostile.
        where: Named in errors.
        roots: Certificates of time-stamping authorities that the reader trusts.

    Raises:
        PdfSignatureError: There is no such signature, or it does not hold over the whole file.
    """
    try:
        return run(_check(data, where, roots))
    except (PdfSignatureError, KeyFileError):
        raise
    # The parsers of PDF, CMS and ASN.1 meet hostile bytes here and have no common error.
    except Exception as error:
        raise PdfSignatureError(
            f"{where}: its signature cannot be read ({clean(str(error), 100)})"
        ) from error


async def _check(data: bytes, where: str, roots: tuple[x509.Certificate, ...]) -> PdfSignature:
    reader = opened(data)
    found = reader.embedded_signatures
    if not found:
        raise PdfSignatureError(f"{where}: is not signed")
    if len(found) != 1 or found[0].field_name != FIELD:
        raise PdfSignatureError(f"{where}: must have one signature, the auditor's")
    embedded = found[0]
    certificates = [embedded.signer_cert, *embedded.other_embedded_certs]
    chain = _ordered([load_der_x509_certificate(entry.dump()) for entry in certificates])
    key = chain[0].public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise PdfSignatureError(f"{where}: is not signed by a P-256 key")
    check_chain(chain, key, where)
    # Whom to trust is decided by the key's fingerprint; the path is only checked for soundness.
    anchor = x509.Certificate.load(to_asn1(chain[-1]).dump())
    status = await async_validate_pdf_signature(
        embedded,
        signer_validation_context=validation_context((anchor,), certificates),
        ts_validation_context=validation_context(roots),
    )
    if not status.intact:
        raise PdfSignatureError(f"{where}: changed since it was signed")
    if not status.valid:
        raise PdfSignatureError(f"{where}: its signature does not hold")
    if status.coverage != SignatureCoverageLevel.ENTIRE_FILE:
        raise PdfSignatureError(f"{where}: something was added after it was signed")
    _, before, after, _ = embedded.byte_range
    if check_gap(data, (before, after), where) != embedded.pkcs7_content:
        raise PdfSignatureError(f"{where}: its signature stands elsewhere than it says")
    permission = embedded.docmdp_level
    if "/DocMDP" not in reader.root.get("/Perms", {}) or permission != fields.MDPPerm.NO_CHANGES:
        raise PdfSignatureError(f"{where}: its signature does not forbid changes")
    return PdfSignature(key, chain, status.signer_reported_dt, timestamp_of(status, roots, where))


def made_as(data: bytes, where: str) -> bytes:
    """Return a PDF as it was before anybody filled it in or signed it.

    Raises:
        PdfSignatureError: The bytes are no PDF.
    """
    try:
        reader = opened(data)
        first = reader.xrefs.get_startxref_for_revision(0)
    # The parser meets hostile bytes here and has no common error.
    except Exception as error:
        raise PdfSignatureError(f"{where}: is no readable PDF") from error
    end = re.search(rb"startxref\s+%d\s+%%%%EOF" % first, data)
    return data[: end.end()] if end is not None else data


def check_gap(data: bytes, gap: tuple[int, int], where: str) -> bytes:
    """Refuse anything but the signature in the one place that the signature does not cover.

    Args:
        data: The PDF.
        gap: Where that place begins, and where it ends.
        where: Named in errors.

    Returns:
        What stands there, with the zeros that fill it up.

    Raises:
        PdfSignatureError: The place holds more than one DER value, in hexadecimal, and zeros.
    """
    before, after = gap
    digits = re.fullmatch(rb"<((?:[0-9A-Fa-f]{2})+)>", data[before:after])
    if digits is None:
        raise PdfSignatureError(f"{where}: holds more than a signature where the signature stands")
    content = bytes.fromhex(digits[1].decode("ascii"))
    # A value of more than 127 bytes states its length in the bytes after the second.
    width = content[1] - 0x80 if content[1] > 0x80 else 0
    length = int.from_bytes(content[2 : 2 + width], "big") if width else content[1]
    if content[2 + width + length :].strip(b"\0"):
        raise PdfSignatureError(f"{where}: holds unsigned bytes behind its signature")
    return content


def _ordered(certificates: list[Any]) -> Chain:
    """Return the signer's certificate and its issuers, as far as they are there."""
    chain = [certificates[0]]
    rest = certificates[1:]
    while chain[-1].subject != chain[-1].issuer:
        above = [entry for entry in rest if entry.subject == chain[-1].issuer]
        if not above or above[0] in chain:
            break
        chain.append(above[0])
    return tuple(chain)


def timestamp_of(status: Any, roots: tuple[x509.Certificate, ...], where: str) -> Timestamp | None:
    """Return the timestamp of a signature, None if it has none.

    Raises:
        PdfSignatureError: It does not hold.
    """
    validity = status.timestamp_validity
    if validity is None:
        return None
    if not (validity.intact and validity.valid):
        raise PdfSignatureError(f"{where}: its timestamp does not hold")
    if not is_for_timestamps(validity.signing_cert):
        raise PdfSignatureError(
            f"{where}: the certificate of its timestamp's authority is not for timestamps alone"
        )
    return from_status(validity, roots)


def attached(data: bytes, where: str, name: str = ATTACHMENT) -> bytes:
    """Return the data that a PDF carries.

    Args:
        data: The PDF, possibly hostile.
        where: Named in errors.
        name: What the data are called in it.

    Raises:
        PdfSignatureError: It carries none.
    """
    try:
        reader = opened(data)
        for entry in reader.root["/AF"]:
            file = entry.get_object()
            if file["/F"] == name:
                return bytes(file["/EF"]["/F"].data)
    # The parser meets hostile bytes here and has no common error.
    except Exception as error:
        raise PdfSignatureError(f"{where}: its {name} cannot be read") from error
    raise PdfSignatureError(f"{where}: carries no {name}")
