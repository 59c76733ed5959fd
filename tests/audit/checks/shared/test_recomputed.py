"""Single records, computed again beside an honest run: every difference has its sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.recomputed import (
    UNIT,
    Recomputed,
    judge_round,
)
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.recomputed import RecomputedParticipation, RecomputedQuery
from tests.audit.checks.opened import changed
from tests.audit.checks.shared.computed_again import ROUND, Change, charges_of, computed, judge


def _queries(bundle: Bundle, row: int, places: list[np.ndarray]) -> list[RecomputedQuery]:
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
            RecomputedQuery(
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
) -> list[RecomputedParticipation]:
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

        def asked(made: list[RecomputedQuery] = made) -> Iterator[RecomputedQuery]:
            yield from made

        one = RecomputedParticipation(
            client=client,
            batches=[drawn[:3], drawn[3:]],
            records=records,
            upload=exchange.upload,
            queries=asked,
        )
        found.append(part(one) if row == 1 else one)
    return found


def test_a_round_that_comes_out_the_same_is_counted_in_full(of_records: Bundle) -> None:
    tally = judge(of_records, computed(of_records, _participations(of_records), published=True))
    assert (tally.reasons, tally.unjudged) == ([], [])
    evidence = of_records.round_evidence(ROUND)
    clients, queries = evidence.batch_size.shape
    assert (tally.participations, tally.rounds, tally.last) == (clients, 1, True)
    assert tally.queries == clients * queries
    # Twice the bound of every query, over C = 0.5; and no norm was taken longer than it is.
    assert tally.hidden == pytest.approx(2.0 * 1e-9 / 0.5)
    assert tally.lengthened == 0.0


def _another_record(one: RecomputedParticipation) -> RecomputedParticipation:
    """The same participation, but for one record of a batch: another has its place."""
    first, *rest = one.batches
    others = np.setdiff1d(np.arange(one.records), np.concatenate(one.batches))
    return replace(one, batches=[np.append(first[1:], others[:1]), *rest])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"part": lambda one: replace(one, batches=one.batches[:1])}, "its batches are not those"),
        ({"part": _another_record}, "its batches are not those that the key draws"),
        (
            {"part": lambda one: replace(one, upload=one.upload + b" ")},
            "its upload is not the result of its steps",
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
            "query 1: the clipped sum behind the gradient: differs by",
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
            "the evidence lacks a norm for one of its records",
        ),
        ({"queries": lambda made: made[:-1]}, "makes 2 queries, but the evidence has 3"),
        ({"queries": lambda made: [*made, *made[:2]]}, "makes 5 queries, but the evidence has 3"),
    ],
)
def test_each_difference_of_a_participation_is_named_with_its_client(
    of_records: Bundle, change: dict[str, Change], said: str
) -> None:
    tally = judge(of_records, computed(of_records, _participations(of_records, **change)))
    client = of_records.readable_ledger.rounds[ROUND].clients[1]
    assert len(tally.reasons) == 1
    assert tally.reasons[0].startswith(f"round 2, client {client}")
    assert said in tally.reasons[0]
    # The others came out the same.
    assert tally.participations == len(of_records.readable_ledger.rounds[ROUND].clients) - 1


def test_rounding_may_move_a_clipped_sum_its_noise_and_its_norms_by_so_much(
    of_records: Bundle,
) -> None:
    def half_a_spacing(one: RecomputedQuery) -> RecomputedQuery:
        return replace(one, spacing=2e-3, noise=one.noise + 0.9e-3, clean=one.clean.copy())

    def more(one: RecomputedQuery) -> RecomputedQuery:
        return replace(one, spacing=2e-3, noise=one.noise + 1.1e-3, clean=one.clean.copy())

    within = judge(
        of_records, computed(of_records, _participations(of_records, query=half_a_spacing))
    )
    assert within.reasons == []
    beyond = judge(of_records, computed(of_records, _participations(of_records, query=more)))
    assert ["differs by" in one or "the key gives" in one for one in beyond.reasons] == [True, True]

    def shorter(share: float, **more: Any) -> Change:
        return lambda one: replace(one, raw_norms=one.raw_norms * (1.0 + share), **more)

    for change, right in (
        (shorter(1.9 * UNIT), True),
        (shorter(1e-3, norm_errors=np.full(100, 10.0)), True),
        (shorter(1e-3, moved=lambda: np.array([10.0, np.nan])), True),
        (shorter(1e-3, moved=lambda: np.array([1e-6])), False),
    ):

        def sized(one: RecomputedQuery, change: Change = change) -> RecomputedQuery:
            found = change(one)
            return replace(found, norm_errors=np.resize(found.norm_errors, len(found.norms)))

        tally = judge(of_records, computed(of_records, _participations(of_records, query=sized)))
        assert (tally.reasons == []) is right


def test_norms_that_are_taken_to_be_longer_are_no_fault_and_told(of_records: Bundle) -> None:
    def longer(one: RecomputedQuery) -> RecomputedQuery:
        return replace(one, raw_norms=one.raw_norms / 1.25)

    tally = judge(of_records, computed(of_records, _participations(of_records, query=longer)))
    assert tally.reasons == []
    assert tally.lengthened == pytest.approx(0.25, rel=1e-6)


def test_what_another_machine_rounds_otherwise_is_compared_by_bounds_alone(
    of_records: Bundle,
) -> None:
    def elsewhere(one: RecomputedParticipation) -> RecomputedParticipation:
        return replace(one, upload=b"rounded otherwise")

    def rounded(one: RecomputedQuery) -> RecomputedQuery:
        return replace(one, norms=one.norms * np.float32(1.0 + 2.0**-22))

    parts = _participations(of_records, part=elsewhere, query=rounded)
    digests = {**of_records.readable_ledger.rounds[ROUND].digests, "uploads_sha256": "f" * 64}
    again = computed(of_records, parts, digests=digests, differences=("torch",), published=False)
    tally = judge(of_records, again)
    assert (tally.reasons, tally.unjudged, tally.coarse) == ([], [], [])
    assert len(tally.elsewhere) == 1
    # Nothing is counted as the same to the last bit, nor the weights judged.
    assert (tally.participations, tally.across) == (len(parts), len(parts))
    assert (tally.rounds, tally.last) == (0, False)
    assert tally.queries == of_records.round_evidence(ROUND).batch_size.size


@pytest.mark.parametrize(
    ("off", "bound", "kink", "counted", "told"),
    [
        (0.0, 0.0, 0.0, True, ""),
        (0.04, 0.03, 0.0, True, ""),
        # All that rounding explains, and a record could hide in it: as if nobody had computed it.
        (0.04, 0.07, 0.0, False, "rounding could hide 0.11 C on this machine"),
        (0.0, 0.9, 0.0, False, "rounding could hide 0.9 C on this machine"),
        # A record within rounding of a kink moves the sum by twice 0.15 C at most.
        (0.2, 0.01, 0.15, False, "rounding could hide 0.21 C on this machine"),
        # More than rounding explains, and no proof of a lie.
        (0.2, 0.01, 0.08, False, "differs by 0.2 C from this machine's result for its records"),
        (1.0, 1e-6, 0.0, False, "differs by 1 C from this machine's result for its records"),
    ],
)
def test_on_another_machine_no_tenth_of_a_record_may_hide(
    of_records: Bundle, off: float, bound: float, kink: float, counted: bool, told: str
) -> None:
    """The trainer's own record of what it handed out lies `off` C from what is computed here."""
    clip = of_records.header.declared("clipping_norm")

    def another(one: RecomputedQuery) -> RecomputedQuery:
        moved = np.zeros(len(one.clean))
        moved[:4] = 0.5 * off * clip
        gradient = one.gradient + (moved / one.divisor).astype(np.float32)
        first = np.zeros(len(one.raw_norms))
        first[0] = kink * max(clip, float(one.raw_norms[0]))
        return replace(
            one,
            gradient=gradient,
            clean=one.clean + moved,
            bound=bound * clip,
            moved=lambda: first,
        )

    parts = _participations(of_records, query=another)
    digests = {**of_records.readable_ledger.rounds[ROUND].digests, "uploads_sha256": "f" * 64}
    tally = judge(of_records, computed(of_records, parts, digests=digests, differences=("torch",)))
    assert tally.reasons == []
    assert tally.participations == len(parts) - (not counted)
    if counted:
        assert tally.across == len(parts)
        assert (tally.coarse, tally.unjudged) == ([], [])
        assert off + bound - 1e-5 <= tally.hidden <= max(2.0 * bound, off + bound) + 1e-5
    else:
        found = tally.coarse if max(2.0 * bound, 2.0 * kink) > off else tally.unjudged
        assert len([*tally.coarse, *tally.unjudged]) == len(found) == 1
        assert told in found[0]


def test_what_the_evidence_does_not_keep_is_nowhere_to_be_compared(of_records: Bundle) -> None:
    parts = _participations(of_records)
    digests = {**of_records.readable_ledger.rounds[ROUND].digests, "uploads_sha256": "f" * 64}
    again = computed(of_records, parts, digests=digests, differences=("torch",))

    def exchange(*_: object) -> object:
        raise UntrustedFileError("evidence/upload.npz", "missing")

    lacking = replace(of_records)
    object.__setattr__(lacking, "exchange", exchange)
    tally = judge(lacking, again)
    assert (tally.participations, len(tally.unjudged)) == (0, len(parts))
    other = {**digests, "broadcast_sha256": "f" * 64}
    tally = judge(of_records, computed(of_records, parts, digests=other, differences=("torch",)))
    assert (tally.participations, len(tally.unjudged)) == (0, 1)


def test_a_participation_that_the_evidence_leaves_out_is_found(of_records: Bundle) -> None:
    parts = _participations(of_records)
    missing = replace(parts[0], client=99)
    tally = judge(of_records, computed(of_records, [missing, *parts[1:]]))
    assert tally.reasons == ["round 2, client 99: is in the ledger, but not in the evidence"]
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
        again = computed(bundle, parts, commitments=commitments, exact=True)
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
        f"round 2: recomputed, it differs from the run in the commitment of client {client}, on "
        "the same processor with the same versions"
    ]


def test_digests_that_differ_are_named_three_at_most(of_records: Bundle) -> None:
    item = of_records.readable_ledger.rounds[ROUND]

    def named(count: int) -> str:
        names = ("broadcast_sha256", "uploads_sha256", "state_sha256", "parameters_sha256")
        digests = {**item.digests, **dict.fromkeys(names[:count], "f" * 64)}
        again = computed(of_records, [], digests=digests, exact=True)
        return judge(of_records, again).reasons[0]

    assert "differs from the run in broadcast" in named(1)
    assert "differs from the run in broadcast, uploads, state" in named(3)
    assert "differs from the run in broadcast, uploads, state and 1 more" in named(4)


def test_the_server_is_judged_where_all_of_a_round_was_computed(of_records: Bundle) -> None:
    charges = charges_of(of_records)
    other = ({**charges[0], "noise_multiplier": 9.0}, *charges[1:])
    wrong = "round 2: its charge is not what the spec gives"
    assert judge(of_records, computed(of_records, [], charges=other)).reasons == [wrong]
    assert judge(of_records, computed(of_records, [], charges=charges[1:])).reasons == [wrong]
    assert judge(of_records, computed(of_records, [], attempt=2)).reasons == [wrong]
    part = judge(of_records, computed(of_records, [], charges=(), whole=False, published=False))
    assert (part.reasons, part.rounds, part.last) == ([], 0, False)
    lost = judge(of_records, computed(of_records, [], published=False))
    assert lost.reasons == ["round 2: is the last, but the published parameters are not its result"]
    assert (lost.rounds, lost.last) == (1, False)


def test_rounds_are_added_up_and_a_cohort_has_no_order(of_records: Bundle) -> None:
    tally = Recomputed()
    item = of_records.readable_ledger.rounds[ROUND]
    again = computed(of_records, [], cohort=item.clients[::-1])
    judge_round(of_records, item, again, tally)
    turned = replace(item, clients=item.clients[::-1])
    judge_round(of_records, turned, replace(again, cohort=item.clients), tally)
    assert (tally.reasons, tally.rounds) == ([], 2)


def test_a_hundredth_of_a_round_is_not_yet_far(of_records: Bundle) -> None:
    digests = {"uploads_sha256": "f" * 64}
    at = computed(of_records, [], digests=digests, moved=0.01, differences=("torch",))
    assert (judge(of_records, at).reasons, len(judge(of_records, at).elsewhere)) == ([], 1)


def test_an_engine_hands_over_one_commitment_a_client(of_records: Bundle) -> None:
    many = len(of_records.readable_ledger.rounds[ROUND].clients)
    own = {"commitment": np.zeros((many, 32), np.uint8)}
    run = changed(of_records, evidence={ROUND: own})
    one_less = np.zeros((many - 1, 32), np.uint8)
    with pytest.raises(ValueError, match="zip"):
        judge(run, computed(run, [], commitments=one_less))
