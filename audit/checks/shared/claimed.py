"""What claims say in addition to each client's ε, and the judgement on numbers that were compared.

Parts of the checks "accounting", "views", "promise" and "outside-budget":

* `judgement_on` is the judgement that comes of comparing claimed losses with recomputed ones;
* a claim's `dp_accounting` is the number that this library computed at the run's end. The auditor
  does not load it: the recorded number is held against the auditor's own accountant, and the claim
  against the number;
* a spec's section `tune` says how hyper-parameters were chosen; the claim must cover what it says;
* `unread_faults` refuses what a claim states and no check of its unit compares with anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.accounting.budget import SELECTION_ACCOUNTANT, Law, Steps, budget
from audit.accounting.comparison import ABSOLUTE, RELATIVE, AtFineness, Comparison
from audit.accounting.registry import Range
from audit.accounting.sampling import MostSpent
from audit.checks.base import Judgement, conclude, listed
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.leaks import LEDGER, Shape, unknown_fields
from audit.reading.ledger import Header
from audit.reading.ledger_lines import claimed_epsilons, claimed_headline
from audit.reading.units import CLIENT, LOOP
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Severity


def judgement_on(
    found: Comparison,
    measurement: str,
    details: Mapping[str, Any],
    qualifications: tuple[str, ...] = (),
) -> Judgement:
    """FAIL for a reason, NOT VERIFIED for an accountant that the auditor lacks, else PASS.

    Args:
        found: the comparison.
        measurement: what a PASS says; what is a little too high is added to it.
        details: the judgement's numbers.
        qualifications: what must qualify the verdict.
    """
    unknown = [
        f"epsilon by {name} is claimed, which no accountant of the auditor recomputes"
        for name in sorted(found.unknown)
    ]
    passes = not found.reasons and not unknown
    note = f"; but {listed(found.high)}" if found.high else ""
    severity = Severity.THEORETICAL if passes and found.high else None
    return conclude(
        f"{measurement}{note}",
        found.reasons,
        unknown,
        details=details,
        qualifications=qualifications,
        severity=severity,
    )


_CLAIM = LEDGER["claim"]
_OF_EVERY_UNIT = (
    "kind", "previous", "digest", "view_headline", "delta", "assumptions",
)  # fmt: skip
_OF_THE_ENGINE = (
    "profile", "gaussian_dp", "tuning", "stopped", "diverged", "dp_accounting",
)  # fmt: skip
_NUMBERS = dict.fromkeys(("accountant", "epsilon"))


def _read_of(header: Header) -> Shape:
    """The fields of a claim that the checks of the header's unit read."""
    if not header.unit.claims_privacy:
        # Training may end early all the same.
        return {**dict.fromkeys(_OF_EVERY_UNIT), "diverged": _CLAIM["diverged"]}
    if header.unit is LOOP:
        names = (*_OF_EVERY_UNIT, "adjacency", "accountant_history")
        return {**dict.fromkeys(names), "server": _NUMBERS, "third_party": _NUMBERS}
    names = (*_OF_EVERY_UNIT, *_OF_THE_ENGINE, *(("budget",) if header.budget else ()))
    if header.unit is CLIENT:
        clients = dict.fromkeys(("client", "participations", "epsilon"))
        return {
            **{name: _CLAIM[name] for name in names},
            "server": {**_NUMBERS, "clients": clients},
            "third_party": _CLAIM["third_party"],
        }
    record = (
        "adjacency", "unit", "clients_per_person", "server", "server_worst_case", "closed_forms",
        "person", *(("columns",) if header.column_queries else ()),
    )  # fmt: skip
    return {
        **{name: _CLAIM[name] for name in (*names, *record)},
        "third_party": {**_NUMBERS, "participation": None},
    }


def unread_faults(claim: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    """Note what the claim states and no check of the run compares with anything.

    Args:
        claim: the ledger's claim, as `read_claim` gives it.
        header: the ledger's header.
        reasons: gets a sentence for each such field.
    """
    for name in unknown_fields(claim, _read_of(header)):
        plain = name if name.isascii() and name.isprintable() else ascii(name)
        reasons.append(
            f"the claim states {plain[:64]}, which no check of this run compares with anything"
        )


# How far a claim may lie below the number; its grid lifts it by less.
_BELOW, _A_LITTLE = 1e-3, 1e-4
_NO_EVENT = "no event"
_REASONS = {
    _NO_EVENT: "which has no event for this mechanism",
    "too fine": "which reported too many steps for it",
    "too large": "whose double precision does not hold e^ε at this ε",
}
NOT_RECORDED = "no number by dp-accounting was recorded"


def number_faults(
    claim: Mapping[str, Any],
    view: str,
    due: Range | None,
    reasons: list[str],
    is_lower_bound: bool = False,
) -> str:
    """Note where dp-accounting's number is none that it can have computed, or is above the claim.

    Args:
        claim: the ledger's claim.
        view: the view that leads it.
        due: what the auditor computes for the same events; None where dp-accounting has none.
        reasons: gets what is wrong.
        is_lower_bound: whether these events bound the claim's from below (see `as_poisson`).

    Returns:
        What was recorded, in words.

    Raises:
        FieldError: the record is damaged.
    """
    if "dp_accounting" not in claim:
        return NOT_RECORDED
    found = fields.mapping(claim, "dp_accounting")
    by = f"dp-accounting {fields.text(found, 'version', pattern='[0-9A-Za-z.+-]{1,40}')}"
    if fields.text(found, "view") != view:
        reasons.append(f"{by}: its number is not for the claim's leading view")
        return by
    if found.get("epsilon") is None:
        reason = fields.choice(found, "reason", tuple(_REASONS))
        if reason == _NO_EVENT and due is not None:
            reasons.append(
                f"{by} is recorded as having no event for this mechanism, but it has one"
            )
        return f"no number by {by}, {_REASONS[reason]}"
    number = fields.number(found, "epsilon", least=0.0)
    fields.choice(found, "accountant", ("pld", "rdp"))
    if found.get("bound") != ("lower" if is_lower_bound else None):
        reasons.append(f"{by}: its number is not correctly marked as an ε or as a lower bound")
    if due is None:
        reasons.append(
            f"{by} is recorded as giving {number:.4g}, but it has no event for this mechanism"
        )
    elif not (
        due.least * (1.0 - RELATIVE) - ABSOLUTE <= number <= due.most * (1.0 + RELATIVE) + ABSOLUTE
    ):
        reasons.append(f"{by} is recorded as giving {number:.4g}, but {due.least:.4g} is correct")
    claimed = claimed_headline(fields.mapping(claim, view))
    if claimed < number * (1.0 - _BELOW) - _A_LITTLE:
        reasons.append(f"the headline is claimed as {claimed:.5g}, but {by} gives {number:.5g}")
    return f"{by} gives {number:.4g}" + (", a lower bound" if is_lower_bound else "")


def as_poisson(history: Sequence[Steps]) -> list[Steps]:
    """Poisson batches at the same noise, σ/2, which batches of fixed size cost no less than.

    Where all other gradients are -C along one direction, and the replaced one is C before and -C
    after, the sum is moved by 2C with probability q before, and never after.
    """
    return [replace(item, fixed_size=False) for item in history]


def due_of_records(
    header: Header, most: MostSpent, dearest: Sequence[Steps], delta: float
) -> Range:
    """What dp-accounting gives for the worst case against the server, as the auditor computes it.

    Args:
        header: the ledger's header.
        most: the most that a client in every round can spend.
        dearest: what the client that spent most was charged; more than that only where rounds were
            repeated after a crash.
        delta: δ.
    """

    def cost(history: Sequence[Steps]) -> float:
        return budget(history, delta).headline

    limit, rounds = header.max_epsilon, header.rounds
    everything = most.everything(rounds)
    whole, spent = cost(everything), cost(dearest)
    if limit is not None and whole > limit:
        # The number is that of the rounds which fit; two accountants may differ in one of them.
        near = rounds_that_fit(most, rounds, limit, delta)
        least, greatest = (cost(as_poisson(most.everything(count))) for count in near)
        return Range(least, greatest)
    found = [cost(as_poisson(everything))]
    if limit is None and spent >= whole * (1.0 - RELATIVE):
        found.append(cost(as_poisson(dearest)))
    return Range(min(found), max(found))


def rounds_that_fit(most: MostSpent, rounds: int, limit: float, delta: float) -> tuple[int, int]:
    """How many rounds a limit on ε leaves room for: one less than is found here, and one more."""
    fit = _last(lambda count: budget(most.everything(count), delta).headline <= limit, rounds)
    return max(1, fit - 1), fit + 1


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number of rounds below `most` for which it holds, as it does up to some number."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


UNACCOUNTED = (
    "the hyper-parameters were chosen using the private records, and no ε covers that choice: the "
    "run's ε is that of settings chosen without them"
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
        unreadable.append(f"the random bits behind the number of trials cannot be read: {error}")
        return
    if hashlib.sha256(b"commitment" + secret).hexdigest() != noted.commitment:
        reasons.append("tuning: the number of trials was not drawn from the committed random bits")
    elif not law.draws(secret, noted.trials):
        reasons.append("tuning: the number of trials is not what the spec's distribution gives")


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
        chosen: ε of the selection against a third party.
        one_trial: ε of one trial against it.
        all_trials: ε against the server, which sees every trial; None where none holds.
        comparison: gets what is wrong.

    Raises:
        FieldError: the claim lacks a number.
    """
    party = fields.mapping(claim, "third_party")
    where = "the third party's epsilon, of the selection,"
    stated, by = claimed_epsilons(party), fields.text(party, "accountant")
    if by != SELECTION_ACCOUNTANT or stated.keys() != {SELECTION_ACCOUNTANT}:
        comparison.reasons.append(
            f"{where} is claimed by {', '.join(sorted(stated))}; a selection is accounted only by "
            f"{SELECTION_ACCOUNTANT}, so the claim must leave it out"
        )
    else:
        comparison.compare(where, fields.number(stated, SELECTION_ACCOUNTANT), chosen)
    tuning = fields.mapping(claim, "tuning")
    comparison.headline("one trial's epsilon", fields.mapping(tuning, "one_trial"), one_trial)
    if all_trials is not None:
        every = fields.mapping(tuning, "server_all_trials")
        comparison.headline("the server's epsilon of all trials", every, all_trials)
    elif "server_all_trials" in tuning:
        comparison.reasons.append(
            "an epsilon of all trials is claimed against the server, but none holds: it sees "
            "clipped updates without noise"
        )


def statement_faults(
    spec: Mapping[str, Any], claim: Mapping[str, Any], reasons: list[str]
) -> tuple[str, ...]:
    """Note where the claim is silent on the choice that the spec tells of.

    Returns:
        What must qualify the verdict.

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
