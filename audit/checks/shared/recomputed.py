"""What was computed again, held against what a run says of the same round and participation.

Digests, batches, charges and noise must agree exactly. A disclosed gradient less its noise must be
the clipped sum of the second implementation, within what rounding explains.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.evidence import RoundEvidence
from audit.reading.ledger import Round
from audit.reading.ledger_lines import RoundSpend, Spend, read_spend
from audit.recomputed import (
    Floats,
    RecomputedParticipation,
    RecomputedQuery,
    RecomputedRelease,
    RecomputedRound,
    RecomputedUpdate,
)

if TYPE_CHECKING:
    from audit.reading.client_evidence import UpdateRound

# Unit roundoff of float32, and what a handful of float64 roundings can add to it.
UNIT = 2.0**-24 * (1.0 + 2.0**-20)
# Norms and noise are noted in float32: half a unit for that, half for what was computed from.
_NOTED = 2.0 * UNIT
# What adding up numbers in float64 in another order can move, over the sum, and far more.
_SUMMED = 1e-9


@dataclass
class Recomputed:
    """What came of all rounds so far.

    Attributes:
        reasons: what differs.
        unjudged: why something could not be judged.
        participations: how many were computed again in full.
        rounds: how many rounds were run again whole, to the last bit.
        queries: gradient queries held against the second implementation.
        closest: the largest share of a bound that rounding took up.
        lengthened: by what share of itself a norm was taken to be longer than it is.
        hidden: the longest part of a clipped sum that could hide below its bound, over C.
        last: whether the last round led to the published parameters.
        elsewhere: why bits could not be asked for, a line a round.
        across: how many participations were held against the trainer's own record of them, because
            bits could not be asked for.
        coarse: of which rounding could hide too much on this machine, a line each: these stand as
            if they had not been computed again.
    """

    reasons: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    participations: int = 0
    rounds: int = 0
    queries: int = 0
    closest: float = 0.0
    lengthened: float = 0.0
    hidden: float = 0.0
    last: bool = False
    elsewhere: list[str] = field(default_factory=list)
    across: int = 0
    coarse: list[str] = field(default_factory=list)

    def bound(self, what: str, off: float, bound: float, clip: float) -> None:
        """Note how far something lies from its second computation, in the L2 norm."""
        if not math.isfinite(bound):
            self.unjudged.append(
                f"{what}: training diverged: numbers are out of float32's range, so nothing can be "
                "compared"
            )
            return
        self.closest = max(self.closest, off / bound if bound > 0.0 else 0.0)
        self.hidden = max(self.hidden, 2.0 * bound / clip)
        # Also false where a number is none.
        if not off <= bound:
            self.reasons.append(
                f"{what}: differs by {off / clip:.2g} C from what the records give, but rounding "
                f"explains only {bound / clip:.2g} C"
            )


# The most of a clipped sum, over C, that may hide behind rounding in a participation that was
# computed on another machine. A record that counts for 1.1 C in place of C is seen.
MOST_HIDDEN = 0.1
# A hundredth of what a round moves: rounding moves it by less than a ten-thousandth of that, and a
# mechanism that was changed by more. It tells FAIL from NOT VERIFIED, and neither from PASS.
_FAR = 0.01


def judge_round(bundle: Bundle, item: Round, again: RecomputedRound, tally: Recomputed) -> None:
    """Hold one round, and the participations that were drawn of it, against the run.

    Args:
        bundle: the run.
        item: the round as the ledger tells it.
        again: the same, computed again.
        tally: where differences are noted.

    Raises:
        AuditError: the round's evidence cannot be read.
    """
    where = f"round {item.round}"
    if again.problem is not None:
        tally.unjudged.append(again.problem)
        return
    evidence: RoundEvidence | UpdateRound
    evidence = bundle.evidence_of_round(item.round, bundle.header.unit)
    same, excuse = _digests(where, item, again, evidence, tally)
    if excuse is not None:
        known = isinstance(evidence, RoundEvidence) and excuse.same_broadcast
        (tally.elsewhere if known else tally.unjudged).append(excuse.text)
    if again.cohort is not None and sorted(again.cohort) != sorted(item.asked):
        tally.reasons.append(f"{where}: its clients are not those that the key draws")
    if again.whole:
        _server(bundle, where, item, again, same, tally)
    if again.release is not None and not isinstance(evidence, RoundEvidence):
        _release(bundle, where, again.release, evidence, tally)
    for part in again.participations:
        name = f"{where}, client {part.client}"
        if part.client not in evidence.clients.tolist():
            tally.reasons.append(f"{name}: is in the ledger, but not in the evidence")
            continue
        row = evidence.clients.tolist().index(part.client)
        before = len(tally.reasons)
        if isinstance(evidence, RoundEvidence):
            _participation(bundle, name, part, evidence, row, same, tally)
        else:
            _update(bundle, name, part, evidence, row, same, tally)
        if len(tally.reasons) > before:
            continue
        if same:
            tally.participations += 1
        elif excuse is not None and excuse.same_broadcast and isinstance(evidence, RoundEvidence):
            _across(bundle, name, item.round, part, tally)


@dataclass(frozen=True)
class _Excuse:
    """Why a round has other bits here, which nobody can hold against it.

    Attributes:
        text: For the finding.
        same_broadcast: Whether its clients began with what they were sent.
    """

    text: str
    same_broadcast: bool


def _digests(
    where: str,
    item: Round,
    again: RecomputedRound,
    evidence: RoundEvidence | UpdateRound,
    tally: Recomputed,
) -> tuple[bool, _Excuse | None]:
    """Whether the round was computed again to the last bit, and what explains it if not."""
    committed = evidence.commitment
    if committed is not None and "participations_sha256" in item.digests:
        content = committed.astype(np.uint8).tobytes()
        if hashlib.sha256(content).hexdigest() != item.digests["participations_sha256"]:
            tally.reasons.append(f"{where}: its commitments are not those the ledger notes")
    if isinstance(evidence, RoundEvidence):
        rows_of = evidence.upload_sha256.astype(np.uint8).tobytes()
        if hashlib.sha256(rows_of).hexdigest() != item.exchanged:
            tally.reasons.append(f"{where}: its uploads are not those the ledger notes")
    found = dict(item.digests)
    different = [name for name, digest in again.digests.items() if found.get(name) != digest]
    if committed is not None:
        rows = {client: row for row, client in enumerate(evidence.clients.tolist())}
        for client, own in zip(again.clients, again.commitments, strict=True):
            row = rows.get(client)
            if row is None or not np.array_equal(committed[row], own):
                different.append(f"the commitment of client {client}")
    if not different:
        return True, None
    text = f"{where}: recomputed, it differs from the run in {_named(different)}"
    if again.exact:
        tally.reasons.append(f"{text}, on the same processor with the same versions")
    elif again.moved is not None and not again.moved <= _FAR:
        tally.reasons.append(
            f"{text}, and ends {again.moved:.2g} times as far from the run's result as the whole "
            "round went"
        )
    else:
        sentence = f"{text}; on this machine that proves nothing ({'; '.join(again.differences)})"
        return False, _Excuse(sentence, "broadcast_sha256" not in different)
    return False, None


def _named(different: Sequence[str]) -> str:
    names = [name.removesuffix("_sha256").replace("_", " ") for name in different]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _server(
    bundle: Bundle, where: str, item: Round, again: RecomputedRound, same: bool, tally: Recomputed
) -> None:
    """Who took part, what was charged, and where the round led to."""
    ledger = bundle.readable_ledger
    spends: list[Spend | RoundSpend] = [*ledger.spends, *ledger.round_spends]
    charged = [
        replace(spend, line=0)
        for spend in spends
        if (spend.round, spend.attempt) == (item.round, again.attempt)
    ]
    due = [read_spend(entry, 0) for entry in again.charges]
    if sorted(charged, key=repr) != sorted(due, key=repr):
        tally.reasons.append(f"{where}: its charge is not what the spec gives")
    if same:
        tally.rounds += 1
    if again.published is not None and same:
        tally.last = again.published
        if not again.published:
            tally.reasons.append(
                f"{where}: is the last, but the published parameters are not its result"
            )


def _participation(
    bundle: Bundle,
    where: str,
    part: RecomputedParticipation,
    evidence: RoundEvidence,
    row: int,
    same: bool,
    tally: Recomputed,
) -> None:
    """One participation of which single records are protected."""
    header = bundle.header
    clip = header.declared("clipping_norm")
    held = [header.records[client] for client in evidence.clients.tolist()]
    start = sum(held[:row])
    included = evidence.inclusions[start : start + held[row]]
    counts = np.zeros(part.records, dtype=np.int64)
    for batch in part.batches:
        np.add.at(counts, batch, 1)
    if not np.array_equal(included, counts):
        tally.reasons.append(f"{where}: its batches are not those that the key draws")
    if same:
        digest = evidence.upload_sha256[row].astype(np.uint8).tobytes()
        if hashlib.sha256(part.upload).digest() != digest:
            tally.reasons.append(f"{where}: its upload is not the result of its steps")
    queries = evidence.batch_size.shape[1]
    offsets = evidence.record_offsets[row * queries :]
    places = bundle.layout().sample_coordinates
    made, noted = 0, list[tuple[RecomputedQuery, Floats]]()
    for number, query in enumerate(part.queries()):
        made += 1
        if number >= queries:
            continue
        name = f"{where}, query {number + 1}"
        tally.queries += 1
        off, bound = _clean(query, clip)
        tally.bound(f"{name}: the clipped sum behind the gradient", off, bound, clip)
        sampled = evidence.noise_sample[row, number] * clip
        _noise(name, query.noise[places], sampled, query.clean[places], query.spacing, tally)
        if evidence.batch_size[row, number] != len(query.records):
            tally.reasons.append(f"{name}: its batch is not of the size that the key draws")
        if evidence.divisor[row, number] != query.divisor:
            tally.reasons.append(f"{name}: was not divided by {query.divisor:g}")
        first, last = offsets[number : number + 2]
        noted.append((query, evidence.raw_norms[first:last]))
    _norms(where, noted, same, tally)
    if made != queries:
        tally.reasons.append(f"{where}: makes {made} queries, but the evidence has {queries}")


def _clean(query: RecomputedQuery, clip: float) -> tuple[float, float]:
    """How far the clean sum behind a gradient lies from the plain one, and what explains it.

    A gradient is a noisy sum on a grid, narrowed to float32 and divided there: half a spacing and
    two roundings, coordinate by coordinate. What goes beyond is rounding of the sum itself; where
    that is not enough, records that lie within rounding of a kink, each clipped before and after.
    """
    noisy = query.gradient.astype(np.float64) * query.divisor
    room = 0.5 * query.spacing + 2.0 * UNIT * np.abs(noisy)
    beyond = np.maximum(np.abs(noisy - query.noise - query.clean) - room, 0.0)
    off, bound = float(np.linalg.norm(beyond)), query.bound
    return off, bound if off <= bound else bound + _kinks(query, clip)


def _kinks(query: RecomputedQuery, clip: float) -> float:
    """How far records that lie within rounding of a kink move a sum, clipped before and after."""
    clipped = clip / np.maximum(query.raw_norms, clip)
    return 2.0 * float(np.nansum(clipped * query.moved()))


def _across(
    bundle: Bundle, where: str, index: int, part: RecomputedParticipation, tally: Recomputed
) -> None:
    """Hold the trainer's own record of what another machine handed out against what this one does.

    Both have the key's noise, which is exact on every machine, so that they differ by what was
    added to a clipped sum, and by rounding here and there. A lie is then no longer than the
    difference and the bound of this machine's rounding together. The check `uploads` derives points
    and upload from the recorded gradients.
    """
    clip = bundle.header.declared("clipping_norm")
    try:
        recorded = bundle.exchange(index, part.client, bundle.header.parameters).gradients
    except UntrustedFileError:
        tally.unjudged.append(
            f"{where}: has different bits on this machine, and the evidence lacks some of the "
            "gradients used"
        )
        return
    hidden, furthest, explained = 0.0, 0.0, 0.0
    made = 0
    for number, query in enumerate(part.queries()):
        made += 1
        if number >= len(recorded):
            break
        here, there = (
            one.astype(np.float64) * query.divisor for one in (query.gradient, recorded[number])
        )
        room = query.spacing + 2.0 * UNIT * (np.abs(here) + np.abs(there))
        off = float(np.linalg.norm(np.maximum(np.abs(here - there) - room, 0.0)))
        bound = _clean(query, clip)[1]
        # Also where a number is none.
        could_hide = (off + bound) / clip if math.isfinite(off + bound) else math.inf
        room_here = 2.0 * bound
        if could_hide > MOST_HIDDEN and not off <= room_here:
            room_here += _kinks(query, clip)
        hidden = max(hidden, could_hide)
        if not off <= room_here and not off / clip <= furthest:
            furthest, explained = off / clip, room_here / clip
    if made != len(recorded):
        tally.unjudged.append(f"{where}: the evidence has {len(recorded)} queries of {made}")
    elif hidden <= MOST_HIDDEN:
        tally.participations += 1
        tally.across += 1
        tally.hidden = max(tally.hidden, hidden)
    elif furthest == 0.0:
        tally.coarse.append(f"{where}: rounding could hide {hidden:.2g} C on this machine")
    else:
        tally.unjudged.append(
            f"{where}: used a gradient that differs by {furthest:.2g} C from this machine's result "
            f"for its records, but rounding explains only {explained:.2g} C"
        )


def _noise(
    where: str, noise: Floats, noted: Floats, clean: Floats, spacing: float, tally: Recomputed
) -> None:
    """The noise that the evidence has must be the key's, at every coordinate that it shows."""
    # The noise is noted as the difference of two sums, the noisy one on a grid and in float32.
    room = 0.5 * spacing + _NOTED * (np.abs(noise) + np.abs(clean) + np.abs(noted))
    if not np.all(np.abs(noted - noise) <= room):
        tally.reasons.append(f"{where}: its noise is not what the key gives")


def _norms(
    where: str, queries: Sequence[tuple[RecomputedQuery, Floats]], same: bool, tally: Recomputed
) -> None:
    """Norms of records' gradients: those noted, and those that clipping went by.

    What was noted must be what the run's arithmetic comes to. That may take a norm to be longer
    than it is (Gram matrices are lengthened by what their rounding may hide), and then clips more;
    shorter it may be by rounding alone. Each may be rounded more than the second computation's was,
    by luck; not all of a participation's.
    """
    if any(len(noted) != len(query.norms) for query, noted in queries):
        tally.reasons.append(f"{where}: the evidence lacks a norm for one of its records")
        return
    if same and not all(
        np.array_equal(noted.astype(np.float32), query.norms, equal_nan=True)
        for query, noted in queries
    ):
        tally.reasons.append(f"{where}: norms noted are not those of its records' gradients")
    off = room = 0.0
    for query, _ in queries:
        finite = np.isfinite(query.norms) & np.isfinite(query.raw_norms)
        due, taken = query.raw_norms[finite], query.norms[finite].astype(np.float64)
        off += float(np.sum(np.square(np.maximum(due - taken, 0.0))))
        room += float(np.sum(np.square(query.norm_errors[finite] + _NOTED * due)))
        longer = (taken - due) / np.maximum(due, np.finfo(float).tiny)
        tally.lengthened = max(tally.lengthened, float(longer.max(initial=0.0)))
    if not off <= room:
        # Again with what records move by that lie within rounding of a kink.
        room += float(sum(np.nansum(np.square(query.moved())) for query, _ in queries))
    if not off <= room:
        tally.reasons.append(f"{where}: norms are shorter than its records' gradients are")


def _update(
    bundle: Bundle,
    where: str,
    part: RecomputedParticipation,
    evidence: UpdateRound,
    row: int,
    same: bool,
    tally: Recomputed,
) -> None:
    """One participation of a whole client."""
    assert part.update is not None
    clip, again = bundle.header.declared("clipping_norm"), part.update()
    off = float(np.linalg.norm(again.update.astype(np.float64) - again.reference))
    # What the update is off by reaches the sum clipped: by no more, and scaled with it.
    norm = float(np.linalg.norm(again.taken.astype(np.float64)))
    factor = min(1.0, clip / norm) if norm > 0.0 else 1.0
    tally.queries += 1
    bound = again.bound if off <= again.bound else again.bound + 2.0 * again.moved()
    tally.bound(f"{where}: its local training", off * factor, bound * factor, clip)
    for fault in _clipping(again, clip):
        tally.reasons.append(f"{where}: {fault}")
    noted, kept = float(evidence.raw_norms[row]), again.taken[again.clipped != 0.0]
    raw = float(np.linalg.norm(kept.astype(np.float64)))
    if same and math.isfinite(noted) and abs(noted - raw) > _NOTED * raw:
        tally.reasons.append(f"{where}: the norm noted is not that of its update")
    if same and again.noise is not None:
        squares = evidence.upload_noise_sum_squares
        said = float("nan") if squares is None else float(np.sum(squares[row]))
        due = float(np.sum(np.square(again.upload.astype(np.float64) - again.clipped)))
        if not abs(said - due) <= _SUMMED * due:
            tally.reasons.append(
                f"{where}: the noise noted of its upload is not what the key gives"
            )


def _clipping(again: RecomputedUpdate, clip: float) -> list[str]:
    """What is wrong with how an update was clipped, and noised where its client does that."""
    taken, clipped = again.taken.astype(np.float64), again.clipped.astype(np.float64)
    if not np.all(np.isfinite(taken)):
        return [] if not clipped.any() else ["an update that is not finite was sent"]
    faults = []
    there = clipped != 0.0
    left_out = np.abs(taken[~there]).max(initial=0.0)
    if there.any() and left_out > np.abs(taken[there]).min():
        faults.append("a coordinate left out of its update is larger than one that was kept")
    norm = float(np.linalg.norm(taken[there]))
    factor = min(1.0, clip * (1.0 - 2.0**-22) / norm) if norm > 0.0 else 1.0
    off = np.abs(clipped[there] - factor * taken[there])
    if not np.all(off <= 8.0 * UNIT * np.abs(clipped[there])):
        faults.append("its update was not clipped to the clipping norm")
    upload = again.upload.astype(np.float64)
    noise = again.noise if again.noise is not None else np.zeros(len(clipped))
    room = np.zeros(len(clipped))
    if again.noise is not None:
        room = 0.5 * again.spacing + (2.0 * UNIT + _written(again.bits)) * np.abs(upload)
    if not np.all(np.abs(upload - clipped - noise) <= room):
        faults.append("its upload is not its clipped update and the noise that the key gives")
    return faults


def _written(bits: int | None) -> float:
    """How far writing a number with so many significant bits moves it, over its size."""
    return 0.0 if bits is None else 2.0**-bits


def _release(
    bundle: Bundle, where: str, release: RecomputedRelease, evidence: UpdateRound, tally: Recomputed
) -> None:
    """A client-level round's release must be the sum of its uploads and the key's noise.

    The noise is known with the server's key, the sum once all of the round's clients are.
    """
    if release.noise is not None:
        noted = evidence.noise_sample * bundle.header.declared("clipping_norm")
        shown = release.noise[bundle.layout().sample_coordinates]
        _noise(where, shown, noted, evidence.clean_sample, release.spacing, tally)
    if release.released is None or release.total is None:
        return
    noise = release.noise if release.noise is not None else np.zeros(len(release.total))
    noisy = release.released.astype(np.float64) * release.divisor
    room = (2.0 * UNIT + _written(release.bits)) * np.abs(noisy)
    room = room + 2.0**-40 * (np.abs(release.total) + np.abs(noise))
    if release.noise is not None:
        room = room + 0.5 * release.spacing
    beyond = np.maximum(np.abs(noisy - release.total - noise) - room, 0.0)
    if float(np.linalg.norm(beyond)) != 0.0:
        tally.reasons.append(f"{where}: its release is not its uploads' sum and the key's noise")
