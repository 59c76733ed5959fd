"""What a check's failure means stands beside the check; reports read a copy that is kept equal."""

from __future__ import annotations

import json

import pytest

from reports.content import wording
from tests.reports.check_meanings import PATH, text


def test_the_copy_is_what_the_checks_say():
    assert PATH.read_text("utf-8") == text(), "run: python -m tests.reports.check_meanings"


@pytest.mark.parametrize("unit", json.loads(text()))
def test_each_meaning_is_a_sentence_of_its_own(unit):
    meanings = wording.check_meanings(unit)
    assert len(set(meanings.values())) == len(meanings) > 10
    assert all(meaning.endswith(".") and meaning[0].isupper() for meaning in meanings.values())
