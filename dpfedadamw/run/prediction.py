"""What a finished model answers to further records: read, prepared and answered as in its run.

Three functions lie between a file and its answers. `raw` reads it as the run's data were read,
`features` prepares it as the run's records were prepared, `Served.predict` asks the model by the
path that a test goes (`evaluation.answers`). No code and no pickle of a folder is ever loaded:
`model.json` says what to build, and `model.safetensors` what with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfedadamw import spec as specs
from dpfedadamw.data import handed_over
from dpfedadamw.data.features import Preparation
from dpfedadamw.data.formats import arrays
from dpfedadamw.data.learnt import Bounds, from_plain
from dpfedadamw.data.preparation import prepare
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.data.source import Images, Numbers, Texts
from dpfedadamw.data.stored import StoredRecords, batchwise
from dpfedadamw.errors import DataError
from dpfedadamw.measures import probabilities
from dpfedadamw.models import registry
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.run.evaluation import answers
from dpfedadamw.run.export import load_with_config, section_of
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.spec.task_section import LANGUAGE, MULTI_LABEL, REGRESSION, TOKENS
from dpfedadamw.tasks import Task

INPUT = "--input"


@dataclass(frozen=True)
class Predictions:
    """What a model answers to records.

    Attributes:
        task: What it is for.
        labels: Names of its classes or targets, in the order of its outputs.
        outputs: Its answers as they are, float32 [n, …]: scores before any softmax, or numbers.
        known: Of tokens, which of them are none of padding, bool [n, length]; None of others.
    """

    task: Task
    labels: tuple[str, ...]
    outputs: NDArray[np.float32]
    known: NDArray[np.bool_] | None = None

    @property
    def probabilities(self) -> NDArray[np.float64] | None:
        """Of each class, or of each of several labels, float64 [n, …]; None of a regression."""
        if self.task.kind == REGRESSION:
            return None
        if self.task.kind == MULTI_LABEL:
            wide = self.outputs.astype(np.float64)
            found: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -wide))
            return found
        return probabilities(self.outputs)

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class that is most probable, int64 [n, …]; of several labels which are there, 0, 1.

        A regression has none.
        """
        if self.task.kind == MULTI_LABEL:
            return (self.outputs > 0).astype(np.int64)
        found: NDArray[np.int64] = self.outputs.argmax(-1)
        return found

    def table(self) -> tuple[list[str], Iterator[list[Any]]]:
        """Columns, and a row a record; of tokens one a token, without padding.

        Probabilities are written with all their digits.
        """
        if self.task.kind == REGRESSION:
            return ["row", *self.labels], ([n, *row] for n, row in self._rows(self.outputs))
        chances, chosen = self.probabilities, self.classes
        assert chances is not None
        columns = [f"p_{name}" for name in self.labels]
        if self.task.kind == TOKENS:
            return ["row", "token", "label", *columns], self._tokens(chances, chosen)
        if self.task.kind == MULTI_LABEL:
            return ["row", "labels", *columns], (
                [n, ";".join(self.labels[k] for k in np.flatnonzero(chosen[n - 1])), *row]
                for n, row in self._rows(chances)
            )
        return ["row", "label", *columns], (
            [n, self.labels[chosen[n - 1]], *row] for n, row in self._rows(chances)
        )

    def _rows(self, values: NDArray[Any]) -> Iterator[tuple[int, list[float]]]:
        yield from enumerate((row.tolist() for row in values), start=1)

    def _tokens(
        self, chances: NDArray[np.float64], chosen: NDArray[np.int64]
    ) -> Iterator[list[Any]]:
        for record, row in enumerate(chances):
            for token, values in enumerate(row):
                if self.known is None or self.known[record, token]:
                    label = self.labels[chosen[record, token]]
                    yield [record + 1, token + 1, label, *values.tolist()]


@dataclass(frozen=True)
class Served:
    """A finished model with what its answers mean, and how records are read for it.

    Attributes:
        model: In evaluation mode, on the CPU.
        task: What it is for.
        preprocessing: What it needs of its records.
        labels: Names of its classes or targets; their numbers where they have no names.
        read_by: A data set's name, and the keys that say which columns; empty for arrays alone.
        shape: Shape of one record.
        bounds: Bounds of columns that the run learnt, or None.
    """

    model: nn.Module
    task: Task
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    read_by: Mapping[str, Any]
    shape: tuple[int, ...]
    bounds: Bounds | None = None

    def predict(self, rows: Any) -> Predictions:
        """Answer records: a file's path, an array [n, …], or a frame with the run's columns.

        Raises:
            DataError: If they cannot be read, or are not of the shape that the model reads.
        """
        stored = features(raw(rows, self.read_by), self.preprocessing, self.shape)
        stored = replace(stored, bounds=self.bounds)
        found = [outputs for _, outputs in answers(self.model, stored, torch.device("cpu"))]
        known = None
        if self.task.kind == TOKENS and stored.preprocessing is None:
            known = stored.values[:, 0] != 0
        return Predictions(self.task, self.labels, torch.cat(found).float().numpy(), known)


def load(run: RunDirectory) -> Served:
    """A run's model, or one that was exported of it, ready to predict.

    Raises:
        DpfedadamwError: As `export.load_model`; or if model.json is not what a run writes.
    """
    model, config = load_with_config(run)
    section, shape, classes, task = section_of(run, config)
    if task.kind == LANGUAGE:
        raise RunDirectoryError(
            f"{run.path}: its model continues texts and predicts nothing of a record; export it "
            "with dpfedadamw export, and generate with transformers"
        )
    names = config.get("labels") or [str(number) for number in range(classes)]
    if task.kind == REGRESSION and "labels" not in config:
        names = [f"target_{number + 1}" for number in range(classes)]
    fits = isinstance(names, list) and len(names) == classes
    if not fits or not all(isinstance(name, str) for name in names):
        raise RunDirectoryError(
            f"{run.model_config}: labels: must be {classes} names, one per class"
        )
    read_by = config.get("inputs", {})
    if not isinstance(read_by, dict):
        raise RunDirectoryError(f"{run.model_config}: inputs: must be a section")
    form = registry.preprocessing(section, task)
    bounds = from_plain(config.get("learnt"), shape)
    return Served(model, task, form, tuple(names), read_by, shape, bounds)


def raw(rows: Any, read_by: Mapping[str, Any]) -> Iterator[Images | Numbers | Texts]:
    """Records as they stand in a file, a frame or an array, without labels.

    Args:
        rows: A path; or what Python holds.
        read_by: As `Served` has it.

    Raises:
        DataError: If they cannot be read so: a column is missing, a cell holds no number, ….
    """
    if not isinstance(rows, str | Path):
        text: tuple[str, ...] = ()
        preparation = None
        if read_by.get("dataset") == "table":
            keys = _section(read_by, "rows")
            text, preparation = keys.text, Preparation.of(keys)
        yield handed_over.unlabelled(rows, text, preparation, "rows")
        return
    path = Path(rows)
    if not path.exists():
        raise DataError(f"{INPUT}: {path}: there is no such file")
    try:
        chunks = arrays.unlabelled(path) if path.suffix == ".npz" else _of_table(path, read_by)
        for chunk in chunks:
            yield chunk.content
    except DataError as error:
        raise DataError(str(error).replace("data.path", INPUT)) from None


def _of_table(path: Path, read_by: Mapping[str, Any]) -> Iterator[Any]:
    name = read_by.get("dataset")
    entry = DATASETS[name] if isinstance(name, str) and name in DATASETS else None
    if entry is None or entry.unlabelled is None:
        raise DataError(
            f"data.path: {path}: the model's records are arrays without column names; give an .npz "
            "file with the array x, [n, …]"
        )
    return entry.unlabelled(path, _section(read_by, str(path)))


def _section(read_by: Mapping[str, Any], path: str) -> Any:
    """The section `data` that says which columns are read, and how."""
    try:
        return specs.data_of({**read_by, "path": path})
    except ValueError as error:
        lines = str(error).splitlines()[1:2] or [str(error)]
        raise DataError(
            f"model.json: inputs: not in the form that a run writes ({lines[0]})"
        ) from None


def features(
    contents: Iterator[Images | Numbers | Texts],
    preprocessing: Preprocessing,
    shape: Sequence[int],
) -> StoredRecords:
    """Raw records as the model reads them, prepared as those of its run were.

    Raises:
        DataError: If there is none, or one is not what the model reads.
    """
    try:
        parts = [prepare(content, preprocessing) for content in contents]
    except DataError as error:
        raise DataError(str(error).replace("data.path", INPUT)) from None
    if not parts or not sum(map(len, parts)):
        raise DataError(f"{INPUT}: holds no record")
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        raise DataError(f"{INPUT}: records differ in shape within the file")
    stored = StoredRecords(np.concatenate(parts), None, batchwise(preprocessing))
    if stored.shape != tuple(shape):
        raise DataError(
            f"{INPUT}: records have shape {stored.shape}, but the model reads {tuple(shape)}"
        )
    return stored
