"""Whole clients as the unit of protection: a round is one subsampled Gaussian over clients."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dpfedadamw.accounting.calibration import PlannedRun
from dpfedadamw.accounting.client_level import (
    client_level_claim,
    server_compositions,
    third_party_compositions,
)
from dpfedadamw.accounting.epsilon_limit import (
    Rounds,
    Watch,
    rounds_that_fit,
    too_low,
)
from dpfedadamw.accounting.registry import check_epsilon, check_target, claimed, leading
from dpfedadamw.accounting.selection import trials_drawn
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.sampling import PoissonSampling
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import PrivacyUnit, RunPlan, plain_batches, private_fields
from dpfedadamw.vectors.sparsification import Sparsification


class WholeClients(PrivacyUnit):
    """Protects a client with all its records: its update is clipped, the sum of updates noised."""

    name: ClassVar[str] = "client"
    noises_updates: ClassVar[bool] = True
    # A mean that the server makes at once loses fewer bits to rounding than local steps do.
    grid: ClassVar[Grid | None] = Grid(update=16)

    def plan(
        self,
        spec: Spec,
        records: tuple[int, ...],
        queries_per_step: int,
        sparsification: Sparsification | None,
    ) -> RunPlan:
        """The plan of a spec, for clients of the given sizes."""
        plan = RunPlan(
            unit=self,
            sampling=plain_batches(spec),
            noise_added_by=spec.privacy.noise_added_by,
            sparsification=sparsification,
            **private_fields(spec, records, queries_per_step),
        )
        clients, delta = len(records), plan.claimed_delta
        if delta * clients >= 1.0:
            raise PrivacyError(
                f"privacy.delta: {delta:g} times the {clients} clients is {delta * clients:.3g}; a "
                "mechanism that publishes one client outright would satisfy this; use a delta "
                f"below {1.0 / clients:.2g}"
            )
        if plan.max_epsilon is not None and _rounds_that_fit(plan, plan.max_epsilon) < 1:
            raise too_low(plan.max_epsilon)
        return plan

    def realised_claim(self, plan: RunPlan, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The claim that the ledger's entries support."""
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        most = server_compositions([_most_of_a_round(plan)], plan.rounds).get(0)
        clients, delta = len(plan.records), plan.claimed_delta
        claim = client_level_claim(
            spends,
            clients,
            delta,
            most=most,
            selection=plan.tune.selection,
            trials=plan.trials,
            drawn=trials_drawn(entries),
        )
        return {**claim, **plan.ends_early(entries)}

    def expected_claim(self, plan: RunPlan, _dearest: int | None) -> dict[str, Any]:
        """The claim if every client is in every round, which concerns the server's view alone.

        Against a third party, participation is part of the mechanism. Against the server, an upload
        has less noise the more clients share it, and with independent draws all clients can take
        part in a round.
        """
        spends, clients = [_most_of_a_round(plan)], len(plan.records)
        return client_level_claim(
            spends,
            clients,
            plan.claimed_delta,
            _most_rounds(plan),
            selection=plan.tune.selection,
            trials=plan.trials,
        )

    def watch(self, plan: RunPlan, limit: float) -> Watch:
        """Says before each round whether it keeps to a limit on ε against a third party.

        A round costs the same for any participants, so the end is fixed before the run begins.
        """
        return Rounds(plan.spending_bound, _one_round(plan), limit, plan.claimed_delta, True)

    def check_cost(self, plan: RunPlan) -> None:
        """Refuse a plan whose ε is no guarantee against a reader that the claim covers."""
        spends, epsilon = [_most_of_a_round(plan)], leading()[0].epsilon
        rounds, delta = _most_rounds(plan), plan.claimed_delta
        third_party = epsilon(third_party_compositions(spends, rounds), delta)
        check_epsilon(third_party, "a third party")
        check_target(third_party, plan.target_epsilon, "a third party")
        for own in server_compositions(spends, rounds).values():
            check_epsilon(epsilon(own, delta), "the server")

    def planned_run(self, plan: RunPlan, _view: str) -> PlannedRun:
        """The plan as the solvers take it, against a third party.

        In its view, a round has the form that a record's step has in the server's view.
        """
        return PlannedRun(
            sampling=PoissonSampling(plan.clients_per_round),
            records=(len(plan.records),),
            noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds,
            local_steps=1,
            delta=plan.claimed_delta,
        )

    def epsilon_after(self, plan: RunPlan, rounds: int) -> float:
        """ε of so many rounds against a third party."""
        return replace(self.planned_run(plan, "third-party"), rounds=rounds).epsilon()

    def charged(self, plan: RunPlan) -> Hashable:
        """What a run is charged: its rounds and their noise; local steps cost nothing."""
        return (_one_round(plan), plan.rounds, len(plan.records), plan.noise_added_by)

    def check_target(self, view: str, solve: str) -> None:
        """Refuse what no number of the spec could keep to."""
        if view == "server":
            raise PrivacyError(
                "--view server: at client level the target holds against a third party, because "
                "sampling of clients does not help against the server; use --view third-party"
            )
        if solve in ("rate", "local-steps"):
            raise PrivacyError(
                f"--solve {solve}: at client level batches and local steps cost nothing; use "
                "--solve noise or --solve rounds"
            )

    def spent(self, claim: Mapping[str, Any], _view: str) -> float:
        """ε of an expected claim against a third party."""
        return claimed(claim["third_party"])

    def cost(self, plan: RunPlan) -> list[tuple[str, str]]:
        """Rows for a reader: what the plan's mechanism is."""
        deviation = plan.update_noise_standard_deviation / plan.clients_per_round
        rows = [
            ("noise on the mean update", f"standard deviation σC/S = {deviation:.4g}"),
            ("participation l", f"{plan.participation:.4g} per client and round"),
            ("rounds", str(plan.rounds)),
            ("records per client", f"{min(plan.records)} … {max(plan.records)}"),
        ]
        if sparse := plan.sparsification:
            kept = f"{sparse.kept} of {sparse.size} coordinates ({sparse.kind})"
            rows.append(("kept of an update", kept))
            rows.append(("noised of a sum", f"{sparse.released} coordinates"))
        return rows


def _rounds_that_fit(plan: RunPlan, limit: float) -> int:
    return rounds_that_fit(plan.spending_bound, _one_round(plan), limit, plan.claimed_delta)


def _one_round(plan: RunPlan) -> Composition:
    rate = plan.participation
    return Composition(plan.noise_multiplier, rate, 1, 1, "full" if rate == 1.0 else "poisson")


def _most_rounds(plan: RunPlan) -> int:
    """Rounds of a run that is not cut off."""
    return plan.rounds if plan.max_epsilon is None else _rounds_that_fit(plan, plan.max_epsilon)


def _most_of_a_round(plan: RunPlan) -> Mapping[str, Any]:
    """The spend line of a round with every client in it."""
    by_clients = plan.noise_added_by == "clients"
    return {
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.participation,
        "noise_added_by": plan.noise_added_by,
        # One client stands for all: each is assumed to be in every round, with all others.
        "clients": [0] if by_clients else [],
        "upload_noise_multiplier": plan.noise_multiplier / len(plan.records) ** 0.5,
    }
