"""The event tree: which mechanisms were composed for each view, as the accountant takes them.

Used by `budget`. A tree is made of the ledger's header and charges alone, so that a reader can feed
it to an accountant of their own. Towards the server as it happened it counts participations, and is
for the internal audience.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from reports import formatting
from reports.reading.claims import epsilons
from reports.reading.files import clean, integer, mapping, number, sequence
from reports.reading.source import RunSource

Node = dict[str, Any]
_MOST_PARTS = 50


def trees(source: RunSource, internal: bool) -> list[dict[str, Any]]:
    """Return a tree for each view that has one, as {view, root}.

    Args:
        source: The run.
        internal: Whether the readers may learn how often clients took part.

    Returns:
        Views in the order of the report. Empty where the ledger does not state its parameters, and
        where steps or noise adapted: then no fixed tree describes what was composed.
    """
    if not source.private or not source.claim or mapping(source.header.get("adaptation")):
        return []
    found = _of_clients(source, internal) if source.protects_clients else _of_records(source)
    return [
        {"view": view, "root": root}
        for view, root in found
        if root is not None and (internal or view != "server")
    ]


def _node(event: str, text: str, parameters: dict[str, float], of: list[Node]) -> Node:
    return {"event": event, "text": text, "parameters": parameters, "of": of}


def _gaussian(noise: float, detail: str = "") -> Node:
    text = f"Gaussian mechanism, noise over sensitivity {formatting.plain(noise)}{detail}"
    return _node("gaussian", text, {"noise_over_sensitivity": noise}, [])


def _times(count: int, inner: Node) -> Node:
    text = f"Composed {formatting.count(count)} times"
    return _node("self-composition", text, {"count": count}, [inner])


def _sampled(kind: str, rate: float, noise: float, detail: str = "") -> Node:
    inner = _gaussian(noise, detail)
    shown = {"rate": rate}
    if kind == "poisson" and rate < 1:
        text = f"Poisson sampling at rate {formatting.plain(rate, 6)}"
        return _node("poisson-sampling", text, shown, [inner])
    if kind == "fixed-size":
        text = f"Sampling without replacement, a share of {formatting.plain(rate, 6)}"
        return _node("sampling-without-replacement", text, shown, [inner])
    return inner


def _of_records(source: RunSource) -> list[tuple[str, Node | None]]:
    header = source.header
    kind = clean(header.get("sampling"), 60)
    rounds, steps = integer(header.get("rounds")), integer(header.get("local_steps"))
    noise, batch = (number(header.get(key)) for key in ("noise_multiplier", "expected_batch_size"))
    sizes = [size for size in source.records if size > 0]
    queries = max((integer(line.get("queries_per_step")) or 1 for line in source.spends), default=1)
    known = rounds and steps and noise and batch and sizes
    if not known or kind not in ("poisson", "fixed-size", "shuffled"):
        return []
    assert rounds and steps and noise and batch  # noqa: PT018 - narrowed for the type checker
    step = _step(kind, batch, min(sizes), noise, queries)
    each = _charged(kind, steps, min(sizes), batch)
    chance = number(mapping(source.claim.get("third_party")).get("participation"))
    third = None
    if chance is not None:
        shown = formatting.plain(chance)
        text = (
            f"Mixture over the rounds taken part in, Binomial({formatting.count(rounds)}, {shown})"
            if chance < 1
            else f"Taking part in all {formatting.count(rounds)} rounds"
        )
        parameters = {"rounds": rounds, "participation": chance}
        third = _node("mixture", text, parameters, [_times(each, step)])
    return [
        ("server", _headline(source)),
        ("server_worst_case", _times(rounds * each, step)),
        ("third_party", third),
    ]


def _step(kind: str, batch: float, records: float, noise: float, queries: int) -> Node:
    """One step's event for a client of that many records."""
    # Answers on one batch are one Gaussian, sampled once; a replaced record counts twice.
    over = noise / math.sqrt(queries) / (1.0 if kind == "poisson" else 2.0)
    notes = [f"{queries} answers on one batch"] if queries > 1 else []
    notes += ["sensitivity 2C"] if kind != "poisson" else []
    rate = min(1.0, batch / records)
    return _sampled(kind, rate, over, f" ({', '.join(notes)})" if notes else "")


def _charged(kind: str, steps: int, records: float, batch: float) -> int:
    """How many of a participation's steps one record can be in."""
    return -(-steps // math.ceil(records / batch)) if kind == "shuffled" else steps


def _headline(source: RunSource) -> Node | None:
    """The tree of the client with the largest loss, from what it was charged."""
    losses = _losses(source)
    if not losses:
        return None
    client = max(losses)[1]
    counted: Counter[tuple[str, float, float, float, int]] = Counter()
    for line in source.spends:
        values = [
            number(line.get(key)) for key in ("expected_batch_size", "records", "noise_multiplier")
        ]
        steps = integer(line.get("steps"))
        if line.get("client") != client or None in values or not all(values) or not steps:
            continue
        batch, records, noise = (value for value in values if value is not None)
        kind, queries = clean(line.get("sampling"), 60), integer(line.get("queries_per_step")) or 1
        counted[kind, batch, records, noise, queries] += _charged(kind, steps, records, batch)
    parts = [_times(count, _step(*key)) for key, count in sorted(counted.items())]
    return _composed(parts)


def _losses(source: RunSource) -> list[tuple[float, int]]:
    """Loss towards the server and number of each client that the claim names."""
    rows = sequence(mapping(source.claim.get("server")).get("clients"))
    pairs = (
        (epsilons(row).get(source.accountant), integer(mapping(row).get("client"))) for row in rows
    )
    return [(loss, client) for loss, client in pairs if loss is not None and client is not None]


def _composed(parts: list[Node]) -> Node | None:
    if not parts or len(parts) > _MOST_PARTS:
        return None
    return (
        parts[0]
        if len(parts) == 1
        else _node("composition", "Composed, one after the other", {}, parts)
    )


def _of_clients(source: RunSource, internal: bool) -> list[tuple[str, Node | None]]:
    third: Counter[tuple[float, float]] = Counter()
    own: dict[int, Counter[float]] = {}
    for line in source.spends:
        noise, rate = number(line.get("noise_multiplier")), number(line.get("sampling_rate"))
        if noise and rate:
            third[noise, rate] += 1
        upload, present = number(line.get("upload_noise_multiplier")), line.get("clients")
        if internal and upload and isinstance(present, list):
            for client in present:
                own.setdefault(integer(client) or 0, Counter())[upload] += 1
    parts = [
        _times(count, _sampled("poisson", rate, noise))
        for (noise, rate), count in sorted(third.items())
    ]
    losses = _losses(source)
    server = None
    if losses:
        mine = own.get(max(losses)[1], Counter())
        server = _composed(
            [_times(count, _gaussian(noise)) for noise, count in sorted(mine.items())]
        )
    return [("third_party", _composed(parts)), ("server", server)]
