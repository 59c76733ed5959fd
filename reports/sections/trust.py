"""Who checked the run, and what rests on whose word."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import WithJsonSchema

from reports.content import findings
from reports.content.assurance import MOST, Assurance
from reports.content.parts import FOR_THE_PUBLIC, INTERNAL, NULL, Count, Part, Report, Rule, part
from reports.content.sections import ReportSection, register
from reports.document import Block, titled
from reports.files import integer, mapping
from reports.source import RunSource

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
