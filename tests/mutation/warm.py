"""Mutants inside functions, tried in a process that has collected the tests and forks for each.

Importing the project and collecting tests takes a second or three, most tests milliseconds. What
is changed inside a function can be put in the function's place after both are done, as long as
nothing has called it by then. All other mutants (bounds, tables, defaults, registrations, what
runs while modules are imported) need a process that imports the changed module: `processes`.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

from tests.mutation import processes
from tests.mutation.selection import dotted

NOT_HERE: Final = 99
"""Exit code: this mutant cannot be tried in a process that has imported its module."""

_ENDED: Final = "the process that collects the tests has ended"


def changed_functions(before: bytes, after: bytes) -> list[tuple[CodeType, CodeType]] | None:
    """Return the code of each function that an edit of a module changes, as it was and as it is.

    None where the edit changes what runs while the module is imported.
    """
    pairs: list[tuple[CodeType, CodeType]] = []
    old, new = (compile(text, "module", "exec", dont_inherit=True) for text in (before, after))
    return pairs if _only_functions_differ(old, new, pairs) else None


def _only_functions_differ(
    old: CodeType, new: CodeType, pairs: list[tuple[CodeType, CodeType]]
) -> bool:
    """Collect the functions that differ; return whether nothing else does."""
    is_function = bool(old.co_flags & inspect.CO_OPTIMIZED)
    if is_function and old != new:
        pairs.append((old, new))
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    as_many = len(inner[0]) == len(inner[1])
    if not is_function:
        plain = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (old, new)]
        same = old.co_code == new.co_code and old.co_names == new.co_names
        if not same or not as_many or repr(plain[0]) != repr(plain[1]):
            return False
    elif not as_many:
        # Which of its functions is which is not known; they are made again whenever it is called.
        return True
    return all(_only_functions_differ(*both, pairs) for both in zip(*inner, strict=True))


def _lines(code: CodeType) -> set[int]:
    """Return the lines of a function, with those of the functions in it."""
    found = {line for _, _, line in code.co_lines() if line is not None}
    return found.union(*(_lines(c) for c in code.co_consts if isinstance(c, CodeType)))


class Warm:
    """A process that has collected the tests of a copy of the sources.

    Args:
        tree: the copy.
        test_files: the files whose tests it collects.
    """

    def __init__(self, tree: Path, test_files: Sequence[str]) -> None:
        asked, self._asking = os.pipe()
        self._answers, answering = os.pipe()

        def work() -> int:
            os.close(self._asking)
            os.close(self._answers)
            with os.fdopen(asked, "rb") as requests, os.fdopen(answering, "wb", 0) as answers:
                return _serve(tree, test_files, requests, answers)

        unlimited = 10**7
        self._process = processes.start(
            tree, work, tree / ".warm", cpu_seconds=unlimited, wall_seconds=unlimited
        )
        os.close(asked)
        os.close(answering)
        # Until it has imported the modules, none of them may be changed.
        if not os.read(self._answers, 64):
            raise RuntimeError(_ENDED)
        os.set_blocking(self._answers, False)

    def ask(self, request: Request) -> Asked:
        """Begin to try a mutant; one at a time."""
        os.write(self._asking, json.dumps(request.__dict__).encode() + b"\n")
        return Asked(self._answers, self._process)

    def close(self) -> None:
        """End the process."""
        os.close(self._asking)
        self._process.kill()
        os.waitpid(self._process.identifier, 0)
        os.close(self._answers)


@dataclass(frozen=True)
class Request:
    """A mutant and the tests to try on it.

    Attributes:
        module: path of the module, relative to the root, which holds the mutant already.
        before: the module as it was.
        first, last: lines of the statement that is changed.
        tests: node identifiers, in the order in which they are run until one fails.
        cpu_seconds, wall_seconds: limits, as of `processes.start`.
    """

    module: str
    before: str
    first: int
    last: int
    tests: Sequence[str]
    cpu_seconds: float
    wall_seconds: float


class Asked:
    """A mutant that is being tried: ends like `processes.Child`."""

    def __init__(self, answers: int, process: processes.Child) -> None:
        self._answers = answers
        self._process = process
        self.code = 0

    def ended(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        try:
            answer = os.read(self._answers, 64)
        except BlockingIOError:
            return None
        if not answer:
            raise RuntimeError(_ENDED)
        return int(answer)

    def kill(self) -> None:
        """End the process that forks, and all of its group."""
        self._process.kill()


def _serve(tree: Path, test_files: Sequence[str], requests: Any, answers: Any) -> int:
    from coverage import Coverage

    sources = [str(tree / package) for package in processes.PACKAGES]
    measured = Coverage(data_file=None, config_file=False, source=sources, messages=False)
    measured.start()
    loop = _Loop(tree, measured, requests, answers)
    return int(pytest.main(processes.pytest_arguments(tree, test_files), plugins=[loop]))


class _Loop:
    """A plugin of pytest that runs tests for one request after the other, each in a fork."""

    def __init__(self, tree: Path, measured: Any, requests: Any, answers: Any) -> None:
        self.tree = tree
        self.measured = measured
        self.requests = requests
        self.answers = answers
        self.ran: dict[str, frozenset[int]] = {}
        self.functions: dict[_Place, list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.measured.stop()
        data = self.measured.get_data()
        self.ran = {name: frozenset(data.lines(name) or ()) for name in data.measured_files()}
        self.functions = _functions(self.tree)
        items = {item.nodeid: item for item in session.items}
        self.answers.write(b"0")
        for line in self.requests:
            request = Request(**json.loads(line))
            code = self._tried(session, request, items)
            self.answers.write(b"%d" % code)
        return True

    def _tried(
        self, session: pytest.Session, request: Request, items: dict[str, pytest.Item]
    ) -> int:
        path = self.tree / request.module
        if not items.keys() >= set(request.tests):
            return NOT_HERE
        pairs: list[tuple[CodeType, CodeType]] = []
        # A module that no collected test has imported is imported with its mutant in the fork.
        if dotted(request.module) in sys.modules:
            statement = set(range(request.first, request.last + 1))
            if statement & self.ran.get(str(path), frozenset()):
                return NOT_HERE
            pairs = changed_functions(request.before.encode(), path.read_bytes()) or []
            if not any(
                _place(path, old) in self.functions and statement & _lines(old) for old, _ in pairs
            ):
                return NOT_HERE
        sys.stdout.flush()
        sys.stderr.flush()
        identifier = os.fork()
        if not identifier:
            self._run(session, request, [items[name] for name in request.tests], pairs)
        until = time.monotonic() + request.wall_seconds
        while True:
            done, status = os.waitpid(identifier, os.WNOHANG)
            if done:
                break
            if time.monotonic() > until:
                _end(identifier)
                _, status = os.waitpid(identifier, 0)
                break
            time.sleep(0.01)
        # Whatever a killed test left running must not slow down the next one.
        _end(identifier)
        return os.waitstatus_to_exitcode(status)

    def _run(
        self,
        session: pytest.Session,
        request: Request,
        items: list[pytest.Item],
        pairs: list[tuple[CodeType, CodeType]],
    ) -> None:
        """Run tests on a mutant in this process, which ends with them."""
        code = NOT_HERE
        try:
            os.setpgid(0, 0)
            limit = int(request.cpu_seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit + 1, limit + 2))
            path = self.tree / request.module
            for old, new in pairs:
                for function in self.functions.get(_place(path, old), ()):
                    # Refused where it closes over other variables than before.
                    function.__code__ = new
            session.items[:] = items
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    code = int(pytest.ExitCode.TESTS_FAILED)
                    break
            else:
                code = int(pytest.ExitCode.OK)
        finally:
            os._exit(code)


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


# Of a function: its file, its name with those around it, and the places of all its instructions.
# Code as it was compiled is not equal to the same code after some calls.
_Place = tuple[str, str, int, bytes]


def _place(path: Path | str, code: CodeType) -> _Place:
    return str(path), code.co_qualname, code.co_firstlineno, code.co_linetable


def _functions(tree: Path) -> dict[_Place, list[FunctionType]]:
    """Return all functions of the packages in this process, by their place."""
    found: defaultdict[_Place, list[FunctionType]] = defaultdict(list)
    places = tuple(f"{tree / package}{os.sep}" for package in processes.PACKAGES)
    # What tests/conftest.py keeps out of garbage collections is found again.
    gc.unfreeze()
    for thing in gc.get_objects():
        # By its type alone: asking a deprecated function for its class is a warning.
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(places):
            code = thing.__code__
            found[_place(code.co_filename, code)].append(thing)
    gc.freeze()
    return found
