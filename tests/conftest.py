"""Fixtures for all tests."""

from __future__ import annotations

import gc

import pytest
import torch


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


@pytest.fixture(autouse=True, scope="session")
def _a_cache_of_their_own(tmp_path_factory):
    """Tests prepare their records in a folder of their own, never in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread a test process, so that timings and results do not depend on the load."""
    torch.set_num_threads(1)
