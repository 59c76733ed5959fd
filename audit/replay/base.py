"""What a replay is given, how it asks for gradients, and what it leaves.

Every value here was released (it is noised, or public), so that whatever a replay works out is a
function of released values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.replay.rounding import Rounded, exact
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers

UPDATE = "parameters"
FIRST_MOMENT = "first_moment"
SECOND_MOMENT = "second_moment"
GLOBAL_UPDATE = "global_update"

Tensors = Mapping[str, Floats]


class ReplayError(Exception):
    """The released values do not fit the algorithm: something is missing or left over."""


class NeedsWholeVectorsError(Exception):
    """The replay needs all coordinates where a sample of them was recorded."""


@dataclass(frozen=True)
class Partition:
    """The blocks of the whole vector.

    Attributes:
        sizes: Coordinates of each block, float64 [B].
        of_coordinate: Block of every coordinate that was recorded, [d'].
        tensors: Lengths of the parameter tensors, in order; they sum to d.
    """

    sizes: Floats
    of_coordinate: Integers
    tensors: Integers


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What spec and ledger say of a round, and of the client.

    Attributes:
        algorithm: The spec's section.
        clients: N.
        learning_rate: η of the round.
        steps: K, local steps.
        earlier_steps: Local steps of all earlier rounds.
        noise_variance: Φ = (σC/B)² of the client's charge.
        partition: The blocks.
        whole: Whether all d coordinates were recorded.
    """

    algorithm: Mapping[str, Any]
    clients: int
    learning_rate: float
    steps: int
    earlier_steps: int
    noise_variance: float
    partition: Partition
    whole: bool

    def need_whole(self, why: str) -> None:
        """Refuse to go on with a sample of coordinates.

        Raises:
            NeedsWholeVectorsError: If that is what was recorded.
        """
        if not self.whole:
            raise NeedsWholeVectorsError(why)


@dataclass
class Released:
    """What one participation was given: broadcast, memory, and noised gradients one by one.

    Attributes:
        parameters: θ as broadcast, [d'].
        state: The broadcast's further tensors.
        memory: What the client kept before.
        gradients: What the oracle handed out, [Q, d'].
        square_sums: Block sums of squares of each gradient over the whole vector, [Q, B].
        points: Where the replay has asked for gradients so far.
    """

    parameters: Floats
    state: Tensors
    memory: Tensors
    gradients: Floats
    square_sums: Floats
    points: list[Rounded] = field(default_factory=list)

    def ask(self, point: Rounded) -> Floats:
        """The next gradient that was handed out, [d'].

        Raises:
            ReplayError: If the rule would have asked for more than were handed out.
        """
        if len(self.points) >= len(self.gradients):
            raise ReplayError("fewer gradients were handed out than the rule asks for")
        self.points.append(point)
        gradient: Floats = self.gradients[len(self.points) - 1]
        return gradient

    def of_broadcast(self, name: str) -> Floats:
        """One further tensor of the broadcast.

        Raises:
            ReplayError: If it was not broadcast.
        """
        if name not in self.state:
            raise ReplayError(f"the broadcast has no {name}")
        return self.state[name]

    def last_square_sums(self) -> Floats:
        """Block sums of squares [B] of the gradient that was handed out last."""
        sums: Floats = self.square_sums[len(self.points) - 1]
        return sums


@dataclass(frozen=True)
class Produced:
    """What a rule leaves: the upload by name, the update among it, and the client's new memory."""

    upload: Mapping[str, Rounded]
    memory: Mapping[str, Rounded] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerValues:
    """The server's parameters and state, before or after a round."""

    parameters: Rounded
    state: Mapping[str, Rounded] = field(default_factory=dict)


Local = Callable[[Conditions, Released], Produced]
Start = Callable[[Conditions, Floats], Mapping[str, Floats]]
Combine = Callable[[Conditions, ServerValues, Sequence[Mapping[str, Rounded]]], ServerValues]


@dataclass(frozen=True)
class Replay:
    """An algorithm in NumPy: the local rule, and the server's start and combination.

    Attributes:
        local: Works out upload and memory.
        start: The server's state before the first round, by name.
        combine: The server's parameters and state after a round.
    """

    local: Local
    start: Start
    combine: Combine


def option(setting: Conditions, *path: str, default: float = 0.0) -> float:
    """A number of the algorithm's section, such as ``option(setting, "server", "beta1")``."""
    found: Any = setting.algorithm
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return default if found is None else float(found)


def word(setting: Conditions, *path: str, default: str = "") -> str:
    """A word of the algorithm's section."""
    found: Any = setting.algorithm
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return default if found is None else str(found)


def server_rate(algorithm: Mapping[str, Any]) -> float:
    """η_s of the spec's section: what the server multiplies the mean update by; 1 if not said.

    Raises:
        FieldError: it is no number above 0.
    """
    server = algorithm.get("server")
    rate = server.get("learning_rate") if isinstance(server, Mapping) else None
    return 1.0 if rate is None else fields.positive(server, "learning_rate")


def zeros(length: int) -> Rounded:
    """Zeros, exactly."""
    return exact(np.zeros(length))
