"""Sparse updates gone wrong: which coordinates survive must not tell of a client."""

from __future__ import annotations

import dataclasses

import torch

from dpfedadamw import spec as specs
from dpfedadamw.federation import client as clients
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.vectors.sparsification import Sparsification
from tests.faults.client_level_faults import scaled, telling_the_traffic
from tests.faults.fault import Fault, FaultGroup, Patch

SYSTEMS = {
    "random": "{name: fed-smp, sparsification: {kind: random, fraction: 0.3}}",
    "released-top": "{name: fed-smp, sparsification: {kind: released-top, fraction: 0.3}}",
    "local-top": "{name: dp-fedsam-topk, sparsification: {kind: local-top, fraction: 0.3}}",
}
PUBLIC = ("random", "released-top")


def sparse_spec(kind: str, by: str = "server"):
    return specs.loads(
        f"""
version: 1
name: sparse-updates
data: {{dataset: digits, clients: 20, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: [8]}}
algorithm: {SYSTEMS[kind]}
federation: {{rounds: 20, clients_per_round: 4, local_steps: 1}}
privacy:
  {{unit: client, clipping_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, noise_added_by: {by}}}
randomness: {{mode: reproducible, seed: 3}}
"""
    )


def of(kind: str, by: str = "server"):
    return lambda: sparse_spec(kind, by)


def on_the_union(patch: Patch) -> None:
    """Where the sum is 0 nobody's top k lies, and without noise everyone sees that."""

    def partly(total, deviation, *rest):
        noisy = add_gaussian_noise(total, deviation, *rest)
        return torch.where(total == 0.0, torch.zeros_like(noisy), noisy)

    patch.setattr(updates, "add_gaussian_noise", partly)


def coordinates_of_its_own(patch: Patch) -> None:
    public = clients.public_coordinates
    calls = []

    def own(sparsification, *rest):
        calls.append(1)
        if len(calls) % 9 == 0:
            other = dataclasses.replace(sparsification, seed=len(calls), kind="random")
            return public(other, rest[0], {}, rest[2])
        return public(sparsification, *rest)

    patch.setattr(clients, "public_coordinates", own)


def chosen_by_one_client(patch: Patch) -> None:
    """All agree, but on the largest coordinates of one client's parameters-to-be."""
    chosen = {}

    def leaking(sparsification, round_index, state, device):
        del state
        if round_index not in chosen:
            secret = torch.randn(sparsification.size, generator=torch.Generator().manual_seed(9))
            chosen[round_index] = updates.largest_coordinates(secret, sparsification.kept)
        return chosen[round_index].to(device)

    patch.setattr(clients, "public_coordinates", leaking)


def top_of_the_clean_sum(patch: Patch) -> None:
    release, renew = updates.release_mean, Sparsification.renew
    clean = []

    def watching(total, *rest):
        clean.append(total.float().numpy())
        return release(total, *rest)

    patch.setattr(updates, "release_mean", watching)
    patch.setattr(
        Sparsification,
        "renew",
        lambda self, index, previous, released: renew(self, index, previous, clean[-1]),
    )


def scaled_after_clipping(patch: Patch) -> None:
    """The sensitivity is then C·d/k, and the noise is still made for C."""
    contribute = updates.contribute

    def scaled_late(update, clipping_norm, sparsification=None, kept=None):
        plain = dataclasses.replace(sparsification, kind="released-top")
        clipped = contribute(update, clipping_norm, plain, kept)
        return dataclasses.replace(clipped, update=clipped.update * sparsification.scale)

    patch.setattr(updates, "contribute", scaled_late)


def scaled_with_its_noise(patch: Patch) -> None:
    """No sensitivity has changed: this is post-processing, but not what was measured."""
    spread = updates.spread
    patch.setattr(updates, "spread", lambda values, kept, size: spread(values * 2.0, kept, size))


def off_the_coordinates(patch: Patch) -> None:
    spread = updates.spread
    patch.setattr(updates, "spread", lambda values, kept, size: spread(values, kept, size) + 1e-6)


def noise_of_an_earlier_round(patch: Patch) -> None:
    kept_noise = []

    def repeated(total, deviation, *rest):
        noisy = add_gaussian_noise(total, deviation, *rest)
        kept_noise.append(noisy - total)
        return total + kept_noise[2] if len(kept_noise) == 9 else noisy

    patch.setattr(updates, "add_gaussian_noise", repeated)


def _for_each_public(name, breaks, seen, check, patch) -> tuple[Fault, ...]:
    return tuple(
        Fault(f"{name}-{kind}", breaks, seen, (check,), of(kind), patch) for kind in PUBLIC
    )


_SPARSE = "communication-efficient federated learning with private add-ons"

GROUP = FaultGroup(
    100,
    "Sparse updates",
    (
        *(
            Fault(
                f"noise-on-the-clients-own-coordinates-by-{by}",
                "only coordinates that some client kept are noised: the zeros tell which",
                _SPARSE,
                ("noise-scale",),
                of("local-top", by),
                on_the_union,
            )
            for by in ("server", "clients")
        ),
        *_for_each_public(
            "a-client-with-coordinates-of-its-own",
            "one client keeps other coordinates than all the rest",
            _SPARSE,
            "coordinates",
            coordinates_of_its_own,
        ),
        *_for_each_public(
            "coordinates-chosen-by-one-client",
            "all keep the same coordinates, which one client's records chose",
            _SPARSE,
            "coordinates",
            chosen_by_one_client,
        ),
        Fault(
            "top-k-of-the-sum-before-noise",
            "which coordinates are kept next follows from the sum without noise",
            _SPARSE,
            ("coordinates",),
            of("released-top"),
            top_of_the_clean_sum,
        ),
        Fault(
            "scaling-after-clipping",
            "kept values are multiplied by d/k after clipping, and the noise is made for C",
            _SPARSE,
            ("sensitivity",),
            of("random"),
            scaled_after_clipping,
        ),
        Fault(
            "release-scaled-with-its-noise",
            "the server applies another mean than the one that was noised and measured",
            _SPARSE,
            ("uploads",),
            of("random"),
            scaled_with_its_noise,
        ),
        *_for_each_public(
            "release-off-the-public-coordinates",
            "the release is not 0 where nothing was kept",
            _SPARSE,
            "coordinates",
            off_the_coordinates,
        ),
        *(
            Fault(
                f"noise-{'divided' if factor < 1 else 'multiplied'}-for-fewer-coordinates-{kind}",
                "noise is scaled because fewer coordinates seem to need "
                f"{'less' if factor < 1 else 'more'}",
                _SPARSE,
                ("noise-scale",),
                of(kind),
                scaled(factor),
            )
            for kind in PUBLIC
            for factor in (0.7, 1.4)
        ),
        Fault(
            "noise-of-an-earlier-round",
            "one round's release carries the noise of another one",
            "caches of random numbers",
            ("noise-scale",),
            of("random"),
            noise_of_an_earlier_round,
            says="reuse",
        ),
        Fault(
            "sparse-participants-told-by-traffic",
            "real traffic is published, a multiple of how many took part",
            "dashboards that log bytes per round",
            ("publication",),
            of("local-top"),
            telling_the_traffic,
        ),
    ),
)
