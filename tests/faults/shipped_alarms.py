"""How often the audit says FAIL to correct runs of the shipped specs, in models of three sizes.

`python -m tests.faults.shipped_alarms docs/detection.md` makes 300 runs and writes the count
between the page's marks. Two hundred are as shipped, fifty have a learning rate of 1000 (and where
the rule has one a weight decay of 1000, so that a model overflows in six steps), and fifty draw
three records a batch, or three clients a round. What a spec ships with is made small enough: three
rounds of at most four clients (six rounds of ten where whole clients are protected), handwritten
digits in place of larger data sets, and in place of its model a perceptron of each of three sizes,
the first of which leaves the specs of other models theirs. Digits name no people, so specs that
protect people keep their visits. `sst2-lora` and `texts-lora`, which read texts, are not run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from time import perf_counter

import torch
from scipy import stats

from dpfedadamw import spec as specs
from dpfedadamw.spec import Spec
from tests.faults.false_alarms import level
from tests.faults.fault import failed
from tests.runs import judged

RUNS = 300
# How many of them are made otherwise than shipped.
OTHERWISE = 50
AS_SHIPPED, DIVERGING, FEW = "as shipped", "at a rate of 1000", "three a batch"
BEGIN, END = "<!-- shipped specs -->", "<!-- end of shipped specs -->"
# Parameters, and what the model is called for.
SIZES = {
    650: "model={name: mlp, hidden: []}",
    19_210: "model={name: mlp, hidden: [256]}",
    99_985: "model={name: mlp, hidden: [1333]}",
}
# The same of visits, which have 16 numbers and two classes where digits have 64 and ten.
OF_VISITS = {
    650: "model={name: mlp, hidden: [34]}",
    19_210: "model={name: mlp, hidden: [1011]}",
    99_985: "model={name: mlp, hidden: [5262]}",
}
LEFT_OUT = ("sst2-lora", "texts-lora")
# What the sampling of records calls the size of a batch.
_SIZE = {"poisson": "expected_batch_size", "fixed": "batch_size", "shuffled": "batch_size"}


@dataclass(frozen=True)
class Shipped:
    """A shipped spec in a model of one size.

    Attributes:
        name: The spec's.
        parameters: About how many; the least leaves models of other families as they are.
        way: AS_SHIPPED, DIVERGING or FEW.
    """

    name: str
    parameters: int
    way: str = AS_SHIPPED

    @property
    def unit(self) -> str:
        """What the spec protects."""
        return _shipped()[self.name].privacy.unit

    def spec(self, seed: int) -> Spec:
        """The spec of one run."""
        whole = _shipped()[self.name]
        clients = whole.privacy.unit == "client"
        changes = [
            f"randomness={{mode: reproducible, seed: {seed}}}",
            f"federation.rounds={6 if clients else 3}",
            f"federation.clients_per_round={10 if clients else 4}",
            f"federation.local_steps={min(whole.federation.local_steps, 1 if clients else 3)}",
        ]
        if whole.data.person:
            changes.append(OF_VISITS[self.parameters])
        else:
            if whole.data.dataset != "digits":
                changes.append("data={dataset: digits, clients: 4, partition: {kind: iid}}")
            if self.parameters > min(SIZES) or whole.data.dataset != "digits":
                changes.append(SIZES[self.parameters])
        if self.way == DIVERGING:
            changes += [
                f"algorithm.{name}=1000"
                for name in ("learning_rate", "weight_decay")
                if hasattr(whole.algorithm, name)
            ]
        if self.way == FEW and clients:
            changes.append("federation.clients_per_round=3")
        elif self.way == FEW:
            changes.append(f"privacy.sampling.{_SIZE[whole.privacy.sampling.kind]}=3")
        return specs.load(self.name, overrides=tuple(changes))


@cache
def _shipped() -> dict[str, Spec]:
    """The specs that are run, by name."""
    names = [one.name for one in specs.shipped() if one.name not in LEFT_OUT]
    return {name: specs.load(name) for name in names}


def kinds() -> Iterator[Shipped]:
    """Every shipped spec in every size; those without privacy in the least alone."""
    for parameters in SIZES:
        for name, whole in _shipped().items():
            if whole.privacy.unit != "none" or parameters == min(SIZES):
                yield Shipped(name, parameters)


def plan() -> list[tuple[Shipped, int]]:
    """Three hundred runs: those without privacy once, all others in turn with seed after seed."""
    every = [(kind, kind.unit) for kind in kinds()]
    private = [kind for kind, unit in every if unit != "none"]
    # Sizes take turns, so that a plan that is cut short has all of them.
    turn = [kind for name in {k.name: 0 for k in private} for kind in private if kind.name == name]
    runs = [(kind, 1) for kind, unit in every if unit == "none"]
    seed, shipped = 1, RUNS - 2 * OTHERWISE
    while len(runs) < shipped:
        runs += [(kind, seed) for kind in turn][: shipped - len(runs)]
        seed += 1
    # Every specification in one size or another.
    some = [kind for first in range(len(SIZES)) for kind in turn[first :: len(SIZES) + 1]]
    for way in (DIVERGING, FEW):
        runs += [(replace(kind, way=way), seed) for kind in some[:OTHERWISE]]
    return runs


@dataclass(frozen=True)
class Outcome:
    """One run's verdict, and which checks did not pass."""

    kind: Shipped
    unit: str
    seed: int
    verdict: str
    fails: tuple[str, ...]
    diverged: bool


def run(kind: Shipped, seed: int, folder: Path) -> Outcome:
    """Train one correct run and audit it."""
    findings = judged(kind.spec(seed), folder)
    (ledger,) = folder.glob("**/ledger.jsonl")
    diverged = b'"diverged"' in ledger.read_bytes().splitlines()[-1]
    return Outcome(kind, kind.unit, seed, findings["verdict"], tuple(failed(findings)), diverged)


def text(outcomes: Sequence[Outcome]) -> str:
    """The count as Markdown."""
    lines = [
        "| unit | parameters | runs are | specs | runs | may fail, at most | FAIL | diverged |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for unit, parameters, way in product(
        ("record", "person", "client", "none"), SIZES, (AS_SHIPPED, DIVERGING, FEW)
    ):
        kinds = [Shipped(one.kind.name, parameters, way) for one in outcomes if one.unit == unit]
        own = [one for one in outcomes if one.kind in kinds]
        if own:
            fails = sum(one.verdict == "FAIL" for one in own)
            lines.append(
                f"| {unit} | {parameters} | {way} | {len({one.kind.name for one in own})} "
                f"| {len(own)} | {100 * level(unit):.1f} % | {fails} "
                f"| {sum(one.diverged for one in own)} |"
            )
    fails = [one for one in outcomes if one.verdict == "FAIL"]
    unsure = sum(one.verdict == "NOT VERIFIED" for one in outcomes)
    expected = sum(level(one.unit) for one in outcomes)
    most = int(stats.binom.isf(1e-3, len(outcomes), expected / len(outcomes)))
    told = "; ".join(
        f"{one.kind.name} ({one.kind.parameters}, {one.kind.way}, seed {one.seed}): "
        f"{', '.join(one.fails)}"
        for one in fails
    )
    rate = f"{100 * len(fails) / len(outcomes):.1f} %"
    lines += [
        "",
        f"{len(outcomes)} runs, {len(fails)} FAIL ({rate}), {unsure} NOT VERIFIED; "
        f"{expected:.2f} FAIL ({100 * expected / len(outcomes):.1f} %) are expected at most, and "
        f"more than {most} would happen once in a thousand times"
        + (f". They were: {told}." if told else "."),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Make all runs and rewrite the count of the page that is named."""
    path = Path(arguments[0])
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for number, (kind, seed) in enumerate(plan()):
            began = perf_counter()
            outcomes.append(run(kind, seed, Path(folder) / str(number)))
            print(number, outcomes[-1], f"{perf_counter() - began:.2f} s", flush=True)
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text(outcomes)}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
