"""Messages: what was packed comes back, and its length is what is counted."""

from __future__ import annotations

import torch

from dpfedadamw.federation.messages import pack, unpack


def test_a_message_carries_vector_and_state_unchanged():
    vector = torch.randn(10, dtype=torch.float64)
    state = {"second_moment": torch.rand(3), "global_update": torch.randn(10)}
    again, states = unpack(pack(vector, state), vector)
    assert torch.equal(again, vector)
    assert set(states) == set(state)
    assert all(torch.equal(states[name], state[name]) for name in state)


def test_block_means_cost_their_number_and_full_aggregation_doubles_the_upload():
    vector = torch.zeros(100_000)
    plain = len(pack(vector, {}))
    blocks = len(pack(vector, {"second_moment": torch.zeros(12)}))
    full = len(pack(vector, {"second_moment": torch.zeros(100_000)}))
    assert plain < blocks < plain + 12 * 4 + 200
    assert abs(full - 2 * plain) < 400
