"""Servers that do more than combine, weights that are not the last round's, and what is left over.

Each fault is planted at record level and, where it applies, at client level. `larger` gives the
same fault in a model of 19,210 parameters, of whose run only a share is kept as evidence.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from dpfedadamw.algorithms import averaging as averages
from dpfedadamw.algorithms.averaging import AveragedModel
from dpfedadamw.algorithms.base import Broadcast, ServerState
from dpfedadamw.evidence.client_level import ClientLevelEvidence
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.federation import rounds as federation_rounds
from dpfedadamw.federation.rounds import Federation, RoundResult
from dpfedadamw.models import registry as models
from dpfedadamw.run import checkpoints
from dpfedadamw.run.training import Training
from dpfedadamw.spec import Spec
from tests.faults.fault import Fault, FaultGroup, Findings, Patch, filed, unpatched, with_training
from tests.runs import small_spec, train

# Ten steps, so that so few whole participations are kept that no round has all of its own.
LARGER = ("model.hidden=[256]", "federation.local_steps=10")
# The published model is the average of the last rounds' models, later ones weighing more.
AVERAGED = "algorithm.server.averaging=8"
Change = Callable[[ServerState, Broadcast], Tensor]


def on_records() -> Spec:
    return small_spec("dp-fedavg")


def on_clients() -> Spec:
    return small_spec("blur", rounds=10)


def larger(fault: Fault) -> Fault:
    """The same in a model of 19,210 parameters and as many rounds as do not all fit."""
    if fault.spec is on_records:
        spec = small_spec("dp-fedavg", rounds=20, overrides=LARGER)
    elif fault.spec is averaging:
        spec = small_spec("dp-fedavg", rounds=20, overrides=(*LARGER, AVERAGED))
    else:
        spec = small_spec("blur", rounds=150, overrides=LARGER)
    return dataclasses.replace(fault, name=f"{fault.name}-larger", spec=lambda: spec)


@dataclasses.dataclass(frozen=True)
class Meddling:
    """A server that combines correctly, and then changes the parameters."""

    server: Any
    change: Change

    def start(self, parameters: Tensor) -> ServerState:
        return self.server.start(parameters)

    def combine(self, state: ServerState, uploads: Any, broadcast: Broadcast) -> ServerState:
        combined = self.server.combine(state, uploads, broadcast)
        return dataclasses.replace(combined, parameters=self.change(combined, broadcast))


def meddled(spec: Spec, folder: Path, change: Callable[[Training], Change]) -> Findings:
    """Findings on a run whose server meddles."""

    def prepare(training: Training) -> None:
        federation = training.federation
        server = Meddling(federation.server, change(training))
        training.federation = dataclasses.replace(federation, server=server)

    return with_training(spec, folder, prepare)


# The noise of a round, noted by whoever adds it and read by a server that should not know it.
_NOISE: list[Tensor] = []


def noting_the_noise(patch: Patch) -> None:
    _NOISE.clear()
    query, write_round = ClientEvidence.query, ClientLevelEvidence.write_round

    def of_a_query(self, real):
        _NOISE.append((real.noisy_sum - real.clean_sum) / real.divisor)
        query(self, real)

    def of_a_round(self, index, attempt, clients, release, *rest):
        _NOISE.append((release.noisy_sum - release.clean_sum) / release.divisor)
        write_round(self, index, attempt, clients, release, *rest)

    patch.setattr(ClientEvidence, "query", of_a_query)
    patch.setattr(ClientLevelEvidence, "write_round", of_a_round)


def without_the_noise(training: Training) -> Change:
    private = training.experiment.plan.unit.name == "record"

    def change(combined: ServerState, broadcast: Broadcast) -> Tensor:
        total = torch.stack(_NOISE).sum(0).to(combined.parameters.dtype)
        _NOISE.clear()
        # Record level: θ moved by −η·mean of the clients' noised gradients.
        share = -broadcast.learning_rate / 4.0 if private else 1.0
        return combined.parameters - share * total

    return change


def trained_without_noise(training: Training, steps: int = 5) -> Tensor:
    """The parameters of the same model after plain gradient descent on all records."""
    model = copy.deepcopy(training.experiment.model)
    clients = training.federation.clients
    inputs = torch.cat([one.inputs[torch.arange(len(one.labels))][:] for one in clients])
    labels = torch.cat([one.labels for one in clients])
    moved = [one for one in model.parameters() if one.requires_grad]
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        for one, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
            one.data -= 0.5 * gradient
    return torch.cat([one.detach().reshape(-1) for one in moved])


def averaged_with_another(training: Training) -> Change:
    plain = trained_without_noise(training)
    return lambda combined, _: 0.9 * combined.parameters + 0.1 * plain


def best_round_published(patch: Patch) -> None:
    """After the last round an earlier one is written out, as early stopping does."""
    seen: list[Tensor] = []
    run, write = Federation.run, checkpoints.write_weights

    def noted(self, *some: Any) -> Iterator[RoundResult]:
        for result in run(self, *some):
            seen.append(result.state.parameters.clone())
            yield result

    def another(path: Path, model: nn.Module) -> None:
        best, start = seen[len(seen) // 2], 0
        for one in model.parameters():
            one.data.copy_(best[start : start + one.numel()].view_as(one))
            start += one.numel()
        write(path, model)

    patch.setattr(Federation, "run", noted)
    patch.setattr(checkpoints, "write_weights", another)


def averaging() -> Spec:
    return small_spec("dp-fedavg", overrides=(AVERAGED,))


def last_model_published(patch: Patch) -> None:
    """The average is kept and sent, but nobody evaluates or publishes it."""
    patch.setattr(federation_rounds, "released", lambda state: state.parameters)


def averaged_evenly(patch: Patch) -> None:
    """All rounds count alike, whatever the spec says."""
    patch.setattr(averages, "AveragedModel", lambda inner, power: AveragedModel(inner, 0.0))


def under_other_names(patch: Patch) -> None:
    """Another model, under the names that a wrapper for several devices gives its tensors."""

    def another(path: Path, model: nn.Module) -> None:
        tensors = {f"module.{name}": 2.0 * one for name, one in model.state_dict().items()}
        path.write_bytes(save(tensors, metadata={"format": "pt"}))

    patch.setattr(checkpoints, "write_weights", another)


def leaving_a_clean_gradient(spec: Spec, folder: Path) -> Findings:
    """A state that a finished run leaves behind, with what a client's optimiser remembers."""
    training, _ = train(spec, folder)
    left = training.run.checkpoint / "state-00003.safetensors"
    left.parent.mkdir()
    save_file({"exp_avg": trained_without_noise(training, 1) - training.flat.vector}, left)
    return filed(training)


def _at_both_levels(
    name: str,
    breaks: str,
    seen: str,
    check: str,
    patch: Callable[[Patch], None] = unpatched,
    change: Callable[[Training], Change] | None = None,
    judge: Callable[[Spec, Path], Findings] | None = None,
    says: str = "",
) -> tuple[Fault, ...]:
    judged = {}
    if change is not None:
        judged["judge"] = lambda spec, folder: meddled(spec, folder, change)
    elif judge is not None:
        judged["judge"] = judge
    return tuple(
        Fault(f"{name}-of-{level}", breaks, seen, (check,), spec, patch, says=says, **judged)
        for level, spec in (("records", on_records), ("clients", on_clients))
    )


class Behind(nn.Module):
    """A model behind a layer that is said to be frozen, as a backbone is with low-rank pairs."""

    def __init__(self, model: nn.Module, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        nn.init.eye_(self.frozen.weight)
        self.model = model
        self.record_task = model.record_task

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(self.frozen(inputs.flatten(1)).view_as(inputs))


def backbone_moved(patch: Patch) -> None:
    """Between rounds the frozen layer follows plain gradients; at the end it is put back."""
    build, one_round, write = models.build, Federation._round, checkpoints.write_weights

    def behind(spec, shape, *asked):
        return Behind(build(spec, shape, *asked), math.prod(shape))

    def moved(self, *asked):
        result, module = one_round(self, *asked), self.worker.flat.module
        held = [
            (each.inputs[torch.arange(len(each.labels))][:], each.labels) for each in self.clients
        ]
        weight = module.frozen.weight.detach().requires_grad_()
        answers = torch.func.functional_call(
            module, {"frozen.weight": weight}, torch.cat([inputs for inputs, _ in held])
        )
        loss = nn.functional.cross_entropy(answers, torch.cat([labels for _, labels in held]))
        module.frozen.weight.data -= 0.5 * torch.autograd.grad(loss, weight)[0]
        return result

    def put_back(path, model):
        nn.init.eye_(model.frozen.weight)
        write(path, model)

    patch.setattr(models, "build", behind)
    patch.setattr(Federation, "_round", moved)
    patch.setattr(checkpoints, "write_weights", put_back)


def divergence_made_up(_training: Training) -> Change:
    """The second round is said to have diverged, as somebody does who likes not what comes out."""
    rounds: list[int] = []

    def change(combined: ServerState, _broadcast: Broadcast) -> Tensor:
        rounds.append(len(rounds))
        whole = combined.parameters
        return torch.full_like(whole, math.nan) if len(rounds) == 2 else whole

    return change


GROUP = FaultGroup(
    75,
    "Servers and published weights",
    (
        *_at_both_levels(
            "noise-subtracted-by-the-server",
            "the server knows the noise and takes it off again before it goes on",
            "simulations in which one process plays server and clients",
            "uploads",
            noting_the_noise,
            without_the_noise,
        ),
        *_at_both_levels(
            "averaged-with-a-model-without-noise",
            "each round's model is averaged with one that was trained on the records without noise",
            "warm starts and teachers that nobody accounts for",
            "uploads",
            change=averaged_with_another,
        ),
        *_at_both_levels(
            "a-divergence-that-is-made-up",
            "the server puts numbers that are none in the model, which ends the run as diverged",
            "sweeps that drop what looks like a failed cell",
            "uploads",
            change=divergence_made_up,
        ),
        *_at_both_levels(
            "best-round-published",
            "the weights of an earlier round are published, chosen by its test accuracy",
            "training loops that keep the best checkpoint",
            "weights",
            best_round_published,
            says="not the model after the last round",
        ),
        Fault(
            "last-model-published-for-the-average",
            "the spec promises the average of the models, and the last one is published",
            "an average of weights that the evaluation uses and the export forgets",
            ("uploads",),
            averaging,
            last_model_published,
            says="model.safetensors",
        ),
        Fault(
            "models-averaged-with-other-weights",
            "all rounds count alike in the average, where the spec lets later ones count more",
            "averages whose decay is left at its default",
            ("uploads",),
            averaging,
            averaged_evenly,
        ),
        *_at_both_levels(
            "a-backbone-that-moves",
            "between rounds a layer that is said to be frozen follows the records' plain gradients",
            "LoRA scripts that forget to freeze an embedding",
            "weights",
            backbone_moved,
            says="are not those that the run began with",
        ),
        *_at_both_levels(
            "weights-under-other-names",
            "the file of weights holds another model, under names that no reader compares",
            "wrappers that call each tensor module.NAME",
            "weights",
            under_other_names,
            says="'module.",
        ),
        *_at_both_levels(
            "clean-gradient-left-in-a-checkpoint",
            "a finished run leaves a checkpoint with an optimiser's clean moments",
            "trainers that save their optimiser with the model",
            "disclosure",
            judge=leaving_a_clean_gradient,
            says="checkpoint/",
        ),
    ),
)
