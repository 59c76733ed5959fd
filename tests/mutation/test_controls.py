"""Mutants that were noticed count once the tests pass without them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.mutation import __main__ as command
from tests.mutation.coverage_map import TestFile
from tests.mutation.mutants import mutants_of
from tests.mutation.warm import NOT_HERE

MODULE = "audit/errors.py"
SOURCE = b"\n".join(b"x%d = %d" % (number, number) for number in range(2, 26)) + b"\n"
LINES = {line: frozenset({0}) for line in range(1, 26)}
TESTS = TestFile("tests/audit/test_errors.py", ("a test",), (0.1,), {MODULE: LINES})


class Ended:
    """A process that ended at once."""

    def __init__(self, code):
        self.code = code

    def ended(self):
        return self.code

    def kill(self):
        """Nothing is left to kill."""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Try mutants whose tests fail with them, and from some try on without them, too."""
    module = tmp_path / MODULE
    module.parent.mkdir(parents=True)

    def run(count, counted, sound=10**6):
        begun = []

        def start(*_args, **_limits):
            changed = module.read_bytes() != SOURCE
            begun.append(changed)
            return Ended(1 if changed or len(begun) > sound else 0)

        warm = SimpleNamespace(ask=lambda _request: Ended(NOT_HERE), close=lambda: None)
        monkeypatch.setattr(command, "Warm", lambda *_args: warm)
        monkeypatch.setattr(command.processes, "start", start)
        try:
            command.run_mutants(
                [tmp_path],
                mutants_of(MODULE, SOURCE)[:count],
                {MODULE: SOURCE},
                [TESTS],
                most_seconds=10.0,
                minutes=None,
                done=counted.append,
            )
        finally:
            assert not module.exists() or module.read_bytes() == SOURCE
        return begun

    return run


@pytest.mark.parametrize("count", [1, 19, 20, 21, 40])
def test_tests_are_run_without_a_mutant_after_every_twenty_and_at_the_end(tried, count):
    counted = []
    begun = tried(count, counted)
    assert [result.outcome for result in counted] == [command.KILLED] * count
    # Those that were not changed.
    assert begun.count(False) == -(-count // command.NOTICED_UNCHECKED)


def test_where_tests_fail_without_a_mutant_nothing_counts_since_they_passed(tried):
    counted = []
    with pytest.raises(command.UntrustworthyError, match="the last 20 that were noticed"):
        tried(40, counted, sound=21)
    assert len(counted) == 20
