"""The texts of a recording: what was declared, the lines of its ledger, and its claim."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import yaml

from dpfedadamw import __version__
from dpfedadamw.extensions.recorders.evidence.declared import GAUSSIAN, Charge, Loop, Stated
from dpfedadamw.rundir import RECORDED

FORMAT = 1
_OF_CLIENTS = (
    "hyper-parameters were not tuned on the clients' data, or that was accounted elsewhere",
    "each person's data lie with one client: neighbours differ in one client with all its data",
    "the number of clients, and with it the sampling rate, is public",
    "nothing left the clients, or the server, other than what was recorded",
)
_OF_RECORDS = (
    "hyper-parameters were not tuned on the private records, or that was accounted elsewhere",
    "each record belongs to one person and lies in the data set once: neighbouring data sets "
    "differ in one record",
    "the number of records, and with it the sampling rate, is public",
    "the loop did nothing with the private records other than what was recorded",
)


def as_json(stated: Stated) -> dict[str, Any]:
    """What a paused recording keeps of a statement, to state it when it is closed."""
    history = stated.history
    return {
        "epsilon": stated.epsilon,
        "accountant": stated.accountant,
        "history": None if history is None else [list(one) for one in history],
    }


def claim_of(stated: Stated, delta: float, adjacency: str, unit: str) -> dict[str, Any]:
    """The claim, the last line of the ledger.

    Args:
        stated: What the loop states.
        delta: δ.
        adjacency: The neighbours that it holds for, as the header has them.
        unit: "record" or "client".
    """
    view: dict[str, Any] = {}
    if stated.epsilon is not None and np.isfinite(stated.epsilon):
        view = {
            "accountant": stated.accountant,
            "epsilon": {stated.accountant: float(stated.epsilon)},
        }
    claim: dict[str, Any] = {
        "view_headline": "server",
        "delta": delta,
        "adjacency": adjacency,
        "assumptions": list(_OF_CLIENTS if unit == "client" else _OF_RECORDS),
        "server": dict(view),
        "third_party": dict(view),
    }
    if stated.history is not None:
        claim["accountant_history"] = [
            [float(noise), float(rate), int(steps)] for noise, rate, steps in stated.history
        ]
    return claim


def size_of(tensors: Sequence[Mapping[str, Any]]) -> int:
    """Parameters of the whole model, frozen ones included."""
    return sum(math.prod(one["shape"]) for one in tensors)


def adjacency_of(sampling: str) -> str:
    """The neighbouring data sets under which a sampler is accounted."""
    return "add-remove" if sampling == "poisson" else "replace-one"


def spec_of(name: str, loop: Loop, charge: Charge) -> bytes:
    """What was declared, in the form that reports read."""
    spec = {
        "version": 1,
        RECORDED: f"{loop.producer} {loop.version}",
        "name": name,
        "description": f"A training loop of {loop.producer} {loop.version}, recorded.",
        "data": {"dataset": "of the loop", "clients": 1},
        "algorithm": {"name": f"{loop.producer}, {loop.optimizer}", "mode": loop.mode},
        "privacy": {
            "unit": loop.unit,
            "adjacency": adjacency_of(loop.sampling),
            "clipping_norm": charge.clipping_norm,
            "noise_multiplier": charge.noise_multiplier,
            "delta": loop.delta,
            "sampling": {
                "kind": "poisson" if loop.sampling == "poisson" else "fixed",
                "expected_batch_size": charge.expected_batch_size,
                "rate": charge.sampling_rate,
            },
        },
        "randomness": {"mode": "release", "generator": loop.generator},
    }
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode()


def header_of(
    run: str, created: datetime, loop: Loop, charge: Charge, tensors: list[dict[str, Any]]
) -> dict[str, Any]:
    """The ledger's first line.

    Args:
        run: The run's identifier.
        created: When it began.
        loop: What the loop declares.
        charge: What its first step costs.
        tensors: model.json's list of tensors.
    """
    listed = json.dumps(tensors, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        "format": FORMAT,
        "run": run,
        "package": __version__,
        "created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "unit": loop.unit,
        "producer": {
            "name": loop.producer,
            "version": loop.version,
            "mode": loop.mode,
            "optimizer": loop.optimizer,
            "generator": loop.generator,
            "secure": loop.secure,
            **({} if loop.mechanism == GAUSSIAN else {"mechanism": loop.mechanism}),
        },
        "adjacency": adjacency_of(loop.sampling),
        "delta": loop.delta,
        "clients": 1,
        "clients_per_round": 1,
        "client_sampling": "fixed-size",
        "records": [loop.records],
        "sampling": loop.sampling,
        "expected_batch_size": charge.expected_batch_size,
        "sampling_rate": charge.sampling_rate,
        "clipping_norm": charge.clipping_norm,
        "noise_multiplier": charge.noise_multiplier,
        "precision": "float32",
        "randomness": "release",
        "qualifications": [],
        "parameters": loop.parameters,
        "tensors_sha256": hashlib.sha256(listed.encode()).hexdigest(),
    }


def spend_of(charge: Charge, loop: Loop) -> dict[str, Any]:
    """The ledger's line of a step, but for the file that it will stand in."""
    return {
        "client": 0,
        "attempt": 1,
        "records": loop.records,
        "sampling": loop.sampling,
        "sampling_rate": charge.sampling_rate,
        "rate_stated": True,
        "expected_batch_size": charge.expected_batch_size,
        "clipping_norm": charge.clipping_norm,
        "noise_multiplier": charge.noise_multiplier,
        "steps": 1,
        "queries_per_step": 1,
    }
