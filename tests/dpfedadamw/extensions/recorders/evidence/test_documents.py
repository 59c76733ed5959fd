"""The texts of a recording: its spec, the lines of its ledger, its claim."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from dpfedadamw import __version__
from dpfedadamw.extensions.recorders.evidence import Stated
from dpfedadamw.extensions.recorders.evidence.documents import (
    as_json,
    claim_of,
    header_of,
    size_of,
    spec_of,
    spend_of,
)
from tests.dpfedadamw.extensions.recorders.evidence.small_loop import (
    TENSORS,
    charge_of,
    loop_of,
)

SPEC: dict[str, Any] = {
    "version": 1,
    "recorded": "mine 2.1",
    "name": "my-loop",
    "description": "A training loop of mine 2.1, recorded.",
    "data": {"dataset": "of the loop", "clients": 1},
    "algorithm": {"name": "mine, sgd", "mode": "by hand"},
    "privacy": {
        "unit": "record",
        "adjacency": "add-remove",
        "clipping_norm": 5.0,
        "noise_multiplier": 2.0,
        "delta": 1e-3,
        "sampling": {"kind": "poisson", "expected_batch_size": 10.0, "rate": 0.25},
    },
    "randomness": {"mode": "release", "generator": "a die"},
}


def test_the_spec_of_a_recording_is_what_its_loop_declares() -> None:
    assert list(yaml.safe_load(spec_of("my-loop", loop_of(), charge_of())).items()) == [
        *SPEC.items()
    ]
    other = loop_of(unit="client", sampling="fixed-size", producer="männlich")
    found = yaml.safe_load(text := spec_of("my-loop", other, charge_of()))
    assert found["privacy"] == {
        **SPEC["privacy"],
        "unit": "client",
        "adjacency": "replace-one",
        "sampling": {"kind": "fixed", "expected_batch_size": 10.0, "rate": 0.25},
    }
    assert "recorded: männlich 2.1".encode() in text


# The list of tensors as text, in the order of its keys.
LISTED = (
    '[{"dtype":"F32","name":"a","shape":[2],"trained":true},'
    '{"dtype":"F32","name":"b","shape":[1,1],"trained":true},'
    '{"dtype":"F32","name":"frozen","shape":[2,3],"trained":false}]'
)
HEADER: dict[str, Any] = {
    "format": 1,
    "run": "my-loop-1",
    "package": __version__,
    "created": "2024-02-03T04:05:06Z",
    "unit": "record",
    "producer": {
        "name": "mine",
        "version": "2.1",
        "mode": "by hand",
        "optimizer": "sgd",
        "generator": "a die",
        "secure": True,
    },
    "adjacency": "add-remove",
    "delta": 1e-3,
    "clients": 1,
    "clients_per_round": 1,
    "client_sampling": "fixed-size",
    "records": [40],
    "sampling": "poisson",
    "expected_batch_size": 10.0,
    "sampling_rate": 0.25,
    "clipping_norm": 5.0,
    "noise_multiplier": 2.0,
    "precision": "float32",
    "randomness": "release",
    "qualifications": [],
    "parameters": 3,
    "tensors_sha256": hashlib.sha256(LISTED.encode()).hexdigest(),
}


def header(tensors: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    created = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
    return header_of("my-loop-1", created, loop_of(**changes), charge_of(), tensors)


def test_the_header_of_a_ledger_says_what_is_recorded_and_what_its_first_step_costs() -> None:
    tensors = [dict(one) for one in TENSORS]
    assert header(tensors) == HEADER
    assert header(tensors, sampling="fixed-size", unit="client", mechanism="laplace") == {
        **HEADER,
        "sampling": "fixed-size",
        "adjacency": "replace-one",
        "unit": "client",
        "producer": {**HEADER["producer"], "mechanism": "laplace"},
    }
    # A name that is not of ASCII stands as it is.
    text = '[{"name":"größe"}]'.encode()
    found = header([{"name": "größe"}])["tensors_sha256"]
    assert found == hashlib.sha256(text).hexdigest()


def test_the_charge_of_a_step_says_what_it_costs() -> None:
    assert spend_of(charge_of(), loop_of(sampling="fixed-size")) == {
        "client": 0,
        "attempt": 1,
        "records": 40,
        "sampling": "fixed-size",
        "sampling_rate": 0.25,
        "rate_stated": True,
        "expected_batch_size": 10.0,
        "clipping_norm": 5.0,
        "noise_multiplier": 2.0,
        "steps": 1,
        "queries_per_step": 1,
    }


@pytest.mark.parametrize(
    ("stated", "view"),
    [
        (Stated(epsilon=3, accountant="rdp"), {"accountant": "rdp", "epsilon": {"rdp": 3.0}}),
        (Stated(epsilon=0.0, accountant="prv"), {"accountant": "prv", "epsilon": {"prv": 0.0}}),
        (Stated(epsilon=None, accountant="rdp"), {}),
        (Stated(epsilon=math.inf, accountant="rdp"), {}),
        (Stated(epsilon=math.nan, accountant="rdp"), {}),
    ],
)
def test_a_claim_has_the_epsilon_that_is_stated_if_there_is_one(
    stated: Stated, view: dict[str, Any]
) -> None:
    found = claim_of(stated, 1e-3, "add-remove", "record")
    assumptions = found.pop("assumptions")
    assert found == {
        "view_headline": "server",
        "delta": 1e-3,
        "adjacency": "add-remove",
        "server": view,
        "third_party": view,
    }
    assert len(assumptions) == 4
    assert any("differ in one record" in one for one in assumptions)


def test_a_claim_on_clients_assumes_nothing_of_single_records_and_keeps_the_history() -> None:
    stated = Stated(epsilon=1.0, accountant="rdp", history=[(2, 1, 7), (1.5, 0.5, 3)])
    found = claim_of(stated, 1e-3, "replace-one", "client")
    assert found["accountant_history"] == [[2.0, 1.0, 7], [1.5, 0.5, 3]]
    assert found["adjacency"] == "replace-one"
    assert len(found["assumptions"]) == 4
    assert any("differ in one client" in one for one in found["assumptions"])
    assert not any("private records" in one for one in found["assumptions"])


def test_what_a_pause_keeps_of_a_statement_makes_the_same_statement_again() -> None:
    assert as_json(Stated(epsilon=3.0, accountant="rdp")) == {
        "epsilon": 3.0,
        "accountant": "rdp",
        "history": None,
    }
    stated = Stated(epsilon=None, accountant="prv", history=[(2.0, 0.5, 7)])
    assert as_json(stated)["history"] == [[2.0, 0.5, 7]]


def test_a_model_has_the_parameters_of_all_its_tensors_frozen_ones_and_single_numbers_included(
) -> None:  # fmt: skip
    assert size_of(TENSORS) == 2 + 1 + 6
    assert size_of([{"shape": []}, {"shape": [0, 3]}]) == 1
