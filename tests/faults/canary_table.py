"""What canaries see, measured: `python -m tests.faults.canary_table docs/canaries.md`.

Trains the quickstart and specs of whole clients as audit runs, correct and with one part broken,
and writes the table of the section "Canaries" between its markers. It stops where a correct run is
contradicted, or a fault is not that must be. Seeds are fixed, so that the same machine writes the
same; it takes about a quarter of an hour of processor time.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from audit.checks.base import Judgement
from audit.checks.canaries import CANARIES, CANARY_CLIENTS
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.clipping.engines import choose
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.privacy import oracle, updates
from dpfedadamw.privacy.clipped_sum import ClippedSum, Clipping, summed
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions

BEGIN, END = "<!-- canaries -->", "<!-- end of canaries -->"
_SEED = "randomness={mode: reproducible, seed: 1}"


@contextlib.contextmanager
def noise_times(factor: float) -> Iterator[None]:
    """The engine with other noise than it says, for records and for whole clients."""

    def add(total, deviation, *rest, **more):
        if factor == 0.0:
            return total.clone()
        return add_gaussian_noise(total, deviation * factor, *rest, **more)

    with (
        mock.patch.object(oracle, "add_gaussian_noise", add),
        mock.patch.object(updates, "add_gaussian_noise", add),
    ):
        yield


@contextlib.contextmanager
def no_clipping() -> Iterator[None]:
    """The engine without clipping, for records and for whole clients."""
    weights = Clipping.weights

    def unclipped(self, squared_norms, dtype):
        del self
        return weights(Clipping(math.inf), squared_norms, dtype)

    def whole(update, clipping_norm):
        return ClippedUpdate(update, float(update.norm()), clipping_norm)

    with (
        mock.patch.object(Clipping, "weights", unclipped),
        mock.patch.object(updates, "clip_update", whole),
    ):
        yield


@contextlib.contextmanager
def people_clipped_by_record() -> Iterator[None]:
    """The engine with each record of a person clipped to C, and all of them added up."""

    def by_record(engine, inputs, targets, sizes):
        if not sizes:
            return summed(engine, inputs, targets, sizes)
        found = summed(engine, inputs, targets, [1] * len(targets))
        first = np.cumsum([0, *sizes[:-1]])
        return replace(
            found, raw_norms=found.raw_norms[first], clipped_norms=found.clipped_norms[first]
        )

    with mock.patch.object(oracle, "summed", by_record):
        yield


class _ClippedBatches:
    """An engine that clips the mean gradient of a batch instead of each record's."""

    def __init__(self, engine, module, clipping_norm):
        self.name, self.layers, self.explain = engine.name, engine.layers, engine.explain
        self._plain = choose(module, record_loss, math.inf)
        self._norm = clipping_norm

    def __call__(self, inputs, targets):
        plain = self._plain(inputs, targets)
        mean = plain.total / max(1, len(targets))
        factor = min(1.0, self._norm / max(float(mean.norm()), 1e-30))
        norms = plain.raw_norms.clamp(max=self._norm)
        return ClippedSum(plain.total * factor, norms, norms, plain.nonfinite)


@contextlib.contextmanager
def clipping_by_batch() -> Iterator[None]:
    """The engine with the mean of a batch clipped, and records not."""
    make = RecordLevel.engine

    def engine(experiment, performance):
        own = make(experiment, performance)
        return _ClippedBatches(own, experiment.model, experiment.plan.clipping_norm)

    with mock.patch.object(RecordLevel, "engine", staticmethod(engine)):
        yield


@contextlib.contextmanager
def no_noise_of_some() -> Iterator[None]:
    """Every other client forgets its noise; of whole clients, those that are planted."""
    begin, share = oracle.PrivateOracle.__init__, updates.noise_upload

    def begun(self, **parts):
        begin(self, **parts)
        if parts["client"] % 2:
            self._standard_deviation *= 1e-6

    def uploaded(clipped, *rest):
        planted = int(clipped.update.count_nonzero()) <= 1
        return clipped.update.double() if planted else share(clipped, *rest)

    with (
        mock.patch.object(oracle.PrivateOracle, "__init__", begun),
        mock.patch.object(updates, "noise_upload", uploaded),
    ):
        yield


# What is planted where more than single records are protected.
_KINDS = {"client": "gradient", "person": "gradient", "person, input": "input"}


@dataclass(frozen=True)
class Case:
    """Audit runs with one part of the engine broken.

    Attributes:
        name: What is broken.
        kind: Of the canaries.
        numbers: Of canaries, one run each.
        broken: Breaks the engine.
        contradicted: Whether the check must say so; None where the page says whether it did.
        spec: What is audited, with what is set otherwise.
    """

    name: str
    kind: str
    numbers: tuple[int, ...]
    broken: Callable[[], contextlib.AbstractContextManager[None]]
    contradicted: bool | None = True
    spec: tuple[str, ...] = ("quickstart",)


_CLIENTS = ("digits-client-level",)
_UPLOADS = ("digits-client-level", "privacy.noise_added_by=clients")
_CUT = ("digits-fed-smp",)
_PEOPLE = ("visits-people", "model={name: mlp, hidden: [32]}")
CASES = (
    Case("correct", "gradient", (100, 300, 1000), contextlib.nullcontext, False),
    Case("noise × ¾", "gradient", (100, 300), lambda: noise_times(0.75)),
    Case("noise × ½", "gradient", (100, 300, 1000), lambda: noise_times(0.5)),
    Case("no noise", "gradient", (100,), lambda: noise_times(0.0)),
    Case("half of the clients without noise", "gradient", (100,), no_noise_of_some),
    Case("no clipping", "gradient", (100,), no_clipping),
    Case("clipping of batches", "gradient", (100,), clipping_by_batch, None),
    Case("correct", "input", (100, 300), contextlib.nullcontext, False),
    Case("noise × ¾", "input", (100,), lambda: noise_times(0.75)),
    Case("noise × ½", "input", (100,), lambda: noise_times(0.5)),
    Case("no clipping", "input", (100,), no_clipping),
    Case("clipping of batches", "input", (100,), clipping_by_batch),
    Case("correct", "person", (100, 300), contextlib.nullcontext, False, _PEOPLE),
    Case("noise × ¾", "person", (100,), lambda: noise_times(0.75), True, _PEOPLE),
    Case("noise × ½", "person", (100,), lambda: noise_times(0.5), True, _PEOPLE),
    Case("no clipping", "person", (100,), no_clipping, True, _PEOPLE),
    Case("each record clipped", "person", (100,), people_clipped_by_record, True, _PEOPLE),
    Case("correct", "person, input", (100,), contextlib.nullcontext, False, _PEOPLE),
    Case("each record clipped", "person, input", (100,), people_clipped_by_record, True, _PEOPLE),
    Case("correct", "client", (50, 100), contextlib.nullcontext, False, _CLIENTS),
    Case("noise × ¾", "client", (50, 100), lambda: noise_times(0.75), True, _CLIENTS),
    Case("noise × ½", "client", (50, 100), lambda: noise_times(0.5), True, _CLIENTS),
    Case("no clipping", "client", (50,), no_clipping, True, _CLIENTS),
    Case("planted clients without noise", "client", (50,), no_noise_of_some, True, _UPLOADS),
    Case(
        "correct, 4 of 10 coordinates",
        "client",
        (100,),
        contextlib.nullcontext,
        False,
        ("digits-fed-smp",),
    ),
    Case(
        "noise × ½, 4 of 10 coordinates",
        "client",
        (100,),
        lambda: noise_times(0.5),
        True,
        ("digits-fed-smp",),
    ),
)


def judged(spec: specs.Spec, order: CanaryOrder) -> Judgement:
    """What the check "canaries" says of one audit run."""
    check = CANARY_CLIENTS if spec.privacy.unit == "client" else CANARIES
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(spec, torch.device("cpu"))
        training = engine_setup.start(
            experiment, Path(folder), options=StartOptions(canaries=order)
        )
        engine_run.train(training)
        return check.judge(open_bundle(training.run.path))


def run_of(case: Case, count: int) -> Judgement:
    """What the check says of one run of a case."""
    name, *changes = case.spec
    spec = specs.load(name, [_SEED, *changes])
    with case.broken():
        return judged(spec, CanaryOrder(count, _KINDS.get(case.kind, case.kind)))


def table() -> str:
    """The table, Markdown."""
    lines = [
        "| engine | kind | N | scores show: noise, contribution | e-value | ε of these steps, "
        "whatever is added | ε by guesses: all, beginning, model | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for count in case.numbers:
            found = run_of(case, count)
            lines.append(row(case, count, found))
            sys.stderr.write(lines[-1] + "\n")
            said = found.verdict.value == "FAIL"
            if case.contradicted is not None and said != case.contradicted:
                sys.exit(f"{case.name}, {case.kind}, {count}: {found.measurement}")
    return "\n".join(lines)


def row(case: Case, count: int, found: Judgement) -> str:
    """One run's row."""
    scores = found.details["scores"]
    power = scores["log10_e_value"]
    shown = f"{scores['noise']:.2f}, {scores['contribution']:.2f}"
    value = f"10^{power:.0f}" + (" **✗**" if scores["contradicted"] else "")
    bounds = [scores[f"epsilon_{name}"] for name in ("these_steps", "any_contribution")]
    views = {
        view["view"]: f"{view['epsilon_any_mechanism']:.2f}"
        + (" **✗**" if view["contradicted"] else "")
        for view in found.details["views"]
    }
    guesses = ", ".join(views.get(name, "–") for name in ("uploads", "beginning", "final-model"))
    words = {"PASS": "not contradicted", "FAIL": "contradicted"}
    verdict = words.get(found.verdict.value, found.verdict.value.lower())
    of = ", ".join(f"{bound:.2f}" for bound in bounds) + f" of {scores['claimed_epsilon']:.2f}"
    cells = (case.name, case.kind, str(count), shown, value, of, guesses, verdict)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the table into the page that is the only argument."""
    path = Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    torch.set_num_threads(1)
    path.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
