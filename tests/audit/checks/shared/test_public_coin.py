"""A challenged run's intent, challenge and ledger fit, or the check "randomness" says how not."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from audit.checks.randomness import RANDOMNESS, _statement, _subject, _time, coin_faults
from audit.reading.bundle import open_bundle
from audit.reading.ledger import INTENTS
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict
from reports.signatures.challenges import (
    Promised,
    Seen,
    read_intent,
    write_challenge,
    write_intent,
)
from tests.audit.synthetic_run import Settings, build_run, read_entries, rewrite_ledger
from tests.reports.signing_keys import fresh

NOON, NONCE = datetime(2026, 1, 1, 12, tzinfo=UTC), bytes(range(32))
KEYS = {role: fresh(role) for role in ("trainer", "auditor")}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return build_run(tmp_path_factory.mktemp("challenged") / "run", Settings(with_probe=False))


@pytest.fixture
def run(built, tmp_path) -> Path:
    shutil.copytree(built, tmp_path / "run")
    challenge(tmp_path / "run")
    return tmp_path / "run"


def challenge(
    run: Path, /, dropped: int = 0, late: timedelta = timedelta(0), **other: object
) -> None:
    """Write intent and challenge into a run, and name them in its ledger's header."""
    header = read_entries(run)[0]
    said = {
        "run": header["run"],
        "spec_sha256": header["spec_sha256"],
        "root": "cd" * 32,
        "rounds": header["rounds"],
        "clients": header["clients"],
        "data": ("01" * 32,) * header["clients"],
        "handle": "ef" * 32,
    }
    promised = Promised(**(said | other))
    intent = read_intent(write_intent(promised, KEYS["trainer"], "0.1.0", NOON + late), "it")
    seen = Seen(of_trainer=3, for_data=3, dropped=dropped, dropped_of_trainer=dropped)
    answer = write_challenge(intent, NONCE, seen, KEYS["auditor"], NOON)
    (run / "intent.json").write_bytes(intent.envelope)
    (run / "challenge.json").write_bytes(answer)
    coin = {
        "run": promised.run,
        "intent_sha256": intent.sha256,
        "challenge_sha256": hashlib.sha256(answer).hexdigest(),
        "nonce": NONCE.hex(),
        "root": promised.root,
        "challenger": KEYS["auditor"].fingerprint,
        "intents": vars(seen),
        "own": False,
    }
    rewrite_ledger(run, lambda entries: entries[0].update(public_coin=coin))


def judged(run: Path) -> tuple[Verdict, str]:
    judgement = RANDOMNESS.judge(open_bundle(run))
    return judgement.verdict, judgement.measurement


def test_a_challenged_run_passes_and_says_that_it_was(run):
    found = RANDOMNESS.judge(open_bundle(run))
    assert found.verdict is Verdict.PASS
    assert "announced before an auditor's nonce" in found.measurement
    assert found.details["intents"] == {
        "of_trainer": 3, "for_data": 3, "dropped": 0, "dropped_of_trainer": 0,
    }  # fmt: skip
    assert found.qualifications == ()


def test_intents_that_came_to_nothing_qualify_the_verdict(run):
    challenge(run, dropped=2)
    (told,) = RANDOMNESS.judge(open_bundle(run)).qualifications
    assert "announced 3 runs" in told
    assert "2 of the earlier ones led to no run" in told


def of_header(**changes: object) -> Callable[[Path], None]:
    """Changes what the ledger's header says of the challenge."""

    def change(run: Path) -> None:
        rewrite_ledger(run, lambda entries: entries[0]["public_coin"].update(changes))

    return change


def exchanged(run: Path) -> None:
    """The run's intent is another one of the same trainer."""
    kept = (run / "challenge.json").read_bytes()
    header = json.loads((run / "ledger.jsonl").read_bytes().splitlines()[0])["public_coin"]
    challenge(run, root="ab" * 32)
    (run / "challenge.json").write_bytes(kept)
    rewrite_ledger(run, lambda entries: entries[0].update(public_coin=header))


def resumed_with(commitment: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        line = {"kind": "resume", "round": 0, "commitment": commitment}
        rewrite_ledger(run, lambda entries: entries.insert(1, line))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: challenge(run, spec_sha256="ab" * 32), "announces a spec that is not"),
        (lambda run: challenge(run, run="another-run"), "of different runs"),
        (lambda run: challenge(run, rounds=9), "keys of rounds and clients that are not"),
        (lambda run: challenge(run, late=timedelta(hours=1)), "dated after the challenge"),
        (lambda run: challenge(run, late=timedelta(seconds=301)), "dated after the challenge"),
        (
            lambda run: challenge(run, clients=9, data=("01" * 32,) * 9),
            "keys of rounds and clients that are not the run's; intent.json: commits to the data "
            "of "
            "a different number of clients",
        ),
        (of_header(run="another-run"), "of different runs"),
        (of_header(root="ab" * 32), "commits to keys that are not"),
        (of_header(nonce="ab" * 32), "nonce is not the challenge's"),
        (of_header(intents=dict.fromkeys(INTENTS, 1)), "count of intents is not"),
        (of_header(intent_sha256="ab" * 32), "is not the one that the ledger names"),
        (exchanged, "intent.json: is not the one that the ledger names"),
        (
            lambda run: rewrite_ledger(run, lambda entries: entries[0].pop("public_coin")),
            "the ledger names no challenge",
        ),
        (resumed_with("cd" * 32), "a key that its intent did not commit to"),
    ],
)  # fmt: skip
def test_what_does_not_fit_fails(run, change, words):
    change(run)
    verdict, said = judged(run)
    assert verdict is Verdict.FAIL
    assert words in said


def test_a_run_that_was_cut_off_goes_on_with_the_key_that_was_committed_to(run):
    resumed_with("ab" * 32)(run)
    assert judged(run)[0] is Verdict.PASS


@pytest.mark.parametrize("name", ["intent.json", "challenge.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"payload": "e30="}', b"\xff"])
def test_what_cannot_be_read_is_never_a_pass(run, name, content):
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    verdict, said = judged(run)
    assert verdict in (Verdict.FAIL, Verdict.NOT_VERIFIED)
    assert name in said


def test_clocks_may_differ_by_five_minutes(run):
    challenge(run, late=timedelta(minutes=5))
    assert judged(run)[0] is Verdict.PASS


def envelope(statement: object) -> bytes:
    payload = statement if isinstance(statement, str) else json.dumps(statement)
    return json.dumps({"payload": base64.b64encode(payload.encode()).decode()}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"payload": "abc"}', "payload is not base64"),
        (envelope([1]), "payload is not a statement"),
        (
            envelope({"predicate": {"keys": {}, "data": {}}, "subject": []}),
            "does not name spec.yaml",
        ),
    ],
)
def test_an_intent_that_is_none_is_told_as_that(run, content, words):
    (run / "intent.json").write_bytes(content)
    rewrite_ledger(
        run,
        lambda entries: entries[0]["public_coin"].update(
            intent_sha256=hashlib.sha256(content).hexdigest()
        ),
    )
    verdict, said = judged(run)
    assert verdict is Verdict.NOT_VERIFIED
    assert words in said


@pytest.mark.parametrize(("others", "found"), [(63, True), (64, False)])
def test_a_statement_has_sixty_four_subjects_at_most(others, found):
    subjects = [{"name": f"file-{number}"} for number in range(others)]
    named = {"name": "spec.yaml", "digest": {"sha256": "0" * 64}}
    statement = {"subject": [*subjects, named]}
    if found:
        assert _subject(statement, "spec.yaml") == "0" * 64
    else:
        with pytest.raises(FieldError, match="subject"):
            _subject(statement, "spec.yaml")


def test_an_intent_of_more_than_sixteen_megabytes_is_not_read(run):
    with (run / "intent.json").open("r+b") as file:
        file.truncate(2**24 + 1)
    verdict, said = judged(run)
    assert verdict is Verdict.NOT_VERIFIED
    assert "intent.json" in said
    # One byte less is read, and is another intent.
    with (run / "intent.json").open("r+b") as file:
        file.truncate(2**24)
    assert judged(run)[0] is Verdict.FAIL


# What is read of a statement, asked for by itself.


def test_a_payload_is_base64_to_its_end():
    right = base64.b64encode(json.dumps({"predicate": 1}).encode()).decode()
    assert right.endswith("=")
    assert _statement(json.dumps({"payload": right}).encode()) == {"predicate": 1}
    long = base64.b64encode(json.dumps({"predicate": "x" * 9000}).encode()).decode()
    assert _statement(json.dumps({"payload": long}).encode()) == {"predicate": "x" * 9000}
    for wrong, said in (
        (right + right, "payload is not base64"),
        (right[:-1], "payload is not base64"),
        (right + "\n", "payload is not a text of the expected form"),
        ("", "payload is not a text of the expected form"),
        (7, "payload is not a text of the expected form"),
    ):
        with pytest.raises(FieldError, match=said):
            _statement(json.dumps({"payload": wrong}).encode())


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "AB" * 32, 7])
def test_a_subject_s_digest_is_one(digest):
    statement = {"subject": [{"name": "a", "digest": {"sha256": digest}}]}
    with pytest.raises(FieldError, match="sha256 is not a text of the expected form"):
        _subject(statement, "a")
    with pytest.raises(FieldError, match="does not name b"):
        _subject(statement, "b")


@pytest.mark.parametrize(
    "created", ["2026-01-01", "2026-01-01T12:00:00", "2026-01-01T12:00:00+00:00",
                "2026-01-01T12:00:00.5Z", " 2026-01-01T12:00:00Z"],
)  # fmt: skip
def test_a_time_is_written_in_one_way(created):
    with pytest.raises(FieldError, match="created is not a text of the expected form"):
        _time({"created": created})
    assert _time({"created": "2026-01-01T12:00:00Z"}) == NOON


def faults(root: Path, coin: object) -> tuple[list[str], list[str]]:
    reasons: list[str] = []
    unreadable: list[str] = []
    coin_faults(SimpleNamespace(root=root, header=SimpleNamespace(public_coin=coin)), reasons,
                unreadable)  # fmt: skip
    return reasons, unreadable


def test_a_run_that_names_no_challenge_has_none_beside_it(tmp_path):
    assert faults(tmp_path, None) == ([], [])
    lies = "is in the run, but the ledger names no challenge"
    (tmp_path / "challenge.json").write_bytes(b"{}")
    assert faults(tmp_path, None) == ([f"challenge.json: {lies}"], [])
    (tmp_path / "intent.json").write_bytes(b"{}")
    assert faults(tmp_path, None) == ([f"intent.json: {lies}", f"challenge.json: {lies}"], [])
    # What is there and cannot be read is not taken for nothing.
    (tmp_path / "intent.json").unlink()
    (tmp_path / "intent.json").mkdir()
    reasons, (unread,) = faults(tmp_path, None)
    assert reasons == [f"challenge.json: {lies}"]
    assert unread.startswith("intent.json: ")


def test_both_files_that_a_ledger_names_are_looked_for(tmp_path):
    coin = SimpleNamespace(intent_sha256="0" * 64, challenge_sha256="1" * 64)
    reasons, unreadable = faults(tmp_path, coin)
    assert reasons == []
    assert [one.split(":")[0] for one in unreadable] == ["intent.json", "challenge.json"]
    right = envelope({})
    named = SimpleNamespace(
        intent_sha256=hashlib.sha256(right).hexdigest(), challenge_sha256="1" * 64
    )
    (tmp_path / "challenge.json").write_bytes(right)
    reasons, unreadable = faults(tmp_path, named)
    assert reasons == ["challenge.json: is not the one that the ledger names"]
    assert [one.split(":")[0] for one in unreadable] == ["intent.json"]
    (tmp_path / "intent.json").write_bytes(right)
    (tmp_path / "challenge.json").unlink()
    reasons, unreadable = faults(tmp_path, named)
    assert reasons == []
    assert [one.split(":")[0] for one in unreadable] == ["challenge.json"]
