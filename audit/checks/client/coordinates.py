"""Check "coordinates": does which coordinates were released tell anything of a client?

Sparse updates leave out most coordinates. Where noise lies on the kept ones only, they must be the
same for all clients and follow from public values, or else the choice itself tells of records.
"""

from __future__ import annotations

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, conclude, register
from audit.checks.shared.noise_table import rounds_with_choices
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.client_evidence import UpdateRound
from audit.reading.ledger_lines import digest
from audit.verdict import Verdict


def _round(index: int, evidence: UpdateRound, expected: bytes, reasons: list[str]) -> None:
    where = f"round {index}"
    if evidence.kept_digest is None or evidence.upload_kept_digests is None:
        raise UnverifiedError(f"{where}: the coordinates that were kept are not recorded")
    if evidence.elsewhere_sum_squares is None:
        raise UnverifiedError(f"{where}: what was released elsewhere is not recorded")
    if evidence.kept_digest != expected:
        reasons.append(f"{where}: the server read other coordinates than the public ones")
    if any(one != expected for one in evidence.upload_kept_digests):
        reasons.append(f"{where}: a client kept other coordinates than the public ones")
    if evidence.elsewhere_sum_squares != 0.0:
        reasons.append(f"{where}: the release is not 0 off the public coordinates")


def _judge(bundle: Bundle) -> Judgement:
    header = bundle.header
    sparsification = header.sparsification
    details: dict[str, object] = {
        "kind": sparsification.kind if sparsification else None,
        "kept": sparsification.kept if sparsification else header.parameters,
        "parameters": header.parameters,
    }
    if sparsification is None or not sparsification.public:
        for index, evidence in bundle.all_update_rounds():
            if evidence.kept_digest is not None:
                reason = f"round {index}: names kept coordinates, of which the ledger says nothing"
                return Judgement(Verdict.FAIL, reason, details)
        what = (
            "updates are released whole"
            if sparsification is None
            else "each client chose its own coordinates, which stay private"
        )
        return Judgement(
            Verdict.NOT_APPLICABLE,
            f"{what}: there is no public choice, and the check noise-scale requires noise on all "
            f"{header.parameters} coordinates",
            details,
        )
    reasons: list[str] = []
    for index, evidence, chosen in rounds_with_choices(bundle, sparsification):
        _round(index, evidence, digest(chosen), reasons)
    source = "seed and round" if sparsification.kind == "random" else "seed, round and last release"
    rounds = bundle.readable_ledger.rounds_to_finish
    return conclude(
        f"in all {rounds} rounds server and every client kept the {sparsification.kept} of "
        f"{sparsification.size} coordinates that follow from {source}; the release is exactly 0 "
        "elsewhere",
        reasons,
        details=details,
    )


COORDINATES = Check(
    name="coordinates",
    title="Are the released coordinates a public choice?",
    units=AT_CLIENT_LEVEL,
    place=48,
    meaning="If it fails, the choice of coordinates may itself reveal something about a client.",
    claim="Where noise lies on kept coordinates only, these are the same for every client and "
    "follow from the spec's seed, the round and earlier releases alone.",
    tolerance="none: coordinates are compared by SHA-256, and values released elsewhere with 0",
    power="any coordinate kept by choice of a client, or different between clients; anything "
    "released off the public coordinates",
    limits="Which coordinates a client really used is known only from the recorder's digests. For "
    "the top k, the recorded release of the previous round is taken to be what was released.",
    rule=_judge,
)
register(COORDINATES)
