"""Check "sampling" on a recorded loop: are its batches the draws that are accounted for?

A loop's data loader is whatever its author put there. The law of its batches is judged as for the
engine's runs; and what only loops do wrong is looked for: batches that were drawn and thrown away,
or looked at without a noised step, and samplers that begin anew with the same seed.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import Spend, last_spends
from audit.reading.loop_evidence import LoopEvidence
from audit.reading.units import LOOP
from audit.statistics.batches import LAWS, Batches
from audit.statistics.seeded import seeded_batch
from audit.untrusted.archives import Integers

# Two batches that are equal by chance less often than this, over all pairs, were not drawn anew.
_BY_CHANCE = 1e-6
# A count for each record must fit into memory, whatever a ledger says.
_MOST_RECORDS = 10**8
_LOOKED_AT = (
    "batches of the private loader went through the model and no noised step was made of them: "
    "what was computed of them, such as an accuracy, is a release that nothing pays for"
)
_PASSED_OVER = (
    "batches were drawn and passed over (a last short batch, for instance): which batches are "
    "used then depends on the draw, and the steps are not those of the sampler that is accounted"
)


class _Draws:
    """Batches of all steps, compared with each other and with usual seeds."""

    def __init__(self, records: int, rate: float) -> None:
        self._records, self._rate = records, rate
        self._seen: dict[bytes, int] = {}
        self._firsts: list[Integers] = []
        self._attachment: int | None = None
        self._equal = False
        self._twice = False

    def add(self, rows: Integers, attachment: int) -> None:
        """Add the batch of a step."""
        unique = np.unique(rows)
        self._twice |= len(unique) < len(rows)
        if len(rows):
            key = unique.tobytes()
            self._equal |= key in self._seen
            self._seen[key] = self._seen.get(key, 0) + 1
        if attachment != self._attachment:
            self._firsts.append(unique)
            self._attachment = attachment

    def judge(self, reasons: list[str]) -> None:
        """Tell what is wrong."""
        if self._twice:
            reasons.append(
                "a record is in the batch of one step twice: it moves the sum by more "
                "than the clipping norm"
            )
        same = self._rate**2 + (1.0 - self._rate) ** 2
        steps = sum(self._seen.values())
        pairs = steps * (steps - 1) / 2.0
        chance = pairs * math.exp(self._records * math.log(same))
        if self._equal and chance < _BY_CHANCE:
            reasons.append(
                "steps have exactly the batch of an earlier one: the sampler begins "
                "anew with the same seed, and its batches are not independent"
            )
        if any(seeded_batch(rows, self._records, self._rate) for rows in self._firsts):
            # Which seed it is would tell the batches to whoever reads the finding.
            reasons.append(
                "the batches are those of a generator seeded with a number that anybody would try "
                "first: who knows it knows who was in which batch"
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
            f"{where}: a step has not as many gradients as its batch has records (records left "
            "out, or used twice)"
        )
    used = np.bincount(evidence.rows, minlength=charge.records)
    batches.add(where, charge, sizes[None].ravel(), used, reasons)
    for start, stop in pairwise(evidence.row_offsets):
        draws.add(evidence.rows[start:stop], evidence.attachment)


def _judge(bundle: Bundle) -> Judgement:
    header, reasons = bundle.header, list[str]()
    sampling = header.sampling or ""
    if sampling not in LAWS:
        raise UnverifiedError(f"nothing is known of the sampler {sampling[:40]!r}")
    charges = last_spends(bundle.readable_ledger.spends)
    batches = Batches(sampling)
    draws = _Draws(header.records[0], header.sampling_rate or 1.0)
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
    title="Were the batches drawn as the accounting takes for granted?",
    units=(LOOP,),
    place=35,
    meaning="If it fails, batches were not drawn, or not used, as the stated loss takes for "
    "granted.",
    claim="Each step's batch is a fresh Poisson draw of the records at the rate that is accounted, "
    "and each batch that is drawn becomes one noised step.",
    tolerance="Exact binomial test of the mean size, a test of the sizes' scatter, and a bound on "
    "how often records repeat between batches, together at most one false alarm in 1000 correct "
    "loops (Bonferroni); equal batches where chance makes any in fewer than one loop in a million",
    power="shuffled epochs that pose as Poisson draws",
    limits="Batches are seen where the data loader draws them and counted where gradients are "
    "clipped. Records that the program looked up by another way than the loader are not seen; nor "
    "are batches that worker processes had drawn ahead when the loop ended.",
    rule=_judge,
)
register(SAMPLING)
