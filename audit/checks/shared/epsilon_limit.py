"""Did a run that ends at a limit on its ε keep to it, and was it the limit that ended it?

The part of the check "promise" for `federation.max_epsilon`. What a further round would have cost
at its worst is composed anew with what was charged; fewer rounds than the spec asks for are
explained only if that exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.accounting.budget import Steps, budget, rdp_estimate
from audit.accounting.comparison import ABSOLUTE, RELATIVE
from audit.accounting.sampling import cost, most_spent
from audit.checks.shared.agreement import EXACT, differs
from audit.reading.ledger import Header, Ledger, Resume, Round
from audit.reading.ledger_lines import claimed_headline
from audit.untrusted import fields


def limit_faults(
    spec: Mapping[str, Any],
    ledger: Ledger,
    towards: str,
    charged: Mapping[int, Sequence[Steps]],
    reasons: list[str],
) -> None:
    """Note where a limit on ε is not the spec's, was exceeded, or does not explain an early end.

    Args:
        spec: the spec.
        ledger: the ledger, with a header.
        towards: the view that the limit holds in, "server" or "third_party".
        charged: what each client was charged; at client level all rounds, under any one key.
        reasons: gets what is wrong.

    Raises:
        FieldError: the spec or the claim lacks a field, or has it wrong.
    """
    header = ledger.header
    federation = fields.mapping(spec, "federation")
    promised = None
    if federation.get("max_epsilon") is not None:
        promised = fields.positive(federation, "max_epsilon")
    assert header is not None
    noted = header.max_epsilon
    if (promised is None) != (noted is None) or (noted is not None and differs(promised, noted)):
        reasons.append(f"max_epsilon: the spec says {promised}, the ledger {noted}")
        return
    if ledger.claim is None:
        return
    if noted is None:
        if ledger.stopped is not None:
            reasons.append("the claim says that a limit on epsilon ended the run: there is none")
        return
    claimed = claimed_headline(fields.mapping(ledger.claim, towards))
    if claimed > noted * (1.0 + EXACT):
        reasons.append(f"the claimed epsilon exceeds max_epsilon, {noted:g}")
    if ledger.stopped is None:
        return
    if differs(noted, ledger.stopped.max_epsilon):
        reasons.append("the claim says that another limit on epsilon ended the run")
    if not _exhausted(ledger, header, noted, charged):
        reasons.append(
            f"the run ended after {ledger.stopped.rounds} of {header.rounds} rounds, though a "
            f"further one would have kept to max_epsilon, {noted:g}"
        )


def _exhausted(
    ledger: Ledger, header: Header, limit: float, charged: Mapping[int, Sequence[Steps]]
) -> bool:
    """Whether a further round could have exceeded the limit, for any client."""
    delta = header.declared("delta")
    # Two accountants round differently; a limit that lies between them may be judged either way.
    least = limit * (1.0 - RELATIVE) - ABSOLUTE
    candidates = list(_with_a_further_round(ledger, header, charged))
    # The quick Rényi value only brings the likely ones to the front.
    candidates.sort(key=lambda history: -rdp_estimate(history, delta))
    return any(budget(history, delta).headline > least for history in candidates)


def _with_a_further_round(
    ledger: Ledger, header: Header, charged: Mapping[int, Sequence[Steps]]
) -> Iterator[list[Steps]]:
    assert ledger.stopped is not None
    begun = ledger.stopped.rounds + 1
    if header.unit.name == "client":
        sigma = header.declared("noise_multiplier")
        one = Steps(header.clients_per_round / header.clients, sigma, 1)
        for rounds in charged.values():
            yield [*rounds, one]
        return
    if header.client_sampling == "poisson":
        # Who took part must not show in the end: every client counts as if it were in every round.
        most = most_spent(ledger, header)
        yield most.everything(begun + _repeated(ledger))
        return
    course = header.course
    limit = header.adaptation.step_limit if header.adaptation else None
    queries = max(spend.queries_per_step for spend in ledger.spends)
    for client, records in enumerate(header.records):
        if not records:
            # Nothing of nobody can be lost, and no batch of it drawn.
            continue
        one = cost(
            header.sampling or "",
            course.least_noise(begun - 1),
            queries,
            header.declared("expected_batch_size"),
            records,
            course.most_local_steps,
            header.sampling_rate,
        )
        before = charged.get(client, ())
        if limit is not None:
            left = limit - sum(item.steps for item in before)
            one = replace(one, steps=max(0, min(one.steps, left)))
        yield [*before, one]


def _repeated(ledger: Ledger) -> int:
    """How many more rounds were begun, at most, than are numbered: whenever the run was cut off."""
    entries: list[Round | Resume] = [*ledger.rounds, *ledger.resumes]
    over = repeated = 0
    for entry in sorted(entries, key=lambda one: one.line):
        if isinstance(entry, Round):
            over = entry.round + 1
        else:
            repeated += 1 + max(0, over - entry.round)
            over = entry.round
    return repeated
