"""The command: `python -m tests.weakenings [NAME …]`."""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tests.weakenings
from tests.weakenings import WEAKENINGS, Weakening, applied

ROOT = Path(__file__).parents[2]
_COPIED = ("dpfedadamw", "audit", "reports", "requirements", "specs", "tests", "docs")
_ORDINARY = "not slow and not browser and not crashes and not flower and not loops"
# Python recognises a changed file by its size and by the second in which it was written.
_SECONDS = itertools.count(1)


def _copy(folder: Path) -> Path:
    """A copy of what is tested, in a folder of its own."""
    folder.mkdir(parents=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    return folder


def noticed(one: Weakening, folder: Path) -> str | None:
    """The first test that fails for it in a copy, which is as before afterwards; None if none."""
    edited = folder / one.file
    content, times = edited.read_bytes(), edited.stat()
    try:
        applied(one, folder)
        os.utime(edited, (times.st_atime, times.st_mtime + next(_SECONDS)))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += [
            "--tb=no",
            "--every-case",
            "-m",
            _ORDINARY,
            f"--basetemp={folder.parent / 'tmp'}",
            *one.tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        edited.write_bytes(content)
        os.utime(edited, (times.st_atime, times.st_mtime))
    # A test that is not there is told as "ERROR: not found", and notices nothing.
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if done.returncode and failed else None


def main(names: Sequence[str] | None = None) -> int:
    """Try the named weakenings, or all; returns the exit code."""
    assert tests.weakenings.__doc__ is not None
    parser = argparse.ArgumentParser(description=tests.weakenings.__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(one.name for one in WEAKENINGS)])
    parser.add_argument("--processes", type=int, default=2, help="how many are tried at a time")
    asked = parser.parse_args(names)
    chosen = [one for one in WEAKENINGS if not asked.names or one.name in asked.names]
    with tempfile.TemporaryDirectory(prefix="weakenings-") as made:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(asked.processes):
            copies.put(_copy(Path(made) / str(number) / "copy"))

        def tried(one: Weakening) -> tuple[Weakening, str | None, float]:
            folder, begun = copies.get(), time.monotonic()
            by = noticed(one, folder)
            copies.put(folder)
            return one, by, time.monotonic() - begun

        passed = 0
        with ThreadPoolExecutor(asked.processes) as pool:
            for each in as_completed([pool.submit(tried, one) for one in chosen]):
                one, by, seconds = each.result()
                passed += by is None
                print(f"{one.name}: {by or f'NOT NOTICED: {one.loses}'} ({seconds:.0f} s)",
                      flush=True)  # fmt: skip
    print(f"{len(chosen) - passed} of {len(chosen)} noticed")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
