"""What is wrong with the data, before anything of a run is computed again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.filing.replaying import Order, _data_faults
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.reexecution.history import Keys

OTHER = "the records' contents are not those that the ledger's header committed to"
OTHERS = "whom the records are about is not what the ledger's header committed to"


@pytest.mark.parametrize(
    ("header", "faults"),
    [
        ({}, []),
        ({"contents_sha256": "a" * 64}, []),
        ({"contents_sha256": "b" * 64}, [OTHER]),
        ({"people_sha256": "c" * 64}, []),
        ({"people_sha256": "d" * 64}, [OTHERS]),
    ],
)
def test_contents_that_were_committed_to_are_computed_again_from_the_data(
    header: dict[str, str], faults: list[str]
) -> None:
    rerun: Any = SimpleNamespace(
        ledger=SimpleNamespace(header=header),
        experiment=None,
        contents_digest=lambda: "a" * 64,
        people_digest=lambda: "c" * 64,
        same_counts=lambda: True,
    )
    order = Order(keys=Keys(lambda _: ReproducibleRandomness(0)), count=1, seed=bytes(32), salts={})
    assert list(_data_faults(rerun, order)) == faults
