"""The section on randomness: where random numbers came from, and what that does to the claim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reports.content import wording
from reports.content.parts import FOR_THE_PUBLIC, INTERNAL, NULL, Part, Report, Rule, part
from reports.content.sections import ReportSection, register
from reports.document import Block, code, note, paragraph
from reports.files import clean, integer, mapping
from reports.source import RunSource

_STATEMENTS = {
    "reproducible": "Every draw comes from one seed, so the run can be repeated bit by bit.",
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
        challenge: Whether an auditor had a part in choosing the noise, in one or two sentences.
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
        f"Sampling and noise come from {generator}, which is not cryptographic: whoever learns its "
        "state can draw them again."
    )


def _challenge(header: dict[str, Any]) -> str:
    """Return whether an auditor had a part in choosing the noise."""
    coin = mapping(header.get("public_coin"))
    if not coin:
        return (
            "No auditor had a part in it: that the key was drawn by chance rests on the trainer's "
            "word."
        )
    who = clean(coin.get("challenger"), 80)
    one = (
        " Auditor and trainer are one: the challenge is by a key of the trainer's own folder, so "
        "it shows nothing to anybody else."
        if coin.get("own") is True
        else ""
    )
    return (
        f"Spec, data and keys were announced before an auditor ({who}) drew a nonce, under which "
        f"all noise was drawn: {_seen(coin)}.{one}"
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


def _blocks(report: Report) -> Iterator[Block]:
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


register(ReportSection(identifier="randomness", title="Randomness", place=700, blocks=_blocks))
