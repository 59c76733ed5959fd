"""Noise that is right on the whole and wrong in its parts: coordinates, rounds, tails, values.

Every fault is there twice, for single records and for whole clients; in a model of some 650
parameters and, by `python -m tests.faults.table --large`, of 19,210.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import oracle, updates
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.spec import Spec
from tests.faults.client_level_faults import client_spec
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec

# From standard normal numbers [d], a round's index and the number of rounds to the noise used.
Change = Callable[[torch.Tensor, int], torch.Tensor]
TABLE = 100_003


def changed(change: Change) -> Callable[[Patch], None]:
    """Noise that is drawn as it should be and then changed, at both units."""

    def patch(patch: Patch) -> None:
        rounds = [0]
        begin = Federation._begin

        def watching(self: Any, plan: Any, state: Any, message: Any, index: int) -> Any:
            rounds[0] = index
            return begin(self, plan, state, message, index)

        def adding(total, deviation, stream, *rest, dtype=torch.float64, **more):
            standard = add_gaussian_noise(torch.zeros_like(total), 1.0, stream, *rest, **more)
            noise = change(standard.double(), rounds[0])
            return (total.double() + deviation * noise).to(dtype)

        patch.setattr(Federation, "_begin", watching)
        patch.setattr(oracle, "add_gaussian_noise", adding)
        patch.setattr(updates, "add_gaussian_noise", adding)

    return patch


def weakened(part: slice, factor: float) -> Change:
    def change(noise: torch.Tensor, _: int) -> torch.Tensor:
        noise[part] *= factor
        return noise

    return change


def falling(rounds: int) -> Change:
    """From 1.08 to 0.92 of the scale, with the mean square kept."""
    factors = np.linspace(1.08, 0.92, rounds)
    factors /= np.sqrt(np.mean(factors**2))
    return lambda noise, index: noise * factors[index]


def cut_off(noise: torch.Tensor, _: int) -> torch.Tensor:
    return noise.clamp(-4.0, 4.0)


def in_half_precision(noise: torch.Tensor, _: int) -> torch.Tensor:
    return noise.half().double()


def in_256_levels(noise: torch.Tensor, _: int) -> torch.Tensor:
    """Each the middle of a 256th of the normal law, by probability."""
    shares = (torch.floor(256.0 * torch.special.ndtr(noise)).clamp(0, 255) + 0.5) / 256.0
    return torch.special.ndtri(shares)


def from_a_table() -> Change:
    """A table of normal numbers that is read from another place each time."""
    table = torch.randn(TABLE, generator=torch.Generator().manual_seed(11), dtype=torch.float64)

    def change(noise: torch.Tensor, _: int) -> torch.Tensor:
        # The noise that was drawn decides the place.
        start = int(noise[0].abs() * 1e6) % TABLE
        return table[(start + torch.arange(len(noise))) % TABLE]

    return change


def seeded_with_torch(patch: Patch) -> None:
    calls = itertools.count()

    def change(noise: torch.Tensor, _: int) -> torch.Tensor:
        if next(calls) == 0:
            torch.manual_seed(0)
        return torch.randn(len(noise)).double()

    changed(change)(patch)


def seeded_with_numpy(patch: Patch) -> None:
    random = np.random.default_rng(0)
    changed(lambda noise, _: torch.from_numpy(random.standard_normal(len(noise))))(patch)


def many_uploads() -> Spec:
    """Noise by the clients, ten a round, so that there are many noised vectors."""
    return client_spec("clients", clients_per_round=10)


def released() -> Spec:
    return small_spec(mode="release")


def released_updates() -> Spec:
    return client_spec(mode="{mode: release}")


def twice(
    name: str,
    breaks: str,
    seen: str,
    says: str,
    patches: tuple[Callable[[Patch], None], Callable[[Patch], None]],
    specs: tuple[Callable[[], Spec], Callable[[], Spec]] = (small_spec, client_spec),
    check: str = "noise-scale",
) -> tuple[Fault, Fault]:
    """A fault for single records, and for whole clients."""
    record, client = (
        Fault(prefix + name, breaks, seen, (check,), spec, patch, says=says)
        for prefix, spec, patch in zip(("", "client-level-"), specs, patches, strict=True)
    )
    return record, client


def alike(change: Change) -> tuple[Callable[[Patch], None], Callable[[Patch], None]]:
    return changed(change), changed(change)


_LOOPS = "loops over parameters with a list of names that are left out"
_FAST = "ports that replace the generator by a faster one"

GROUP = FaultGroup(
    11,
    "Noise, value by value",
    (
        *twice(
            "no-noise-on-a-few-coordinates",
            "a few weights of a layer go out without noise",
            _LOOPS,
            "some coordinates carry no noise at all",
            alike(weakened(slice(3, None, 97), 0.0)),
        ),
        *twice(
            "no-noise-on-the-last-biases",
            "the ten biases of the last layer go out without noise",
            _LOOPS,
            "no noise",
            alike(weakened(slice(-10, None), 0.0)),
        ),
        *twice(
            "hardly-any-noise-on-a-few-coordinates",
            "a few weights of a layer get a hundredth of their noise",
            "parameter groups with a factor of their own",
            "some coordinates get too little noise",
            alike(weakened(slice(3, None, 97), 0.01)),
        ),
        *twice(
            "noise-that-falls-over-the-rounds",
            "the noise falls from 1.08 to 0.92 of its scale, with the mean square kept",
            "schedules of the noise that are accounted for by their mean",
            "the noise of the first rounds has a different scale",
            (changed(falling(4)), changed(falling(30))),
        ),
        *twice(
            "noise-cut-off-at-four-deviations",
            "noise beyond four standard deviations is clamped",
            "code that guards against outliers",
            "the noise has no tails",
            alike(cut_off),
            (lambda: small_spec(rounds=24), many_uploads),
        ),
        *twice(
            "noise-in-half-precision",
            "noise is drawn in float16",
            "training in mixed precision that draws what it adds in the same type",
            "values of the noise repeat: ",
            alike(in_half_precision),
        ),
        *twice(
            "noise-of-256-levels",
            "noise has 256 values alone, of the right distribution",
            _FAST,
            "values of the noise repeat: ",
            alike(in_256_levels),
        ),
        *twice(
            "noise-from-a-table",
            "noise is read from a table of 100,003 numbers, from another place each time",
            _FAST,
            "values of the noise repeat: ",
            (changed(from_a_table()), changed(from_a_table())),
            (small_spec, lambda: client_spec(rounds=60)),
        ),
        *twice(
            "noise-of-torch-seeded-with-0",
            "a run that claims secret randomness draws its noise after torch.manual_seed(0)",
            "scripts that seed everything at the top",
            "a generator seeded with a number that anyone would try first",
            (seeded_with_torch, seeded_with_torch),
            (released, released_updates),
            "randomness",
        ),
        *twice(
            "noise-of-numpy-seeded-with-0",
            "a run that claims secret randomness draws its noise from default_rng(0)",
            "scripts that seed everything at the top",
            "a generator seeded with a number that anyone would try first",
            (seeded_with_numpy, seeded_with_numpy),
            (released, released_updates),
            "randomness",
        ),
    ),
)
