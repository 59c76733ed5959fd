"""Ledgers that do not tell what happened, and models that are not what was accounted for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.ledger import Ledger, canonical
from dpfedadamw.run import computing, journal
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from dpfedadamw.spec import Spec
from dpfedadamw.units.record import SingleRecords
from dpfedadamw.vectors.flat import FlatParameters
from tests.faults.fault import Fault, FaultGroup, Findings, Patch
from tests.runs import attest, begin, small_spec

FORGOTTEN = 2


def forget_a_round(patch: Patch) -> None:
    """One round is neither charged nor noted, and the claim does without it."""
    append_all, realised_claim = Ledger.append_all, SingleRecords.realised_claim

    def forgetful(self, kind, many):
        many = list(many)
        if kind in ("spend", "round") and many and many[0]["round"] == FORGOTTEN:
            self.entries.extend({**fields, "kind": kind} for fields in many)
            return
        append_all(self, kind, many)

    patch.setattr(Ledger, "append_all", forgetful)
    patch.setattr(
        SingleRecords,
        "realised_claim",
        lambda self, plan, entries: realised_claim(
            self, plan, [entry for entry in entries if entry.get("round") != FORGOTTEN]
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
    """Findings on a run whose ledger was changed and chained again after it had been signed."""

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


class CutOffError(Exception):
    """The process ends."""


def crash_left_out(spec: Spec, folder: Path, index: int = FORGOTTEN) -> Findings:
    """A round is cut off after it drew noise; its charges and the line of the resumption are gone.

    The process that goes on has a key of its own, so that the round's noise is drawn twice.
    """
    training = begin(spec, folder)

    def ends(done: int, of: int) -> None:
        if training.completed == index:
            raise CutOffError

    with contextlib.suppress(CutOffError):
        engine_run.train(training, on_client=ends)
    run = training.run
    lines = run.ledger.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not _charges(line, index)]
    assert len(kept) < len(lines)
    run.ledger.write_bytes(b"".join(kept))
    paid = run.checkpoint / "paid"
    paid.write_bytes(journal._record(sum(map(len, kept))))
    append = Ledger.append

    def forgetful(self: Ledger, kind: str, fields: Any) -> None:
        if kind != "resume":
            append(self, kind, fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "append", forgetful)
        again = engine_setup.resume(open_existing(run.path), torch.device("cpu"))
        engine_run.train(again)
    attest(again)
    return filing.audit(again.run).to_json()


def _charges(line: bytes, index: int) -> bool:
    entry = json.loads(line)
    return entry["kind"] == "spend" and entry["round"] == index


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


GONE_ON = "a process continued the run at round 2"
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
        *(
            Fault(
                f"a-crash-that-is-left-out-of-{whose}",
                "a round is cut off after its noise was drawn, and the ledger is put back to then",
                "schedulers that restart a job from its last checkpoint",
                ("integrity",),
                spec,
                judge=judge,
                says=says,
            )
            for whose, spec, judge, says in (
                ("records", lambda: small_spec(mode="release"), crash_left_out, GONE_ON),
                ("clients", lambda: small_spec("blur", mode="release"), crash_left_out, GONE_ON),
                (
                    "records-in-the-first-round",
                    lambda: small_spec(mode="release"),
                    functools.partial(crash_left_out, index=0),
                    "with a key that the ledger does not name",
                ),
            )
        ),
        Fault(
            "ledger-rewritten-with-more-noise",
            "after the run all noise multipliers are raised and the chain is rebuilt",
            "results that are tidied up before they are archived",
            ("integrity", "promise", "noise-scale"),
            small_spec,
            judge=rewritten(more_noise_everywhere),
        ),
        Fault(
            "ledger-rewritten-in-a-date",
            "after the run a field that no number hangs on is changed and the chain is rebuilt",
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
