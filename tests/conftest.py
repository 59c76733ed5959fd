"""Fixtures for all tests."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

from tests.audit.alone import is_for_the_auditor_alone
from tests.quick import leave_out
from tests.runs import PAGE, PICTURE

# How long an example takes depends on what else the machine does, and fails no test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options: to run no test twice where tox runs the auditor's apart, and in which order."""
    parser.addoption(
        "--without-auditor-alone",
        action="store_true",
        help="leave out the auditor's tests that need nothing else (`tox run -e auditor`)",
    )
    parser.addoption(
        "--every-case",
        action="store_true",
        help="leave no thorough test and no case out as slow (for mutants and weakenings)",
    )
    parser.addoption(
        "--random-order", metavar="SEED", help="shuffle the files, and the tests of each, by a seed"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is not quick, and shuffle by the seed of `--random-order`.

    A file's tests stay together, as its fixtures do.
    """
    if not config.getoption("--every-case"):
        leave_out(items)
    seed = config.getoption("--random-order")
    if seed is None:
        return
    drawn = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = {}
    for item in drawn.sample(items, len(items)):
        files.setdefault(item.path, []).append(item)
    items[:] = itertools.chain.from_iterable(files.values())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out that another environment runs, where that was asked for."""
    left_out = config.getoption("--without-auditor-alone")
    return True if left_out and is_for_the_auditor_alone(collection_path) else None


def pytest_collection_finish():
    """Keep imported modules and collected tests out of later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _keys_of_their_own(tmp_path_factory):
    """Tests make their signing keys in a folder of their own, never in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(tmp_path_factory.getbasetemp() / "keys"))
        yield


@pytest.fixture(autouse=True, scope="module")
def _the_same_noise_each_time(request):
    """Keys that the engine draws in this process follow from the name of the tests' file.

    A check that judges by chance fails once in a thousand correct runs. The suite audits hundreds,
    so with keys of the operating system a run of the suite would fail by chance now and then.
    `tests/faults` and `docs/detection.md` count false alarms.
    """
    from dpfedadamw.privacy.noise import randomness

    number = itertools.count()

    def drawn(size):
        named = f"{request.node.nodeid} {next(number)}"
        return hashlib.shake_256(named.encode()).digest(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "os", SimpleNamespace(**{**vars(os), "urandom": drawn}))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_copy_of_the_packages():
    """Processes that tests start import this checkout, as the tests do, and not an installed copy.

    A fork server imports what it preloads before it is given the path of its parent (Python
    gh-117378), so a child would otherwise mix modules of both copies.
    """
    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).parents[1]
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _a_cache_of_their_own(tmp_path_factory):
    """Tests prepare their records in a folder of their own, never in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_computed_again_unasked():
    """Commands of this process compute no participations again that no test asks for.

    Hundreds of tests run small specs to their end. `test_replaying` watches the default.
    """
    from dpfedadamw.filing import replaying

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaying, "BY_DEFAULT", 0)
        yield


# Folders and files of tests that look at what a report's pages show.
_PAGES_MATTER = (
    "reports/content/",
    "reports/render/",
    "reports/figures/",
    "reports/extensions/",
    "dpfedadamw/cli/test_report.py",
    "dpfedadamw/filing/test_report_leaks.py",
    "dpfedadamw/run/test_quickstart.py",
)


@pytest.fixture(autouse=True, scope="module")
def _short_pages(request):
    """Reports that a test only needs to be there have one page, and a drawing for each figure.

    Pages and figures take two thirds of the time of a small run.
    """
    from reports.content import parts
    from reports.render import pdf

    if request.path.relative_to(Path(__file__).parent).as_posix().startswith(_PAGES_MATTER):
        yield
        return
    compiled = pdf._compile

    def short(folder, moment):
        (folder / "report.typ").write_text(PAGE, "utf-8")
        return compiled(folder, moment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "draw", lambda *_: PICTURE)
        patch.setattr(pdf, "_compile", short)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """No power is lost here; what is synced, and in which order, `tests/simulation` watches.

    Processes that a test starts wait as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        # A number that is no open file is refused as before.
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread a test process, so that timings and results do not depend on the load."""
    torch.set_num_threads(1)
