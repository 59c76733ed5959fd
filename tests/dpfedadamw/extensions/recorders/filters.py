"""Servers and filters that clip and noise whole clients' updates: correct ones, and mistakes.

Each is a function of a recorder's folder; `CORRECT` and `BROKEN` name them, with the check that
must say so. They have the structure of Flower's strategies and modifiers and of NVFlare's filters:
an update in, an update out, in NumPy alone.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.accounting.budget import Steps, budget
from dpfedadamw.extensions.recorders.updates import UpdateRecorder

SHAPES = ((12, 6), (12,), (3, 12), (3,))
CLIENTS, COHORT, ROUNDS, CLIP, NOISE, DELTA = 40, 8, 30, 0.5, 1.2, 1e-3
Arrays = list[NDArray[np.float32]]


def start() -> Arrays:
    return [np.zeros(shape, np.float32) for shape in SHAPES]


def local_update(generator: np.random.Generator) -> Arrays:
    """What a client would send: some below the clipping norm, most above."""
    scale = generator.uniform(0.02, 0.3)
    return [generator.normal(0.0, scale, shape).astype(np.float32) for shape in SHAPES]


def flat_clip(update: Arrays, clip: float = CLIP) -> Arrays:
    norm = math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in update))
    factor = np.float32(min(1.0, clip / norm) if norm else 1.0)
    return [one * factor for one in update]


def clip_each_tensor(update: Arrays) -> Arrays:
    return [flat_clip([one])[0] for one in update]


def mean(clipped: Sequence[Arrays]) -> Arrays:
    return [np.mean(parts, axis=0, dtype=np.float64) for parts in zip(*clipped, strict=True)]


def weighted_mean(clipped: Sequence[Arrays]) -> Arrays:
    """By numbers of examples, as FedAvg has it: the noise is for one client in COHORT."""
    weights = np.arange(1, len(clipped) + 1) / (len(clipped) * (len(clipped) + 1) / 2)
    return [np.tensordot(weights, np.stack(parts), 1) for parts in zip(*clipped, strict=True)]


def as_sum(clip: Callable[[Arrays], Arrays]) -> Callable[[NDArray[np.float32]], NDArray]:
    """What the program adds up of made-up updates."""
    stops = np.cumsum([0, *(math.prod(shape) for shape in SHAPES)])

    def total(updates: NDArray[np.float32]) -> NDArray[np.float64]:
        found = np.zeros(stops[-1])
        for update in updates:
            parts = [
                update[a:b].reshape(shape)
                for shape, a, b in zip(SHAPES, stops[:-1], stops[1:], strict=True)
            ]
            with np.errstate(all="ignore"):
                found += np.concatenate([one.ravel() for one in clip(parts)])
        return found

    return total


def server(
    folder: Path,
    *,
    clip: Callable[[Arrays], Arrays] = flat_clip,
    aggregate: Callable[[Sequence[Arrays]], Arrays] = mean,
    noise: float = NOISE,
    always_the_same: bool = False,
    anew: bool = True,
) -> Path:
    """Central noise on the mean of the clipped updates of a few clients, drawn in each round."""
    generator = np.random.default_rng(secrets.randbits(64))
    recorder = UpdateRecorder(folder, DELTA, producer="example", version="1", clients=CLIENTS)
    weights, kept = start(), None
    for _ in range(ROUNDS):
        drawn = range(COHORT)
        if not always_the_same:
            drawn = generator.choice(CLIENTS, COHORT, replace=False)
        updates = [local_update(generator) for _ in drawn]
        middle = aggregate([clip(one) for one in updates])
        recorder.charge(weights, clipping_norm=CLIP, noise_multiplier=NOISE, cohort=COHORT)
        deviation = noise * CLIP / COHORT
        if kept is None or anew:
            kept = [generator.normal(0.0, deviation, shape) for shape in SHAPES]
        noised = [(one + add).astype(np.float32) for one, add in zip(middle, kept, strict=True)]
        recorder.record(
            participants=[int(one) for one in drawn], updates=updates, mean=middle, noised=noised
        )
        weights = [one + add for one, add in zip(weights, noised, strict=True)]
    steps = Steps(COHORT / CLIENTS, NOISE / 2.0, ROUNDS, fixed_size=True)
    spent = budget([steps], DELTA).headline
    return recorder.close(spent, "pld", sum_of_updates=as_sum(clip))


def client_filter(
    folder: Path,
    *,
    epsilon: float = 0.8,
    sensitivity: float = 2.0 * CLIP,
    rounds: int = 4,
    states_all: bool = True,
    drawn: float = 1.0,
) -> Path:
    """A client's own noise by the classical formula, as local modifiers have it.

    Args:
        folder: The recording's.
        epsilon: ε of one message.
        sensitivity: What the noise is made for; two updates differ by up to 2C.
        rounds: Messages.
        states_all: Whether ε is stated for all messages, and not for one.
        drawn: Share of the standard deviation that is really drawn.
    """
    generator = np.random.default_rng(secrets.randbits(64))
    delta = 1e-5
    recorder = UpdateRecorder(
        folder, rounds * delta, producer="example", version="1", clients=1, mode="client"
    )
    deviation = sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    weights = start()
    for place in range(rounds):
        update = local_update(generator)
        clipped = flat_clip(update)
        # What the server made of all messages, before the next.
        weights = [one + np.float32(0.01 * place) for one in weights]
        recorder.charge(weights, clipping_norm=CLIP, noise_multiplier=deviation / CLIP, cohort=1)
        noised = [
            (one + generator.normal(0.0, drawn * deviation, one.shape)).astype(np.float32)
            for one in clipped
        ]
        recorder.record(participants=[0], updates=[update], mean=clipped, noised=noised)
    stated = epsilon * (rounds if states_all else 1)
    return recorder.close(stated, "classical", sum_of_updates=as_sum(flat_clip))


def mean_weighted_by_examples(folder: Path) -> Path:
    return server(folder, aggregate=weighted_mean)


def clipped_tensor_by_tensor(folder: Path) -> Path:
    return server(folder, clip=clip_each_tensor)


def noise_divided_twice(folder: Path) -> Path:
    return server(folder, noise=NOISE / COHORT)


def same_noise_in_every_round(folder: Path) -> Path:
    return server(folder, anew=False)


def same_clients_billed_as_drawn(folder: Path) -> Path:
    return server(folder, always_the_same=True)


def classical_formula_beyond_one(folder: Path) -> Path:
    return client_filter(folder, epsilon=20.0, rounds=1)


def sensitivity_of_the_clipping_norm(folder: Path) -> Path:
    return client_filter(folder, sensitivity=CLIP, epsilon=5.0, rounds=1)


def one_message_stated_for_all(folder: Path) -> Path:
    return client_filter(folder, rounds=20, states_all=False)


def less_noise_than_configured(folder: Path) -> Path:
    return client_filter(folder, drawn=0.7)


CORRECT = (server, client_filter)
BROKEN = {
    mean_weighted_by_examples: "sensitivity",
    clipped_tensor_by_tensor: "sensitivity",
    noise_divided_twice: "noise-scale",
    same_noise_in_every_round: "noise-scale",
    same_clients_billed_as_drawn: "sampling",
    classical_formula_beyond_one: "accounting",
    sensitivity_of_the_clipping_norm: "accounting",
    one_message_stated_for_all: "accounting",
    less_noise_than_configured: "noise-scale",
}
