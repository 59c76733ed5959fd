"""Sensitivity that is not C: clipping of the wrong thing, and divisors and bounds from the data."""

from __future__ import annotations

import dataclasses
import itertools

import torch

from dpfedadamw.clipping.engines import ClippedSum, choose
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec

CLIPPING_NORM = 1.0


def per_record(flat, parameters, batch):
    """Gradients of single records, [b, d], by one backward pass each."""
    flat.assign(parameters)
    weights = [one for one in flat.module.parameters() if one.requires_grad]
    inputs, labels = batch
    rows = [torch.zeros(0, len(parameters))]
    for index in range(len(labels)):
        outputs = flat.module(inputs[index : index + 1])
        loss = record_loss(outputs, labels[index : index + 1]).sum()
        parts = torch.autograd.grad(loss, weights)
        rows.append(torch.cat([part.reshape(-1) for part in parts])[None])
    return torch.cat(rows)


def told(gradients, clipped, limit=CLIPPING_NORM):
    """A clipped sum whose author believes in what was done: the norms look clipped."""
    norms = gradients.norm(dim=1)
    return ClippedSum(clipped.sum(0), norms, norms.clamp(max=limit), 0)


def clip_the_batch_mean(engine, flat, parameters, batch, physical_batch_size):
    """The mean gradient of the batch is clipped, not each record's."""
    flat.assign(parameters)
    size = len(batch[1])
    plain = choose(flat.module, record_loss, float("inf"), engine="vmap")(batch[0][:], batch[1])
    mean = plain.total / max(size, 1)
    norm = mean.norm()
    clipped = mean * min(1.0, CLIPPING_NORM / float(norm)) if norm > 0 else mean
    norms = plain.raw_norms.clamp(max=CLIPPING_NORM)
    return ClippedSum(clipped * size, norms, norms, 0)


def clip_each_tensor(engine, flat, parameters, batch, physical_batch_size):
    """Each tensor of a record's gradient is clipped to C by itself."""
    gradients = per_record(flat, parameters, batch)
    clipped = torch.cat(
        [
            part * (CLIPPING_NORM / part.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
            for part in (
                gradients[:, one.start : one.stop] for one in flat.layout.slices
            )
        ],
        dim=1,
    )  # fmt: skip
    return told(gradients, torch.where(torch.isfinite(clipped), clipped, 0.0))


def let_through_what_is_not_finite(engine, flat, parameters, batch, physical_batch_size):
    """One record whose gradient is not a number makes the whole sum so."""
    gradients = per_record(flat, parameters, batch)
    factors = (CLIPPING_NORM / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return told(gradients, gradients * factors)


def of(clipped_sum):
    return lambda patch: patch.setattr(oracle, "clipped_sum", clipped_sum)


def to_the_median(patch: Patch) -> None:
    """C follows the median norm of each batch, and the noise follows C."""
    limit = [CLIPPING_NORM]

    def clipped_sum(engine, flat, parameters, batch, physical_batch_size):
        gradients = per_record(flat, parameters, batch)
        norms = gradients.norm(dim=1, keepdim=True)
        finite = norms[torch.isfinite(norms)]
        limit[0] = float(finite.median()) if len(finite) else CLIPPING_NORM
        clipped = gradients * (limit[0] / norms.clamp(min=1e-30)).clamp(max=1.0)
        clipped = torch.where(torch.isfinite(clipped), clipped, 0.0)
        return told(gradients, clipped, limit[0])

    patch.setattr(oracle, "clipped_sum", clipped_sum)
    patch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, deviation / CLIPPING_NORM * limit[0], *rest, **more
        ),
    )


def another_clipping_norm_every_round(patch: Patch) -> None:
    """The ledger follows a clipping norm that was adapted without paying for it."""
    charges = RecordLevel.charges

    def adapted(self, current):
        smaller = CLIPPING_NORM * 0.9**current.index
        plan = dataclasses.replace(current.plan, clipping_norm=smaller)
        return charges(dataclasses.replace(current, plan=plan))

    patch.setattr(RecordLevel, "charges", adapted)


def by_the_realised_size(patch: Patch) -> None:
    gradient = oracle.PrivateOracle.gradient

    def realised(self, parameters):
        self._divisor = float(max(1, len(self._batch[1])))
        return gradient(self, parameters)

    patch.setattr(oracle.PrivateOracle, "gradient", realised)


def sensitivity_of_its_own(patch: Patch) -> None:
    """The noise is made for a sensitivity of 1, which was set apart from the clipping norm of 2."""
    patch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, deviation / 2.0, *rest, **more
        ),
    )


def cut_large_batches(patch: Patch) -> None:
    """What does not fit into memory is left out: a batch is then no Poisson sample."""
    next_batch = oracle.PrivateOracle.next_batch
    count = itertools.count()

    def cut(self):
        next_batch(self)
        inputs, labels = self._batch
        most = 20 if next(count) % 2 else 24
        self._batch = (inputs[:][:most], labels[:most])

    patch.setattr(oracle.PrivateOracle, "next_batch", cut)


GROUP = FaultGroup(
    20,
    "Clipping and sensitivity",
    (
        Fault(
            "clipping-the-batch-mean",
            "the mean gradient of a batch is clipped, so that one record may decide all of it",
            "training loops built on a framework's gradient clipping",
            ("sensitivity",),
            small_spec,
            of(clip_the_batch_mean),
        ),
        Fault(
            "clipping-tensor-by-tensor",
            "each tensor is clipped to C alone, so that the whole is as long as C times a root",
            "layer-wise clipping that does not share C out among the layers",
            ("sensitivity",),
            lambda: small_spec(overrides=("model={name: mlp, hidden: [8]}",)),
            of(clip_each_tensor),
        ),
        Fault(
            "nan-record-poisoning",
            "a record whose gradient is not finite is not zeroed and poisons every sum it is in",
            "per-record clipping by C/norm without a test for what is not finite",
            ("sensitivity",),
            small_spec,
            of(let_through_what_is_not_finite),
        ),
        Fault(
            "clipping-norm-from-the-batch",
            "C is the median gradient norm of the batch, and noise and sensitivity follow the data",
            "adaptive clipping that does not pay for its quantile",
            ("sensitivity", "noise-scale"),
            small_spec,
            to_the_median,
        ),
        Fault(
            "clipping-norm-adapted-on-the-ledger",
            "each round is charged at another clipping norm than was promised",
            "adaptive clipping whose schedule is chosen by looking at gradients",
            ("promise",),
            small_spec,
            another_clipping_norm_every_round,
        ),
        Fault(
            "realised-batch-size-as-divisor",
            "sums are divided by the number of records that happened to be drawn",
            "code that takes the mean where the analysis divides by a constant",
            ("promise",),
            small_spec,
            by_the_realised_size,
        ),
        Fault(
            "sensitivity-apart-from-the-clipping-norm",
            "noise is made for a sensitivity of 1 that is set by itself, and C is 2",
            "configurations with a key for the sensitivity besides that of the clipping norm",
            ("noise-scale",),
            lambda: small_spec(overrides=("privacy.clipping_norm=2.0",)),
            sensitivity_of_its_own,
        ),
        Fault(
            "large-batches-cut-short",
            "records beyond what fits into memory are left out of a Poisson batch",
            "data loaders with a largest batch size",
            ("sensitivity",),
            small_spec,
            cut_large_batches,
        ),
    ),
)
