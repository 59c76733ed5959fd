"""ε of forty histories by four programs: ``python -m tests.conformance.epsilons docs/format.md``.

The engine, the auditor, the second verifier and dp-accounting share no code; the sentence between
the page's marks says how far they lie apart.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import dp_accounting

from audit.accounting.budget import Steps, budget
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.privacy.composition import Composition

BEGIN, END = "<!-- epsilons -->", "<!-- end of epsilons -->"
JUDGE = Path(__file__).with_name("judge.mjs")
COUNT, SEED = 40, 41


def histories() -> list[tuple[float, tuple[tuple[float, float, int], ...]]]:
    """δ, and rate, noise multiplier and steps of each kind of Poisson query; ε of 0.1 to 30."""
    rng = random.Random(SEED)
    found: list[tuple[float, tuple[tuple[float, float, int], ...]]] = []
    while len(found) < COUNT:
        kinds = tuple(
            (
                1.0 if rng.random() < 0.1 else 10 ** rng.uniform(-2.5, -0.3),
                rng.uniform(0.6, 6.0),
                round(10 ** rng.uniform(0, 3)),
            )
            for _ in range(rng.choice((1, 1, 2)))
        )
        delta = 10 ** rng.uniform(-8, -3)
        if 0.1 < _engine(kinds, delta) < 30:
            found.append((delta, kinds))
    return found


def _engine(kinds: tuple[tuple[float, float, int], ...], delta: float) -> float:
    parts = tuple(
        Composition(sigma, rate, steps, 1, "full" if rate == 1.0 else "poisson")
        for rate, sigma, steps in kinds
    )
    return epsilon_pld(parts, delta)


def _google(kinds: tuple[tuple[float, float, int], ...], delta: float) -> float:
    events = []
    for rate, sigma, steps in kinds:
        step = dp_accounting.GaussianDpEvent(sigma)
        if rate < 1.0:
            step = dp_accounting.PoissonSampledDpEvent(rate, step)
        events.append(dp_accounting.SelfComposedDpEvent(step, steps))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(dp_accounting.ComposedDpEvent(events)).get_epsilon(delta))


def sentence() -> str:
    """How far the four lie apart."""
    cases = histories()
    given = [
        {"delta": delta, "history": [{"rate": q, "sigma": s, "steps": n} for q, s, n in kinds]}
        for delta, kinds in cases
    ]
    done = subprocess.run(
        ["node", str(JUDGE), "epsilons"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    second = [tight for tight, _ in json.loads(done.stdout)]
    programs = {
        "the auditor": [
            budget([Steps(*one) for one in kinds], delta).headline for delta, kinds in cases
        ],
        "the second verifier": second,
        "dp-accounting": [_google(kinds, delta) for delta, kinds in cases],
    }
    engine = [_engine(kinds, delta) for delta, kinds in cases]
    parts = []
    for name, values in programs.items():
        off = [value / own - 1 for value, own in zip(values, engine, strict=True)]
        parts.append(f"{name} by {min(off):+.1e} to {max(off):+.1e}")
    return (
        f"Of {len(cases)} random histories with ε from {min(engine):.2f} to {max(engine):.1f}, "
        f"relative to the engine's ε: {', '.join(parts)}."
    )


def main(page: Path) -> None:
    """Rewrite the sentence of a page."""
    text = sentence()
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
