"""How much stands behind a PASS: levels follow from findings, header and keys, and from no word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reports.content.assurance import (
    LEVELS,
    Assurance,
    Facts,
    Trust,
    assurance,
    facts_from,
    facts_of,
    level_of,
)
from reports.content.build import build
from reports.content.parts import INTERNAL
from reports.source import Auditing, RunSource, load

COIN = {"nonce": "00" * 32, "run": "r", "challenger": "SHA256:theirs", "own": False}
OTHERS = Auditing("SHA256:theirs", "SHA256:ours", one_hand=False)


def source(run: Any, again: str = "PASS", coin: bool = True, verdict: str = "PASS") -> RunSource:
    """A run whose participations were computed again, or not, under a public coin, or not."""
    found = load(run)
    assert found.audit is not None
    check = {"name": "reexecution", "title": "Again?", "verdict": again, "severity": "theoretical"}
    checks = [one for one in found.audit["checks"] if one["name"] != "reexecution"]
    return replace(
        found,
        header={**found.header, **({"public_coin": COIN} if coin else {})},
        audit={**found.audit, "verdict": verdict, "checks": [*checks, check]},
    )


def level(found: RunSource, **keys: bool) -> int | None:
    return level_of(facts_of(found), **keys)


def test_each_level_needs_one_thing_more(make_run: Any) -> None:
    run = make_run()
    trusted = {"another_key": True, "key_is_trusted": True, "time_is_trusted": True}
    assert level(source(run, again="NOT VERIFIED"), **trusted) == 1
    assert level(source(run, coin=False), **trusted) == 2
    assert level(source(run), **{**trusted, "another_key": False}) == 2
    assert level(source(run), **{**trusted, "key_is_trusted": False}) == 3
    assert level(source(run), **{**trusted, "time_is_trusted": False}) == 3
    assert level(source(run), **trusted) == 4


@pytest.mark.parametrize("verdict", ["FAIL", "NOT VERIFIED", "NO CLAIM", "level 4"])
def test_what_did_not_pass_has_no_level(make_run: Any, verdict: str) -> None:
    assert level(source(make_run(), verdict=verdict), another_key=True) is None


def test_a_level_that_the_auditors_file_states_is_not_believed(make_run: Any) -> None:
    found = source(make_run(), again="NOT VERIFIED")
    claimed = replace(found, audit={**found.audit, "level": 4}, header={**found.header, "level": 4})
    assert level(claimed, another_key=True) == 1


def test_a_report_has_no_level_that_depends_on_its_reader(make_run: Any) -> None:
    run = make_run()
    mine = build(run, source=source(run))[Assurance]
    theirs = build(run, auditing=OTHERS, source=source(run))[Assurance]
    assert (mine.level, theirs.level) == (2, 3)
    assert (theirs.name, theirs.means) == (LEVELS[3].name, LEVELS[3].means)


@pytest.mark.parametrize(
    ("coin", "signer", "due"),
    [
        ({}, OTHERS, 3),
        ({"own": True}, OTHERS, 2),
        ({"challenger": "SHA256:third"}, OTHERS, 2),
        ({"challenger": "SHA256:old"}, replace(OTHERS, replaced=frozenset({"SHA256:old"})), 3),
    ],
    ids=["the auditor", "the trainer", "somebody else", "by a key replaced since"],
)
def test_a_report_calls_a_run_challenged_only_by_the_auditor_who_signs_it(
    make_run: Any, coin: dict[str, Any], signer: Auditing, due: int
) -> None:
    run = make_run()
    found = source(run)
    header = {**found.header, "public_coin": {**COIN, **coin}, "randomness": "release"}
    report = build(run, auditing=signer, source=replace(found, header=header))
    assert report[Assurance].level == due
    assert ("The key of the noise was drawn by chance" in report[Trust].word) == (due == 2)


def test_a_challenge_of_the_trainers_own_is_not_attested_as_an_auditors(make_run: Any) -> None:
    found = source(make_run())
    assert facts_of(found).public_coin
    header = {**found.header, "public_coin": {**COIN, "own": True}}
    assert not facts_of(replace(found, header=header)).public_coin


def test_what_is_attested_has_the_level_of_the_files(make_run: Any) -> None:
    run = make_run()
    for found in (source(run), source(run, again="NOT VERIFIED"), source(run, coin=False)):
        facts = facts_of(found)
        stated = {"verdict": "PASS", "reexecution": facts.attested()}
        assert facts_from(stated) == facts
    assert facts_from({"verdict": "PASS"}) is None
    told = {"agrees": 1, "participations": "20", "public_coin": "yes", "level": 4}
    assert facts_from({"verdict": "PASS", "reexecution": told}) == Facts("PASS", False, None, False)


@pytest.mark.parametrize(
    ("details", "known"),
    [
        ({"drawn": 20, "participations": 200}, 20),
        ({"drawn": 200, "participations": 200}, None),
        ({"drawn": 20}, None),
        ({}, None),
    ],
)
def test_how_many_were_drawn_is_not_told_where_it_is_how_many_took_part(
    make_run: Any, details: dict[str, int], known: int | None
) -> None:
    found = source(make_run())
    assert found.audit is not None
    for check in found.audit["checks"]:
        if check["name"] == "reexecution":
            check["details"] = details
    assert facts_of(found).participations == known


def test_a_recorded_loop_is_told_to_stay_at_its_level_and_to_commit_to_no_first_weights(
    make_run: Any,
) -> None:
    run = make_run()
    found = source(run, again="NOT VERIFIED", coin=False)
    own = build(run, source=found)[Assurance]
    assert (own.level, own.means) == (1, LEVELS[1].means)
    header = {**found.header, "producer": {"name": "opacus"}}
    loop = assurance(replace(found, header=header), INTERNAL)
    assert (loop.level, loop.next) == (1, "")
    assert "Nothing commits to its first weights" in loop.means
