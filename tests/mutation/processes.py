"""Forked test processes: libraries are imported once, the code under test again in every process.

A process that runs three tests spends seconds on importing torch and its like and milliseconds on
the tests. Here one process imports the libraries, and forks a child for each piece of work; the
child imports the project from a copy of the sources in which one line may be different.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("dpfedadamw", "audit", "reports", "specs")
OWN: Final = (*PACKAGES, "tests")
_COPIED: Final = (*OWN, "docs", "pyproject.toml", "tox.ini", "constraints.txt")
_MEMORY: Final = 32 * 2**30

_LIST_OF_LIBRARIES: Final = f"""
import contextlib, importlib, pkgutil, sys
for name in {PACKAGES!r}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
print(*sys.modules, sep="\\n")
"""


def import_libraries() -> None:
    """Import here what the project imports of other packages, and nothing of the project."""
    listed = subprocess.run(
        [sys.executable, "-c", _LIST_OF_LIBRARIES],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in (*listed, "pytest", "hypothesis", "coverage"):
        if name.split(".")[0] not in OWN:
            # Some names stand in sys.modules under which nothing can be imported.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)


def copy_sources(folder: Path) -> Path:
    """Copy what the tests need into `folder`, and return it."""
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skipped)
        else:
            shutil.copy2(source, folder / name)
    for page in ROOT.glob("*.md"):
        shutil.copy2(page, folder / page.name)
    # Checked by their contents: a changed line may leave a file's size and its second as they were.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *OWN],
        cwd=folder,
        check=True,
    )
    return folder


@dataclass
class Child:
    """A forked process at work in a copy of the sources.

    Attributes:
        identifier: its process number, which is also that of its group.
        started: `time.monotonic()` at its start.
        wall_seconds: how long it may take by the clock.
        code: its exit code, negative for a signal; kept here by who waits for it.
    """

    identifier: int
    started: float
    wall_seconds: float
    code: int = 0

    def ended(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs.

        A child that is past its time is killed with all that it started.
        """
        done, status = os.waitpid(self.identifier, os.WNOHANG)
        if not done:
            if time.monotonic() - self.started > self.wall_seconds:
                self.kill()
                os.waitpid(self.identifier, 0)
                return -signal.SIGKILL
            return None
        # Whatever a killed test left running must not slow down the next one.
        self.kill()
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """End the child and everything in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.identifier, signal.SIGKILL)


def start(
    tree: Path,
    work: Callable[[], int],
    output: Path,
    *,
    cpu_seconds: float,
    wall_seconds: float,
) -> Child:
    """Fork a child that does `work` in `tree` and ends with the number that it returns.

    Args:
        tree: a copy of the sources, the child's working directory and the first place of imports.
        work: what it does; it imports the project from `tree`.
        output: file of its standard output and standard error.
        cpu_seconds: processor time after which the system ends it.
        wall_seconds: time by the clock after which `Child.ended` kills it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    identifier = os.fork()
    if identifier:
        return Child(identifier, time.monotonic(), wall_seconds)
    code = 3
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        _move_to(tree)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _move_to(tree: Path) -> None:
    """Make `tree` the place that the project is imported from, here and in all that is started."""
    os.chdir(tree)
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(place for place in sys.path if place not in ("", str(ROOT)))]
    importlib.invalidate_caches()
    sys.dont_write_bytecode = True
    os.environ.update(
        PYTHONPATH=str(tree),
        PYTHONDONTWRITEBYTECODE="1",
        OMP_NUM_THREADS="1",
        HYPOTHESIS_STORAGE_DIRECTORY=str(tree / ".hypothesis"),
    )


def pytest_arguments(tree: Path, tests: Iterable[str]) -> list[str]:
    """Return pytest's arguments for some tests in a copy: the same each time, nothing kept."""
    for left in (".hypothesis", ".tests"):
        shutil.rmtree(tree / left, ignore_errors=True)
    return [
        *(
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tree),
            "-c",
            str(tree / "pyproject.toml"),
        ),
        *("--hypothesis-seed=0", "--basetemp", str(tree / ".tests"), "--tb=line"),
        *("--every-case", "-m", "not slow and not browser and not crashes"),
        *tests,
    ]


def modules_of(package: str) -> list[str]:
    """Return the paths of a package's modules, relative to the root, in order."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))
