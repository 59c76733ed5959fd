"""The checks of the audit, one file each, in the order in which they are run and reported."""

from __future__ import annotations

from audit.checks.accounting import ACCOUNTING
from audit.checks.base import Check, Context, Judgement
from audit.checks.client.publication import PUBLICATION
from audit.checks.disclosure import DISCLOSURE
from audit.checks.integrity import INTEGRITY
from audit.checks.noise import NOISE
from audit.checks.outside import OUTSIDE_BUDGET
from audit.checks.participation import PARTICIPATION
from audit.checks.partition import PARTITION
from audit.checks.promise import PROMISE
from audit.checks.randomness import RANDOMNESS
from audit.checks.second_moment import SECOND_MOMENT
from audit.checks.sensitivity import SENSITIVITY
from audit.checks.uploads import UPLOADS
from audit.checks.views import VIEWS

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
