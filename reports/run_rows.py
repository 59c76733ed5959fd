"""A finished run as one row: as comparisons read it, and as tidy data of a sweep.

`read` gives a run's claim, its accuracy, its traffic, and why it may not rank. Everything comes
through the readers that reports are made with, so a comparison trusts a run directory as little as
a report does, and keeps the same circles: for the public audience nothing here depends on who took
part how often.

`row_of` gives one line a run, one column a quantity, public values alone.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from audit.protection import Against, in_front, unprotected
from reports import formatting
from reports.content import accounting, findings, guarantee, outcomes
from reports.content.findings import VerdictValue
from reports.content.parts import PUBLIC
from reports.content.units import View
from reports.errors import ReportError, SourceError
from reports.files import clean, mapping, read_bytes
from reports.formatting import formulated
from reports.signatures import signing, verification
from reports.source import RunSource, load

SignatureState = Literal["holds", "broken", "unsigned"]
HOLDS: Final = "holds"
BROKEN: Final = "broken"
UNSIGNED: Final = "unsigned"
# Verdicts with which a run counts: without privacy nothing is claimed, and nothing is judged.
PASSED: Final = ("PASS", "NO CLAIM")
# What may differ between repetitions of one spec: how it is called and explained, what budget it
# spends of, and the seeds of the run and of its initial weights.
_NOT_OF_THE_EXPERIMENT = ("name", "description", "report", "budget")
# Where the data lies does not change what is in it; its digest says what is.
_PLACES = ("path",)
# What is trained where a spec says nothing of its task, and keys of `evaluation` that only tell.
_PLAIN_TASK = {
    "kind": "classification",
    "loss": "cross_entropy",
    "focal_gamma": 2.0,
    "class_weights": [],
}
_ONLY_TOLD = ("public_test", "metrics")
_MARKS = ("spec.yaml", "ledger.jsonl")


@dataclass(frozen=True)
class Signature:
    """Whether a run's signatures hold.

    Attributes:
        state: "holds", "broken" or "unsigned".
        problem: The first thing that does not hold, with the file's name; empty if all does.
    """

    state: SignatureState
    problem: str


@dataclass(frozen=True)
class ComparedRun:
    """What a comparison knows of one run.

    Attributes:
        path: The run directory.
        source: Its public and restricted files.
        views: The claimed losses that the audience may see, as `guarantee.views` gives them.
        verdict: The report's verdict on the run, never better than the auditor's.
        signature: Whether its signatures hold.
        accuracy: Test accuracy of the final model, in [0, 1], or None.
        accuracies: Rounds completed and test accuracy, where it was measured.
        spent: Rounds completed and ε spent against a third party, by the auditor.
        bytes_up: Bytes from clients to server over the whole run, or None if not to be told.
        bytes_down: Bytes from server to clients.
        majority_rate: Accuracy of always giving the most frequent answer, or None.
    """

    path: Path
    source: RunSource
    views: tuple[View, ...]
    verdict: VerdictValue
    signature: Signature
    accuracy: float | None
    accuracies: tuple[tuple[int, float], ...]
    spent: tuple[tuple[int, float], ...]
    bytes_up: float | None
    bytes_down: float | None
    majority_rate: float | None = None

    @property
    def run(self) -> str:
        """The run's identifier."""
        return self.source.run

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return clean(mapping(self.source.spec.get("algorithm")).get("name"), 100) or "unknown"

    @property
    def unprotected(self) -> Against | None:
        """Against whom its claim gives no meaningful protection, whatever the verdict."""
        return unprotected({view.key: view.epsilon for view in self.views})

    @property
    def objection(self) -> str | None:
        """Why the run is not ranked, or None."""
        if not self.source.claim:
            return "the run did not finish"
        if self.signature.state == BROKEN:
            return f"signature does not hold: {self.signature.problem}"
        if self.verdict not in PASSED:
            return f"audit: {self.verdict}"
        if self.signature.state == UNSIGNED:
            return "not signed"
        if self.accuracy is None and self.source.recorded:
            return "a recorded loop tells no accuracy"
        if self.accuracy is None:
            if mapping(self.source.spec.get("task")).get("kind") == "regression":
                return "a regression has no accuracy to rank by; its error stands in its report"
            return "no accuracy was measured after the last round"
        return None

    def epsilon(self, view: str) -> float | None:
        """Return the claimed ε of a view, or None where none is claimed or it is not to be told."""
        return next((row.epsilon for row in self.views if row.key == view), None)

    @property
    def data(self) -> dict[str, Any]:
        """The spec's section on data, but for where the data lies."""
        data = mapping(self.source.spec.get("data"))
        return {key: value for key, value in data.items() if key not in _PLACES}

    @property
    def experiment(self) -> str:
        """The resolved spec as canonical text, but for names, places and a repetition's seeds."""
        spec = {k: v for k, v in self.source.spec.items() if k not in _NOT_OF_THE_EXPERIMENT}
        spec["data"] = self.data
        randomness = mapping(spec.get("randomness"))
        spec["randomness"] = {k: v for k, v in randomness.items() if k != "seed"}
        spec["model"] = {k: v for k, v in mapping(spec.get("model")).items() if k != "seed"}
        # Runs from before there were other tasks, or other losses, say nothing of theirs.
        if {**_PLAIN_TASK, **mapping(spec.get("task"))} == _PLAIN_TASK:
            spec.pop("task", None)
        # What else is told of the test records trains nothing.
        shown = mapping(spec.get("evaluation"))
        spec["evaluation"] = {key: shown[key] for key in shown if key not in _ONLY_TOLD}
        # Runs from before there were searches have no such section, and those from before a search
        # had seeds of its own lack the key.
        tune = mapping(spec.get("tune"))
        if tune.get("selection") == "none":
            del spec["tune"]
        elif tune.get("search_seeds") == []:
            spec["tune"] = {key: value for key, value in tune.items() if key != "search_seeds"}
        return json.dumps(spec, sort_keys=True, default=str)

    @property
    def repetition(self) -> str:
        """What makes the run a repetition of its own: its seed if it has one, else its model.

        Two runs from one seed are one run: counting both would make the spread too small.
        """
        header = self.source.header
        if header.get("randomness") == "reproducible":
            return f"seed {header.get('seed')}"
        return self.source.hashes.get("model.safetensors", self.run)

    @property
    def seeds(self) -> str | None:
        """The seeds of weights and run, by which it pairs with runs of other specs; None without.

        Two runs of one seed have the same split, batches and initial weights as far as these are
        the same in both specs. In release mode the run itself has no seed.
        """
        weights = mapping(self.source.spec.get("model")).get("seed")
        header = self.source.header
        run = header.get("seed") if header.get("randomness") == "reproducible" else None
        return None if weights is None and run is None else f"{weights} {run}"


def read(path: Path, audience: str) -> ComparedRun:
    """Read one run directory.

    Args:
        path: The run directory.
        audience: "internal" or "public".

    Raises:
        SourceError: It is no run directory, or its spec, ledger or metrics cannot be read; the
            line names the directory.
    """
    try:
        if path.is_dir() and not any((path / name).exists() for name in _MARKS):
            raise SourceError(f"neither {' nor '.join(_MARKS)} is in it; give a run's folder")
        signature, source = _checked(path)
        if not source.metrics and not source.recorded:
            note = next((text for text in source.notes if text.startswith("metrics.jsonl")), None)
            raise SourceError((note or "metrics.jsonl: is empty").rstrip("."))
    except SourceError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(f" in {path}", "")
        raise SourceError(f"{clean(str(path), 400)}: {reason}") from error
    utility = outcomes.utility(source, audience)
    traffic = outcomes.communication(source, audience)
    ended = utility.final_round == source.rounds_completed
    return ComparedRun(
        path=path,
        source=source,
        views=tuple(guarantee.views(source, audience)),
        verdict=findings.verdict(source, audience).value,
        signature=signature,
        accuracy=utility.final_accuracy if ended else None,
        accuracies=tuple(
            (row.round, row.test_accuracy)
            for row in utility.rounds
            if row.test_accuracy is not None
        ),
        spent=tuple(
            (row.round, row.third_party)
            for row in accounting.over_rounds(source, PUBLIC)
            if row.third_party is not None
        ),
        bytes_up=traffic.bytes_up,
        bytes_down=traffic.bytes_down,
        majority_rate=utility.majority_rate if ended else None,
    )


def read_all(paths: Sequence[Path], audience: str) -> tuple[list[ComparedRun], list[str]]:
    """Read several run directories; a run that is given twice is read once.

    Returns:
        The runs in the order of their identifiers, and a note for each that was given again.

    Raises:
        ReportError: Directories that cannot be compared, a line each.
    """
    found: dict[str, ComparedRun] = {}
    notes: list[str] = []
    wrong: list[str] = []
    for path in paths:
        try:
            one = read(path, audience)
        except ReportError as error:
            wrong.append(str(error))
            continue
        same = json.dumps([one.run, sorted(one.source.hashes.items())])
        if same in found:
            notes.append(f"{one.run} was given more than once and counts once.")
        found.setdefault(same, one)
    if wrong:
        raise ReportError("\n".join(dict.fromkeys(wrong)))
    return sorted(found.values(), key=lambda one: (one.run, str(one.path))), list(
        dict.fromkeys(notes)
    )


def _checked(path: Path) -> tuple[Signature, RunSource]:
    """Whether a run's signatures hold, and the run as it was read for that."""
    envelopes = (signing.TRAINING_ENVELOPE, signing.RUN_ENVELOPE)
    if not any((path / name).exists() for name in envelopes):
        return Signature(UNSIGNED, ""), load(path)
    result, source = verification.verify_and_read(path)
    problem = "" if result.is_intact else clean(str(result.problems[0]), 200)
    signature = Signature(HOLDS if result.is_intact else BROKEN, problem)
    return signature, source if source is not None else load(path)


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
    "test_rmse", "test_mae", "test_r2", "test_micro_f1", "test_perplexity", "validation_loss",
    "test_majority_rate", "test_auc", "test_average_precision", "test_f1",
    "test_balanced_accuracy", "test_log_loss", "test_calibration_error",
)  # fmt: skip
EXPECTED, DEVIATION = "expected_", "_sd"
EXPECTED_NUMBERS = tuple(f"{EXPECTED}{name}{end}" for name in MEASURES for end in ("", DEVIATION))
SOURCE, READINGS = "expected_source", "readings"
SEARCH_SEEDS = "tune_seeds"
# What all noise follows from in reproducible mode: equal seeds, equal noise.
RUN_SEED = "run_seed"
SOMETIMES = (*TRAINING, *TASKS, *EXPECTED_NUMBERS, SOURCE, READINGS, SEARCH_SEEDS, RUN_SEED)
# What a row says of the run alone, and not of the sweep that the run stands in.
OF_THE_RUN = (
    *COLUMNS, "validation_accuracy", "tune", "tune_score", *MACHINE, *TRAINING, *TASKS,
    SEARCH_SEEDS, RUN_SEED,
)  # fmt: skip
_NUMBERS = (
    *MEASURES, *TASKS, "seconds", "clipping_norm", "noise_multiplier", "delta",
    "epsilon_server_worst_case", "epsilon_third_party", "validation_accuracy", *EXPECTED_NUMBERS,
)  # fmt: skip
_SHARES = ("test_accuracy", "train_accuracy", "validation_accuracy", "test_balanced_accuracy")
_COUNTS = (
    SEED, "rounds", "clients", "clients_per_round", "local_steps", "bytes_up", "bytes_down",
    "threads", "candidates", RUN_SEED,
)  # fmt: skip


def judged(row: Mapping[str, Any]) -> str:
    """The verdict of a row in words; that its ε protects nobody comes first."""
    views = ("third_party", "server_worst_case")
    stated = {view: row.get(f"epsilon_{view}") for view in views}
    numbers = {view: one for view, one in stated.items() if isinstance(one, int | float)}
    return in_front(str(row.get("audit")), unprotected(numbers))


def against_majority(
    named: Iterable[tuple[str, float | None, Sequence[float | None]]],
) -> list[str]:
    """What always giving the most frequent answer comes to, and what is no better; or nothing.

    Args:
        named: Names with their mean accuracy and the majority rates of their runs; each None where
            it is not known.
    """
    entries = [
        (name, mean, [rate for rate in rates if rate is not None]) for name, mean, rates in named
    ]
    known = sorted({rate for _, _, rates in entries for rate in rates})
    if not known:
        return []
    span = " to ".join(formatting.percent(one) for one in dict.fromkeys((known[0], known[-1])))
    found = f"Majority rate: always giving the most frequent answer has an accuracy of {span}."
    # Where a rate is not known, that of the others' records is taken.
    worse = [name for name, mean, own in entries if mean is not None and mean <= max(own or known)]
    if worse:
        found += f" No better than that by accuracy: {', '.join(dict.fromkeys(worse))}."
    return [found]


def row_of(run_dir: Path) -> dict[str, Value]:
    """What a finished run says of itself to everybody, by column.

    Nothing in it tells who took part, or how often.

    Raises:
        SourceError: It is no run directory, or its files cannot be read.
    """
    run = read(run_dir, PUBLIC)
    spec, header = run.source.spec, run.source.header
    # A recorded loop may have no line, and the last one of a run that diverged is of no model.
    last = run.source.metrics[-1] if run.source.metrics else {}
    diverged = bool(mapping(run.source.claim.get("diverged")))
    ended = last.get("round") == run.source.rounds_completed and not diverged
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
        number = int(text) if name in _COUNTS else float(text)
    except ValueError:
        raise ValueError(f"{name}: found {clean(text, 60)}; give a number") from None
    # A share that is not a number would make every mean and test over its cells none either.
    if name in _SHARES and not 0 <= number <= 1:
        raise ValueError(f"{name}: found {clean(text, 60)}; give a share from 0 to 1")
    return number


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
