"""Check "weights": is the published model the one that the last round left, and no other?

A model is published as tensors with names. If names, shapes or types are not those that were said
before training, whoever loads the file gets another model than the one that was trained, or the
auditor compares the wrong one; and a model that is not the last round's was made by something that
nobody charged: an average with a model without noise, or the best round by a private measure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    register,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.files import read_bytes, refusals_of
from audit.reading.ledger import Round
from audit.reading.units import LOOP
from audit.replay.participation import shown
from audit.untrusted import fields
from audit.untrusted.archives import Stored, read_stored
from audit.untrusted.documents import canonical_json, parse_json
from audit.verdict import Severity, Verdict

_CONFIGURATION = "model.json"
_MOST_BYTES = 1 << 24
_HEX = r"[0-9a-f]{64}"
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_ANOTHER_LIST = "model.json: its list of tensors is not the one that the ledger's header names"
NOT_NOTED = (
    "names and digest of the published weights were not written down by the version that made "
    "this run: that they are the last round's was judged as far as the check uploads says"
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
        reasons.append(f"model.safetensors holds a tensor {shown(name)} that the model has not")
    for name, one in said.items():
        stored = found.get(name)
        if stored is None:
            reasons.append(f"model.safetensors lacks the tensor {shown(name)}")
        elif (stored.shape, stored.dtype) != (one.shape, one.dtype):
            reasons.append(f"model.safetensors has {shown(name)} in another shape or type")
        elif one.content not in (None, hashlib.sha256(stored.content).hexdigest()):
            reasons.append(
                f"{shown(name)} was not to be trained and is not what the run began with"
            )


def _frozen(bundle: Bundle, reasons: list[str]) -> None:
    """What was not trained must be in every round what the run began with."""
    begun = bundle.header.frozen
    for item in bundle.readable_ledger.rounds:
        noted = item.digests.get("frozen_sha256")
        if noted is not None or begun is not None:
            where = f"round {item.round}: the parameters and buffers that are not trained"
            if noted is None or begun is None:
                reasons.append(f"{where} are noted in one of header and round alone")
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


def _finite(parts: list[Stored]) -> bool:
    """Whether all trained tensors are numbers."""
    return all(
        bool(np.isfinite(np.frombuffer(part.content, dtype=_FLOATS[part.dtype])).all())
        for part in parts
    )


def _divergence(bundle: Bundle, finite: bool, unseen: list[str]) -> tuple[str, ...]:
    """What must stand beside the verdict of a run whose model is no numbers any more.

    A run may end early for that, so that it must be so. Where it was another tensor of the server
    that diverged, nobody can see it: no round was sent it.
    """
    ledger, header = bundle.readable_ledger, bundle.header
    if finite:
        if ledger.diverged is not None:
            unseen.append(
                f"the claim says that training diverged after {ledger.diverged} of "
                f"{header.rounds} rounds, and all published weights are finite: why the run ended "
                "there cannot be seen"
            )
        return ()
    return (
        f"diverged: after round {ledger.rounds_to_finish} of {header.rounds} the model held "
        "numbers that are not finite; there is no model to use",
    )


def _judge(bundle: Bundle) -> Judgement:
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
        reasons.append("the ledger does not note what the last round left")
    diverged: tuple[str, ...] = ()
    unseen: list[str] = []
    if not reasons:
        if any(one.dtype not in _FLOATS for one in trained):
            raise UnverifiedError("the trained tensors have a type that the auditor cannot read")
        left = [found[one.name] for one in trained]
        if _vector_digest(left) != last.parameters:
            reasons.append("model.safetensors is not the model that the last round left")
        diverged = _divergence(bundle, _finite(left), unseen)
    return conclude(
        f"the {len(listed)} tensors of the published model have the names, shapes and types that "
        "were written down before training; those that were not trained are what they were then, "
        "and those that were are bit for bit what the ledger says the last round left",
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
    title="Is the published model the one that the last round left?",
    units=(*AT_RECORD_LEVEL, *AT_CLIENT_LEVEL, LOOP),
    place=65,
    meaning="If it fails, the published model is not the one that was trained, and nothing here "
    "is said of it.",
    claim="model.safetensors holds the tensors that were written down before training, and no "
    "others: the trained ones are the parameters after the last round, all others what they were, "
    "after every round.",
    tolerance="none: names, shapes, types and digests are compared exactly",
    power="any renamed, missing or further tensor; any changed bit of any number, in a model of "
    "any size and for any unit of protection; a frozen tensor or a buffer that moved in between",
    limits="The digests of the parameters, and after each round of what is not trained, are noted "
    "in the ledger by the process that trains, of the model in its own memory; that the trained "
    "ones follow from noised values is what the check uploads judges. The model that the first "
    "round began with is the matter of the check initial-weights.",
    rule=_judge,
    judges_no_claim=True,
)
register(WEIGHTS)
