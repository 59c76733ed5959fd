"""What a spec costs in privacy, and what keeps to a target, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfedadamw.api import specs
from dpfedadamw.api.tables import html_of
from dpfedadamw.spec import Spec

if TYPE_CHECKING:
    from dpfedadamw.run.frontier import Frontier


@dataclass(frozen=True)
class Cost:
    """What a run of a spec can spend at most.

    Attributes:
        epsilon: The ε that the run will claim at most (see `Run.epsilon`).
        delta: At this δ.
        noise_multiplier: σ, solved for the spec's target where it has one.
        claim: Every view, as ``epsilon --json`` prints it.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    claim: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        from dpfedadamw.accounting.registry import rounded_up

        rows = [("ε", rounded_up(self.epsilon)), ("δ", self.delta), ("σ", self.noise_multiplier)]
        return html_of((), rows)


@dataclass(frozen=True)
class Calibrated:
    """A spec that keeps to a target.

    Attributes:
        spec: What a YAML file of it would hold; `run` takes it as it is.
        key: The field that was solved for.
        value: Its value.
        epsilon: What the spec spends at most in the view that was asked for.
    """

    spec: dict[str, Any] = field(repr=False)
    key: str
    value: float
    epsilon: float


def epsilon(spec: specs.SpecLike, changes: Sequence[str] = ()) -> Cost:
    """Say what a spec will cost, as ``dpfedadamw epsilon``; every client takes part every round.

    Args:
        spec: A YAML file, a shipped spec's name, or what a YAML file would hold.
        changes: Fields to change, ``"federation.rounds=40"`` each.

    Raises:
        DpfedadamwError: If the spec is wrong, or claims no privacy, so that there is no cost.
    """
    from dpfedadamw.accounting.registry import claimed
    from dpfedadamw.experiment import foresee

    plan = foresee(specs.read(spec, changes))
    claim = plan.expected_claim(None)
    third = claim.get("view_headline") == "third-party"
    view = claim["third_party" if third else "server_worst_case"]
    return Cost(claimed(view), float(claim["delta"]), plan.noise_multiplier, claim)


def calibrate(
    spec: specs.SpecLike,
    target_epsilon: float,
    *,
    view: str = "server",
    solve: str = "noise",
    changes: Sequence[str] = (),
) -> Calibrated:
    """Find the noise, rounds, rate or local steps that keep to a target ε.

    Args:
        spec: A YAML file, a shipped spec's name, or what a YAML file would hold.
        target_epsilon: The ε to meet, at the spec's δ.
        view: Against whom it holds: "server" or "third-party".
        solve: What may change: "noise", "rounds", "rate" or "local-steps".
        changes: Fields to change first.

    Raises:
        DpfedadamwError: If the spec is wrong, or no value keeps to the target.
    """
    from dpfedadamw.errors import DpfedadamwError
    from dpfedadamw.run.calibrate import Solve, View
    from dpfedadamw.run.calibrate import calibrate as solve_for

    wanted: Spec = specs.read(spec, changes)
    for name, value, known in (("view", view, View), ("solve", solve, Solve)):
        if value not in list(known):
            raise DpfedadamwError(f"{name} {value!r}: must be one of {', '.join(known)}")
    found = solve_for(wanted, target_epsilon, View(view), Solve(solve))
    return Calibrated(found.spec.to_mapping(), found.key, found.value, found.epsilon)


def frontier(
    spec: specs.SpecLike,
    target_epsilon: float,
    *,
    view: str = "server",
    vary: Mapping[str, Sequence[Any]] | None = None,
    changes: Sequence[str] = (),
) -> Frontier:
    """Show rounds, local steps and batches against each other at the same ε.

    Args:
        spec: A YAML file, a shipped spec's name, or what a YAML file would hold.
        target_epsilon: The ε that every combination meets, at the spec's δ.
        view: Against whom it holds: "server" or "third-party".
        vary: Values by dotted key, ``{"federation.local_steps": [1, 5, 20]}``, every one with every
            other; by default numbers around the spec's own.
        changes: Fields to change first.

    Returns:
        Its `combinations` have each one's σ, noise, uploads and computed gradients; `refused` has
        what cannot be, with the reason.

    Raises:
        DpfedadamwError: If the spec is wrong, or no combination keeps to the target.
    """
    from dpfedadamw.errors import DpfedadamwError
    from dpfedadamw.run.calibrate import View
    from dpfedadamw.run.frontier import frontier as solve_all

    if view not in list(View):
        raise DpfedadamwError(f"view {view!r}: must be one of {', '.join(View)}")
    return solve_all(specs.read(spec, changes), target_epsilon, View(view), vary)
