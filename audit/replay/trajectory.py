"""What each round must start from: the last uploads' combination, and each client's own memory.

The check "uploads" goes through the rounds with a `Trajectory`, which carries the server's state
and the clients' memories from one to the next, as far as they are evidenced.
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
from audit.replay.base import UPDATE, Conditions, Partition, Replay, ServerValues
from audit.replay.participation import Message, Tally, exactly
from audit.replay.rounding import ROUNDING, Rounded, exact
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers, MessageError, read_tensors


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
            except (KeyError, ValueError):
                self.after = None  # a tensor is missing or misshapen, which has been said
        for client in item.clients:
            if client not in self.memories or self.memories[client][0] != item.round:
                self.memories[client] = (item.round, None)
