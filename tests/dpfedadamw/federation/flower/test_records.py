"""What Flower's records carry comes back as it was: broadcasts, uploads, and what is asked."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.flower.records import arrays_of, asked_of, config_of, message_of
from dpfedadamw.federation.stations import Asked
from dpfedadamw.vectors.packing import packed

pytestmark = pytest.mark.flower

MESSAGE = packed({"parameters": torch.arange(6.0), "counts": torch.tensor([3, 1])})
ASKED = Asked(
    round=2, attempt=3, client=5, place=1, cohort=4, local_steps=7, earlier_steps=21,
    learning_rate=0.375, noise_multiplier=1.0625, history=bytes(range(32)),
)  # fmt: skip


def test_a_message_is_arrays_by_name_and_comes_back_to_its_very_bytes():
    record = arrays_of(MESSAGE)
    assert set(record) == {"parameters", "counts"}
    assert record["parameters"].shape == (6,)
    assert message_of(record) == MESSAGE
    assert message_of(record, len(MESSAGE)) == MESSAGE


def test_an_upload_that_is_too_long_or_holds_no_array_is_refused():
    record = arrays_of(packed({"parameters": torch.zeros(1_000_000)}))
    with pytest.raises(ArrivalError, match="longer than the 10 bytes that it may have"):
        message_of(record, 10)
    record["parameters"].data = b"no array"
    with pytest.raises(ArrivalError, match="its upload holds"):
        message_of(record)


def test_what_is_asked_of_a_client_is_plain_values_and_comes_back():
    record = config_of(ASKED)
    assert dict(record) == {one.name: getattr(ASKED, one.name) for one in fields(Asked)}
    assert asked_of(record) == ASKED
