"""What a privacy loss lets an attacker do, where it stands among others, and what it means here.

An ε bounds odds: the odds of someone who guesses, and then sees what a view shows, grow by a factor
of at most e^ε. Arithmetic over published theorems, and each published number with its source.

One rule of rounding: an ε is rounded up (`formatting.epsilon`), and odds and guesses are computed
from the ε that is printed. They are rounded to the nearest digit, with more digits where that would
be less than the exact ε gives. The N of "1 in N" is rounded down.

The numbers are those of the headline that `guarantee` chose for the audience, so nothing is said
here that is not said there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Decimal
from typing import Annotated, Final, Literal

from pydantic import WithJsonSchema

from audit.protection import protects_nothing
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

# How likely someone may think it beforehand that a record was used: a hunch, a suspicion, a coin.
PRIORS = (0.01, 0.1, 0.5)
_BEYOND_WORDS = 1e9
_MOST_PLACES = 17


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
    # A hostile claim may state an ε below 0, which the report's schema refuses in the end.
    return 1.0 / (1.0 + (1.0 - prior) / prior * math.exp(-max(epsilon, 0.0)))


def factor_in_words(epsilon: float) -> str:
    """Return e to the power of the printed ε: "1.65", "71", "1,200", "1.32 million".

    Args:
        epsilon: ε ≥ 0, as it was computed.

    Returns:
        Three significant digits; more where that would be less than e^ε. "over a billion" beyond.
    """
    # As in `posterior`.
    epsilon = max(epsilon, 0.0)
    factor, least = odds(formatting.printed_epsilon(epsilon)), odds(epsilon)
    if factor >= _BEYOND_WORDS:
        return "over a billion"
    exact = Decimal(repr(factor))
    for places in range(2 - exact.adjusted(), _MOST_PLACES):
        shown = round(exact, places)
        if float(shown) >= least:
            break
    if shown >= 1_000_000:
        return f"{(shown / 1_000_000).normalize():f} million"
    return f"{shown.normalize():,f}"


def guess_in_words(prior: float, epsilon: float) -> str:
    """Return how sure a guess can become, computed from the printed ε, such as "98.6 %".

    Args:
        prior: How sure it was, in (0, 1).
        epsilon: ε ≥ 0, as it was computed.

    Returns:
        One decimal; more where that would be less than the exact ε gives, or a whole 100.
    """
    exact = Decimal(repr(100 * posterior(prior, formatting.printed_epsilon(epsilon))))
    least = 100 * posterior(prior, epsilon)
    for places in range(1, _MOST_PLACES):
        shown = round(exact, places)
        if float(shown) >= least - 1e-9 and (shown < 100 or places > 1):
            break
    return f"{shown.normalize():f} %" if shown < 100 else "100 %"


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
    times = _three_digits_down(min(1.0 / probability, 1e300) * (1 + 1e-12))
    return f"1 in {times:,}" if times < 1e15 else f"1 in {formatting.power(float(times))}"


def _three_digits_down(value: float) -> int:
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(max(0, exact.adjusted() - 2))
    return int((exact / unit).to_integral_value(rounding=ROUND_FLOOR) * unit)


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
        name: What it is, what its ε protects, and that ε.
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
        weak: Whether ε is weak as a worst-case limit: someone who was 50 % sure could become 99 %
            sure.
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
    Deployment(name="Apple’s telemetry, a user’s day: 2 to 16", low=2.0, high=16.0),
    Deployment(name="Gboard’s Spanish next words, a device: 8.9", low=8.9, high=8.9),
)
_SOURCES: Final = (
    "Others deploy ε = 2 to 16 for one user’s day (Apple’s telemetry) and ε = 8.9 for one device "
    "(Gboard’s Spanish next-word model). This run’s ε is for {ours}, so equal numbers do not mean "
    "equal protection. Sources: How to DP-fy ML (Ponomareva et al. 2023) for the bands; "
    "desfontain.es (Apple); Google Research 2024 (Gboard). An ε is worth only as much as the "
    "security and the data collection behind it (NIST SP 800-226)."
)
_OURS: Final = {
    "client": "one client with all its records",
    "person": "one person with all of their records",
}
_OURS_ELSE: Final = "one record"
_WORDS: Final[dict[Band, str]] = {
    "strong": "ε = {epsilon} is in the band called strong (up to 1).",
    "reasonable": "ε = {epsilon} is in the band called reasonable (above 1, up to 10).",
    "weak": "ε = {epsilon} is in the band called weak to none (above 10).",
    "none": "There is no finite ε, and so no place on the scale: nothing is promised.",
}
_WEAK_READING: Final = (
    " As a worst-case limit it is weak: someone who was 50 % sure could become {guess} sure. "
    "Attackers probably achieve less in practice, but nobody has proved that for this run."
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
        statement += _WEAK_READING.format(guess=guess_in_words(0.5, epsilon))
    return Scale(
        band=band,
        weak=weak,
        statement=statement,
        deployments=_DEPLOYMENTS,
        sources=_SOURCES.format(ours=_OURS.get(unit, _OURS_ELSE)),
    )


def is_weak(epsilon: float) -> bool:
    """Whether someone who was 50 % sure could become 99 % sure."""
    return epsilon > _NEARLY_CERTAIN


def excludes_nothing(epsilon: float) -> bool:
    """Whether someone who was 1 % sure could become 99.9 % sure."""
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


# What the promise begins with where the verdict is not PASS.
_PREFIX: Final = {
    "PASS": "",
    "FAIL": "Claimed, but contradicted by the audit: ",
    "NOT VERIFIED": "Claimed, but not verified by the audit: ",
    "NOT AUDITED": "Claimed, but not audited: ",
}
_NO_PRIVACY: Final = (
    "Nothing is promised to anyone. The model was trained without differential privacy: nothing "
    "limits what it, or any update that led to it, reveals about a record."
)
_NO_CLAIM: Final = "Nothing is promised: the run did not finish, and its ledger makes no claim."
_UNBOUNDED: Final = "Nothing is promised: no finite ε holds against {towards}."
_LIMIT: Final = "become more than {factor} times surer (in betting odds) {guess}."
_MAY_FAIL: Final = " This limit may fail with a probability of at most {chance}."
_WILL_FAIL: Final = " This limit is more likely than not to fail."
_SO_WIDE: Final = " So wide a limit excludes almost nothing."
_OF_PERSON: Final = (
    " No person has more than {count} records; for so many together, ε is {epsilon}."
)
_UNPROTECTED_PERSON: Final = " For such a person that is no meaningful protection."
_NOTHING_OF_PERSON: Final = (
    " No person has more than {count} records; for so many together, no ε is known."
)
_SEED: Final = " It does not hold against anyone who knows the run’s seed."
_ONLY_CLAIMED: Final = {
    "FAIL": "The following shows what the claim would mean. The audit contradicts it.",
    "NOT VERIFIED": "The following shows what the claim would mean. It is not verified.",
    "NOT AUDITED": "The following shows what the claim would mean. Nobody has audited it.",
}
# δ times the number of what is protected is to lie well below one.
_MUCH: Final = 0.1
# Numbers under the drawn scale, and what it shows to those who do not see it.
_TICKS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_DRAWN: Final = (
    "A scale of ε from 0.1 to 100. Bands: strong up to 1, reasonable up to 10, weak to none above. "
    "This run: {epsilon}. Apple’s telemetry, a user’s day: 2 to 16. Gboard’s Spanish next words, a "
    "device: 8.9."
)
# What priors are called, in their order.
_GUESSES: Final = ("a hunch", "a suspicion", "50 : 50")


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
        promise: What is promised, to whom, against whom and against whom not.
        epsilon: The ε of the headline, from which the following are computed; null without one.
        odds: e^ε, the most by which the odds can grow; null without ε, or too large for a float.
        of: What is protected, in one word; empty without privacy.
        guess: What someone may be sure of.
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
    # The product of two hostile numbers may be nothing where neither is.
    if not delta or not count or not delta * count:
        return ""
    chance = chance_in_words(delta * count)
    of_any = f"{chance} that it fails for at least one of all {formatting.count(count)}"
    return f"{of_any} {unit.counted(source)}"


def _promise(source: RunSource, audience: str, view: View | None) -> str:
    if not source.private:
        return _NO_PRIVACY
    if view is None:
        return _NO_CLAIM
    if view.epsilon is None:
        return _UNBOUNDED.format(towards=view.towards)
    unit = unit_of(source)
    prefix = _PREFIX.get(findings.verdict(source, audience).value, "Claimed: ")
    limit = _LIMIT.format(factor=factor_in_words(view.epsilon), guess=unit.words.guess)
    if view.delta:
        chance = chance_in_words(view.delta)
        limit += _MAY_FAIL.format(chance=chance) if view.delta <= 0.5 else _WILL_FAIL
    text = unit.promise(source, view).format(limit=limit)
    text = prefix + text if prefix else sentence(text)
    if excludes_nothing(view.epsilon):
        text += _SO_WIDE
    person = guarantee.of_person(source)
    if person is not None and person.records > 1:
        shown = _OF_PERSON if person.epsilon is not None else _NOTHING_OF_PERSON
        epsilon = formatting.epsilon(person.epsilon)
        text += shown.format(count=formatting.count(person.records), epsilon=epsilon)
        if protects_nothing(person.epsilon):
            text += _UNPROTECTED_PERSON
    if source.header.get("randomness") == "reproducible":
        text += _SEED
    # No number may cover how hyper-parameters were chosen, so the promise says it.
    return text + tuning.choice_in_words(source)


def _blocks(report: Report) -> Iterator[Block]:
    meaning = report[Meaning]
    if meaning.epsilon is None:
        return
    doubt = _ONLY_CLAIMED.get(report[Verdict].value)
    if doubt is not None:
        yield document.note(doubt, report[Verdict].value, loud=True)
    factor = factor_in_words(meaning.epsilon)
    before: list[Text] = [f"{100 * prior:g} %" for prior in PRIORS]
    after: list[Text] = [
        [document.strong(guess_in_words(prior, meaning.epsilon))] for prior in PRIORS
    ]
    yield document.paragraph(
        [
            document.strong(f"How sure someone is {meaning.guess}. "),
            f"At most, their odds become {factor} times as large (= e^ε).",
        ]
    )
    yield document.table(
        "How sure an attacker can become",
        ("How sure", *_GUESSES),
        [["before", *before], ["after, at most", *after]],
        (document.LEFT, *[document.RIGHT] * len(PRIORS)),
        (1, *[0] * len(PRIORS)),
    )
    if meaning.chance:
        yield document.paragraph(
            [document.strong("δ is the probability that this limit fails: "), _of_delta(report)]
        )
    found = meaning.scale
    if found is not None and found.band != "none":
        shown = formatting.epsilon(meaning.epsilon)
        yield document.scale(
            [(name, drawn_place(end)) for name, end in BANDS],
            [(f"{tick:g}", drawn_place(tick)) for tick in _TICKS],
            [(one.name, drawn_place(one.low), drawn_place(one.high)) for one in found.deployments],
            (f"this run: ε = {shown}", drawn_place(meaning.epsilon)),
            found.statement,
            _DRAWN.format(epsilon=shown),
        )
        yield document.paragraph(found.sources, "small")


def _of_delta(report: Report) -> str:
    """Return the chance for one, for any of all, and whether that is high."""
    meaning, guarantee_ = report[Meaning], report[guarantee.Guarantee]
    told = f"{meaning.chance} for one {meaning.of}"
    if not meaning.chance_of_any:
        return f"{told}."
    product = guarantee_.delta_times_clients or guarantee_.delta_times_records or 0.0
    high = " That is high." if product >= _MUCH else ""
    return f"{told}, and {meaning.chance_of_any}.{high}"


register(
    ReportSection(
        identifier="meaning", title="What the numbers mean", place=5, blocks=_blocks, front=True
    )
)
