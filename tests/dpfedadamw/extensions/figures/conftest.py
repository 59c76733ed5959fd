"""Small finished runs that several figures are drawn from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpfedadamw.rundir import RunDirectory
from tests.runs import small_spec, train

Small = Callable[..., RunDirectory]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Trains an algorithm's small run, each once."""
    known: dict[tuple[object, ...], RunDirectory] = {}

    def run(algorithm: str, *overrides: str, rounds: int = 2, clients: int = 2) -> RunDirectory:
        key = (algorithm, overrides, rounds, clients)
        if key not in known:
            spec = small_spec(algorithm, rounds, clients, overrides=overrides)
            known[key] = train(spec, tmp_path_factory.mktemp(algorithm))[0].run
        return known[key]

    return run


@pytest.fixture(scope="session")
def noised(small: Small) -> RunDirectory:
    """DP-FedAdamW with every client in both rounds, its participations kept whole."""
    return small("dp-fedadamw", clients=3)
