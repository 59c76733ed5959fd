"""The checks of the audit, one file each, in the order in which they are run and reported."""

from __future__ import annotations

from audit.checks.base import Check, Context, Judgement
from audit.checks.disclosure import DISCLOSURE
from audit.checks.outside_budget import OUTSIDE_BUDGET
from audit.checks.participation import PARTICIPATION
from audit.checks.partition import PARTITION
from audit.checks.publication import PUBLICATION
from audit.checks.randomness import RANDOMNESS
from audit.checks.record.accounting import ACCOUNTING
from audit.checks.record.integrity import INTEGRITY
from audit.checks.record.noise import NOISE
from audit.checks.record.second_moment import SECOND_MOMENT
from audit.checks.record.sensitivity import SENSITIVITY
from audit.checks.record.spec_conformance import PROMISE
from audit.checks.record.uploads import UPLOADS
from audit.checks.record.views import VIEWS

CHECKS: tuple[Check, ...] = (
    INTEGRITY,
    PROMISE,
    PARTITION,
    SENSITIVITY,
    NOISE,
    UPLOADS,
    ACCOUNTING,
    VIEWS,
    PARTICIPATION,
    PUBLICATION,
    DISCLOSURE,
    SECOND_MOMENT,
    RANDOMNESS,
    OUTSIDE_BUDGET,
)

__all__ = ["CHECKS", "Check", "Context", "Judgement"]
