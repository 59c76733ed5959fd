"""Loads what a report may be made of: the public and restricted files of one run, never evidence.

`load` is the only reader that `content` has, so a value that is not in `RunSource` cannot reach a
report. A missing spec or ledger is an error; everything else that is missing or broken becomes a
note that the report prints.

The claim is lifted to one form: each ε by accountant. Claims once had a field for each of three
accountants (`epsilon_pld`, `epsilon_rdp`, `epsilon_rdp_classic`; in a view `epsilon` was the first
of them). `read_claim` lifts that form, so that nothing behind it knows of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.errors import SourceError, local
from reports.files import (
    Snapshot,
    clean,
    integer,
    mapping,
    number,
    parse_json,
    parse_json_lines,
    parse_yaml,
    sequence,
)

_OLD_FIELDS = {"epsilon_pld": "pld", "epsilon_rdp": "rdp", "epsilon_rdp_classic": "rdp-classic"}
_VIEWS = ("server", "server_worst_case", "third_party")
_NAME_LIMIT = 40


def read_claim(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim line with every ε by accountant; what has neither form stays as it is."""
    lifted = dict(entry)
    for name in _VIEWS:
        if not isinstance(view := entry.get(name), dict):
            continue
        view = _lifted(view)
        if isinstance(clients := view.get("clients"), list):
            view["clients"] = [_lifted(one) if isinstance(one, dict) else one for one in clients]
        lifted[name] = view
    return lifted


def _lifted(part: Mapping[str, Any]) -> dict[str, Any]:
    stated = part.get("epsilon")
    found = {name: part[old] for old, name in _OLD_FIELDS.items() if old in part}
    if isinstance(stated, dict) or (stated is None and not found):
        return dict(part)
    kept = {key: value for key, value in part.items() if key not in _OLD_FIELDS}
    if stated is not None:
        found["pld"] = stated
        kept.setdefault("accountant", "pld")
    return {**kept, "epsilon": found}


def epsilons(part: Any) -> dict[str, float | None]:
    """Return the ε of a view or client by the accountants' names; None for what is no number."""
    stated = mapping(mapping(part).get("epsilon"))
    return {clean(name, _NAME_LIMIT): number(value) for name, value in stated.items()}


def accountant(view: Any) -> str:
    """Return the name of the accountant whose number a view promises; empty if it names none."""
    return clean(mapping(view).get("accountant"), _NAME_LIMIT)


def headline(view: Any) -> float | None:
    """Return the ε that a view promises, None where it promises none."""
    return epsilons(view).get(accountant(view))


# Files whose digests anybody may see. The ledger's and the audit's contents tell participation and
# can be guessed in small runs; their digests would confirm a guess. So would the spec's: it may
# hold a path, a digest of the data, or the seed that all noise follows from.
PUBLIC_FILES = ("metrics.jsonl", "model.safetensors", "model.json")
_MOST_CLIENTS = 1_000_000
# As many as a whole number of 63 bits; a sum of such counts is a number, too.
_LARGEST_COUNT = 2.0**63


@dataclass(frozen=True)
class Auditing:
    """By whose key the findings are about to be signed, as far as keys can tell.

    Attributes:
        auditor: Fingerprint of the auditor's key.
        trainer: Fingerprint of the trainer's, as trainer.pub has it; None where it is not known.
        one_hand: Whether both lie in one hand: they are the same, or the auditor's holder
            has the trainer's key too.
        replaced: Fingerprints of the keys that the auditor's key replaced.
    """

    auditor: str
    trainer: str | None
    one_hand: bool
    replaced: frozenset[str] = frozenset()

    @property
    def independent(self) -> bool:
        """Whether the auditor's key is known not to be the trainer's. Nobody's word is taken."""
        return not self.one_hand and self.trainer not in (None, self.auditor)


@dataclass(frozen=True)
class RunSource:
    """What is known about one run.

    Attributes:
        spec: The resolved spec.
        header: First line of the ledger.
        claim: Last line of the ledger as `read_claim` gives it, empty if the run did not end.
        rounds_completed: Number of round lines in the ledger.
        spends: What was charged, the ledger's spend lines in order.
        participations: In how many completed rounds each client took part, in client order.
        metrics: Lines of metrics.jsonl, in order.
        audit: The auditor's findings, or None without a usable audit.json.
        model: How to rebuild the model, empty if unknown.
        hashes: File name to SHA-256 of its bytes, for the files that exist.
        notes: What is missing or broken, one sentence each.
        auditing: By whose key the findings are about to be signed; None where that is not known,
            which counts as the trainer's.
    """

    spec: dict[str, Any]
    header: dict[str, Any]
    claim: dict[str, Any]
    rounds_completed: int
    spends: list[dict[str, Any]]
    participations: tuple[int, ...]
    metrics: list[dict[str, Any]]
    audit: dict[str, Any] | None
    model: dict[str, Any]
    hashes: dict[str, str]
    notes: tuple[str, ...]
    auditing: Auditing | None = None

    @property
    def audited_by_another(self) -> bool:
        """Whether the auditor's key is known, and known not to be the trainer's."""
        return self.auditing is not None and self.auditing.independent

    @property
    def run(self) -> str:
        """The run's identifier as the ledger's header states it."""
        return clean(self.header.get("run"), 200)

    @property
    def private(self) -> bool:
        """Whether the run claims differential privacy at all.

        Both spec and ledger must agree that there is none: a disagreement is left to the auditor
        and shown with the claim.
        """
        return self.header.get("unit") != "none"

    @property
    def protects_clients(self) -> bool:
        """Whether whole clients are protected, not single records."""
        return self.header.get("unit") == "client"

    @property
    def recorded(self) -> bool:
        """Whether it is a training loop of somebody else's, which a recorder wrote down."""
        return bool(mapping(self.header.get("producer")))

    @property
    def accountant(self) -> str:
        """Name of the accountant that leads the claim."""
        leads = ("server", "third_party")
        if self.claim.get("view_headline") == "third-party":
            leads = ("third_party", "server")
        views = (self.claim.get(key) for key in leads)
        return next(filter(None, map(accountant, views)), "pld")

    @property
    def clients(self) -> int | None:
        """Number of clients."""
        return integer(self.header.get("clients"))

    @property
    def clients_per_round(self) -> int | None:
        """Clients that take part in a round, on average where they are drawn by chance."""
        return integer(self.header.get("clients_per_round"))

    @property
    def delta(self) -> float | None:
        """δ of the claim, or what the header says that it is to be."""
        return number(self.claim.get("delta")) or number(self.header.get("delta"))

    @property
    def records(self) -> list[float]:
        """Training records of each client, in client order (public metadata by assumption).

        Where people are protected it is people that the header counts.
        """
        return self._counts("records")

    @property
    def training_records(self) -> list[float]:
        """Training records of each client, whatever is protected."""
        return self._counts("rows") or self.records

    def _counts(self, name: str) -> list[float]:
        values = [number(value) for value in sequence(self.header.get(name))]
        return [value for value in values if value is not None and abs(value) < _LARGEST_COUNT]


def load(run_dir: Path, files: Snapshot | None = None) -> RunSource:
    """Read a run directory.

    Args:
        run_dir: The run directory; its evidence is never opened.
        files: Its files as another reader has them already; read from disk if not given.

    Returns:
        What the files say, with notes on what is missing.

    Raises:
        SourceError: spec.yaml or ledger.jsonl is missing or cannot be read.
    """
    if not run_dir.is_dir():
        raise SourceError(f"{run_dir}: no such run directory")
    files = files or Snapshot(run_dir)
    notes: list[str] = []
    hashes: dict[str, str] = {}

    def required(name: str) -> bytes:
        data = files.read(name)
        hashes[name] = files.sha256(name)
        return data

    def optional(name: str, parse: Callable[[bytes, str], Any], empty: Any) -> Any:
        try:
            return parse(required(name), name)
        except SourceError as error:
            notes.append(f"{clean(local(error, run_dir), 300)}.")
            return empty

    spec = parse_yaml(required("spec.yaml"), "spec.yaml")
    lines = parse_json_lines(required("ledger.jsonl"), "ledger.jsonl")
    if not lines or lines[0].get("kind") != "header" or not clean(lines[0].get("run")):
        raise SourceError("ledger.jsonl, line 1: a header with the run's identifier is needed")
    header = lines[0]
    claim = read_claim(lines[-1]) if lines[-1].get("kind") == "claim" else {}
    if not claim:
        notes.append("ledger.jsonl: ends without a claim; the run did not finish.")
    if header.get("spec_sha256") not in (None, hashes["spec.yaml"]):
        notes.append("ledger.jsonl: was written for another spec.yaml than the one in this folder.")
    spends = [line for line in lines if line.get("kind") == "spend"]
    completed = len(_last_of_each_round(lines))
    if mapping(header.get("producer")):
        # How long a loop would be nobody knew; each of its steps released a model.
        completed = len(spends)
        header = {**header, "rounds": completed, "local_steps": 1}
    metrics = optional("metrics.jsonl", parse_json_lines, [])
    model = mapping(optional("model.json", parse_json, {}))
    try:
        hashes["model.safetensors"] = files.sha256("model.safetensors")
    except SourceError:
        notes.append("model.safetensors: missing.")
    audit = _usable_audit(optional("audit.json", parse_json, None), header, hashes, notes)
    return RunSource(
        spec=spec,
        header=header,
        claim=claim,
        rounds_completed=completed,
        spends=spends,
        participations=_participations(header, lines),
        metrics=metrics,
        audit=audit,
        model=model,
        hashes=hashes,
        notes=tuple(notes),
    )


def _last_of_each_round(lines: list[dict[str, Any]]) -> dict[int | None, dict[str, Any]]:
    """Return the lines of completed rounds by number; all without a number are one round.

    A round that was repeated after a crash is one round; its last line stands.
    """
    return {integer(line.get("round")): line for line in lines if line.get("kind") == "round"}


def _participations(header: dict[str, Any], lines: list[dict[str, Any]]) -> tuple[int, ...]:
    """Count the completed rounds of each client; empty where the ledger names no clients."""
    clients = integer(header.get("clients")) or 0
    if not 0 < clients <= _MOST_CLIENTS:
        return ()
    counts = [0] * clients
    for line in _last_of_each_round(lines).values():
        for raw in sequence(line.get("clients")):
            index = integer(raw)
            if index is not None and 0 <= index < clients:
                counts[index] += 1
    return tuple(counts)


def _usable_audit(
    found: Any, header: dict[str, Any], hashes: dict[str, str], notes: list[str]
) -> dict[str, Any] | None:
    """Return the audit if it judged exactly this run's files, else None and a note.

    A verdict copied from another run, or made before a file changed, must not be shown.
    """
    if found is None:
        return None
    if not isinstance(found, dict):
        notes.append("audit.json: a JSON object is needed.")
        return None
    if found.get("run") != header.get("run"):
        notes.append("audit.json: belongs to another run and is not used.")
        return None
    for name, digest in mapping(found.get("inputs")).items():
        if hashes.get(name, digest) != digest:
            notes.append(f"audit.json: judged another {clean(name, 60)} and is not used.")
            return None
    return found
