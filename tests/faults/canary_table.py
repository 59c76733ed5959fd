"""What canaries see, measured: `python -m tests.faults.canary_table docs/detection.md`.

Trains the quickstart as an audit run, correct and with one part broken, and writes the table of the
section "Canaries" between its markers. Seeds are fixed, so that the same machine writes the same.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

from audit.checks.base import Judgement
from audit.checks.canaries import CANARIES
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import prepare
from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.clipping.clipped_sum import Clipping
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.run import training as engine_run

BEGIN, END = "<!-- canaries -->", "<!-- end of canaries -->"
NUMBERS = (100, 300, 1000)
_SEED = "randomness={mode: reproducible, seed: 1}"


@contextlib.contextmanager
def noise_times(factor: float) -> Iterator[None]:
    """The engine with other noise than it says."""

    def add(total, deviation, *rest, **more):
        if factor == 0.0:
            return total.clone()
        return add_gaussian_noise(total, deviation * factor, *rest, **more)

    with mock.patch.object(oracle, "add_gaussian_noise", add):
        yield


@contextlib.contextmanager
def no_clipping() -> Iterator[None]:
    """The engine without clipping."""
    weights = Clipping.weights

    def unclipped(self, squared_norms, dtype):
        del self
        return weights(Clipping(math.inf), squared_norms, dtype)

    with mock.patch.object(Clipping, "weights", unclipped):
        yield


CASES = (
    ("correct", "gradient", contextlib.nullcontext),
    ("noise × ½", "gradient", lambda: noise_times(0.5)),
    ("noise × ¼", "gradient", lambda: noise_times(0.25)),
    ("no noise", "gradient", lambda: noise_times(0.0)),
    ("no clipping", "gradient", no_clipping),
    ("correct", "label", contextlib.nullcontext),
    ("no noise", "label", lambda: noise_times(0.0)),
)


def judged(spec: specs.Spec, order: CanaryOrder) -> Judgement:
    """What the check "canaries" says of one audit run."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(spec, torch.device("cpu"))
        training = engine_run.start(experiment, Path(folder), canaries=order)
        engine_run.train(training)
        return CANARIES.judge(open_bundle(training.run.path))


def table() -> str:
    """The table, Markdown."""
    spec = specs.load("quickstart", [_SEED])
    lines = [
        "| engine | kind | N | every noised gradient | its beginning | the final model | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind, broken in CASES:
        for count in NUMBERS if kind == "gradient" else NUMBERS[1:2]:
            with broken():
                found = judged(spec, CanaryOrder(count, kind))
            cells = {
                view["view"]: f"{view['epsilon_any_mechanism']:.2f}, "
                f"{view['epsilon_these_steps']:.2f}" + (" **✗**" if view["contradicted"] else "")
                for view in found.details["views"]
            }
            row = [cells.get(view, "–") for view in ("uploads", "beginning", "final-model")]
            words = {"PASS": "not contradicted", "FAIL": "contradicted"}
            verdict = words.get(found.verdict.value, found.verdict.value.lower())
            lines.append(f"| {name} | {kind} | {count} | {' | '.join(row)} | {verdict} |")
            sys.stderr.write(lines[-1] + "\n")
    lines += ["", "| N | " + " | ".join(f"{count}" for count in NUMBERS) + " |"]
    lines.append("|---|" + "---|" * len(NUMBERS))
    ceilings = []
    for count in NUMBERS:
        found = judged(spec, CanaryOrder(count))
        (view,) = [one for one in found.details["views"] if one["view"] == "uploads"]
        ceilings.append(f"{view['ceiling_any_mechanism']:.2f}, {view['ceiling_these_steps']:.2f}")
    lines.append("| at most | " + " | ".join(ceilings) + " |")
    return "\n".join(lines)


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
