"""What every complete run has: order and charges of its ledger, layout and evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from audit.checks import integrity
from audit.checks.integrity import (
    _order,
    charged_in_time,
    evidence_faults,
    judge_run,
    layout_fits,
    sequence_faults,
)
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Resume


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
    finished: Any = {4: SimpleNamespace(line=10), 5: SimpleNamespace(line=20)}
    spend: Any = SimpleNamespace(round=index, line=line)
    reasons: list[str] = []
    charged_in_time(spend, finished, reasons)
    assert reasons == [f"ledger.jsonl:{line}: {one}" for one in said]


def a_layout(**changes: Any) -> Any:
    made = {"parameters": 340, "round_files": 3, "unit": "record"}
    return SimpleNamespace(**{**made, **changes})


HEADER: Any = SimpleNamespace(parameters=340, rounds=3, unit=SimpleNamespace(name="record"))
OTHER = "evidence/layout.json: another {} than the ledger's"


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
