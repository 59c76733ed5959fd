"""What files outside the evidence may hold, and private numbers that they show all the same.

Three circles. Evidence is private and not in the lists of fields. The ledger is restricted: server
and auditor read it. Metrics, model and its configuration are public. A field that is not listed may
still be harmless, but nobody has looked.

A gradient norm or a clean sum that was copied into a report is there digit by digit. `search` finds
such copies alone: a mean of private numbers is another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.columns import LearntColumn, Queries, Query
from audit.reading.files import read_bytes
from audit.reading.ledger import DIGESTS, INTENTS, Pieces, Stopped
from audit.reading.ledger_lines import (
    OLD_FIELDS,
    Canaries,
    Decay,
    Grid,
    Producer,
    SharedBudget,
    Sparsification,
    Trial,
)
from audit.reading.units import EVERY_UNIT
from audit.untrusted.archives import Floats

# A shape is a mapping of names to shapes; None stands for whatever a known field holds.
Shape = Mapping[str, Any]


def _fields_of(section: type) -> Shape:
    """The fields of a section that is read into a class of the same fields."""
    return dict.fromkeys(one.name for one in fields(section))


_CHAIN = dict.fromkeys(("kind", "previous", "digest"))

_LEARNT: Shape = _fields_of(LearntColumn)

METRICS: Shape = dict.fromkeys(
    (
        "canaries",
        "round",
        "learning_rate",
        "test_accuracy",
        "test_loss",
        "test_classes",
        "validation_accuracy",
        "validation_loss",
        # Of a regression, of several labels, and of a language model.
        "test_rmse",
        "test_mae",
        "test_r2",
        "test_micro_f1",
        "test_perplexity",
        # Of the finished model.
        "test_majority_rate",
        "test_auc",
        "test_average_precision",
        "test_f1",
        "test_balanced_accuracy",
        "test_log_loss",
        "test_calibration_error",
        # Of public test records alone.
        "test_confusion",
        "test_own",
        "bytes_up",
        "bytes_down",
        "seconds",
        # Of the rounds so far, for any participants.
        "epsilon",
    )
)

MODEL: Shape = {
    "format": None,
    "model": None,
    "input_shape": None,
    "classes": None,
    "task": None,
    # Names of classes and columns, which specs and headers of tables have too.
    "labels": None,
    "inputs": None,
    # What the ledger's line of kind bounds says, which follows from noised counts alone.
    "learnt": _LEARNT,
    "parameters": None,
    "tensors": dict.fromkeys(("name", "shape", "dtype", "trained", "sha256")),
    "base": None,
    "source": None,
    "qualifications": None,
    "canaries": None,
}

_HEADER = (
    "format", "run", "spec_sha256", "data_sha256", "package", "created", "unit", "adjacency",
    "delta", "rounds", "local_steps", "clients", "clients_per_round", "client_sampling", "records",
    "sampling", "expected_batch_size", "clipping_norm", "noise_multiplier", "participation",
    "noise_added_by", "precision", "randomness", "qualifications", "commitment", "streams",
    "seed", "parameters", "tensors_sha256", "max_epsilon", "sampling_rate", "rate_assumption",
    "selection_sha256", "commitments", "seconds", "frozen_sha256", "contents_sha256",
    "people_sha256", "rows", "records_per_person", "clients_per_person",
)  # fmt: skip

_SPEND = (
    "round", "client", "attempt", "records", "sampling", "sampling_rate", "expected_batch_size",
    "clipping_norm", "noise_multiplier", "steps", "queries_per_step", "unit", "expected_clients",
    "noise_added_by", "clients", "upload_noise_multiplier", "rate_stated",
)  # fmt: skip

_ROUND = ("round", "clients", "steps", "queries", "dropped", *DIGESTS)

# A claim's numbers, also as they once stood; that ε holds numbers alone is for its readers.
_EPSILON = ("epsilon", *OLD_FIELDS)
_VIEW = ("accountant", *_EPSILON)

_CLIENT = (
    "client", "records", "sampling_rate", "participations", "steps", "delta_records", *_EPSILON,
)  # fmt: skip

_THIRD_PARTY = (*_VIEW, "participation", "rounds", "delta_clients")

_FORMS = (
    "third_party_noble", "server_noble", "equation_13", "equation_14", "delta_server",
    "sampling_rate",
)  # fmt: skip

LEDGER: Mapping[str, Shape] = {
    "header": {
        **_CHAIN,
        **dict.fromkeys(_HEADER),
        "accountant": dict.fromkeys(("library", "version")),
        "producer": _fields_of(Producer),
        "sparsification": _fields_of(Sparsification),
        "canaries": _fields_of(Canaries),
        "budget": {**_fields_of(SharedBudget), "reservation": None},
        "tuning": _fields_of(Trial),
        "sites": dict.fromkeys(("keys", "drop_outs")),
        "grid": _fields_of(Grid),
        "public_coin": {
            **dict.fromkeys(("run", "intent_sha256", "challenge_sha256", "challenger")),
            **dict.fromkeys(("nonce", "root", "own")),
            "intents": dict.fromkeys(INTENTS),
        },
        "column_queries": _fields_of(Queries),
        "initial": dict.fromkeys(("broadcast_sha256", "origin", "file", "file_sha256")),
        "adaptation": {
            **dict.fromkeys(("most_local_steps", "step_limit", "follows_releases")),
            "decay": _fields_of(Decay),
        },
    },
    "spend": {**_CHAIN, **dict.fromkeys(_SPEND)},
    # What an adaptive rule goes by was released, and "uploads" sees that it was.
    "round": {
        **_CHAIN,
        **dict.fromkeys(_ROUND),
        "pieces": _fields_of(Pieces),
        "released": dict.fromkeys(("strong_convexity", "slope")),
    },
    "resume": {**_CHAIN, **dict.fromkeys(("round", "commitment"))},
    # Where a line stands is read, and no field of it.
    "query": {**_CHAIN, **dict.fromkeys(_fields_of(Query).keys() - {"line"})},
    "bounds": {**_CHAIN, "columns": _LEARNT, "noised_sha256": None},
    "claim": {
        **_CHAIN,
        **dict.fromkeys(("view_headline", "delta", "adjacency", "assumptions", "profile")),
        "gaussian_dp": dict.fromkeys(("mu", "exact", "misses_smaller_by")),
        "accountant_history": None,
        # Of a claim on people.
        **dict.fromkeys(("unit", "clients_per_person")),
        "server": {
            **dict.fromkeys(_VIEW),
            "clients": dict.fromkeys(_CLIENT),
        },
        "server_worst_case": dict.fromkeys(_VIEW),
        "third_party": dict.fromkeys(_THIRD_PARTY),
        "tuning": {name: dict.fromkeys(_VIEW) for name in ("one_trial", "server_all_trials")},
        "closed_forms": dict.fromkeys(_FORMS),
        "budget": dict.fromkeys(("epsilon", "delta", "charged")),
        # Of the histograms alone by which bounds were learnt, for any participants in the rounds.
        "columns": dict.fromkeys(("learnt", "epsilon")),
        # Of the person with most records, in every round: no more than the worst case tells.
        "person": dict.fromkeys(("records", "epsilon", "reason")),
        "stopped": _fields_of(Stopped),
        # Of the headline, and so no more than that tells.
        "dp_accounting": dict.fromkeys(
            ("version", "view", "accountant", "epsilon", "bound", "reason")
        ),
        "diverged": {"rounds": None},
    },
}

# Patterns of the files that a run, its audit and its report write outside the evidence.
RUN_FILES = (
    r"(spec\.yaml|ledger\.jsonl|metrics\.jsonl|model\.safetensors|model\.json)",
    r"(audit\.json|report(-[a-z]+)?\.(json|pdf|html)|VERIFY(-public)?\.md)",
    r"((training\.attestation|attestation(-public)?)\.json(\.tsr)?|(trainer|auditor)\.(pub|rotations\.json))",
    r"(model\.sig|erasure\.json|(intent|challenge|draw)\.json(\.tsr|\.tlog)?)",
    r"\.unfinished/lock",
)
# What the engine and the auditor write into the evidence; of round and client, the numbers.
EVIDENCE_FILES = (
    r"evidence/(salt|tuning|layout\.json|findings\.json|(partition|inputs|probe|canaries|coordinates|records|people|columns|end)\.npz)",
    r"evidence/(round|server)-\d{5,}\.npz",
    r"evidence/upload-\d{5,}(-\d{5,})?\.npz",
    r"evidence/(state-\d{5,}\.safetensors|environment-\d+\.json|client-\d{5,}\.jsonl)",
)
# What a run goes on from, while its ledger has no claim; a finished run keeps none of it.
CHECKPOINT_FILES = (r"checkpoint/(spec\.yaml|paid|state-\d{5,}\.safetensors)",)


def unknown_fields(value: Any, shape: Shape, prefix: str = "") -> Iterator[str]:
    """Names of fields that a shape does not have, dotted; each once where entries share it.

    Args:
        value: a parsed document, or part of one; what is no mapping has no fields.
        shape: the fields that it may have.
        prefix: where the part lies.
    """
    found: dict[str, None] = {}
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, dict):
            continue
        for key, inner in part.items():
            name = f"{prefix}{key}"
            if key not in shape:
                found[name] = None
            elif shape[key] is not None:
                found |= dict.fromkeys(unknown_fields(inner, shape[key], f"{name}."))
    yield from found


MOST_NUMBERS = 20_000
# Two numbers that have nothing to do with each other agree in so many digits once in 9·10^11 times:
# 20,000 private ones and a million others meet by chance in 2 % of runs, a report's ten thousand in
# 0.02 %.
DIGITS = 12
MAXIMUM_BYTES = 1 << 26

_REPORTS = [f"report{kind}.{form}" for kind in ("", "-public") for form in ("json", "html")]
_TEXTS = ("metrics.jsonl", "ledger.jsonl", "model.json", "audit.json", *_REPORTS)
_DIGITS = re.compile(r"\d[\d.]{11,}")


@dataclass(frozen=True)
class Leak:
    """A private number that a file shows.

    Attributes:
        file: where it stands.
        array: which array of the evidence it is from.
        round: the round's number, from 0.
    """

    file: str
    array: str
    round: int


def search(run_dir: Path) -> tuple[Leak, ...]:
    """Look for private numbers in the files of a run, one finding a file at most.

    Raises:
        AuditError: the evidence cannot be read, so that nothing can be looked for.
    """
    return search_bundle(open_bundle(run_dir))


def search_bundle(bundle: Bundle) -> tuple[Leak, ...]:
    """As `search`, on a run that is open already."""
    private = {digits: (array, index) for digits, array, index in _private_numbers(bundle)}
    leaks = []
    for name in _TEXTS:
        try:
            text = read_bytes(bundle.root, name, MAXIMUM_BYTES).decode("utf-8", "replace")
        except UntrustedFileError as error:
            if error.missing:
                continue
            raise
        shown = {digits_of(part)[:DIGITS] for part in _DIGITS.findall(text)}
        found = sorted(shown & private.keys())
        if found:
            leaks.append(Leak(name, *private[found[0]]))
    return tuple(leaks)


def digits_of(text: str) -> str:
    """The significant digits of a number in decimal notation."""
    mantissa, _, _ = text.partition("e")
    return mantissa.replace(".", "").replace("-", "").lstrip("0")


def _private_numbers(bundle: Bundle) -> Iterator[tuple[str, str, int]]:
    """Digits, array and round of numbers long enough to be known by their digits."""
    rounds = bundle.layout().round_files
    each = -(-MOST_NUMBERS // max(1, rounds))
    for index in range(rounds):
        arrays = _arrays_of(bundle, index)
        share = -(-each // max(1, len(arrays)))
        for name, values in arrays:
            # Evenly spread, so that every client and query has its turn.
            some = values.ravel()[:: max(1, -(-values.size // share))]
            for text in map(repr, np.abs(some[np.isfinite(some)]).tolist()):
                digits = digits_of(text)
                if len(digits) >= DIGITS:
                    yield digits[:DIGITS], name, index


def _arrays_of(bundle: Bundle, index: int) -> list[tuple[str, Floats]]:
    """What one round holds that no noise hides, and the noise, which would undo the hiding."""
    try:
        unit = EVERY_UNIT[bundle.layout().unit]
        named = unit.private_numbers(bundle.evidence_of_round(index, unit))
    except UntrustedFileError as error:
        if error.missing:
            return []
        raise
    return list(named.items())
