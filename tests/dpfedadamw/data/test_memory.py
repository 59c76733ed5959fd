"""A data set far larger than what a step may take of memory still trains."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

_SPEC = """
version: 1
name: large
data:
  {dataset: arrays, path: PATH, clients: 50, partition: {kind: dirichlet, minimum_records: 100}}
model: {name: cnn, channels: [4, 4], groups: 2}
algorithm: {name: dp-fedadamw, learning_rate: 0.01}
federation: {rounds: 1, clients_per_round: 5, local_steps: 2}
privacy:
  {unit: record, clipping_norm: 1.0, noise_multiplier: 1.0, delta: 1.0e-5,
   sampling: {kind: poisson, expected_batch_size: 16}}
evaluation: {every: 1}
"""
# A process of its own, because the peak of one that ran other tests says nothing. Anonymous memory
# is what must not grow; pages of a mapped file can be dropped at any time.
_STEP = """
import sys, torch
from pathlib import Path
from dpfedadamw import spec
from dpfedadamw.experiment import prepare
from dpfedadamw.run import training as run
from dpfedadamw.run import setup

def resident(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 1024

loaded = spec.load(sys.argv[1])
before = resident("RssAnon"), resident("VmRSS")
training = setup.start(prepare(loaded, torch.device("cpu")), Path(sys.argv[2]))
with training.lock:
    run.train(training)
print(resident("RssAnon") - before[0], resident("VmHWM") - before[1])
"""


@pytest.mark.slow
def test_a_gigabyte_of_records_trains_in_a_fraction_of_it(tmp_path):
    records, shape = 330_000, (3, 32, 32)
    generator = np.random.default_rng(0)
    # Written piece by piece: the test itself must not need the memory either.
    stored = np.lib.format.open_memmap(tmp_path / "x_train.npy", "w+", np.uint8, (records, *shape))
    for start in range(0, records, 10_000):
        stored[start : start + 10_000] = generator.integers(0, 256, (10_000, *shape), np.uint8)
    del stored
    np.save(tmp_path / "y_train.npy", generator.integers(0, 10, records))
    np.save(tmp_path / "x_test.npy", generator.integers(0, 256, (500, *shape), np.uint8))
    np.save(tmp_path / "y_test.npy", generator.integers(0, 10, 500))
    names = ["x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy"]
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-c", "large.npz", *names], cwd=tmp_path, check=True
    )
    assert (tmp_path / "large.npz").stat().st_size > 0.3e9
    (tmp_path / "spec.yaml").write_text(_SPEC.replace("PATH", str(tmp_path / "large.npz")))
    size = records * np.prod(shape) / 2**20
    for _ in ("reading anew", "from the cache"):
        done = subprocess.run(
            [sys.executable, "-c", _STEP, tmp_path / "spec.yaml", tmp_path / "runs"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )
        grown, peak = map(float, done.stdout.split())
        print(f"{size:.0f} MiB of records: anonymous memory +{grown:.0f} MiB, peak +{peak:.0f} MiB")
        # What torch takes for a model and a batch is about 100 MiB.
        assert grown < size / 4
        assert peak < size / 2
