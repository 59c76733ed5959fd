"""Runs side by side, ranked only where that means something."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedadamw.api.running import Run
from dpfedadamw.api.tables import Table
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.registration import extension


class Comparison:
    """What ``dpfedadamw compare`` says of several runs.

    Args:
        found: The comparison, as the reports make it.
    """

    def __init__(self, found: Any) -> None:
        self._found = found

    @property
    def rows(self) -> Table:
        """A row a run: what everybody may know of it. Ranks are in `markdown` and `data`."""
        from reports import run_rows

        entries = (entry for group in self._found.groups for entry in group.entries)
        return Table(run_rows.row_of(run.path) for entry in entries for run in entry.runs)

    @property
    def data(self) -> dict[str, Any]:
        """What ``compare --json`` prints: groups, ranks, and why groups are not ranked together."""
        return dict(_comparing(".data").as_dict(self._found))

    @property
    def markdown(self) -> str:
        """The tables in Markdown."""
        return str(_comparing(".tables").as_markdown(self._found))

    @property
    def latex(self) -> str:
        """The tables in LaTeX."""
        return str(_comparing(".tables").as_latex(self._found))

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
        audience: "internal", or "public", which does not reveal how often anyone took part.
        towards: Against whom ε must agree at record level: "server" or "third-party".
        tolerance: Largest relative difference of ε that counts as equal, in [0, 1).

    Raises:
        DpfedadamwError: If ``towards`` is neither of these.
        reports.errors.ReportError: If runs cannot be compared, a line each.
    """
    comparison = _comparing()
    known = list(comparison.Towards)
    if towards not in known:
        raise DpfedadamwError(f"`towards`: is {towards!r}, must be one of {', '.join(known)}")
    paths = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    return Comparison(comparison.compare(paths, audience, comparison.Towards(towards), tolerance))


def _comparing(module: str = "") -> ModuleType:
    return extension(f"reports.extensions.comparison{module}", "compare")
