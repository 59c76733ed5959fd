"""The section `tune`: how the hyper-parameters of a run were chosen, and what accounts for it.

In a sweep's file it also has `grid`, for a search on public records `data`, and `seeds` where the
search has seeds of its own; `matrix` reads these. Each run's own spec says what is here, so that
its ledger, audit and report do.
"""

from __future__ import annotations

from typing import Annotated, Literal

from dpfedadamw.spec.section import (
    LARGEST_SEED,
    AbsentIntegers,
    AbsentNumber,
    AbsentText,
    Section,
    key,
)

_SELECTION = key(
    ...,
    "How the hyper-parameters are chosen; one of {names}. none: given, and no search is known of. "
    "private: the best of a random number of trials is published and nothing of the others, and ε "
    "covers the choice (Papernot & Steinke 2022). public: searched on public records. unaccounted: "
    "searched on the private records, and no ε covers it, which the report says on its first page.",
)
_SCORE = key(
    "validation_accuracy",
    "By what the best candidate is chosen: the highest accuracy or the lowest loss. A regression "
    "has losses alone. A score on the test records chooses on what the result is then reported "
    "on, and `compare` says so.",
    examples=("validation_accuracy", "test_accuracy", "validation_loss"),
)
_Score = Literal["validation_accuracy", "test_accuracy", "validation_loss", "test_loss"]
_Seed = Annotated[
    int,
    key(..., "A seed of the search.", title="Seed", unit="none", ge=0, le=LARGEST_SEED,
        examples=(100,)),
]  # fmt: skip
_SEARCH_SEEDS = key(
    (),
    "Seeds under which the candidates were trained, where the best of them is then run anew with "
    "others; a sweep writes them down in those runs. Empty in a trial, and where a trial is kept.",
    max_length=1000,
    examples=((), (100, 101)),
)


class TuneSpec(Section, title="Tuning"):
    """How the hyper-parameters were chosen, and what accounts for it."""

    selection: str = _SELECTION
    score: AbsentText = None
    mean_trials: AbsentNumber = None
    shape: AbsentNumber = None
    dataset: AbsentText = None
    search_seeds: AbsentIntegers = ()


class NotTuned(TuneSpec, title="No search"):
    """The hyper-parameters are given."""

    selection: Literal["none"] = "none"


class PrivateSelection(TuneSpec, title="Private selection"):
    """The best of a random number of trials, by its accuracy on the public validation records.

    The number of trials is drawn from a truncated negative binomial law. Every candidate must cost
    the same. Of a regression the lowest loss is best.
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
    score: _Score = _SCORE
    dataset: str | None = key(
        None,
        "The public data set that was searched on; a sweep writes it down.",
        max_length=200,
        examples=(None, "mnist"),
    )
    search_seeds: tuple[_Seed, ...] = _SEARCH_SEEDS


class UnaccountedSearch(TuneSpec, title="Unaccounted search"):
    """Every candidate is trained on the private records, and the best is kept, or run anew."""

    selection: Literal["unaccounted"] = "unaccounted"
    score: _Score = _SCORE
    search_seeds: tuple[_Seed, ...] = _SEARCH_SEEDS
