"""A synthetic run directory: the files that an engine and an auditor leave, with invented numbers.

The losses are plausible, not composed: a report must show what the ledger says, whatever it says.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from reports.content import parts
from tests.reports import drawings
from tests.reports.client_run import protect_clients

MakeRun = Callable[..., Path]
each_figure_once = drawings.each_figure_once
CREATED = "2026-11-21T09:21:27Z"


def write_ledger(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write hash-chained lines."""
    previous, lines = "0" * 64, []
    for row in rows:
        body = {**row, "previous": previous}
        body["digest"] = hashlib.sha256(_compact(body)).hexdigest()
        line = _compact(body)
        previous = hashlib.sha256(line).hexdigest()
        lines.append(line + b"\n")
    path.write_bytes(b"".join(lines))


def _compact(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8")


def _loss(rate: float, steps: float, noise: float) -> float:
    return 1.9 * rate * math.sqrt(max(steps, 0)) / noise * 2.4


def _spec(name: str, clients: int, rounds: int, private: bool, **extra: Any) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "name": "dp-fedadamw" if private else "fedadamw",
        "learning_rate": 0.02,
        "schedule": "cosine",
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1.0e-8,
        "weight_decay": 0.01,
        "alignment": 0.5,
        "first_moment": {"aggregation": "none"},
        "second_moment": {
            "aggregation": "heads",
            "debias": private,
            "counter": "global",
            "floor": {"relative": 1.0},
            "denominator": "coordinate",
        },
    }
    privacy: dict[str, Any] = {
        "unit": "record",
        "adjacency": "add-remove",
        "clipping_norm": 1.0,
        "noise_multiplier": 2.5,
        "target_epsilon": None,
        "delta": 1.0e-5,
        "sampling": {"kind": "poisson", "expected_batch_size": 32},
    }
    fields = ("purpose", "lawful_basis", "necessity", "risks", "measures", "responsible")
    return {
        "version": 1,
        "name": name,
        "description": "",
        "data": {
            "dataset": "digits",
            "path": None,
            "clients": clients,
            "partition": {"kind": "dirichlet", "alpha": 0.6, "minimum_records": 40},
            "test_fraction": 0.2,
            "seed": 0,
        },
        "model": {"name": "mlp", "hidden": [32]},
        "algorithm": algorithm,
        "federation": {
            "rounds": rounds,
            "clients_per_round": max(1, clients // 2),
            "local_steps": 5,
        },
        "privacy": privacy if private else {"unit": "none", "sampling": {"kind": "full"}},
        "randomness": {"mode": "release", "seed": None},
        "evaluation": {"every": 1},
        "report": dict.fromkeys(fields),
        **extra,
    }


def _view(epsilon: float) -> dict[str, Any]:
    return {"epsilon": {"pld": epsilon}, "accountant": "pld"}


def _claim(
    records: list[int], counts: list[int], rounds: int, participation: float
) -> dict[str, Any]:
    rates = [32 / size for size in records]
    rows = []
    for index, (size, rate, count) in enumerate(zip(records, rates, counts, strict=True)):
        value = _loss(rate, 5 * count, 2.5)
        rows.append(
            {
                "client": index,
                "records": size,
                "sampling_rate": rate,
                "participations": count,
                "steps": 5 * count,
                "epsilon": {"pld": value, "rdp": value * 1.09, "rdp-classic": value * 1.22},
                "delta_records": size * 1e-5,
            }
        )
    top = max(row["epsilon"]["pld"] for row in rows)
    third = 0.93 * _loss(max(rates), 5 * rounds * participation, 2.5)
    noble = max(rates) * math.sqrt(rounds * 5 * math.log(2e5) * math.log(2e5 * rounds)) / 2.5
    factor = math.sqrt(participation / len(records))
    return {
        "kind": "claim",
        "view_headline": "server",
        "delta": 1e-5,
        "server": {**_view(top), "clients": rows},
        "server_worst_case": _view(_loss(max(rates), 5 * rounds, 2.5)),
        "third_party": {**_view(third), "participation": participation},
        "closed_forms": {
            "third_party_noble": noble * factor,
            "server_noble": noble,
            "equation_13": noble,
            "equation_14": noble / factor,
            "delta_server": 0.5e-5 * (1 / participation + 1),
            "sampling_rate": max(rates),
        },
        "assumptions": [
            "Client sizes are public metadata.",
            "The third party does not learn who took part in which round.",
            "Sampling and noise use randomness that the adversary does not know.",
        ],
        "profile": [[e, 0.3 * math.exp(-e * 10 / top)] for e in np.linspace(0, 1.4 * top, 40)],
        "gaussian_dp": {"mu": 0.9351, "exact": False, "misses_smaller_by": 1e-10},
    }


def _check(name: str, title: str, verdict: str = "PASS", **extra: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "verdict": verdict,
        "severity": "critical",
        "claim": "Stated by the ledger and the spec.",
        "measurement": "Inside the accepted interval [0.977, 1.023] in every test.",
        "tolerance": "99.9 % interval, Bonferroni over all tests.",
        "power": "A noise scale of 2/3 or 3/2 of the claim is rejected with probability above "
        "0.999.",
        "limits": "Reads what the engine wrote down.",
        "details": {},
        **extra,
    }


def _audit(
    run: str, claim: dict[str, Any], spec: dict[str, Any], blocks: int, verdict: str
) -> dict[str, Any]:
    rounds = spec["federation"]["rounds"]
    generator = np.random.default_rng(3)
    shift = (1 - 0.999 ** (5 * rounds)) * (2.5 / 32) ** 2
    names = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]
    names = names[:blocks] + [f"block {index}" for index in range(len(names), blocks)]
    block_rows = []
    for name in names:
        size = int(generator.integers(10, 4000))
        half = shift * 3.29 * math.sqrt(2 / (size * 5 * rounds))
        released = shift + float(generator.normal()) * half / 3.3 + 0.01 * shift
        block_rows.append(
            {
                "name": name,
                "size": size,
                "predicted": shift,
                "released": released,
                "half_width": half,
            }
        )
    private = claim.get("view_headline") == "server"
    levels = [0.05 * step for step in range(1, 20)]
    normal = statistics.NormalDist()
    quantiles: dict[str, Any] = {
        "levels": levels,
        "expected": [normal.inv_cdf(level) for level in levels],
        "low": [normal.inv_cdf(level - 0.02) for level in levels],
        "high": [normal.inv_cdf(level + 0.02) for level in levels],
        "verdicts": ["inside"] * len(levels),
    }
    checks = [
        _check("integrity", "Files are complete and unchanged", claim="One run, one chain."),
    ]
    if private:
        step = max(1, rounds // 40)
        over = [
            {
                "round": r,
                "server": claim["server"]["epsilon"]["pld"] * math.sqrt(r / rounds),
                "third_party": claim["third_party"]["epsilon"]["pld"] * math.sqrt(r / rounds),
            }
            for r in range(step, rounds + 1, step)
        ]
        worst = max(row["participations"] for row in claim["server"]["clients"])
        forms = [
            {
                "name": name,
                "formula": "",
                "value": claim["closed_forms"][name],
                "towards": "server" if "server" in name or "14" in name else "third party",
                "reading": "double-counts" if name == "equation_14" else "conservative",
                "compared_with": claim["server"]["epsilon"]["pld"],
            }
            for name in ("third_party_noble", "server_noble", "equation_13", "equation_14")
        ]
        checks += [
            _check("sensitivity", "One record moves the clipped sum by at most the norm"),
            _check("noise-scale", "Noise has the claimed scale", details={"quantiles": quantiles}),
            _check("sampling", "Batches are drawn as the accountant assumes"),
            _check(
                "second-moment",
                "The noise's share in the second moment is the one subtracted",
                severity="theoretical",
                details={"blocks": block_rows, "tau": 5 * rounds},
            ),
            _check(
                "accounting",
                "The claimed loss is what the ledger composes to",
                measurement=f"Client 3 took part {worst} times; recomputed "
                f"ε = {claim['server']['epsilon']['pld']:.6f} for the server.",
                details={
                    "clients": [
                        {**row, "claimed": row["epsilon"]["pld"]}
                        for row in claim["server"]["clients"]
                    ],
                    "over_rounds": over,
                },
            ),
            _check(
                "views", "Closed forms beside the composed losses", details={"closed_forms": forms}
            ),
            _check(
                "canaries",
                "Planted records are not recognised",
                "NOT APPLICABLE",
                measurement="No canaries were planted.",
            ),
        ]
    if verdict == "FAIL":
        quantiles["verdicts"][3] = "below"
        checks[2] = _check(
            "noise-scale",
            "Noise has the claimed scale",
            "FAIL",
            details={"quantiles": quantiles},
            measurement="Outside the accepted interval [0.977, 1.023] in 40 of 40 tests.",
        )
    if verdict == "NOT VERIFIED":
        checks[2] = _check(
            "noise-scale",
            "Noise has the claimed scale",
            "NOT VERIFIED",
            measurement="The evidence of some rounds is missing.",
        )
    return {
        "format": 1,
        "run": run,
        "verdict": verdict,
        "qualifications": [],
        "auditor": {"package": "dpfedadamw audit 0.1.0", "numpy": "2.4.6", "scipy": "1.17.0"},
        "checks": checks,
    }


def build_run(
    directory: Path,
    *,
    name: str = "quickstart",
    private: bool = True,
    clients: int = 10,
    rounds: int = 20,
    blocks: int = 4,
    verdict: str | None = None,
    randomness: str = "release",
    audit: bool = True,
    evidence: bool = True,
    spec_extra: dict[str, Any] | None = None,
    identifier: str = "1a2b3c4d",
) -> Path:
    """Write a whole run directory and return it."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(7)
    records = [int(size) for size in generator.integers(60, 280, clients)]
    chosen = max(1, clients // 2)
    spec = _spec(name, clients, rounds, private, **(spec_extra or {}))
    seed = 0 if randomness == "reproducible" else None
    spec["randomness"] = {"mode": randomness, "seed": seed}
    spec_bytes = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode()
    (directory / "spec.yaml").write_bytes(spec_bytes)
    run = f"quickstart-20261121T092127Z-{identifier}"
    header: dict[str, Any] = {
        "kind": "header",
        "format": 1,
        "run": run,
        "spec_sha256": hashlib.sha256(spec_bytes).hexdigest(),
        "package": "0.1.0",
        "unit": "record" if private else "none",
        "rounds": rounds,
        "local_steps": 5,
        "clients": clients,
        "clients_per_round": chosen,
        "client_sampling": "fixed-size",
        "records": records,
        "randomness": randomness,
        "commitment": None if seed is not None else hashlib.sha256(b"key").hexdigest(),
        "seed": seed,
        "parameters": 2410,
        "created": CREATED,
    }
    rows: list[dict[str, Any]] = [header]
    counts = [0] * clients
    if private:
        header |= {
            "adjacency": "add-remove",
            "delta": 1e-5,
            "sampling": "poisson",
            "expected_batch_size": 32.0,
            "clipping_norm": 1.0,
            "noise_multiplier": 2.5,
            "accountant": {"library": "dp-accounting", "version": "0.6.0"},
        }
    for index in range(rounds):
        members = sorted(int(c) for c in generator.choice(clients, chosen, replace=False))
        for client in members:
            counts[client] += 1
            if private:
                rows.append(
                    {
                        "kind": "spend",
                        "round": index,
                        "client": client,
                        "attempt": 1,
                        "records": records[client],
                        "sampling": "poisson",
                        "sampling_rate": 32 / records[client],
                        "expected_batch_size": 32.0,
                        "clipping_norm": 1.0,
                        "noise_multiplier": 2.5,
                        "steps": 5,
                        "queries_per_step": 1,
                    }
                )
        five = [5] * len(members)
        rows.append(
            {"kind": "round", "round": index, "clients": members, "steps": five, "queries": five}
        )
    claim = (
        _claim(records, counts, rounds, chosen / clients)
        if private
        else {"kind": "claim", "view_headline": "none"}
    )
    rows.append(claim)
    write_ledger(directory / "ledger.jsonl", rows)
    metrics = [
        {
            "round": r,
            "learning_rate": 0.02 * (1 - r / (rounds + 1)),
            "test_accuracy": 0.1 + 0.78 * (1 - math.exp(-4 * r / rounds)),
            "test_loss": 2.3 * math.exp(-2 * r / rounds),
            "bytes_up": 0 if r == 0 else 9656 * chosen,
            "bytes_down": 0 if r == 0 else 9672 * chosen,
            "seconds": 0.25,
        }
        for r in range(rounds + 1)
    ]
    metrics[-1]["test_classes"] = [[36 + c % 3, 36 - 2 * (c % 7)] for c in range(9)] + [[4, 3]]
    (directory / "metrics.jsonl").write_bytes(b"".join(_compact(m) + b"\n" for m in metrics))
    (directory / "model.safetensors").write_bytes(
        b"\x08\0\0\0\0\0\0\0{}      " + identifier.encode()
    )
    model = {"format": 1, "model": spec["model"], "input_shape": [64], "classes": 10, "base": None}
    (directory / "model.json").write_bytes(_compact({**model, "parameters": 2410}))
    if evidence:
        private_folder = directory / "evidence"
        private_folder.mkdir(mode=0o700)
        (private_folder / "layout.json").write_text("{}")
        (private_folder / "salt").write_bytes(bytes(range(32)))
        (private_folder / "findings.json").write_text("{}")
        for index in range(min(rounds, 3)):
            np.savez(private_folder / f"round-{index:05d}.npz", clients=np.arange(3))
    if audit:
        wanted = verdict or ("PASS" if private else "NO CLAIM")
        found = _audit(run, claim, spec, blocks, wanted)
        if randomness == "reproducible":
            found["qualifications"] = [
                "reproducible mode: not a privacy guarantee to anyone who knows the seed"
            ]
        found["inputs"] = {
            file: hashlib.sha256((directory / file).read_bytes()).hexdigest()
            for file in ("spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors")
        }
        (directory / "audit.json").write_bytes(_compact(found))
    return directory


@pytest.fixture
def drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is drawn, for tests of the drawing itself."""
    monkeypatch.setattr(parts, "draw", drawings.DRAW)


@pytest.fixture(scope="session")
def run_builder() -> MakeRun:
    """Return the builder itself, for fixtures that outlive a test."""
    return build_run


@pytest.fixture(scope="session")
def client_run_builder() -> MakeRun:
    """Return a builder of runs that protect whole clients, for fixtures that outlive a test."""

    def build(directory: Path, noise_added_by: str = "clients", **options: Any) -> Path:
        run = build_run(directory, **options)
        return protect_clients(run, write_ledger, noise_added_by=noise_added_by)

    return build


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a builder of run directories below the test's own folder."""

    def build(folder: str = "run", **options: Any) -> Path:
        return build_run(tmp_path / folder, **options)

    return build


@pytest.fixture
def make_client_run(tmp_path: Path) -> MakeRun:
    """Return a builder of run directories that protect whole clients."""

    def build(
        folder: str = "run", noise_added_by: str = "server", often: int = 0, **options: Any
    ) -> Path:
        run = build_run(tmp_path / folder, **options)
        return protect_clients(run, write_ledger, noise_added_by=noise_added_by, often=often)

    return build
