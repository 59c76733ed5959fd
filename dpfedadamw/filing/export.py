"""A signed run's model and its card, for other tools and other people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import FilingError
from dpfedadamw.rundir import RunDirectory

if TYPE_CHECKING:
    from dpfedadamw.run.export import Exported
    from reports.signatures.verification import VerificationResult


class SignatureDoesNotHoldError(FilingError):
    """A run's signatures do not hold, so that nothing is made of it."""


def export(
    run: RunDirectory,
    folder: Path,
    licence: str = "unknown",
    *,
    internal: bool = False,
    registry: bool = False,
    statements: Path | None = None,
    program: bool | None = None,
) -> tuple[Exported, VerificationResult]:
    """Write a run's model as transformers or peft load it, with a card and a bill of materials.

    Args:
        run: A finished run.
        folder: The folder; must not exist, or be empty.
        licence: The model's licence, for its card.
        internal: Whether the bill of materials names the digests of data, ledger and audit too,
            which are not for everybody.
        registry: Whether an entry for OpenDP's registry of deployments is written too.
        statements: A YAML file with what people state that the run's spec leaves open, as in the
            spec's section ``report``; for the registry.
        program: Whether a program of torch.export is written too, as `run.export.export` has it.

    Returns:
        What was written, and who signed the run.

    Raises:
        FilingError: If the statements cannot be read or contradict the spec.
        SignatureDoesNotHoldError: If the run is not signed, was changed since, or is an earlier
            state than the caller's key folder has seen.
        DpfedadamwError: As `dpfedadamw.run.export.export`.
        reports.errors.ReportError: If the card cannot be made.
    """
    from dpfedadamw.run.export import export as export_model
    from dpfedadamw.storage.disk import write_atomically
    from reports.content.build import build
    from reports.content.parts import INTERNAL, PUBLIC
    from reports.render import bill_of_materials, model_card, registry_entry
    from reports.signatures.verification import results, verify_and_read

    checked, source = verify_and_read(run.path, memory=results.own_memory())
    if not checked.is_intact:
        raise SignatureDoesNotHoldError(f"{run.path}: not exported, {checked.problems[0]}")
    if source is None:
        raise FilingError(f"{run.path}: holds only a run's public files; export the run itself")
    report = build(run.path, PUBLIC, source=source)
    beside = {}
    if registry:
        stated = read_statements(run, statements) if statements is not None else {}
        beside[registry_entry.FILE] = registry_entry.write(report, stated)
    listed = build(run.path, INTERNAL, source=source) if internal else report
    beside[bill_of_materials.FILE] = bill_of_materials.write(listed, licence)
    written = export_model(run, folder, source.hashes, program)
    with_base = written.base_folder is not None
    text = model_card.write(
        report,
        written.form,
        written.reads,
        written.base,
        with_base,
        licence,
        program=written.program,
        inputs=written.read_by,
        tokens=written.tokens,
        shape=written.shape,
    )
    write_atomically(folder / "README.md", text.encode())
    for name, content in beside.items():
        # Only the internal bill of materials is not for everybody.
        private = internal and name == bill_of_materials.FILE
        write_atomically(folder / name, content, 0o600 if private else 0o644)
    return written, checked


def read_statements(run: RunDirectory, path: Path) -> dict[str, str]:
    """Read what people state besides the spec, by key of the spec's section report.

    Raises:
        FilingError: If the file cannot be read, has another key, or says something else than the
            spec, which is signed.
    """
    from dpfedadamw import spec as specs
    from dpfedadamw.errors import DpfedadamwError
    from reports.errors import SourceError
    from reports.files import mapping, parse_yaml, read_bytes

    try:
        given = parse_yaml(read_bytes(path), str(path))
        own = parse_yaml(read_bytes(run.spec), "spec.yaml")
    except SourceError as error:
        raise FilingError(str(error)) from error
    before = _flat(mapping(own.get("report")))
    for name, text in _flat(given).items():
        if before.get(name) not in (None, text):
            raise FilingError(
                f"{path}: {name}: the run's signed spec states it differently; leave it out"
            )
    try:
        read = specs.from_mapping({**own, "report": given})
    except DpfedadamwError as error:
        raise FilingError(f"{path}: {error}") from error
    known = _flat(read.report.to_mapping())
    # How a report looks is no statement, and has a value where nobody gave one.
    looks = ("paper", "language")
    return {name: text for name, text in known.items() if text is not None and name not in looks}


def _flat(report: dict[str, Any]) -> dict[str, Any]:
    """Return the section report with the keys of governance dotted."""
    from reports.files import mapping

    inner = mapping(report.get("governance"))
    flat = {name: value for name, value in report.items() if name != "governance"}
    return flat | {f"governance.{name}": value for name, value in inner.items()}
