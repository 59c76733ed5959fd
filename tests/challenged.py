"""Runs that an auditor challenged, for tests: trainer and auditor each with keys of their own.

Keys, nonces and names of runs are the same each time: the audit's statistical checks have a
false-alarm rate, which a test that must pass cannot have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dpfedadamw import rundir
from dpfedadamw import spec as specs
from dpfedadamw.cli import challenge_files
from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.noise import randomness
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from reports.signatures import intent_log
from tests.runs import PRIVATE, SMALL, call, key_of_a_test

Forge = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Parties:
    """A trainer and an auditor who exchange files in one folder.

    Attributes:
        folder: Where intent, challenge, draw, openings, escrow, spec, keys and runs lie.
    """

    folder: Path

    @property
    def run(self) -> Path:
        """The newest run."""
        return (self.folder / "runs" / "latest").resolve()

    @property
    def escrow(self) -> Path:
        """The trainer's key file."""
        return self.folder / "key.escrow"

    def file(self, name: str) -> str:
        """Path of a file that is exchanged, for a command."""
        return str(self.folder / name)

    @contextmanager
    def acting(self, role: str, forge: Forge | None = None) -> Iterator[None]:
        """Commands use the key folder of one of the two; a forger's engine is patched."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DPFEDADAMW_KEYS", self.file(f"{role}-keys"))
            if forge is not None:
                forge(patch)
            yield

    def trainer(self, *arguments: str, forge: Forge | None = None) -> int:
        """Exit code of a command of the trainer's."""
        with self.acting("trainer", forge):
            return call(*arguments)

    def auditor(self, *arguments: str) -> int:
        """Exit code of a command of the auditor's."""
        with self.acting("auditor", self._known_nonces):
            return call(*arguments)

    def announce(self, intent: str = "intent.json", escrow: str = "key.escrow") -> int:
        """The trainer's intent."""
        return self.trainer(
            "challenge", "intent", self.file("small.yaml"),
            "--escrow", self.file(escrow), "--output", self.file(intent), forge=self._known_key,
        )  # fmt: skip

    def _known_key(self, patch: pytest.MonkeyPatch) -> None:
        """Let the next run have the key and the name that it always has here."""
        number = len(list(self.folder.glob("*.json")))
        known = ReleaseRandomness(key_of_a_test(100 + number))
        patch.setattr(randomness, "ReleaseRandomness", lambda: known)
        named = f"20261122T120000Z-{number:08x}"
        patch.setattr(rundir, "new_identifier", lambda name, _created: f"{name}-{named}")

    def _known_nonces(self, patch: pytest.MonkeyPatch) -> None:
        """Let nonces follow from how many were drawn before."""
        log = self.folder / "auditor-keys" / intent_log.FILE

        def nonce() -> bytes:
            before = log.read_bytes().count(b"\n")
            return hashlib.sha256(b"nonce %d of a test" % before).digest()

        patch.setattr(intent_log, "fresh_nonce", nonce)

    def challenge(self, intent: str = "intent.json", answer: str = "challenge.json") -> int:
        """The auditor's answer."""
        return self.auditor("challenge", "new", self.file(intent), "--output", self.file(answer))

    def train(self, *more: str, forge: Forge | None = None) -> int:
        """The trainer's run."""
        return self.trainer(
            "run", self.file("small.yaml"), "--challenge", self.file("challenge.json"),
            "--escrow", self.file("key.escrow"), "--out", self.file("runs"), *more, forge=forge,
        )  # fmt: skip

    def draw(self, count: int, output: str = "draw.json") -> int:
        """The auditor's draw."""
        return self.auditor(
            "challenge", "draw", str(self.run), "--participations", str(count),
            "--output", self.file(output),
        )  # fmt: skip

    def open(self, draw: str = "draw.json", output: str = "openings.json") -> int:
        """What the trainer opens."""
        return self.trainer(
            "challenge", "open", str(self.run), "--draw", self.file(draw),
            "--escrow", self.file("key.escrow"), "--output", self.file(output),
        )  # fmt: skip


def parties(folder: Path, rounds: int = 2, clients_per_round: int = 4) -> Parties:
    """A folder with a small spec in release mode, and nothing else."""
    text = SMALL.format(
        algorithm="dp-fedavg",
        rounds=rounds,
        clients_per_round=clients_per_round,
        privacy=PRIVATE,
        mode="release",
        seed="",
    )
    (folder / "small.yaml").write_text(text)
    return Parties(folder)


def challenged(folder: Path, rounds: int = 2, forge: Forge | None = None) -> Parties:
    """Parties whose run is finished, honest or forged."""
    found = parties(folder, rounds)
    assert found.announce() == found.challenge() == 0
    assert found.train(forge=forge) == 0
    return found


def challenged_and_signed(folder: Path, forge: Forge) -> Parties:
    """Parties whose forged run is trained and signed, and neither audited nor reported."""
    found = parties(folder)
    assert found.announce() == found.challenge() == 0
    with found.acting("trainer", forge):
        signers = filing.load_signers(None, None)
        challenge = challenge_files.read_challenged(
            folder / "challenge.json", found.escrow, signers.trainer
        )
        experiment = prepare(specs.load(found.file("small.yaml")), torch.device("cpu"))
        training = engine_setup.start(
            experiment, folder / "runs", options=StartOptions(challenged=challenge)
        )
        with training.lock:
            engine_run.train(training)
        filing.attest_training(training.run, signers)
    return found
