"""The claim of a client-level run: against a third party, and against the server if there is one.

Everything is computed from the ledger's spend lines, one a round and attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpfedadamw.accounting.registry import as_claimed, claimed, epsilons, leading
from dpfedadamw.accounting.selection import (
    TUNED,
    Trials,
    claim_of_selection,
    epsilon_of_all_trials,
)
from dpfedadamw.accounting.trade_off import curves
from dpfedadamw.privacy.composition import Composition

Spends = Sequence[Mapping[str, Any]]

NOT_TUNED = "hyper-parameters were not chosen on these data, or that choice is accounted elsewhere"
ASSUMPTIONS = (
    "neighbouring data sets differ by one client with all its records (add or remove)",
    "each round every client takes part independently with the stated probability, the ratio of "
    "two numbers of the spec (clients_per_round and clients) that are public constants. One client "
    "more or less does not change it",
    "the update is clipped over the whole vector and divided by a public number of clients",
    "sampling and noise come from randomness that the adversary does not know",
    NOT_TUNED,
)
_THIRD_PARTY = "third party: it sees models only, and nothing that tells who took part in a round"
_TRUSTED = (
    "server: no guarantee; it adds the noise and sees the clipped updates, so it must be trusted"
)
_UNTRUSTED = (
    "server: sees each noised upload and who took part, so nothing is gained from sampling clients"
)
_LOCAL = (
    "server: clients add their noise honestly and know how many take part; a client's records are "
    "hidden, not its presence, which the server sees"
)


def client_level_claim(
    spends: Spends,
    clients: int,
    delta: float,
    times: int = 1,
    most: Sequence[Composition] | None = None,
    selection: str = "none",
    trials: Trials | None = None,
    drawn: int | None = None,
) -> dict[str, Any]:
    """The claim line of a client-level run, without its chain.

    Args:
        spends: The ledger's spend lines; those of repeated rounds count.
        clients: N.
        delta: δ.
        times: How often each line counts: a planned run is one round's line, T times.
        most: The most that a client's uploads were to amount to; see `registry.epsilons`.
        selection: The spec's word for how the hyper-parameters were chosen.
        trials: The law of the number of trials, of which this run is one and the published one the
            best; None for a run by itself.
        drawn: How many trials there are; None before it is drawn. With it, ``most`` is needed.

    Returns:
        JSON types only, numbers finite.
    """
    parts = third_party_compositions(spends, times)
    accountant, _ = leading()
    by_clients = spends[0]["noise_added_by"] == "clients"
    server: dict[str, Any] = {"epsilon": None, "clients": []}
    winner: tuple[Composition, ...] = ()
    if by_clients:
        own_parts = server_compositions(spends, times)
        # Of plain Gaussians, the client with most precision cost most, with other trials too.
        winner = max(own_parts.values(), key=_precision, default=())
        entries: list[dict[str, Any]] = [
            {
                "client": client,
                "participations": sum(part.steps for part in own),
                "epsilon": epsilons(own, delta, most),
            }
            for client, own in sorted(own_parts.items())
        ]
        largest = max((entry["epsilon"][accountant.name] for entry in entries), default=0.0)
        server = {**as_claimed({accountant.name: largest}), "clients": entries}
    third_party, chosen = as_claimed(epsilons(parts, delta)), {}
    if trials is not None:
        # Clients are drawn inside a round, so every trial has every round: a participation of 1.
        # Rounds of this trial that were repeated after a crash count, which bounds the others too.
        every = None
        if by_clients and drawn is not None:
            assert most is not None
            every = epsilon_of_all_trials(most, delta, drawn, claimed(server), winner)
        one, rounds = claimed(third_party), [(part, 1) for part in parts]
        third_party, tuning = claim_of_selection(rounds, 1.0, delta, trials, one, every)
        chosen = {"tuning": tuning}
    return {
        "view_headline": "third-party",
        "delta": delta,
        "third_party": {
            **third_party,
            "participation": float(spends[0]["sampling_rate"]),
            "rounds": times * len(spends),
            "delta_clients": delta * clients,
        },
        "server": server,
        **chosen,
        "assumptions": [
            *ASSUMPTIONS[:-1],
            TUNED.get(selection, NOT_TUNED),
            _THIRD_PARTY,
            *((_UNTRUSTED, _LOCAL) if by_clients else (_TRUSTED,)),
        ],
        **curves(parts, selected=trials is not None),
    }


def _precision(parts: Sequence[Composition]) -> float:
    return sum(part.steps / part.noise_multiplier**2 for part in parts)


def third_party_compositions(spends: Spends, times: int = 1) -> tuple[Composition, ...]:
    """All rounds as Poisson-subsampled Gaussians over clients; each line counts so many times."""
    counted: dict[tuple[float, float], int] = {}
    for spend in spends:
        key = (float(spend["noise_multiplier"]), float(spend["sampling_rate"]))
        counted[key] = counted.get(key, 0) + times
    return tuple(
        Composition(noise, rate, count, 1, "full" if rate == 1.0 else "poisson")
        for (noise, rate), count in sorted(counted.items())
    )


def server_compositions(spends: Spends, times: int = 1) -> dict[int, tuple[Composition, ...]]:
    """Each client's uploads as plain Gaussians of multiplier σ/√m, by client; lines as above."""
    counted: dict[int, dict[float, int]] = {}
    for spend in spends:
        for client in spend["clients"]:
            own = counted.setdefault(int(client), {})
            noise = float(spend["upload_noise_multiplier"])
            own[noise] = own.get(noise, 0) + times
    return {
        client: tuple(
            Composition(noise, 1.0, count, 1, "full") for noise, count in sorted(own.items())
        )
        for client, own in counted.items()
    }
