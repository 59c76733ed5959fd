"""How much stands behind a PASS, in four levels that are computed and never declared.

The verdict says whether anything contradicts the claim; the level says how hard it would have been
to forge the run. It follows from the findings, the ledger's header, and whose keys signed.

The section on trust says whom the reader must believe for it.
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


Auditor = Literal["nobody", "trainer", "another key"]
Fingerprints = Annotated[
    tuple[str, ...],
    WithJsonSchema({"type": "array", "items": {"type": "string", "minLength": 1}}),
]

_CHECKED = {
    "nobody": "Nobody: no usable audit stands beside this run.",
    "trainer": "The trainer: self-audited. Whoever signed the findings also has the trainer’s key, "
    "or is not known, so the audit shows mistakes and no fraud. Somebody else can judge and sign: "
    "dpfedadamw audit RUN_DIR --write.",
    "another key": "An independent auditor, as far as keys tell: the findings are signed by "
    "{auditor}, and the run by another key, {trainer}. Compare both with what you received another "
    "way; no signature shows that two keys lie in two hands.",
}
_AGAIN_NONE = (
    "None of the training was computed again from the data: that batches, gradients and noise were "
    "what the evidence says rests on the trainer’s word. A consistent forgery would pass."
)
_AGAIN = (
    "{drawn} participations, drawn after the run, were computed again from data and key, and agree."
    " The rest of what the evidence says rests on the trainer’s word."
)
_AGAIN_ALL = "Every participation was computed again from data and key, and agrees."
_AGAIN_SOME = (
    "Participations that were drawn after the run were computed again from data and key, and agree;"
    " how many, the internal report says. The rest rests on the trainer’s word."
)
_AGAIN_NOT = "Computing the training again did not lead to the same: see the audit."
_WORD = (
    "That the records are the people’s own, each with one client and once; that there was no "
    "further training on them; that no copy of data, evidence or {secret} went elsewhere{chance}."
)
_WORD_OF_CHANCE = "; that the key of the noise was drawn by chance"
_NOBODYS = {
    "integrity": "the files are complete and chained",
    "accounting": "ε is what the recorded steps cost, composed by a second program",
    "weights": "the published model is the one that the recorded rounds end in",
}


class Trust(Part):
    """Who checked the run, and what rests on whose word.

    Attributes:
        auditor: Whose key signs the findings: the trainer's (or one that is not known), another
            one; or nobody's, without an audit.
        keys: Fingerprints of the auditor's and the trainer's key, where they differ.
        checked: Who checked, in words.
        recomputed: How many participations were computed again and agreed; null where none was, and
            for the public, whom the number might tell who took part.
        again: What was computed again, in words; empty without an audit or without privacy.
        word: What rests on the trainer's word alone.
        nobodys: What anybody can check from the files and needs nobody's word, as far as the audit
            passed it.
    """

    auditor: Auditor
    keys: Fingerprints
    checked: str
    recomputed: Count | None
    again: str
    word: str
    nobodys: tuple[str, ...]


@part("trust", Trust, Rule(FOR_THE_PUBLIC, {"recomputed": NULL}))
def trust(source: RunSource, audience: str) -> Trust:
    """Return who checked, what was computed again, and what rests on whose word."""
    auditor: Auditor = "nobody"
    if source.audit is not None:
        auditor = "another key" if source.audited_by_another else "trainer"
    fingerprints: tuple[str, ...] = ()
    signed = source.auditing
    if auditor == "another key" and signed is not None:
        fingerprints = (signed.auditor, signed.trainer or "")
    passed = {check.name for check in findings.checks(source, audience) if check.verdict == "PASS"}
    drawn, again = _again(source, audience)
    reproducible = source.header.get("randomness") == "reproducible"
    coin = mapping(source.header.get("public_coin"))
    return Trust(
        auditor=auditor,
        keys=fingerprints,
        checked=_CHECKED[auditor].format(
            auditor=fingerprints[0] if fingerprints else "",
            trainer=fingerprints[-1] if fingerprints else "",
        ),
        recomputed=drawn,
        again=again,
        word=_WORD.format(
            secret="seed" if reproducible else "key",
            chance="" if reproducible or coin else _WORD_OF_CHANCE,
        )
        if source.private
        else "",
        nobodys=tuple(text for name, text in _NOBODYS.items() if name in passed),
    )


def _again(source: RunSource, audience: str) -> tuple[int | None, str]:
    """Return how many participations were computed again, and the same in words."""
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
    entries = [("Who checked", found.checked)]
    if assurance.level is not None:
        level = f"Level {assurance.level} of {MOST}: {assurance.name}"
        entries.insert(0, (level, " ".join(filter(None, (assurance.means, assurance.next)))))
    if found.again:
        entries.append(("What was computed again", found.again))
    if found.word:
        entries.append(("On the trainer’s word alone", found.word))
    if found.nobodys:
        listed = "; ".join(found.nobodys)
        entries.append(
            (
                "On nobody’s word",
                f"The audit passed what anybody can check from the files: {listed}.",
            )
        )
    return [titled(entries)]


register(
    ReportSection(
        identifier="trust", title="What rests on whose word", place=20, blocks=_blocks, front=True
    )
)
