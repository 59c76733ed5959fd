"""What a run will claim, and what it may claim in the end, by the unit that it protects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpfedadamw import spec as specs
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting import calibration
from dpfedadamw.privacy.accounting import record_level as accounting
from dpfedadamw.privacy.accounting.client_level import client_level_claim
from dpfedadamw.privacy.accounting.record_level import ClientSpend
from dpfedadamw.privacy.plan import PrivacyPlan, make_plan
from dpfedadamw.spec import Spec


def realised_claim(plan: PrivacyPlan, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The claim that the ledger's entries support.

    Args:
        plan: The run's plan.
        entries: The ledger so far; every spend line counts, also those of repeated rounds.
    """
    if plan.unit == "none":
        return accounting.no_claim()
    if plan.unit == "client":
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        assert plan.delta is not None
        return client_level_claim(spends, len(plan.records), plan.delta)
    counted = plan.course.accounted(entries)
    return _record_level(plan, accounting.spends_from_ledger(counted))


def expected_claim(plan: PrivacyPlan) -> dict[str, Any]:
    """The claim of a run in which every client takes part in every round.

    At client level this concerns the server's view alone: towards a third party participation is
    part of the mechanism.

    Raises:
        PrivacyError: If the plan claims nothing.
    """
    if plan.unit == "none":
        raise PrivacyError(
            "privacy.unit: none: this spec claims no privacy, so there is no ε to compute"
        )
    if plan.unit == "client":
        return _expected_client_level(plan)
    spends = [
        ClientSpend(client, records, plan.rounds, plan.course.everything(plan.composition(client)))
        for client, records in enumerate(plan.records)
    ]
    return _record_level(plan, spends)


def _record_level(plan: PrivacyPlan, spends: Sequence[ClientSpend]) -> dict[str, Any]:
    assert plan.delta is not None
    return accounting.claim(
        spends,
        per_round=plan.composition(plan.smallest_client),
        share=plan.divisor(plan.smallest_client) / min(plan.records),
        clients=len(plan.records),
        clients_per_round=plan.clients_per_round,
        course=plan.course,
        delta=plan.delta,
        client_sampling=plan.client_sampling,
    )


def _expected_client_level(plan: PrivacyPlan) -> dict[str, Any]:
    assert plan.delta is not None
    by_clients = plan.noise_added_by == "clients"
    spend = {
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.participation,
        "noise_added_by": plan.noise_added_by,
        # One client stands for all: each is assumed to be in every round, with S-1 others.
        "clients": [0] if by_clients else [],
        "upload_noise_multiplier": plan.noise_multiplier / plan.clients_per_round**0.5,
    }
    return client_level_claim([spend] * plan.rounds, len(plan.records), plan.delta)


def solve_noise(spec: Spec, records: Sequence[int], queries_per_step: int) -> Spec:
    """Fill in the noise multiplier of a spec that gives a target ε instead.

    The target holds towards the server at record level, every client being in every round; towards
    a third party at client level.

    Args:
        spec: The spec; returned as it is where there is nothing to solve.
        records: R_i of each client.
        queries_per_step: What the local rule asks for on one batch.
    """
    privacy = spec.privacy
    if privacy.target_epsilon is None or privacy.noise_multiplier is not None:
        return spec
    provisional = specs.replace_noise_multiplier(spec, 1.0)
    plan = make_plan(provisional, tuple(records), queries_per_step)
    solved = calibration.solve_noise_multiplier(privacy.target_epsilon, plan.setting())
    return specs.replace_noise_multiplier(spec, solved)
