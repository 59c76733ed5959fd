"""The fixed texts of the checks: which of them a unit of protection has of its own."""

from __future__ import annotations

import pytest

from audit.checks import checks_of
from audit.reading.units import CLIENT, NONE, RECORD

TEXTS = ("title", "claim", "tolerance", "power", "limits")
# Where whole clients are protected, these texts say something else than where records are.
OWN = {
    "integrity": "claim",
    "promise": "claim limits",
    "sensitivity": "title claim tolerance power limits",
    "participation": "title claim tolerance power limits",
    "noise-scale": "claim limits",
    "uploads": "title claim tolerance power limits",
    "accounting": "claim power limits",
    "views": "claim tolerance power limits",
}


# Asked of single records alone.
ALONE = {"columns"}


@pytest.mark.parametrize("name", sorted({check.name for check in checks_of(RECORD)} - ALONE))
def test_each_unit_has_the_texts_of_its_own_law(name: str) -> None:
    records = {check.name: check for check in checks_of(RECORD)}
    clients = {check.name: check for check in checks_of(CLIENT)}
    own = [text for text in TEXTS if getattr(records[name], text) != getattr(clients[name], text)]
    assert " ".join(own) == OWN.get(name, "")
    assert records[name].severity is clients[name].severity


def test_every_text_is_a_sentence_or_two_and_said_once() -> None:
    for unit in (RECORD, CLIENT):
        for check in checks_of(unit):
            assert check.title.endswith("?"), check.name
            for text in TEXTS:
                assert len(getattr(check, text)) > 20 or getattr(check, text) == "none", check.name


def test_checks_are_asked_in_one_order_whatever_is_protected() -> None:
    assert [check.name for check in checks_of(NONE)] == [check.name for check in checks_of(RECORD)]
    for unit in (RECORD, CLIENT):
        places = [check.place for check in checks_of(unit)]
        assert places == sorted(set(places))
