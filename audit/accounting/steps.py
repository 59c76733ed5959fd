"""Steps: what the auditor's accountants compose, as it follows from the ledger's charges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Kind = tuple[float, float, bool, int]


@dataclass(frozen=True)
class Steps:
    """A number of identical queries on samples of the records.

    Attributes:
        sampling_rate: q in (0, 1].
        noise_multiplier: noise over how far one neighbour moves the sum: σ under add/remove, σ/2
            under replace-one.
        steps: how often.
        fixed_size: whether the sample has a fixed size; else it is a Poisson sample.
        records: of whom the loss is: of one record, or of somebody with so many in Poisson samples.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    fixed_size: bool = False
    records: int = 1

    @property
    def kind(self) -> Kind:
        """What one of the queries is."""
        return self.sampling_rate, self.noise_multiplier, self.fixed_size, self.records


def merge(history: Sequence[Steps]) -> tuple[Steps, ...]:
    """A history with each kind of step once, in a fixed order; empty entries are dropped."""
    counts: dict[Kind, int] = {}
    for item in history:
        if item.steps > 0:
            counts[item.kind] = counts.get(item.kind, 0) + item.steps
    return tuple(
        Steps(rate, sigma, steps, fixed_size, records)
        for (rate, sigma, fixed_size, records), steps in sorted(counts.items())
    )
