"""A run that is one of several trials, the best of which is published alone.

What drew the number of trials is private, and is in the run's evidence; the ledger's header commits
to it before anything is charged, and says how many trials there are and which of them this is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedadamw.accounting.selection import SECRET_BYTES, commitment
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.storage.foreign import read_mapping

SECRET = "tuning"


@dataclass(frozen=True)
class Trial:
    """Which trial a run is.

    Attributes:
        secret: The 32 bytes that drew how many there are, and what each tries.
        number: Its number, from 1.
        trials: How many there are.
    """

    secret: bytes
    number: int
    trials: int

    @property
    def header(self) -> dict[str, Any]:
        """What the ledger's header says of it."""
        return {
            "trial": self.number,
            "trials": self.trials,
            "commitment": commitment(self.secret),
        }

    def to_plain(self) -> dict[str, Any]:
        """The trial as JSON types; private."""
        return {"secret": self.secret.hex(), "trial": self.number, "trials": self.trials}


def read_trial(path: Path) -> Trial:
    """Read what a sweep wrote for a trial.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        found = read_mapping(path)
        trial = Trial(bytes.fromhex(found["secret"]), int(found["trial"]), int(found["trials"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"--trial {path}: is no trial that a sweep drew") from None
    if len(trial.secret) != SECRET_BYTES:
        raise RunError(f"--trial {path}: is no trial that a sweep drew")
    return trial


def check_trial(experiment: Experiment, trial: Trial | None) -> None:
    """Refuse a run by itself of a spec whose claim is that of a selection, and the reverse.

    Raises:
        RunError: If spec and trial do not go together.
    """
    law = experiment.plan.trials
    if law is None and trial is None:
        return
    if trial is None:
        raise RunError(
            "tune.selection: private, and a trial by itself is no selection; "
            "`dpfedadamw sweep SPEC`, on the spec that has tune.grid, draws how many there are, "
            "runs them and publishes one"
        )
    if law is None:
        raise RunError("--trial: tune.selection of this spec is not private")
    if trial.trials != law.drawn(trial.secret) or not 1 <= trial.number <= trial.trials:
        raise RunError("--trial: is not drawn by the law that the spec states")
