"""Check "views": what does the run cost against whom, and what do closed forms say about it?

Server: direct composition, and the worst case in which a client takes part in every round.
Third party: the mixture over participation counts. Closed forms of the papers (constant 1 in
their O(·)) are recomputed and each is judged against the directly composed number of the view for
which it is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.accounting.budget import (
    Budget,
    Steps,
    budget,
    closed_forms,
    covers,
    merge,
    most_of_each,
    selection_cost,
    server_delta,
    together,
)
from audit.accounting.comparison import AtFineness, Comparison
from audit.accounting.pld import composer
from audit.accounting.registry import Range
from audit.accounting.sampling import MostSpent, largest_share, most_spent, participation
from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, register
from audit.checks.record.accounting import histories
from audit.checks.shared.claimed import (
    NOT_RECORDED,
    claimed_selection,
    due_of_records,
    judgement_on,
    law_of,
    number_faults,
    rounds_that_fit,
    unread_faults,
)
from audit.checks.shared.drawn_partition import names_people
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.reading.units import RECORD
from audit.statistics.intervals import relative_difference
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

_SERVER_FORM = "s*sqrt(T*K*log(2/delta)*log(2*T/delta))/sigma"
_FORMS = (
    (
        "third_party_noble",
        "s*sqrt(l*T*K*log(2/delta)*log(2*T/delta)/N)/sigma",
        "third party",
    ),
    ("server_noble", f"third_party_noble*sqrt(N/l) = {_SERVER_FORM}", "server"),
    (
        "equation_13",
        f"{_SERVER_FORM}, printed for a third party, equal to server_noble",
        "third party",
    ),
    ("equation_14", "equation_13*sqrt(N/l), so sqrt(N/l) a second time", "server"),
)


def _reading(name: str, value: float, direct: float, ratio: float) -> str:
    # Where N = l there is nothing to multiply by, so nothing is counted twice.
    if name == "equation_14" and ratio > 1.0 + 1e-12:
        return "double-counts"
    return "conservative" if value >= direct else "understates"


def _form_rows(
    forms: Mapping[str, float],
    third: float,
    worst: float,
    deltas: tuple[float, float],
    ratio: float,
) -> list[dict[str, Any]]:
    rows = []
    for name, formula, towards in _FORMS:
        direct, delta = (worst, deltas[1]) if towards == "server" else (third, deltas[0])
        rows.append(
            {
                "name": name,
                "formula": formula,
                "value": forms[name],
                "towards": towards,
                "reading": _reading(name, forms[name], direct, ratio),
                "compared_with": direct,
                "compared_at_delta": delta,
            }
        )
    return rows


@dataclass(frozen=True)
class _Selected:
    """What a private selection costs, of which the run is the published trial.

    Attributes:
        chosen: against a third party.
        all_trials: against the server, which saw all of them.
    """

    chosen: Range
    all_trials: AtFineness


def _selection(
    bundle: Bundle,
    everything: Sequence[Steps],
    server: Budget,
    most: MostSpent,
    past: Sequence[tuple[Steps, ...]],
) -> _Selected | None:
    """What the run's selection costs; None for a run by itself.

    Where the winner was charged more than one trial is to cost, since rounds of it were repeated
    after a crash, that takes the place of one trial. Other trials' charges are not in its files.

    Raises:
        FieldError: the spec's section is damaged.
    """
    header = bundle.header
    law, delta = law_of(bundle.readable_spec), header.delta
    if law is None or delta is None:
        return None
    trials = header.tuning.trials if header.tuning is not None else 1
    times = header.clients_per_person
    winner = [replace(item, steps=item.steps * times) for item in most_of_each(past)]
    every = [budget([replace(item, steps=item.steps * trials) for item in everything], delta)]
    if not covers(everything, winner):
        others = [replace(item, steps=item.steps * (trials - 1)) for item in everything]
        every.append(budget([*(others if trials > 1 else []), *winner], delta))
    rounds = most.kinds(most.seen(header.rounds))
    kinds = [(replace(one, steps=one.steps * times), n) for one, n in rounds]
    return _Selected(
        selection_cost(kinds, _taken(header), delta, law),
        lambda fineness: max(one.at(fineness) for one in (*every, server)),
    )


def _taken(header: Header) -> float:
    """In what share of the rounds a client counts: in all, where a person may be at several."""
    return participation(header) if header.clients_per_person == 1 else 1.0


def _claims(
    claim: Mapping[str, Any],
    header: Header,
    worst: AtFineness,
    third: AtFineness,
    selected: _Selected | None,
    forms: Mapping[str, float],
    comparison: Comparison,
) -> None:
    reasons = comparison.reasons
    case, party = (fields.mapping(claim, key) for key in ("server_worst_case", "third_party"))
    comparison.headline("the server's worst case", case, worst)
    if selected is None:
        comparison.headline("the third party's epsilon", party, third)
        if "tuning" in claim:
            reasons.append("the claim is of a selection, but the spec has none")
    else:
        claimed_selection(claim, selected.chosen, third, selected.all_trials, comparison)
    if relative_difference(fields.number(party, "participation"), participation(header)) > 1e-9:
        reasons.append("the third party's participation is not S/N")
    headline = "server" if selected is None else "third-party"
    if fields.text(claim, "view_headline") != headline:
        why = (
            "the view that always holds"
            if selected is None
            else "the reader that a selection protects against"
        )
        reasons.append(f"the headline is not the {headline}'s view, {why}")
    closed = fields.mapping(claim, "closed_forms")
    for name, value in forms.items():
        if relative_difference(fields.number(closed, name), value) > 1e-6:
            reasons.append(f"the closed form {name} is not what its formula gives")


def _person(
    bundle: Bundle,
    claim: Mapping[str, Any],
    most_spent: MostSpent,
    dearest: Sequence[Steps],
    comparison: Comparison,
) -> str:
    """Judge what the claim says of the person with most records; what a pass then says.

    Args:
        bundle: the run.
        claim: the ledger's.
        most_spent: the most that a client in every round can spend.
        dearest: what the client that spent most was charged; more than that only where rounds were
            repeated after a crash.
        comparison: gets what is wrong.
    """
    of_records = bundle.header.unit is RECORD and law_of(bundle.readable_spec) is None
    if not names_people(bundle.readable_spec) or not of_records:
        if "person" in claim:
            comparison.reasons.append(
                "the claim is about a person's records, but these are not its unit"
            )
        return ""
    rows, people = bundle.records().rows, bundle.people().stored
    if not len(rows) or rows.max() >= len(people):
        raise UnverifiedError("evidence/people.npz does not cover the training records")
    most = int(np.bincount(people[rows]).max())
    section = fields.mapping(claim, "person")
    stated = fields.integer(section, "records", least=1)
    declared = fields.mapping(bundle.readable_spec, "data").get("most_records_per_person")
    if stated < most or stated != (most if declared is None else declared):
        comparison.reasons.append(
            f"the claim says that nobody has more than {stated:,} records; somebody has {most:,}"
            if declared is None or stated < most
            else f"the claim is for a person with {stated:,} records; the spec keeps {declared:,}"
        )
        return ""
    bound = "the most that one has" if declared is None else "the most that the spec keeps"
    most = stated
    if section.get("epsilon") is None:
        fields.text(section, "reason")
        return f"; no epsilon is stated for a person with {most:,} records"
    header, delta = bundle.header, bundle.header.declared("delta")
    steps = (*most_spent.everything(header.rounds), *dearest)
    if most > 1 and any(item.fixed_size and item.sampling_rate < 1.0 for item in steps):
        comparison.reasons.append(
            f"an epsilon is claimed of a person with {most:,} records in batches of fixed size, "
            "which no accountant covers"
        )
        return ""
    rounds = (header.rounds, header.rounds)
    whole = budget(most_spent.everything(header.rounds), delta).headline
    beyond = budget(dearest, delta).headline > whole and header.max_epsilon is None
    if header.max_epsilon is not None and whole > header.max_epsilon:
        # Two accountants may differ in one of the rounds that fit.
        rounds = rounds_that_fit(most_spent, header.rounds, header.max_epsilon, delta)

    def of_person(fineness: int, count: int) -> float:
        histories = [most_spent.everything(count), *([dearest] if beyond else [])]
        return max(
            composer(merge([replace(item, records=most) for item in history]), delta, fineness)
            .distribution()
            .epsilon(delta)
            for history in histories
        )

    epsilon = fields.number(section, "epsilon", least=0.0)
    least, greatest = (of_person(0, count) for count in rounds)
    found = Range(least, greatest, lambda fineness: of_person(fineness, rounds[0]))
    comparison.compare(f"the epsilon of a person with {most:,} records", epsilon, found)
    return f"; a person with {most:,} records, {bound}: {epsilon:.4g}"


def _second_library(
    claim: Mapping[str, Any],
    header: Header,
    most: MostSpent,
    dearest: Sequence[Steps],
    selected: _Selected | None,
    reasons: list[str],
) -> str:
    """Note what is wrong with dp-accounting's number; returns what was recorded, in words."""
    if "dp_accounting" not in claim:
        return NOT_RECORDED
    if selected is None:
        due = due_of_records(header, most, dearest, header.declared("delta"))
        sampled = any(item.fixed_size for item in most.everything(header.rounds))
        return number_faults(claim, "server_worst_case", due, reasons, sampled)
    # It has an event for the best of several trials, and none for a trial whose clients are hidden.
    covered = _taken(header) == 1.0 and header.sampling == "poisson"
    return number_faults(claim, "third_party", selected.chosen if covered else None, reasons)


def _judge(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    delta = header.delta
    if (
        ledger.claim is None
        or not ledger.spends
        or delta is None
        or header.noise_multiplier is None
    ):
        raise UnverifiedError("the ledger lacks a claim, charges, delta or sigma")
    if delta >= 1.0:
        raise UnverifiedError("delta is not below 1")
    rounds, bound = header.rounds, header.spending_bound
    most = most_spent(ledger, header)
    share = participation(header)
    everything = most.everything(rounds)
    past = list(histories(ledger, header).values())
    dearest = max(past, key=lambda history: budget(history, delta).headline)
    if header.clients_per_person > 1:
        dearest = together(past, header.clients_per_person, delta)
    server = budget(dearest, delta)
    # A run that was cut off can have charged a client for more rounds than there are.
    most_allowed = header.max_epsilon or float("inf")
    whole = budget(everything, delta)

    def worst_at(fineness: int) -> float:
        return max(min(whole.at(fineness), most_allowed), server.at(fineness))

    def third_at(fineness: int) -> float:
        return most.third_party(delta, fineness)(rounds)

    worst, third = worst_at(0), third_at(0)
    # The formulas know one number of steps a round and one noise: the mean of the most, the least.
    steps, sigma = bound.most_steps(rounds) / rounds, bound.least_noise(rounds - 1)
    forms = closed_forms(largest_share(header), sigma, steps, rounds, header.clients, share, delta)
    # The papers' server bound holds at another delta, so it is compared at that one.
    delta_server = min(server_delta(delta, share), 0.5)
    at_server_delta = budget(everything, delta_server).headline
    ratio = (header.clients / share) ** 0.5
    comparison = Comparison(notes_high=False)
    selected, second, person = None, NOT_RECORDED, ""
    try:
        unread_faults(ledger.claim, header, comparison.reasons)
        selected = _selection(bundle, everything, server, most, past)
        if selected is not None and (ledger.queries or header.column_queries is not None):
            comparison.reasons.append(
                "bounds of columns were learnt in a trial of a private selection, which no "
                "accountant covers"
            )
        _claims(ledger.claim, header, worst_at, third_at, selected, forms, comparison)
        second = _second_library(ledger.claim, header, most, dearest, selected, comparison.reasons)
        person = _person(bundle, ledger.claim, most, dearest, comparison)
    except FieldError as error:
        comparison.reasons.append(f"claim: {error}")
    party, chosen = third, ""
    if selected is not None:
        party = selected.chosen.least
        chosen = f", which is one trial's; {party:.4g} for the best of a random number of trials"
    rows = _form_rows(forms, party, at_server_delta, (delta, delta_server), ratio)
    details = {
        "server": {"epsilon": server.epsilon},
        "server_worst_case": worst,
        "third_party": party,
        "closed_forms": rows,
        "delta_server": forms["delta_server"],
        **({"one_trial": third} if selected is not None else {}),
    }
    readings = ", ".join(f"{row['name']} {row['reading']}" for row in rows)
    return judgement_on(
        comparison,
        f"at delta = {delta:g}: server {server.headline:.4g}, a client in every round {worst:.4g}, "
        f"third party {third:.4g}{chosen}. Closed forms match their formulas; compared with the "
        f"composed numbers, {readings}; none of them is the headline; {second}{person}",
        details,
    )


VIEWS = Check(
    name="views",
    title="What does the run cost against the server and against a third party?",
    units=AT_RECORD_LEVEL,
    place=80,
    meaning="If it fails, a loss is stated against the wrong reader.",
    claim="The server's view is composed directly. A third party who does not know who took part "
    "is bounded by delta(eps) <= E[delta_nK(eps)], n ~ Binomial(T, l). The bound is that of the "
    "client whose participations cost most, whether S of N clients are drawn or each "
    "independently. The closed "
    "forms are printed for comparison, never as the claim. For the best of a random number of "
    "trials, the third party's number is that of the selection (Papernot & Steinke 2022, Theorem "
    "2). The headline is not below the number that dp-accounting gave for it when the run ended, "
    "where one was recorded; for batches of fixed size that is a lower bound. If the spec names "
    "the person of each record, the epsilon of the person with most records is of the mixture "
    "over how many are drawn (Charles et al. 2024).",
    tolerance="1e-4 below, 5 % and 0.01 above for composed numbers; 1e-6 for closed forms. The "
    "headline may be 0.1 % and 0.0001 below dp-accounting's number, and that number may be off by "
    "0.5 % and 0.001. All binomial counts are evaluated exactly.",
    power="a view, rate or participation exchanged for another",
    limits="The closed forms carry an unknown constant, set to 1 here, so a reading compares the "
    "formula as printed and proves nothing about the theorem. The forms of Noble et al. 2022 "
    "average noise over clients, which local AdamW steps do not allow. Restarted rounds count in "
    "the server's view, because it saw them.",
    rule=_judge,
)
register(VIEWS)
