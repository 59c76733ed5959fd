"""Runs side by side, ranked only where that means something."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.api.running import Run
from dpfedadamw.api.tables import Table
from dpfedadamw.errors import DpfedadamwError

if TYPE_CHECKING:
    from reports.comparison import Comparison as Found


class Comparison:
    """What ``dpfedadamw compare`` says of several runs.

    Args:
        found: The comparison, as the reports make it.
    """

    def __init__(self, found: Found) -> None:
        self._found = found

    @property
    def rows(self) -> Table:
        """A row a run: what everybody may know of it. Ranks are in `markdown` and `data`."""
        from reports.comparison import tidy

        entries = (entry for group in self._found.groups for entry in group.entries)
        return Table(tidy.row_of(run.path) for entry in entries for run in entry.runs)

    @property
    def data(self) -> dict[str, Any]:
        """What ``compare --json`` prints: groups, ranks, and why groups are not ranked together."""
        from reports.comparison.data import as_dict

        return as_dict(self._found)

    @property
    def markdown(self) -> str:
        """The tables in Markdown."""
        from reports.comparison import tables

        return tables.as_markdown(self._found)

    @property
    def latex(self) -> str:
        """The tables in LaTeX."""
        from reports.comparison import tables

        return tables.as_latex(self._found)

    def __repr__(self) -> str:
        return self.markdown

    def _repr_markdown_(self) -> str:
        return self.markdown


def compare(
    runs: Iterable[Run | str | Path],
    *,
    audience: str = "internal",
    towards: str = "server",
    tolerance: float = 0.01,
) -> Comparison:
    """Set runs side by side, as ``dpfedadamw compare``.

    Args:
        runs: Runs, or their folders.
        audience: "internal", or "public": nothing tells who took part how often.
        towards: Whom ε has to agree towards at record level: "server" or "third-party".
        tolerance: Largest relative difference of ε that counts as equal, in [0, 1).

    Raises:
        DpfedadamwError: If nobody is towards whom ε could agree.
        reports.errors.ReportError: If runs cannot be compared, a line each.
    """
    from reports import comparison
    from reports.comparison.terms import Towards

    if towards not in list(Towards):
        raise DpfedadamwError(f"towards {towards!r}: must be one of {', '.join(Towards)}")
    paths = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    return Comparison(comparison.compare(paths, audience, Towards(towards), tolerance))
