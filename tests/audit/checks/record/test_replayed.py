"""Single records: what every participation is replayed with, and what is made of what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.record import uploads
from audit.reading.bundle import Bundle
from audit.reading.exchanges import Extent
from audit.replay.participation import Tally
from tests.audit.checks.opened import changed, judged, says

WHOLE = Extent(1.0, None)
Told = list[tuple[Any, ...]]


class Replayed:
    """A replay of a run in which each step was noted.

    Attributes:
        steps: rounds that were begun, remembered and closed, in order.
        settings: with what each participation was replayed, by where it was.
        faults: by what the noise of each was looked at.
        weights: to what the published weights were held.
        tally: what came of it.
        private: the private numbers.
    """

    def __init__(
        self,
        bundle: Bundle,
        monkeypatch: pytest.MonkeyPatch,
        *,
        unreadable: Callable[[str], bool] = lambda where: False,
        widths: Callable[[str], float] = lambda where: 0.0,
        wrong: dict[str, list[str]] | None = None,
        after: Any = None,
        coordinates: Any = None,
        servers: Any = None,
    ) -> None:
        self.steps: Told = []
        self.settings: dict[str, Any] = {}
        self.faults: Told = []
        self.weights: Told = []
        self.tally = Tally()
        self.private: dict[str, Any] = {}
        noted = self

        class Trajectory:
            def __init__(self, replay: Any, tally: Any) -> None:
                assert (replay, tally) == ("a replay", noted.tally)
                self.after = after

            def arrives(self, where: str, setting: Any, broadcast: Any) -> None:
                assert setting is noted.settings[where][0]
                noted.steps.append(("arrives", where, broadcast))

            def remembers(self, where: str, client: int, index: int, exchange: Any) -> None:
                assert where == f"round {index}, client {client}"
                noted.steps.append(("remembers", where))

            def leaves(self, item: Any, setting: Any, broadcast: Any, sent: Any) -> None:
                own = [one for where, one in noted.settings.items() if f"{item.round}," in where]
                assert setting is (own[-1][0] if own else None)
                noted.steps.append(("leaves", item.round, broadcast, list(sent)))

        def replayed(
            where: str, exchange: Any, sums: Any, setting: Any, replay: Any, tally: Any, grid: Any
        ) -> Any:
            assert (sums, replay, tally) == ("the sums", "a replay", noted.tally)
            noted.settings[where] = (setting, grid)
            if unreadable(where):
                return None
            tally.widths.append(widths(where))
            return f"broadcast of {where}", {f"upload of {where}": 0}

        def faults(*given: Any) -> list[str]:
            evidence, row = given[2], given[3]
            noted.faults.append(given)
            return (wrong or {}).get(f"client {int(evidence.clients[row])}", [])

        monkeypatch.setattr(uploads, "Trajectory", Trajectory)
        monkeypatch.setattr(uploads, "replay_participation", replayed)
        monkeypatch.setattr(uploads, "block_sums", lambda exchange, partition: "the sums")
        monkeypatch.setattr(uploads, "noise_faults", faults)
        monkeypatch.setattr(uploads, "published", lambda values: ("published", values))
        monkeypatch.setattr(uploads, "judge_weights", lambda *given: noted.weights.append(given))
        monkeypatch.setattr(uploads, "recorded_coordinates", lambda *_: coordinates)
        if servers is not None:
            monkeypatch.setattr(uploads, "_servers", lambda *_: servers)
        replay: Any = "a replay"
        uploads._replay_all(bundle, replay, WHOLE, self.tally, self.private)


def wheres(bundle: Bundle) -> list[str]:
    return [
        f"round {item.round}, client {client}"
        for item in bundle.readable_ledger.rounds
        for client in item.clients
    ]


def test_each_participation_is_replayed_by_what_spec_and_ledger_say_of_it(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Replayed(of_records, monkeypatch)
    assert list(found.settings) == wheres(of_records)
    for where, (setting, grid) in found.settings.items():
        index = int(where.split()[1].rstrip(","))
        assert setting.algorithm == of_records.readable_spec["algorithm"]
        assert setting.clients == 5
        # A cosine over the four rounds, from 0.02.
        assert setting.learning_rate == pytest.approx(0.01 * (1 + math.cos(math.pi * index / 4)))
        assert setting.steps == 3
        assert setting.earlier_steps == 3 * index
        assert setting.noise_variance == pytest.approx((1.5 * 0.5 / 12.0) ** 2)
        assert setting.whole is True
        assert len(setting.partition.of_coordinate) == 340
        assert grid == of_records.header.grid
    assert (found.tally.finished, found.tally.participations) == (4, 12)
    assert found.tally.reasons == []


def test_steps_are_each_clients_own_and_those_before_a_round_the_most_of_each(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = list(of_records.readable_ledger.rounds)
    rounds[0] = replace(rounds[0], steps=(2, 3, 1))
    rounds[2] = replace(rounds[2], steps=(1, 2, 2))
    found = Replayed(changed(of_records, ledger={"rounds": tuple(rounds)}), monkeypatch)
    settings = [setting for setting, _ in found.settings.values()]
    assert [one.steps for one in settings] == [2, 3, 1, 3, 3, 3, 1, 2, 2, 3, 3, 3]
    assert [one.earlier_steps for one in settings] == [0] * 3 + [3] * 3 + [6] * 3 + [8] * 3


def test_rounds_are_begun_once_and_closed_with_all_of_their_uploads(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Replayed(of_records, monkeypatch)
    due: Told = []
    for item in of_records.readable_ledger.rounds:
        own = [f"round {item.round}, client {client}" for client in item.clients]
        due.append(("remembers", own[0]))
        due.append(("arrives", own[0], f"broadcast of {own[0]}"))
        due += [("remembers", where) for where in own[1:]]
        sent = [{f"upload of {where}": 0} for where in own]
        due.append(("leaves", item.round, f"broadcast of {own[0]}", sent))
    assert found.steps == due


def test_a_participation_that_cannot_be_read_leaves_the_others_of_its_round(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wheres(of_records)[3]
    assert first.startswith("round 1,")
    found = Replayed(of_records, monkeypatch, unreadable=lambda where: where == first)
    others = wheres(of_records)[4:6]
    assert ("arrives", others[0], f"broadcast of {others[0]}") in found.steps
    sent = [{f"upload of {where}": 0} for where in others]
    assert ("leaves", 1, f"broadcast of {others[0]}", sent) in found.steps
    nobody = Replayed(of_records, monkeypatch, unreadable=lambda where: "round 1," in where)
    assert ("leaves", 1, None, []) in nobody.steps


def test_noise_is_looked_for_where_it_was_sampled_and_its_faults_are_told(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = of_records.readable_ledger.rounds[0].clients[1]
    found = Replayed(of_records, monkeypatch, wrong={f"client {client}": ["one", "two"]})
    took_part = [item for item in of_records.readable_ledger.rounds if client in item.clients]
    assert found.tally.reasons == [
        f"round {item.round}, client {client}: {fault}"
        for item in took_part
        for fault in ("one", "two")
    ]
    sampled = of_records.layout().sample_coordinates
    for _, sums, evidence, row, clip, places in found.faults:
        assert (sums, clip) == ("the sums", 0.5)
        assert 0 <= row < len(evidence.clients)
        assert places.tolist() == sampled.tolist()


def test_of_recorded_coordinates_the_sampled_ones_are_found_by_their_place(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = of_records.layout().sample_coordinates
    recorded = np.unique(np.concatenate([sampled, [0, 339]]))
    run = changed(of_records)
    exchange = run.exchange(0, 1, 340)
    asked: list[int] = []

    def instead(index: int, client: int, many: int) -> Any:
        asked.append(many)
        return replace(exchange, square_sums=np.zeros((3, 3)))

    run.exchange = instead  # type: ignore[method-assign] # as a changed file would be read
    found = Replayed(run, monkeypatch, coordinates=recorded)
    assert set(asked) == {len(recorded)}
    for setting, _ in found.settings.values():
        assert setting.whole is False
        assert len(setting.partition.of_coordinate) == len(recorded)
    for *_, places in found.faults:
        assert recorded[places].tolist() == sampled.tolist()


def test_what_could_hide_is_told_as_the_largest_share_of_a_gradient(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def width(where: str) -> float:
        return 0.001 * (1 + wheres(of_records).index(where) % 5)

    found = Replayed(of_records, monkeypatch, widths=width)
    due = []
    for item in of_records.readable_ledger.rounds:
        squares = of_records.round_evidence(item.round).clean_sum_squares
        for row, client in enumerate(item.clients):
            norms = [math.sqrt(sum(blocks)) for blocks in squares[row].tolist()]
            where = f"round {item.round}, client {client}"
            due.append(2.0 * width(where) / sorted(norms)[1])
    name = "largest_share_of_a_clean_gradient_that_could_hide"
    assert found.private == {name: pytest.approx(max(due), rel=1e-12)}
    none = Replayed(of_records, monkeypatch, unreadable=lambda _: True)
    assert none.private == {name: 0.0}


def test_a_gradient_of_length_zero_hides_nothing_and_divides_nothing(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = np.zeros_like(of_records.round_evidence(2).clean_sum_squares)
    run = changed(of_records, evidence={2: {"clean_sum_squares": squares}})
    found = Replayed(run, monkeypatch, widths=lambda where: 1e-6 if "round 2," in where else 0.0)
    share = found.private["largest_share_of_a_clean_gradient_that_could_hide"]
    assert share == pytest.approx(2e-6 / 1e-300)


def test_the_published_weights_are_held_to_what_the_last_round_left(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Replayed(of_records, monkeypatch, after="the last values")
    assert found.weights == [(of_records, None, ("published", "the last values"), found.tally)]
    assert Replayed(of_records, monkeypatch).weights == []


@pytest.mark.parametrize(
    ("replayed", "rounds", "told"), [(3, 0, True), (0, 0, False), (3, 1, False)]
)
def test_that_no_server_was_judged_is_told_where_anything_was_replayed(
    of_records: Bundle, replayed: int, rounds: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_kept", lambda *_: [])
    tally = Tally(replayed=replayed, rounds=rounds)
    replay: Any = SimpleNamespace()
    uploads._replay_all(of_records, replay, WHOLE, tally, {})
    said = "no round's uploads were all kept: how the server combined them was not judged"
    assert tally.unjudged == ([said] if told else [])


def test_rounds_of_servers_without_clients_are_counted_each(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = tuple(
        replace(item, clients=(), steps=(), queries=()) if item.round in (1, 2) else item
        for item in of_records.readable_ledger.rounds
    )
    servers = SimpleNamespace(find=lambda *_: None)
    monkeypatch.setattr(uploads, "_kept", lambda *_: [])
    found = Replayed(changed(of_records, ledger={"rounds": rounds}), monkeypatch, servers=servers)
    assert found.tally.rounds == 2
    assert found.tally.participations == 6
    assert [step[:2] for step in found.steps] == [("leaves", index) for index in range(4)]


def test_a_grid_that_is_too_fine_and_what_a_replay_brings_stand_in_the_finding(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = uploads.find_replay("dp-fedadamw")
    assert known is not None
    brought = replace(known, source="x 1.0")
    monkeypatch.setattr(uploads, "find_replay", lambda name: brought)
    found = judged(of_records, "uploads")
    assert found.verdict.value == "PASS"
    assert found.details["replay"] == "x 1.0"
    assert found.details["participations"] == 12
    assert found.qualifications == (
        "uploads were judged by a replay from x 1.0, not by the auditor's own",
    )
    monkeypatch.setattr(uploads, "too_fine", lambda header: ["the grid is too fine"])
    assert says(of_records, "uploads") == ("FAIL", "the grid is too fine")


@pytest.mark.parametrize("clip", [0.5, None])
def test_the_width_that_could_hide_is_told_in_the_power_too(
    of_records: Bundle, clip: float | None
) -> None:
    header = replace(of_records.header, clipping_norm=clip)
    tally = Tally(
        replayed=3, participations=3, rounds=1, finished=1, tensors=2, widths=[1e-3, 2e-3],
        uncertain=[0, 9],
    )  # fmt: skip
    found = uploads._conclude(tally, WHOLE, header, {"a": 1})
    assert found.verdict.value == "PASS"
    hidden = 2.0 * 2e-3 / (clip or 1.0)
    assert f"an added term longer than {hidden:.2g} C" in (found.power or "")
    assert found.private == {"a": 1}
    failed = uploads._conclude(replace(tally, reasons=["x"]), WHOLE, header, {})
    assert failed.power == found.power
    part = uploads._conclude(replace(tally, unjudged=["x"]), WHOLE, header, {"a": 1})
    assert (part.power, part.private) == (None, {"a": 1})
    # At least as much as a clean gradient.
    nothing = uploads._conclude(replace(tally, widths=[9.0]), WHOLE, header, {"a": 1})
    assert (nothing.power, nothing.private) == ("none", {"a": 1})
