"""A comparison as data for a machine: everything that the tables show, numbers unrounded."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import WithJsonSchema

from audit.protection import Against
from reports.content import guarantee, identity
from reports.content.findings import VerdictValue
from reports.content.guarantee import NO_PRIVACY
from reports.content.parts import (
    Count,
    Digest,
    Loss,
    Part,
    Share,
    ViewKey,
    plain,
)
from reports.extensions.comparison import METRIC, Comparison, Group, RankedSpec
from reports.files import clean
from reports.run_rows import ComparedRun, SignatureState

FORMAT: Final = 1
Tolerance = Annotated[
    float, WithJsonSchema({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
]
Rank = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})]


class StatedView(Part):
    """One view.

    Attributes:
        key: The view; server, as it happened, is internal only at record level.
        towards: Against whom it holds.
        epsilon: ε.
        delta: δ.
    """

    key: ViewKey
    towards: str
    epsilon: Loss | None
    delta: Share | None


class StatedSignature(Part):
    """Whether its signatures held when the comparison was made.

    Attributes:
        state: The state.
        problem: The first thing that did not hold.
    """

    state: SignatureState
    problem: str | None


class RunData(Part):
    """One repetition.

    Attributes:
        run: The run's identifier.
        accuracy: Test accuracy of its final model.
        privacy: Its claimed losses by view, or that there are none.
        audit: The report's verdict on it.
        signature: Whether its signatures held when the comparison was made.
        bytes_up: Bytes from clients to server; null if not to be shown.
        bytes_down: Bytes from server to clients.
        created: When it began, ISO 8601 UTC.
        hashes: SHA-256 by file; in the public comparison of public files alone.
        unprotected_against: Against whom ε is too large to protect anybody; null where it is not.
    """

    run: str
    accuracy: Share | None
    privacy: Literal["no differential privacy"] | tuple[StatedView, ...]
    audit: VerdictValue
    signature: StatedSignature
    bytes_up: Loss | None
    bytes_down: Loss | None
    created: str
    hashes: dict[str, Digest]
    unprotected_against: Against | None = None


class Accuracy(Part):
    """Final test accuracy.

    Attributes:
        mean: Mean over repetitions.
        standard_deviation: Sample standard deviation; null for fewer than two.
        repetitions: Runs that count.
    """

    mean: Share | None
    standard_deviation: Loss | None
    repetitions: Count


class Distance(Part):
    """Distance.

    Attributes:
        difference: Mean over common seeds, or of the mean accuracies where seeds do not pair.
        interval: 95 % interval of the difference.
        test: The test that judged it, in words; empty where nothing could be tested.
        told_apart: Whether the repetitions tell the two apart, all of a group at 5 % (Holm).
    """

    difference: float
    interval: tuple[float, float] | None
    test: str
    told_apart: bool


class SpecData(Part):
    """One spec with its repetitions, or one run without a rank.

    Attributes:
        label: The algorithm, and what sets it apart.
        algorithm: The algorithm's name.
        rank: Rank within the group; null without one.
        objection: Why it has no rank.
        accuracy: Final test accuracy.
        behind_first: Its distance to the first; null for the first and without a rank.
        bytes_up: Mean bytes up.
        bytes_down: Mean bytes down.
        not_counted: Runs that repeat a seed or a model.
        runs: Its runs.
    """

    label: str
    algorithm: str
    rank: Rank | None
    objection: str | None
    accuracy: Accuracy
    behind_first: Distance | None
    bytes_up: Loss | None
    bytes_down: Loss | None
    not_counted: tuple[str, ...]
    runs: tuple[RunData, ...]


class GroupData(Part):
    """Runs that may be ranked with each other.

    Attributes:
        name: A, B, …
        heading: What agrees in all of them.
        privacy: Their loss in words.
        towards: Against whom ε holds; null without privacy.
        epsilon: Smallest and largest ε.
        entries: Ranked specs, then runs without a rank.
        also_differ: Settings that ranked specs do not share.
        remarks: What has to be said of the group.
        assumptions: What must hold for every ε of the group.
    """

    name: str
    heading: str
    privacy: str
    towards: str | None
    epsilon: tuple[Loss, Loss] | None
    entries: tuple[SpecData, ...]
    also_differ: tuple[str, ...]
    remarks: tuple[str, ...]
    assumptions: tuple[str, ...]


class NotRanked(Part):
    """One pair.

    Attributes:
        groups: Their names.
        because: Where they differ.
    """

    groups: tuple[str, str]
    because: tuple[str, ...]


class ComparisonData(Part):
    """Runs side by side, in groups whose privacy claims agree; no rank crosses groups.

    The public comparison carries nothing that shows who took part, or how often.

    Attributes:
        format: Version of this format.
        audience: Who it is for.
        towards: Against whom ε had to agree at record level.
        tolerance: Relative tolerance of ε within a group.
        metric: What is ranked by.
        groups: The groups.
        not_ranked_together: Pairs of groups and why they are not ranked with each other.
        notes: What was noticed while reading.
    """

    format: Literal[1]
    audience: Literal["internal", "public"]
    towards: Literal["server", "third-party"]
    tolerance: Tolerance
    metric: str
    groups: tuple[GroupData, ...]
    not_ranked_together: tuple[NotRanked, ...]
    notes: tuple[str, ...]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as what ``compare --json`` prints: with directories, not digests."""
    found: dict[str, Any] = plain(as_report(comparison))
    for group, data in zip(comparison.groups, found["groups"], strict=True):
        del data["assumptions"]
        for entry, shown in zip(group.entries, data["entries"], strict=True):
            for run, row in zip(entry.runs, shown["runs"], strict=True):
                del row["created"], row["hashes"]
                row["directory"] = str(run.path)
    return found


def as_report(comparison: Comparison) -> ComparisonData:
    """Return the comparison as the data of a report that leaves the machine.

    It has the digests that tie each row to its run's signed files; the public one those of public
    files alone.
    """
    return ComparisonData.model_validate(
        {
            "format": FORMAT,
            "audience": comparison.audience,
            "towards": comparison.towards,
            "tolerance": comparison.tolerance,
            "metric": METRIC,
            "groups": tuple(_group(group, comparison.audience) for group in comparison.groups),
            "not_ranked_together": tuple(
                NotRanked(groups=(one.group, one.other), because=one.because)
                for one in comparison.refusals
            ),
            "notes": comparison.notes,
        }
    )


def _group(group: Group, audience: str) -> GroupData:
    private, first = group.terms.private, group.entries[0].runs[0]
    return GroupData(
        name=group.name,
        heading=group.terms.heading,
        privacy=group.privacy,
        towards=group.terms.towards or None,
        epsilon=group.epsilon,
        entries=tuple(_spec(entry, audience) for entry in group.entries),
        also_differ=group.also_differ,
        remarks=group.remarks,
        assumptions=tuple(guarantee.assumptions(first.source, audience)) if private else (),
    )


def _spec(entry: RankedSpec, audience: str) -> SpecData:
    behind = entry.behind
    return SpecData(
        label=entry.label,
        algorithm=entry.runs[0].algorithm,
        rank=entry.rank,
        objection=entry.objection,
        accuracy=Accuracy(
            mean=entry.mean,
            standard_deviation=entry.deviation,
            repetitions=len(entry.accuracies),
        ),
        behind_first=None
        if behind is None
        else Distance(
            difference=behind.difference,
            interval=behind.interval,
            test=behind.test,
            told_apart=behind.apart,
        ),
        bytes_up=entry.mean_bytes("up"),
        bytes_down=entry.mean_bytes("down"),
        not_counted=entry.repeated,
        runs=tuple(_run(run, audience) for run in entry.runs),
    )


def _run(run: ComparedRun, audience: str) -> RunData:
    views = tuple(
        StatedView(key=view.key, towards=view.towards, epsilon=view.epsilon, delta=view.delta)
        for view in run.views
    )
    return RunData(
        run=run.run,
        accuracy=run.accuracy,
        privacy=views if run.source.private else NO_PRIVACY,
        audit=run.verdict,
        unprotected_against=run.unprotected,
        signature=StatedSignature(state=run.signature.state, problem=run.signature.problem or None),
        bytes_up=run.bytes_up,
        bytes_down=run.bytes_down,
        created=clean(run.source.header.get("created"), 40),
        hashes=identity.hashes(run.source, audience),
    )
