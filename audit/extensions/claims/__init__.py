"""Judges a privacy claim as a paper prints it, without a run.

`load_claim` reads one from YAML (or one of those that ship, by name), `judge_claim` computes what
follows under each reading of it and says which of them the claim covers.
"""

from __future__ import annotations

from audit.extensions.claims.claim import (
    Claim,
    ClaimError,
    load_claim,
    parse_claim,
    schema_text,
    shipped,
)
from audit.extensions.claims.judgement import ClaimJudgement, ClaimVerdict, judge_claim
from audit.extensions.claims.readings import Reading, readings

__all__ = [
    "Claim",
    "ClaimError",
    "ClaimJudgement",
    "ClaimVerdict",
    "Reading",
    "judge_claim",
    "load_claim",
    "parse_claim",
    "readings",
    "schema_text",
    "shipped",
]
