"""Spoilt and extreme specs: each command answers in order, soon, and in little memory."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.limits import MOST_BYTES, MOST_SECONDS, address_space, measured
from tests.runs import call
from tests.specs.mutations import mutated

COMMANDS = (("spec", "validate"), ("spec", "show"), ("epsilon",))


def answer(seeds: range, folder: Path, capsys) -> None:
    """Hand spoilt specs to the commands that read one; what is refused once is refused always."""
    spec = folder / "spoilt.yaml"
    for seed in seeds:
        rng = random.Random(seed)
        done, content = mutated(rng)
        spec.write_bytes(content)
        codes: list[int] = []
        for command in COMMANDS:
            if codes and codes[0] == 2 and rng.random() < 0.9:
                break
            capsys.readouterr()
            with measured() as spent:
                codes.append(call(*command, str(spec), "--json"))
            printed = capsys.readouterr()
            told = (seed, done, command, printed.err[-1000:])
            assert codes[-1] in (0, 2), told
            # What the data refuse (a batch larger than a client) can still be shown.
            assert codes[-1] == 2 or codes[0] == 0 or command == ("spec", "show"), told
            assert "Traceback" not in printed.out + printed.err, told
            assert bool(printed.err) == (codes[-1] == 2), told
            assert "Warning" not in printed.err, told
            found = json.loads(printed.out, parse_constant=pytest.fail)
            if codes[-1] == 2:
                assert printed.err.splitlines() == found["error"]["messages"], told
            assert spent.seconds < MOST_SECONDS, (told, spent)
            assert spent.bytes < MOST_BYTES, (told, spent)
    assert [entry.name for entry in folder.iterdir()] == ["spoilt.yaml"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_ten_spoilt_specs_are_answered_readably(first, tmp_path, capsys):
    with address_space(3 * 2**30):
        answer(range(first, first + 10), tmp_path, capsys)


@pytest.mark.slow
def test_five_thousand_spoilt_specs_are_answered_readably(tmp_path, capsys):
    with address_space(3 * 2**30):
        answer(range(10_000, 15_000), tmp_path, capsys)
