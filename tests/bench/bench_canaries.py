"""What canaries' scores show, beside jax_privacy's auditors on the same scores: run by hand.

    pip install --no-deps jax-privacy dp-accounting     # in an environment of its own
    python -m tests.bench.bench_canaries docs/canaries.md

Simulated, so that the truth is known: canaries in one Gaussian release, and in a hundred subsampled
steps as the quickstart takes them, both of which claim ε = 7.08 at δ = 10⁻⁵. In one release a
canary's score is all that there is of it, and every method takes the same numbers. In a hundred
steps jax_privacy takes one number a canary, here the best there is, the sum of its log-likelihood
ratios; the scores that this is a sum of are what `e_values` takes. A cell is the share of the
repetitions in which a method finds ε above the claim at a level of 0.1 %, or in which the ledger's
steps do not explain the scores. Nothing of jax_privacy is needed but its one file `auditing.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from audit.accounting.budget import Steps, privacy_profile
from audit.canaries.bounds import judge, scaled
from audit.canaries.e_values import collected, log_e_value, of_one_draw
from audit.canaries.guessing import guess
from audit.canaries.views import log_likelihood_ratio
from audit.statistics.intervals import FALSE_ALARM

BEGIN, END = "<!-- canary scores -->", "<!-- end of canary scores -->"
DELTA, CLAIMED = 1e-5, 7.08
NUMBERS = (100, 300, 1000)
REPEATS = 20
CORRECT_REPEATS = 2000
# Of the whole check, as `audit.checks.canaries` shares its level out.
SCORES = 0.1 * FALSE_ALARM
FAULTS: tuple[tuple[str, dict[str, float]], ...] = (
    ("none", {}),
    ("noise × ¾", {"noise": 0.75}),
    ("noise × ½", {"noise": 0.5}),
    ("noise × ¼", {"noise": 0.25}),
    ("no noise", {"noise": 0.001}),
    ("no clipping (10 C)", {"contribution": 10.0}),
)


def jax_auditing() -> Any:
    """The module jax_privacy.auditing, without the package around it, which would import jax."""
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        sys.exit("jax_privacy is not installed here: pip install --no-deps jax-privacy")
    file = Path(package.submodule_search_locations[0]) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def noise_for(rate: float, steps: int) -> float:
    """The noise multiplier under which so many steps cost the claimed ε."""

    def excess(sigma: float) -> float:
        return privacy_profile([Steps(rate, sigma, steps)], DELTA).epsilon(DELTA) - CLAIMED

    return float(optimize.brentq(excess, 0.3, 30.0, xtol=1e-4))


class Setting:
    """Canaries in steps of one kind."""

    def __init__(self, words: str, rate: float, steps: int) -> None:
        self.words, self.rate, self.steps = words, rate, steps
        self.sigma = noise_for(rate, steps)
        self._history = [Steps(rate, self.sigma, steps)]

    def sample(
        self, rng: np.random.Generator, canaries: int, noise: float = 1.0, contribution: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The releases along each canary, in units of C, [T, N], and the coins."""
        included = rng.random(canaries) < 0.5
        drawn = (rng.random((self.steps, canaries)) < self.rate) & included
        values = noise * self.sigma * rng.standard_normal((self.steps, canaries))
        return values + contribution * drawn, included

    def scalars(self, released: np.ndarray) -> np.ndarray:
        """One number a canary: the sum of its log-likelihood ratios."""
        return log_likelihood_ratio(released, self.sigma, self.rate).sum(0)

    def log_e(self, released: np.ndarray, included: np.ndarray) -> float:
        """Log E of all scores."""
        rates = np.where(included, self.rate, 0.0)
        shifts = np.full(len(included), 1.0 / self.sigma)
        parts = [
            one for row in released for one in of_one_draw(row[None] / self.sigma, rates, shifts)
        ]
        return log_e_value(collected(parts))

    def guessed(self, scores: np.ndarray, included: np.ndarray) -> bool:
        """Whether right guesses contradict the claim."""

        def mechanism(factor: float):
            return [(1.0, privacy_profile(scaled(self._history, factor), DELTA))]

        return judge(guess(scores, included), mechanism, DELTA).contradicted


def methods(auditing: Any) -> dict[str, Callable[[Any], float]]:
    """jax_privacy's bounds that are valid for finite samples, at the level of the check."""
    return {
        "one_run": lambda one: one.epsilon_one_run(FALSE_ALARM, DELTA),
        "one_run_fdp": lambda one: one.epsilon_one_run_fdp(FALSE_ALARM, DELTA),
        "clopper_pearson": lambda one: one.epsilon_clopper_pearson(FALSE_ALARM, DELTA),
        "from_gdp": lambda one: one.epsilon_from_gdp(FALSE_ALARM, DELTA),
    }


def table(auditing: Any) -> str:
    """Both tables, Markdown."""
    theirs = methods(auditing)
    lines = []
    for setting in (
        Setting("one Gaussian release", 1.0, 1),
        Setting("a hundred steps at rate 0.2", 0.2, 100),
    ):
        heads = ["all scores", "guesses", *(f"jax `{name}`" for name in theirs)]
        lines += [
            f"{setting.words[0].upper()}{setting.words[1:]}, σ = {setting.sigma:.3f}, "
            f"{REPEATS} repetitions of {', '.join(map(str, NUMBERS))} canaries, in %:",
            "",
            "| fault | " + " | ".join(heads) + " |",
            "|---|" + "---|" * len(heads),
        ]
        for name, wrong in FAULTS:
            shares = []
            for count in NUMBERS:
                rng = np.random.default_rng([count, len(name), setting.steps])
                found = np.zeros(len(heads))
                for _ in range(REPEATS):
                    released, included = setting.sample(rng, count, **wrong)
                    scores = setting.scalars(released)
                    auditor = auditing.CanaryScoreAuditor(scores[included], scores[~included])
                    found += [
                        setting.log_e(released, included) >= -np.log(SCORES),
                        setting.guessed(scores, included),
                        *(method(auditor) > CLAIMED for method in theirs.values()),
                    ]
                shares.append([f"{100.0 * share:.0f}" for share in found / REPEATS])
            cells = " | ".join(", ".join(column) for column in zip(*shares, strict=True))
            lines.append(f"| {name} | {cells} |")
            sys.stderr.write(lines[-1] + "\n")
        lines.append("")
    return "\n".join([*lines, correct()])


def correct() -> str:
    """How often a correct sample is contradicted by all scores."""
    settings = (Setting("", 1.0, 1), Setting("", 0.2, 20), Setting("", 0.3, 10))
    above = np.zeros(2, dtype=int)
    rng = np.random.default_rng(17)
    for setting in settings:
        for _ in range(CORRECT_REPEATS):
            found = setting.log_e(*setting.sample(rng, 100))
            above += [found >= -np.log(FALSE_ALARM), found >= -np.log(SCORES)]
    return (
        f"Of {len(settings) * CORRECT_REPEATS:,} correct samples of 100 canaries (1, 20 and 10 "
        f"answers) {above[1]} reached an e-value of {1.0 / SCORES:,.0f}, where all scores "
        f"contradict, and {above[0]} one of {1.0 / FALSE_ALARM:,.0f}."
    )


def main() -> None:
    """Write the tables into the page that is the only argument."""
    path = Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    found = table(jax_auditing())
    path.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
