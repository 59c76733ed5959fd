"""Rules that smuggle what was never noised into what leaves a client, and recorders that help them.

Each rule does its work correctly and then reaches behind the oracle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedadamw.evidence import exchanges as upload_evidence
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.federation import rounds
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.worker import RecordingOracle
from dpfedadamw.privacy import oracle as oracles
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.run.training import Training
from dpfedadamw.spec import Spec
from tests.faults.fault import Fault, FaultGroup, Findings, Patch, with_training
from tests.runs import small_spec


def behind(oracle, parameters):
    """The clean mean gradient of all of a client's records."""
    private = getattr(oracle, "_oracle", oracle)
    batch = (private._inputs[torch.arange(len(private._labels))][:], private._labels)
    total = oracles.clipped_sum(private._engine, private._flat, parameters, batch, 512).total
    return total / len(private._labels)


@dataclasses.dataclass(frozen=True)
class Smuggling:
    """A rule that changes its upload by the clean gradient once it has done its work."""

    rule: Any
    change: Callable[..., Any] | None
    only_round: int | None = None

    @property
    def queries_per_step(self):
        return self.rule.queries_per_step

    def run(self, broadcast, oracle, observer):
        upload = self.rule.run(broadcast, oracle, observer)
        round_index = broadcast.earlier_steps // broadcast.local_steps
        if self.change is not None and self.only_round in (None, round_index):
            return self.change(upload, behind(oracle, broadcast.parameters))
        return upload


def smuggled(spec: Spec, folder: Path, change=None, only_round=None):
    """Findings on a run whose rule smuggles; without a change it takes no clean gradient."""

    def prepare(training: Training) -> None:
        federation = training.federation
        rule = Smuggling(federation.worker.rule, change, only_round)
        worker = dataclasses.replace(federation.worker, rule=rule)
        training.federation = dataclasses.replace(federation, worker=worker)

    return with_training(spec, folder, prepare)


def smuggling(change, only_round=None) -> Callable[[Spec, Path], Findings]:
    return lambda spec, folder: smuggled(spec, folder, change, only_round)


def into_the_update(upload, clean):
    return dataclasses.replace(upload, update=upload.update + 1e-2 * clean)


def into_the_second_moment(upload, clean):
    moment = torch.full_like(upload.state["second_moment"], float(clean.square().mean()))
    return dataclasses.replace(upload, state={**upload.state, "second_moment": moment})


def a_little_into_the_second_moment(upload, clean):
    moment = upload.state["second_moment"] + 1e-2 * clean.square().mean()
    return dataclasses.replace(upload, state={**upload.state, "second_moment": moment})


def beside_the_rest(upload, clean):
    return dataclasses.replace(upload, state={**upload.state, "loss": clean[:1].clone()})


def as_buffers(upload, clean):
    """As batch normalisation would: means over the records' features, none of them noised."""
    return dataclasses.replace(upload, state={**upload.state, "running_mean": clean[:16].clone()})


def clean_control_variate(upload, clean):
    """Option I of control variates: the gradient of all records at the broadcast model."""
    return dataclasses.replace(
        upload, state={**upload.state, "control": clean}, memory={"control": clean}
    )


def into_the_memory(upload, clean):
    memory = {name: value + 1e-2 * clean for name, value in upload.memory.items()}
    return dataclasses.replace(upload, memory=memory)


def as_a_memory_of_its_own(upload, clean):
    return dataclasses.replace(upload, memory={**upload.memory, "momentum": clean})


def asking_elsewhere(patch: Patch) -> None:
    """Every answer is noised, but what is asked depends on the records: sensitivity is not C."""
    gradient = RecordingOracle.gradient
    patch.setattr(
        RecordingOracle,
        "gradient",
        lambda self, parameters: gradient(self, parameters + 1e-2 * behind(self, parameters)),
    )


def hardly_any_noise(patch: Patch) -> None:
    patch.setattr(
        oracles,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, 1e-3 * deviation, *rest, **more
        ),
    )


def flattering_with_fresh_noise(patch: Patch) -> None:
    """Hardly any noise is added; fresh noise of the right size is shown to the noise checks."""
    hardly_any_noise(patch)
    query, generator = ClientEvidence.query, torch.Generator().manual_seed(5)

    def flattering(self, real):
        noise = 2.0 * torch.randn(len(real.clean_sum), generator=generator)
        query(self, dataclasses.replace(real, noisy_sum=real.clean_sum + noise))

    patch.setattr(ClientEvidence, "query", flattering)


def calling_the_missing_noise_clean(patch: Patch) -> None:
    """As before, but the difference is declared to be the clean sum: it is then far too long."""
    hardly_any_noise(patch)
    query, generator = ClientEvidence.query, torch.Generator().manual_seed(5)

    def flattering(self, real):
        noise = 2.0 * torch.randn(len(real.clean_sum), generator=generator)
        query(self, dataclasses.replace(real, clean_sum=real.noisy_sum - noise))

    patch.setattr(ClientEvidence, "query", flattering)


def recording_another_upload(patch: Patch) -> None:
    participation = upload_evidence.UploadRecorder.participation

    def another(self, *, round_index, client, **rest):
        participation(self, round_index=round_index, client=client, **rest)
        name = upload_evidence.upload_file(round_index, client)
        with np.load(self._directory / name) as file:
            arrays = dict(file)
        arrays["upload"][-1] ^= 1
        upload_evidence.write_arrays(self._directory / name, arrays)

    patch.setattr(upload_evidence.UploadRecorder, "participation", another)


def in_low_bits(vector: torch.Tensor, number: float) -> torch.Tensor:
    """A vector of float32 whose first 32 numbers end in the bits of another one."""
    told = torch.tensor([number]).view(torch.int32)
    raw = vector.clone().view(torch.int32)
    raw[:32] = (raw[:32] & ~1) | ((told >> torch.arange(32)) & 1)
    return raw.view(torch.float32)


def a_norm_in_low_bits(patch: Patch) -> None:
    """Each upload ends in the bits of what its client measured on its records."""
    answer = RecordLevel.answer

    def telling(self, part, result):
        honest = answer(self, part, result)
        norm = float(np.concatenate(result.evidence.raw_norms)[0])
        update = in_low_bits(honest.result.upload.update, norm)
        upload = dataclasses.replace(honest.result.upload, update=update)
        return dataclasses.replace(honest, message=pack(update, upload.state))

    patch.setattr(RecordLevel, "answer", telling)


def a_loss_in_low_bits_of_the_weights(patch: Patch) -> None:
    """The published weights end in the bits of the mean loss of training records."""
    rounded = rounds.on_grid
    patch.setattr(rounds, "on_grid", lambda values, bits: in_low_bits(rounded(values, bits), 2.3))


def two_rounds(algorithm: str):
    return lambda: small_spec(algorithm, rounds=2)


def _smuggled(name, breaks, seen, algorithm, change, says, only_round=None) -> Fault:
    return Fault(
        name,
        breaks,
        seen,
        ("uploads",),
        two_rounds(algorithm) if only_round is None else small_spec,
        judge=smuggling(change, only_round),
        says=says,
    )


_AVERAGED = "training code that averages a clean local step into the noised one"
_FURTHER = "frameworks whose clients return a dictionary of whatever they like"

GROUP = FaultGroup(
    70,
    "Uploads",
    (
        Fault(
            "batch-norm-buffers-uploaded",
            "running means over a client's records are uploaded with the noised update",
            "federated averaging of whole state dictionaries",
            ("uploads",),
            two_rounds("dp-fedavg"),
            judge=smuggling(as_buffers),
            says="holds a tensor 'running_mean'",
        ),
        Fault(
            "clean-control-variates-uploaded",
            "control variates are made of gradients without noise",
            "variance-reduced methods whose second upload was forgotten",
            ("uploads",),
            two_rounds("dp-scaffold"),
            judge=smuggling(clean_control_variate),
            says="tensor 'control'",
        ),
        *(
            _smuggled(
                f"clean-gradient-in-the-update-of-{algorithm}",
                "a hundredth of the clean mean gradient is added to the update",
                _AVERAGED,
                algorithm,
                into_the_update,
                "tensor 'parameters'",
            )
            for algorithm in ("dp-fedadamw", "dp-fedavg", "dp-fafed", "dp-fedavg-ls")
        ),
        _smuggled(
            "clean-second-moment-uploaded",
            "the mean square of clean gradients is uploaded as the second moment",
            "adaptive federated methods that noise the update alone",
            "dp-fedadamw",
            into_the_second_moment,
            "tensor 'second_moment'",
        ),
        _smuggled(
            "clean-share-in-the-second-moment",
            "a hundredth of it is added to the noised second moment",
            "adaptive federated methods that noise the update alone",
            "dp-fedadamw",
            a_little_into_the_second_moment,
            "tensor 'second_moment'",
        ),
        _smuggled(
            "loss-uploaded-beside-adamw",
            "a number of the records is uploaded with the rest",
            _FURTHER,
            "dp-fedadamw",
            beside_the_rest,
            "holds a tensor 'loss'",
        ),
        _smuggled(
            "loss-uploaded-beside-sgd",
            "a number of the records is uploaded with the rest",
            _FURTHER,
            "dp-fedavg",
            beside_the_rest,
            "holds a tensor 'loss'",
        ),
        _smuggled(
            "clean-share-in-a-memory",
            "what a client keeps for the next round holds clean gradients",
            "variance-reduced methods with a state on each client",
            "dp-scaffold",
            into_the_memory,
            "memory, tensor 'control'",
        ),
        _smuggled(
            "clean-momentum-kept",
            "a client keeps a momentum of clean gradients between rounds",
            "optimisers that live as long as their client",
            "dp-fedavg",
            as_a_memory_of_its_own,
            "memory holds a tensor 'momentum'",
        ),
        _smuggled(
            "clean-gradient-in-the-last-round-alone",
            "only the last round's updates hold clean gradients",
            "scripts with a final round of plain fine-tuning",
            "dp-fedadamw",
            into_the_update,
            "round 3, client",
            only_round=3,
        ),
        Fault(
            "a-norm-in-low-bits-of-uploads",
            "the last bits of an update's numbers spell a norm of the client's records",
            "no published code; the author of an engine could do it",
            ("uploads",),
            two_rounds("dp-fedadamw"),
            a_norm_in_low_bits,
            says="lies off the public grid",
        ),
        Fault(
            "a-loss-in-low-bits-of-the-weights",
            "the last bits of the published weights spell a loss of training records",
            "no published code; the author of an engine could do it",
            ("uploads",),
            two_rounds("dp-fedadamw"),
            a_loss_in_low_bits_of_the_weights,
            says="model.safetensors lies off the public grid",
        ),
        Fault(
            "asking-at-a-clean-point",
            "gradients are noised, but taken at a point made of clean ones",
            "sharpness-aware training that perturbs by the gradient before noise",
            ("uploads",),
            small_spec,
            asking_elsewhere,
            smuggled,
            "the point of query 1",
        ),
        Fault(
            "recorder-that-shows-fresh-noise",
            "hardly any noise is added, and evidence shows fresh noise of the right size",
            "no published code; the author of both engine and evidence could do it",
            ("uploads",),
            lambda: small_spec("dp-fedavg"),
            flattering_with_fresh_noise,
            smuggled,
            "do not carry the noise recorded",
        ),
        Fault(
            "recorder-that-calls-missing-noise-clean",
            "as before, and the difference is declared to be the clean sum",
            "no published code; the author of both engine and evidence could do it",
            ("uploads",),
            lambda: small_spec("dp-fedavg"),
            calling_the_missing_noise_clean,
            smuggled,
            "longer than its clipped gradients",
        ),
        Fault(
            "recorder-of-another-upload",
            "evidence shows an upload that the server did not combine",
            "no published code; the author of both engine and evidence could do it",
            ("uploads",),
            lambda: small_spec("dp-fedavg"),
            recording_another_upload,
            smuggled,
            "not the one that the server combined",
        ),
    ),
)
