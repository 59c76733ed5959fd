"""The check "randomness": which noise is looked at, and what is said of keys, seeds and coins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import randomness
from audit.checks.randomness import REPRODUCIBLE, SEEDED, drawn_again, obvious_commitments
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import PublicCoin, Resume
from tests.audit.checks.opened import changed, judged, says

NAME = "randomness"
ANNOUNCED = "; spec, data and keys were announced before an auditor's nonce"
COMMITTED = "release mode: the key is committed to and no seed is stored in spec or ledger"


def looked_at(
    rounds: list[int], monkeypatch: pytest.MonkeyPatch, *, whole: bool = False, sampled: int = 3
) -> tuple[list[int], tuple[int, ...]]:
    """Which rows a generator is looked for in, and from which coordinates on."""
    asked: list[tuple[list[int], tuple[int, ...]]] = []
    rows = np.repeat(np.arange(len(rounds))[:, None], sampled, axis=1)
    releases = SimpleNamespace(sample_rows=lambda: rows, round=np.array(rounds))

    def find_seed(found: Any, coordinates: Any, starts: tuple[int, ...]) -> str:
        assert coordinates == "the sampled ones"
        asked.append(([int(row[0]) for row in found], tuple(starts)))
        return "a generator"

    monkeypatch.setattr(randomness, "of_queries", lambda *_: None if whole else releases)
    monkeypatch.setattr(randomness, "of_rounds", lambda *_: (releases, None) if whole else None)
    monkeypatch.setattr(randomness, "find_seed", find_seed)
    layout = SimpleNamespace(
        tensors=(("a", 5), ("b", 7), ("c", 90), ("d", 11)), sample_coordinates="the sampled ones"
    )
    unit = SimpleNamespace(whole_clients=whole)
    bundle: Any = SimpleNamespace(layout=lambda: layout, header=SimpleNamespace(unit=unit))
    if not sampled:
        with pytest.raises(UnverifiedError, match="recorded at no coordinate"):
            drawn_again(bundle)
        assert asked == []
        return [], ()
    found = drawn_again(bundle)
    assert found == "a generator"
    return asked[0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("rounds", "rows"),
    [
        # The first two of all, the first of another round, and the last.
        ([4, 4, 4, 5, 5, 6, 6], [0, 1, 3, 6]),
        ([0, 1, 1, 2], [0, 1, 3]),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 0], [0, 1]),
        ([7], [0]),
        ([0, 1], [0, 1]),
    ],
)
def test_a_generator_is_looked_for_at_the_start_at_the_end_and_in_another_round(
    rounds: list[int], rows: list[int], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looked_at(rounds, monkeypatch, whole=whole) == (rows, (0, 12))


def test_where_nothing_is_sampled_or_charged_no_generator_is_looked_for(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at([0, 1], monkeypatch, sampled=0)
    monkeypatch.undo()
    assert drawn_again(of_records) is None
    monkeypatch.setattr(randomness, "of_queries", lambda *_: None)
    assert drawn_again(of_records) is None


@pytest.fixture(params=["of_records", "of_clients"])
def run(request: pytest.FixtureRequest) -> Bundle:
    """A correct run of either unit."""
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


def test_noise_that_anybody_can_draw_fails_and_what_cannot_be_read_is_not_verified(
    run: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomness, "drawn_again", lambda _: "torch.manual_seed(0)")
    # Which seed it is would tell the noise.
    assert says(run, NAME) == ("FAIL", SEEDED)
    # Without noise there is none to draw.
    assert says(changed(run, header={"noise_multiplier": None}), NAME) == ("PASS", COMMITTED)
    for error in (UnverifiedError("x: y"), UntrustedFileError("x", "y")):

        def unreadable(_: Bundle, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(randomness, "drawn_again", unreadable)
        assert says(run, NAME) == (
            "NOT VERIFIED",
            "could not test whether the noise is that of a usual seed: x: y",
        )


def test_a_run_in_release_mode_says_so_with_its_commitment(run: Bundle) -> None:
    found = judged(run, NAME)
    assert (found.verdict.value, found.measurement) == ("PASS", COMMITTED)
    assert found.qualifications == ()
    assert found.details == {"mode": "release", "commitment": run.header.commitment}
    assert run.header.commitment is not None


@pytest.mark.parametrize(
    ("spec", "ledger"), [("release", "reproducible"), ("reproducible", "release")]
)
def test_modes_that_disagree_fail_and_are_held_to_both(run: Bundle, spec: str, ledger: str) -> None:
    other = changed(
        run,
        spec=lambda s: s["randomness"].update(mode=spec),
        header={"randomness": ledger, "commitment": None},
    )
    found = judged(other, NAME)
    assert found.verdict.value == "FAIL"
    assert found.measurement.startswith(
        f"the spec says {spec}, the ledger {ledger}; "
        "release mode without a commitment to the key in the ledger's header"
    )
    assert found.qualifications == (REPRODUCIBLE,)
    assert found.details["mode"] == ledger


@pytest.mark.parametrize(("spec", "ledger"), [(7, None), (None, 7), (7, 7), (0, None), (None, 0)])
def test_no_seed_is_stored_in_release_mode(
    run: Bundle, spec: int | None, ledger: int | None
) -> None:
    other = changed(run, spec=lambda s: s["randomness"].update(seed=spec), header={"seed": ledger})
    assert says(other, NAME) == ("FAIL", "release mode, but a seed is stored")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_key_that_anybody_would_try_first_is_found_wherever_it_was_used(
    run: Bundle, resumed: bool
) -> None:
    known = sorted(obvious_commitments())[0]
    resumes = (Resume(50, 1, known),) if resumed else ()
    header = {} if resumed else {"commitment": known}
    assert says(changed(run, header=header, ledger={"resumes": resumes}), NAME) == (
        "FAIL",
        "release mode, but the key is a fixed one that anyone would try first",
    )


def test_every_commitment_of_a_run_that_goes_on_is_looked_at(run: Bundle) -> None:
    resumes = (Resume(50, 1, "cd" * 32), Resume(51, 2, None))
    text = says(changed(run, ledger={"resumes": resumes}), NAME)[1]
    assert text == "release mode, but the run continued without a commitment to its new key"
    capital = (Resume(50, 1, "CD" * 32),)
    assert says(changed(run, ledger={"resumes": capital}), NAME)[1] == text


# Runs that an auditor challenged.


def challenged(bundle: Bundle, resumed: tuple[str, ...] = (), **intents: int) -> Bundle:
    coin = PublicCoin("a run", "0" * 64, "1" * 64, bytes(32), "2" * 64, intents)
    return changed(
        bundle,
        header={"public_coin": coin},
        ledger={"resumes": tuple(Resume(50 + at, 1, one) for at, one in enumerate(resumed))},
    )


def test_a_challenged_run_tells_how_many_came_to_nothing(
    run: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomness, "coin_faults", lambda *_: None)
    found = judged(challenged(run, of_trainer=5, dropped_of_trainer=2, seen=9), NAME)
    assert (found.verdict.value, found.measurement) == ("PASS", COMMITTED + ANNOUNCED)
    assert found.details["intents"] == {"of_trainer": 5, "dropped_of_trainer": 2, "seen": 9}
    assert found.qualifications == (randomness.intents_in_words(5, 2),)
    assert found.qualifications[0].startswith("the trainer had announced 5 runs to the auditor")
    every_one = judged(challenged(run, of_trainer=5, dropped_of_trainer=0), NAME)
    assert (every_one.verdict.value, every_one.qualifications) == ("PASS", ())
    # Of a run that is reproducible both are told.
    seeded = replace(
        challenged(run, of_trainer=5, dropped_of_trainer=2),
        spec={**run.readable_spec, "randomness": {"mode": "reproducible", "seed": 7}},
    )
    seeded = changed(seeded, header={"randomness": "reproducible", "seed": 7})
    both = judged(seeded, NAME)
    assert both.verdict.value == "PASS"
    assert both.measurement == REPRODUCIBLE
    assert both.qualifications == (REPRODUCIBLE, randomness.intents_in_words(5, 2))


def test_a_challenged_run_goes_on_with_the_key_that_it_announced(
    run: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomness, "coin_faults", lambda *_: None)
    own = run.header.commitment or ""
    told = {"of_trainer": 1, "dropped_of_trainer": 0}
    assert says(challenged(run, (own, own), **told), NAME)[0] == "PASS"
    assert says(challenged(run, (own, "cd" * 32), **told), NAME) == (
        "FAIL",
        "the run continued with a key that its intent did not commit to",
    )


def test_faults_of_intent_and_challenge_are_told(
    run: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faults(bundle: Bundle, reasons: list[str], unreadable: list[str]) -> None:
        assert bundle is run
        reasons.append("another nonce")

    monkeypatch.setattr(randomness, "coin_faults", faults)
    assert says(run, NAME) == ("FAIL", "another nonce")
