"""Certificates of signing keys: self-signed by default, or a chain that an authority issued.

A PDF's signature carries a certificate. What is trusted here is the key, whose fingerprint people
compare; a self-signed certificate adds only a name and an expiry to it. Source: RFC 5280.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from audit.untrusted.files import FileError, read_chosen
from reports.errors import KeyFileError
from reports.files import clean
from reports.signatures.keys import fingerprint

VALID_DAYS = 3650
_MOST_CERTIFICATES = 8
MOST_BYTES = 1_000_000
_CLOCK_SKEW = timedelta(minutes=5)

Chain = tuple[x509.Certificate, ...]


def now() -> datetime:
    """Return the present time, UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def self_signed(
    private: ec.EllipticCurvePrivateKey,
    role: str,
    days: int = VALID_DAYS,
    start: datetime | None = None,
) -> x509.Certificate:
    """Return a certificate that a key signs for itself.

    Args:
        private: The key.
        role: "trainer" or "auditor"; becomes part of the name.
        days: How long it is valid, in days, from 1 to 36500.
        start: From when; now if not given.

    Raises:
        KeyFileError: The number of days is out of range.
    """
    if not 1 <= days <= 36_500:
        raise KeyFileError(f"days: {days} is not between 1 and 36500")
    begin = start or now()
    public = private.public_key()
    # The key's fingerprint in the name tells two holders of the same role apart.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, fingerprint(public)),
            x509.NameAttribute(NameOID.COMMON_NAME, f"dpfedadamw {role}"),
        ]
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=True,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(private, hashes.SHA256())
    )


def load_chain(path: Path) -> Chain:
    """Return the certificates in a PEM file that the caller chose, the signer's first.

    Raises:
        KeyFileError: The file cannot be read, or holds no certificate.
    """
    try:
        return parse_chain(read_chosen(path, MOST_BYTES)[0], str(path))
    except FileError as error:
        raise KeyFileError(f"{path}: cannot be read ({error.detail})") from error


def parse_chain(data: bytes, where: str) -> Chain:
    """Return the certificates in PEM bytes, the signer's first.

    Raises:
        KeyFileError: There is none, too many, or what is there is no certificate.
    """
    try:
        chain = tuple(x509.load_pem_x509_certificates(data))
    except ValueError as error:
        raise KeyFileError(f"{where}: no certificate in PEM form") from error
    if len(chain) > _MOST_CERTIFICATES:
        raise KeyFileError(f"{where}: more than {_MOST_CERTIFICATES} certificates")
    return chain


def check_chain(chain: Chain, public: ec.EllipticCurvePublicKey, where: str) -> None:
    """Check that the first certificate is for a key, and each is issued by the next.

    Raises:
        KeyFileError: It is not.
    """
    leaf = chain[0].public_key()
    if not isinstance(leaf, ec.EllipticCurvePublicKey) or fingerprint(leaf) != fingerprint(public):
        raise KeyFileError(
            f"{where}: its first certificate is not for the key {fingerprint(public)}"
        )
    for subject, issuer in zip(chain, (*chain[1:], chain[-1]), strict=True):
        if subject is issuer and subject.subject != subject.issuer:
            continue  # The chain may end below an authority that is not in it.
        try:
            subject.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise KeyFileError(
                f"{where}: {common_name(subject)} was not issued by {common_name(issuer)}, "
                "the next certificate; order them from the signer's to the root's"
            ) from error


def expiry_problem(chain: Chain, moment: datetime) -> str | None:
    """Return why a chain does not hold at a moment, or None if every certificate is valid then."""
    for certificate in chain:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if moment > end:
            return f"the certificate of {common_name(certificate)} expired on {end:%Y-%m-%d}"
        if _before(certificate, moment):
            return (
                f"the certificate of {common_name(certificate)} is valid only from {begin:%Y-%m-%d}"
            )
    return None


def is_early(chain: Chain, moment: datetime) -> bool:
    """Return whether a certificate begins after a moment, as where a clock was set back."""
    return any(_before(certificate, moment) for certificate in chain)


def _before(certificate: x509.Certificate, moment: datetime) -> bool:
    return moment + _CLOCK_SKEW < certificate.not_valid_before_utc


def common_name(certificate: x509.Certificate) -> str:
    """Return the name of a certificate's subject, cleaned for a terminal."""
    return _shown(certificate.subject)


def issuer_name(certificate: x509.Certificate) -> str:
    """Return the name of a certificate's issuer, cleaned for a terminal."""
    return _shown(certificate.issuer)


def _shown(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    value = found[0].value if found else name.rfc4514_string()
    return clean(value if isinstance(value, str) else repr(value), 80)


def is_self_signed(certificate: x509.Certificate) -> bool:
    """Return whether a certificate names itself as its issuer."""
    return certificate.subject == certificate.issuer


def chain_pem(chain: Chain) -> bytes:
    """Return certificates as PEM, the signer's first."""
    return b"".join(entry.public_bytes(serialization.Encoding.PEM) for entry in chain)
