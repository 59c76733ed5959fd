"""Check "reexecution": does the run come from the data and the key, as far as it was tried again?

All other checks judge what the process that trained wrote about itself, and a trainer who forges
all of it consistently passes them. Here participations are drawn once the run is over and computed
again from data, spec, broadcasts and key; nobody can forge those who does not know the draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from audit.checks.base import Check, Judgement, listed, register
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Round
from audit.reading.openings import participations
from audit.reexecution import (
    Replay,
    draw,
    escape_probability,
    participations_needed,
    with_the_first_round,
)
from audit.replay.participation import finished_rounds
from audit.verdict import Severity, Verdict

if TYPE_CHECKING:
    from audit.checks.shared.recomputed import Recomputed

# Shares of falsified participations for which a finding says how likely they would have been found.
SHARES = (0.01, 0.05, 0.2)
_MISSED = 0.05

WORD = (
    "nobody has recomputed any of the training from the data: a trainer who forged all the "
    "evidence consistently would pass (dpfedadamw audit --replay N)"
)


def passing(participations: int | None, share: float, drawn: int) -> float:
    """How likely a trainer passes who falsified a share of all participations, at least one.

    Args:
        participations: M; None where it is not to be told: then of any number, a bound.
        share: Of them that are false.
        drawn: N.
    """
    if participations is None:
        return float((1.0 - share) ** drawn)
    falsified = min(participations, max(1, round(share * participations)))
    return escape_probability(participations, falsified, drawn)


def chances(participations: int | None, drawn: int) -> list[dict[str, float]]:
    """How likely a trainer passes, by the share that was falsified."""
    return [{"share": share, "passes": passing(participations, share, drawn)} for share in SHARES]


def _judge(bundle: Bundle) -> Judgement:
    replay = bundle.replay
    if replay is None or replay.count == 0:
        return Judgement(
            Verdict.NOT_VERIFIED,
            "nothing was recomputed: batches, clipped sums, noise and uploads are as the trainer's "
            "own process recorded them",
            qualifications=(WORD,),
            power="none",
            severity=Severity.THEORETICAL,
        )
    return _replayed(bundle, replay)


def _replayed(bundle: Bundle, replay: Replay) -> Judgement:
    # What judges rounds that were computed again is loaded where some were.
    from audit.checks.shared.recomputed import Recomputed, judge_round

    rounds = {item.round: item for item in finished_rounds(bundle.readable_ledger)}
    everyone = participations(bundle.readable_ledger)
    ledger = bundle.inputs["ledger.jsonl"]
    drawn = draw(everyone, replay.seed, ledger, replay.count)
    tally = Recomputed(reasons=list(replay.faults))
    asked = drawn
    if bundle.header.initial is not None:
        asked = with_the_first_round(drawn, everyone, replay.seed, ledger)
    places = [(one.round, one.client) for one in asked]
    for again in replay.rounds(places, max(rounds)):
        try:
            judge_round(bundle, rounds[again.round], again, tally)
        except AuditError as error:
            tally.unjudged.append(str(error))
        # Before the next round is computed, whose vectors take as much memory.
        del again
    return _conclude(bundle.header, rounds, len(everyone), len(drawn), replay, tally, len(asked))


def _conclude(
    header: Header,
    rounds: dict[int, Round],
    participations: int,
    drawn: int,
    replay: Replay,
    tally: Recomputed,
    asked: int | None = None,
) -> Judgement:
    # Where clients are drawn independently, how many took part is the server's to know alone.
    shown = None if header.client_sampling == "poisson" else participations
    details = {
        "drawn": drawn,
        "drawn_by": replay.drawn_by,
        "seed": replay.seed.hex(),
        "rounds_run_again": tally.rounds,
        "rounds": len(rounds),
        "published_parameters": tally.last,
        "smallest_visible": tally.hidden,
        **({"on_another_machine": tally.across} if tally.across else {}),
        "chances": chances(shown, drawn),
        **({} if shown is None else {"participations": shown}),
    }
    private = {
        "largest_share_of_a_rounding_bound": tally.closest,
        "longest_norm_over_its_own": tally.lengthened,
        "participations": participations,
        "computed_again": tally.participations,
    }
    if tally.reasons:
        return Judgement(Verdict.FAIL, listed(tally.reasons), details, private)
    one_more = "and one more of the first round " if (asked or drawn) > drawn else ""
    if tally.coarse and not tally.unjudged:
        return _coarse(tally, asked or drawn, details, private)
    if tally.unjudged or not tally.participations:
        whys = tally.unjudged or tally.elsewhere
        why = listed(whys) if whys else "the ledger has no participation"
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"{tally.participations} of {asked or drawn} drawn participations could be recomputed; "
            f"{why}",
            details,
            private,
        )
    return Judgement(
        Verdict.PASS,
        f"{_amount(shown, drawn)} participations, drawn after the run, {one_more}were recomputed "
        f"from the data ({_unit(header, tally)}): {_exact(tally, len(rounds))}; {_near(tally)}",
        details,
        private,
        (said(details),),
        power=_power(shown, drawn),
    )


def _coarse(
    tally: Recomputed, asked: int, details: Mapping[str, Any], private: Mapping[str, Any]
) -> Judgement:
    """Not each participation that was drawn could be told from a false one on this machine."""
    from audit.checks.shared.recomputed import MOST_HIDDEN

    notice = (
        f"{len(tally.coarse)} of {asked} recomputed participations do not count. On a machine "
        f"other than the one that trained, a false term of more than {MOST_HIDDEN:g} C could hide "
        "in a clipped sum"
    )
    return Judgement(
        Verdict.NOT_VERIFIED,
        f"{notice}; {listed([*tally.coarse, *tally.elsewhere])}",
        details,
        private,
        (notice,),
        power="none",
        severity=Severity.THEORETICAL,
    )


def _unit(header: Header, tally: Recomputed) -> str:
    if header.unit.whole_clients:
        return "whole local trainings"
    return f"{tally.queries} queries"


def _exact(tally: Recomputed, rounds: int) -> str:
    if tally.across:
        return (
            f"batches and noise agree bit for bit. In {tally.across} participations, which another "
            "machine trained, gradients agree up to rounding, and no false term of more than "
            f"{tally.hidden:.2g} C hides in a clipped sum ({listed(tally.elsewhere)})"
        )
    text = "batches, noise, uploads and commitments agree bit for bit"
    if not tally.rounds:
        # A round's state follows from all of its uploads.
        return (
            f"{text}. The server's step was not recomputed in any round: none was opened completely"
        )
    text += f", as does the server's step in {tally.rounds} of {rounds} rounds"
    return text + (", the last of which leads to the published parameters" if tally.last else "")


def _near(tally: Recomputed) -> str:
    return (
        "clean values match a second implementation in float64, one record at a time, up to "
        f"rounding (at most {tally.hidden / 2.0:.2g} C)"
    )


def _amount(participations: int | None, drawn: int) -> str:
    return f"{drawn}" if participations is None else f"{drawn} of {participations}"


def said(details: Mapping[str, Any]) -> str:
    """The qualification of the verdict if everything that was drawn came out the same.

    Args:
        details: The finding's.
    """
    participations, drawn = details.get("participations"), int(details["drawn"])
    if participations is not None and drawn >= participations:
        return f"all {participations} participations were recomputed from the data"
    chance = passing(participations, 0.05, drawn)
    return (
        f"{_amount(participations, drawn)} participations were recomputed from the data; a trainer "
        f"who falsified 5 % of them would have passed with a probability of {percent(chance)}"
    )


def _power(participations: int | None, drawn: int) -> str:
    if participations is not None and drawn >= participations:
        return "any falsified participation"
    parts = [
        f"{share:.0%} falsified: {percent(1.0 - passing(participations, share, drawn))}"
        for share in SHARES
    ]
    text = f"chance of a FAIL: {'; '.join(parts)}".replace("% ", " % ")
    if participations is None:
        return text
    falsified = max(1, round(0.01 * participations))
    needed = participations_needed(participations, falsified, _MISSED)
    return f"{text}; detecting {falsified} of {participations} with 95 % needs {needed}"


def percent(chance: float) -> str:
    """A probability in words; tiny ones as a bound."""
    return "below 0.1 %" if 0.0 < chance < 0.001 else f"{chance:.1%}".replace("%", " %")


REEXECUTION = Check(
    name="reexecution",
    title="Does recomputing the training from the data give the same result?",
    place=66,
    meaning="If it fails, the run is not what its data and key produce: somebody changed the "
    "computation, or the record of it. If nothing was recomputed, all other findings judge what "
    "the trainer's own process recorded.",
    claim="Each participation's batches and noise are those that the committed key draws. Its "
    "clipped sums are those of the client's records, and its upload and the server's step follow "
    "from them.",
    tolerance="none for batches, charges, commitments, uploads and states, by the run's own "
    "arithmetic on the same processor with the same versions. On other machines, the difference "
    "plus what rounding could hide is at most a tenth of C in each clipped sum. This is judged by "
    "the trainer's own record of its gradients. Clean values, L2: 8 times the root of the batch's "
    "size times what the run's precision moves a second order of evaluation, plus 2^-24 of "
    "each record (Higham & Mary 2019). Gradients handed out: half a spacing of the noise's grid "
    "and two roundings to float32, coordinate by coordinate.",
    power="a falsified participation, if it is drawn",
    limits="Participations that were not drawn may be false. A trainer who falsified only a few "
    "passes with the stated probability. If single participations are opened and not the whole "
    "key, the server's step is recomputed only in rounds whose clients were all opened. The data "
    "are those given to the auditor; the check does not show that they are the clients' own. The "
    "auditor must trust key, data and engine.",
    rule=_judge,
    concerns=lambda header: header is None or header.canaries is None,
)
register(REEXECUTION)
