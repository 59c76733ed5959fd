"""Check "uploads": can every tensor that leaves a client be worked out from noised values alone?

Replays participations with the auditor's own implementation of the algorithm (`audit.replay`). A
clean gradient, a loss or a record that found its way into an upload, a memory, or the choice of the
point at which a gradient is asked for, is what the replay cannot reproduce.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit import fields
from audit.arrays import Floats, Integers
from audit.bundle import Bundle
from audit.checks.base import Check, Context, Judgement, listed, no_claim
from audit.checks.noise import last_attempts
from audit.checks.replaying import Broadcasts, Tally, read_message, replay_participation
from audit.errors import UnverifiedError
from audit.evidence import RoundEvidence
from audit.exchanges import Exchange, Extent, extent, is_kept, kept_coordinates
from audit.fields import FieldError
from audit.ledger import Header, Ledger, Round
from audit.messages import MessageError, read_tensors
from audit.replay import REPLAYS, Replay
from audit.replay.base import Partition, ServerValues, Setting
from audit.replay.rounding import ROUNDING, Rounded, exact
from audit.spends import Spend
from audit.verdict import Severity, Verdict

# Coordinates whose bound is infinite (a quotient by what may be 0) say nothing.
_MOST_UNCERTAIN = 0.01
# Recorded noise and norms are float32; their products and sums are a few roundings off.
_RECORDED = 16.0 * ROUNDING


@dataclass
class _Rounds:
    """What one pass over the rounds carries along.

    Attributes:
        replay: the algorithm in NumPy.
        settings: of each round, but for the client's noise.
        kept: the clients whose participation is evidenced, by round.
        memories: by client, the round and the bytes of what it kept last.
        before: the last replayed round's state after it; None where it was not replayed.
    """

    replay: Replay
    memories: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    after: ServerValues | None = None


def learning_rate(algorithm: Mapping[str, Any], round_index: int, rounds: int) -> float:
    """The step size of a round, as the spec's schedule has it."""
    rate = fields.positive(algorithm, "learning_rate")
    if fields.choice(algorithm, "schedule", ("cosine", "constant")) == "constant":
        return rate
    return rate * 0.5 * (1.0 + math.cos(math.pi * round_index / rounds))


def finished_rounds(ledger: Ledger, header: Header) -> list[Round]:
    """The last account of each round, all of them and in order.

    Raises:
        UnverifiedError: a round is missing, or does not note what was exchanged.
    """
    last = {item.round: item for item in ledger.rounds}
    if sorted(last) != list(range(header.rounds)):
        raise UnverifiedError("the ledger does not have every round")
    found = [last[index] for index in range(header.rounds)]
    if any(item.broadcast is None or item.exchanged is None for item in found):
        raise UnverifiedError("the ledger does not note the digests of broadcasts and uploads")
    return found


def recorded_coordinates(bundle: Bundle, kept: Extent) -> Integers | None:
    """The coordinates at which vectors are recorded; None for all."""
    if kept.coordinates is None:
        return None
    layout = bundle.layout()
    return kept_coordinates(
        bundle.salt(), layout.parameters, kept.coordinates, layout.sample_coordinates
    )


def partition_of(bundle: Bundle, coordinates: Integers | None) -> Partition:
    """The blocks, at the recorded coordinates."""
    layout = bundle.layout()
    index = layout.of_coordinate
    return Partition(
        layout.sizes.astype(np.float64),
        index if coordinates is None else index[coordinates],
        np.asarray([size for _, size in layout.tensors], dtype=np.int64),
    )


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


def _same_noise(
    where: str,
    exchange: Exchange,
    evidence: RoundEvidence,
    row: int,
    clip: float,
    partition: Partition,
    sampled: Integers,
    tally: Tally,
) -> None:
    """What was handed out must be clean sum plus the very noise that the noise checks measured."""
    divisor = evidence.divisor[row][:, None]
    if len(exchange.gradients) != len(divisor):
        tally.reasons.append(f"{where}: other queries were handed out than their noise was noted")
        return
    handed = exchange.gradients[:, sampled] * divisor
    clean, noise = exchange.clean_sample, evidence.noise_sample[row] * clip
    room = _RECORDED * (np.abs(handed) + np.abs(clean) + np.abs(noise))
    if np.any(~(np.abs(handed - clean - noise) <= room)):
        tally.reasons.append(
            f"{where}: the gradients handed out do not carry the noise that was recorded for them"
        )
    sums = exchange.square_sums
    if sums is None:
        index, count = partition.of_coordinate, len(partition.sizes)
        sums = np.stack(
            [np.bincount(index, np.square(one), minlength=count) for one in exchange.gradients]
        )
    total = sums * divisor**2
    measured = evidence.noise_sum_squares[row]
    clear = evidence.clean_sum_squares[row] * divisor**2
    # |Σ(c+z)² − Σc² − Σz²| = 2|Σcz| ≤ 2·sqrt(Σc²·Σz²) in every block (Cauchy-Schwarz).
    room = 2.0 * np.sqrt(measured * clear) + _RECORDED * (total + measured + clear)
    if np.any(~(np.abs(total - measured - clear) <= room)):
        tally.reasons.append(
            f"{where}: the size of the gradients handed out does not fit the noise that was "
            "recorded for them"
        )
    starts = evidence.record_offsets
    for query in range(len(divisor)):
        first = row * len(divisor) + query
        longest = float(evidence.clipped_norms[starts[first] : starts[first + 1]].sum())
        if not math.sqrt(float(clear[query].sum())) <= longest * (1.0 + 1e-3) + 1e-6 * clip:
            tally.reasons.append(
                f"{where}: what is called the clean sum is longer than all clipped gradients "
                "together"
            )
            return


def _memory(
    where: str,
    client: int,
    item: Round,
    exchange: Exchange,
    previous: int | None,
    rounds: _Rounds,
    tally: Tally,
) -> None:
    """A client starts from what it kept when it last took part, and from nothing at first."""
    try:
        before = read_tensors(exchange.memory_before)
    except MessageError:
        return  # said by the replay
    if previous is None and before:
        tally.reasons.append(f"{where}: starts with a memory, but has not taken part before")
    known = rounds.memories.get(client)
    if known is not None and known[0] == previous and known[1] != exchange.memory_before:
        tally.reasons.append(f"{where}: its memory is not what it kept in round {previous}")
    rounds.memories[client] = (item.round, exchange.memory_after)


def _server(
    item: Round,
    setting: Setting,
    broadcast: Broadcasts,
    uploads: list[Mapping[str, Rounded]],
    rounds: _Rounds,
    tally: Tally,
) -> None:
    """Replay the server's part of a round of which all uploads are at hand."""
    before = ServerValues(
        exact(broadcast.principal), {name: exact(value) for name, value in broadcast.state.items()}
    )
    try:
        rounds.after = rounds.replay.combine(setting, before, uploads)
        tally.rounds += 1
    except (KeyError, ValueError):
        rounds.after = None  # a tensor is missing or misshapen, which has been said


def _arrives(
    where: str, found: Broadcasts, rounds: _Rounds, setting: Setting, tally: Tally
) -> None:
    """A broadcast must be what the server made of the uploads before it."""
    if setting.earlier_steps == 0:
        begun = rounds.replay.start(setting, found.principal)
        start = {name: exact(value) for name, value in begun.items()}
        tally.compare_all(f"{where}: the first broadcast", found.state, _loosened(start))
    elif rounds.after is not None:
        expected = {"parameters": rounds.after.parameters, **rounds.after.state}
        tally.compare_all(f"{where}: the broadcast", found.named(), expected)


def _loosened(tensors: Mapping[str, Rounded]) -> Mapping[str, Rounded]:
    return {name: Rounded(one.value, ROUNDING * np.abs(one.value)) for name, one in tensors.items()}


def _weights(bundle: Bundle, rounds: _Rounds, coordinates: Integers | None, tally: Tally) -> None:
    """The published weights must be what the server made of the last uploads."""
    if rounds.after is None:
        return
    try:
        tensors = read_tensors(bundle.weights(), metadata=True)
    except MessageError as error:
        tally.unjudged.append(f"model.safetensors {error}")
        return
    names = [name for name, _ in bundle.layout().tensors]
    if not all(name in tensors for name in names):
        tally.unjudged.append("model.safetensors does not name its tensors as the layout does")
        return
    vector: Floats = np.concatenate([tensors[name] for name in names])
    if coordinates is not None and coordinates[-1] < len(vector):
        vector = vector[coordinates]
    tally.compare("model.safetensors", vector, rounds.after.parameters)


def _replay_all(
    bundle: Bundle, replay: Replay, kept: Extent, tally: Tally, private: dict[str, Any]
) -> None:
    header, ledger, layout = bundle.header, bundle.readable_ledger, bundle.layout()
    algorithm = fields.mapping(bundle.readable_spec, "algorithm")
    spends: Mapping[tuple[int, int], Spend] = last_attempts(ledger.spends)
    coordinates = recorded_coordinates(bundle, kept)
    partition = partition_of(bundle, coordinates)
    whole, recorded = coordinates is None, len(partition.of_coordinate)
    sampled = layout.sample_coordinates
    if coordinates is not None:
        sampled = np.searchsorted(coordinates, sampled)
    salt, clip = bundle.salt(), header.clipping_norm or 0.0
    rounds, earlier = _Rounds(replay), 0
    took_part: dict[int, int] = {}
    shares: list[float] = []
    for item in finished_rounds(ledger, header):
        evidence = bundle.round_evidence(item.round)
        digests = evidence.upload_sha256.astype(np.uint8)
        if hashlib.sha256(digests.tobytes()).hexdigest() != item.exchanged:
            tally.reasons.append(f"round {item.round}: its uploads are not those the ledger notes")
        uploads: list[Mapping[str, Rounded]] = []
        broadcast: Broadcasts | None = None
        first: bytes | None = None
        setting = None
        rate = learning_rate(algorithm, item.round, header.rounds)
        steps = dict(zip(item.clients, item.steps, strict=True))
        for row in _kept(evidence, item, header, salt, kept.share):
            client = int(evidence.clients[row])
            where = f"round {item.round}, client {client}"
            exchange = bundle.exchange(item.round, client, recorded)
            if whole:
                _bound(where, exchange, item, digests[row].tobytes(), tally)
            elif exchange.square_sums is None:
                raise UnverifiedError(f"{where}: the block sums of its gradients are not recorded")
            spend = spends.get((item.round, client))
            if spend is None or client not in steps:
                raise UnverifiedError(f"{where}: was not charged, or is not in the ledger")
            variance = (spend.noise_multiplier * clip / spend.expected_batch_size) ** 2
            setting = Setting(
                algorithm, header.clients, rate, steps[client], earlier, variance, partition, whole
            )
            _same_noise(where, exchange, evidence, row, clip, partition, sampled, tally)
            _memory(where, client, item, exchange, took_part.get(client), rounds, tally)
            if first is None:
                first = exchange.broadcast
                broadcast = _received(where, first, rounds, setting, tally)
            elif first != exchange.broadcast:
                tally.reasons.append(f"{where}: was sent another broadcast than the others")
            result = replay_participation(where, exchange, setting, replay, tally)
            if result is not None:
                uploads.append(result[1])
                norms = np.sqrt(evidence.clean_sum_squares[row].sum(axis=-1))
                shares.append(2.0 * tally.widths[-1] / max(float(np.median(norms)), 1e-300))
        rounds.after = None
        if broadcast is not None and setting and len(uploads) == len(evidence.clients):
            _server(item, setting, broadcast, uploads, rounds, tally)
        took_part.update(dict.fromkeys(item.clients, item.round))
        earlier += max(item.steps, default=0)
    _weights(bundle, rounds, coordinates, tally)
    if shares:
        private["largest_share_of_a_clean_gradient_that_could_hide"] = max(shares)


def _received(
    where: str, raw: bytes, rounds: _Rounds, setting: Setting, tally: Tally
) -> Broadcasts | None:
    try:
        found = read_message(raw)
    except MessageError:
        return None  # said by the replay
    _arrives(where, found, rounds, setting, tally)
    return found


def _judge(bundle: Bundle, context: Context) -> Judgement:
    del context
    skipped = no_claim(bundle)
    if skipped is not None:
        return skipped
    header = bundle.header
    try:
        name = fields.text(fields.mapping(bundle.readable_spec, "algorithm"), "name")
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    if name not in REPLAYS:
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"the auditor has no replay of {name}: what its uploads are made of was not judged",
        )
    participations = header.rounds * header.clients_per_round
    queries = _queries(bundle.readable_ledger, header)
    kept = extent(header.parameters, queries, participations)
    tally, private = Tally(), dict[str, Any]()
    try:
        _replay_all(bundle, REPLAYS[name], kept, tally, private)
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    return conclude(tally, kept, participations, header, private)


def conclude(
    tally: Tally, kept: Extent, participations: int, header: Header, private: dict[str, Any]
) -> Judgement:
    """The verdict on all comparisons."""
    clip = header.clipping_norm or 1.0
    hidden = 2.0 * max(tally.widths, default=0.0) / clip
    amount = "all" if kept.share == 1.0 else f"{tally.replayed} (drawn in secret) of"
    what = f"{amount} {participations} participations"
    if kept.coordinates is not None:
        what += f" at {kept.coordinates} coordinates drawn in secret"
    details = {
        "participations": participations,
        "replayed": tally.replayed,
        "tensors": tally.tensors,
        "rounds_combined": tally.rounds,
        "coordinates": kept.coordinates or header.parameters,
        "smallest_visible": hidden,
    }
    power = (
        f"seen for certain, in the update of any participation replayed: an added term longer than "
        f"{hidden:.1e} C (a clean mean gradient is about C long at most); further tensors and "
        "points to a few parts in a million of their size"
    )
    if tally.reasons:
        return Judgement(Verdict.FAIL, listed(tally.reasons), details, private, power=power)
    if tally.unjudged and not tally.replayed:
        # Nothing was asked for that could have been recorded: said beside the verdict, not in it.
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
        f"asked for, is what the noised gradients make it ({tally.tensors} tensors); "
        f"{tally.rounds} of {header.rounds} rounds' next broadcasts follow from the uploads; the "
        "gradients handed out carry the noise that the noise checks measured",
        details,
        private,
        power=power,
    )


UPLOADS = Check(
    name="uploads",
    title="Is all that leaves a client a function of noised values?",
    severity=Severity.CRITICAL,
    claim="Every tensor of an upload, and all that a client keeps, follows from broadcasts, its own "
    "memory and the noised gradients alone, by the algorithm that the spec names.",
    tolerance="Coordinate by coordinate, the bound of a running error analysis of the same steps in "
    "float32, four roundings (2^-22) an operation, carried through all K steps; names and shapes "
    "exactly. Norms of d coordinates and transforms: 2^-22 sqrt(d) and 2^-19 log2(d) of their size.",
    power="an added term far shorter than a clean gradient, in any tensor",
    limits="The evidence is written by the process that trains; digests in the ledger bind it to the "
    "messages combined, and noise and norms to what the other checks judged, but a process that "
    "lies in all of them alike is not caught. Only participations that were kept are judged; which "
    "are is drawn after their upload, with a key that the training process holds. What hides below "
    "the rounding, such as low-order bits of an update, is not seen. Algorithms that the auditor "
    "does not know are not judged.",
    judge=_judge,
)
