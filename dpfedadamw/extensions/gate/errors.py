"""What the gate says when it does not open, and what it says to a job that it refuses."""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError

REFUSAL = "refused by the site's privacy gate"


class GateError(DpfedadamwError):
    """The gate cannot be used as it is set up; the text is for the site's operator alone."""


class Refused(GateError):  # noqa: N818  # it is an answer, and names what happened
    """Nothing is released.

    The text is the same for every reason, because it leaves the site. The operator finds the reason
    in `reason`, which must not leave it.

    Attributes:
        reason: Why, for the operator's own log.
        kind: What it is counted as: "budget", "form" (what was asked for), or "ledger".
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(REFUSAL)
        self.reason = reason
        self.kind = kind
