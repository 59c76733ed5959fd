"""Several runs side by side, in groups that may be ranked, and never across them.

`runs` reads, `terms` says what must agree, `ranking` puts repetitions together and orders them;
here they become one `Comparison`, which `tables` and `figure` show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports import formatting, run_rows
from reports.content import tuning, wording
from reports.content.guarantee import NO_PRIVACY
from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import ReportError
from reports.extensions.comparison import ranking, terms
from reports.extensions.comparison.ranking import RankedSpec
from reports.extensions.comparison.terms import TOLERANCE, Terms, Towards

__all__ = ["TOLERANCE", "Comparison", "Group", "RankedSpec", "Towards", "compare"]

METRIC = "test accuracy of the final model"
_SHOWN_VALUES = 6


@dataclass(frozen=True)
class Group:
    """Runs that may be ranked with each other.

    Attributes:
        name: "A", "B", …
        terms: What agrees in all of them.
        epsilon: Smallest and largest ε of the group's view; None without privacy or claim.
        entries: Ranked specs, the best first, then runs without a rank.
        also_differ: Settings that are not the same in all ranked specs, a phrase each.
        remarks: What has to be said of the group, a sentence each.
    """

    name: str
    terms: Terms
    epsilon: tuple[float, float] | None
    entries: tuple[RankedSpec, ...]
    also_differ: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def privacy(self) -> str:
        """The group's loss in words, or that there is none."""
        if not self.terms.private:
            return NO_PRIVACY
        return f"ε {self.losses} against {self.terms.towards}"

    @property
    def losses(self) -> str:
        """The group's ε, as one number or as a range."""
        if self.epsilon is None:
            return "unknown"
        low, high = (formatting.epsilon(value) for value in self.epsilon)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Refusal:
    """Two groups that are not ranked with each other.

    Attributes:
        group: The later group.
        other: The earlier one that it has most in common with.
        because: Where they differ, a phrase each.
    """

    group: str
    other: str
    because: tuple[str, ...]

    def sentence(self) -> str:
        """Say it."""
        return f"{self.group} is not ranked with {self.other}: {'; '.join(self.because)}."


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        audience: "internal" or "public".
        towards: Against whom ε had to agree at record level.
        tolerance: Relative tolerance of ε within a group.
        groups: The groups; private ones by rising ε, those without privacy last.
        refusals: For each group but the first, why it is not ranked with its nearest.
        notes: What was noticed while reading, a sentence each.
    """

    audience: str
    towards: str
    tolerance: float
    groups: tuple[Group, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]


def compare(
    run_dirs: Sequence[Path],
    audience: str = INTERNAL,
    towards: Towards = Towards.server,
    tolerance: float = TOLERANCE,
) -> Comparison:
    """Compare runs.

    Args:
        run_dirs: Run directories, in any order.
        audience: "internal", or "public": nothing shows who took part how often.
        towards: Against whom ε has to agree at record level.
        tolerance: Largest relative difference of ε within a group, in [0, 1).

    Returns:
        Groups that may be ranked. It depends on what the runs are, not on their order.

    Raises:
        ReportError: The audience or tolerance is out of range, or directories cannot be compared,
            a line each.
    """
    if audience not in (INTERNAL, PUBLIC):
        raise ReportError(f"audience {audience!r}: must be one of {INTERNAL}, {PUBLIC}")
    if not 0 <= tolerance < 1:
        raise ReportError(f"tolerance {tolerance:g}: a relative tolerance from 0 to below 1")
    if not run_dirs:
        raise ReportError("there is nothing to compare; name at least one run directory")
    found, notes = run_rows.read_all(run_dirs, audience)
    return arrange(found, audience, towards, tolerance, notes)


def arrange(
    found: Sequence[run_rows.ComparedRun],
    audience: str,
    towards: Towards,
    tolerance: float,
    notes: Sequence[str] = (),
) -> Comparison:
    """Group and rank runs that were read; see `compare`.

    Args:
        found: The runs, in the order of their identifiers.
        audience: For whom they were read.
        towards: Against whom ε has to agree at record level.
        tolerance: Largest relative difference of ε within a group.
        notes: What was noticed while reading.
    """
    families: dict[tuple[Any, ...], tuple[Terms, list[run_rows.ComparedRun]]] = {}
    for run in found:
        agreed = terms.terms_of(run, towards)
        families.setdefault(agreed.key, (agreed, []))[1].append(run)
    drafts = []
    for agreed, members in families.values():
        losses = [run.epsilon(agreed.view) for run in members]
        whole = [list(range(len(members)))]
        for cluster in terms.clusters(losses, tolerance) if agreed.private else whole:
            chosen = [members[index] for index in sorted(cluster)]
            known = [value for value in (losses[index] for index in cluster) if value is not None]
            span = (min(known), max(known)) if known else None
            drafts.append((agreed, span, chosen))
    drafts.sort(key=lambda draft: _order(*draft))
    groups = tuple(
        _group(formatting.letters(index), *draft, tolerance) for index, draft in enumerate(drafts)
    )
    return Comparison(
        audience,
        towards.value,
        tolerance,
        groups,
        tuple(
            _refusal(groups[:index], group, tolerance)
            for index, group in enumerate(groups)
            if index
        ),
        tuple(notes),
    )


def _order(
    agreed: Terms, span: tuple[float, float] | None, members: list[run_rows.ComparedRun]
) -> tuple[Any, ...]:
    """Private groups first, families together, ε rising, no claim after all claims."""
    return (
        not agreed.private,
        agreed.heading,
        agreed.key,
        span is None,
        span or (0.0, 0.0),
        members[0].run,
    )


def _group(
    name: str,
    agreed: Terms,
    span: tuple[float, float] | None,
    members: list[run_rows.ComparedRun],
    tolerance: float,
) -> Group:
    entries = tuple(ranking.entries_of(members))
    ranked = [entry for entry in entries if entry.rank is not None]
    return Group(
        name, agreed, span, entries, tuple(_also_differ(ranked)),
        tuple(_remarks(agreed, span, members, entries, tolerance)),
    )  # fmt: skip


def _also_differ(ranked: Sequence[RankedSpec]) -> list[str]:
    """Say which settings besides the algorithm's own the ranked specs do not share."""
    firsts = [entry.runs[0] for entry in ranked]
    phrases = []
    for setting in ranking.differing(firsts):
        if setting.startswith("algorithm."):
            continue
        values = list(
            dict.fromkeys(ranking.settings_of(run).get(setting, "none") for run in firsts)
        )
        more = [f"{len(values) - _SHOWN_VALUES} more"] if len(values) > _SHOWN_VALUES else []
        phrases.append(f"{setting} ({', '.join([*values[:_SHOWN_VALUES], *more])})")
    return phrases


def _remarks(
    agreed: Terms,
    span: tuple[float, float] | None,
    members: Sequence[run_rows.ComparedRun],
    entries: Sequence[RankedSpec],
    tolerance: float,
) -> list[str]:
    found = [entry.behind.sentence(entry.label) for entry in entries if entry.behind is not None]
    found += run_rows.against_majority(
        (entry.label, entry.mean, [run.majority_rate for run in entry.runs]) for entry in entries
    )
    for entry in entries:
        found += [
            f"{run} repeats a run of {entry.label} and is not counted twice."
            for run in entry.repeated
        ]
        found += tuning.remarks(entry.runs[0].source, entry.label)
        if entry.objection is not None:
            found.append(f"{entry.label} has no rank: {entry.objection}.")
    if span is not None and span[0] < span[1]:
        low, high = (formatting.epsilon(value) for value in span)
        found.append(f"ε runs from {low} to {high}, within the tolerance of {100 * tolerance:g} %.")
    realised = [run.epsilon("server") for run in members if not run.source.protects_clients]
    known = [value for value in realised if value is not None]
    if known and max(known) > min(known) * (1 + tolerance):
        found.append(
            f"As it happened, ε against the server runs from {formatting.epsilon(min(known))} to "
            f"{formatting.epsilon(max(known))}, because clients were drawn more or less often."
        )
    if agreed.private and members[0].source.header.get("randomness") == "reproducible":
        found.append(f"Reproducible mode: {wording.SEED_CAVEAT}.")
    return found


def _refusal(before: Sequence[Group], group: Group, tolerance: float) -> Refusal:
    """Compare a group with the earlier one that it has most in common with."""
    reasons = [(_because(group, other, tolerance), other.name) for other in before]
    because, name = min(reasons, key=lambda reason: len(reason[0]))
    return Refusal(group.name, name, tuple(because))


def _because(group: Group, other: Group, tolerance: float) -> list[str]:
    found = terms.differences(group.terms, other.terms)
    # Losses of different units, adjacencies or δ measure different things and are not set side by
    # side as if one were the smaller.
    if group.terms.claim != other.terms.claim or not group.terms.private:
        return found
    mine, theirs = group.epsilon, other.epsilon
    if (
        mine is None
        or theirs is None
        or max(mine[1], theirs[1]) > (1 + tolerance) * min(mine[0], theirs[0])
    ):
        left, right = group.losses, other.losses
        if left == right and mine and theirs:
            left, right = (f"{span[0]:.10g}" for span in (mine, theirs))
        found.insert(0, f"ε {left} vs {right} against {group.terms.towards}")
    return found
