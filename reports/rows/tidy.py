"""Runs of a sweep as tidy data: one line a run, one column a quantity, public values alone."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports import formatting
from reports.content.parts import PUBLIC
from reports.errors import ReportError, SourceError
from reports.files import clean, mapping, read_bytes
from reports.formatting import formulated
from reports.rows import runs

Value = str | int | float | None
Row = Mapping[str, Value]

# What every row has, after what the sweep itself says of a cell.
CELL, SEED = "cell", "seed"
AXIS = "axis."
COLUMNS = (
    "run", "created", "audit", "signatures", "algorithm", "model", "dataset", "unit", "adjacency",
    "noise_added_by", "randomness", "clipping_norm", "noise_multiplier", "delta",
    "epsilon_server_worst_case", "epsilon_third_party", "rounds", "clients", "clients_per_round",
    "local_steps", "test_accuracy", "test_loss", "bytes_up", "bytes_down", "seconds",
    "model_sha256",
)  # fmt: skip
# Of a search for hyper-parameters, which not every sweep is: how the best was chosen, by what
# score, of how many candidates, whether the row is of the best (or of a trial that is not reported,
# because the best is run anew), and on what edges of the grid.
SEARCH = (
    "validation_accuracy", "tune", "tune_score", "candidates", "selected", "on_the_grids_edge",
)  # fmt: skip
SELECTED, TRIAL = "best", "trial"
# On what it was computed, as the sweep found it.
MACHINE = (
    "package", "python", "torch", "numpy", "system", "processor", "instructions", "threads",
    "device",
)  # fmt: skip
# In these a row says how well a cell did; the tables show them.
MEASURES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")
# Columns that only some tables have: of runs without privacy that were evaluated on their training
# records, of sweeps that a paper's numbers stand in, and of searches with seeds of their own.
TRAINING = ("train_accuracy", "train_loss")
# Of a regression, of several labels, and of a finished classification.
TASKS = (
    "test_rmse", "test_mae", "test_r2", "test_micro_f1", "validation_loss", "test_majority_rate",
    "test_auc", "test_average_precision", "test_f1", "test_balanced_accuracy", "test_log_loss",
    "test_calibration_error",
)  # fmt: skip
EXPECTED, DEVIATION = "expected_", "_sd"
EXPECTED_NUMBERS = tuple(f"{EXPECTED}{name}{end}" for name in MEASURES for end in ("", DEVIATION))
SOURCE, READINGS = "expected_source", "readings"
SEARCH_SEEDS = "tune_seeds"
# What all noise follows from in reproducible mode: equal seeds, equal noise.
RUN_SEED = "run_seed"
SOMETIMES = (*TRAINING, *TASKS, *EXPECTED_NUMBERS, SOURCE, READINGS, SEARCH_SEEDS, RUN_SEED)
_NUMBERS = (
    *MEASURES, *TASKS, "seconds", "clipping_norm", "noise_multiplier", "delta",
    "epsilon_server_worst_case", "epsilon_third_party", "validation_accuracy", *EXPECTED_NUMBERS,
)  # fmt: skip
_COUNTS = (
    SEED, "rounds", "clients", "clients_per_round", "local_steps", "bytes_up", "bytes_down",
    "threads", "candidates", RUN_SEED,
)  # fmt: skip


def row_of(run_dir: Path) -> dict[str, Value]:
    """What a finished run says of itself to everybody, by column.

    Nothing in it tells who took part, or how often.

    Raises:
        SourceError: It is no run directory, or its files cannot be read.
    """
    run = runs.read(run_dir, PUBLIC)
    spec, header = run.source.spec, run.source.header
    last = run.source.metrics[-1]
    ended = last.get("round") == run.source.rounds_completed
    seconds = [_number(line.get("seconds")) for line in run.source.metrics]
    views = {view.key: view.epsilon for view in run.views}
    found: dict[str, Value] = {
        "run": run.run,
        "created": _text(header.get("created")),
        "audit": run.verdict,
        "signatures": run.signature.state,
        "algorithm": run.algorithm,
        "model": _text(mapping(spec.get("model")).get("name")),
        "dataset": _text(mapping(spec.get("data")).get("dataset")),
        "test_accuracy": run.accuracy,
        "test_loss": _number(last.get("test_loss")) if ended else None,
        "bytes_up": _whole(run.bytes_up),
        "bytes_down": _whole(run.bytes_down),
        # Earlier runs have fractions of a second, which are not told on.
        "seconds": float(math.ceil(sum(value for value in seconds if value is not None))),
        "model_sha256": run.source.hashes.get("model.safetensors"),
        "epsilon_server_worst_case": views.get("server_worst_case"),
        "epsilon_third_party": views.get("third_party"),
    }
    for name in ("unit", "adjacency", "noise_added_by", "randomness"):
        found[name] = _text(header.get(name))
    for name in ("clipping_norm", "noise_multiplier", "delta"):
        found[name] = _number(header.get(name))
    for name in ("rounds", "clients", "clients_per_round", "local_steps"):
        found[name] = _whole(header.get(name))
    tune = mapping(spec.get("tune"))
    more: dict[str, Value] = {}
    if tune.get("selection") not in (None, "none"):
        score = last.get("validation_accuracy") if ended else None
        more = {
            "tune": _text(tune.get("selection")),
            "tune_score": _text(tune.get("score")) or "validation_accuracy",
            "validation_accuracy": _number(score),
        }
        seeds = tune.get("search_seeds")
        if isinstance(seeds, list) and seeds:
            more[SEARCH_SEEDS] = clean(", ".join(map(str, seeds)), 200)
    if header.get("randomness") == "reproducible":
        more[RUN_SEED] = _whole(header.get("seed"))
    if ended:
        more |= {name: _number(last[name]) for name in (*TRAINING, *TASKS) if name in last}
    return {**{name: found.get(name) for name in COLUMNS}, **more}


def columns_of(rows: Iterable[Row]) -> list[str]:
    """The columns of a table of rows: the sweep's own first, then those that all have.

    Of the columns that only some tables have, those follow in which a row says something.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    known = {CELL, SEED, *COLUMNS, *SEARCH, *MACHINE, *SOMETIMES}
    axes = [name for name in names if name not in known]
    searched = SEARCH if any(name in names for name in SEARCH) else ()
    more = [name for name in SOMETIMES if any(row.get(name) is not None for row in rows)]
    return [CELL, *axes, SEED, *COLUMNS, *searched, *MACHINE, *more]


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV (RFC 4180, but lines end with a line feed): the same for equal rows."""
    columns = columns_of(rows)
    lines = ([_written(row.get(name)) for name in columns] for row in rows)
    return formatting.as_csv((columns, *lines))


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The rows as Parquet, typed.

    Raises:
        ReportError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ReportError(
            "results.parquet: pyarrow is not installed; pip install 'dpfedadamw[parquet]'"
        ) from None
    fields = [(name, _arrow_type(pa, name)) for name in columns_of(rows)]
    table = pa.Table.from_pylist(
        [{name: row.get(name) for name, _ in fields} for row in rows], schema=pa.schema(fields)
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def read_csv(path: Path) -> list[dict[str, Value]]:
    """Rows that `as_csv` wrote.

    Raises:
        SourceError: It cannot be read, or is no such table.
    """
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError:
        raise SourceError(f"{path}: cannot be read (it is not UTF-8)") from None
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        names, *rows = ([formulated(cell) for cell in line] for line in lines if line)
    except (ValueError, csv.Error) as error:
        raise SourceError(f"{path}: is no table of a sweep's results ({error})") from None
    missing = [name for name in (CELL, SEED, *COLUMNS) if name not in names]
    if missing:
        raise SourceError(
            f"{path}: is no table of a sweep's results; it lacks the column {missing[0]}"
        )
    found = []
    for line, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise SourceError(f"{path}, line {line}: has not as many fields as the first line")
        try:
            found.append({name: _read(name, cell) for name, cell in zip(names, row, strict=True)})
        except ValueError as error:
            raise SourceError(f"{path}, line {line}: {error}") from None
    return found


def _read(name: str, text: str) -> Value:
    if text == "":
        return None
    if name not in _NUMBERS and name not in _COUNTS:
        return text
    try:
        return int(text) if name in _COUNTS else float(text)
    except ValueError:
        raise ValueError(f"{name}: found {clean(text, 60)}; a number is due") from None


def _written(value: Value) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _arrow_type(pa: Any, name: str) -> Any:
    if name in _NUMBERS:
        return pa.float64()
    return pa.int64() if name in _COUNTS else pa.string()


def _text(value: Any) -> str | None:
    return clean(value, 200) or None if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
