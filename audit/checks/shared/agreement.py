"""What spec, ledger and claim must agree on, whatever the run protects.

Parts of the check "promise". In addition to fields that must be equal, two limits on what is spent:

* `federation.max_epsilon`: a run that ends at a limit on its ε must have kept to it, and it must be
  the limit that ended it. What a further round would have cost at its worst is composed once more
  with what was charged; fewer rounds than the spec asks for are explained only if that exceeds the
  limit. Where a spec has none, a run that was cut off may end at `privacy.target_epsilon` in the
  same way.
* `budget`: what this run spent must fit the whole budget of its data set, at the budget's δ, and
  the ε that the claim says is charged to it lies between the two. What other runs spent is not in a
  run's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from audit.accounting.budget import Steps, budget, dearest, rdp_estimate, together
from audit.accounting.comparison import ABSOLUTE, RELATIVE, understates
from audit.accounting.sampling import cost, most_spent, queried
from audit.reading.ledger import Header, Ledger, Resume, Round
from audit.reading.ledger_lines import SharedBudget, claimed_headline
from audit.statistics.intervals import relative_difference
from audit.untrusted import fields

EXACT = 1e-9


def differs(left: float | None, right: float) -> bool:
    """Whether two numbers that were written in decimal and read again are not the same."""
    return left is None or relative_difference(left, right) > EXACT


def _count_faults(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    """Rounds, local steps, clients a round and clients of spec and ledger are the same.

    Raises:
        FieldError: the spec lacks one of them.
    """
    federation, data = fields.mapping(spec, "federation"), fields.mapping(spec, "data")
    counts = {
        "rounds": (fields.integer(federation, "rounds"), header.rounds),
        "local_steps": (fields.integer(federation, "local_steps"), header.local_steps),
        "clients_per_round": (
            fields.integer(federation, "clients_per_round"),
            header.clients_per_round,
        ),
        "clients": (fields.integer(data, "clients"), header.clients),
    }
    for name, (promised, recorded) in counts.items():
        if promised != recorded:
            reasons.append(f"{name}: the spec says {promised}, the ledger {recorded}")


def agree_on_unit(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> bool:
    """Whether spec and ledger name one unit of protection; counts that differ become reasons.

    Raises:
        FieldError: the spec lacks a field.
    """
    _count_faults(spec, header, reasons)
    unit = fields.text(fields.mapping(spec, "privacy"), "unit")
    if unit != header.unit.name:
        reasons.append(f"unit: the spec says {unit}, the ledger {header.unit.name}")
    return unit == header.unit.name


def number_faults(numbers: Iterable[tuple[str, float, float | None]], reasons: list[str]) -> None:
    """Names, numbers of the spec and the ledger's numbers are the same."""
    for name, promised, noted in numbers:
        if differs(noted, promised):
            reasons.append(f"{name}: the spec says {promised:g}, the ledger {noted}")


def word_faults(words: Iterable[tuple[str, str, str | None]], reasons: list[str]) -> None:
    """Names, words of the spec and the ledger's words are the same."""
    for name, promised, noted in words:
        if promised != noted:
            reasons.append(f"{name}: the spec says {promised}, the ledger {noted}")


def target_fault(
    spec: Mapping[str, Any], ledger: Ledger, towards: str, reasons: list[str], why: str = ""
) -> None:
    """The epsilon claimed in a view does not exceed the spec's target, if it has one.

    Raises:
        FieldError: the claim lacks that epsilon.
    """
    privacy = fields.mapping(spec, "privacy")
    if privacy.get("target_epsilon") is None or ledger.claim is None:
        return
    target = fields.positive(privacy, "target_epsilon")
    if claimed_headline(fields.mapping(ledger.claim, towards)) > target * 1.005 + 1e-3:
        reasons.append(f"the claimed epsilon exceeds the promised target of {target:g}{why}")


def divisor_fault(
    rounds: Iterable[tuple[int, Any]], promised: float, what: str, reasons: list[str]
) -> None:
    """Noisy sums are divided by the public number, or else the sensitivity is another one.

    Args:
        rounds: number and evidence of every round, of any unit.
        promised: the public number.
        what: what is said of the first round in which something else was used.
        reasons: gets that.
    """
    for index, evidence in rounds:
        if np.any(np.abs(evidence.divisor / promised - 1.0) > EXACT):
            reasons.append(f"round {index}: {what}")
            break


def claimed_delta(ledger: Ledger, delta: float, reasons: list[str]) -> None:
    """There is a claim, and it is made at the header's δ."""
    if ledger.claim is None:
        reasons.append("there is no claim")
    elif differs(fields.number(ledger.claim, "delta"), delta):
        reasons.append("the claim's delta is not the header's")


def budget_faults(
    spec: Mapping[str, Any],
    ledger: Ledger,
    charged: Iterable[Sequence[Steps]],
    reasons: list[str],
) -> None:
    """Note where a budget is not the spec's, or the run alone spent more than it.

    Args:
        spec: the spec.
        ledger: the ledger, with a header.
        charged: what each client was charged; at client level all rounds, once.
        reasons: gets what is wrong.

    Raises:
        FieldError: the spec or the claim lacks a field, or has it wrong.
    """
    assert ledger.header is not None
    promised, noted = _promised(spec), ledger.header.budget
    if promised is None or noted is None:
        if promised is not noted:
            reasons.append("budget: only one of spec and ledger names one")
        return
    if differs(promised.epsilon, noted.epsilon) or differs(promised.delta, noted.delta):
        reasons.append("budget: the ledger's is not the spec's")
        return
    several = ledger.header.clients_per_person
    if several > 1:
        # Of a person at several clients, all of these were charged.
        charged = [together([tuple(history) for history in charged], several, noted.delta)]
    each = [budget(history, noted.delta) for history in charged]
    spent = partial(dearest, each)
    if understates(noted.epsilon, spent):
        reasons.append(
            f"budget: the run alone cost {spent(0):.5g} at delta = {noted.delta:g}, more than the "
            f"{noted.epsilon:g} that all runs may spend"
        )
    if ledger.claim is None:
        return
    stated = fields.mapping(ledger.claim, "budget")
    for name, due in (("epsilon", noted.epsilon), ("delta", noted.delta)):
        if name in stated and differs(fields.number(stated, name), due):
            reasons.append(f"budget: the claim's {name} is not the header's")
    if stated.get("charged") is None:
        return
    total = fields.number(stated, "charged", least=0.0)
    if understates(total, spent):
        reasons.append(f"budget: {total:.4g} is stated as charged to it, less than this run cost")
    if total > noted.epsilon:
        reasons.append(f"budget: {total:.4g} is charged to it, more than the {noted.epsilon:g}")


def _promised(spec: Mapping[str, Any]) -> SharedBudget | None:
    section = spec.get("budget")
    if section is None:
        return None
    section = fields.mapping(spec, "budget")
    if section.get("file") is None:
        return None
    return SharedBudget(fields.positive(section, "epsilon"), fields.positive(section, "delta"))


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
            _ended_at_the_target(spec, ledger, header, charged, reasons)
        return
    claimed = claimed_headline(fields.mapping(ledger.claim, towards))
    if claimed > noted * (1.0 + EXACT):
        reasons.append(f"the claimed epsilon exceeds max_epsilon, {noted:g}")
    if ledger.stopped is None:
        return
    # A run that was cut off also keeps to a target below its limit.
    if ledger.stopped.target_epsilon is not None and _target_below(spec, noted):
        _ended_at_the_target(spec, ledger, header, charged, reasons)
        return
    if differs(ledger.stopped.max_epsilon, noted):
        reasons.append(_ANOTHER)
    _early_end(ledger, header, f"max_epsilon, {noted:g}", noted, charged, reasons)


def _target_below(spec: Mapping[str, Any], limit: float) -> bool:
    privacy = fields.mapping(spec, "privacy")
    return (
        privacy.get("target_epsilon") is not None
        and fields.positive(privacy, "target_epsilon") < limit
    )


_ANOTHER = "the claim says that another limit on epsilon ended the run"


def _ended_at_the_target(
    spec: Mapping[str, Any],
    ledger: Ledger,
    header: Header,
    charged: Mapping[int, Sequence[Steps]],
    reasons: list[str],
) -> None:
    """A run that was cut off ended where the round charged again would have exceeded the target."""
    assert ledger.stopped is not None
    privacy = fields.mapping(spec, "privacy")
    if privacy.get("target_epsilon") is None or not ledger.resumes:
        reasons.append("the claim says that a limit on epsilon ended the run, but there is none")
        return
    target = fields.positive(privacy, "target_epsilon")
    if differs(ledger.stopped.target_epsilon, target):
        reasons.append(_ANOTHER)
    _early_end(ledger, header, f"target_epsilon, {target:g}", target, charged, reasons)


def _early_end(
    ledger: Ledger,
    header: Header,
    named: str,
    limit: float,
    charged: Mapping[int, Sequence[Steps]],
    reasons: list[str],
) -> None:
    """Note where a further round would not have exceeded the limit, for any client."""
    assert ledger.stopped is not None
    if not _exhausted(ledger, header, limit, charged):
        reasons.append(
            f"the run ended after {ledger.stopped.rounds} of {header.rounds} rounds, although a "
            f"further one would have kept to {named}"
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
    if header.client_sampling == "poisson" or header.clients_per_person > 1:
        # Who took part must not show in the end, or whose clients add up is not gone into: every
        # client counts as if it were in every round.
        most = most_spent(ledger, header)
        yield most.everything(begun + _repeated(ledger))
        return
    bound = header.spending_bound
    limit = header.adaptation.step_limit if header.adaptation else None
    queries = max(spend.queries_per_step for spend in ledger.spends)
    for client, records in enumerate(header.records):
        if not records:
            # Nothing of nobody can be lost, and no batch of it drawn.
            continue
        one = cost(
            header.sampling or "",
            bound.least_noise(begun - 1),
            queries,
            header.declared("expected_batch_size"),
            records,
            bound.most_local_steps,
            header.sampling_rate,
        )
        before = charged.get(client, queried(ledger))
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
