"""What a privacy loss lets an attacker do, where it stands among others, and what it means here.

An ε bounds odds: whoever guesses, and then sees what a view shows, has odds at most e^ε times as
good. Arithmetic over published theorems, and each published number with its source. All of it is
rounded against the run: factors and guesses up, the N of "1 in N" down.

The numbers are those of the headline that `guarantee` chose for the audience, so nothing is told
here that is not told there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Annotated, Final, Literal

from pydantic import WithJsonSchema

from reports import document, formatting
from reports.content import findings, guarantee, tuning
from reports.content.findings import Verdict
from reports.content.parts import (
    EMPTY,
    NULL,
    WITHOUT_PRIVACY,
    Loss,
    Part,
    Report,
    ReportSection,
    Rule,
    Share,
    part,
    register,
)
from reports.content.units import View, unit_of
from reports.document import Block, Text, sentence
from reports.files import clean
from reports.source import RunSource

# What somebody may give it beforehand that a record was used: a hunch, a suspicion, a coin.
PRIORS = (0.01, 0.1, 0.5)
_BEYOND_WORDS = 1e9


def odds(epsilon: float) -> float:
    """Return e^ε, the most by which the odds of being in the data can be multiplied or divided.

    For neighbouring data sets x and y, (ε, 0)-differential privacy says Pr[M(x) = o] ≤
    e^ε·Pr[M(y) = o] for every output o; by Bayes' rule the odds of x against y after o are those
    before times at most e^ε, and at least e^−ε.

    Args:
        epsilon: ε ≥ 0.

    Returns:
        e^ε, or infinity where a float cannot hold it.
    """
    try:
        return math.exp(epsilon)
    except OverflowError:
        return math.inf


def posterior(prior: float, epsilon: float) -> float:
    """Return how sure a guess can become at most, from how sure it was before.

    With prior p the odds are p/(1 − p), and e^ε times these afterwards, so that the guess is at
    most p·e^ε / (1 − p + p·e^ε).

    With δ > 0 this bounds the guess of an attacker who is told everything with probability δ, and
    otherwise one answer of a randomised response with odds e^ε. Whatever can be found out under
    (ε, δ)-differential privacy is found out at least as well from that: it dominates every
    (ε, δ)-private mechanism (Kairouz, Oh & Viswanath 2015, The Composition Theorem for Differential
    Privacy). So the bound goes with the words "except with a chance of δ".

    Args:
        prior: p in (0, 1).
        epsilon: ε ≥ 0.

    Returns:
        The bound in [p, 1].
    """
    return 1.0 / (1.0 + (1.0 - prior) / prior * math.exp(-epsilon))


def factor_in_words(epsilon: float) -> str:
    """Return e^ε for a reader, rounded up: "1.7", "71", "1,210", "2.1 million", "over a billion".

    Args:
        epsilon: ε ≥ 0.
    """
    factor = odds(epsilon)
    if factor >= _BEYOND_WORDS:
        return "over a billion"
    if factor >= 1e6:
        return f"{_up(factor / 1e6, 1)} million"
    if factor >= 1_000:
        return f"{_three_digits(factor, ROUND_CEILING):,}"
    return _up(factor, 1 if factor < 10 else 0)


def percent_in_words(share: float) -> str:
    """Return a share as a percentage, rounded up; more digits where it would be a whole 100.

    Args:
        share: In [0, 1].
    """
    exact = Decimal(repr(share)) * 100
    for places in (1, 2):
        shown = exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
        if shown < 100:
            return f"{shown.normalize():f} %"
    return "100 %"


def chance_in_words(probability: float) -> str:
    """Return a probability as "1 in N", with N of three digits rounded down.

    Args:
        probability: Greater than 0.

    Returns:
        "1 in N"; where it is above one half, that it is to be expected.
    """
    if probability > 0.5:
        return "more likely than not"
    # What is 99,999.99999999999 in binary was written down as 10⁻⁵.
    times = _three_digits(min(1.0 / probability, 1e300) * (1 + 1e-12), ROUND_FLOOR)
    return f"1 in {times:,}" if times < 1e15 else f"1 in {formatting.power(float(times))}"


def _up(value: float, places: int) -> str:
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
    return f"{rounded:f}"


def _three_digits(value: float, rounding: str) -> int:
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(max(0, exact.adjusted() - 2))
    return int((exact / unit).to_integral_value(rounding=rounding) * unit)


Band = Literal["strong", "reasonable", "weak", "none"]
Mark = Annotated[float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
# Name of each band, and the ε where it ends; the last ends where the drawn scale does.
BANDS: Final = (("strong", 1.0), ("reasonable", 10.0), ("weak to none", 100.0))
# From here on a coin's guess may become one of 99 %.
_NEARLY_CERTAIN: Final = math.log(99.0)
# From here on even a hunch of 1 % may become one of 99.9 %: odds of 999 from odds of 1/99.
_NO_LIMIT: Final = math.log(999.0 * 99.0)


class Deployment(Part):
    """A published use of differential privacy.

    Attributes:
        name: What it is, and what one ε of it protects.
        low: Its smallest ε.
        high: Its largest.
    """

    name: str
    low: Mark
    high: Mark


class Scale(Part):
    """Where an ε stands among published ones.

    Attributes:
        band: "strong" up to 1, "reasonable" up to 10, "weak" above; "none" without a finite ε.
        weak: Whether ε, read as a limit, is weak: it lets an even guess become one of 99 %.
        statement: The same in words.
        deployments: Published uses, for comparison.
        sources: Where bands and uses are published.
    """

    band: Band
    weak: bool
    statement: str
    deployments: tuple[Deployment, ...]
    sources: str


_DEPLOYMENTS: Final = (
    Deployment(name="Apple’s telemetry, a user’s day", low=2.0, high=16.0),
    Deployment(name="Gboard’s Spanish next words, a device", low=8.9, high=8.9),
)
_SOURCES: Final = (
    "Bands: Ponomareva et al. 2023, How to DP-fy ML. Apple: list of uses at desfontain.es; Gboard: "
    "Google Research, Advances in private training for production on-device language models. They "
    "protect {theirs}, so equal numbers do not promise the same. In NIST SP 800-226, ε is the top "
    "of a pyramid: worth only as much as the security and the collection of data that carry it."
)
_THEIRS: Final = {
    "client": "a user’s day or a device, here it is a client with all its records",
    "person": "a user’s day or a device, here it is a person with all of their records",
}
_THEIRS_ELSE: Final = "all that a user’s day or a device contributes, this run one record"
_WORDS: Final[dict[Band, str]] = {
    "strong": "ε = {epsilon} lies in the band that is called strong (up to 1).",
    "reasonable": "ε = {epsilon} lies in the band that is called reasonable (above 1, up to 10).",
    "weak": "ε = {epsilon} is weak: it lies in the band that is called weak to none (above 10).",
    "none": "There is no finite ε, and so no place on the scale: nothing is promised.",
}
_WEAK_READING: Final = (
    " Read as a limit it is weak: an even guess may become one of {guess}. That attackers reach "
    "less in practice is likely, and nobody has proved it for this run."
)


def on_scale(epsilon: float | None, unit: str) -> Scale:
    """Return where an ε stands.

    Args:
        epsilon: ε ≥ 0; None where there is no finite one.
        unit: What is protected: "record", "person" or "client".
    """
    band = _band(epsilon)
    weak = epsilon is None or is_weak(epsilon)
    statement = _WORDS[band].format(epsilon=formatting.epsilon(epsilon))
    if weak and epsilon is not None:
        statement += _WEAK_READING.format(guess=percent_in_words(posterior(0.5, epsilon)))
    return Scale(
        band=band,
        weak=weak,
        statement=statement,
        deployments=_DEPLOYMENTS,
        sources=_SOURCES.format(theirs=_THEIRS.get(unit, _THEIRS_ELSE)),
    )


def protects(epsilon: float | None) -> str:
    """Return in a word whether a limit protects; one that is not told this audience may be any."""
    if epsilon is None or not is_weak(epsilon):
        return "Yes"
    return "Hardly" if excludes_nothing(epsilon) else "Weakly"


def is_weak(epsilon: float) -> bool:
    """Whether a limit lets an even guess become one of 99 %."""
    return epsilon > _NEARLY_CERTAIN


def excludes_nothing(epsilon: float) -> bool:
    """Whether a limit lets a hunch of 1 % become one of 99.9 %."""
    return epsilon > _NO_LIMIT


def _band(epsilon: float | None) -> Band:
    if epsilon is None:
        return "none"
    if epsilon <= BANDS[0][1]:
        return "strong"
    return "reasonable" if epsilon <= BANDS[1][1] else "weak"


def drawn_place(epsilon: float) -> float:
    """Return the place of an ε on the drawn scale: 0 at 0.1 and below, 1 at 100 and above."""
    return min(1.0, max(0.0, (math.log10(max(epsilon, 1e-9)) + 1.0) / 3.0))


# By the verdict, what the first word of the promise becomes.
_PREFIX: Final = {
    "PASS": "",
    "FAIL": "Claimed, and contradicted by the audit: ",
    "NOT VERIFIED": "Claimed, and not verified by the audit: ",
    "NOT AUDITED": "Claimed, and not audited: ",
}
_NO_PRIVACY: Final = (
    "Nothing is promised to anybody: the model was trained with no differential privacy, and "
    "nothing limits what it, or any update that led to it, tells about a record."
)
_NO_CLAIM: Final = "Nothing is promised: the run did not end, and its ledger makes no claim."
_UNBOUNDED: Final = "Nothing is promised: no finite ε holds towards {towards}."
_SO_WIDE: Final = " So wide a limit excludes hardly anything."
_OF_PERSON: Final = (
    " The person with the most records has {count} of them, and for all of these together ε is "
    "{epsilon}."
)
_NOTHING_OF_PERSON: Final = (
    " The person with the most records has {count} of them, for which no ε is known."
)
_SEED: Final = " It holds against nobody who knows the run’s seed."
_ONLY_CLAIMED: Final = {
    "FAIL": "What follows is what the claim would mean. The audit contradicts it.",
    "NOT VERIFIED": "What follows is what the claim would mean. It is not verified.",
    "NOT AUDITED": "What follows is what the claim would mean. Nobody audited it.",
}
# δ times the number of what is protected is to lie well below one.
_MUCH: Final = 0.1
# What priors are called, in their order.
_GUESSES: Final = ("a hunch", "a suspicion", "an even guess")


class Guess(Part):
    """What one attacker may come to believe.

    Attributes:
        prior: How likely it was to them beforehand.
        posterior: How likely it can be to them afterwards at most.
    """

    prior: Share
    posterior: Share


class Meaning(Part):
    """What the guarantee means, in plain words.

    Attributes:
        promise: What is promised, to whom, against whom and against whom not, in a sentence.
        epsilon: The ε of the headline, from which the following are computed; null without one.
        odds: e^ε, the most by which the odds can change; null without ε, or too large for a float.
        of: What is protected, in one word; empty without privacy.
        guess: What is guessed of it.
        guesses: What guesses can become, except with a chance of δ.
        chance: δ as a chance; empty without one.
        chance_of_any: δ times the number of what is protected, as a chance; empty without one.
        scale: Where ε stands among published ones; null without privacy.
    """

    promise: str
    epsilon: Loss | None
    odds: Loss | None
    of: str
    guess: str
    guesses: tuple[Guess, ...]
    chance: str
    chance_of_any: str
    scale: Scale | None


@part(
    "meaning",
    Meaning,
    Rule(WITHOUT_PRIVACY, {"epsilon": NULL, "odds": NULL, "guesses": EMPTY, "scale": NULL}),
)
def meaning(source: RunSource, audience: str) -> Meaning:
    """Return what the headline's ε and δ mean."""
    view = guarantee.headline(source, audience)
    epsilon = view.epsilon if view is not None else None
    delta = view.delta if view is not None else None
    factor = odds(epsilon) if epsilon is not None else None
    return Meaning(
        promise=_promise(source, audience, view),
        epsilon=epsilon,
        odds=factor if factor != float("inf") else None,
        of=clean(source.header.get("unit"), 40) if source.private else "",
        guess=unit_of(source).words.guess if source.private else "",
        guesses=()
        if epsilon is None
        else tuple(Guess(prior=prior, posterior=posterior(prior, epsilon)) for prior in PRIORS),
        chance=chance_in_words(delta) if delta else "",
        chance_of_any=_of_any(source, delta),
        scale=on_scale(epsilon, str(source.header.get("unit"))) if view is not None else None,
    )


def _of_any(source: RunSource, delta: float | None) -> str:
    unit = unit_of(source)
    count = unit.protected_count(source)
    if not delta or not count:
        return ""
    chance = chance_in_words(delta * count)
    of_any = f"{chance} for any of all {formatting.count(count)} {unit.words.counted}"
    return f"{of_any}, which is much" if delta * count >= _MUCH else of_any


def _promise(source: RunSource, audience: str, view: View | None) -> str:
    if not source.private:
        return _NO_PRIVACY
    if view is None:
        return _NO_CLAIM
    if view.epsilon is None:
        return _UNBOUNDED.format(towards=view.towards)
    unit = unit_of(source)
    chance = chance_in_words(view.delta) if view.delta else ""
    prefix = _PREFIX.get(findings.verdict(source, audience).value, "Claimed: ")
    limit = (
        f"by more than a factor of {factor_in_words(view.epsilon)}"
        f"{f', except with a chance of {chance}' if chance else ''}"
    )
    text = unit.promise(source, view).format(limit=limit)
    text = prefix + text if prefix else sentence(text)
    if excludes_nothing(view.epsilon):
        text += _SO_WIDE
    person = guarantee.of_person(source)
    if person is not None and person.records > 1:
        shown = _OF_PERSON if person.epsilon is not None else _NOTHING_OF_PERSON
        epsilon = formatting.epsilon(person.epsilon)
        text += shown.format(count=formatting.count(person.records), epsilon=epsilon)
    if source.header.get("randomness") == "reproducible":
        text += _SEED
    # How hyper-parameters were chosen may lie outside of all numbers; it is told with the first.
    return text + tuning.choice_in_words(source)


def _blocks(report: Report) -> Iterator[Block]:
    meaning = report[Meaning]
    if meaning.epsilon is None:
        return
    doubt = _ONLY_CLAIMED.get(report[Verdict].value)
    if doubt is not None:
        yield document.note(doubt, report[Verdict].value, loud=True)
    factor = factor_in_words(meaning.epsilon)
    before: list[Text] = [percent_in_words(one.prior) for one in meaning.guesses]
    after: list[Text] = [
        [document.strong(percent_in_words(one.posterior))] for one in meaning.guesses
    ]
    yield document.table(
        "What an attacker’s guess can become",
        (f"How sure somebody is of one {meaning.of}: {meaning.guess}", *_GUESSES),
        [["beforehand", *before], [f"afterwards, at most: the odds times {factor}", *after]],
        (document.LEFT, *[document.RIGHT] * len(meaning.guesses)),
        (1, *[0] * len(meaning.guesses)),
    )
    if meaning.chance:
        every = f"; {meaning.chance_of_any}" if meaning.chance_of_any else ""
        yield document.paragraph(
            [
                document.strong("δ is the chance that this fails: "),
                f"{meaning.chance} for one{every}.",
            ]
        )
    found = meaning.scale
    if found is not None and found.band != "none":
        yield document.scale(
            [(name, drawn_place(end)) for name, end in BANDS],
            [(one.name, drawn_place(one.low), drawn_place(one.high)) for one in found.deployments],
            (f"this run, {formatting.epsilon(meaning.epsilon)}", drawn_place(meaning.epsilon)),
            found.statement,
        )
        yield document.paragraph(found.sources, "small")


register(
    ReportSection(
        identifier="meaning", title="What the numbers mean", place=5, blocks=_blocks, front=True
    )
)
