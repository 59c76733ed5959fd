"""Accounting: from the ledger's spends to the ledger's claim.

This is the accountants' front door: it adds up what each client was charged, computes every view of
it (`views`), evaluates the closed forms that papers print, and writes the claim, the ledger's last
line. The numbers come from the accountants in `registry`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpfedadamw.accounting.registry import as_claimed, leading
from dpfedadamw.accounting.selection import (
    TUNED,
    Trials,
    claim_of_selection,
    epsilon_of_all_trials,
)
from dpfedadamw.accounting.several import envelope, in_words_of_people, together
from dpfedadamw.accounting.trade_off import curves
from dpfedadamw.accounting.views import (
    DERIVED_RATE,
    NOT_TUNED,
    STATED_RATE,
    ClientSpend,
    mechanism_assumptions,
    server_view,
    server_worst_case,
    third_party_view,
)
from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.privacy.composition import Composition, merge
from dpfedadamw.privacy.sampling import from_ledger

ADAPTED = (
    "steps or noise followed what was released before. Every epsilon is that of the most that "
    "the rule could have spent in the rounds taken part in, not of what it happened to spend"
)

QUERIED = (
    "bounds of columns were learnt before the first round. Each record is counted once in the "
    "histogram of each such column, to which its client adds Gaussian noise of the stated "
    "multiplier. No draw of clients or records amplifies what that costs"
)

LIMITED = (
    "the run ends before the epsilon of any {} against the server exceeds {:g}, by a rule that "
    "depends only on who took part. So no epsilon against anybody exceeds it"
)


@dataclass(frozen=True)
class ClosedForms:
    """Printed order-of-magnitude formulas with the hidden constant set to 1; never a claim.

    Attributes:
        third_party_noble: s·√(l·T·K·log(2/δ)·log(2T/δ)/N)/σ (Noble et al. 2022).
        server_noble: the same times √(N/l), that is s·√(T·K·log(2/δ)·log(2T/δ))/σ.
        equation_13: DP-FedAdamW eq. (13), printed as the third party's; it equals `server_noble`.
        equation_14: DP-FedAdamW eq. (14), √(N/l) times eq. (13): the factor is counted twice.
        delta_server: (δ/2)(1/l + 1), the δ that goes with the server's form.
        sampling_rate: the s used.
    """

    third_party_noble: float
    server_noble: float
    equation_13: float
    equation_14: float
    delta_server: float
    sampling_rate: float


def spends_from_ledger(lines: Iterable[Mapping[str, Any]]) -> tuple[ClientSpend, ...]:
    """Add up the ledger's spend lines by client; other lines are passed over.

    Args:
        lines: parsed ledger lines. Every spend line counts, also those of repeated attempts.

    Returns:
        One spend for each client that was ever charged, by number.
    """
    steps: dict[int, dict[tuple[float, float, int, str], int]] = {}
    records: dict[int, int] = {}
    participations: dict[int, int] = {}
    for line in lines:
        if line.get("kind", "spend") != "spend":
            continue
        client = int(line["client"])
        rate = float(line["sampling_rate"])
        sampling = str(line["sampling"])
        key = (float(line["noise_multiplier"]), rate, int(line["queries_per_step"]), sampling)
        charged = steps.setdefault(client, {})
        sampler = from_ledger(sampling, float(line["expected_batch_size"]))
        counted = sampler.charged_steps(int(line["records"]), int(line["steps"]))
        charged[key] = charged.get(key, 0) + counted
        records[client] = max(records.get(client, 0), int(line["records"]))
        participations[client] = participations.get(client, 0) + 1
    return tuple(
        ClientSpend(
            client,
            records[client],
            participations[client],
            tuple(
                Composition(noise, rate, count, queries, sampling)
                for (noise, rate, queries, sampling), count in sorted(steps[client].items())
            ),
        )
        for client in sorted(steps)
    )


def queries_from_ledger(lines: Iterable[Mapping[str, Any]]) -> tuple[Composition, ...]:
    """What the ledger's queries of columns cost a record, of the client that they cost most.

    Args:
        lines: parsed ledger lines. Every such line counts; other lines are passed over.
    """
    found: dict[float, dict[int, int]] = {}
    for line in lines:
        if line.get("kind") == "query":
            by = found.setdefault(float(line["noise_multiplier"]), {})
            client = int(line["client"])
            by[client] = by.get(client, 0) + len(line["columns"])
    return tuple(
        Composition(noise, 1.0, max(by.values()), 1, "full") for noise, by in sorted(found.items())
    )


def rounds_released(lines: Iterable[Mapping[str, Any]]) -> int:
    """How many finished rounds a ledger has, each time that one was run again included.

    Args:
        lines: parsed ledger lines; other lines are passed over.
    """
    return sum(line.get("kind") == "round" for line in lines)


def closed_forms(
    sampling_rate: float,
    noise_multiplier: float,
    clients: int,
    clients_per_round: int,
    rounds: int,
    local_steps: float,
    delta: float,
) -> ClosedForms:
    """Evaluate the closed forms of Noble et al. (2022) and DP-FedAdamW (13) and (14), with c = 1.

    Args:
        sampling_rate: s, the record's rate; the largest of any client.
        noise_multiplier: σ.
        clients: N.
        clients_per_round: S; l = S/N.
        rounds: T.
        local_steps: K, a mean where it varies.
        delta: δ.
    """
    participation = clients_per_round / clients
    logarithms = math.log(2.0 / delta) * math.log(2.0 * rounds / delta)
    server = sampling_rate * math.sqrt(rounds * local_steps * logarithms) / noise_multiplier
    ratio = math.sqrt(clients / participation)
    return ClosedForms(
        third_party_noble=server / ratio,
        server_noble=server,
        equation_13=server,
        equation_14=server * ratio,
        delta_server=delta / 2.0 * (1.0 / participation + 1.0),
        sampling_rate=sampling_rate,
    )


def claim(
    spends: Sequence[ClientSpend],
    *,
    per_round: Composition,
    share: float,
    clients: int,
    clients_per_round: int,
    bound: SpendingBound,
    delta: float,
    client_sampling: str = "fixed-size",
    max_epsilon: float | None = None,
    rate_is_stated: bool = False,
    selection: str = "none",
    trials: Trials | None = None,
    drawn: int | None = None,
    of_people: bool = False,
    released: int = 0,
) -> dict[str, Any]:
    """Return the ledger's claim: every view of a finished run, as JSON types with finite numbers.

    Args:
        spends: what each client was charged (`spends_from_ledger`), or, where the course followed
            releases, the most it could have been charged (`SpendingBound.accounted`). None, where
            clients are drawn independently and no round had any, cost nothing.
        per_round: what one participation costs the client for which it costs most, also if it
            never took part.
        share: s of the closed forms, the largest share of a client's records in a batch.
        clients: N.
        clients_per_round: S.
        bound: rounds, steps and noise, and what may change in them.
        delta: δ.
        client_sampling: "fixed-size" or "poisson".
        max_epsilon: ε at which the run ends early; no client can spend more against any reader.
        rate_is_stated: whether q is a constant of the spec, and does not follow from sizes.
        selection: the spec's word for how the hyper-parameters were chosen.
        trials: the law of the number of trials, of which this run is one and the published one the
            best; None for a run by itself.
        drawn: how many trials there are; None before it is drawn.
        of_people: whether people take the place of records; of each, records may be at as many
            clients as ``bound`` says, whose charges then add up.
        released: how many finished rounds the ledger has. They are more than T where one was run
            again because its state was lost: third parties saw what came of it each time.

    Returns:
        The claim line without its chain (kind, previous, digest).

    Raises:
        PrivacyError: if no finite ε holds.
    """
    worst = server_worst_case(bound, per_round, delta)
    participation = clients_per_round / clients
    seen = replace(bound, rounds=max(bound.rounds, released))
    third_party = third_party_view(seen, per_round, participation, delta, client_sampling)
    # The formulas know one number of steps a round and one noise: the mean of the most, the least.
    forms = closed_forms(
        share,
        bound.least_noise_multiplier,
        clients,
        clients_per_round,
        bound.rounds,
        bound.most_steps / bound.rounds,
        delta,
    )
    accountant, _ = leading()

    def at_most(epsilon: float) -> float:
        return epsilon if max_epsilon is None else min(epsilon, max_epsilon)

    spent, entries, notes = 0.0, [], worst.assumptions
    dearest = tuple(bound.queries)
    if dearest and not spends:
        spent = accountant.epsilon(dearest, delta)
    if spends:
        server = server_view(spends, delta, bound.everything(per_round), bound.queries)
        spent, notes = server.epsilon.value, server.epsilon.assumptions
        entries = [asdict(entry) for entry in server.clients]
        most = [entry.epsilon[accountant.name] for entry in server.clients].index(spent)
        dearest = (*spends[most].compositions, *bound.queries)
        if bound.clients_per_person > 1:
            both = together(spends, bound.clients_per_person, delta)
            spent, dearest = both.epsilon, both.parts
    shared = mechanism_assumptions(per_round.sampling)
    spelled = {
        **({DERIVED_RATE: STATED_RATE} if rate_is_stated else {}),
        NOT_TUNED: TUNED.get(selection, NOT_TUNED),
    }
    whose = "person" if of_people else "client"
    readings = [
        *(spelled.get(note, note) for note in shared),
        *(f"server: {note}" for note in notes if note not in shared),
        *(f"third party: {note}" for note in third_party.epsilon.assumptions if note not in shared),
        *([QUERIED] if bound.queries else []),
        *([LIMITED.format(whose, max_epsilon)] if max_epsilon is not None else []),
        *([ADAPTED] if bound.adaptation and bound.adaptation.follows_releases else []),
    ]
    if of_people:
        readings = in_words_of_people(readings, bound.clients_per_person)
    alone = as_claimed({accountant.name: at_most(third_party.epsilon.value)})
    chosen = {}
    if trials is not None:
        every = None
        if drawn is not None:
            winner = _most_of_any(spends, bound)
            every = epsilon_of_all_trials(bound.of_person(per_round), delta, drawn, spent, winner)
        # As against a third party, all clients that a person may be at count in every round.
        at = bound.clients_per_person
        rounds = [(replace(one, steps=at * one.steps), n) for one, n in seen.each_round(per_round)]
        taken, one = participation if at == 1 else 1.0, at_most(third_party.epsilon.value)
        alone, tuning = claim_of_selection(rounds, taken, delta, trials, one, every)
        chosen = {"tuning": tuning}
    beside = {}
    if bound.queries:
        # Of all that is spent, what the histograms of columns alone would cost.
        epsilon = accountant.epsilon(bound.queries, delta)
        learnt = sum(part.steps for part in bound.queries)
        beside = {"columns": {"learnt": learnt, "epsilon": epsilon}}
    return {
        "view_headline": "server" if trials is None else "third-party",
        "delta": float(delta),
        "adjacency": per_round.adjacency,
        **({"unit": "person", "clients_per_person": bound.clients_per_person} if of_people else {}),
        "server": {**as_claimed({accountant.name: spent}), "clients": entries},
        # A run that was interrupted can have charged a client for more rounds than there are.
        "server_worst_case": as_claimed({accountant.name: max(at_most(worst.value), spent)}),
        "third_party": {**alone, "participation": participation},
        **chosen,
        **beside,
        "closed_forms": asdict(forms),
        "assumptions": readings,
        **curves(dearest, selected=trials is not None),
    }


def _most_of_any(spends: Sequence[ClientSpend], bound: SpendingBound) -> tuple[Composition, ...]:
    """What no client was charged more than, times the clients of a person: it bounds each one."""
    parts = envelope([merge(spend.compositions) for spend in spends]) if spends else ()
    times = bound.clients_per_person
    return tuple(replace(part, steps=times * part.steps) for part in (*parts, *bound.queries))


def no_claim() -> dict[str, Any]:
    """Return the claim of a run without a privacy unit: none."""
    return {"view_headline": "none"}
