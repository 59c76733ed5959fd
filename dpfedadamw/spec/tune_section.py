"""The section `tune`: how the hyper-parameters of a run were chosen, and what accounts for it.

In a sweep's file it also has `grid`, and for a search on public records `data`; both are read by
`matrix`. Each trial's own spec says what is here, so that its ledger, audit and report do.
"""

from __future__ import annotations

from typing import Literal

from dpfedadamw.spec.section import AbsentNumber, AbsentText, Section, key

_SELECTION = key(
    ...,
    "How the hyper-parameters are chosen; one of {names}. none: given, and no search is known of. "
    "private: the best of a random number of trials is published and nothing of the others, and ε "
    "covers the choice (Papernot & Steinke 2022). public: searched on public records. unaccounted: "
    "searched on the private records, and no ε covers it, which the report says on its first page.",
)
_SCORE = key(
    "validation_accuracy",
    "By what the best candidate is chosen. test_accuracy chooses on the records that the result is "
    "then reported on, and `compare` says so.",
    examples=("validation_accuracy", "test_accuracy"),
)


class TuneSpec(Section, title="Tuning"):
    """How the hyper-parameters were chosen, and what accounts for it."""

    selection: str = _SELECTION
    score: AbsentText = None
    mean_trials: AbsentNumber = None
    shape: AbsentNumber = None
    dataset: AbsentText = None


class NotTuned(TuneSpec, title="No search"):
    """The hyper-parameters are given."""

    selection: Literal["none"] = "none"


class PrivateSelection(TuneSpec, title="Private selection"):
    """The best of a random number of trials, by its accuracy on the public validation records.

    The number of trials is drawn from a truncated negative binomial law. Every candidate must cost
    the same.
    """

    selection: Literal["private"] = "private"
    mean_trials: float = key(
        10.0,
        "Expected number of trials. More find a better candidate, and cost more.",
        unit="trials",
        gt=1,
        le=1000,
        examples=(10, 30),
    )
    shape: float = key(
        1.0,
        "Shape η of the law of their number: 1 is the geometric law; 0, the logarithmic one, costs "
        "less and varies more.",
        ge=0,
        le=100,
        examples=(1, 0),
    )


class PublicSearch(TuneSpec, title="Search on public records"):
    """Every candidate is trained on public records, and the best then once on the private ones."""

    selection: Literal["public"] = "public"
    score: Literal["validation_accuracy", "test_accuracy"] = _SCORE
    dataset: str | None = key(
        None,
        "The public data set that was searched on; a sweep writes it down.",
        max_length=200,
        examples=(None, "mnist"),
    )


class UnaccountedSearch(TuneSpec, title="Unaccounted search"):
    """Every candidate is trained on the private records, and the best is kept."""

    selection: Literal["unaccounted"] = "unaccounted"
    score: Literal["validation_accuracy", "test_accuracy"] = _SCORE
