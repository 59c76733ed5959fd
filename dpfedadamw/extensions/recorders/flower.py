"""Records Flower's own differential privacy: its strategy of central noise, and its local modifier.

Both call functions of Flower that clip and add noise. They are listened to where Flower looks them
up, so that what is recorded is what was released; nothing of the training is changed. Made for flwr
1.41 and 1.42.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod, localdp_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, dp_fixed_clipping
from numpy.typing import NDArray

from dpfedadamw.extensions.recorders.updates import (
    SumOfUpdates,
    UpdateRecorder,
    UpdateRecorderError,
)

Arrays = list[NDArray[Any]]
_GENERATOR = "NumPy's global generator"


class RecordedLocalDp:
    """Flower's `LocalDpMod`, with what it does to a client's messages written down.

    Stands in a ClientApp's list of modifiers in its place. One folder a client, over all rounds;
    `dpfedadamw evidence close` ends it.

    Args:
        mod: The modifier.
        folder: The folder of the client whose context is given.
        rounds: How many messages there will be at most: each states its own δ, which add up.
    """

    def __init__(
        self, mod: LocalDpMod, folder: Callable[[Context], Path | str], rounds: int
    ) -> None:
        self._mod = mod
        self._folder = folder
        self._rounds = rounds

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Let the modifier handle a message, and write down what it did."""
        before = _arrays(message)
        trained: list[Arrays] = []

        def app(inner: Message, state: Context) -> Message:
            reply = call_next(inner, state)
            if not reply.has_error():
                trained.append(_arrays(reply))
            return reply

        recorder = UpdateRecorder(
            self._folder(context), self._rounds * self._mod.delta,
            producer="flwr LocalDpMod", version=flwr.__version__, clients=1, mode="client",
            generator=_GENERATOR, continued=True,
        )  # fmt: skip
        noised: list[tuple[Arrays, Arrays]] = []

        def draw(add: Callable[[Arrays, float], None], arrays: Arrays, deviation: float) -> None:
            clean = [one.copy() for one in arrays]
            recorder.charge(
                before,
                clipping_norm=self._mod.clipping_norm,
                noise_multiplier=float(deviation) / self._mod.clipping_norm,
                cohort=1,
            )
            add(arrays, deviation)
            noised.append((clean, [one.copy() for one in arrays]))

        with _instead(localdp_mod, "add_gaussian_noise_inplace", draw):
            reply: Message = self._mod(message, context, app)
        if len(noised) != 1 or len(trained) != 1:
            # What was refused, or ended in an error, released nothing.
            return reply
        (clean, released), (raw,) = noised[0], trained
        recorder.record(
            participants=[0],
            updates=[_apart(raw, before)],
            mean=_apart(clean, before),
            noised=_apart(released, before),
            after=released,
        )
        # As the modifier is configured, message by message, added up.
        recorder.pause(
            self._mod.epsilon * recorder.rounds, "classical",
            sum_of_updates=_sum(localdp_mod, before, self._mod.clipping_norm),
        )  # fmt: skip
        return reply


def record_strategy(
    strategy: DifferentialPrivacyServerSideFixedClipping,
    recorder: UpdateRecorder,
) -> Callable[[], SumOfUpdates]:
    """Write down what Flower's strategy of central noise does in each round.

    Args:
        strategy: The strategy, before it is started. It is listened to from now on.
        recorder: Gets what is seen; it is for the caller to close.

    Returns:
        A function that gives the strategy's own sum, for the recorder's close.

    Raises:
        UpdateRecorderError: If the strategy is another one.
    """
    if not isinstance(strategy, DifferentialPrivacyServerSideFixedClipping):
        raise UpdateRecorderError(
            f"{type(strategy).__name__} is not recorded; central noise after clipping by the "
            "server is (DifferentialPrivacyServerSideFixedClipping)"
        )
    seen: dict[str, Any] = {}
    numbers: dict[int, int] = {}
    aggregate, add_noise = strategy.aggregate_train, strategy._add_noise_to_aggregated_arrays

    @functools.wraps(aggregate)
    def listened(server_round: int, replies: Any) -> Any:
        kept = list(replies)
        answered = [one for one in kept if not one.has_error()]
        seen["before"] = strategy.current_arrays.to_numpy_ndarrays()
        seen["raw"] = [_arrays(one) for one in answered]
        seen["who"] = [
            numbers.setdefault(one.metadata.src_node_id, len(numbers)) for one in answered
        ]
        return aggregate(server_round, kept)

    @functools.wraps(add_noise)
    def noised(aggregated: Any) -> Any:
        before, mean = seen["before"], aggregated.to_numpy_ndarrays()
        recorder.charge(
            before,
            names=list(aggregated.keys()),
            clipping_norm=strategy.clipping_norm,
            noise_multiplier=strategy.noise_multiplier,
            cohort=strategy.num_sampled_clients,
        )
        answer = add_noise(aggregated)
        after = answer.to_numpy_ndarrays()
        recorder.record(
            participants=seen["who"],
            updates=[_apart(one, before) for one in seen["raw"]],
            mean=_apart(mean, before),
            noised=_apart(after, before),
            after=after,
        )
        return answer

    strategy.aggregate_train = listened
    strategy._add_noise_to_aggregated_arrays = noised
    return lambda: _sum(dp_fixed_clipping, seen["before"], strategy.clipping_norm)


def _arrays(message: Message) -> Arrays:
    record = next(iter(message.content.array_records.values()))
    return [np.array(one) for one in record.to_numpy_ndarrays()]


def _apart(arrays: Arrays, before: Arrays) -> Arrays:
    return [np.subtract(one, other) for one, other in zip(arrays, before, strict=True)]


def _sum(module: Any, like: Arrays, clipping_norm: float) -> SumOfUpdates:
    """What Flower's own clipping makes of made-up updates, added up."""
    sizes = np.cumsum([0, *(one.size for one in like)])
    zeros = [np.zeros(one.shape, np.float32) for one in like]

    def total(updates: NDArray[np.float32]) -> NDArray[np.float64]:
        found = np.zeros(sizes[-1])
        for update in updates:
            if not update.any():
                # Flower divides by the norm, and ends with an error where an update is 0.
                continue
            parts = [
                update[start:stop].reshape(one.shape)
                for one, start, stop in zip(like, sizes[:-1], sizes[1:], strict=True)
            ]
            with np.errstate(all="ignore"):
                module.compute_clip_model_update(parts, zeros, clipping_norm)
                found += np.concatenate([one.ravel() for one in parts])
        return found

    return total


@contextmanager
def _instead(module: Any, name: str, around: Callable[..., None]) -> Iterator[None]:
    """Call `around` with a function of a module where the module calls that function."""
    plain = getattr(module, name)
    setattr(module, name, functools.partial(around, plain))
    try:
        yield
    finally:
        setattr(module, name, plain)
