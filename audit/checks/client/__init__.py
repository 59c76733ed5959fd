"""The checks of a run that protects whole clients, in the order in which they are run and reported.

One file each, beside the record level's of the same name. "participation" and "publication" are new
here, because the third party's ε rests on them, and "coordinates", on which sparse updates rest;
"partition", "disclosure",
"randomness" and "outside-budget" are the same checks.
"""

from __future__ import annotations

from audit.checks.base import Check
from audit.checks.client.accounting import CLIENT_ACCOUNTING
from audit.checks.client.coordinates import COORDINATES
from audit.checks.client.integrity import CLIENT_INTEGRITY
from audit.checks.client.noise import CLIENT_NOISE
from audit.checks.client.participation import PARTICIPATION
from audit.checks.client.second_moment import CLIENT_SECOND_MOMENT
from audit.checks.client.sensitivity import CLIENT_SENSITIVITY
from audit.checks.client.spec_conformance import CLIENT_PROMISE
from audit.checks.client.uploads import CLIENT_UPLOADS
from audit.checks.client.views import CLIENT_VIEWS
from audit.checks.disclosure import DISCLOSURE
from audit.checks.outside_budget import OUTSIDE_BUDGET
from audit.checks.partition import PARTITION
from audit.checks.publication import PUBLICATION
from audit.checks.randomness import RANDOMNESS

CLIENT_CHECKS: tuple[Check, ...] = (
    CLIENT_INTEGRITY,
    CLIENT_PROMISE,
    PARTITION,
    CLIENT_SENSITIVITY,
    PARTICIPATION,
    COORDINATES,
    CLIENT_NOISE,
    CLIENT_UPLOADS,
    CLIENT_ACCOUNTING,
    CLIENT_VIEWS,
    PUBLICATION,
    DISCLOSURE,
    CLIENT_SECOND_MOMENT,
    RANDOMNESS,
    OUTSIDE_BUDGET,
)

__all__ = ["CLIENT_CHECKS"]
