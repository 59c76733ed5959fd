"""Uploads and releases: which are judged, and what a file that lies is told of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks.client.uploads import _moved, _sampled, vector_sha256
from audit.checks.record.uploads import (
    UPLOADS,
    _kept,
    _noise_variance,
    _queries,
    _unmoved,
    rounds_judged,
    share_judged,
    share_of_servers,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.exchanges import is_kept
from audit.replay.participation import Tally
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed, ended, judged, says
from tests.audit.synthetic_run import pack

NAME = "uploads"


# Single records.


def test_the_first_and_the_last_participation_are_always_kept(of_records: Bundle) -> None:
    header, rounds = of_records.header, of_records.readable_ledger.rounds
    kept = [
        _kept(of_records.round_evidence(item.round), item, header, bytes(32), 0.0)
        for item in rounds
    ]
    last = len(rounds[-1].clients) - 1
    assert kept == [[0], [], [], [last]]
    everything = [
        _kept(of_records.round_evidence(item.round), item, header, bytes(32), 1.0)
        for item in rounds
    ]
    assert everything == [list(range(len(item.clients))) for item in rounds]
    # Others by salt, round, client and upload.
    item, evidence = rounds[1], of_records.round_evidence(1)
    due = [
        row
        for row, client in enumerate(evidence.clients.tolist())
        if is_kept(
            bytes(32), 1, client, evidence.upload_sha256[row].astype(np.uint8).tobytes(), 0.5
        )
    ]
    assert _kept(evidence, item, header, bytes(32), 0.5) == due


def test_queries_are_counted_as_they_are_charged(of_records: Bundle) -> None:
    ledger, header = of_records.readable_ledger, of_records.header
    assert _queries(ledger, header) == 3
    double = replace(
        ledger, spends=tuple(replace(one, queries_per_step=2) for one in ledger.spends)
    )
    assert _queries(double, header) == 6
    mixed = replace(ledger, spends=(*double.spends[:1], *ledger.spends[1:]))
    for read in (mixed, replace(ledger, spends=())):
        with pytest.raises(UnverifiedError, match="same queries for every step"):
            _queries(read, header)


def test_the_noises_variance_is_that_of_the_charge(of_records: Bundle) -> None:
    spend = replace(
        of_records.readable_ledger.spends[0],
        noise_multiplier=3.0, clipping_norm=0.5, expected_batch_size=4.0,
    )  # fmt: skip
    assert _noise_variance(spend) == (3.0 * 0.5 / 4.0) ** 2


def test_a_round_without_clients_moves_no_server(of_records: Bundle) -> None:
    first, second = of_records.readable_ledger.rounds[:2]

    def said(later: list[Any]) -> list[str]:
        tally = Tally(reasons=[])
        _unmoved(first, later, tally)
        return tally.reasons

    assert said([]) == said([replace(second, broadcast=first.broadcast)]) == []
    assert said([second]) == ["round 0: had no clients, but the server moved"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"broadcast": "0" * 64}, "its broadcast is not the one that the ledger notes"),
        ({"exchanged": "0" * 64}, "round 1: its uploads are not those the ledger notes"),
    ],
)
def test_messages_are_those_that_the_ledger_notes(
    of_records: Bundle, change: dict[str, Any], said: str
) -> None:
    verdict, text = says(ended(of_records, 1, **change), NAME)
    assert (verdict, said in text) == ("FAIL", True)


def test_an_upload_is_the_one_that_the_server_combined(of_records: Bundle) -> None:
    digests = of_records.round_evidence(1).upload_sha256.copy()
    digests[0, 0] ^= 1
    noted = hashlib.sha256(digests.astype(np.uint8).tobytes()).hexdigest()
    run = changed(ended(of_records, 1, exchanged=noted), evidence={1: {"upload_sha256": digests}})
    client = run.readable_ledger.rounds[1].clients[0]
    assert says(run, NAME) == (
        "FAIL",
        f"round 1, client {client}: its upload is not the one that the server combined",
    )


def test_a_participation_that_was_not_charged_is_not_verified(of_records: Bundle) -> None:
    spends = of_records.readable_ledger.spends
    run = changed(of_records, ledger={"spends": spends[1:]})
    assert says(run, NAME) == (
        "NOT VERIFIED",
        f"round 0, client {spends[0].client}: was not charged, or is not in the ledger",
    )


@pytest.mark.parametrize("kind", ["of_records", "of_clients"])
def test_a_spec_without_a_rule_is_refused_and_an_unknown_rule_not_judged(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    nameless = changed(bundle, spec=lambda s: s["algorithm"].pop("name"))
    assert says(nameless, NAME) == ("FAIL", "spec.yaml: name is missing")
    unknown = changed(bundle, spec=lambda s: s["algorithm"].update(name="another"))
    verdict, text = says(unknown, NAME)
    assert verdict == "NOT VERIFIED"
    assert text.startswith("the auditor has no replay of another")


def test_a_spec_that_the_replay_cannot_follow_is_refused(of_records: Bundle) -> None:
    run = changed(of_records, spec=lambda s: s["algorithm"].update(learning_rate="fast"))
    verdict, text = says(run, NAME)
    assert verdict == "FAIL"
    assert text.startswith("spec.yaml: learning_rate is not a number")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"rounds": 4, "finished": 4}, "4 of 4 rounds"),
        ({"rounds": 2, "finished": 4}, "2 of 4 rounds"),
        ({"rounds": 4, "finished": 4, "shares": [1.0] * 4}, "4 of 4 rounds"),
        ({"rounds": 2, "finished": 4, "shares": [1.0] * 2}, "2 of 4 rounds, drawn after the fact,"),
        (
            {"rounds": 4, "finished": 4, "shares": [1.0, 0.25]},
            "4 of 4 rounds, drawn after the fact (1 whole, 1 by 25 % of the coordinates),",
        ),
        (
            {"rounds": 4, "finished": 4, "shares": [1.0, 0.25, 0.5]},
            "4 of 4 rounds, drawn after the fact (1 whole, 2 by 25 to 50 % of the coordinates),",
        ),
    ],
)
def test_rounds_of_servers_are_told_with_their_share(found: dict[str, Any], said: str) -> None:
    assert rounds_judged(Tally(reasons=[], **found)) == said


def test_a_share_of_the_evidence_is_told_in_rounds_and_uploads() -> None:
    tally = Tally(reasons=[], rounds=2, finished=4, replayed=3, participations=12, shares=[0.5])
    assert share_of_servers(tally) == (
        "a share was judged: the server's step in 2 of 4 rounds, drawn after the fact, by 50 % of "
        "the coordinates at least"
    )
    assert share_judged(tally).endswith("; and 25 % of all uploads, drawn in secret after them")
    nothing = Tally(reasons=[], rounds=0, finished=4, replayed=0, participations=0)
    assert share_of_servers(nothing).startswith("a share was judged: the server's step in no round")
    assert share_judged(nothing).endswith("; and 0 % of all uploads, drawn in secret after them")
    whole = Tally(reasons=[], rounds=4, finished=4, shares=[1.0])
    assert "coordinates" not in share_of_servers(whole)


@pytest.mark.parametrize(
    ("replayed", "participations", "percent"),
    [(12, 12, "100"), (1, 1, "100"), (998, 1000, "99"), (29, 100, "29"), (1, 300, "0.33")],
)
def test_a_share_of_uploads_is_written_out_and_never_rounded_up(
    replayed: int, participations: int, percent: str
) -> None:
    tally = Tally(
        reasons=[], rounds=4, finished=4, replayed=replayed, participations=participations
    )
    assert f"; and {percent} % of all uploads," in share_judged(tally)


# Whole clients.


def test_a_model_moves_by_the_released_mean_times_the_servers_rate() -> None:
    parameters, released = np.array([1.0, -2.0]), np.array([0.5, 0.25])
    assert _moved(parameters, released, 1.0).value.tolist() == [1.5, -1.75]
    assert _moved(parameters, released, 2.0).value.tolist() == [2.0, -1.5]
    assert vector_sha256(released) == hashlib.sha256(released.astype("<f4").tobytes()).hexdigest()


def test_noise_is_looked_for_where_the_release_was_kept(of_clients: Bundle) -> None:
    evidence = replace(of_clients.update_round(0), sample_places=np.array([2, 5, 9]))

    def sampled(coordinates: list[int] | None, parameters: int = 10) -> tuple[list[int], list[int]]:
        chosen = None if coordinates is None else np.array(coordinates)
        recorded, places = _sampled(evidence, chosen, parameters)
        return recorded.tolist(), places.tolist()

    assert sampled(None) == ([0, 1, 2], [2, 5, 9])
    assert sampled([0, 5, 8, 9]) == ([1, 2], [1, 3])
    with pytest.raises(FieldError, match="outside the parameters"):
        sampled(None, 9)


def released(bundle: Bundle, index: int, change: Callable[[Any], Any]) -> Bundle:
    """The run with another release of one round."""
    run = changed(bundle)
    read = bundle.release

    def release(at: int, recorded: int) -> Any:
        found = read(at, recorded)
        return change(found) if at == index else found

    run.release = release
    return run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: replace(r, broadcast=r.broadcast + b" "), "broadcast"),
        (
            lambda r: replace(r, broadcast=pack({"parameters": np.zeros(3, np.float32)})),
            "the broadcast is not as long as the released mean",
        ),
        (
            lambda r: replace(
                r, broadcast=pack({"parameters": np.zeros(340), "loss": np.zeros(1)})
            ),
            "the broadcast holds a tensor 'loss' that the algorithm does not have",
        ),
        (
            lambda r: replace(r, released=r.released * np.float32(2.0)),
            "the released mean does not carry the noise recorded for it",
        ),
        (
            lambda r: replace(r, released=r.released * np.float32(1.0001)),
            "the released mean lies off the public grid of 16 significant bits",
        ),
        (
            lambda r: replace(r, released=r.released * np.float32(2.0)),
            "its released mean is not the one that the ledger notes",
        ),
        (lambda r: replace(r, combined=r.broadcast), "the next model"),
    ],
)
def test_a_release_that_lies_is_told_with_its_round(
    of_clients: Bundle, change: Callable[[Any], Any], said: str
) -> None:
    assert says(of_clients, NAME)[0] == "PASS"
    found = judged(released(of_clients, 3, change), NAME)
    assert found.verdict.value == "FAIL"
    assert "round 3" in found.measurement
    assert said in found.measurement


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broadcast", "its broadcast is not the one that the ledger notes"),
        ("exchanged", "its released mean is not the one that the ledger notes"),
    ],
)
def test_a_release_is_the_one_that_the_ledger_notes(
    of_clients: Bundle, name: str, said: str
) -> None:
    text = says(ended(of_clients, 3, **{name: "0" * 64}), NAME)[1]
    assert f"round 3: {said}" in text
    # A broadcast is also the next model of the round before.
    assert ("round 2: its next broadcast is not" in text) is (name == "broadcast")


def test_whatever_else_leaves_a_round_is_named(of_clients: Bundle) -> None:
    run = changed(of_clients, evidence={5: {"further_tensors": ("loss",)}})
    verdict, text = says(run, NAME)
    assert verdict == "FAIL"
    assert "round 5" in text
    assert "loss" in text


def test_the_question_is_asked_of_both_units_alike() -> None:
    assert UPLOADS.name == NAME
