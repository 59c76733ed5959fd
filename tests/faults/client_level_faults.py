"""Broken mechanisms that claim to protect whole clients."""

from __future__ import annotations

import dataclasses

import torch

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import Upload
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.grid import on_grid
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.updates import ClippedUpdate, sum_of_updates
from dpfedadamw.units import client as unit
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.faults.upload_faults import (
    a_loss_in_low_bits_of_the_weights,
    as_a_memory_of_its_own,
    beside_the_rest,
    in_low_bits,
    smuggled,
    smuggling,
)

SPEC = """
version: 1
name: whole-clients
data: {{dataset: digits, clients: 20, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: [8]}}
algorithm: {{name: dp-fedavg, learning_rate: 0.5}}
federation: {{rounds: {rounds}, clients_per_round: {clients_per_round}, local_steps: 1}}
privacy:
  {{unit: client, clipping_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, noise_added_by: {by}}}
randomness: {mode}
"""


def client_spec(
    by: str = "server",
    clients_per_round: int = 3,
    rounds: int = 30,
    mode: str = "{mode: reproducible, seed: 3}",
):
    return specs.loads(
        SPEC.format(by=by, clients_per_round=clients_per_round, rounds=rounds, mode=mode)
    )


def by_clients():
    return client_spec("clients")


def scaled(factor: float):
    def patch(patch: Patch) -> None:
        patch.setattr(
            updates,
            "add_gaussian_noise",
            lambda total, deviation, *rest: add_gaussian_noise(total, deviation * factor, *rest),
        )

    return patch


def tensor_by_tensor(patch: Patch) -> None:
    """Each tensor is clipped alone, as layer-wise code does without sharing the norm."""

    def clip(update, clipping_norm):
        hidden = (len(update) - 10) // 75
        tensors = [64 * hidden, hidden, 10 * hidden, 10]
        parts = [
            part * min(1.0, clipping_norm / max(float(part.norm()), 1e-30))
            for part in torch.split(update.nan_to_num(0.0, 0.0, 0.0), tensors)
        ]
        norm = float(update.norm())
        return ClippedUpdate(torch.cat(parts), norm, min(norm, clipping_norm))

    patch.setattr(updates, "clip_update", clip)


def weighted_by_size(patch: Patch) -> None:
    """Updates are weighted by client size, and the sensitivity is that of equal weights."""

    def weighted(several, size, device):
        weights = [1.0 + 0.5 * (index % 4) for index in range(len(several))]
        return sum_of_updates(
            [weight * one for weight, one in zip(weights, several, strict=True)], size, device
        )

    patch.setattr(updates, "sum_of_updates", weighted)


def silent_when_empty(patch: Patch) -> None:
    patch.setattr(
        updates,
        "add_gaussian_noise",
        lambda total, *rest: add_gaussian_noise(total, *rest) if total.any() else total.double(),
    )


def by_the_realised_number(patch: Patch) -> None:
    receive = ClientLevel.receive

    def realised(self, current):
        plan = dataclasses.replace(current.plan, clients_per_round=max(1, len(current.chosen)))
        return receive(self, dataclasses.replace(current, plan=plan))

    patch.setattr(ClientLevel, "receive", realised)


def dropouts(patch: Patch) -> None:
    """One client of each round drops out with its share of the noise, and nobody makes it up."""
    receive = ClientLevel.receive

    def fewer(self, current):
        left = slice(0, -1) if len(current.answers) > 1 else slice(None)
        chosen, answers = current.chosen[left], current.answers[left]
        return receive(self, dataclasses.replace(current, chosen=chosen, answers=answers))

    patch.setattr(ClientLevel, "receive", fewer)


def telling_the_traffic(patch: Patch) -> None:
    patch.setattr(
        ClientLevel,
        "traffic",
        lambda self, current: (
            sum(len(answer.message) for answer in current.answers),
            len(current.message) * len(current.answers),
        ),
    )


def told_more_noise(patch: Patch) -> None:
    claim = unit.client_level_claim

    def told(spends, *some, **more):
        richer = [{**one, "noise_multiplier": one["noise_multiplier"] + 0.5} for one in spends]
        return claim(richer, *some, **more)

    patch.setattr(unit, "client_level_claim", told)


def amplified_towards_the_server(patch: Patch) -> None:
    claim = unit.client_level_claim

    def amplified(*some, **more):
        honest = claim(*some, **more)
        third = {**honest["third_party"]["epsilon"]}
        flattered = [{**entry, "epsilon": third} for entry in honest["server"]["clients"]]
        return {**honest, "server": {**honest["server"], "epsilon": third, "clients": flattered}}

    patch.setattr(unit, "client_level_claim", amplified)


def a_fixed_cohort(patch: Patch) -> None:
    patch.setattr(Federation, "_choose", lambda self, index: ([0, 1, 2], 1))


def a_clean_update_at_the_end(patch: Patch) -> None:
    receive = ClientLevel.receive

    def adding(self, current):
        uploads = receive(self, current)
        if current.index < 29 or not current.answers:
            return uploads
        return [Upload(on_grid(uploads[0].update + 1e-2 * current.answers[0].clipped.update, 16))]

    patch.setattr(ClientLevel, "receive", adding)


def a_loss_in_low_bits(patch: Patch) -> None:
    rounded = updates.on_grid
    patch.setattr(updates, "on_grid", lambda values, bits: in_low_bits(rounded(values, bits), 2.3))


_BY = {"server": client_spec, "clients": by_clients}

GROUP = FaultGroup(
    90,
    "Whole clients",
    (
        *(
            Fault(
                f"client-level-noise-at-{'half' if factor < 1 else 'twice'}-its-scale-by-{by}",
                f"noise that {'the server adds' if by == 'server' else 'clients add'} has "
                f"{'half' if factor < 1 else 'twice'} its standard deviation",
                "servers that divide sum and noise at different places",
                ("noise-scale",),
                spec,
                scaled(factor),
            )
            for by, spec in _BY.items()
            for factor in (0.5, 2.0)
        ),
        Fault(
            "client-level-clipping-tensor-by-tensor",
            "each tensor of an update is clipped to C alone",
            "layer-wise clipping that does not share C out among the layers",
            ("sensitivity",),
            client_spec,
            tensor_by_tensor,
        ),
        Fault(
            "weighted-averaging-under-a-uniform-sensitivity",
            "updates are weighted by client size, and the noise is made for equal weights",
            "federated averaging with its usual weights under a clipped mean's analysis",
            ("sensitivity",),
            client_spec,
            weighted_by_size,
        ),
        Fault(
            "no-noise-on-empty-rounds",
            "a round without clients releases nothing, and that is seen",
            "servers that return early when nobody answers",
            ("noise-scale",),
            client_spec,
            silent_when_empty,
        ),
        Fault(
            "realised-number-of-clients-as-divisor",
            "the sum is divided by how many took part",
            "servers that take the mean of a list",
            ("promise",),
            client_spec,
            by_the_realised_number,
        ),
        Fault(
            "dropout-of-clients-unaccounted",
            "a client drops out with its share of the noise, so that the sum carries too little",
            "distributed noise without a margin for dropouts",
            ("noise-scale",),
            by_clients,
            dropouts,
        ),
        Fault(
            "client-level-participants-told-by-traffic",
            "real traffic is published, a multiple of how many took part",
            "dashboards that log bytes per round",
            ("publication",),
            client_spec,
            telling_the_traffic,
        ),
        Fault(
            "client-level-accountant-told-more-noise",
            "ε is computed from a larger noise multiplier than is on the ledger",
            "notebooks whose privacy cell was run with other settings",
            ("accounting",),
            client_spec,
            told_more_noise,
        ),
        Fault(
            "amplification-towards-the-server",
            "a server that sees single uploads is given the ε of one that does not",
            "papers that noise uploads and account for the model",
            ("accounting",),
            by_clients,
            amplified_towards_the_server,
        ),
        Fault(
            "a-fixed-cohort-billed-as-poisson",
            "the same clients take part in each round",
            "simulators that take the first S of a list of clients",
            ("participation",),
            client_spec,
            a_fixed_cohort,
        ),
        Fault(
            "client-level-loss-uploaded",
            "a number of the records is uploaded with the clipped update",
            "frameworks whose clients return a dictionary of whatever they like",
            ("uploads",),
            client_spec,
            judge=smuggling(beside_the_rest),
            says="uploaded or kept a tensor 'loss'",
        ),
        Fault(
            "client-level-momentum-kept",
            "a client keeps a momentum of clean gradients",
            "optimisers that live as long as their client",
            ("uploads",),
            client_spec,
            judge=smuggling(as_a_memory_of_its_own, 29),
            says="uploaded or kept a tensor 'momentum'",
        ),
        Fault(
            "a-loss-in-low-bits-of-released-means",
            "the last bits of each released mean spell a loss of training records",
            "no published code; the author of an engine could do it",
            ("uploads",),
            client_spec,
            a_loss_in_low_bits,
            says="lies off the public grid",
        ),
        Fault(
            "client-level-loss-in-low-bits-of-the-weights",
            "the last bits of the published weights spell a loss of training records",
            "no published code; the author of an engine could do it",
            ("uploads",),
            client_spec,
            a_loss_in_low_bits_of_the_weights,
            says="lies off the public grid",
        ),
        Fault(
            "a-clean-update-in-the-last-round",
            "the server adds one client's clean update to the last release",
            "scripts with a final round of plain fine-tuning",
            ("uploads",),
            client_spec,
            a_clean_update_at_the_end,
            smuggled,
            "round 29: the released mean does not carry the noise recorded",
        ),
    ),
)
