"""Intent, challenge, run, draw and openings, as trainer and auditor type them, and forgeries."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.reading import openings
from audit.reading.openings import Coin
from audit.reexecution import Participation
from dpfedadamw.cli import challenge_files, terminal
from dpfedadamw.errors import DpfedadamwError, FilingError
from dpfedadamw.filing.after_training import load_key
from dpfedadamw.privacy.noise import randomness
from dpfedadamw.rundir import open_existing
from reports.signatures import challenges
from tests.audit.synthetic_run import rewrite_ledger
from tests.authority import LocalAuthority
from tests.challenged import Parties, challenged, challenged_and_signed, parties
from tests.faults.challenge_forgeries import FORGERIES
from tests.logs import TransparencyLog

DRAWN = 3
Keys = dict[tuple[str, int, int, int], bytes]


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> tuple[Parties, Keys]:
    """A finished run of which three of eight participations are opened, and its streams' keys."""
    used: Keys = {}
    found = challenged(
        tmp_path_factory.mktemp("challenged"), forge=lambda patch: spied(patch, used)
    )
    assert found.draw(DRAWN) == found.open() == 0
    return found, used


@pytest.fixture
def case(honest, tmp_path) -> Parties:
    """A copy that a test may change."""
    shutil.copytree(honest[0].folder, tmp_path / "copy", symlinks=True)
    return Parties(tmp_path / "copy")


def spied(patch: pytest.MonkeyPatch, used: Keys) -> None:
    """Note the key of every stream that is opened."""
    real = randomness.stream_key

    def noted(leaf, coin, purpose, round, client, attempt, history):
        key = real(leaf, coin, purpose, round, client, attempt, history)
        used[purpose, round, client, attempt] = key
        return key

    patch.setattr(randomness, "stream_key", noted)


def read(
    case: Parties, draw: str = "draw.json", shown: str = "openings.json"
) -> challenge_files.Openings:
    with case.acting("auditor"):
        run = open_existing(case.run)
        return challenge_files.read_openings(run, Path(case.file(draw)), Path(case.file(shown)))


def read_drawn(case: Parties, draw: str) -> tuple[Participation, ...]:
    """The participations that a draw chose."""
    with case.acting("auditor"):
        found, drawn, _ = challenge_files.read_drawn(open_existing(case.run), Path(case.file(draw)))
    return found.drawn(drawn)


def told(capsys) -> str:
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error
    return error


def streams(found: challenge_files.Openings) -> Iterator[tuple[tuple[str, int, int, int], bytes]]:
    """The keys of an opened run's streams, as the auditor computes them."""
    coin = Coin(found.run.coin.nonce, found.run.coin.run)
    histories = openings.histories(found.run.run.ledger.read_bytes())
    for one in found.leaves:
        place = one.round, one.attempt
        if one.client == openings.SERVER:
            purposes = {"clients": histories.before[place]}
        else:
            purposes = dict.fromkeys(("views", "batches", "noise"), histories.after[place])
        for purpose, history in purposes.items():
            key = openings.stream_key(one, coin, purpose, history)
            yield (purpose, one.round, one.client, one.attempt), key


def test_what_is_opened_gives_the_very_streams_that_were_used(honest):
    case, used = honest
    found = read(case)
    # One of the first round is added where none of it is drawn, once in fourteen times here.
    of_first = [one for one in found.drawn if one.round == 0]
    assert of_first
    assert len(found.drawn) == DRAWN or (len(found.drawn), len(of_first)) == (DRAWN + 1, 1)
    assert found.own
    mine = dict(streams(found))
    assert len(mine) >= 3 * DRAWN + 1
    assert {name: used[name] for name in mine} == mine


@pytest.mark.sampled(2)
@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forger_s_streams_are_not_those_that_it_must_open(forge, tmp_path):
    used: Keys = {}

    def forged(patch: pytest.MonkeyPatch) -> None:
        spied(patch, used)
        forge(patch)

    case = challenged_and_signed(tmp_path, forged)
    assert case.draw(8) == case.open() == 0
    for name, key in streams(read(case)):
        if name[0] != "clients" and used.get(name) is not None:
            assert used[name] != key, name


def test_the_run_is_audited_signed_and_told_of_as_challenged(case, capsys):
    assert case.trainer("verify", str(case.run), "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    signers = {entry["envelope"]: entry for entry in found["signers"]}
    assert signers["intent.json"]["own"]
    assert not signers["challenge.json"]["own"]
    assert any("intent number 1 of this trainer" in text for text in found["statements"])
    header = json.loads((case.run / "ledger.jsonl").read_text().splitlines()[0])
    challenge = challenges.read_challenge((case.run / "challenge.json").read_bytes(), "it")
    assert header["public_coin"] == {**challenge.header(), "own": False}
    report = json.loads((case.run / "report.json").read_text())["randomness"]
    assert report["announced"] == "under an auditor's nonce; intent number 1 for these data"
    attested = json.loads((case.run / "audit.json").read_text())
    check = next(one for one in attested["checks"] if one["name"] == "randomness")
    assert check["verdict"] == "PASS"
    assert check["details"]["intents"]["of_trainer"] == 1


def test_nobody_else_s_draw_opens_anything(case, capsys):
    # The trainer has an auditor's key of its own, with which it signs its own reports.
    shutil.copytree(case.file("trainer-keys"), case.file("kept"))
    shutil.copy(case.file("auditor-keys/intents.jsonl"), case.file("trainer-keys/intents.jsonl"))
    drawn = ("--participations", "3", "--output", case.file("own.json"))
    assert case.trainer("challenge", "draw", str(case.run), *drawn) == 0
    capsys.readouterr()
    assert case.open("own.json", "own-openings.json") == 2
    assert "the run was challenged by" in told(capsys)
    with pytest.raises(FilingError, match="which is no key of yours"):
        read(case, "own.json")


def test_the_copy_that_the_documentation_has_the_trainer_send_is_drawn_from_and_audited(
    case, capsys
):
    """Its folder has another name than the run, as any copy's may."""
    copy = case.folder / "sent"
    audience = ("--audience", "auditor", "--output", str(copy))
    assert case.trainer("bundle", str(case.run), *audience) == 0
    drawn = ("--participations", "5", "--output", case.file("of-copy.json"), "--json")
    capsys.readouterr()
    assert case.auditor("challenge", "draw", str(copy), *drawn) == 0
    assert json.loads(capsys.readouterr().out)["run"] == case.run.name
    assert case.open("of-copy.json", "of-copy-openings.json") == 0
    opened = json.loads(Path(case.file("of-copy-openings.json")).read_text())
    assert opened["run"] == case.run.name
    with case.acting("auditor"):
        files = (Path(case.file("of-copy.json")), Path(case.file("of-copy-openings.json")))
        found = challenge_files.read_openings(open_existing(copy), *files)
        assert set(read(case).drawn) < set(found.drawn)
        challenge_files.remember(found.run, "PASS")
    log = Path(case.file("auditor-keys/intents.jsonl")).read_text()
    assert "sent" not in log
    # Another run's draw is refused by its name.
    other = read_draw_of(case, "of-copy.json", run="another-run")
    with pytest.raises(FilingError, match="is for the run another-run, not small-"):
        found.run.drawn(other)


def read_draw_of(case: Parties, name: str, **changes: str) -> Any:
    """A draw of another run."""
    draw = challenges.read_draw(Path(case.file(name)).read_bytes(), name)
    return replace(draw, **changes)


def test_a_draw_is_for_the_ledger_that_was_signed(case, capsys):
    ledger = case.run / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b"\n")
    with pytest.raises(DpfedadamwError, match="ledger"):
        read(case)
    assert case.draw(3, "again.json") == 2
    assert told(capsys)


@pytest.mark.parametrize(
    ("size", "words"),
    [((64 << 20) + 1, "has faults"), ((256 << 20) + 1, "is larger than 268435456 bytes")],
)
def test_a_draw_reads_as_long_a_ledger_as_an_audit_does_and_no_longer(case, size, words):
    os.truncate(case.run / "ledger.jsonl", size)
    with pytest.raises(FilingError, match=words):
        challenge_files.finished(open_existing(case.run))


def test_each_step_says_whose_turn_it_is_with_which_file(case, capsys, monkeypatch):
    monkeypatch.setattr(terminal.out, "_width", 300)

    def rows() -> dict[str, str]:
        lines = (line.strip() for line in capsys.readouterr().out.splitlines())
        return dict(re.split(" {2,}", line, maxsplit=1) for line in lines if line)

    name, folder = case.run.name, case.folder
    with case.acting("auditor"):
        auditor = load_key("auditor", None, []).fingerprint
    with case.acting("trainer"):
        trainer = load_key("trainer", None, []).fingerprint
    assert case.announce("second.json", "second.escrow") == 0
    told = rows()
    assert told["run"].startswith("small-")
    assert told["intent"].startswith(str(folder / "second.json"))
    assert told["escrow"].startswith(str(folder / "second.escrow"))
    assert told["keys"].startswith("2 rounds of 5 clients")
    assert told["signed by"] == trainer
    assert f"challenge new {folder}/second.json" in told["next, the auditor"]
    announced = told["run"]
    assert case.challenge("second.json", "answer.json") == 0
    told = rows()
    assert (told["run"], told["trainer"], told["signed by"]) == (announced, trainer, auditor)
    assert told["challenge"].startswith(str(folder / "answer.json"))
    assert told["intents"].startswith("number 2 for these data")
    assert f"run SPEC --challenge {folder}/answer.json" in told["next, the trainer"]
    assert case.draw(5, "five.json") == 0
    told = rows()
    assert (told["run"], told["signed by"]) == (name, auditor)
    assert told["draw"].startswith(str(folder / "five.json"))
    drawn = len(read_drawn(case, "five.json"))
    assert told["drawn"].startswith(f"{drawn} of 8 ")
    assert f"challenge open RUN_DIR --draw {folder}/five.json" in told["next, the trainer"]
    assert case.open("five.json", "five-openings.json") == 0
    told = rows()
    assert (told["run"], told["asked for by"]) == (name, auditor)
    assert told["openings"].startswith(str(folder / "five-openings.json"))
    assert told["opened"].startswith(f"{drawn} of 8 ")


def test_a_key_that_was_not_committed_to_is_neither_opened_nor_believed(case, capsys):
    case.escrow.write_text("5a" * 32 + "\n")
    assert case.open(output="other.json") == 2
    assert "another key than the intent" in told(capsys)
    shown = json.loads(Path(case.file("openings.json")).read_text())
    shown["leaves"][0]["key"] = "5a" * 32
    Path(case.file("forged.json")).write_text(json.dumps(shown))
    with pytest.raises(FilingError, match="not the one that the intent committed to"):
        read(case, shown="forged.json")


def test_a_draw_is_made_once_and_a_larger_one_holds_the_smaller(case, capsys):
    first = read(case).drawn
    assert case.draw(5, "larger.json") == case.open("larger.json", "more.json") == 0
    assert set(first) < set(read(case, "larger.json", "more.json").drawn)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--set", "privacy.noise_multiplier=1.5"), "the spec is not the one of the intent"),
        (("--set", "federation.rounds=3"), "the spec is not the one of the intent"),
    ],
)
def test_a_run_that_was_not_announced_does_not_start(case, change, words, capsys):
    shutil.rmtree(case.folder / "runs")
    assert case.train(*change) == 2
    assert words in told(capsys)
    assert not (case.folder / "runs").exists()


def test_an_announced_run_starts_once_with_its_key_by_its_trainer(case, capsys):
    assert case.train() == 2
    assert "was already started" in told(capsys)
    shutil.rmtree(case.folder / "runs")
    other = case.folder / "other.escrow"
    other.write_text("5a" * 32 + "\n")
    assert case.train("--escrow", str(other)) == 2
    assert "holds a different key from the one that the intent" in told(capsys)
    arguments = ("run", case.file("small.yaml"), "--challenge", case.file("challenge.json"))
    assert case.trainer(*arguments) == 2
    assert "--escrow FILE" in told(capsys)
    arguments = (*arguments, "--escrow", str(case.escrow), "--out", case.file("runs"))
    shutil.copy(case.file("trainer-keys/trainer.key"), case.file("kept.key"))
    for path in (case.folder / "trainer-keys").glob("trainer.*"):
        path.unlink()
    assert case.trainer("keys", "new", "--role", "trainer") == 0
    capsys.readouterr()
    assert case.trainer(*arguments) == 2
    assert "give --trainer-key with the key that signed the intent" in told(capsys)
    assert not (case.folder / "runs").exists()


def test_other_data_than_those_announced_are_refused(case, monkeypatch, capsys):
    from dpfedadamw.run import start_options

    real = start_options.client_digests

    def exchanged(records, owner, clients):
        found = real(records, owner, clients)
        return [found[1], found[0], *found[2:]]

    shutil.rmtree(case.folder / "runs")
    monkeypatch.setattr(start_options, "client_digests", exchanged)
    assert case.train() == 2
    assert "2 of 5 clients hold other records" in told(capsys)


def test_intents_that_were_dropped_are_counted_and_told(case, capsys):
    for number in (2, 3, 4):
        names = f"intent-{number}.json", f"escrow-{number}", f"challenge-{number}.json"
        assert case.announce(*names[:2]) == case.challenge(names[0], names[2]) == 0
    data = Path(case.file("challenge-4.json")).read_bytes()
    seen = challenges.read_challenge(data, "it").seen
    # The first came to a draw, whose openings nobody computed again.
    assert vars(seen) == {
        "of_trainer": 4, "for_data": 4, "dropped": 3, "dropped_of_trainer": 3,
    }  # fmt: skip
    told = " ".join(capsys.readouterr().out.split())
    assert "number 4 for these data, 3 of which came to nothing" in told


def test_an_intent_gets_one_nonce_however_often_it_is_asked_for(case, capsys):
    first = challenges.read_challenge(Path(case.file("challenge.json")).read_bytes(), "it")
    assert case.challenge(answer="again.json") == 0
    assert "got its nonce at" in capsys.readouterr().err
    again = challenges.read_challenge(Path(case.file("again.json")).read_bytes(), "it")
    assert (again.nonce, again.seen) == (first.nonce, first.seen)


def test_nothing_is_overwritten_and_files_are_private_where_they_must_be(case, capsys):
    assert case.announce() == 2
    assert "never overwritten" in told(capsys)
    assert case.challenge() == 2
    assert "never overwritten" in told(capsys)
    for name in ("key.escrow", "openings.json", "auditor-keys/intents.jsonl"):
        assert Path(case.file(name)).stat().st_mode & 0o777 == 0o600
    secret = case.escrow.read_text().strip()
    for path in case.run.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


def test_only_private_release_runs_are_announced(tmp_path, capsys):
    case = parties(tmp_path)
    spec, escrow = case.file("small.yaml"), ("--escrow", case.file("key"))
    seeded = ("--set", "randomness=reproducible")
    assert case.trainer("challenge", "intent", spec, *escrow, *seeded) == 2
    assert "use release" in told(capsys)
    assert not Path(case.file("key")).exists()


def test_a_run_without_a_challenge_is_not_drawn_from(case, capsys):
    rewrite_ledger(case.run, lambda entries: entries[0].pop("public_coin"))
    assert case.draw(3, "other.json") == 2
    assert "had no intent and no challenge" in told(capsys)
    assert not Path(case.file("other.json")).exists()


def test_a_server_that_audits_itself_is_told_of(case):
    answer = Path(case.file("own.json"))
    assert case.announce("own-intent.json", "own.escrow") == 0
    arguments = ("challenge", "new", case.file("own-intent.json"), "--output", str(answer))
    assert case.trainer(*arguments) == 0
    with case.acting("trainer"):
        key = load_key("trainer", None, [])
        found = challenge_files.read_challenged(answer, Path(case.file("own.escrow")), key)
    assert found.header["own"] is True


def test_an_intent_that_was_dated_and_logged_keeps_timestamp_and_proof(case, tmp_path, capsys):
    authority = LocalAuthority(tmp_path)
    spec, intent, answer = (case.file(name) for name in ("small.yaml", "dated.json", "answer.json"))
    with authority.serve() as url:
        dated = ("--output", intent, "--timestamp", url)
        escrow = ("--escrow", case.file("dated.escrow"))
        assert case.trainer("challenge", "intent", spec, *escrow, *dated) == 0
    stamp, log = Path(intent + ".tsr"), TransparencyLog()
    log.entries += [b"another", Path(intent).read_bytes()]
    Path(intent + ".tlog").write_bytes(log.proof(1))
    assert case.challenge("dated.json", "answer.json") == 0
    read = challenges.read_challenge(Path(answer).read_bytes(), "it")
    assert read.intent_timestamp == stamp.read_bytes()
    assert read.intent_inclusion == log.proof(1)
    stamp.write_bytes(Path(case.file("openings.json")).read_bytes())
    capsys.readouterr()
    assert case.challenge("dated.json", "other.json") == 2
    assert "no valid RFC 3161 timestamp" in told(capsys)
