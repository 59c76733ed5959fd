"""The folder of a sweep: what was run of each cell, and what came of it.

    sweep.yaml               what was asked for last
    cells/DIGEST/spec.yaml   the cell's spec
    cells/DIGEST/runs/       its run, as `dpfedadamw run` writes it
    cells/DIGEST/result.json what the finished run says of itself to everybody
    cells/DIGEST/failure.txt why it failed, where it did
    results.csv              one line a cell
    results.parquet          the same, typed, where pyarrow is installed

A cell is found by the digest of what is run, so that sweeps whose cells are the same share them,
and a cell whose spec was changed is another.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedadamw.errors import DpfedadamwError, SpecError
from dpfedadamw.rundir import RunDirectory, RunDirectoryError, newest
from dpfedadamw.spec import Spec, dump, load_filed
from dpfedadamw.spec.matrix import Cell
from dpfedadamw.storage.disk import DISK, make_folders, write_atomically, write_json
from dpfedadamw.storage.foreign import read_json, read_json_lines

# So many hexadecimal digits tell apart more cells than anybody runs.
SHOWN_DIGITS = 16
FORMAT = 1


class SweepError(DpfedadamwError):
    """A sweep's folder cannot be used."""


def named(cell: Cell) -> str:
    """What a cell is called in folders and tables."""
    return cell.digest[:SHOWN_DIGITS]


@dataclass(frozen=True)
class CellFolder:
    """Where one cell lies.

    Attributes:
        path: Its folder.
        known: What a table of another folder says of its finished run, or None.
    """

    path: Path
    known: Mapping[str, Any] | None = None

    @property
    def spec(self) -> Path:
        """The cell's spec."""
        return self.path / "spec.yaml"

    @property
    def runs(self) -> Path:
        """Where its runs are."""
        return self.path / "runs"

    @property
    def trial(self) -> Path:
        """Of a private selection, which trial its run is; private."""
        return self.path / "trial.json"

    @property
    def _result(self) -> Path:
        return self.path / "result.json"

    @property
    def failure(self) -> Path:
        """What a run that failed said last."""
        return self.path / "failure.txt"

    def result(self) -> dict[str, Any] | None:
        """What the finished run says of itself, here or in a table; None where none is finished.

        Raises:
            SweepError: If the file is damaged.
        """
        try:
            found = read_json(self._result)
            if found["format"] != FORMAT:
                raise ValueError
            return dict(found["row"])
        except FileNotFoundError:
            return None if self.known is None else dict(self.known)
        except (OSError, ValueError, KeyError, TypeError):
            raise SweepError(
                f"{self._result}: is not a result of a sweep; remove it, and the cell's finished "
                "run is read again"
            ) from None

    def write_result(self, row: Mapping[str, Any]) -> None:
        """Keep what the finished run says of itself."""
        write_json(self._result, {"format": FORMAT, "row": dict(row)})
        self.failure.unlink(missing_ok=True)

    def failed(self) -> str | None:
        """What a run that failed said last, or None."""
        try:
            return self.failure.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
        except FileNotFoundError:
            return None

    def newest_run(self) -> RunDirectory | None:
        """The newest run that was begun, or None."""
        try:
            return newest(self.runs)
        except RunDirectoryError:
            return None

    def renew(self, spec: Spec) -> None:
        """Have a run that is not begun yet be of this spec; the caller holds the folder.

        The digest that the folder is found by leaves out what is no part of a run's result: its
        budget, its report and how it is computed.

        Raises:
            SweepError: If a run was begun under another budget.
        """
        run = self.newest_run()
        if run is None:
            write_atomically(self.spec, dump(spec).encode())
            return
        try:
            begun = load_filed(run.spec).budget
        except SpecError:
            return  # Continuing the run says what is wrong with its spec.
        if begun != spec.budget:
            # Of a private selection, no message may say which trial it is.
            raise SweepError(
                "its run was begun under another budget; state that budget again, or use another "
                "folder: --out"
            )

    def completed_rounds(self) -> tuple[int, float | None]:
        """How many rounds the newest run has completed, and its last test accuracy."""
        run = self.newest_run()
        try:
            last = read_json_lines(run.metrics)[-1] if run else {}
            return int(last["round"]), last["test_accuracy"]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return 0, None


@dataclass(frozen=True)
class SweepFolder:
    """Where a sweep lies.

    Attributes:
        path: Its folder.
        known: Results of finished cells by `named`, from tables of other folders.
    """

    path: Path
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def csv(self) -> Path:
        """The results, one line a cell."""
        return self.path / "results.csv"

    @property
    def parquet(self) -> Path:
        """The results, typed."""
        return self.path / "results.parquet"

    def cell(self, cell: Cell) -> CellFolder:
        """Where a cell lies, whether it is there or not."""
        return CellFolder(self.path / "cells" / named(cell), self.known.get(named(cell)))

    def begin(self, text: str) -> None:
        """Make the folder, and write down what was asked for.

        Raises:
            SweepError: If it cannot be made.
        """
        try:
            make_folders(self.path / "cells")
            write_atomically(self.path / "sweep.yaml", text.encode())
        except OSError as error:
            raise SweepError(
                f"--out {self.path}: cannot be written ({error.strerror}); use a folder that you "
                "may write to"
            ) from None

    def keep_known(self, cell: Cell) -> None:
        """Make the folder of a cell that only a table knows, so that it is done here too."""
        folder = self.cell(cell)
        if folder.known is not None and not DISK.is_file(folder._result):
            self.begin_cell(cell).write_result(folder.known)

    def begin_cell(self, cell: Cell) -> CellFolder:
        """Make a cell's folder, with its spec."""
        folder = self.cell(cell)
        make_folders(folder.runs)
        if not DISK.is_file(folder.spec):
            write_atomically(folder.spec, dump(cell.spec).encode())
        return folder


def machine_of(run: RunDirectory) -> dict[str, Any]:
    """On what the newest rounds of a run were computed, as far as it says.

    Which machine trained is private evidence of a run; in the results of a sweep it is the owner's
    to keep or to leave out.
    """
    names = [name for name in DISK.names(run.evidence) if name.startswith("environment-")]
    if not names:
        return {"python": platform.python_version(), "system": platform.system()}
    found = read_json(run.evidence / names[-1])
    return {name: value for name, value in found.items() if isinstance(value, str | int)}
