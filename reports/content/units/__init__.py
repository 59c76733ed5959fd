"""What a unit of protection answers: its words, its views, its mechanism, its clients, its events.

Records, people and clients are one object each, which say the same things of a run in their own
way. A reader of a run asks `unit_of` once and needs no case for either.

Event trees say which mechanisms were composed for a view, as the accountant takes them. They are
made of the ledger's header and charges alone, so that readers can feed them to an accountant of
their own. The nodes that trees are made of stand here; each unit makes its own trees of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from reports import formatting
from reports.content.parts import Loss, Number, Part, Share, ViewKey
from reports.content.wording import accountant_named
from reports.files import integer, mapping, number, sequence
from reports.source import RunSource, accountant, epsilons

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


def answers(stated: object) -> int:
    """Return how many answers on one batch a charge states; one where it states no such number."""
    return max(1, integer(stated) or 1)


def charged_steps(kind: str, steps: int, records: float, batch: float) -> int:
    """Return how many of a participation's steps one record can be in."""
    if kind != "shuffled":
        return steps
    # The quotient of two hostile numbers may be none that a float holds.
    batches = max(1, math.ceil(min(records / batch, 2.0**63)))
    return -(-steps // batches)


def largest_loss(source: RunSource) -> int | None:
    """Return the client with the largest loss against the server, by the claim."""
    rows = sequence(mapping(source.claim.get("server")).get("clients"))
    pairs = (
        (epsilons(row).get(source.accountant), integer(mapping(row).get("client"))) for row in rows
    )
    known = [(loss, client) for loss, client in pairs if loss is not None and client is not None]
    return max(known)[1] if known else None


THIRD_PARTY = (
    "a third party who sees only broadcast or final models and does not learn who took part"
)
THIRD_PARTY_OF_TRIALS = (
    "a third party who sees only models of the published trial, nothing of the others, and does "
    "not learn who took part"
)
# What every promise of a federation leaves out.
NOTHING = "Nothing is promised against anyone who holds the run’s directory or a client’s machine."
OF_A_SELECTION = ", best of a random number of trials (Papernot & Steinke 2022)"
OF_ALL_TRIALS = (
    ", a client in every round of each; rounds that other trials repeated after a crash not counted"
)
TitledTexts = tuple[tuple[str, str], ...]


def method_of(view: object) -> str:
    """Return how the accountant of a claimed view is called."""
    return accountant_named(accountant(view) or "unstated").label


class View(Part):
    """One view.

    Attributes:
        key: The view. trusted_server: the server adds the noise itself and has no bound.
        label: Its name.
        towards: Against whom it holds.
        epsilon: Privacy loss ε.
        delta: δ.
        method: How it was composed.
    """

    key: ViewKey
    label: str
    towards: str
    epsilon: Loss | None
    delta: Share | None
    method: str


class Reader(Part):
    """Someone who sees something of the run.

    Attributes:
        who: Who.
        protected: Whether a limit holds against them.
        epsilon: The limit ε; null where there is none, or where it is not told this audience.
        why: What the protection rests on, or why there is none.
        unless: What ends it; empty without protection.
    """

    who: str
    protected: bool
    epsilon: Loss | None
    why: str
    unless: str


class ClientLoss(Part):
    """One client.

    Attributes:
        client: Index.
        records: Training records.
        participations: Rounds it took part in.
        steps: Local steps it made in all.
        sampling_rate: Poisson rate q.
        epsilon: Loss by each accountant, keyed by its name, such as pld, rdp or rdp-classic.
        delta_records: δ times its records.
    """

    client: int
    records: int | None
    participations: int | None
    steps: int | None
    sampling_rate: Loss | None
    epsilon: dict[str, Loss | None]
    delta_records: Loss | None


def bounds(views: Sequence[View]) -> dict[str, float | None]:
    """Return the ε of each view; a view that an audience is not told is absent."""
    return {view.key: view.epsilon for view in views}


def least(*epsilons: float | None) -> float | None:
    """Return the smallest known ε: who sees less is held to every limit of who sees more."""
    return min((value for value in epsilons if value is not None), default=None)


def holders(source: RunSource, unit: str) -> list[Reader]:
    """Return those against whom nothing protects, whatever the unit of protection.

    Args:
        source: The run.
        unit: What evidence tells of, such as "single records".
    """
    seed = source.header.get("randomness") == "reproducible"
    return [
        Reader(
            who="Anyone who holds the run’s directory, a backup of it, or a client’s machine",
            protected=False,
            epsilon=None,
            why=f"evidence/ holds exact values of {unit}, and clients hold the records. After "
            "dpfedadamw erase, the directory reveals no more than the server learns.",
            unless="",
        ),
        Reader(
            who="Anyone who has the seed" if seed else "Anyone who has the key of the noise",
            protected=False,
            epsilon=None,
            why="They can draw all noise again and subtract it. The seed is in spec.yaml."
            if seed
            else "They can draw all noise again and subtract it. The key is kept only if someone "
            "asked for that (--escrow).",
            unless="",
        ),
    ]


@dataclass(frozen=True)
class Draws:
    """How clients and records are drawn.

    Attributes:
        statement: In words.
        participation: Chance of each client to take part in a round, where it has one.
        rates: Sampling rate of each client that has one.
    """

    statement: str
    participation: float | None
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnitWords:
    """The words of one unit of protection.

    Attributes:
        protected: What one neighbour more has, in the guarantee's sentence.
        guess: What an attacker may become surer of.
        counted: What δ is multiplied by, in the plural.
        symbol: The symbol of that count.
        adjacencies: Neighbouring relations in words, by their name in the ledger.
        queries: What is composed.
        public: What the sentence assumes to be public.
        explanation: How to read the views.
        meanings: What each check's failure would mean.
        outside_budget: What no number covers.
        hazards: What the guarantee does not mean.
    """

    protected: str
    guess: str
    counted: str
    symbol: str
    adjacencies: Mapping[str, str]
    queries: str
    public: str
    explanation: str
    meanings: Mapping[str, str]
    outside_budget: TitledTexts
    hazards: TitledTexts


@dataclass(frozen=True)
class Unit(ABC):
    """What a report asks of the unit that a run protects.

    Attributes:
        words: Its words.
    """

    words: UnitWords

    @abstractmethod
    def headline(self, internal: bool) -> ViewKey:
        """Return the view that leads."""

    @abstractmethod
    def views(self, source: RunSource, internal: bool) -> list[View]:
        """Return the claimed losses; `internal` readers may learn how often clients took part."""

    @abstractmethod
    def promise(self, source: RunSource, view: View) -> str:
        """Return the promise of the leading view in words, with the sentence {limit} in it."""

    @abstractmethod
    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return who sees something of the run, and what limit holds against them."""

    @abstractmethod
    def protected_in_sentence(self, source: RunSource) -> str:
        """Return what the guarantee's sentence says is protected."""

    @abstractmethod
    def after_sentence(self, source: RunSource) -> str:
        """Return what follows the guarantee's sentence, with a space before it, or nothing."""

    @abstractmethod
    def protected_count(self, source: RunSource) -> float | None:
        """Return how many there are of what is protected."""

    def counted(self, source: RunSource) -> str:  # noqa: ARG002
        """Return what is counted there, in the plural, and how where that is not obvious."""
        return self.words.counted

    @abstractmethod
    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""

    @abstractmethod
    def batch(self, source: RunSource) -> float | None:
        """Return the public divisor of a step, where steps are noised."""

    @abstractmethod
    def noise_added_by(self, source: RunSource) -> str | None:
        """Return "server", "clients" or "unstated"; None where nobody else could add it."""

    @abstractmethod
    def draws(self, source: RunSource) -> Draws:
        """Return how clients and records are drawn."""

    @abstractmethod
    def client_losses(self, source: RunSource) -> list[ClientLoss]:
        """Return each client's loss against the server, where it has one."""

    @abstractmethod
    def profile_is_public(self) -> bool:
        """Whether no participation enters the privacy profile."""

    @abstractmethod
    def by_accountant(self, source: RunSource, internal: bool) -> dict[str, float | None]:
        """Return the leading view's loss by each accountant that the claim names."""

    @abstractmethod
    def trees(self, source: RunSource) -> list[tuple[ViewKey, Event | None]]:
        """Return the event tree of each view, None where there is none."""

    @abstractmethod
    def expected_gradients(self, source: RunSource) -> float | None:
        """Return how many gradients of single records the spec lets one expect over the run."""


def unit_of(source: RunSource) -> Unit:
    """Return the unit that a run protects, and how its records are drawn.

    A run has one unit, so its file alone is read.
    """
    if source.recorded:
        name = "loop"
    elif source.protects_clients:
        name = "client"
    else:
        name = "person" if source.header.get("unit") == "person" else "record"
    found: Unit = import_module(f"reports.content.units.{name}").unit(source)
    return found
