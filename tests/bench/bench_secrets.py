"""Secret texts in a small language model, with noise and without it: run by hand.

    python -m tests.bench.bench_secrets docs/canaries.md

Trains a Llama of one layer with letters for tokens on questions and answers of two clients, and
asks it for the codes that were planted. The engine's noise is that of each claim, or none of it.
Seeds are fixed, so that the same machine writes the same; it takes about a minute of one core.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from audit.checks.base import Judgement
from audit.checks.canaries import CANARIES
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import prepare
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from tests.dpfedadamw.models.small_language_models import LETTERS, SMALLEST, SPECIAL, folder_of
from tests.faults.canary_table import noise_times
from tests.faults.language_faults import language_spec

BEGIN, END = "<!-- secrets -->", "<!-- end of secrets -->"
# Those of the tokeniser: with the digits that codes are made of.
WRITTEN = f"{LETTERS}0123456789-T"
_WORDS = ("a cat sees the sea", "the dog finds bread", "we go", "no", "an old song of the moon")
_PRIVACY = (
    "privacy={{unit: record, clipping_norm: 1.0, target_epsilon: {}, delta: 1.0e-3, "
    "sampling: {{kind: poisson, expected_batch_size: {}}}}}"
)
# What is claimed, and the noise over the claim's.
CASES = ((2.0, 1.0), (8.0, 1.0), (100.0, 1.0), (2.0, 0.0))


@functools.cache
def _files(texts: int) -> tempfile.TemporaryDirectory:
    """A folder with a small model and a table of texts, which lasts as long as the process."""
    kept = tempfile.TemporaryDirectory()
    parent = Path(kept.name)
    sizes = {"vocab_size": len(SPECIAL) + len(WRITTEN), "hidden_size": 16, "intermediate_size": 32}
    folder_of("llama", parent, configuration={**SMALLEST, **sizes}, letters=WRITTEN)
    generator = np.random.default_rng(0)
    rows = [f"person{row // 2},{','.join(generator.choice(_WORDS, 2))}" for row in range(texts)]
    (parent / "texts.csv").write_text("\n".join(["author,question,answer", *rows]) + "\n")
    return kept


def secret_spec(
    overrides: tuple[str, ...] = (), epsilon: float = 2.0, texts: int = 40, batch: int = 8
) -> specs.Spec:
    """A spec that answers questions of two clients; a secret's code is an answer."""
    folder = _files(texts).name
    changes = (
        f"model.source={folder}/llama", "model.length=48", f"data.path={folder}/texts.csv",
        f"data.cache={folder}/cache", "data.text=[question, answer]", "data.test_fraction=0.1",
        "task={kind: causal_lm, sequences: 1, loss_on: answer}", "algorithm.learning_rate=1.0",
        "randomness.seed=2", _PRIVACY.format(epsilon, batch),
    )  # fmt: skip
    return language_spec((*changes, *overrides))


def judged(spec: specs.Spec, count: int, noise: float = 1.0) -> Judgement:
    """What the check says of an audit run with secrets, and so much of the claim's noise."""
    order = StartOptions(canaries=CanaryOrder(count, "secret"))
    less = noise_times(noise) if noise != 1.0 else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as parent, less:
        experiment = prepare(spec, torch.device("cpu"))
        training = engine_setup.start(experiment, Path(parent), options=order)
        with training.lock:
            engine_run.train(training)
        return CANARIES.judge(open_bundle(training.run.path))


def table() -> str:
    lines = [
        "| claimed ε | noise | secrets there, not there | exposure (bits): there, not there | "
        "repeated greedily: there, not there | chance of one sample: there, not there | "
        "ε ≥ | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for epsilon, noise in CASES:
        spec = secret_spec(("federation.local_steps=100",), epsilon, 60)
        lines.append(_row(epsilon, noise, judged(spec, 16, noise)))
    return "\n".join(lines)


def _row(epsilon: float, noise: float, found: Judgement) -> str:
    details = found.details
    groups = [details["secrets"][name] for name in ("there", "not_there")]
    verdicts = {"PASS": "not contradicted", "FAIL": "contradicted"}
    cells = [
        f"{epsilon:g}",
        "the claim's" if noise == 1.0 else "none",
        ", ".join(f"{one['secrets']}" for one in groups),
        ", ".join(f"{one['exposure']:.2f}" for one in groups),
        ", ".join(f"{one['repeated']}" for one in groups),
        ", ".join(f"{one['chance']:.1g}" for one in groups),
        f"{details['scores']['epsilon_these_steps']:.2f}",
        verdicts.get(found.verdict.value, found.verdict.value),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    path = Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    torch.set_num_threads(1)
    path.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
