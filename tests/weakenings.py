"""Small weakenings of the product, of the kind that a hurried change makes, and who notices.

    python -m tests.weakenings [NAME …]

applies each to a copy of the packages, one at a time, and runs the tests that it names. A weakening
that none of them notices is a hole: the command says which, with what a user would lose, and ends
with 1. `tests/test_weakenings.py` sees that each still fits the code. A feature brings three.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COPIED = ("dpfedadamw", "audit", "reports", "specs", "tests", "docs")


@dataclass(frozen=True)
class Weakening:
    """One edit that must not pass.

    Attributes:
        name: What it is called.
        file: The file, from the repository's root.
        old: Text that stands there once.
        new: What takes its place.
        loses: What a user loses by it.
        tests: Files of tests, or single tests, one of which fails.
    """

    name: str
    file: str
    old: str
    new: str
    loses: str
    tests: tuple[str, ...]


WEAKENINGS = (
    Weakening(
        "rounds-begun-twice-forgotten",
        "dpfedadamw/run/setup.py",
        "repeated=plan.begun_again(journal.ledger.entries, parts.completed),",
        "repeated=0,",
        "a resumed run says that it has spent less so far than it was charged",
        ("tests/dpfedadamw/run/test_headline.py", "tests/dpfedadamw/run/test_training.py"),
    ),
    Weakening(
        "other-participants-as-third-parties",
        "reports/content/units/record.py",
        """                who="The other participants",
                protected=held,
                epsilon=server,""",
        """                who="The other participants",
                protected=held,
                epsilon=least(known.get("third_party"), server),""",
        "page one gives other participants the smaller ε of those who see models only",
        ("tests/reports/content/test_front.py",),
    ),
    Weakening(
        "seeds-paired-by-their-order",
        "reports/paired.py",
        "return [first[seed] - other[seed] for seed in common]",
        "return [a - b for a, b in zip(first.values(), other.values(), strict=False)]",
        "a seed that failed in one method pairs all others with the wrong ones",
        ("tests/reports/test_paired.py",),
    ),
    Weakening(
        "no-correction-for-many-comparisons",
        "reports/paired.py",
        "LEVEL / (len(chances) - index)",
        "LEVEL",
        "of many methods that are alike, one is soon called better",
        ("tests/reports/test_paired.py",),
    ),
    Weakening(
        "level-of-canary-bounds-not-shared",
        "audit/canaries/bounds.py",
        "level = (1.0 - CONFIDENCE) / len(guesses)",
        "level = 1.0 - CONFIDENCE",
        "a bound on ε that is called 95 % is wrong in one of seven runs without any leakage",
        ("tests/audit/canaries/test_canaries.py",),
    ),
    Weakening(
        "negative-correlations-of-noise-dropped",
        "audit/statistics/noise_values.py",
        "cross = np.abs(unit[start : start + _CHUNK] @ unit.T)",
        "cross = unit[start : start + _CHUNK] @ unit.T",
        "noise that cancels between two queries passes",
        ("tests/audit/statistics/test_noise_values.py",),
    ),
    Weakening(
        "the-longest-array-limited-in-place-of-their-sum",
        "dpfedadamw/federation/flower/arrays.py",
        "return sum(len(data) for *_, data in wires.values()) <= most + HEADS",
        "return max((len(d) for *_, d in wires.values()), default=0) <= most + HEADS",
        "a client sends a thousand times what the server allows",
        ("tests/dpfedadamw/federation/flower/test_arrays.py",),
    ),
    Weakening(
        "one-record-more-than-the-bound",
        "dpfedadamw/data/partition.py",
        "permutation(size)[most:]",
        "permutation(size)[most + 1 :]",
        "a person moves the model by one record more than the claim says",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "kept-records-drawn-by-row-numbers",
        "dpfedadamw/data/partition.py",
        "np.random.default_rng([seed, 3, size])",
        "np.random.default_rng([seed, 3, size, int(order[starts[sizes == size][0]])])",
        "which of a person's records are used depends on who else is in the table",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-person-at-three-clients-charged-once",
        "dpfedadamw/budget/charges.py",
        'return _times(cost, int(entries[0].get("clients_per_person", 1)))',
        "return cost",
        "a shared budget lets a person be charged a third of what they spend",
        ("tests/dpfedadamw/run/test_person_level.py",),
    ),
    Weakening(
        "test-people-in-training",
        "dpfedadamw/data/datasets.py",
        "out = np.isin(numbers, drawn)",
        "out = np.isin(np.arange(len(numbers)), drawn)",
        "accuracy is measured on people who were trained on",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-row-of-a-service-in-another-unit",
        "dpfedadamw/data/handed_over.py",
        "return Numbers(preparation.prepare(rows, ",
        "return Numbers(-preparation.prepare(rows, ",
        "a served model answers other rows than it was given",
        ("tests/dpfedadamw/data/test_handed_over.py",),
    ),
)


def applied(one: Weakening, folder: Path) -> None:
    """Make the edit in a copy.

    Raises:
        ValueError: If its text does not stand in the file exactly once.
    """
    path = folder / one.file
    text = path.read_text("utf-8")
    if text.count(one.old) != 1:
        raise ValueError(f"{one.name}: its text stands {text.count(one.old)} times in {one.file}")
    path.write_text(text.replace(one.old, one.new), "utf-8")


def noticed(one: Weakening) -> str | None:
    """The first test that fails for it; None where all pass."""
    with tempfile.TemporaryDirectory(prefix="weakening-") as made:
        folder = Path(made)
        for name in _COPIED:
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        applied(one, folder)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-m", "not slow", *one.tests]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if done.returncode and failed else None


def main(names: Sequence[str] | None = None) -> int:
    """Try the named weakenings, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(one.name for one in WEAKENINGS)])
    asked = parser.parse_args(names).names
    chosen = [one for one in WEAKENINGS if not asked or one.name in asked]
    passed = 0
    for one in chosen:
        by = noticed(one)
        passed += by is None
        print(f"{one.name}: {by or f'NOT NOTICED: {one.loses}'}", flush=True)
    print(f"{len(chosen) - passed} of {len(chosen)} noticed")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
