"""The PDF's own signature: over the whole file, forbidding change; the file stays what it was."""

from __future__ import annotations

import datetime
import io
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyhanko.pdf_utils import generic
from pyhanko.pdf_utils.incremental_writer import IncrementalPdfFileWriter
from pyhanko.pdf_utils.reader import PdfFileReader
from pyhanko.pdf_utils.writer import PageObject, PdfFileWriter
from pyhanko.sign import fields, signers
from pyhanko.sign.validation.status import SignatureCoverageLevel

from reports import build_report
from reports.errors import KeyFileError, PdfSignatureError
from reports.signatures import certificates, pades, persons
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import fingerprint
from reports.signatures.timestamps import to_asn1
from tests.reports.signing_keys import fresh

NAME = "report.pdf"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return fresh("auditor")


@pytest.fixture(scope="module")
def pages(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run = run_builder(tmp_path_factory.mktemp("pages") / "run", rounds=2, clients=3)
    return build_report(run).pdf.read_bytes()


@pytest.fixture(scope="module")
def signed(pages: bytes, key: SigningKey) -> bytes:
    return pades.sign(pages, key, NAME)


def test_the_signature_is_the_keys_and_holds(signed: bytes, key: SigningKey) -> None:
    found = pades.check(signed, NAME)
    assert fingerprint(found.key) == key.fingerprint
    assert found.chain == key.chain
    assert found.timestamp is None


def test_no_byte_of_the_report_changes(pages: bytes, signed: bytes) -> None:
    assert signed.startswith(pages)
    assert pades.unsigned(signed, NAME) == pages
    assert pades.unsigned(pages, NAME) == pages


def test_signing_again_replaces_the_signature(pages: bytes, signed: bytes) -> None:
    other = fresh("auditor")
    again = pades.sign(signed, other, NAME)
    assert fingerprint(pades.check(again, NAME).key) == other.fingerprint
    assert again.startswith(pages)
    assert key_count(again) == 1


def key_count(data: bytes) -> int:
    return len(PdfFileReader(io.BytesIO(data)).embedded_signatures)


def test_metadata_version_and_tags_stay_those_of_an_archivable_accessible_file(
    pages: bytes, signed: bytes
) -> None:
    before, after = PdfFileReader(io.BytesIO(pages)), PdfFileReader(io.BytesIO(signed))
    assert after.root["/Metadata"].data == before.root["/Metadata"].data
    assert b"<pdfaid:part>3</pdfaid:part>" in after.root["/Metadata"].data
    assert b"<pdfuaid:part>1</pdfuaid:part>" in after.root["/Metadata"].data
    assert after.trailer["/Info"] == before.trailer["/Info"]
    assert "/Version" not in after.root
    for name in ("/StructTreeRoot", "/MarkInfo", "/OutputIntents", "/AF", "/Lang"):
        assert after.root.raw_get(name) == before.root.raw_get(name)


def test_the_field_is_as_pdf_a_and_pdf_ua_ask(signed: bytes) -> None:
    reader = PdfFileReader(io.BytesIO(signed))
    (field,) = reader.root["/AcroForm"]["/Fields"]
    field = field.get_object()
    flags = int(field["/F"])
    hidden, invisible, no_view, shown_in_print = 2, 1, 32, 4
    assert flags & shown_in_print
    assert not flags & (hidden | invisible | no_view)
    left, bottom, right, top = (float(value) for value in field["/Rect"])
    assert (left, bottom) == (right, top)
    assert right < 0
    assert top < 0
    assert str(field["/TU"])
    page = reader.root["/Pages"]["/Kids"][0].get_object()
    while page["/Type"] == "/Pages":
        page = page["/Kids"][0].get_object()
    assert page["/Tabs"] == "/S"
    (reference,) = field["/V"].get_object()["/Reference"]
    assert not {"/DigestMethod", "/DigestValue", "/DigestLocation"} & set(reference.get_object())
    assert field["/V"]["/SubFilter"] == "/ETSI.CAdES.detached"


@pytest.mark.skipif(shutil.which("pdfsig") is None, reason="poppler is not installed")
def test_pdfsig_says_that_it_is_valid_and_total(signed: bytes, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(signed)
    done = subprocess.run(["pdfsig", "-nocert", path], capture_output=True, check=True, timeout=60)
    assert b"Signature is Valid" in done.stdout
    assert b"Total document signed" in done.stdout
    assert b"ETSI.CAdES.detached" in done.stdout


@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="poppler is not installed")
def test_pdfinfo_still_says_that_it_is_tagged(signed: bytes, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(signed)
    done = subprocess.run(["pdfinfo", path], capture_output=True, check=True, timeout=60)
    lines = dict(line.split(":", 1) for line in done.stdout.decode().splitlines() if ":" in line)
    assert lines["Tagged"].strip() == "yes"
    assert lines["PDF version"].strip() == "1.7"
    assert lines["Form"].strip() == "AcroForm"


def test_pikepdf_finds_the_same_data_inside(signed: bytes, pages: bytes) -> None:
    pikepdf = pytest.importorskip("pikepdf")
    before, after = pikepdf.open(io.BytesIO(pages)), pikepdf.open(io.BytesIO(signed))
    name = "report.json"
    assert (
        after.attachments[name].get_file().read_bytes()
        == before.attachments[name].get_file().read_bytes()
    )
    assert after.check_pdf_syntax() == before.check_pdf_syntax()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_byte_is_refused(signed: bytes, part: int, data: st.DataObject) -> None:
    gap = signed.index(b"/Contents <") + len(b"/Contents <")
    end = signed.index(b">", gap)
    # What stands in the gap for the signature is not signed by it: the envelope signs it.
    outside = [*range(gap), *range(end, len(signed))]
    # Where draws are the same each time, another part still changes another byte.
    position = outside[(data.draw(st.integers(0, len(outside) - 1)) + part) % len(outside)]
    changed = bytearray(signed)
    changed[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PdfSignatureError):
        pades.check(bytes(changed), NAME)


def test_an_addition_is_refused_even_if_it_shows_nothing(signed: bytes) -> None:
    with pytest.raises(PdfSignatureError, match=r"added after it was signed|cannot be read"):
        pades.check(signed + b"\n% more\n", NAME)
    writer = IncrementalPdfFileWriter(io.BytesIO(signed))
    writer.root["/Note"] = writer.add_object(writer.root["/Lang"])
    writer.update_root()
    added = io.BytesIO()
    writer.write(added)
    with pytest.raises(PdfSignatureError):
        pades.check(added.getvalue(), NAME)
    with pytest.raises(PdfSignatureError, match="changed after it was made"):
        pades.unsigned(added.getvalue(), NAME)


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7", b"%PDF-1.7\n%%EOF", b"\0" * 5000, b"x" * 99])
def test_what_is_no_pdf_is_refused_in_one_line(data: bytes, key: SigningKey) -> None:
    for act in (lambda: pades.check(data, NAME), lambda: pades.sign(data, key, NAME)):
        with pytest.raises(PdfSignatureError, match=NAME) as caught:
            act()
        assert "\n" not in str(caught.value)


def test_an_unsigned_report_is_said_to_be_unsigned(pages: bytes) -> None:
    with pytest.raises(PdfSignatureError, match="is not signed"):
        pades.check(pages, NAME)


def chain_of(key: ec.EllipticCurvePrivateKey) -> certificates.Chain:
    """A certificate from an authority, and the authority's own."""
    now = certificates.now()

    def issue(name, public, issuer, private, authority):
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=9))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not authority,
                    content_commitment=not authority,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=authority,
                    crl_sign=authority,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(private, hashes.SHA256())
        )

    above = ec.generate_private_key(ec.SECP256R1())
    return (
        issue("Auditors Ltd", key.public_key(), "Authority", above, False),
        issue("Authority", above.public_key(), "Authority", above, True),
    )


def test_a_chain_of_certificates_travels_in_the_pdf(pages: bytes) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    chain = chain_of(private)
    found = pades.check(pades.sign(pages, SigningKey("auditor", private, chain), NAME), NAME)
    assert found.chain == chain


@pytest.mark.parametrize("behind", [b"\0" * 2**22, b"\n" * 2**22, b" %%EOF" * 10])
def test_what_does_not_end_as_a_pdf_does_is_refused_at_once(signed: bytes, behind: bytes) -> None:
    """The parser walks back over empty bytes one by one, a second for each few megabytes."""
    started = time.process_time()
    for act in (pades.check, pades.unsigned, pades.attached):
        with pytest.raises(PdfSignatureError):
            act(signed + behind, "report.pdf")
    assert time.process_time() - started < 0.2


def signed_otherwise(pages: bytes, key: SigningKey, field: str = pades.FIELD, **other) -> bytes:
    """The report signed by the key, though not as `pades.sign` signs."""
    usual = {
        "certify": True,
        "docmdp_permissions": fields.MDPPerm.NO_CHANGES,
        "subfilter": fields.SigSeedSubFilter.PADES,
        "md_algorithm": "sha256",
    }
    metadata = signers.PdfSignatureMetadata(field_name=field, **{**usual, **other})
    signer = signers.PdfSigner(metadata, signer=pades._Signer(key))
    return bytes(signer.sign_pdf(pades._Writer(io.BytesIO(pages))).getvalue())


def test_a_signature_that_does_not_forbid_changes_is_refused(pages: bytes, key: SigningKey) -> None:
    refused = "report.pdf: its signature does not forbid changes"
    for other in (
        {"certify": False},
        {"docmdp_permissions": fields.MDPPerm.FILL_FORMS},
    ):
        with pytest.raises(PdfSignatureError, match=refused):
            pades.check(signed_otherwise(pages, key, **other), NAME)


def test_there_is_one_signature_and_it_is_the_auditors(pages: bytes, key: SigningKey) -> None:
    refused = "report.pdf: must have one signature, the auditor's"
    with pytest.raises(PdfSignatureError, match=refused):
        pades.check(signed_otherwise(pages, key, "Somebody"), NAME)
    once = signed_otherwise(pages, key, certify=False)
    twice = signed_otherwise(once, key, "Somebody", certify=False)
    with pytest.raises(PdfSignatureError, match=refused):
        pades.check(twice, NAME)


@pytest.mark.parametrize(
    ("gap", "refused"),
    [
        (b"<300201ff0000>", None),
        # 129 and 256 bytes: their length stands in one further byte, or in two.
        (b"<308181" + b"ab" * 129 + b"0000>", None),
        (b"<30820100" + b"ab" * 256 + b">", None),
        (b"<307f" + b"ab" * 127 + b"00>", None),
        (b"<3000>", None),
        (b"<300001>", "holds unsigned bytes behind its signature"),
        (b"<300201ff01>", "holds unsigned bytes behind its signature"),
        (b"<300201ff58>", "holds unsigned bytes behind its signature"),
        (b"<308181" + b"ab" * 129 + b"0001>", "holds unsigned bytes behind its signature"),
        (b"<30820100" + b"ab" * 256 + b"02>", "holds unsigned bytes behind its signature"),
        (b"<300201f>", "holds more than a signature where the signature stands"),
        (b"<300201ff> <00>", "holds more than a signature where the signature stands"),
        (b"<3002 01ff>", "holds more than a signature where the signature stands"),
        (b"300201ff", "holds more than a signature where the signature stands"),
        (b"<>", "holds more than a signature where the signature stands"),
    ],
)
def test_nothing_but_a_signature_stands_where_the_signature_does_not_reach(
    gap: bytes, refused: str | None
) -> None:
    before, behind = b"%PDF-", b"%%EOF"
    place = (len(before), len(before) + len(gap))
    data = before + gap + behind
    if refused is None:
        assert pades.check_gap(data, place, NAME) == bytes.fromhex(gap[1:-1].decode())
    else:
        with pytest.raises(PdfSignatureError, match=f"report.pdf: {refused}"):
            pades.check_gap(data, place, NAME)


def test_a_report_without_its_data_is_told_as_that(signed: bytes) -> None:
    reader = PdfFileReader(io.BytesIO(signed))
    reader.root["/AF"].clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pades, "opened", lambda _: reader)
        with pytest.raises(PdfSignatureError, match=r"report.pdf: carries no report\.json"):
            pades.attached(signed, NAME)


# What a person's program may sign, and how.


def issued(name: str, key: Any) -> Any:
    """A certificate by an office for a key of any kind, as the PDF library takes it."""
    office = ec.generate_private_key(ec.SECP256R1())
    now = certificates.now()
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Office")]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=9))
        .sign(office, hashes.SHA256())
    )
    return to_asn1(made)


BLOCK = SignatureCoverageLevel.CONTIGUOUS_BLOCK_FROM_START
CLAIMED = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def test_what_cannot_be_parsed_is_one_sentence() -> None:
    for act in (pades.made_as, pades.unsigned):
        with pytest.raises(PdfSignatureError, match=r"^annex\.pdf: ") as caught:
            act(b"no PDF", "annex.pdf")
        assert "\n" not in str(caught.value)


def test_a_report_that_a_key_of_another_kind_certifies_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        certificate = issued("Auditor", key)
        one = SimpleNamespace(
            field_name=pades.FIELD, signer_cert=certificate, other_embedded_certs=[]
        )
        reader = SimpleNamespace(embedded_signatures=[one])
        monkeypatch.setattr(pades, "opened", lambda _, reader=reader: reader)
        with pytest.raises(PdfSignatureError, match="is not signed by a P-256 key"):
            pades.check(b"", NAME)


def test_certificates_are_put_in_order_as_far_as_they_lead() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    leaf, root = chain_of(private)
    (stranger,) = fresh("trainer").chain
    assert pades._ordered([leaf, stranger, root]) == (leaf, root)
    assert pades._ordered([leaf, stranger]) == (leaf,)
    assert pades._ordered([root, leaf]) == (root,)
    assert pades._ordered([leaf]) == (leaf,)


def test_of_certificates_that_name_one_another_each_is_taken_once_and_the_first_of_two() -> None:
    def named(subject: str, issuer: str) -> Any:
        return SimpleNamespace(subject=subject, issuer=issuer)

    one, two, again, root = named("a", "b"), named("b", "a"), named("b", "c"), named("c", "c")
    assert pades._ordered([one, two]) == (one, two)
    assert pades._ordered([one, again, two, root]) == (one, again, root)
    assert pades._ordered([one, root]) == (one,)
    assert pades._ordered([root, one, two]) == (root,)


# What is written into a file of two empty pages.


@pytest.fixture(scope="module")
def plain() -> bytes:
    """Two empty pages, as small as a PDF is made."""
    writer, written = PdfFileWriter(), io.BytesIO()
    for _ in range(2):
        contents = writer.add_object(generic.StreamObject(stream_data=b" "))
        size = generic.ArrayObject([generic.NumberObject(side) for side in (0, 0, 99, 99)])
        writer.insert_page(PageObject(contents=contents, media_box=size))
    writer.write(written)
    return written.getvalue().rstrip()


def kids(reader: PdfFileReader) -> Any:
    return reader.root["/Pages"]["/Kids"]


def test_the_certification_says_who_certified_and_why(plain: bytes, key: SigningKey) -> None:
    data = pades.sign(plain, key, NAME)
    reader = PdfFileReader(io.BytesIO(data))
    (embedded,) = reader.embedded_signatures
    assert embedded.field_name == "Auditor"
    said = embedded.sig_object
    assert said["/Reason"] == (
        "Certifies this privacy report as the auditor filed it; no change is allowed"
    )
    assert said["/Name"] == f"auditor, {key.fingerprint}"
    assert embedded.md_algorithm == "sha256"
    assert embedded.docmdp_level == fields.MDPPerm.NO_CHANGES
    assert embedded.sig_field["/TU"] == "Certification signature of the auditor"
    assert embedded.sig_field.raw_get("/P").reference == kids(reader).raw_get(0).reference
    # The one extension of PDF 1.7 that PAdES asks for, and none for the curve.
    assert set(reader.root["/Extensions"]) == {"/ESIC"}
    assert (pades.FIELD, pades.ATTACHMENT) == ("Auditor", "report.json")


def test_a_person_signs_off_by_name_and_lets_others_sign_too(plain: bytes, key: SigningKey) -> None:
    data = pades.sign_off(plain, key, "A. Person, Clinic", "annex.pdf")
    assert data.startswith(plain)
    reader = PdfFileReader(io.BytesIO(data))
    (embedded,) = reader.embedded_signatures
    assert embedded.field_name == "Signed off"
    said = embedded.sig_object
    assert said["/Name"] == "A. Person, Clinic"
    assert said["/Reason"] == "Signs off the report that this annex names by its digests"
    assert said["/SubFilter"] == "/ETSI.CAdES.detached"
    assert embedded.md_algorithm == "sha256"
    assert embedded.docmdp_level is None
    assert embedded.sig_field["/TU"] == "Signature of A. Person, Clinic"
    assert embedded.sig_field.raw_get("/P").reference == kids(reader).raw_get(0).reference
    (found,) = persons.check_sign_off(data, "annex.pdf")
    assert found.fingerprint == key.fingerprint
    assert found.name == found.issuer
    assert found.claimed is not None
    assert found.timestamp is None
    other = fresh("trainer")
    twice = pades._signed(
        data, other, signers.PdfSignatureMetadata(field_name="Second"), ("Second", "Second"),
        "annex.pdf", None,
    )  # fmt: skip
    both = persons.check_sign_off(twice, "annex.pdf")
    assert [one.fingerprint for one in both] == [key.fingerprint, other.fingerprint]
    assert pades.made_as(twice, "annex.pdf") == plain
    assert pades.made_as(plain, "annex.pdf") == plain


def test_what_the_token_says_is_told_and_what_the_parser_says_is_one_line(plain: bytes) -> None:
    class Refuses:
        def sign(self, *_: Any) -> bytes:
            raise KeyFileError("pkcs11: the token does not sign")

    key = fresh("auditor")
    broken: Any = SimpleNamespace(
        private=Refuses(), chain=key.chain, role="auditor", fingerprint=key.fingerprint
    )
    with pytest.raises(KeyFileError, match=r"^pkcs11: the token does not sign$"):
        pades.sign(plain, broken, NAME)
    unnumbered = plain.replace(b"/Kids", b"/Lids")
    with pytest.raises(PdfSignatureError, match=r"^report\.pdf: cannot be signed \("):
        pades.sign(unnumbered, key, NAME)


def test_a_signature_is_over_sha256_alone_and_room_is_made_for_the_longest(key: SigningKey) -> None:
    signer = pades._Signer(key)

    def made(algorithm: str, *dry: bool) -> bytes:
        return pades.run(signer.async_sign_raw(b"data", algorithm, *dry))

    # Two numbers of 33 bytes at most, each with its kind and length, in a list with its own.
    assert made("sha256", True) == bytes(2 + 2 * (2 + 33))
    for algorithm in ("sha256", "SHA256"):
        key.public.verify(made(algorithm), b"data", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(PdfSignatureError, match="only SHA-256 is used"):
        made("sha512")


def test_a_signature_is_judged_by_its_own_certificates_and_the_readers_authorities(
    plain: bytes, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, asked = pades.async_validate_pdf_signature, list[Any]()

    async def notes(embedded: Any, **contexts: Any) -> Any:
        asked.append(contexts)
        return await validate(embedded, **contexts)

    for module in (pades, persons):
        monkeypatch.setattr(module, "async_validate_pdf_signature", notes)
    private = ec.generate_private_key(ec.SECP256R1())
    leaf, above = chain_of(private)
    root = to_asn1(key.chain[0])
    issued_key = SigningKey("auditor", private, (leaf, above))
    pades.check(pades.sign(plain, issued_key, NAME), NAME, (root,))
    persons.check_sign_off(pades.sign_off(plain, issued_key, "Somebody", NAME), NAME, (root,))
    for contexts, anchor in zip(asked, (above, leaf), strict=True):
        signer, stamp = contexts["signer_validation_context"], contexts["ts_validation_context"]
        assert anchors(signer) == [to_asn1(anchor).dump()]
        assert {one.dump() for one in signer.certificate_registry} >= {
            to_asn1(leaf).dump(), to_asn1(above).dump(),
        }  # fmt: skip
        assert anchors(stamp) == [root.dump()]


def anchors(context: Any) -> list[bytes]:
    """The certificates in which a judgement of others ends."""
    return [one.dump() for one in context.path_builder.trust_manager.iter_certs()]


@pytest.mark.parametrize(
    ("revisions", "names", "start", "kept"),
    [
        (1, [], 7, 4),
        (2, ["Auditor"], 7, 2),
        (2, ["Auditor"], 8, None),
        (2, ["Somebody"], 7, None),
        (2, ["Auditor", "Auditor"], 7, None),
        (2, [], 7, None),
        (3, ["Auditor"], 7, None),
        (3, [], 8, None),
    ],
)
def test_what_one_signature_added_is_taken_off_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, revisions: int, names: list[str], start: int, kept: int | None
) -> None:
    lines = [b"%PDF-1.7\n", b"startxref\n7\n%%EOF", b"\nmore\n", b"startxref\n9\n%%EOF"]
    data = b"".join(lines)
    first = {0: start}
    xrefs = SimpleNamespace(
        total_revisions=revisions, get_startxref_for_revision=lambda number: first[number]
    )
    embedded = [SimpleNamespace(field_name=name) for name in names]
    reader = SimpleNamespace(xrefs=xrefs, embedded_signatures=embedded)
    monkeypatch.setattr(pades, "opened", lambda _: reader)
    whole = b"".join(lines[:2]) if start == 7 else data
    assert pades.made_as(data, NAME) == whole
    if kept is None:
        with pytest.raises(PdfSignatureError, match="was changed after it was made; write the"):
            pades.unsigned(data, NAME)
    else:
        assert pades.unsigned(data, NAME) == b"".join(lines[:kept])


def test_one_signature_is_the_auditors_and_there_is_no_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for names in (["Somebody"], ["Auditor", "Auditor"], ["Auditor", "Somebody"]):
        embedded = [SimpleNamespace(field_name=name) for name in names]
        reader = SimpleNamespace(embedded_signatures=embedded)
        monkeypatch.setattr(pades, "opened", lambda _, reader=reader: reader)
        with pytest.raises(PdfSignatureError, match=r"pdf: must have one signature, the auditor's"):
            pades.check(b"", NAME)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"intact": False}, "changed since it was signed"),
        ({"valid": False}, "its signature does not hold"),
        ({"coverage": BLOCK}, "something was added after it was signed"),
        ({"timestamp_validity": SimpleNamespace(intact=True, valid=False)}, "its timestamp does"),
        ({"timestamp_validity": SimpleNamespace(intact=False, valid=True)}, "its timestamp does"),
    ],
)
def test_a_certification_that_does_not_hold_is_told_for_what_is_wrong(
    plain: bytes, key: SigningKey, monkeypatch: pytest.MonkeyPatch, changed: Any, said: str
) -> None:
    status = {
        "intact": True, "valid": True, "coverage": SignatureCoverageLevel.ENTIRE_FILE,
        "signer_reported_dt": CLAIMED, "timestamp_validity": None,
    }  # fmt: skip

    async def validate(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(**status)

    monkeypatch.setattr(pades, "async_validate_pdf_signature", validate)
    data = pades.sign(plain, key, NAME)
    assert pades.check(data, NAME).claimed == CLAIMED
    status.update(changed)
    with pytest.raises(PdfSignatureError, match=f"^report.pdf: {said}"):
        pades.check(data, NAME)


def test_bytes_that_no_signature_covers_and_a_broken_chain_are_refused(
    plain: bytes, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pades.sign(plain, key, NAME)
    end = data.index(b">", data.index(b"/Contents <"))
    padded = data[: end - 2] + b"41" + data[end:]
    with pytest.raises(PdfSignatureError, match="unsigned bytes behind its signature"):
        pades.check(padded, NAME)
    private = ec.generate_private_key(ec.SECP256R1())
    leaf, _ = chain_of(private)
    _, stranger = chain_of(private)
    broken = pades.sign(plain, SigningKey("auditor", private, (leaf, stranger)), NAME)
    with pytest.raises(KeyFileError, match="Auditors Ltd was not issued by Authority"):
        pades.check(broken, NAME)


def test_the_data_inside_are_found_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def file(name: str, content: bytes) -> Any:
        inside = {"/F": name, "/EF": {"/F": SimpleNamespace(data=content)}}
        return SimpleNamespace(get_object=lambda: inside)

    root = {"/AF": [file("other.json", b"other"), file("report.json", b"data")]}
    monkeypatch.setattr(pades, "opened", lambda _: SimpleNamespace(root=root))
    assert pades.attached(b"", NAME) == b"data"
    assert pades.attached(b"", NAME, "other.json") == b"other"
    with pytest.raises(PdfSignatureError, match=r"^report\.pdf: carries no annex\.json$"):
        pades.attached(b"", NAME, "annex.json")
    del root["/AF"]
    with pytest.raises(PdfSignatureError, match=r"^report\.pdf: its report\.json cannot be read$"):
        pades.attached(b"", NAME)


@pytest.mark.parametrize(
    ("end", "read"),
    [
        (b"startxref\n7\n%%EOF", True),
        (b"startxref\r\n12345678901234567890\r\n%%EOF\r\n", True),
        (b"startxref\n123456789012345678901\n%%EOF", False),
        (b"startxref\n7\n%%EOF\n\n\n", False),
        (b"startxref7\n%%EOF", False),
        (b"%%EOF", False),
    ],
)
def test_a_file_is_parsed_where_it_ends_as_a_pdf_does(
    monkeypatch: pytest.MonkeyPatch, end: bytes, read: bool
) -> None:
    monkeypatch.setattr(pades, "PdfFileReader", lambda opened: opened.read())
    pades.opened.cache_clear()
    for data in (end, bytes(500) + end):
        if read:
            assert pades.opened(data) == data
        else:
            with pytest.raises(ValueError, match="does not end as a PDF does"):
                pades.opened(data)
    # As many as one looks at in turn: each holds a whole file.
    assert pades.opened.cache_info().maxsize == 4
    pades.opened.cache_clear()


def with_attachment(packed: bytes, filters: str) -> bytes:
    """A small PDF that carries report.json in packed form."""
    objects = (
        b"<</Type /Catalog /Pages 2 0 R /AF [3 0 R]>>",
        b"<</Type /Pages /Kids [] /Count 0>>",
        b"<</Type /Filespec /F (report.json) /EF <</F 4 0 R>>>>",
        b"<</Filter %s /Length %d>>\nstream\n%s\nendstream"
        % (filters.encode(), len(packed), packed),
    )
    data, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    lines = b"".join(b"%010d 00000 n \n" % place for place in places)
    table = b"xref\n0 5\n0000000000 65535 f \n" + lines
    end = b"trailer\n<</Root 1 0 R /Size 5>>\nstartxref\n%d\n%%%%EOF\n" % len(data)
    return data + table + end


def packed_zeros(pieces: int) -> bytes:
    """So many MiB of zeros, packed."""
    packer = zlib.compressobj()
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers to what stands before, so that one piece stands for each.
    piece = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    sums = pieces * 2**20 % 65521 << 16 | 1  # As of so many zeros (Adler-32).
    return head + piece * pieces + b"\x03\0" + sums.to_bytes(4, "big")


def test_data_that_unpack_to_very_much_are_refused_in_one_line() -> None:
    small = with_attachment(zlib.compress(b"{}"), "/FlateDecode")
    assert pades.attached(small, NAME) == b"{}"
    assert zlib.decompress(packed_zeros(3)) == bytes(3 * 2**20)
    once = with_attachment(packed_zeros(300), "/FlateDecode")
    twice = with_attachment(zlib.compress(packed_zeros(64)), "[/FlateDecode /FlateDecode]")
    for bomb in (once, twice):
        assert len(bomb) < 2**20
        with pytest.raises(PdfSignatureError, match=r"^report\.pdf: its report\.json cannot be"):
            pades.attached(bomb, NAME)
