"""Sets a document as a PDF: tagged, archivable (PDF/A-3a, PDF/UA-1), with its data inside.

The page is composed by typst from reports/render/templates/report.typ in a folder that holds
only the document's texts, its figures and the typefaces. Every text reaches typst as a JSON
string, and the template shows strings without ever evaluating them. Dates come from the run, so the
same document gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
import typst

from reports.document import Document
from reports.errors import ReportError
from reports.files import clean
from reports.render.pages import moment_of

_STANDARDS: list[typst.PDFStandard] = ["a-3a", "ua-1"]
_FACES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSans-BoldOblique.ttf",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACEHOLDER_FACE = "LastResortHE-Regular.ttf"


def typeset(shown: Document) -> bytes:
    """Return a document's PDF as bytes; same document, same bytes.

    Raises:
        ReportError: The page cannot be composed.
    """
    moment = moment_of(shown.created) or _EPOCH
    with tempfile.TemporaryDirectory(prefix="dpfedadamw-report-") as name:
        folder = Path(name)
        template = resources.files("reports.render").joinpath("templates/report.typ")
        (folder / "report.typ").write_bytes(template.read_bytes())
        (folder / shown.attachment).write_bytes(shown.data)
        files = [[shown.attachment, "application/json", "This document as data", "data"]]
        for picture in shown.pictures.values():
            (folder / f"{picture.identifier}.svg").write_bytes(picture.drawing)
            if picture.data:
                # Attachments are listed by name; the document's data comes first.
                table = f"table-{picture.identifier}.csv"
                (folder / table).write_bytes(picture.data)
                about = f"Numbers of the figure: {picture.title}"
                files.append([table, "text/csv", about, "supplement"])
        page = json.dumps(_page(shown, moment, files), ensure_ascii=False)
        (folder / "page.json").write_text(page, encoding="utf-8")
        return _compile(folder, moment)


def _page(shown: Document, moment: datetime, files: list[list[str]]) -> dict[str, Any]:
    """Return what the template shows."""
    return {
        **shown.as_dict(),
        "moment": [
            moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second,
        ],
        "files": files,
    }  # fmt: skip


def _compile(folder: Path, moment: datetime) -> bytes:
    """Compile, widening the choice of typefaces only as far as the text needs.

    First the typefaces that travel with typst and matplotlib, so that the page is the same
    everywhere; then the system's, for scripts that those lack; last, labelled placeholder glyphs
    under which the text itself stays whole for search and screen readers.
    """
    faces = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    shipped, placeholder = folder / "faces", folder / "placeholder"
    for target, names in ((shipped, _FACES), (placeholder, (_PLACEHOLDER_FACE,))):
        target.mkdir()
        for name in names:
            if (faces / name).is_file():
                shutil.copyfile(faces / name, target / name)
    attempts = (([shipped], True), ([shipped], False), ([shipped, placeholder], True))
    for index, (paths, ignore_system) in enumerate(attempts):
        try:
            made, warnings = typst.compile_with_warnings(
                str(folder / "report.typ"),
                root=str(folder),
                font_paths=[str(path) for path in paths],
                ignore_system_fonts=ignore_system,
                format="pdf",
                timestamp=moment,
                pdf_standards=_STANDARDS,
            )
            # A page that never comes to rest has wrong numbers, and typst only warns.
            if warnings:
                raise ReportError(f"report.pdf: {clean(str(warnings[0]), 200)}")
            return made
        except typst.TypstError as error:
            missing_glyph = "could not be displayed" in str(error)
            if not missing_glyph or index == len(attempts) - 1:
                raise ReportError(f"report.pdf: {clean(str(error), 200)}") from error
    raise AssertionError("unreachable")
