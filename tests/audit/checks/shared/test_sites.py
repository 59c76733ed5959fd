"""Clients on machines of their own: what each signed is held against what the server says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.checks.shared import sites
from audit.checks.shared.sites import sites_faults
from audit.reading.ledger import GENESIS
from audit.reading.ledger_lines import RoundSpend
from audit.untrusted.documents import canonical_json

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

KEYS = [ed25519.Ed25519PrivateKey.generate() for _ in range(3)]
PUBLIC = tuple(
    key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()
    for key in KEYS
)
RUN, BROADCAST, NOISE, CLIP = "a-run", "ab" * 32, 1.5, 2.0
Lines = list[dict[str, Any]]


def upload(client: int, index: int) -> str:
    return hashlib.sha256(b"upload %d %d" % (client, index)).hexdigest()


def part(client: int, index: int) -> str:
    return hashlib.sha256(b"part %d %d" % (client, index)).hexdigest()


def together(made: Callable[[int, int], str], index: int, clients: tuple[int, ...]) -> str:
    joined = b"".join(bytes.fromhex(made(client, index)) for client in clients)
    return hashlib.sha256(joined).hexdigest()


def own_lines(client: int, rounds: tuple[int, ...] = (0, 1)) -> Lines:
    """What an honest client's ledger says, not chained and not signed yet."""
    lines: Lines = []
    for index in rounds:
        common = {"run": RUN, "client": client, "round": index, "attempt": 1}
        lines.append({**common, "kind": "spend", "noise_multiplier": NOISE, "clipping_norm": CLIP})
        lines.append(
            {
                **common,
                "kind": "upload",
                "broadcast_sha256": BROADCAST,
                "upload_sha256": upload(client, index),
                "participation": part(client, index),
            }
        )
    return lines


def signed(entry: dict[str, Any], key: Any) -> dict[str, Any]:
    names = ("run", "client", "round", "attempt", "broadcast_sha256", "upload_sha256",
             "participation")  # fmt: skip
    said = json.dumps({name: entry[name] for name in names}, sort_keys=True, separators=(",", ":"))
    content = b"dpfedadamw client statement 1\x00" + said.encode()
    return {**entry, "signature": key.sign(content).hex()}


def pin(client: int, most: int = 4, **changes: Any) -> dict[str, Any]:
    """What an honest client agreed to, not signed yet."""
    said = {"kind": "pin", "client": client, "most_charges": most, "noise_multiplier": NOISE}
    return {**said, "clipping_norm": CLIP, "local_steps": 3, **changes}


def signed_pin(entry: dict[str, Any], key: Any) -> dict[str, Any]:
    shown = {name: value for name, value in entry.items() if name != "kind"}
    said = json.dumps(shown, sort_keys=True, separators=(",", ":"))
    return {**entry, "signature": key.sign(b"dpfedadamw client pin 1\x00" + said.encode()).hex()}


def chained(lines: Lines) -> bytes:
    previous, written = GENESIS, []
    for line in lines:
        entry = {"previous": previous, **line}
        entry["digest"] = hashlib.sha256(canonical_json(entry)).hexdigest()
        text = json.dumps(entry).encode()
        previous = hashlib.sha256(text).hexdigest()
        written.append(text + b"\n")
    return b"".join(written)


def hand_in(folder: Path, client: int, lines: Lines, key: Any = None) -> Path:
    (folder / "evidence").mkdir(exist_ok=True)
    path = folder / "evidence" / f"client-{client:05d}.jsonl"
    key = key or KEYS[client]
    sign = {"upload": signed, "pin": signed_pin}
    path.write_bytes(
        chained([sign[one["kind"]](one, key) if one.get("kind") in sign else one for one in lines])
    )
    return path


def a_round(index: int, clients: tuple[int, ...] = (0, 1), **changes: Any) -> Any:
    digests = {
        "participations_sha256": together(part, index, clients),
        "uploads_sha256": together(upload, index, clients),
    }
    made = {"round": index, "clients": clients, "dropped": (), "broadcast": BROADCAST,
            "digests": digests, "line": 10 + index}  # fmt: skip
    return SimpleNamespace(**{**made, **changes})


def charge(index: int, **changes: Any) -> RoundSpend:
    made = RoundSpend(
        line=index + 2, round=index, attempt=1, sampling="poisson", sampling_rate=0.5,
        expected_clients=2.0, clipping_norm=CLIP, noise_multiplier=NOISE, noise_added_by="server",
        clients=(0, 1), upload_noise_multiplier=None,
    )  # fmt: skip
    return replace(made, **changes)


def faults(
    folder: Path,
    rounds: tuple[Any, ...] = (a_round(0), a_round(1)),
    charges: tuple[Any, ...] = (charge(0), charge(1)),
    spec: Any = None,
    **header: Any,
) -> tuple[list[str], list[str]]:
    """What contradicts the server's ledger, and which clients nothing is known of."""
    said = {"sites": PUBLIC, "clients": 3, "drop_outs": 0, "run": RUN, "noise_added_by": "server",
            "noise_multiplier": NOISE, "clipping_norm": CLIP, "local_steps": 3, "rounds": 2,
            "delta": None, "records_per_person": None, "clients_per_person": 1}  # fmt: skip
    reasons: list[str] = []
    unreadable: list[str] = []
    bundle: Any = SimpleNamespace(root=folder, spec=spec)
    ledger: Any = SimpleNamespace(rounds=rounds, spends=(), round_spends=charges)
    top: Any = SimpleNamespace(**{**said, **header})
    sites_faults(bundle, ledger, top, reasons, unreadable)
    return reasons, unreadable


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose clients 0 and 1 took part in two rounds and handed in what they wrote."""
    for client in (0, 1):
        hand_in(tmp_path, client, own_lines(client))
    return tmp_path


def test_clients_who_say_what_the_server_says_contradict_nothing(run: Path) -> None:
    assert faults(run) == ([], [])
    # One process with all records has no clients to ask.
    assert faults(run, sites=()) == ([], [])


def test_a_key_a_client_is_needed(run: Path) -> None:
    told = ["ledger.jsonl:1: sites does not name one key per client"]
    assert faults(run, sites=PUBLIC[:2]) == (told, [])


def test_a_client_that_handed_in_nothing_is_named_and_one_never_asked_is_not(run: Path) -> None:
    (run / "evidence" / "client-00001.jsonl").unlink()
    reasons, unreadable = faults(run)
    assert reasons == []
    assert [one.split(":")[0] for one in unreadable] == ["client 1 handed in no ledger"]
    _, unreadable = faults(run, (a_round(0, dropped=(2,)), a_round(1)), drop_outs=1)
    assert [one[:8] for one in unreadable] == ["client 1", "client 2"]


def test_without_the_package_signatures_are_said_not_to_be_checked(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "find_spec", lambda _: None)
    reasons, unreadable = faults(run)
    assert reasons == []
    assert len(unreadable) == 1
    assert unreadable[0].startswith("clients' signatures were not checked")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n: n[1].update(run="another"), "line 2 is of another run"),
        (lambda n: n[1].update(client=0), "line 2 is of another client"),
        (lambda n: n[3].update(round=0), "line 4 sends a second upload for one attempt"),
        (lambda n: n[1].update(upload_sha256="AB" * 32), "upload_sha256 is not a text"),
        (lambda n: n[1].update(broadcast_sha256=""), "broadcast_sha256 is not a text"),
        (lambda n: n[1].update(participation="no"), "participation is not a text"),
        (lambda n: n[0].update(kind="other"), "kind is not one of pin, spend, upload"),
        (lambda n: n[0].update(attempt=0), "attempt is not a whole number from 1"),
        (lambda n: n[0].pop("round"), "round is missing"),
    ],
)
def test_a_ledger_that_is_not_that_client_s_of_that_run_is_refused(
    run: Path, change: Callable[[Lines], object], said: str
) -> None:
    lines = own_lines(1)
    change(lines)
    hand_in(run, 1, lines)
    (told,) = faults(run)[0]
    assert "client-00001.jsonl" in told
    assert said in told


def test_a_forged_upload_and_a_broken_chain_are_refused(run: Path) -> None:
    path = hand_in(run, 1, own_lines(1), key=KEYS[2])
    (told,) = faults(run)[0]
    assert "line 2 is not signed by the key of client 1" in told
    (told,) = faults(run, sites=(PUBLIC[0], "no key", PUBLIC[2]))[0]
    assert "line 2 is not signed by the key of client 1" in told
    path = hand_in(run, 1, own_lines(1))
    whole = path.read_bytes().splitlines(keepends=True)
    for content, said in (
        (b"".join(whole[1:]), "line 1 breaks the hash chain"),
        (b"".join([whole[0], *whole[2:]]), "line 2 breaks the hash chain"),
        (b"".join([whole[0].replace(b"1.5", b"1.6"), *whole[1:]]), "line 1 breaks the hash chain"),
        (b"".join(whole)[:-1], "does not end with a complete line"),
        (b"".join([*whole, b"[]\n"]), "line 5 is not a JSON object"),
    ):
        path.write_bytes(content)
        (told,) = faults(run)[0]
        assert said in told


def test_every_signed_word_is_covered_by_the_signature(run: Path) -> None:
    for name, value in (
        ("upload_sha256", "cd" * 32), ("broadcast_sha256", "cd" * 32), ("participation", "cd" * 32),
        ("round", 5), ("attempt", 2),
    ):  # fmt: skip
        lines = own_lines(1)
        lines[1] = {**signed(lines[1], KEYS[1]), name: value}
        (run / "evidence" / "client-00001.jsonl").write_bytes(chained(lines[:2]))
        (told,) = faults(run)[0]
        assert "line 2 is not signed by the key of client 1" in told


OF_ONE = "client 1, round 1: "


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda n: n.__delitem__(2),
            [
                "client 1: it sent round 1, attempt 1 before it had paid",
                OF_ONE + "its own ledger has no charge for it",
            ],
        ),
        (
            lambda n: n.insert(2, n.pop(3)),
            ["client 1: it sent round 1, attempt 1 before it had paid"],
        ),
        (
            lambda n: n[2].update(noise_multiplier=NOISE / 2),
            [OF_ONE + "its own ledger charges a different noise or clipping norm"],
        ),
        (
            lambda n: n[2].update(clipping_norm=2 * CLIP),
            [OF_ONE + "its own ledger charges a different noise or clipping norm"],
        ),
        (lambda n: n.pop(), [OF_ONE + "its own ledger says that it sent nothing"]),
        # It may have charged an attempt more than once, as long as each was the same.
        (lambda n: n.insert(2, dict(n[2])), []),
    ],
)
def test_a_participation_was_paid_for_at_the_same_cost_and_then_sent(
    run: Path, change: Callable[[Lines], object], said: list[str]
) -> None:
    lines = own_lines(1)
    change(lines)
    hand_in(run, 1, lines)
    assert faults(run)[0] == said


def test_a_client_that_says_what_it_agreed_to_contradicts_nothing(run: Path) -> None:
    hand_in(run, 1, [pin(1), *own_lines(1)])
    assert faults(run) == ([], [])
    # Its owner may say more later, and then that holds.
    hand_in(run, 1, [pin(1, 1), *own_lines(1), pin(1, 2)])
    assert faults(run) == ([], [])


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (pin(1, noise_multiplier=3.0), "client 1: agreed to a different noise_multiplier"),
        (pin(1, local_steps=9), "client 1: agreed to a different local_steps"),
        (pin(1, 1), "client 1: it was charged 2 participations, but agreed to at most 1"),
        (pin(0), "line 1 is of another client"),
        (pin(1, -1), "most_charges is not a whole number from 0"),
    ],
)
def test_a_pin_that_is_not_the_run_s_or_not_kept_to_contradicts_it(
    run: Path, own: dict[str, Any], said: str
) -> None:
    hand_in(run, 1, [own, *own_lines(1)])
    (told,) = faults(run)[0]
    assert said in told


def test_a_client_that_agreed_to_people_at_one_client_contradicts_a_run_at_three(run: Path) -> None:
    hand_in(run, 1, [pin(1, records_per_person=4, clients_per_person=1), *own_lines(1)])
    (told,) = faults(run, records_per_person=4, clients_per_person=3)[0]
    assert "client 1: agreed to a different clients_per_person" in told
    assert faults(run, records_per_person=4, clients_per_person=1)[0] == []


def test_a_pin_that_another_key_signed_or_that_stands_for_an_upload_is_refused(run: Path) -> None:
    hand_in(run, 1, [pin(1), *own_lines(1)], KEYS[2])
    assert "line 1 is not signed by the key of client 1" in faults(run)[0][0]
    # The same fields signed as an upload's statement are no pin.
    path = run / "evidence" / "client-00001.jsonl"
    shown = {name: value for name, value in pin(1).items() if name != "kind"}
    said = json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()
    signature = KEYS[1].sign(b"dpfedadamw client statement 1\x00" + said).hex()
    path.write_bytes(chained([{**pin(1), "signature": signature}]))
    assert "line 1 is not signed by the key of client 1" in faults(run)[0][0]


def test_what_a_client_was_charged_and_the_server_leaves_out_contradicts_it(run: Path) -> None:
    more = [{**line, "attempt": 2} for line in own_lines(1, (0,))]
    hand_in(run, 1, [*own_lines(1), *more])
    told = "client 1: it was charged for round 0, attempt 2, but the run's ledger does not say so"
    assert faults(run) == ([told], [])
    # What it paid for and never sent costs the claim nothing, and contradicts it all the same.
    hand_in(run, 1, [*own_lines(1), more[0]])
    assert faults(run) == ([told], [])
    # A second time for the same attempt is a crash before anything was sent.
    hand_in(run, 1, [own_lines(1)[0], *own_lines(1)])
    assert faults(run) == ([], [])


def test_a_round_that_the_server_never_charged_is_for_other_checks(run: Path) -> None:
    assert faults(run, charges=(charge(0),)) == ([], [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"broadcast": "cd" * 32}, "round 1: a client signed for a different broadcast"),
        (
            {"digests": {"participations_sha256": "0" * 64}},
            "round 1: clients signed for different participations",
        ),
        (
            {"digests": {"uploads_sha256": "0" * 64}},
            "round 1: clients signed for different uploads",
        ),
        (
            {"digests": {"uploads_sha256": together(upload, 1, (1, 0))}},
            "round 1: clients signed for different uploads",
        ),
        ({"digests": {}}, None),
    ],
)
def test_what_clients_signed_is_what_the_server_notes(
    run: Path, changes: dict[str, Any], said: str | None
) -> None:
    rounds = (a_round(0), a_round(1, **changes))
    assert faults(run, rounds)[0] == ([] if said is None else [said])
    # Of a round of which one client is not here, the digests of all cannot be made.
    (run / "evidence" / "client-00001.jsonl").unlink()
    assert faults(run, rounds)[0] == []


def test_the_last_attempt_at_a_round_is_the_one_that_counts(run: Path) -> None:
    for client in (0, 1):
        again = [{**one, "attempt": 2} for one in own_lines(client, (1,))]
        hand_in(run, client, [*own_lines(client), *again])
    twice = (charge(0), charge(1), charge(1, line=9, attempt=2))
    assert faults(run, charges=twice) == ([], [])
    hand_in(run, 1, own_lines(1))
    assert faults(run, charges=twice)[0] == [
        OF_ONE + "its own ledger has no charge for it",
        OF_ONE + "its own ledger says that it sent nothing",
    ]


def test_each_end_of_a_round_that_was_run_again_is_that_of_its_own_attempt(run: Path) -> None:
    """Its state was lost: the second time it had another client, who signed something else."""
    again = [{**one, "attempt": 2} for one in own_lines(1, (1,))]
    again[1] |= {"upload_sha256": "1" * 64, "participation": "2" * 64}
    hand_in(run, 1, [*own_lines(1), *again])
    signed_then = {"uploads_sha256": "1" * 64, "participations_sha256": "2" * 64}
    noted = {
        name: hashlib.sha256(bytes.fromhex(one)).hexdigest() for name, one in signed_then.items()
    }
    rounds = (a_round(0), a_round(1), a_round(1, (1,), digests=noted, line=20))
    twice = (charge(0), charge(1), charge(1, line=15, attempt=2, clients=(1,)))
    assert faults(run, rounds, charges=twice) == ([], [])
    # Exchanged, neither is what was signed for it.
    exchanged = (a_round(0), a_round(1, (1,), digests=noted), a_round(1, line=20))
    assert faults(run, exchanged, charges=twice)[0] == [
        "client 0, round 1: its own ledger has no charge for it",
        "client 0, round 1: its own ledger says that it sent nothing",
        "round 1: clients signed for different participations",
        "round 1: clients signed for different uploads",
    ]


@pytest.mark.parametrize(
    ("dropped", "declared", "spec", "by", "said"),
    [
        ((), 0, None, "clients", []),
        ((2,), 1, {"federation": {"drop_outs": 1}}, "server", []),
        ((1, 2), 1, {"federation": {"drop_outs": 1}}, "server", ["round 1: 2 clients gave no"]),
        ((2,), 0, None, "server", ["round 1: 1 clients gave no answer, but the run declares"]),
        ((), 1, {"federation": {"drop_outs": 2}}, "server", ["ledger.jsonl:1: lets 1 clients"]),
        ((), 1, {"federation": 7}, "server", ["ledger.jsonl:1: lets 1 clients drop out, not the"]),
        ((), 1, None, "server", ["ledger.jsonl:1: lets 1 clients drop out, not the spec's"]),
        (
            (), 1, {"federation": {"drop_outs": 1}}, "clients",
            ["ledger.jsonl:1: clients that add the noise may drop out"],
        ),
    ],
)  # fmt: skip
def test_no_more_clients_stay_away_than_are_declared_and_none_with_its_noise(
    run: Path, dropped: tuple[int, ...], declared: int, spec: Any, by: str, said: list[str]
) -> None:
    reasons, _ = faults(
        run, (a_round(0), a_round(1, dropped=dropped)), spec=spec, drop_outs=declared,
        noise_added_by=by, sites=(),
    )  # fmt: skip
    assert len(reasons) == len(said)
    for reason, start in zip(reasons, said, strict=True):
        assert reason.startswith(start)


def test_a_round_without_a_charge_is_that_of_the_first_attempt(run: Path) -> None:
    """What was signed must be what the server notes, charged or not."""
    said = ["round 1: a client signed for a different broadcast"]
    rounds = (a_round(0), a_round(1, broadcast="cd" * 32))
    assert faults(run, rounds, charges=(charge(0),))[0] == said
    assert faults(run, rounds, charges=())[0] == said


def test_a_round_of_which_somebody_is_not_here_hides_no_later_one(run: Path) -> None:
    hand_in(run, 2, own_lines(2, (1,)))
    rounds = (
        a_round(0, (0, 1, 2)),
        a_round(1, (0, 1, 2), broadcast="cd" * 32),
    )
    charges = charge(0, clients=(0, 1, 2)), charge(1, clients=(0, 1, 2))
    reasons, _ = faults(run, rounds, charges)
    assert reasons == [
        "client 2, round 0: its own ledger has no charge for it",
        "client 2, round 0: its own ledger says that it sent nothing",
        "round 1: a client signed for a different broadcast",
    ]
    # One that handed in nothing at all is no different.
    (run / "evidence" / "client-00002.jsonl").unlink()
    rounds = (a_round(0, (0, 1, 2)), a_round(1, broadcast="cd" * 32))
    assert faults(run, rounds, charges)[0] == ["round 1: a client signed for a different broadcast"]


@pytest.mark.parametrize("place", [0, 1])
def test_one_client_of_two_that_signed_for_something_else_is_told(run: Path, place: int) -> None:
    lines = own_lines(place)
    lines[3] |= {"broadcast_sha256": "cd" * 32}
    hand_in(run, place, lines)
    assert faults(run)[0] == ["round 1: a client signed for a different broadcast"]


@pytest.mark.parametrize("change", [str.upper, lambda text: text + "00", lambda text: " " + text])
def test_a_signature_is_written_in_one_way(run: Path, change: Callable[[str], str]) -> None:
    """Another spelling of the same bytes would be a second ledger of the same words."""
    lines = [signed(one, KEYS[1]) if one["kind"] == "upload" else one for one in own_lines(1)]
    lines[1]["signature"] = change(lines[1]["signature"])
    (run / "evidence" / "client-00001.jsonl").write_bytes(chained(lines))
    (told,) = faults(run)[0]
    assert "signature is not a text of the expected form" in told


def test_clients_are_told_in_their_order(run: Path) -> None:
    for client in (0, 1):
        (run / "evidence" / f"client-{client:05d}.jsonl").unlink()
    _, unreadable = faults(run, (a_round(0, (2, 1, 0)), a_round(1)))
    assert [one.split(" handed")[0] for one in unreadable] == ["client 0", "client 1", "client 2"]


def test_a_client_s_ledger_has_a_size_that_fits_into_memory(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = sites.read_bytes

    def noting(root: Path, name: str, most: int) -> bytes:
        asked.append(most)
        return read(root, name, most)

    monkeypatch.setattr(sites, "read_bytes", noting)
    assert faults(run) == ([], [])
    assert asked == [268_435_456] * 2
