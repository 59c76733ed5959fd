"""Which run a report is about, and the files that it left.

Two sections of a page's end follow from it: who answers for the run, and how anyone can verify it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import RootModel

from reports import formatting
from reports.content import wording
from reports.content.parts import (
    ATTACHMENT,
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    Digest,
    NonEmpty,
    Part,
    Report,
    ReportSection,
    Rule,
    Setting,
    Share,
    part,
    register,
)
from reports.document import LEFT, Block, Text, bullets, code, fields, paragraph, strong, table
from reports.files import clean, integer, mapping, number, sequence
from reports.source import PUBLIC_FILES, RunSource


class Pretrained(Part):
    """Where they are from.

    Attributes:
        source: Repository or folder.
        revision: Its commit, or empty.
        weights_sha256: SHA-256 of the weights.
    """

    source: str
    revision: str
    weights_sha256: str


class FileDigest(Part):
    """One file.

    Attributes:
        file: Name in the run directory.
        sha256: SHA-256, hexadecimal.
    """

    file: str
    sha256: Digest


class Identity(Part):
    """Which run, and the files it left.

    Attributes:
        run: The run's identifier, as in the ledger's header.
        name: The experiment's name, from the spec.
        description: Free text from the spec.
        created: When the run began, ISO 8601 UTC, from the ledger's header; empty if unstated.
        package: Version of the training package.
        dataset: Name of the dataset.
        partition: How records were given to clients.
        test_fraction: Fraction of records held out for testing.
        model: The model's settings.
        pretrained: The published weights that training began with; null for random weights, or
            where the run does not say.
        input_shape: Shape of one input.
        classes: Number of classes.
        parameters: Trainable parameters.
        hashes: SHA-256 of the files that the report was made from. The public report leaves out
            the spec, the ledger and the audit: what they hold could be guessed and confirmed by
            their hash.
        data_sha256: SHA-256 of the data as the ledger's header states it; internal only, because
            it would confirm a guess at the data.
        paper: Paper of the PDF.
        language: Of the pages; the data are English.
    """

    run: NonEmpty
    name: str
    description: str
    created: str
    package: str
    dataset: str
    partition: tuple[Setting, ...]
    test_fraction: Share | None
    model: tuple[Setting, ...]
    pretrained: Pretrained | None
    input_shape: tuple[int, ...]
    classes: int | None
    parameters: int | None
    hashes: tuple[FileDigest, ...]
    data_sha256: str | None
    paper: Literal["a4", "letter"]
    language: Literal["en", "de", "fr"]

    def digest(self, file: str) -> str | None:
        """Return the SHA-256 of a file, or None where it is not here."""
        return next((entry.sha256 for entry in self.hashes if entry.file == file), None)


def settings(values: dict[str, object]) -> tuple[Setting, ...]:
    """Return nested settings flat, with dotted names, in the spec's order."""
    return tuple(Setting(name=name, value=value) for name, value in formatting.settings(values))


def hashes(source: RunSource, audience: str) -> dict[str, str]:
    """Return the digests that an audience may see, by file; see `PUBLIC_FILES`."""
    return {
        name: digest
        for name, digest in sorted(source.hashes.items())
        if audience == INTERNAL or name in PUBLIC_FILES
    }


def pretrained(source: RunSource) -> Pretrained | None:
    """Return the published weights that training began with."""
    base = mapping(source.model.get("base"))
    found = Pretrained(
        source=clean(base.get("source"), 300),
        revision=clean(base.get("revision"), 300),
        weights_sha256=clean(base.get("weights_sha256"), 300),
    )
    return found if found.source else None


@part("identity", Identity, Rule(FOR_THE_PUBLIC, {"data_sha256": NULL}))
def identity(source: RunSource, audience: str) -> Identity:
    """Return which run it is."""
    spec, header = source.spec, source.header
    data = mapping(spec.get("data"))
    shape = [integer(side) for side in sequence(source.model.get("input_shape"))]
    said = mapping(spec.get("report"))
    language = said.get("language")
    data_digest = clean(header.get("data_sha256"), 64) or None
    return Identity(
        run=source.run,
        name=clean(spec.get("name"), 300) or "unnamed",
        description=clean(spec.get("description"), 2_000),
        created=clean(header.get("created"), 40),
        package=clean(header.get("package"), 60),
        dataset=clean(data.get("dataset"), 200) or "unknown",
        partition=settings(mapping(data.get("partition"))),
        test_fraction=number(data.get("test_fraction")),
        data_sha256=data_digest if audience == INTERNAL else None,
        model=settings(mapping(source.model.get("model")) or mapping(spec.get("model"))),
        pretrained=pretrained(source),
        input_shape=tuple(side for side in shape if side is not None),
        classes=integer(source.model.get("classes")),
        parameters=integer(header.get("parameters")),
        hashes=tuple(
            FileDigest(file=name, sha256=digest)
            for name, digest in hashes(source, audience).items()
        ),
        paper="letter" if said.get("paper") == "letter" else "a4",
        language=language if language in ("de", "fr") else "en",
    )


class GovernanceField(Part):
    """One field.

    Attributes:
        field: Key in the spec, below report.
        label: Label.
        text: Text from the spec.
    """

    field: str
    label: str
    text: str | None


class Governance(RootModel[tuple[GovernanceField, ...]]):
    """What people state of the processing; null is listed as open on the page."""


@part("governance", Governance)
def governance(source: RunSource, _audience: str) -> Governance:
    """Return each field with what the spec says in it."""
    said = mapping(source.spec.get("report"))
    inner = mapping(said.get("governance"))
    given = {**said, **{f"governance.{key}": text for key, text in inner.items()}}
    found = (
        GovernanceField(field=name, label=label, text=clean(given.get(name), 4_000) or None)
        for name, label in wording.GOVERNANCE
    )
    return Governance(
        tuple(one for one in found if one.text or one.field not in wording.FOR_A_REGISTRY)
    )


def _governance_blocks(report: Report) -> Iterator[Block]:
    entries = report[Governance].root
    stated = [(entry.label, entry.text) for entry in entries if entry.text is not None]
    left = [entry for entry in entries if entry.text is None]
    if stated:
        yield fields(stated)
    if left:
        named = "; ".join(entry.label.split(":")[0].lower() for entry in left)
        yield paragraph([strong("Open: "), f"{named}."])
        yield paragraph(
            "The person who answers for the processing states these in the spec (report, and "
            "report.governance) before the run, or on an annex (dpfedadamw sign-off). This file is "
            "signed, and writing into it would end the signature.",
            "small",
        )


register(
    ReportSection(identifier="governance", title="Governance", place=900, blocks=_governance_blocks)
)


class Verification(RootModel[tuple[str, ...]]):
    """How to check the signatures."""


@part("verification", Verification)
def verification(_source: RunSource, _audience: str) -> Verification:
    """Return what anyone can do, with any run."""
    return Verification(tuple(wording.VERIFICATION))


def _verification_blocks(report: Report) -> Iterator[Block]:
    identity = report[Identity]
    # Before the table: behind it, it would now and then stand on a page of its own.
    forms = (
        f"This report comes as a PDF (PDF/A-3a, PDF/UA-1) and as a web page that say the same. The "
        f"PDF holds {ATTACHMENT}, the report as data, and the numbers behind each figure as CSV."
    )
    yield bullets([*report[Verification].root, forms])
    rows: list[list[Text]] = [[entry.file, [code(entry.sha256)]] for entry in identity.hashes]
    if identity.data_sha256 is not None:
        rows.append(["the data", [code(identity.data_sha256)]])
    if rows:
        caption = "SHA-256 of the files that this report was made from"
        yield table(caption, ("File", "SHA-256"), rows, (LEFT, LEFT), (0, 1))


register(
    ReportSection(
        identifier="verify", title="How to verify", place=1100, blocks=_verification_blocks
    )
)
