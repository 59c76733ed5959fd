"""Compares recorded participations with their replay, and carries from round to round what follows.

The check "uploads" decides which participations are looked at and what their setting is; what is
found to differ, this module says, coordinate by coordinate (`Tally`, `replay_participation`). It
goes through the rounds with a `Trajectory`: a broadcast must be the last uploads' combination, and
each client must start from its own memory, as far as they are evidenced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.exchanges import Exchange, Extent, kept_coordinates
from audit.reading.ledger import Ledger, Round
from audit.reading.ledger_lines import Grid
from audit.replay.base import (
    UPDATE,
    Conditions,
    NeedsWholeVectorsError,
    Partition,
    Released,
    Replay,
    ReplayError,
    ServerValues,
)
from audit.replay.queries import Places, choices, off_grid, on_grid
from audit.replay.rounding import ROUNDING, Rounded, exact
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers, MessageError, read_tensors
from audit.untrusted.fields import FieldError

_STATE = "state."


@dataclass
class Tally:
    """What came of the comparisons so far.

    Attributes:
        reasons: what differs.
        unjudged: why something could not be compared.
        replayed: participations replayed.
        tensors: tensors compared.
        rounds: rounds whose combination was replayed.
        finished: rounds that the run has finished.
        participations: participations in them.
        weights: whether the published weights were compared.
        widths: length of the bound on each update, as if all coordinates had been recorded.
        uncertain: coordinates without a finite bound, and all coordinates.
        shares: of each round whose server left evidence, the share of its pieces that was kept.
        open_bits: what the choices that rounding leaves on the public grid could tell, in bits.
        overflown: the first tensor that is not to be compared because float32 cannot hold it.
    """

    reasons: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    replayed: int = 0
    tensors: int = 0
    rounds: int = 0
    finished: int = 0
    participations: int = 0
    weights: bool = False
    widths: list[float] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=lambda: [0, 0])
    shares: list[float] = field(default_factory=list)
    open_bits: float = 0.0
    overflown: str | None = None

    @property
    def diverged(self) -> tuple[str, ...]:
        """Why not all could be compared: training diverged."""
        if self.overflown is None:
            return ()
        return (
            f"training diverged: {self.overflown} is out of float32's range; nothing can be "
            "compared from there on",
        )

    def compare(self, what: str, found: Floats, expected: Rounded, bits: int | None = None) -> None:
        """Note whether a recorded tensor is what the replay makes it.

        Args:
            what: which tensor, for the reasons.
            found: as it was recorded.
            expected: as it should be.
            bits: significant bits of the public grid that it lies on; None for none.
        """
        self.tensors += 1
        if found.shape != expected.value.shape:
            self.reasons.append(f"{what} has {found.size} numbers, not {expected.value.size}")
            return
        sure = np.isfinite(expected.value) & np.isfinite(expected.bound)
        if self.overflown is None and not np.isfinite(expected.value).all():
            self.overflown = what.rstrip(",")
        self.uncertain[0] += int(np.count_nonzero(~sure))
        self.uncertain[1] += len(sure)
        if bits is None:
            off = sure & ~(np.abs(found - expected.value) <= expected.bound)
        elif (loose := off_grid(found, bits)).any():
            self.reasons.append(
                f"{what} lies off the public grid of {bits} significant bits, at "
                f"{np.count_nonzero(loose)} of {len(loose)} coordinates"
            )
            return
        else:
            # Rounding keeps order, so what a value within the bound is rounded to lies between.
            value, bound = (np.where(sure, one, 0.0) for one in (expected.value, expected.bound))
            low, high = on_grid(value - bound, bits), on_grid(value + bound, bits)
            off = sure & ~((low <= found) & (found <= high))
            self.open_bits += choices(low, high, bits)
        if off.any():
            self.reasons.append(
                f"{what} is not what follows from the released values, at {np.count_nonzero(off)} "
                f"of {len(off)} coordinates"
            )

    def compare_all(
        self,
        what: str,
        found: Mapping[str, Floats],
        expected: Mapping[str, Rounded],
        places: Places | None = None,
    ) -> None:
        """Note which of several tensors are missing, left over or different.

        Args:
            what: whose tensors, for the reasons.
            found: as they were recorded.
            expected: as they should be.
            places: on which grids they lie; None for none.
        """
        for name in sorted(set(found) - set(expected)):
            self.reasons.append(
                f"{what} holds a tensor {shown(name)} that the algorithm does not have"
            )
        for name, tensor in expected.items():
            if name in found:
                bits = None if places is None else places.bits(name, UPDATE, found[name].size)
                self.compare(f"{what}, tensor {shown(name)},", found[name], tensor, bits)
            else:
                self.reasons.append(f"{what} lacks the tensor {shown(name)}")


@dataclass(frozen=True)
class Message:
    """A broadcast or an upload, read: its principal vector and its further tensors by name."""

    principal: Floats
    state: Mapping[str, Floats]

    def named(self) -> dict[str, Floats]:
        """All tensors; the principal one is the update."""
        return {UPDATE: self.principal, **self.state}


def shown(name: str) -> str:
    """A tensor's name as it may be printed."""
    return repr(name if len(name) <= 64 else name[:64] + "…")


def read_message(raw: bytes, whole: str | None = None) -> Message:
    """A serialised broadcast or upload.

    Args:
        raw: Its bytes.
        whole: The state tensor that may hold whole numbers.

    Raises:
        MessageError: it is malformed, or holds a tensor that is neither vector nor state.
    """
    tensors = read_tensors(raw, whole=None if whole is None else _STATE + whole)
    if UPDATE not in tensors:
        raise MessageError("has no principal vector")
    principal = tensors.pop(UPDATE)
    strange = [name for name in tensors if not name.startswith(_STATE)]
    if strange:
        raise MessageError(f"holds a tensor {shown(strange[0])} that the algorithm does not have")
    return Message(principal, {name.removeprefix(_STATE): value for name, value in tensors.items()})


def exactly(tensors: Mapping[str, Floats]) -> dict[str, Rounded]:
    """Tensors that were recorded as they are."""
    return {name: exact(value) for name, value in tensors.items()}


def replay_participation(
    where: str,
    exchange: Exchange,
    sums: Floats,
    setting: Conditions,
    replay: Replay,
    tally: Tally,
    grid: Grid | None = None,
) -> tuple[Message, Mapping[str, Rounded]] | None:
    """Replay one participation and compare everything that came out of it.

    Args:
        where: which participation, for the reasons.
        exchange: what went in and came out.
        sums: block sums of squares of each gradient handed out, [Q, B].
        setting: what spec and ledger say of the round.
        replay: the algorithm.
        tally: where differences are noted.
        grid: on which all that leaves the client lies; None where the run states none.

    Returns:
        The broadcast, and the upload as it was recorded (exactly known); None if unreadable.
    """
    try:
        broadcast, upload = read_message(exchange.broadcast), read_message(exchange.upload)
        before, after = read_tensors(exchange.memory_before), read_tensors(exchange.memory_after)
    except MessageError as error:
        tally.reasons.append(f"{where}: a message {error}")
        return None
    recorded = exchange.points.shape[1]
    vectors = (broadcast.principal, *before.values())
    if any(len(vector) != recorded for vector in vectors):
        tally.reasons.append(f"{where}: broadcast or memory is not as long as the gradients")
        return None
    released = Released(broadcast.principal, broadcast.state, before, exchange.gradients, sums)
    try:
        produced = replay.local(setting, released)
    except NeedsWholeVectorsError as error:
        tally.unjudged.append(f"a sample of coordinates was recorded, but {error}")
        return None
    except ReplayError as error:
        tally.reasons.append(f"{where}: {error}")
        return None
    except ValueError:
        tally.reasons.append(f"{where}: tensors of the broadcast do not have the lengths expected")
        return None
    if len(released.points) != len(exchange.gradients):
        tally.reasons.append(f"{where}: more gradients were handed out than the rule asks for")
    for number, (found, expected) in enumerate(
        zip(exchange.points, released.points, strict=False), start=1
    ):
        tally.compare(f"{where}: the point of query {number}", found, expected)
    places = Places(grid, recorded)
    tally.compare_all(f"{where}: the upload", upload.named(), produced.upload, places)
    tally.compare_all(f"{where}: the memory", after, produced.memory, places)
    width = _room(produced.upload[UPDATE], None if grid is None else grid.update)
    whole = math.sqrt(setting.partition.sizes.sum() / recorded)
    tally.widths.append(whole * float(np.linalg.norm(np.where(np.isfinite(width), width, 0.0))))
    tally.replayed += 1
    return broadcast, exactly(upload.named())


def _room(update: Rounded, bits: int | None) -> Floats:
    """How long a term added to each coordinate may be and pass, [n].

    A point of the grid that passes is what rounding makes of a value within the bound. Where it is
    the only one, nothing can be added.
    """
    if bits is None:
        return update.bound
    with np.errstate(invalid="ignore"):
        low, high = update.value - update.bound, update.value + update.bound
        return np.minimum(update.bound, on_grid(high, bits) - on_grid(low, bits))


def learning_rate(algorithm: Mapping[str, Any], round_index: int, rounds: int) -> float:
    """The step size of a round, as the spec's schedule has it."""
    rate = fields.positive(algorithm, "learning_rate")
    if fields.choice(algorithm, "schedule", ("cosine", "constant")) == "constant":
        return rate
    return rate * 0.5 * (1.0 + math.cos(math.pi * round_index / rounds))


def finished_rounds(ledger: Ledger) -> list[Round]:
    """The last account of each round, all of them and in order.

    Raises:
        UnverifiedError: a round is missing, or does not note what was exchanged.
    """
    last = {item.round: item for item in ledger.rounds}
    if sorted(last) != list(range(ledger.rounds_to_finish)):
        raise UnverifiedError("the ledger does not have every round")
    found = [last[index] for index in sorted(last)]
    if any(item.broadcast is None or item.exchanged is None for item in found):
        raise UnverifiedError("the ledger does not note the digests of what was exchanged")
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


def judge_weights(
    bundle: Bundle, coordinates: Integers | None, expected: Rounded, tally: Tally
) -> None:
    """Compare the published weights with the parameters that the last round left.

    Weights that do not have the names or lengths of the trained tensors are the matter of the
    check "weights", which fails them.
    """
    try:
        tensors = read_tensors(bundle.weights(), metadata=True)
    except MessageError as error:
        tally.unjudged.append(f"model.safetensors {error}")
        return
    parts = [tensors.get(name, np.zeros(0)) for name, _ in bundle.layout().tensors]
    if [len(part) for part in parts] != [size for _, size in bundle.layout().tensors]:
        tally.reasons.append("model.safetensors does not have the tensors that were trained")
        return
    vector: Floats = np.concatenate(parts)
    tally.weights = True
    found = vector if coordinates is None else vector[coordinates]
    grid = bundle.header.grid
    bits = None if grid is None else grid.weights
    tally.compare("model.safetensors", found, expected, bits)


def compare_released(item: Round, after: ServerValues, tally: Tally) -> None:
    """What the ledger notes as released, an adaptive rule's basis, is what the uploads give."""
    for name in sorted(item.released.keys() & after.state.keys()):
        where = f"round {item.round}: the ledger's {name}"
        try:
            noted = np.full(1, fields.number(item.released, name))
        except FieldError as error:
            tally.reasons.append(f"{where}: {error}")
            continue
        tally.compare(where, noted, after.state[name])


@dataclass
class Trajectory:
    """What one pass over the rounds carries along.

    Attributes:
        replay: the algorithm in NumPy.
        tally: where differences are noted.
        after: the server's values after the last round; None where they could not be replayed.
        memories: by client, the round it took part in last and what it kept then; None where that
            was not evidenced.
    """

    replay: Replay
    tally: Tally
    after: ServerValues | None = None
    memories: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)

    def arrives(self, where: str, setting: Conditions, found: Message) -> None:
        """A broadcast must be the start, or what the server made of the uploads before it."""
        if setting.earlier_steps == 0:
            begun = self.replay.start(setting, found.principal)
            start = {
                name: Rounded(value, ROUNDING * np.abs(value)) for name, value in begun.items()
            }
            self.tally.compare_all(f"{where}: the first broadcast", found.state, start)
        elif self.after is not None:
            expected = {UPDATE: self.after.parameters, **self.after.state}
            self.tally.compare_all(f"{where}: the broadcast", found.named(), expected)

    def remembers(self, where: str, client: int, index: int, exchange: Exchange) -> None:
        """A client starts from what it kept when it last took part, and from nothing at first."""
        last = self.memories.get(client)
        self.memories[client] = (index, exchange.memory_after)
        if last is not None and last[1] is not None and last[1] != exchange.memory_before:
            self.tally.reasons.append(f"{where}: its memory is not what it kept in round {last[0]}")
        try:
            if last is None and read_tensors(exchange.memory_before):
                self.tally.reasons.append(f"{where}: has a memory of a round it was not in")
        except MessageError:
            return  # the replay says so

    def leaves(
        self,
        item: Round,
        setting: Conditions | None,
        broadcast: Message | None,
        uploads: Sequence[Mapping[str, Rounded]],
    ) -> None:
        """Combine a round's uploads, if all of them are at hand; close the round."""
        if not item.clients:
            return  # an empty round changes nothing
        self.after = None
        if setting is not None and broadcast is not None and len(uploads) == len(item.clients):
            state = exactly(broadcast.state)
            before = ServerValues(exact(broadcast.principal), state)
            try:
                self.after = self.replay.combine(setting, before, uploads)
                self.tally.rounds += 1
                compare_released(item, self.after, self.tally)
            except (KeyError, ValueError):
                self.after = None  # a tensor is missing or misshapen, which has been said
        for client in item.clients:
            if client not in self.memories or self.memories[client][0] != item.round:
                self.memories[client] = (item.round, None)
