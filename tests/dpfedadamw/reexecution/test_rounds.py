"""Runs of every unit, computed again: to the last bit, and a second time in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfedadamw.evidence.states import state_file
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.reexecution.history import ReexecutionError, escrowed, published
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.rundir import RunDirectory
from tests.runs import key_of_a_test, small_spec, train

CPU = torch.device("cpu")


def again(run: RunDirectory, seed: int = 1) -> Rerun:
    return Rerun(run, published(seed), CPU)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    spec = small_spec("dp-scaffold", rounds=4, clients_per_round=3)
    return train(spec, tmp_path_factory.mktemp("run"))[0].run


def some(rerun: Rerun, rounds: tuple[int, ...]) -> list[tuple[int, int]]:
    """One participation of each of these rounds that has any."""
    return [
        (index, int(client))
        for index in rounds
        for client in rerun.ledger.rounds[index].entry["clients"][:1]
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "dp-fedadamw",
        "dp-fedsam",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("dp-fedavg", "fed-smp", "dp-fedsam-topk", "ali-dpfl", "adap-dpfl")
        ),
    ],
)
def test_a_run_computed_again_has_the_same_bits_and_the_same_sums(
    name: str, tmp_path: Path
) -> None:
    run = train(small_spec(name, rounds=2, clients_per_round=3), tmp_path)[0].run
    rerun = again(run)
    last = max(rerun.ledger.rounds)
    found = list(rerun.rounds(some(rerun, (0, last)), last))
    assert [one.problem for one in found] == [None] * len(found)
    for one in found:
        entry = rerun.ledger.rounds[one.round].entry
        assert one.digests == {name: entry[name] for name in one.digests}
        assert {"state_sha256", "participations_sha256"} <= set(one.digests)
        assert one.exact
        for part in one.participations:
            assert [len(set(batch)) for batch in part.batches] == [len(b) for b in part.batches]
            for query in part.queries():
                noisy = query.gradient.astype(np.float64) * query.divisor
                room = 0.5 * query.spacing + 2.0**-23 * np.abs(noisy)
                beyond = np.abs(noisy - query.noise - query.clean) - room
                assert np.linalg.norm(np.maximum(beyond, 0.0)) <= query.bound <= 1e-3
            if part.update is not None:
                update = part.update()
                off = np.linalg.norm(update.update.astype(np.float64) - update.reference)
                assert 0.0 < off <= update.bound <= 1e-3
    assert found[-1].published is True


def test_a_round_without_a_kept_state_is_reached_from_the_nearest(
    finished: RunDirectory, tmp_path: Path
) -> None:
    rerun = again(finished)
    drawn = some(rerun, (3,))
    assert (rerun.cost(drawn, 3).executed, rerun.cost(drawn, 3).rounds) == (1, 1)
    (finished.evidence / state_file(2)).rename(tmp_path / "kept")
    try:
        assert rerun.cost(drawn, 3).executed == 2
        (one,) = rerun.rounds(drawn, 3)
        assert one.problem is None
        assert one.digests["state_sha256"] == rerun.ledger.state_digest(4)
    finally:
        (tmp_path / "kept").rename(finished.evidence / state_file(2))


def test_a_state_that_is_not_the_ledgers_is_not_gone_on_from(finished: RunDirectory) -> None:
    path = finished.evidence / state_file(2)
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        (one,) = again(finished).rounds([], 3)
        assert one.problem == f"evidence/{path.name}: is not the state that the ledger names"
    finally:
        path.write_bytes(kept)


def test_another_seed_draws_other_batches(finished: RunDirectory) -> None:
    (one,) = again(finished, seed=2).rounds([], 3)
    assert (
        one.digests["participations_sha256"]
        != (again(finished).ledger.rounds[3].entry["participations_sha256"])
    )
    # The state before is kept, so that it is told how far away this leads.
    assert one.moved is not None
    assert one.moved > 0.1


def test_whom_the_key_does_not_draw_has_no_part_in_the_round(finished: RunDirectory) -> None:
    rerun = again(finished)
    others = set(range(5)) - set(rerun.ledger.rounds[3].entry["clients"])
    (one,) = rerun.rounds([(3, client) for client in others], 3)
    assert (one.problem, one.participations) == (None, ())
    assert others.isdisjoint(one.cohort or ())


def test_data_of_another_digest_are_refused(finished: RunDirectory, tmp_path: Path) -> None:
    copy = RunDirectory(tmp_path)
    lines = finished.ledger.read_text().splitlines()
    header = {**json.loads(lines[0]), "data_sha256": "0" * 64}
    copy.ledger.write_text("\n".join([json.dumps(header), *lines[1:]]))
    copy.spec.write_bytes(finished.spec.read_bytes())
    with pytest.raises(ReexecutionError, match="not the one whose digest is in the ledger"):
        again(copy)


def test_a_release_needs_the_key_that_the_ledger_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test())
    )
    spec = small_spec("dp-fedavg", rounds=2, clients_per_round=2, mode="release")
    run = train(spec, tmp_path)[0].run
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    ReleaseRandomness(key_of_a_test()).write_escrow(right)
    ReleaseRandomness(key_of_a_test(2)).write_escrow(wrong)
    (found,) = Rerun(run, escrowed([wrong, right]), CPU).rounds([], 1)
    assert found.published is True
    (refused,) = Rerun(run, escrowed([wrong]), CPU).rounds([], 1)
    assert refused.problem is not None
    assert "no key with the commitment" in refused.problem
