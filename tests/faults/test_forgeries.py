"""Who lies in everything that is written passes the audit of it, and fails once it is replayed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from audit.checks.reexecution import WORD
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy import oracle as oracle_module
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from tests.faults.fault import LARGE
from tests.faults.forgeries import (
    FORGERIES,
    Findings,
    Forgery,
    check_of,
    replayed,
    run_of,
    unpatched,
)
from tests.runs import attest, begin, key_of_a_test, small_spec

# The first in every run of the suite, the second for mutants, the others under tox -e slow.
MARKS = {
    "one-claimed-as-one-and-a-half": (),
    "no-noise-of-another-machine": (pytest.mark.thorough,),
}


def marked(forgery: Forgery) -> object:
    marks = MARKS.get(forgery.name, (pytest.mark.slow,))
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


def elsewhere(model: str, folder: Path) -> tuple[Findings, Findings]:
    """Findings on an honest run and a forged one that another machine is said to have trained.

    The loop trained, and the environment that is noted names book-keeping of another processor, so
    that the rounds are run again with other rounding.
    """
    found = []
    for number, patch in enumerate((unpatched, a_fifth_more)):
        own = folder / str(number)
        own.mkdir()
        key = key_of_a_test()
        ReleaseRandomness(key).write_escrow(own / "escrow")
        spec = small_spec("dp-fedavg", 2, 3, mode="release", overrides=(model,))
        with pytest.MonkeyPatch.context() as context:
            context.setattr(
                engine_setup, "ReleaseRandomness", lambda key=key: ReleaseRandomness(key)
            )
            patch(context)
            training = begin(spec, own, "loop")
            engine_run.train(training)
        path = training.run.evidence / "environment-00000.json"
        noted = json.loads(path.read_bytes())
        path.write_text(json.dumps({**noted, "engine": "book-keeping", "processor": "another"}))
        attest(training)
        found.append(replayed(training.run))
    return found[0], found[1]


def a_fifth_more(patch: pytest.MonkeyPatch) -> None:
    """In each sum one record counts for 1.2 C, which moves a round by less than a hundredth."""
    honest = oracle_module.clipped_sum

    def lying(engine, flat, point, batch, most):
        told = honest(engine, flat, point, batch, most)
        if not len(batch[1]):
            return told
        first = honest(engine, flat, point, (batch[0][:1], batch[1][:1]), most)
        return dataclasses.replace(told, total=told.total + 0.2 * first.total)

    patch.setattr(oracle_module, "clipped_sum", lying)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "model={name: mlp, hidden: []}",
        pytest.param(LARGE, marks=pytest.mark.slow),
    ],
    ids=["650", "19210"],
)
def test_on_another_machine_a_fifth_of_a_record_is_seen_and_an_honest_run_has_level_2(
    model: str, tmp_path: Path
) -> None:
    honest, forged = elsewhere(model, tmp_path)
    found = check_of(honest)
    assert (found["verdict"], honest["verdict"]) == ("PASS", "PASS"), found["measurement"]
    assert found["details"]["on_another_machine"] == 6
    assert 0.0 < found["details"]["smallest_visible"] < 0.01
    assert check_of(forged)["verdict"] in ("NOT VERIFIED", "FAIL")
    assert forged["verdict"] in ("NOT VERIFIED", "FAIL")
    assert "from this machine's result for its records" in check_of(forged)["measurement"]
