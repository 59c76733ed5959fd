"""Both verifiers say the same of runs that an auditor challenged, and of forged challenges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dpfedadamw.filing import after_training as filing
from reports import build_report
from reports.content import parts
from reports.content.parts import PUBLIC
from reports.files import sha256_file
from reports.signatures import challenges, copies, inventory, keyring, signing
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import verify
from reports.source import load
from tests.audit.synthetic_run import rewrite_ledger
from tests.challenged import Parties, challenged
from tests.conformance import BROKEN, UNKNOWN
from tests.conformance.test_conformance import NODE, second
from tests.reports.signing_keys import fresh
from tests.runs import PICTURE

pytestmark = pytest.mark.skipif(NODE is None, reason="the second verifier needs Node")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A challenged run whose auditor says of three participations that they were recomputed."""
    found = challenged(tmp_path_factory.mktemp("challenged"))
    path = found.run / "audit.json"
    audit = json.loads(path.read_bytes())
    (check,) = [one for one in audit["checks"] if one["name"] == "reexecution"]
    check["verdict"], check["details"] = "PASS", {"drawn": 3, "participations": 8}
    path.write_text(json.dumps(audit))
    return found


@pytest.fixture
def case(honest: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """A copy that a test may change, for a reader who knows none of the keys."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "a stranger's keys"))
    shutil.copytree(honest.folder, tmp_path / "copy", symlinks=True)
    return Parties(tmp_path / "copy")


def _key(case: Parties, role: str) -> SigningKey:
    with case.acting(role):
        signers = filing.load_signers(None, None)
    return signers.auditor if role == "auditor" else signers.trainer


def _sign(case: Parties, auditor: SigningKey) -> None:
    # No expectation rests on the reports' pictures, which take most of the time.
    with patch.object(parts, "draw", lambda *_: PICTURE):
        for audience in ("internal", PUBLIC):
            build_report(case.run, audience)
    signing.sign(case.run, trainer=_key(case, "trainer"))
    signing.sign(case.run, auditor=auditor)


def _header(**changes: Any) -> Callable[[Parties], None]:
    """The ledger names another challenge, and the findings are about that ledger."""

    def forge(case: Parties) -> None:
        rewrite_ledger(case.run, lambda entries: entries[0]["public_coin"].update(changes))
        found = json.loads((case.run / "audit.json").read_bytes())
        found["inputs"]["ledger.jsonl"] = sha256_file(case.run / "ledger.jsonl")
        (case.run / "audit.json").write_text(json.dumps(found))

    return forge


def _both(run: Path) -> tuple[tuple[str, int | None], tuple[str, int | None], list[str]]:
    """Outcome and level of each verifier, and what the second says that it does not see."""
    first, told = verify(run), second("folders", [str(run)])[str(run)]
    unseen = [line["what"] for line in told["lines"] if line["state"] == "unseen"]
    return (first.outcome.value, first.level), (told["outcome"], told["level"]), unseen


def _public(case: Parties) -> Path:
    copies.copy(case.run, "public", case.folder / "public")
    return case.folder / "public"


def test_the_auditor_who_challenged_a_run_makes_it_a_challenged_one(case: Parties) -> None:
    auditor = _key(case, "auditor")
    _sign(case, auditor)
    for run in (case.run, _public(case)):
        assert _both(run)[:2] == ((UNKNOWN, 3), (UNKNOWN, 3))


def test_a_stranger_who_attests_a_challenged_run_does_not(case: Parties) -> None:
    _sign(case, fresh("auditor"))
    for run in (case.run, _public(case)):
        *found, unseen = _both(run)
        assert found == [(UNKNOWN, 2), (UNKNOWN, 2)]
        assert any("The challenge is signed by" in one for one in unseen)


def test_a_trainers_own_challenge_is_none_whoever_attests_and_whatever_was_attested(
    case: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    _header(own=True)(case)
    auditor = _key(case, "auditor")
    _sign(case, auditor)
    assert _both(case.run)[:2] == ((UNKNOWN, 2), (UNKNOWN, 2))
    # Earlier versions attested that as a challenge.
    told = signing.facts_of(load(case.run))
    monkeypatch.setattr(signing, "facts_of", lambda _: told._replace(public_coin=True))
    _sign(case, auditor)
    assert _both(case.run)[:2] == ((UNKNOWN, 2), (UNKNOWN, 2))
    monkeypatch.setattr(signing, "facts_of", lambda _: told._replace(participations=2))
    _sign(case, auditor)
    assert _both(case.run)[:2] == ((BROKEN, None), (BROKEN, None))


def test_the_second_verifier_says_that_it_follows_no_replaced_key(case: Parties) -> None:
    folder = case.folder / "auditor-keys"
    keyring.rotate("auditor", folder)
    _sign(case, keyring.load_signing_key("auditor", folder / "auditor-2.key"))
    first, other, unseen = _both(case.run)
    assert (first, other) == ((UNKNOWN, 3), (UNKNOWN, 2))
    assert any("whether one replaced the other" in one for one in unseen)


def _without(name: str) -> Callable[[Parties], None]:
    return lambda case: (case.run / name).unlink()


def _of_another(name: str) -> Callable[[Parties], None]:
    """What the two exchanged for another run of the same trainer's."""

    def forge(case: Parties) -> None:
        assert case.announce("other-intent.json", "other.escrow") == 0
        assert case.challenge("other-intent.json", "other-challenge.json") == 0
        shutil.copy(case.file(f"other-{name}"), case.run / name)

    return forge


def _drawn(case: Parties, role: str) -> None:
    """A draw by an auditor's key of the trainer's, or by the auditor for another ledger."""
    with case.acting(role):
        key = filing.load_signers(None, None).auditor
    header = json.loads((case.run / "ledger.jsonl").read_bytes().splitlines()[0])
    (case.run / inventory.DRAW).write_bytes(
        challenges.write_draw(
            header["run"],
            bytes(32),
            3,
            sha256_file(case.run / "ledger.jsonl") if role == "trainer" else "ab" * 32,
            "ab" * 32,
            key,
            challenges.now(),
        )
    )


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "forge",
    [
        _without("challenge.json"),
        _without("intent.json"),
        _of_another("challenge.json"),
        _of_another("intent.json"),
        _header(nonce="00" * 32),
        _header(root="00" * 32),
        _header(challenger="SHA256:another"),
        _header(intents={"of_trainer": 1}),
        _header(more=1),
        lambda case: (case.run / "challenge.json").write_bytes(b"null"),
        lambda case: _drawn(case, "trainer"),
        lambda case: _drawn(case, "auditor"),
    ],
)
def test_a_forged_challenge_is_refused_though_both_sign_it(
    case: Parties, forge: Callable[[Parties], Any]
) -> None:
    forge(case)
    _sign(case, _key(case, "auditor"))
    assert _both(case.run)[:2] == ((BROKEN, None), (BROKEN, None))
