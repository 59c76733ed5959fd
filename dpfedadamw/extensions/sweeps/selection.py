"""A private selection: a random number of trials, of which the best is published and none besides.

    selection.json           of what candidates it is
    winner/RUN               the published run, once there is one
    trials/                  mode 0700, erased before the winner is shown
      secret.json            what drew the number of trials, written before the first of them
      cells/TRIAL/           each trial: its spec, its run, its score

`accounting.selection` says what it costs and what it rests on: nothing of another trial
leaves `trials`, and there is no winner until all of them are over.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedadamw.accounting.selection import SECRET_BYTES, Trials, candidate
from dpfedadamw.errors import SpecError
from dpfedadamw.experiment import foresee
from dpfedadamw.extensions.sweeps.folder import CellFolder, SweepError, SweepFolder
from dpfedadamw.run.start_options import Trial
from dpfedadamw.rundir import RunDirectory, RunDirectoryError, newest, point_latest
from dpfedadamw.spec.document import Place
from dpfedadamw.spec.matrix import Cell, Sweep
from dpfedadamw.spec.sections import Spec
from dpfedadamw.storage.disk import DISK, FOLDER_MODE, PRIVATE_MODE, make_folders, write_json
from dpfedadamw.storage.foreign import read_json_lines, read_mapping
from dpfedadamw.storage.lock import LockedError, RunLock
from dpfedadamw.units.plan import RunPlan

FORMAT = 1
# What a candidate may not change: it decides what is protected, by what trials are scored, or how
# many there are.
_SHARED = ("data", "privacy", "randomness", "budget", "evaluation", "tune")


def planned(sweep: Sweep) -> RunPlan:
    """The privacy plan that all candidates share.

    Raises:
        SpecError: If candidates differ in what they cost, or in what they are scored on.
        DpfedadamwError: If one of them cannot run.
    """
    first = sweep.cells[0]
    plan = foresee(first.spec)
    for cell in sweep.cells[1:]:
        for name in _SHARED:
            ours, others = (_costless(getattr(one.spec, name), name) for one in (cell, first))
            if ours != others:
                raise _refused(
                    f"candidates may not differ in {name}, but {cell.label} and {first.label} do"
                )
        other = foresee(cell.spec)
        if other.unit.charged(other) != plan.unit.charged(plan):
            raise _refused(
                f"{cell.label} and {first.label} cost different ε; the dearest would count for "
                "all, and nobody could check that from the winner alone. Search over settings "
                "that do not change ε"
            )
    return plan


def _refused(message: str) -> SpecError:
    return SpecError([Place("tune.grid").problem((), message)])


def _costless(section: Any, name: str) -> Any:
    """A section without what costs nothing: gradients may be clipped to any norm."""
    return section.replace(clipping_norm=1.0) if name == "privacy" else section


@dataclass(frozen=True)
class Selection:
    """A selection that was begun.

    Attributes:
        path: The sweep's folder.
        sweep: What is selected from.
        secret: What drew the number of trials.
        trials: How many there are.
    """

    path: Path
    sweep: Sweep
    secret: bytes
    trials: int

    @property
    def folder(self) -> SweepFolder:
        """Where the trials lie."""
        return SweepFolder(self.path / "trials")

    def cells(self) -> list[Cell]:
        """The trials, each as a cell."""
        found = []
        for number in range(1, self.trials + 1):
            drawn = self.sweep.cells[candidate(self.secret, number, len(self.sweep.cells))]
            spec = self._seeded(drawn.spec, number)
            found.append(replace(drawn, spec=spec, digest=f"trial-{number:08d}"))
        return found

    def begin(self) -> None:
        """Make every trial's folder, with what its run is to know."""
        for number, cell in enumerate(self.cells(), start=1):
            folder = self.folder.begin_cell(cell)
            plain = Trial(self.secret, number, self.trials).to_plain()
            write_json(folder.trial, plain, PRIVATE_MODE)

    def keep_score(self, folder: CellFolder) -> None:
        """Write down what a trial is chosen by, once it is over.

        None where its loss is infinite, or training diverged: then there is no model to choose.

        Raises:
            SweepError: If its run has no score.
        """
        run = folder.newest_run()
        assert run is not None
        try:
            last = read_json_lines(run.metrics)[-1]
            accuracy = last["validation_accuracy"]
            score: float | None
            if any("diverged" in line for line in read_json_lines(run.ledger)):
                score = None
            elif accuracy is not None:
                score = float(accuracy)
            elif "validation_loss" in last:
                # A regression has no accuracy: the lower its loss, the better.
                score = -float(last["validation_loss"])
            else:
                # The last round of a trial is evaluated, and a loss that is not finite left out.
                score = None
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            raise SweepError(f"{run.path}: has no score on validation records") from None
        folder.write_result({"score": score})

    def publish(self) -> RunDirectory:
        """Move the best trial's run to where it is seen, and erase all others.

        Of equal scores the first trial's wins. One that has none is worse than others.

        Raises:
            SweepError: If a trial is not over.
        """
        folders = [self.folder.cell(cell) for cell in self.cells()]
        results = [folder.result() for folder in folders]
        if any(result is None for result in results):
            raise SweepError("not every trial has finished, and nothing is published before")
        found = [result["score"] for result in results if result is not None]
        scores = [-math.inf if score is None else score for score in found]
        run = folders[scores.index(max(scores))].newest_run()
        assert run is not None
        make_folders(_winners(self.path))
        DISK.rename(run.path, _winners(self.path) / run.identifier)
        DISK.sync_folder(_winners(self.path))
        winner = finished(self.path, self.sweep)
        assert winner is not None
        return winner

    def _seeded(self, spec: Spec, number: int) -> Spec:
        """In reproducible mode a seed of the trial's own: trials must not share their noise."""
        if spec.randomness.seed is None:
            return spec
        digest = hashlib.sha256(b"seed" + self.secret + number.to_bytes(8, "big")).digest()
        seed = int.from_bytes(digest[:8], "big") >> 11
        return spec.replace(randomness=spec.randomness.replace(seed=seed))


def _winners(path: Path) -> Path:
    return path / "winner"


def held(path: Path) -> RunLock:
    """Make a sweep's folder, and hold it: two at once could publish two winners.

    Raises:
        SweepError: If somebody else holds it, or it cannot be made.
    """
    try:
        make_folders(path)
        return RunLock(path)
    except LockedError:
        raise SweepError(f"{path}: another sweep is using this folder; wait for it") from None
    except OSError as error:
        raise SweepError(
            f"--out {path}: cannot be written ({error.strerror}); use a folder that you may write "
            "to"
        ) from None


def finished(path: Path, sweep: Sweep) -> RunDirectory | None:
    """The published run of a sweep's folder, or None; what is left of the trials is erased.

    A process that was interrupted between the two continues here.

    Raises:
        SweepError: If the folder is another spec's.
    """
    known = _read(path / "selection.json", "of")
    if known is not None and known != _asked(sweep):
        raise SweepError(
            f"{path}: holds a selection of another spec; use another folder: --out. The trials run "
            "there have spent their budget, even if none is published"
        )
    try:
        run = newest(_winners(path))
    except RunDirectoryError:
        return None
    point_latest(run)
    if DISK.is_folder(path / "trials"):
        DISK.remove_tree(path / "trials")
        DISK.sync_folder(path)
    return run


def drawn(path: Path, sweep: Sweep, law: Trials) -> Selection:
    """Draw how many trials there are, or take up the selection that was begun in the folder.

    Args:
        path: The sweep's folder, which is held and has no winner yet.
        sweep: What is selected from.
        law: The law of the number of trials.

    Raises:
        SweepError: If what is there is damaged.
    """
    trials = path / "trials"
    known = _read(trials / "secret.json", "secret")
    if known is None:
        make_folders(trials)
        trials.chmod(FOLDER_MODE)
        write_json(path / "selection.json", {"format": FORMAT, "of": _asked(sweep)})
        secret = _secret(sweep.cells)
        content = {"format": FORMAT, "secret": secret.hex()}
        write_json(trials / "secret.json", content, PRIVATE_MODE)
    else:
        secret = bytes.fromhex(known)
    return Selection(path, sweep, secret, law.drawn(secret))


def _read(file: Path, key: str) -> str | None:
    """One hexadecimal number of a file of a selection; None where the file is not there."""
    try:
        found = str(read_mapping(file)[key])
        if len(bytes.fromhex(found)) != SECRET_BYTES:
            raise ValueError
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise SweepError(f"{file}: is damaged; use another folder: --out") from None


def _asked(sweep: Sweep) -> str:
    """What tells one spec's candidates from another's."""
    return hashlib.sha256("\n".join(cell.digest for cell in sweep.cells).encode()).hexdigest()


def _secret(cells: Sequence[Cell]) -> bytes:
    seed = cells[0].spec.randomness.seed
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    return hashlib.sha256(f"private selection {seed}".encode()).digest()
