"""Mutation testing: `python -m tests.mutation [MODULES] [--sample N] [--minutes M]`.

A mutant is the package with one small change. Tests that still pass have not noticed it: either
the change means nothing (then it stands in `equivalent.toml`, with the reason) or a test is
missing. What is printed is the share of mutants that were noticed, by folder, and each survivor.

Results are kept. Called again, mutants that were noticed are not tried again as long as their
module stays the same; survivors are, with the tests as they are now.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Final, TypeVar

from tests.mutation import coverage_map, processes, selection
from tests.mutation.coverage_map import TestFile
from tests.mutation.mutants import Mutant, mutants_of, statements
from tests.mutation.warm import NOT_HERE, Asked, Request, Warm

SCOPE: Final = (
    "dpfedadamw/privacy",
    "dpfedadamw/vectors",
    "dpfedadamw/storage",
    "dpfedadamw/run",
    "audit/checks",
    "reports/signatures",
)
TESTS: Final = ("tests/dpfedadamw", "tests/audit", "tests/reports", "tests/faults")
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")

KILLED, SURVIVED, UNREACHED, ENDLESS = "killed", "survived", "reached by no test", "endless"
_NOTICED: Final = (KILLED, ENDLESS)
Work = TypeVar("Work")
Steps = Iterator[processes.Child | Asked]

# Exit codes of pytest: all passed, and no tests were found by these names.
_PASSED, _NO_TESTS, _WRONG_NAMES = 0, 5, 4

# After so many mutants that were noticed, the tests of the last one are run without it.
NOTICED_UNCHECKED: Final = 20


class UntrustworthyError(RuntimeError):
    """Tests fail without a mutant, so that whatever was tried since they passed does not count."""


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    Attributes:
        mutant: the change.
        module_digest: sha256 of the module that it changes.
        outcome: `KILLED`, `SURVIVED`, `UNREACHED` or `ENDLESS`.
        tests: how many tests were tried.
    """

    mutant: Mutant
    module_digest: str
    outcome: str
    tests: int


def sources_of(paths: Iterable[str]) -> dict[str, bytes]:
    """Return the text of modules by path."""
    return {path: (processes.ROOT / path).read_bytes() for path in paths}


# In place of an edited line: whatever is made of it.
ANY: Final = "*"


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return the reasons of mutants that change nothing, by module, line as it is, and edited.

    An entry without ``after`` stands for all mutants of its line, edited to `ANY`.
    """
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    return {
        (entry["module"], entry["before"], entry.get("after", ANY)): entry["reason"]
        for entry in entries
    }


def without_equivalents(mutants: Iterable[Mutant], sources: dict[str, bytes]) -> list[Mutant]:
    """Return the mutants that are not known to change nothing."""
    known = equivalents()
    left: list[Mutant] = []
    for mutant in mutants:
        before, after = mutant.lines(sources[mutant.path])
        if known.keys().isdisjoint({(mutant.path, before, one) for one in (after, ANY)}):
            left.append(mutant)
    return left


def _in_turn(
    trees: Sequence[Path],
    work: Iterator[Work],
    begin: Callable[[Path, Work], Steps],
) -> None:
    """Do each piece of work, one a tree at a time; a piece may need several children."""
    busy: dict[Path, tuple[Steps, processes.Child | Asked]] = {}
    more = True
    try:
        while more or busy:
            for tree in trees:
                while more and tree not in busy:
                    try:
                        steps = begin(tree, next(work))
                    except StopIteration:
                        more = False
                        break
                    child = next(steps, None)
                    if child:
                        busy[tree] = steps, child
            time.sleep(0.02)
            for tree, (steps, child) in list(busy.items()):
                code = child.ended()
                if code is not None:
                    child.code = code
                    following = next(steps, None)
                    if following:
                        busy[tree] = steps, following
                    else:
                        del busy[tree]
    finally:
        for _, child in busy.values():
            child.kill()


def make_maps(trees: Sequence[Path], test_files: Sequence[str], folder: Path) -> list[TestFile]:
    """Return what each file of tests reaches, measured where it is not known."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [path for path in test_files if not coverage_map.is_fresh(folder, path)]

    def begin(tree: Path, test_file: str) -> Steps:
        log = coverage_map.place(folder, test_file).with_suffix(".log")
        child = processes.start(
            tree,
            lambda: coverage_map.measure(tree, test_file, folder),
            log,
            cpu_seconds=1800,
            wall_seconds=7200,
        )
        yield child
        if child.code not in (_PASSED, _NO_TESTS):
            print(f"{test_file}: fails as it is (see {log}); what passes is used", flush=True)

    _in_turn(trees, iter(wanted), begin)
    return [
        coverage_map.read(folder, path)
        for path in test_files
        if coverage_map.place(folder, path).is_file()
    ]


def _pytest(tree: Path, tests: Sequence[str]) -> int:
    import pytest

    return int(pytest.main(["-x", *processes.pytest_arguments(tree, tests)]))


def run_mutants(
    trees: Sequence[Path],
    mutants: Sequence[Mutant],
    sources: dict[str, bytes],
    maps: Sequence[TestFile],
    *,
    most_seconds: float,
    minutes: float | None,
    done: Callable[[Result], None],
) -> None:
    """Try mutants, one in each tree at a time, until all are done or the time is over.

    Raises:
        UntrustworthyError: If tests that noticed a mutant fail without it, too.
    """
    heads = {path: statements(source) for path, source in sources.items()}
    unchecked: list[Result] = []
    last: list[tuple[list[str], float]] = []

    def check(tree: Path, tests: Sequence[str], seconds: float) -> Iterator[processes.Child]:
        held = [unchecked.pop() for _ in range(len(unchecked))]
        child = processes.start(
            tree,
            lambda: _pytest(tree, tests),
            tree / ".output",
            cpu_seconds=30 + 5 * seconds,
            wall_seconds=300 + 20 * seconds,
        )
        yield child
        if child.code not in (_PASSED, _NO_TESTS):
            raise UntrustworthyError(
                f"tests fail without a mutant, so the last {len(held)} that were noticed do not "
                "count: did the libraries change?"
            )
        for result in held:
            done(result)

    warm = {tree: Warm(tree, [tests.path for tests in maps]) for tree in trees}
    until = time.monotonic() + 60.0 * minutes if minutes else float("inf")

    def begin(tree: Path, mutant: Mutant) -> Steps:
        source = sources[mutant.path]
        lines = heads[mutant.path].get(mutant.line, (mutant.line, mutant.line))
        groups = selection.batches(mutant.path, lines, maps, most_seconds)
        first = groups[0] if groups else ([], 0.0)
        outcome, tried = SURVIVED if groups else UNREACHED, 0
        module = tree / mutant.path
        module.write_bytes(mutant.apply(source))
        try:
            if groups:
                every = [name for tests, _ in groups for name in tests]
                together = sum(seconds for _, seconds in groups)
                asked = warm[tree].ask(
                    Request(
                        module=mutant.path,
                        before=source.decode(),
                        first=lines[0],
                        last=lines[1],
                        tests=every,
                        cpu_seconds=30 + 5 * together,
                        wall_seconds=300 + 20 * together,
                    )
                )
                yield asked
                if asked.code != NOT_HERE:
                    outcome = SURVIVED
                    if asked.code != _PASSED:
                        outcome = ENDLESS if asked.code < 0 else KILLED
                    tried, groups = len(every), []
            for tests, seconds in groups:
                child = processes.start(
                    tree,
                    lambda tests=tests: _pytest(tree, tests),
                    tree / ".output",
                    cpu_seconds=30 + 5 * seconds,
                    wall_seconds=300 + 20 * seconds,
                )
                yield child
                tried += len(tests)
                if child.code == _WRONG_NAMES:
                    # A change to what tests are made from changes their names: take the files.
                    files = sorted({name.split("::")[0] for name in tests})
                    child = processes.start(
                        tree,
                        lambda files=files: _pytest(tree, files),
                        tree / ".output",
                        cpu_seconds=30 + 20 * seconds,
                        wall_seconds=300 + 40 * seconds,
                    )
                    yield child
                if child.code not in (_PASSED, _NO_TESTS):
                    outcome = ENDLESS if child.code < 0 else KILLED
                    break
        finally:
            module.write_bytes(source)
        result = Result(mutant, coverage_map.digest(processes.ROOT / mutant.path), outcome, tried)
        if outcome not in _NOTICED:
            done(result)
            return
        unchecked.append(result)
        last[:] = [first]
        if len(unchecked) >= NOTICED_UNCHECKED:
            yield from check(tree, *first)

    try:
        _in_turn(trees, (m for m in mutants if time.monotonic() < until), begin)
        if unchecked:
            _in_turn(trees[:1], iter(last), lambda tree, tests: check(tree, *tests))
    finally:
        for process in warm.values():
            process.close()


def table(results: Sequence[Result], population: dict[str, int]) -> str:
    """Return the score of each folder of a package and of all, as a table in Markdown."""
    lines = [
        "| folder | mutants | tried | noticed | score, 95 % interval |",
        "|---|---|---|---|---|",
    ]
    tried: dict[str, list[Result]] = {}
    for result in results:
        tried.setdefault(_folder(result.mutant.path), []).append(result)
    for folder in sorted(tried):
        mutants = sum(count for path, count in population.items() if _folder(path) == folder)
        lines.append(_row(f"`{folder}`", tried[folder], mutants))
    lines.append(_row("together", results, sum(population.values())))
    return "\n".join(lines)


def _folder(path: str) -> str:
    """Return the folder of a package that a module lies in: `audit/checks`, or the package."""
    return "/".join(PurePath(path).parts[:-1][:2])


def _row(name: str, results: Sequence[Result], mutants: int) -> str:
    noticed = sum(result.outcome in _NOTICED for result in results)
    score = f"{100 * noticed / len(results):.1f} % ({interval(results)})" if results else ""
    return f"| {name} | {mutants:,} | {len(results):,} | {noticed:,} | {score} |"


def interval(results: Sequence[Result]) -> str:
    """Return the exact two-sided 95 % interval (Clopper & Pearson 1934) of the share noticed."""
    from scipy.stats import binomtest

    noticed = sum(result.outcome in _NOTICED for result in results)
    found = binomtest(noticed, len(results)).proportion_ci(0.95, "exact")
    return f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def _kept(file: Path, sources: dict[str, bytes]) -> dict[Mutant, Result]:
    """Return the last result of each mutant of a module that is still the same."""
    found: dict[Mutant, Result] = {}
    if not file.is_file():
        return found
    digests = {path: coverage_map.digest(processes.ROOT / path) for path in sources}
    for line in file.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        result = Result(**{**content, "mutant": Mutant(**content["mutant"])})
        if digests.get(result.mutant.path) == result.module_digest:
            found[result.mutant] = result
    return found


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(SCOPE), help="folders, files, patterns")
    parser.add_argument("--sample", type=int, help="try so many, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--minutes", type=float, help="begin no mutant after so long")
    parser.add_argument("--seconds", type=float, default=120, help="tests for one mutant, at most")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument(
        "--tests", nargs="+", default=list(TESTS), help="folders and files of tests"
    )
    parser.add_argument("--folder", type=Path, help="where maps and results are kept")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every mutant that was tried was noticed, else 1."""
    arguments = _arguments(given)
    modules = [path for package in processes.PACKAGES for path in processes.modules_of(package)]
    try:
        sources = sources_of(selection.matching(modules, arguments.modules))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    every = [mutant for path, text in sources.items() for mutant in mutants_of(path, text)]
    mutants = without_equivalents(every, sources)
    chosen = selection.sampled(mutants, arguments.sample, arguments.seed)
    folder = arguments.folder or Path(tempfile.gettempdir()) / "dpfedadamw-mutation"
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "results.jsonl"
    results = _kept(record, sources)
    open_ones = [m for m in chosen if m not in results or results[m].outcome not in _NOTICED]
    print(
        f"{len(mutants):,} mutants in {len(sources)} modules, {len(every) - len(mutants)} more are "
        f"equivalent; {len(chosen):,} drawn with seed {arguments.seed}, {len(open_ones):,} to try",
        flush=True,
    )
    processes.import_libraries()
    tried_now: set[Mutant] = set()

    def done(result: Result) -> None:
        results[result.mutant] = result
        tried_now.add(result.mutant)
        with record.open("a", encoding="utf-8") as file:
            print(json.dumps(asdict(result)), file=file)
        if result.outcome not in _NOTICED:
            print(shown(result, sources), flush=True)

    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        trees = [
            processes.copy_sources(Path(scratch) / str(number))
            for number in range(max(1, min(arguments.processes, len(open_ones))))
        ]
        if open_ones:
            maps = make_maps(
                trees, coverage_map.files_of_tests(arguments.tests), folder / "reached"
            )
            try:
                run_mutants(
                    trees,
                    open_ones,
                    sources,
                    maps,
                    most_seconds=arguments.seconds,
                    minutes=arguments.minutes,
                    done=done,
                )
            except UntrustworthyError as error:
                print(error, file=sys.stderr)
                return 2
    sample = selection.until_cut_off(chosen, open_ones, tried_now)
    tried = [results[mutant] for mutant in sample if mutant in results]
    survivors = [result for result in tried if result.outcome not in _NOTICED]
    population = {path: len(found) for path, found in selection.by_module(mutants).items()}
    print(f"\n{table(tried, population)}\n")
    print(f"{len(survivors)} survived:" if survivors else "none survived")
    for result in sorted(survivors, key=lambda result: result.mutant):
        print(shown(result, sources))
    return 1 if survivors else 0


def shown(result: Result, sources: dict[str, bytes]) -> str:
    """Return a mutant with its line as it is and edited, and what became of it."""
    mutant = result.mutant
    before, after = mutant.lines(sources[mutant.path])
    told = f"{mutant.path}:{mutant.line}: {mutant.operator}, {result.outcome}, {result.tests} tests"
    return f"\n{told}\n- {before}\n+ {after}"


if __name__ == "__main__":
    raise SystemExit(main())
