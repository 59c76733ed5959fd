"""The privacy budget in numbers: views, conversions, event trees, closed forms, loss over rounds.

Losses come from the ledger's claim and the auditor's recomputation; this module computes none. What
depends on participation is dropped here for the public audience.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import WithJsonSchema

from reports import figures, formatting
from reports.content import findings, guarantee, tuning, wording
from reports.content.guarantee import Guarantee
from reports.content.parts import (
    EMPTY,
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    WITHOUT_PRIVACY,
    Count,
    Figure,
    FigureText,
    Loss,
    Part,
    Report,
    ReportSection,
    Rule,
    part,
    register,
    shown,
)
from reports.content.units import Event, View, unit_of
from reports.content.wording import ACCOUNTANTS, accountant_named, in_order
from reports.document import LEFT, RIGHT, Block, paragraph, subheading, table, tree
from reports.figures import BLUE, INK, ORANGE, FigureData, known_pairs, powers_of_ten, tell_apart
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_PROFILE_POINTS = 200
_FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
_SELECTED = (
    "Headline: Rényi composition of one trial, and private selection of the best; no privacy loss "
    "distribution of a selection is known."
)
_SELECTION = "Papernot & Steinke 2022, Theorem 2; Canonne, Kamath & Steinke 2020"
_NOT_THE_SERVERS = {"not": {"const": "server"}}
Pair = Annotated[
    tuple[float, float],
    WithJsonSchema(
        {
            "type": "array",
            "prefixItems": [
                {"type": "number", "description": "ε."},
                {"type": "number", "description": "δ."},
            ],
            "items": False,
            "minItems": 2,
        }
    ),
]


Detection = Annotated[
    tuple[float, float],
    WithJsonSchema(
        {
            "type": "array",
            "prefixItems": [
                {"type": "number", "description": "False alarms."},
                {"type": "number", "description": "Detected at most."},
            ],
            "items": False,
            "minItems": 2,
        }
    ),
]


class Conversion(Part):
    """One conversion.

    Attributes:
        name: Name.
        use: What it is used for.
        source: Where it is published.
        epsilon: The headline view's loss under it; null where it was not computed, or would
            show participation.
    """

    name: str
    use: str
    source: str
    epsilon: Loss | None


class EventTree(Part):
    """One view's tree.

    Attributes:
        view: The view; server is internal only.
        root: The outermost event.
    """

    view: Literal["server", "server_worst_case", "third_party"]
    root: Event


PublicView = Literal["server_worst_case", "third_party"]


class SecondLibrary(Part):
    """What Google's dp-accounting gave for the headline when the run ended.

    Attributes:
        version: Its version.
        view: The view of its number.
        epsilon: Its number; null where it gave none.
        lower_bound: Whether no accountant can honestly say less; else it is the ε of the same.
        statement: All of this in one sentence, with how far the claim is from it.
    """

    version: str
    view: PublicView
    epsilon: Loss | None
    lower_bound: bool
    statement: str


class ClosedForm(Part):
    """One closed form.

    Attributes:
        name: Name.
        formula: Formula.
        epsilon: Its value.
        towards: Against whom it holds, by its source.
        reading: The audit's reading: conservative, understates or double-counts.
        compared_with: The composed loss that it was compared with; internal only.
    """

    name: str
    formula: str
    epsilon: Loss | None
    towards: str
    reading: str
    compared_with: str | None


class SpentAfter(Part):
    """One round.

    Attributes:
        round: Rounds completed.
        server: Against the server; internal only.
        third_party: Against a third party.
    """

    round: Count
    server: Loss | None
    third_party: Loss | None


class GaussianDP(Part):
    """The Gaussian mechanism that reveals as much as the rounds, or more (Dong, Roth & Su 2022).

    Attributes:
        mu: μ: nobody tells neighbouring data sets apart better than N(0, 1) and N(μ, 1).
        exact: Whether it reveals just as much; else μ is an upper bound.
    """

    mu: Loss
    exact: bool


class Accounting(Part):
    """How the loss was computed, and for whom.

    Attributes:
        library: Accounting library.
        version: Its version.
        accountant: Name of the accountant whose numbers are promised; null without a privacy unit.
        second_library: What dp-accounting gave for the headline; null without privacy, of recorded
            loops, and of runs of before it was asked.
        conversions: What each way of converting is used for.
        events: Event trees: which mechanisms the accountant composed for each view. Empty where
            steps or noise adapt, because no fixed tree describes them.
        views: Directly composed losses. The server's realised loss is internal only: it shows how
            often clients took part.
        closed_forms: Closed forms from the literature, constants taken as one. No guarantee rests
            on them.
        over_rounds: Loss after each round, recomputed by the auditor.
        profile: Privacy profile, pairs of ε and δ: of the client with the largest loss, then
            internal only; against a third party where clients are protected.
        trade_off: Trade-off curve that follows from the profile: rates of false alarms of a test
            for membership, and the largest rate of detection.
        gaussian_dp: μ of the same curve; null where it is not told, for the best of several trials
            and in runs of before it was claimed.
    """

    library: str | None
    version: str | None
    accountant: str | None
    second_library: SecondLibrary | None
    conversions: tuple[Conversion, ...]
    events: tuple[EventTree, ...]
    views: tuple[View, ...]
    closed_forms: tuple[ClosedForm, ...]
    over_rounds: tuple[SpentAfter, ...]
    profile: tuple[Pair, ...]
    trade_off: tuple[Detection, ...]
    gaussian_dp: GaussianDP | None


@part(
    "accounting",
    Accounting,
    Rule(
        WITHOUT_PRIVACY,
        dict.fromkeys(
            ("views", "closed_forms", "over_rounds", "profile", "trade_off", "events"), EMPTY
        )
        | {"gaussian_dp": NULL},
    ),
    Rule(
        FOR_THE_PUBLIC,
        {
            "views[].key": _NOT_THE_SERVERS,
            "closed_forms[].compared_with": NULL,
            "over_rounds[].server": NULL,
            "events[].view": _NOT_THE_SERVERS,
        },
    ),
    Rule(
        {**FOR_THE_PUBLIC, "guarantee.unit": {"not": {"const": "client"}}},
        {"profile": EMPTY, "trade_off": EMPTY, "gaussian_dp": NULL},
    ),
)
def accounting(source: RunSource, audience: str) -> Accounting:
    """Return library, conversions, views, closed forms, loss over rounds, privacy profile."""
    private = source.private
    library = mapping(source.header.get("accountant")) if private else {}
    open_profile = audience == INTERNAL or unit_of(source).profile_is_public()
    # That of one trial says less than the selection costs.
    open_profile = open_profile and not tuning.is_selected(source)
    pairs = sequence(source.claim.get("profile")) if private and open_profile else []
    profile = [
        (number(pair[0]), number(pair[1]))
        for pair in pairs[:_PROFILE_POINTS]
        if isinstance(pair, list) and len(pair) == 2
    ]
    points = tuple((e, d) for e, d in profile if e is not None and d is not None)
    return Accounting(
        library=clean(library.get("library"), 60) or None,
        version=clean(library.get("version"), 60) or None,
        accountant=source.accountant if private else None,
        second_library=_second_library(source) if private else None,
        conversions=tuple(_conversions(source, audience)) if private else (),
        events=tuple(trees(source, audience == INTERNAL)),
        views=tuple(guarantee.views(source, audience)),
        closed_forms=tuple(_closed_forms(source, audience)) if private else (),
        over_rounds=tuple(over_rounds(source, audience)),
        profile=points,
        trade_off=tuple((rate, _detected(points, rate)) for rate in _FALSE_ALARMS if points),
        gaussian_dp=_gaussian_dp(source) if points else None,
    )


def _gaussian_dp(source: RunSource) -> GaussianDP | None:
    stated = mapping(source.claim.get("gaussian_dp"))
    mu = number(stated.get("mu"))
    return None if mu is None else GaussianDP(mu=mu, exact=stated.get("exact") is True)


def _detected(profile: Sequence[tuple[float, float]], false_alarms: float) -> float:
    """The largest rate of detection that all points of a profile allow (Dong, Roth & Su 2022)."""
    lines = [
        min(delta + math.exp(min(epsilon, 700.0)) * false_alarms,
            1.0 - math.exp(min(-epsilon, 700.0)) * (1.0 - delta - false_alarms))
        for epsilon, delta in profile
    ]  # fmt: skip
    return min(1.0, *lines)


_NO_NUMBER = {
    "no event": "has no event for what was composed, so it gives no number",
    "too fine": "gives no number: its grids do not reach so many steps",
    "too large": "gives no number: its double precision does not hold e^ε at this ε",
}
_READERS: Mapping[PublicView, str] = {
    "server_worst_case": "against the server, for a client in every round",
    "third_party": "against a third party",
}


def _second_library(source: RunSource) -> SecondLibrary | None:
    """Return what dp-accounting gave for the headline that is public; None if nothing is noted."""
    found = mapping(source.claim.get("dp_accounting"))
    version = clean(found.get("version"), 40)
    view = next((known for known in _READERS if known == found.get("view")), None)
    if not version or view is None:
        return None
    theirs, ours = number(found.get("epsilon")), headline(source.claim.get(view))
    by = f"Google’s dp-accounting {version}"
    if theirs is None or theirs < 0.0 or ours is None:
        reason = _NO_NUMBER.get(clean(found.get("reason"), 40), "gives no number")
        return SecondLibrary(
            version=version, view=view, epsilon=None, lower_bound=False, statement=f"{by} {reason}."
        )
    value, apart = formatting.epsilon(theirs), abs(ours - theirs) / max(theirs, 1e-4)
    bound = found.get("bound") is not None
    if bound:
        said = f"gives {value} as a lower bound, which no accountant can honestly go below"
    elif ours > 1.01 * theirs:
        said = f"gives ε = {value}, which is less than the claim"
    elif apart <= 1e-3 or ours > theirs:
        said = f"gives ε = {value} too and agrees to {formatting.power(max(apart, 1e-9), 1)}"
    else:
        said = f"gives ε = {value}, a relative difference of {formatting.power(apart, 1)}"
    return SecondLibrary(
        version=version,
        view=view,
        epsilon=theirs,
        lower_bound=bound,
        statement=f"{by} {said}, {_READERS[view]}.",
    )


def over_rounds(source: RunSource, audience: str) -> list[SpentAfter]:
    """Return the loss after each round, as the auditor recomputed it."""
    if not source.private:
        return []
    found = []
    chosen = tuning.is_selected(source)
    for raw in sequence(findings.details(source, "accounting").get("over_rounds"))[:2_000]:
        row = mapping(raw)
        index = integer(row.get("round"))
        server = number(row.get("server")) if audience == INTERNAL else None
        if index is not None:
            # Of a selected run the curve is that of its trial alone, which no third party learns.
            third = None if chosen else number(row.get("third_party"))
            found.append(SpentAfter(round=index, server=server, third_party=third))
    return found


def trees(source: RunSource, internal: bool) -> list[EventTree]:
    """Return a tree for each view that has one, in the order of the report.

    Args:
        source: The run.
        internal: Whether the readers may learn how often clients took part.

    Returns:
        Empty where the ledger does not state its parameters, and where steps or noise adapted:
        then no fixed tree describes what was composed.
    """
    if not source.private or not source.claim or mapping(source.header.get("adaptation")):
        return []
    return [
        EventTree(view=view, root=root)
        for view, root in unit_of(source).trees(source)
        if root is not None and view != "trusted_server" and (internal or view != "server")
    ]


def _conversions(source: RunSource, audience: str) -> list[Conversion]:
    """Return each accountant with the headline view's loss by it, where it was computed."""
    view = guarantee.headline(source, audience)
    if tuning.is_selected(source):
        one = accountant_named(source.accountant)
        value = view.epsilon if view is not None else None
        return [Conversion(name=one.title, use=_SELECTED, source=_SELECTION, epsilon=value)]
    found: dict[str, float | None] = dict.fromkeys(ACCOUNTANTS)
    if view is not None:
        found |= unit_of(source).by_accountant(source, audience == INTERNAL)
    found[source.accountant] = view.epsilon if view is not None else None
    return [
        Conversion(
            name=accountant_named(name).title,
            use=accountant_named(name).use,
            source=accountant_named(name).source,
            epsilon=found[name],
        )
        for name in in_order(found)
    ]


def _closed_forms(source: RunSource, audience: str) -> list[ClosedForm]:
    """Return the papers' formulas, with the audit's reading where the audit gives one."""
    stated = mapping(source.claim.get("closed_forms"))
    read = [
        mapping(row) for row in sequence(findings.details(source, "views").get("closed_forms"))[:20]
    ]
    if not read:
        read = [
            {"name": key, "value": stated.get(key), "towards": wording.FORM_TOWARDS[key]}
            for key in wording.FORMULAS
            if number(stated.get(key)) is not None
        ]
    rows = []
    for row in read:
        name = clean(row.get("name"), 120)
        towards = clean(row.get("towards") or wording.FORM_TOWARDS.get(name), 120)
        # A reading against the server's realised ε would show on which side of a public number it
        # lies.
        open_reading = audience == INTERNAL or (
            "third" in towards.lower() and "printed" not in towards.lower()
        )
        reading = clean(row.get("reading"), 120) or "not audited"
        against = _compared(row.get("compared_with")) if audience == INTERNAL else None
        rows.append(
            ClosedForm(
                name=wording.FORM_NAMES.get(name, name) or "unnamed",
                formula=clean(wording.FORMULAS.get(name) or row.get("formula"), 200),
                epsilon=number(row.get("value")),
                towards=towards or "unstated",
                reading=reading if open_reading else "in the internal report",
                compared_with=against,
            )
        )
    return rows


def _compared(value: Any) -> str | None:
    known = number(value)
    return formatting.epsilon(known) if known is not None else clean(value, 120) or None


@dataclass(frozen=True, kw_only=True)
class ViewLine:
    """How the loss in one view is drawn.

    Attributes:
        key: The view.
        label: Against whom.
        colour: Its colour.
        dash: Its dash.
        marker: Its marker.
        place: When it is drawn, from 0.
        spent: The loss of a round in this view.
    """

    key: str
    label: str
    colour: str
    dash: str
    marker: str
    place: int
    spent: Callable[[SpentAfter], float | None]

    def draw(self, axes: Axes, x: list[float], y: list[float]) -> None:
        """Draw points of it; where both views agree, each can still be seen."""
        axes.plot(
            x, y, self.dash, color=self.colour, label=self.label, marker=self.marker,
            clip_on=False, **tell_apart(self.place, _VIEWS_DRAWN, len(x)),
        )  # fmt: skip


_VIEWS_DRAWN = 2
VIEW_LINES = (
    ViewLine(
        key="server",
        label="against the server",
        colour=BLUE,
        dash="-",
        marker="o",
        place=0,
        spent=lambda row: row.server,
    ),
    ViewLine(
        key="third_party",
        label="against a third party",
        colour=ORANGE,
        dash="--",
        marker="s",
        place=1,
        spent=lambda row: row.third_party,
    ),
)


_EXACT_MU = (
    "In Gaussian differential privacy μ is {mu}: neighbouring data sets can be told apart as well "
    "as two normal distributions of standard deviation 1 whose means are μ apart."
)
_LARGEST_MU = (
    "In Gaussian differential privacy μ is at most {mu}, up to a δ of 10⁻¹⁰. Neighbouring data "
    "sets cannot be told apart better than two normal distributions of standard deviation 1 whose "
    "means are μ apart."
)
_EVENTS = "What the accountant composed, from the outermost event inwards."
_EVENTS_OF_RECORDS = f"{_EVENTS} Sampling and noise are those of the client that spends most."
_NO_EVENTS = (
    "No fixed tree of events describes this run: the ledger does not state all of them, or steps "
    "or noise adapt."
)
# By the unit of protection; records are the usual case.
_INTRODUCTIONS = {"client": _EVENTS}
_PROFILES_OF = {"client": "against a third party"}


def _blocks(report: Report) -> Iterator[Block]:
    accounting = report[Accounting]
    if not report[Guarantee].private:
        yield paragraph("There is no differential privacy to account for.")
        return
    composed = "The ledger does not name its accounting library."
    if accounting.library is not None:
        named = f"Composed with {accounting.library} {accounting.version or ''}".rstrip()
        composed = f"{named}, and converted as follows."
    second = accounting.second_library
    yield paragraph(f"{composed} {second.statement}" if second is not None else composed)
    yield table(
        "Conversions to ε and δ",
        ("Conversion", "ε", "Used for", "Source"),
        [
            [
                row.name,
                formatting.epsilon(row.epsilon) if row.epsilon is not None else "–",
                row.use,
                row.source,
            ]
            for row in accounting.conversions
        ],
        (LEFT, RIGHT, LEFT, LEFT),
        (0, 0, 1.4, 1),
    )
    labels = {view.key: view.label for view in accounting.views}
    introduction = _INTRODUCTIONS.get(report[Guarantee].unit, _EVENTS_OF_RECORDS)
    yield subheading("Events")
    yield paragraph(introduction if accounting.events else _NO_EVENTS)
    for entry in accounting.events:
        yield tree(labels.get(entry.view, entry.view), _branch(entry.root))
    yield from shown(report, "epsilon-over-rounds", "privacy-profile")
    if accounting.trade_off:
        rates, detected = zip(*accounting.trade_off, strict=True)
        yield table(
            "What a test for membership detects at most",
            ("False alarms of a test for membership", *map(_percent, rates)),
            [["Detected at most", *(_percent(math.ceil(1000 * one) / 1000) for one in detected)]],
            (LEFT, *[RIGHT] * len(rates)),
            (3, *[1] * len(rates)),
        )
    if accounting.gaussian_dp is not None:
        mu = _in_thousandths(accounting.gaussian_dp.mu)
        bound = _EXACT_MU if accounting.gaussian_dp.exact else _LARGEST_MU
        yield paragraph(bound.format(mu=mu))
    if accounting.closed_forms:
        yield from _closed_form_blocks(report)


def _in_thousandths(mu: float) -> str:
    """μ in three decimals, rounded up; one that a hostile claim states may be of any size."""
    return f"{math.ceil(1000 * mu - 1e-9) / 1000:.3f}" if mu < 1e9 else f"{mu:g}"


def _percent(share: float) -> str:
    return f"{100 * min(1.0, share):.3g} %"


def _branch(event: Event) -> dict[str, Any]:
    return {"text": event.text, "of": [_branch(inner) for inner in event.of]}


def _closed_form_blocks(report: Report) -> Iterator[Block]:
    forms = report[Accounting].closed_forms
    head = ["Closed form", "Formula", "Said to be for", "ε", "Reading"]
    rows = [
        [form.name, form.formula, form.towards, formatting.epsilon(form.epsilon), form.reading]
        for form in forms
    ]
    align, widths = [LEFT, LEFT, LEFT, RIGHT, LEFT], [1.5, 1.75, 1.0, 0.0, 1.05]
    if report.internal:
        head, align, widths = [*head, "Against"], [*align, RIGHT], [*widths, 0.0]
        rows = [
            [*cells, form.compared_with or "–"] for cells, form in zip(rows, forms, strict=True)
        ]
    yield subheading("Closed forms from the literature")
    yield paragraph(
        "Their constants are taken as 1. No guarantee here rests on them. The reading compares "
        "each with the direct composition."
    )
    yield table("Closed forms from the literature", head, rows, align, widths, small=True)


def _describe_spent(report: Report) -> FigureText | None:
    parts = []
    for line in VIEW_LINES:
        rounds, values = known_pairs(
            (row.round, line.spent(row)) for row in report[Accounting].over_rounds
        )
        if len(rounds) > 1:
            parts.append(
                f"{line.label} ε grows from {formatting.epsilon(values[0])} after round "
                f"{rounds[0]} to {formatting.epsilon(values[-1])} after round {rounds[-1]}"
            )
    if not parts:
        return None
    return FigureText(
        identifier="epsilon-over-rounds",
        title="Privacy spent over the rounds",
        caption="ε spent after each round, recomputed from the ledger by the auditor.",
        alternative_text=f"Line chart: {'; '.join(parts)}.",
    )


def _draw_spent(axes: Axes, report: Report) -> None:
    rows = report[Accounting].over_rounds
    for line in VIEW_LINES:
        rounds, values = known_pairs((row.round, line.spent(row)) for row in rows)
        if rounds:
            line.draw(axes, rounds, values)
    axes.set_ylabel("ε spent")
    axes.set_ylim(bottom=0)
    figures.over_rounds(axes, max(row.round for row in rows))
    axes.legend(loc="upper left")


def _spent_data(report: Report) -> FigureData:
    rows = report[Accounting].over_rounds
    lines = [line for line in VIEW_LINES if any(line.spent(row) is not None for row in rows)]
    return FigureData(
        ("round", *(f"epsilon_{line.key}" for line in lines)),
        tuple((row.round, *(line.spent(row) for line in lines)) for row in rows),
    )


def _describe_profile(report: Report) -> FigureText | None:
    points = report[Accounting].profile
    if len(points) < 2:
        return None
    of = _PROFILES_OF.get(report[Guarantee].unit, "of the client with the largest loss")
    (first, most), (last, least) = points[0], points[-1]
    return FigureText(
        identifier="privacy-profile",
        title=f"Privacy profile {of}",
        caption="The smallest δ for each ε. The guarantee is the whole curve; the headline is one "
        "point of it.",
        alternative_text=f"Line chart: δ falls from {formatting.power(most)} at ε = "
        f"{formatting.plain(first)} to {formatting.power(least)} at ε = {formatting.plain(last)}.",
    )


def _draw_profile(axes: Axes, report: Report) -> None:
    points = [pair for pair in report[Accounting].profile if pair[1] > 0]
    axes.plot([pair[0] for pair in points], [pair[1] for pair in points], color=BLUE)
    axes.set_yscale("log")
    exponents = [math.log10(delta) for _, delta in points] or [0.0]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    step = max(1, (high - low) // 5)
    powers_of_ten(axes.yaxis, range(low, high + 1, step))
    epsilon, delta = report[Guarantee].epsilon, report[Guarantee].delta
    if epsilon is not None and delta:
        axes.plot([epsilon], [delta], "D", color=ORANGE, markersize=5)
        axes.annotate(
            f"headline: ε = {formatting.epsilon(epsilon)}, δ = {formatting.power(delta)}",
            (epsilon, delta),
            textcoords="offset points",
            xytext=(8, 7),
            color=INK,
        )
    axes.set_xlabel("ε")
    axes.set_ylabel("δ")


def _profile_data(report: Report) -> FigureData:
    return FigureData(("epsilon", "delta"), report[Accounting].profile)


register(
    ReportSection(
        identifier="accounting",
        title="Accounting",
        place=300,
        blocks=_blocks,
        figures=(
            Figure(
                identifier="epsilon-over-rounds",
                describe=_describe_spent,
                draw=_draw_spent,
                data=_spent_data,
            ),
            Figure(
                identifier="privacy-profile",
                describe=_describe_profile,
                draw=_draw_profile,
                data=_profile_data,
            ),
        ),
    )
)
