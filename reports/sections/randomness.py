"""The section on randomness: where random numbers came from, and what that does to the claim."""

from __future__ import annotations

from collections.abc import Iterator

from reports.content import wording
from reports.content.parts import FOR_THE_PUBLIC, INTERNAL, NULL, Part, Report, Rule, part
from reports.content.sections import ReportSection, register
from reports.document.blocks import Block, code, note, paragraph
from reports.reading.files import clean, integer
from reports.reading.source import RunSource

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
        caveat: What reproducible mode does to the guarantee.
        seed: The seed; internal only.
        commitment: Commitment to the key; internal only, where it also keeps this report's hash
            from confirming a guess.
    """

    mode: str
    statement: str
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
        statement=_STATEMENTS.get(mode, unstated),
        caveat=wording.SEED_CAVEAT if mode == "reproducible" and source.private else None,
        seed=integer(header.get("seed")) if internal else None,
        # Unguessable, so with it no one can confirm a guessed internal report by its public hash.
        commitment=(clean(header.get("commitment"), 128) or None) if internal else None,
    )


def _blocks(report: Report) -> Iterator[Block]:
    randomness = report[Randomness]
    if randomness.caveat is not None:
        yield note(f"Reproducible mode: {randomness.caveat}.", "FAIL", loud=True)
    yield paragraph(f"Mode: {randomness.mode}. {randomness.statement}")
    if randomness.seed is not None:
        yield paragraph(f"Seed: {randomness.seed}.")
    if randomness.commitment is not None:
        yield paragraph(["Commitment to the key: ", code(randomness.commitment)])


register(ReportSection(identifier="randomness", title="Randomness", place=700, blocks=_blocks))
