"""How much stands behind a PASS, in four levels that are computed and never declared.

The verdict says whether anything contradicts the claim; the level says how hard it would have been
to forge the run. It follows from the findings, the ledger's header, and whose keys signed.

The section on trust says whom the reader has to believe.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import WithJsonSchema

from reports.content import findings
from reports.content.parts import (
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    PUBLIC,
    Count,
    Part,
    Report,
    ReportSection,
    Rule,
    part,
    register,
)
from reports.document import Block, titled
from reports.files import clean, integer, mapping
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
        "Level 2 needs some of the training recomputed: dpfedadamw run SPEC --replay 20.",
    ),
    2: Level(
        "re-executed",
        "Participations drawn after training were recomputed from the data and the key. A trainer "
        "who chose the noise, or who did the recomputing, could still lie.",
        "Level 3 needs a run that was announced to an auditor with another key before it began: "
        "dpfedadamw challenge.",
    ),
    3: Level(
        "challenged",
        "Neither side could choose the noise. The holder of another key recomputed participations "
        "drawn after training. Participations that were not drawn may be false, and two keys held "
        "by one person would pass.",
        "Level 4 needs an auditor’s key and a time-stamping authority that the reader trusts: "
        "dpfedadamw verify RUN_DIR --auditor-key PUB --tsa-root PEM.",
    ),
    4: Level(
        "independent",
        "Neither side could choose the noise. An auditor whose key you trust recomputed "
        "participations drawn after training, and an authority that you trust attests when. "
        "Participations that were not drawn may be false.",
        "",
    ),
}


_RECORDED: Final = (
    "A recorded loop stays at this level: nobody else can run its program again. Nothing commits "
    "to its first weights, which may have been made from the records."
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
    """The facts of a run's files that a level is computed from.

    Attributes:
        verdict: The audit's.
        agrees: Whether participations, drawn after training, were computed again and agree.
        participations: How many were drawn; None where none were, or where the number would tell
            how many took part.
        public_coin: Whether the noise follows from an auditor's nonce, and not from the trainer's
            own. Whose nonce it is, `verify` checks.
    """

    verdict: str
    agrees: bool
    participations: int | None
    public_coin: bool

    def attested(self) -> dict[str, Any]:
        """As an attestation has them; it has the verdict elsewhere."""
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
        _is_announced(source),
    )


def _is_announced(source: RunSource) -> bool:
    """Whether the header has a challenge that it does not call the trainer's own."""
    coin = mapping(source.header.get("public_coin"))
    return bool(coin) and coin.get("own") is not True


def _is_challenged(source: RunSource) -> bool:
    """Whether the nonce that fixed the noise is of the auditor who signs, if not the trainer.

    A trainer with two keys could else challenge a run with one and have a stranger audit it.
    """
    signed = source.auditing
    if not _is_announced(source) or signed is None or not signed.independent:
        return _is_announced(source)
    challenger = mapping(source.header.get("public_coin")).get("challenger")
    return challenger in {signed.auditor, *signed.replaced}


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
    """Return the level that the files and the keys known to the signer establish."""
    facts = facts_of(source)._replace(public_coin=_is_challenged(source))
    level = level_of(facts, another_key=source.audited_by_another)
    if level is None:
        return Assurance(level=None, name="", means="", next="")
    found = LEVELS[level]
    recorded = source.recorded
    means = f"{found.means} {_RECORDED}" if recorded else found.means
    return Assurance(level=level, name=found.name, means=means, next="" if recorded else found.next)


Auditor = Literal["nobody", "trainer", "another key"]
Fingerprints = Annotated[
    tuple[str, ...],
    WithJsonSchema({"type": "array", "items": {"type": "string", "minLength": 1}}),
]

_CHECKED = {
    "nobody": "Nobody. There is no usable audit of this run.",
    "trainer": "The trainer (self-audited). {whose} The audit can therefore reveal mistakes, but "
    "not fraud. Someone else can audit and sign: dpfedadamw audit RUN_DIR --write.",
    "another key": "An independent auditor, as far as keys show. The key {auditor} signs the "
    "findings, and another key, {trainer}, signs the run. No signature can show that two keys "
    "belong to two people.",
}
_SAME_PERSON = "The same person holds the trainer’s and the auditor’s key."
_UNKNOWN_KEY = "The auditor’s key is unknown."
_AGAIN_NONE = (
    "Nobody has recomputed any of the training from the data. A trainer who forged all the "
    "evidence consistently would pass this audit."
)
_AGAIN = (
    "{drawn} participations, drawn after the run, were recomputed from the data and the key, and "
    "agree. The trainer alone vouches for the rest of the evidence."
)
_AGAIN_ALL = "Every participation was recomputed from the data and the key, and agrees."
_AGAIN_SOME = (
    "Participations drawn after the run were recomputed from the data and the key, and agree. The "
    "internal report says how many. The trainer alone vouches for the rest of the evidence."
)
_AGAIN_NOT = "Recomputing the training did not give the same result: see the audit."
_WORD = (
    "Each record is a person’s own{once}. No further training used these records. No copy of data, "
    "evidence or {secret} went elsewhere.{chance}"
)
_AT_ONE_CLIENT = ", and is at one client, once"
_WORD_OF_CHANCE = " The key of the noise was drawn by chance."
_LOOPS_CHANCE = " The noise was drawn by chance."
_NOBODYS = {
    "integrity": "The files are complete and chained.",
    "accounting": "The claimed ε is what the recorded steps cost, according to a second program.",
    "weights": "The published model is the one that the recorded rounds end in.",
}


class Trust(Part):
    """Who checked the run, and who vouches for what.

    Attributes:
        auditor: Whose key signs the findings: the trainer's (or one that is not known), another
            one; or nobody's, without an audit.
        keys: Fingerprints of the auditor's and the trainer's key, where they differ.
        signer: Fingerprint of the key that signs the findings and this report; empty where it was
            not known when the report was made.
        checked: Who checked, in words.
        recomputed: How many participations were recomputed and agreed; null where none was, and for
            the public, whom the number might tell who took part.
        again: What was recomputed, in words; empty without an audit or without privacy.
        word: What the trainer alone vouches for.
        nobodys: What anyone can check from the files, as far as the audit passed it.
    """

    auditor: Auditor
    keys: Fingerprints
    signer: str
    checked: str
    recomputed: Count | None
    again: str
    word: str
    nobodys: tuple[str, ...]


@part("trust", Trust, Rule(FOR_THE_PUBLIC, {"recomputed": NULL}))
def trust(source: RunSource, audience: str) -> Trust:
    """Return who checked, what was recomputed, and who vouches for what."""
    auditor: Auditor = "nobody"
    if source.audit is not None:
        auditor = "another key" if source.audited_by_another else "trainer"
    fingerprints: tuple[str, ...] = ()
    signed = source.auditing
    same = signed is not None and (signed.one_hand or signed.auditor == signed.trainer)
    if auditor == "another key" and signed is not None:
        fingerprints = (signed.auditor, signed.trainer or "")
    passed = {check.name for check in findings.checks(source, audience) if check.verdict == "PASS"}
    drawn, again = _again(source, audience)
    reproducible = source.header.get("randomness") == "reproducible"
    secret, chance = "seed" if reproducible else "key", _WORD_OF_CHANCE
    if source.recorded:
        secret, chance = "generator’s state", _LOOPS_CHANCE
    return Trust(
        auditor=auditor,
        keys=fingerprints,
        signer=signed.auditor if signed is not None else "",
        checked=_CHECKED[auditor].format(
            whose=_SAME_PERSON if same else _UNKNOWN_KEY,
            auditor=fingerprints[0] if fingerprints else "",
            trainer=fingerprints[-1] if fingerprints else "",
        ),
        recomputed=drawn,
        again=again,
        word=_WORD.format(
            once="" if source.recorded else _AT_ONE_CLIENT,
            secret=secret,
            chance="" if reproducible or _is_challenged(source) else chance,
        )
        if source.private
        else "",
        nobodys=tuple(text for name, text in _NOBODYS.items() if name in passed),
    )


def _again(source: RunSource, audience: str) -> tuple[int | None, str]:
    """Return how many participations were recomputed, and the same in words."""
    if source.audit is None or not source.private:
        return None, ""
    verdict = next(
        (one.verdict for one in findings.checks(source, audience) if one.name == "reexecution"),
        "NOT APPLICABLE",
    )
    found = findings.details(source, "reexecution")
    drawn, every = integer(found.get("drawn")), integer(found.get("participations"))
    if verdict == "FAIL":
        return None, _AGAIN_NOT
    if verdict != "PASS" or not drawn:
        return None, _AGAIN_NONE
    if audience != INTERNAL:
        return None, _AGAIN_ALL if every is not None and drawn >= every else _AGAIN_SOME
    if every is not None and drawn >= every:
        return drawn, _AGAIN_ALL
    return drawn, _AGAIN.format(drawn=f"{drawn} of {every}" if every is not None else drawn)


def _blocks(report: Report) -> list[Block]:
    found, assurance = report[Trust], report[Assurance]
    entries = [("Who audited", found.checked)]
    if assurance.level is not None:
        level = f"Level {assurance.level} of {MOST}: {assurance.name}"
        entries.insert(0, (level, " ".join(filter(None, (assurance.means, assurance.next)))))
    if found.again:
        entries.append(("What was recomputed", found.again))
    if found.word:
        entries.append(("Only the trainer vouches for this", found.word))
    if found.nobodys:
        entries.append(("Anyone can check this from the files", " ".join(found.nobodys)))
    return [titled(entries)]


register(
    ReportSection(
        identifier="trust", title="Who vouches for what", place=20, blocks=_blocks, front=True
    )
)
