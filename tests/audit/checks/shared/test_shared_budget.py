"""What a run spent of the budget of its data set, at each boundary; the cost is made up here."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Budget
from audit.accounting.registry import Range
from audit.checks.shared import agreement
from audit.checks.shared.agreement import budget_faults
from audit.reading.ledger_lines import SharedBudget
from audit.untrusted.fields import FieldError

DELTA = 1e-5
PROMISED = {"file": "spent.db", "epsilon": 4.0, "delta": DELTA}
OTHER = "budget: the ledger's is not the spec's"
WHOLE = SharedBudget(4.0, DELTA)
ONE = "budget: only one of spec and ledger names one"


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was charged costs as much as it is called, at the budget's delta alone."""

    def cost(history: Sequence[Any], delta: float) -> Any:
        assert delta == DELTA
        return Budget({"pld": Range(float(history[0]), float(history[0]))})

    monkeypatch.setattr(agreement, "budget", cost)


def faults(
    charged: tuple[float, ...] = (1.0,),
    promised: Any = PROMISED,
    noted: SharedBudget | None = WHOLE,
    claim: Any = None,
    several: int = 1,
) -> list[str]:
    reasons: list[str] = []
    header = SimpleNamespace(budget=noted, clients_per_person=several)
    ledger: Any = SimpleNamespace(header=header, claim=claim)
    spec = {} if promised is None else {"budget": promised}
    histories: Any = [[one] for one in charged]
    budget_faults(spec, ledger, histories, reasons)
    return [reason.split(",")[0] for reason in reasons]


ALONE = (4.0 + 1e-9) / (1.0 - 1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"promised": None, "noted": None}, []),
        ({"promised": None}, [ONE]),
        ({"promised": {"file": None}}, [ONE]),
        ({"promised": {"file": None}, "noted": None}, []),
        ({"noted": None}, [ONE]),
        ({"noted": SharedBudget(4.0 * (1 + 1e-12), DELTA)}, []),
        ({"noted": SharedBudget(4.0 * (1 + 2e-9), DELTA)}, [OTHER]),
        ({"promised": {**PROMISED, "delta": DELTA * (1 + 2e-9)}}, [OTHER]),
        # The dearest client decides, and nothing charged costs nothing.
        ({"charged": (5.0, 1.0)}, ["budget: the run alone cost 5 at delta = 1e-05"]),
        ({"charged": (1.0, 5.0)}, ["budget: the run alone cost 5 at delta = 1e-05"]),
        ({"charged": (ALONE * (1.0 - 1e-12),)}, []),
        (
            {"charged": (ALONE * (1.0 + 1e-12),)},
            ["budget: the run alone cost 4.0004 at delta = 1e-05"],
        ),
        ({"charged": ()}, []),
        ({"charged": (), "claim": {"budget": {"charged": 0.0}}}, []),
    ],
)
def test_a_run_fits_the_budget_that_its_spec_names(
    changes: dict[str, Any], said: list[str]
) -> None:
    assert faults(**changes) == said


def test_a_person_is_charged_for_as_many_clients_as_they_may_be_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dearest_together(histories: list[tuple[float]], clients: int, delta: float) -> Any:
        assert delta == DELTA
        return [sum(sorted((one for (one,) in histories), reverse=True)[:clients])]

    monkeypatch.setattr(agreement, "together", dearest_together)
    each, stated = (1.5, 2.0, 1.0), {"budget": {"charged": 3.4}}
    assert faults(each, claim=stated) == []
    assert faults(each, claim=stated, several=2) == ["budget: 3.4 is stated as charged to it"]
    assert faults(each, several=3) == ["budget: the run alone cost 4.5 at delta = 1e-05"]


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (None, []),
        (4.0, []),
        (float(np.nextafter(4.0, 9.0)), ["budget: 4 is charged to it"]),
        # What the run cost is 1; a ten-thousandth is the accountants' own.
        (1.0 * (1.0 - 1e-4), []),
        (0.9998, ["budget: 0.9998 is stated as charged to it"]),
        (0.0, ["budget: 0 is stated as charged to it"]),
    ],
)
def test_what_is_charged_lies_between_the_run_s_cost_and_the_whole(
    total: float | None, said: list[str]
) -> None:
    assert faults(claim={"budget": {"charged": total}}) == said


def test_the_claim_s_budget_is_the_header_s() -> None:
    whole = {"epsilon": 4.0, "delta": DELTA, "charged": 1.0}
    assert faults(claim={"budget": whole}) == []
    for name in ("epsilon", "delta"):
        stated = {**whole, name: whole[name] / 2}
        assert faults(claim={"budget": stated}) == [
            f"budget: the claim's {name} is not the header's"
        ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"promised": 7}, "budget is not a mapping"),
        ({"promised": {**PROMISED, "epsilon": 0.0}}, "epsilon is not above 0"),
        ({"promised": {**PROMISED, "delta": 0.0}}, "delta is not above 0"),
        ({"claim": {}}, "budget is missing"),
        ({"claim": {"budget": {"charged": -1e-9}}}, "charged is not a number from 0"),
    ],
)
def test_a_budget_that_cannot_be_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        faults(**changes)
