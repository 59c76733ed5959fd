"""Reads a run directory and trusts nothing in it.

First stage of the audit: `auditor` opens a `Bundle` and every check reads through it. Files must
be plain files inside the directory (no symbolic links, no pipes), bounded in size, and are parsed
by strict readers. Whatever is wrong is recorded as a problem and never becomes a traceback.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from audit.errors import RunDirectoryError, UntrustedFileError, UnverifiedError
from audit.reading.columns import Histograms, read_histograms
from audit.reading.evidence import (
    CoordinateSums,
    Holdings,
    Layout,
    Moments,
    People,
    ProbeResults,
    Records,
    RoundEvidence,
    read_coordinate_sums,
    read_holdings,
    read_layout,
    read_moments,
    read_people,
    read_probe,
    read_records,
)
from audit.reading.exchanges import (
    Exchange,
    Release,
    ServerRound,
    read_exchange,
    read_release,
    read_server,
)
from audit.reading.files import hash_file, read_bytes, refusals_of
from audit.reading.ledger import Header, Ledger, read_ledger
from audit.reading.units import CLIENT, LOOP, RECORD, Unit
from audit.reexecution import Replay
from audit.untrusted.archives import Arrays, Integers, read_archive
from audit.untrusted.documents import (
    MAXIMUM_YAML_BYTES,
    DocumentError,
    parse_json,
    parse_yaml,
)

if TYPE_CHECKING:
    # What only some runs have is read by modules that are loaded when it is asked for.
    from audit.reading.canary_evidence import CanaryEvidence
    from audit.reading.client_evidence import UpdateRound
    from audit.reading.loop_evidence import LoopEnd, LoopEvidence

# Parsing YAML takes seconds for every 100 kB; a resolved spec has a few.
MAXIMUM_LEDGER_BYTES = 1 << 28
MAXIMUM_LAYOUT_BYTES = 1 << 26
MAXIMUM_EVIDENCE_BYTES = 1 << 30
MAXIMUM_SALT_BYTES = 1 << 12
_CACHE_BYTES = 1 << 28
# What a layout may state without a model that is as large.
_ANY_PARAMETERS = 1 << 24

_Content = TypeVar("_Content")

HASHED_FILES = ("spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json")


@dataclass
class Bundle:
    """A run directory, opened. Build it with `open_bundle`.

    Attributes:
        root: the directory, resolved.
        spec: the parsed spec, None if unreadable.
        spec_sha256: digest of the spec's bytes.
        ledger: the ledger, None if the file is unreadable.
        problems: what was wrong while opening.
        inputs: sha256 of the public and restricted files.
        live_probe: pokes the engine's step now; None where the recorded probe is to be judged.
        replay: computes participations again; None where that was not asked for.
    """

    root: Path
    spec: Mapping[str, Any] | None
    spec_sha256: str | None
    ledger: Ledger | None
    problems: tuple[UntrustedFileError, ...]
    inputs: Mapping[str, str]
    live_probe: Callable[[], ProbeResults] | None = None
    replay: Replay | None = None
    _cache: OrderedDict[tuple[str, int], Any] = field(default_factory=OrderedDict, repr=False)
    _layout: Layout | None = field(default=None, repr=False)
    _refused: dict[str, UntrustedFileError] = field(default_factory=dict, repr=False)

    @property
    def header(self) -> Header:
        """The ledger's header.

        Raises:
            UnverifiedError: it could not be read.
        """
        if self.ledger is None or self.ledger.header is None:
            raise UnverifiedError("the ledger's header cannot be read")
        return self.ledger.header

    @property
    def readable_ledger(self) -> Ledger:
        """The ledger, if every line of it could be read.

        Raises:
            UnverifiedError: the ledger is missing or has a malformed line.
        """
        if self.ledger is None:
            raise UnverifiedError("the ledger cannot be read")
        if self.ledger.faults:
            raise UnverifiedError("the ledger has faults (see the check integrity)")
        return self.ledger

    @property
    def readable_spec(self) -> Mapping[str, Any]:
        """The spec.

        Raises:
            UnverifiedError: it could not be read.
        """
        if self.spec is None:
            raise UnverifiedError("the spec cannot be read")
        return self.spec

    def layout(self) -> Layout:
        """The evidence's layout.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        if self._layout is None:
            name = "evidence/layout.json"
            raw = read_bytes(self.root, name, MAXIMUM_LAYOUT_BYTES)
            with refusals_of(name):
                self._layout = read_layout(parse_json(raw), self._most_parameters())
        return self._layout

    def _most_parameters(self) -> int:
        """The most that a layout may state: each parameter takes memory, and its number none."""
        try:
            size = (self.root / "model.safetensors").lstat().st_size
        except OSError:
            size = 0
        return max(_ANY_PARAMETERS, size)

    def round_evidence(self, index: int) -> RoundEvidence:
        """The evidence of round `index` (from 0), read when asked for and kept while room lasts.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        header = self.ledger.header if self.ledger is not None else None
        recorded = header is not None and header.unit is LOOP
        evidence: RoundEvidence = self.evidence_of_round(index, LOOP if recorded else RECORD)
        return evidence

    def loop_rounds(self) -> Iterator[tuple[int, LoopEvidence]]:
        """Every file of a recorded loop, in order.

        Raises:
            UnverifiedError: one of them cannot be read.
        """
        return self._every(lambda index: self.evidence_of_round(index, LOOP))

    def loop_end(self) -> LoopEnd:
        """What was seen of a recorded loop after its last step.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        from audit.reading.loop_evidence import read_loop_end

        return self._of_archive("evidence/end.npz", read_loop_end)

    def update_round(self, index: int) -> UpdateRound:
        """The evidence of round `index` (from 0) of a run at client level.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        evidence: UpdateRound = self.evidence_of_round(index, CLIENT)
        return evidence

    def evidence_of_round(self, index: int, unit: Unit) -> Any:
        """The evidence of round `index` (from 0) as a unit of protection has it.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        key = (unit.name, index)
        if key not in self._cache:
            layout = self.layout()
            evidence = self._of_archive(
                round_file(index), lambda arrays: unit.read_round(arrays, layout)
            )
            self._cache[key] = evidence, _bytes_held(evidence)
        self._cache.move_to_end(key)
        while len(self._cache) > 1 and sum(size for _, size in self._cache.values()) > _CACHE_BYTES:
            self._cache.popitem(last=False)
        return self._cache[key][0]

    def all_rounds(self) -> Iterator[tuple[int, RoundEvidence]]:
        """The evidence of every round that had clients, in order.

        Raises:
            UnverifiedError: one of them cannot be read, so that a judgement on the rest would not
                be one on the run; or no round had any.
        """
        empty = True
        for index, evidence in self._every(self.round_evidence):
            if len(evidence.clients):
                empty = False
                yield index, evidence
        if empty:
            raise UnverifiedError("no client took part in any round: there is nothing to judge")

    def all_update_rounds(self) -> Iterator[tuple[int, UpdateRound]]:
        """Every round's evidence of a run at client level, in order.

        Raises:
            UnverifiedError: one of them cannot be read.
        """
        return self._every(self.update_round)

    def holdings(self) -> Holdings:
        """Who was given which training record, and who works on which.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return self._of_archive("evidence/partition.npz", read_holdings)

    def records(self) -> Records:
        """Which rows are trained on, and which records are equal.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return self._of_archive("evidence/records.npz", read_records)

    def people(self) -> People:
        """Whom the records are about, where the spec names people.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return self._of_archive("evidence/people.npz", read_people)

    def histograms(self, clients: int, cells: int) -> Histograms:
        """The clients' histograms of columns, without and with noise.

        Raises:
            UntrustedFileError: they cannot be read.
        """
        return self._of_archive(
            "evidence/columns.npz", lambda arrays: read_histograms(arrays, clients, cells)
        )

    def moments(self) -> Moments:
        """Moments of each client's numbers as the model reads them.

        Raises:
            UntrustedFileError: they cannot be read.
        """
        return self._of_archive("evidence/inputs.npz", read_moments)

    def coordinate_sums(self) -> CoordinateSums | None:
        """Sums of squared noise at each coordinate; None where an older run kept none.

        Raises:
            UntrustedFileError: they cannot be read.
        """
        name = "evidence/coordinates.npz"
        if not (self.root / name).exists() and not (self.root / name).is_symlink():
            return None
        layout = self.layout()
        return self._of_archive(name, lambda arrays: read_coordinate_sums(arrays, layout))

    def probe_results(self) -> ProbeResults:
        """Results of the active probe: the live one, or else the recorded one.

        Raises:
            UntrustedFileError: the record cannot be read.
            UnverifiedError: the live probe could not be carried out.
        """
        if self.live_probe is not None:
            return self.live_probe()
        return self._of_archive("evidence/probe.npz", read_probe)

    def canaries(self) -> CanaryEvidence:
        """What an audit run's releases said of its canaries.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        from audit.reading.canary_evidence import read_canaries

        header = self.header
        return self._of_archive(
            "evidence/canaries.npz",
            lambda arrays: read_canaries(arrays, header.clients, header.unit),
        )

    def salt(self) -> bytes:
        """The key by which participations are chosen.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return read_bytes(self.root, "evidence/salt", MAXIMUM_SALT_BYTES)

    def tuning_secret(self) -> bytes:
        """What drew the number of trials of which the run is one.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return read_bytes(self.root, "evidence/tuning", MAXIMUM_SALT_BYTES)

    def exchange(self, index: int, client: int, recorded: int) -> Exchange:
        """What went into and came out of one participation, at `recorded` coordinates.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        blocks, sample = len(self.layout().sizes), len(self.layout().sample_coordinates)
        return self._of_archive(
            f"evidence/upload-{index:05d}-{client:05d}.npz",
            lambda arrays: read_exchange(arrays, recorded, blocks, sample),
        )

    def release(self, index: int, recorded: int) -> Release:
        """What a client-level round released, at `recorded` coordinates.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        name = f"evidence/upload-{index:05d}.npz"
        return self._of_archive(name, lambda arrays: read_release(arrays, recorded))

    def server_round(self, index: int, places: Integers, last: bool) -> ServerRound:
        """What was kept of a round's server, at the pieces that are due.

        Raises:
            UntrustedFileError: it cannot be read, or does not hold what is due.
        """
        size = self.header.parameters
        return self._of_archive(
            f"evidence/server-{index:05d}.npz",
            lambda arrays: read_server(arrays, size, places, last),
        )

    def has_next_broadcast(self, index: int) -> bool:
        """Whether what was kept of a round's server has what it sent next.

        Raises:
            UntrustedFileError: the file is there and cannot be read.
        """
        name = f"evidence/server-{index:05d}.npz"
        if not (self.root / name).exists():
            return True
        return self._of_archive(name, lambda arrays: "combined_head" in arrays)

    def weights(self) -> bytes:
        """The published weights' file.

        Raises:
            UntrustedFileError: it cannot be read.
        """
        return read_bytes(self.root, "model.safetensors", MAXIMUM_EVIDENCE_BYTES)

    def _of_archive(self, name: str, read: Callable[[Arrays], _Content]) -> _Content:
        # Several checks ask for one file: what is large and no archive is read for the first alone.
        if name in self._refused:
            raise self._refused[name]
        try:
            with refusals_of(name):
                arrays = read_archive(read_bytes(self.root, name, MAXIMUM_EVIDENCE_BYTES))
        except UntrustedFileError as error:
            self._refused[name] = error
            raise
        with refusals_of(name):
            return read(arrays)

    def _every(self, read: Callable[[int], _Content]) -> Iterator[tuple[int, _Content]]:
        for index in range(self.readable_ledger.rounds_to_finish):
            try:
                yield index, read(index)
            except UntrustedFileError as error:
                raise UnverifiedError(str(error)) from error


def _bytes_held(evidence: Any) -> int:
    arrays = [value for value in vars(evidence).values() if isinstance(value, np.ndarray)]
    # Arrays inside further objects, and what Python adds.
    return 2 * sum(array.nbytes for array in arrays) + 4096


def round_file(index: int) -> str:
    """Path of a round's evidence inside the run directory."""
    return f"evidence/round-{index:05d}.npz"


def open_bundle(run_dir: Path) -> Bundle:
    """Open a run directory for auditing.

    Args:
        run_dir: the directory; what lies in it is not trusted.

    Returns:
        A bundle in which unreadable files are None and are listed as problems.

    Raises:
        RunDirectoryError: `run_dir` is not a directory.
    """
    try:
        root = run_dir.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise RunDirectoryError(f"{run_dir}: there is no such run directory") from error
    if not root.is_dir():
        raise RunDirectoryError(f"{run_dir}: is not a directory; give the run directory")
    problems: list[UntrustedFileError] = []
    inputs: dict[str, str] = {}

    def read(name: str, limit: int, parse: Callable[[bytes], _Content]) -> _Content | None:
        try:
            raw = read_bytes(root, name, limit)
            inputs[name] = hashlib.sha256(raw).hexdigest()
            with refusals_of(name):
                return parse(raw)
        except UntrustedFileError as error:
            problems.append(error)
        return None

    spec = read("spec.yaml", MAXIMUM_YAML_BYTES, _parse_spec)
    spec_sha256 = inputs.get("spec.yaml")
    ledger = read("ledger.jsonl", MAXIMUM_LEDGER_BYTES, read_ledger)
    for name in HASHED_FILES:
        try:
            # What was judged is what was hashed: no file is opened a second time.
            inputs[name] = inputs.get(name) or hash_file(root, name)
        except UntrustedFileError as error:
            if name not in {problem.file for problem in problems}:
                problems.append(error)
    return Bundle(root, spec, spec_sha256, ledger, tuple(problems), inputs)


def _parse_spec(raw: bytes) -> Mapping[str, Any]:
    parsed = parse_yaml(raw)
    if not isinstance(parsed, Mapping):
        raise DocumentError("is not a mapping")
    return parsed
