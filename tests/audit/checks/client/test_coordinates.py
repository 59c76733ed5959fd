"""Whole clients: public coordinates are the same for all, and nothing lies elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from audit.checks.client import coordinates as module
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger_lines import Sparsification
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_client_run import ClientSettings, build_client_run

Document = dict[str, Any]


def coordinates(bundle: Bundle) -> tuple[str, str]:
    return says(bundle, "coordinates")


def test_a_run_without_public_coordinates_names_none(of_clients: Bundle) -> None:
    found = judged(of_clients, "coordinates")
    assert found.verdict.value == "NOT APPLICABLE"
    assert found.measurement.startswith("updates are released whole: there is no public choice")
    assert found.details == {"kind": None, "kept": 340, "parameters": 340}
    private = changed(
        of_clients, header={"sparsification": Sparsification("local-top", 340, 170, 0)}
    )
    found = judged(private, "coordinates")
    assert found.measurement.startswith("each client chose its own coordinates, which stay private")
    assert found.details == {"kind": "local-top", "kept": 170, "parameters": 340}
    for run in (of_clients, private):
        named = changed(run, evidence={3: {"kept_digest": bytes(32)}})
        assert coordinates(named) == (
            "FAIL",
            "round 3: names kept coordinates, of which the ledger says nothing",
        )


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run whose updates are cut to public coordinates."""
    path = tmp_path_factory.mktemp("sparse") / "run"
    return open_bundle(build_client_run(path, ClientSettings(sparsification="random", rounds=4)))


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        ({"kept_digest": None}, "NOT VERIFIED", "the coordinates that were kept are not recorded"),
        (
            {"upload_kept_digests": None},
            "NOT VERIFIED",
            "the coordinates that were kept are not recorded",
        ),
        (
            {"elsewhere_sum_squares": None},
            "NOT VERIFIED",
            "what was released elsewhere is not recorded",
        ),
        (
            {"kept_digest": bytes(32)},
            "FAIL",
            "the server read other coordinates than the public ones",
        ),
        (
            {"upload_kept_digests": (bytes(32),)},
            "FAIL",
            "a client kept other coordinates than the public ones",
        ),
        (
            {"elsewhere_sum_squares": 1e-300},
            "FAIL",
            "the release is not 0 off the public coordinates",
        ),
    ],
)
def test_public_coordinates_are_the_same_for_all_and_nothing_lies_elsewhere(
    sparse: Bundle, change: Document, verdict: str, said: str
) -> None:
    assert coordinates(sparse)[0] == "PASS"
    assert judged(sparse, "coordinates").details == {
        "kind": "random",
        "kept": 170,
        "parameters": 340,
    }
    assert coordinates(changed(sparse, evidence={1: change})) == (verdict, f"round 1: {said}")


@pytest.mark.parametrize(
    ("kind", "source"),
    [("random", "seed and round"), ("released-top", "seed, round and last release")],
)
def test_a_pass_names_what_the_public_coordinates_follow_from(
    sparse: Bundle, kind: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rounds_with_choices", lambda *_: ())
    run = changed(sparse, header={"sparsification": Sparsification(kind, 340, 170, 0)})
    assert coordinates(run) == (
        "PASS",
        "in all 4 rounds server and every client kept the 170 of 340 coordinates that follow from "
        f"{source}; the release is exactly 0 elsewhere",
    )
