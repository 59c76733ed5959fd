"""Every combination of unit, sampler, adjacency and client sampling runs, or is refused clearly."""

from __future__ import annotations

import itertools

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.units.registry import make_plan

KINDS = {
    "poisson": "{kind: poisson, expected_batch_size: 20}",
    "fixed": "{kind: fixed, batch_size: 20}",
    "shuffled": "{kind: shuffled, batch_size: 20}",
    "full": "{kind: full}",
}
ADJACENCIES = (None, "add-remove", "replace-one")
COHORTS = (None, "fixed", "poisson")
RIGHT = {"poisson": "add-remove", "fixed": "replace-one", "shuffled": "replace-one"}
RECORDS = (100, 150, 200)


def text(unit: str, kind: str, adjacency: str | None, cohort: str | None) -> str:
    budget = {
        "record": "clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, ",
        "client": "clipping_norm: 1.0, noise_multiplier: 2.0, delta: 0.01, ",
        "none": "",
    }[unit]
    near = f"adjacency: {adjacency}, " if adjacency else ""
    drawn = f", client_sampling: {cohort}" if cohort else ""
    return (
        "data: {dataset: digits, clients: 3}\n"
        "model: {name: mlp}\n"
        f"algorithm: {{name: {'fedavg' if unit == 'none' else 'dp-fedavg'}}}\n"
        f"federation: {{rounds: 4, clients_per_round: 2, local_steps: 7{drawn}}}\n"
        f"privacy: {{unit: {unit}, {budget}{near}sampling: {KINDS[kind]}}}\n"
    )


def faults(unit: str, kind: str, adjacency: str | None, cohort: str | None) -> set[str]:
    """The keys that are wrong, by the rules of the documentation."""
    wrong = set()
    allowed = RIGHT if unit == "record" else ("full", "shuffled")
    if kind not in allowed:
        wrong.add("privacy.sampling.kind")
    elif unit == "record" and (adjacency or "add-remove") != RIGHT[kind]:
        wrong.add("privacy.adjacency")
    if unit == "client" and adjacency == "replace-one":
        wrong.add("privacy.adjacency")
    if unit == "none" and adjacency:
        wrong.add("privacy.adjacency")
    if unit == "client" and cohort == "fixed":
        wrong.add("federation.client_sampling")
    return wrong


@pytest.mark.parametrize("unit", ["record", "client", "none"])
def test_every_pairing_is_run_as_it_says_or_refused_in_one_line_for_each_fault(unit: str) -> None:
    for kind, adjacency, cohort in itertools.product(KINDS, ADJACENCIES, COHORTS):
        wrong = faults(unit, kind, adjacency, cohort)
        try:
            spec = specs.loads(text(unit, kind, adjacency, cohort))
        except SpecError as error:
            # A key that only another sampler has is a consequence, and follows the sampler's.
            named = {one.path for one in error.problems if "batch_size" not in one.path}
            assert named == wrong, (kind, adjacency, cohort)
            for problem in error.problems:
                assert "\n" not in str(problem)
                assert (
                    "must be" in str(problem) or "use " in str(problem) or "remove" in str(problem)
                )
            continue
        assert not wrong, (kind, adjacency, cohort)
        plan = make_plan(spec, RECORDS, 1)
        by_chance = unit == "client" or cohort == "poisson"
        assert plan.client_sampling == ("poisson" if by_chance else "fixed-size")
        assert spec.federation.client_sampling == ("poisson" if by_chance else "fixed")
        if unit == "record":
            assert plan.composition(0).adjacency == plan.adjacency == RIGHT[kind]


def test_a_batch_larger_than_the_smallest_client_is_refused_for_every_sampler() -> None:
    for kind in RIGHT:
        spec = specs.loads(text("record", kind, RIGHT[kind], None))
        with pytest.raises(Exception, match="20 exceeds the 19 records of client 1"):
            make_plan(spec, (100, 19), 1)
