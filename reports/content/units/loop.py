"""Training loops that are not the engine's, recorded step by step, and rounds of others' servers.

In a loop there is no server and no client. Whoever sees any model of it sees what its steps
released, so that one number holds against everybody. In recorded rounds whole clients are
protected, by whoever clips and noises their updates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from reports import formatting
from reports.content import check_meanings, events, wording
from reports.content.events import Event
from reports.content.parts import ViewKey
from reports.content.units.base import ClientLoss, Draws, Reader, View, bounds, holders, method_of
from reports.content.units.client import CLIENT
from reports.content.units.record import RECORD, RecordLevel
from reports.files import clean, integer, mapping, number
from reports.source import RunSource, epsilons, headline

_TOWARDS = "whoever sees the model, or all models on the way to it"


@dataclass(frozen=True)
class RecordedLoop(RecordLevel):
    """Single records are protected, in somebody else's training loop."""

    def headline(self, _internal: bool) -> ViewKey:
        """Return the one view that there is."""
        return "third_party"

    def views(self, source: RunSource, _internal: bool) -> list[View]:
        """Return what the loop states of itself."""
        claimed = source.claim.get("server")
        return [
            View(
                key="third_party",
                label="Whoever sees its models",
                towards=_TOWARDS,
                epsilon=headline(claimed) if mapping(claimed) else None,
                delta=source.delta,
                method=f"{method_of(claimed)}, as the loop states it",
            )
        ]

    def promise(self, _source: RunSource, _view: View) -> str:
        """Return whom the view covers, and whom it does not."""
        return (
            "for each single record, nobody who sees the model, or all models on the way to it, "
            f"can shift the odds {self.words.guess} {{limit}}; nothing is promised against those "
            "who hold the run’s directory or the machine that trained."
        )

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return those who see models, and those who hold the files."""
        epsilon = bounds(self.views(source, internal)).get("third_party")
        return [
            Reader(
                who="Whoever gets or queries the model, or any model on the way to it",
                protected=epsilon is not None,
                epsilon=epsilon,
                why="Each step's gradients are clipped and noised before they move the model."
                if epsilon is not None
                else "No finite ε is stated.",
                unless="they can draw the noise again, or see the machine that trained"
                if epsilon is not None
                else "",
            ),
            holders(source, "single records")[0],
            Reader(
                who="Whoever learns the state of the generator that drew noise and batches",
                protected=False,
                epsilon=None,
                why="All noise can be drawn again and subtracted.",
                unless="",
            ),
        ]

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        header, producer = source.header, mapping(source.header.get("producer"))
        clip, noise, batch = (
            formatting.plain(number(header.get(key)))
            for key in ("clipping_norm", "noise_multiplier", "expected_batch_size")
        )
        who = f"{clean(producer.get('name'), 60)} {clean(producer.get('version'), 60)}".strip()
        return (
            f"A training loop of {who}, recorded while it ran. In each step every record's "
            "gradient, over all trained parameters as one vector, is clipped to norm C = "
            f"{clip}; Gaussian noise of standard deviation σC with σ = {noise} (of the first "
            f"step) is added to the sum; the noisy sum is divided by B = {batch}. Gradients: "
            f"{clean(producer.get('mode'), 60)}; update: {clean(producer.get('optimizer'), 60)}; "
            f"noise from {clean(producer.get('generator'), 120)}."
        )

    def draws(self, source: RunSource) -> Draws:
        """Return how batches are drawn."""
        kind = clean(source.header.get("sampling"), 60)
        rate = number(source.header.get("sampling_rate"))
        shown = formatting.plain(rate) if rate is not None else "q"
        how = {
            "poisson": f"In each step every record is in the batch independently, at rate {shown}.",
            "fixed-size": f"Each step draws a share of {shown} of the records, anew.",
            "shuffled": "Records are shuffled and taken batch by batch; no amplification is "
            "claimed.",
        }
        text = how.get(kind, "How batches are drawn is not stated.")
        return Draws(text, None, (rate,) if rate is not None else ())

    def client_losses(self, _source: RunSource) -> list[ClientLoss]:
        """Return none: there are no clients."""
        return []

    def profile_is_public(self) -> bool:
        """Return True: nobody takes part or not."""
        return True

    def by_accountant(self, source: RunSource, _internal: bool) -> dict[str, float | None]:
        """Return the loss by the loop's own accountant."""
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
        found = [
            events.times(
                steps, events.sampled(kind, rate, noise if kind == "poisson" else noise / 2)
            )
            for (kind, rate, noise), steps in sorted(counted.items())
        ]
        return [("third_party", events.composed(found))]

    def expected_gradients(self, _source: RunSource) -> float | None:
        """Return None: how long a loop will be is not known beforehand."""
        return None


@dataclass(frozen=True)
class RecordedRounds(RecordedLoop):
    """Whole clients are protected, by somebody else's server or by the clients' own filters."""

    def promise(self, _source: RunSource, _view: View) -> str:
        """Return whom the view covers, and whom it does not."""
        return (
            "for each client, nobody who sees what was released, the model of each round included, "
            f"can shift the odds {self.words.guess} {{limit}}; nothing is promised against those "
            "who hold the run’s directory, or see updates before they are noised."
        )

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return those who see what was released, and those who see updates or the files."""
        released, _, generator = super().readers(source, internal)
        unnoised = Reader(
            who="Whoever sees updates before their noise: the server, where it adds the noise",
            protected=False,
            epsilon=None,
            why="Noise is added to the updates, or to their mean, and hides nothing before it is.",
            unless="",
        )
        return [
            Reader(
                who="Whoever sees what rounds release",
                protected=released.protected,
                epsilon=released.epsilon,
                why="Each round's mean of clipped updates is noised before it is released."
                if released.protected
                else released.why,
                unless=released.unless,
            ),
            unnoised,
            holders(source, "single clients")[0],
            generator,
        ]

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        header, producer = source.header, mapping(source.header.get("producer"))
        clip, noise, cohort = (
            formatting.plain(number(header.get(key)))
            for key in ("clipping_norm", "noise_multiplier", "expected_batch_size")
        )
        who = f"{clean(producer.get('name'), 60)} {clean(producer.get('version'), 60)}".strip()
        return (
            f"Rounds of {who}, recorded while they ran. Each client's whole update is clipped to "
            f"norm C = {clip}; Gaussian noise of standard deviation σC with σ = {noise} (of the "
            f"first round) is added to the sum; the noisy sum is divided by {cohort}, the public "
            f"number of clients in a round. Noise is added by: {clean(producer.get('mode'), 60)}; "
            f"it comes from {clean(producer.get('generator'), 120)}."
        )

    def draws(self, source: RunSource) -> Draws:
        """Return how clients are drawn."""
        kind = clean(source.header.get("sampling"), 60)
        rate = number(source.header.get("sampling_rate"))
        shown = formatting.plain(rate) if rate is not None else "q"
        how = {
            "poisson": f"In each round every client is drawn independently, at rate {shown}.",
            "fixed-size": "Every client is in every round."
            if rate == 1.0
            else f"Each round draws a share of {shown} of the clients, anew.",
        }
        text = how.get(kind, "How clients are drawn is not stated.")
        return Draws(text, None, (rate,) if rate is not None else ())


LOOP = RecordedLoop(
    replace(
        RECORD.words,
        queries="every noised step in the ledger",
        public="the number of records is public",
        explanation=(
            "One number holds against everybody who sees a model of the loop, on the way or at "
            "its end. It is the loop's own; the audit composes the steps again and says whether it "
            "covers them."
        ),
        meanings=check_meanings.of_unit("loop"),
        outside_budget=tuple(
            (title, text) for title, text in wording.OUTSIDE_BUDGET if title != "Client sizes"
        ),
    )
)
ROUNDS = RecordedRounds(
    replace(
        CLIENT.words,
        queries="every noised round in the ledger",
        public="the number of clients is public",
        explanation=(
            "A client counts with all its data. One number holds against everybody who sees what "
            "the rounds released. It is stated by whoever trained; the audit composes the rounds "
            "again and says whether it covers them."
        ),
    )
)
EXCHANGED_ROUNDS = RecordedRounds(
    replace(
        ROUNDS.words,
        protected="the content of one client",
        guess="that it sent one update and not another",
        hazards=(wording.PRESENCE_NOT_HIDDEN, *ROUNDS.words.hazards),
    )
)
