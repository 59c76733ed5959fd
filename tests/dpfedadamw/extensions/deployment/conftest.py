"""One small federation for many tests: three clients, two rounds, led to its claim."""

from __future__ import annotations

import shutil

import pytest

from dpfedadamw.extensions.deployment.project import Project
from tests.dpfedadamw.extensions.deployment.loops import led, made, opened
from tests.runs import small_spec

SPEC = small_spec(rounds=2, clients_per_round=3, overrides=("data.clients=3",))


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    """The project of a federation whose run is finished; nobody may change it."""
    project = made(SPEC, tmp_path_factory.mktemp("federation") / "project")
    clients = opened(project)
    led(project, clients)
    for client in clients.values():
        client.close()
    return project


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it to change."""
    place = tmp_path / "project"
    shutil.copytree(finished.path, place)
    return Project(place, finished.clients)


@pytest.fixture(scope="package")
def unused(tmp_path_factory):
    """A project that nobody has used; nobody may change it."""
    return made(SPEC, tmp_path_factory.mktemp("federation") / "project")


@pytest.fixture
def fresh(unused, tmp_path):
    """A copy of it to use."""
    place = tmp_path / "project"
    shutil.copytree(unused.path, place)
    return Project(place, unused.clients)
