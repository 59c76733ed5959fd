"""Which mutants are tried, and by which tests, in which order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Final

from tests.mutation.coverage_map import WHOLE, TestFile
from tests.mutation.mutants import Mutant

# Seconds of tests in each process of a mutant: most mutants fall to the first few tests, and the
# others are worth waiting for.
_FIRST: Final = 8.0
# More than any path has parts: a file of tests that is called like the module.
_OWN: Final = 100
# Likewise, and less than that: a file that imports the module for itself.
_IMPORTED: Final = 50
# Seconds of a file of tests that is asked because it imports the module's package.
_QUICK_FILE: Final = 1.0
# These compare what modules declare (keys, commands, figures, numbers of a report) with what is
# written down in the repository, without a call into most of these modules.
COMPARES_DECLARATIONS: Final = (
    "tests/dpfedadamw/cli/test_commands_page.py",
    "tests/dpfedadamw/extensions/figures/test_gallery.py",
    "tests/dpfedadamw/spec/test_reference.py",
    "tests/faults/test_table.py",
    "tests/reports/test_schema.py",
)


def matching(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the modules that a folder, a file or a pattern such as `audit/*/noise.py` names.

    Raises:
        ValueError: If a pattern names no module.
    """
    paths = sorted(paths)
    found: set[str] = set()
    for pattern in patterns:
        plain = pattern.rstrip("/")
        named = [p for p in paths if p == plain or p.startswith(plain + "/") or fnmatch(p, plain)]
        if not named:
            raise ValueError(f"{pattern}: no module of the packages is called so")
        found.update(named)
    return sorted(found)


def sampled(mutants: Sequence[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """Return mutants in random order: all, or a sample to which each folder gives its share.

    A run that is cut off has tried the first of a random order, which are a sample too.
    """
    draw = random.Random(seed)
    if size is None or size >= len(mutants):
        return draw.sample(mutants, len(mutants))
    folders: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        folders[str(PurePath(mutant.path).parent)].append(mutant)
    chosen: list[Mutant] = []
    before = 0
    for folder in sorted(folders):
        # Rounding the sums and not the shares makes the parts add up to the whole.
        after = before + len(folders[folder])
        share = round(size * after / len(mutants)) - round(size * before / len(mutants))
        chosen += draw.sample(folders[folder], share)
        before = after
    return draw.sample(chosen, len(chosen))


def _nearness(test_file: str, module: str) -> int:
    """How much of a module's path a file of tests has in its own, the name counting most."""
    ours = PurePath(test_file).parts[1:-1]
    theirs = PurePath(module).parts
    common = 0
    for mine, its in zip(ours, theirs, strict=False):
        if mine != its:
            break
        common += 1
    names = PurePath(test_file).stem.removeprefix("test_") == PurePath(module).stem
    return common + _OWN * names


def until_cut_off(
    chosen: Sequence[Mutant], wanted: Iterable[Mutant], tried: Collection[Mutant]
) -> Sequence[Mutant]:
    """Return the part of a sample that a run got through, in its order.

    What was noticed in earlier runs is not tried again. Behind the place where the clock ended this
    one it must not count: there only noticed mutants would.

    Args:
        chosen: the sample.
        wanted: those of it that were to be tried.
        tried: those that were.
    """
    if all(mutant in tried for mutant in wanted):
        return chosen
    last = max((place for place, one in enumerate(chosen) if one in tried), default=-1)
    return chosen[: last + 1]


def dotted(module: str) -> str:
    """Return the name by which a module is imported."""
    return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _names(tests: TestFile, module: str) -> bool:
    """Whether a file of tests imports a module by its name, or quickly looks at its package.

    What a registry holds is looked at by the package's name, and takes no time.
    """
    name = dotted(module)
    if name in tests.imports:
        return True
    parents = [name.rsplit(".", steps)[0] for steps in range(1, name.count("."))]
    quick = sum(tests.seconds) < _QUICK_FILE
    return quick and not tests.imports.isdisjoint(parents)


def batches(
    module: str, lines: tuple[int, int], maps: Iterable[TestFile], most_seconds: float
) -> list[tuple[list[str], float]]:
    """Return the tests that reach some lines of a module, in groups to run one after the other.

    The module's own file of tests comes first, then files that import the module by its name. Tests
    that reach the lines themselves come before the other tests of files that reached them while
    they were imported or a fixture was made, if these files run some of the module, import it by
    its name or are among `COMPARES_DECLARATIONS`. Of these the last and those that take less than
    a second come first; tests of a file stand together.

    Args:
        module: path of the module.
        lines: first and last line of the statement that is changed.
        maps: what each file of tests reaches.
        most_seconds: tests beyond these seconds are left out, though never the first.

    Returns:
        Groups of node identifiers with their seconds. Where no test is known to reach the lines,
        the tests of the module's own file and of those that import it by its name.
    """
    asked: list[tuple[tuple[float, ...], str, float, str]] = []
    maps = list(maps)
    for tests in maps:
        reached = tests.lines.get(module, {})
        found = frozenset[int]().union(
            *(reached.get(line, frozenset()) for line in range(lines[0], lines[1] + 1))
        )
        if not found:
            continue
        near = _nearness(tests.path, module)
        if near < _OWN and _names(tests, module):
            near += _IMPORTED
        others = near < _OWN
        # What a file's tests share is made once where they follow each other.
        quickest = min((s for n, s in enumerate(tests.seconds) if n in found), default=0.0)
        # A file whose tests run much of the module says more about it than one that imports it.
        used = sum(1 for by in reached.values() if by - {WHOLE})
        declared = tests.path in COMPARES_DECLARATIONS
        for number, (name, seconds) in enumerate(zip(tests.names, tests.seconds, strict=True)):
            if number in found:
                asked.append(((others, False, -near, 0, quickest), tests.path, seconds, name))
            elif WHOLE in found and (declared or used or near >= _IMPORTED):
                quick = sum(tests.seconds) < _QUICK_FILE
                late = not declared and (near < _IMPORTED or not quick)
                key = (others, True, late, -near, -used)
                asked.append((key, tests.path, seconds, name))
    # What runs in processes that tests start is not seen in them, and is asked of likely files.
    for tests in maps if not asked else ():
        near = _nearness(tests.path, module)
        if near >= _OWN or _names(tests, module):
            asked += [
                ((-near,), tests.path, seconds, name)
                for name, seconds in zip(tests.names, tests.seconds, strict=True)
            ]
    groups: list[tuple[list[str], float]] = []
    group: list[str] = []
    total, here, limit = 0.0, 0.0, _FIRST
    for _, _, seconds, name in sorted(asked):
        if total and total + seconds > most_seconds:
            continue
        if group and here + seconds > limit:
            groups.append((group, here))
            group, here, limit = [], 0.0, most_seconds
        group.append(name)
        here += seconds
        total += seconds
    return [*groups, (group, here)] if group else groups


def by_module(mutants: Iterable[Mutant]) -> Mapping[str, list[Mutant]]:
    """Return mutants by the path of their module."""
    grouped: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        grouped[mutant.path].append(mutant)
    return grouped
