"""Training loops that are not the engine's, recorded step by step, and rounds of others' servers.

In a loop there is no server and no client. Anyone who sees a model of it sees what its steps
released, so one number holds against all of them. In recorded rounds, whole clients are protected
by the program that clips and noises their updates. The two differ only in words: a loop has steps
and records, rounds have rounds and clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reports import formatting
from reports.content import units, wording
from reports.content.parts import ViewKey
from reports.content.units import (
    ClientLoss,
    Draws,
    Event,
    Reader,
    Unit,
    View,
    bounds,
    holders,
    method_of,
)
from reports.content.units.client import CLIENT
from reports.content.units.record import RECORD, RecordLevel
from reports.files import clean, integer, mapping, number
from reports.source import RunSource, epsilons, headline

_TOWARDS = "anyone who sees the model, or all models on the way to it"


@dataclass(frozen=True, kw_only=True)
class RecordedWords:
    """How a recording is told. Names in braces are filled in from its ledger.

    Attributes:
        promise: The promise of the one view, with {limit} in it.
        onlooker: The reader whom the limit holds against.
        why: What that rests on.
        evidence: What evidence/ tells of.
        unprotected: Another reader against whom nothing protects, where there is one.
        mechanism: The mechanism: {who}, {clip}, {added}, {divisor}, {mode}, {optimizer} and
            {generator}.
        draws: How records or clients are drawn, by the kind of sampling: {rate}.
        everybody: The same where the rate of a fixed-size draw is 1.
        undrawn: The same where the kind is not stated.
    """

    promise: str
    onlooker: str
    why: str
    evidence: str
    unprotected: Reader | None = None
    mechanism: str
    draws: Mapping[str, str]
    everybody: str | None = None
    undrawn: str


_OF_A_LOOP = RecordedWords(
    promise="nobody who sees the model, or all models on the way to it, can {limit} Nothing is "
    "promised against anyone who holds the run’s directory or the machine that trained.",
    onlooker="Anyone who gets or queries the model, or any model on the way to it",
    why="Each step's gradients are clipped and noised before they move the model.",
    evidence="single records",
    mechanism="A training loop of {who}, recorded while it ran. In each step every record's "
    "gradient, over all trained parameters as one vector, is clipped to norm C = {clip}. {added} "
    "(of the first step) is added to the sum. The noisy sum is divided by B = {divisor}. "
    "Gradients: {mode}; update: {optimizer}; noise from {generator}.",
    draws={
        "poisson": "In each step every record is in the batch independently, at rate {rate}.",
        "fixed-size": "Each step draws a share of {rate} of the records.",
        "shuffled": "Records are shuffled and taken batch by batch; no amplification is claimed.",
    },
    undrawn="How batches are drawn is not stated.",
)
_OF_ROUNDS = RecordedWords(
    promise="nobody who sees what was released, the model of each round included, can {limit} "
    "Nothing is promised against anyone who holds the run’s directory, or sees updates without "
    "noise.",
    onlooker="Anyone who sees what the rounds release",
    why="Each round's mean of clipped updates is noised before it is released.",
    evidence="single clients",
    unprotected=Reader(
        who="Anyone who sees updates before they are noised: the server, where it adds the noise",
        protected=False,
        epsilon=None,
        why="Nothing hides an update before noise is added to it or to the mean.",
        unless="",
    ),
    mechanism="Rounds of {who}, recorded while they ran. Each client's whole update is clipped to "
    "norm C = {clip}. {added} (of the first round) is added to the sum. The noisy sum is divided "
    "by {divisor}, the public number of clients in a round. Noise is added by: {mode}; it comes "
    "from {generator}.",
    draws={
        "poisson": "In each round every client is drawn independently, at rate {rate}.",
        "fixed-size": "Each round draws a share of {rate} of the clients.",
    },
    everybody="Every client is in every round.",
    undrawn="How clients are drawn is not stated.",
)


def _added(mechanism: str, noise: str) -> str:
    """Return what noise the loop states; recordings of Gaussian noise name no mechanism."""
    if mechanism == "laplace":
        return f"Laplace noise of scale bC with b = {noise}, and C of the ℓ1 norm"
    if mechanism not in ("", "gaussian"):
        return f"Noise by a mechanism that the audit cannot account for, {mechanism},"
    return f"Gaussian noise of standard deviation σC with σ = {noise}"


@dataclass(frozen=True)
class Recorded(RecordLevel):
    """Training by another program, with one view: anyone who sees its models.

    Attributes:
        told: How it is told.
    """

    told: RecordedWords

    def headline(self, _internal: bool) -> ViewKey:
        """Return the one view that there is."""
        return "third_party"

    def views(self, source: RunSource, _internal: bool) -> list[View]:
        """Return what the recording states of itself."""
        claimed = source.claim.get("server")
        return [
            View(
                key="third_party",
                label="Anyone who sees its models",
                towards=_TOWARDS,
                epsilon=headline(claimed) if mapping(claimed) else None,
                delta=source.delta,
                method=f"{method_of(claimed)}, as the loop states it",
            )
        ]

    def promise(self, _source: RunSource, _view: View) -> str:
        """Return whom the view covers, and whom it does not."""
        return self.told.promise

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return those who see what was released, and those who see what was not."""
        epsilon = bounds(self.views(source, internal)).get("third_party")
        held = epsilon is not None
        found = [
            Reader(
                who=self.told.onlooker,
                protected=held,
                epsilon=epsilon,
                why=self.told.why if held else "No finite ε is stated.",
                unless="they can draw the noise again, or have access to the machine that trained"
                if held
                else "",
            ),
            self.told.unprotected,
            holders(source, self.told.evidence)[0],
            Reader(
                who="Anyone who learns the state of the generator that drew noise and batches",
                protected=False,
                epsilon=None,
                why="They can draw all noise again and subtract it.",
                unless="",
            ),
        ]
        return [reader for reader in found if reader is not None]

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        header, producer = source.header, mapping(source.header.get("producer"))
        clip, noise, divisor = (
            formatting.plain(number(header.get(key)))
            for key in ("clipping_norm", "noise_multiplier", "expected_batch_size")
        )
        name, version, mode, optimizer = (
            clean(producer.get(key), 60) for key in ("name", "version", "mode", "optimizer")
        )
        return self.told.mechanism.format(
            who=f"{name} {version}".strip(),
            clip=clip,
            added=_added(clean(producer.get("mechanism"), 60), noise),
            divisor=divisor,
            mode=mode,
            optimizer=optimizer,
            generator=clean(producer.get("generator"), 120),
        )

    def draws(self, source: RunSource) -> Draws:
        """Return how records or clients are drawn."""
        kind = clean(source.header.get("sampling"), 60)
        rate = number(source.header.get("sampling_rate"))
        text = self.told.draws.get(kind, self.told.undrawn)
        if kind == "fixed-size" and rate == 1.0:
            text = self.told.everybody or text
        shown = formatting.plain(rate) if rate is not None else "q"
        return Draws(text.format(rate=shown), None, (rate,) if rate is not None else ())

    def client_losses(self, _source: RunSource) -> list[ClientLoss]:
        """Return none: no client has a loss of its own."""
        return []

    def profile_is_public(self) -> bool:
        """Return True: who takes part is no secret that it could tell."""
        return True

    def by_accountant(self, source: RunSource, _internal: bool) -> dict[str, float | None]:
        """Return the loss by the recording's own accountant."""
        claimed = source.claim.get("server")
        return epsilons(claimed) if mapping(claimed) else {}

    def trees(self, source: RunSource) -> list[tuple[ViewKey, Event | None]]:
        """Return the tree of all steps that were charged."""
        counted: Counter[tuple[str, float, float]] = Counter()
        for line in source.spends:
            rate, noise = number(line.get("sampling_rate")), number(line.get("noise_multiplier"))
            steps = integer(line.get("steps"))
            if rate and noise and steps:
                counted[clean(line.get("sampling"), 60), rate, noise] += steps
        # Where a record or a client is replaced, the sum moves by twice the clipping norm.
        found = [
            units.times(steps, units.sampled(kind, rate, noise if kind == "poisson" else noise / 2))
            for (kind, rate, noise), steps in sorted(counted.items())
        ]
        return [("third_party", units.composed(found))]

    def expected_gradients(self, _source: RunSource) -> float | None:
        """Return None: how long a recording will be is not known beforehand."""
        return None


LOOP = Recorded(
    replace(
        RECORD.words,
        queries="every noised step in the ledger",
        public="the number of records is public",
        explanation=(
            "One number holds against anyone who sees a model of the loop, on the way or at its "
            "end. The loop states it; the audit composes the steps again and says whether it "
            "covers them."
        ),
        meanings=wording.check_meanings("loop"),
        outside_budget=tuple(
            (title, text) for title, text in wording.OUTSIDE_BUDGET if title != "Client sizes"
        ),
    ),
    _OF_A_LOOP,
)
ROUNDS = Recorded(
    replace(
        CLIENT.words,
        queries="every noised round in the ledger",
        public="the number of clients is public",
        explanation=(
            "A client counts with all its data. One number holds against anyone who sees what the "
            "rounds released. The trainer states it; the audit composes the rounds again and says "
            "whether it covers them."
        ),
    ),
    _OF_ROUNDS,
)
EXCHANGED_ROUNDS = Recorded(
    replace(
        ROUNDS.words,
        protected="the content of one client",
        guess="that a given client sent one update and not another",
        hazards=(wording.PRESENCE_NOT_HIDDEN, *ROUNDS.words.hazards),
    ),
    _OF_ROUNDS,
)


def unit(source: RunSource) -> Unit:
    """Return the unit by what was recorded, and by what neighbours differ in."""
    if not source.protects_clients:
        return LOOP
    return EXCHANGED_ROUNDS if source.header.get("adjacency") == "replace-one" else ROUNDS
