"""What persons signed on an annex: more than a hundred changed files, and who may sign after whom.

The files are made by `shadow_attacks`. None may bring a decision that nobody signed: it is refused,
or what is told is what was signed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pikepdf", reason="pikepdf is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyhanko.pdf_utils.incremental_writer import IncrementalPdfFileWriter
from pyhanko.sign import fields, signers
from pyhanko.sign.timestamps.dummy_client import DummyTimeStamper
from pyhanko.sign.validation import DocumentSecurityStore
from pyhanko.sign.validation.status import SignatureCoverageLevel

from reports import build_report
from reports.errors import PdfSignatureError
from reports.render import sign_off
from reports.signatures import certificates, pades, persons, timestamps
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import Outcome, VerificationResult
from tests.authority import LocalAuthority
from tests.reports.signatures import shadow_attacks
from tests.reports.signatures.shadow_attacks import AFTER, BEFORE, BOTH, FORGED, signed_by
from tests.reports.signing_keys import fresh

SAID = "Rejected. Must not be used."
DECISION = sign_off.Decision(SAID, "A. Person, officer", "2026-11-22")
# The library that signs refuses them as they are.
NOT_SIGNED_AGAIN = {
    "the byte range has a wider gap",
    "the byte range begins later",
    "the byte range has six numbers",
    "cross references are hybrid",
    "it ends twice",
    "another file stands in front",
    "another file stands behind",
    "it is said to be encrypted",
}
NOT_ON_A_CERTIFIED_FILE = {
    "a stranger signs and draws over the page",
    "data are replaced and a namesake signs in the officers place",
    "data are replaced and a namesake signs too",
    "a page is covered and a stranger signs that",
}


@dataclass(frozen=True)
class Desk:
    """A run, the annex on it with and without the officer's signature, and the officer's key."""

    folder: Path
    run: Path
    officer: SigningKey
    unsigned: bytes
    signed: bytes

    @functools.cached_property
    def certified(self) -> bytes:
        """The run's report, certified by the same key."""
        return pades.sign((self.run / "report.pdf").read_bytes(), self.officer, "report.pdf")

    def sign(self, data: bytes) -> bytes:
        return pades.sign_off(data, self.officer, DECISION.name, "annex.pdf")

    def key(self, of: SigningKey) -> Path:
        path = self.folder / f"{of.fingerprint.replace('/', '_')}.crt"
        path.write_bytes(certificates.chain_pem(of.chain))
        return path

    def check(self, data: bytes, *keys: SigningKey, of_run: bool = True) -> VerificationResult:
        path = self.folder / "annex.pdf"
        path.write_bytes(data)
        run = self.run if of_run else None
        return sign_off.check(path, run, [self.key(key) for key in keys])


@pytest.fixture(scope="module")
def desk(
    run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    run = run_builder(folder / "run", rounds=2, clients=3)
    build_report(run)
    officer, made = fresh("auditor"), sign_off._pages

    @functools.lru_cache
    def pages(*given: Any) -> bytes:
        run_dir, audience, answers, decision = given
        return made(run_dir, audience, dict(answers), decision)

    with pytest.MonkeyPatch.context() as patch:
        # The same pages for the same run and answers: they are set once, not a hundred times.
        patch.setattr(
            sign_off, "_pages", lambda r, a, x, d: pages(r, a, tuple(sorted(x.items())), d)
        )
        sign_off.write(run, folder / "unsigned.pdf", decision=DECISION)
        unsigned = (folder / "unsigned.pdf").read_bytes()
        signed = pades.sign_off(unsigned, officer, DECISION.name, "annex.pdf")
        yield Desk(folder, run, officer, unsigned, signed)


def told(found: VerificationResult) -> str:
    """All that is printed but who signed: a name is what its certificate says."""
    return "\n".join([*map(str, found.problems), *found.statements])


def is_not_forged(found: VerificationResult) -> None:
    assert FORGED not in told(found)
    assert {one.decision for one in found.signers} <= {SAID, None}


@pytest.mark.parametrize(
    "places",
    [
        # Of twenty bytes; the signature itself stands from the fifth to the tenth.
        [1, 5, 10, 5],
        [-1, 5, 10, 5],
        [0, 0, 10, 5],
        [0, -5, 10, 5],
        [0, 10, 10, 5],
        [0, 11, 10, 5],
        [0, 5, 10, 0],
        [0, 5, 10, -1],
        [0, 5, 10, 11],
        [0, 5, 10],
        [0, 5, 10, 5, 12, 3],
    ],
)
def test_a_signature_covers_a_file_from_its_first_byte_to_its_last_around_itself(
    places: list[int],
) -> None:
    person = SimpleNamespace(subject=SimpleNamespace(human_friendly="A. Person"))
    one = SimpleNamespace(signer_cert=person, byte_range=places)
    with pytest.raises(PdfSignatureError) as refusal:
        persons._itself(one, bytes(20), "annex.pdf")
    assert str(refusal.value) == "annex.pdf: the signature of A. Person leaves something out"
    # What fits is looked at further: here there is no signature between the two parts.
    for rest in (5, 10):
        one.byte_range = [0, 5, 10, rest]
        with pytest.raises(PdfSignatureError, match="more than a signature where"):
            persons._itself(one, bytes(20), "annex.pdf")


def test_there_are_enough_changed_files() -> None:
    assert len(AFTER) + len(BEFORE) + len(BOTH) >= 80


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", AFTER)
def test_a_change_behind_the_signature_does_not_hold(desk: Desk, name: str) -> None:
    changed = AFTER[name](desk.signed)
    assert changed != desk.signed
    found = desk.check(changed, desk.officer)
    assert found.outcome is Outcome.NOT_VALID
    is_not_forged(found)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name in AFTER if name not in NOT_SIGNED_AGAIN])
def test_a_strangers_signature_does_not_make_a_change_hold(desk: Desk, name: str) -> None:
    """Until now whatever stood between two signatures was not looked at."""
    stranger = shadow_attacks.named_like_the_officer()
    found = desk.check(signed_by(AFTER[name](desk.signed), stranger, "Later"), desk.officer)
    if name == "bytes stand behind its end":  # A comment, which no state of the file refers to.
        assert found.outcome is Outcome.SIGNER_UNKNOWN
    else:
        assert found.outcome is Outcome.NOT_VALID
    is_not_forged(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BEFORE)
def test_a_change_before_the_signature_is_not_told_as_the_decision(desk: Desk, name: str) -> None:
    found = desk.check(desk.sign(BEFORE[name](desk.unsigned)), desk.officer)
    is_not_forged(found)
    assert [one.decision for one in found.signers if one.pinned] == [None]
    if name == "the file is written again with other data":
        assert "read the decision on them" in told(found)
    else:
        assert found.outcome is Outcome.NOT_VALID


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BOTH)
def test_what_was_prepared_cannot_be_switched_over(desk: Desk, name: str) -> None:
    prepare, switch = BOTH[name]
    found = desk.check(switch(desk.sign(prepare(desk.unsigned))), desk.officer)
    assert found.outcome is Outcome.NOT_VALID
    is_not_forged(found)
    assert {one.decision for one in found.signers} == {None}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name in AFTER if name not in NOT_ON_A_CERTIFIED_FILE])
def test_the_reports_own_certification_allows_no_change(desk: Desk, name: str) -> None:
    certified = desk.certified
    assert pades.check(certified, "report.pdf").key is not None
    with pytest.raises(PdfSignatureError, match=r"^report\.pdf: "):
        pades.check(AFTER[name](certified), "report.pdf")


def test_the_officers_decision_is_told_with_the_name_and_the_key(desk: Desk) -> None:
    found = desk.check(desk.signed, desk.officer)
    assert found.outcome is Outcome.ALL_HOLD
    (one,) = found.signers
    assert (one.decision, one.fingerprint) == (SAID, desk.officer.fingerprint)
    said = f'"{one.person}" signed this decision: {SAID} (A. Person, officer, 2026-11-22)'
    assert said in found.statements
    assert found.to_json()["signers"][0]["decision"] == SAID


def test_without_the_run_no_decision_is_told(desk: Desk) -> None:
    """Data that say one thing inside pages that say another can only be seen from the run."""
    found = desk.check(desk.signed, desk.officer, of_run=False)
    assert found.outcome is Outcome.ALL_HOLD
    assert SAID not in told(found)
    assert found.signers[0].decision is None
    assert "No run was given (--of)" in told(found)


def test_two_officers_sign_and_each_must_be_known(desk: Desk) -> None:
    second = fresh("auditor")
    both = signed_by(desk.signed, second, "Second")
    found = desk.check(both, desk.officer, second)
    assert found.outcome is Outcome.ALL_HOLD
    assert [one.decision for one in found.signers] == [SAID, SAID]
    found = desk.check(both, desk.officer)
    assert found.outcome is Outcome.SIGNER_UNKNOWN
    assert [one.pinned for one in found.signers] == [True, False]
    assert f"{second.fingerprint}, which is unknown" in told(found)
    third = fresh("auditor")
    found = desk.check(both, desk.officer, second, third)
    assert [p.reason for p in found.problems] == [
        f"nobody signed it with the key you gave, {third.fingerprint}"
    ]


def test_a_certificate_in_the_officers_name_makes_nobody_known(desk: Desk) -> None:
    namesake = shadow_attacks.named_like_the_officer()
    data = pades.sign_off(desk.unsigned, namesake, DECISION.name, "annex.pdf")
    found = desk.check(data, desk.officer)
    assert found.outcome is Outcome.NOT_VALID
    assert [one.pinned for one in found.signers] == [False]
    assert desk.check(data).outcome is Outcome.SIGNER_UNKNOWN


def test_a_certificates_name_cannot_be_taken_for_what_is_told(desk: Desk) -> None:
    name = f'B" signed this decision: {FORGED} (B'
    stranger = shadow_attacks.named(name)
    found = desk.check(signed_by(desk.signed, stranger, "Later"), desk.officer)
    assert found.outcome is Outcome.SIGNER_UNKNOWN
    assert [one.decision for one in found.signers] == [SAID, SAID]
    (said,) = [text for text in found.statements if FORGED in text and text.startswith("Signed")]
    assert '"' + "Common Name: " + name.replace('"', "'") + '"' in said
    assert "which is unknown" in said


def test_two_officers_who_signed_different_data_are_both_told_and_it_does_not_hold(
    desk: Desk,
) -> None:
    second = fresh("auditor")
    changed = signed_by(
        shadow_attacks.data_are_replaced_by_a_new_stream(desk.signed), second, "Second"
    )
    found = desk.check(changed, desk.officer, second)
    assert found.outcome is Outcome.NOT_VALID
    assert [one.decision for one in found.signers] == [SAID, None]
    assert f"signed data that others did not sign. They say: {FORGED}" in told(found)
    # A stranger's data are not repeated at all.
    assert FORGED not in told(desk.check(changed, desk.officer))


def test_what_was_filled_in_by_hand_is_to_be_read_on_the_pages(desk: Desk) -> None:
    sign_off.write(desk.run, desk.folder / "blank.pdf")
    blank = (desk.folder / "blank.pdf").read_bytes()
    filled = AFTER["an annotation FreeText lies over the page"](blank)
    found = desk.check(desk.sign(filled), desk.officer)
    assert found.outcome is Outcome.ALL_HOLD
    assert "read the decision on these pages" in told(found)
    assert "signed pages that hold no decision" in told(desk.check(desk.sign(blank), desk.officer))


def test_a_second_signature_by_another_program_may_bring_its_dates_and_show_itself(
    desk: Desk,
) -> None:
    """Usual programs write metadata again and draw a box."""
    second = fresh("auditor")
    signer = signers.PdfSigner(
        signers.PdfSignatureMetadata(field_name="Second", md_algorithm="sha256"),
        signer=pades._Signer(second),
        new_field_spec=fields.SigFieldSpec("Second", on_page=0, box=(20, 20, 200, 60)),
    )
    both = bytes(signer.sign_pdf(IncrementalPdfFileWriter(io.BytesIO(desk.signed))).getvalue())
    found = desk.check(both, desk.officer, second)
    assert found.outcome is Outcome.ALL_HOLD
    assert [one.decision for one in found.signers] == [SAID, SAID]
    assert "draws a mark on a page" in told(found)
    found = desk.check(both, desk.officer)
    assert len(found.problems) == 1
    assert "whose key you did not give, drew on pages of others" in told(found)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("authority"))


def test_validation_data_and_a_timestamp_over_the_document_may_follow(
    desk: Desk, authority: LocalAuthority
) -> None:
    writer = IncrementalPdfFileWriter(io.BytesIO(desk.signed))
    DocumentSecurityStore.supply_dss_in_writer(writer, None, certs=[authority._leaf])
    grown = io.BytesIO()
    writer.write(grown)
    assert desk.check(grown.getvalue(), desk.officer).outcome is Outcome.ALL_HOLD
    stamper = shadow_stamper(authority)
    stamped = signers.PdfTimeStamper(stamper).timestamp_pdf(
        IncrementalPdfFileWriter(io.BytesIO(grown.getvalue())),
        "sha256",
        timestamps.validation_context(timestamps.load_roots([authority.root]), [authority._leaf]),
    )
    data = bytes(stamped.getvalue())
    found = desk.check(data, desk.officer)
    assert found.outcome is Outcome.ALL_HOLD
    assert found.signers[0].decision == SAID
    # A digit of the timestamp's signature, the last one before the zeros.
    end = len(data[: data.rindex(b"0000>")].rstrip(b"0"))
    broken = data[: end - 1] + (b"1" if data[end - 1 : end] != b"1" else b"2") + data[end:]
    found = desk.check(broken, desk.officer)
    assert [p.reason for p in found.problems] == ["a timestamp over the document does not hold"]


def shadow_stamper(authority: LocalAuthority) -> Any:
    return DummyTimeStamper(authority._leaf, authority._key, [authority._leaf])


def test_a_signature_that_forbids_changes_forbids_another_signature(desk: Desk) -> None:
    metadata = signers.PdfSignatureMetadata(
        field_name="Certified",
        md_algorithm="sha256",
        certify=True,
        docmdp_permissions=fields.MDPPerm.NO_CHANGES,
    )
    signer = signers.PdfSigner(
        metadata,
        signer=pades._Signer(desk.officer),
        new_field_spec=fields.SigFieldSpec("Certified"),
    )
    certified = bytes(signer.sign_pdf(pades._Writer(io.BytesIO(desk.unsigned))).getvalue())
    assert desk.check(certified, desk.officer).outcome is Outcome.ALL_HOLD
    signer = signers.PdfSigner(
        signers.PdfSignatureMetadata(field_name="More", md_algorithm="sha256"),
        signer=pades._Signer(fresh("auditor")),
        new_field_spec=fields.SigFieldSpec("More"),
    )
    with pytest.raises(Exception, match=r"[Nn]o changes|not allow|forbid|DocMDP|certif"):
        signer.sign_pdf(pades._Writer(io.BytesIO(certified)))


@pytest.fixture(scope="module")
def both(desk: Desk) -> bytes:
    """The annex with the officer's signature and another person's behind it."""
    return signed_by(desk.signed, shadow_attacks.named("B. Person"), "Second")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=9, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_byte_that_is_changed_anywhere_brings_no_other_decision(
    desk: Desk, both: bytes, part: int, data: st.DataObject
) -> None:
    # Where draws are the same each time, another part still changes another byte.
    position = (data.draw(st.integers(0, len(both) - 1)) + part) % len(both)
    changed = bytearray(both)
    changed[position] ^= data.draw(st.integers(1, 255))
    found = desk.check(bytes(changed), desk.officer)
    assert found.outcome is not Outcome.ALL_HOLD
    assert {one.decision for one in found.signers} <= {SAID, None}
    if position < len(desk.signed):
        # What the officer signed is whole or void; zeros behind a signature must stay zeros.
        assert found.outcome is Outcome.NOT_VALID


def test_every_signer_is_named_with_key_issuer_and_what_was_signed(desk: Desk) -> None:
    second = fresh("trainer")
    both = signed_by(desk.signed, second, "Second")
    found = persons.check_sign_off(both, "annex.pdf")
    assert [one.fingerprint for one in found] == [desk.officer.fingerprint, second.fingerprint]
    assert [one.signed for one in found] == [desk.signed, both]
    assert [(one.prepared, one.changed, one.shows) for one in found] == [(None, None, False)] * 2
    assert all(one.name == one.issuer and one.claimed is not None for one in found)
    assert all(one.timestamp is None for one in found)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"intact": False}, "the signature of .* does not hold"),
        ({"valid": False}, "the signature of .* does not hold"),
        ({"coverage": SignatureCoverageLevel.ENTIRE_REVISION}, "the signature of .* leaves some"),
        (
            {"timestamp_validity": SimpleNamespace(intact=True, valid=False)},
            "its timestamp does not hold",
        ),
        (
            {"timestamp_validity": SimpleNamespace(intact=False, valid=True)},
            "its timestamp does not hold",
        ),
    ],
)
def test_a_signature_of_which_one_part_does_not_hold_does_not_hold(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], said: str
) -> None:
    validate = persons.async_validate_pdf_signature

    async def other(*given: Any, **named: Any) -> Any:
        return replace(await validate(*given, **named), **status)

    monkeypatch.setattr(persons, "async_validate_pdf_signature", other)
    with pytest.raises(PdfSignatureError, match=rf"^annex\.pdf: {said}"):
        persons.check_sign_off(desk.signed, "annex.pdf")


def test_an_annex_that_nobody_signed_or_that_is_no_pdf_is_told_in_one_line(desk: Desk) -> None:
    with pytest.raises(PdfSignatureError, match=r"^annex\.pdf: nobody has signed it$"):
        persons.check_sign_off(desk.unsigned, "annex.pdf")
    with pytest.raises(PdfSignatureError, match=r"^annex\.pdf: ") as caught:
        persons.check_sign_off(b"no PDF", "annex.pdf")
    assert "\n" not in str(caught.value)


def test_a_file_of_too_many_states_is_refused_before_they_are_compared(desk: Desk) -> None:
    data = desk.signed
    for _ in range(persons._MOST_REVISIONS):
        data = shadow_attacks.by_hand(data, {900: b"null"})
    with pytest.raises(PdfSignatureError, match="has more than 16 signatures or 64 states"):
        persons.check_sign_off(data, "annex.pdf")


@pytest.mark.parametrize(
    ("box", "shows"),
    [
        (None, False),
        ([0, 0, 0, 0], False),
        ([5, 5, 5, 90], False),
        ([0, 0, 600, 850], True),
        (["a", 0, 1, 1], True),
        ([0, 0, 1], True),
    ],
)
def test_what_takes_room_on_a_page_shows_something(box: list[Any] | None, shows: bool) -> None:
    def number(value: Any) -> Any:
        return SimpleNamespace(get_object=lambda: value)

    widget = {} if box is None else {"/Rect": [number(side) for side in box]}
    assert persons._shows(widget) is shows
    kid = SimpleNamespace(get_object=lambda: widget)
    assert persons._shows({"/Kids": [kid]}) is shows
