"""One run as a comparison reads it: its claim, its accuracy, its traffic, and why it may not rank.

Everything comes through the readers that reports are made with, so a comparison trusts a run
directory as little as a report does, and keeps the same circles: for the public audience nothing
here depends on who took part how often.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reports.content import accounting, findings, guarantee, outcomes
from reports.content.findings import VerdictValue
from reports.content.parts import PUBLIC
from reports.content.units import View
from reports.errors import ReportError, SourceError
from reports.files import clean, mapping
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
    """Whether the signatures beside a run hold.

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
        spent: Rounds completed and ε spent towards a third party, by the auditor.
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
        source = load(path)
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
        signature=_signature(path),
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


def _signature(path: Path) -> Signature:
    envelopes = (signing.TRAINING_ENVELOPE, signing.RUN_ENVELOPE)
    if not any((path / name).exists() for name in envelopes):
        return Signature(UNSIGNED, "")
    result = verification.verify(path)
    problem = "" if result.is_intact else clean(str(result.problems[0]), 200)
    return Signature(HOLDS if result.is_intact else BROKEN, problem)
