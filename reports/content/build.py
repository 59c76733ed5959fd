"""Builds the report as data: the one place that decides what a reader of either audience is told.

First step of the package: `build` reads a run through `source`, never its evidence, and returns a
mapping that reports/schema/report.schema.json describes field by field. `figures` and `pdf` show
nothing that is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports import figures, formatting
from reports.content import adaptation, budget, client_level, findings, guarantee, outcomes, wording
from reports.content import outside_budget as standing
from reports.content.guarantee import INTERNAL, PUBLIC
from reports.content.serialise import as_json, check
from reports.content.units import words_of
from reports.errors import ReportError
from reports.reading.files import clean, integer, mapping, number, sequence
from reports.reading.source import PUBLIC_FILES, RunSource, load

FORMAT = 2
AUDIENCES = (INTERNAL, PUBLIC)


def build(run_dir: Path, audience: str = INTERNAL) -> dict[str, Any]:
    """Return the report on a run as data, valid against the report's schema.

    Args:
        run_dir: The run directory.
        audience: "internal" for the server's operator and the auditor; "public" leaves out whatever
            tells who took part, or how often.

    Raises:
        ReportError: The audience is unknown, or spec.yaml or ledger.jsonl cannot be read.
    """
    if audience not in AUDIENCES:
        raise ReportError(f"audience {audience!r}: must be one of {', '.join(AUDIENCES)}")
    source = load(run_dir)
    verdict = findings.verdict(source, audience)
    words = words_of(source)
    report: dict[str, Any] = {
        "format": FORMAT,
        "audience": audience,
        "identity": _identity(source, audience),
        "verdict": verdict,
        "guarantee": guarantee.guarantee(source, audience, verdict["value"]),
        "mechanism": _mechanism(source),
        "sampling": {**_sampling(source), **_participations(source, audience)},
        "accounting": budget.accounting(source, audience),
        "clients": budget.clients(source, audience),
        "outside_budget": _titled(standing.outside_budget(source)),
        "audit": {
            "auditor": findings.auditor(source),
            "checks": findings.checks(source, audience),
            "second_moment": budget.second_moment(source),
            "noise_quantiles": findings.noise_quantiles(source, audience),
        },
        "qualifications": findings.qualifications(source, audience),
        "randomness": _randomness(source, audience),
        "utility": outcomes.utility(source),
        "communication": outcomes.communication(source, audience),
        "governance": _governance(source),
        "hazards": _titled(words.hazards if source.private else wording.HAZARDS_NO_PRIVACY),
        "verification": list(wording.VERIFICATION),
    }
    report["figures"] = [text.as_dict() for text in figures.describe(report)]
    validate(report)
    return report


def validate(report: dict[str, Any]) -> None:
    """Check a report against its schema.

    Raises:
        ReportError: The report does not fit; the message names the place.
    """
    check(report, "report")


def serialise(report: dict[str, Any]) -> bytes:
    """Return the report as canonical, readable JSON: same report, same bytes."""
    return as_json(report)


def _titled(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"title": title, "text": text} for title, text in pairs]


def _identity(source: RunSource, audience: str) -> dict[str, Any]:
    spec = source.spec
    model = mapping(source.model.get("model")) or mapping(spec.get("model"))
    data = mapping(spec.get("data"))
    shape = [integer(side) for side in sequence(source.model.get("input_shape"))]
    return {
        "run": source.run,
        "name": clean(spec.get("name"), 300) or "unnamed",
        "description": clean(spec.get("description"), 2_000),
        "created": clean(source.header.get("created"), 40),
        "package": clean(source.header.get("package"), 60),
        "dataset": clean(data.get("dataset"), 200) or "unknown",
        "partition": formatting.settings(mapping(data.get("partition"))),
        "test_fraction": number(data.get("test_fraction")),
        "data_sha256": (clean(source.header.get("data_sha256"), 64) or None)
        if audience == INTERNAL
        else None,
        "model": formatting.settings(model),
        "pretrained": standing.pretrained(source),
        "input_shape": [side for side in shape if side is not None],
        "classes": integer(source.model.get("classes")),
        "parameters": integer(source.header.get("parameters")),
        "hashes": [
            {"file": name, "sha256": digest}
            for name, digest in sorted(source.hashes.items())
            if audience == INTERNAL or name in PUBLIC_FILES
        ],
    }


def _mechanism(source: RunSource) -> dict[str, Any]:
    header = source.header
    algorithm = mapping(source.spec.get("algorithm"))
    steps = integer(header.get("local_steps"))
    clip, noise, batch = (
        number(header.get(key))
        for key in ("clipping_norm", "noise_multiplier", "expected_batch_size")
    )
    if not source.private:
        statement = (
            f"Plain federated training with {guarantee.NO_PRIVACY}: gradients are neither "
            "clipped nor noised."
        )
        clip = noise = batch = None
    elif source.protects_clients:
        statement, batch = client_level.mechanism(source), None
    else:
        statement = (
            "Per local step: each sampled record's gradient, over all trainable parameters as "
            f"one vector, is clipped to norm C = {formatting.plain(clip)}; Gaussian noise of "
            f"standard deviation σC with σ = {formatting.plain(noise)} is added to every "
            "coordinate of the sum; the noisy sum is divided by the public constant B = "
            f"{formatting.plain(batch)}. Everything that leaves a client is computed from these "
            f"noisy gradients alone.{adaptation.statement(header)}"
        )
        if clean(header.get("precision"), 20) == "bfloat16":
            statement += (
                " Layers multiply in bfloat16; gradients are clipped, summed and noised in float32."
            )
    return {
        "algorithm": clean(algorithm.get("name"), 100) or "unknown",
        "statement": statement,
        "clipping_norm": clip,
        "noise_multiplier": noise,
        "expected_batch_size": batch,
        "noise_added_by": client_level.noise_added_by(source) if source.protects_clients else None,
        "local_steps": steps,
        "local_steps_in_words": adaptation.local_steps(header),
        "rounds": integer(header.get("rounds")),
        "rounds_completed": source.rounds_completed,
        "settings": formatting.settings(
            {key: value for key, value in algorithm.items() if key != "name"}
        ),
    }


def _sampling(source: RunSource) -> dict[str, Any]:
    if source.protects_clients:
        return client_level.sampling(source)
    header = source.header
    clients, chosen = (integer(header.get(key)) for key in ("clients", "clients_per_round"))
    sampling = clean(header.get("sampling"), 60)
    batch = number(header.get("expected_batch_size")) if source.private else None
    sizes = [size for size in source.records if size > 0]
    amplified = batch is not None and sampling != "shuffled"
    rates = [batch / size for size in sizes] if batch is not None and amplified else []
    by_chance = clean(header.get("client_sampling"), 60) == "poisson"
    total = formatting.count(clients)
    if by_chance:
        who = (
            f"Each round, every one of {total} clients takes part independently, "
            f"{formatting.count(chosen)} on average; a round may have none and then changes "
            "nothing."
        )
    else:
        who = (
            f"Each round, {formatting.count(chosen)} of {total} clients take part (client "
            f"sampling: {clean(header.get('client_sampling'), 60) or 'unstated'})."
        )
    how = "Batches are drawn without any privacy claim."
    if source.private:
        how = wording.SAMPLERS.get(sampling, wording.SAMPLERS["unstated"]).format(
            batch=formatting.plain(batch) if batch is not None else "B"
        )
        if rates:
            how += (
                f" Shares q run from {formatting.plain(min(rates))} to "
                f"{formatting.plain(max(rates))}."
            )
        how += (
            " Leaving a client out is not a neighbouring data set, so client sampling alone does "
            "not amplify privacy here."
        )
    return {
        "statement": f"{who} {how}",
        "clients": clients,
        "clients_per_round": chosen,
        "participation": chosen / clients if by_chance and chosen and clients else None,
        "rate_smallest": min(rates, default=None),
        "rate_largest": max(rates, default=None),
    }


def _participations(source: RunSource, audience: str) -> dict[str, Any]:
    """Return how often each client took part; for the public only where that is no secret."""
    header = source.header
    clients, chosen = (integer(header.get(key)) for key in ("clients", "clients_per_round"))
    fixed = clean(header.get("client_sampling"), 60) != "poisson" and clients == chosen
    chance = chosen / clients if clients and chosen else None
    return {
        "client_sampling": clean(header.get("client_sampling"), 60) or "unstated",
        "expected_participations": chance * source.rounds_completed if chance is not None else None,
        "participations": list(source.participations) if audience == INTERNAL or fixed else [],
    }


def _randomness(source: RunSource, audience: str) -> dict[str, Any]:
    header = source.header
    mode = clean(header.get("randomness"), 40) or "unstated"
    reproducible = mode == "reproducible"
    statement = {
        "reproducible": "Every draw comes from one seed, so the run can be repeated bit by bit.",
        "release": (
            "Sampling and noise come from the operating system's entropy, expanded by a "
            "cryptographic generator. No seed is stored; the ledger holds only a commitment to "
            "the key."
        ),
    }.get(mode, "The ledger does not state how random numbers were made.")
    internal = audience == INTERNAL
    return {
        "mode": mode,
        "statement": statement,
        "caveat": wording.SEED_CAVEAT if reproducible and source.private else None,
        "seed": integer(header.get("seed")) if internal else None,
        # Unguessable, so with it no one can confirm a guessed internal report by its public hash.
        "commitment": (clean(header.get("commitment"), 128) or None) if internal else None,
    }


def _governance(source: RunSource) -> list[dict[str, Any]]:
    given = mapping(source.spec.get("report"))
    return [
        {"field": field, "label": label, "text": clean(given.get(field), 4_000) or None}
        for field, label in wording.GOVERNANCE
    ]
