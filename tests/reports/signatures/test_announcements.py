"""`verify` of a run that an auditor challenged: whose signatures, and what belongs to what."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reports import build_report
from reports.content.assurance import Facts
from reports.content.parts import PUBLIC
from reports.files import Snapshot, sha256_file
from reports.signatures import (
    challenges,
    copies,
    inventory,
    keyring,
    keys,
    signing,
    statements,
    timestamps,
    verification,
)
from reports.signatures.challenges import Promised, Seen, Signed
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Timestamp
from reports.signatures.transparency import load_log_keys
from reports.signatures.verification import Outcome, VerificationResult, announcements, verify
from reports.signatures.verification.envelopes import Trust
from reports.signatures.verification.results import Found, Signer
from reports.source import load
from tests.audit.synthetic_run import rewrite_ledger
from tests.authority import LocalAuthority
from tests.logs import TransparencyLog
from tests.reports.signing_keys import create, fresh

NOON, NONCE = datetime(2026, 11, 22, 12, tzinfo=UTC), bytes(range(32))
SEEN = Seen(of_trainer=3, for_data=2, dropped=1, dropped_of_trainer=2)


@dataclass(frozen=True)
class Case:
    run: Path
    trainer: SigningKey
    auditor: SigningKey
    challenger: SigningKey


@pytest.fixture(scope="module")
def made(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A challenged run that its own auditor signed, with its public report."""
    folder = tmp_path_factory.mktemp("announced")
    run = run_builder(folder / "run", rounds=4, clients=4)
    trainer = keyring.load_signing_key("trainer", create("trainer", folder / "keys").private)
    auditor = keyring.load_signing_key("auditor", create("auditor", folder / "keys").private)
    case = Case(run, trainer, auditor, fresh("auditor"))
    announce(case)
    report(case)
    sign(case)
    return case


@pytest.fixture
def case(made: Case, tmp_path: Path) -> Case:
    shutil.copytree(made.run, tmp_path / "run")
    return Case(tmp_path / "run", made.trainer, made.auditor, made.challenger)


def header_of(run: Path) -> dict:
    return json.loads((run / "ledger.jsonl").read_bytes().splitlines()[0])


def rewrite(run: Path, change: Callable[[list[dict]], None]) -> None:
    """Change the ledger, and let the findings be about that one."""
    rewrite_ledger(run, change)
    found = json.loads((run / "audit.json").read_bytes())
    found["inputs"]["ledger.jsonl"] = sha256_file(run / "ledger.jsonl")
    (run / "audit.json").write_text(json.dumps(found))


def announce(case: Case, by: SigningKey | None = None, own: bool = False, **other: str) -> None:
    """Write intent and challenge, and name them in the ledger."""
    header = header_of(case.run)
    said = {
        "run": header["run"],
        "spec_sha256": sha256_file(case.run / "spec.yaml"),
        "root": "cd" * 32,
        "rounds": header["rounds"],
        "clients": header["clients"],
        "data": ("01" * 32,) * header["clients"],
        "handle": "ef" * 32,
    }
    envelope = challenges.write_intent(Promised(**(said | other)), by or case.trainer, "0", NOON)
    intent = challenges.read_intent(envelope, "it")
    answer = challenges.write_challenge(intent, NONCE, SEEN, case.challenger, NOON)
    (case.run / inventory.INTENT).write_bytes(envelope)
    (case.run / inventory.CHALLENGE).write_bytes(answer)
    coin = {**challenges.read_challenge(answer, "it").header(), "own": own}
    rewrite(case.run, lambda entries: entries[0].update(public_coin=coin))


def sign(case: Case) -> None:
    signing.sign(case.run, trainer=case.trainer)
    signing.sign(case.run, auditor=case.auditor)


def report(case: Case) -> None:
    for audience in ("internal", PUBLIC):
        build_report(case.run, audience)


def draw(case: Case, key: SigningKey, ledger: str | None = None) -> None:
    data = challenges.write_draw(
        header_of(case.run)["run"],
        NONCE,
        3,
        ledger or sha256_file(case.run / "ledger.jsonl"),
        sha256_file(case.run / signing.TRAINING_ENVELOPE),
        key,
        NOON,
    )
    (case.run / inventory.DRAW).write_bytes(data)


def problems(result: VerificationResult) -> list[str]:
    return [str(problem) for problem in result.problems]


def test_a_challenged_run_holds_and_tells_who_challenged_it(case):
    draw(case, case.challenger)
    sign(case)
    result = verify(case.run)
    assert problems(result) == []
    signed = {one.envelope: (one.role, one.fingerprint) for one in result.signers}
    assert signed["intent.json"] == ("trainer", case.trainer.fingerprint)
    for name in ("challenge.json", "draw.json"):
        assert signed[name] == ("auditor", case.challenger.fingerprint)
    (told,) = [text for text in result.statements if "intent number 3" in text]
    assert "2 of those before came to no run that passed" in told
    training = json.loads(
        challenges.parse_envelope((case.run / signing.TRAINING_ENVELOPE).read_bytes(), "it").payload
    )
    assert {"intent.json", "challenge.json"} <= {one["name"] for one in training["subject"]}


def test_the_challenger_s_key_is_known_only_where_it_is_given_or_one_s_own(case, tmp_path):
    files = {}
    for name, key in (("one", case.auditor), ("two", case.challenger), ("t", case.trainer)):
        files[name] = tmp_path / f"{name}.pub"
        files[name].write_bytes(keys.public_pem(key.public))

    def outcome(auditor: str) -> Outcome:
        return verify(case.run, files["t"], files[auditor]).outcome

    # The report is by another auditor than the challenge.
    assert outcome("one") is Outcome.SIGNER_UNKNOWN
    assert outcome("two") is Outcome.NOT_VALID
    signing.sign(case.run, auditor=case.challenger)
    assert outcome("two") is Outcome.ALL_HOLD


def test_a_run_is_challenged_only_by_the_auditor_who_signs(case, tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "facts_of", lambda _: Facts("PASS", True, 3, True))
    # The trainer has a second key, and a stranger audits.
    assert verify(case.run).level == 2
    folder = tmp_path / "keys"
    keyring.new("auditor", folder)
    challenger = keyring.load_signing_key("auditor", folder / "auditor.key")
    again = dataclasses.replace(case, challenger=challenger, auditor=challenger)
    announce(again)
    report(again)
    sign(again)
    assert (problems(verify(case.run)), verify(case.run).level) == ([], 3)
    keyring.rotate("auditor", folder)
    following = keyring.load_signing_key("auditor", folder / "auditor-2.key")
    assert following.replaced == {challenger.fingerprint}
    signing.sign(case.run, auditor=following)
    assert (problems(verify(case.run)), verify(case.run).level) == ([], 3)
    # Another's rotations join no keys.
    assert dataclasses.replace(case.auditor, rotations=following.rotations).replaced == frozenset()


def test_what_earlier_versions_attested_of_a_challenge_of_the_trainers_own_holds(case, monkeypatch):
    announce(case, own=True)
    report(case)
    with monkeypatch.context() as patch:
        told = signing.facts_of(load(case.run))
        assert not told.public_coin
        patch.setattr(signing, "facts_of", lambda _: told._replace(public_coin=True))
        sign(case)
    assert problems(verify(case.run)) == []
    with monkeypatch.context() as patch:
        patch.setattr(signing, "facts_of", lambda _: told._replace(agrees=not told.agrees))
        sign(case)
    assert problems(verify(case.run)) == [
        "attestation.json: states another re-execution than audit.json and ledger",
        "attestation-public.json: states another re-execution than audit.json and ledger",
    ]


def test_an_auditor_who_is_the_trainer_is_named_as_such(case):
    announce(case, own=True)
    sign(case)
    assert any("Auditor and trainer are one" in text for text in verify(case.run).statements)


def other_intent(case: Case) -> None:
    names = inventory.CHALLENGE, "ledger.jsonl", "audit.json"
    kept = {name: (case.run / name).read_bytes() for name in names}
    announce(case, root="ab" * 32)
    for name, content in kept.items():
        (case.run / name).write_bytes(content)


def without(name: str) -> Callable[[Case], None]:
    return lambda case: (case.run / name).unlink()


def header(**changes: object) -> Callable[[Case], None]:
    return lambda case: rewrite(case.run, lambda entries: entries[0]["public_coin"].update(changes))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda case: announce(case, by=fresh("trainer")), "intent.json: is signed by SHA256:"),
        (lambda case: announce(case, spec_sha256="ab" * 32), "announces another spec"),
        (other_intent, "intent.json: is not the one that challenge.json answers"),
        (without("challenge.json"), "challenge.json: missing"),
        (without("intent.json"), "intent.json: missing"),
        (header(nonce="00" * 32), "challenge.json: is not what the ledger's header says"),
        (header(intents={"of_trainer": 1}), "challenge.json: is not what the ledger's header says"),
        (lambda case: draw(case, case.trainer), "in the role of the auditor"),
        (lambda case: draw(case, case.auditor), "not by the auditor who challenged the run"),
        (lambda case: draw(case, case.challenger, "ab" * 32), "was drawn for another ledger"),
    ],
)
def test_a_forgery_is_named_even_where_trainer_and_auditor_sign_it(case, forge, words):
    forge(case)
    sign(case)
    result = verify(case.run)
    assert result.outcome is Outcome.NOT_VALID
    assert any(words in problem for problem in problems(result)), problems(result)


def test_intent_and_challenge_are_public_and_a_draw_is_not(case, tmp_path):
    draw(case, case.challenger)
    sign(case)
    names = copies.copy(case.run, "public", tmp_path / "public")
    assert {"intent.json", "challenge.json"} <= set(names)
    assert "draw.json" not in names
    result = verify(tmp_path / "public")
    assert problems(result) == []
    assert "challenge.json" in {one.envelope for one in result.signers}
    assert "draw.json" in copies.copy(case.run, "archive", tmp_path / "archive")


def test_an_authority_dates_the_intent(case, tmp_path):
    authority = LocalAuthority(tmp_path)
    with authority.serve() as url:
        from reports.signatures.timestamps import Authority

        stamp = Authority(url).stamp((case.run / inventory.INTENT).read_bytes())
    (case.run / "intent.json.tsr").write_bytes(stamp)
    sign(case)
    result = verify(case.run, tsa_roots=[authority.root])
    assert problems(result) == []
    assert next(one.time for one in result.signers if one.envelope == "intent.json")
    (case.run / "intent.json.tsr").write_bytes(stamp[:-1] + bytes([stamp[-1] ^ 1]))
    sign(case)
    assert any("intent.json.tsr" in problem for problem in problems(verify(case.run)))


def test_a_transparency_log_holds_the_intent_or_the_proof_is_named(case, tmp_path):
    log = TransparencyLog()
    log.entries += [b"another trainer's", (case.run / inventory.INTENT).read_bytes(), b"a third"]
    (tmp_path / "log.pub").write_text(log.key)
    beside = case.run / "intent.json.tlog"
    beside.write_bytes(log.proof(1))
    sign(case)
    result = verify(case.run, log_keys=[tmp_path / "log.pub"])
    assert problems(result) == []
    assert any(
        "entry 1 of 3 of the log log.example/intents, as" in one for one in result.statements
    )
    assert any("--log-key" in text for text in verify(case.run).statements)
    beside.write_bytes(log.proof(2))
    sign(case)
    assert any("holds something else" in problem for problem in problems(verify(case.run)))


@pytest.mark.parametrize(
    ("signer", "same", "pinned", "own"),
    [
        ("given", False, True, False),
        ("mine", False, False, True),
        ("a stranger's", False, False, False),
        # It is known to lead to the key that was given.
        ("a stranger's", True, True, False),
    ],
)
def test_a_challenger_is_known_by_a_key_that_was_given_or_is_one_s_own(
    signer: str, same: bool, pinned: bool, own: bool
) -> None:
    made = {name: fresh("auditor") for name in ("given", "mine", "a stranger's")}
    mine = frozenset({made["mine"].fingerprint})
    trust = Trust(
        {"auditor": made["given"].public}, (), {}, {"trainer": frozenset(), "auditor": mine}
    )
    found = Found()
    signed = Signed(key=made[signer].public, created=NOON, envelope=b"")
    stamp = Timestamp(NOON, "an authority", True)
    announcements._signer(signed, "auditor", "challenge.json", stamp, trust, found, same)
    assert found.signers == [
        Signer(
            "auditor",
            made[signer].fingerprint,
            "challenge.json",
            pinned,
            "2026-11-22T12:00:00Z",
            own,
        )
    ]


# Each file by itself, without a report.


@dataclass(frozen=True)
class Small:
    """A folder with intent, challenge and draw, and a ledger and spec that they are about."""

    folder: Path
    trainer: SigningKey
    auditor: SigningKey

    def found(self, trust: Trust | None = None, by: SigningKey | None = None) -> Found:
        found = Found()
        run_keys: Any = {"trainer": (by or self.trainer).public}
        verification._check_announcements(Snapshot(self.folder), run_keys, trust or NOBODY, found)
        return found

    def problems(self, **given: Any) -> list[str]:
        return [str(problem) for problem in self.found(**given).problems]

    def header(self, **coin: Any) -> None:
        line = json.dumps({"kind": "header", "public_coin": coin} if coin else {"kind": "header"})
        (self.folder / "ledger.jsonl").write_bytes(line.encode() + b"\nmore\n")

    def coin(self) -> dict[str, Any]:
        data = (self.folder / "challenge.json").read_bytes()
        return challenges.read_challenge(data, "it").header()

    def drawn(self, key: SigningKey, ledger: str | None = None) -> bytes:
        ledger = ledger or sha256_file(self.folder / "ledger.jsonl")
        return challenges.write_draw("a-run", NONCE, 3, ledger, "34" * 32, key, NOON)


NOBODY = Trust({}, (), {}, {"trainer": frozenset(), "auditor": frozenset()})
TOLD = (
    "An auditor fixed this run's noise beforehand, with a nonce of 2026-11-22T12:00:00Z for intent "
    "number 3 of this trainer (number 2 for these data; 2 of those before came to no run that "
    "passed). Whether the noise follows from it is seen where participations are opened and "
    "computed again."
)
OWN = "Auditor and trainer are one: the challenge is by a key of the trainer's own."


@pytest.fixture(scope="module")
def signers() -> tuple[SigningKey, SigningKey]:
    return fresh("trainer"), fresh("auditor")


@pytest.fixture
def small(signers: tuple[SigningKey, SigningKey], tmp_path: Path) -> Small:
    trainer, auditor = signers
    (tmp_path / "spec.yaml").write_bytes(b"spec")
    promised = Promised(
        run="a-run",
        spec_sha256=sha256_file(tmp_path / "spec.yaml"),
        root="cd" * 32,
        rounds=2,
        clients=1,
        data=("01" * 32,),
        handle="ef" * 32,
    )
    envelope = challenges.write_intent(promised, trainer, "0", NOON)
    answer = challenges.write_challenge(
        challenges.read_intent(envelope, "it"), NONCE, SEEN, auditor, NOON
    )
    (tmp_path / "intent.json").write_bytes(envelope)
    (tmp_path / "challenge.json").write_bytes(answer)
    made = Small(tmp_path, trainer, auditor)
    made.header(**made.coin(), own=False)
    (tmp_path / "draw.json").write_bytes(made.drawn(auditor))
    return made


def test_all_three_are_signed_for_the_run_and_told(small):
    found = small.found()
    assert found.problems == []
    assert found.statements == [TOLD]
    assert found.signers == [
        Signer("trainer", small.trainer.fingerprint, "intent.json", pinned=False),
        Signer("auditor", small.auditor.fingerprint, "challenge.json", pinned=False),
        Signer("auditor", small.auditor.fingerprint, "draw.json", pinned=False),
    ]
    small.header(**small.coin(), own=True)
    (small.folder / "draw.json").unlink()
    found = small.found()
    assert (found.problems, found.statements, len(found.signers)) == ([], [TOLD, OWN], 2)
    # In the public files there is neither ledger nor spec.
    (small.folder / "ledger.jsonl").unlink()
    (small.folder / "spec.yaml").unlink()
    found = small.found()
    assert (found.problems, found.statements) == ([], [TOLD])


def test_a_run_without_a_challenge_says_nothing_and_one_with_any_of_it_needs_it(small):
    data = {name: (small.folder / name).read_bytes() for name in ("intent.json", "draw.json")}
    for name in ("intent.json", "challenge.json", "draw.json"):
        (small.folder / name).unlink()
    coin = json.loads((small.folder / "ledger.jsonl").read_bytes().splitlines()[0])["public_coin"]
    small.header()
    found = small.found()
    assert (found.problems, found.statements, found.signers) == ([], [], [])
    for name, content in data.items():
        (small.folder / name).write_bytes(content)
        found = small.found()
        assert [str(one) for one in found.problems] == ["challenge.json: missing"]
        assert found.signers == []
        (small.folder / name).unlink()
    small.header(**coin)
    assert small.problems() == ["challenge.json: missing"]
    # What is no ledger is named where the ledger is read.
    (small.folder / "ledger.jsonl").write_bytes(b"no JSON\n")
    assert small.problems() == []


@pytest.mark.parametrize("name", ["run", "nonce", "challenger", "intents", "root", "more"])
def test_the_ledger_names_the_challenge_in_every_part(small, name):
    small.header(**{**small.coin(), "own": False, name: "other"})
    (small.folder / "draw.json").unlink()
    assert small.problems() == ["challenge.json: is not what the ledger's header says of it"]


def test_an_intent_is_the_one_that_was_answered_for_this_spec_by_this_trainer(small):
    (small.folder / "spec.yaml").write_bytes(b"another")
    assert small.problems() == ["intent.json: announces another spec than the run's"]
    (small.folder / "spec.yaml").write_bytes(b"spec")
    intent = small.folder / "intent.json"
    whole = intent.read_bytes()
    intent.write_bytes(whole + b"\n")
    assert small.problems() == ["intent.json: is not the one that challenge.json answers"]
    intent.unlink()
    found = small.found()
    assert [str(one) for one in found.problems] == ["intent.json: missing"]
    # It is in the challenge, and signed.
    assert "intent.json" in {one.envelope for one in found.signers}
    intent.write_bytes(whole)
    other = fresh("trainer")
    found = small.found(by=other)
    assert [str(one) for one in found.problems] == [
        f"intent.json: is signed by {small.trainer.fingerprint}, not by the run's trainer"
    ]
    assert [one.envelope for one in found.signers] == ["challenge.json", "draw.json"]
    step = statements.write_rotation("trainer", small.trainer.private, other.public, NOON)
    agreed = statements.consented(statements.Sealed(step), other.private, "file")
    bundle = statements.write_bundle("rotations", (agreed,))
    (small.folder / "trainer.rotations.json").write_bytes(bundle)
    found = small.found(by=other)
    assert (found.problems, len(found.signers)) == ([], 3)


def test_an_intent_is_known_by_the_key_that_was_given_where_the_runs_key_is(small):
    given = dataclasses.replace(NOBODY, pinned={"trainer": fresh("trainer").public})
    assert [one.pinned for one in small.found(trust=given).signers] == [True, False, False]
    found = Found()
    verification._check_announcements(Snapshot(small.folder), {}, given, found)
    assert [one.pinned for one in found.signers] == [False, False, False]


def test_a_draw_is_by_the_challenger_for_this_ledger(small):
    draw = small.folder / "draw.json"
    other = fresh("auditor")
    for data, said, signed in (
        (small.drawn(small.auditor, "ab" * 32), "was drawn for another ledger", True),
        (
            small.drawn(other),
            f"is signed by {other.fingerprint}, not by the auditor who challenged the run",
            False,
        ),
        (b"{}", "payloadType must be application/vnd.in-toto+json", False),
    ):
        draw.write_bytes(data)
        found = small.found()
        assert [str(one) for one in found.problems] == [f"draw.json: {said}"]
        assert ("draw.json" in {one.envelope for one in found.signers}) is signed


def test_a_revoked_key_announces_nothing(small):
    for key, names in (
        (small.trainer, ["intent.json"]),
        (small.auditor, ["challenge.json", "draw.json"]),
    ):
        name = key.fingerprint
        revoked = statements.Revocation(key.role, name, NOON, "key-compromise", name)
        found = small.found(trust=dataclasses.replace(NOBODY, revoked={name: revoked}))
        assert [one.file for one in found.problems] == names
        assert not set(names) & {one.envelope for one in found.signers}


def test_times_and_proofs_beside_intent_and_draw_count(small, monkeypatch, tmp_path):
    stamp = Timestamp(NOON, "Clock", True)
    monkeypatch.setattr(timestamps, "check", lambda *_: stamp)
    for name in ("intent.json", "challenge.json", "draw.json"):
        (small.folder / f"{name}.tsr").write_bytes(b"stamp")
    when = "2026-11-22T12:00:00Z"
    assert [one.time for one in small.found().signers] == [when, None, when]
    log = TransparencyLog()
    log.entries += [(small.folder / f"{name}.json").read_bytes() for name in ("intent", "draw")]
    for index, name in enumerate(("intent", "draw")):
        (small.folder / f"{name}.json.tlog").write_bytes(log.proof(index))
    (tmp_path / "log.pub").write_text(log.key)
    trusted = dataclasses.replace(NOBODY, logs=load_log_keys([tmp_path / "log.pub"]))
    place = "of 2 of the log log.example/intents"
    tail = "as the log signed; its other entries tell what else was."
    assert [one for one in small.found(trust=trusted).statements if "entry" in one] == [
        f"intent.json: is entry 0 {place}, {tail}", f"draw.json: is entry 1 {place}, {tail}",
    ]  # fmt: skip
    says, rely = "says that it is entry", "give the log's key (--log-key) to rely on it."
    assert [one for one in small.found().statements if "entry" in one] == [
        f"intent.json: {says} 0 {place}; {rely}", f"draw.json: {says} 1 {place}; {rely}",
    ]  # fmt: skip
    (small.folder / "intent.json.tlog").write_bytes(log.proof(1))
    assert small.problems() == ["intent.json.tlog: proves that the log holds something else"]
    (small.folder / "intent.json.tlog").write_bytes(bytes(65_537))
    assert small.problems() == ["intent.json.tlog: larger than the accepted 65536 bytes"]


@pytest.mark.parametrize("name", ["challenge.json", "intent.json", "draw.json"])
def test_sixteen_mebibytes_are_read_of_each_and_no_more(small, name):
    (small.folder / name).write_bytes(bytes(16_777_217))
    (problem,) = small.problems()
    assert problem == f"{name}: larger than the accepted 16777216 bytes"
