"""What a report says of client-level runs alone: who adds the noise, and what follows from it.

Used by `guarantee`, `content` and `budget`. The third party's view leads for every audience. A
server that adds the noise itself sees the clipped updates, so the report says that it has no
guarantee; what an untrusting server's clients spent tells how often they took part, and is for the
internal audience.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports import formatting
from reports.accountants import described
from reports.reading.claims import accountant, epsilons, headline
from reports.reading.files import clean, integer, mapping, number, sequence
from reports.reading.source import RunSource

TRUSTED_SERVER = "no guarantee towards the server: it adds the noise and sees the clipped updates"
_THIRD_PARTY = (
    "a third party who sees only broadcast or final models and does not learn who took part"
)
_SERVER = "the server, which sees every noised upload and who made it"
_TRUSTED = "the server, which adds the noise and sees the clipped updates"


def noise_added_by(source: RunSource) -> str:
    """Return "server", "clients" or "unstated"."""
    return clean(source.header.get("noise_added_by"), 40) or "unstated"


def views(source: RunSource, internal: bool) -> list[dict[str, Any]]:
    """Return the views as `guarantee.views` does.

    Args:
        source: The run.
        internal: Whether the readers may learn how often clients took part.
    """
    claim = source.claim
    delta = number(claim.get("delta")) or number(source.header.get("delta"))
    party, server = mapping(claim.get("third_party")), mapping(claim.get("server"))
    rate = formatting.plain(number(party.get("participation")))
    found = [
        {
            "key": "third_party",
            "label": "Third party",
            "towards": _THIRD_PARTY,
            "epsilon": headline(party),
            "delta": delta,
            "method": f"{label_of(party)}, clients drawn at rate {rate}",
        }
    ]
    if noise_added_by(source) == "server":
        found.append(
            {
                "key": "trusted_server",
                "label": "Server, trusted",
                "towards": _TRUSTED,
                "epsilon": None,
                "delta": delta,
                "method": "no guarantee",
            }
        )
    elif internal:
        found.append(
            {
                "key": "server",
                "label": "Server, as it happened",
                "towards": _SERVER,
                "epsilon": headline(server),
                "delta": delta,
                "method": f"{label_of(server)}, each upload a Gaussian; no amplification",
            }
        )
    return found


def label_of(view: Any) -> str:
    """Return how the accountant of a view is called."""
    return described(accountant(view) or "unstated").label


def server_clause(source: RunSource) -> str:
    """Return what the guarantee says of the server, as a sentence of its own for any audience."""
    if noise_added_by(source) == "server":
        return f"There is {TRUSTED_SERVER}, so it must be trusted."
    return (
        f"Towards {_SERVER}, the loss is larger and stated apart, in the internal report; there a "
        "client's records are hidden, that it took part is not."
    )


def mechanism(source: RunSource) -> str:
    """Return the mechanism in words."""
    header = source.header
    clip, noise = (number(header.get(key)) for key in ("clipping_norm", "noise_multiplier"))
    expected = integer(header.get("clients_per_round"))
    cut, where = _sparsification(header)
    start = (
        "Per round: each participant trains without noise on its own records; its update, over all "
        f"trainable parameters as one vector, is {cut}clipped to norm C = "
        f"{formatting.plain(clip)}, and one that is not finite counts zero."
    )
    end = (
        f"The noisy sum is divided by the public constant S = {formatting.count(expected)}, never "
        "by how many took part. A round without participants releases noise all the same."
    )
    if noise_added_by(source) == "clients":
        how = (
            "Each of a round’s m participants adds Gaussian noise of standard deviation σC/√m to "
            f"its own update, at {where}, so that the sum carries σC with σ = "
            f"{formatting.plain(noise)}; in an empty round the server adds it."
        )
    else:
        how = (
            "The server adds Gaussian noise of standard deviation σC with σ = "
            f"{formatting.plain(noise)} to {where} of the sum of clipped updates."
        )
    return f"{start} {how} {end}"


def _sparsification(header: Mapping[str, Any]) -> tuple[str, str]:
    """What happens to an update before clipping, and where the noise lies."""
    sparse = mapping(header.get("sparsification"))
    if not sparse:
        return "", "every coordinate"
    kept, size = (formatting.count(integer(sparse.get(key))) for key in ("kept", "size"))
    whose = {
        "random": "drawn anew each round from a public seed, the same for all clients, and scaled",
        "released-top": "chosen publicly for all clients, half of them by the last release",
        "local-top": "its own largest",
    }.get(clean(sparse.get("kind"), 40), "chosen in a way that the ledger does not state")
    everywhere = sparse.get("kind") not in ("random", "released-top")
    where = "every coordinate, kept or not," if everywhere else "the kept coordinates"
    return f"cut to {kept} of {size} coordinates ({whose}) and then ", where


def sampling(source: RunSource) -> dict[str, Any]:
    """Return how clients were drawn, as the report's section of that name."""
    header = source.header
    clients, expected = (integer(header.get(key)) for key in ("clients", "clients_per_round"))
    rate = number(header.get("participation"))
    batches = {"full": "use all of them", "shuffled": "go through them in shuffled batches"}.get(
        clean(header.get("sampling"), 60), "draw from them in a way that the ledger does not state"
    )
    return {
        "statement": (
            f"Each round, every one of {formatting.count(clients)} clients takes part "
            f"independently with probability l = {formatting.plain(rate)}, "
            f"{formatting.count(expected)} on average (client sampling: "
            f"{clean(header.get('client_sampling'), 60) or 'unstated'}); a round may be empty. "
            f"Whoever takes part has all its records protected; its local steps {batches}, which "
            "plays no part in the guarantee."
        ),
        "clients": clients,
        "clients_per_round": expected,
        "participation": rate,
        "rate_smallest": None,
        "rate_largest": None,
    }


def rows(source: RunSource) -> list[dict[str, Any]]:
    """Return each client's loss towards the server; empty where the server adds the noise."""
    sizes = source.records
    found = []
    for raw in sequence(mapping(source.claim.get("server")).get("clients")):
        entry = mapping(raw)
        index = integer(entry.get("client"))
        if index is not None:
            known = 0 <= index < len(sizes)
            found.append(
                {
                    "client": index,
                    "records": round(sizes[index]) if known else None,
                    "participations": integer(entry.get("participations")),
                    "steps": None,
                    "sampling_rate": None,
                    "epsilon": epsilons(entry),
                    "delta_records": None,
                }
            )
    return found
