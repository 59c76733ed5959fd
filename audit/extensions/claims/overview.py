"""Writes the table of docs/claims.md: every shipped claim, its verdict, and what follows from it.

`python -m audit.extensions.claims.overview docs/claims.md` replaces what stands between its marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from audit.extensions.claims.claim import load_claim, shipped
from audit.extensions.claims.judgement import ClaimJudgement, judge_claim
from audit.extensions.claims.rendering import value_text
from audit.verdict import clean_numbers

BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"


def table() -> str:
    """The table as Markdown, a row a claim."""
    lines = ["| claim | states | verdict | what follows |", "|---|---|---|---|"]
    for name in shipped():
        lines.append(row(judge_claim(load_claim(name))))
    return "\n".join(lines)


def row(judged: ClaimJudgement) -> str:
    """One claim's row."""
    claim = judged.claim
    if claim.epsilon is not None:
        stated = f"ε = {claim.epsilon:g}"
    elif claim.times_one_query is not None:
        stated = f"{claim.times_one_query:g} × one query"
    else:
        stated = "no number"
    follows = [
        f"{one.key} {value_text(clean_numbers(one.value))}"
        for one in judged.readings
        if one.key in judged.relevant and not one.key.endswith(("/rdp", "/rdp-classic"))
    ]
    follows += [f"{key} needs σ = {value:.3f}" for key, value in judged.implied.items()]
    where = claim.where.partition(";")[0]
    verdict = f"{judged.verdict.value}: {judged.reason}"
    return f"| `{claim.name}` | {where}: {stated} | {verdict} | {'; '.join(follows)} |"


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
