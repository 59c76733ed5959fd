"""The guarantee for readers who never heard of ε: one sentence, odds, guesses, a chance, a scale.

The numbers are those of the headline that `guarantee` chose for the audience, so nothing is told
here that is not told there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reports import document, formatting
from reports.content import attacker, findings, guarantee, scale, tuning
from reports.content.findings import Verdict
from reports.content.parts import (
    EMPTY,
    NULL,
    WITHOUT_PRIVACY,
    Loss,
    Part,
    Report,
    Rule,
    Share,
    part,
)
from reports.content.scale import Scale
from reports.content.sections import ReportSection, register
from reports.content.units import View, unit_of
from reports.document import Block, Text, sentence
from reports.files import clean
from reports.source import RunSource

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
_NO_LIMIT: Final = " So wide a limit excludes hardly anything."
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
    factor = attacker.odds(epsilon) if epsilon is not None else None
    return Meaning(
        promise=_promise(source, audience, view),
        epsilon=epsilon,
        odds=factor if factor != float("inf") else None,
        of=clean(source.header.get("unit"), 40) if source.private else "",
        guess=unit_of(source).words.guess if source.private else "",
        guesses=()
        if epsilon is None
        else tuple(
            Guess(prior=prior, posterior=attacker.posterior(prior, epsilon))
            for prior in attacker.PRIORS
        ),
        chance=attacker.chance_in_words(delta) if delta else "",
        chance_of_any=_of_any(source, delta),
        scale=scale.place(epsilon, str(source.header.get("unit"))) if view is not None else None,
    )


def _of_any(source: RunSource, delta: float | None) -> str:
    unit = unit_of(source)
    count = unit.protected_count(source)
    if not delta or not count:
        return ""
    chance = attacker.chance_in_words(delta * count)
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
    chance = attacker.chance_in_words(view.delta) if view.delta else ""
    prefix = _PREFIX.get(findings.verdict(source, audience).value, "Claimed: ")
    limit = (
        f"by more than a factor of {attacker.factor_in_words(view.epsilon)}"
        f"{f', except with a chance of {chance}' if chance else ''}"
    )
    text = unit.promise(source, view).format(limit=limit)
    text = prefix + text if prefix else sentence(text)
    if scale.excludes_nothing(view.epsilon):
        text += _NO_LIMIT
    person = guarantee.of_person(source)
    if person is not None and person.records > 1:
        shown = _OF_PERSON if person.epsilon is not None else _NOTHING_OF_PERSON
        epsilon = formatting.epsilon(person.epsilon)
        text += shown.format(count=formatting.count(person.records), epsilon=epsilon)
    if source.header.get("randomness") == "reproducible":
        text += _SEED
    # How hyper-parameters were chosen may lie outside of all numbers; it is told with the first.
    return text + tuning.statement(source)


def _blocks(report: Report) -> Iterator[Block]:
    meaning = report[Meaning]
    if meaning.epsilon is None:
        return
    doubt = _ONLY_CLAIMED.get(report[Verdict].value)
    if doubt is not None:
        yield document.note(doubt, report[Verdict].value, loud=True)
    factor = attacker.factor_in_words(meaning.epsilon)
    before: list[Text] = [attacker.percent_in_words(one.prior) for one in meaning.guesses]
    after: list[Text] = [
        [document.strong(attacker.percent_in_words(one.posterior))] for one in meaning.guesses
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
            [(name, scale.fraction(end)) for name, end in scale.BANDS],
            [
                (one.name, scale.fraction(one.low), scale.fraction(one.high))
                for one in found.deployments
            ],
            (f"this run, {formatting.epsilon(meaning.epsilon)}", scale.fraction(meaning.epsilon)),
            found.statement,
        )
        yield document.paragraph(found.sources, "small")


register(
    ReportSection(
        identifier="meaning", title="What the numbers mean", place=5, blocks=_blocks, front=True
    )
)
