"""Repetitions put together, and an order among specs that says when the seeds could make it.

Third step of the package. Runs of one resolved spec are repetitions: mean, sample standard
deviation, number. Each spec is tested against the first of its group by the differences of the
seeds that both have (`reports.paired`), or by Welch's test where seeds do not pair, all of a group
corrected together; with a single run on either side nothing is known of the spread, and that is
said. Runs that are not verified stand alone and without a rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reports import formatting, paired
from reports.content.mechanism import setting_in_words
from reports.files import clean, mapping
from reports.run_rows import ComparedRun

_SHOWN_SETTINGS = 3
# Left out of a label: what repetitions may differ in, and what follows from other settings.
_SILENT = (
    "version", "name", "description", "report", "randomness", "data", "privacy.target",
    "model.seed",
)  # fmt: skip


@dataclass(frozen=True)
class Behind:
    """How far an entry lies behind the first of its group.

    Attributes:
        first: Label of the first.
        difference: Mean over the common seeds; of the mean accuracies where there are none.
        interval: Its 95 % interval; None if either has one run only.
        seeds: How many seeds both have, of which the differences were taken; None where their
            seeds do not pair, and Welch's test was used.
        apart: Whether the repetitions tell the two apart.
    """

    first: str
    difference: float
    interval: tuple[float, float] | None
    seeds: int | None = None
    apart: bool = False

    @property
    def test(self) -> str:
        """The test, in words; empty where nothing could be tested."""
        if self.interval is None:
            return ""
        if self.seeds is None:
            return "Welch's t-test, as their seeds do not pair"
        return f"paired t-test over {self.seeds} common seeds"

    def sentence(self, label: str) -> str:
        """Say it, for the entry called `label`."""
        points = f"{100 * self.difference:.1f} points".replace("-", "−")
        if self.interval is None:
            return (
                f"{label} is {points} behind {self.first}. A single run says nothing about the "
                "seeds' spread, so they are not told apart."
            )
        low, high = (f"{100 * end:.1f}".replace("-", "−") for end in self.interval)
        verdict = "" if self.apart else " The seeds do not tell them apart."
        return (
            f"{label} is {points} behind {self.first} (95 % interval {low} to {high}; "
            f"{self.test}).{verdict}"
        )


@dataclass(frozen=True)
class RankedSpec:
    """One spec with its repetitions, or one run that is not ranked.

    Attributes:
        label: The spec's name, its algorithm, and the settings by which it differs from others of
            its name.
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
    def by_seed(self) -> dict[str, float] | None:
        """These by the seeds of their runs; None where two have the same, or one has none."""
        found = {
            run.seeds: run.accuracy
            for run in self.runs
            if run.seeds is not None and run.accuracy is not None
        }
        return found if len(found) == len(self.runs) else None

    @property
    def mean(self) -> float | None:
        """Mean final test accuracy, in [0, 1]."""
        # Exact: the mean of equal numbers is that number, however many there are.
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the repetitions; None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def epsilons(self, view: str) -> list[float]:
        """Return the claimed losses of the repetitions in a view."""
        found = [run.epsilon(view) for run in self.runs]
        return [value for value in found if value is not None]

    def mean_bytes(self, way: str) -> float | None:
        """Return the mean bytes of a repetition, "up" or "down"; None if not to be shown."""
        found = [getattr(run, f"bytes_{way}") for run in self.runs]
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
    tested = {number: _behind(order[0], order[number]) for number in range(1, len(order))}
    apart = paired.holm({number: chance for number, (_, chance) in tested.items()})
    behind = {number: replace(one, apart=number in apart) for number, (one, _) in tested.items()}
    return [
        replace(entry, rank=1 + means.index(entry.mean), behind=behind.get(number))
        for number, entry in enumerate(order)
    ]


def _behind(first: RankedSpec, entry: RankedSpec) -> tuple[Behind, float]:
    """The distance, and how probable one as large were if there were none."""
    assert first.mean is not None
    assert entry.mean is not None
    if first.by_seed is not None and entry.by_seed is not None:
        each = paired.differences(first.by_seed, entry.by_seed)
        if len(each) > 1:
            found = Behind(first.label, statistics.fmean(each), paired.interval(each), len(each))
            return found, paired.chance(each)
    difference = first.mean - entry.mean
    if len(first.runs) < 2 or len(entry.runs) < 2:
        return Behind(first.label, difference, None), 1.0
    if first.deviation == entry.deviation == 0:
        return Behind(first.label, difference, (difference,) * 2), 0.0 if difference else 1.0
    # A second to load, for what only repetitions have.
    from scipy import stats

    result = stats.ttest_ind(first.accuracies, entry.accuracies, equal_var=False)
    low, high = result.confidence_interval(1 - paired.LEVEL)
    return Behind(first.label, difference, (float(low), float(high))), float(result.pvalue)


def settings_of(run: ComparedRun) -> dict[str, str]:
    """Return what the spec sets and a label may name, dotted names to printed values."""
    spec = {key: value for key, value in run.source.spec.items() if key != "report"}
    # Of one class a record, which runs from before there were other tasks do not say.
    if mapping(spec.get("task")).get("kind") == "classification":
        del spec["task"]
    # Section by section: of a whole spec the last settings would not fit.
    return {
        name: value
        for section, inner in spec.items()
        for name, value in formatting.settings({section: inner})
        if not name.startswith(_SILENT)
    }


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, in the spec's order."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({one.get(name, "none") for one in settings}) > 1]


def _labels(runs: Sequence[ComparedRun]) -> list[str]:
    """Name each run by its spec, and by what sets it apart from others of that name."""
    names = [_name(run) for run in runs]
    labels = []
    for run, name in zip(runs, names, strict=True):
        peers = [other for other, theirs in zip(runs, names, strict=True) if theirs == name]
        mine = settings_of(run)
        apart = [
            f"{setting_in_words(key.removeprefix('algorithm.'))} {mine.get(key, 'none')}"
            for key in differing(peers)
            if key != "algorithm.name"
        ]
        more = len(apart) - _SHOWN_SETTINGS
        if more > 0:
            apart = [*apart[:_SHOWN_SETTINGS], f"{more} more"]
        labels.append(clean(", ".join([name, *apart]), 200))
    return labels


def _name(run: ComparedRun) -> str:
    """The spec's name, and its algorithm where the name does not say it."""
    name = clean(run.source.spec.get("name"), 100)
    return name if run.algorithm in name else ", ".join(filter(None, (name, run.algorithm)))
