"""The audit as the report shows it: one verdict, its reasons, and every check with its limits.

The report may lower the auditor's verdict, never raise it: a missing audit, an unfinished ledger or
a failed check under a passing headline is shown as what it is.
"""

from __future__ import annotations

from typing import Any

from reports.content import wording
from reports.content.guarantee import INTERNAL, PUBLIC, for_audience
from reports.content.units import words_of
from reports.reading.files import clean, mapping, number, sequence
from reports.reading.source import RunSource

CHECK_VERDICTS = ("PASS", "FAIL", "NOT VERIFIED", "NOT APPLICABLE")
SEVERITIES = ("critical", "theoretical", "negligible")
_SIDES = ("inside", "below", "above")
_MEASURED = ("claim", "measurement", "tolerance", "power", "limits")


def checks(source: RunSource, audience: str) -> list[dict[str, Any]]:
    """Return every check of the audit; an unknown verdict counts as NOT VERIFIED.

    For the public audience the auditor's free text is left out: a measurement may be worded with a
    client's number or a realised ε. What a failure would mean is said in this package's own words.
    """
    result = []
    for raw in sequence(mapping(source.audit).get("checks")):
        check = mapping(raw)
        name = clean(check.get("name"), 80) or "unnamed"
        verdict = check.get("verdict")
        severity = check.get("severity")
        title = clean(check.get("title"), 200) or name
        entry: dict[str, Any] = {
            "name": name,
            "title": title if audience == INTERNAL else for_audience([title], audience)[0],
            "verdict": verdict if verdict in CHECK_VERDICTS else "NOT VERIFIED",
            "severity": severity if severity in SEVERITIES else "critical",
            "meaning": words_of(source).meanings.get(name),
        }
        for key in _MEASURED:
            entry[key] = clean(check.get(key), 1_500) or None if audience == INTERNAL else None
        result.append(entry)
    return result


def verdict(source: RunSource, audience: str) -> dict[str, Any]:
    """Return the first page's verdict: value, sentence, what failed, what is unverified."""
    found = checks(source, audience)
    value = _overall(source, found)
    failed = [_reason(check) for check in found if check["verdict"] == "FAIL"]
    unverified = [_reason(check) for check in found if check["verdict"] == "NOT VERIFIED"]
    if source.audit is None:
        unverified.insert(0, {"title": "The whole run", "why": "No usable audit.json was found."})
    if source.private and not source.claim:
        unverified.insert(0, {"title": "The claim", "why": "The ledger ends without one."})
    passed = sum(check["verdict"] == "PASS" for check in found)
    applicable = sum(check["verdict"] != "NOT APPLICABLE" for check in found)
    return {
        "value": value,
        "statement": wording.VERDICTS[value].format(passed=passed, applicable=applicable),
        "passed": passed,
        "applicable": applicable,
        "failed": failed,
        "not_verified": unverified,
        "notes": list(source.notes),
    }


def _reason(check: dict[str, Any]) -> dict[str, str]:
    why = check["measurement"] or check["meaning"]
    return {"title": check["title"], "why": why or "The internal report has the details."}


def _overall(source: RunSource, found: list[dict[str, Any]]) -> str:
    if source.audit is None:
        return "NOT AUDITED"
    stated = source.audit.get("verdict")
    if stated == "FAIL" or any(check["verdict"] == "FAIL" for check in found):
        return "FAIL"
    unverified = any(
        check["verdict"] == "NOT VERIFIED" and check["severity"] == "critical" for check in found
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
    if source.private and source.header.get("randomness") == "reproducible":
        caveat = wording.SEED_CAVEAT
        if not any(caveat.lower()[:30] in text.lower() for text in texts):
            texts.insert(0, f"Reproducible mode: {caveat}.")
    return for_audience(texts, audience)


def auditor(source: RunSource) -> list[dict[str, str]]:
    """Return the auditor's package and libraries with their versions."""
    versions = mapping(mapping(source.audit).get("auditor"))
    return [
        {"name": clean(name, 60), "version": clean(version, 100)}
        for name, version in sorted(versions.items(), key=lambda item: str(item[0]))
    ]


def details(source: RunSource, name: str) -> dict[str, Any]:
    """Return the details of the check called `name`, empty if it is absent."""
    for raw in sequence(mapping(source.audit).get("checks")):
        if mapping(raw).get("name") == name:
            return mapping(mapping(raw).get("details"))
    return {}


def noise_quantiles(source: RunSource, audience: str) -> list[dict[str, Any]]:
    """Return where quantiles of the noise are accepted, and whether they were found there.

    The values themselves are private and not in the audit. The intervals tell how many queries
    were made, which is for the internal audience.
    """
    found = mapping(details(source, "noise-scale").get("quantiles"))
    if audience != INTERNAL or not source.private:
        return []
    names = ("levels", "expected", "low", "high", "verdicts")
    rows = []
    for values in zip(*(sequence(found.get(name))[:200] for name in names), strict=False):
        level, expected, low, high = (number(value) for value in values[:4])
        if None in (level, expected, low, high) or values[4] not in _SIDES:
            return []
        rows.append(
            {
                "level": level,
                "expected": expected,
                "low": low,
                "high": high,
                "verdict": values[4],
            }
        )
    return rows


__all__ = [
    "INTERNAL",
    "PUBLIC",
    "auditor",
    "checks",
    "details",
    "noise_quantiles",
    "qualifications",
    "verdict",
]
