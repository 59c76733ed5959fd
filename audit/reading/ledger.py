"""The privacy ledger as the auditor reads it: every line checked, every link of the chain followed.

`read_ledger` makes typed lines of a file's bytes, and a list of faults, each with its line number.
It never raises for a bad ledger: the checks judge the faults. Each line is checked for its form and
its place in the chain (`read_entry`), then read by its kind (`_READERS`): the header, the rounds
and the claim here, charges and what many headers lack in `ledger_lines`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from audit.errors import UnverifiedError
from audit.reading.columns import Answer, Queries, Query, read_answer, read_queries, read_query
from audit.reading.ledger_lines import (
    GAUSSIAN,
    HEX,
    RUN_NAME,
    Adaptation,
    Canaries,
    Grid,
    Producer,
    RoundSpend,
    SharedBudget,
    Sparsification,
    Spend,
    SpendingBound,
    Trial,
    read_adaptation,
    read_budget,
    read_canaries,
    read_claim,
    read_grid,
    read_producer,
    read_sparsification,
    read_spend,
    read_trial,
    steps_charged,
)
from audit.reading.units import CLIENT, LOOP, PERSON, RECORD, UNITS, Unit
from audit.untrusted import fields
from audit.untrusted.documents import DocumentError, canonical_json, parse_json
from audit.untrusted.fields import FieldError

MAXIMUM_LINE_BYTES = 1 << 20
GENESIS = "0" * 64
# What an auditor counts of a trainer's intents, this one included.
INTENTS = ("of_trainer", "for_data", "dropped", "dropped_of_trainer")
# Digests that a round's line may note.
DIGESTS = (
    "broadcast_sha256", "uploads_sha256", "released_sha256", "state_sha256", "parameters_sha256",
    "participations_sha256", "frozen_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Ledger:
    """All lines of a ledger, as far as they could be read.

    Attributes:
        header: the first line, None if unreadable.
        spends: charges of single clients (unit record), in order.
        rounds: finished rounds in order; one that was repeated stands here each time.
        resumes: where the run was cut off and went on.
        claim: the last line's mapping as `read_claim` gives it, None if there is none.
        kinds: kind of every readable line with its line number.
        faults: everything wrong with form and chain.
        round_spends: charges of whole rounds (unit client), in order.
        stopped: that a limit on ε ended the run; None where the claim does not say so.
        diverged: after how many rounds the model was no numbers any more, which ended the run; None
            where the claim does not say so.
        queries: charges for histograms of columns, in order.
        answers: what was learnt from them; one line, where there are any.
    """

    header: Header | None
    spends: tuple[Spend, ...]
    rounds: tuple[Round, ...]
    resumes: tuple[Resume, ...]
    claim: Mapping[str, Any] | None
    kinds: tuple[tuple[int, str], ...]
    faults: tuple[Fault, ...]
    round_spends: tuple[RoundSpend, ...] = ()
    stopped: Stopped | None = None
    diverged: int | None = None
    queries: tuple[Query, ...] = ()
    answers: tuple[Answer, ...] = ()

    def resumed_after(self, item: Round) -> bool:
        """Whether the run was cut off after a round, which others were to follow by then."""
        if self.header is None or item.round + 1 >= self.header.rounds:
            return False
        return any(one.line > item.line for one in self.resumes)

    @property
    def rounds_to_finish(self) -> int:
        """How many rounds a complete run has: the header's, or fewer if its steps or ε ran out.

        Rounds that share a limit on their steps, or on ε, end with it, as they do where training
        diverges.
        """
        header = self.header
        if header is None:
            return 0
        if self.diverged is not None:
            return min(header.rounds, self.diverged)
        if self.stopped is not None and (header.max_epsilon is not None or self.resumes):
            return min(header.rounds, self.stopped.rounds)
        limit = header.adaptation.step_limit if header.adaptation else None
        if limit is None or steps_charged(self.spends) < limit:
            return header.rounds
        return min(header.rounds, 1 + max((item.round for item in self.rounds), default=-1))


@dataclass(frozen=True)
class Fault:
    """Something wrong with the ledger: line number (from 1; 0 for the file) and what."""

    line: int
    what: str


def read_ledger(raw: bytes) -> Ledger:
    """Read a ledger from its bytes; never raises, faults are listed."""
    faults: list[Fault] = []
    if not raw.endswith(b"\n"):
        faults.append(Fault(0, "does not end with a complete line"))
    lines = raw.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    found: dict[str, list[Any]] = {kind: [] for kind in _READERS}
    kinds: list[tuple[int, str]] = []
    previous = GENESIS
    for position, line in enumerate(lines, start=1):
        entry = read_entry(line, position, previous, faults)
        previous = hashlib.sha256(line).hexdigest()
        if entry is None:
            continue
        kind = str(entry.get("kind"))
        kinds.append((position, kind))
        try:
            if kind in _READERS:
                found[kind].append(_READERS[kind](entry, position))
            else:
                faults.append(Fault(position, "is of an unknown kind"))
        except FieldError as error:
            faults.append(Fault(position, f"{kind}: {error}"))
    claim, stopped, diverged = found["claim"][-1] if found["claim"] else (None, None, None)
    header = found["header"][-1] if found["header"] else None
    if header is not None and header.producer is not None:
        header = _of_its_length(header, found["round"])
    return Ledger(
        header=header,
        spends=tuple(item for item in found["spend"] if isinstance(item, Spend)),
        rounds=tuple(found["round"]),
        resumes=tuple(found["resume"]),
        claim=claim,
        stopped=stopped,
        diverged=diverged,
        kinds=tuple(kinds),
        faults=tuple(faults),
        round_spends=tuple(item for item in found["spend"] if isinstance(item, RoundSpend)),
        queries=tuple(found["query"]),
        answers=tuple(found["bounds"]),
    )


def read_entry(
    line: bytes, position: int, previous: str, faults: list[Fault]
) -> Mapping[str, Any] | None:
    """One line's JSON object, whatever its kind; None if it is none.

    Args:
        line: Its bytes, without the line's end.
        position: Its number, from 1.
        previous: sha256 (hex) of the line before.
        faults: Gets what is wrong with its form and its place in the chain.
    """
    if len(line) > MAXIMUM_LINE_BYTES:
        faults.append(Fault(position, f"is longer than {MAXIMUM_LINE_BYTES} bytes"))
        return None
    try:
        entry = parse_json(line)
    except DocumentError as error:
        faults.append(Fault(position, str(error)))
        return None
    if not isinstance(entry, dict):
        faults.append(Fault(position, "is not a JSON object"))
        return None
    unsigned = {key: value for key, value in entry.items() if key != "digest"}
    try:
        canonical, digest = canonical_json(entry), hashlib.sha256(canonical_json(unsigned))
    except (ValueError, UnicodeEncodeError):
        faults.append(Fault(position, "cannot be written as canonical JSON"))
        return None
    if entry.get("previous") != previous:
        faults.append(Fault(position, "does not name the digest of the line before: broken chain"))
    if entry.get("digest") != digest.hexdigest():
        faults.append(Fault(position, "does not match its own digest: it was changed"))
    elif canonical != line:
        faults.append(Fault(position, "is not in canonical form"))
    return entry


def _of_its_length(header: Header, rounds: list[Round]) -> Header:
    """The header of a loop, whose length its files tell."""
    most = max((steps for item in rounds for steps in item.steps), default=1)
    return replace(header, rounds=max(1, len({item.round for item in rounds})), local_steps=most)


@dataclass(frozen=True)
class Header:
    """First line: what the run declares about itself, by the names of spec and ledger.

    None is what the unit of protection does not declare, and what nobody noted yet in the version
    that wrote the run. Where people are protected, "records" are people.

    Attributes:
        rounds: T; of a recorded loop, whose length is not known when it begins, the number of files
            that it left.
        local_steps: of a round; of a recorded loop the most of one file.
        records: how many each client holds.
        sampling_rate: q, where it is stated and does not follow; what it rests on is
            `rate_assumption`.
        commitment: to the key that noise is drawn from.
        tensors: sha256 (hex) of model.json's list of tensors.
        selection: sha256 (hex) of the key which draws what evidence is kept.
        producer: the program that recorded a loop; None of the engine's own runs.
        of_clients: whether the "records" of a recorded loop are clients, its steps rounds, and what
            is clipped their whole updates.
        sites: public keys (hex) of clients that hold their records and evidence themselves, by
            client; empty where one process has all.
        drop_outs: how many of them may give no answer in a round.
        whole_seconds: whether times in the metrics are in whole seconds.
        initial: the weights that training begins with.
        frozen: sha256 (hex) of all parameters and buffers that are not trained; None also where
            there are none.
        contents: what commits (sha256, hex) to the content under each row of the training records.
        people: the same to whom each record is about.
        rows: where people are protected, how many training records each client has.
        records_per_person: the most records of one person in a batch.
        clients_per_person: at how many clients one person may be.
        column_queries: the histograms by which bounds of columns are learnt.
    """

    run: str
    spec_sha256: str
    unit: Unit
    adjacency: str | None
    delta: float | None
    rounds: int
    local_steps: int
    clients: int
    clients_per_round: int
    client_sampling: str | None
    records: tuple[int, ...]
    sampling: str | None
    expected_batch_size: float | None
    sampling_rate: float | None
    rate_assumption: str | None
    clipping_norm: float | None
    noise_multiplier: float | None
    randomness: str
    commitment: str | None
    seed: int | None
    parameters: int
    participation: float | None = None
    noise_added_by: str | None = None
    sparsification: Sparsification | None = None
    adaptation: Adaptation | None = None
    canaries: Canaries | None = None
    max_epsilon: float | None = None
    budget: SharedBudget | None = None
    grid: Grid | None = None
    tensors: str | None = None
    public_coin: PublicCoin | None = None
    selection: str | None = None
    tuning: Trial | None = None
    producer: Producer | None = None
    of_clients: bool = False
    sites: tuple[str, ...] = ()
    drop_outs: int = 0
    whole_seconds: bool = False
    initial: Initial | None = None
    frozen: str | None = None
    contents: str | None = None
    people: str | None = None
    rows: tuple[int, ...] | None = None
    records_per_person: int | None = None
    clients_per_person: int = 1
    column_queries: Queries | None = None

    @property
    def mechanism(self) -> str:
        """By what noise the run says that it protects; only a recorded loop's may be another."""
        return GAUSSIAN if self.producer is None else self.producer.mechanism

    @property
    def training_records(self) -> tuple[int, ...]:
        """How many training records each client holds, whatever is protected."""
        return self.records if self.rows is None else self.rows

    @property
    def spending_bound(self) -> SpendingBound:
        """The most that the run can spend, as far as the header declares it."""
        return SpendingBound(
            self.rounds, self.local_steps, self.noise_multiplier or 0.0, self.adaptation
        )

    def declared(
        self,
        name: Literal["delta", "expected_batch_size", "clipping_norm", "noise_multiplier"],
    ) -> float:
        """A number that a claim rests on; nothing stands in for one that is not there.

        Raises:
            UnverifiedError: the header lacks it.
        """
        value: float | None = getattr(self, name)
        if value is None:
            raise UnverifiedError(f"the ledger's header lacks {name}")
        return value


@dataclass(frozen=True)
class PublicCoin:
    """What an auditor's challenge binds a run's streams to, as the header declares it.

    Attributes:
        run: identifier that the intent gave the run.
        intent_sha256: digest (hex) of intent.json.
        challenge_sha256: digest (hex) of challenge.json.
        nonce: the auditor's 32 bytes.
        root: root (hex) of the tree over the trainer's keys.
        intents: how many intents the auditor had seen of the trainer, by what they came to.
    """

    run: str
    intent_sha256: str
    challenge_sha256: str
    nonce: bytes
    root: str
    intents: Mapping[str, int]


@dataclass(frozen=True)
class Initial:
    """The weights that training begins with, as the header commits to them.

    Attributes:
        broadcast: sha256 (hex) of the first broadcast.
        origin: "seed", "file", "code" or "given".
        file: name of the published weights, without a path; None where there are none.
        file_sha256: their digest (hex).
    """

    broadcast: str
    origin: str
    file: str | None
    file_sha256: str | None


@dataclass(frozen=True)
class _Declared:
    """A header's line, of which the unit says what must be there and what may be.

    Attributes:
        entry: the line.
        unit: the unit of protection.
    """

    entry: Mapping[str, Any]
    unit: Unit

    def number(self, key: str, most: float = 1e300) -> float | None:
        """A positive number; None where it is neither declared nor given."""
        return fields.positive(self.entry, key, most=most) if self._is_there(key) else None

    def word(self, key: str) -> str | None:
        """A text; None likewise."""
        return fields.text(self.entry, key) if self._is_there(key) else None

    def of_each_client(self, key: str, clients: int) -> tuple[int, ...]:
        """A whole number for each client."""
        found = fields.integers(self.entry, key)
        if len(found) != clients:
            raise FieldError(f"{key} does not have one entry per client")
        return found

    def length(self, key: str) -> int:
        """A number of rounds or steps; 1 for a loop, of which `_of_its_length` tells it."""
        return 1 if self.unit is LOOP else fields.integer(self.entry, key, least=1, most=10_000_000)

    def _is_there(self, key: str) -> bool:
        return key in self.unit.declared or self.entry.get(key) is not None


def _header(entry: Mapping[str, Any], _: int) -> Header:
    if fields.integer(entry, "format") != 1:
        raise FieldError("format is not 1")
    unit = UNITS[fields.choice(entry, "unit", tuple(UNITS))]
    producer, of_clients = _section(entry, "producer", read_producer), False
    if producer is not None:
        if unit not in (RECORD, CLIENT):
            raise FieldError("a recorded loop protects single records, or whole clients")
        of_clients, unit = unit is CLIENT, LOOP
    declared = _Declared(entry, unit)
    clients = fields.integer(entry, "clients", least=1, most=100_000)
    records = declared.of_each_client("records", clients)
    rows = declared.of_each_client("rows", clients) if unit is PERSON else None
    header = Header(
        run=fields.text(entry, "run", pattern=RUN_NAME),
        spec_sha256=fields.text(entry, "spec_sha256", pattern=HEX),
        unit=unit,
        adjacency=declared.word("adjacency"),
        delta=declared.number("delta", 1.0),
        rounds=declared.length("rounds"),
        local_steps=declared.length("local_steps"),
        clients=clients,
        clients_per_round=fields.integer(entry, "clients_per_round", least=1, most=clients),
        client_sampling=declared.word("client_sampling"),
        records=records,
        sampling=declared.word("sampling"),
        expected_batch_size=declared.number("expected_batch_size"),
        sampling_rate=_optional(entry, "sampling_rate", fields.positive, most=1.0),
        rate_assumption=_optional(entry, "rate_assumption", fields.text),
        clipping_norm=declared.number("clipping_norm"),
        noise_multiplier=declared.number("noise_multiplier"),
        randomness=fields.choice(entry, "randomness", ("release", "reproducible")),
        commitment=_optional(entry, "commitment", fields.text),
        seed=_optional(entry, "seed", fields.integer, least=-(2**63)),
        parameters=fields.integer(entry, "parameters", least=1, most=10**11),
        producer=producer,
        of_clients=of_clients,
        rows=rows,
    )
    return _with_sections(header, entry)


def _with_sections(header: Header, entry: Mapping[str, Any]) -> Header:
    """A header with what only some units and some runs declare."""
    found: dict[str, Any] = {}
    if "participation" in header.unit.declared:
        found["participation"] = fields.positive(entry, "participation", most=1.0)
    if "noise_added_by" in header.unit.declared:
        found["noise_added_by"] = fields.choice(entry, "noise_added_by", ("server", "clients"))
    header = replace(
        header,
        **found,
        sparsification=_section(entry, "sparsification", read_sparsification),
        adaptation=read_adaptation(entry),
        canaries=_section(entry, "canaries", read_canaries),
        budget=_section(entry, "budget", read_budget),
        max_epsilon=_optional(entry, "max_epsilon", fields.positive),
        grid=_section(entry, "grid", read_grid),
        tensors=_digest(entry, "tensors_sha256"),
        public_coin=_section(entry, "public_coin", _public_coin),
        selection=_digest(entry, "selection_sha256"),
        tuning=_section(entry, "tuning", read_trial),
        sites=_section(entry, "sites", _sites) or (),
        drop_outs=_section(entry, "sites", lambda one: fields.integer(one, "drop_outs")) or 0,
        whole_seconds=_optional(entry, "seconds", fields.choice, allowed=("whole",)) is not None,
        frozen=_digest(entry, "frozen_sha256"),
        contents=_digest(entry, "contents_sha256"),
        people=_digest(entry, "people_sha256"),
        column_queries=_section(entry, "column_queries", read_queries),
    )
    if header.unit is PERSON:
        header = replace(
            header,
            records_per_person=fields.integer(entry, "records_per_person", least=1),
            clients_per_person=fields.integer(
                entry, "clients_per_person", least=1, most=header.clients
            ),
        )
    return replace(header, initial=_section(entry, "initial", _initial))


def _initial(entry: Mapping[str, Any]) -> Initial:
    origin = fields.choice(entry, "origin", ("seed", "file", "code", "given"))
    named = origin == "file"
    return Initial(
        fields.text(entry, "broadcast_sha256", pattern=HEX),
        origin,
        fields.text(entry, "file") if named else None,
        fields.text(entry, "file_sha256", pattern=HEX) if named else None,
    )


def _sites(entry: Mapping[str, Any]) -> tuple[str, ...]:
    keys = fields.sequence(entry, "keys", most=100_000)
    if not all(isinstance(key, str) and re.fullmatch(HEX, key) for key in keys):
        raise FieldError("sites.keys holds something that is not a public key")
    return tuple(keys)


def _public_coin(entry: Mapping[str, Any]) -> PublicCoin:
    intents = fields.mapping(entry, "intents")
    return PublicCoin(
        fields.text(entry, "run", pattern=RUN_NAME),
        fields.text(entry, "intent_sha256", pattern=HEX),
        fields.text(entry, "challenge_sha256", pattern=HEX),
        bytes.fromhex(fields.text(entry, "nonce", pattern=HEX)),
        fields.text(entry, "root", pattern=HEX),
        {name: fields.integer(intents, name) for name in INTENTS},
    )


@dataclass(frozen=True)
class Round:
    """A finished round: who took part, with how many steps and queries really made.

    Attributes:
        line: line of the ledger, from 1.
        round: index of the round.
        clients: who took part.
        dropped: who was asked and charged and gave no answer that could be used.
        steps: local steps of each.
        queries: gradients answered to each.
        broadcast: sha256 (hex) of the serialised broadcast; None where it is not noted.
        exchanged: sha256 (hex) over the digests of all uploads, at client level of the released
            mean; None where it is not noted.
        released: what an adaptive rule goes by from here on.
        parameters: sha256 (hex) of the parameters after the round, as float32; None where it is not
            noted.
        digests: every sha256 (hex) of the line, by name.
        pieces: what the pieces of its messages are held to; None where all is kept whole.
    """

    line: int
    round: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    queries: tuple[int, ...]
    broadcast: str | None = None
    exchanged: str | None = None
    released: Mapping[str, Any] = field(default_factory=dict)
    parameters: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    pieces: Pieces | None = None
    dropped: tuple[int, ...] = ()

    @property
    def asked(self) -> tuple[int, ...]:
        """Who was drawn for the round, whether or not an answer came."""
        return (*self.clients, *self.dropped)


@dataclass(frozen=True)
class Pieces:
    """Merkle roots over the pieces of a round's messages, noted before any were drawn.

    Attributes:
        broadcast: of the broadcast, 32 bytes.
        uploads: of all uploads together, at client level of the released mean, 32 bytes.
        vectors: long vectors of the uploads, and twice those of the broadcast.
        heads: bytes of the messages in addition to these, counted the same way.
    """

    broadcast: bytes
    uploads: bytes
    vectors: int
    heads: int


def _round(entry: Mapping[str, Any], line: int) -> Round:
    clients = fields.integers(entry, "clients")
    steps, queries = fields.integers(entry, "steps"), fields.integers(entry, "queries")
    if not len(clients) == len(steps) == len(queries) == len(set(clients)):
        raise FieldError("clients, steps and queries do not have one entry per client")
    dropped = fields.integers(entry, "dropped") if "dropped" in entry else ()
    if len({*clients, *dropped}) != len(clients) + len(dropped):
        raise FieldError("dropped names a client twice, or one that took part")
    uploads, mean = _digest(entry, "uploads_sha256"), _digest(entry, "released_sha256")
    return Round(
        line=line,
        round=fields.integer(entry, "round"),
        clients=clients,
        steps=steps,
        queries=queries,
        broadcast=_digest(entry, "broadcast_sha256"),
        exchanged=uploads or mean,
        released=fields.mapping(entry, "released") if "released" in entry else {},
        parameters=_digest(entry, "parameters_sha256"),
        digests={key: fields.text(entry, key, pattern=HEX) for key in DIGESTS if key in entry},
        pieces=_section(entry, "pieces", _pieces),
        dropped=dropped,
    )


def _pieces(entry: Mapping[str, Any]) -> Pieces:
    return Pieces(
        bytes.fromhex(fields.text(entry, "broadcast", pattern=HEX)),
        bytes.fromhex(fields.text(entry, "uploads", pattern=HEX)),
        fields.integer(entry, "vectors", least=1, most=10**9),
        fields.integer(entry, "heads", most=10**12),
    )


@dataclass(frozen=True)
class Resume:
    """The run was cut off and went on: from which round, with which key's commitment."""

    line: int
    round: int
    commitment: str | None


def _resume(entry: Mapping[str, Any], line: int) -> Resume:
    commitment = _optional(entry, "commitment", fields.text)
    return Resume(line, fields.integer(entry, "round"), commitment)


@dataclass(frozen=True)
class Stopped:
    """That a limit on ε ended the run, as its claim says.

    Attributes:
        rounds: rounds that were finished.
        max_epsilon: the limit; None where it is the target.
        target_epsilon: the target, which ends a run that was cut off; None where it is a limit.
    """

    rounds: int
    max_epsilon: float | None = None
    target_epsilon: float | None = None


def _claim(
    entry: Mapping[str, Any], _: int
) -> tuple[Mapping[str, Any], Stopped | None, int | None]:
    """A claim, whether a limit ended the run, and after how many rounds it diverged."""
    return (
        read_claim(entry),
        _section(entry, "stopped", _stopped),
        _section(entry, "diverged", lambda one: fields.integer(one, "rounds", least=1)),
    )


def _stopped(entry: Mapping[str, Any]) -> Stopped:
    rounds = fields.integer(entry, "rounds")
    if entry.get("target_epsilon") is None:
        return Stopped(rounds, max_epsilon=fields.positive(entry, "max_epsilon"))
    return Stopped(rounds, target_epsilon=fields.positive(entry, "target_epsilon"))


def _optional(entry: Mapping[str, Any], key: str, read: Callable[..., Any], **limits: Any) -> Any:
    """What a reader of `fields` makes of a key; None where nothing stands there."""
    return None if entry.get(key) is None else read(entry, key, **limits)


def _section(entry: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    """What is read of a mapping inside a line; None where there is none."""
    return None if entry.get(key) is None else read(fields.mapping(entry, key))


def _digest(entry: Mapping[str, Any], key: str) -> str | None:
    return fields.text(entry, key, pattern=HEX) if key in entry else None


_READERS: Mapping[str, Callable[[Mapping[str, Any], int], Any]] = {
    "header": _header,
    "spend": read_spend,
    "round": _round,
    "resume": _resume,
    "claim": _claim,
    "query": read_query,
    "bounds": read_answer,
}
