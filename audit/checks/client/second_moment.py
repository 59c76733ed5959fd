"""Check "second-moment" at client level: there is none, and this says why."""

from __future__ import annotations

from dataclasses import replace

from audit.checks.base import Context, Judgement
from audit.checks.record.second_moment import SECOND_MOMENT
from audit.reading.bundle import Bundle
from audit.verdict import Verdict


def _judge(bundle: Bundle, context: Context) -> Judgement:
    del bundle, context
    return Judgement(
        Verdict.NOT_APPLICABLE,
        "at client level local steps see no noise, so none enters a second moment of theirs",
    )


CLIENT_SECOND_MOMENT = replace(SECOND_MOMENT, judge=_judge)
