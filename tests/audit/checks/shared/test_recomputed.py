"""What was computed again beside an honest run's files: every difference has its sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.recomputed import (
    UNIT,
    Recomputed,
    _clean,
    _clipping,
    _noise,
    _norms,
    _release,
    judge_round,
)
from audit.reading.bundle import Bundle
from audit.reexecution.base import (
    ParticipationAgain,
    QueryAgain,
    ReleaseAgain,
    RoundAgain,
    UpdateAgain,
)
from tests.audit.checks.opened import changed
from tests.audit.synthetic_run import read_entries

ROUND = 2
Change = Callable[[Any], Any]


def _charges(bundle: Bundle) -> tuple[dict[str, Any], ...]:
    """The round's charges as the engine makes them: lines of the ledger without their chain."""
    return tuple(
        {name: value for name, value in entry.items() if name not in ("previous", "digest")}
        for entry in read_entries(bundle.root)
        if entry["kind"] == "spend" and entry["round"] == ROUND
    )


def _again(bundle: Bundle, parts: list[ParticipationAgain], **more: Any) -> RoundAgain:
    item = bundle.readable_ledger.rounds[ROUND]
    return RoundAgain(
        **{
            "round": ROUND,
            "attempt": 1,
            "whole": True,
            "clients": item.clients,
            "cohort": item.clients,
            "charges": _charges(bundle),
            "digests": dict(item.digests),
            "commitments": np.zeros((len(item.clients), 32), np.uint8),
            "participations": tuple(parts),
            **more,
        }
    )


def judge(bundle: Bundle, again: RoundAgain) -> Recomputed:
    tally = Recomputed()
    judge_round(bundle, bundle.readable_ledger.rounds[ROUND], again, tally)
    return tally


def _queries(bundle: Bundle, row: int, places: list[np.ndarray]) -> list[QueryAgain]:
    """What an engine hands out that computes the same as the one that trained."""
    evidence, clip = bundle.round_evidence(ROUND), bundle.header.clipping_norm or 0.0
    item, layout = bundle.readable_ledger.rounds[ROUND], bundle.layout()
    exchange = bundle.exchange(ROUND, item.clients[row], layout.parameters)
    many = evidence.batch_size.shape[1]
    made = []
    for number in range(many):
        first, last = evidence.record_offsets[row * many + number : row * many + number + 2]
        noted = evidence.raw_norms[first:last]
        noise = np.full(layout.parameters, 0.25)
        noise[layout.sample_coordinates] = evidence.noise_sample[row, number] * clip
        gradient = exchange.gradients[number]
        divisor = float(evidence.divisor[row, number])
        made.append(
            QueryAgain(
                records=places[number],
                gradient=gradient,
                noise=noise,
                spacing=0.0,
                divisor=divisor,
                clean=gradient.astype(np.float64) * divisor - noise,
                bound=1e-9,
                norms=noted.astype(np.float32),
                raw_norms=noted.astype(np.float64),
                norm_errors=np.zeros(len(noted)),
                moved=lambda: np.zeros(1),
            )
        )
    return made


def _participations(
    bundle: Bundle,
    part: Change = lambda one: one,
    query: Change = lambda one: one,
    queries: Change = lambda found: found,
) -> list[ParticipationAgain]:
    """All participations of the round, the second of which is changed."""
    evidence, item = bundle.round_evidence(ROUND), bundle.readable_ledger.rounds[ROUND]
    found, start = [], 0
    for row, client in enumerate(item.clients):
        records = bundle.header.records[client]
        times = evidence.inclusions[start : start + records]
        start += records
        drawn = np.repeat(np.arange(records), times)
        sizes = evidence.batch_size[row]
        places = [np.arange(size) for size in sizes]
        made = _queries(bundle, row, places)
        if row == 1:
            made = queries([query(made[0]), *made[1:]])
        exchange = bundle.exchange(ROUND, client, bundle.layout().parameters)

        def asked(made: list[QueryAgain] = made) -> Iterator[QueryAgain]:
            yield from made

        one = ParticipationAgain(
            client=client,
            batches=[drawn[:3], drawn[3:]],
            records=records,
            upload=exchange.upload,
            queries=asked,
        )
        found.append(part(one) if row == 1 else one)
    return found


def test_a_round_that_comes_out_the_same_is_counted_in_full(of_records: Bundle) -> None:
    tally = judge(of_records, _again(of_records, _participations(of_records), published=True))
    assert (tally.reasons, tally.unjudged) == ([], [])
    evidence = of_records.round_evidence(ROUND)
    clients, queries = evidence.batch_size.shape
    assert (tally.participations, tally.rounds, tally.last) == (clients, 1, True)
    assert tally.queries == clients * queries
    # Twice the bound of every query, over C = 0.5; and no norm was taken longer than it is.
    assert tally.hidden == pytest.approx(2.0 * 1e-9 / 0.5)
    assert tally.lengthened == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"part": lambda one: replace(one, batches=one.batches[:1])}, "its batches are not those"),
        (
            {"part": lambda one: replace(one, upload=one.upload + b" ")},
            "its upload is not what its steps come to",
        ),
        (
            {"query": lambda one: replace(one, noise=one.noise + 1e-4, clean=one.clean - 1e-4)},
            "query 1: its noise is not what the key gives",
        ),
        (
            {"query": lambda one: replace(one, records=one.records[1:])},
            "query 1: its batch is not of the size that the key draws",
        ),
        (
            {
                "query": lambda one: replace(
                    one, divisor=2.0 * one.divisor, gradient=one.gradient / np.float32(2.0)
                )
            },
            "query 1: was not divided by 24",
        ),
        (
            {"query": lambda one: replace(one, clean=one.clean + 1e-4)},
            "query 1: the clipped sum behind the gradient: lies",
        ),
        (
            {"query": lambda one: replace(one, norms=one.norms * np.float32(1.001))},
            "norms noted are not those of its records' gradients",
        ),
        (
            {"query": lambda one: replace(one, raw_norms=one.raw_norms * 1.001)},
            "norms are shorter than its records' gradients are",
        ),
        (
            {"query": lambda one: replace(one, norms=one.norms[1:])},
            "the evidence has not one norm for each of its records",
        ),
        ({"queries": lambda made: made[:-1]}, "makes 2 queries, and the evidence has 3"),
        ({"queries": lambda made: [*made, *made[:2]]}, "makes 5 queries, and the evidence has 3"),
    ],
)
def test_each_difference_of_a_participation_is_named_with_its_client(
    of_records: Bundle, change: dict[str, Change], said: str
) -> None:
    tally = judge(of_records, _again(of_records, _participations(of_records, **change)))
    client = of_records.readable_ledger.rounds[ROUND].clients[1]
    assert len(tally.reasons) == 1
    assert tally.reasons[0].startswith(f"round 2, client {client}")
    assert said in tally.reasons[0]
    # The others came out the same.
    assert tally.participations == len(of_records.readable_ledger.rounds[ROUND].clients) - 1


def test_rounding_may_move_a_clipped_sum_its_noise_and_its_norms_by_so_much(
    of_records: Bundle,
) -> None:
    def half_a_spacing(one: QueryAgain) -> QueryAgain:
        return replace(one, spacing=2e-3, noise=one.noise + 0.9e-3, clean=one.clean.copy())

    def more(one: QueryAgain) -> QueryAgain:
        return replace(one, spacing=2e-3, noise=one.noise + 1.1e-3, clean=one.clean.copy())

    within = judge(
        of_records, _again(of_records, _participations(of_records, query=half_a_spacing))
    )
    assert within.reasons == []
    beyond = judge(of_records, _again(of_records, _participations(of_records, query=more)))
    assert ["lies" in one or "the key gives" in one for one in beyond.reasons] == [True, True]

    def shorter(share: float, **more: Any) -> Change:
        return lambda one: replace(one, raw_norms=one.raw_norms * (1.0 + share), **more)

    for change, right in (
        (shorter(1.9 * UNIT), True),
        (shorter(1e-3, norm_errors=np.full(100, 10.0)), True),
        (shorter(1e-3, moved=lambda: np.array([10.0, np.nan])), True),
        (shorter(1e-3, moved=lambda: np.array([1e-6])), False),
    ):

        def sized(one: QueryAgain, change: Change = change) -> QueryAgain:
            found = change(one)
            return replace(found, norm_errors=np.resize(found.norm_errors, len(found.norms)))

        tally = judge(of_records, _again(of_records, _participations(of_records, query=sized)))
        assert (tally.reasons == []) is right


def test_norms_that_are_taken_to_be_longer_are_no_fault_and_told(of_records: Bundle) -> None:
    def longer(one: QueryAgain) -> QueryAgain:
        return replace(one, raw_norms=one.raw_norms / 1.25)

    tally = judge(of_records, _again(of_records, _participations(of_records, query=longer)))
    assert tally.reasons == []
    assert tally.lengthened == pytest.approx(0.25, rel=1e-6)


def test_what_another_machine_rounds_otherwise_is_compared_by_bounds_alone(
    of_records: Bundle,
) -> None:
    def elsewhere(one: ParticipationAgain) -> ParticipationAgain:
        return replace(one, upload=b"rounded otherwise")

    def rounded(one: QueryAgain) -> QueryAgain:
        return replace(one, norms=one.norms * np.float32(1.0 + 2.0**-22))

    parts = _participations(of_records, part=elsewhere, query=rounded)
    digests = {**of_records.readable_ledger.rounds[ROUND].digests, "uploads_sha256": "f" * 64}
    again = _again(of_records, parts, digests=digests, differences=("torch",), published=False)
    tally = judge(of_records, again)
    assert tally.reasons == []
    assert len(tally.unjudged) == 1
    # Nothing is counted as the same to the last bit, nor the weights judged.
    assert (tally.participations, tally.rounds, tally.last) == (0, 0, False)
    assert tally.queries == of_records.round_evidence(ROUND).batch_size.size


def test_a_participation_that_the_evidence_leaves_out_is_found(of_records: Bundle) -> None:
    parts = _participations(of_records)
    missing = replace(parts[0], client=99)
    tally = judge(of_records, _again(of_records, [missing, *parts[1:]]))
    assert tally.reasons == ["round 2, client 99: is in the ledger, and not in the evidence"]
    assert tally.participations == len(parts) - 1


def test_evidence_must_hold_the_uploads_and_commitments_that_the_ledger_notes(
    of_records: Bundle,
) -> None:
    evidence = of_records.round_evidence(ROUND)
    own = np.arange(32 * len(evidence.clients), dtype=np.uint8).reshape(-1, 32)
    noted = hashlib.sha256(own.tobytes()).hexdigest()
    ledger = of_records.readable_ledger
    rounds = list(ledger.rounds)

    def run(digest: str, committed: np.ndarray = own, **more: Any) -> Bundle:
        item = replace(rounds[ROUND], **more)
        item = replace(item, digests={**item.digests, "participations_sha256": digest})
        return changed(
            of_records,
            ledger={"rounds": (*rounds[:ROUND], item, *rounds[ROUND + 1 :])},
            evidence={ROUND: {"commitment": committed.astype(np.int64)}},
        )

    def reasons(bundle: Bundle, commitments: np.ndarray = own) -> list[str]:
        parts = _participations(bundle)
        again = _again(bundle, parts, commitments=commitments, exact=True)
        return judge(bundle, again).reasons

    assert reasons(run(noted)) == []
    assert reasons(run("0" * 64)) == [
        "round 2: its commitments are not those the ledger notes",
    ]
    assert reasons(run(noted, exchanged="0" * 64)) == [
        "round 2: its uploads are not those the ledger notes"
    ]
    other = own.copy()
    other[0, 0] ^= 1
    client = rounds[ROUND].clients[0]
    assert reasons(run(noted), other) == [
        f"round 2: computed again, it has another the commitment of client {client} than the run "
        "says, on the same processor with the same versions"
    ]


def test_digests_that_differ_are_named_three_at_most(of_records: Bundle) -> None:
    item = of_records.readable_ledger.rounds[ROUND]

    def named(count: int) -> str:
        names = ("broadcast_sha256", "uploads_sha256", "state_sha256", "parameters_sha256")
        digests = {**item.digests, **dict.fromkeys(names[:count], "f" * 64)}
        again = _again(of_records, [], digests=digests, exact=True)
        return judge(of_records, again).reasons[0]

    assert "another broadcast than the run" in named(1)
    assert "another broadcast, uploads, state than the run" in named(3)
    assert "another broadcast, uploads, state and 1 more than the run" in named(4)


def test_the_server_is_judged_where_all_of_a_round_was_computed(of_records: Bundle) -> None:
    charges = _charges(of_records)
    other = ({**charges[0], "noise_multiplier": 9.0}, *charges[1:])
    wrong = "round 2: was not charged what the spec makes of it"
    assert judge(of_records, _again(of_records, [], charges=other)).reasons == [wrong]
    assert judge(of_records, _again(of_records, [], charges=charges[1:])).reasons == [wrong]
    assert judge(of_records, _again(of_records, [], attempt=2)).reasons == [wrong]
    part = judge(of_records, _again(of_records, [], charges=(), whole=False, published=False))
    assert (part.reasons, part.rounds, part.last) == ([], 0, False)
    lost = judge(of_records, _again(of_records, [], published=False))
    assert lost.reasons == [
        "round 2: is the last, and the published parameters are not what it leads to"
    ]
    assert (lost.rounds, lost.last) == (1, False)


# Whole clients.


def _update(bundle: Bundle, row: int) -> UpdateAgain:
    """A client's update that fits its norm, clipped to C and noised where its client does that."""
    evidence, clip = bundle.update_round(ROUND), bundle.header.clipping_norm or 0.0
    noted = float(evidence.raw_norms[row])
    update = np.zeros(4, np.float32)
    update[:2] = noted * np.array([0.6, 0.8])
    taken = update.astype(np.float64)
    norm = float(np.linalg.norm(taken[np.isfinite(taken)]))
    finite = bool(np.isfinite(noted))
    clipped = update * np.float32(min(1.0, clip * (1.0 - 2.0**-22) / norm)) if finite else 0 * taken
    clipped = np.where(np.isfinite(update), clipped, 0.0).astype(np.float32)
    upload, noise = clipped, None
    squares = evidence.upload_noise_sum_squares
    if squares is not None:
        noise = np.array([0.0, 0.0, np.sqrt(float(np.sum(squares[row]))), 0.0])
        noise[2] = np.float32(noise[2])
        upload = (clipped.astype(np.float64) + noise).astype(np.float32)
    return UpdateAgain(
        update=update,
        reference=update.astype(np.float64),
        bound=1e-9,
        moved=lambda: 0.0,
        taken=update,
        clipped=clipped,
        noise=noise,
        upload=upload,
        spacing=0.0,
        bits=None,
    )


def _squared(bundle: Bundle, row: int) -> dict[str, Any]:
    """The evidence's squares of a client's noise, as float32 noise has them."""
    own = bundle.update_round(ROUND).upload_noise_sum_squares
    if own is None:
        return {}
    squares = own.copy()
    for one in range(len(squares)):
        made = _update(bundle, one)
        due = np.sum(np.square(made.upload.astype(np.float64) - made.clipped))
        squares[one] = [due, *[0.0] * (squares.shape[1] - 1)]
    return {"upload_noise_sum_squares": squares}


def _client_round(bundle: Bundle) -> Bundle:
    """The run with norms of float32 in the round that is judged, all of them finite."""
    evidence = bundle.update_round(ROUND)
    many = len(evidence.clients)
    norms = np.linspace(0.3, 0.9, many).astype(np.float32).astype(np.float64)
    return changed(bundle, evidence={ROUND: {"raw_norms": norms}})


@pytest.fixture(params=["server", "clients"])
def whole(request: pytest.FixtureRequest, of_clients: Bundle, noised_by_clients: Bundle) -> Bundle:
    """A run of whole clients whose evidence is that of updates that tests can make."""
    bundle = _client_round(of_clients if request.param == "server" else noised_by_clients)
    return changed(bundle, evidence={ROUND: _squared(bundle, 0)})


def _local(bundle: Bundle, update: Change = lambda one: one) -> list[ParticipationAgain]:
    clients = bundle.update_round(ROUND).clients.tolist()
    made = [_update(bundle, row) for row in range(len(clients))]
    made[-1] = update(made[-1])
    return [
        ParticipationAgain(
            client=client,
            batches=(),
            records=0,
            upload=b"",
            queries=lambda: iter(()),
            update=lambda one=one: one,
        )
        for client, one in zip(clients, made, strict=True)
    ]


def test_whole_clients_that_come_out_the_same_are_counted(whole: Bundle) -> None:
    tally = judge(whole, _again(whole, _local(whole)))
    assert tally.reasons == []
    many = len(whole.update_round(ROUND).clients)
    assert many >= 2
    assert (tally.participations, tally.queries, tally.rounds) == (many, many, 1)


def _off(amount: float, **more: Any) -> Change:
    def change(one: UpdateAgain) -> UpdateAgain:
        moved = one.reference.copy()
        moved[3] += amount
        return replace(one, reference=moved, **more)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_off(1e-3), "its local training: lies"),
        (_off(1e-3, moved=lambda: 1e-5), "its local training: lies"),
        (
            lambda one: replace(one, taken=one.taken * np.float32(1.001)),
            "the norm noted is not that of its update",
        ),
    ],
)
def test_each_difference_of_a_whole_client_is_named(
    whole: Bundle, change: Change, said: str
) -> None:
    tally = judge(whole, _again(whole, _local(whole, change)))
    client = whole.update_round(ROUND).clients.tolist()[-1]
    assert f"round 2, client {client}: {said}" in tally.reasons[0]
    assert tally.participations == len(whole.update_round(ROUND).clients) - 1


def test_a_kink_may_move_a_local_training_by_as_much_as_it_is_wide(whole: Bundle) -> None:
    for change in (_off(1e-3, moved=lambda: 1e-3), _off(0.9e-9)):
        assert judge(whole, _again(whole, _local(whole, change))).reasons == []


def test_what_an_update_is_off_by_counts_as_much_as_clipping_leaves_of_it(whole: Bundle) -> None:
    # The last update is 0.9 long and clipped to 0.5.
    tally = judge(whole, _again(whole, _local(whole, _off(1e-3))))
    assert f"lies {1e-3 * 0.5 / 0.9 / 0.5:.1e} C" in tally.reasons[0]
    assert f"explains {1e-9 * 0.5 / 0.9 / 0.5:.1e} C" in tally.reasons[0]
    # An update of nothing is not scaled at all.
    nothing = np.zeros(4, np.float32)

    def still(one: UpdateAgain) -> UpdateAgain:
        made = replace(one, update=nothing, taken=nothing, clipped=nothing, reference=nothing + 0.0)
        return _off(1e-3)(made)

    tally = judge(whole, _again(whole, _local(whole, still)))
    assert f"lies {1e-3 / 0.5:.1e} C" in tally.reasons[0]


def test_noise_noted_of_an_upload_must_be_the_keys(noised_by_clients: Bundle) -> None:
    bundle = _client_round(noised_by_clients)
    right = _squared(bundle, 0)["upload_noise_sum_squares"]

    def reasons(squares: np.ndarray | None) -> list[str]:
        run = changed(bundle, evidence={ROUND: {"upload_noise_sum_squares": right}})
        parts = _local(run)
        noted = changed(run, evidence={ROUND: {"upload_noise_sum_squares": squares}})
        return judge(noted, _again(noted, parts[:1])).reasons

    client = bundle.update_round(ROUND).clients.tolist()[0]
    wrong = [f"round 2, client {client}: the noise noted of its upload is not what the key gives"]
    assert reasons(right) == reasons(right * (1.0 + 0.9e-9)) == []
    assert reasons(right * (1.0 + 1.1e-9)) == wrong
    assert reasons(right * (1.0 - 1.1e-9)) == wrong
    assert reasons(None) == wrong


def test_an_update_that_is_not_clipped_fails_with_its_client(whole: Bundle) -> None:
    tally = judge(whole, _again(whole, _local(whole, lambda one: replace(one, clipped=one.taken))))
    assert any("was not clipped to the clipping norm" in reason for reason in tally.reasons)


def _released(**more: Any) -> ReleaseAgain:
    total, noise = np.array([0.5, -0.25, 3.0]), np.array([0.125, 1.0, -1.0])
    given = {
        "released": ((total + noise) / 3.0).astype(np.float32), "total": total, "noise": None,
        "spacing": 0.0, "divisor": 3.0, "bits": None,
    }  # fmt: skip
    return ReleaseAgain(**{**given, **more})


def _shown(bundle: Bundle, noise: np.ndarray) -> Bundle:
    """The run whose layout shows these values of the noise, over C."""
    layout = replace(bundle.layout(), sample_coordinates=np.arange(3))
    sample = {"noise_sample": noise / (bundle.header.clipping_norm or 1.0)}
    return replace(
        changed(bundle, evidence={ROUND: {**sample, "clean_sample": np.zeros(3)}}), _layout=layout
    )


@pytest.mark.parametrize(
    ("more", "right"),
    [
        ({}, True),
        # Two roundings to float32, or the bits that the release is written with, or the grid.
        ({"total": np.array([0.5, -0.25, 3.0]) * (1.0 + 0.5 * UNIT)}, True),
        ({"total": np.array([0.5, -0.25, 3.0]) * (1.0 + 8.0 * UNIT)}, False),
        ({"total": np.array([0.5, -0.25, 3.001])}, False),
        ({"total": np.array([0.5, -0.25, 3.001]), "bits": 8}, True),
        ({"total": np.array([0.5, -0.25, 3.001]), "bits": 16}, False),
        ({"total": np.array([0.5, -0.25, 3.001]), "spacing": 2.1e-3}, True),
        ({"total": np.array([0.5, -0.25, 3.001]), "spacing": 1.9e-3}, False),
        ({"divisor": 3.001}, False),
        ({"total": None}, True),
        ({"released": None}, True),
    ],
)
def test_a_release_is_its_uploads_sum_and_the_keys_noise(
    of_clients: Bundle, more: dict[str, Any], right: bool
) -> None:
    noise = np.array([0.125, 1.0, -1.0])
    run = _shown(of_clients, noise)
    tally = judge(run, _again(run, [], release=_released(noise=noise, **more)))
    wrong = "round 2: its release is not its uploads' sum and the key's noise"
    assert tally.reasons == ([] if right else [wrong])


def test_where_clients_add_the_noise_a_release_is_the_sum_alone(of_clients: Bundle) -> None:
    # They put it on the grid; the server adds what is there already.
    sums = np.array([0.625, 0.75, 2.0])
    alone = _released(total=sums, spacing=1.0)
    assert judge(of_clients, _again(of_clients, [], release=alone)).reasons == []
    further = replace(alone, total=sums + 1e-3)
    assert len(judge(of_clients, _again(of_clients, [], release=further)).reasons) == 1


# How much rounding explains, number by number.


def test_a_unit_of_rounding_is_float32s_and_hardly_more() -> None:
    assert 2.0**-24 < UNIT < 2.0**-24 * (1.0 + 2.0**-19)


@pytest.mark.parametrize(
    ("spacing", "off", "right"),
    [
        # Two units of noise, clean sum and what is noted: 1 + 2 + 1, then half a spacing.
        (0.0, 7.9 * UNIT, True),
        (0.0, 8.1 * UNIT, False),
        (0.0, -7.9 * UNIT, True),
        (0.0, -8.1 * UNIT, False),
        (1e-3, 0.499e-3, True),
        (1e-3, 0.502e-3, False),
    ],
)
def test_noise_that_is_noted_may_be_off_by_its_rounding(
    spacing: float, off: float, right: bool
) -> None:
    tally, one = Recomputed(), np.ones(1)
    _noise("here", one, one + off, 2.0 * one, spacing, tally)
    assert tally.reasons == ([] if right else ["here: its noise is not what the key gives"])


def _query(**changes: Any) -> QueryAgain:
    given = {
        "records": np.arange(1), "gradient": np.array([2.0], np.float32), "noise": np.zeros(1),
        "spacing": 0.0, "divisor": 2.0, "clean": np.array([4.0]), "bound": 0.0,
        "norms": np.ones(1, np.float32), "raw_norms": np.ones(1), "norm_errors": np.zeros(1),
        "moved": lambda: np.zeros(1),
    }  # fmt: skip
    return QueryAgain(**{**given, **changes})


def test_a_gradient_may_be_off_by_two_roundings_and_half_a_spacing() -> None:
    # Two units of a noisy sum of 4.
    assert _clean(_query(clean=np.array([4.0 - 7.9 * UNIT])), 1.0)[0] == 0.0
    assert _clean(_query(clean=np.array([4.0 - 9.0 * UNIT])), 1.0)[0] == pytest.approx(UNIT)
    wide = _query(clean=np.array([4.0 - 0.499]), spacing=1.0)
    assert _clean(wide, 1.0)[0] == 0.0
    assert _clean(replace(wide, clean=np.array([3.4])), 1.0)[0] == pytest.approx(0.1, rel=1e-4)
    # As far as its bound explains, no kink is looked for.
    assert _clean(_query(clean=np.array([4.0 - 9.0 * UNIT]), bound=1.0), 1.0)[1] == 1.0


def test_a_record_beside_a_kink_counts_before_and_after_and_clipped() -> None:
    off = _query(clean=np.zeros(1), raw_norms=np.array([4.0]), moved=lambda: np.array([0.5]))
    # Of a record of norm 4 clipping to 1 leaves a quarter.
    assert _clean(off, 1.0)[1] == pytest.approx(2.0 * 0.5 / 4.0)
    assert _clean(replace(off, raw_norms=np.array([0.5])), 1.0)[1] == pytest.approx(2.0 * 0.5)


def test_norms_that_are_no_numbers_are_the_same_and_weigh_nothing() -> None:
    def said(norms: list[float], raw: list[float], noted: list[float]) -> Recomputed:
        tally = Recomputed()
        query = _query(
            norms=np.array(norms, np.float32),
            raw_norms=np.array(raw),
            norm_errors=np.zeros(len(raw)),
            # It takes long, and nothing here needs it.
            moved=lambda: pytest.fail("was asked how far kinks move a norm"),
        )
        _norms("here", [(query, np.array(noted))], True, tally)
        return tally

    assert said([np.nan, 1.0], [np.nan, 1.0], [np.nan, 1.0]).reasons == []
    one_infinite = said([np.inf], [1.0], [np.inf])
    assert (one_infinite.reasons, one_infinite.lengthened) == ([], 0.0)
    # A batch may be empty, and a record's gradient zero.
    assert said([], [], []).reasons == []
    assert said([0.0], [0.0], [0.0]).lengthened == 0.0


def _clipped(taken: list[float], clipped: list[float], **more: Any) -> list[str]:
    made = np.array(taken, np.float32)
    sent = np.array(clipped, np.float32)
    given = {
        "update": made, "reference": made.astype(np.float64), "bound": 0.0,
        "moved": lambda: 0.0, "taken": made, "clipped": sent, "noise": None, "upload": sent,
        "spacing": 0.0, "bits": None,
    }  # fmt: skip
    return _clipping(UpdateAgain(**{**given, **more}), 1.0)


def test_what_is_kept_of_an_update_is_what_is_largest() -> None:
    wrong = ["what was left out of its update is larger than what was kept"]
    assert _clipped([0.5, 0.5], [0.5, 0.0]) == []
    assert _clipped([0.8, 0.1, 0.5], [0.8, 0.1, 0.0]) == wrong
    # Nothing was kept of an update of nothing.
    assert _clipped([0.0, 0.0], [0.0, 0.0]) == []


def test_one_coordinate_that_is_not_scaled_like_the_others_is_found() -> None:
    wrong = ["its update was not clipped to the clipping norm"]
    assert _clipped([0.5, 0.25], [0.5, 0.26]) == wrong
    assert _clipped([0.5, 0.25], [0.51, 0.25]) == wrong
    # Eight roundings of float32.
    near = float(np.float32(0.5 * (1.0 + 7.0 * 2.0**-24)))
    far = float(np.float32(0.5 * (1.0 + 20.0 * 2.0**-24)))
    assert _clipped([0.5, 0.25], [near, 0.25]) == []
    assert _clipped([0.5, 0.25], [far, 0.25]) == wrong


@pytest.mark.parametrize(
    ("noise", "spacing", "bits", "right"),
    [
        # The upload is 0.5 + 1.5; what it may be off by is a share of its size, 2.
        (1.5 + 3.9 * UNIT, 0.0, None, True),
        (1.5 + 4.1 * UNIT, 0.0, None, False),
        (1.5 + 0.499e-3, 1e-3, None, True),
        (1.5 + 0.502e-3, 1e-3, None, False),
        (1.5 + 0.99 * 2.0**-7, 0.0, 8, True),
        (1.5 + 1.01 * 2.0**-7, 0.0, 8, False),
    ],
)
def test_an_upload_is_the_clipped_update_and_the_keys_noise_as_it_was_written(
    noise: float, spacing: float, bits: int | None, right: bool
) -> None:
    found = _clipped(
        [0.5], [0.5], noise=np.array([noise]), upload=np.array([2.0], np.float32),
        spacing=spacing, bits=bits,
    )  # fmt: skip
    wrong = ["its upload is not its clipped update and the noise that the key gives"]
    assert found == ([] if right else wrong)
    # Where the server adds the noise, the upload is the clipped update exactly.
    assert _clipped([0.5], [0.5], upload=np.array([0.5 + 2.0**-24])) == wrong


@pytest.mark.parametrize(
    ("off", "spacing", "bits", "right"),
    [
        (0.0, 0.0, None, True),
        # Two units of the noisy sum, 96, and hardly anything of its parts.
        (191.0 * UNIT, 0.0, None, True),
        (193.0 * UNIT, 0.0, None, False),
        (0.499, 1.0, None, True),
        (0.501, 1.0, None, False),
        (0.99 * 96 * 2.0**-8, 0.0, 8, True),
        (1.01 * 96 * 2.0**-8, 0.0, 8, False),
    ],
)
def test_a_release_may_be_off_by_how_it_was_written(
    of_clients: Bundle, off: float, spacing: float, bits: int | None, right: bool
) -> None:
    release = ReleaseAgain(
        released=np.array([32.0], np.float32), total=np.array([64.0 + off]),
        noise=np.array([32.0]), spacing=spacing, divisor=3.0, bits=bits,
    )  # fmt: skip
    run = _shown(of_clients, np.array([32.0, 0.0, 0.0]))
    layout = replace(run.layout(), sample_coordinates=np.arange(1))
    evidence = replace(
        run.update_round(ROUND),
        noise_sample=np.array([32.0]) / (run.header.clipping_norm or 1.0),
        clean_sample=np.array([64.0]),
    )
    tally = Recomputed()
    _release(replace(run, _layout=layout), "here", release, evidence, tally)
    wrong = ["here: its release is not its uploads' sum and the key's noise"]
    assert tally.reasons == ([] if right else wrong)


def test_rounds_are_added_up_and_a_cohort_has_no_order(of_records: Bundle) -> None:
    tally = Recomputed()
    item = of_records.readable_ledger.rounds[ROUND]
    again = _again(of_records, [], cohort=item.clients[::-1])
    judge_round(of_records, item, again, tally)
    turned = replace(item, clients=item.clients[::-1])
    judge_round(of_records, turned, replace(again, cohort=item.clients), tally)
    assert (tally.reasons, tally.rounds) == ([], 2)


def test_a_hundredth_of_a_round_is_not_yet_far(of_records: Bundle) -> None:
    digests = {"uploads_sha256": "f" * 64}
    at = _again(of_records, [], digests=digests, moved=0.01, differences=("torch",))
    assert (judge(of_records, at).reasons, len(judge(of_records, at).unjudged)) == ([], 1)


def test_an_update_within_the_norm_is_not_scaled_and_a_kink_counts_twice(whole: Bundle) -> None:
    # The first update is 0.3 long, and C is 0.5.
    clients = whole.update_round(ROUND).clients.tolist()

    def first(moved: float) -> list[str]:
        made = replace(_off(1e-3)(_update(whole, 0)), moved=lambda: moved)
        part = replace(_local(whole)[0], client=clients[0], update=lambda: made)
        return judge(whole, _again(whole, [part])).reasons

    assert first(0.51e-3) == []
    assert "lies 2.0e-03 C" in first(0.49e-3)[0]
