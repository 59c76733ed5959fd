"""Single records: rounds that are judged by the evidence of their server, and by whole uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.client import uploads as client_uploads
from audit.checks.record import uploads
from audit.checks.record.uploads import _conclude, _conditions, _served, _servers, room_left
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.exchanges import Extent
from audit.reading.ledger import Pieces
from audit.reading.ledger_lines import last_spends
from audit.replay.participation import Tally
from audit.replay.queries import NOT_STATED
from tests.audit.checks.opened import changed, judged, says

NAME = "uploads"
WHOLE, HALF = Extent(1.0, None), Extent(0.5, None)
PIECES = Pieces(broadcast=b"", uploads=b"", vectors=3, heads=0)


@pytest.mark.parametrize(
    ("kept", "noted", "asked"),
    [(WHOLE, 4, False), (HALF, 4, True), (HALF, 1, True), (HALF, 0, False),
     (Extent(1.0, 8), 4, True)],
)  # fmt: skip
def test_servers_are_asked_where_not_all_is_kept_and_any_round_noted_its_pieces(
    of_records: Bundle, kept: Extent, noted: int, asked: bool
) -> None:
    rounds = [
        replace(item, pieces=PIECES if place < noted else None)
        for place, item in enumerate(of_records.readable_ledger.rounds)
    ]
    found = _servers(of_records, kept, rounds, Tally())
    assert (found is not None) is asked
    assert found is None or found.per_round == 3


def test_a_servers_setting_is_what_spec_and_ledger_say_of_its_round(of_records: Bundle) -> None:
    ledger = of_records.readable_ledger
    item, spends = ledger.rounds[2], last_spends(ledger.spends)
    found = _conditions(of_records, item, spends, 6, None)
    algorithm = of_records.readable_spec["algorithm"]
    assert found.algorithm == algorithm
    assert found.clients == 5
    assert found.steps == 3
    assert found.earlier_steps == 6
    assert found.noise_variance == pytest.approx((1.5 * 0.5 / 12.0) ** 2)
    assert found.whole is True
    assert len(found.partition.of_coordinate) == 340
    assert found.learning_rate == pytest.approx(
        uploads.learning_rate(algorithm, 2, of_records.header.rounds)
    )
    # Steps are those of the first of its clients, as its charge is.
    other = _conditions(of_records, replace(item, steps=(2, 3, 3)), spends, 6, None)
    assert other.steps == 2
    part = _conditions(of_records, item, spends, 6, np.arange(0, 340, 2))
    assert (part.whole, len(part.partition.of_coordinate)) == (False, 170)
    # The charge of the first of its clients is the one that is asked for.
    del spends[2, item.clients[0]]
    with pytest.raises(UnverifiedError, match="round 2: was not charged"):
        _conditions(of_records, item, spends, 6, None)


def test_a_sample_of_coordinates_needs_the_block_sums_of_the_gradients(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "recorded_coordinates", lambda *_: np.arange(340))
    assert of_records.exchange(0, 1, 340).square_sums is None
    assert says(of_records, NAME) == (
        "NOT VERIFIED",
        "round 0, client 1: the block sums of its gradients are not recorded",
    )


def exchanged(bundle: Bundle, index: int, row: int, change: Callable[[Any], Any]) -> Bundle:
    """The run with another exchange of one participation."""
    run = changed(bundle)
    client = bundle.readable_ledger.rounds[index].clients[row]

    def exchange(at: int, whose: int, recorded: int) -> Any:
        found = bundle.exchange(at, whose, recorded)
        return change(found) if (at, whose) == (index, client) else found

    run.exchange = exchange  # type: ignore[method-assign] # as a changed file would be read
    return run


def test_all_clients_of_a_round_are_sent_the_same(of_records: Bundle) -> None:
    first = of_records.exchange(0, 1, 340).broadcast
    run = exchanged(of_records, 1, 1, lambda one: replace(one, broadcast=first))
    client = of_records.readable_ledger.rounds[1].clients[1]
    assert f"round 1, client {client}: was sent a different broadcast from the others" in (
        judged(run, NAME).measurement
    )


@dataclass
class Servers:
    """What `ServerRounds` is asked."""

    places: Any = None
    kept: int = 3
    asked: list[Any] = field(default_factory=list)

    def find(self, item: Any, last: bool) -> Any:
        self.asked.append((item.round, last))
        return SimpleNamespace(uploads=[None] * self.kept, coordinates=self.places)

    def bind(self, item: Any, following: Any, found: Any, number: int) -> None:
        self.asked.append((item.round, following and following.round, number))


def of_servers(
    bundle: Bundle, servers: Servers, monkeypatch: pytest.MonkeyPatch, agrees: bool = True
) -> tuple[Tally, list[Any]]:
    """What comes of a run whose server's rounds are there."""
    combined: list[Any] = []

    def combine(
        one: Any, item: Any, found: Any, setting: Any, replay: Any, names: Any, last: bool
    ) -> None:
        combined.append((item.round, setting.earlier_steps, setting.whole, last, names))

    monkeypatch.setattr(uploads, "_servers", lambda *_: servers)
    monkeypatch.setattr(uploads, "combine", combine)
    monkeypatch.setattr(uploads, "agrees", lambda *_: agrees)
    tally = Tally()
    replay = uploads.find_replay("dp-fedadamw")
    assert replay is not None
    assert replay.replay is not None
    uploads._replay_all(bundle, replay.replay, WHOLE, tally, {})
    return tally, combined


def test_every_server_is_bound_and_replayed_with_the_steps_before_its_round(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers()
    tally, combined = of_servers(of_records, servers, monkeypatch)
    assert servers.asked == [
        (0, False), (0, 1, 3), (1, False), (1, 2, 3), (2, False), (2, 3, 3), (3, True),
        (3, None, 3),
    ]  # fmt: skip
    assert [one[:4] for one in combined] == [(n, 3 * n, True, n == 3) for n in range(4)]
    assert all(names and "parameters" in names for *_, names in combined)
    assert tally.reasons == []
    # Servers are judged by their own evidence, and not a second time by whole uploads.
    assert tally.rounds == 0


def test_an_upload_that_was_kept_is_the_one_that_the_server_combined(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "its upload is not the one that was combined"
    tally, _ = of_servers(of_records, Servers(), monkeypatch, agrees=False)
    assert sum(said in reason for reason in tally.reasons) == 12
    # Of an upload that the server's evidence leaves out nothing can be said.
    tally, _ = of_servers(of_records, Servers(kept=2), monkeypatch, agrees=False)
    assert sum(said in reason for reason in tally.reasons) == 8


def empty(bundle: Bundle, index: int, **more: Any) -> Bundle:
    """The run with a round of which nobody was."""
    rounds = list(bundle.readable_ledger.rounds)
    rounds[index] = replace(rounds[index], clients=(), steps=(), queries=(), **more)
    return changed(bundle, ledger={"rounds": tuple(rounds)})


def test_a_round_without_clients_counts_where_its_server_is_judged(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_kept", lambda *_: [])
    servers = Servers()
    tally, combined = of_servers(empty(of_records, 1), servers, monkeypatch)
    assert tally.rounds == 1
    assert [one[0] for one in combined] == [0, 2, 3]
    assert [one[1] for one in combined] == [0, 3, 6]
    # Its server sent the last broadcast on: the next one with clients follows the one before.
    assert (0, 2, 3) in servers.asked
    assert "round 1: had no clients, but the server moved" in tally.reasons


# The finding.


def tally(**found: Any) -> Tally:
    usual = {"participations": 12, "replayed": 12, "tensors": 48, "rounds": 4, "finished": 4}
    return Tally(**{**usual, "uncertain": [0, 100], "widths": [1e-9], **found})


@pytest.mark.parametrize(
    ("uncertain", "verdict"),
    [([0, 0], "NOT VERIFIED"), ([1, 100], "PASS"), ([2, 199], "NOT VERIFIED"), ([0, 1], "PASS")],
)
def test_one_coordinate_in_a_hundred_may_be_without_a_bound(
    of_records: Bundle, uncertain: list[int], verdict: str
) -> None:
    found = _conclude(tally(uncertain=uncertain), WHOLE, of_records.header, {})
    assert found.verdict.value == verdict


@pytest.mark.parametrize(("width", "verdict"), [(0.25, "NOT VERIFIED"), (0.2499, "PASS")])
def test_a_bound_as_wide_as_the_clipping_norm_shows_nothing(
    of_records: Bundle, width: float, verdict: str
) -> None:
    found = _conclude(tally(widths=[width]), WHOLE, of_records.header, {})
    assert found.verdict.value == verdict


@pytest.mark.parametrize(
    ("kept", "amount"),
    [
        (WHOLE, "all 12 participations replayed"),
        (HALF, "7 (drawn in secret) of 12 participations replayed"),
        (
            Extent(0.5, 8),
            "7 (drawn in secret) of 12 participations at 8 coordinates drawn in secret replayed",
        ),
    ],
)
def test_a_pass_tells_how_much_was_replayed(of_records: Bundle, kept: Extent, amount: str) -> None:
    replayed = 12 if kept == WHOLE else 7
    found = _conclude(tally(replayed=replayed), kept, of_records.header, {})
    assert found.measurement.startswith(amount)
    assert "(48 tensors); what the server sent after 4 of 4 rounds follows" in found.measurement
    assert found.details == {
        "participations": 12,
        "replayed": replayed,
        "tensors": 48,
        "rounds_combined": 4,
        "coordinates": kept.coordinates or 340,
        "smallest_visible": pytest.approx(4e-9),
    }


def test_what_was_seen_of_the_server_is_told_with_the_published_weights() -> None:
    assert _served(tally(weights=True)) == (
        "what the server sent after 4 of 4 rounds follows from the uploads, and so do the "
        "published weights"
    )
    assert _served(tally()).endswith("follows from the uploads")
    assert _served(tally(rounds=0, weights=True)) == (
        "no round's uploads were all kept, so the server's part was not judged"
    )


def test_what_the_grid_leaves_open_is_told_in_bits_where_there_is_one(of_records: Bundle) -> None:
    open_bits = tally(open_bits=112_345.6)
    assert room_left(open_bits, of_records.header) == (
        "; any value off the public grid, on which rounding leaves a free choice of 110,000 "
        "bits in all tensors together"
    )
    assert room_left(open_bits, replace(of_records.header, grid=None)) == ""


@pytest.mark.parametrize("kind", ["of_records", "of_clients"])
def test_a_run_without_a_public_grid_is_not_verified(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_agrees(bundle: Bundle, *given: Any) -> None:
        vars(next(one for one in given if isinstance(one, Tally))).update(vars(tally()))

    monkeypatch.setattr(uploads, "_replay_all", all_agrees)
    monkeypatch.setattr(client_uploads, "_judge_all", all_agrees)
    bundle: Bundle = request.getfixturevalue(kind)
    assert says(bundle, NAME)[0] == "PASS"
    assert says(changed(bundle, header={"grid": None}), NAME) == ("NOT VERIFIED", NOT_STATED)


@pytest.mark.parametrize(
    ("kept", "shares"),
    [(WHOLE, 0), (HALF, 1), (Extent(1.0, 8), 1)],
)
def test_a_share_of_the_evidence_is_told_beside_the_verdict(
    of_records: Bundle, kept: Extent, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay_all(bundle: Any, replay: Any, extent: Any, into: Tally, private: Any) -> None:
        vars(into).update(vars(tally()))

    monkeypatch.setattr(uploads, "extent", lambda *_: kept)
    monkeypatch.setattr(uploads, "_replay_all", replay_all)
    found = judged(of_records, NAME)
    assert found.verdict.value == "PASS"
    assert len([one for one in found.qualifications if "a share was judged" in one]) == shares


def test_an_algorithm_of_another_key_is_refused_before_anything_is_read(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "another_key", lambda bundle: True)
    assert says(of_records, NAME) == ("FAIL", uploads.ANOTHER_KEY)


def test_how_much_must_be_kept_follows_from_queries_and_participations(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def extent(*given: Any) -> Extent:
        asked.append(given)
        return WHOLE

    monkeypatch.setattr(uploads, "extent", extent)
    judged(of_records, NAME)
    assert asked == [(340, 3, 12)]


@pytest.mark.parametrize("source", [None, "somebody's package 1.0"])
def test_a_replay_of_another_package_that_fails_is_not_verified_and_our_own_is_a_bug(
    of_records: Bundle, source: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = uploads.find_replay("dp-fedadamw")
    assert known is not None

    def fails(*_: Any) -> None:
        raise IndexError

    monkeypatch.setattr(uploads, "find_replay", lambda name: replace(known, source=source))
    monkeypatch.setattr(uploads, "_replay_all", fails)
    if source is None:
        with pytest.raises(IndexError):
            judged(of_records, NAME)
    else:
        verdict, text = says(of_records, NAME)
        assert verdict == "NOT VERIFIED"
        assert text == (
            "the replay of dp-fedadamw that somebody's package 1.0 brings failed (IndexError)"
        )
