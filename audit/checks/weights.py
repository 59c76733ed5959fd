"""Checks "weights" and "publication": is what was published the last round's model, and no more?

A model is published as tensors with names. If names, shapes or types are not those stated before
training, a user of the file gets a model other than the trained one, or the auditor compares the
wrong one. A model that is not the last round's was made by something that was never charged: an
average with a model without noise, or the best round by a private measure.

The public files must keep to themselves how many clients took part, as the third party's ε counts
on participation that stays unknown. Even the number of participants of a round is a function of the
clients' draw that no noise hides, and traffic is a multiple of it. (At record level an empty round
shows in a model that does not change. The bound is an average over who takes part, and covers
that.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.base import AT_CLIENT_LEVEL, AT_RECORD_LEVEL, Check, Judgement, conclude, register
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import MAXIMUM_LEDGER_BYTES, Bundle
from audit.reading.files import read_bytes, refusals_of
from audit.reading.ledger import Round
from audit.reading.units import LOOP
from audit.replay.participation import shown
from audit.untrusted import fields
from audit.untrusted.archives import Stored, read_stored
from audit.untrusted.documents import DocumentError, canonical_json, parse_json
from audit.verdict import Severity, Verdict

_METRICS = "metrics.jsonl"
_TRAFFIC = ("bytes_up", "bytes_down")
_EXACT = 1e-9
# Shares of some hundred test records: over two or three different numbers of clients they are a
# multiple of these by chance in one run of some hundred or ten thousand, over four in one of 1e7. A
# schedule falls by simple ratios in few rounds; the check "disclosure" holds it to the spec's.
_BY_CHANCE = ("test_accuracy", "validation_accuracy", "learning_rate")
_FEWEST_COUNTS = 4


def metrics_of(bundle: Bundle) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl.

    Raises:
        UnverifiedError: They cannot be read.
    """
    try:
        raw = read_bytes(bundle.root, _METRICS, MAXIMUM_LEDGER_BYTES)
        lines = [parse_json(line) for line in raw.splitlines() if line.strip()]
    except (UntrustedFileError, DocumentError) as error:
        raise UnverifiedError(f"{_METRICS} cannot be read, so not judged") from error
    if not all(isinstance(line, dict) and isinstance(line.get("round"), int) for line in lines):
        raise UnverifiedError(f"{_METRICS} has a line without a round")
    return lines


def _proportional(values: Sequence[float], counts: Sequence[int]) -> bool:
    """Whether the values are one factor times counts that differ."""
    numbers, participants = np.asarray(values, dtype=np.float64), np.asarray(counts)
    if len(set(counts)) < 2 or not np.any(numbers):
        return False
    factor = float(numbers.sum()) / float(participants.sum())
    difference = np.abs(numbers - factor * participants).max()
    return bool(difference <= _EXACT * np.abs(numbers).max())


def _judge_publication(bundle: Bundle) -> Judgement:
    if bundle.header.client_sampling != "poisson":
        return Judgement(
            Verdict.NOT_APPLICABLE,
            "every round has the same public number of clients, so there is nothing to reveal",
        )
    lines = [line for line in metrics_of(bundle) if line["round"] > 0]
    present = {item.round + 1: len(item.clients) for item in bundle.readable_ledger.rounds}
    reasons = []
    for name in sorted({key for line in lines for key in line} - {"round"}):
        pairs = [
            (line[name], present[line["round"]])
            for line in lines
            if isinstance(line.get(name), int | float) and line["round"] in present
        ]
        values = [float(value) for value, _ in pairs]
        if name in _TRAFFIC and len(set(values)) > 1:
            reasons.append(f"traffic in {_METRICS} ({name}) varies with how many clients took part")
            continue
        counts = [count for _, count in pairs]
        by_chance = name in _BY_CHANCE and len(set(counts)) < _FEWEST_COUNTS
        if not by_chance and _proportional(values, counts):
            reasons.append(f"a number in {_METRICS} ({name}) reveals how many clients took part")
    details = {"lines": len(lines)}
    return conclude(
        "the public metrics state the same traffic for every round, and none of their numbers is a "
        "multiple of how many clients took part",
        reasons,
        details=details,
    )


PUBLICATION = Check(
    name="publication",
    title="Do the public files keep secret who took part?",
    place=90,
    meaning="If it fails, public numbers reveal how many took part, but the stated loss relies on "
    "that being secret.",
    claim="Nothing in the public metrics reveals how many clients took part in a round.",
    tolerance="1e-9 of the largest value, for numbers written and read again in decimal",
    power="traffic or any other number of metrics.jsonl that is a multiple of the participants",
    limits="Running times grow roughly with the participants; publish them rounded or not at all. "
    "An accuracy or a learning rate is judged only if rounds had at least four different numbers "
    "of participants: with fewer it may be a multiple of them by chance. Anything published "
    "outside the run is not checked.",
    rule=_judge_publication,
)
register(PUBLICATION)


_CONFIGURATION = "model.json"
_MOST_BYTES = 1 << 24
_HEX = r"[0-9a-f]{64}"
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_ANOTHER_LIST = "model.json: its list of tensors is not the one that the ledger's header names"
NOT_NOTED = (
    "the version that made this run did not record names and digest of the published weights. "
    "Whether they are the last round's was judged only as far as the check uploads says"
)


WIDER = (
    "model.safetensors has bits that float32 cannot hold. The ledger's digest does not cover them, "
    "so that anything may be written there"
)


class _AnotherListError(Exception):
    """The list of tensors is not the one that the ledger's header names."""


@dataclass(frozen=True)
class _Tensor:
    """What was said of a tensor before training; `content` is the digest of one not trained."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    content: str | None


def _listed(bundle: Bundle) -> tuple[_Tensor, ...] | None:
    """What model.json says the weights will be; None where it says nothing.

    Raises:
        UntrustedFileError: it cannot be read.
        _AnotherListError: its list does not have the digest that the ledger's header names.
    """
    with refusals_of(_CONFIGURATION):
        config = parse_json(read_bytes(bundle.root, _CONFIGURATION, _MOST_BYTES))
        if not isinstance(config, dict) or "tensors" not in config:
            return None
        entries = fields.sequence(config, "tensors", most=1_000_000)
        if hashlib.sha256(canonical_json(entries)).hexdigest() != bundle.header.tensors:
            raise _AnotherListError
        return tuple(_tensor(entry) for entry in entries)


def _tensor(entry: Any) -> _Tensor:
    return _Tensor(
        fields.text(entry, "name"),
        tuple(fields.integers(entry, "shape")),
        fields.text(entry, "dtype"),
        fields.flag(entry, "trained"),
        fields.text(entry, "sha256", pattern=_HEX) if "sha256" in entry else None,
    )


def _form(listed: tuple[_Tensor, ...], found: Mapping[str, Stored], reasons: list[str]) -> None:
    """Names, shapes and types, and the numbers of what was not trained."""
    said = {one.name: one for one in listed}
    for name in sorted(set(found) - set(said)):
        reasons.append(
            f"model.safetensors holds a tensor {shown(name)} that the model does not have"
        )
    for name, one in said.items():
        stored = found.get(name)
        if stored is None:
            reasons.append(f"model.safetensors lacks the tensor {shown(name)}")
        elif (stored.shape, stored.dtype) != (one.shape, one.dtype):
            reasons.append(f"model.safetensors has {shown(name)} in a different shape or type")
        elif one.content not in (None, hashlib.sha256(stored.content).hexdigest()):
            reasons.append(
                f"{shown(name)} was not to be trained, but is not what the run began with"
            )


def _frozen(bundle: Bundle, reasons: list[str]) -> None:
    """What was not trained must be in every round what the run began with."""
    begun = bundle.header.frozen
    for item in bundle.readable_ledger.rounds:
        noted = item.digests.get("frozen_sha256")
        if noted is not None or begun is not None:
            where = f"round {item.round}: the parameters and buffers that are not trained"
            if noted is None or begun is None:
                reasons.append(f"{where} are noted in only one of header and round")
            elif noted != begun:
                reasons.append(f"{where} are not those that the run began with")


def _last(bundle: Bundle) -> Round | None:
    """The last account of the last round."""
    ledger = bundle.readable_ledger
    rounds = [item for item in ledger.rounds if item.round == ledger.rounds_to_finish - 1]
    return rounds[-1] if rounds else None


def _vector_digest(parts: list[Stored]) -> str:
    """Sha256 (hex) of the trained tensors as one vector of float32."""
    digest = hashlib.sha256()
    for part in parts:
        values = np.frombuffer(part.content, dtype=_FLOATS[part.dtype])
        digest.update(values.astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def _narrow(parts: list[Stored]) -> bool:
    """Whether float32 holds every bit of all trained tensors, so that the digest covers them."""
    for part in parts:
        values = np.frombuffer(part.content, dtype=_FLOATS[part.dtype])
        with np.errstate(over="ignore", under="ignore"):
            again = values.astype("<f4").astype(values.dtype)
        if again.tobytes() != values.tobytes():
            return False
    return True


def _finite(parts: list[Stored]) -> bool:
    """Whether all trained tensors are numbers."""
    return all(
        bool(np.isfinite(np.frombuffer(part.content, dtype=_FLOATS[part.dtype])).all())
        for part in parts
    )


def _divergence(bundle: Bundle, finite: bool, unseen: list[str]) -> tuple[str, ...]:
    """What must qualify the verdict on a run whose model is no longer finite.

    A run may end early for that, so that it must be so. Where it was another tensor of the server
    that diverged, nobody can see it: no round was sent it.
    """
    ledger, header = bundle.readable_ledger, bundle.header
    if finite:
        if ledger.diverged is not None:
            unseen.append(
                f"the claim says that training diverged after {ledger.diverged} of {header.rounds} "
                "rounds, but all published weights are finite: there is no visible reason for the "
                "run to end there"
            )
        return ()
    return (
        f"diverged: after round {ledger.rounds_to_finish} of {header.rounds} the model held "
        "numbers that are not finite; there is no model to use",
    )


def _judge_weights(bundle: Bundle) -> Judgement:
    header = bundle.header
    with refusals_of("model.safetensors"):
        found = read_stored(bundle.weights())
    reasons: list[str] = []
    try:
        listed = _listed(bundle)
    except _AnotherListError:
        return Judgement(Verdict.FAIL, _ANOTHER_LIST)
    if listed is None:
        if header.tensors is not None:
            return Judgement(Verdict.FAIL, _ANOTHER_LIST)
        return _judged_without_a_list(bundle, found)
    trained = [one for one in listed if one.trained]
    sizes = [(one.name, math.prod(one.shape)) for one in trained]
    if sum(size for _, size in sizes) != header.parameters:
        reasons.append("model.json: its trained tensors are not as many numbers as were trained")
    if header.unit.claims_privacy and tuple(sizes) != bundle.layout().tensors:
        reasons.append("model.json: its trained tensors are not those of the evidence")
    _form(listed, found, reasons)
    _frozen(bundle, reasons)
    last = _last(bundle)
    if last is None:
        raise UnverifiedError("the ledger does not have every round")
    if last.parameters is None:
        reasons.append("the ledger does not note the result of the last round")
    diverged: tuple[str, ...] = ()
    unseen: list[str] = []
    if not reasons:
        if any(one.dtype not in _FLOATS for one in trained):
            raise UnverifiedError("the trained tensors have a type that the auditor cannot read")
        left = [found[one.name] for one in trained]
        if _vector_digest(left) != last.parameters:
            reasons.append("model.safetensors is not the model after the last round")
        if not _narrow(left):
            unseen.append(WIDER)
        diverged = _divergence(bundle, _finite(left), unseen)
    return conclude(
        f"the {len(listed)} tensors of the published model have the names, shapes and types "
        "recorded before training. Those not trained are unchanged, and the trained ones are bit "
        "for bit what the ledger records after the last round",
        reasons,
        unseen,
        details={"tensors": len(listed), "trained": len(trained)},
        qualifications=diverged,
    )


def _judged_without_a_list(bundle: Bundle, found: Mapping[str, Stored]) -> Judgement:
    """A run from before the list was written down: names as far as the evidence has them."""
    header = bundle.header
    if header.unit.claims_privacy:
        lengths = {name: math.prod(stored.shape) for name, stored in found.items()}
        wrong = [name for name, size in bundle.layout().tensors if lengths.get(name) != size]
        if wrong:
            return Judgement(
                Verdict.FAIL, f"model.safetensors lacks the trained tensor {shown(wrong[0])}"
            )
    return Judgement(
        Verdict.NOT_VERIFIED,
        NOT_NOTED,
        qualifications=(NOT_NOTED,),
        power="none",
        severity=Severity.THEORETICAL,
    )


WEIGHTS = Check(
    name="weights",
    title="Is the published model the one after the last round?",
    units=(*AT_RECORD_LEVEL, *AT_CLIENT_LEVEL, LOOP),
    place=65,
    meaning="If it fails, the published model is not the trained one, and nothing here applies to "
    "it.",
    claim="model.safetensors holds only the tensors recorded before training: the trained ones "
    "are the parameters after the last round, and all others are unchanged after every round.",
    tolerance="none: names, shapes, types and digests are compared exactly. Digests are of "
    "float32: weights with further bits are NOT VERIFIED",
    power="any renamed, missing or further tensor. Any changed bit of any number, in a model of "
    "any size and for any unit of protection. A frozen tensor or a buffer that moved in between",
    limits="The digests of the parameters, and after each round of what is not trained, are noted "
    "in the ledger by the training process, of the model in its memory. The check uploads "
    "judges whether the trained ones follow from noised values. The check initial-weights judges "
    "the model that the first round began with.",
    rule=_judge_weights,
    judges_no_claim=True,
)
register(WEIGHTS)
