"""What was done to gradients or updates, to whose, and with which randomness."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reports import document, formatting
from reports.content import tuning, wording
from reports.content.guarantee import NO_PRIVACY
from reports.content.identity import Identity, settings
from reports.content.parts import (
    EMPTY,
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    Count,
    Figure,
    FigureText,
    Loss,
    Part,
    Report,
    ReportSection,
    Rule,
    Setting,
    part,
    register,
    shown,
)
from reports.content.units import unit_of
from reports.document import Block, code, note, paragraph
from reports.figures import BLUE, ORANGE, FigureData, whole_numbers
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Columns that a sentence names.
_MOST_NAMES = 6
# A description that is no longer stands on the first page.
_SHORT = 280


class Mechanism(Part):
    """What was done to the gradients.

    Attributes:
        algorithm: The algorithm's name.
        statement: The mechanism in words.
        clipping_norm: L2 clip C of one record's gradient, or of one client's update.
        noise_multiplier: Noise multiplier σ.
        expected_batch_size: Public divisor B.
        noise_added_by: Who adds the noise where clients are protected: server, or clients.
        local_steps: Local steps a round.
        local_steps_in_words: Local steps of a round, such as 5, or at most 10 where they adapt.
        rounds: Rounds planned.
        rounds_completed: Rounds that the ledger records as completed.
        settings: The algorithm's settings.
    """

    algorithm: str
    statement: str
    clipping_norm: Loss | None
    noise_multiplier: Loss | None
    expected_batch_size: Loss | None
    noise_added_by: str | None
    local_steps: int | None
    local_steps_in_words: str
    rounds: int | None
    rounds_completed: Count
    settings: tuple[Setting, ...]


class Sampling(Part):
    """How clients and records were drawn, as implemented.

    Attributes:
        statement: Sampling in words.
        clients: Number of clients.
        clients_per_round: Clients that take part in a round; on average, where participation is
            stated.
        participation: Chance of each client to take part in a round, where clients are protected.
        rate_smallest: Smallest sampling rate of any client, by its size.
        rate_largest: Largest sampling rate of any client, by its size.
        client_sampling: How the clients of a round are drawn: fixed-size, poisson or unstated.
        expected_participations: In how many rounds a client was expected to take part.
        participations: In how many completed rounds each client took part, in client order. In the
            public report empty, unless every client is in every round anyway.
    """

    statement: str
    clients: int | None
    clients_per_round: int | None
    participation: Loss | None
    rate_smallest: Loss | None
    rate_largest: Loss | None
    client_sampling: str
    expected_participations: Loss | None
    participations: tuple[Count, ...]


@part("mechanism", Mechanism)
def mechanism(source: RunSource, audience: str) -> Mechanism:
    """Return what was done to gradients or updates."""
    header, unit, private = source.header, unit_of(source), source.private
    algorithm = mapping(source.spec.get("algorithm"))
    without = (
        f"Plain federated training with {NO_PRIVACY}: gradients are neither clipped nor noised."
    )
    return Mechanism(
        algorithm=clean(algorithm.get("name"), 100) or "unknown",
        statement=f"{unit.mechanism(source)}{_learnt(source)}{_sites(source)}"
        f"{shared_budget(source, audience)}"
        if private
        else without,
        clipping_norm=number(header.get("clipping_norm")) if private else None,
        noise_multiplier=number(header.get("noise_multiplier")) if private else None,
        expected_batch_size=unit.batch(source) if private else None,
        noise_added_by=unit.noise_added_by(source),
        local_steps=integer(header.get("local_steps")),
        local_steps_in_words=tuning.local_steps(header),
        rounds=integer(header.get("rounds")),
        rounds_completed=source.rounds_completed,
        settings=settings({key: value for key, value in algorithm.items() if key != "name"}),
    )


@part(
    "sampling",
    Sampling,
    Rule(
        {**FOR_THE_PUBLIC, "sampling.client_sampling": {"const": "poisson"}},
        {"participations": EMPTY},
    ),
)
def sampling(source: RunSource, audience: str) -> Sampling:
    """Return how clients and records were drawn, and how often, where that is no secret."""
    clients, chosen = source.clients, source.clients_per_round
    if source.recorded:
        clients, chosen = _of_rounds(source)
    drawn_by = clean(source.header.get("client_sampling"), 60)
    everybody = drawn_by != "poisson" and clients == chosen
    draws = unit_of(source).draws(source)
    return Sampling(
        statement=draws.statement,
        clients=clients,
        clients_per_round=chosen,
        participation=draws.participation,
        rate_smallest=min(draws.rates, default=None),
        rate_largest=max(draws.rates, default=None),
        client_sampling=drawn_by or "unstated",
        expected_participations=chosen / clients * source.rounds_completed
        if clients and chosen
        else None,
        participations=source.participations if audience == INTERNAL or everybody else (),
    )


def shared_budget(source: RunSource, audience: str) -> str:
    """A sentence on the budget, with a space before it; empty for a run without one.

    What is left shows what other runs spent, and how often this one's clients took part, so it is
    for the internal report alone.
    """
    declared = mapping(source.header.get("budget"))
    epsilon, delta = number(declared.get("epsilon")), number(declared.get("delta"))
    if epsilon is None or delta is None:
        return ""
    kept = (
        f" The run kept to a budget of ε = {formatting.plain(epsilon)} at δ = "
        f"{formatting.plain(delta)} for all runs on these data together"
    )
    if audience != INTERNAL:
        return f"{kept}."
    charged = number(mapping(source.claim.get("budget")).get("charged"))
    if charged is None:
        return f"{kept}; what is left of it was not known when the run ended."
    left = max(0.0, epsilon - charged)
    return (
        f"{kept}; when it ended, ε = {formatting.epsilon(charged)} of it was spent or reserved, "
        f"and {formatting.plain(left)} was left."
    )


def _learnt(source: RunSource) -> str:
    """Which bounds were learnt privately, and what that cost; with a space before it."""
    declared = mapping(source.header.get("column_queries"))
    names = [clean(name, 60) for name in sequence(declared.get("columns"))]
    sigma = number(declared.get("noise_multiplier"))
    if not names or sigma is None:
        return ""
    shown = ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")
    alone = number(mapping(source.claim.get("columns")).get("epsilon"))
    cost = "What that costs is part of the run's ε."
    if alone is not None:
        cost = f"That alone costs ε = {formatting.epsilon(alone)}, which is part of the run's ε."
    return (
        f" Before the first round, the bounds of {formatting.count(len(names))} "
        f"{'column' if len(names) == 1 else 'columns'} ({shown}) were learnt privately. Each "
        "client counted its records in public cells and sent the counts with Gaussian noise of "
        f"standard deviation {formatting.plain(sigma)}. {cost}"
    )


def _sites(source: RunSource) -> str:
    """Where clients kept their own records and evidence; with a space before it."""
    keys = mapping(source.header.get("sites")).get("keys")
    if not isinstance(keys, list) or not keys:
        return ""
    return (
        f" Each of the {formatting.count(len(keys))} clients ran as a process of its own, with its "
        "own records and key. It kept the ledger and the evidence of its participations, signed "
        "its uploads, and submitted what the audit read."
    )


def _of_rounds(source: RunSource) -> tuple[int | None, int | None]:
    """Clients, and those of a round, of somebody else's rounds; a loop of records has none."""
    cohort = number(source.header.get("expected_batch_size"))
    if not source.protects_clients or cohort is None:
        return None, None
    return round(sum(source.records)), round(cohort)


def setting_in_words(name: str) -> str:
    """A setting's name. What is called epsilon in an algorithm is no privacy loss."""
    group, _, last = name.rpartition(".")
    return " ".join(filter(None, (group, "denominator’s constant"))) if last == "epsilon" else name


def short_description(report: Report) -> str:
    """Return the run's description if the first page has room for it."""
    text = report[Identity].description
    return text if len(text) <= _SHORT else ""


def _blocks(report: Report) -> Iterator[Block]:
    identity, mechanism = report[Identity], report[Mechanism]
    if identity.description and not short_description(report):
        yield paragraph(identity.description, "quote")
    yield paragraph(mechanism.statement)
    yield paragraph(report[Sampling].statement)
    yield from shown(report, "client-sampling")
    rows = [("algorithm", mechanism.algorithm)]
    rows += [(setting_in_words(row.name), row.value) for row in mechanism.settings]
    rows += [(f"model.{row.name}", row.value) for row in identity.model]
    rows += [(f"partition.{row.name}", row.value) for row in identity.partition]
    if identity.pretrained is not None:
        rows += [(f"pretrained.{name}", value) for name, value in identity.pretrained]
    yield document.settings("Settings of algorithm, model and partition", rows)


def _describe(report: Report) -> FigureText | None:
    sampling = report[Sampling]
    counts, expected = sampling.participations, sampling.expected_participations
    # Where everybody is in every round there is nothing to see.
    if len(set(counts)) < 2:
        return None
    mean = f", {formatting.plain(expected)} expected" if expected is not None else ""
    return FigureText(
        identifier="client-sampling",
        title="How often clients took part",
        caption="Number of clients by the number of completed rounds that they took part in.",
        alternative_text=f"Bar chart of {len(counts)} clients: from {min(counts)} to {max(counts)} "
        f"rounds, median {formatting.plain(statistics.median(counts))}{mean}.",
    )


def _draw(axes: Axes, report: Report) -> None:
    sampling = report[Sampling]
    counted, expected = Counter(sampling.participations), sampling.expected_participations
    places = sorted(counted)
    axes.bar(places, [counted[place] for place in places], width=0.8, color=BLUE)
    if expected is not None:
        axes.axvline(
            expected, color=ORANGE, linestyle="--", linewidth=1.2,
            label=f"expected: {formatting.plain(expected)}",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_xlabel("rounds taken part in")
    axes.set_ylabel("clients")
    whole_numbers(axes.yaxis, 6)
    axes.grid(axis="x", visible=False)
    whole_numbers(axes.xaxis)


def _data(report: Report) -> FigureData:
    return FigureData(
        ("client", "participations"), tuple(enumerate(report[Sampling].participations))
    )


register(
    ReportSection(
        identifier="mechanism",
        title="Mechanism and sampling",
        place=200,
        blocks=_blocks,
        figures=(
            Figure(
                identifier="client-sampling",
                describe=_describe,
                draw=_draw,
                data=_data,
            ),
        ),
    )
)


_STATEMENTS = {
    "reproducible": "Every draw comes from one seed, so the run can be repeated bit for bit.",
    "release": (
        "Sampling and noise come from the operating system's entropy, expanded by a cryptographic "
        "generator. No seed is stored; the ledger holds only a commitment to the key."
    ),
}


class Randomness(Part):
    """Where random numbers came from.

    Attributes:
        mode: release or reproducible.
        statement: The mode in words.
        challenge: Whether an auditor took part in choosing the noise, in some sentences.
        announced: The same in a few words, for the first page; None without an auditor.
        caveat: What reproducible mode does to the guarantee.
        seed: The seed; internal only.
        commitment: Commitment to the key; internal only, where it also keeps this report's hash
            from confirming a guess.
    """

    mode: str
    statement: str
    challenge: str | None
    announced: str | None
    caveat: str | None
    seed: int | None
    commitment: str | None


@part("randomness", Randomness, Rule(FOR_THE_PUBLIC, {"seed": NULL, "commitment": NULL}))
def randomness(source: RunSource, audience: str) -> Randomness:
    """Return the mode, and what an audience may know of its seed or key."""
    header, internal = source.header, audience == INTERNAL
    mode = clean(header.get("randomness"), 40) or "unstated"
    unstated = "The ledger does not state how random numbers were made."
    return Randomness(
        mode=mode,
        statement=_of_a_loop(header) if source.recorded else _STATEMENTS.get(mode, unstated),
        challenge=_challenge(header)
        if mode == "release" and source.private and not source.recorded
        else None,
        announced=_announced(header),
        caveat=wording.SEED_CAVEAT if mode == "reproducible" and source.private else None,
        seed=integer(header.get("seed")) if internal else None,
        # Unguessable, so with it no one can confirm a guessed internal report by its public hash.
        commitment=(clean(header.get("commitment"), 128) or None) if internal else None,
    )


def _of_a_loop(header: dict[str, Any]) -> str:
    """Return what a recorded loop declares of its generator."""
    producer = mapping(header.get("producer"))
    generator = clean(producer.get("generator"), 120) or "a generator that is not stated"
    if producer.get("secure") is True:
        return f"Sampling and noise come from {generator}, as the loop declares."
    return (
        f"Sampling and noise come from {generator}, which is not cryptographic: anyone who learns "
        "its state can repeat the draws."
    )


def _challenge(header: dict[str, Any]) -> str:
    """Return whether an auditor took part in choosing the noise."""
    coin = mapping(header.get("public_coin"))
    if not coin:
        return (
            "No auditor took part in this. Only the trainer’s word says that the key was drawn at "
            "random."
        )
    who = clean(coin.get("challenger"), 80)
    one = (
        " The challenge was made with a key of the trainer’s own folder, so it proves nothing to "
        "anyone else."
        if coin.get("own") is True
        else ""
    )
    return (
        f"Spec, data and keys were announced before an auditor ({who}) drew a nonce. All noise was "
        f"drawn under that nonce: {_seen(coin)}.{one}"
    )


def _announced(header: dict[str, Any]) -> str | None:
    """Return what the first page says of the challenge."""
    coin = mapping(header.get("public_coin"))
    if not coin:
        return None
    who = "the trainer's own" if coin.get("own") is True else "an auditor's"
    return f"under {who} nonce; {_seen(coin)}"


def _seen(coin: dict[str, Any]) -> str:
    """Return how many intents the auditor saw, and how many of them came to nothing."""
    seen = mapping(coin.get("intents"))
    same, every = integer(seen.get("for_data")), integer(seen.get("of_trainer"))
    dropped = integer(seen.get("dropped")) or 0
    in_all = integer(seen.get("dropped_of_trainer")) or 0
    words = f"intent number {same} for these data"
    if same is not None and same > 1:
        words += f"; {dropped} of the earlier ones came to nothing"
    if every != same:
        words += f" (number {every} of this trainer, of which {in_all} came to nothing)"
    return words


def _randomness_blocks(report: Report) -> Iterator[Block]:
    randomness = report[Randomness]
    if randomness.caveat is not None:
        yield note(f"Reproducible mode: {randomness.caveat}.", "FAIL", loud=True)
    yield paragraph(f"Mode: {randomness.mode}. {randomness.statement}")
    if randomness.challenge is not None:
        yield paragraph(randomness.challenge)
    if randomness.seed is not None:
        yield paragraph(f"Seed: {randomness.seed}.")
    if randomness.commitment is not None:
        yield paragraph(["Commitment to the key: ", code(randomness.commitment)])


register(
    ReportSection(identifier="randomness", title="Randomness", place=700, blocks=_randomness_blocks)
)
