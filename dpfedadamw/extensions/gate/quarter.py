"""One page over a span of days: who took how much of the budget, and when it ends.

`between` counts, `document` is the page as data, which `reports.render.pdf` typesets. The auditor's
findings on the whole ledger stand at its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from audit.extensions.gate.judgement import AGAINST, ASSUMPTIONS, UNIT
from audit.extensions.gate.reading import Charge
from audit.protection import WHY, WORDS, protects_nothing
from dpfedadamw.extensions.gate import book, spending, verification
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.settings import Settings
from reports.content.build import as_json
from reports.content.meaning import chance_in_words, excludes_nothing, factor_in_words
from reports.document import (
    LEFT,
    RIGHT,
    Band,
    Block,
    Document,
    Section,
    bullets,
    code,
    paragraph,
    settings,
    table,
)
from reports.files import clean
from reports.formatting import epsilon
from reports.render.pages import date_in_words

if TYPE_CHECKING:
    from audit.verdict import Findings

ATTACHMENT = "gate-report.json"
# So many rows fit on the page; the data inside have all.
_ROWS = 10
_KINDS = {
    "budget": "The budget allowed no more",
    "form": "What was asked for was not in its form",
    "ledger": "The ledger could not be used",
}


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one job took in the span.

    Attributes:
        framework: Whose job it is.
        job: Its identifier.
        releases: How many.
        epsilon: ε of these alone.
        first: Time of the first.
        last: Time of the last.
    """

    framework: str
    job: str
    releases: int
    epsilon: float
    first: str
    last: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of days, both included, in UTC.

    Attributes:
        start: First day.
        end: Last day.
        shares: By framework and job, most releases first.
        epsilon: ε of the span's releases alone.
        refusals: How many, by kind.
        so_far: What was spent from the ledger's first release to the span's last.
    """

    start: date
    end: date
    shares: tuple[Share, ...]
    epsilon: float
    refusals: Mapping[str, int]
    so_far: verification.Standing


def between(wanted: Settings, start: date, end: date) -> Span:
    """Count what was released and refused from one day to another.

    Raises:
        GateError: If the days are in the wrong order, or the ledger cannot be read.
    """
    if end < start:
        raise GateError(f"--to {end}: lies before --from {start}")
    charges = [one for one in verification.charges_of(wanted) if _day(one) <= end]
    inside = [one for one in charges if _day(one) >= start]
    by_job: dict[tuple[str, str], list[Charge]] = {}
    for one in inside:
        by_job.setdefault((one.framework, one.job), []).append(one)
    refused: dict[str, int] = {}
    for day, kinds in book.refusals(wanted).items():
        if start <= date.fromisoformat(day) <= end:
            for kind, count in kinds.items():
                refused[kind] = refused.get(kind, 0) + count
    shares = [
        Share(
            framework=framework,
            job=job,
            releases=len(own),
            epsilon=_epsilon(own, wanted.delta),
            first=own[0].time,
            last=own[-1].time,
        )
        for (framework, job), own in by_job.items()
    ]
    return Span(
        start=start,
        end=end,
        shares=tuple(sorted(shares, key=lambda one: -one.releases)),
        epsilon=_epsilon(inside, wanted.delta),
        refusals=refused,
        so_far=verification.standing(wanted, charges, _at_the_end_of(end)),
    )


def document(wanted: Settings, span: Span, findings: Findings, key: str, signer: str) -> Document:
    """The page.

    Args:
        wanted: The gate's settings.
        span: What was counted.
        findings: The auditor's, on the whole ledger.
        key: Fingerprint of the gate's key.
        signer: Fingerprint of the key that signs the page.
    """
    created = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    days = f"{_words(span.start)} to {_words(span.end)}"
    verdict, so_far = findings.verdict.value, span.so_far
    budget = f"ε = {wanted.epsilon:g} at δ = {wanted.delta:g}"
    ends = "no pace is known"
    if so_far.ends:
        moment = date_in_words(so_far.ends.replace(" UTC", "Z"))
        ends = f"{moment}, at the pace of the last 30 days"
    if not so_far.left:
        ends = "it has ended"
    data: dict[str, Any] = {
        "format": 1,
        "from": f"{span.start}",
        "to": f"{span.end}",
        "unit": wanted.unit,
        "budget": {"epsilon": wanted.epsilon, "delta": wanted.delta},
        "verdict": verdict,
        "gate_key": key,
        "jobs": [asdict(one) for one in span.shares],
        "epsilon_of_span": span.epsilon,
        "refusals": dict(span.refusals),
        "spent": so_far.epsilon,
        "releases": so_far.releases,
        "releases_left": so_far.left,
        "ends": so_far.ends,
        "ledger_sha256": findings.inputs.get("ledger.jsonl"),
    }
    return Document(
        title=f"What left the site, {days}",
        label="Report of a privacy gate",
        audience="Internal: for the operator, the auditor and the privacy officer only",
        description=f"Releases of a gate at a site’s door from {days}, and what they cost.",
        keywords=("privacy gate", f"gate {key}"),
        identifier="",
        created=created,
        date=date_in_words(created),
        paper="a4",
        band=_band(findings, so_far.epsilon),
        qualifications=(),
        introduction=_promise(wanted, so_far.epsilon).replace("'", "’"),
        claim=None,
        front=(),
        summary=(),
        glance=(),
        sections=(
            Section("budget", "The budget", (_budget(wanted, span, budget, ends),)),
            Section("jobs", "Who took how much", _jobs(span)),
            Section("refusals", "Refusals", _refusals(span)),
            Section(
                "keys",
                "Whose word this is",
                (
                    paragraph(["The gate’s key, which signs the ledger: ", code(key)]),
                    paragraph(
                        ["This page is signed by ", code(signer), ". Check it with dpfedadamw "
                         "verify; check the ledger with dpfedadamw gate verify."]
                    ),
                ),
            ),
        ),
        pictures={},
        footer=f"Report of a privacy gate, {days}",
        attachment=ATTACHMENT,
        data=as_json(data),
    )  # fmt: skip


def _promise(wanted: Settings, spent: float) -> str:
    """What was spent, in words, for whom and against whom."""
    if excludes_nothing(spent):
        limit = "What was spent so far excludes no conclusion about those data."
    else:
        limit = (
            f"By what was spent so far, nobody’s odds that those data were used grew by more than "
            f"a factor of {factor_in_words(spent)}. This limit may fail with a probability of at "
            f"most {chance_in_words(wanted.delta)}."
        )
    return f"ε is about {UNIT[wanted.unit]}. It holds against {AGAINST}. {limit} {ASSUMPTIONS}"


def _band(findings: Findings, spent: float) -> Band:
    verdict = findings.verdict.value
    good = verdict == "PASS"
    wrong = [
        one.title for one in findings.findings if one.verdict.value in ("FAIL", "NOT VERIFIED")
    ]
    said = (
        "The auditor read the whole ledger: chain, signatures, noise and budget hold."
        if good
        else f"Not confirmed: {' '.join(wrong)} Do not rely on the numbers below."
    )
    bare = protects_nothing(spent)
    return Band(
        verdict,
        f"{said} {WHY}" if bare else said,
        alarming=not good,
        reserved=bare,
        warning=WORDS["anyone"] if bare else "",
    )


def _budget(wanted: Settings, span: Span, budget: str, ends: str) -> Block:
    so_far = span.so_far
    return settings(
        "What was spent and what is left",
        [
            ("Budget of all jobs", budget),
            (
                "Spent in this span alone",
                f"ε = {epsilon(span.epsilon)}, "
                f"{sum(one.releases for one in span.shares):,} releases",
            ),
            (
                f"Spent in all by {_words(min(span.end, datetime.now(UTC).date()))}",
                f"ε = {epsilon(so_far.epsilon)}, {so_far.releases:,} releases",
            ),
            (f"Left at σ = {wanted.noise_multiplier:g}", f"{so_far.left:,} releases"),
            ("It ends", ends),
        ],
    )


def _jobs(span: Span) -> tuple[Block, ...]:
    if not span.shares:
        return (paragraph("Nothing was released."),)
    rows = [
        [one.framework, clean(one.job, 50), f"{one.releases:,}", epsilon(one.epsilon),
         one.first[:10], one.last[:10]]
        for one in span.shares[:_ROWS]
    ]  # fmt: skip
    rest = span.shares[_ROWS:]
    if rest:
        count = sum(one.releases for one in rest)
        rows.append(["", f"{len(rest):,} more jobs", f"{count:,}", "", "", ""])
    head = ("framework", "job", "releases", "ε alone", "first", "last")
    return (
        table(
            "Releases by framework and job",
            head,
            rows,
            (LEFT, LEFT, RIGHT, RIGHT, LEFT, LEFT),
            (0, 1, 0, 0, 0, 0),
            small=True,
        ),
        paragraph("The ε of single jobs do not add up to that of all.", "small"),
    )


def _refusals(span: Span) -> tuple[Block, ...]:
    if not span.refusals:
        return (paragraph("No request was refused."),)
    items = [
        f"{_KINDS.get(kind, 'Another reason')}: {count:,}"
        for kind, count in sorted(span.refusals.items())
    ]
    return (bullets(items), paragraph("The gate counts refusals and does not sign them.", "small"))


def _epsilon(charges: list[Charge], delta: float) -> float:
    return spending.epsilon_of([one.noise_multiplier for one in charges], delta)


def _day(charge: Charge) -> date:
    return date.fromisoformat(charge.time[:10])


def _at_the_end_of(day: date) -> datetime:
    """The last moment of a day, or now where that has not come."""
    return min(datetime.combine(day, time.max, UTC), datetime.now(UTC))


def _words(day: date) -> str:
    return f"{day:%-d %B %Y}"
