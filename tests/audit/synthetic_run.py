"""Builds run directories with NumPy alone: a correct DP-FedAdamW run, and broken ones.

The recursions are written out from the paper's algorithm, not taken from the engine. Each field of
`Settings` whose comment says "fault" breaks one thing.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.special import ndtr

from audit.accounting.budget import Steps, ThirdParty, budget, closed_forms, privacy_profile
from audit.probe.probing import record_probe
from tests.audit.corruptions import attest


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    rounds: int = 4
    local_steps: int = 3
    clients: int = 5
    clients_per_round: int = 3
    smallest: int = 60
    expected_batch_size: float = 12.0
    sampling: str = "poisson"
    stated_rate: float | None = None
    client_sampling: str = "fixed-size"
    clipping_norm: float = 0.5
    noise_multiplier: float = 1.5
    delta: float = 1e-5
    beta2: float = 0.99
    sizes: tuple[int, ...] = (240, 90, 10)
    sample: int = 256
    algorithm: str = "dp-fedadamw"
    aggregation: str = "heads"
    debias: bool = True
    randomness: str = "release"
    second_attempt_of: int | None = None
    with_probe: bool = True
    grid: bool = True  # False as in runs from before there was one
    counter: str = "global"  # fault when local
    noise_scale: float = 1.0  # fault
    ledger_sigma_extra: float = 0.0  # fault
    realised_divisor: bool = False  # fault
    reuse_between_clients: bool = False  # fault
    reuse_between_rounds: bool = False  # fault
    drawn_as: str = ""  # fault where it is not the sampling
    same_cohort: bool = False  # fault
    adjacency: str = ""  # fault where it is not the sampling's
    claimed_sensitivity: float = 0.0  # fault where it is not the adjacency's
    subtracted_scale: float = 1.0  # fault
    silent_query: bool = False  # fault
    skip_clipping_of_one: bool = False  # fault
    claim_scale: float = 1.0  # fault


class SoftmaxProbe:
    """Per-record clipped softmax regression; `wrong` breaks one of its promises."""

    grey_levels = False

    def __init__(self, clipping_norm: float, wrong: str = "") -> None:
        self.clipping_norm = clipping_norm
        self.input_shape = (6,)
        self.classes = 4
        self.parameters = 24
        self.wrong = wrong
        self.weights = np.random.default_rng(5).normal(size=(6, 4)) * 0.3

    def sum_of_step(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        clients: np.ndarray,
        drawn: np.ndarray,
        elsewhere: bool = False,
    ) -> np.ndarray:
        weights = self.weights * (0.5 if elsewhere and self.wrong != "stale" else 1.0)
        own = np.flatnonzero(clients == 0)
        with np.errstate(all="ignore"):
            if self.wrong == "all":
                inputs = inputs - inputs.mean(axis=0)
            if self.wrong == "client":
                inputs = inputs - inputs[own].mean(axis=0)
            inputs, labels = inputs[own][drawn], labels[own][drawn]
            if self.wrong == "collated" and len(drawn):
                inputs = inputs - inputs.mean(axis=0)
            total = self.clipped_sum(inputs, labels, weights)
        return total / max(1, len(drawn)) if self.wrong == "divisor" else total

    def clipped_sum(
        self, inputs: np.ndarray, labels: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        with np.errstate(all="ignore"):
            logits = inputs.astype(np.float64) @ weights
            logits = logits - logits.max(axis=1, keepdims=True) if len(labels) else logits
            chances = np.exp(logits)
            chances /= chances.sum(axis=1, keepdims=True)
            chances[np.arange(len(labels)), labels] -= 1.0
            gradients = (inputs[:, :, None].astype(np.float64) * chances[:, None, :]).reshape(
                len(labels), 24
            )
            if self.wrong == "batch":
                total = gradients.sum(axis=0)
                norm = np.linalg.norm(total)
                return total * min(1.0, self.clipping_norm / norm) if norm > 0 else total
            norms = np.linalg.norm(gradients, axis=1)
            scale = np.minimum(1.0, self.clipping_norm / np.where(norms > 0, norms, 1.0))
            if self.wrong != "nonfinite":
                bad = ~np.isfinite(norms)
                gradients = np.where(bad[:, None], 0.0, gradients)
                scale = np.where(bad, 0.0, scale)
            return (gradients * scale[:, None]).sum(axis=0)


def on_grid(values: np.ndarray, bits: int) -> np.ndarray:
    """Values rounded to so many significant bits."""
    fractions, exponents = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fractions, bits)), exponents - bits)


def canonical(entry: Any) -> bytes:
    return json.dumps(
        entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def chain(entries: list[dict[str, Any]]) -> bytes:
    """Lines of a ledger with a fresh, consistent chain."""
    previous, lines = "0" * 64, []
    for entry in entries:
        bare = {key: value for key, value in entry.items() if key not in ("previous", "digest")}
        bare["previous"] = previous
        bare["digest"] = hashlib.sha256(canonical(bare)).hexdigest()
        line = canonical(bare)
        previous = hashlib.sha256(line).hexdigest()
        lines.append(line + b"\n")
    return b"".join(lines)


def read_entries(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines()]


def rewrite_ledger(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the ledger's entries and chain them again: a consistent lie."""
    entries = read_entries(run)
    change(entries)
    (run / "ledger.jsonl").write_bytes(chain(entries))


def rewrite_spec(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the spec and the digest that the ledger names."""
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    change(spec)
    raw = yaml.safe_dump(spec, sort_keys=False).encode()
    (run / "spec.yaml").write_bytes(raw)
    rewrite_ledger(run, lambda e: e[0].update(spec_sha256=hashlib.sha256(raw).hexdigest()))


def rewrite_round(run: Path, index: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the arrays of a round's evidence."""
    path = run / "evidence" / f"round-{index:05d}.npz"
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(arrays)
    save(path, arrays)


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    path.write_bytes(buffer.getvalue())


def adjacency(s: Settings) -> str:
    return s.adjacency or ("add-remove" if s.sampling == "poisson" else "replace-one")


def _spec(s: Settings) -> dict[str, Any]:
    algorithm: dict[str, Any] = {"name": s.algorithm, "learning_rate": 0.02, "schedule": "cosine"}
    if s.algorithm != "dp-fedavg":
        algorithm["beta2"] = s.beta2
    if s.algorithm == "dp-fedadamw":
        algorithm["second_moment"] = {
            "aggregation": s.aggregation,
            "debias": s.debias,
            "counter": s.counter,
            "floor": {"relative": 1.0},
        }
    return {
        "version": 1,
        "name": "synthetic",
        "model": {"name": "mlp"},
        "data": {"dataset": "digits", "clients": s.clients, "partition": {"kind": "column"}},
        "algorithm": algorithm,
        "federation": {
            "rounds": s.rounds,
            "clients_per_round": s.clients_per_round,
            "client_sampling": "fixed" if s.client_sampling == "fixed-size" else "poisson",
            "local_steps": s.local_steps,
        },
        "privacy": {
            "unit": "record",
            "adjacency": adjacency(s),
            "clipping_norm": s.clipping_norm,
            "noise_multiplier": s.noise_multiplier,
            "target_epsilon": None,
            "delta": s.delta,
            "sampling": (
                {
                    "kind": "poisson",
                    "expected_batch_size": s.expected_batch_size,
                    "rate": s.stated_rate,
                }
                if s.sampling == "poisson"
                else {
                    "kind": "fixed" if s.sampling == "fixed-size" else s.sampling,
                    "batch_size": int(s.expected_batch_size),
                }
            ),
        },
        "randomness": {"mode": s.randomness, "seed": 7 if s.randomness == "reproducible" else None},
    }


def build_run(path: Path, s: Settings) -> Path:
    """Write a whole run directory and return its path."""
    # No seed that anyone would try first: the check "randomness" tries these.
    rng = np.random.default_rng([987, s.seed])
    records = [s.smallest + 13 * client for client in range(s.clients)]
    sigma = s.noise_multiplier + s.ledger_sigma_extra
    evidence = path / "evidence"
    evidence.mkdir(parents=True, mode=0o700)
    raw_spec = yaml.safe_dump(_spec(s), sort_keys=False).encode()
    (path / "spec.yaml").write_bytes(raw_spec)
    (path / "metrics.jsonl").write_text('{"round":0,"test_accuracy":0.1}\n')
    size = sum(s.sizes)
    blocks = len(s.sizes)
    sample = np.sort(np.random.default_rng(size).choice(size, min(size, s.sample), replace=False))
    has_moment = s.algorithm != "dp-fedavg"
    layout = {
        "format": 1,
        "parameters": size,
        "blocks": {
            "kind": s.aggregation,
            "names": [f"layer-{index}" for index in range(blocks)],
            "sizes": list(s.sizes),
            "runs": runs(s.sizes),
        },
        "unit": "record",
        "beta2": s.beta2 if has_moment else None,
        "sample_coordinates": sample.tolist(),
        "per_round_files": s.rounds,
    }
    (evidence / "layout.json").write_text(json.dumps(layout))
    owner = rng.permutation(np.repeat(np.arange(s.clients), records))
    write_records(evidence, owner, s.clients)
    header = {
        "kind": "header", "format": 1, "run": "synthetic-20260101T000000Z-00000000",
        "spec_sha256": hashlib.sha256(raw_spec).hexdigest(), "package": "0.1.0",
        "unit": "record", "adjacency": adjacency(s), "delta": s.delta, "rounds": s.rounds,
        "local_steps": s.local_steps, "clients": s.clients,
        "clients_per_round": s.clients_per_round, "client_sampling": s.client_sampling,
        "records": records, "sampling": s.sampling,
        **({} if s.stated_rate is None else {"sampling_rate": s.stated_rate}),
        "expected_batch_size": s.expected_batch_size, "clipping_norm": s.clipping_norm,
        "noise_multiplier": sigma, "randomness": s.randomness,
        "commitment": "ab" * 32 if s.randomness == "release" else None,
        "seed": None if s.randomness == "release" else 7,
        "accountant": {"library": "dp-accounting", "version": "0.6.0"},
        "parameters": size, "created": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    if s.grid:
        header["grid"] = {"update": 12, "vectors": 16, "summaries": 20, "weights": 16}
    entries: list[dict[str, Any]] = [header]
    squares: list[np.ndarray] = []
    charged: dict[int, int] = {}
    times: dict[int, int] = {}
    state = _State(np.zeros(blocks), np.zeros(blocks), 0, np.zeros(size, np.float32))
    remembered: dict[str, np.ndarray] = {}
    for index in range(s.rounds):
        clients = np.sort(rng.choice(s.clients, s.clients_per_round, replace=False))
        if s.client_sampling == "poisson":
            clients = np.flatnonzero(rng.random(s.clients) < s.clients_per_round / s.clients)
        if s.same_cohort:
            clients = np.arange(s.clients_per_round)
        attempts = 2 if s.second_attempt_of == index else 1
        for attempt in range(1, attempts + 1):
            if attempt > 1:
                entries.append({"kind": "resume", "round": index, "commitment": "e" * 64})
            for client in clients.tolist():
                entries.append(_charge(s, sigma, index, client, attempt, records[client]))
                counted = s.local_steps
                if s.sampling == "shuffled":
                    epoch = math.ceil(records[client] / s.expected_batch_size)
                    counted = math.ceil(s.local_steps / epoch)
                charged[client] = charged.get(client, 0) + counted
                times[client] = times.get(client, 0) + 1
        before = state.broadcast(s)
        arrays, files = _round(s, rng, index, clients, attempts, records, sample, state, remembered)
        for client, file in zip(clients.tolist(), files, strict=True):
            file["broadcast"] = np.frombuffer(before, np.uint8)
            save(evidence / f"upload-{index:05d}-{client:05d}.npz", file)
        digests = [hashlib.sha256(file["upload"].tobytes()).digest() for file in files]
        arrays["upload_sha256"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        squares.append(arrays.pop("coordinates") / (sigma * s.clipping_norm) ** 2)
        save(evidence / f"round-{index:05d}.npz", arrays)
        entries.append(
            {
                "kind": "round",
                "round": index,
                "clients": clients.tolist(),
                "steps": [s.local_steps] * len(clients),
                "queries": [s.local_steps] * len(clients),
                "broadcast_sha256": hashlib.sha256(before).hexdigest(),
                "uploads_sha256": hashlib.sha256(b"".join(digests)).hexdigest(),
            }
        )
    write_coordinates(evidence, squares)
    header["initial"] = committed(entries)
    header["tensors_sha256"] = write_model(path, state.parameters, s.sizes)
    entries[-1]["parameters_sha256"] = vector_digest(state.parameters)
    entries.append(_claim(s, sigma, records, charged, times))
    (path / "ledger.jsonl").write_bytes(chain(entries))
    (evidence / "salt").write_bytes(bytes(32))
    note_rows(evidence, owner)
    if s.with_probe:
        record_probe(path, SoftmaxProbe(s.clipping_norm))
    return path


def committed(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What a header says of the weights that the first round sends."""
    first = next(entry for entry in entries if entry["kind"] == "round")
    return {"broadcast_sha256": first["broadcast_sha256"], "origin": "seed"}


def rate_of(s: Settings, records: int) -> float:
    """q of a client's Poisson draws, or of its draws of fixed size."""
    return s.expected_batch_size / records if s.stated_rate is None else s.stated_rate


def write_records(evidence: Path, owner: np.ndarray, clients: int) -> None:
    """Whose record is whose, and moments of grey levels in [0, 1]."""
    held = [np.flatnonzero(owner == client) for client in range(clients)]
    sizes = [len(one) for one in held]
    save(
        evidence / "partition.npz",
        {
            "client_of_record": owner,
            "held": np.concatenate(held),
            "held_offsets": np.cumsum([0, *sizes]),
        },
    )
    save(
        evidence / "inputs.npz",
        {
            "numbers": 64 * np.asarray([*sizes, len(owner)]),
            "mean": np.full(clients + 1, 0.30497),
            "deviation": np.full(clients + 1, 0.37583),
            "varying": 60 * np.asarray([*sizes, len(owner)]),
        },
    )
    rows = np.arange(len(owner))
    contents = np.zeros((len(owner), 16), np.uint8)
    contents[:, 0], contents[:, 1] = rows % 256, rows // 256
    save(
        evidence / "records.npz",
        {
            "records": np.asarray(len(owner)),
            "rows": rows,
            "labels": rows % 10,
            "contents": contents,
            "test_contents": np.full((40, 16), 255, np.uint8),
        },
    )


def note_rows(evidence: Path, owner: np.ndarray) -> None:
    """Keyed digests of the rows that every round used, under a salt of zeros."""
    for path in sorted(evidence.glob("round-*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        digests, start = [], 0
        for client in arrays["clients"].tolist():
            rows = np.flatnonzero(owner == client)
            if "inclusions" in arrays:
                times = arrays["inclusions"][start : start + len(rows)]
                start, rows = start + len(rows), np.repeat(rows, times)
            content = b"dpfedadamw rows 1\x00" + bytes(32) + np.sort(rows).astype("<i8").tobytes()
            digests.append(list(hashlib.sha256(content).digest()))
        arrays["rows_sha256"] = np.asarray(digests, np.uint8).reshape(-1, 32)
        save(path, arrays)


def write_coordinates(evidence: Path, squares: list[np.ndarray]) -> None:
    """Sums of squared noise by coordinate, the last round's apart."""
    before, last = np.sum(squares[:-1], axis=0), squares[-1]
    save(
        evidence / "coordinates.npz",
        {
            "rounds": np.asarray(len(squares), np.int64),
            "before": np.broadcast_to(before, last.shape).astype(np.float32),
            "last": last.astype(np.float32),
        },
    )


def write_model(path: Path, parameters: np.ndarray, sizes: tuple[int, ...]) -> str:
    """The published weights, one tensor a layer, and their configuration; the list's digest."""
    parts = np.split(parameters, np.cumsum(sizes)[:-1])
    tensors = {f"layer-{index}": part for index, part in enumerate(parts)}
    (path / "model.safetensors").write_bytes(pack(tensors))
    listed = [
        {"name": name, "shape": list(part.shape), "dtype": "F32", "trained": True}
        for name, part in tensors.items()
    ]
    configuration = {"format": 1, "parameters": len(parameters), "tensors": listed}
    (path / "model.json").write_text(json.dumps(configuration))
    return hashlib.sha256(canonical(listed)).hexdigest()


def vector_digest(vector: np.ndarray) -> str:
    """What the ledger notes of a vector."""
    return hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest()


def _charge(
    s: Settings, sigma: float, index: int, client: int, attempt: int, records: int
) -> dict[str, Any]:
    return {
        "kind": "spend", "round": index, "client": client, "attempt": attempt,
        "records": records, "sampling": s.sampling,
        "sampling_rate": 1.0 if s.sampling == "shuffled" else rate_of(s, records),
        **({} if s.stated_rate is None else {"rate_stated": True}),
        "expected_batch_size": s.expected_batch_size, "clipping_norm": s.clipping_norm,
        "noise_multiplier": sigma, "steps": s.local_steps, "queries_per_step": 1,
    }  # fmt: skip


@dataclass
class _State:
    noisy: np.ndarray
    clean: np.ndarray
    steps: int
    parameters: np.ndarray

    def broadcast(self, s: Settings) -> bytes:
        """What the server sends: parameters, and shared block means of the second moment."""
        tensors = {"parameters": self.parameters}
        if shares(s):
            tensors["state.second_moment"] = self.noisy.astype(np.float32)
        return pack(tensors)


def shares(s: Settings) -> bool:
    return s.algorithm == "dp-fedadamw" and s.aggregation != "none"


def pack(tensors: Mapping[str, np.ndarray], dtype: str = "F32") -> bytes:
    """Vectors in the format of safetensors, as float32 or, by "F64", as float64."""
    header: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        raw = value.astype({"F32": "<f4", "F64": "<f8"}[dtype]).tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def runs(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """One tensor a block, in order."""
    stops = np.cumsum(sizes).tolist()
    return [
        {"name": f"layer-{index}", "stop": stop, "blocks": [index]}
        for index, stop in enumerate(stops)
    ]


def _draw(s: Settings, rng: np.random.Generator, records: int) -> list[np.ndarray]:
    """One participation's batches, by the sampler or by the one that poses as it."""
    size, how = int(s.expected_batch_size), s.drawn_as or s.sampling
    if how == "poisson":
        rate = rate_of(s, records)
        return [np.flatnonzero(rng.random(records) < rate) for _ in range(s.local_steps)]
    if how == "fixed-size":
        return [rng.choice(records, size, replace=False) for _ in range(s.local_steps)]
    batches: list[np.ndarray] = []
    while len(batches) < s.local_steps:
        order = rng.permutation(records)
        batches += [order[start : start + size] for start in range(0, records, size)]
    return batches[: s.local_steps]


def _empty_round(s: Settings, sample: np.ndarray, attempt: int) -> dict[str, np.ndarray]:
    """A round in which nobody took part leaves arrays of no rows."""
    blocks = len(s.sizes)
    widths = {"noise_sum_squares": blocks, "noise_sample": len(sample), "clean_sum_squares": blocks}
    whole = ("batch_size", "nonfinite", "noise_silent")
    arrays: dict[str, np.ndarray] = {
        "clients": np.zeros(0, np.int64),
        "attempt": np.asarray(attempt, np.int64),
        "record_offsets": np.zeros(1, np.int64),
        "inclusions": np.zeros(0, np.uint16),
        "raw_norms": np.zeros(0, np.float32),
        "clipped_norms": np.zeros(0, np.float32),
        "divisor": np.zeros((0, 0)),
        "noise_largest": np.zeros((0, 0), np.float32),
        "coordinates": np.zeros(sum(s.sizes)),
        **{name: np.zeros((0, 0), np.int64) for name in whole},
        **{name: np.zeros((0, 0, width)) for name, width in widths.items()},
    }
    if s.algorithm == "dp-fedavg":
        return arrays
    means = ("v_noisy", "v_clean", "v_corrected")
    return arrays | {
        **{name: np.zeros((0, blocks)) for name in means},
        "subtracted": np.zeros(0),
        "tau": np.zeros(0, np.int64),
        "floored": np.zeros((0, blocks), np.int64),
    }


def _round(
    s: Settings,
    rng: np.random.Generator,
    index: int,
    clients: np.ndarray,
    attempt: int,
    records: list[int],
    sample: np.ndarray,
    state: _State,
    remembered: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    if not len(clients):
        return _empty_round(s, sample, attempt), []
    size, blocks = sum(s.sizes), len(s.sizes)
    edges = np.concatenate([[0], np.cumsum(s.sizes)[:-1]])
    many, steps = len(clients), s.local_steps
    shape = (many, steps)
    batch = np.zeros(shape, int)
    inclusions = [np.zeros(0, int)]
    for row, client in enumerate(clients):
        drawn = _draw(s, rng, records[client])
        batch[row] = [len(one) for one in drawn]
        inclusions.append(np.bincount(np.concatenate(drawn), minlength=records[client]))
    total = int(batch.sum())
    raw = (rng.lognormal(-0.7, 0.8, total) * s.clipping_norm).astype(np.float32)
    if total > 3 and index == 0:
        raw[1] = np.inf
    clipped = np.where(np.isfinite(raw), np.minimum(raw, np.float32(s.clipping_norm)), 0.0)
    if s.skip_clipping_of_one and index == 1:
        clipped[int(np.argmax(np.where(np.isfinite(raw), raw, 0)))] = np.max(raw)
    offsets = np.concatenate([[0], np.cumsum(batch.ravel())])
    nonfinite = np.add.reduceat(np.append(~np.isfinite(raw), False).astype(int), offsets[:-1]) * (
        batch.ravel() > 0
    )
    direction = np.random.default_rng(1).standard_normal(size) / np.sqrt(size)
    # Longer than all clipped gradients together no clean sum can be.
    reach = np.add.reduceat(np.append(clipped, 0.0), offsets[:-1]) * (batch.ravel() > 0)
    scatter = rng.standard_normal((*shape, size)) / np.sqrt(size)
    clean = (0.7 * direction + 0.1 * scatter) * reach.reshape(shape)[..., None]
    clean = clean.astype(np.float32).astype(np.float64)
    noise = rng.standard_normal((*shape, size)) * s.noise_multiplier * s.clipping_norm
    noise *= s.noise_scale
    if s.reuse_between_clients and index == 1:
        noise[1] = noise[0]
    if s.reuse_between_rounds:
        if index == 0:
            remembered["noise"] = noise[0, 0].copy()
        if index == 2:
            noise[1, 1] = remembered["noise"]
    if s.silent_query and index == 1:
        noise[0, 0] = 0.0
    divisor = np.full(shape, s.expected_batch_size)
    if s.realised_divisor:
        divisor = np.maximum(batch, 1).astype(float)
    mean = clean / divisor[..., None]
    released = (mean + noise / divisor[..., None]).astype(np.float32).astype(np.float64)
    arrays: dict[str, np.ndarray] = {
        "clients": clients.astype(np.int64),
        "attempt": np.asarray(attempt, np.int64),
        "batch_size": batch.astype(np.int64),
        "inclusions": np.concatenate(inclusions).astype(np.uint16),
        "record_offsets": offsets.astype(np.int64),
        "raw_norms": raw,
        "clipped_norms": clipped.astype(np.float32),
        "nonfinite": nonfinite.reshape(shape).astype(np.int64),
        "divisor": divisor,
        "noise_sum_squares": np.add.reduceat(noise**2, edges, axis=2),
        "noise_sample": (noise[:, :, sample] / s.clipping_norm).astype(np.float32),
        "noise_silent": (noise == 0.0).sum(axis=2),
        "noise_largest": (np.abs(noise).max(axis=2) / s.clipping_norm).astype(np.float32),
        "coordinates": np.square(noise).sum(axis=(0, 1)),
        "clean_sum_squares": np.add.reduceat(mean**2, edges, axis=2),
    }
    files, floored = _descend(s, index, state, released, edges)
    for row, file in enumerate(files):
        file["clean_sample"] = clean[row][:, sample].astype(np.float32)
    if s.algorithm == "dp-fedavg":
        return arrays, files
    restarts = s.algorithm == "dp-localadamw" or s.aggregation == "none"
    widths = np.asarray(s.sizes, float)
    noisy = np.tile(np.zeros(blocks) if restarts else state.noisy, (many, 1))
    shadow = np.tile(np.zeros(blocks) if restarts else state.clean, (many, 1))
    for step in range(steps):
        square = np.add.reduceat(released[:, step] ** 2, edges, axis=1) / widths
        noisy = s.beta2 * noisy + (1 - s.beta2) * square
        shadow = s.beta2 * shadow + (1 - s.beta2) * arrays["clean_sum_squares"][:, step] / widths
    state.steps = steps if restarts else state.steps + steps
    tau = steps if s.counter == "local" else state.steps
    phi = (s.noise_multiplier * s.clipping_norm / s.expected_batch_size) ** 2
    debias = s.debias and s.algorithm == "dp-fedadamw"
    arrays |= {
        "v_noisy": noisy,
        "v_clean": shadow,
        "v_corrected": noisy / (1 - s.beta2**tau),
        "subtracted": np.full(many, phi * s.subtracted_scale if debias else 0.0),
        "tau": np.full(many, state.steps, np.int64),
        "floored": floored,
    }
    sent = on_grid(noisy, 20) if s.grid else noisy
    state.noisy, state.clean = sent.mean(axis=0), shadow.mean(axis=0)
    return arrays, files


def _descend(
    s: Settings, index: int, state: _State, released: np.ndarray, edges: np.ndarray
) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Every client's steps along its noised gradients [S, K, d]; moves the server's parameters.

    Also says how many coordinates of each block were at the floor in the last step.
    """
    rate = 0.02 * 0.5 * (1 + np.cos(np.pi * index / s.rounds))
    phi = (s.noise_multiplier * s.clipping_norm / s.expected_batch_size) ** 2
    start = state.parameters.astype(np.float64)
    files = []
    updates = []
    floored = np.zeros((len(released), len(edges)), np.int64)
    for row, gradients in enumerate(released):
        theta, points = start.copy(), []
        v = np.repeat(state.noisy, s.sizes) if shares(s) else np.zeros_like(start)
        for k, gradient in enumerate(gradients, start=1):
            points.append(theta.astype(np.float32))
            step = gradient
            if s.algorithm != "dp-fedavg":
                v = s.beta2 * v + (1 - s.beta2) * gradient**2
                tau = k if s.counter == "local" or not shares(s) else state.steps + k
                corrected = v / (1 - s.beta2**tau)
                if s.debias and s.algorithm == "dp-fedadamw":
                    floored[row] = np.add.reduceat((corrected < 2 * phi).astype(int), edges)
                    corrected = np.maximum(corrected - phi, phi)
                step = gradient / np.sqrt(corrected)
            theta = theta - rate * step
        upload = {"parameters": on_grid(theta - start, 12) if s.grid else theta - start}
        if shares(s):
            moment = np.add.reduceat(v, edges) / np.asarray(s.sizes)
            upload["state.second_moment"] = on_grid(moment, 20) if s.grid else moment
        updates.append(upload["parameters"])
        files.append(
            {
                "upload": np.frombuffer(pack(upload), np.uint8),
                "memory_before": np.frombuffer(pack({}), np.uint8),
                "memory_after": np.frombuffer(pack({}), np.uint8),
                "points": np.stack(points),
                "gradients": gradients.astype(np.float32),
            }
        )
    state.parameters = (start + np.mean(updates, axis=0)).astype(np.float32)
    if s.grid and index == s.rounds - 1:
        state.parameters = on_grid(state.parameters, 16).astype(np.float32)
    return files, floored


def _claim(
    s: Settings,
    sigma: float,
    records: list[int],
    charged: dict[int, int],
    times: dict[int, int],
) -> dict[str, Any]:
    sensitivity = s.claimed_sensitivity or (1.0 if s.sampling == "poisson" else 2.0)

    def steps(records: int, count: int) -> Steps:
        rate = 1.0 if s.sampling == "shuffled" else rate_of(s, records)
        return Steps(rate, sigma / sensitivity, count, s.sampling == "fixed-size")

    rows = []
    for client in range(s.clients):
        if not times.get(client) and s.client_sampling == "poisson":
            continue
        cost = steps(records[client], charged.get(client, 0))
        spent = budget([cost], s.delta)
        rows.append(
            {
                "client": client,
                "records": records[client],
                "sampling_rate": cost.sampling_rate,
                "participations": times.get(client, 0),
                "steps": charged.get(client, 0),
                "epsilon": {name: value * s.claim_scale for name, value in spent.epsilon.items()},
                "delta_records": s.delta * records[client],
            }
        )
    counted = s.local_steps
    if s.sampling == "shuffled":
        counted = math.ceil(s.local_steps / math.ceil(min(records) / s.expected_batch_size))
    worst = steps(min(records), counted)
    share = s.clients_per_round / s.clients
    leader = max(rows, key=lambda row: row["epsilon"]["pld"])
    highest = leader["epsilon"]["pld"]
    everything = replace(worst, steps=s.rounds * counted)
    third = ThirdParty([(worst, s.rounds)], share, s.delta)
    spent = [steps(leader["records"], leader["steps"])]
    pair = privacy_profile(spent, s.delta)
    return {
        "kind": "claim", "view_headline": "server", "delta": s.delta, "adjacency": adjacency(s),
        "server": {**view(highest), "clients": rows},
        "server_worst_case": view(
            max(budget([everything], s.delta).headline, highest / s.claim_scale)
        ),
        "third_party": {**view(third.epsilon([s.rounds])), "participation": share},
        "closed_forms": dict(
            closed_forms(
                rate_of(s, min(records)), sigma, s.local_steps, s.rounds, s.clients,
                share, s.delta,
            )
        ),
        "assumptions": [
            "each record belongs to one client and occurs there once",
            "hyperparameters were not tuned on the private records",
            "the number of records of each client is public, and the sampling rate follows from it"
            if s.stated_rate is None
            else "the sampling rate is a constant that the spec states",
        ],
        "profile": [[x, pair.delta(x)] for x in np.linspace(0, 2 * highest, 12)],
        "gaussian_dp": gaussian_dp(spent),
    }  # fmt: skip


def gaussian_dp(history: Sequence[Steps]) -> dict[str, Any]:
    """The least μ whose curve is nowhere below that of a history, where δ is above 1e-10."""
    if all(item.sampling_rate == 1.0 for item in history):
        mu = math.sqrt(sum(item.steps / item.noise_multiplier**2 for item in history))
        return {"mu": mu, "exact": True, "misses_smaller_by": 0.0}
    pair = privacy_profile(history, 1e-10)
    epsilons = np.linspace(0.0, pair.epsilon(1e-10), 200)
    deltas = [pair.delta(one) for one in epsilons]
    low, high = 0.0, 20.0
    while high - low > 1e-6:
        mu = (low + high) / 2
        first, second = ndtr(mu / 2 - epsilons / mu), ndtr(-mu / 2 - epsilons / mu)
        covers = first - np.exp(epsilons) * second >= deltas
        low, high = (low, mu) if covers.all() else (mu, high)
    return {"mu": high, "exact": False, "misses_smaller_by": 1e-10}


def view(epsilon: float) -> dict[str, Any]:
    return {"epsilon": {"pld": epsilon}, "accountant": "pld"}


if __name__ == "__main__":
    attest(build_run(Path(sys.argv[1]), Settings()))
