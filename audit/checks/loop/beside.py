"""What of a recorded loop is for nobody to judge here: said by name, and never a PASS.

Three questions that the engine's runs answer and a loop of somebody else's cannot: who could draw
the noise again, whether computing it again from the data leads to the same, and what happened to
the records before training, of which the weights that it began with may be made.
"""

from __future__ import annotations

from audit.checks.base import Check, Judgement, register
from audit.checks.randomness import SEEDED, drawn_again
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.reading.units import LOOP
from audit.verdict import Severity, Verdict

WORD = (
    "rests on the recorder's word: nothing was computed again from the data, so that evidence "
    "which was forged consistently would pass"
)
NOT_SECURE = (
    "noise and batches come from a generator that is not cryptographic: whoever learns its state, "
    "or enough of what it gave, can draw the noise again"
)
NOT_LOOKED_AT = (
    "how records were scaled, chosen or encoded before training, whether settings were tuned on "
    "them, and whether the weights that training began with were made from them, was not looked at"
)


def _unjudged(why: str) -> Judgement:
    return Judgement(
        Verdict.NOT_VERIFIED, why, qualifications=(why,), severity=Severity.THEORETICAL
    )


def _randomness(bundle: Bundle) -> Judgement:
    try:
        if drawn_again(bundle) is not None:
            return Judgement(Verdict.FAIL, SEEDED)
    except AuditError as error:
        return Judgement(
            Verdict.NOT_VERIFIED, f"whether the noise is that of a usual seed: {error}"
        )
    producer = bundle.header.producer
    if producer is None or not producer.secure:
        return _unjudged(NOT_SECURE)
    return Judgement(
        Verdict.PASS, "the noise is that of no usual seed; the generator is said to be secure"
    )


RANDOMNESS = Check(
    name="randomness",
    title="Could anyone draw the noise again?",
    units=(LOOP,),
    place=110,
    meaning="If it fails, somebody may be able to draw the noise again and remove it.",
    claim="Noise comes from a cryptographic generator whose state nobody knows.",
    tolerance="2e-5 of the standard deviation, on six values in a row of one of the usual "
    "generators: by chance in fewer than one loop in 10^12",
    power="NumPy's, Python's and torch's CPU generators seeded with one of about 50 numbers "
    "that anybody would try first",
    limits="Other seeds, and what else was drawn from the generator, are not tried.",
    rule=_randomness,
)
register(RANDOMNESS)
REEXECUTION = Check(
    name="reexecution",
    title="Does computing it again from the data lead to the same?",
    units=(LOOP,),
    place=66,
    meaning="If it fails, the run is not what data and key make of it: somebody changed what was "
    "computed, or what was written of it. Where nothing was computed again, all other findings "
    "judge what the trainer's own process wrote of itself.",
    claim="Batches, sums and noise are those that the data and the generator give.",
    tolerance="none: nothing was computed",
    power="none",
    limits="The auditor cannot run somebody else's program again.",
    rule=lambda _: _unjudged(WORD),
)
register(REEXECUTION)
OUTSIDE_BUDGET = Check(
    name="outside-budget",
    title="Is nothing done to the records outside the budget but what is said?",
    units=(LOOP,),
    place=130,
    meaning="If it fails, private records were used, or may have been, in a way that nothing pays "
    "for.",
    claim="What happens to the records beside the recorded steps is for the loop's author to say.",
    tolerance="none: nothing was measured",
    power="none",
    limits="The recorder sees the steps of the training loop alone.",
    rule=lambda _: _unjudged(NOT_LOOKED_AT),
)
register(OUTSIDE_BUDGET)
