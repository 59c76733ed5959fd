"""Check "disclosure": do the files outside the evidence hold only what they may?

Training loss, gradient norms, realised batches and clean moments are functions of private records
that no noise hides. They belong into `evidence/`. Everything else of a run is read by the server or
by everybody, so each of its files may hold known fields and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    register,
)
from audit.checks.shared.agreement import differs
from audit.errors import AuditError, UntrustedFileError, UnverifiedError
from audit.reading import leaks
from audit.reading.bundle import MAXIMUM_LEDGER_BYTES, Bundle
from audit.reading.files import read_bytes
from audit.reading.leaks import (
    CHECKPOINT_FILES,
    EVIDENCE_FILES,
    LEDGER,
    METRICS,
    MODEL,
    RUN_FILES,
    unknown_fields,
)
from audit.reading.units import LOOP
from audit.replay.participation import learning_rate
from audit.untrusted import fields
from audit.untrusted.archives import MessageError, read_names
from audit.untrusted.documents import DocumentError, is_plain_json, is_tight_json, parse_json
from audit.untrusted.fields import FieldError
from audit.untrusted.files import UNFINISHED

# Running statistics of a batch-wise normalisation: means over records, which no noise hides.
_STATISTICS = re.compile(r"(^|\.)(running_(mean|var)|num_batches_tracked)$")
_MOST_NAMES = 3
# What shows single test records where they are few: of public ones alone.
_OF_PUBLIC_RECORDS = ("test_confusion", "test_own")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
# Of one round: longer than 100 days, it is no time.
_MOST_SECONDS = 10_000_000
DIGITS_OF_TIMES = (
    "the run publishes times with fractions of a second, as earlier versions did: whether their "
    "digits hide anything else was not judged"
)
_FOLDERS = ("evidence", UNFINISHED)
_LONG = "has digits or white space that its writer does not make, in which something may be hidden"


def _lines(bundle: Bundle, name: str) -> list[Any]:
    try:
        raw = read_bytes(bundle.root, name, MAXIMUM_LEDGER_BYTES)
        return [parse_json(line) for line in raw.splitlines() if line.strip()]
    except (UntrustedFileError, DocumentError) as error:
        raise UnverifiedError(f"{name} cannot be read, so not judged") from error


def _spelled(bundle: Bundle, raw: bytes, value: Any) -> bool:
    """Whether a document's spelling leaves no room; programs that record loops have writers too."""
    if bundle.header.unit is LOOP:
        return is_tight_json(raw, value)
    return is_plain_json(raw, value)


def _spelling_of_metrics(bundle: Bundle, lines: list[Any], reasons: list[str]) -> None:
    raw = read_bytes(bundle.root, "metrics.jsonl", MAXIMUM_LEDGER_BYTES)
    found = raw.removesuffix(b"\n").split(b"\n") if raw else []
    if len(found) != len(lines):
        reasons.append("metrics.jsonl has empty lines")
        return
    for number, (text, line) in enumerate(zip(found, lines, strict=True), start=1):
        if not _spelled(bundle, text, line):
            reasons.append(f"metrics.jsonl:{number}: {_LONG}")


def _metrics(bundle: Bundle, reasons: list[str], unjudged: list[str]) -> int:
    lines = _lines(bundle, "metrics.jsonl")
    _spelling_of_metrics(bundle, lines, reasons)
    rate_of = _learning_rates(bundle)
    for number, line in enumerate(lines, start=1):
        where = f"metrics.jsonl:{number}"
        if not isinstance(line, dict):
            reasons.append(f"{where}: is not a line of metrics")
            continue
        for key in unknown_fields(line, METRICS):
            reasons.append(f"metrics.jsonl holds {shown(key)}, which is not a public metric")
        if not all(_public(key, value) for key, value in line.items()):
            reasons.append(f"{where}: holds more than numbers")
        if not _declared_public(bundle):
            reasons += [
                f"{where}: holds {key}, which reveals single test records, but the spec does not "
                "declare these public"
                for key in _OF_PUBLIC_RECORDS
                if key in line
            ]
        if rate_of is not None:
            _its_round(line, rate_of, bundle.header.rounds, where, reasons)
        if not _whole(line.get("seconds")):
            if bundle.header.whole_seconds:
                reasons.append(f"{where}: its time is not a whole number of seconds")
            else:
                unjudged.append(DIGITS_OF_TIMES)
    return len(lines)


def _its_round(
    line: Mapping[str, Any],
    rate_of: Callable[[int], float],
    rounds: int,
    where: str,
    reasons: list[str],
) -> None:
    """A line is about a round of the run and has its step size; before the first there is none."""
    index, rate = line.get("round"), line.get("learning_rate")
    if type(index) is not int or not 0 <= index <= rounds:
        reasons.append(f"{where}: its round is none of the run's")
    elif rate is not None and not (
        index and type(rate) in (int, float) and not differs(rate_of(index), rate)
    ):
        reasons.append(f"{where}: its learning rate is not the schedule's")


def _whole(seconds: Any) -> bool:
    """Whether a time has room for whole seconds alone; where it is not told there is none.

    A number with a point is none, for 2.0 could also be written as 2.00.
    """
    return seconds is None or (type(seconds) is int and 0 <= seconds <= _MOST_SECONDS)


def _public(key: str, value: Any) -> bool:
    """Whether a metric has the form of its kind.

    A number; for test_classes pairs of counts, for test_confusion a square of counts, for test_own
    numbers by name.
    """
    if key == "test_classes":
        pairs = value if isinstance(value, list) else [None]
        return all(
            isinstance(pair, list) and [type(count) for count in pair] == [int, int]
            for pair in pairs
        )
    if key == "test_confusion":
        rows = value if isinstance(value, list) else [None]
        return all(
            isinstance(row, list) and len(row) == len(rows) and {type(one) for one in row} == {int}
            for row in rows
        )
    if key == "test_own":
        own = value if isinstance(value, dict) else {"": None}
        return all(
            _METRIC.fullmatch(name) and type(one) in (int, float) for name, one in own.items()
        )
    return not isinstance(value, str | list | dict)


def _declared_public(bundle: Bundle) -> bool:
    """Whether the spec says that its test records are public."""
    if bundle.header.unit is LOOP:
        return False
    evaluation = bundle.readable_spec.get("evaluation")
    return isinstance(evaluation, dict) and evaluation.get("public_test") is True


def _learning_rates(bundle: Bundle) -> Callable[[int], float] | None:
    """The spec's step size of a round, by how many rounds are then completed; None of a loop.

    Compared so that no other number travels under the name. No spec has the rates of a loop. Each
    is computed when it is asked for: a hostile header may count ten million rounds.
    """
    if bundle.header.unit is LOOP:
        return None
    rounds = bundle.header.rounds
    try:
        algorithm = fields.mapping(bundle.readable_spec, "algorithm")
        learning_rate(algorithm, 0, rounds)  # A schedule that cannot be read is refused here.
    except FieldError as error:
        raise UnverifiedError(f"spec.yaml: {error}") from error
    return lambda completed: learning_rate(algorithm, completed - 1, rounds)


def _ledger(bundle: Bundle, reasons: list[str]) -> None:
    for line in _lines(bundle, "ledger.jsonl"):
        kind = str(line.get("kind")) if isinstance(line, dict) else ""
        for key in unknown_fields(line, LEDGER[kind]) if kind in LEDGER else ():
            reasons.append(f"the ledger's lines of kind {kind} hold {shown(key)}, which is unknown")


def _model(bundle: Bundle, reasons: list[str]) -> None:
    try:
        raw = read_bytes(bundle.root, "model.json", 1 << 24)
        config = parse_json(raw)
        names, texts = read_names(bundle.weights())
    except (UntrustedFileError, DocumentError, MessageError) as error:
        raise UnverifiedError(f"the model's files cannot be read ({error})") from error
    if not _spelled(bundle, raw, config):
        reasons.append(f"model.json {_LONG}")
    for key in unknown_fields(config, MODEL):
        reasons.append(f"model.json holds {shown(key)}, which is unknown")
    if texts not in ({}, {"format": "pt"}):
        reasons.append("model.safetensors holds texts in addition to its tensors")
    if bundle.header.unit is not LOOP and not (isinstance(config, dict) and "parameters" in config):
        reasons.append("model.json does not say how many parameters the model has")
    trained = {name for name, _ in bundle.layout().tensors}
    # Where nothing is frozen, what is no trained parameter is none that noise was added to.
    complete = isinstance(config, dict) and config.get("parameters") == bundle.header.parameters
    # Once: of a hostile file there may be very many names.
    complete = complete and not trained.isdisjoint(names)
    for name, real in names.items():
        if (complete and real and name not in trained) or _STATISTICS.search(name):
            reasons.append(
                f"model.safetensors holds {shown(name)}, which is not a trained parameter and was "
                "never noised"
            )


def _copies(bundle: Bundle, reasons: list[str]) -> None:
    """Private numbers that a file shows digit by digit; the reason repeats none of them."""
    for leak in leaks.search_bundle(bundle):
        reasons.append(
            f"{leak.file} shows a number of the private evidence ({leak.array}, round {leak.round})"
        )


def _finished(bundle: Bundle) -> bool:
    return bundle.ledger is not None and any(kind == "claim" for _, kind in bundle.ledger.kinds)


def _strange_files(bundle: Bundle) -> list[str]:
    """Names of files that no run writes.

    Of what is being written only the writer's lock is known. A checkpoint is a run's own until its
    ledger has the claim; it holds clients' memories, so a finished run keeps none.
    """
    finished = _finished(bundle)
    checkpoint = bundle.root / "checkpoint"
    try:
        names = [one.name for one in os.scandir(bundle.root) if one.name not in _FOLDERS]
        for folder in _FOLDERS:
            place = bundle.root / folder
            if place.is_dir() and not place.is_symlink():
                names += [f"{folder}/{one.name}" for one in os.scandir(place)]
            elif os.path.lexists(place):
                names.append(folder)
        if checkpoint.is_dir() and not checkpoint.is_symlink():
            states = [f"checkpoint/{one.name}" for one in os.scandir(checkpoint)]
            if states or not finished:
                names.remove("checkpoint")
                names += states
    except OSError as error:
        raise UnverifiedError("the run directory cannot be listed") from error
    patterns = (*RUN_FILES, *EVIDENCE_FILES, *(() if finished else CHECKPOINT_FILES))
    return sorted(
        name for name in names if not any(re.fullmatch(known, name) for known in patterns)
    )


def _left_over(bundle: Bundle, name: str) -> bool:
    """Whether a strange file is a checkpoint of a run that is over."""
    return _finished(bundle) and name.partition("/")[0] == "checkpoint"


def _judge(bundle: Bundle) -> Judgement:
    reasons: list[str] = []
    unjudged: list[str] = []
    lines = 0
    for part in (_ledger, _model, _copies):
        try:
            part(bundle, reasons)
        except AuditError as error:
            unjudged.append(str(error))
    try:
        lines = _metrics(bundle, reasons, unjudged)
        names = _strange_files(bundle)
        strange = [shown(name) for name in names if not _left_over(bundle, name)]
        left = [shown(name) for name in names if _left_over(bundle, name)]
        if left:
            reasons.append(
                "a finished run must keep no checkpoint, which holds what clients remember, but "
                f"there is {', '.join(left[:_MOST_NAMES])}"
            )
    except AuditError as error:
        strange = []
        unjudged.append(str(error))
    if strange:
        unjudged.append(
            f"no run writes {', '.join(strange[:_MOST_NAMES])}"
            f"{' and others' if len(strange) > _MOST_NAMES else ''}: its content was not judged; "
            "move it out of the run directory"
        )
    details = {"lines_of_metrics": lines}
    return conclude(
        "metrics, ledger, model and its configuration hold only their own fields. The published "
        "learning rates are the schedule's, and times are whole seconds. Every tensor of the model "
        "is a trained parameter or was frozen. There is no other file next to them or in the "
        "evidence. None of these files, nor any existing report, contains a number of the private "
        "evidence",
        reasons,
        unjudged,
        details=details,
    )


def shown(name: str) -> str:
    """A name as it may be printed."""
    plain = name if name.isprintable() else ascii(name)
    return repr(plain if len(plain) <= 64 else plain[:64] + "…")


DISCLOSURE = Check(
    name="disclosure",
    title="Are the files outside the evidence free of private values?",
    units=(*AT_RECORD_LEVEL, *AT_CLIENT_LEVEL, LOOP),
    place=100,
    meaning="If it fails, files that others read reveal something about private records that no "
    "noise hides.",
    claim="Training losses, gradient norms, realised batches and clean moments stay in evidence/. "
    "Outside it each file holds only known fields, and the model only trained and frozen "
    "parameters.",
    tolerance="none for names; 1e-9 relative for learning rates, written and read again in decimal",
    power="any further field of metrics, ledger or model.json; white space and digits of metrics "
    "and model.json that their writer does not make. Running statistics, or any further tensor of "
    "a model that is trained in full; any further file; a time that is not a whole number of "
    f"seconds. A private number copied with at least {leaks.DIGITS} digits, out of the "
    f"{leaks.MOST_NUMBERS:,} that are searched for",
    limits="A training loss published as test_loss is not detected, because the audit has no test "
    "records; nor is a mean of private numbers, or a rounded one. Nor is what the order of fields "
    "tells. It is taken on trust that a user's own metric (test_own) is computed from test records "
    "only. The check weights judges whether the frozen tensors of a partly trained backbone stayed "
    "the same. Running times are published in whole seconds where everybody knows who takes part. "
    "They may depend on the records, and it is taken on trust that a whole number is a time. Of "
    "existing reports, the data and the web page are read; a PDF is not opened.",
    rule=_judge,
)
register(DISCLOSURE)
