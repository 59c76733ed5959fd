"""Correct runs that many tests look at and none changes (`opened.changed` makes copies)."""

from __future__ import annotations

import pytest

from audit.reading.bundle import Bundle, open_bundle
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run


@pytest.fixture(scope="module")
def of_records(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run that protects single records."""
    return open_bundle(build_run(tmp_path_factory.mktemp("records") / "run", Settings()))


@pytest.fixture(scope="module")
def of_clients(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run that protects whole clients, with noise that the server adds."""
    path = tmp_path_factory.mktemp("clients") / "run"
    return open_bundle(build_client_run(path, ClientSettings()))


@pytest.fixture(scope="module")
def noised_by_clients(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run that protects whole clients, each of which adds its share of the noise."""
    path = tmp_path_factory.mktemp("by-clients") / "run"
    return open_bundle(build_client_run(path, ClientSettings(noise_added_by="clients")))
