"""How much stands behind a PASS, in four levels that are computed and never declared.

The verdict says whether anything contradicts the claim; the level says how hard it would have been
to forge the run. It follows from the findings, the ledger's header, and whose keys signed.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from pydantic import WithJsonSchema

from reports.content import findings
from reports.content.parts import INTERNAL, PUBLIC, Part, part
from reports.files import clean, mapping
from reports.source import RunSource

MOST: Final = 4


class Level(NamedTuple):
    """One level.

    Attributes:
        name: Its name.
        means: What was done, and what a liar would still get away with.
        next: How to reach the next one.
    """

    name: str
    means: str
    next: str


LEVELS: Final = {
    1: Level(
        "consistent",
        "Nothing in the files contradicts the claim. Evidence that the trainer forged consistently "
        "would pass.",
        "Level 2 needs participations computed again: dpfedadamw run SPEC --replay 20.",
    ),
    2: Level(
        "re-executed",
        "Participations that were drawn after training were computed again from data and key. A "
        "trainer who chose the noise, or who did this computing too, could still lie.",
        "Level 3 needs a run that was announced to an auditor with another key before it began: "
        "dpfedadamw challenge.",
    ),
    3: Level(
        "challenged",
        "Neither side could choose the noise, and the holder of another key computed "
        "participations again that were drawn after training. Participations that were not drawn "
        "may be false, and two keys in one hand would pass.",
        "Level 4 needs an auditor’s key and a time-stamping authority that the reader trusts: "
        "dpfedadamw verify RUN_DIR --auditor-key PUB --tsa-root PEM.",
    ),
    4: Level(
        "independent",
        "Neither side could choose the noise, an auditor whose key you trust computed "
        "participations again that were drawn after training, and an authority that you trust "
        "attests when. Participations that were not drawn may be false.",
        "",
    ),
}


_RECORDED: Final = (
    "A loop that was recorded stays at this level: nobody else can run its program again, and "
    "nothing commits to the weights that it began with, which may have been made from the records."
)


class Assurance(Part):
    """How much stands behind the verdict.

    Attributes:
        level: From 1 to 4; null where the verdict is not PASS. Level 4 depends on whom the reader
            trusts, so that no report has it: verify says it.
        name: The level's name; empty without a level.
        means: What was done, and what a liar would still get away with.
        next: What the next level needs.
    """

    level: Annotated[
        int | None,
        WithJsonSchema(
            {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}, {"type": "null"}]}
        ),
    ]
    name: str
    means: str
    next: str


class Facts(NamedTuple):
    """What of a run's files a level is computed from.

    Attributes:
        verdict: The audit's.
        agrees: Whether participations, drawn after training, were computed again and agree.
        participations: How many were drawn; None where none were, or where the number would tell
            how many took part.
        public_coin: Whether the noise follows from an auditor's nonce.
    """

    verdict: str
    agrees: bool
    participations: int | None
    public_coin: bool

    def attested(self) -> dict[str, Any]:
        """As an attestation has them; the verdict stands there by itself."""
        return {key: value for key, value in self._asdict().items() if key != "verdict"}


def facts_of(source: RunSource) -> Facts:
    """Return the facts of a run's files, which the public may know."""
    passed = {check.name for check in findings.checks(source, INTERNAL) if check.verdict == "PASS"}
    agrees, told = "reexecution" in passed, findings.details(source, "reexecution")
    drawn, among = told.get("drawn"), told.get("participations")
    known = agrees and type(drawn) is int and type(among) is int and 0 < drawn < among
    return Facts(
        findings.verdict(source, PUBLIC).value,
        agrees,
        drawn if known else None,
        bool(mapping(source.header.get("public_coin"))),
    )


def facts_from(predicate: dict[str, Any]) -> Facts | None:
    """Return the facts that an auditor attests; None from a version that attests none."""
    if "reexecution" not in predicate:
        return None
    said = mapping(predicate["reexecution"])
    drawn = said.get("participations")
    return Facts(
        clean(predicate.get("verdict"), 40),
        said.get("agrees") is True,
        drawn if type(drawn) is int else None,
        said.get("public_coin") is True,
    )


def level_of(
    facts: Facts,
    *,
    another_key: bool,
    key_is_trusted: bool = False,
    time_is_trusted: bool = False,
) -> int | None:
    """Compute a run's level.

    Args:
        facts: Of its files, or as its auditor attests them; they count as far as the auditor's
            findings do.
        another_key: Whether the findings are signed by a key that is known not to be the trainer's.
        key_is_trusted: Whether the reader knows the auditor's key from elsewhere than the run.
        time_is_trusted: Whether an authority that the reader trusts attests when it was signed.

    Returns:
        From 1 to 4; None where the verdict is not PASS.
    """
    if facts.verdict != "PASS":
        return None
    if not facts.agrees:
        return 1
    if not (facts.public_coin and another_key):
        return 2
    return 4 if key_is_trusted and time_is_trusted else 3


@part("assurance", Assurance)
def assurance(source: RunSource, _audience: str) -> Assurance:
    """Return the level that the files and the keys known to whoever signs establish."""
    level = level_of(facts_of(source), another_key=source.audited_by_another)
    if level is None:
        return Assurance(level=None, name="", means="", next="")
    found = LEVELS[level]
    recorded = source.recorded
    means = f"{found.means} {_RECORDED}" if recorded else found.means
    return Assurance(level=level, name=found.name, means=means, next="" if recorded else found.next)
