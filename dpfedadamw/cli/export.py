"""``export``: a run's model and its card, for other tools and other people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.options import RUNS, JsonOption, OutOption, RunArgument
from dpfedadamw.cli.terminal import EXIT_NOT_PASSED, find_run, out, print_json, status, stop


def export(
    run_dir: RunArgument = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="A new folder to write to.")
    ] = Path("model"),
    licence: Annotated[
        str, typer.Option(metavar="NAME", help="Licence of the model, for its card: mit, ….")
    ] = "unknown",
    out_dir: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model as transformers or peft load it, with a model card.

    The run must be signed and its signatures must hold; it stays as it is. Low-rank pairs are
    written as a peft adapter, whole transformers as save_pretrained does, the package's own models
    as safetensors. The card tells what everybody may know: the claim towards a third party.
    """
    from dpfedadamw.run.export import export as export_model
    from dpfedadamw.storage.disk import write_atomically
    from reports.content.build import build
    from reports.content.parts import PUBLIC
    from reports.render import model_card
    from reports.signatures.verification import verify

    run = find_run(run_dir, out_dir)
    checked = verify(run.path)
    if not checked.is_intact:
        stop(f"{run.path}: not exported, {checked.problems[0]}", EXIT_NOT_PASSED)
    report = build(run.path, PUBLIC)
    with status("writing the model", quiet=as_json):
        written = export_model(run, output)
    text = model_card.write(
        report,
        written.form,
        written.reads,
        written.base,
        written.base_folder is not None,
        licence,
    )
    write_atomically(output / "README.md", text.encode())
    if as_json:
        print_json({"folder": str(output), "form": written.form, "base": written.base})
    else:
        rows = [("model", str(output)), ("card", str(output / "README.md"))]
        out.print(display.facts([*rows, ("form", _FORMS[written.form])]))


_FORMS = {
    "adapters": "low-rank pairs and head, for peft",
    "whole": "a model of transformers",
    "own": "safetensors of dpfedadamw's own architecture",
}
