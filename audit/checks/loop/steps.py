"""How a recorded loop made its steps: the checks "sampling", "sensitivity" and "steps".

* "sampling": a loop's data loader is whatever its author put there. The law of its batches is
  judged as for the engine's runs; and what only loops do wrong is looked for: batches that were
  drawn and thrown away, or looked at without a noised step, and samplers that begin again with the
  same seed;
* "sensitivity": one record moves the clipped sum by C at most. The sum that the loop made is held
  against one that the recorder clipped and added up itself, at sampled coordinates; and the loop's
  own model and optimiser are poked with synthetic records;
* "steps": parameters move by the noised gradients alone. The updates of SGD, Adam and AdamW are
  worked out again, as their papers and torch's documentation have them, at the sampled coordinates;
  and a checksum of all parameters shows whether anything moved them between two noised steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.sensitivity import TOLERANCE, judge_probe
from audit.errors import AuditError, UnverifiedError
from audit.probe.updates import ABSENT, ADDED, ELSEWHERE, NOT_DRAWN, UPDATE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults
from audit.reading.ledger_lines import GAUSSIAN, Spend, last_spends
from audit.reading.loop_evidence import SETTINGS, LoopEvidence
from audit.reading.units import LOOP
from audit.statistics.batches import LAWS, Batches
from audit.statistics.seeded import seeded_batch
from audit.untrusted.archives import Floats, Integers

# Two batches that are equal by chance less often than this, over all pairs, are no chance.
_BY_CHANCE = 1e-6
# A count for each record must fit into memory, whatever a ledger says.
_MOST_RECORDS = 10**8
_LOOKED_AT = (
    "batches of the private loader went through the model without a noised step: anything computed "
    "from them, such as an accuracy, is a release that no privacy budget covers"
)
_PASSED_OVER = (
    "batches were drawn and skipped (a last short batch, for instance): which batches are used "
    "then depends on the draw, and the steps are not those of the accounted sampler"
)


class _Draws:
    """Batches of all steps, compared with each other and with usual seeds."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._rates: set[float] = set()
        self._seen: dict[bytes, int] = {}
        self._firsts: list[tuple[Integers, float]] = []
        self._attachment: int | None = None
        self._equal = False
        self._twice = False

    def add(self, rows: Integers, attachment: int, rate: float) -> None:
        """Add the batch of a step, which was charged at this rate."""
        self._rates.add(rate)
        unique = np.unique(rows)
        self._twice |= len(unique) < len(rows)
        if len(rows):
            key = unique.tobytes()
            self._equal |= key in self._seen
            self._seen[key] = self._seen.get(key, 0) + 1
        if attachment != self._attachment:
            self._firsts.append((unique, rate))
            self._attachment = attachment

    def judge(self, reasons: list[str]) -> None:
        """Tell what is wrong."""
        if self._twice:
            reasons.append(
                "a record is in the batch of one step twice: it moves the sum by more than the "
                "clipping norm"
            )
        # Two batches of different rates are no more alike than two of that which repeats most.
        same = max((rate**2 + (1.0 - rate) ** 2 for rate in self._rates), default=1.0)
        steps = sum(self._seen.values())
        pairs = steps * (steps - 1) / 2.0
        chance = pairs * math.exp(self._records * math.log(same))
        if self._equal and chance < _BY_CHANCE:
            reasons.append(
                "steps have exactly the batch of an earlier one: the sampler restarts with the "
                "same seed, so its batches are not independent"
            )
        if any(seeded_batch(rows, self._records, rate) for rows, rate in self._firsts):
            # Naming the seed would reveal the batches to the finding's readers.
            reasons.append(
                "the batches are those of a generator seeded with a number that anyone would try "
                "first: anyone who knows it knows who was in which batch"
            )


def _file(
    index: int, evidence: LoopEvidence, charge: Spend, batches: Batches, draws: _Draws,
    reasons: list[str],
) -> None:  # fmt: skip
    if evidence.rows is None:
        raise UnverifiedError("which records each batch held is not recorded")
    if charge.records > _MOST_RECORDS:
        raise UnverifiedError("there are too many records to count how often each was used")
    where = f"file {index}"
    sizes = np.diff(evidence.row_offsets)
    if evidence.rows.max(initial=0) >= charge.records:
        reasons.append(f"{where}: a batch names a record that does not exist")
        return
    if np.any(sizes != evidence.batch_size[0]):
        reasons.append(
            f"{where}: a step does not have as many gradients as its batch has records (records "
            "left out, or used twice)"
        )
    used = np.bincount(evidence.rows, minlength=charge.records)
    batches.add(where, charge, sizes[None].ravel(), used, reasons)
    for start, stop in pairwise(evidence.row_offsets):
        draws.add(evidence.rows[start:stop], evidence.attachment, charge.sampling_rate)


def _judge_sampling(bundle: Bundle) -> Judgement:
    header, reasons = bundle.header, list[str]()
    sampling = header.sampling or ""
    if sampling not in LAWS:
        raise UnverifiedError(f"the sampler {sampling[:40]!r} is unknown")
    charges = last_spends(bundle.readable_ledger.spends)
    batches = Batches(sampling)
    draws = _Draws(header.records[0])
    end = bundle.loop_end()
    unused, skipped = end.unused, end.skipped
    unreadable: list[str] = []
    for index, evidence in bundle.loop_rounds():
        charge = charges.get((index, 0))
        if charge is None:
            raise UnverifiedError(f"file {index}: was never charged")
        unused += int(evidence.unused.sum())
        skipped += int(evidence.skipped.sum())
        try:
            _file(index, evidence, charge, batches, draws, reasons)
        except UnverifiedError as error:
            unreadable.append(str(error))
    if unused:
        reasons.append(_LOOKED_AT)
    if skipped:
        reasons.append(_PASSED_OVER)
    private: dict[str, object] = {"looked_at": unused, "passed_over": skipped}
    private |= batches.judge(reasons) if batches.steps else {}
    if not unreadable:
        draws.judge(reasons)
    return conclude(
        f"batches of {batches.steps} steps: {LAWS[sampling]}; every batch drawn became one noised "
        "step, of all of its records; no batch was drawn twice, and none is that of a usual seed",
        reasons,
        unreadable,
        details={"steps": batches.steps},
        private=private,
        power=batches.power() if batches.steps else "none",
    )


SAMPLING = Check(
    name="sampling",
    title="Were the batches drawn as the accounting assumes?",
    units=(LOOP,),
    place=35,
    meaning="If it fails, batches were not drawn, or not used, as the stated loss assumes.",
    claim="Each step's batch is a fresh Poisson draw of the records at the accounted rate, and "
    "each drawn batch becomes one noised step.",
    tolerance="Exact binomial tests of the mean size and of the record that is in most batches. A "
    "test of the sizes' scatter, and a bound on how often records repeat between batches. "
    "Together at most one false alarm in 1000 correct loops (Bonferroni). Equal batches where "
    "chance makes any in fewer than one loop in a million",
    power="shuffled epochs that pose as Poisson draws; a record that is in most batches",
    limits="Batches are observed where the data loader draws them and counted where gradients are "
    "clipped. Records that the program reads without the loader are not observed; nor are batches "
    "that worker processes had drawn ahead when the loop ended.",
    rule=_judge_sampling,
)
register(SAMPLING)


# Sums of float32 in another order, and the 1e-6 that Opacus adds to every norm.
_SUMS = 2e-3
_EXTREME = (
    "scaled by 1e30", "plus infinity", "not a number", "one coordinate infinite", "minus 1e38",
)  # fmt: skip
UNGUARDED_UPDATE = (
    "a client whose update is not finite is not left out: it would make the model not finite, "
    "which reveals that it took part"
)
UNTRAINED = "how a client computes its update was not examined"
UNGUARDED = (
    "a record whose gradient is not finite is not left out: it would make the model not finite, "
    "which reveals that it was there"
)
_OF_RECORDS = (
    "the clipped sums of {steps} steps are those that the recorder computes of the records' "
    "own gradients at sampled coordinates. Synthetic neighbouring batches include records that "
    "must be clipped. They move the sum of the loop's own model and optimiser by at most C where "
    "a record is added and by 2C where one is replaced"
)


def _sums(index: int, evidence: LoopEvidence, charge: Spend, reasons: list[str]) -> None:
    clip, where = charge.clipping_norm, f"file {index}"
    if np.any(evidence.nonfinite):
        reasons.append(f"{where}: a record's gradient is not finite")
        return
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.linalg.norm(evidence.clean - evidence.expected, axis=1)
        allowed = _SUMS * (clip + np.linalg.norm(evidence.expected, axis=1))
    if not np.all((difference <= allowed) & np.isfinite(allowed)):
        reasons.append(
            f"{where}: the sum is not that of this step's records, each clipped to C over all "
            "trained parameters (another norm, parameters left out of it, or sums of earlier steps)"
        )
    longest = np.sqrt(evidence.clean_sum_squares[0].sum(axis=1))
    if np.any(longest > evidence.batch_size[0] * clip * (1.0 + TOLERANCE) + clip * TOLERANCE):
        reasons.append(f"{where}: the sum is longer than its records, clipped to C, allow")


def _finite(probe: ProbeResults) -> tuple[ProbeResults, bool]:
    """The probe without extreme records whose sums are not finite, and whether there were any."""
    finite = np.isfinite(probe.difference_norm)
    finite &= np.isfinite(probe.norm_with) & np.isfinite(probe.norm_without)
    extreme = np.asarray([any(kind in name for kind in _EXTREME) for name in probe.names])
    kept = finite | ~extreme
    rows = np.flatnonzero(kept)
    return (
        replace(
            probe,
            names=tuple(probe.names[row] for row in rows),
            kinds=tuple(probe.kinds[row] for row in rows),
            batch_size=probe.batch_size[rows],
            difference_norm=probe.difference_norm[rows],
            norm_with=probe.norm_with[rows],
            norm_without=probe.norm_without[rows],
        ),
        bool(np.any(~kept)),
    )


def _judge_sensitivity(bundle: Bundle) -> Judgement:
    if (mechanism := bundle.header.mechanism) != GAUSSIAN:
        raise UnverifiedError(
            f"the loop states {mechanism} noise. The evidence holds norms and sums of vectors "
            "clipped in the Euclidean norm, which do not bound what such noise must cover"
        )
    charges = last_spends(bundle.readable_ledger.spends)
    reasons: list[str] = []
    steps = clipped = norms = 0
    for index, evidence in bundle.loop_rounds():
        charge = charges.get((index, 0))
        if charge is None:
            raise UnverifiedError(f"file {index}: was never charged")
        _sums(index, evidence, charge, reasons)
        steps += evidence.batch_size.shape[1]
        norms += len(evidence.raw_norms)
        clipped += int(np.count_nonzero(evidence.raw_norms > charge.clipping_norm))
    details: dict[str, object] = {"steps": steps}
    unreadable: list[str] = []
    of_clients = bundle.header.of_clients
    qualifications: tuple[str, ...] = (UNTRAINED,) if of_clients else ()
    try:
        whole = bundle.probe_results()
        probe, dropped = _finite(whole)
        last = max(charges.values(), key=lambda spend: spend.line)
        one = "client" if of_clients else "record"
        details["probe"] = judge_probe(probe, last.clipping_norm, one, reasons)
        if dropped:
            qualifications = (*qualifications, UNGUARDED_UPDATE if of_clients else UNGUARDED)
        if of_clients and set(UPDATE_KINDS) - set(whole.kinds):
            unreadable.append("the probe is not one of whole updates")
        elif not of_clients and not {ADDED, NOT_DRAWN, ABSENT, ELSEWHERE} <= set(probe.kinds):
            unreadable.append("the probe is not one of whole steps")
        reach = probe.difference_norm[[kind not in (ADDED, ELSEWHERE) for kind in probe.kinds]]
        if not np.any(reach > 0.5 * last.clipping_norm):
            unreadable.append("no probe record had to be clipped, so clipping was not exercised")
    except AuditError as error:
        unreadable.append(f"no results of the active probe ({error})")
    if of_clients:
        passed = (
            f"the clipped sums of {steps} rounds are those that the recorder computes of the "
            "clients' own updates at sampled coordinates. Synthetic updates, some that must be "
            "clipped among them, move the program's own sum by at most C"
        )
    else:
        passed = _OF_RECORDS.format(steps=steps)
    return conclude(
        passed,
        reasons,
        unreadable,
        details=details,
        private={"records_used": norms, "share_clipped": clipped / norms if norms else None},
        qualifications=qualifications,
    )


SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by no more than the noise covers?",
    units=(LOOP,),
    place=40,
    meaning="If it fails, one record can have a larger effect than the noise hides.",
    claim="Each record's whole gradient is clipped to norm C over all trained parameters, on "
    "itself alone, and the sum is that of the step's records.",
    tolerance="2e-3 of C and of the sum, for sums of float32 in another order and the 1e-6 that "
    "Opacus adds to each norm; 1e-4 of C for the probe. Not a statistical test: only rounding "
    "could cause a false alarm.",
    power="clipping of a batch's mean or sum, or of a part of the parameters; sums of earlier "
    "steps that were not cleared. A record that changes how others are read (batch statistics)",
    limits="Under ghost clipping no record's gradient ever exists, so the recorder takes clipped "
    "gradients from the second backward pass; only the probe can then show that clipping is "
    "correct. The probe uses one tensor of numbers or tokens and one label per record; a model "
    "that reads anything else is NOT VERIFIED. Where whole clients are protected, a record is a "
    "client, its gradient the client's update, and the probe uses made-up updates. Sums are "
    "compared at sampled coordinates.",
    rule=_judge_sensitivity,
)
register(SENSITIVITY)


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
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            update = RULES[rule](state, evidence.released[step], before, at)
            difference = np.abs(evidence.after[step] - before - update)
            allowed = _ROUNDING * np.abs(before) + _UPDATE * (np.abs(update) + np.abs(update).max())
        state.steps += 1
        if not np.all((difference <= allowed + 1e-12) & np.isfinite(allowed)):
            reasons.append(
                f"file {index}: an update is not what {rule} computes from the noised gradient (a "
                "gradient without noise, another optimiser, or parameters that are not the "
                "model's)"
            )
            return


def _judge_steps(bundle: Bundle) -> Judgement:
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
                f"file {index}: a step did not change the model: the optimiser's parameters are "
                "not the model's"
            )
        last = int(ends[-1])
        steps += len(ends)
        if rule in RULES:
            _moved(index, evidence, rule, state, reasons)
    end = bundle.loop_end().fingerprint
    if end is None:
        unreadable.append("the parameters at the recorder's closing are not recorded")
    elif end != last:
        reasons.append("something moved the parameters after the last noised step")
    return conclude(
        f"{steps} updates at the sampled coordinates are what {rule} computes from the noised "
        "gradients, and nothing moved any parameter between two of them or after the last",
        reasons,
        unreadable,
        details={"steps": steps, "optimizer": rule},
    )


STEPS = Check(
    name="steps",
    title="Do only the noised gradients move the parameters?",
    units=(LOOP,),
    place=60,
    meaning="If it fails, something without noise moved the model: the guarantee does not hold.",
    claim="Each update of the model follows from the noised gradient of its step, and nothing "
    "else moves its parameters.",
    tolerance="2e-4 of the largest update and 2^-21 of the parameter, for float32; checksums "
    "exactly. Not a statistical test.",
    power="any update between two noised steps; an update by other gradients than the noised ones "
    "at any sampled coordinate; an optimiser whose parameters are not the model's",
    limits="A checksum is a sum of bits: an accident changes it, but a forger can preserve it. "
    "Between two attachments parameters may be replaced, as by a server's average; whether the "
    "new values were released ones is not checked.",
    rule=_judge_steps,
)
register(STEPS)
