"""An algorithm that a run is given: in the place of the spec's, for this run, and no longer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dpfedadamw import api
from dpfedadamw.algorithms.base import Algorithm, Upload
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import ALGORITHMS, AlgorithmEntry
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.registration import RegistrationError
from dpfedadamw.spec.section import key
from tests.runs import small_spec

SMALL = small_spec(rounds=2, clients_per_round=2).to_mapping()


@dataclass(frozen=True)
class HeavyBall:
    """Local steps along a moving sum."""

    momentum: float
    queries_per_step: int = 1

    def run(self, broadcast, oracle, observer):
        direction = broadcast.parameters.new_zeros(len(broadcast.parameters))

        def heavier(parameters):
            return direction.mul_(self.momentum).add_(oracle.gradient(parameters))

        return Upload(descend(broadcast, oracle, 0.0, heavier))


def heavy_ball(name="heavy-ball", default=0.5):
    """An entry, as a notebook's cell makes a new one whenever it is run."""

    class HeavyKeys(DescentKeys, title="Heavy ball"):
        """Local steps along a moving sum of noised gradients."""

        momentum: float = key(default, "Share of the last direction that is kept.", ge=0, lt=1)

    return AlgorithmEntry(
        name=name,
        keys=HeavyKeys,
        units=("record",),
        summary="local DP-SGD with momentum",
        source="Polyak 1964",
        assemble=lambda setup: Algorithm(HeavyBall(setup.spec.momentum), Averaging({}, False)),
    )


def test_a_run_is_given_an_algorithm_cut_off_and_taken_up_again(tmp_path):
    def stop(done):
        raise RuntimeError("enough")

    entry = heavy_ball()
    changes = ["algorithm.learning_rate=0.1"]
    with pytest.raises(RuntimeError, match="enough"):
        api.run(SMALL, algorithm=entry, changes=changes, out=tmp_path, callbacks=[stop])
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink())
    assert "heavy-ball" not in ALGORITHMS
    with pytest.raises(api.SpecError, match="heavy-ball"):
        api.resume(path)
    seen = []
    run = api.resume(path, algorithm=entry, callbacks=[seen.append])
    assert [one.completed for one in seen] == [2]
    assert seen[0].epsilon == pytest.approx(run.epsilon)
    # Nobody but its author has said what its clients must upload.
    assert run.verdict == "NOT VERIFIED"
    assert run.audit().to_json()["verdict"] == "NOT VERIFIED"
    assert "learning_rate: 0.1" in (run.path / "spec.yaml").read_text()
    assert "momentum: 0.5" in (run.path / "spec.yaml").read_text()


def test_the_same_name_with_other_keys_is_what_is_given_now():
    given = [heavy_ball(), heavy_ball(default=0.25)]
    found = []
    for entry in given:
        with ALGORITHMS.lent(entry):
            spec = {**SMALL, "algorithm": {"name": "heavy-ball"}}
            found.append(api.running.specs.read(spec).algorithm.momentum)
    assert found == [0.5, 0.25]


def test_what_cannot_be_given_is_refused_before_anything_is_written(tmp_path):
    def run(**more):
        api.run(SMALL, out=tmp_path / "runs", **more)

    with pytest.raises(RegistrationError, match="the algorithm dp-fedavg is registered twice"):
        run(algorithm=heavy_ball("dp-fedavg"))
    with pytest.raises(RegistrationError, match="algorithm: HeavyBall is no AlgorithmEntry"):
        run(algorithm=HeavyBall(0.5))
    with pytest.raises(api.DpfedadamwError, match="passed from Python, but changes name dp-fedavg"):
        run(algorithm=heavy_ball(), changes=["algorithm={name: dp-fedavg}"])
    with pytest.raises(api.DpfedadamwError, match=r"this process only; use federation\.workers 1"):
        run(algorithm=heavy_ball(), changes=["federation.workers=2"])
    with pytest.raises(TypeError, match="no option 'algoritm'; there are model, loss, data"):
        run(algoritm=heavy_ball())
    assert not (tmp_path / "runs").exists()
