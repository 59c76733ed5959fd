"""Check "steps" on a recorded loop: do the parameters move by its noised gradients, and by no more?

The updates of SGD, Adam and AdamW are worked out again, as their papers and torch's documentation
have them, at the sampled coordinates; and a checksum of all parameters shows whether anything moved
them between two noised steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.reading.bundle import Bundle
from audit.reading.loop_evidence import SETTINGS, LoopEvidence
from audit.reading.units import LOOP
from audit.untrusted.archives import Floats

# float32: a few roundings of the parameter, and of the update, whose quotients are worse.
_ROUNDING, _UPDATE = 2.0**-21, 2e-4


@dataclass
class _State:
    """What an optimiser remembers at the sampled coordinates."""

    steps: int = 0
    first: Floats = field(default_factory=lambda: np.zeros(0))
    second: Floats = field(default_factory=lambda: np.zeros(0))


class _Settings:
    """The settings of a step at each sampled coordinate."""

    def __init__(self, values: Floats) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Floats:
        column: Floats = self._values[:, SETTINGS.index(name)]
        return column


def _sgd(state: _State, gradient: Floats, before: Floats, at: _Settings) -> Floats:
    gradient = gradient + at["weight_decay"] * before
    fresh = state.steps == 0
    moment = gradient if fresh else at["momentum"] * state.first + (1 - at["dampening"]) * gradient
    state.first = moment
    ahead = np.where(at["nesterov"] > 0, gradient + at["momentum"] * moment, moment)
    return -at["learning_rate"] * np.where(at["momentum"] > 0, ahead, gradient)


def _adam(state: _State, gradient: Floats, before: Floats, at: _Settings) -> Floats:
    return _adaptive(state, gradient + at["weight_decay"] * before, at)


def _adamw(state: _State, gradient: Floats, before: Floats, at: _Settings) -> Floats:
    decayed = -at["learning_rate"] * at["weight_decay"] * before
    return decayed + _adaptive(state, gradient, at)


def _adaptive(state: _State, gradient: Floats, at: _Settings) -> Floats:
    if state.steps == 0:
        state.first, state.second = np.zeros_like(gradient), np.zeros_like(gradient)
    beta1, beta2, count = at["beta1"], at["beta2"], state.steps + 1
    state.first = beta1 * state.first + (1 - beta1) * gradient
    state.second = beta2 * state.second + (1 - beta2) * gradient**2
    denominator = np.sqrt(state.second / (1 - beta2**count)) + at["eps"]
    update: Floats = -at["learning_rate"] * state.first / (1 - beta1**count) / denominator
    return update


RULES: dict[str, Callable[[_State, Floats, Floats, _Settings], Floats]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}


def _moved(
    index: int, evidence: LoopEvidence, rule: str, state: _State, reasons: list[str]
) -> None:
    """Compare the updates of a file with those that its gradients make."""
    for step in range(len(evidence.before)):
        at = _Settings(evidence.settings[step][evidence.group])
        before = evidence.before[step]
        update = RULES[rule](state, evidence.released[step], before, at)
        state.steps += 1
        apart = np.abs(evidence.after[step] - before - update)
        allowed = _ROUNDING * np.abs(before) + _UPDATE * (np.abs(update) + np.abs(update).max())
        if not np.all(apart <= allowed + 1e-12):
            reasons.append(
                f"file {index}: an update is not what {rule} makes of the noised gradient (a "
                "gradient without noise, another optimiser, or parameters that are not the model's)"
            )
            return


def _judge(bundle: Bundle) -> Judgement:
    producer = bundle.header.producer
    rule = producer.optimizer if producer is not None else ""
    reasons: list[str] = []
    unreadable: list[str] = []
    if rule not in RULES:
        unreadable.append(
            f"the auditor has no replay of {rule[:40]!r}: whether updates follow from noised "
            "gradients was not judged"
        )
    state, steps = _State(), 0
    attachment: int | None = None
    last: int | None = None
    for index, evidence in bundle.loop_rounds():
        if evidence.attachment != attachment:
            state, attachment, last = _State(), evidence.attachment, None
        ends = evidence.after_fingerprint
        first = evidence.before_fingerprint[0] if last is None else last
        begins = np.concatenate([[first], ends])
        if np.any(begins[:-1] != evidence.before_fingerprint):
            reasons.append(
                f"file {index}: something moved the parameters between two noised steps (a step "
                "without noise, another optimiser, or weights that were loaded)"
            )
        if np.any(evidence.before_fingerprint == ends) and np.any(evidence.released):
            reasons.append(
                f"file {index}: a step left the model as it was: the optimiser's parameters are "
                "not the model's"
            )
        last = int(ends[-1])
        steps += len(ends)
        if rule in RULES:
            _moved(index, evidence, rule, state, reasons)
    end = bundle.loop_end().fingerprint
    if end is None:
        unreadable.append("what the parameters were when the recorder was closed is not recorded")
    elif end != last:
        reasons.append("something moved the parameters after the last noised step")
    return conclude(
        f"{steps} updates at the sampled coordinates are what {rule} makes of the noised "
        "gradients, and nothing moved any parameter between two of them or after the last",
        reasons,
        unreadable,
        details={"steps": steps, "optimizer": rule},
    )


STEPS = Check(
    name="steps",
    title="Do the parameters move by the noised gradients alone?",
    units=(LOOP,),
    place=60,
    meaning="If it fails, something moved the model that was never noised: the guarantee does not "
    "hold.",
    claim="Each update of the model follows from the noised gradient of its step, and nothing "
    "else moves its parameters.",
    tolerance="2e-4 of the largest update and 2^-21 of the parameter, for float32; checksums "
    "exactly. Not a statistical test.",
    power="any update between two noised steps; an update by other gradients than the noised ones "
    "at any sampled coordinate; an optimiser whose parameters are not the model's",
    limits="A checksum is a sum of bits, which an accident does not leave as it was and a forger "
    "can. Between two attachments parameters may be replaced, as a server's average replaces "
    "them: that it does so by released values is not seen.",
    rule=_judge,
)
register(STEPS)
