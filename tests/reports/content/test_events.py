"""The event tree is what was composed: an accountant that is fed with it finds the stated loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import pld_privacy_accountant

from reports.content import accounting
from reports.content.parts import plain
from reports.source import RunSource
from tests.reports.data import data_of

SIGMA, BATCH, ROUNDS, STEPS, DELTA = 2.8, 40.0, 20, 5, 1e-5


def record_run(**header: Any) -> RunSource:
    """The quickstart's ledger, of two clients; the loss is the one its real run claims."""
    sizes = [100, 160]
    queries = header.pop("queries", 1)
    kind = header.get("sampling", "poisson")
    spends = [
        {
            "kind": "spend",
            "client": client,
            "records": size,
            "sampling": kind,
            "expected_batch_size": BATCH,
            "noise_multiplier": SIGMA,
            "steps": STEPS,
            "queries_per_step": queries,
        }
        for client, size in enumerate(sizes)
        for _ in range(ROUNDS if client == 0 else 7)
    ]
    return RunSource(
        spec={},
        header={
            "unit": "record",
            "sampling": kind,
            "rounds": ROUNDS,
            "local_steps": STEPS,
            "noise_multiplier": SIGMA,
            "expected_batch_size": BATCH,
            "records": sizes,
            **header,
        },
        claim={
            "server": {"clients": [{"client": 0, "epsilon": {"pld": 7.0}}, {"client": 1,
                                                                       "epsilon": {"pld": 1.0}}]},
            "third_party": {"participation": 0.5},
        },
        rounds_completed=ROUNDS,
        spends=spends,
        participations=(ROUNDS, 7),
        metrics=[],
        audit=None,
        model={},
        hashes={},
        notes=(),
    )  # fmt: skip


def as_event(node: dict[str, Any]) -> dp_accounting.DpEvent:
    """The tree in dp-accounting's own classes."""
    inner = [as_event(child) for child in node["of"]]
    parameters = node["parameters"]
    if node["event"] == "gaussian":
        return dp_accounting.GaussianDpEvent(parameters["noise_over_sensitivity"])
    if node["event"] == "poisson-sampling":
        return dp_accounting.PoissonSampledDpEvent(parameters["rate"], inner[0])
    if node["event"] == "self-composition":
        return dp_accounting.SelfComposedDpEvent(inner[0], int(parameters["count"]))
    assert node["event"] == "composition"
    return dp_accounting.ComposedDpEvent(inner)


def epsilon(node: dict[str, Any]) -> float:
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(as_event(node))
    return float(accountant.get_epsilon(DELTA))


def roots(source: RunSource, internal: bool = True) -> dict[str, dict[str, Any]]:
    return {entry.view: plain(entry.root) for entry in accounting.trees(source, internal)}


def test_the_quickstarts_tree_composes_to_its_claim() -> None:
    """7.0812 is what the quickstart's ledger claims; the auditor accepts 0.5 % either way."""
    found = roots(record_run())
    assert epsilon(found["server_worst_case"]) == pytest.approx(7.0812, rel=5e-3)
    assert epsilon(found["server"]) == pytest.approx(7.0812, rel=5e-3)


def test_two_answers_on_one_batch_are_one_noisier_gaussian() -> None:
    leaf = roots(record_run(queries=2))["server_worst_case"]["of"][0]["of"][0]
    assert leaf["parameters"]["noise_over_sensitivity"] == pytest.approx(SIGMA / math.sqrt(2))
    assert "2 answers on one batch" in leaf["text"]


def test_a_replaced_record_counts_twice() -> None:
    found = roots(record_run(sampling="fixed-size"))["server_worst_case"]
    assert found["of"][0]["event"] == "sampling-without-replacement"
    assert found["of"][0]["of"][0]["parameters"]["noise_over_sensitivity"] == SIGMA / 2


def test_a_shuffled_record_is_in_one_batch_an_epoch() -> None:
    """100 records in batches of 40 are 3 batches: 5 steps begin 2 epochs, so 2 batches count."""
    found = roots(record_run(sampling="shuffled"))["server_worst_case"]
    assert found["parameters"]["count"] == 2 * ROUNDS
    assert found["of"][0]["event"] == "gaussian"


def test_the_third_partys_tree_mixes_over_participation() -> None:
    found = roots(record_run())["third_party"]
    assert found["event"] == "mixture"
    assert found["parameters"] == {"rounds": ROUNDS, "participation": 0.5}
    assert found["of"][0]["parameters"]["count"] == STEPS


def test_the_public_sees_no_tree_that_counts_participations() -> None:
    assert set(roots(record_run(), internal=False)) == {"server_worst_case", "third_party"}


@pytest.mark.parametrize(
    "header",
    [
        {"adaptation": {"follows_releases": True}},
        {"noise_multiplier": None},
        {"noise_multiplier": -2.8},
        {"expected_batch_size": -40.0},
        {"local_steps": -5},
        {"rounds": -20},
        {"rounds": "many"},
        {"records": []},
        {"sampling": "by hand"},
        {"unit": "none"},
    ],
)
def test_no_tree_is_made_up(header: dict[str, Any]) -> None:
    assert accounting.trees(record_run(**header), internal=True) == []


@pytest.mark.parametrize("junk", [None, 7, "x", [], {"clients": 3}])
def test_junk_in_the_ledger_gives_no_tree_and_no_error(junk: Any) -> None:
    source = record_run()
    for changed in (
        replace(source, claim={**source.claim, "server": junk}),
        replace(source, claim={**source.claim, "server": {"clients": [junk]}}),
        replace(source, spends=[{"client": 0, "steps": junk, "records": junk}]),
    ):
        accounting.trees(changed, internal=True)
        accounting.trees(
            replace(changed, header={**changed.header, "unit": "client"}), internal=True
        )


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
@pytest.mark.parametrize("number", [-1, 0, -1e300, 1e300, 5e-324, 10**400])
def test_a_number_that_no_run_has_gives_no_error(sampling: str, number: float) -> None:
    source = record_run(sampling=sampling)
    for key in source.header.keys() - {"unit", "sampling"}:
        accounting.trees(record_run(**{"sampling": sampling, key: number}), internal=True)
    for key in source.spends[0].keys() - {"kind", "sampling"}:
        spends = [{**line, key: number} for line in source.spends]
        accounting.trees(replace(source, spends=spends), internal=True)
        # A client that is charged what nobody can be charged has no tree that says so.
        if number < 0 and key in ("steps", "records", "noise_multiplier", "expected_batch_size"):
            assert "server" not in roots(replace(source, spends=spends))


@pytest.mark.parametrize("stated", [None, 0, -3, "many", True])
def test_a_charge_without_a_number_of_answers_is_of_one(stated: Any) -> None:
    assert roots(record_run(queries=stated)) == roots(record_run(queries=1))


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_client_level_rounds_are_sampled_gaussians(make_client_run: Any, noise: str) -> None:
    run = make_client_run(noise_added_by=noise)
    report = data_of(run)
    assert {entry["view"] for entry in report["accounting"]["events"]} <= {"server", "third_party"}


def test_client_level_trees_count_every_charged_round() -> None:
    spends = [
        {
            "noise_multiplier": 1.2,
            "sampling_rate": 0.3,
            "clients": [0, 1] if index < 4 else [1],
            "upload_noise_multiplier": 1.2 / math.sqrt(2 if index < 4 else 1),
        }
        for index in range(10)
    ]
    source = replace(
        record_run(),
        header={"unit": "client"},
        claim={"server": {"clients": [{"client": 1, "epsilon": {"pld": 9.0}}]}},
        spends=spends,
    )
    found = roots(source)
    assert found["third_party"]["parameters"]["count"] == 10
    assert found["third_party"]["of"][0]["parameters"]["rate"] == 0.3
    counts = [part["parameters"]["count"] for part in found["server"]["of"]]
    assert sorted(counts) == [4, 6]
    # Against a third party: the auditor's accountant and dp-accounting's agree on this tree.
    assert epsilon(found["third_party"]) > 0
    assert set(roots(source, internal=False)) == {"third_party"}
