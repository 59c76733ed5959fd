"""``export``: a run's model and its card, for other tools and other people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import RUNS, Audience, JsonOption, OutOption, RunArgument
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
            "--registry", help="Write an entry for OpenDP's registry of deployments too, a draft."
        ),
    ] = False,
    statements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML with what the spec's section report leaves open, for --registry.",
        ),
    ] = None,
    program: Annotated[
        bool | None,
        typer.Option(
            "--program/--no-program",
            help="Write model.pt2, a program of torch.export, which torch runs without this "
            "package; done by itself but for models of transformers.",
            show_default=False,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model as transformers or peft load it, with a card and a bill of materials.

    The run must be signed and its signatures must hold; it stays as it is. Low-rank pairs are
    written as a peft adapter, whole transformers as save_pretrained does, the package's own models
    as safetensors and as a program that torch runs without this package. The card tells what
    everybody may know: the claim towards a third party. bom.cdx.json lists model, data and
    software, with the audit's findings as evidence for what is claimed and against it (CycloneDX
    1.7).
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
            written = export_model(
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
        print_json({**found, "program": written.program})
    else:
        rows = [("model", str(output)), ("card", str(output / "README.md"))]
        rows.append(("bill of materials", str(output / "bom.cdx.json")))
        if written.program or written.no_program:
            written_to = str(output / PROGRAM) if written.program else f"none: {written.no_program}"
            rows.append(("program", written_to))
        if registry:
            rows.append(("registry", str(output / "registry_entry.yaml")))
        out.print(display.facts([*rows, ("form", _FORMS[written.form])]))


_FORMS = {
    "adapters": "low-rank pairs and head, for peft",
    "whole": "a model of transformers",
    "own": "safetensors of dpfedadamw's own architecture",
}
