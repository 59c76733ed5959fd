"""What is known of earlier rounds follows the ledger, and each of its lines is read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dpfedadamw.federation.rounds import ChargedRounds


class Counted(list[Mapping[str, Any]]):
    """Entries that count how often they are read."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        self.read += 1
        return super().__getitem__(place)


def spends(index: int, attempt: int, clients: int = 2) -> list[dict[str, Any]]:
    return [{"kind": "spend", "round": index, "attempt": attempt} for _ in range(clients)]


def over(index: int, *steps: int) -> dict[str, Any]:
    return {"kind": "round", "round": index, "steps": list(steps)}


def test_attempts_and_steps_are_those_of_the_ledger_as_it_grows():
    entries = Counted([{"kind": "header"}])
    charged = ChargedRounds(entries)
    assert (charged.attempts(0), charged.steps_before(0)) == (0, 0)
    entries += [*spends(0, 1), over(0, 5, 5)]
    assert (charged.attempts(0), charged.attempts(1), charged.steps_before(1)) == (1, 0, 5)
    # A round without clients takes no step.
    entries += [over(1), *spends(2, 1), {"kind": "resume"}, *spends(2, 2)]
    assert (charged.attempts(2), charged.steps_before(2)) == (2, 5)
    entries += [over(2, 3, 4)]
    assert [charged.steps_before(index) for index in (3, 1, 2, 3)] == [9, 5, 5, 9]


def test_a_round_that_was_repeated_counts_once_as_it_ended():
    entries = [*spends(0, 1), over(0, 5), *spends(1, 1), over(1, 7)]
    charged = ChargedRounds(entries)
    assert charged.steps_before(2) == 12
    entries += [{"kind": "resume"}, *spends(1, 2), over(1, 2)]
    assert (charged.attempts(1), charged.steps_before(2)) == (2, 7)


def charges(index: int, attempt: int, steps: int) -> list[dict[str, Any]]:
    return [{**spend, "steps": steps} for spend in spends(index, attempt)]


def test_steps_are_charged_by_round_and_attempt_and_once_for_all_clients():
    entries = [*charges(0, 1, 3), over(0, 9, 9), *charges(1, 1, 4)]
    charged = ChargedRounds(entries)
    assert [charged.steps_charged_for(index) for index in (0, 1, 2)] == [3, 4, None]
    assert charged.spent_steps() == ChargedRounds(entries).spent_steps() == 7
    # A round that is begun again was charged both times, and goes by the last.
    entries += [{"kind": "resume"}, *charges(1, 2, 2)]
    assert (charged.steps_charged_for(1), charged.spent_steps()) == (2, 9)
    # Clients that are protected as a whole are charged for no steps.
    entries += spends(2, 1)
    assert (charged.steps_charged_for(2), charged.spent_steps()) == (None, 9)


def test_a_round_that_is_not_over_has_no_steps():
    with pytest.raises(KeyError):
        ChargedRounds([over(0, 5)]).steps_before(2)


def test_a_line_is_read_once():
    entries = Counted()
    charged = ChargedRounds(entries)
    for index in range(50):
        charged.attempts(index)
        charged.steps_before(index)
        charged.steps_charged_for(index - 1)
        charged.spent_steps()
        entries += [*charges(index, 1, 1), over(index, 1)]
    charged.attempts(50)
    assert entries.read == len(entries)
