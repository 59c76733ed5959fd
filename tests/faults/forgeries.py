"""Trainers who lie in everything that they write, each so that all of it agrees.

A fault of the gallery is a mistake; what it writes of itself is true. A forger writes evidence that
fits the claim: noise of the scale claimed, clean sums that are the released values less that noise,
commitments and ledger over the forged story. Which of them the other checks see does not matter;
every one must fail once participations are computed again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfedadamw.cli.replaying import order_of
from dpfedadamw.evidence.commitments import digest_of_commitments
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.filing import after_training as filing
from dpfedadamw.filing.replaying import replay_of
from dpfedadamw.privacy import oracle as oracle_module
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.privacy.oracle import PrivateOracle, Query
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run import computing
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.training import Training
from dpfedadamw.rundir import RunDirectory
from tests.runs import attest, begin, key_of_a_test, small_spec

Findings = dict[str, Any]
Patch = pytest.MonkeyPatch
# So little that every record is clipped, and a sum of forged length can be explained.
CLIP = 0.05


def unpatched(patch: Patch) -> None:
    """For forgers who train honestly and lie afterwards."""


def untouched(training: Training) -> None:
    """For forgers who lie while they train."""


@dataclasses.dataclass(frozen=True)
class Forgery:
    """A trainer who lies.

    Attributes:
        name: In words joined by hyphens.
        lie: What is false, in one sentence without a full stop.
        patch: Lets the engine lie.
        after: Rewrites what was written, before it is attested.
        noise_multiplier: What is claimed.
        says: Words that the finding must use.
    """

    name: str
    lie: str
    patch: Callable[[Patch], None] = unpatched
    after: Callable[[Training], None] = untouched
    noise_multiplier: float = 1.5
    says: str = "recomputed"


def run_of(forgery: Forgery, folder: Path) -> RunDirectory:
    """Train, lie and attest; the escrow lies in the folder as "escrow"."""
    key = key_of_a_test()
    ReleaseRandomness(key).write_escrow(folder / "escrow")
    spec = small_spec(
        "dp-fedavg",
        rounds=2,
        clients_per_round=3,
        mode="release",
        overrides=(
            f"privacy.clipping_norm={CLIP}",
            f"privacy.noise_multiplier={forgery.noise_multiplier}",
            "privacy.sampling.expected_batch_size=40",
            "algorithm.learning_rate=0.5",
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key))
        forgery.patch(patch)
        training = begin(spec, folder)
        engine_run.train(training)
    forgery.after(training)
    attest(training)
    return training.run


def replayed(run: RunDirectory, count: int = 10**6, seed: bytes = bytes(32)) -> Findings:
    """Findings with participations computed again; all of them by default."""
    order = dataclasses.replace(order_of(run, count, [run.path.parent / "escrow"]), seed=seed)
    rerun = Rerun(run, order.keys, torch.device("cpu"))
    return filing.audit(run, replay=replay_of(rerun, order)).to_json()


def check_of(findings: Findings, name: str = "reexecution") -> Mapping[str, Any]:
    """One check's finding."""
    (found,) = (check for check in findings["checks"] if check["name"] == name)
    return found


# How what is released is made of a clean sum and the noise that the key gives it.
Making = Callable[[Tensor, Tensor], Tensor]


def lying(make: Making, when: Callable[[], bool] = lambda: True) -> Callable[[Patch], None]:
    """Release something else, and note a clean sum that explains it with the key's own noise."""

    def patch_engine(patch: Patch) -> None:
        told: list[Tensor] = []

        def release(
            clean: Tensor, deviation: float, stream: Stream, *rest: Any, **options: Any
        ) -> Tensor:
            honest = add_gaussian_noise(clean, deviation, stream, *rest, **options)
            noise = honest - clean
            lies = when()
            released = make(clean, noise) if lies else honest
            told.append(released - noise if lies else clean)
            return released

        def note(self: ClientEvidence, query: Query) -> None:
            real_note(self, dataclasses.replace(query, clean_sum=told.pop()))

        real_note = ClientEvidence.query
        patch.setattr(oracle_module, "add_gaussian_noise", release)
        patch.setattr(ClientEvidence, "query", note)

    return patch_engine


def _in_one_participation(make: Making) -> Callable[[Patch], None]:
    """The same, in the first participation alone: in as many queries as it makes."""
    calls = iter(range(10**9))
    return lying(make, lambda: next(calls) < 3)


def _in_the_last_round(make: Making) -> Callable[[Patch], None]:
    calls = iter(range(10**9))
    return lying(make, lambda: next(calls) >= 9)


def _another_key(patch: Patch) -> None:
    other, real = ReleaseRandomness(key_of_a_test(2)), ReleaseRandomness.stream

    def stream(self: ReleaseRandomness, purpose: str, *rest: Any) -> Stream:
        return real(other if purpose == "noise" else self, purpose, *rest)

    patch.setattr(ReleaseRandomness, "stream", stream)


def _swapped_clients(patch: Patch) -> None:
    real = ReleaseRandomness.stream

    def stream(
        self: ReleaseRandomness, purpose: str, round: int, client: int, *rest: Any
    ) -> Stream:
        return real(self, purpose, round, client ^ 1 if client >= 0 else client, *rest)

    patch.setattr(ReleaseRandomness, "stream", stream)


def _ground_noise(patch: Patch) -> None:
    """Of eight noises the quietest, each as good a Gaussian as any."""
    number = iter(range(10**9))

    def release(
        clean: Tensor, deviation: float, stream: Stream, *rest: Any, **options: Any
    ) -> Tensor:
        del stream
        tried = [
            add_gaussian_noise(
                clean, deviation, Stream(key_of_a_test(next(number))), *rest, **options
            )
            for _ in range(8)
        ]
        return min(tried, key=lambda one: float((one - clean).norm()))

    patch.setattr(oracle_module, "add_gaussian_noise", release)


def _opposite_noise(patch: Patch) -> None:
    """Every second noise is the one before with its sign turned, so that both cancel."""
    kept: list[Tensor] = []

    def release(
        clean: Tensor, deviation: float, stream: Stream, *rest: Any, **options: Any
    ) -> Tensor:
        if kept:
            return clean - kept.pop()
        honest = add_gaussian_noise(clean, deviation, stream, *rest, **options)
        kept.append(honest - clean)
        return honest

    patch.setattr(oracle_module, "add_gaussian_noise", release)


def _other_records(patch: Patch) -> None:
    """The key's draws are noted, and the client's first records used."""
    real = PrivateOracle.next_batch

    def next_batch(self: PrivateOracle) -> None:
        real(self)
        assert self._batch is not None
        chosen = torch.arange(len(self._batch[1]))
        self._batch = (self._inputs[chosen], self._labels[chosen])

    patch.setattr(PrivateOracle, "next_batch", next_batch)


def _more_records(patch: Patch) -> None:
    """Ten records more than drawn are in each sum; norms and size are noted without them."""
    real_batch, real_note = PrivateOracle.next_batch, ClientEvidence.query

    def next_batch(self: PrivateOracle) -> None:
        real_batch(self)
        assert self._batch is not None
        further = torch.arange(10)
        inputs = torch.cat([self._batch[0][:], self._inputs[further][:]])
        self._batch = (inputs, torch.cat([self._batch[1], self._labels[further]]))

    def note(self: ClientEvidence, query: Query) -> None:
        size = query.batch_size - 10
        own = {"raw_norms": query.raw_norms[:size], "clipped_norms": query.clipped_norms[:size]}
        real_note(self, dataclasses.replace(query, batch_size=size, **own))

    patch.setattr(PrivateOracle, "next_batch", next_batch)
    patch.setattr(ClientEvidence, "query", note)


def _other_labels(patch: Patch) -> None:
    """Trained on labels that are not those of the data set whose digest is claimed."""
    real = computing.client_data

    def client_data(*arguments: Any) -> list[ClientData]:
        return [dataclasses.replace(one, labels=(one.labels + 1) % 10) for one in real(*arguments)]

    patch.setattr(computing, "client_data", client_data)


def _rewrite_round(
    training: Training, index: int, change: Callable[[dict[str, Any]], None]
) -> None:
    """Change a round's evidence."""
    path = training.run.evidence / f"round-{index:05d}.npz"
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def _halved_norms(training: Training) -> None:
    """What clipping took off looks half as much as it was."""

    def change(arrays: dict[str, Any]) -> None:
        raw = arrays["raw_norms"]
        arrays["raw_norms"] = np.where(raw > CLIP, CLIP + (raw - CLIP) / 2, raw).astype(np.float32)

    for index in range(2):
        _rewrite_round(training, index, change)


def _other_commitments(training: Training) -> None:
    """Commitments to another story, in the evidence and in a ledger that is chained again."""
    digests = {}
    for index in range(2):

        def change(arrays: dict[str, Any], index: int = index) -> None:
            arrays["commitment"] = arrays["commitment"][:, ::-1].copy()
            rows = [row.tobytes() for row in arrays["commitment"]]
            digests[index] = digest_of_commitments(rows)

        _rewrite_round(training, index, change)
    path = training.run.ledger
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    path.unlink()
    ledger = Ledger(path)
    for entry in entries:
        if entry["kind"] == "round":
            entry["participations_sha256"] = digests[entry["round"]]
        fields = {key: entry[key] for key in entry if key not in ("kind", "previous", "digest")}
        ledger.append(entry["kind"], fields)


def _another_machine(training: Training) -> None:
    """The run is said to come from another processor, so that no bit can be asked for."""
    path = training.run.evidence / "environment-00000.json"
    found = {**json.loads(path.read_bytes()), "processor": "another one"}
    path.write_text(json.dumps(found))


def _no_noise(clean: Tensor, noise: Tensor) -> Tensor:
    del noise
    return clean.clone()


FORGERIES = (
    Forgery(
        "one-claimed-as-one-and-a-half",
        "a run at σ = 1 claims σ = 1.5",
        lying(lambda clean, noise: clean + noise / 1.5),
    ),
    Forgery("no-noise-at-all", "nothing is noised, σ = 0.6 is claimed", lying(_no_noise),
            noise_multiplier=0.6),
    Forgery(
        "no-noise-of-another-machine",
        "nothing is noised, and the run is said to come from another machine",
        lying(_no_noise), _another_machine, 0.6, "as the whole round went",
    ),
    Forgery(
        "one-participation-without-noise",
        "one client of one round sends its clean gradients",
        _in_one_participation(_no_noise), noise_multiplier=0.6,
    ),
    Forgery(
        "last-round-without-noise",
        "the round that leads to the published weights is not noised",
        _in_the_last_round(_no_noise), noise_multiplier=0.6,
    ),
    Forgery(
        "sums-twice-as-long",
        "clipped gradients are doubled before noise, so that a record weighs 2 C",
        lying(lambda clean, noise: 2.0 * clean + noise),
    ),
    Forgery("noise-of-another-key", "noise comes from a key that was not committed to",
            _another_key),
    Forgery("ground-noise", "of eight noises the quietest is released", _ground_noise),
    Forgery("opposite-noise", "every second noise cancels the one before", _opposite_noise),
    Forgery("swapped-streams", "clients draw from each other's streams", _swapped_clients),
    Forgery("records-of-choice", "the key's draws are noted, and other records used",
            _other_records),
    Forgery("more-records", "ten records more than drawn and noted are in each sum",
            _more_records),
    Forgery("other-labels", "other data were used than those whose digest is claimed",
            _other_labels),
    Forgery("halved-norms", "norms noted are half as far above C as they were",
            after=_halved_norms, says="norms noted"),
    Forgery("other-commitments", "the ledger commits to another story, and is chained again",
            after=_other_commitments, says="differs from the run in participations"),
)  # fmt: skip
