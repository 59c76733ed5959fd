"""Each client-level system equals an independent NumPy reference written from its equations.

Three rounds of the real federation in float64, whose cohorts and noise the reference is given.
Nothing in it is larger than some units, so rounding stays far below the tolerance of 1e-10.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest

from tests.dpfedadamw.federation.client_worlds import (
    CLIP,
    DECAY,
    EXPECTED,
    RATE,
    ROUNDS,
    SEED,
    SIZE,
    gradient,
    play,
)

# A clipped update ends one part in 2^22 below C, so that rounding cannot lift it above.
SAFETY = 1.0 - 2.0**-22


@dataclass(frozen=True)
class System:
    """What a reference needs to know."""

    radius: float = 0.0
    weight: float = 0.0
    bound: float = CLIP
    kind: str = ""
    kept: int = SIZE


def clipped(vector: np.ndarray) -> np.ndarray:
    norm = np.sqrt((vector**2).sum())
    return vector if norm <= CLIP else vector * (CLIP / norm * SAFETY)


def largest(vector: np.ndarray, count: int) -> list[int]:
    return sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:count]


def drawn(index: int, among: list[int], count: int) -> list[int]:
    key = hashlib.sha256(b"dpfedadamw public coordinates 1\0" + b"%d %d" % (SEED, index)).digest()
    words = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(SIZE)
    return sorted(among, key=lambda j: (int(words[j]), j))[:count]


def coordinates(system: System, index: int, before: list[int], release: np.ndarray) -> list[int]:
    """A round's public coordinates: all drawn at first, later half of them the last's largest."""
    if system.kind == "random" or index == 0:
        return sorted(drawn(index, list(range(SIZE)), system.kept))
    moved = sorted(before, key=lambda j: (-abs(np.float32(release[j])), j))
    stay = moved[: system.kept // 2]
    others = [j for j in range(SIZE) if j not in stay]
    return sorted(stay + drawn(index, others, system.kept - len(stay)))


def local(system: System, client: int, theta: np.ndarray, steps: int) -> np.ndarray:
    x = theta.copy()
    for _ in range(steps):
        g = gradient(client, x)
        if system.radius:
            g = gradient(client, x + system.radius * g / np.sqrt((g**2).sum()))
        if ((x - theta) ** 2).sum() > system.bound**2:
            g = g + system.weight * (x - theta)
        x = x - RATE * g - RATE * DECAY * x
    return x - theta


def reference(system: System, recorder, theta: np.ndarray, steps: int) -> list[np.ndarray]:
    path, keep, release = [], list(range(SIZE)), np.zeros(SIZE)
    for index in range(ROUNDS):
        public = system.kind in ("random", "released-top")
        if public:
            keep = coordinates(system, index, keep, release)
        total = np.zeros(SIZE)
        for client in recorder.cohorts[index]:
            update = local(system, client, theta, steps)
            sparse = np.zeros(SIZE)
            mine = largest(update, system.kept) if system.kind == "local-top" else keep
            scale = SIZE / system.kept if system.kind == "random" else 1.0
            sparse[mine] = scale * update[mine]
            total += clipped(sparse)
        total[keep] += recorder.noise(index)
        release = total / EXPECTED
        theta = theta + release
        path.append(theta)
    return path


SYSTEMS = {
    "{name: dp-fedavg}": System(),
    "{name: dp-fedsam, sam: {radius: 0.3}}": System(radius=0.3),
    "{name: fed-smp, sparsification: {kind: random, fraction: 0.5}}": System(kind="random", kept=4),
    "{name: fed-smp, sparsification: {kind: released-top, fraction: 0.5}}": System(
        kind="released-top", kept=4
    ),
    "{name: dp-fedsam-randk, sam: {radius: 0.3}, sparsification: {fraction: 0.4}}": System(
        radius=0.3, kind="random", kept=3
    ),
    "{name: dp-fedsam-topk, sam: {radius: 0.3}, sparsification: {fraction: 0.4}}": System(
        radius=0.3, kind="local-top", kept=3
    ),
    "{name: dp-fedsam-topk, sam: {radius: 0.3}, sparsification: {kind: released-top}}": System(
        radius=0.3, kind="released-top", kept=3
    ),
    "{name: blur, blur: {weight: 0.8, bound: 0.1}}": System(weight=0.8, bound=0.1),
    "{name: blur, blur: {weight: 0.8}}": System(weight=0.8),
    "{name: blurs, blur: {weight: 0.8, bound: 0.1}, sparsification: {fraction: 0.25}}": System(
        weight=0.8, bound=0.1, kind="local-top", kept=2
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize("section", SYSTEMS)
def test_the_federation_equals_its_reference(section, by, steps, tmp_path):
    decayed = f"{section[:-1]}, weight_decay: {DECAY}}}"
    seen, recorder, start = play(decayed, tmp_path, steps, by)
    expected = reference(SYSTEMS[section], recorder, start, steps)
    for one, other in zip(seen, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert np.abs(seen[-1] - start).max() > 1e-3
