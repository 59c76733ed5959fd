"""The auditor draws a spec's partition again, and finds the engine's, record by record."""

from __future__ import annotations

import numpy as np
import pytest

from audit.checks.shared.drawn_partition import drawn, training_rows
from audit.untrusted.fields import FieldError
from dpfedadamw import experiment
from tests.runs import small_spec

DIVISIONS = (
    "{kind: iid}",
    "{kind: iid, minimum_records: 287}",
    "{kind: shards, shards_per_client: 3}",
    "{kind: dirichlet, alpha: 1.0, minimum_records: 100}",
    # So uneven that no draw gives every client enough: the last one is levelled.
    "{kind: dirichlet, alpha: 0.02, minimum_records: 280}",
)


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("seed", [0, 5])
def test_the_partition_of_the_engine_is_drawn_again(division: str, seed: int) -> None:
    spec = small_spec(overrides=(f"data.partition={division}", f"data.seed={seed}"))
    dataset, owner = experiment.divide(spec)
    mapping = spec.to_mapping()
    assert np.array_equal(drawn(mapping, dataset.train.labels), owner)
    inputs = dataset.train.inputs
    assert np.array_equal(training_rows(mapping, len(inputs.values)), inputs.rows)
    other = {**mapping, "data": {**mapping["data"], "seed": seed + 1}}
    assert not np.array_equal(drawn(other, dataset.train.labels), owner)
    assert not np.array_equal(training_rows(other, len(inputs.values)), inputs.rows)


def test_what_the_data_name_themselves_is_not_drawn() -> None:
    data = {"clients": 3, "seed": 0, "test_fraction": None, "partition": {"kind": "column"}}
    assert drawn({"data": data}, np.zeros(9, np.int64)) is None
    assert training_rows({"data": data}, 9) is None


@pytest.mark.parametrize("missing", ["clients", "seed", "partition"])
def test_a_spec_without_what_is_needed_is_refused(missing: str) -> None:
    data = {"clients": 3, "seed": 0, "partition": {"kind": "iid", "minimum_records": 1}}
    del data[missing]
    with pytest.raises(FieldError, match=missing):
        drawn({"data": data}, np.zeros(9, np.int64))
