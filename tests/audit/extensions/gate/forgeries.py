"""Ledgers of a gate: correct ones, changed ones, and forged ones that somebody signed again."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfedadamw.extensions.gate import book, mechanism, settings
from dpfedadamw.extensions.gate.door import Gate
from reports.signatures import dsse
from tests.audit.synthetic_run import read_entries, rewrite_ledger

# Six releases of σ = 20 cost ε = 0.55 at δ = 1e-5.
GATE = {
    "unit": "record",
    "shards": 40,
    "clip": 0.5,
    "noise_multiplier": 20.0,
    "budget": {"epsilon": 3.0, "delta": 1e-5},
    "model": {"weight": "float32[64, 10]", "bias": "float64[10]"},
    "ledger": "ledger",
    "anchor": "elsewhere/head.json",
}
RELEASES = 6


def begun(folder: Path, noise: float = 1.0, **changes: Any) -> Path:
    """A gate with six releases, and the folder of its ledger.

    Args:
        folder: Where it is made.
        noise: How much of the charged noise it adds.
        **changes: Other values for some keys of gate.yaml.
    """
    folder.mkdir(parents=True)
    path = folder / "gate.yaml"
    path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
    found = settings.read(path)
    book.begin(found, book.load_key(make=True))
    gate, drawn = Gate.open(path), mechanism.noised_mean
    rng = np.random.default_rng(1)
    try:
        mechanism.noised_mean = lambda sent, total, shards, deviation, history: drawn(
            sent, total, shards, noise * deviation, history
        )
        for number in range(RELEASES):
            sent = {
                name: rng.normal(size=form.shape).astype(form.dtype)
                for name, form in found.model.items()
            }
            moved = {
                name: (one + 0.01 * rng.normal(size=one.shape)).astype(one.dtype)
                for name, one in sent.items()
            }
            gate.release(
                job=f"job-{number % 2}",
                request=str(number),
                broadcast=sent,
                shards=[moved] * found.shards,
            )
    finally:
        mechanism.noised_mean = drawn
    return found.ledger


def sign_again(folder: Path) -> None:
    """Sign the ledger as it is now, with the gate's key."""
    content = (folder / "ledger.jsonl").read_bytes()
    charges = sum(entry["kind"] == "spend" for entry in read_entries(folder))
    statement = dsse.Statement(
        {"ledger.jsonl": (dsse.SHA256, hashlib.sha256(content).hexdigest())},
        book._TYPE,
        {"bytes": len(content), "charges": charges},
    )
    sealed = dsse.seal(dsse.write_statement(statement), book.load_key().private)
    (folder / "head.json").write_bytes(sealed)


def signed(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[Path], None]:
    """Change the lines, chain them again, and sign them again."""

    def forge(folder: Path) -> None:
        rewrite_ledger(folder, change)
        sign_again(folder)

    return forge


def _every(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            entry.update({name: one for name, one in values.items() if name in entry})

    return change


def _edited(folder: Path) -> None:
    path = folder / "ledger.jsonl"
    content = path.read_bytes().replace(b'"noise_multiplier":20.0', b'"noise_multiplier":90.0', 1)
    path.write_bytes(content)


def _lines(order: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        path.write_bytes(b"".join(order(path.read_bytes().splitlines(keepends=True))))

    return change


def _reply_changed(folder: Path) -> None:
    path = folder / "replies" / "000006.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@dataclass(frozen=True)
class Case:
    """A ledger, and what every verifier must say of it.

    Attributes:
        change: What was done to a correct one.
        fails: The auditor's checks that FAIL.
        outcome: What the second verifier says of signatures and files, by the folder's own key.
        claim: What it says of the claim.
        unverified: The auditor's checks that are NOT VERIFIED.
        made: How the gate that made it differs.
    """

    change: Callable[[Path], None] | None = None
    fails: tuple[str, ...] = ()
    outcome: str = "INTACT, SIGNER UNKNOWN"
    claim: str = "AGREES"
    unverified: tuple[str, ...] = ()
    made: tuple[tuple[str, Any], ...] = ()


_BROKEN = {"outcome": "NOT VALID", "claim": "NOT SEEN"}
_FALSE = {"claim": "CONTRADICTED"}
CASES = {
    "correct": Case(),
    "correct, of people": Case(made=(("unit", "person"),)),
    "correct, of a site": Case(made=(("unit", "site"), ("shards", 1))),
    "torn last line": Case(lambda folder: _append(folder, b'{"kind":"spe')),
    "edited": Case(_edited, ("chain", "signature", "noise"), unverified=("budget",), **_BROKEN),
    "edited and chained again": Case(
        lambda folder: rewrite_ledger(folder, _every(job="another")), ("signature",), **_BROKEN
    ),
    "cut": Case(_lines(lambda lines: lines[:-2]), ("signature",), **_BROKEN),
    "two lines added without the key": Case(
        lambda folder: rewrite_ledger(folder, lambda entries: entries.extend(_two(entries))),
        ("signature",),
        **_BROKEN,
    ),
    "reordered": Case(
        _lines(lambda lines: [*lines[:1], *lines[3:5], *lines[1:3], *lines[5:]]),
        ("chain", "signature"),
        unverified=("budget",),
        **_BROKEN,
    ),
    "a charge left out": Case(
        signed(lambda entries: entries.__delitem__(slice(3, 5))),
        ("chain", "signature"),
        unverified=("budget",),
        **_BROKEN,
    ),
    "begun by another key": Case(
        signed(_every(key="SHA256:another")), ("signature",), **_BROKEN
    ),
    "overspent": Case(signed(_every(epsilon=0.4)), ("budget",), **_FALSE),
    "charged for C": Case(signed(_every(sensitivity=0.5)), ("sensitivity",), **_FALSE),
    "a site in many shards": Case(signed(_every(unit="site")), ("sensitivity",), **_FALSE),
    "half of the noise": Case(None, ("noise",), made=(("noise", 0.5),), **_FALSE),
    "σ doubled in the charges": Case(
        signed(_every(noise_multiplier=40.0)), ("noise",), **_FALSE
    ),
    "no reply noted": Case(
        signed(lambda entries: entries.__setitem__(slice(None), _without(entries, "reply"))),
        unverified=("noise",),
        claim="NOT SEEN",
    ),
    "reply changed": Case(_reply_changed, ("noise",), outcome="NOT VALID"),
    "reply lost": Case(
        lambda folder: (folder / "replies" / "000006.safetensors").unlink(),
        unverified=("noise",),
        claim="NOT SEEN",
    ),
    "head lost": Case(
        lambda folder: (folder / "head.json").write_bytes(b"{}"), unverified=("signature",),
        **_BROKEN,
    ),
}  # fmt: skip


def _without(entries: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["kind"] != kind]


def _append(folder: Path, content: bytes) -> None:
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(content)


def _two(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    more = RELEASES + 1
    return [{**entries[-2], "release": more}, {**entries[-2], "release": more + 1}]


def write(root: Path) -> dict[str, Path]:
    """All cases below a folder, each with the folder of its ledger."""
    made: dict[tuple[tuple[str, Any], ...], Path] = {}
    found = {}
    for number, (name, case) in enumerate(CASES.items()):
        if case.made not in made:
            made[case.made] = begun(root / f"gate-{number}", **dict(case.made))
        found[name] = root / f"{number:02d}"
        shutil.copytree(made[case.made], found[name])
        if case.change is not None:
            case.change(found[name])
    return found
