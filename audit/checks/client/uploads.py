"""Check "uploads" at client level: does nothing leave a round but its noised mean update?

A participant's steps are not noised, so there is nothing to replay in them: what may leave is the
clipped update inside the noised mean, and no further tensor. The next model must be the last one
plus that mean times the server's rate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, conclude, register
from audit.checks.record.uploads import UPLOADS, rounds_judged, share_of_servers
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.client_evidence import UpdateRound
from audit.reading.exchanges import Extent, Release, extent, is_kept
from audit.reading.ledger import Header, Round
from audit.reading.ledger_lines import BROADCAST_NAME, Grid, last_round_spends
from audit.replay import find_applied_mean
from audit.replay.base import UPDATE, server_rate
from audit.replay.participation import (
    Message,
    Tally,
    finished_rounds,
    judge_weights,
    read_message,
    recorded_coordinates,
    shown,
)
from audit.replay.queries import RECORDED, carries, grid_notes, off_grid, too_fine
from audit.replay.rounding import Rounded, exact
from audit.replay.rounds import ANOTHER_KEY, ServerRounds, another_key, named
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers, MessageError
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict


def _further(index: int, evidence: UpdateRound, reasons: list[str]) -> None:
    """Uploads and memories hold the update alone."""
    for name in evidence.further_tensors:
        reasons.append(f"round {index}: a client uploaded or kept a tensor {shown(name)}")


def _read(where: str, raw: bytes, tally: Tally) -> Message | None:
    """A message without a tensor too many; public coordinates are another check's matter."""
    try:
        found = read_message(raw, BROADCAST_NAME)
    except MessageError as error:
        tally.reasons.append(f"{where} {error}")
        return None
    for name in sorted(set(found.state) - {BROADCAST_NAME}):
        tally.reasons.append(f"{where} holds a tensor {shown(name)} besides the parameters")
    return found


@dataclass(frozen=True)
class _Setting:
    """What is the same in all rounds.

    Attributes:
        clip: C.
        rate: the server's.
        grid: on which releases and the published weights lie; None where the run states none.
        coordinates: where vectors are recorded; None for everywhere.
        parameters: d.
    """

    clip: float
    rate: float
    grid: Grid | None
    coordinates: Integers | None
    parameters: int


def _release(
    item: Round,
    following: str | None,
    evidence: UpdateRound,
    release: Release,
    setting: _Setting,
    tally: Tally,
    resumed: bool,
) -> Rounded | None:
    """Judge one round's release; returns the parameters that it must leave.

    Args:
        item: the round in the ledger.
        following: digest (hex) of the next broadcast; None after the last round.
        evidence: of its noise and of its clipped updates.
        release: what was broadcast before and after it, and what was released.
        setting: of all rounds.
        tally: where differences are noted.
        resumed: whether the run was cut off after it.
    """
    where, grid = f"round {item.round}", setting.grid
    recorded, places = _sampled(evidence, setting.coordinates, setting.parameters)
    before = _read(f"{where}: the broadcast", release.broadcast, tally)
    after = _read(f"{where}: the next broadcast", release.combined, tally)
    if setting.coordinates is None:
        digests = (
            ("broadcast", release.broadcast, item.broadcast),
            ("released mean", release.released.astype("<f4").tobytes(), item.exchanged),
            ("next broadcast", release.combined, following),
        )
        for what, raw, noted in digests:
            if noted is not None and hashlib.sha256(raw).hexdigest() != noted:
                tally.reasons.append(f"{where}: its {what} is not the one that the ledger notes")
    found, divisor = release.released[places], evidence.divisor
    noise = evidence.noise_sample[recorded] * setting.clip
    clean = evidence.clean_sample[recorded]
    bits = None if grid is None else grid.update
    if bits is not None and off_grid(release.released, bits).any():
        tally.reasons.append(
            f"{where}: the released mean lies off the public grid of {bits} significant bits"
        )
    elif not carries(noise / divisor, clean / divisor, found, bits):
        tally.reasons.append(f"{where}: the released mean does not carry the noise recorded for it")
    tally.replayed += 1
    if before is None or after is None:
        return None
    if len(before.principal) != len(release.released):
        tally.reasons.append(f"{where}: the broadcast is not as long as the released mean")
        return None
    expected = _moved(before.principal, release.released, setting.rate)
    # Of all models only the last, which is published, lies on the grid.
    bits = None if grid is None or following is not None else grid.weights
    if bits is not None and resumed and off_grid(after.principal, bits).any():
        # It was sent once more, before the run was cut off and ended here.
        bits = None
    tally.compare(f"{where}: the next model", after.principal, expected, bits)
    tally.rounds += 1
    return expected


def _against_noise(
    bundle: Bundle,
    index: int,
    released: Floats,
    coordinates: Integers | None,
    evidence: UpdateRound,
) -> Iterator[str]:
    """Hold a released mean to all noise that is recorded of it, and not at samples alone.

    What was released times its divisor is the noise and the clipped sum, which is at most as long
    as the clipped updates together: over all coordinates, and over those of any block.

    Args:
        bundle: the run.
        index: the round.
        released: the mean, at the recorded coordinates.
        coordinates: these; None for all.
        evidence: of its noise and of its clipped updates.
    """
    header, of_coordinate = bundle.header, bundle.layout().of_coordinate
    if coordinates is not None:
        of_coordinate = of_coordinate[coordinates]
    if len(of_coordinate) != len(released):
        return
    # Norms and sums in float32: far within a thousandth.
    clean = float(evidence.clipped_norms.sum()) * 1.001 + 1e-6 * header.declared("clipping_norm")
    rounding = RECORDED + (0.0 if header.grid is None else 2.0**-header.grid.update)
    found = released * evidence.divisor
    noise = np.sqrt(np.maximum(evidence.noise_sum_squares, 0.0))
    sums = np.bincount(of_coordinate, weights=np.square(found), minlength=len(noise))
    lengths = np.sqrt(sums)
    room = clean + rounding * (lengths + noise)
    # Of a part of the coordinates only that it is not longer than all of the noise.
    short = coordinates is None and not np.all(noise - lengths <= room)
    if short or not np.all(lengths - noise <= room):
        yield f"round {index}: the size of the released mean does not fit the noise recorded for it"
    each = _last_noise(bundle, index)
    if each is not None:
        each = each if coordinates is None else each[coordinates]
        apart, length = np.linalg.norm(np.abs(found) - each), np.linalg.norm(each)
        if not apart <= clean + rounding * (np.sqrt(sums.sum()) + length):
            yield f"round {index}: the released mean does not have the noise of single coordinates"


def _last_noise(bundle: Bundle, index: int) -> Floats | None:
    """Sizes of the last round's noise at each coordinate, [d]; None for others, and if not kept."""
    sums, rounds = bundle.coordinate_sums(), bundle.readable_ledger.rounds_to_finish
    charge = last_round_spends(bundle.readable_ledger.round_spends).get(index)
    if (
        sums is None
        or sums.last is None
        or charge is None
        or not index + 1 == rounds == sums.rounds
    ):
        return None
    return np.sqrt(sums.last) * (charge.noise_multiplier * charge.clipping_norm)


def _of_servers(
    bundle: Bundle,
    servers: ServerRounds,
    items: Sequence[Round],
    index: int,
    evidence: UpdateRound,
    rate: float,
) -> None:
    """Judge one round by the evidence of its server; what it released must carry its noise."""
    item, tally, header = items[index], servers.tally, bundle.header
    where, grid = f"round {index}", header.grid
    if evidence.released_sample is None:
        raise UnverifiedError(f"{where}: what was released is not recorded where noise is")
    clip, divisor = header.declared("clipping_norm"), evidence.divisor
    noise, clean = evidence.noise_sample * clip / divisor, evidence.clean_sample / divisor
    if not carries(noise, clean, evidence.released_sample, None if grid is None else grid.update):
        tally.reasons.append(f"{where}: the released mean does not carry the noise recorded for it")
    found = servers.find(item, item is items[-1])
    if found is None:
        return
    servers.bind(item, items[index + 1] if index + 1 < len(items) else None, found, 1)
    tally.replayed += 1
    before, sent = named(found.broadcast), [named(one) for one in found.uploads]
    for name in sorted(set(before) - {UPDATE, BROADCAST_NAME}):
        tally.reasons.append(f"{where}: holds a tensor {shown(name)} besides the parameters")
    if UPDATE not in before or [set(one) for one in sent] != [{UPDATE}]:
        tally.reasons.append(f"{where}: has no parameters, or more than one released mean")
        return
    released, parameters = sent[0][UPDATE], before[UPDATE]
    if grid is not None and off_grid(released, grid.update).any():
        tally.reasons.append(
            f"{where}: the released mean lies off the public grid of {grid.update} significant bits"
        )
    tally.reasons.extend(_against_noise(bundle, index, released, found.coordinates, evidence))
    if found.coordinates is None and vector_sha256(released) != item.exchanged:
        tally.reasons.append(f"{where}: its released mean is not the one that the ledger notes")
    recorded, places = _sampled(evidence, found.coordinates, header.parameters)
    if not np.array_equal(released[places], evidence.released_sample[recorded]):
        tally.reasons.append(f"{where}: the released mean is not the one recorded with its noise")
    expected = _moved(parameters, released, rate)
    servers.judge(where, found, expected, {}, item is items[-1], frozenset({BROADCAST_NAME}))


def _moved(parameters: Floats, released: Floats, rate: float) -> Rounded:
    """θ + η_s·(released mean)."""
    step = exact(released)
    return exact(parameters) + (step if rate == 1.0 else step * rate)


def vector_sha256(vector: Floats) -> str:
    """Sha256 (hex) of a vector as the ledger notes it."""
    return hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest()


def _sampled(
    evidence: UpdateRound, coordinates: Integers | None, parameters: int
) -> tuple[Integers, Integers]:
    """Which samples of noise lie where the release was kept, and their places in what was kept."""
    places = evidence.sample_places
    if places.size and places.max() >= parameters:
        raise FieldError("sample_places lie outside the parameters")
    if coordinates is None:
        return np.arange(len(places)), places
    found = np.flatnonzero(np.isin(places, coordinates))
    return found, np.searchsorted(coordinates, places[found])


def _judge_all(bundle: Bundle, kept: Extent, rate: float, tally: Tally) -> None:
    header, layout = bundle.header, bundle.layout()
    items = finished_rounds(bundle.readable_ledger)
    coordinates, salt = recorded_coordinates(bundle, kept), bundle.salt()
    recorded = layout.parameters if coordinates is None else len(coordinates)
    setting = _Setting(
        header.declared("clipping_norm"), rate, header.grid, coordinates, layout.parameters
    )
    rounds = bundle.readable_ledger.rounds_to_finish
    tally.finished = len(items)
    servers = None
    if kept != Extent(1.0, None) and any(item.pieces is not None for item in items):
        servers = ServerRounds(bundle, tally, 1)
    for index, evidence in bundle.all_update_rounds():
        _further(index, evidence, tally.reasons)
        if servers is not None:
            _of_servers(bundle, servers, items, index, evidence, rate)
            continue
        item, last = items[index], index == rounds - 1
        always = index in (0, bundle.header.rounds - 1)
        digest = bytes.fromhex(item.exchanged or "")
        if not (always or is_kept(salt, index, -1, digest, kept.share)):
            continue
        release = bundle.release(index, recorded)
        following = None if last else items[index + 1].broadcast
        resumed = bundle.readable_ledger.resumed_after(item)
        left = _release(item, following, evidence, release, setting, tally, resumed)
        found = _against_noise(bundle, index, release.released, coordinates, evidence)
        tally.reasons.extend(found)
        if last and left is not None:
            judge_weights(bundle, coordinates, left, tally)


def _judge(bundle: Bundle) -> Judgement:
    header: Header = bundle.header
    try:
        algorithm = fields.mapping(bundle.readable_spec, "algorithm")
        name, rate = fields.text(algorithm, "name"), server_rate(algorithm)
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    found = find_applied_mean(name)
    if found is None:
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"the auditor has no replay of {name} at client level: how its server uses the "
            "released mean was not judged",
        )
    if another_key(bundle):
        return Judgement(Verdict.FAIL, ANOTHER_KEY)
    kept = extent(header.parameters, 0, header.rounds)
    tally = Tally(reasons=too_fine(header))
    rounds = bundle.readable_ledger.rounds_to_finish
    _judge_all(bundle, kept, rate, tally)
    details = {
        "rounds": rounds,
        "replayed": tally.replayed,
        "coordinates": kept.coordinates or header.parameters,
        **found.details,
    }
    amount, place, shares = f"all {rounds} rounds", "", list[str]()
    if kept != Extent(1.0, None):
        amount = rounds_judged(tally).rstrip(",")
        if tally.rounds < rounds or kept.coordinates or any(one < 1.0 for one in tally.shares):
            shares = [share_of_servers(tally)]
        if kept.coordinates and not tally.shares:
            place = f" at {kept.coordinates} coordinates drawn in secret"
    times = "" if rate == 1.0 else f" times {rate:g}"
    return conclude(
        f"no client of any round uploaded or kept a tensor besides its update; {amount}"
        f"{place}: the next model is the previous one plus the released "
        f"mean{times}, which carries the measured noise"
        + ("; the published weights are the last model" if tally.weights else ""),
        tally.reasons,
        (*tally.diverged, *grid_notes(header)),
        details=details,
        qualifications=(*shares, *found.qualifications),
    )


CLIENT_UPLOADS = Check(
    name=UPLOADS.name,
    title="Does only the noised mean update leave each round?",
    units=AT_CLIENT_LEVEL,
    place=60,
    meaning="If it fails, more left a round than its noised mean: the guarantee does not hold.",
    claim="Uploads hold only one clipped update, clients keep nothing, broadcasts hold only the "
    "parameters, and each model is the previous one plus the noised mean times the server's rate.",
    tolerance="Coordinate by coordinate, four float32 roundings (2^-22) of the sum; names exactly. "
    "The released mean against recorded noise to 2^-18 of its parts. Its length in every block "
    "against the noise's, and the last release against the noise of every coordinate, to the sum "
    "of the clipped norms. The grid of released means and of the published weights exactly, by the "
    "significant bits that the ledger states.",
    power="any further tensor; any term added to a model by more than rounding; a value off the "
    "grid",
    limits="The evidence is written by the process that trains; digests in the ledger bind it to "
    "what was broadcast. How a participant computes its update is not judged: it may be any "
    "function of its own records, which is why it is clipped and noised. Only rounds that were "
    "kept are compared; these are drawn after their release. What a choice among grid points "
    "within rounding could reveal is not detected. Algorithms that the auditor does not know are "
    "not judged.",
    rule=_judge,
)
register(CLIENT_UPLOADS)
