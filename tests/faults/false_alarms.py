"""How often the audit says FAIL to a correct run: 200 small ones of every algorithm and sampler.

`python -m tests.faults.false_alarms docs/detection.md` runs them and writes the count between the
page's marks; `python -m tests.faults.false_alarms docs/people.md people` does the same for 200 runs
that protect people. Statistical checks share out a false-alarm rate of their own; every other check
compares exactly, and must never fail.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from scipy import stats

from audit.statistics.intervals import FALSE_ALARM
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.spec import Spec
from tests.faults.fault import failed
from tests.faults.sampling_faults import FIXED, SHUFFLED, SIX_STEPS
from tests.people import BY_HOSPITAL, people_spec
from tests.runs import judged, small_spec

RUNS = 200
BEGIN, END = "<!-- false alarms -->", "<!-- end of false alarms -->"
PEOPLE = "people"

# The checks that judge by chance; each spends FALSE_ALARM on a correct run, all its tests together.
BY_CHANCE = {
    "record": ("sensitivity", "noise-scale", "participation", "second-moment"),
    "person": ("sensitivity", "noise-scale", "participation", "second-moment"),
    "client": ("noise-scale", "participation"),
    "none": (),
}

SAMPLERS = {
    "poisson": (),
    "fixed size": FIXED[:2],
    "shuffled": (*SHUFFLED[:2], SIX_STEPS),
    "clients by chance": (
        "federation.client_sampling=poisson",
        "federation.clients_per_round=2",
        "federation.rounds=6",
    ),
}
SAMPLERS_OF_PEOPLE = {
    **SAMPLERS,
    "one record each": ("privacy.records_per_person=1",),
    "at three of eight hospitals": (
        f"data.partition={BY_HOSPITAL}",
        "data.clients=8",
        "federation.clients_per_round=8",
        "federation.clients_per_person=3",
    ),
}
# What these rules refuse: a round without clients releases nothing that they could go by, and
# shuffled epochs begin again in each participation.
REFUSED = {
    ("ali-dpfl", "shuffled"),
    ("ali-dpfl", "clients by chance"),
    ("adap-dpfl", "clients by chance"),
    # Its steps change from round to round, so that the dearest clients are not known beforehand.
    ("ali-dpfl", "at three of eight hospitals"),
}
WHOLE_CLIENTS = (
    "data.clients=20",
    "data.partition={kind: iid}",
    "federation.rounds=10",
    "federation.local_steps=1",
)


@dataclass(frozen=True)
class Kind:
    """A kind of correct run.

    Attributes:
        algorithm: Its name.
        unit: "record", "person", "client" or "none".
        sampler: How records or clients are drawn, or who adds the noise.
        overrides: Changes of the small spec.
    """

    algorithm: str
    unit: str
    sampler: str
    overrides: tuple[str, ...]

    def spec(self, seed: int) -> Spec:
        """The spec of one run."""
        if self.unit == "person":
            seeded = f"randomness={{mode: reproducible, seed: {seed}}}"
            return people_spec(self.algorithm, overrides=(*self.overrides, seeded))
        return small_spec(self.algorithm, overrides=self.overrides, seed=seed)


def kinds() -> Iterator[Kind]:
    """Every algorithm under every unit and sampler that it can run with."""
    for name, entry in ALGORITHMS.items():
        if "record" in entry.units:
            for sampler, changes in SAMPLERS.items():
                if (name, sampler) not in REFUSED:
                    yield Kind(name, "record", sampler, changes)
        if "client" in entry.units:
            for by in ("server", "clients"):
                privacy = (
                    "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, "
                    f"delta: 1.0e-3, noise_added_by: {by}}}"
                )
                yield Kind(name, "client", f"noise by {by}", (privacy, *WHOLE_CLIENTS))
        if "none" in entry.units:
            yield Kind(name, "none", "", ())


def plan() -> list[tuple[Kind, int]]:
    """Two hundred runs: all kinds in turn, with seed after seed; runs without privacy once."""
    private = [kind for kind in kinds() if kind.unit != "none"]
    runs = [(kind, 1) for kind in kinds() if kind.unit == "none"]
    seed = 1
    while len(runs) < RUNS:
        runs += [(kind, seed) for kind in private][: RUNS - len(runs)]
        seed += 1
    return runs


def kinds_of_people() -> Iterator[Kind]:
    """Every record-level algorithm under every way to draw people that it can run with."""
    for name, entry in ALGORITHMS.items():
        if "record" not in entry.units:
            continue
        target = ("privacy.target_epsilon=3",) if name == "ali-dpfl" else ()
        for sampler, changes in SAMPLERS_OF_PEOPLE.items():
            if (name, sampler) not in REFUSED:
                yield Kind(name, "person", sampler, (*target, *changes))


def plan_of_people() -> list[tuple[Kind, int]]:
    """Two hundred runs that protect people: all kinds in turn, with seed after seed."""
    every = list(kinds_of_people())
    return [(every[number % len(every)], 1 + number // len(every)) for number in range(RUNS)]


def level(unit: str) -> float:
    """How often a correct run of this unit may fail, at most."""
    return FALSE_ALARM * len(BY_CHANCE[unit])


def most_fails(runs: Sequence[tuple[Kind, int]]) -> int:
    """Fails among these runs that correct checks exceed once in a thousand times.

    Binomial with the runs' mean level: for unlike chances of the same mean the tail is smaller
    (Hoeffding 1956).
    """
    mean = sum(level(kind.unit) for kind, _ in runs) / len(runs)
    return int(stats.binom.isf(1e-3, len(runs), mean))


def highest_rate(fails: int, runs: int) -> float:
    """Upper end of the one-sided exact 95 % interval (Clopper-Pearson) of a rate."""
    return float(stats.beta.ppf(0.95, fails + 1, runs - fails)) if fails < runs else 1.0


@dataclass(frozen=True)
class Outcome:
    """One run's verdict, and which checks said FAIL."""

    kind: Kind
    seed: int
    verdict: str
    fails: tuple[str, ...]


def run(kind: Kind, seed: int, folder: Path) -> Outcome:
    """Train one correct run and audit it."""
    findings = judged(kind.spec(seed), folder)
    return Outcome(kind, seed, findings["verdict"], tuple(failed(findings)))


def text(outcomes: Sequence[Outcome]) -> str:
    """The count as Markdown."""
    lines = [
        "| unit | algorithms | kinds | runs | may fail, at most | FAIL |",
        "|---|---|---|---|---|---|",
    ]
    for unit in BY_CHANCE:
        own = [one for one in outcomes if one.kind.unit == unit]
        if not own:
            continue
        kinds_of = {one.kind for one in own}
        names = {one.kind.algorithm for one in own}
        fails = [one for one in own if one.verdict == "FAIL"]
        lines.append(
            f"| {unit} | {len(names)} | {len(kinds_of)} | {len(own)} "
            f"| {100 * level(unit):.1f} % | {len(fails)} |"
        )
    runs = [(one.kind, one.seed) for one in outcomes]
    expected = sum(level(kind.unit) for kind, _ in runs)
    fails = [one for one in outcomes if one.verdict == "FAIL"]
    told = [
        f"{one.kind.algorithm} ({one.kind.sampler}, seed {one.seed}): {', '.join(one.fails)}"
        for one in fails
    ]
    lines += [
        "",
        f"{len(outcomes)} runs, {len(fails)} FAIL; {expected:.2f} are expected at most, and more "
        f"than {most_fails(runs)} would happen once in a thousand times"
        + (f". They were: {'; '.join(told)}." if told else ".")
        + f" With 95 % confidence at most {100 * highest_rate(len(fails), len(runs)):.1f} % of "
        "such runs FAIL.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Make all runs and rewrite the count of the page that is named."""
    path = Path(arguments[0])
    runs = plan_of_people() if PEOPLE in arguments[1:] else plan()
    torch.set_num_threads(1)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for number, (kind, seed) in enumerate(runs):
            began = perf_counter()
            outcomes.append(run(kind, seed, Path(folder) / str(number)))
            print(number, outcomes[-1], f"{perf_counter() - began:.2f} s", flush=True)
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text(outcomes)}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
