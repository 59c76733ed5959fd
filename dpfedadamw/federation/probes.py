"""What the auditor pokes at: the real private step and round, on data of its own choosing.

Both begin where the run begins, at rows that are divided among clients, and end with what the step
or the round answers; the parts in between are the run's own. What is left out is the noise alone:
the probe's plan has none. A plan without noise can charge no ledger, and no round runs under it
(`Federation` refuses it), so that nothing here can turn off the noise of a training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.data.datasets import Records
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.registry import synthetic_records
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness, Stream
from dpfedadamw.privacy.oracle import Batch, Inputs
from dpfedadamw.privacy.sampling import Indices, People
from dpfedadamw.vectors.flat import in_pieces

# Steps of a probed client: what one step leaves behind shows in the next.
_MOST_STEPS = 2
_SEED = 0

Divide = Callable[
    [Experiment, Records, NDArray[np.int64], int, People | None], Sequence[ClientData]
]


@dataclass(frozen=True)
class ProbedRun:
    """The part of a run that is probed.

    Attributes:
        experiment: What is run.
        worker: Runs clients.
        state: The server's state.
        divide: Divides records [n] by their owners [n] among so many clients, as the run does.
    """

    experiment: Experiment
    worker: Worker
    state: ServerState
    divide: Divide

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record as it is stored."""
        return tuple(self.experiment.dataset.train.inputs.values.shape[1:])

    @property
    def grey_levels(self) -> bool:
        """Whether records are stored as whole numbers from 0 to 255."""
        return self.experiment.dataset.train.inputs.values.dtype == np.uint8

    def clients(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        people: NDArray[np.int64] | None = None,
    ) -> Sequence[ClientData]:
        """Synthetic records [n, …] in the place of the data set's, divided among the clients.

        Where people are protected, ``people`` says whom each is about; None for one each.
        """
        stored = self.experiment.dataset.train.inputs
        values: NDArray[Any] = inputs
        if values.dtype != np.uint8:
            read = synthetic_records(self.experiment.model, torch.from_numpy(values))
            values = read.numpy()
        # The auditor tells targets apart by numbers; what they are, the task says.
        targets = self.experiment.dataset.made_up(labels)
        records = Records(replace(stored, values=values, rows=None), targets)
        most, about = self.experiment.plan.records_per_person, None
        if most is not None:
            about = People(np.arange(len(labels)) if people is None else people, most)
        number = int(clients.max(initial=0)) + 1
        return self.divide(self.experiment, records, clients, number, about)

    def parameters(self, elsewhere: bool) -> Tensor:
        """θ [d], the model's own, which is nobody's to change, or others."""
        vector = self.state.parameters.detach()
        return vector.mul(0.5).add_(0.05) if elsewhere else vector

    def parameters_far_off(self) -> Tensor:
        """Parameters [d] of another sign and size than the model's."""
        return self.state.parameters.detach().mul(-3.0).add_(4.0)


@dataclass(frozen=True)
class _Given:
    """A sampler that draws what the auditor says.

    Attributes:
        drawn: The batch.
        divisor: B of the run's own sampler.
    """

    drawn: Indices
    divisor: float
    event_kind: ClassVar[str] = "given"
    adjacency: ClassVar[tuple[str, ...]] = ()

    def rate(self, _records: int) -> float:
        return 1.0

    def charged_steps(self, _records: int, local_steps: int) -> int:
        return local_steps

    def normaliser(self, _records: int) -> float:
        return self.divisor

    def draw(self, _records: int, _stream: Stream) -> Indices:
        return self.drawn

    def batches(self, records: int, stream: Stream) -> Iterator[Indices]:
        while True:
            yield self.draw(records, stream)


class _Alike(Stream):
    """A stream that gives the same number however many are asked for at once.

    Views are drawn for a whole batch. Drawn alike, a record's view depends neither on its place nor
    on how many others there are: in a run views are independent, and this is one way to draw them.
    """

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self._calls = 0

    def integers(self, high: int, n: int) -> NDArray[np.int64]:
        """N whole numbers in 0…high-1."""
        self._calls += 1
        return np.full(n, np.random.default_rng([_SEED, self._calls]).integers(high), np.int64)


@dataclass(frozen=True)
class _Selected:
    """The inputs of a step, read in float64 where they are numbers.

    Attributes:
        batch: The same as the run reads them.
    """

    batch: Batch

    def __getitem__(self, part: slice) -> Tensor:
        values = self.batch[part]
        return values.double() if values.is_floating_point() else values


@dataclass(frozen=True)
class _ReadInFloat64:
    """A client's inputs, read in float64 where they are numbers.

    Attributes:
        inputs: The same as the run reads them.
    """

    inputs: Inputs

    def __getitem__(self, chosen: Tensor) -> _Selected:
        return _Selected(self.inputs[chosen])


@dataclass(frozen=True)
class _InFloat64(ClientData):
    """A client whose records are read in float64 where they are numbers."""

    def seen_with(self, views: Stream) -> Inputs:
        return _ReadInFloat64(super().seen_with(views))


class StepProbe:
    """One step of one client: from the rows of all clients to the oracle's answer.

    Attributes:
        clipping_norm: C.
        parameters: d, length of a clipped sum.
        input_shape: Shape of one record as it is stored.
        classes: Number of different targets that records may have.
        grey_levels: Whether records are stored as whole numbers from 0 to 255.
        records_per_person: Most records of one person that a step uses, where people are protected;
            None elsewhere.
    """

    def __init__(self, run: ProbedRun) -> None:
        self.clipping_norm = run.experiment.plan.clipping_norm
        self.records_per_person = run.experiment.plan.records_per_person
        self.parameters = run.worker.flat.layout.size
        self.input_shape = run.input_shape
        self.classes = run.experiment.dataset.kinds_made_up
        self.grey_levels = run.grey_levels
        self._run = run

    def sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
        elsewhere: bool = False,
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """B times the answer of client 0's step, [d], in the precision of the run.

        Args:
            inputs: Records [n, …] of all clients.
            labels: [n].
            clients: Whose each record is, [n].
            drawn: Which of client 0's records the step draws, [b].
            elsewhere: Whether to ask at other parameters than the model's.
        """
        client = self._run.clients(inputs, labels, clients)[0]
        return self._sum(client, drawn, self._run.parameters(elsewhere))

    def sum_of_step_of_people(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        people: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """B times the answer of client 0's step where people are protected, [d].

        Args:
            inputs: Records [n, …] of all clients.
            labels: [n].
            clients: Whose each record is, [n].
            people: Whom it is about, [n].
            drawn: Which of client 0's people the step draws, by their order among them, [b].
        """
        client = self._run.clients(inputs, labels, clients, people)[0]
        return self._sum(client, drawn, self._run.parameters(elsewhere=False))

    def sum_of_step_far_off(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """The same sum at parameters far from the model's, [d]."""
        client = self._run.clients(inputs, labels, clients)[0]
        return self._sum(client, drawn, self._run.parameters_far_off())

    def precise_sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """The same sum where the same model, engine and rule compute in float64, float64 [d].

        Only the arithmetic differs: what rounding alone moves is gone here, and whatever one record
        does to another is not.
        """
        client = self._run.clients(inputs, labels, clients)[0]
        with self._run.worker.flat.in_float64():
            wide = _InFloat64(client.inputs, client.labels, client.people)
            told = self._sum(wide, drawn, self._run.parameters(elsewhere=False).double())
        return told.astype(np.float64)

    def _sum(
        self, client: ClientData, drawn: NDArray[np.int64], parameters: Tensor
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """B times the answer of the client's step at θ [d], [d]."""
        run, plan = self._run, self._run.experiment.plan
        divisor = plan.divisor(0)
        silent = replace(plan, sampling=_Given(drawn, divisor), noise_multiplier=0.0)
        randomness = ReproducibleRandomness(_SEED)

        def stream(purpose: str) -> Stream:
            return _Alike() if purpose == "views" else randomness.stream(purpose, 0, 0)

        oracle = run.worker.oracle(
            plan=silent,
            client=0,
            data=client,
            local_steps=1,
            stream=stream,
            evidence=None,
        )
        oracle.next_batch()
        answer = oracle.gradient(parameters)
        # In place, and in its own precision: a long vector of another one costs memory each time.
        total = answer.detach()
        in_pieces(total, lambda part, _: total[part].mul_(divisor))
        told: NDArray[np.float32] | NDArray[np.float64] = total.cpu().numpy()
        return told
