"""Broadcasts and replies of a gate's model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate.door import Gate

Arrays = dict[str, NDArray[Any]]


def filled(gate: Gate, value: float) -> Arrays:
    """Arrays in the model's form with one value everywhere."""
    return {name: np.full(form.shape, value, form.dtype) for name, form in gate.model.items()}


def ask(gate: Gate, request: str = "1", job: str = "job") -> Arrays:
    """A release whose shards all stay where they were."""
    zero = filled(gate, 0.0)
    return gate.release(job=job, request=request, broadcast=zero, shards=[zero] * gate.shards)


def as_bytes(arrays: Arrays) -> bytes:
    """All values of a reply."""
    return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def has_scale(values, deviation):
    """Whether the mean square is that of a normal law, to five standard errors."""
    share = float(np.mean(values**2)) / deviation**2
    return abs(share - 1) < 5 * np.sqrt(2 / values.size)


def facts_of(capsys):
    """What a command printed in two columns, by the names in the first; folded lines are joined."""
    found = {}
    for line in capsys.readouterr().out.splitlines():
        start, _, value = line.strip().partition("  ")
        if line.strip() and not line.startswith("  "):
            name, found[start] = start, value.strip()
        elif line.strip():
            found[name] += f" {line.strip()}"
    return found
