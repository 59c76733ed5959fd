"""Opens a station: a process that computes clients of a run that another process leads.

It reads the run's resolved spec and the data that the spec names, as a resumed run would, and notes
what its clients do in a scratch folder of its own, under the run's salt.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.participation import Participation
from dpfedadamw.federation.stations import Station
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.run.columns import of_run
from dpfedadamw.run.computing import divided, engine_of, performance_of, unit_of
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import Spec
from dpfedadamw.vectors.flat import FlatParameters


@dataclass(frozen=True)
class Opening:
    """What a process needs to open a station, as plain values.

    Attributes:
        run: The run's folder.
        place: The folder in which the run was begun.
        device: Where tensors live.
        engine: The clipped-sum engine that was asked for.
        threads: Threads of one operation, of which a sum's rounding depends.
        commitments: How participations are hashed.
        allow_code: Modules that the spec may name, as given to the process that leads the run.
    """

    run: str
    place: str
    device: str
    engine: str
    threads: int
    commitments: str
    allow_code: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The values as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Opening:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "allow_code": tuple(values["allow_code"])})


def open_station(opening: Opening, scratch: Path) -> tuple[Station, Spec]:
    """Read spec and data of a run, and make ready to compute its clients; with the spec.

    Args:
        opening: What it is made from.
        scratch: An empty folder that only its owner can read.
    """
    # Paths of a spec start where the run was begun.
    os.chdir(opening.place)
    torch.set_num_threads(opening.threads)
    run = RunDirectory(Path(opening.run))
    with allowing(opening.allow_code, closed=[run.path]):
        experiment = prepare(specs.load_filed(run.spec), torch.device(opening.device))
        experiment = of_run(experiment, run)
    performance = performance_of(experiment, opening.engine)
    engine = engine_of(experiment, performance)
    # Each participation comes with its own keys; without them, nothing is drawn.
    randomness = OpenedRandomness(lambda _round, _client: None, NO_COIN)
    # Commitments are keyed with the salt.
    shutil.copyfile(run.evidence / "salt", scratch / "salt")
    setup = UnitSetup(
        experiment=experiment,
        directory=scratch,
        completed=0,
        randomness=randomness,
        commitments=opening.commitments,
    )
    worker = Worker(
        rule=experiment.algorithm.local,
        unit=unit_of(experiment.plan).rounds.open(setup),
        engine=engine,
        flat=FlatParameters(experiment.model),
        randomness=randomness,
        performance=performance,
    )
    clients = len(experiment.plan.records)
    train, people = experiment.dataset.train, experiment.people
    held = divided(experiment, train, experiment.owner, clients, people)
    station = Station(plan=experiment.plan, worker=worker, clients=held, has_salt=True)
    return station, experiment.spec


def keys_of(part: Participation, source: RandomSource) -> dict[str, bytes]:
    """What opens the streams of one participation, and of no other: nothing where a seed does."""
    if not isinstance(source, ReleaseRandomness):
        return {}
    return {
        "leaf": source.leaf(part.current.index, part.client),
        "nonce": source.coin.nonce,
        "run": source.coin.run.encode(),
    }


def source_of(spec: Spec, keys: Mapping[str, Any]) -> RandomSource:
    """The streams that `keys_of` opens."""
    if not keys:
        return ReproducibleRandomness(spec.randomness.seed or 0)
    return OpenedRandomness(
        lambda _round, _client: keys["leaf"], PublicCoin(keys["nonce"], keys["run"].decode())
    )
