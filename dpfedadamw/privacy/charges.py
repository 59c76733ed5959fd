"""A round is charged what its plan does: the ledger's lines come from the plan that also acts.

They are written before the round begins (`ledger`), so that no noise exists which nobody paid for.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpfedadamw.privacy.histograms import SENSITIVITY
from dpfedadamw.privacy.plan import PrivacyPlan


def charges_of_records(
    plan: PrivacyPlan, round_index: int, attempt: int, clients: Sequence[int]
) -> list[dict[str, object]]:
    """One line for each client of a round in which gradients are noised.

    Args:
        plan: The plan of this round.
        round_index: t, from 0.
        attempt: How often the round has been begun, this time included, from 1.
        clients: The clients of the round.
    """
    return [
        {
            "round": round_index,
            "client": client,
            "attempt": attempt,
            "records": plan.records[client],
            "sampling": plan.sampling.event_kind,
            "sampling_rate": plan.sampling_rate(client),
            **({"rate_stated": True} if plan.stated_rate is not None else {}),
            "expected_batch_size": plan.divisor(client),
            "clipping_norm": plan.clipping_norm,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.local_steps,
            "queries_per_step": plan.queries_per_step,
        }
        for client in clients
    ]


def charges_of_columns(plan: PrivacyPlan) -> list[dict[str, object]]:
    """One line for each client, whose histograms of columns are noised before the first round.

    Args:
        plan: The run's plan, which has such queries.
    """
    queries = plan.column_queries
    assert queries is not None
    return [
        {
            "client": client,
            "attempt": 1,
            "records": records,
            "columns": list(queries.columns),
            "bins": list(queries.bins),
            "sensitivity": SENSITIVITY,
            "noise_multiplier": queries.noise_multiplier,
        }
        for client, records in enumerate(plan.records)
    ]


def charge_of_updates(
    plan: PrivacyPlan, round_index: int, attempt: int, clients: Sequence[int]
) -> dict[str, object]:
    """The one line of a round in which whole updates are noised; an empty round is charged too.

    Args:
        plan: The plan of this round.
        round_index: t, from 0.
        attempt: How often the round has been begun, this time included, from 1.
        clients: The clients of the round, of whom there may be none.
    """
    shared = plan.noise_added_by == "clients" and clients
    return {
        "round": round_index,
        "attempt": attempt,
        "unit": "client",
        "sampling": "poisson",
        "sampling_rate": plan.participation,
        "expected_clients": plan.clients_per_round,
        "clipping_norm": plan.clipping_norm,
        "noise_multiplier": plan.noise_multiplier,
        "noise_added_by": plan.noise_added_by,
        "clients": list(clients),
        "upload_noise_multiplier": (
            plan.noise_multiplier / len(clients) ** 0.5 if shared else None
        ),
    }
