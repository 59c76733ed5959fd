"""Who lies in everything that is written passes the audit of it, and fails once it is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.checks.reexecution import WORD
from dpfedadamw.filing import after_training as filing
from tests.faults.forgeries import FORGERIES, Forgery, check_of, replayed, run_of

# These two in every run of the suite; the others by hand and under tox -e slow.
ALWAYS = ("one-claimed-as-one-and-a-half", "no-noise-of-another-machine")


def marked(forgery: Forgery) -> object:
    marks = () if forgery.name in ALWAYS else (pytest.mark.slow,)
    return pytest.param(forgery, id=forgery.name, marks=marks)


def test_there_are_the_two_of_old_and_more_than_ten_others() -> None:
    assert len({forgery.name for forgery in FORGERIES}) == len(FORGERIES) >= 12


@pytest.mark.parametrize("forgery", [marked(forgery) for forgery in FORGERIES])
def test_a_forgery_fails_once_it_is_computed_again(forgery: Forgery, tmp_path: Path) -> None:
    run = run_of(forgery, tmp_path)
    alone = filing.audit(run).to_json()
    assert check_of(alone)["verdict"] == "NOT VERIFIED"
    assert WORD in alone["qualifications"]
    found = replayed(run)
    judged = check_of(found)
    assert (judged["verdict"], found["verdict"]) == ("FAIL", "FAIL")
    assert forgery.says in judged["measurement"]
