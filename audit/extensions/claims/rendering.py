"""A judged claim as a plain table for any terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from audit.protection import in_front, protects_nothing
from audit.untrusted.documents import printable

_WIDTH = 96
_RELATIONS = {
    "covers": "covers it",
    "equal": "equals it",
    "below": "is below it",
    "-": "",
}


_TOWARDS = {
    "server": "against the server",
    "third-party": "against a third party",
    "unstated": "against whom is not stated",
}


def facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows above the table: label and text.

    Args:
        found: `ClaimJudgement.to_json()`.
    """
    source, claimed = found["source"], found["claimed"]
    rows = [
        ("claim", found["claim"]),
        ("paper", f"{source['paper']}: {source['where']}"),
        ("states", source["says"]),
        ("claimed", _claimed(found, claimed)),
    ]
    if found["missing"]:
        rows.append(("not stated", ", ".join(found["missing"]).replace("_", " ")))
    if found["supposed"]:
        given = (f"{name} = {value:g}" for name, value in found["supposed"].items())
        rows.append(("supposed", ", ".join(given).replace("_", " ")))
    return rows


def rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """The table's rows: reading, meaning, against whom, value, relation to the claim."""
    return [
        (
            one["name"],
            f"{one['means']} [{one['accountant']}]",
            one["towards"].replace("-", " "),
            value_text(one["value"]),
            " ".join(
                part
                for part in (
                    _RELATIONS[one["relation"]],
                    "" if one["bounds"] else "(no bound)",
                )
                if part
            ),
        )
        for one in found["readings"]
    ]


def heading(found: Mapping[str, Any]) -> str:
    """What the column of values holds."""
    return "epsilon" if found["claimed"]["times_one_query"] is None else "times"


def value_text(value: float | None) -> str:
    """A value of a reading in four digits; "none" where nothing is bounded."""
    return "none" if value is None else f"{value:.4g}"


def implied_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Reading and noise multiplier that it would need."""
    return [(name, f"{value:.4g}") for name, value in found["implied_noise_multiplier"].items()]


def render_claim(found: Mapping[str, Any]) -> str:
    """The whole judgement as text of 96 columns."""
    return "\n".join(_lines(found))


def _claimed(found: Mapping[str, Any], claimed: Mapping[str, Any]) -> str:
    if claimed["epsilon"] is not None:
        text = f"epsilon = {claimed['epsilon']:g}"
    elif claimed["times_one_query"] is not None:
        text = f"{claimed['times_one_query']:g} times the epsilon of one query a step"
    else:
        text = "no number for epsilon"
    if found["delta"] is not None:
        text += f" at delta = {found['delta']:g}"
    towards = _TOWARDS[claimed["towards"]]
    text = f"{text}, one {found['unit']}, {towards}"
    return in_front(text, "anyone") if protects_nothing(claimed["epsilon"]) else text


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for label, text in [*facts(found), ("verdict", f"{found['verdict']}: {found['reason']}")]:
        yield from _wrapped(label, text)
    for remark in found["remarks"]:
        yield from _wrapped("remark", remark)
    if found["readings"]:
        yield ""
        wide = max(len(one["name"]) for one in found["readings"])
        yield f"{heading(found):>10}  {'reading':<{wide}}  {'against':<11}  the claim"
        for name, means, towards, value, how in rows(found):
            yield f"{value:>10}  {name:<{wide}}  {towards:<11}  {how}".rstrip()
            yield from textwrap.wrap(
                means, _WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 14
            )
    if found["implied_noise_multiplier"]:
        yield ""
        yield "noise multiplier needed for the claimed epsilon"
        for name, value in implied_rows(found):
            yield f"{value:>10}  {name}"


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text), _WIDTH, initial_indent=f"{label:<12}", subsequent_indent=" " * 12
    )
