"""Writes the tables of docs/claims.md: every shipped claim, its verdict, and what follows from it.

`python -m audit.extensions.claims.overview docs/claims.md` replaces what stands between its marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from audit.extensions.claims.claim import Claim, load_claim, shipped
from audit.extensions.claims.judgement import ClaimJudgement, ClaimVerdict, judge_claim
from audit.extensions.claims.rendering import value_text
from audit.verdict import clean_numbers

BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"


def table() -> str:
    """A table for each set of readings, a row a claim, as Markdown."""
    groups: dict[tuple[str, tuple[str, ...]], list[ClaimJudgement]] = {}
    for name in shipped():
        judged = judge_claim(load_claim(name))
        groups.setdefault((_head(judged), tuple(_values(judged))), []).append(judged)
    parts = []
    for (head, readings), group in groups.items():
        # Without a number there is nothing to hold against the readings.
        held = any(_relation(judged) for judged in group)
        columns = ["claim", "states", *(["verdict"] if held else []), *readings]
        lines = [f"{head}:", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for judged in group:
            relation = [_relation(judged)] if held else []
            cells = [f"`{judged.claim.name}`", _stated(judged.claim), *relation]
            lines.append(f"| {' | '.join([*cells, *_values(judged).values()])} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _head(judged: ClaimJudgement) -> str:
    """The verdict, with what is missing and supposed, as it is for several claims."""
    claim = judged.claim
    missing = ", ".join(claim.missing) if claim.missing else "epsilon"
    verdict: str = judged.verdict.value
    if not claim.missing and judged.verdict is not ClaimVerdict.NOT_DETERMINABLE:
        return verdict
    head = f"{verdict}, not stated: {missing.replace('_', ' ')}"
    if judged.implied:
        return f"{head}. Each reading needs this σ for the printed ε"
    supposed = ", ".join(f"{name} = {value:g}" for name, value in claim.supposed.items())
    return f"{head}. Supposing {supposed.replace('_', ' ')}" if supposed else head


def _relation(judged: ClaimJudgement) -> str:
    """How the printed number relates to the readings; empty where there is no number."""
    if judged.verdict is not ClaimVerdict.NOT_DETERMINABLE:
        return judged.reason
    return judged.reason.partition("it would be ")[2]


def _stated(claim: Claim) -> str:
    """Where a claim stands, and its number."""
    where = claim.where.partition(";")[0]
    if claim.epsilon is not None:
        return f"{where}: ε = {claim.epsilon:g}"
    return f"{where}: {claim.times_one_query:g} × one query" if claim.times_one_query else where


def _values(judged: ClaimJudgement) -> dict[str, str]:
    """What follows under each reading that counts, without the Rényi ones; or the σ it needs."""
    if judged.implied:
        return {key: f"{value:.3f}" for key, value in judged.implied.items()}
    return {
        one.key: value_text(clean_numbers(one.value))
        for one in judged.readings
        if one.key in judged.relevant and not one.key.endswith(("/rdp", "/rdp-classic"))
    }


def main(arguments: Sequence[str]) -> int:
    """Rewrite the table of the page that is named."""
    path = Path(arguments[0])
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
