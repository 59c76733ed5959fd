"""Trusted time: asked for over HTTP, checked offline, and nothing half written when it fails."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import hashlib
import logging
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asn1crypto import cms, tsp
from cryptography.x509.oid import ExtendedKeyUsageOID
from pyhanko.sign.timestamps.dummy_client import DummyTimeStamper

from reports import ReportError, build_report
from reports.errors import KeyFileError, PdfSignatureError, TimestampError
from reports.signatures import pades, signing, timestamps
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority
from reports.signatures.verification import verify
from tests.authority import NOW, YEAR, LocalAuthority
from tests.reports import stranger
from tests.reports.signing_keys import fresh
from tests.reports.stranger import needs_shell

DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def url(authority: LocalAuthority) -> Iterator[str]:
    authority.moment, authority.answer, authority.status = None, None, 200
    authority.requests, authority.fails_after, authority.encoding = 0, None, None
    with authority.serve() as address:
        yield address


@pytest.fixture(scope="module")
def auditor() -> SigningKey:
    return fresh("auditor")


@pytest.fixture(scope="module")
def trainer() -> SigningKey:
    return fresh("trainer")


@pytest.fixture(scope="module")
def reported(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_builder(tmp_path_factory.mktemp("stamped") / "run", rounds=2, clients=3)
    build_report(run)
    return run


@pytest.fixture
def run(reported: Path, tmp_path: Path) -> Path:
    """A run with a report and no signature, to be changed."""
    return Path(shutil.copytree(reported, tmp_path / "run"))


@pytest.fixture(scope="module")
def stamped_once(
    reported: Path,
    trainer: SigningKey,
    auditor: SigningKey,
    authority: LocalAuthority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    run = Path(shutil.copytree(reported, tmp_path_factory.mktemp("timestamped") / "run"))
    authority.moment, authority.answer, authority.status = None, None, 200
    authority.requests, authority.fails_after = 0, None
    with authority.serve() as address:
        signing.sign(run, trainer, auditor, Authority(address))
    return run


@pytest.fixture
def stamped(stamped_once: Path, tmp_path: Path) -> Path:
    """A run that both signed, with timestamps, to be changed."""
    return Path(shutil.copytree(stamped_once, tmp_path / "run"))


def test_a_timestamp_is_trusted_under_the_given_root_only(
    authority: LocalAuthority, url: str, tmp_path: Path
) -> None:
    authority.moment = NOW - 3 * DAY
    response = Authority(url).stamp(b"content")
    roots = timestamps.load_roots([authority.root])
    found = timestamps.check(response, b"content", roots, "x.tsr")
    assert (found.time, found.authority, found.trusted) == (NOW - 3 * DAY, "Test Authority", True)
    assert not timestamps.check(response, b"content", (), "x.tsr").trusted
    stranger = timestamps.load_roots([LocalAuthority(tmp_path, "Stranger").root])
    assert not timestamps.check(response, b"content", stranger, "x.tsr").trusted


def test_an_authority_whose_certificate_expired_is_not_trusted(tmp_path: Path) -> None:
    old = LocalAuthority(tmp_path, "Old", until=NOW - DAY)
    old.moment = NOW - YEAR
    with old.serve() as address:
        response = Authority(address).stamp(b"content")
    assert not timestamps.check(
        response, b"content", timestamps.load_roots([old.root]), "x.tsr"
    ).trusted


_STAMPED = """
import sys
from reports.signatures.timestamps import Authority, check
assert "aiohttp" not in sys.modules
check(Authority(sys.argv[1]).stamp(b"data"), b"data", (), "here")
assert "aiohttp" in sys.modules
import aiohttp
from pyhanko.sign.timestamps import aiohttp_client
assert aiohttp.__file__ and aiohttp_client.aiohttp.ClientSession is aiohttp.ClientSession
"""


@pytest.mark.thorough
def test_the_http_client_is_loaded_by_the_first_request(url: str) -> None:
    """In a process of its own: this one has loaded it."""
    command = [sys.executable, "-c", _STAMPED, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_timestamp_over_other_bytes_is_refused(url: str) -> None:
    response = Authority(url).stamp(b"content")
    with pytest.raises(TimestampError, match="over other bytes"):
        timestamps.check(response, b"contents", (), "x.tsr")


def test_every_changed_byte_of_a_timestamp_is_noticed(authority: LocalAuthority, url: str) -> None:
    response = Authority(url).stamp(b"content")
    roots = timestamps.load_roots([authority.root])
    for position in range(0, len(response), 7):
        changed = bytearray(response)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(TimestampError):
            timestamps.check(bytes(changed), b"content", roots, "x.tsr")


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x00", b"\x30\x80" * 500, b"x" * 5000])
def test_hostile_timestamps_are_one_line(data: bytes) -> None:
    with pytest.raises(TimestampError) as caught:
        timestamps.check(data, b"content", (), "x.tsr")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ftp://example.org",
        "tsa.example.org",
        "http://",
        "http://[x",
        "https://me:hunter2@tsa.org/",
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(address: str) -> None:
    with pytest.raises(TimestampError, match="timestamp: ") as caught:
        Authority(address)
    assert "hunter2" not in str(caught.value)


def test_whoever_does_not_answer_as_an_authority_is_refused_in_one_line(
    authority: LocalAuthority, url: str
) -> None:
    authority.answer = b"no timestamp"
    with pytest.raises(TimestampError, match="does not answer") as caught:
        Authority(url).stamp(b"content")
    assert "\n" not in str(caught.value)
    authority.answer, authority.status = None, 404
    with pytest.raises(TimestampError, match=r"no answer from http://127"):
        Authority(url).stamp(b"content")
    with pytest.raises(TimestampError, match="no answer from"):
        Authority("http://127.0.0.1:9/").stamp(b"content")


def test_of_an_endless_answer_or_one_that_unpacks_to_much_no_more_is_read_than_a_timestamp_has(
    authority: LocalAuthority, url: str
) -> None:
    """An address of http can be answered by anybody on the way."""
    for answer, encoding in ((bytes(32 << 20), None), (gzip.compress(bytes(256 << 20)), "gzip")):
        authority.answer, authority.encoding = answer, encoding
        tracemalloc.start()
        try:
            with pytest.raises(TimestampError, match="does not answer as an RFC 3161 authority"):
                Authority(url).stamp(b"content")
            # The authority itself, in this process, is not traced: its answer was there before.
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_an_answer_to_another_request_is_refused(authority: LocalAuthority, url: str) -> None:
    recorded = Authority(url).client()
    authority.answer = None
    first = timestamps.run(recorded.async_timestamp(b"\1" * 32, "sha256"))
    reply = tsp.TimeStampResp({"status": {"status": "granted"}, "time_stamp_token": first})
    authority.answer = reply.dump()
    with pytest.raises(TimestampError):
        Authority(url).stamp(b"content")


def test_a_certificate_file_that_cannot_be_read_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        timestamps.load_roots([tmp_path / "none.pem"])
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(KeyFileError, match="no certificate"):
        timestamps.load_roots([tmp_path / "junk.pem"])


def test_a_run_is_timestamped_in_pdf_and_both_envelopes(
    stamped: Path, authority: LocalAuthority
) -> None:
    result = verify(stamped, tsa_roots=[authority.root])
    assert result.is_intact
    assert {entry.envelope for entry in result.signers if entry.time} == {
        "training.attestation.json",
        "attestation.json",
        "report.pdf",
    }
    result = verify(stamped)
    assert result.is_intact
    assert not any(entry.time for entry in result.signers)
    assert sum("give its certificate" in text for text in result.statements) == 3


def test_a_timestamp_of_another_envelope_is_named(stamped: Path) -> None:
    shutil.copy(stamped / "training.attestation.json.tsr", stamped / "attestation.json.tsr")
    assert [str(problem) for problem in verify(stamped).problems] == [
        "attestation.json.tsr: is over other bytes, or was changed"
    ]


def test_signing_anew_without_an_authority_takes_the_old_timestamps_away(
    stamped: Path, trainer: SigningKey, auditor: SigningKey
) -> None:
    assert list(stamped.glob("*.tsr"))
    signing.sign(stamped, trainer, auditor)
    assert not list(stamped.glob("*.tsr"))
    assert verify(stamped).is_intact


@pytest.mark.sampled(3)
@pytest.mark.parametrize("answers", range(4))
def test_an_authority_that_fails_leaves_nothing_half_written(
    run: Path,
    trainer: SigningKey,
    auditor: SigningKey,
    authority: LocalAuthority,
    url: str,
    answers: int,
) -> None:
    signing.sign(run, trainer, auditor)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    authority.fails_after = answers
    with pytest.raises(ReportError, match="timestamp"):
        signing.sign(run, trainer, auditor, Authority(url))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_the_timestamps(stamped: Path, authority: LocalAuthority) -> None:
    for name in ("training.attestation.json", "attestation.json"):
        command = ["openssl", "ts", "-verify", "-data", name, "-in", f"{name}.tsr"]
        command += ["-CAfile", str(authority.root)]
        done = subprocess.run(command, cwd=stamped, capture_output=True, timeout=60)
        assert b"Verification: OK" in done.stdout + done.stderr


@needs_shell
def test_the_written_commands_check_the_timestamps_too(
    stamped: Path, trainer: SigningKey, auditor: SigningKey, authority: LocalAuthority
) -> None:
    known = {"TRAINER": trainer.fingerprint, "AUDITOR": auditor.fingerprint}
    trusting = {**known, "TSA_ROOT": str(authority.root)}
    said = stranger.check(stamped, **trusting)
    assert said.last == "ALL HOLD"
    assert said.text.count("Time stamp:") == 2
    assert stranger.check(stamped, **known).text.count(".tsr: not judged") == 2
    shutil.copy(stamped / "training.attestation.json.tsr", stamped / "attestation.json.tsr")
    said = stranger.check(stamped, **trusting)
    assert said.last == "DOES NOT HOLD: attestation.json.tsr: does not hold under TSA_ROOT"


def test_a_signed_pdf_with_a_timestamp_is_of_level_b_t(
    run: Path, auditor: SigningKey, authority: LocalAuthority, url: str
) -> None:
    data = pades.sign((run / "report.pdf").read_bytes(), auditor, "report.pdf", Authority(url))
    roots = timestamps.load_roots([authority.root])
    stamp = pades.check(data, "report.pdf", roots).timestamp
    assert stamp is not None
    assert stamp.trusted
    assert pades.check(data, "report.pdf").timestamp == timestamps.Timestamp(
        stamp.time, "Test Authority", False
    )


# Without a network.


def granted(authority: LocalAuthority, data: bytes, algorithm: str = "sha256") -> Any:
    """An authority's answer over bytes, that it may be changed."""
    stamper = DummyTimeStamper(
        authority._leaf, authority._key, [authority._leaf], fixed_dt=NOW - DAY
    )
    digest = hashlib.new(algorithm, data).digest()
    token = timestamps.run(stamper.async_timestamp(digest, algorithm))
    return tsp.TimeStampResp({"status": {"status": "granted"}, "time_stamp_token": token})


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_a_timestamp_may_be_over_each_of_three_digests(
    authority: LocalAuthority, algorithm: str
) -> None:
    found = timestamps.check(granted(authority, b"data", algorithm).dump(), b"data", (), "x.tsr")
    assert (found.time, found.authority, found.trusted) == (NOW - DAY, "Test Authority", False)


def test_a_timestamp_over_another_digest_is_refused_by_its_name(authority: LocalAuthority) -> None:
    response = granted(authority, b"data", "sha1").dump()
    with pytest.raises(TimestampError, match=r"^x\.tsr: uses sha1, which is not accepted$"):
        timestamps.check(response, b"data", (), "x.tsr")


def test_what_was_not_granted_holds_nothing_or_goes_on_is_refused(
    authority: LocalAuthority,
) -> None:
    whole = granted(authority, b"data")
    token = whole["time_stamp_token"]
    refused = tsp.TimeStampResp({"status": {"status": "rejection"}, "time_stamp_token": token})
    status = whole["status"].dump()
    empty = bytes([0x30, len(status)]) + status
    for response, said in (
        (refused.dump(), "the authority did not grant it"),
        (empty, "is no valid RFC 3161 timestamp"),
        (whole.dump() + b"\0", "is no valid RFC 3161 timestamp"),
    ):
        with pytest.raises(TimestampError, match=rf"^x\.tsr: {said}$"):
            timestamps.check(response, b"data", (), "x.tsr")


def signed_data(authority: LocalAuthority) -> Any:
    return cms.ContentInfo.load(granted(authority, b"data")["time_stamp_token"].dump())["content"]


def by_key(signed: Any) -> None:
    signed["signer_infos"][0]["sid"] = cms.SignerIdentifier(
        name="subject_key_identifier", value=b"key"
    )


def renamed(signed: Any) -> None:
    other = signed["certificates"][0].chosen.subject
    signed["signer_infos"][0]["sid"].chosen["issuer"] = other


def with_parameters(parameters: str) -> Callable[[Any], None]:
    """The same in both places, so that nothing but they could be wrong."""
    content = bytes.fromhex("0609608648016503040201" + parameters)

    def change(signed: Any) -> None:
        algorithm = cms.DigestAlgorithm.load(bytes([0x30, len(content)]) + content)
        signed["signer_infos"][0]["digest_algorithm"] = algorithm
        signed["digest_algorithms"] = [algorithm]

    return change


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ([], True),
        ([with_parameters("0500")], True),
        ([with_parameters("")], True),
        ([with_parameters("050100")], False),
        ([renamed], False),
        ([lambda s: s.__setitem__("version", "v1")], False),
        ([lambda s: s["signer_infos"][0].__setitem__("version", "v3")], False),
        ([lambda s: s["digest_algorithms"].append({"algorithm": "sha512"})], False),
        ([lambda s: s.__setitem__("digest_algorithms", [])], False),
        ([by_key], False),
        ([by_key, lambda s: s["signer_infos"][0].__setitem__("version", "v3")], True),
    ],
)
def test_what_is_not_signed_of_a_timestamp_is_as_the_standards_ask(
    authority: LocalAuthority, changes: list[Callable[[Any], None]], plain: bool
) -> None:
    signed = signed_data(authority)
    certificate = signed["certificates"][0].chosen
    for change in changes:
        change(signed)
    assert timestamps._plain(signed, certificate) is plain


def test_what_surrounds_a_signature_that_holds_must_be_plain(
    authority: LocalAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = granted(authority, b"data").dump()
    monkeypatch.setattr(timestamps, "_plain", lambda *_: False)
    with pytest.raises(TimestampError, match=r"^x\.tsr: its signature does not hold$"):
        timestamps.check(response, b"data", (), "x.tsr")


def test_an_answer_is_checked_before_it_is_kept(
    authority: LocalAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        """An authority that does not look at what it is asked."""

        over = b"other"

        async def async_timestamp(self, digest: bytes, algorithm: str) -> Any:
            assert algorithm == "sha256"
            assert digest == hashlib.sha256(b"data").digest()
            stamper = DummyTimeStamper(authority._leaf, authority._key, fixed_dt=NOW)
            return await stamper.async_timestamp(hashlib.sha256(self.over).digest(), algorithm)

    asked = Authority("https://clock.example/")
    monkeypatch.setattr(asked, "client", Client)
    with pytest.raises(TimestampError, match=r"^timestamp: is over other bytes, or was changed$"):
        asked.stamp(b"data")
    monkeypatch.setattr(Client, "over", b"data")
    assert timestamps.check(asked.stamp(b"data"), b"data", (), "x.tsr").time == NOW


def test_an_address_is_http_or_https_and_has_no_name_or_password_in_it() -> None:
    for address in ("http://clock.example/", "https://clock.example:8080/tsa"):
        assert Authority(address).url == address
    client: Any = Authority("http://clock.example/").client()
    assert (client.url, client.timeout) == ("http://clock.example/", 20)
    for address in ("https://me@clock.example/", "https://:word@clock.example/"):
        with pytest.raises(TimestampError, match="an address with a password in it is not accept"):
            Authority(address)


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (OSError("no route"), None, r"no answer from http://clock\.example/ \(no route\)"),
        (OSError("failed"), ValueError("reset"), r"no answer from http://\S* \(reset\)"),
        (OSError("failed"), KeyError(), r"no answer from http://\S* \(KeyError\)"),
        (OSError(), None, r"no answer from http://\S* \(OSError\)"),
        *(
            (kind("odd"), None, "http://clock.example/ does not answer as an RFC 3161 authority")
            for kind in (ValueError, TypeError, KeyError, AttributeError)
        ),
    ],
)
def test_why_an_authority_did_not_answer_is_one_line(
    error: Exception, cause: Exception | None, said: str
) -> None:
    async def fails() -> None:
        raise error from cause

    with pytest.raises(TimestampError, match=f"^timestamp: {said}"):
        Authority("http://clock.example/").guard(fails())


def test_what_asks_is_run_here_or_beside_a_loop_that_runs_already() -> None:
    async def thread() -> int:
        return threading.get_ident()

    async def within() -> int:
        return timestamps.run(thread())

    assert timestamps.run(thread()) == threading.get_ident()
    beside = asyncio.run(within())
    assert isinstance(beside, int)
    assert beside != threading.get_ident()


def test_certificates_are_judged_by_what_is_given_and_nothing_is_fetched(
    authority: LocalAuthority, tmp_path: Path
) -> None:
    other = LocalAuthority(tmp_path, "Other")
    roots = timestamps.load_roots([authority.root, other.root])
    assert [root.subject.native["common_name"] for root in roots] == [
        "Test Authority Root", "Other Root",
    ]  # fmt: skip
    context: Any = timestamps.validation_context(roots, [authority._leaf])
    assert not context.fetching_allowed
    known = {one.dump() for one in context.certificate_registry}
    assert authority._leaf.dump() in known
    assert {one.dump() for one in roots} <= known


def test_an_authority_is_trusted_under_a_root_that_was_given_alone() -> None:
    def status(trusted: bool) -> Any:
        subject = SimpleNamespace(native={"common_name": "Clock"})
        certificate = SimpleNamespace(subject=subject)
        return SimpleNamespace(signing_cert=certificate, trusted=trusted, timestamp=NOW)

    nameless = status(True)
    nameless.signing_cert.subject.native.clear()
    assert timestamps.from_status(nameless, ()).authority == "unnamed"
    root: Any = object()
    for roots, trusted in (((), True), ((), False), ((root,), False), ((root,), True)):
        found = timestamps.from_status(status(trusted), roots)
        assert found == timestamps.Timestamp(NOW, "Clock", bool(roots) and trusted)


def test_the_library_says_nothing_by_itself() -> None:
    for name in ("pyhanko", "pyhanko_certvalidator"):
        assert logging.getLogger(name).level == logging.CRITICAL


UNFIT = [
    (False, (ExtendedKeyUsageOID.TIME_STAMPING,)),
    (True, (ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.CODE_SIGNING)),
    (True, (ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.TIME_STAMPING)),
    (True, (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, ExtendedKeyUsageOID.TIME_STAMPING)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("purpose", UNFIT)
def test_an_authority_whose_certificate_is_not_for_timestamps_alone_is_refused(
    tmp_path: Path,
    auditor: SigningKey,
    run: Path,
    purpose: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 3161, 2.3: one purpose, and critical. Until now all of these were trusted."""
    unfit = LocalAuthority(tmp_path, "Unfit", purpose=purpose)
    roots = timestamps.load_roots([unfit.root])
    said = "is not for timestamps alone"
    for given in ((), roots):
        with pytest.raises(TimestampError, match=rf"^x\.tsr: its authority's certificate {said}$"):
            timestamps.check(granted(unfit, b"data").dump(), b"data", given, "x.tsr")
    unsigned = (run / "report.pdf").read_bytes()
    with unfit.serve() as url, monkeypatch.context() as patch:
        with pytest.raises(TimestampError, match=rf"^timestamp: the certificate of {url} is not"):
            Authority(url).stamp(b"data")
        with pytest.raises(TimestampError, match=said):
            pades.sign(unsigned, auditor, "report.pdf", Authority(url))
        patch.setattr(timestamps, "is_for_timestamps", lambda _: True)
        pages = pades.sign(unsigned, auditor, "report.pdf", Authority(url))
    with pytest.raises(PdfSignatureError, match=r"^report\.pdf: the certificate of its timestamp"):
        pades.check(pages, "report.pdf", roots)


def test_a_certificate_without_a_purpose_is_not_for_timestamps(
    tmp_path: Path, authority: LocalAuthority
) -> None:
    assert timestamps.is_for_timestamps(authority._leaf)
    assert not timestamps.is_for_timestamps(LocalAuthority(tmp_path, purpose=None)._leaf)
    (root,) = timestamps.load_roots([authority.root])
    assert not timestamps.is_for_timestamps(root)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("purpose", UNFIT[:2])
def test_openssl_refuses_them_too(tmp_path: Path, purpose: Any) -> None:
    unfit = LocalAuthority(tmp_path, "Unfit", purpose=purpose)
    (tmp_path / "x").write_bytes(b"data")
    (tmp_path / "x.tsr").write_bytes(granted(unfit, b"data").dump())
    command = ["openssl", "ts", "-verify", "-data", "x", "-in", "x.tsr", "-CAfile", str(unfit.root)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode != 0
