"""Ledgers that do not tell what happened, and models that are not what was accounted for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.ledger import Ledger, canonical
from dpfedadamw.run import computing
from dpfedadamw.run import training as engine_run
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters
from tests.faults.fault import Fault, FaultGroup, Findings, Patch
from tests.runs import attest, begin, small_spec

FORGOTTEN = 2


def forget_a_round(patch: Patch) -> None:
    """One round is neither charged nor noted, and the claim does without it."""
    append_all, realised_claim = Ledger.append_all, RunPlan.realised_claim

    def forgetful(self, kind, many):
        many = list(many)
        if kind in ("spend", "round") and many and many[0]["round"] == FORGOTTEN:
            self.entries.extend({**fields, "kind": kind} for fields in many)
            return
        append_all(self, kind, many)

    patch.setattr(Ledger, "append_all", forgetful)
    patch.setattr(
        RunPlan,
        "realised_claim",
        lambda self, entries: realised_claim(
            self, [entry for entry in entries if entry.get("round") != FORGOTTEN]
        ),
    )


def charge_fewer_rounds(patch: Patch) -> None:
    """A round is noted when it is over, but its clients were never charged."""
    charges = RecordLevel.charges

    def sometimes(self, current):
        return [] if current.index == FORGOTTEN else charges(current)

    patch.setattr(RecordLevel, "charges", sometimes)


def strike_off_a_dropout(patch: Patch) -> None:
    """A client that is slow to answer is struck off the charge, and its upload is used."""
    charges = RecordLevel.charges

    def without_the_last(self, current):
        charged = charges(current)
        return charged[:-1] if current.index == FORGOTTEN else charged

    patch.setattr(RecordLevel, "charges", without_the_last)


def rewritten(change: Callable[[list[dict[str, Any]]], None]):
    """Findings on a run whose ledger was changed and chained anew after it had been signed."""

    def judge(spec: Spec, folder: Path) -> Findings:
        training = begin(spec, folder)
        engine_run.train(training)
        attest(training)
        entries = [json.loads(line) for line in training.run.ledger.read_bytes().splitlines()]
        change(entries)
        previous, lines = "0" * 64, []
        for entry in entries:
            bare = {key: entry[key] for key in entry if key != "digest"} | {"previous": previous}
            line = canonical({**bare, "digest": hashlib.sha256(canonical(bare)).hexdigest()})
            previous = hashlib.sha256(line).hexdigest()
            lines.append(line + b"\n")
        training.run.ledger.write_bytes(b"".join(lines))
        return filing.audit(training.run).to_json()

    return judge


def more_noise_everywhere(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        if "noise_multiplier" in entry:
            entry["noise_multiplier"] *= 1.5


def another_date(entries: list[dict[str, Any]]) -> None:
    """Nothing that the numbers hang on: only what was signed can tell."""
    entries[0]["created"] = "2020-01-01T00:00:00Z"


def the_best_round_by_training_loss(patch: Patch) -> None:
    """What is published is the round that did best on the clients' records, not the last."""
    pack_state = engine_run.checkpoints.pack_state
    write_weights = engine_run.checkpoints.write_weights
    client_data = computing.client_data
    rounds: list[torch.Tensor] = []
    clients: list[Any] = []

    def holding(*some):
        clients.extend(client_data(*some))
        return list(clients)

    def keeping(state, numbers):
        rounds.append(state.parameters.clone())
        return pack_state(state, numbers)

    def publishing(path, model):
        flat = FlatParameters(model)

        def loss(parameters: torch.Tensor) -> float:
            flat.assign(parameters)
            with torch.no_grad():
                return sum(
                    float(record_loss(model(one.inputs[:]), one.labels).sum()) for one in clients
                )

        # A test must not depend on whether the last round happened to be the best.
        flat.assign(min(rounds[:-1], key=loss))
        write_weights(path, model)

    patch.setattr(computing, "client_data", holding)
    patch.setattr(engine_run.checkpoints, "pack_state", keeping)
    patch.setattr(engine_run.checkpoints, "write_weights", publishing)


GROUP = FaultGroup(
    50,
    "The ledger",
    (
        Fault(
            "rounds-missing-from-the-ledger",
            "a round is neither charged nor noted, and the claim is lower for it",
            "experiment scripts that restart logging together with the accountant",
            ("integrity",),
            small_spec,
            forget_a_round,
        ),
        Fault(
            "a-round-that-is-not-charged",
            "a round is noted, and nobody was charged for it",
            "accountants that are stepped only when a metric is logged",
            ("integrity", "promise"),
            small_spec,
            charge_fewer_rounds,
        ),
        Fault(
            "dropout-struck-off-the-charge",
            "a client that seemed to drop out is not charged, though its noised steps were used",
            "servers with a deadline for uploads",
            ("integrity",),
            small_spec,
            strike_off_a_dropout,
        ),
        Fault(
            "ledger-rewritten-with-more-noise",
            "after the run all noise multipliers are raised and the chain is made anew",
            "results that are tidied up before they are archived",
            ("integrity", "promise", "noise-scale"),
            small_spec,
            judge=rewritten(more_noise_everywhere),
        ),
        Fault(
            "ledger-rewritten-in-a-date",
            "after the run a field that no number hangs on is changed and the chain is made anew",
            "results that are tidied up before they are archived",
            ("integrity",),
            small_spec,
            judge=rewritten(another_date),
            says="changed since",
        ),
        Fault(
            "tuning-outside-the-budget",
            "the published model is the round with the best training loss, an unpaid choice",
            "training scripts that keep the best checkpoint",
            ("uploads",),
            lambda: small_spec("dp-fedavg"),
            the_best_round_by_training_loss,
            says="model.safetensors",
        ),
    ),
)
