"""What a fault of the gallery is, and how one is run from its spec to the audit's findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.training import Training
from dpfedadamw.spec import Spec
from tests.runs import attest, begin, judged

Findings = dict[str, Any]
Patch = pytest.MonkeyPatch

# 19,210 parameters in place of some 650: what is seen in a small model may drown in this one.
LARGE = "model={name: mlp, hidden: [256]}"


def unpatched(patch: Patch) -> None:
    """For faults that are in the spec, or come after the run."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A way in which published code has been wrong, as a small patch to the real engine.

    Attributes:
        name: Unique, in words joined by hyphens.
        breaks: What goes wrong, in one sentence without a full stop.
        seen: The kind of project where it was seen.
        caught_by: The checks that must say FAIL, all of them.
        spec: Makes the spec of the run.
        patch: Breaks the engine.
        judge: From spec and folder to findings; a plain run and its audit by default.
        says: Words that the first of these checks must use.
    """

    name: str
    breaks: str
    seen: str
    caught_by: tuple[str, ...]
    spec: Callable[[], Spec]
    patch: Callable[[Patch], None] = unpatched
    judge: Callable[[Spec, Path], Findings] = judged
    says: str = ""


@dataclasses.dataclass(frozen=True)
class FaultGroup:
    """Faults that belong together.

    Attributes:
        place: Where the group stands among the others.
        title: A heading.
        faults: In the order in which they are shown.
    """

    place: int
    title: str
    faults: tuple[Fault, ...]


def findings_of(fault: Fault, folder: Path, model: str = "") -> Findings:
    """Run a fault and audit it.

    Args:
        fault: Which one.
        folder: Where the run is written.
        model: An override of the spec that puts another model in the place of the fault's own,
            such as `LARGE`.
    """
    spec = fault.spec()
    # A perceptron reads no texts: a language model stays as it is.
    if model and spec.task.kind != "causal_lm":
        spec = specs.loads(specs.dump(spec), overrides=(model,))
    with pytest.MonkeyPatch.context() as patch:
        # The auditor is what is tried here, and not what stops such an engine while it runs.
        patch.setattr(SpotCheck, "due", lambda self, seconds: False)
        fault.patch(patch)
        return fault.judge(spec, folder)


def failed(findings: Findings) -> list[str]:
    """The checks that say FAIL, in the audit's order."""
    return [check["name"] for check in findings["checks"] if check["verdict"] == "FAIL"]


def with_training(spec: Spec, folder: Path, prepare: Callable[[Training], None]) -> Findings:
    """Findings on a run whose wiring was changed after it was set up."""
    training = begin(spec, folder)
    prepare(training)
    engine_run.train(training)
    return filed(training)


def filed(training: Training) -> Findings:
    """Sign a finished run and audit it."""
    attest(training)
    return filing.audit(training.run).to_json()
