"""The check "integrity" where records are protected: each fault is named with its line.

Order and charges of the ledger, layout and evidence, and what every complete run has.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from audit.checks import integrity
from audit.checks.integrity import (
    ENVELOPE,
    UNATTESTED,
    _order,
    charged_in_time,
    ends_of_rounds,
    evidence_faults,
    judge_run,
    layout_fits,
    sequence_faults,
)
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger import Fault, Ledger, Resume
from audit.reading.ledger_lines import RoundSpend
from audit.reading.units import NONE, Unit
from tests.audit.checks.opened import changed, judged
from tests.audit.corruptions import attest


def never(*_: Any) -> None:
    pytest.fail("was asked of a run without a header")


def test_of_a_run_without_a_ledger_or_its_header_nothing_else_is_asked(of_records: Bundle) -> None:
    nothing = judge_run(replace(of_records, ledger=None), never, never)
    assert nothing.details == {"ledger_lines": 0, "rounds": 0, "charges": 0, "attested": False}
    read = replace(of_records.readable_ledger, header=None)
    headless = judge_run(replace(of_records, ledger=read), never, never)
    assert headless.details == {"ledger_lines": 18, "rounds": 4, "charges": 12, "attested": False}


def test_what_is_asked_of_rounds_and_evidence_is_part_of_the_judgement(of_clients: Bundle) -> None:
    def rounds(ledger: Any, header: Any, reasons: list[str]) -> None:
        assert (ledger, header) == (of_clients.ledger, of_clients.header)
        reasons.append("of rounds")

    def evidence(bundle: Any, header: Any, reasons: list[str], unreadable: list[str]) -> None:
        assert (bundle, header) == (of_clients, of_clients.header)
        reasons.append("of evidence")
        unreadable.append("unread")

    found = judge_run(of_clients, rounds, evidence)
    assert (found.verdict.value, found.measurement) == ("FAIL", "of rounds; of evidence")
    assert found.details == {"ledger_lines": 50, "rounds": 24, "charges": 24, "attested": False}
    assert found.qualifications == (integrity.UNATTESTED,)
    unread = judge_run(of_clients, lambda *_: None, lambda *given: given[3].append("unread"))
    assert unread.measurement == f"{integrity.UNATTESTED}; unread"


LAST = "the claim is not the one last line"


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ("header round claim", []),
        ("header claim", []),
        (
            "",
            ["1: the first line is not the header", ": there is no claim; the run did not finish"],
        ),
        ("round header claim", ["1: the first line is not the header", "2: a second header"]),
        ("header header claim", ["2: a second header"]),
        ("header round header header claim", ["3: a second header", "4: a second header"]),
        ("header round", [": there is no claim; the run did not finish"]),
        ("header claim round", ["2: " + LAST]),
        ("header claim claim", ["2: " + LAST]),
        ("header claim round claim", ["2: " + LAST]),
        ("header claim round round", ["2: " + LAST]),
    ],
)
def test_a_ledger_has_one_header_that_is_first_and_one_claim_that_is_last(
    kinds: str, said: list[str]
) -> None:
    reasons: list[str] = []
    ledger: Any = SimpleNamespace(kinds=tuple(enumerate(kinds.split(), start=1)))
    _order(ledger, reasons)
    whole = [one if one.startswith(":") else f":{one}" for one in said]
    assert reasons == [f"ledger.jsonl{one}" for one in whole]


MISSING = "ledger.jsonl: the finished rounds are not 0 to 3, each once"


@pytest.mark.parametrize(
    ("rounds", "resumes", "said"),
    [
        # Rounds by number and line, then where a run went on.
        ([(0, 5), (1, 9), (2, 13), (3, 17)], [], []),
        ([(3, 17), (1, 9), (0, 5), (2, 13)], [], []),
        ([(0, 5), (1, 9), (2, 13)], [], [MISSING]),
        ([], [], [MISSING]),
        ([(1, 9), (2, 13), (3, 17)], [], ["ledger.jsonl:9: round 1 ends where 0 should"]),
        (
            [(0, 5), (2, 13), (3, 17)], [],
            ["ledger.jsonl:13: round 2 ends where 1 should"],
        ),
        (
            [(0, 5), (1, 9), (2, 13), (3, 17), (4, 21)], [],
            [MISSING],
        ),
        ([(0, 5), (1, 9), (2, 13), (3, 17)], [(0, 2)], []),
        ([(0, 5), (1, 9), (2, 13), (3, 17)], [(1, 6), (1, 7)], []),
        ([(0, 5), (1, 9), (1, 11), (2, 13), (3, 17)], [(1, 10)], []),
        (
            [(0, 5), (1, 9), (2, 13), (3, 17)], [(3, 10)],
            ["ledger.jsonl:10: goes on at round 3, 2 was next"],
        ),
        (
            [(0, 5), (1, 9), (2, 13), (3, 17)], [(0, 10)],
            ["ledger.jsonl:10: goes on at round 0, 2 was next"],
        ),
        # Going on at the last round leaves it to be finished again.
        ([(0, 5), (1, 9), (2, 13), (3, 17)], [(3, 18)], [MISSING]),
    ],
)  # fmt: skip
def test_rounds_end_in_order_and_the_last_may_run_again(
    of_records: Bundle,
    rounds: list[tuple[int, int]],
    resumes: list[tuple[int, int]],
    said: list[str],
) -> None:
    one = of_records.readable_ledger.rounds[0]
    ledger = replace(
        of_records.readable_ledger,
        rounds=tuple(replace(one, round=index, line=line) for index, line in rounds),
        resumes=tuple(Resume(line, index, None) for index, line in resumes),
    )
    reasons: list[str] = []
    sequence_faults(ledger, reasons)
    assert reasons == said


@pytest.mark.parametrize(
    ("index", "line", "said"),
    [
        # Rounds 4 and 5 end in lines 10 and 20.
        (5, 19, []),
        (5, 11, []),
        (5, 21, ["charged after its round had ended"]),
        (5, 9, ["charged before the round before had ended"]),
        (4, 9, []),
        (4, 1, []),
        (4, 11, ["charged after its round had ended"]),
        (6, 25, ["round 6 was not finished"]),
        (6, 19, ["round 6 was not finished", "charged before the round before had ended"]),
        (7, 1, ["round 7 was not finished"]),
        (3, 25, ["round 3 was not finished"]),
    ],
)
def test_a_charge_stands_between_the_ends_of_two_rounds(
    index: int, line: int, said: list[str]
) -> None:
    assert charged_at(index, line, [(4, 10), (5, 20)]) == said


@pytest.mark.parametrize(
    ("index", "line", "said"),
    [
        # Round 6 was begun in line 22 when the run was cut off and the state after round 5 lost.
        (6, 22, []),
        (5, 26, []),
        (6, 32, []),
        # A lost round has not ended until it ends again, and one before it is over.
        (6, 26, ["charged before the round before had ended"]),
        (4, 26, ["charged after its round had ended"]),
        (5, 31, ["charged after its round had ended"]),
        (5, 22, ["charged after its round had ended"]),
    ],
)
def test_a_round_whose_state_was_lost_ends_when_it_ends_again(
    index: int, line: int, said: list[str]
) -> None:
    ended = [(4, 10), (5, 20), (5, 30), (6, 40)]
    assert charged_at(index, line, ended, [(5, 25)]) == said


def charged_at(
    index: int, line: int, ended: list[tuple[int, int]], resumed: Sequence[tuple[int, int]] = ()
) -> list[str]:
    """What is wrong with a charge of a round in a line, of rounds that ended in others."""
    ledger: Any = SimpleNamespace(
        rounds=[SimpleNamespace(round=one, line=at) for one, at in ended],
        resumes=[Resume(at, one, None) for one, at in resumed],
    )
    spend: Any = SimpleNamespace(round=index, line=line)
    reasons: list[str] = []
    charged_in_time(spend, ends_of_rounds(ledger), reasons)
    where = f"ledger.jsonl:{line}: "
    assert all(one.startswith(where) for one in reasons)
    return [one.removeprefix(where) for one in reasons]


def a_layout(**changes: Any) -> Any:
    made = {"parameters": 340, "round_files": 3, "unit": "record"}
    return SimpleNamespace(**{**made, **changes})


HEADER: Any = SimpleNamespace(parameters=340, rounds=3, unit=SimpleNamespace(name="record"))
OTHER = "evidence/layout.json: the {} is not the ledger's"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"parameters": 341}, [OTHER.format("number of parameters")]),
        ({"round_files": 2}, [OTHER.format("number of rounds")]),
        ({"unit": "client"}, [OTHER.format("unit")]),
    ],
)
def test_a_layout_that_can_be_read_is_held_against_the_ledger(
    changes: dict[str, Any], said: list[str]
) -> None:
    reasons: list[str] = []
    unreadable: list[str] = []
    bundle: Any = SimpleNamespace(layout=lambda: a_layout(**changes))
    assert layout_fits(bundle, HEADER, reasons, unreadable) is True
    assert (reasons, unreadable) == (said, [])


def lost(name: str) -> Callable[..., Any]:
    def read(*_: Any) -> Any:
        raise UntrustedFileError(name, "is gone")

    return read


def a_bundle(**changes: Any) -> Any:
    made = {
        "layout": a_layout,
        "ledger": SimpleNamespace(rounds_to_finish=2),
        "evidence_of_round": lambda index, unit: (index, unit.name),
        "holdings": lambda: None,
        "moments": lambda: None,
    }
    return SimpleNamespace(**{**made, **changes})


def evidence_of(bundle: Any, header: Any = HEADER) -> tuple[list[Any], list[str], list[str]]:
    compared: list[Any] = []
    reasons: list[str] = []
    unreadable: list[str] = []
    evidence_faults(bundle, header, lambda *found: compared.append(found), reasons, unreadable)
    return compared, reasons, unreadable


def test_the_evidence_of_every_round_that_the_ledger_finishes_is_compared() -> None:
    both = [(0, (0, "record")), (1, (1, "record"))]
    assert evidence_of(a_bundle()) == (both, [], [])
    # Without a ledger it is that of all rounds that the header declares.
    assert len(evidence_of(a_bundle(ledger=None))[0]) == 3
    unread = evidence_of(a_bundle(holdings=lost("a"), moments=lost("b")))
    assert unread == (both, [], ["a: is gone", "b: is gone"])
    # Without a layout no evidence can be read at all.
    assert evidence_of(a_bundle(layout=lost("layout"))) == ([], [], ["layout: is gone"])


def test_of_files_that_cannot_be_read_a_hundred_and_one_are_told() -> None:
    def every_second(index: int, _: Any) -> int:
        if index % 2 == 0:
            raise UntrustedFileError(f"{index}", "is gone")
        return index

    many = SimpleNamespace(rounds_to_finish=1000)
    compared, _, unreadable = evidence_of(
        a_bundle(ledger=many, evidence_of_round=every_second, moments=lost("moments"))
    )
    assert unreadable == [*(f"{index}: is gone" for index in range(0, 202, 2)), "moments: is gone"]
    assert compared == [(index, index) for index in range(1, 200, 2)]


def faults(bundle: Bundle) -> list[str]:
    """What is wrong with a run; that nobody attested to it is said of all runs here."""
    found = judged(bundle, "integrity")
    if found.verdict.value == "NOT VERIFIED":
        return [one for one in found.measurement.split("; ") if one not in UNATTESTED]
    return found.measurement.split("; ")


def ledger(bundle: Bundle, change: Callable[[Ledger], dict[str, Any]]) -> list[str]:
    return faults(changed(bundle, ledger=change(bundle.readable_ledger)))


def test_a_run_that_nobody_attested_to_is_not_verified(of_records: Bundle) -> None:
    found = judged(of_records, "integrity")
    assert found.verdict.value == "NOT VERIFIED"
    assert found.qualifications == (UNATTESTED,)
    assert found.details == {"ledger_lines": 18, "rounds": 4, "charges": 12, "attested": False}
    run = attest(of_records.root)
    try:
        found = judged(open_bundle(run), "integrity")
    finally:
        for name in ("training.attestation.json", "trainer.pub"):
            (run / name).unlink()
    assert (found.verdict.value, found.qualifications) == ("PASS", ())


def kinds(*changes: tuple[int, str]) -> Callable[[Ledger], dict[str, Any]]:
    """The ledger's kinds of lines, some of them others."""

    def change(read: Ledger) -> dict[str, Any]:
        found = list(read.kinds)
        for place, kind in changes:
            found[place] = (found[place][0], kind)
        return {"kinds": tuple(found)}

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (kinds((0, "spend")), ["ledger.jsonl:1: the first line is not the header"]),
        (kinds((3, "header")), ["ledger.jsonl:4: a second header"]),
        (
            kinds((-1, "round")),
            ["ledger.jsonl: there is no claim", "the run did not finish"],
        ),
        (kinds((5, "claim")), ["ledger.jsonl:6: the claim is not the one last line"]),
        (
            kinds((5, "claim"), (-1, "round")),
            ["ledger.jsonl:6: the claim is not the one last line"],
        ),
        (lambda _: {"kinds": ()}, ["ledger.jsonl:1: the first line is not the header"]),
    ],
)
def test_a_ledger_goes_from_its_header_to_its_claim(
    of_records: Bundle, change: Callable[[Ledger], dict[str, Any]], said: list[str]
) -> None:
    assert ledger(of_records, change)[: len(said)] == said


def rounds(place: int, **changes: Any) -> Callable[[Ledger], dict[str, Any]]:
    def change(read: Ledger) -> dict[str, Any]:
        found = list(read.rounds)
        found[place] = replace(found[place], **changes)
        return {"rounds": tuple(found)}

    return change


def charge(place: int, **changes: Any) -> Callable[[Ledger], dict[str, Any]]:
    def change(read: Ledger) -> dict[str, Any]:
        found = list(read.spends)
        found[place] = replace(found[place], **changes)
        return {"spends": tuple(found)}

    return change


def further(*charges: tuple[int, dict[str, Any]]) -> Callable[[Ledger], dict[str, Any]]:
    """Charges like others, with changes."""

    def change(read: Ledger) -> dict[str, Any]:
        found = [replace(read.spends[place], **changes) for place, changes in charges]
        return {"spends": (*read.spends, *found)}

    return change


# Lines: 1 the header; then, round by round, three charges and the round's own; 18 the claim.
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rounds(1, round=2), "ledger.jsonl:9: round 2 ends where 1 should"),
        (
            lambda read: {"rounds": read.rounds[:-1]},
            "ledger.jsonl: the finished rounds are not 0 to 3, each once",
        ),
        (
            lambda read: {"rounds": read.rounds[1:]},
            "ledger.jsonl:9: round 1 ends where 0 should",
        ),
        (charge(3, line=4), "ledger.jsonl:4: charged before the round before had ended"),
        (charge(3, line=10), "ledger.jsonl:10: charged after its round had ended"),
        (charge(3, round=9), "ledger.jsonl:6: round 9 was not finished"),
        (charge(0, client=5), "ledger.jsonl:2: there is no client 5"),
        (
            charge(0, attempt=2),
            "ledger.jsonl:5: round 0, attempt 1: the clients charged are not the clients that took"
            " part",
        ),
        (charge(0, attempt=3), "ledger.jsonl:5: round 0: its attempts are not numbered 1, 2, …"),
        (
            lambda read: {"spends": read.spends[3:]},
            "ledger.jsonl:5: round 0: its attempts are not numbered 1, 2, …",
        ),
        (
            lambda read: {"spends": (*read.spends, read.spends[0])},
            "ledger.jsonl:5: round 0, attempt 1: a client is charged twice",
        ),
        (
            lambda read: {"spends": read.spends[1:]},
            "ledger.jsonl:5: round 0: the clients charged are not the clients that took part",
        ),
    ],
)
def test_every_round_is_charged_once_for_each_client_and_before_it_ends(
    of_records: Bundle, change: Callable[[Ledger], dict[str, Any]], said: str
) -> None:
    found = ledger(of_records, change)
    assert said.replace(", attempt 1: the clients", ": the clients") in found


def test_a_charge_may_stand_next_to_the_rounds_that_bound_it(of_records: Bundle) -> None:
    # The round before ends in line 5, its own in line 9.
    assert ledger(of_records, charge(3, line=5)) == []
    assert ledger(of_records, charge(3, line=9)) == []


def test_a_round_names_as_many_clients_as_are_drawn_and_none_that_there_is_not(
    of_records: Bundle,
) -> None:
    first = of_records.readable_ledger.rounds[0]
    fewer = rounds(0, clients=first.clients[:2])
    assert ledger(of_records, fewer)[0] == "ledger.jsonl:5: round 0 does not have 3 clients"
    other = rounds(0, clients=(*first.clients[:2], 5))
    assert "ledger.jsonl:5: round 0 names a client that does not exist" in ledger(of_records, other)
    by_chance = changed(of_records, header={"client_sampling": "poisson"})
    assert "does not have 3 clients" not in str(ledger(by_chance, fewer))


def test_a_round_without_clients_needs_no_charge_where_they_are_drawn_by_chance(
    of_records: Bundle,
) -> None:
    empty = np.zeros(0, np.int64)

    def emptied(sampling: str) -> list[str]:
        read = of_records.readable_ledger
        kept = tuple(one for one in read.spends if one.round)
        first = replace(read.rounds[0], clients=(), steps=(), queries=())
        return faults(
            changed(
                of_records,
                header={"client_sampling": sampling},
                ledger={"spends": kept, "rounds": (first, *read.rounds[1:])},
                evidence={0: {"clients": empty}},
            )
        )

    assert emptied("poisson") == []
    assert len(emptied("fixed-size")) == 2


def test_an_earlier_attempt_may_have_been_cut_short_and_the_last_may_not(
    of_records: Bundle,
) -> None:
    again = further(*((place, {"attempt": 2}) for place in range(3)))
    cut = further(*((place, {"attempt": 2}) for place in range(2)))

    def said(change: Callable[[Ledger], dict[str, Any]], attempt: int, first: int) -> list[str]:
        spends = tuple(
            replace(one, line=1) if (one.round, one.attempt) == (0, 1) else one
            for one in change(of_records.readable_ledger)["spends"][first:]
        )
        found = {"spends": spends, "resumes": (Resume(1, 0, None),)}
        return faults(changed(of_records, ledger=found, evidence={0: {"attempt": attempt}}))

    assert said(again, 2, 0) == []
    assert said(again, 2, 1) == []
    assert said(again, 1, 0) == ["evidence/round-00000.npz: is not of the last attempt charged"]
    assert said(cut, 2, 0) == [
        "ledger.jsonl:5: round 0: the clients charged are not the clients that took part"
    ]


def test_a_run_that_was_cut_off_goes_on_where_it_stood(of_records: Bundle) -> None:
    def resumed(*at: tuple[int, int]) -> list[str]:
        resumes = tuple(Resume(line, round_, None) for line, round_ in at)
        return ledger(of_records, lambda _: {"resumes": resumes})

    # After line 9 two rounds are finished.
    assert resumed((9, 2)) == []
    assert resumed((9, 2), (9, 2)) == []
    assert resumed((9, 3)) == ["ledger.jsonl:9: goes on at round 3, 2 was next"]
    assert resumed((9, 0)) == ["ledger.jsonl:9: goes on at round 0, 2 was next"]
    # The last finished round may run again; then it must end once more.
    assert resumed((9, 1)) == ["ledger.jsonl:13: round 2 ends where 1 should"]


def test_a_round_is_charged_again_where_the_run_went_on_and_nowhere_else(
    of_records: Bundle,
) -> None:
    """Round 2 is charged in lines 10 to 12 and ends in line 13."""
    read = of_records.readable_ledger

    def found(resumes: tuple[int, ...], attempt: int) -> list[str]:
        spends = tuple(
            replace(one, attempt=attempt) if one.round == 2 else one for one in read.spends
        )
        lines = tuple(Resume(line, 2, None) for line in resumes)
        run = changed(
            of_records,
            ledger={"spends": spends, "resumes": lines},
            evidence={2: {"attempt": attempt}},
        )
        return [one for one in faults(run) if "interrupt" in one]

    assert found((), 1) == []
    assert len(found((), 2)) == 3
    assert found((9,), 1) == []
    assert found((12,), 1) == [
        "ledger.jsonl:13: round 2 ends after the run was interrupted in it, and was not charged "
        "again"
    ]
    assert found((11,), 1) == [
        "ledger.jsonl:12: is charged to an attempt from before the interruption",
        "ledger.jsonl:13: round 2 ends after the run was interrupted in it, and was not charged "
        "again",
    ]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("environment-00000.json", b"{}", None),
        ("environment-00000.json", b'{"commitment": "HEADER"}', None),
        ("environment-00000.json", b'{"commitment": "ee"}', "a key that the ledger does not name"),
        ("environment-00000.json", b"torn", "cannot be read"),
        ("environment-00002.json", b"{}", "a process continued the run at round 2"),
        ("environment-2.json", b"{}", None),
    ],
)
def test_every_process_that_noted_itself_is_one_that_the_ledger_knows(
    of_records: Bundle, name: str, content: bytes, says: str | None
) -> None:
    path = of_records.root / "evidence" / name
    path.write_bytes(content.replace(b"HEADER", str(of_records.header.commitment).encode()))
    try:
        found = faults(of_records)
        went_on = changed(of_records, ledger={"resumes": (Resume(9, 2, None),)})
        later = [one for one in faults(went_on) if "went on" in one]
    finally:
        path.unlink()
    assert ([says in one for one in found] == [True]) if says else found == []
    assert later == []


def test_a_round_that_ran_again_ends_and_is_charged_once_more(of_records: Bundle) -> None:
    read = of_records.readable_ledger

    def later(entries: Any) -> Any:
        return tuple(replace(one, line=one.line + (10 if one.round > 1 else 0)) for one in entries)

    again = replace(read.rounds[1], line=15)
    charged = [replace(one, line=14, attempt=2) for one in read.spends if one.round == 1]
    found = {
        "resumes": (Resume(13, 1, None),),
        "rounds": (*read.rounds[:2], again, *later(read.rounds[2:])),
        "spends": (*later(read.spends), *charged),
    }
    assert faults(changed(of_records, ledger=found, evidence={1: {"attempt": 2}})) == []


def test_a_charge_of_a_whole_round_has_no_place_among_single_records(of_records: Bundle) -> None:
    of_round = RoundSpend(7, 1, 1, "poisson", 0.6, 3.0, 0.5, 1.5, "server", (1,), None)
    assert ledger(of_records, lambda _: {"round_spends": (of_round,)}) == [
        "ledger.jsonl:7: charges a round as if clients were protected"
    ]


def test_a_run_that_claims_no_privacy_is_not_charged(of_records: Bundle) -> None:
    def run(**ledger: Any) -> list[str]:
        read = of_records.readable_ledger
        header = replace(of_records.header, unit=NONE)
        return faults(replace(of_records, ledger=replace(read, header=header, **ledger)))

    assert run(spends=()) == []
    assert "ledger.jsonl:5: round 0 was charged although the run claims no privacy" in run()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": np.array([0, 1, 9])}, "its clients are not the ledger's"),
        ({"attempt": 2}, "is not of the last attempt charged"),
        (
            {"batch_size": np.zeros((3, 4), np.int64)},
            "its queries are not as many as the ledger's",
        ),
    ],
)
def test_evidence_of_a_round_is_of_its_clients_queries_and_last_attempt(
    of_records: Bundle, change: dict[str, Any], said: str
) -> None:
    assert faults(changed(of_records, evidence={1: change})) == [
        f"evidence/round-00001.npz: {said}"
    ]


def test_a_client_that_stands_twice_in_the_evidence_is_found(of_records: Bundle) -> None:
    first = of_records.readable_ledger.rounds[1].clients
    twice = (first[0], first[0], first[1])
    run = changed(
        of_records, ledger=rounds(1, clients=twice)(of_records.readable_ledger),
        evidence={1: {"clients": np.array(twice)}},
    )  # fmt: skip
    assert "evidence/round-00001.npz: its clients are not the ledger's" in faults(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": 341}, "the number of parameters is not the ledger's"),
        ({"round_files": 5}, "the number of rounds is not the ledger's"),
        ({"unit": "client"}, "the unit is not the ledger's"),
    ],
)
def test_the_evidence_is_laid_out_as_the_ledger_says(
    of_records: Bundle, change: dict[str, Any], said: str
) -> None:
    run = replace(changed(of_records), _layout=replace(of_records.layout(), **change))
    assert faults(run) == [f"evidence/layout.json: {said}"]


def test_the_spec_is_the_one_that_the_header_names(of_records: Bundle) -> None:
    other = changed(of_records, header={"spec_sha256": "0" * 64})
    assert faults(other) == ["spec.yaml: is not the spec whose sha256 the ledger's header names"]
    # One that cannot be read is a problem of its own, and told as that.
    unread = replace(other, spec_sha256=None)
    assert faults(unread) == []


def test_faults_of_the_chain_are_told_with_their_line_if_they_have_one(
    of_records: Bundle,
) -> None:
    def told(line: int) -> str:
        read = replace(of_records.readable_ledger, faults=(Fault(line, "has a broken chain"),))
        return faults(replace(of_records, ledger=read))[0]

    assert told(3) == "ledger.jsonl:3 has a broken chain"
    assert told(0) == "ledger.jsonl has a broken chain"


def test_of_evidence_that_lies_in_ruins_no_more_than_a_hundred_files_are_opened(
    of_records: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(of_records.header, rounds=1000)
    lost = replace(
        of_records,
        root=tmp_path,
        ledger=replace(of_records.readable_ledger, header=long),
        _layout=of_records.layout(),
        _cache=OrderedDict(),
        _refused={},
    )
    asked: list[int] = []
    read = Bundle.evidence_of_round

    def counted(self: Bundle, index: int, unit: Unit) -> Any:
        asked.append(index)
        return read(self, index, unit)

    monkeypatch.setattr(Bundle, "evidence_of_round", counted)
    assert judged(lost, "integrity").verdict.value == "FAIL"
    assert asked == list(range(101))


def test_that_nobody_attested_is_told_before_what_else_is_not_there(of_records: Bundle) -> None:
    lost = replace(changed(of_records), problems=(UntrustedFileError("a.npz", "is gone"),))
    assert judged(lost, "integrity").measurement.startswith(UNATTESTED)


@pytest.mark.parametrize(
    ("finished", "asked"),
    [
        # Of the round that was begun last nothing was finished, where steps may run out.
        (2, [0, 1, 3, 4]),
        (0, [1, 2, 3, 4]),
        # A run that finished all of its rounds begins none.
        (4, [0, 1, 2, 3, 4]),
    ],
)
def test_a_charge_of_the_round_that_was_cut_off_by_the_limit_of_steps_has_no_end(
    of_records: Bundle, finished: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        integrity, "charged_in_time", lambda spend, ended, reasons: seen.append(spend.round)
    )
    monkeypatch.setattr(integrity, "sequence_faults", lambda *_: None)
    first = of_records.readable_ledger.spends[0]
    read: Any = SimpleNamespace(
        rounds=(), resumes=(), round_spends=(), rounds_to_finish=finished,
        spends=[replace(first, round=index) for index in range(5)],
    )  # fmt: skip
    reasons: list[str] = []
    integrity._rounds_of_records(read, of_records.header, reasons)
    assert (seen, reasons) == (asked, [])


def test_faults_of_order_and_of_evidence_are_told_together(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "sequence_faults", lambda _, reasons: reasons.append("order"))
    monkeypatch.setattr(integrity, "evidence_faults", lambda *given: given[3].append("evidence"))
    assert faults(of_records) == ["order", "evidence"]


def test_without_a_ledger_no_evidence_is_compared(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(integrity, "evidence_faults", lambda *given: asked.append(given[0]))
    header = of_records.header
    integrity._evidence_of_records(replace(of_records, ledger=None), header, [], [])
    integrity._evidence_of_records(of_records, replace(header, unit=NONE), [], [])
    assert asked == []
    integrity._evidence_of_records(of_records, header, [], [])
    assert asked == [of_records]


@pytest.mark.parametrize(
    ("ledger_has", "rows", "right"),
    [
        ((3, 1, 2), [2, 3, 1], True),
        ((1, 2, 3), [3, 2, 1], True),
        ((3, 1, 2), [3, 1, 2], True),
        ((3, 1, 2), [3, 1], False),
        ((3, 1), [3, 1, 1], False),
        ((), [], True),
    ],
)
def test_clients_may_stand_in_any_order(
    of_records: Bundle,
    ledger_has: tuple[int, ...],
    rows: list[int],
    right: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = replace(
        of_records.readable_ledger.rounds[1], clients=ledger_has, queries=(3,) * len(ledger_has)
    )
    run = changed(of_records, ledger={"rounds": (item,)})
    evidence: Any = SimpleNamespace(
        clients=np.array(rows, np.int64), batch_size=np.zeros((len(rows), 3)), attempt=1
    )
    monkeypatch.setattr(integrity, "evidence_faults", lambda *given: given[2](1, evidence))
    reasons: list[str] = []
    integrity._evidence_of_records(run, run.header, reasons, [])
    said = "evidence/round-00001.npz: its clients are not the ledger's"
    assert reasons == ([] if right else [said])


@pytest.mark.parametrize(("name", "verdict"), [("findings.json", "PASS"), ("notes.json", "FAIL")])
def test_an_earlier_audits_findings_are_the_one_file_of_the_evidence_that_may_come_later(
    of_records: Bundle, name: str, verdict: str, tmp_path: Path
) -> None:
    run = attest(Path(shutil.copytree(of_records.root, tmp_path / "run")))
    (run / "evidence" / name).write_text("{}")
    assert judged(open_bundle(run), "integrity").verdict.value == verdict


@pytest.mark.parametrize("name", ["evidence", "metrics.jsonl", "model.json"])
def test_an_attestation_names_every_file_that_it_must(
    of_records: Bundle, name: str, tmp_path: Path
) -> None:
    run = attest(Path(shutil.copytree(of_records.root, tmp_path / "run")))
    envelope = json.loads((run / ENVELOPE).read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["subject"] = [one for one in statement["subject"] if one["name"] != name]
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (run / ENVELOPE).write_text(json.dumps(envelope))
    assert judged(open_bundle(run), "integrity").measurement == (
        f"{ENVELOPE}: does not name {name}, so nothing ties it to the trainer"
    )
    place = run / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    reasons: list[str] = []
    unreadable: list[str] = []
    assert integrity.attestation_faults(run, reasons, unreadable)
    assert (reasons, unreadable) == ([], [])


def noting(bundle: Bundle, **digests: str) -> dict[str, Any]:
    """The ledger with digests in the line of round 1."""
    read = list(bundle.readable_ledger.rounds)
    read[1] = replace(read[1], digests={**read[1].digests, **digests})
    return {"rounds": tuple(read)}


def test_commitments_in_the_evidence_are_those_that_the_ledger_notes(
    of_records: Bundle, of_clients: Bundle
) -> None:
    for bundle in (of_records, of_clients):
        clients = len(bundle.evidence_of_round(1, bundle.header.unit).clients)
        committed = np.full((clients, 32), 7)
        right = hashlib.sha256(bytes([7] * 32 * clients)).hexdigest()
        for noted, content, said in (
            (right, committed, []),
            (right, None, ["lacks the commitments that the ledger notes"]),
            ("0" * 64, committed, ["its commitments are not those that the ledger notes"]),
        ):
            run = changed(
                bundle,
                ledger=noting(bundle, participations_sha256=noted),
                evidence={1: {"commitment": content}},
            )
            assert faults(run) == [f"evidence/round-00001.npz: {one}" for one in said]
        # Clients with ledgers of their own sign theirs.
        sites = SimpleNamespace(digests={"participations_sha256": "0" * 64}, clients=(0,), round=1)
        found: list[str] = []
        header: Any = SimpleNamespace(sites=("key",))
        evidence: Any = SimpleNamespace(commitment=committed)
        integrity._commitment_fault(cast(Any, sites), header, evidence, found, found)
        assert found == []


def test_a_state_in_the_evidence_is_the_one_that_the_ledger_notes(
    of_records: Bundle, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(of_records.root, tmp_path / "run"))
    run = replace(of_records, root=root)
    noted = hashlib.sha256(b"a state").hexdigest()
    assert faults(changed(run, ledger=noting(run, state_sha256=noted))) == []
    state = root / "evidence" / "state-00001.safetensors"
    for content, said in (
        (b"a state", []),
        (b"another", ["is not the state that the ledger notes"]),
    ):
        state.write_bytes(content)
        found = faults(changed(run, ledger=noting(run, state_sha256=noted)))
        assert found == [f"evidence/state-00001.safetensors: {one}" for one in said]
