"""What the run claims: to whom, how strongly, under which assumptions, and by which composition.

Used by the report for both audiences and by `signing` for the claims inside attestations. The
circles are kept here: what depends on who took part (the server's realised ε, per-client ε, the
headline client's privacy profile) is for the internal audience only.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from reports import formatting
from reports.content import findings, tuning
from reports.content.parts import (
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    PUBLIC,
    WITHOUT_PRIVACY,
    Loss,
    Part,
    Rule,
    Share,
    ViewKey,
    part,
)
from reports.content.units import View, unit_of
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource

NO_PRIVACY: Final = "no differential privacy"


class OfPerson(Part):
    """What a guarantee on single records means for the person who has most of them.

    Attributes:
        records: How many these are.
        epsilon: The ε that holds for all of them together, in every round; null where no accountant
            covers it.
    """

    records: int
    epsilon: Loss | None


class Guarantee(Part):
    """The one guarantee that the report leads with.

    Attributes:
        private: False: the run was trained with no differential privacy, and no loss is given
            anywhere.
        statement: The guarantee in one sentence.
        view: The view of the headline.
        towards: Against whom the guarantee holds.
        epsilon: Privacy loss ε; null if there is none or it is not finite.
        delta: δ.
        delta_times_records: δ times the number of training records; null where whole clients are
            protected.
        delta_times_clients: δ times the number of clients, where these are protected.
        person: What it means for the person with most records; null where records name no people.
        unit: What is protected: record, client, or none.
        adjacency: Which data sets are neighbours.
        composition: How the queries were composed.
        assumptions: What must hold for the guarantee.
        explanation: How to read the views; null without privacy.
    """

    private: bool
    statement: str
    view: Literal["server", "third_party", "none"]
    towards: str
    epsilon: Loss | None
    delta: Share | None
    delta_times_records: Loss | None
    delta_times_clients: Loss | None
    person: OfPerson | None
    unit: str
    adjacency: str
    composition: str
    assumptions: tuple[str, ...]
    explanation: str | None


class Budget(Part):
    """What all runs on the same data may spend together, if the spec sets that.

    Attributes:
        epsilon: ε of all runs together; null without a budget.
        delta: δ of all runs together.
        charged: What was spent or reserved when this run ended; null where it is not known, and for
            the public, whom it might tell what other runs spent.
    """

    epsilon: Loss | None
    delta: Share | None
    charged: Loss | None


@part("budget", Budget, Rule(FOR_THE_PUBLIC, {"charged": NULL}))
def budget(source: RunSource, audience: str) -> Budget:
    """Return the budget that the run kept to."""
    declared, claimed = mapping(source.header.get("budget")), mapping(source.claim.get("budget"))
    return Budget(
        epsilon=number(declared.get("epsilon")),
        delta=number(declared.get("delta")),
        charged=number(claimed.get("charged")) if audience == INTERNAL else None,
    )


def adjacency(source: RunSource) -> str:
    """Return the neighbouring relation in words."""
    raw = clean(source.header.get("adjacency"), 80)
    return unit_of(source).words.adjacencies.get(raw, raw or "unstated")


def views(source: RunSource, audience: str) -> list[View]:
    """Return the directly composed privacy losses that an audience may see, one entry a view.

    Args:
        source: The run.
        audience: "internal" or "public".

    Returns:
        Empty without a privacy unit or a claim.
    """
    if not source.private or not source.claim:
        return []
    return unit_of(source).views(source, audience == INTERNAL)


def headline(source: RunSource, audience: str) -> View | None:
    """Return the view that the report leads with, or None without a claim."""
    key: ViewKey = "third_party"
    if not tuning.is_selected(source):
        key = unit_of(source).headline(audience == INTERNAL)
    return next((view for view in views(source, audience) if view.key == key), None)


def assumptions(source: RunSource, audience: str) -> list[str]:
    """Return what must hold for the guarantee: the ledger's list, or the usual one."""
    stated = [clean(text, 600) for text in sequence(source.claim.get("assumptions"))]
    if any(stated):
        return findings.for_audience(stated, audience)
    return [
        "Client sizes are public metadata.",
        "Every record is in exactly one client, once.",
        "Sampling and noise are drawn as the mechanism states, from randomness that the adversary "
        "does not know.",
    ]


@part(
    "guarantee",
    Guarantee,
    Rule(WITHOUT_PRIVACY, {"epsilon": NULL, "delta": NULL, "view": {"const": "none"}}),
    Rule(FOR_THE_PUBLIC, {"view": {"enum": ["third_party", "none"]}}),
)
def guarantee(source: RunSource, audience: str) -> Guarantee:
    """Return the guarantee, with the one sentence that says it.

    A verdict other than PASS is said in the sentence's first words; before it, that an ε protects
    nobody. What is signed says neither: it is the trainer's claim, and its ε is in it.
    """
    view = headline(source, audience)
    product = _delta_times(source, view)
    clients = source.protects_clients
    leads: Literal["server", "third_party", "none"] = "none"
    if view is not None:
        leads = "server" if view.key == "server" else "third_party"
    return Guarantee(
        private=source.private,
        statement=findings.warned(
            _statement(source, view, findings.verdict(source, audience).value, product),
            findings.against(source, audience),
        ),
        view=leads,
        towards=view.towards if view else "nobody",
        epsilon=view.epsilon if view else None,
        delta=view.delta if view else None,
        delta_times_records=None if clients else product,
        delta_times_clients=product if clients else None,
        person=of_person(source),
        unit=clean(source.header.get("unit"), 40),
        adjacency=adjacency(source) if source.private else "none",
        composition=_composition(source) if view else "none",
        assumptions=tuple(assumptions(source, audience)) if view else (),
        explanation=unit_of(source).words.explanation + _lucky(views(source, audience))
        if source.private
        else None,
    )


def of_person(source: RunSource) -> OfPerson | None:
    """Return what the claim says of the person with most records; None where it says nothing."""
    told = mapping(source.claim.get("person"))
    records = integer(told.get("records"))
    if not source.private or records is None or records < 1:
        return None
    return OfPerson(records=records, epsilon=number(told.get("epsilon")))


def _lucky(found: list[View]) -> str:
    """Return why the server's ε is below the third party's, where it is; with a space before it."""
    known = {view.key: view.epsilon for view in found}
    server, third = known.get("server"), known.get("third_party")
    if server is None or third is None or server >= third:
        return ""
    return (
        " The server’s ε is that of the rounds that clients did take part in, the third party’s "
        "that of all that chance might have brought. Here the first is smaller, so it bounds the "
        "third party too, who sees less."
    )


def _delta_times(source: RunSource, view: View | None) -> float | None:
    count = unit_of(source).protected_count(source)
    if view is None or view.delta is None or count is None:
        return None
    return number(view.delta * count)


def _composition(source: RunSource) -> str:
    if tuning.is_selected(source):
        return (
            f"Rényi composition of {unit_of(source).words.queries} and private selection "
            "(Papernot & Steinke 2022, Theorem 2)"
        )
    if source.recorded:
        named = clean(source.accountant, 60)
        return f"composition of {unit_of(source).words.queries} by its own accountant ({named})"
    library = mapping(source.header.get("accountant"))
    named = " ".join(clean(library.get(key), 60) for key in ("library", "version")).strip()
    return (
        f"composition of {unit_of(source).words.queries} with a privacy loss distribution "
        f"({named or 'accountant unstated'})"
    )


_PREFIX = {
    "PASS": "",
    "FAIL": "Claimed, but rejected by the audit: ",
    "NOT VERIFIED": "Claimed, but not verified by the audit: ",
    "NOT AUDITED": "Claimed, but not audited: ",
    "NO CLAIM": "Claimed, but the audit saw no claim: ",
}


# These words, and those that the units put into them, are signed with every run, and `verify`
# compares them with the ledger. A change of one adds a line here, or earlier runs fail there.
_SIGNED_EARLIER = (
    ("Against ", "Towards "),
    ("the run has no finite ε against ", "the run has no finite ε towards "),
    (
        "this does not hold against anyone who knows the seed",
        "this holds towards nobody who knows the seed",
    ),
    ("no guarantee against the server", "no guarantee towards the server"),
    (
        "stated separately, in the internal report; a client's records are hidden there, but that "
        "it took part is not.",
        "stated apart, in the internal report; there a client's records are hidden, that it took "
        "part is not.",
    ),
    ("; against the server, which saw", "; towards the server, which saw"),
    ("anyone who sees the model, or all models", "whoever sees the model, or all models"),
)


def as_signed_earlier(claims: Any) -> Any:
    """Return attested claims in the words that runs were signed with before version 0.1.0."""
    if isinstance(claims, dict):
        return {key: as_signed_earlier(value) for key, value in claims.items()}
    if isinstance(claims, list):
        return [as_signed_earlier(value) for value in claims]
    if isinstance(claims, str):
        for now, then in _SIGNED_EARLIER:
            claims = claims.replace(now, then)
    return claims


def _statement(
    source: RunSource, view: View | None, verdict: str, product: float | None = None
) -> str:
    if not source.private:
        return (
            f"This model was trained with {NO_PRIVACY}: nothing limits what it, or any update that "
            "led to it, reveals about a single record."
        )
    if view is None:
        return "The ledger ends without a claim, so this run makes no statement on privacy."
    prefix = _PREFIX.get(verdict, "Claimed: ")
    if view.epsilon is None:
        return f"{prefix}the run has no finite ε against {view.towards}."
    unit = unit_of(source)
    words, covered, secret = unit.words, "", ""
    if product is not None:
        covered = (
            f" (δ·{words.symbol} = {formatting.power(product)} for {words.symbol} = "
            f"{formatting.count(unit.protected_count(source))} {unit.counted(source)})"
        )
    if source.header.get("randomness") == "reproducible":
        secret = (
            "; because the run is reproducible from a seed, this does not hold against anyone "
            "who knows the seed"
        )
    return (
        f"{prefix}Against {view.towards}, training is (ε = {formatting.epsilon(view.epsilon)}, δ = "
        f"{formatting.power(view.delta)})-differentially private at the level of "
        f"{unit.protected_in_sentence(source)}, for {adjacency(source)} neighbours{covered}, by "
        f"{_composition(source)}, assuming that {words.public} and that sampling and "
        f"noise were drawn as described from randomness the adversary does not know{secret}."
        f"{unit.after_sentence(source)}{_choice_as_signed(source)}"
    )


def _choice_as_signed(source: RunSource) -> str:
    """Return how hyper-parameters were chosen, with a space before it, in signed words."""
    if tuning.selection(source) == "unaccounted" and source.private:
        return (
            " The run’s hyper-parameters were chosen by looking at the private records: no ε "
            "covers that choice, and this one is that of settings which were chosen without "
            "looking."
        )
    if not tuning.is_selected(source):
        return ""
    trusted = clean(source.header.get("noise_added_by"), 40) == "server"
    server = "" if trusted else "; against the server, which saw them all, it is larger"
    return (
        " The run is the best of a random number of trials, and the loss is that of publishing it "
        f"and nothing of the others{server}."
    )


def attested_claims(source: RunSource) -> dict[str, Any]:
    """Return the claims for an attestation, which is public: nothing here tells participation."""
    if not source.private:
        return {"unit": "none", "statement": NO_PRIVACY, "views": []}
    return {
        "unit": clean(source.header.get("unit"), 40),
        "adjacency": clean(source.header.get("adjacency"), 80),
        "randomness": clean(source.header.get("randomness"), 40),
        "statement": _statement(source, headline(source, PUBLIC), "unjudged"),
        "views": [stated(view) for view in views(source, PUBLIC)],
    }


def stated(view: View) -> dict[str, Any]:
    """Return what attestations and comparisons say of a view."""
    return view.model_dump(include={"key", "towards", "epsilon", "delta"})
