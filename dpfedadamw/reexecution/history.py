"""What a finished run left for executing it again, none of it trusted.

- `PastLedger`: what stood in the ledger when each round began.
- `KeptStates`: states between rounds that the trainer kept, and the model that it published. Only
  what the ledger names by its digest is taken for a state of the run.
- `TrainingMachine`: versions, processor and threads on which each round was computed.
- `Keys`: the keys that an auditor holds, and thereby which participations can be computed again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.states import state_file
from dpfedadamw.experiment import Experiment
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.run.checkpoints import unpack_state
from dpfedadamw.run.environment import differences, environment, read_environments
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import DISK, Disk, OpenFile
from dpfedadamw.storage.foreign import read_json_lines
from dpfedadamw.vectors.flat import FlatParameters

_CHAIN = ("kind", "previous", "digest")

Entry = Mapping[str, Any]


class ReexecutionError(DpfedadamwError):
    """A run cannot be recomputed: its data, key or initial state is missing."""


@dataclass(frozen=True)
class PastRound:
    """A finished round, as the ledger tells it.

    Attributes:
        entry: Its line.
        before: How many lines stood in the ledger when its last attempt was charged.
        charges: The lines of that charge.
        attempt: Which attempt it was.
        commitment: Of the key that drew its noise; None in reproducible mode.
    """

    entry: Entry
    before: int
    charges: tuple[Entry, ...]
    attempt: int
    commitment: str | None


class PastLedger:
    """The lines of a run's ledger, none of them trusted.

    Args:
        path: The file.

    Raises:
        ReexecutionError: If it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.entries: list[Entry] = list(read_json_lines(path))
            self.header = next(entry for entry in self.entries if entry["kind"] == "header")
            self.claims = [entry for entry in self.entries if entry["kind"] == "claim"]
            self.rounds = dict(_rounds(self.entries))
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ReexecutionError(
                f"{path}: cannot be read ({reason}); audit the run first"
            ) from None

    def state_digest(self, completed: int) -> str | None:
        """Sha256 (hex) of the state after so many rounds; None where the ledger names none."""
        past = self.rounds.get(completed - 1)
        return None if past is None else past.entry.get("state_sha256")

    def as_it_stood(self, before: int, folder: Path) -> Ledger:
        """A ledger of one's own with the first lines of this one.

        Args:
            before: How many.
            folder: Where its file is made.
        """
        handle = Path(tempfile.mkdtemp(dir=folder)) / "ledger.jsonl"
        ledger = Ledger(handle, _Hasty())
        for kind, many in groupby(self.entries[:before], key=lambda entry: entry["kind"]):
            append(ledger, str(kind), many)
        return ledger


def append(ledger: Ledger, kind: str, entries: Iterable[Entry]) -> None:
    """Append entries of another ledger, whose chain is left behind."""
    ledger.append_all(kind, [plain(entry) for entry in entries])


def plain(entry: Entry) -> dict[str, Any]:
    """An entry without its kind and its chain."""
    return {name: value for name, value in entry.items() if name not in _CHAIN}


class _Hasty(Disk):
    """A disk for files that nobody needs after a crash."""

    def sync(self, file: OpenFile) -> None:
        """Do not wait."""

    def sync_folder(self, path: Path) -> None:
        """Do not wait."""


def _rounds(entries: Sequence[Entry]) -> Iterable[tuple[int, PastRound]]:
    """Every finished round by its number; of one that was repeated, the last time."""
    commitment: str | None = None
    charged: dict[int, tuple[int, list[Entry], str | None]] = {}
    for place, entry in enumerate(entries):
        kind = entry["kind"]
        if kind in ("header", "resume"):
            commitment = entry.get("commitment")
        elif kind == "spend":
            index = int(entry["round"])
            at, lines, _ = charged.get(index, (place, [], None))
            if lines and lines[-1]["attempt"] != entry["attempt"]:
                at, lines = place, []
            charged[index] = (at, [*lines, entry], commitment)
        elif kind == "round":
            index = int(entry["round"])
            at, lines, key = charged.pop(index, (place, [], commitment))
            attempt = int(lines[-1]["attempt"]) if lines else 1
            yield index, PastRound(entry, at, tuple(lines), attempt, key)


class KeptStates:
    """States between rounds as the trainer kept them, and the model that it published.

    Args:
        run: The run's directory.
        ledger: Names each state by its digest.
        experiment: The run's, whose model has its initial parameters.
        flat: The parameters of that model.
    """

    def __init__(
        self, run: RunDirectory, ledger: PastLedger, experiment: Experiment, flat: FlatParameters
    ) -> None:
        self._run, self._ledger = run, ledger
        self._server, self._slices = experiment.algorithm.server, flat.layout.slices
        self._initial = flat.vector.clone()

    def latest(self, index: int) -> int:
        """How many rounds were completed when a state was last kept before a round; 0 for none."""
        for completed in range(index, 0, -1):
            if self._path(completed).is_file():
                return completed
        return 0

    def after(self, completed: int) -> ServerState:
        """The state after so many rounds; after none the initial one.

        Raises:
            ReexecutionError: If it was not kept, or is not the ledger's.
        """
        if completed == 0:
            return self._server.start(self._initial.clone())
        found = self._read(completed)
        if found is None:
            raise ReexecutionError(
                f"evidence/{self._path(completed).name}: is not the state that the ledger names"
            )
        return found

    def distance(self, completed: int, before: Tensor, state: ServerState) -> float | None:
        """How far a state lies from the trainer's, over the distance that the round went.

        Args:
            completed: Rounds completed at the state.
            before: The parameters before the round, [d].
            state: What the round came to.

        Returns:
            The ratio of L2 norms; None where the trainer's state was not kept.
        """
        found = self._read(completed)
        kept = None if found is None else found.parameters
        if kept is None and completed == len(self._ledger.rounds):
            kept = self._published()
        if kept is None:
            return None
        off = float(torch.linalg.vector_norm(state.parameters.double() - kept.double()))
        went = float(torch.linalg.vector_norm(kept.double() - before.double()))
        if went > 0.0:
            return off / went
        return float("inf") if off > 0.0 else 0.0

    def is_published(self, state: ServerState) -> bool:
        """Whether the published parameters are those of a state, to the last bit."""
        published, own = self._published(), state.parameters
        if published is None:
            return False
        # A model that diverged is what was published as well, though NaN equals nothing.
        return torch.allclose(published, own.to(published.dtype), rtol=0, atol=0, equal_nan=True)

    def _path(self, completed: int) -> Path:
        return self._run.evidence / state_file(completed - 1)

    def _read(self, completed: int) -> ServerState | None:
        """A kept state; None where there is none with the digest that the ledger names."""
        try:
            content = DISK.read(self._path(completed))
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest() != self._ledger.state_digest(completed):
            return None
        return unpack_state(content, self._server, self._initial)[0]

    def _published(self) -> Tensor | None:
        """The published parameters as a flat vector; None where they do not fit the model."""
        try:
            tensors = load(DISK.read(self._run.weights))
            found = [tensors[part.name].reshape(-1) for part in self._slices]
        except (OSError, SafetensorError, KeyError):
            # Whatever the file holds is judged elsewhere; here it only cannot be compared with.
            return None
        whole = torch.cat(found).to(self._initial.device)
        return whole if len(whole) == len(self._initial) else None


class TrainingMachine:
    """On what each round of a run was computed, as its evidence notes it.

    Args:
        evidence: The run's private evidence.
        device: Where rounds are executed now.

    Raises:
        RunDirectoryError: If a note cannot be read.
    """

    def __init__(self, evidence: Path, device: torch.device) -> None:
        self._environments = read_environments(evidence)
        self._device = device

    def engine(self, index: int) -> str:
        """The engine of clipped sums that a round was computed by."""
        return str((self._recorded(index) or {}).get("engine", "auto"))

    def differences(self, index: int) -> tuple[str, ...]:
        """How it differs from this machine, one text each; not threads, which `threads` sets."""
        recorded = self._recorded(index)
        if recorded is None:
            return ("the run did not record the machine and versions it was computed on",)
        here = environment(self._device, self.engine(index))
        return tuple(differences(recorded, {**here, "threads": recorded.get("threads")}))

    @contextmanager
    def threads(self, index: int) -> Iterator[None]:
        """Compute with as many threads as the trainer did: sums are cut up by them."""
        before = torch.get_num_threads()
        wanted = (self._recorded(index) or {}).get("threads", before)
        if isinstance(wanted, int) and 1 <= wanted <= 1024:
            torch.set_num_threads(wanted)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _recorded(self, index: int) -> Mapping[str, Any] | None:
        """The note that holds for a round: a run that was taken up again has several."""
        firsts = [first for first in self._environments if first <= index]
        return self._environments[max(firsts)] if firsts else None


@dataclass(frozen=True)
class Keys:
    """Gives the streams of a run, as often as they are asked for.

    Attributes:
        source: The streams of the key with a commitment, None in reproducible mode; raises
            ReexecutionError where there is no such key.
        opened: Round and client of the leaf keys that are there, client -1 being the server; None
            where the keys open everything.
    """

    source: Callable[[str | None], RandomSource]
    opened: frozenset[tuple[int, int]] | None = None

    def open(self, round: int, clients: Iterable[int]) -> bool:
        """Whether the streams of all these clients in a round are there."""
        return self.opened is None or self.opened.issuperset((round, one) for one in clients)


def escrowed(files: Sequence[Path], coin: PublicCoin = NO_COIN) -> Keys:
    """Keys from escrow: of a run that was cut off, one for each time that it was taken up.

    Args:
        files: Written by ``run --escrow`` or ``challenge intent --escrow``.
        coin: What an auditor's nonce binds the streams to, if there is one.

    Raises:
        PrivacyError: If a file cannot be read, or holds no key.
    """
    every = [key for path in files for key in ReleaseRandomness.all_from_escrow(path, coin)]
    known = {key.commitment: key for key in every}

    def source(commitment: str | None) -> RandomSource:
        key = known.get(commitment or "")
        if key is None:
            raise ReexecutionError(
                "the escrow holds no key with the commitment that the ledger names; give the file "
                "that `run --escrow` wrote for this run. A resumed run draws another key, which "
                "`run --resume RUN_DIR --escrow FILE` adds to the file"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)


def opened(leaves: Mapping[tuple[int, int], bytes], coin: PublicCoin) -> Keys:
    """Leaf keys that a trainer opened for a draw, with commitments checked when read.

    Args:
        leaves: 32 bytes each, by round and client; client -1 is the server.
        coin: What the streams are bound to.
    """
    source = OpenedRandomness(lambda round, client: leaves.get((round, client)), coin)
    return Keys(lambda _: source, frozenset(leaves))


def published(seed: int) -> Keys:
    """The seed of a reproducible run, which its spec names."""
    return Keys(lambda _: ReproducibleRandomness(seed))


def held(key: RandomSource) -> Keys:
    """The key that this process has trained with.

    Args:
        key: Where the run's streams came from.
    """
    if isinstance(key, ReproducibleRandomness):
        return published(key.seed)

    def source(commitment: str | None) -> RandomSource:
        if not isinstance(key, ReleaseRandomness) or commitment != key.commitment:
            raise ReexecutionError(
                "the key of the rounds before the interruption is gone; only `run --escrow` saves "
                "it"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)
