"""Noise of the wrong size, in the wrong place, at the wrong time, or not there."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest
import torch

from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from dpfedadamw.spec import Spec
from tests.faults.fault import Fault, FaultGroup, Findings, Patch, filed
from tests.runs import begin, key_of_a_test, small_spec

HIDDEN = "model={name: mlp, hidden: [8]}"
C_OF_A_TENTH = 0.1
# Batches of two records on average: one in seven is empty.
SPARSE = ("privacy.sampling.expected_batch_size=2", "federation.rounds=6")
SHUFFLED = (
    "privacy.adjacency=replace-one",
    "privacy.sampling={kind: shuffled, batch_size: 24}",
    "federation.local_steps=15",
)


def scaled(factor: float):
    def patch(patch: Patch) -> None:
        patch.setattr(
            oracle,
            "add_gaussian_noise",
            lambda total, deviation, *rest, **more: add_gaussian_noise(
                total, deviation * factor, *rest, **more
            ),
        )

    return patch


def on_coordinates(part: slice):
    """Noise on some of the vector alone."""

    def patch(patch: Patch) -> None:
        def partly(total, deviation, *rest, **more):
            noisy = add_gaussian_noise(total, deviation, *rest, **more)
            kept = total.to(noisy.dtype).clone()
            kept[part] = noisy[part]
            return kept

        patch.setattr(oracle, "add_gaussian_noise", partly)

    return patch


def before_clipping(patch: Patch) -> None:
    """What is clipped is the noised gradient, so that clipping takes the noise away again."""

    def clipped_after(total, deviation, *rest, **more):
        noisy = add_gaussian_noise(total, deviation, *rest, **more)
        return noisy * min(1.0, 24.0 / float(noisy.norm()))

    patch.setattr(oracle, "add_gaussian_noise", clipped_after)


def one_vector_for_all(patch: Patch) -> None:
    def shared(total, deviation, *rest, dtype):
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
        return (total.double() + deviation * noise).to(dtype)

    patch.setattr(oracle, "add_gaussian_noise", shared)


def one_stream_a_round(patch: Patch) -> None:
    """Every client seeds its generator with the number of the round."""
    stream = ReproducibleRandomness.stream

    def of_the_round(self, purpose, round_index, client, *rest):
        who = 0 if purpose == "noise" else client
        return stream(ReproducibleRandomness(5), purpose, round_index, who, *rest)

    patch.setattr(ReproducibleRandomness, "stream", of_the_round)


def none_on_empty_batches(patch: Patch) -> None:
    patch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, *rest, **more: (
            add_gaussian_noise(total, *rest, **more) if total.any() else total.clone()
        ),
    )


def none_on_short_batches(patch: Patch) -> None:
    """The last batch of an epoch is treated as if it did not count."""
    clipped_sum, sizes = oracle.clipped_sum, [0]

    def watching(engine, flat, parameters, batch, *rest):
        sizes[0] = len(batch[1])
        return clipped_sum(engine, flat, parameters, batch, *rest)

    patch.setattr(oracle, "clipped_sum", watching)
    patch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, *rest, **more: (
            add_gaussian_noise(total, *rest, **more) if sizes[0] == 24 else total.clone()
        ),
    )


def uniform(patch: Patch) -> None:
    """Noise of the right variance and of another shape."""

    def flat(total, deviation, stream, *rest, dtype):
        generator = torch.Generator().manual_seed(int(stream.permutation(2**20)[0]))
        noise = torch.rand(total.shape, generator=generator, dtype=torch.float64) - 0.5
        return (total.double() + deviation * 12.0**0.5 * noise).to(dtype)

    patch.setattr(oracle, "add_gaussian_noise", flat)


def broadcast_over_inputs(patch: Patch) -> None:
    """One number for each row of a weight matrix is spread over its columns."""

    def spread(total, deviation, stream, *rest, dtype):
        rows = add_gaussian_noise(torch.zeros(len(total) // 64 + 10), deviation, stream, *rest)
        noise = torch.cat([rows[:-10].repeat_interleave(64), rows[-10:]])[: len(total)]
        return (total.double() + noise).to(dtype)

    patch.setattr(oracle, "add_gaussian_noise", spread)


def the_first_nonce_again(patch: Patch) -> None:
    """Each draw on the device begins at the counter and nonce of the first."""
    drawn = Stream.normal_on

    def from_the_start(self, device, n):
        self._draws_on_device = 0
        return drawn(self, device, n)

    patch.setattr(Stream, "normal_on", from_the_start)


def partly_in_common(patch: Patch) -> None:
    """A twentieth of the variance is one number for all coordinates."""

    def shared(total, deviation, stream, *rest, dtype):
        common = add_gaussian_noise(torch.zeros(1), deviation * 0.05**0.5, stream, *rest)
        own = add_gaussian_noise(total, deviation * 0.95**0.5, stream, *rest)
        return (own + common).to(dtype)

    patch.setattr(oracle, "add_gaussian_noise", shared)


def a_seed_in_place_of_a_key(patch: Patch) -> None:
    patch.setattr(engine_setup, "_randomness", lambda spec: ReproducibleRandomness(42))


def a_key_made_of_a_seed(patch: Patch) -> None:
    key = hashlib.sha256(b"42").digest()
    patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key))


class PowerCutError(Exception):
    """The power goes."""


def fixed_keys(patch: Patch) -> None:
    """One key before the cut and another after it, the same in every test."""
    count = itertools.count(1)
    patch.setattr(
        engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test(next(count)))
    )


def the_old_key(patch: Patch) -> None:
    patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test(1)))


def cut_off_and_resumed(spec: Spec, folder: Path) -> Findings:
    """Findings on a run whose third round was cut off and run again."""
    training = begin(spec, folder)
    queries = 0
    gradient = oracle.PrivateOracle.gradient

    def cutting(self, parameters):
        nonlocal queries
        queries += 1
        if queries == 29:
            raise PowerCutError
        return gradient(self, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle.PrivateOracle, "gradient", cutting)
        with pytest.raises(PowerCutError):
            engine_run.train(training)
    resumed = engine_setup.resume(open_existing(training.run.path), torch.device("cpu"))
    engine_run.train(resumed)
    return filed(resumed)


def released() -> Spec:
    return small_spec(mode="release")


GROUP = FaultGroup(
    10,
    "Noise",
    (
        Fault(
            "noise-at-half-its-scale",
            "the noise has half the standard deviation that is accounted for",
            "training loops that scale noise by the mean's sensitivity and then average again",
            ("noise-scale", "second-moment"),
            small_spec,
            scaled(0.5),
        ),
        Fault(
            "noise-at-twice-its-scale",
            "the noise has twice the standard deviation that is accounted for",
            "wrappers that add noise in the optimiser and once more in the aggregation",
            ("noise-scale", "second-moment"),
            small_spec,
            scaled(2.0),
        ),
        Fault(
            "noise-with-c-twice",
            "noise of σC·C, as an equation prints it that has the clipping norm in twice",
            "code that follows a paper's displayed formula to the letter",
            ("noise-scale", "second-moment"),
            lambda: small_spec(overrides=(f"privacy.clipping_norm={C_OF_A_TENTH}",)),
            scaled(C_OF_A_TENTH),
        ),
        Fault(
            "noise-on-some-tensors",
            "only the first layer's weights are noised",
            "loops over named parameters that match a pattern",
            ("noise-scale",),
            lambda: small_spec(overrides=(HIDDEN,)),
            on_coordinates(slice(0, 512)),
            says="a query carries no noise in a whole block",
        ),
        Fault(
            "no-noise-on-the-head",
            "everything but the classifier is noised",
            "fine-tuning scripts that treat a new head apart from the backbone",
            ("noise-scale",),
            lambda: small_spec(overrides=(HIDDEN,)),
            on_coordinates(slice(0, 520)),
            says="a query carries no noise in a whole block",
        ),
        Fault(
            "noise-before-clipping",
            "noise is added first, and clipping then takes most of it away",
            "training loops that call a framework's clip_grad_norm after adding noise",
            ("noise-scale",),
            small_spec,
            before_clipping,
        ),
        Fault(
            "same-noise-for-every-client",
            "one noise vector is shared by all clients, so that differences cancel it",
            "simulators that set a global seed before each client",
            ("noise-scale",),
            small_spec,
            one_vector_for_all,
        ),
        Fault(
            "noise-seeded-by-the-round",
            "each client seeds its generator with the round's number: all draw the same noise",
            "simulators that want runs to be repeatable",
            ("noise-scale",),
            small_spec,
            one_stream_a_round,
            says="reuse",
        ),
        Fault(
            "noise-on-the-device-from-one-nonce",
            "each step's noise on the device begins at the same counter: all steps of a client "
            "share it",
            "callers of a stream cipher that give every call the same nonce",
            ("noise-scale",),
            lambda: small_spec(overrides=("privacy.gaussian_sampler=on-device",)),
            the_first_nonce_again,
            says="carry the same noise (reuse)",
        ),
        Fault(
            "noise-of-another-shape",
            "the noise has the right variance but is not Gaussian",
            "ports that replace the generator by a faster one",
            ("noise-scale",),
            small_spec,
            uniform,
            says="shape",
        ),
        Fault(
            "noise-broadcast-over-a-matrix",
            "one number for each output is spread over all weights that lead to it",
            "code that draws noise of a shape that broadcasts",
            ("noise-scale",),
            small_spec,
            broadcast_over_inputs,
        ),
        Fault(
            "noise-partly-in-common",
            "coordinates share a twentieth of their variance, which their sum shows",
            "noise in several stages, one of them for the whole vector",
            ("noise-scale",),
            small_spec,
            partly_in_common,
            says="correlated between coordinates",
        ),
        Fault(
            "no-noise-on-empty-batches",
            "an empty batch is skipped, and its silence tells that nobody was drawn",
            "training loops that continue when a batch has no records",
            ("noise-scale",),
            lambda: small_spec(overrides=SPARSE),
            none_on_empty_batches,
            says="a query carries no noise in a whole block",
        ),
        Fault(
            "no-noise-on-the-last-short-batch",
            "the short batch at the end of an epoch goes out without noise",
            "training loops that keep what a data loader leaves over",
            ("noise-scale",),
            lambda: small_spec(overrides=SHUFFLED),
            none_on_short_batches,
            says="a query carries no noise in a whole block",
        ),
        Fault(
            "fixed-seed-in-release-mode",
            "a run that claims secret randomness draws everything from a seed",
            "scripts that call manual_seed(42) at the top",
            ("randomness",),
            released,
            a_seed_in_place_of_a_key,
        ),
        Fault(
            "release-key-made-of-a-seed",
            "the secret key is the digest of a small number",
            "wrappers that spread a seed into as many bits as are asked for",
            ("randomness",),
            released,
            a_key_made_of_a_seed,
            says="anyone would try first",
        ),
        Fault(
            "resumed-with-the-old-key",
            "after a crash the same noise is drawn again, on other sums",
            "checkpoints that keep the generator's state",
            ("randomness",),
            released,
            the_old_key,
            cut_off_and_resumed,
        ),
    ),
)
