"""The audit as the report shows it: one verdict, its reasons, and every check with its limits.

The report may lower the auditor's verdict, never raise it: a missing audit, an unfinished ledger or
a failed check under a passing headline is shown as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import RootModel

from audit.protection import WHY, WORDS, Against, unprotected
from reports.content import wording
from reports.content.parts import (
    INTERNAL,
    PUBLIC,
    WITHOUT_PRIVACY,
    Count,
    Part,
    Rule,
    part,
)
from reports.content.units import unit_of
from reports.files import clean, mapping, sequence
from reports.source import RunSource

VerdictValue = Literal["PASS", "FAIL", "NOT VERIFIED", "NO CLAIM", "NOT AUDITED"]
CheckVerdict = Literal["PASS", "FAIL", "NOT VERIFIED", "NOT APPLICABLE"]
Severity = Literal["critical", "theoretical", "negligible"]
# Free text of others might name a client, a count of participations or a realised ε.
_RESTRICTED = re.compile(
    r"clients?\W{0,3}(index|number|no\.?|id|#)?\W{0,3}\d|client_\d"
    r"|particip\w*[^.;]{0,60}\d|\d[^.;]{0,60}(particip|took part)|took part[^.;]{0,60}\d"
    r"|(ε|epsilon)[^.;]{0,30}\d|attempt",
    re.IGNORECASE,
)
WITHHELD = "One statement concerns restricted data, and only the internal report has it."


class Reason(Part):
    """A check and why it matters here.

    Attributes:
        title: Title.
        why: Reason.
    """

    title: str
    why: str


class Verdict(Part):
    """The verdict as the first page shows it. It may be lower than the auditor's, never higher.

    Attributes:
        value: FAIL: a check contradicts the claim. NOT VERIFIED: a critical check could not be
            made. NO CLAIM: no differential privacy is claimed. NOT AUDITED: no usable audit.
        statement: The verdict in words.
        unprotected_against: Against whom the claim gives no meaningful protection, whether or not
            it holds: the server, or anyone; null where every ε is low enough.
        passed: Checks passed.
        applicable: Checks that apply to this run.
        failed: Checks that contradict the claim.
        not_verified: What could not be verified.
        notes: Files that are missing, broken or belong to another run.
    """

    value: VerdictValue
    statement: str
    passed: Count
    applicable: Count
    failed: tuple[Reason, ...]
    not_verified: tuple[Reason, ...]
    notes: tuple[str, ...]
    unprotected_against: Against | None = None

    @property
    def explanation(self) -> str:
        """The statement without the warning, for where that stands in larger letters."""
        found = self.unprotected_against
        return self.statement if found is None else self.statement.removeprefix(f"{WORDS[found]}. ")


class Check(Part):
    """One check.

    Attributes:
        name: Identifier.
        title: Title.
        verdict: Its verdict.
        severity: What its failure would mean.
        meaning: What its failure would mean.
        claim: What was claimed.
        measurement: What was measured.
        tolerance: What is accepted.
        power: The smallest fault that it would notice.
        limits: What it cannot see.
    """

    name: str
    title: str
    verdict: CheckVerdict
    severity: Severity
    meaning: str | None
    claim: str | None
    measurement: str | None
    tolerance: str | None
    power: str | None
    limits: str | None


class Library(Part):
    """One package.

    Attributes:
        name: Name.
        version: Version.
    """

    name: str
    version: str


class Qualifications(RootModel[tuple[str, ...]]):
    """What is attached to the verdict."""


def for_audience(texts: Sequence[str], audience: str) -> list[str]:
    """Return free texts fit for the audience, each once; restricted ones are replaced."""
    kept = [
        WITHHELD if audience == PUBLIC and _RESTRICTED.search(text) else text
        for text in texts
        if text
    ]
    return list(dict.fromkeys(kept))


def checks(source: RunSource, audience: str) -> list[Check]:
    """Return every check of the audit; an unknown verdict counts as NOT VERIFIED.

    For the public audience the auditor's free text is left out: a measurement may be worded with a
    client's number or a realised ε. What a failure would mean is said in this package's own words.
    """
    meanings = unit_of(source).words.meanings

    def check(given: dict[str, Any]) -> Check:
        name = clean(given.get("name"), 80) or "unnamed"
        verdict: Any = given.get("verdict")
        severity: Any = given.get("severity")

        def text(key: str) -> str | None:
            return clean(given.get(key), 1_500) or None if audience == INTERNAL else None

        return Check(
            name=name,
            title=for_audience([clean(given.get("title"), 200) or name], audience)[0],
            verdict=verdict if verdict in get_args(CheckVerdict) else "NOT VERIFIED",
            severity=severity if severity in get_args(Severity) else "critical",
            meaning=meanings.get(name),
            claim=text("claim"),
            measurement=text("measurement"),
            tolerance=text("tolerance"),
            power=text("power"),
            limits=text("limits"),
        )

    return [check(mapping(raw)) for raw in sequence(mapping(source.audit).get("checks"))]


def against(source: RunSource, audience: str) -> Against | None:
    """Return against whom the claim gives no meaningful protection, by what an audience may see.

    Where whole clients add the noise, the loss against the server is for insiders alone.
    """
    if not source.private or not source.claim:
        return None
    views = unit_of(source).views(source, audience == INTERNAL)
    return unprotected({view.key: view.epsilon for view in views})


def warned(text: str, found: Against | None) -> str:
    """Return a text whose first words say that there is no meaningful protection, if so."""
    return text if found is None else f"{WORDS[found]}. {WHY} {text}"


@part("verdict", Verdict, Rule(WITHOUT_PRIVACY, {"value": {"not": {"const": "PASS"}}}))
def verdict(source: RunSource, audience: str) -> Verdict:
    """Return the first page's verdict: value, sentence, what failed, what is unverified."""
    found = checks(source, audience)
    value = _overall(source, found)
    unverified = [_reason(check) for check in found if check.verdict == "NOT VERIFIED"]
    if source.audit is None:
        unverified.insert(0, Reason(title="The whole run", why="There is no usable audit.json."))
    if source.private and not source.claim:
        unverified.insert(0, Reason(title="The claim", why="The ledger ends without a claim."))
    passed = sum(check.verdict == "PASS" for check in found)
    applicable = sum(check.verdict != "NOT APPLICABLE" for check in found)
    found_against = against(source, audience)
    statement = wording.VERDICTS[value].format(
        passed=passed, applicable=applicable, Audit=wording.AUDITS[source.audited_by_another]
    )
    return Verdict(
        value=value,
        statement=warned(statement, found_against),
        unprotected_against=found_against,
        passed=passed,
        applicable=applicable,
        failed=tuple(_reason(check) for check in found if check.verdict == "FAIL"),
        not_verified=tuple(unverified),
        notes=source.notes,
    )


def _reason(check: Check) -> Reason:
    why = check.measurement or check.meaning
    return Reason(title=check.title, why=why or "The internal report has the details.")


def _overall(source: RunSource, found: list[Check]) -> VerdictValue:
    if source.audit is None:
        return "NOT AUDITED"
    stated = source.audit.get("verdict")
    if stated == "FAIL" or any(check.verdict == "FAIL" for check in found):
        return "FAIL"
    unverified = any(
        check.verdict == "NOT VERIFIED" and check.severity == "critical" for check in found
    )
    if unverified or not found or stated not in ("PASS", "NO CLAIM"):
        return "NOT VERIFIED"
    if not source.private:
        return "NO CLAIM"
    # A private run cannot have "no claim"; an auditor that says so did not judge this one.
    return "PASS" if stated == "PASS" and source.claim else "NOT VERIFIED"


def qualifications(source: RunSource, audience: str) -> list[str]:
    """Return what is attached to the verdict; the seed caveat even without an audit."""
    texts = [clean(text, 800) for text in sequence(mapping(source.audit).get("qualifications"))]
    seeded = source.private and source.header.get("randomness") == "reproducible"
    if seeded and not any(wording.SEED_CAVEAT in text.lower() for text in texts):
        texts.insert(0, f"Reproducible mode: {wording.SEED_CAVEAT}.")
    return for_audience(texts, audience)


@part("qualifications", Qualifications)
def _qualifications(source: RunSource, audience: str) -> Qualifications:
    return Qualifications(tuple(qualifications(source, audience)))


def auditor(source: RunSource) -> list[Library]:
    """Return the auditor's package and libraries with their versions."""
    versions = mapping(mapping(source.audit).get("auditor"))
    return [
        Library(name=clean(name, 60), version=clean(version, 100))
        for name, version in sorted(versions.items(), key=lambda item: str(item[0]))
    ]


def details(source: RunSource, name: str) -> dict[str, Any]:
    """Return the details of the check called `name`, empty if it is absent."""
    for raw in sequence(mapping(source.audit).get("checks")):
        if mapping(raw).get("name") == name:
            return mapping(mapping(raw).get("details"))
    return {}
