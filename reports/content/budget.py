"""The numbers of the privacy budget: composed losses, closed forms, clients, and the noise shift.

Used by `content`. Losses come from the ledger's claim and the auditor's recomputation; this module
computes none. What depends on participation is dropped here for the public audience.
"""

from __future__ import annotations

import statistics
from typing import Any

from reports import formatting
from reports.accountants import ACCOUNTANTS, described, ordered
from reports.content import client_level, events, findings, guarantee, wording
from reports.content.guarantee import INTERNAL, PUBLIC
from reports.reading.claims import epsilons
from reports.reading.files import clean, integer, mapping, number, sequence
from reports.reading.source import RunSource

_PROFILE_POINTS = 200


def accounting(source: RunSource, audience: str) -> dict[str, Any]:
    """Return library, accountants, views, closed forms, loss over rounds, privacy profile."""
    private = source.private
    library = mapping(source.header.get("accountant")) if private else {}
    rounds = sequence(findings.details(source, "accounting").get("over_rounds")) if private else []
    over_rounds = [
        {
            "round": integer(mapping(row).get("round")),
            "server": number(mapping(row).get("server")) if audience == INTERNAL else None,
            "third_party": number(mapping(row).get("third_party")),
        }
        for row in rounds[:2_000]
    ]
    # At client level the profile is the third party's, which no participation enters.
    open_profile = audience == INTERNAL or source.protects_clients
    pairs = sequence(source.claim.get("profile")) if private and open_profile else []
    profile = [
        [number(pair[0]), number(pair[1])]
        for pair in pairs[:_PROFILE_POINTS]
        if isinstance(pair, list) and len(pair) == 2
    ]
    return {
        "library": clean(library.get("library"), 60) or None,
        "version": clean(library.get("version"), 60) or None,
        "accountant": source.accountant if private else None,
        "conversions": _conversions(source, audience) if private else [],
        "events": events.trees(source, audience == INTERNAL),
        "views": guarantee.views(source, audience),
        "closed_forms": _closed_forms(source, audience) if private else [],
        "over_rounds": [row for row in over_rounds if row["round"] is not None],
        "profile": [pair for pair in profile if None not in pair],
    }


def _conversions(source: RunSource, audience: str) -> list[dict[str, Any]]:
    """Return each accountant with the headline view's loss by it, where it was computed."""
    view = guarantee.headline(source, audience)
    found: dict[str, float | None] = {}
    if view is not None and (source.protects_clients or audience == PUBLIC):
        found = epsilons(source.claim.get("third_party"))
    elif view is not None:
        rows = [
            epsilons(row) for row in sequence(mapping(source.claim.get("server")).get("clients"))
        ]
        found = max(rows, key=lambda row: row.get(source.accountant) or 0.0, default={})
    found = {**dict.fromkeys(ACCOUNTANTS), **found}
    found[source.accountant] = view["epsilon"] if view is not None else None
    return [
        {
            "name": described(name).title,
            "use": described(name).use,
            "source": described(name).source,
            "epsilon": found[name],
        }
        for name in ordered(found)
    ]


def _closed_forms(source: RunSource, audience: str) -> list[dict[str, Any]]:
    """Return the papers' formulas, with the audit's reading where the audit gives one."""
    stated = mapping(source.claim.get("closed_forms"))
    read = [
        mapping(row) for row in sequence(findings.details(source, "views").get("closed_forms"))[:20]
    ]
    if not read:
        read = [
            {"name": key, "value": stated.get(key), "towards": wording.FORM_TOWARDS[key]}
            for key in wording.FORMULAS
            if number(stated.get(key)) is not None
        ]
    rows = []
    for row in read:
        name = clean(row.get("name"), 120)
        towards = clean(row.get("towards") or wording.FORM_TOWARDS.get(name), 120)
        # A reading against the server's realised ε would tell on which side of a public number it
        # lies.
        open_reading = audience == INTERNAL or (
            "third" in towards.lower() and "printed" not in towards.lower()
        )
        rows.append(
            {
                "name": wording.FORM_NAMES.get(name, name) or "unnamed",
                "formula": clean(wording.FORMULAS.get(name) or row.get("formula"), 200),
                "epsilon": number(row.get("value")),
                "towards": towards or "unstated",
                "reading": (clean(row.get("reading"), 120) or "not audited")
                if open_reading
                else "in the internal report",
                "compared_with": _compared(row.get("compared_with"))
                if audience == INTERNAL
                else None,
            }
        )
    return rows


def _compared(value: Any) -> str | None:
    known = number(value)
    return formatting.epsilon(known) if known is not None else clean(value, 120) or None


def clients(source: RunSource, audience: str) -> dict[str, Any]:
    """Return the clients' sizes and, for the internal audience, the loss of each."""
    sizes = source.records
    rows: list[dict[str, Any]] = []
    if source.protects_clients:
        rows = client_level.rows(source) if audience == INTERNAL else []
    elif source.private and audience == INTERNAL:
        for raw in sequence(mapping(source.claim.get("server")).get("clients")):
            entry = mapping(raw)
            index = integer(entry.get("client"))
            if index is None:
                continue
            rows.append(
                {
                    "client": index,
                    **{
                        key: integer(entry.get(key))
                        for key in ("records", "participations", "steps")
                    },
                    "epsilon": epsilons(entry),
                    **{key: number(entry.get(key)) for key in ("sampling_rate", "delta_records")},
                }
            )
    return {
        "count": integer(source.header.get("clients")),
        "records_total": round(sum(sizes)) if sizes else None,
        "records_smallest": round(min(sizes)) if sizes else None,
        "records_median": statistics.median(sizes) if sizes else None,
        "records_largest": round(max(sizes)) if sizes else None,
        "rows": sorted(rows, key=lambda row: row["client"]),
    }


def second_moment(source: RunSource) -> dict[str, Any] | None:
    """Return released block means beside the predicted noise shift; the clean ones stay private."""
    found = findings.details(source, "second-moment")
    blocks = []
    for raw in sequence(found.get("blocks"))[:100_000]:
        block = mapping(raw)
        values = {key: number(block.get(key)) for key in ("predicted", "released", "half_width")}
        if None not in values.values():
            blocks.append(
                {
                    "name": clean(block.get("name"), 200),
                    "size": integer(block.get("size")),
                    **values,
                }
            )
    if not blocks or not source.private:
        return None
    return {"tau": integer(found.get("tau")), "blocks": blocks}
