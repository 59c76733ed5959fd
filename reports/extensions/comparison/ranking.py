"""Repetitions put together, and an order among specs that says when the seeds could make it.

Third step of the package. Runs of one resolved spec are repetitions: mean, sample standard
deviation, number. Two specs are told apart if Welch's 95 % interval of their difference leaves out
zero and the difference is no smaller than the larger standard deviation; with a single run on
either side nothing is known of the spread, and that is said. Runs that are not verified stand
alone and without a rank.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reports import formatting
from reports.files import clean, mapping
from reports.run_rows import ComparedRun

_CONFIDENCE = 0.95
_SHOWN_SETTINGS = 3
# Not told in a label: what repetitions may differ in, and what follows from other settings.
_SILENT = (
    "version", "name", "description", "report", "randomness", "data", "privacy.target",
    "model.seed",
)  # fmt: skip


@dataclass(frozen=True)
class Behind:
    """How far an entry lies behind the first of its group.

    Attributes:
        first: Label of the first.
        difference: Of the mean accuracies, ≥ 0.
        deviation: The larger of both standard deviations, None if either has one run only.
        interval: Welch's 95 % interval of the difference, None likewise.
    """

    first: str
    difference: float
    deviation: float | None
    interval: tuple[float, float] | None

    @property
    def apart(self) -> bool:
        """Whether the repetitions tell the two apart."""
        if self.interval is None or self.deviation is None:
            return False
        return self.interval[0] > 0 and self.difference >= self.deviation

    def sentence(self, label: str) -> str:
        """Say it, for the entry called `label`."""
        points = f"{100 * self.difference:.1f} points"
        if self.interval is None or self.deviation is None:
            return (
                f"{label} is {points} behind {self.first}: a single run tells nothing of the "
                "seeds' spread, so they are not told apart."
            )
        low, high = (f"{100 * end:.1f}".replace("-", "−") for end in self.interval)
        span = f"95 % interval {low} to {high}"
        spread = f"standard deviation {100 * self.deviation:.1f}"
        if self.apart:
            return f"{label} is {points} behind {self.first} ({span}; {spread})."
        smaller = "smaller than" if self.difference < self.deviation else "within reach of"
        return (
            f"{label} is {points} behind {self.first}, {smaller} the seeds' spread ({spread}; "
            f"{span}): not told apart."
        )


@dataclass(frozen=True)
class RankedSpec:
    """One spec with its repetitions, or one run that is not ranked.

    Attributes:
        label: The algorithm, and the settings by which it differs from others of its name.
        runs: The repetitions that count.
        repeated: Identifiers of runs that repeat a seed or a model, and do not count.
        objection: Why it has no rank, or None.
        rank: From 1; equal means share one. None without a rank.
        behind: Its distance to the first; None for the first and for what has no rank.
    """

    label: str
    runs: tuple[ComparedRun, ...]
    repeated: tuple[str, ...]
    objection: str | None
    rank: int | None = None
    behind: Behind | None = None

    @property
    def accuracies(self) -> list[float]:
        """Final test accuracies of the repetitions that count."""
        return [run.accuracy for run in self.runs if run.accuracy is not None]

    @property
    def mean(self) -> float | None:
        """Mean final test accuracy, in [0, 1]."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the repetitions; None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def epsilons(self, view: str) -> list[float]:
        """Return the claimed losses of the repetitions in a view."""
        found = [run.epsilon(view) for run in self.runs]
        return [value for value in found if value is not None]

    def mean_bytes(self, way: str) -> float | None:
        """Return the mean bytes of a repetition, "up" or "down"; None if not to be told."""
        found = [run.bytes_up if way == "up" else run.bytes_down for run in self.runs]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if known else None


def entries_of(runs: Sequence[ComparedRun]) -> list[RankedSpec]:
    """Put repetitions together and rank what may be ranked, the best first, the unranked last.

    Args:
        runs: Comparable runs, in the order of their identifiers.
    """
    kinds: dict[str, list[ComparedRun]] = {}
    for run in runs:
        kinds.setdefault(run.experiment, []).append(run)
    labels = _labels([kind[0] for kind in kinds.values()])
    ranked: list[RankedSpec] = []
    unranked: list[RankedSpec] = []
    for kind, label in zip(kinds.values(), labels, strict=True):
        counted: list[ComparedRun] = []
        repeated: list[str] = []
        for run in (run for run in kind if run.objection is None):
            again = any(run.repetition == other.repetition for other in counted)
            (repeated.append(run.run) if again else counted.append(run))
        if counted:
            ranked.append(RankedSpec(label, tuple(counted), tuple(repeated), None))
        unranked += [
            RankedSpec(f"{label} ({run.run.rsplit('-', 1)[-1]})", (run,), (), run.objection)
            for run in kind
            if run.objection is not None
        ]
    return [*_ranked(ranked), *unranked]


def _ranked(entries: list[RankedSpec]) -> list[RankedSpec]:
    order = sorted(entries, key=lambda entry: (-(entry.mean or 0.0), entry.label))
    means = [entry.mean for entry in order]
    return [
        replace(
            entry,
            rank=1 + means.index(entry.mean),
            behind=_behind(order[0], entry) if index else None,
        )
        for index, entry in enumerate(order)
    ]


def _behind(first: RankedSpec, entry: RankedSpec) -> Behind:
    assert first.mean is not None
    assert entry.mean is not None
    difference = first.mean - entry.mean
    a, b = first.deviation, entry.deviation
    if a is None or b is None:
        return Behind(first.label, difference, None, None)
    parts = (a * a / len(first.runs), b * b / len(entry.runs))
    error = math.sqrt(sum(parts))
    half = 0.0
    if error > 0:
        freedom = sum(parts) ** 2 / sum(
            part**2 / (len(side.runs) - 1) for part, side in zip(parts, (first, entry), strict=True)
        )
        # A second to load, for what only repetitions have.
        from scipy import stats

        half = float(stats.t.ppf(0.5 + _CONFIDENCE / 2, freedom)) * error
    return Behind(first.label, difference, max(a, b), (difference - half, difference + half))


def settings_of(run: ComparedRun) -> dict[str, str]:
    """Return what the spec sets and a label may name, dotted names to printed values."""
    spec = {key: value for key, value in run.source.spec.items() if key != "report"}
    # Of one class a record, which runs from before there were other tasks do not say.
    if mapping(spec.get("task")).get("kind") == "classification":
        del spec["task"]
    return {
        name: value for name, value in formatting.settings(spec) if not name.startswith(_SILENT)
    }


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, in the spec's order."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({one.get(name) for one in settings}) > 1]


def _labels(runs: Sequence[ComparedRun]) -> list[str]:
    """Name each run by its algorithm and by what sets it apart from others of that name."""
    labels = []
    for run in runs:
        peers = [other for other in runs if other.algorithm == run.algorithm]
        mine = settings_of(run)
        apart = [
            f"{name.removeprefix('algorithm.')} {mine.get(name, 'none')}"
            for name in differing(peers)
        ]
        more = len(apart) - _SHOWN_SETTINGS
        if more > 0:
            apart = [*apart[:_SHOWN_SETTINGS], f"{more} more"]
        labels.append(clean(", ".join([run.algorithm, *apart]), 200))
    return labels
