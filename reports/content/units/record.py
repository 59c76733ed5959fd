"""Runs that protect single records: per-record gradients are clipped and noised at every step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from reports import formatting
from reports.content import tuning, units, wording
from reports.content.parts import ViewKey
from reports.content.units import (
    NOTHING,
    OF_A_SELECTION,
    OF_ALL_TRIALS,
    THIRD_PARTY,
    THIRD_PARTY_OF_TRIALS,
    ClientLoss,
    Draws,
    Event,
    Reader,
    Unit,
    UnitWords,
    View,
    bounds,
    holders,
    least,
    method_of,
)
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource, epsilons, headline

_SERVER = "the server, and anyone who sees every upload and knows who took part"


@dataclass(frozen=True)
class RecordLevel(Unit):
    """Single records are protected."""

    def headline(self, internal: bool) -> ViewKey:
        """Return the server's view, which for the public would tell who took part."""
        return "server" if internal else "third_party"

    def views(self, source: RunSource, internal: bool) -> list[View]:
        """Return the losses against the server, as it happened and at worst, and a third party.

        The realised one is internal: it tells how often the most frequent client took part.
        """
        claim = source.claim
        participation = number(mapping(claim.get("third_party")).get("participation"))
        shown = formatting.plain(participation) if participation is not None else "participation"
        mixture = f", mixed over Binomial(rounds, {shown})"
        realised = "Server, as it happened"
        if tuning.follows_releases(source.header):
            realised = "Server, most in the rounds taken part in"
        if tuning.is_selected(source):
            return self._selected(source, internal)
        entries: tuple[tuple[ViewKey, str, str, str], ...] = (
            ("server", realised, _SERVER, ""),
            ("server_worst_case", "Server, worst case (in every round)", _SERVER, ""),
            ("third_party", "Third party", THIRD_PARTY, mixture),
        )
        return [
            View(
                key=key,
                label=label,
                towards=towards,
                epsilon=headline(claim.get(key)),
                delta=source.delta,
                method=f"{method_of(claim.get(key))}{how}"
                f"{tuning.held(source.header, headline(claim.get(key)))}",
            )
            for key, label, towards, how in entries
            if internal or key != "server"
        ]

    def _selected(self, source: RunSource, internal: bool) -> list[View]:
        """Return the losses of a private selection.

        Those against the server tell how many trials there were, which is for nobody else.
        """
        claim = source.claim
        every = mapping(claim.get("tuning")).get("server_all_trials")
        entries: tuple[tuple[ViewKey, str, str, Any, str], ...] = (
            ("server", "Server, this trial alone", _SERVER, claim.get("server"), ""),
            ("server_worst_case", "Server, all trials", _SERVER, every, OF_ALL_TRIALS),
            (
                "third_party",
                "Third party, of the selection",
                THIRD_PARTY_OF_TRIALS,
                claim.get("third_party"),
                OF_A_SELECTION,
            ),
        )
        return [
            View(
                key=key,
                label=label,
                towards=towards,
                epsilon=headline(view),
                delta=source.delta,
                method=f"{method_of(view)}{how}",
            )
            for key, label, towards, view, how in entries
            if internal or key == "third_party"
        ]

    def promise(self, source: RunSource, view: View) -> str:
        """Return whom the leading view covers, and whom it does not."""
        # In public the server's limit is that of its worst case, which may be no weaker.
        worst = bounds(self.views(source, internal=False)).get("server_worst_case")
        if view.key == "server" or (worst is not None and worst <= (view.epsilon or 0.0)):
            return (
                "whatever they see, neither the server, which sees every upload, nor anyone who "
                f"sees less can {{limit}} {NOTHING}"
            )
        seen = "the published model" if tuning.is_selected(source) else "models"
        return (
            f"nobody who sees only {seen} and does not learn who took part can {{limit}} Against "
            f"the server, only the limit under “Protected from whom” holds. {NOTHING}"
        )

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return the server, other participants, third parties, and those who hold the files.

        Every client noises its own steps, and other participants see less than the server does, so
        its limit holds against them too; that they do not work with it is among the assumptions.
        """
        known = bounds(self.views(source, internal))
        # Of a selection the server saw every trial; how many there were is not for the public.
        told = "server" if internal and not tuning.is_selected(source) else "server_worst_case"
        server = known.get(told)
        # A view that is there without a finite ε protects from nothing.
        held = told not in known or server is not None
        third = held or known.get("third_party") is not None
        return [
            Reader(
                who="The server, and anyone who breaks into it or reads the uploads",
                protected=held,
                epsilon=server,
                why="Each client clips and adds noise before anything leaves it."
                if held
                else "No finite ε holds.",
                unless="a client’s own machine or code is under their control" if held else "",
            ),
            Reader(
                who="The other participants",
                protected=held,
                epsilon=server,
                why="They see no more than the server." if held else "No finite ε holds.",
                unless="they collude with the server, or hold records of the same person"
                if held
                else "",
            ),
            Reader(
                who="Third parties: anyone who gets or queries the published model",
                protected=third,
                epsilon=least(known.get("third_party"), server),
                why="They see no more than models, metrics and public files."
                if third
                else "No finite ε holds.",
                unless="they learn who took part when, or see uploads, the ledger or the internal "
                "report. Then the server’s limit holds"
                if third
                else "",
            ),
            *holders(source, "single records"),
        ]

    def protected_in_sentence(self, source: RunSource) -> str:
        """Return the unit as the ledger names it."""
        return f"one {clean(source.header.get('unit'), 40) or 'unstated'}"

    def after_sentence(self, _source: RunSource) -> str:
        """Return nothing: the views say the rest."""
        return ""

    def protected_count(self, source: RunSource) -> float | None:
        """Return the number of training records."""
        return sum(source.records) if source.records else None

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        header = source.header
        clip, noise, batch = (
            number(header.get(key))
            for key in ("clipping_norm", "noise_multiplier", "expected_batch_size")
        )
        statement = (
            "Per local step: each sampled record's gradient, over all trainable parameters as "
            f"one vector, is clipped to norm C = {formatting.plain(clip)}. Gaussian noise of "
            f"standard deviation σC with σ = {formatting.plain(noise)} is added to every "
            "coordinate of the sum. The noisy sum is divided by the public constant B = "
            f"{formatting.plain(batch)}. Everything that leaves a client is computed from these "
            f"noisy gradients alone.{tuning.adaptation_in_words(header)}"
            f"{tuning.early_end(source.claim, header)}"
        )
        if clean(header.get("precision"), 20) == "bfloat16":
            statement += (
                " Layers multiply in bfloat16; gradients are clipped, summed and noised in float32."
            )
        return statement

    def batch(self, source: RunSource) -> float | None:
        """Return the expected batch size."""
        return number(source.header.get("expected_batch_size"))

    def noise_added_by(self, _source: RunSource) -> str | None:
        """Return None: each client noises its own steps."""
        return None

    def draws(self, source: RunSource) -> Draws:
        """Return how clients are drawn, and records within a client."""
        header = source.header
        clients, chosen = source.clients, source.clients_per_round
        by_chance = clean(header.get("client_sampling"), 60) == "poisson"
        if by_chance:
            who = (
                f"Each round, every one of {formatting.count(clients)} clients takes part "
                f"independently, {formatting.count(chosen)} on average; a round may have none and "
                "then changes nothing."
            )
        else:
            who = (
                f"Each round, {formatting.count(chosen)} of {formatting.count(clients)} clients "
                f"take part (client sampling: "
                f"{clean(header.get('client_sampling'), 60) or 'unstated'})."
            )
        how, rates = "Batches are drawn without any privacy claim.", []
        if source.private:
            sampling, batch = clean(header.get("sampling"), 60), self.batch(source)
            stated = number(header.get("sampling_rate")) if sampling == "poisson" else None
            if stated is not None:
                sampling, rates = "poisson at a stated rate", [stated]
            elif batch is not None and sampling != "shuffled":
                known = (number(batch / size) for size in source.records if size > 0)
                rates = [rate for rate in known if rate is not None]
            how = wording.SAMPLERS.get(sampling, wording.SAMPLERS["unstated"]).format(
                batch=formatting.plain(batch) if batch is not None else "B",
                rate=formatting.plain(stated),
            )
            if rates and stated is None:
                low, high = formatting.plain(min(rates)), formatting.plain(max(rates))
                how += f" Shares q run from {low} to {high}."
            how += (
                " Leaving a client out is not a neighbouring data set, so client sampling alone "
                "does not amplify privacy here."
            )
        chance = chosen / clients if by_chance and chosen and clients else None
        return Draws(f"{who} {how}", chance, tuple(rates))

    def client_losses(self, source: RunSource) -> list[ClientLoss]:
        """Return what the claim states of each client."""
        rows = []
        for raw in sequence(mapping(source.claim.get("server")).get("clients")):
            entry = mapping(raw)
            index = integer(entry.get("client"))
            if index is not None:
                rows.append(
                    ClientLoss(
                        client=index,
                        records=integer(entry.get("records")),
                        participations=integer(entry.get("participations")),
                        steps=integer(entry.get("steps")),
                        sampling_rate=number(entry.get("sampling_rate")),
                        epsilon=epsilons(entry),
                        delta_records=number(entry.get("delta_records")),
                    )
                )
        return rows

    def profile_is_public(self) -> bool:
        """Return False: it is that of the client with the largest loss."""
        return False

    def by_accountant(self, source: RunSource, internal: bool) -> dict[str, float | None]:
        """Return those of the client with the largest loss; for the public the third party's."""
        if not internal or tuning.is_selected(source):
            return epsilons(source.claim.get("third_party"))
        clients = sequence(mapping(source.claim.get("server")).get("clients"))
        rows = [epsilons(row) for row in clients]
        return max(rows, key=lambda row: row.get(source.accountant) or 0.0, default={})

    def trees(self, source: RunSource) -> list[tuple[ViewKey, Event | None]]:
        """Return a tree a view, from the header and from what the headline's client was charged."""
        header = source.header
        kind = clean(header.get("sampling"), 60)
        rounds, steps = integer(header.get("rounds")), integer(header.get("local_steps"))
        noise, batch = number(header.get("noise_multiplier")), self.batch(source)
        sizes = [size for size in source.records if size > 0]
        if not (rounds and steps and noise and batch and sizes):
            return []
        if min(rounds, steps, noise, batch) < 0:
            return []
        if kind not in ("poisson", "fixed-size", "shuffled"):
            return []
        queries = max(
            (units.answers(line.get("queries_per_step")) for line in source.spends), default=1
        )
        if header.get("max_epsilon") is not None:
            # The limit bounds the other views, and no composition of rounds does.
            return [("server", _of_the_headline(source))]
        stated = number(header.get("sampling_rate"))
        step = units.record_step(kind, batch, min(sizes), noise, queries, stated)
        each = units.charged_steps(kind, steps, min(sizes), batch)
        if tuning.is_selected(source):
            trial = _mixture(source, rounds, units.times(each, step))
            return [("third_party", units.selected(source, trial))]
        return [
            ("server", _of_the_headline(source)),
            ("server_worst_case", units.times(rounds * each, step)),
            ("third_party", _mixture(source, rounds, units.times(each, step))),
        ]

    def expected_gradients(self, source: RunSource) -> float | None:
        """Return rounds x clients a round x local steps x expected batch.

        Known before the run, so that it tells nothing of who took part. None where steps adapt.
        """
        header = source.header
        if not source.private or mapping(header.get("adaptation")):
            return None
        values = [
            number(header.get(key))
            for key in ("clients_per_round", "local_steps", "expected_batch_size")
        ]
        ended = mapping(source.claim.get("stopped"))
        values.append(number((ended or header).get("rounds")))
        known = [value for value in values if value is not None]
        return number(math.prod(known)) if len(known) == len(values) else None


def _mixture(source: RunSource, rounds: int, participation: Event) -> Event | None:
    """Return the third party's tree: a client takes part in some of the rounds, by chance."""
    chance = number(mapping(source.claim.get("third_party")).get("participation"))
    if chance is None:
        return None
    shown = formatting.plain(chance)
    text = (
        f"Mixture over the rounds taken part in, Binomial({formatting.count(rounds)}, {shown})"
        if chance < 1
        else f"Taking part in all {formatting.count(rounds)} rounds"
    )
    parameters = {"rounds": rounds, "participation": chance}
    return Event(event="mixture", text=text, parameters=parameters, of=(participation,))


def _of_the_headline(source: RunSource) -> Event | None:
    """Return the tree of the client with the largest loss, from what it was charged."""
    client = units.largest_loss(source)
    if client is None:
        return None
    counted: Counter[tuple[str, float, float, float, int]] = Counter()
    stated = number(source.header.get("sampling_rate"))
    for line in source.spends:
        batch, records, noise = (
            number(line.get(key)) for key in ("expected_batch_size", "records", "noise_multiplier")
        )
        steps = integer(line.get("steps"))
        if line.get("client") != client or not (batch and records and noise and steps):
            continue
        if min(batch, records, noise, steps) < 0:
            continue
        kind, queries = clean(line.get("sampling"), 60), units.answers(line.get("queries_per_step"))
        charged = units.charged_steps(kind, steps, records, batch)
        counted[kind, batch, records, noise, queries] += charged
    return units.composed(
        [
            units.times(count, units.record_step(*key, stated))
            for key, count in sorted(counted.items())
        ]
    )


RECORD = RecordLevel(
    UnitWords(
        protected="one record",
        guess="that a given record was used for training",
        counted="records",
        symbol="n",
        adjacencies={
            "add-remove": "add-or-remove-one-record",
            "replace-one": "replace-one-record",
        },
        queries="every Poisson-subsampled Gaussian query in the ledger",
        public="client sizes are public",
        explanation=(
            "Against a third party, the loss is a mixture over the participation patterns, which "
            "do not depend on the data. Anyone who learns who took part, or reads the uploads, "
            "counts as the server. Losses are printed rounded up."
        ),
        meanings=wording.check_meanings("record"),
        outside_budget=tuple(wording.OUTSIDE_BUDGET),
        hazards=tuple(wording.HAZARDS),
    )
)
_REPLACED = replace(
    RECORD.words,
    protected="the content of one record",
    guess="that a given record reads one way and not another",
    hazards=(wording.PRESENCE_NOT_HIDDEN, *RECORD.words.hazards),
)
BY_SAMPLER = {
    "fixed-size": RecordLevel(
        replace(_REPLACED, queries="every Gaussian query in the ledger, on batches of fixed size,")
    ),
    "shuffled": RecordLevel(
        replace(
            _REPLACED,
            queries="every batch that one record can be in, as a Gaussian query without "
            "amplification,",
        )
    ),
}


def unit(source: RunSource) -> Unit:
    """Return the unit by how the records of a step are drawn."""
    return BY_SAMPLER.get(str(source.header.get("sampling")), RECORD)
