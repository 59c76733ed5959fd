"""Clients in processes of their own compute what they would in the run's own process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from dpfedadamw.federation.participation import Participation, Round
from dpfedadamw.federation.recorded import answered, recorded
from dpfedadamw.federation.stations import Asked
from dpfedadamw.privacy.noise.key_tree import PublicCoin
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, ReproducibleRandomness
from dpfedadamw.run import stations
from dpfedadamw.run import training as engine_run
from tests import runs


class ThroughAStation:
    """Runs clients as another process would: of what is asked, and of plain arrays, alone."""

    def __init__(self, training, folder):
        worker = training.federation.worker
        self._worker = worker
        self._folder = training.run.stations
        self._folder.mkdir()
        opening = stations.Opening(
            run=str(training.run.path),
            place=str(folder),
            device="cpu",
            engine=worker.performance.engine,
            threads=torch.get_num_threads(),
            commitments="blake3",
        )
        self._station, self._spec = stations.open_station(
            stations.Opening(**json.loads(opening.to_json())), self._folder
        )

    def answers(self, parts):
        for part in parts:
            source = stations.source_of(self._spec, stations.keys_of(part, self._worker.randomness))
            asked = Asked(**dataclasses.asdict(Asked.of(part)))
            there = self._station.answer(asked, part.current.message, part.memory, source)
            shared = self._station.worker.unit.take_shared()
            unit = self._worker.unit
            here = answered(
                there.message, recorded(there), unit.evidence_of_client(), torch.device("cpu")
            )
            unit.add_shared(shared)
            yield here

    def close(self):
        shutil.rmtree(self._folder, ignore_errors=True)


def trained(spec, folder, elsewhere):
    training = runs.begin(spec, folder)
    if elsewhere:
        runner = ThroughAStation(training, folder)
        training.federation = dataclasses.replace(training.federation, elsewhere=runner)
    with training.lock:
        engine_run.train(training, before_claim=runs.probed)
    runs.filing.attest_training(training.run, runs.filing.load_signers(None, None))
    return training.run


def content(run):
    """The model's digest, and all of the ledger but what belongs to one run."""
    own = {
        "digest",
        "previous",
        "created",
        "run",
        "selection_sha256",
        "contents_sha256",
        "participations_sha256",
    }
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    model = hashlib.sha256(run.weights.read_bytes()).hexdigest()
    return model, [{k: v for k, v in line.items() if k not in own} for line in lines]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-scaffold", "client", "fedavg"])
def test_a_station_gives_the_same_model_the_same_charges_and_evidence_that_passes(
    algorithm, tmp_path, monkeypatch
):
    # What a station opens stays as it is for this process.
    monkeypatch.chdir(tmp_path)
    changes = ()
    if algorithm == "client":
        algorithm, changes = "dp-fedsam", ("privacy.noise_added_by=clients",)
        changes = (f"privacy={runs.CLIENT_LEVEL}", *changes, "federation.client_sampling=poisson")
    spec = runs.small_spec(algorithm, rounds=2, overrides=changes)
    here = trained(spec, tmp_path / "here", elsewhere=False)
    there = trained(spec, tmp_path / "there", elsewhere=True)
    assert content(there) == content(here)
    found = runs.filing.audit(there).to_json()
    assert found["verdict"] == ("NO CLAIM" if algorithm == "fedavg" else "PASS"), runs.failing(
        found
    )


def test_the_keys_of_one_participation_open_its_streams_and_no_others():
    source = ReleaseRandomness(runs.key_of_a_test(), PublicCoin(b"n" * 32, "a-run"))
    spec = runs.small_spec(mode="release")
    part = Participation(current=_round(3), place=0, client=2, memory={})
    keys = stations.keys_of(part, source)
    opened = stations.source_of(spec, keys)
    whole = ReleaseRandomness(runs.key_of_a_test(), PublicCoin(b"n" * 32, "a-run"))
    for purpose in ("batches", "noise"):
        same = opened.stream(purpose, 3, 2, 1, b"h" * 32).normal(8)
        assert (same == whole.stream(purpose, 3, 2, 1, b"h" * 32).normal(8)).all()
    other = opened.stream("noise", 3, 1, 1, b"h" * 32).normal(8)
    assert (other != whole.stream("noise", 3, 1, 1, b"h" * 32).normal(8)).any()
    assert runs.key_of_a_test() not in keys.values()


@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-fedsam"])
def test_in_release_mode_all_noise_of_an_upload_follows_from_the_key_that_is_sent(
    algorithm, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    changes = ()
    if algorithm == "dp-fedsam":
        # All records in each batch: noise is the only chance that there is.
        changes = (f"privacy={runs.CLIENT_LEVEL}", "privacy.noise_added_by=clients")
    spec = runs.small_spec(algorithm, rounds=1, mode="release", overrides=changes)
    training = runs.begin(spec, tmp_path)
    station = ThroughAStation(training, tmp_path)._station
    seen = []

    class Watching:
        def answers(self, parts):
            part = parts[0]
            asked = Asked.of(part)
            for number in (1, 2, 1):
                keys = stations.keys_of(part, ReleaseRandomness(runs.key_of_a_test(number)))
                source = stations.source_of(spec, keys)
                seen.append(station.answer(asked, part.current.message, {}, source).message)
            raise RuntimeError("seen")

        def close(self):
            pass

    training.federation = dataclasses.replace(training.federation, elsewhere=Watching())
    with training.lock, pytest.raises(RuntimeError, match="seen"):
        engine_run.train(training)
    assert seen[0] == seen[2] != seen[1]


def test_a_published_seed_needs_no_key():
    source = ReproducibleRandomness(4)
    part = Participation(current=_round(0), place=0, client=0, memory={})
    keys = stations.keys_of(part, source)
    assert keys == {}
    opened = stations.source_of(runs.small_spec(seed=4), keys)
    assert (opened.stream("noise", 0, 0).normal(4) == source.stream("noise", 0, 0).normal(4)).all()


def _round(index):
    return Round(
        index=index, attempt=1, plan=None, chosen=(2,), broadcast=None, message=b"", state=None
    )


def test_a_station_reads_the_paths_of_a_spec_from_where_the_run_was_begun(tmp_path, monkeypatch):
    training = runs.begin(runs.small_spec(), tmp_path)
    begun, scratch, elsewhere = (tmp_path / name for name in ("begun", "scratch", "elsewhere"))
    for folder in (begun, scratch, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(elsewhere)
    threads: list[int] = []
    monkeypatch.setattr(stations.torch, "set_num_threads", threads.append)
    stations.open_station(
        stations.Opening(
            run=str(training.run.path),
            place=str(begun),
            device="cpu",
            engine="auto",
            threads=3,
            commitments="blake3",
        ),
        scratch,
    )
    assert Path.cwd() == begun
    # As many as the run's own process has, because sums are cut up by threads.
    assert threads == [3]
    training.lock.release()
