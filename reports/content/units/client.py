"""Runs that protect whole clients: clipped updates are noised, and who takes part is chance.

The third party's view leads for every audience. A server that adds the noise itself sees the
clipped updates, so the report says that it has no guarantee; what an untrusting server's clients
spent tells how often they took part, and is for the internal audience.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
    method_of,
)
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource, epsilons, headline

TRUSTED_SERVER = "no guarantee against the server: it adds the noise and sees the clipped updates"
_SERVER = "the server, which sees every noised upload and who made it"
_TRUSTED = "the server, which adds the noise and sees the clipped updates"


@dataclass(frozen=True)
class ClientLevel(Unit):
    """Whole clients are protected."""

    def headline(self, _internal: bool) -> ViewKey:
        """Return the third party's view, which the spec alone fixes."""
        return "third_party"

    def views(self, source: RunSource, internal: bool) -> list[View]:
        """Return the loss against a third party, and what there is against the server."""
        claim, delta = source.claim, source.delta
        party, server = mapping(claim.get("third_party")), mapping(claim.get("server"))
        rate = formatting.plain(number(party.get("participation")))
        chosen = tuning.is_selected(source)
        found = [
            View(
                key="third_party",
                label="Third party, of the selection" if chosen else "Third party",
                towards=THIRD_PARTY_OF_TRIALS if chosen else THIRD_PARTY,
                epsilon=headline(party),
                delta=delta,
                method=f"{method_of(party)}, clients drawn at rate {rate}"
                f"{OF_A_SELECTION if chosen else ''}",
            )
        ]
        if self.noise_added_by(source) == "server":
            found.append(
                View(
                    key="trusted_server",
                    label="Server, trusted",
                    towards=_TRUSTED,
                    epsilon=None,
                    delta=delta,
                    method="no guarantee",
                )
            )
        elif internal:
            found.append(
                View(
                    key="server",
                    label="Server, this trial alone" if chosen else "Server, as it happened",
                    towards=_SERVER,
                    epsilon=headline(server),
                    delta=delta,
                    method=f"{method_of(server)}, each upload a Gaussian; no amplification",
                )
            )
            if chosen:
                # It tells how many trials there were.
                every = mapping(claim.get("tuning")).get("server_all_trials")
                found.append(
                    View(
                        key="server_worst_case",
                        label="Server, all trials",
                        towards=_SERVER,
                        epsilon=headline(every),
                        delta=delta,
                        method=f"{method_of(every)}{OF_ALL_TRIALS}",
                    )
                )
        return found

    def promise(self, source: RunSource, _view: View) -> str:
        """Return whom the third party's view covers, and whom it does not."""
        against = (
            "Against the server and the other participants, only the limits under “Protected from "
            "whom” hold."
        )
        if self.noise_added_by(source) == "server":
            against = "The server adds the noise and must be trusted."
        return (
            "nobody who sees only models and does not learn who took part can {limit} "
            f"{against} {NOTHING}"
        )

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return the server, other participants, third parties, and those who hold the files.

        Where clients add shares of the noise, each participant knows its own and can subtract it,
        so the third party's limit does not hold against participants; the server's does, which
        counts the noise of one upload alone.
        """
        known = bounds(self.views(source, internal))
        party = known.get("third_party")
        secret = "they learn who took part in a round"
        if self.noise_added_by(source) == "server":
            server = Reader(
                who="The server, and anyone who breaks into it during training",
                protected=False,
                epsilon=None,
                why="It sees every clipped update and adds the noise itself. It must be trusted.",
                unless="",
            )
            others = Reader(
                who="The other participants",
                protected=party is not None,
                epsilon=party,
                why="They see only the noised models of the others.",
                unless=f"{secret}, or collude with the server",
            )
        else:
            told = "server_worst_case" if tuning.is_selected(source) else "server"
            held = told not in known or known[told] is not None
            server = Reader(
                who="The server, and anyone who breaks into it or reads the uploads",
                protected=held,
                epsilon=known.get(told),
                why="Each client adds its share of the noise before it uploads. The server still "
                "sees who took part."
                if held
                else "No finite ε holds.",
                unless="a client’s own machine or code is under their control" if held else "",
            )
            others = server.model_copy(
                update={
                    "who": "The other participants",
                    "why": "They see no more than the server, but know their own shares of the "
                    "noise."
                    if held
                    else "No finite ε holds.",
                    "unless": "they collude with the server" if held else "",
                }
            )
        return [
            server,
            others,
            Reader(
                who="Third parties: anyone who gets or queries the published model",
                protected=party is not None,
                epsilon=party,
                why="They see no more than models, metrics and public files."
                if party is not None
                else "No finite ε holds.",
                unless=f"{secret}, or see uploads, the ledger or the internal report"
                if party is not None
                else "",
            ),
            *holders(source, "single clients"),
        ]

    def protected_in_sentence(self, _source: RunSource) -> str:
        """Return one client with its records."""
        return self.words.protected

    def after_sentence(self, source: RunSource) -> str:
        """Return what the guarantee says of the server, for any audience."""
        if self.noise_added_by(source) == "server":
            return f" There is {TRUSTED_SERVER}, so it must be trusted."
        return (
            f" Against {_SERVER}, the loss is larger and stated separately, in the internal "
            "report; a client's records are hidden there, but that it took part is not."
        )

    def protected_count(self, source: RunSource) -> float | None:
        """Return the number of clients."""
        return number(source.header.get("clients"))

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        header = source.header
        clip, noise = (number(header.get(key)) for key in ("clipping_norm", "noise_multiplier"))
        cut, where = _sparsification(header)
        start = (
            "Per round: each participant trains without noise on its own records. Its update, over "
            f"all trainable parameters as one vector, is {cut}clipped to norm C = "
            f"{formatting.plain(clip)}, and one that is not finite counts zero."
        )
        end = (
            "The noisy sum is divided by the public constant S = "
            f"{formatting.count(source.clients_per_round)}, never by how many took part. A round "
            "without participants releases noise all the same."
        )
        if self.noise_added_by(source) == "clients":
            how = (
                "Each of a round’s m participants adds Gaussian noise of standard deviation σC/√m "
                f"to its own update, at {where}, so that the sum carries σC with σ = "
                f"{formatting.plain(noise)}. In an empty round the server adds it."
            )
        else:
            how = (
                "The server adds Gaussian noise of standard deviation σC with σ = "
                f"{formatting.plain(noise)} to {where} of the sum of clipped updates."
            )
        return f"{start} {how} {end}{tuning.early_end(source.claim, header)}"

    def batch(self, _source: RunSource) -> float | None:
        """Return None: local steps are not noised."""
        return None

    def noise_added_by(self, source: RunSource) -> str:
        """Return "server", "clients" or "unstated"."""
        return clean(source.header.get("noise_added_by"), 40) or "unstated"

    def draws(self, source: RunSource) -> Draws:
        """Return how clients are drawn; what a client does with its records plays no part."""
        header = source.header
        rate = number(header.get("participation"))
        batches = {
            "full": "use all of them",
            "shuffled": "go through them in shuffled batches",
        }.get(
            clean(header.get("sampling"), 60),
            "draw from them in a way that the ledger does not state",
        )
        return Draws(
            f"Each round, every one of {formatting.count(source.clients)} clients takes part "
            f"independently with probability l = {formatting.plain(rate)}, "
            f"{formatting.count(source.clients_per_round)} on average (client sampling: "
            f"{clean(header.get('client_sampling'), 60) or 'unstated'}); a round may be empty. "
            f"All records of a client that takes part are protected; its local steps {batches}, "
            "which plays no part in the guarantee.",
            rate,
        )

    def client_losses(self, source: RunSource) -> list[ClientLoss]:
        """Return each client's loss against the server; empty where the server adds the noise."""
        sizes, found = source.records, []
        for raw in sequence(mapping(source.claim.get("server")).get("clients")):
            entry = mapping(raw)
            index = integer(entry.get("client"))
            if index is not None:
                known = 0 <= index < len(sizes)
                found.append(
                    ClientLoss(
                        client=index,
                        records=round(sizes[index]) if known else None,
                        participations=integer(entry.get("participations")),
                        steps=None,
                        sampling_rate=None,
                        epsilon=epsilons(entry),
                        delta_records=None,
                    )
                )
        return found

    def profile_is_public(self) -> bool:
        """Return True: it is the third party's."""
        return True

    def by_accountant(self, source: RunSource, _internal: bool) -> dict[str, float | None]:
        """Return the third party's."""
        return epsilons(source.claim.get("third_party"))

    def trees(self, source: RunSource) -> list[tuple[ViewKey, Event | None]]:
        """Return the third party's tree of charged rounds, and the server's of uploads."""
        third: Counter[tuple[float, float]] = Counter()
        own: dict[int, Counter[float]] = {}
        for line in source.spends:
            noise, rate = number(line.get("noise_multiplier")), number(line.get("sampling_rate"))
            if noise and rate:
                third[noise, rate] += 1
            upload, present = number(line.get("upload_noise_multiplier")), line.get("clients")
            if upload and isinstance(present, list):
                for client in present:
                    own.setdefault(integer(client) or 0, Counter())[upload] += 1
        largest = units.largest_loss(source)
        mine = own.get(largest, Counter()) if largest is not None else Counter()
        rounds = units.composed(
            [
                units.times(count, units.sampled("poisson", rate, noise))
                for (noise, rate), count in sorted(third.items())
            ]
        )
        if tuning.is_selected(source):
            return [("third_party", units.selected(source, rounds))]
        return [
            ("third_party", rounds),
            (
                "server",
                units.composed(
                    [units.times(n, units.gaussian(noise)) for noise, n in sorted(mine.items())]
                ),
            ),
        ]

    def expected_gradients(self, _source: RunSource) -> float | None:
        """Return None: batches are not the mechanism's."""
        return None


def _sparsification(header: Mapping[str, Any]) -> tuple[str, str]:
    """What happens to an update before clipping, and where the noise lies."""
    sparse = mapping(header.get("sparsification"))
    if not sparse:
        return "", "every coordinate"
    kept, size = (formatting.count(integer(sparse.get(key))) for key in ("kept", "size"))
    whose = {
        "random": "drawn each round from a public seed, the same for all clients, and scaled",
        "released-top": "chosen publicly for all clients, half of them by the last release",
        "local-top": "its own largest",
    }.get(clean(sparse.get("kind"), 40), "chosen in a way that the ledger does not state")
    everywhere = sparse.get("kind") not in ("random", "released-top")
    where = "every coordinate, kept or not," if everywhere else "the kept coordinates"
    return f"cut to {kept} of {size} coordinates ({whose}) and then ", where


CLIENT = ClientLevel(
    UnitWords(
        protected="one client with all its records",
        guess="that a given client, with all its records, took part in training",
        counted="clients",
        symbol="N",
        adjacencies={
            "add-remove": "add-or-remove-one-client",
            "replace-one": "replace-one-client",
        },
        queries="every charged round as one Poisson-subsampled Gaussian query on the clients",
        public="the number of clients and their sizes are public",
        explanation=(
            "A client joins or leaves with all its records. Against a third party, the chance draw "
            "of each round’s clients is part of the mechanism and amplifies privacy. Someone who "
            "learns who took part in a round is no third party, and that amplification does not "
            "hold against them. Losses are printed rounded up."
        ),
        meanings=wording.check_meanings("client"),
        outside_budget=tuple(wording.CLIENT_OUTSIDE_BUDGET),
        hazards=tuple(wording.CLIENT_HAZARDS),
    )
)


def unit(_source: RunSource) -> Unit:
    """Return the unit, which is the same for every run that protects clients."""
    return CLIENT
