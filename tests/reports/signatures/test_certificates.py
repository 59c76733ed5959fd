"""Certificates: each issued by the next, for the key that signs, and valid when it signed."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from reports.errors import KeyFileError
from reports.signatures import certificates
from reports.signatures.certificates import Chain, check_chain, expiry_problem, parse_chain

BEGIN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
END = BEGIN + datetime.timedelta(days=30)
SECOND, SKEW = datetime.timedelta(seconds=1), datetime.timedelta(minutes=5)
LEAF, MIDDLE, ROOT, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))


def issue(
    subject: str,
    public: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
    issuer: str,
    private: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime = BEGIN,
) -> x509.Certificate:
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(public)
        .serial_number(7)
        .not_valid_before(begin)
        .not_valid_after(begin + (END - BEGIN))
        .sign(private, hashes.SHA256())
    )


ONE = issue("Auditor", LEAF.public_key(), "Office", MIDDLE)
TWO = issue("Office", MIDDLE.public_key(), "State", ROOT)
THREE = issue("State", ROOT.public_key(), "State", ROOT)
OWN = issue("Auditor", LEAF.public_key(), "Auditor", LEAF)


@pytest.mark.parametrize("chain", [(OWN,), (ONE,), (ONE, TWO), (ONE, TWO, THREE)])
def test_a_chain_holds_to_wherever_it_reaches(chain: Chain) -> None:
    check_chain(chain, LEAF.public_key(), "it")


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ((TWO, THREE), "it: its first certificate is not for the key"),
        ((THREE,), "it: its first certificate is not for the key"),
        (
            (issue("A", ed25519.Ed25519PrivateKey.generate().public_key(), "State", ROOT), THREE),
            "it: its first certificate is not for the key",
        ),
        ((ONE, THREE), "it: Auditor was not issued by State"),
        ((ONE, THREE, TWO), "it: Auditor was not issued by State"),
        ((ONE, TWO, issue("State", OTHER.public_key(), "State", OTHER)), "it: Office was not"),
        # It names itself as its issuer, and another key signed it.
        ((issue("Auditor", LEAF.public_key(), "Auditor", OTHER),), "it: Auditor was not issued by"),
        ((ONE, TWO, issue("State", ROOT.public_key(), "State", OTHER)), "it: State was not issued"),
    ],
)
def test_a_chain_of_another_key_or_with_a_link_that_does_not_hold_is_refused(
    chain: Chain, said: str
) -> None:
    with pytest.raises(KeyFileError, match=said):
        check_chain(chain, LEAF.public_key(), "it")


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (BEGIN, None),
        (BEGIN - SKEW, None),
        (BEGIN - SKEW - SECOND, "the certificate of Auditor is valid only from 2026-11-01"),
        (END, None),
        (END + SECOND, "the certificate of Auditor expired on 2026-12-01"),
    ],
)
def test_a_certificate_is_valid_from_its_first_moment_to_its_last(
    moment: datetime.datetime, said: str | None
) -> None:
    assert expiry_problem((OWN,), moment) == said
    assert certificates.is_early((OWN,), moment) == (said is not None and "only from" in said)


def test_every_certificate_of_a_chain_must_be_valid() -> None:
    later = issue("Office", MIDDLE.public_key(), "State", ROOT, BEGIN + 9 * SKEW)
    assert expiry_problem((ONE, TWO, THREE), BEGIN) is None
    told = "the certificate of Office is valid only from 2026-11-01"
    assert expiry_problem((ONE, later, THREE), BEGIN) == told
    assert certificates.is_early((ONE, later), BEGIN)
    assert expiry_problem((later, ONE), END + SECOND) == (
        "the certificate of Auditor expired on 2026-12-01"
    )


def test_a_certificate_is_made_for_a_day_to_a_hundred_years() -> None:
    for days in (1, 36_500):
        made = certificates.self_signed(LEAF, "auditor", days, BEGIN)
        assert made.not_valid_after_utc - made.not_valid_before_utc == datetime.timedelta(days)
        check_chain((made,), LEAF.public_key(), "it")
    for days in (0, 36_501):
        with pytest.raises(KeyFileError, match=f"days: {days} is not between 1 and 36500"):
            certificates.self_signed(LEAF, "auditor", days, BEGIN)


def test_up_to_eight_certificates_are_read_in_their_order(tmp_path: Path) -> None:
    eight = (ONE, TWO, THREE, *([THREE] * 5))
    assert parse_chain(certificates.chain_pem(eight), "it") == eight
    with pytest.raises(KeyFileError, match="it: more than 8 certificates"):
        parse_chain(certificates.chain_pem((*eight, THREE)), "it")
    for junk in (b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(KeyFileError, match="it: no certificate in PEM form"):
            parse_chain(junk, "it")
    (tmp_path / "chain.pem").write_bytes(certificates.chain_pem((ONE, TWO)))
    assert certificates.load_chain(tmp_path / "chain.pem") == (ONE, TWO)
    with pytest.raises(KeyFileError, match=r"missing\.pem: cannot be read"):
        certificates.load_chain(tmp_path / "missing.pem")


def test_names_are_those_of_the_holder_and_of_who_issued_it() -> None:
    assert (certificates.common_name(ONE), certificates.issuer_name(ONE)) == ("Auditor", "Office")
    assert certificates.is_self_signed(THREE)
    assert not certificates.is_self_signed(ONE)
    nameless = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Clinic")])
    assert certificates._shown(nameless) == "O=Clinic"


def test_a_certificate_lasts_ten_years_from_now_where_nothing_else_is_asked() -> None:
    before = datetime.datetime.now(datetime.UTC)
    made = certificates.self_signed(LEAF, "auditor")
    assert made.not_valid_after_utc - made.not_valid_before_utc == datetime.timedelta(days=3650)
    assert abs(made.not_valid_before_utc - before) < SKEW
    moment = certificates.now()
    assert moment.tzinfo is datetime.UTC
    assert moment.microsecond == 0
    assert abs(moment - before) < SKEW


def test_a_self_signed_certificate_says_what_its_key_is_for() -> None:
    made = certificates.self_signed(LEAF, "auditor", 30, BEGIN)
    assert made.not_valid_before_utc == BEGIN
    assert made.subject == made.issuer
    assert made.subject.rfc4514_string().startswith("CN=dpfedadamw auditor,OU=SHA256:")
    said = {one.oid._name: (one.critical, one.value) for one in made.extensions}
    assert said == {
        "basicConstraints": (True, x509.BasicConstraints(ca=False, path_length=None)),
        "keyUsage": (
            True,
            x509.KeyUsage(
                digital_signature=True, content_commitment=True, key_encipherment=False,
                data_encipherment=False, key_agreement=False, key_cert_sign=False,
                crl_sign=False, encipher_only=False, decipher_only=False,
            ),
        ),
        "subjectKeyIdentifier": (
            False, x509.SubjectKeyIdentifier.from_public_key(LEAF.public_key()),
        ),
    }  # fmt: skip


def test_of_a_file_of_certificates_a_megabyte_is_read(tmp_path: Path) -> None:
    path, pem = tmp_path / "chain.pem", certificates.chain_pem((ONE,)).rstrip()
    path.write_bytes(pem.rjust(1_000_000, b"\n"))
    assert certificates.load_chain(path) == (ONE,)
    path.write_bytes(pem.rjust(1_000_001, b"\n"))
    with pytest.raises(KeyFileError, match=r"chain\.pem: no certificate in PEM form"):
        certificates.load_chain(path)
