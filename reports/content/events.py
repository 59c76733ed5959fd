"""Event trees: which mechanisms were composed for a view, as the accountant takes them.

A tree is made of the ledger's header and charges alone, so that a reader can feed it to an
accountant of their own. Here are the nodes that trees are made of; each unit of protection makes
its own trees of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from reports import formatting
from reports.content.parts import Number, Part
from reports.files import integer, mapping, number, sequence
from reports.source import RunSource, epsilons

EventKind = Literal[
    "composition",
    "self-composition",
    "poisson-sampling",
    "sampling-without-replacement",
    "gaussian",
    "mixture",
    "repeat-and-select",
]
_MOST_PARTS = 50


class Event(Part):
    """A mechanism and those that it is made of, after the events of dp-accounting.

    Attributes:
        event: Its kind.
        text: The event in words.
        parameters: count of a self-composition; rate of a sampling; noise_over_sensitivity of a
            Gaussian; rounds and participation of a mixture; mean and shape of a selection.
        of: What it is made of.
    """

    event: EventKind
    text: str
    parameters: dict[str, Number]
    of: tuple[Event, ...]


def gaussian(noise: float, detail: str = "") -> Event:
    """Return a Gaussian mechanism of that noise over sensitivity."""
    text = f"Gaussian mechanism, noise over sensitivity {formatting.plain(noise)}{detail}"
    return Event(event="gaussian", text=text, parameters={"noise_over_sensitivity": noise}, of=())


def times(count: int, inner: Event) -> Event:
    """Return an event composed with itself."""
    text = f"Composed {formatting.count(count)} times"
    return Event(event="self-composition", text=text, parameters={"count": count}, of=(inner,))


def sampled(kind: str, rate: float, noise: float, detail: str = "") -> Event:
    """Return a Gaussian mechanism on a sample; on everything where the kind amplifies nothing."""
    inner = gaussian(noise, detail)
    event: EventKind
    if kind == "poisson" and rate < 1:
        event, text = "poisson-sampling", "Poisson sampling at rate"
    elif kind == "fixed-size":
        event, text = "sampling-without-replacement", "Sampling without replacement, a share of"
    else:
        return inner
    shown = f"{text} {formatting.plain(rate, 6)}"
    return Event(event=event, text=shown, parameters={"rate": rate}, of=(inner,))


def composed(parts: Sequence[Event]) -> Event | None:
    """Return events one after the other; None where there are none, or too many to be read."""
    if not parts or len(parts) > _MOST_PARTS:
        return None
    if len(parts) == 1:
        return parts[0]
    text = "Composed, one after the other"
    return Event(event="composition", text=text, parameters={}, of=tuple(parts))


def selected(source: RunSource, trial: Event | None) -> Event | None:
    """Return the best of a random number of trials, by the law that the spec states."""
    tune = mapping(source.spec.get("tune"))
    mean, shape = number(tune.get("mean_trials")), number(tune.get("shape"))
    if trial is None or mean is None or shape is None:
        return None
    text = (
        f"The best of a random number of trials: truncated negative binomial, mean "
        f"{formatting.plain(mean)}, shape {formatting.plain(shape)}"
    )
    parameters = {"mean": mean, "shape": shape}
    return Event(event="repeat-and-select", text=text, parameters=parameters, of=(trial,))


def record_step(
    kind: str,
    batch: float,
    records: float,
    noise: float,
    queries: int,
    stated: float | None = None,
) -> Event:
    """Return one local step for a client of that many records, or at a stated sampling rate."""
    # Answers on one batch are one Gaussian, sampled once; a replaced record counts twice.
    over = noise / math.sqrt(queries) / (1.0 if kind == "poisson" else 2.0)
    notes = [f"{queries} answers on one batch"] if queries > 1 else []
    notes += ["sensitivity 2C"] if kind != "poisson" else []
    rate = stated if stated is not None else min(1.0, batch / records)
    return sampled(kind, rate, over, f" ({', '.join(notes)})" if notes else "")


def charged_steps(kind: str, steps: int, records: float, batch: float) -> int:
    """Return how many of a participation's steps one record can be in."""
    return -(-steps // math.ceil(records / batch)) if kind == "shuffled" else steps


def largest_loss(source: RunSource) -> int | None:
    """Return the client with the largest loss towards the server, by the claim."""
    rows = sequence(mapping(source.claim.get("server")).get("clients"))
    pairs = (
        (epsilons(row).get(source.accountant), integer(mapping(row).get("client"))) for row in rows
    )
    known = [(loss, client) for loss, client in pairs if loss is not None and client is not None]
    return max(known)[1] if known else None
