"""Writes a comparison as a report of its own: JSON, PDF and one web page."""

from __future__ import annotations

import json
from pathlib import Path

from reports.comparison import Comparison
from reports.content.parts import INTERNAL
from reports.content.serialise import check
from reports.errors import SourceError
from reports.reading.files import write_atomic
from reports.render import html, pdf
from reports.render.pages.comparison import document

KINDS = ("json", "pdf", "html")


def write(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Write comparison.json, comparison.pdf and comparison.html into a folder.

    Args:
        comparison: What `compare` found.
        folder: Made if missing; files of the same names are replaced. The public comparison's are
            called comparison-public; an internal one is for its owner alone, because it tells who
            took part how often.

    Returns:
        The files by their kind. Each is replaced as a whole, and all only after all could be made.

    Raises:
        ReportError: The pages cannot be made, or the folder cannot be written.
    """
    shown = document(comparison)
    check(json.loads(shown.data), "comparison")
    made = {"json": shown.data, "pdf": pdf.typeset(shown), "html": html.typeset(shown)}
    internal = comparison.audience == INTERNAL
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            # Whatever the umask; a folder that was there keeps what its owner chose.
            folder.chmod(0o700 if internal else 0o755)
    except OSError as error:
        raise SourceError(f"{folder}: cannot be made ({error.strerror})") from error
    stem = "comparison" if internal else f"comparison-{comparison.audience}"
    files = {kind: folder / f"{stem}.{kind}" for kind in KINDS}
    for kind, path in files.items():
        write_atomic(path, made[kind], 0o600 if internal else 0o644)
    return files
