"""What the run claims: to whom, how strongly, under which assumptions, and by which composition.

Used by `content` for both audiences and by `signing` for the claims inside attestations. The
circles are kept here: what depends on who took part (the server's realised ε, per-client ε, the
headline client's privacy profile) is for the internal audience only.
"""

from __future__ import annotations

import re
from typing import Any

from reports import formatting
from reports.content import client_level
from reports.content.adaptation import follows_releases
from reports.content.units import words_of
from reports.reading import claims
from reports.reading.files import clean, mapping, number, sequence
from reports.reading.source import RunSource

INTERNAL = "internal"
PUBLIC = "public"
NO_PRIVACY = "no differential privacy"

_SERVER = "the server, and anyone who sees every upload and knows who took part"
_THIRD_PARTY = (
    "a third party who sees only broadcast or final models and does not learn who took part"
)
# Free text of others might name a client, a count of participations or a realised ε.
_RESTRICTED = re.compile(
    r"clients?\W{0,3}(index|number|no\.?|id|#)?\W{0,3}\d|client_\d"
    r"|particip\w*[^.;]{0,60}\d|\d[^.;]{0,60}(particip|took part)|took part[^.;]{0,60}\d"
    r"|(ε|epsilon)[^.;]{0,30}\d|attempt",
    re.IGNORECASE,
)
WITHHELD = "One statement concerns restricted data and stands in the internal report only."


def for_audience(texts: list[str], audience: str) -> list[str]:
    """Return free texts fit for the audience, each once; restricted ones are replaced."""
    kept = [
        WITHHELD if audience == PUBLIC and _RESTRICTED.search(text) else text
        for text in texts
        if text
    ]
    return list(dict.fromkeys(kept))


def adjacency(source: RunSource) -> str:
    """Return the neighbouring relation in words."""
    raw = clean(source.header.get("adjacency"), 80)
    return words_of(source).adjacencies.get(raw, raw or "unstated")


def views(source: RunSource, audience: str) -> list[dict[str, Any]]:
    """Return the directly composed privacy losses, one entry a view.

    Args:
        source: The run.
        audience: "internal" or "public".

    Returns:
        Entries with key, label, towards, epsilon (None: none claimed), delta, method; empty without
        a privacy unit. The realised server view is absent from the public audience: it tells how
        often the most frequent client took part.
    """
    if not source.private or not source.claim:
        return []
    if source.protects_clients:
        return client_level.views(source, audience == INTERNAL)
    claim = source.claim
    delta = number(claim.get("delta")) or number(source.header.get("delta"))
    participation = number(mapping(claim.get("third_party")).get("participation"))
    shown = formatting.plain(participation) if participation is not None else "participation"
    mixture = f", mixed over Binomial(rounds, {shown})"
    realised = "Server, as it happened"
    if follows_releases(source.header):
        realised = "Server, most in the rounds taken part in"
    entries = [
        ("server", realised, _SERVER, ""),
        ("server_worst_case", "Server, worst case (in every round)", _SERVER, ""),
        ("third_party", "Third party", _THIRD_PARTY, mixture),
    ]
    return [
        {
            "key": key,
            "label": label,
            "towards": towards,
            "epsilon": claims.headline(claim.get(key)),
            "delta": delta,
            "method": f"{client_level.label_of(claim.get(key))}{how}",
        }
        for key, label, towards, how in entries
        if audience == INTERNAL or key != "server"
    ]


def headline(source: RunSource, audience: str) -> dict[str, Any] | None:
    """Return the view that the report leads with, or None without a claim."""
    leads = audience == PUBLIC or source.protects_clients
    key = "third_party" if leads else "server"
    return next((view for view in views(source, audience) if view["key"] == key), None)


def assumptions(source: RunSource, audience: str) -> list[str]:
    """Return what must hold for the guarantee: the ledger's list, or the standing one."""
    stated = [clean(text, 600) for text in sequence(source.claim.get("assumptions"))]
    if any(stated):
        return for_audience(stated, audience)
    return [
        "Client sizes are public metadata.",
        "Every record is in exactly one client, once.",
        "Sampling and noise are drawn as the mechanism states, from randomness that the adversary "
        "does not know.",
    ]


def guarantee(source: RunSource, audience: str, verdict: str) -> dict[str, Any]:
    """Return the guarantee as data, with the one sentence that says it.

    Args:
        source: The run.
        audience: "internal" or "public".
        verdict: The report's verdict; anything but PASS is said in the sentence's first words.
    """
    view = headline(source, audience)
    delta = view["delta"] if view else None
    count = _protected(source)
    product = delta * count if delta is not None and count is not None else None
    clients = source.protects_clients
    return {
        "private": source.private,
        "statement": _statement(source, view, product, verdict),
        "view": view["key"] if view else "none",
        "towards": view["towards"] if view else "nobody",
        "epsilon": view["epsilon"] if view else None,
        "delta": delta,
        "delta_times_records": None if clients else product,
        "delta_times_clients": product if clients else None,
        "unit": clean(source.header.get("unit"), 40),
        "adjacency": adjacency(source) if source.private else "none",
        "composition": _composition(source) if view else "none",
        "assumptions": assumptions(source, audience) if view else [],
        "explanation": words_of(source).explanation if source.private else None,
    }


def _protected(source: RunSource) -> float | None:
    """Return how many there are of what is protected."""
    if source.protects_clients:
        return number(source.header.get("clients"))
    return sum(source.records) if source.records else None


def _composition(source: RunSource) -> str:
    library = mapping(source.header.get("accountant"))
    named = " ".join(clean(library.get(key), 60) for key in ("library", "version")).strip()
    return (
        f"composition of {words_of(source).queries} with a privacy loss distribution "
        f"({named or 'accountant unstated'})"
    )


_PREFIX = {
    "PASS": "",
    "FAIL": "Claimed, but rejected by the audit: ",
    "NOT VERIFIED": "Claimed, but not verified by the audit: ",
    "NOT AUDITED": "Claimed, but not audited: ",
    "NO CLAIM": "Claimed, but the audit saw no claim: ",
}


def _statement(
    source: RunSource, view: dict[str, Any] | None, product: float | None, verdict: str
) -> str:
    if not source.private:
        return (
            f"This model was trained with {NO_PRIVACY}: nothing bounds what it, or any update that "
            "led to it, reveals about a single record."
        )
    if view is None:
        return "The ledger ends without a claim, so this run makes no statement on privacy."
    prefix = _PREFIX.get(verdict, "Claimed: ")
    if view["epsilon"] is None:
        return f"{prefix}the run has no finite ε towards {view['towards']}."
    words = words_of(source)
    covered = (
        f" (δ·{words.symbol} = {formatting.power(product)} for {words.symbol} = "
        f"{formatting.count(_protected(source))} {words.counted})"
    )
    secret = (
        "; because the run is reproducible from a seed, this holds towards nobody who knows the "
        "seed"
        if source.header.get("randomness") == "reproducible"
        else ""
    )
    unit = clean(source.header.get("unit"), 40) or "unstated"
    protected = words.protected if source.protects_clients else f"one {unit}"
    sentence = (
        f"{prefix}Towards {view['towards']}, training is (ε = "
        f"{formatting.epsilon(view['epsilon'])}, δ = "
        f"{formatting.power(view['delta'])})-differentially private at the level of {protected}, "
        f"for {adjacency(source)} neighbours{covered if product is not None else ''}, by "
        f"{_composition(source)}, assuming that {words.public} and that sampling and "
        f"noise were drawn as described from randomness the adversary does not know{secret}."
    )
    if not source.protects_clients:
        return sentence
    return f"{sentence} {client_level.server_clause(source)}"


def attested_claims(source: RunSource) -> dict[str, Any]:
    """Return the claims for an attestation, which is public: nothing here tells participation."""
    if not source.private:
        return {"unit": "none", "statement": NO_PRIVACY, "views": []}
    return {
        "unit": clean(source.header.get("unit"), 40),
        "adjacency": clean(source.header.get("adjacency"), 80),
        "randomness": clean(source.header.get("randomness"), 40),
        "statement": _statement(source, headline(source, PUBLIC), None, "unjudged"),
        "views": [
            {key: view[key] for key in ("key", "towards", "epsilon", "delta")}
            for view in views(source, PUBLIC)
        ],
    }
