"""Whether a gate's ledger holds, and what its releases cost whom: the auditor's five checks.

The claim is that all releases together cost no more than the budget, whatever the jobs do. It rests
on the mechanism: one unit's data move the sum of clipped updates by at most 2C, and Gaussian noise
of 2Cσ is added once. What a reader of these files can see of the noise is how far each coordinate
moved: a coordinate's noise lies within 0.674 deviations of zero with chance one half, and whatever
the shards' updates add makes that rarer (Anderson 1955). So too many small moves mean less noise
than was charged, and large updates can hide it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
from scipy.special import ndtri

from audit.accounting.budget import budget, merge
from audit.accounting.comparison import understates
from audit.accounting.registry import Steps
from audit.checks.base import Judgement
from audit.errors import AuditError, UntrustedFileError, UnverifiedError
from audit.extensions.gate.reading import (
    HEAD,
    KEPT,
    KEY,
    LEDGER,
    ForgedError,
    GateLedger,
    Head,
    read_head,
    read_ledger,
    read_reply,
)
from audit.protection import protects_nothing
from audit.reading.files import read_bytes, refusals_of
from audit.untrusted.files import read_chosen
from audit.verdict import Finding, Findings, Severity, Verdict

# Gaussian noise lies within so many deviations of zero with chance one half.
_HALF = float(ndtri(0.75))
# A correct gate fails the check of noise with at most this chance.
_ALARM = 1e-6
_MOST_LEDGER, _MOST_SMALL, _MOST_REPLY = 1 << 30, 1 << 16, 1 << 31
# How often files are read again that a gate writes to meanwhile.
_TRIES = 20
UNIT = {
    "record": "one record, added or removed",
    "person": "one person, added or removed, or with any other records",
    "site": "all data of the site, against any other data",
}
AGAINST = "the server and anyone else who sees what left the site, whatever the jobs do"
ASSUMPTIONS = (
    "It rests on shards that share neither files nor memory. It rests on no other way out of the "
    "site, such as a job's own network or its time. And it rests on the operator, who holds key, "
    "ledger and anchor."
)


class GateFindings(Findings):
    """Findings on a gate's ledger; levels are of runs alone."""

    @property
    def level(self) -> int | None:
        """None."""
        return None


class _Case:
    """What the checks read: ledger, head and anchor as they were at one moment.

    A gate signs a head after each line. So between two looks at the same head it wrote one line at
    most, which is what the checks let follow.

    Raises:
        UntrustedFileError: If the ledger or the anchor cannot be read, or never stands still.
    """

    def __init__(self, folder: Path, key: bytes | None, anchor: bytes | Path | None) -> None:
        self.folder, self.given = folder, key
        for _ in range(_TRIES):
            self.head = _head_of(folder)
            raw = read_bytes(folder, LEDGER, _MOST_LEDGER)
            self.anchor = _chosen(anchor) if isinstance(anchor, Path) else anchor
            if _head_of(folder) == self.head:
                break
        else:
            raise UntrustedFileError(LEDGER, "is written to again and again; try again")
        self.ledger: GateLedger = read_ledger(raw)


def _head_of(folder: Path) -> bytes | None:
    """The folder's signed head; None where it cannot be read."""
    try:
        return read_bytes(folder, HEAD, _MOST_SMALL)
    except UntrustedFileError:
        return None


def _chosen(path: Path) -> bytes:
    with refusals_of(str(path)):
        return read_chosen(path, _MOST_SMALL)[0]


def judge_gate(
    folder: Path, key: bytes | None = None, anchor: bytes | Path | None = None
) -> Findings:
    """Judge the ledger of a gate, also while the gate writes to it.

    Args:
        folder: With ledger.jsonl and head.json, and if there are any replies/ and gate.pub.
        key: The gate's public key (PEM) as the operator gave it; None to take the folder's word.
        anchor: The signed head that is kept at a second place; None where it is not given. Of a
            gate that runs give its path: it is read together with the ledger.

    Returns:
        The findings. One without a readable ledger is never a PASS.
    """
    try:
        case = _Case(folder, key, anchor)
    except UntrustedFileError as error:
        unread = Judgement(Verdict.NOT_VERIFIED, str(error))
        return GateFindings("gate", None, tuple(one.finding(unread) for one in _QUESTIONS))
    found = tuple(one.asked(case) for one in _QUESTIONS)
    header, epsilon = case.ledger.header, found[-1].details.get("epsilon")
    return GateFindings(
        run="gate" if header is None else f"gate {header.key}",
        unit=None if header is None else header.unit,
        findings=found,
        inputs={LEDGER: hashlib.sha256(case.ledger.raw).hexdigest()},
        versions={"numpy": np.__version__, "scipy": scipy.__version__},
        unprotected="anyone" if protects_nothing(epsilon) else None,
    )


def judge_files(folder: Path, key: Path | None, anchor: Path | None) -> Findings:
    """The same, with key and anchor from files that the user names.

    Raises:
        UntrustedFileError: One of them cannot be read.
    """
    if anchor is not None:
        _chosen(anchor)
    return judge_gate(folder, None if key is None else _chosen(key), anchor)


def _chain(case: _Case) -> Judgement:
    faults = case.ledger.faults
    if faults or case.ledger.header is None:
        said = [f"{LEDGER}:{fault.line}: {fault.what}" for fault in faults[:6]]
        return Judgement(Verdict.FAIL, "; ".join(said) or f"{LEDGER}: has no header")
    torn = len(case.ledger.raw) - (case.ledger.ends[-1] if case.ledger.ends else 0)
    rest = f"; {torn} bytes follow that a crash tore" if torn else ""
    return Judgement(
        Verdict.PASS,
        f"{len(case.ledger.ends)} lines, {len(case.ledger.charges)} releases in order{rest}",
    )


def _signature(case: _Case) -> Judgement:
    key = case.given if case.given is not None else read_bytes(case.folder, KEY, _MOST_SMALL)
    head = case.head if case.head is not None else read_bytes(case.folder, HEAD, _MOST_SMALL)
    signed, printed = _head(case, head, key, HEAD)
    header, notes = case.ledger.header, []
    if header is not None and header.key != printed:
        raise ForgedError(HEAD, f"is signed by {printed}; the ledger was begun by {header.key}")
    if case.given is None:
        notes.append(
            f"the key {printed} is from the folder itself: anyone who replaced the ledger could "
            "have signed it again; compare it with the operator's (--key FILE)"
        )
    if case.anchor is None:
        notes.append(
            "no anchor was given: a ledger that was rolled back together with its head would pass "
            "(--anchor FILE)"
        )
    else:
        kept, _ = _head(case, case.anchor, key, "the anchor")
        # A crash can come between the two.
        if kept.size != signed.size and not _one_line(case, kept.size, signed.size):
            raise ForgedError("the anchor", "is more than one line from head.json")
    agrees = "" if case.anchor is None else ", and the anchor agrees"
    said = f"{signed.charges} releases signed by {printed}{agrees}"
    return Judgement(Verdict.PASS, said, qualifications=tuple(notes))


def _head(case: _Case, raw: bytes, key: bytes, where: str) -> tuple[Head, str]:
    head, printed = read_head(raw, key, where)
    content = case.ledger.raw
    if hashlib.sha256(content[: head.size]).hexdigest() != head.digest or head.size > len(content):
        raise ForgedError(where, "the ledger is not as it was signed: it was changed or cut")
    end = case.ledger.ends[-1] if case.ledger.ends else 0
    if head.size < end and not _one_line(case, head.size, end):
        raise ForgedError(where, "more than one line follows what was signed")
    before = sum(1 for one in case.ledger.charges if case.ledger.ends[one.line - 1] <= head.size)
    if before != head.charges:
        raise ForgedError(where, f"counts {head.charges} releases, and the ledger {before}")
    return head, printed


def _one_line(case: _Case, one: int, other: int) -> bool:
    places = [case.ledger.ends.index(size) for size in (one, other) if size in case.ledger.ends]
    return len(places) == 2 and abs(places[0] - places[1]) <= 1


def _sensitivity(case: _Case) -> Judgement:
    wrong = [one for one in case.ledger.charges if one.sensitivity != 2.0 * one.clip]
    if wrong:
        return Judgement(
            Verdict.FAIL,
            f"{LEDGER}:{wrong[0].line}: states a sensitivity of {wrong[0].sensitivity:g}, where "
            f"one unit's data move the sum by up to 2C = {2 * wrong[0].clip:g}",
        )
    header = case.ledger.header
    if header is not None and header.unit == "site":
        shared = next((one for one in case.ledger.charges if one.shards != 1), None)
        if shared is not None:
            return Judgement(
                Verdict.FAIL, f"{LEDGER}:{shared.line}: a site is in all {shared.shards} shards"
            )
    return Judgement(Verdict.PASS, f"2C in each of {len(case.ledger.charges)} charges")


def _noise(case: _Case) -> Judgement:
    charges = {one.release: one for one in case.ledger.charges}
    newest = {
        release: digest
        for release, digest in case.ledger.replies.items()
        if release > len(charges) - KEPT
    }
    if not charges:
        return Judgement(Verdict.NOT_APPLICABLE, "nothing was released")
    if not newest:
        raise UnverifiedError("the ledger notes no reply to any of the newest releases")
    counts, coordinates = {}, {}
    for release, digest in newest.items():
        name, charge = f"replies/{release:06d}.safetensors", charges[release]
        try:
            raw = read_bytes(case.folder, name, _MOST_REPLY)
        except UntrustedFileError:
            if not _is_let_go(case, release):
                raise
            continue
        if hashlib.sha256(raw).hexdigest() != digest:
            return Judgement(Verdict.FAIL, f"{name}: is not the reply that the ledger names")
        reply = read_reply(raw, name)
        if reply.broadcast_sha256 != charge.broadcast:
            return Judgement(Verdict.FAIL, f"{name}: the broadcast is not the one that was charged")
        reach = _HALF * charge.sensitivity * charge.noise_multiplier / charge.shards
        with np.errstate(invalid="ignore"):
            small = np.abs(reply.moved) + reply.rounding < reach
        counts[release], coordinates[release] = int(small.sum()), small.size
    if not counts:
        raise UnverifiedError("the gate replaced all of its replies meanwhile; try again")
    tests = len(counts) + 1
    total, every = sum(counts.values()), sum(coordinates.values())
    for release, count in counts.items():
        if _surprise(count, coordinates[release]) > math.log(tests / _ALARM):
            return Judgement(
                Verdict.FAIL,
                f"release {release} has less noise than was charged: {count:,} of its "
                f"{coordinates[release]:,} numbers moved by less than its median",
            )
    if _surprise(total, every) > math.log(tests / _ALARM):
        return Judgement(
            Verdict.FAIL,
            f"the newest {len(counts)} releases have less noise than was charged: {total:,} of "
            f"{every:,} numbers moved by less than its median",
        )
    return Judgement(
        Verdict.PASS,
        f"{total:,} of {every:,} numbers of the newest {len(counts)} releases moved by less than "
        "the median of the charged noise; at most half should",
        power=_power(every),
    )


def _is_let_go(case: _Case, release: int) -> bool:
    """Whether the gate has gone on since its ledger was read, and no longer keeps a reply."""
    raw, known = read_bytes(case.folder, LEDGER, _MOST_LEDGER), case.ledger
    end = known.ends[-1]
    if raw[:end] != known.raw[:end]:
        return False
    return release <= len(read_ledger(raw).charges) - KEPT


def _surprise(count: int, of: int) -> float:
    """Chernoff's bound on the chance of so many among fair coins, as minus its logarithm."""
    share = count / of
    if share <= 0.5:
        return 0.0
    rest = 0.0 if share == 1.0 else (1.0 - share) * math.log(2.0 * (1.0 - share))
    return of * (share * math.log(2.0 * share) + rest)


def _power(coordinates: int) -> str:
    """Below which part of the charged noise it would have failed, were all updates zero."""
    # Four standard errors more than what the bound needs.
    share = 0.5 + (math.sqrt(math.log(KEPT / _ALARM) / 2.0) + 2.0) / math.sqrt(coordinates)
    if share >= 0.999:
        return "these are too few numbers to show less noise"
    seen = _HALF / float(ndtri(0.5 + share / 2.0))
    return f"less than {seen:.0%} of the charged noise, if the updates are zero"


def _budget(case: _Case) -> Judgement:
    header = case.ledger.header
    if header is None or case.ledger.faults:
        raise UnverifiedError("the ledger has faults (see the check chain)")
    counted = Counter(one.noise_multiplier for one in case.ledger.charges)
    history = merge([Steps(1.0, sigma, times) for sigma, times in counted.items()])
    spent = budget(history, header.delta) if history else None
    epsilon = spent.headline if spent is not None else 0.0
    said = f"ε = {epsilon:.4g} at δ = {header.delta:g}, of a budget of {header.epsilon:g}"
    over = spent is not None and understates(header.epsilon, spent.at)
    notes = [f"ε is about {UNIT[header.unit]}; it holds against {AGAINST}", ASSUMPTIONS]
    if protects_nothing(header.epsilon):
        notes.append(f"the budget of ε = {header.epsilon:g} is too large to protect anyone")
    return Judgement(
        Verdict.FAIL if over else Verdict.PASS,
        f"overspent: {said}" if over else said,
        details={"epsilon": epsilon, "releases": len(case.ledger.charges)},
        qualifications=tuple(notes),
        power="a budget exceeded by more than 0.1 %",
    )


@dataclass(frozen=True, kw_only=True)
class _Question:
    """One check: its fixed texts, and what answers it."""

    name: str
    title: str
    rule: Callable[[_Case], Judgement]
    claim: str
    tolerance: str
    limits: str

    def asked(self, case: _Case) -> Finding:
        """What it finds; whatever goes wrong is never a PASS."""
        try:
            return self.finding(self.rule(case))
        except ForgedError as error:
            return self.finding(Judgement(Verdict.FAIL, str(error)))
        except AuditError as error:
            return self.finding(Judgement(Verdict.NOT_VERIFIED, str(error)))
        except Exception as error:
            why = f"the check could not be carried out ({type(error).__name__})"
            return self.finding(Judgement(Verdict.NOT_VERIFIED, why))

    def finding(self, found: Judgement) -> Finding:
        """The texts and the judgement together."""
        return Finding(
            name=self.name,
            title=self.title,
            verdict=found.verdict,
            severity=Severity.CRITICAL,
            claim=self.claim,
            measurement=found.measurement,
            tolerance=self.tolerance,
            power="any single changed byte" if self.tolerance == _EXACT else found.power or "",
            limits=self.limits,
            details=found.details,
            qualifications=found.qualifications,
        )


_EXACT = "none: digests and numbers are compared exactly"
_QUESTIONS = (
    _Question(
        name="chain",
        title="Is the gate's ledger complete and in order?",
        rule=_chain,
        claim="Each line names the digest of the one before; releases are numbered from 1.",
        tolerance=_EXACT,
        limits="A ledger written again as a whole is consistent with itself; its key and its "
        "anchor show that.",
    ),
    _Question(
        name="signature",
        title="Did the gate's key sign the ledger as it is?",
        rule=_signature,
        claim="head.json is signed by the key that began the ledger, and covers it.",
        tolerance="one line more than was signed, which a crash can leave",
        limits="The operator has the key and can sign another ledger of the same site.",
    ),
    _Question(
        name="sensitivity",
        title="Is the noise scaled to the most that one unit's data can move?",
        rule=_sensitivity,
        claim="Each charge states 2C, C being the largest norm of one shard's update.",
        tolerance=_EXACT,
        limits="That shards were clipped, and that each saw its own data alone, is not in the "
        "ledger.",
    ),
    _Question(
        name="noise",
        title="Do the released numbers move as much as the charged noise makes them?",
        rule=_noise,
        claim="Each number that leaves has noise of the charged deviation 2Cσ/K.",
        tolerance=f"a correct gate fails in one of {1 / _ALARM:,.0f} audits at most",
        limits=f"Only the newest {KEPT} releases are kept. Large updates hide missing noise.",
    ),
    _Question(
        name="budget",
        title="Do all releases together stay within the budget?",
        rule=_budget,
        claim="ε of all releases of all jobs is at most the budget's.",
        tolerance="0.1 % of ε, by the auditor's own accountant",
        limits="A second gate on the same data has a ledger of its own.",
    ),
)
