"""Check "uploads": can every tensor that leaves a client be worked out from noised values alone?

Replays participations with the auditor's own implementation of the algorithm (`audit.replay`). A
clean gradient, a loss or a record that found its way into an upload, a memory, or the choice of the
point at which a gradient is asked for, is what the replay cannot reproduce.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import RoundEvidence
from audit.reading.exchanges import Exchange, Extent, ServerRound, extent, is_kept
from audit.reading.ledger import Header, Ledger, Round
from audit.reading.ledger_lines import Spend, last_spends
from audit.replay import Replay, find_replay
from audit.replay.base import Conditions
from audit.replay.participation import (
    Message,
    Tally,
    Trajectory,
    finished_rounds,
    judge_weights,
    learning_rate,
    partition_of,
    read_message,
    recorded_coordinates,
    replay_participation,
)
from audit.replay.queries import block_sums, grid_notes, noise_faults, too_fine
from audit.replay.rounding import Rounded
from audit.replay.rounds import (
    ANOTHER_KEY,
    ServerRounds,
    agrees,
    another_key,
    combine,
    published,
    with_average,
)
from audit.untrusted import fields
from audit.untrusted.archives import Integers
from audit.untrusted.fields import FieldError
from audit.verdict import Severity, Verdict

# Coordinates whose bound is infinite (a quotient by what may be 0) say nothing.
_MOST_UNCERTAIN = 0.01


def _queries(ledger: Ledger, header: Header) -> int:
    """Gradients of one participation, as they are charged."""
    charged = {spend.queries_per_step for spend in ledger.spends}
    if len(charged) != 1:
        raise UnverifiedError("the ledger does not charge the same queries for every step")
    return header.local_steps * charged.pop()


def _kept(
    evidence: RoundEvidence, item: Round, header: Header, salt: bytes, share: float
) -> list[int]:
    """Rows of the round's clients whose participation is evidenced."""
    rows = []
    last = len(evidence.clients) - 1
    for row, client in enumerate(evidence.clients):
        always = (item.round, row) in ((0, 0), (header.rounds - 1, last))
        digest = evidence.upload_sha256[row].astype(np.uint8).tobytes()
        if always or is_kept(salt, item.round, int(client), digest, share):
            rows.append(row)
    return rows


def _bound(where: str, exchange: Exchange, item: Round, digest: bytes, tally: Tally) -> None:
    """The messages must be those whose digests the ledger took down."""
    if hashlib.sha256(exchange.broadcast).hexdigest() != item.broadcast:
        tally.reasons.append(f"{where}: its broadcast is not the one that the ledger notes")
    if hashlib.sha256(exchange.upload).digest() != digest:
        tally.reasons.append(f"{where}: its upload is not the one that the server combined")


def _servers(
    bundle: Bundle, kept: Extent, finished: Sequence[Round], tally: Tally
) -> ServerRounds | None:
    """The evidence of servers of its own that a run has whose participations are not all whole."""
    if kept == Extent(1.0, None) or all(item.pieces is None for item in finished):
        return None
    return ServerRounds(bundle, tally, bundle.header.clients_per_round)


def _unmoved(item: Round, later: Sequence[Round], tally: Tally) -> None:
    """A round without clients changes nothing."""
    if later and later[0].broadcast != item.broadcast:
        tally.reasons.append(f"round {item.round}: had no clients, but the server moved")


def _noise_variance(spend: Spend) -> float:
    """Φ = (σC/B)² of a client's charge."""
    deviation = spend.noise_multiplier * spend.clipping_norm / spend.expected_batch_size
    return deviation**2


def _conditions(
    bundle: Bundle,
    item: Round,
    spends: Mapping[tuple[int, int], Spend],
    earlier: int,
    coordinates: Integers | None,
) -> Conditions:
    """What spec and ledger say of a round, for its server."""
    algorithm, header = fields.mapping(bundle.readable_spec, "algorithm"), bundle.header
    spend = spends.get((item.round, item.clients[0]))
    if spend is None:
        raise UnverifiedError(f"round {item.round}: was not charged")
    return Conditions(
        algorithm=algorithm,
        clients=header.clients,
        learning_rate=learning_rate(algorithm, item.round, header.rounds),
        steps=item.steps[0],
        earlier_steps=earlier,
        noise_variance=_noise_variance(spend),
        partition=partition_of(bundle, coordinates),
        whole=coordinates is None,
    )


@dataclass
class _Round:
    """One round while its participations are replayed.

    Attributes:
        item: the round in the ledger.
        evidence: of its noise and norms.
        rate: its learning rate.
        served: what was kept of its server; None where nothing was, or none is judged by that.
        setting: what spec and ledger say of the last participation that was looked at.
        sent: the broadcast of the first that was replayed, as it was sent.
        broadcast: the same, read.
        uploads: what those that were replayed uploaded.
    """

    item: Round
    evidence: RoundEvidence
    rate: float
    served: ServerRound | None = None
    setting: Conditions | None = None
    sent: bytes = b""
    broadcast: Message | None = None
    uploads: list[Mapping[str, Rounded]] = field(default_factory=list)


class _Replaying:
    """One pass over a run's rounds: all that is the same in them, and what one leaves the next."""

    def __init__(self, bundle: Bundle, replay: Replay, kept: Extent, tally: Tally) -> None:
        self.bundle, self.replay, self.kept, self.tally = bundle, replay, kept, tally
        self.header, layout = bundle.header, bundle.layout()
        self.algorithm = fields.mapping(bundle.readable_spec, "algorithm")
        self.spends, self.salt = last_spends(bundle.readable_ledger.spends), bundle.salt()
        self.clip = self.header.declared("clipping_norm")
        self.coordinates = recorded_coordinates(bundle, kept)
        self.partition = partition_of(bundle, self.coordinates)
        # Where noise is sampled, among the coordinates that are recorded.
        self.sampled = layout.sample_coordinates
        if self.coordinates is not None:
            self.sampled = np.searchsorted(self.coordinates, self.sampled)
        self.trajectory = Trajectory(replay, tally)
        self.earlier_steps = 0
        # Tensors that an upload has, as soon as one was replayed.
        self.names: frozenset[str] | None = None
        # Of a clean gradient, what could hide behind the rounding of each upload.
        self.hidden_shares = [0.0]

    def round(self, item: Round, later: Sequence[Round], servers: ServerRounds | None) -> None:
        """Replay the participations of a round that were kept, and what its server made of them."""
        evidence = self.bundle.round_evidence(item.round)
        digests = evidence.upload_sha256.astype(np.uint8)
        if hashlib.sha256(digests.tobytes()).hexdigest() != item.exchanged:
            self.tally.reasons.append(
                f"round {item.round}: its uploads are not those the ledger notes"
            )
        rate = learning_rate(self.algorithm, item.round, self.header.rounds)
        now = _Round(item, evidence, rate)
        if not item.clients:
            _unmoved(item, later, self.tally)
            self.tally.rounds += servers is not None
        elif servers is not None:
            now.served = servers.find(item, not later)
        for row in _kept(evidence, item, self.header, self.salt, self.kept.share):
            self._participation(now, row)
        uploads = now.uploads if servers is None else ()
        self.trajectory.leaves(item, now.setting, now.broadcast, uploads)
        if servers is not None and now.served is not None:
            self._server(now, later, servers)
        self.earlier_steps += max(item.steps, default=0)

    def _participation(self, now: _Round, row: int) -> None:
        """Replay one participation, which must go on from what was evidenced before it."""
        item, evidence, tally = now.item, now.evidence, self.tally
        client = int(evidence.clients[row])
        where = f"round {item.round}, client {client}"
        exchange = self.bundle.exchange(item.round, client, len(self.partition.of_coordinate))
        spend = self.spends.get((item.round, client))
        steps = dict(zip(item.clients, item.steps, strict=True))
        if spend is None or client not in steps:
            raise UnverifiedError(f"{where}: was not charged, or is not in the ledger")
        if self.coordinates is None:
            digest = evidence.upload_sha256[row].astype(np.uint8).tobytes()
            _bound(where, exchange, item, digest, tally)
        elif exchange.square_sums is None:
            raise UnverifiedError(f"{where}: the block sums of its gradients are not recorded")
        now.setting = Conditions(
            algorithm=self.algorithm,
            clients=self.header.clients,
            learning_rate=now.rate,
            steps=steps[client],
            earlier_steps=self.earlier_steps,
            noise_variance=_noise_variance(spend),
            partition=self.partition,
            whole=self.coordinates is None,
        )
        sums = block_sums(exchange, self.partition)
        faults = noise_faults(exchange, sums, evidence, row, self.clip, self.sampled)
        tally.reasons.extend(f"{where}: {fault}" for fault in faults)
        self.trajectory.remembers(where, client, item.round, exchange)
        if now.sent and now.sent != exchange.broadcast:
            tally.reasons.append(f"{where}: was sent a different broadcast from the others")
        result = replay_participation(
            where, exchange, sums, now.setting, self.replay, tally, self.header.grid
        )
        if result is None:
            return
        broadcast, upload = result
        self.names = self.names or frozenset(upload)
        if now.served is not None and row < len(now.served.uploads):
            combined, at = now.served.uploads[row], now.served.coordinates
            if not agrees(combined, at, read_message(exchange.upload), self.coordinates):
                tally.reasons.append(f"{where}: its upload is not the one that was combined")
        now.uploads.append(upload)
        if now.broadcast is None:
            now.broadcast, now.sent = broadcast, exchange.broadcast
            self.trajectory.arrives(where, now.setting, broadcast)
        norms = np.sqrt(evidence.clean_sum_squares[row].sum(axis=-1))
        clean = max(float(np.median(norms)), 1e-300)
        self.hidden_shares.append(2.0 * tally.widths[-1] / clean)

    def _server(self, now: _Round, later: Sequence[Round], servers: ServerRounds) -> None:
        """Judge the round's server by what was kept of it."""
        item, served = now.item, now.served
        assert served is not None
        following = next((one for one in later if one.clients), None)
        servers.bind(item, following, served, len(item.clients))
        setting = _conditions(
            self.bundle, item, self.spends, self.earlier_steps, served.coordinates
        )
        combine(servers, item, served, setting, self.replay, self.names, not later)


def _replay_all(
    bundle: Bundle, replay: Replay, kept: Extent, tally: Tally, private: dict[str, Any]
) -> None:
    """Go through all rounds in order, and end with the published weights."""
    replaying = _Replaying(bundle, replay, kept, tally)
    finished = finished_rounds(bundle.readable_ledger)
    tally.finished, tally.participations = len(finished), sum(len(one.clients) for one in finished)
    servers = _servers(bundle, kept, finished, tally)
    for place, item in enumerate(finished):
        replaying.round(item, finished[place + 1 :], servers)
    left = replaying.trajectory.after
    if left is not None:
        judge_weights(bundle, replaying.coordinates, published(left), tally)
    if not tally.rounds and tally.replayed:
        tally.unjudged.append(
            "no round's uploads were all kept: how the server combined them was not judged"
        )
    hidden = max(replaying.hidden_shares)
    private["largest_share_of_a_clean_gradient_that_could_hide"] = hidden


def _judge(bundle: Bundle) -> Judgement:
    header = bundle.header
    try:
        name = fields.text(fields.mapping(bundle.readable_spec, "algorithm"), "name")
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    found = find_replay(name)
    if found is None or found.replay is None:
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"the auditor has no replay of {name}: the content of its uploads was not judged",
        )
    if another_key(bundle):
        return Judgement(Verdict.FAIL, ANOTHER_KEY)
    participations = header.rounds * header.clients_per_round
    queries = _queries(bundle.readable_ledger, header)
    kept = extent(header.parameters, queries, participations)
    tally, private = Tally(reasons=too_fine(header)), dict[str, Any]()
    try:
        algorithm = fields.mapping(bundle.readable_spec, "algorithm")
        replay = with_average(found.replay, algorithm)
        _replay_all(bundle, replay, kept, tally, private)
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, IndexError) as error:
        if found.source is None:
            raise
        what = f"the replay of {name} that {found.source} brings failed ({type(error).__name__})"
        raise UnverifiedError(what) from error
    tally.unjudged.extend((*tally.diverged, *grid_notes(header)))
    judged = _conclude(tally, kept, header, private)
    shares = (share_judged(tally),) if kept.share < 1.0 or kept.coordinates is not None else ()
    return replace(
        judged,
        details={**judged.details, **found.details},
        qualifications=(*judged.qualifications, *shares, *found.qualifications),
    )


def _conclude(tally: Tally, kept: Extent, header: Header, private: dict[str, Any]) -> Judgement:
    """The verdict on all comparisons."""
    clip = header.clipping_norm or 1.0
    hidden = 2.0 * max(tally.widths, default=0.0) / clip
    amount = "all" if kept.share == 1.0 else f"{tally.replayed} (drawn in secret) of"
    what = f"{amount} {tally.participations} participations"
    if kept.coordinates is not None:
        what += f" at {kept.coordinates} coordinates drawn in secret"
    details = {
        "participations": tally.participations,
        "replayed": tally.replayed,
        "tensors": tally.tensors,
        "rounds_combined": tally.rounds,
        "coordinates": kept.coordinates or header.parameters,
        "smallest_visible": hidden,
    }
    power = (
        "certainly detected, in the update of any replayed participation: an added term longer "
        f"than {hidden:.2g} C (a clean mean gradient is at most about C long). In other tensors "
        f"and points, one of about 1e-5 of their size{room_left(tally, header)}"
    )
    if tally.reasons:
        return Judgement(Verdict.FAIL, listed(tally.reasons), details, private, power=power)
    if tally.unjudged and not tally.replayed:
        # Nothing was asked for that could have been recorded: this qualifies the verdict without
        # changing it.
        why = listed(tally.unjudged)
        return Judgement(
            Verdict.NOT_VERIFIED,
            why,
            details,
            private,
            (f"uploads were not replayed: {why}",),
            power="none",
            severity=Severity.THEORETICAL,
        )
    if tally.unjudged:
        return Judgement(Verdict.NOT_VERIFIED, listed(tally.unjudged), details, private)
    uncertain, compared = tally.uncertain
    if not compared or uncertain > _MOST_UNCERTAIN * compared or hidden >= 1.0:
        return Judgement(
            Verdict.NOT_VERIFIED,
            "rounding may move the uploads as far as a clean gradient would: the comparison shows "
            "nothing",
            details,
            private,
            power="none",
        )
    return Judgement(
        Verdict.PASS,
        f"{what} replayed: each tensor uploaded or kept, and each point at which a gradient was "
        f"asked for, follows from the noised gradients ({tally.tensors} tensors); "
        f"{_served(tally)}. The gradients used carry the noise that the noise checks measured",
        details,
        private,
        power=power,
    )


def room_left(tally: Tally, header: Header) -> str:
    """What could hide in low-order bits of tensors on a public grid, for a finding's power."""
    if header.grid is None:
        return ""
    return (
        "; any value off the public grid, on which rounding leaves a free choice of "
        f"{float(f'{tally.open_bits:.2g}'):,.12g} bits in all tensors together"
    )


def _served(tally: Tally) -> str:
    """What was seen of the server."""
    if not tally.rounds:
        return "no round's uploads were all kept, so the server's part was not judged"
    weights = ", and so do the published weights" if tally.weights else ""
    return f"what the server sent after {rounds_judged(tally)} follows from the uploads{weights}"


def rounds_judged(tally: Tally) -> str:
    """In how many rounds the server was judged, and by how much of its vectors."""
    rounds = f"{tally.rounds} of {tally.finished} rounds"
    parts = [share for share in tally.shares if share < 1.0]
    if not tally.shares or (tally.rounds == tally.finished and not parts):
        return rounds
    if not parts:
        return f"{rounds}, drawn after the fact,"
    least, most = _percent(min(parts)), _percent(max(parts))
    share = f"{least} %" if least == most else f"{least} to {most} %"
    return (
        f"{rounds}, drawn after the fact ({len(tally.shares) - len(parts)} whole, {len(parts)} by "
        f"{share} of the coordinates),"
    )


def share_judged(tally: Tally) -> str:
    """The qualification of a verdict on a share of the evidence."""
    amount = _percent(tally.replayed / max(1, tally.participations))
    return f"{share_of_servers(tally)}; and {amount} % of all uploads, drawn in secret after them"


def share_of_servers(tally: Tally) -> str:
    """In how many rounds the server was judged; empty ones count, or their number would be told."""
    rounds = f"{tally.rounds} of {tally.finished} rounds" if tally.rounds else "no round"
    least = min(tally.shares, default=1.0)
    part = f", by {_percent(least)} % of the coordinates at least" if least < 1.0 else ""
    return f"a share was judged: the server's step in {rounds}, drawn after the fact{part}"


def _percent(share: float) -> str:
    """A share in per cent, rounded down to two significant digits so that none is overstated."""
    if share <= 0.0:
        return "0"
    scale = 10.0 ** (1 - math.floor(math.log10(100.0 * share)))
    return f"{math.floor(100.0 * share * scale + 1e-6) / scale:g}"


UPLOADS = Check(
    name="uploads",
    title="Does everything that leaves a client depend only on noised values?",
    units=AT_RECORD_LEVEL,
    place=60,
    meaning="If it fails, something without noise left a client: the guarantee does not hold.",
    claim="Every tensor of an upload, and everything that a client keeps, follows only from "
    "broadcasts, its own memory and the noised gradients, by the algorithm that the spec names.",
    tolerance="Coordinate by coordinate, the bound of a running error analysis of the same steps "
    "in float32: four roundings (2^-22) an operation, carried through all K steps. Norms and means "
    "of d coordinates: 2^-22 sqrt(d) of themselves; transforms: 2^-19 log2(d) of the root mean "
    "square. Names, lengths and digests exactly, and so the grid: significant bits beyond those "
    "that the ledger states are 0, in uploads, memories and published weights.",
    power="an added term far shorter than a clean gradient, in any tensor; a value off the grid",
    limits="The evidence is written by the process that trains. Digests in the ledger bind it to "
    "the messages that were combined, and it must agree with the noise and norms that the other "
    "checks judge. A process that forges all of them consistently is not caught. Only "
    "participations that were kept are judged. They are drawn after each upload, with a key that "
    "the training process holds. A fault in a single round or participation is detected with the "
    "probability that the finding names. The server is judged in the rounds that were kept, or at "
    "the kept pieces of their vectors. A value within rounding of the middle between two grid "
    "points may pass as either: the finding says how many bits that leaves free. Algorithms that "
    "the auditor does not know are not judged.",
    rule=_judge,
)
register(UPLOADS)
