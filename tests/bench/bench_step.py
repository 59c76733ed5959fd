"""Time of a whole private step against a plain step with torch's fused AdamW.

    python tests/bench/bench_step.py [--repeats 11] [--threads 2] [--only NAME] [--processor]

A turn is one client's round of ten local steps, by the engine's own oracle and rule: sample a
batch, clipped sum, release noise, DP-FedAdamW; against ten plain steps. With evidence, question and
answer pass the recorder of a run, which keeps as much of them as a run of a hundred participations.
Contenders take turns in one process; a ratio is the median over turns of the ratio of two
neighbouring times, the processor's with --processor. The batch has exactly B records in both, so
that Poisson's luck does not enter. Not collected by pytest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import dpfedadamw  # noqa: F401  Before torch, as in a run: it sets how long torch's threads spin.

# isort: split
import numpy as np
import torch
import torch.nn.functional as F
from bench_clipping import BATCH, clock_of, interleaved, ratio, record_loss, workload
from torch import Tensor, nn

from dpfedadamw.algorithms.base import Broadcast
from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.clipping.engines import choose
from dpfedadamw.evidence.commitments import Commitment
from dpfedadamw.evidence.exchanges import Exchange, extent, kept_coordinates
from dpfedadamw.evidence.record_level import ClientEvidence, Unobserved
from dpfedadamw.evidence.round_files import sampled_coordinates
from dpfedadamw.federation.worker import RecordingOracle
from dpfedadamw.privacy.noise.noise import Method
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, Stream
from dpfedadamw.privacy.oracle import Charge, PrivateOracle
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.sampling import PoissonSampling
from dpfedadamw.units.record import SingleRecords
from dpfedadamw.vectors.flat import FlatParameters, blocks_of

STEPS, PARTICIPATIONS = 10, 100
TARGETS = {"GN-ResNet-18": 1.35, "ViT-Tiny": 1.35, "LoRA encoder": 0.95}


class ExactBatches(PoissonSampling):
    """Draws like Poisson sampling, then keeps the same B records: only the time is of interest."""

    def draw(self, records: int, stream: Stream) -> np.ndarray:
        super().draw(records, stream)
        return np.arange(BATCH, dtype=np.int64)


def plain_step(name: str) -> Callable[[], object]:
    model, inputs, targets = workload(name)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=1e-3, fused=True)

    def step() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()

    return step


def private_step(
    load: tuple[nn.Module, Tensor, Tensor],
    with_evidence: bool,
    method: Method = "box-muller",
    precision: str = "float32",
) -> Callable[[], object]:
    model, inputs, targets = load
    device = inputs.device
    flat = FlatParameters(model)
    blocks = blocks_of(model, "layer")
    plan = PrivacyPlan(
        unit=SingleRecords(),
        adjacency="add-remove",
        clipping_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=ExactBatches(BATCH),
        records=(BATCH,),
        rounds=10_000,
        local_steps=STEPS,
        clients_per_round=1,
        queries_per_step=1,
        gaussian_sampler=method,
    )
    engine = choose(model, record_loss, 1.0, precision=precision, batch=BATCH)
    rule = AdamW(
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        alignment=0.5,
        blocks=blocks,
        aggregate_first=False,
        aggregate_second=True,
        debias=True,
        counter="global",
        relative_floor=1.0,
        absolute_floor=None,
        block_denominator=False,
    )
    randomness = ReleaseRandomness()
    size = flat.layout.size
    sampled = sampled_coordinates(size, STEPS * PARTICIPATIONS)
    sample, kept = torch.from_numpy(sampled), extent(size, STEPS, PARTICIPATIONS)
    coordinates = None
    if kept.coordinates is not None:
        chosen = kept_coordinates(bytes(32), size, kept.coordinates)
        coordinates = torch.from_numpy(np.union1d(chosen, sampled))
    state = {"second_moment": torch.zeros(len(blocks.names)), "global_update": torch.zeros(size)}
    state = {key: value.to(device) for key, value in state.items()}
    start = flat.vector.clone()
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        evidence = (
            ClientEvidence(
                blocks,
                1.0,
                sample,
                Exchange(blocks, coordinates),
                Commitment(bytes(32)),
                torch.zeros(size, device=device),
            )
            if with_evidence
            else None
        )
        oracle = PrivateOracle(
            plan=plan,
            client=0,
            charge=Charge(STEPS, 1),
            engine=engine,
            flat=flat,
            inputs=inputs,
            labels=targets,
            batches=randomness.stream("batches", turn, 0),
            noise=randomness.stream("noise", turn, 0),
            evidence=evidence,
            physical_batch_size=BATCH,
        )
        broadcast = Broadcast(start, state, 1e-3, STEPS, turn * STEPS)
        if evidence is None:
            rule.run(broadcast, oracle, Unobserved())
        else:
            recording = RecordingOracle(oracle, evidence.exchange, evidence.commitment)
            rule.run(broadcast, recording, evidence)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=list(TARGETS))
    parser.add_argument("--processor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{'model':14} {'plain ms':>9} {'private / plain':>16} {'with evidence':>14} {'target':>7}"
    )
    for name, target in TARGETS.items():
        if options.only not in (None, name):
            continue
        contenders = {
            "plain": plain_step(name),
            "private": private_step(workload(name), False),
            "evidence": private_step(workload(name), True),
        }
        times = interleaved(contenders, options.repeats, clock_of(options.processor))
        plain = sorted(times["plain"])[len(times["plain"]) // 2]
        print(
            f"{name:14} {plain / STEPS * 1e3:9.1f} {ratio(times, 'private', 'plain'):16.2f} "
            f"{ratio(times, 'evidence', 'plain'):14.2f} {target:7.2f}"
        )


if __name__ == "__main__":
    main()
