"""``export``: a run's model and its card, for other tools and other people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import RUNS, Audience, JsonOption, OutOption, RunArgument
from dpfedadamw.cli.signatures import tell_unknown
from dpfedadamw.cli.terminal import EXIT_NOT_PASSED, find_run, out, print_json, refuse, status, stop


@may_run_named_code
def export(
    run_dir: RunArgument = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="A new folder to write to.")
    ] = Path("model"),
    licence: Annotated[
        str, typer.Option(metavar="NAME", help="Licence of the model, for its card: mit, ….")
    ] = "unknown",
    audience: Annotated[
        Audience,
        typer.Option(
            help="Whose bill of materials: public, or internal, with the digest of the data too."
        ),
    ] = Audience.public,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry", help="Also write a draft entry for OpenDP's registry of deployments."
        ),
    ] = False,
    statements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML with the answers that the spec's section report leaves open, for "
            "--registry.",
        ),
    ] = None,
    program: Annotated[
        bool | None,
        typer.Option(
            "--program/--no-program",
            help="Write model.pt2, a torch.export program that torch runs without this package. "
            "Done by default, except for transformers models.",
            show_default=False,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model as transformers or peft load it, with a card and a bill of materials.

    The run must be signed with valid signatures; it is not changed. Low-rank pairs are written as a
    peft adapter, and whole transformers as save_pretrained writes them. The package's own models
    are written as safetensors and as a program that torch runs without this package. The card
    states what may be public: the claim against a third party. bom.cdx.json (CycloneDX 1.7) lists
    model, data and software, with the audit's findings for and against the claim.
    """
    if statements is not None and not registry:
        refuse("--statements: is for --registry; give both")
    from dpfedadamw.filing.export import SignatureDoesNotHoldError
    from dpfedadamw.filing.export import export as export_model
    from dpfedadamw.run.export import PROGRAM

    run = find_run(run_dir, out_dir)
    with status("writing the model", quiet=as_json):
        try:
            internal = audience is Audience.internal
            written, checked = export_model(
                run,
                output,
                licence,
                internal=internal,
                registry=registry,
                statements=statements,
                program=program,
            )
        except SignatureDoesNotHoldError as error:
            stop(str(error), EXIT_NOT_PASSED)
    if as_json:
        found = {"folder": str(output), "form": written.form, "base": written.base}
        print_json({**found, "program": written.program, "outcome": checked.outcome.value})
    else:
        rows = [("model", str(output)), ("card", str(output / "README.md"))]
        rows.append(("bill of materials", str(output / "bom.cdx.json")))
        if written.program or written.no_program:
            written_to = str(output / PROGRAM) if written.program else f"none: {written.no_program}"
            rows.append(("program", written_to))
        if registry:
            rows.append(("registry", str(output / "registry_entry.yaml")))
        rows.append(("the run holds", checked.outcome.value))
        out.print(display.facts([*rows, ("form", _FORMS[written.form])]))
        tell_unknown(checked)


_FORMS = {
    "adapters": "low-rank pairs and head, for peft",
    "whole": "a model of transformers",
    "own": "safetensors of dpfedadamw's own architecture",
}
