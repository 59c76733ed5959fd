"""Does a run say how its hyper-parameters were chosen, and does its claim cover what it says?

The parts of the checks "promise", "views" and "outside-budget" for the spec's section `tune`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from audit.accounting.comparison import AtFineness, Comparison
from audit.accounting.registry import Range
from audit.accounting.selection import ACCOUNTANT, Law
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import claimed_epsilons
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

UNACCOUNTED = (
    "the hyper-parameters were chosen by looking at the private records, and no ε covers that "
    "choice: the run's ε is that of settings which were chosen without looking"
)
_SELECTIONS = ("none", "private", "public", "unaccounted")
# What the claim says of the choice, by the spec's word.
_SAID = {
    "private": r"private selection",
    "public": r"tuned on records that are public",
    "unaccounted": r"chosen by looking at the private records",
}
_SHOWN_CLAIM = "the claim does not say that hyper-parameters were chosen by {}"


def selection_of(spec: Mapping[str, Any]) -> str:
    """The spec's word for how hyper-parameters were chosen; specs of before it have none.

    Raises:
        FieldError: it is none that there is.
    """
    if spec.get("tune") is None:
        return "none"
    return fields.choice(fields.mapping(spec, "tune"), "selection", _SELECTIONS)


def law_of(spec: Mapping[str, Any]) -> Law | None:
    """The law of the number of trials; None for a run by itself.

    Raises:
        FieldError: the spec states none that there is.
    """
    if selection_of(spec) != "private":
        return None
    tune = fields.mapping(spec, "tune")
    mean, shape = fields.positive(tune, "mean_trials"), fields.number(tune, "shape", least=0.0)
    if mean <= 1.0:
        raise FieldError("tune.mean_trials is not above 1")
    return Law(mean, shape)


def trial_faults(bundle: Bundle, reasons: list[str], unreadable: list[str]) -> None:
    """Note where the ledger does not say of a trial what the spec's selection draws.

    Args:
        bundle: the run.
        reasons: gets what is wrong.
        unreadable: gets why the draw could not be judged.

    Raises:
        FieldError: the spec's section is damaged.
    """
    law, noted = law_of(bundle.readable_spec), bundle.header.tuning
    if law is None or noted is None:
        if law is not None or noted is not None:
            reasons.append(
                "tuning: only one of spec and ledger says that this is a trial of a selection"
            )
        return
    scored_on = fields.mapping(fields.mapping(bundle.readable_spec, "data"), "validation")
    if scored_on.get("public") is not True or not fields.number(scored_on, "fraction"):
        reasons.append("tuning: trials are scored on records that the spec does not say are public")
    if noted.trial > noted.trials:
        reasons.append("tuning: the ledger numbers a trial beyond the last")
    try:
        secret = bundle.tuning_secret()
    except UntrustedFileError as error:
        unreadable.append(f"what drew the number of trials cannot be read: {error}")
        return
    if hashlib.sha256(b"commitment" + secret).hexdigest() != noted.commitment:
        reasons.append("tuning: the number of trials was drawn by something else than committed to")
    elif not law.draws(secret, noted.trials):
        reasons.append("tuning: the number of trials is not what the spec's law draws")


def claimed_selection(
    claim: Mapping[str, Any],
    chosen: Range,
    one_trial: AtFineness,
    all_trials: AtFineness | None,
    comparison: Comparison,
) -> None:
    """Compare what the claim of a selected run says with what the selection costs.

    Args:
        claim: the ledger's claim.
        chosen: ε of the selection towards a third party.
        one_trial: ε of one trial towards it.
        all_trials: ε towards the server, which sees every trial; None where none holds.
        comparison: gets what is wrong.

    Raises:
        FieldError: the claim lacks a number.
    """
    party = fields.mapping(claim, "third_party")
    where = "the third party's epsilon, of the selection,"
    stated, by = claimed_epsilons(party), fields.text(party, "accountant")
    if by != ACCOUNTANT or stated.keys() != {ACCOUNTANT}:
        comparison.reasons.append(
            f"{where} is claimed by {', '.join(sorted(stated))}; a selection is accounted by "
            f"{ACCOUNTANT} alone, so that the claim leaves it out"
        )
    else:
        comparison.compare(where, fields.number(stated, ACCOUNTANT), chosen)
    tuning = fields.mapping(claim, "tuning")
    comparison.headline("one trial's epsilon", fields.mapping(tuning, "one_trial"), one_trial)
    if all_trials is not None:
        every = fields.mapping(tuning, "server_all_trials")
        comparison.headline("the server's epsilon of all trials", every, all_trials)
    elif "server_all_trials" in tuning:
        comparison.reasons.append(
            "an epsilon of all trials is claimed towards the server, which sees clipped updates "
            "without noise: none holds"
        )


def statement_faults(
    spec: Mapping[str, Any], claim: Mapping[str, Any], reasons: list[str]
) -> tuple[str, ...]:
    """Note where the claim is silent on the choice that the spec tells of.

    Returns:
        What must stand beside the verdict.

    Raises:
        FieldError: spec or claim are damaged.
    """
    selection = selection_of(spec)
    said = fields.sequence(claim, "assumptions", most=1000)
    pattern = _SAID.get(selection)
    if pattern is not None and not any(re.search(pattern, str(one)[:4096]) for one in said):
        reasons.append(_SHOWN_CLAIM.format(_WORDS[selection]))
    return (UNACCOUNTED,) if selection == "unaccounted" else ()


_WORDS = {
    "private": "private selection",
    "public": "a search on public records",
    "unaccounted": "looking at the private records",
}
