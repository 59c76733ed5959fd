"""Charges of rounds that were run again: the round was finished under the last one."""

from __future__ import annotations

from itertools import permutations

from audit.reading.ledger_lines import RoundSpend, Spend, last_round_spends, last_spends


def charge(attempt: int, client: int = 3, index: int = 1) -> Spend:
    """A charge whose noise tells the attempt."""
    return Spend(
        line=attempt,
        round=index,
        client=client,
        attempt=attempt,
        records=100,
        sampling="poisson",
        sampling_rate=0.1,
        expected_batch_size=10.0,
        clipping_norm=1.0,
        noise_multiplier=10.0 * client + attempt,
        steps=5,
        queries_per_step=1,
    )


def charge_of_round(attempt: int, index: int = 1) -> RoundSpend:
    return RoundSpend(
        line=attempt,
        round=index,
        attempt=attempt,
        sampling="poisson",
        sampling_rate=0.1,
        expected_clients=3.0,
        clipping_norm=1.0,
        noise_multiplier=float(attempt),
        noise_added_by="server",
        clients=(0, 3),
        upload_noise_multiplier=None,
    )


def test_of_several_attempts_at_a_clients_round_the_last_counts_in_whatever_order_they_stand():
    others = [charge(1, client=4), charge(1, index=2)]
    for attempts in permutations([charge(1), charge(2), charge(3)]):
        last = last_spends([*others, *attempts])
        assert last[(1, 3)].attempt == 3
        assert last[(1, 3)].noise_multiplier == 33.0
        assert last[(1, 4)].noise_multiplier == 41.0
        assert last[(2, 3)].attempt == 1
        assert len(last) == 3


def test_of_several_attempts_at_a_round_the_last_counts_in_whatever_order_they_stand():
    for attempts in permutations([charge_of_round(1), charge_of_round(2), charge_of_round(3)]):
        last = last_round_spends([charge_of_round(1, index=2), *attempts])
        assert {index: one.noise_multiplier for index, one in last.items()} == {1: 3.0, 2: 1.0}
