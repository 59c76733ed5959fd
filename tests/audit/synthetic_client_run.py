"""Builds client-level run directories with NumPy alone: correct ones, and broken ones.

Beside `synthetic_run`, which builds the record level. Each field of `ClientSettings` whose comment
says "fault" breaks one thing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from audit.accounting.budget import Steps, budget, privacy_profile
from audit.probe.probing import record_probe
from audit.reading.ledger_lines import Sparsification, digest, public_choices
from tests.audit.synthetic_run import (
    chain,
    committed,
    gaussian_dp,
    note_rows,
    on_grid,
    pack,
    runs,
    save,
    vector_digest,
    write_coordinates,
    write_model,
    write_records,
)


@dataclass(frozen=True)
class ClientSettings:
    seed: int = 0
    rounds: int = 24
    clients: int = 12
    clients_per_round: int = 3
    clipping_norm: float = 0.5
    noise_multiplier: float = 1.5
    delta: float = 1e-3
    sizes: tuple[int, ...] = (240, 90, 10)
    sample: int = 256
    noise_added_by: str = "server"
    empty_round: int | None = None
    resumed_round: int | None = None
    with_probe: bool = True
    sparsification: str = ""
    kept: int = 170
    noise_scale: float = 1.0  # fault
    upload_noise_scale: float = 1.0  # fault
    ledger_sigma_extra: float = 0.0  # fault
    realised_divisor: bool = False  # fault
    unclipped_update: bool = False  # fault
    silent_empty_round: bool = False  # fault
    reuse_between_rounds: bool = False  # fault
    fixed_cohort: bool = False  # fault
    fixed_number: bool = False  # fault
    rota: bool = False  # fault
    claim_scale: float = 1.0  # fault
    server_epsilon: float | None = None  # fault where the server adds the noise
    amplified_server: bool = False  # fault
    realised_traffic: bool = False  # fault
    dense_noise: bool = False  # fault with public coordinates
    own_coordinates: bool = False  # fault: one client's are not the public ones
    other_coordinates: bool = False  # fault: everybody's are not the public ones
    released_elsewhere: float = 0.0  # fault
    ledger_kept_extra: int = 0  # fault
    ledger_hides_sparsification: bool = False  # fault
    further_tensor: bool = False  # fault

    @property
    def public(self) -> Sparsification | None:
        """The public coordinates' rule, None where all coordinates are released."""
        if self.sparsification not in ("random", "released-top"):
            return None
        return Sparsification(self.sparsification, sum(self.sizes), self.kept, self.seed)


class SumProbe:
    """The sum of clipped updates; `wrong` clips tensor by tensor, or forgets something."""

    def __init__(self, clipping_norm: float, wrong: str = "") -> None:
        self.unit = "client"
        self.clipping_norm = clipping_norm
        self.parameters = 24
        self.input_shape = (24,)
        self.classes = 4
        self.wrong = wrong

    def sum_of_round(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        clients: np.ndarray,
        chosen: tuple[int, ...],
        elsewhere: bool = False,
    ) -> np.ndarray:
        if self.wrong == "all":
            inputs = inputs - np.nan_to_num(inputs).mean(axis=0)
        own = [inputs[clients == client].mean(axis=0) for client in chosen]
        if self.wrong == "onward":
            own = [one + 0.5 * before for one, before in zip(own, [0.0, *own[:-1]], strict=True)]
        start = np.arange(24.0) if elsewhere and self.wrong != "stale" else 0.0
        total = self.clipped_sum_of_updates(np.array(own) + start)
        return total / len(chosen) if self.wrong == "divisor" else total

    def clipped_sum_of_updates(self, updates: np.ndarray) -> np.ndarray:
        total = np.zeros(24)
        for update in updates.astype(np.float64):
            if self.wrong == "tensor":
                total += np.concatenate([self._clip(part) for part in np.split(update, 4)])
            elif self.wrong in ("nothing", "mean"):
                total += np.where(np.isfinite(update), update, 0.0)
            else:
                total += self._clip(update)
        return self._clip(total) if self.wrong == "mean" else total

    def _clip(self, update: np.ndarray) -> np.ndarray:
        if not np.isfinite(update).all():
            return np.nan_to_num(update) if self.wrong == "nonfinite" else np.zeros_like(update)
        norm = np.linalg.norm(update)
        return update * min(1.0, self.clipping_norm / norm) if norm > 0.0 else update


def _spec(s: ClientSettings) -> dict[str, Any]:
    algorithm = {"name": "dp-fedavg", "learning_rate": 0.02, "schedule": "cosine"}
    if s.sparsification:
        fraction = s.kept / sum(s.sizes)
        algorithm |= {"sparsification": {"kind": s.sparsification, "fraction": fraction}}
    return {
        "version": 1,
        "name": "synthetic",
        "model": {"name": "mlp"},
        "data": {
            "dataset": "digits",
            "clients": s.clients,
            "seed": s.seed,
            "partition": {"kind": "column"},
        },
        "algorithm": algorithm,
        "federation": {
            "rounds": s.rounds,
            "clients_per_round": s.clients_per_round,
            "local_steps": 3,
        },
        "privacy": {
            "unit": "client",
            "adjacency": "add-remove",
            "clipping_norm": s.clipping_norm,
            "noise_multiplier": s.noise_multiplier,
            "target_epsilon": None,
            "delta": s.delta,
            "noise_added_by": s.noise_added_by,
            "sampling": {"kind": "full"},
        },
        "randomness": {"mode": "release", "seed": None},
    }


def build_client_run(path: Path, s: ClientSettings) -> Path:
    """Write a whole run directory and return its path."""
    # No seed that anyone would try first: the check "randomness" tries these.
    rng = np.random.default_rng([987, s.seed])
    records = [30 + client for client in range(s.clients)]
    sigma = s.noise_multiplier + s.ledger_sigma_extra
    share = s.clients_per_round / s.clients
    evidence = path / "evidence"
    evidence.mkdir(parents=True, mode=0o700)
    raw_spec = yaml.safe_dump(_spec(s), sort_keys=False).encode()
    (path / "spec.yaml").write_bytes(raw_spec)
    participants: list[int] = []
    size = sum(s.sizes)
    within = s.kept if s.public else size
    sample = np.sort(
        np.random.default_rng(size).choice(within, min(within, s.sample), replace=False)
    )
    # Filled as rounds go by: a round's choice may follow from the release before it.
    releases = np.zeros((s.rounds, s.kept), np.float32)
    choices = public_choices(s.public, iter(releases)) if s.public else None
    layout = {
        "format": 1,
        "unit": "client",
        "parameters": size,
        "blocks": {
            "kind": "tensor",
            "names": [f"layer-{index}" for index in range(len(s.sizes))],
            "sizes": list(s.sizes),
            "runs": runs(s.sizes),
        },
        "beta2": None,
        "sample_coordinates": sample.tolist(),
        "per_round_files": s.rounds,
    }
    (evidence / "layout.json").write_text(json.dumps(layout))
    owner = rng.permutation(np.repeat(np.arange(s.clients), records))
    write_records(evidence, owner, s.clients)
    header = {
        "kind": "header", "format": 1, "run": "synthetic-20260101T000000Z-00000000",
        "spec_sha256": hashlib.sha256(raw_spec).hexdigest(), "package": "0.1.0",
        "unit": "client", "adjacency": "add-remove", "delta": s.delta, "rounds": s.rounds,
        "local_steps": 3, "clients": s.clients, "clients_per_round": s.clients_per_round,
        "client_sampling": "poisson", "participation": share,
        "noise_added_by": s.noise_added_by, "records": records, "sampling": "full",
        "expected_batch_size": None, "clipping_norm": s.clipping_norm, "noise_multiplier": sigma,
        "randomness": "release", "commitment": "ab" * 32, "seed": None,
        "accountant": {"library": "dp-accounting", "version": "0.6.0"},
        "parameters": size, "created": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    if s.sparsification and not s.ledger_hides_sparsification:
        header["sparsification"] = {
            "kind": s.sparsification,
            "size": size,
            "kept": s.kept + s.ledger_kept_extra,
            "seed": s.seed,
        }
    header["grid"] = {"update": 16, "vectors": 16, "summaries": 20, "weights": 16}
    entries: list[dict[str, Any]] = [header]
    remembered: list[np.ndarray] = []
    squares: list[np.ndarray] = []
    parameters = np.zeros(size, np.float32)
    for index in range(s.rounds):
        attempts = 2 if s.resumed_round == index else 1
        for attempt in range(1, attempts + 1):
            clients = _cohort(s, rng, index)
            entries.append(_charge(s, sigma, index, attempt, clients))
            if attempt < attempts:
                entries.append({"kind": "resume", "round": index, "commitment": "cd" * 32})
        participants.append(len(clients))
        kept = next(choices) if choices is not None else None
        arrays = _round(s, rng, clients, attempts, sample, remembered, kept)
        released = arrays.pop("released")
        if kept is not None:
            arrays |= _coordinates(s, clients, kept, released[kept])
            releases[index] = released[kept]
        squares.append(arrays.pop("coordinates") / (sigma * s.clipping_norm) ** 2)
        save(evidence / f"round-{index:05d}.npz", arrays)
        before, parameters = parameters, parameters + released
        if index == s.rounds - 1:
            parameters = on_grid(parameters, 16).astype(np.float32)
        messages = [pack({"parameters": one}) for one in (before, parameters)]
        save(
            evidence / f"upload-{index:05d}.npz",
            {
                "broadcast": np.frombuffer(messages[0], np.uint8),
                "combined": np.frombuffer(messages[1], np.uint8),
                "released": released,
            },
        )
        three = [3] * len(clients)
        entries.append(
            {
                "kind": "round", "round": index, "clients": clients, "steps": three,
                "queries": three, "broadcast_sha256": hashlib.sha256(messages[0]).hexdigest(),
                "released_sha256": hashlib.sha256(released.tobytes()).hexdigest(),
            }
        )  # fmt: skip
    write_coordinates(evidence, squares)
    entries[0]["initial"] = committed(entries)
    entries[0]["tensors_sha256"] = write_model(path, parameters, s.sizes)
    entries[-1]["parameters_sha256"] = vector_digest(parameters)
    entries.append(client_claim(s, sigma, [e for e in entries if e["kind"] == "spend"]))
    (path / "ledger.jsonl").write_bytes(chain(entries))
    metrics = [{"round": 0, "test_accuracy": 0.1, "bytes_up": 0, "seconds": 0}]
    for index, many in enumerate(participants):
        size_up = 4 * size * (many if s.realised_traffic else s.clients_per_round)
        seconds = int(rng.random() < 0.5)
        metrics.append({"round": index + 1, "bytes_up": size_up, "seconds": seconds})
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in metrics))
    (evidence / "salt").write_bytes(bytes(32))
    note_rows(evidence, owner)
    if s.with_probe:
        record_probe(path, SumProbe(s.clipping_norm))
    return path


def _cohort(s: ClientSettings, rng: np.random.Generator, index: int) -> list[int]:
    if s.empty_round == index:
        return []
    if s.fixed_cohort:
        return list(range(s.clients_per_round))
    if s.rota:
        return sorted((index * s.clients_per_round + k) % s.clients for k in range(3))
    if s.fixed_number:
        return sorted(rng.choice(s.clients, s.clients_per_round, replace=False).tolist())
    return np.flatnonzero(rng.random(s.clients) < s.clients_per_round / s.clients).tolist()


def _charge(
    s: ClientSettings, sigma: float, index: int, attempt: int, clients: list[int]
) -> dict[str, Any]:
    shared = s.noise_added_by == "clients" and clients
    return {
        "kind": "spend", "round": index, "attempt": attempt, "unit": "client",
        "sampling": "poisson", "sampling_rate": s.clients_per_round / s.clients,
        "expected_clients": s.clients_per_round, "clipping_norm": s.clipping_norm,
        "noise_multiplier": sigma, "noise_added_by": s.noise_added_by, "clients": clients,
        "upload_noise_multiplier": sigma / len(clients) ** 0.5 if shared else None,
    }  # fmt: skip


def _round(
    s: ClientSettings,
    rng: np.random.Generator,
    clients: list[int],
    attempt: int,
    sample: np.ndarray,
    remembered: list[np.ndarray],
    kept: np.ndarray | None,
) -> dict[str, np.ndarray]:
    size, many = sum(s.sizes), len(clients)
    edges = np.concatenate([[0], np.cumsum(s.sizes)[:-1]])
    raw = (rng.lognormal(0.2, 0.8, many) * s.clipping_norm).astype(np.float32)
    if many > 1:
        raw[1] = np.nan
    clipped = np.where(np.isfinite(raw), np.minimum(raw, np.float32(s.clipping_norm)), 0.0)
    if s.unclipped_update and many:
        raw[0] = clipped[0] = 3.0 * s.clipping_norm
    deviation = s.noise_multiplier * s.clipping_norm
    noised = np.ones(size)
    if kept is not None and not s.dense_noise:
        noised = np.zeros(size)
        noised[kept] = 1.0
    arrays: dict[str, np.ndarray] = {}
    if s.noise_added_by == "clients" and many:
        parts = rng.standard_normal((many, size)) * deviation / np.sqrt(many)
        parts *= s.upload_noise_scale * noised
        noise = parts.sum(axis=0)
        arrays["upload_noise_sum_squares"] = np.add.reduceat(parts**2, edges, axis=1)
        shown = parts if kept is None else parts[:, kept]
        arrays["upload_noise_silent"] = (shown == 0.0).sum(axis=1)
        arrays["upload_noise_largest"] = (np.abs(shown).max(axis=1) / s.clipping_norm).astype("f4")
    else:
        noise = rng.standard_normal(size) * deviation * noised
    noise *= s.noise_scale
    if s.silent_empty_round and not many:
        noise[:] = 0.0
    if s.reuse_between_rounds and len(remembered) == 7:
        noise = remembered[2].copy()
    remembered.append(noise)
    divisor = float(max(many, 1)) if s.realised_divisor else float(s.clients_per_round)
    clean = np.full(size, float(clipped.sum()) / np.sqrt(size))
    places, released_noise = sample, noise
    if kept is not None:
        released_noise = noise[kept]
        clean[np.setdiff1d(np.arange(size), kept)] = 0.0
        places = kept[sample]
    return arrays | {
        "clients": np.asarray(clients, np.int64),
        "attempt": np.asarray(attempt, np.int64),
        "raw_norms": raw,
        "clipped_norms": clipped.astype(np.float32),
        "nonfinite": np.asarray(int((~np.isfinite(raw)).sum()), np.int64),
        "divisor": np.asarray(divisor),
        "noise_sum_squares": np.add.reduceat(noise**2, edges),
        "noise_sample": (noise[places] / s.clipping_norm).astype(np.float32),
        "noise_silent": np.asarray(int((released_noise == 0.0).sum()), np.int64),
        "noise_largest": np.asarray(
            np.abs(released_noise).max() / s.clipping_norm, dtype=np.float32
        ),
        "coordinates": np.square(noise),
        "clean_sample": clean[places],
        "sample_places": places,
        "further_tensors": np.asarray(["loss"] if s.further_tensor else [], dtype="U64"),
        "released": on_grid((clean + noise) / divisor, 16).astype(np.float32),
    }


def _coordinates(
    s: ClientSettings, clients: list[int], kept: np.ndarray, released: np.ndarray
) -> dict[str, np.ndarray]:
    """What a round says of its public coordinates."""
    if s.other_coordinates:
        kept = np.arange(s.kept)
    mine = np.frombuffer(digest(kept), np.uint8)
    uploads = np.tile(mine, (len(clients), 1))
    if s.own_coordinates and clients:
        uploads[0] = np.frombuffer(digest(kept[::-1]), np.uint8)
    return {
        "kept_digest": mine,
        "upload_kept_digests": uploads,
        "elsewhere_sum_squares": np.asarray(s.released_elsewhere),
        "released": released,
    }


def client_claim(s: ClientSettings, sigma: float, spends: list[dict[str, Any]]) -> dict[str, Any]:
    share = s.clients_per_round / s.clients
    history = [Steps(share, sigma, len(spends))]
    third = budget(history, s.delta)
    server: dict[str, Any] = {"epsilon": s.server_epsilon, "clients": []}
    if s.noise_added_by == "clients":
        rows = []
        for client in range(s.clients):
            rate = share if s.amplified_server else 1.0
            own = [
                Steps(rate, spend["upload_noise_multiplier"], 1)
                for spend in spends
                if client in spend["clients"]
            ]
            if own:
                spent = budget(own, s.delta)
                rows.append(
                    {
                        "client": client,
                        "participations": len(own),
                        "epsilon": spent.epsilon,
                    }
                )
        largest = max(row["epsilon"]["pld"] for row in rows)
        server = {"epsilon": {"pld": largest}, "accountant": "pld", "clients": rows}
    pair = privacy_profile(history, s.delta)
    return {
        "kind": "claim", "view_headline": "third-party", "delta": s.delta,
        "third_party": {
            "epsilon": {**third.epsilon, "pld": third.headline * s.claim_scale},
            "accountant": "pld",
            "participation": share, "rounds": len(spends), "delta_clients": s.delta * s.clients,
        },
        "server": server,
        "assumptions": [
            "neighbouring data sets differ by one client with all its records",
            "hyper-parameters were not chosen on these data",
        ],
        "profile": [[x, pair.delta(x)] for x in np.linspace(0, 2 * third.headline, 12)],
        "gaussian_dp": gaussian_dp(history),
    }  # fmt: skip
