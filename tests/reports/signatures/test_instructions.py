"""VERIFY.md: a stranger runs its script on good and on forged runs, and reads the last line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from reports import build_report
from reports.errors import SourceError
from reports.signatures import keyring, keys, pades, signing
from reports.signatures.dsse import Envelope, parse_envelope, seal, write_envelope
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import fingerprint
from reports.signatures.verification import verify
from tests.reports import earlier_names, stranger
from tests.reports.signing_keys import create, fresh
from tests.reports.stranger import Said, needs_shell

pytestmark = needs_shell
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True)
class Case:
    """A run, the page that the stranger trusts, another run by the same keys, and these."""

    run: Path
    page: Path
    other: Path
    trainer: SigningKey
    auditor: SigningKey

    def check(self, **variables: str) -> Said:
        """Check the run with the trusted page, knowing both fingerprints."""
        known = {"TRAINER": self.trainer.fingerprint, "AUDITOR": self.auditor.fingerprint}
        return stranger.check(self.run, self.page, **{**known, **variables})


@pytest.fixture(scope="module")
def original(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("instructions")
    trainer, auditor = (
        keyring.load_signing_key(role, create(role, folder / "keys").private) for role in keys.ROLES
    )
    run = run_builder(folder / "run", rounds=2, clients=3)
    other = run_builder(folder / "other", rounds=2, clients=3, identifier="ffffffff")
    for folder_of_run in (run, other):
        build_report(folder_of_run)
        signing.sign(folder_of_run, trainer, auditor)
    page = Path(shutil.copy(run / "VERIFY.md", folder / "trusted.md"))
    return Case(run, page, other, trainer, auditor)


@pytest.fixture
def case(original: Case, tmp_path: Path) -> Case:
    """A copy that a test may forge."""
    return dataclasses.replace(original, run=Path(shutil.copytree(original.run, tmp_path / "run")))


def test_a_good_run_all_holds_for_who_knows_the_fingerprints(case: Case) -> None:
    said = case.check()
    assert (said.code, said.last) == (0, "ALL HOLD"), said.text
    assert "attestation.json: number 1 of this run, by the auditor" in said.text
    shutil.rmtree(case.run / "evidence")
    said = case.check()
    assert said.last == "ALL HOLD"
    assert "evidence: is not here" in said.text


@pytest.mark.thorough
def test_a_run_that_was_signed_while_types_had_addresses_all_holds(case: Case) -> None:
    """By the script that is written today; the one in the run knows those names alone."""
    earlier_names.rename(case.run, case.trainer, case.auditor)
    said = case.check()
    assert (said.code, said.last) == (0, "ALL HOLD"), said.text
    (case.run / "metrics.jsonl").write_bytes(b"{}\n")
    assert case.check().code == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "kind",
    [
        "urn:dpfedadamw:attestation:run:v1",
        "urn:dpfedadamw:attestation:run:v3",
        "urn:dpfedadamw:attestation:training:v2",
        "urn:elsewhere:attestation:run:v2",
        "https://elsewhere.org/attestation/run/v2",
        "https://dpfedadamw.org/attestation/run:v2",
    ],
)
def test_a_statement_of_another_type_does_not_hold(case: Case, kind: str) -> None:
    path = case.run / "attestation.json"
    payload = parse_envelope(path.read_bytes(), path.name).payload
    named = payload.replace(b'"urn:dpfedadamw:attestation:run:v2"', f'"{kind}"'.encode())
    assert named != payload
    path.write_bytes(seal(named, case.auditor.private))
    said = case.check()
    assert said.code == 1
    assert "attestation.json: is not what the auditor signs there" in said.text
    keys = {role: case.run / f"{role}.pub" for role in ("trainer", "auditor")}
    problems = [str(one) for one in verify(case.run, keys["trainer"], keys["auditor"]).problems]
    assert any("predicateType must be urn:dpfedadamw:attestation:run:v2" in one for one in problems)


def test_nobody_is_known_by_keys_of_the_run_alone(case: Case) -> None:
    said = stranger.check(case.run)
    assert said.code == 3
    assert said.last == (
        "INTACT, SIGNER UNKNOWN: no fingerprint was given of the trainer and of the auditor"
    )
    said = stranger.check(case.run, TRAINER=case.trainer.fingerprint)
    assert said.last == "INTACT, SIGNER UNKNOWN: no fingerprint was given of the auditor"


def test_it_can_be_pasted_into_a_shell_that_goes_on_unharmed(case: Case) -> None:
    """Typed in, and followed by a line that shows whether this shell kept its own settings."""
    (case.run / "attestation.json").unlink()
    typed = stranger.block(case.page) + '\necho "code $? work ${work-unset} run ${run-unset} $-"\n'
    for shell in (["bash", "--norc", "--noprofile", "-i"], ["sh", "-i"], ["bash", "-euC"]):
        done = subprocess.run(
            shell,
            input=typed.encode(),
            cwd=case.run,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        text = done.stdout.decode()
        assert "DOES NOT HOLD: attestation.json: is missing; this must run in the folder" in text
        if "-i" in shell:
            last = [line for line in text.splitlines() if "code 1" in line][-1]
            assert "code 1 work unset run unset" in last
            assert "e" not in last.split()[-1]
    assert {path.name for path in case.run.iterdir()} == {
        path.name for path in case.other.iterdir()
    } - {"attestation.json"}


def test_a_tool_that_is_not_there_is_said_last(case: Case, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "sed", "find", "tr"):
        (tools / name).symlink_to(str(shutil.which(name)))
    said = case.check(PATH=str(tools))
    assert said.code == 1
    assert said.last.startswith("DOES NOT HOLD: cat: is not on this machine; cmp: is not on")


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def gap_of(data: bytes) -> tuple[int, int]:
    """Where a PDF's signature stands, its brackets included."""
    start = data.index(b"/Contents <") + len(b"/Contents ")
    return start, data.index(b">", start) + 1


def page_in_the_gap(case: Case) -> None:
    """What is signed stays, byte for byte; another page and a later /ByteRange lie in the gap."""
    path = case.run / "report.pdf"
    data = path.read_bytes()
    start, end = gap_of(data)
    page = b"%PDF-1.7 another page /ByteRange [0 AAAAAAAAAA BBBBBBBBBB CCCCCCCCCC]"
    gap = data[start : end - 1] + page + b">"
    numbers = (start, start + len(gap), len(data) - end)
    for letter, number in zip(b"ABC", numbers, strict=True):
        gap = gap.replace(bytes([letter]) * 10, b"%010d" % number)
    path.write_bytes(data[:start] + gap + data[end:])


def page_before(case: Case) -> None:
    path = case.run / "report.pdf"
    path.write_bytes(b"%PDF-1.7\n1 0 obj <<>> endobj\n" + path.read_bytes())


def second_byte_range(case: Case) -> None:
    path = case.run / "report.pdf"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\n%% /ByteRange [0 9 99 %d]\n" % size)


def gap_with(what: bytes) -> Callable[[Case], None]:
    def forge(case: Case) -> None:
        path = case.run / "report.pdf"
        data = path.read_bytes()
        end = gap_of(data)[1] - 1
        path.write_bytes(data[: end - len(what)] + what + data[end:])

    return forge


def truncated(case: Case) -> None:
    path = case.run / "report.pdf"
    path.write_bytes(path.read_bytes()[:-400])


def signed_by_another(case: Case) -> None:
    path = case.run / "report.pdf"
    path.write_bytes(pades.sign(path.read_bytes(), fresh("auditor"), "report.pdf"))


def every_file(case: Case) -> None:
    for path in case.run.iterdir():
        if path.is_file():
            content = bytearray(path.read_bytes())
            # Of an attestation the signature: its middle is now and then the name of a file.
            place = content.rfind(b'"sig"') + 20 if path.name.endswith("attestation.json") else 0
            content[place or len(content) // 2] ^= 1
            path.write_bytes(bytes(content))


def attestation_of_another_run(case: Case) -> None:
    shutil.copy(case.other / "attestation.json", case.run / "attestation.json")


def another_run(case: Case) -> None:
    shutil.rmtree(case.run)
    shutil.copytree(case.other, case.run)


def renamed(case: Case) -> None:
    for name in ("ledger.jsonl", "audit.json", "report.json"):
        change(case.run / name, b"1a2b3c4d", b"ffffffff")


def envelopes_exchanged(case: Case) -> None:
    shutil.copy(case.run / "attestation.json", case.run / "training.attestation.json")
    shutil.copy(case.run / "auditor.pub", case.run / "trainer.pub")


def signed_anew(case: Case) -> None:
    """By somebody who holds neither key: everything in the folder fits together."""
    change(case.run / "metrics.jsonl", b'"test_accuracy":0', b'"test_accuracy":1')
    findings = json.loads((case.run / "audit.json").read_bytes())
    findings["inputs"]["metrics.jsonl"] = hashlib.sha256(
        (case.run / "metrics.jsonl").read_bytes()
    ).hexdigest()
    (case.run / "audit.json").write_text(json.dumps(findings))
    build_report(case.run)
    signing.sign(case.run, fresh("trainer"), fresh("auditor"))


def deleted(*names: str) -> Callable[[Case], None]:
    def forge(case: Case) -> None:
        for name in names:
            (case.run / name).unlink()

    return forge


def added(name: str) -> Callable[[Case], None]:
    def forge(case: Case) -> None:
        (case.run / name).write_text("<html>run model</html>")

    return forge


def other_form(case: Case) -> None:
    path = case.run / "attestation.json"
    envelope = parse_envelope(path.read_bytes(), path.name)
    r, s = decode_dss_signature(envelope.signature)
    changed = Envelope(envelope.payload, envelope.keyid, encode_dss_signature(r, ORDER - s))
    path.write_bytes(write_envelope(changed))


def said_otherwise(name: str, old: bytes, new: bytes) -> Callable[[Case], None]:
    """Another content under the signature of the old one, and with the right key beside it."""

    def forge(case: Case) -> None:
        path = case.run / name
        envelope = parse_envelope(path.read_bytes(), path.name)
        assert envelope.payload.count(old) == 1
        changed = dataclasses.replace(envelope, payload=envelope.payload.replace(old, new))
        path.write_bytes(write_envelope(changed))

    return forge


def other_layout(case: Case) -> None:
    path = case.run / "attestation.json"
    path.write_bytes(path.read_bytes() + b"\n")


def link(case: Case) -> None:
    path = case.run / "model.safetensors"
    path.rename(case.run.parent / "elsewhere")
    path.symlink_to(case.run.parent / "elsewhere")


def pipe(case: Case) -> None:
    """Whoever opened it would wait for ever."""
    (case.run / "trainer.pub").unlink()
    os.mkfifo(case.run / "trainer.pub")


def findings(case: Case) -> None:
    (case.run / "evidence" / "findings.json").write_text('{"verdict": "PASS"}')


def salt(case: Case) -> None:
    (case.run / "evidence" / "salt").write_bytes(bytes(32))


def checkpoint(case: Case) -> None:
    (case.run / "checkpoint").mkdir()


def unfinished(case: Case) -> None:
    (case.run / ".unfinished").mkdir()
    (case.run / ".unfinished" / "report.json").write_text("half")


FORGERIES: dict[str, tuple[Callable[[Case], None], tuple[str, ...]]] = {
    "a page in the PDF's gap": (page_in_the_gap, ("report.pdf: must have one /ByteRange",)),
    "a page before the PDF": (page_before, ("report.pdf: its /ByteRange is not all of it",)),
    "a second byte range": (second_byte_range, ("report.pdf: must have one /ByteRange",)),
    "a gap that is not hexadecimal": (
        gap_with(b"0x"),
        ("report.pdf: its gap holds more than hexadecimal digits",),
    ),
    "a line end in the gap": (gap_with(b"0\n"), ("report.pdf: its gap holds more than hex",)),
    "bytes behind the signature": (
        gap_with(b"41"),
        ("report.pdf: unsigned bytes stand behind its signature",),
    ),
    "a truncated PDF": (truncated, ("report.pdf: its /ByteRange is not all of it",)),
    "a PDF signed by another key": (signed_by_another, ("report.pdf: is not signed by auditor",)),
    "one byte of every file": (
        every_file,
        (
            *(f"{name}: is missing, or changed since" for name in signing.TRAINED_FILES[:5]),
            "audit.json: is missing, or changed since",
            "report.html: is missing, or changed since",
            "report.json: is missing, or changed since",
            "report.pdf: is missing, or changed since",
        ),
    ),
    "the attestation of another run": (
        attestation_of_another_run,
        ("attestation.json: speaks of another run than", "model.safetensors: is missing, or chan"),
    ),
    "another run under this one's page": (
        another_run,
        (
            "training.attestation.json: speaks of another run",
            "attestation.json: speaks of another run",
            "ledger.jsonl: is about another run",
        ),
    ),
    "a renamed run": (renamed, ("ledger.jsonl: is about another run than",)),
    "the auditor's envelope as the trainer's": (
        envelopes_exchanged,
        ("training.attestation.json: is not what the trainer signs there", "trainer.pub: is not"),
    ),
    "all of it signed anew by somebody else": (
        signed_anew,
        (
            "trainer.pub: is not the key whose fingerprint you gave",
            "auditor.pub: is not the key whose fingerprint you gave",
        ),
    ),
    "no attestation": (deleted("attestation.json"), ("attestation.json: is missing",)),
    "no trainer's attestation": (
        deleted("training.attestation.json"),
        ("training.attestation.json: is missing, or not laid out",),
    ),
    "no audit": (deleted("audit.json"), ("audit.json: is missing, or changed since",)),
    "an invented public report": (
        added("report-public.html"),
        ("report-public.html: is not covered by attestation.json",),
    ),
    "a name that speaks": (added("x\nALL HOLD"), ("ALL?HOLD: is not covered by",)),
    "the other form of a signature": (other_form, ("attestation.json: its signature was rewr",)),
    "another number in the auditor's statement": (
        said_otherwise("attestation.json", b'"sequence": 1', b'"sequence": 9'),
        ("attestation.json: its signature is not by auditor.pub over this content",),
    ),
    "a space more in the trainer's statement": (
        said_otherwise("training.attestation.json", b'"run": "', b'"run":  "'),
        ("training.attestation.json: its signature is not by trainer.pub over this content",),
    ),
    "another layout of an envelope": (other_layout, ("attestation.json: is missing, or not laid",)),
    "a link": (link, ("model.safetensors: is no regular file",)),
    "a pipe": (pipe, ("trainer.pub: is no regular file",)),
    "other findings": (findings, ("evidence: changed since attestation.json was signed",)),
    "another salt": (salt, ("evidence: changed since training.attestation.json was signed",)),
    "a checkpoint": (checkpoint, ("checkpoint: is not signed; a finished run has none",)),
    "a write that goes on": (unfinished, (".unfinished: a write was cut off here",)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named_in_the_last_line(case: Case, name: str) -> None:
    forge, reasons = FORGERIES[name]
    forge(case)
    said = case.check()
    assert said.code == 1
    assert said.last.startswith("DOES NOT HOLD: "), said.text
    for reason in reasons:
        assert reason in said.last
    assert "\nALL HOLD" not in said.text


def test_a_lock_that_a_killed_command_left_is_no_forgery(case: Case) -> None:
    (case.run / ".unfinished").mkdir()
    (case.run / ".unfinished" / "lock").write_text('{"process": 1}')
    assert case.check().code == 0


def test_a_forged_page_of_the_pdf_would_pass_where_the_last_byte_range_is_believed(
    case: Case,
) -> None:
    """The forgery is a real one: openssl alone says that what the later range names is signed."""
    page_in_the_gap(case)
    data = (case.run / "report.pdf").read_bytes()
    start, end = gap_of(data)
    der = bytes.fromhex(data[start + 1 : data.index(b"%PDF", start)].decode())
    (case.run.parent / "der").write_bytes(der)
    (case.run.parent / "pages").write_bytes(data[:start] + data[end:])
    arguments = ["-inform", "DER", "-in", "der", "-content", "pages", "-binary", "-noverify"]
    done = subprocess.run(
        ["openssl", "cms", "-verify", *arguments, "-out", os.devnull],
        cwd=case.run.parent,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert b"successful" in done.stderr


def test_each_page_names_run_kind_and_keys_and_leaves_no_place_open() -> None:
    trainer, auditor = (
        ec.generate_private_key(ec.SECP256R1()).public_key() for _ in ("trainer", "auditor")
    )
    for public, kind in ((False, "run"), (True, "public")):
        page = signing.verify_page("a-run", trainer, auditor, public)
        assert re.findall(r"@[A-Z]+@", page) == []
        assert f"kind='{kind}'" in page
        assert "run='a-run'" in page
        assert ("the public files of run" in page.splitlines()[0]) is public
        for key, file in ((trainer, "trainer.pub"), (auditor, "auditor.pub")):
            assert f"| {file} | `{fingerprint(key)}` |" in page
        same = signing.verify_page("a-run", trainer, trainer, public)
        assert (signing._SAME_KEY in page, signing._SAME_KEY in same) == (False, True)
    for name in ("a run", "run'", "", "$(x)"):
        with pytest.raises(SourceError, match="is not accepted"):
            signing.verify_page(name, trainer, auditor)
