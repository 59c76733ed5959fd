"""``new``: a project that trains and serves a module of the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_json, refuse


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder to write to.")],
    as_json: JsonOption = False,
) -> None:
    """Write a project to start from: a spec, a module, its training, a service and a test.

    It runs unchanged, on made-up rows in records.csv; replace these with your own table, its
    columns and your own module.
    """
    from dpfedadamw.extensions.starter.templates import files
    from dpfedadamw.rundir import holds_a_run

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        refuse(f"{folder}: exists and is not empty; name a new folder")
    if any(holds_a_run(one) for one in folder.absolute().parents):
        refuse(f"{folder}: is inside a signed run's folder; name another place")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.absolute().name).lstrip("._-")[:64] or "project"
    written = files(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(
            f"{folder}: cannot be written ({error.strerror}); name a folder that you may write to"
        )
    if as_json:
        print_json({"folder": str(folder), "files": sorted(written)})
        return
    rows = [(file, _WHAT[file]) for file in written]
    then = f"cd {folder}; python train.py; python -m pytest; python serve.py"
    out.print(display.facts([("project", str(folder)), *rows, ("then", then)]))


_WHAT = {
    "spec.yaml": "what is trained, and how it is protected",
    "records.csv": "made-up rows; put your table here",
    "nets.py": "the module; put yours here",
    "train.py": "trains, audits, signs, and exports the model",
    "serve.py": "answers rows by HTTP",
    "test_serve.py": "checks that the served model is the trained one",
}
