"""A finished run, as figures read it: its ledger, its evidence, its model and its test records."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import Records
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.round_files import round_file
from dpfedadamw.experiment import read_data
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.reexecution.history import PastLedger
from dpfedadamw.reexecution.observation import RoundObserver
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run.columns import bounds_in, within
from dpfedadamw.run.export import load_model
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import Spec
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import MOST_TEXT_BYTES, read_arrays, read_mapping

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The blocks by which the evidence of a record-level run is summed up.

    Attributes:
        sizes: Coordinates of each block, float64 [B].
        beta2: Decay of the second moment; None for rules without one.
    """

    sizes: NDArray[np.float64]
    beta2: float | None


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a client's round was charged in a record-level run.

    Attributes:
        steps: Local steps.
        noise_variance: Φ = (σC/B)².
    """

    steps: int
    noise_variance: float


class FinishedRun:
    """A run's files, none of them changed.

    Args:
        directory: The run's directory.
        rerun: Makes it ready to be run again; raises DpfedadamwError where that cannot be.
        device: Where to compute.
        data: Where the data lie, if not where the spec says.

    Attributes:
        directory: The run's directory.
        device: Where to compute.
        past: Its ledger.

    Raises:
        DpfedadamwError: If the run is not finished, or its ledger or spec cannot be read.
    """

    def __init__(
        self,
        directory: RunDirectory,
        rerun: Callable[[RunDirectory, Path | None], Rerun],
        device: torch.device,
        data: Path | None = None,
    ) -> None:
        self.directory = directory
        self.device = device
        self._rerun, self._data = rerun, data
        self.past = PastLedger(directory.ledger)
        if not self.past.claims:
            raise FigureError(
                f"{directory.path}: is not finished; finish it with: dpfedadamw run --resume "
                f"{directory.path}"
            )

    @cached_property
    def spec(self) -> Spec:
        """The resolved spec; the data where they lie now."""
        changes = [] if self._data is None else [f"data.path={self._data.resolve()}"]
        return specs.load_filed(self.directory.spec, changes)

    @cached_property
    def rerun(self) -> Rerun:
        """The run, ready to be run again.

        Raises:
            DpfedadamwError: If data, key or evidence are not at hand.
        """
        with self._readable():
            return self._rerun(self.directory, self._data)

    def observe(self, observer: RoundObserver, on_round: Callable[[int, int], None]) -> None:
        """Run it again while somebody looks on.

        Args:
            observer: Looks on.
            on_round: Called with rounds done and rounds in all.

        Raises:
            DpfedadamwError: If it cannot be run again, or comes out otherwise.
        """
        with self._readable():
            self.rerun.observe(observer, on_round)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Say what is missing of what the run was begun with."""
        try:
            yield
        except OSError as error:
            if not self.directory.evidence.is_dir():
                raise FigureError(
                    "its private evidence is not there, without which its rounds cannot be run "
                    "again"
                ) from None
            raise FigureError(f"{error.filename}: cannot be read ({error.strerror})") from None

    def charges(self, index: int) -> list[Charge]:
        """What the ledger was charged for a round.

        Args:
            index: t, from 0.

        Raises:
            FigureError: If a line lacks something.
        """
        with undamaged("its ledger"):
            return [
                Charge(
                    steps=int(line["steps"]),
                    noise_variance=(
                        float(line["noise_multiplier"])
                        * float(line["clipping_norm"])
                        / float(line["expected_batch_size"])
                    )
                    ** 2,
                )
                for line in self.past.rounds[index].charges
            ]

    @cached_property
    def measures(self) -> Measures:
        """The blocks of its evidence.

        Raises:
            FigureError: If they cannot be read.
        """
        path = self.directory.evidence / "layout.json"
        try:
            found = read_mapping(path)
            sizes = np.asarray(found["blocks"]["sizes"], dtype=np.float64)
            return Measures(sizes=sizes, beta2=found["beta2"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(path, error) from None

    def evidence(self, *names: str) -> Iterator[tuple[int, Arrays]]:
        """Arrays of each round's private evidence, and the round.

        Args:
            names: Of the arrays.

        Raises:
            FigureError: If one cannot be read.
        """
        for index in sorted(self.past.rounds):
            path = self.directory.evidence / round_file(index)
            try:
                found = read_arrays(path)
                arrays = {name: found[name] for name in names}
            except (OSError, ValueError, KeyError) as error:
                raise _unreadable(path, error) from None
            yield index, arrays

    def model(self) -> nn.Module:
        """The published model, in evaluation mode.

        Raises:
            DpfedadamwError: If it cannot be loaded.
        """
        return load_model(self.directory).to(self.device)

    def test_records(self, most: int | None) -> Records:
        """The test records that the run is evaluated on, or the first of them.

        Args:
            most: How many; None for all.

        Raises:
            DpfedadamwError: If the data are not there, or not those of the run.
        """
        dataset = read_data(self.spec)
        if dataset.sha256 != self.past.header.get("data_sha256"):
            raise FigureError(
                "the data set is not the one that the ledger names by its digest; give the run's "
                "own data, with --data PATH where they lie elsewhere"
            )
        if any(one.learn_quantiles for one in getattr(self.spec.data, "columns", ())):
            dataset = within(dataset, bounds_in(self.directory, dataset))
        test = dataset.test
        return test if most is None else test.select(np.arange(min(most, len(test))))


def _unreadable(path: Path, error: Exception) -> FigureError:
    if isinstance(error, FileNotFoundError):
        return FigureError(f"evidence/{path.name} is not there: it was never kept, or was erased")
    return FigureError(f"evidence/{path.name} cannot be read ({type(error).__name__})")


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Say of files that do not hold what a run writes that they are damaged.

    Args:
        what: Which: "its ledger".

    Raises:
        FigureError: If what is done with them fails.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise FigureError(
            f"{what} is damaged ({type(error).__name__}); audit the run to see what else is"
        ) from None


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """A short name for each run, all different.

    The label of its cell where it is of a sweep, with its seed if need be, else its spec's name;
    its identifier where these do not tell all runs apart.
    """
    for seeds in (False, True):
        found = [_label_in_sweep(run.directory.path, seeds) or run.spec.name for run in runs]
        if len(set(found)) == len(found):
            return found
    return [run.directory.identifier for run in runs]


def _label_in_sweep(path: Path, seeds: bool) -> str | None:
    """The values of a sweep's axes in the run's cell, as its results have them."""
    if path.parts[-2:-1] != ("runs",) or path.parts[-4:-3] != ("cells",):
        return None
    try:
        text = DISK.read(path.parents[3] / "results.csv", MOST_TEXT_BYTES).decode()
        for row in csv.DictReader(io.StringIO(text, newline="")):
            if row.get("run") == path.name:
                columns = list(row)
                axes = columns[columns.index("cell") + 1 : columns.index("seed")]
                many = [row[axis] for axis in axes if row[axis]]
                many += [f"seed {row['seed']}"] if seeds else []
                return ", ".join(many) or None
    except (OSError, ValueError, TypeError, KeyError, csv.Error):
        return None
    return None


def reason(error: DpfedadamwError) -> str:
    """Why a figure cannot be drawn, as one line."""
    return " ".join(str(error).split())
