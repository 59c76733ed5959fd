"""A spec becomes an experiment: data, clients, model, algorithm and privacy plan, ready to run.

Nothing here touches a run's directory, so a spec that cannot run leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.algorithms import registry as algorithms
from dpfedadamw.algorithms.keys import SparsificationSpec
from dpfedadamw.data import datasets
from dpfedadamw.data.datasets import Dataset
from dpfedadamw.data.partition import partition
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.models import registry as models
from dpfedadamw.privacy.sampling import People
from dpfedadamw.profiling import part
from dpfedadamw.spec import Spec, filed
from dpfedadamw.tasks import Task
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import make_plan, solve_noise

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dpfedadamw.algorithms.base import Algorithm
    from dpfedadamw.vectors.sparsification import Sparsification


class RunError(DpfedadamwError):
    """A run cannot be started or continued."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a plan needs to know of the training records.

    Attributes:
        units: R_i of each client: its records, or its people where these are protected.
        most_records: Most training records of one person; None where nobody says or needs it.
    """

    units: tuple[int, ...]
    most_records: int | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A spec with its data, model, algorithm and privacy plan: ready to run.

    Attributes:
        spec: The resolved spec, its noise multiplier solved.
        dataset: Training and test records.
        owner: The client of each training record, int64 [n].
        model: The model, fresh weights.
        algorithm: Local and server rule.
        plan: The privacy plan.
        device: Where tensors live.
    """

    spec: Spec
    dataset: Dataset
    owner: NDArray[np.int64]
    model: nn.Module
    algorithm: Algorithm
    plan: RunPlan
    device: torch.device

    @property
    def people(self) -> People | None:
        """Whom the training records are about, where people are protected."""
        people, most = self.dataset.people_of_train, self.plan.records_per_person
        return None if people is None or most is None else People(people, most)


def pick_device(name: str) -> torch.device:
    """The device that ``--device`` names: "auto", "cpu", "cuda" or "mps".

    Norms, clipping factors and noise are computed in float64, so a device that has none is refused:
    at present that is what torch's Metal backend says of itself.

    Raises:
        RunError: If it is unknown, not there, or cannot compute what a record's bound rests on.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise RunError("--device mps: torch sees no Apple GPU (Metal) here; use --device cpu")
        try:
            torch.zeros(1, dtype=torch.float64, device=name)
        except (TypeError, RuntimeError):
            raise RunError(
                "--device mps: this torch has no float64 on Metal, in which norms, clipping and "
                "noise are computed; use --device cpu"
            ) from None
    if name not in ("cpu", "cuda", "mps"):
        raise RunError(f"--device {name}: unknown; use auto, cpu, cuda or mps")
    return torch.device(name)


def prepare(spec: Spec, device: torch.device) -> Experiment:
    """Read the data, divide it, build model and algorithm, and make the privacy plan.

    Solves for the noise multiplier where the spec gives ``target_epsilon``. Writes nothing.

    Args:
        spec: What to prepare.
        device: Where tensors live. On torch's device "meta" a model has shapes and no weights,
            which is enough for its plan and takes no memory.

    Raises:
        DpfedadamwError: If the spec cannot run; the message says what would be right.
    """
    spec = _pinned(spec)
    dataset, owner = divide(spec)
    if dataset.brings_test and spec.data.test_fraction is not None:
        # The auditor draws held-out records again where the spec promises that there are any.
        spec = spec.replace(data=spec.data.replace(test_fraction=None))
    return prepare_with(spec, dataset, owner, device)


def _pinned(spec: Spec) -> Spec:
    public = spec.evaluation.public_test
    if public is None:
        public = DATASETS[spec.data.dataset].published
    return spec.replace(
        model=models.MODELS[spec.model.name].pin(spec.model),
        evaluation=spec.evaluation.replace(public_test=public),
    )


def not_built(spec: Spec) -> str | None:
    """The code that a spec names to build its model by, which `foresee` and `check` never run."""
    return models.MODELS[spec.model.name].names_code(spec.model)


def prepare_with(
    spec: Spec,
    dataset: Dataset,
    owner: NDArray[np.int64],
    device: torch.device,
    counts: Counts | None = None,
) -> Experiment:
    """As `prepare`, for data that are read and divided already, or for the part known here.

    Args:
        spec: What to prepare.
        dataset: Training and test records; of those that are held elsewhere, their number, shape
            and type are enough.
        owner: The client of each training record, int64 [n].
        device: Where tensors live.
        counts: Of records that are held elsewhere; None where they are counted here.

    Raises:
        DpfedadamwError: If the spec cannot run; the message says what would be right.
    """
    model = _built(spec, dataset, device)
    algorithm = algorithms.build(
        spec.algorithm, model, spec.data.clients, spec.data.seed, spec.privacy.clipping_norm
    )
    counts = _counted(spec, dataset, owner) if counts is None else counts
    spec, plan = _planned(spec, counts, algorithm.local.queries_per_step, algorithm.sparsification)
    return Experiment(
        spec=spec,
        dataset=dataset,
        owner=owner,
        model=model.to(device),
        algorithm=algorithm,
        plan=plan,
        device=device,
    )


def foresee(spec: Spec) -> RunPlan:
    """The privacy plan of a spec as `prepare` makes it, and refused where that would refuse.

    A model is built only where that can change the plan or be refused, and torch is loaded only
    where one is built: not for the models of this package that are made from keys alone, unless
    updates are cut to some of their coordinates.

    A model that is built by code which the spec names is not built at all. What is charged does
    not depend on it; which coordinates of an update are kept is left out of the plan.

    Raises:
        DpfedadamwError: If the spec cannot run; the message says what would be right.
    """
    model, algorithm = models.MODELS[spec.model.name], algorithms.ALGORITHMS[spec.algorithm.name]
    whole = spec.algorithm.part(SparsificationSpec) is None
    dataset, owner = divide(spec)
    if model.names_code(spec.model) is None:
        # What another package assembles may be refused for any reason.
        if model.reads is None or not whole or algorithms.ALGORITHMS.origin(algorithm.name):
            import torch

            return prepare_with(_pinned(spec), dataset, owner, torch.device("meta")).plan
        model.reads(spec.model, dataset.input_shape)
    counts = _counted(spec, dataset, owner)
    return _planned(spec, counts, algorithm.queries_per_step, None)[1]


def read_inputs(spec: Spec) -> None:
    """Read a spec's data, and build its model where it is made of files: what a run does first.

    Raises:
        DpfedadamwError: If they cannot be read, or the model cannot read such records; the message
            is that of the run.
    """
    dataset, reads = read_data(spec), models.MODELS[spec.model.name].reads
    if reads is not None:
        reads(spec.model, dataset.input_shape)
    else:
        import torch

        _built(spec, dataset, torch.device("meta"))


def _built(spec: Spec, dataset: Dataset, device: torch.device) -> nn.Module:
    """The spec's model; on the device "meta" without weights of its own."""
    # Published weights are loaded all the same: without them, the spec cannot run.
    entry = models.MODELS[spec.model.name]
    shapes_alone = entry.on_meta and entry.without_weights(spec.model) == spec.model
    with device if device.type == "meta" and shapes_alone else contextlib.nullcontext():
        seed = _model_seed(spec)
        return models.build(spec.model, dataset.input_shape, dataset.classes, seed, dataset.task)


def _counted(spec: Spec, dataset: Dataset, owner: NDArray[np.int64]) -> Counts:
    people, most = dataset.people_of_train, None
    if people is not None:
        most = int(np.unique(people, return_counts=True)[1].max())
    return Counts(units=_sizes(spec, owner, dataset), most_records=most)


def _sizes(spec: Spec, owner: NDArray[np.int64], dataset: Dataset) -> tuple[int, ...]:
    """R_i of each client: its records, or its people where these are protected.

    Raises:
        RunError: If somebody has records at more clients than the claim is to cover.
    """
    if spec.privacy.unit == "person":
        people, most = dataset.people_of_train, spec.federation.clients_per_person
        assert people is not None
        person, owner = np.unique(np.stack([people, owner]), axis=1)
        at = np.unique(person, return_counts=True)[1]
        if at.max() > most:
            over, farthest = int(np.count_nonzero(at > most)), int(at.max())
            raise RunError(
                f"federation.clients_per_person: is {most}, but {over:,} of the {len(at):,} people "
                f"have records at more clients, {farthest} at most; use {farthest}, or a partition "
                "by people"
            )
    return tuple(int(n) for n in np.bincount(owner, minlength=spec.data.clients))


def _planned(
    spec: Spec, counts: Counts, queries: int, sparsification: Sparsification | None
) -> tuple[Spec, RunPlan]:
    """The spec with its noise multiplier solved, and its plan."""
    spec = solve_noise(spec, counts.units, queries)
    filed(spec)
    plan = make_plan(spec, counts.units, queries, sparsification)
    if counts.most_records is not None:
        kept = getattr(spec.data, "most_records_per_person", None)
        most = counts.most_records if kept is None else kept
        plan = replace(plan, most_records=most, keeps_most_records=kept is not None)
    # From here on it is certain that the run's claim can be made.
    plan.check_cost()
    return spec, plan


def check(spec: Spec) -> str | None:
    """Refuse what a run of the spec would refuse, by foreseeing one.

    Where its data are not on this machine, what needs no record is checked alone.

    Returns:
        Which data are not here, or None where nothing was left unchecked.

    Raises:
        DpfedadamwError: If the spec cannot run; the message is that of the run.
    """
    absent = datasets.absent(spec.data)
    if absent is None:
        foresee(spec)
        return None
    filed(spec)
    if spec.privacy.unit == "client":
        # What a client is charged does not depend on how many records it has.
        records = (1,) * spec.data.clients
        make_plan(solve_noise(spec, records, 1), records, 1).check_cost()
    return absent


@part("data")
def divide(spec: Spec) -> tuple[Dataset, NDArray[np.int64]]:
    """The data set as the spec's model reads it, and the client of each training record, [n].

    Raises:
        DpfedadamwError: If it cannot be read or divided.
    """
    dataset = read_data(spec)
    people = dataset.people_of_train
    return dataset, partition(spec.data, dataset.strata, dataset.clients, people)


def read_data(spec: Spec) -> Dataset:
    """The spec's data, as its model reads them.

    Raises:
        DpfedadamwError: If they cannot be read.
    """
    task = Task(spec.task)
    return datasets.load(spec.data, models.preprocessing(spec.model, task), task)


def _model_seed(spec: Spec) -> int:
    """A public seed for the initial weights, which depend on no record."""
    seed = f"initial weights {spec.data.seed} {spec.randomness.seed}"
    if spec.model.seed is not None:
        seed = f"initial weights {spec.model.seed}"
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
