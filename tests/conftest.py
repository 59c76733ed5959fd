"""Fixtures for all tests."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.algorithms.registry import ALGORITHMS
from tests.audit.alone import is_for_the_auditor_alone
from tests.runs import PICTURE

# Names stand in the order in which modules register themselves, which is that of a command only if
# no test imports one of the modules first.
assert len(ALGORITHMS)


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option to run no test twice where tox runs the auditor's apart."""
    parser.addoption(
        "--without-auditor-alone",
        action="store_true",
        help="leave out the auditor's tests that need nothing else (`tox run -e auditor`)",
    )


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


# Modules outside `tests/reports` that look at a report's pictures.
_PICTURES_MATTER = {"test_quickstart.py", "test_report.py"}


@pytest.fixture(autouse=True, scope="module")
def _one_picture_for_all(request):
    """Reports that a test only needs to be there have one small drawing in place of each figure.

    Figures take half the time of a small run. `tests/reports` draws them all.
    """
    from reports.content import parts

    if "reports" in request.path.parts or request.path.name in _PICTURES_MATTER:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "draw", lambda *_: PICTURE)
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
