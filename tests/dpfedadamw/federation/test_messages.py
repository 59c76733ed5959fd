"""Messages: what was packed comes back, and its length is what is counted."""

from __future__ import annotations

import warnings

import pytest
import torch

from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.errors import PrivacyError
from dpfedadamw.federation.messages import (
    pack,
    pack_update,
    refuse_changes,
    unpack,
    unpack_update,
    view,
)
from dpfedadamw.profiling import profiled
from dpfedadamw.vectors.packing import views
from tests.runs import small_spec, train


def test_a_message_carries_vector_and_state_unchanged():
    vector = torch.randn(10, dtype=torch.float64)
    state = {"second_moment": torch.rand(3), "global_update": torch.randn(10)}
    again, states = unpack(pack(vector, state), vector)
    assert torch.equal(again, vector)
    assert set(states) == set(state)
    assert all(torch.equal(states[name], state[name]) for name in state)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.bool])
def test_a_view_of_a_message_is_what_unpacking_gives(kind):
    vector, state = torch.randn(9), {"kept": torch.arange(3) > 1, "none": torch.zeros(0, 4)}
    message = pack(vector, {name: value.to(kind) for name, value in state.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen, tensors = view(message, vector)
    again, unpacked = unpack(message, vector)
    assert torch.equal(seen, again)
    assert set(tensors) == set(unpacked)
    for name, value in tensors.items():
        assert value.dtype == kind
        assert torch.equal(value, unpacked[name])


def test_what_a_client_unpacks_is_its_own_and_a_view_is_not():
    message = pack(torch.ones(4), {})
    unpack(message, torch.ones(4))[0].zero_()
    seen, _ = view(message, torch.ones(4))
    assert torch.equal(seen, torch.ones(4))
    assert seen.data_ptr() == view(message, torch.ones(4))[0].data_ptr()


def test_who_writes_into_a_view_is_told_which_tensor_it_was():
    parameters, state = view(pack(torch.ones(4), {"moment": torch.ones(6)}), torch.ones(4))
    read = {"parameters": parameters, **state}
    # Reading, copying and looking at a part of it change nothing.
    parameters.clone().add_(state["moment"][:4])
    refuse_changes(read)
    state["moment"][2:].mul_(2.0)
    with pytest.raises(PrivacyError, match=r"wrote into 'moment' of the broadcast"):
        refuse_changes(read)


def test_a_rule_that_writes_into_the_broadcast_ends_the_run(tmp_path, monkeypatch):
    run = AdamW.run

    def writes(self, broadcast, oracle, observer):
        upload = run(self, broadcast, oracle, observer)
        broadcast.parameters.add_(upload.update)
        return upload

    monkeypatch.setattr(AdamW, "run", writes)
    spec = small_spec("dp-fedadamw", rounds=1, clients_per_round=2)
    with pytest.raises(PrivacyError, match=r"wrote into 'parameters' of the broadcast"):
        train(spec, tmp_path)


def test_block_means_cost_their_number_and_full_aggregation_doubles_the_upload():
    vector = torch.zeros(100_000)
    plain = len(pack(vector, {}))
    blocks = len(pack(vector, {"second_moment": torch.zeros(12)}))
    full = len(pack(vector, {"second_moment": torch.zeros(100_000)}))
    assert plain < blocks < plain + 12 * 4 + 200
    assert abs(full - 2 * plain) < 400


def test_a_named_update_comes_back_and_is_shorter_where_that_is_true():
    update = torch.zeros(1000)
    update[[3, 500, 999]] = torch.tensor([1.0, -2.0, 3.0])
    for kept in (3, 100, 499):
        message = pack_update(update, kept)
        assert torch.equal(unpack_update(message, 1000, update), update)
        # A float32 and an int32 each, beside the names of two tensors.
        assert len(message) - 8 * kept < 200
    # From half of the coordinates on, naming them would make the message longer.
    for dense in (500, 1000, None):
        message = pack_update(update, dense)
        assert torch.equal(unpack_update(message, 1000, update), update)
        assert len(message) == len(pack(update, {}))


def test_how_long_an_update_is_depends_on_no_value():
    update = torch.zeros(1000)
    silent = len(pack_update(update, 50))
    update[torch.randperm(1000)[:50]] = torch.randn(50) * 1e30
    assert len(pack_update(update, 50)) == silent


def test_tensors_of_a_message_have_the_names_by_which_an_auditor_knows_them():
    update = torch.zeros(100)
    update[7] = 2.0
    named = views(pack(update, {"moment": torch.ones(2)}))
    assert list(named) == ["parameters", "state.moment"]
    sparse = views(pack_update(update, 3))
    assert set(sparse) == {"parameters", "state.coordinates"}
    assert (sparse["state.coordinates"].dtype, len(sparse["parameters"])) == (torch.int32, 3)


def test_the_time_of_messages_is_told_as_theirs():
    update = torch.zeros(100)
    message, sparse = pack(update, {}), pack_update(update, 3)
    for work in (
        lambda: pack(update, {}),
        lambda: unpack(message, update),
        lambda: pack_update(update, 3),
        lambda: unpack_update(sparse, 100, update),
    ):
        with profiled() as profile:
            work()
        assert set(profile.seconds) == {"other", "messages"}
