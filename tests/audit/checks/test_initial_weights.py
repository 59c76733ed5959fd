"""The check "initial-weights": what the first round may send, and where it may come from."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.auditor import _run, audit_run
from audit.checks import initial_weights
from audit.checks.initial_weights import (
    _MOST_CLASSES,
    CODE,
    FALSE_ALARMS,
    GIVEN,
    INITIAL_WEIGHTS,
    LOCAL,
    NOT_NOTED,
    chance_of,
)
from audit.reading.bundle import open_bundle
from audit.recomputed import RecomputedStart
from audit.reexecution import Replay
from audit.untrusted.archives import read_tensors
from audit.verdict import Finding, Severity, Verdict
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, rewrite_ledger, rewrite_spec

ANOTHER = "ab" * 32


@pytest.fixture(scope="module", params=["record", "client"])
def _built_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "record":
        return build_run(folder / "run", Settings(rounds=2))
    return build_client_run(folder / "run", ClientSettings(rounds=2))


@pytest.fixture
def run(_built_runs: Path, tmp_path: Path) -> Path:
    """A correct run of two rounds."""
    return Path(shutil.copytree(_built_runs, tmp_path / "run"))


def found(run: Path, replay: Replay | None = None) -> Finding:
    bundle = open_bundle(run)
    bundle.replay = replay
    return _run(INITIAL_WEIGHTS, bundle)


def header(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    rewrite_ledger(run, lambda entries: change(entries[0]))


def respecified(run: Path, **model: str) -> None:
    """Another section ``model`` in the spec."""
    rewrite_spec(run, lambda spec: spec.update(model=model))


def test_what_the_header_commits_to_passes_and_says_that_it_was_not_made_again(run: Path) -> None:
    finding = found(run)
    assert (finding.verdict, finding.qualifications) == (Verdict.PASS, ())
    assert "said to come from the spec's public seed" in finding.measurement
    assert "was not checked: dpfedadamw audit --replay N rebuilds them" in finding.measurement


def test_another_first_broadcast_fails(run: Path) -> None:
    header(run, lambda entry: entry["initial"].update(broadcast_sha256=ANOTHER))
    finding = found(run)
    assert finding.verdict is Verdict.FAIL
    assert "did not send the weights that the header commits to" in finding.measurement


def test_a_run_from_before_is_judged_and_what_is_missing_is_said(run: Path) -> None:
    header(run, lambda entry: entry.pop("initial"))
    finding = found(run)
    assert (finding.verdict, finding.severity) == (Verdict.NOT_VERIFIED, Severity.CRITICAL)
    assert finding.qualifications == (NOT_NOTED,)


@pytest.mark.parametrize(
    ("origin", "model", "beside"),
    [
        ({"origin": "given"}, {"name": "module"}, (GIVEN,)),
        ({"origin": "code"}, {"name": "python"}, (CODE,)),
        ({"origin": "code"}, {"name": "of-a-plug-in"}, (CODE,)),
        ({"origin": "code"}, {"name": "of-a-plug-in", "weights": "pretrained"}, (CODE,)),
        ({"origin": "file", "file": "a local folder", "file_sha256": ANOTHER},
         {"name": "transformer", "weights": "pretrained"}, (LOCAL,)),
        ({"origin": "file", "file": "a local GGUF file, dequantised", "file_sha256": ANOTHER},
         {"name": "causal-lm", "weights": "pretrained"}, (LOCAL,)),
        ({"origin": "file", "file": "google/vit", "file_sha256": ANOTHER},
         {"name": "transformer", "weights": "pretrained"}, ()),
    ],
)  # fmt: skip
def test_weights_that_no_seed_answers_for_are_named_beside_the_verdict(
    origin: dict[str, str], model: dict[str, str], beside: tuple[str, ...], run: Path
) -> None:
    respecified(run, **model)
    header(run, lambda entry: entry["initial"].update(origin))
    findings = audit_run(run)
    finding = findings.named("initial-weights")
    assert (finding.verdict, finding.qualifications) == (Verdict.PASS, beside)
    assert set(beside) <= set(findings.qualifications)


@pytest.mark.parametrize(
    ("origin", "model"),
    [
        ("seed", {"name": "module"}),
        ("code", {"name": "module"}),
        ("seed", {"name": "python"}),
        ("file", {"name": "python"}),
        ("seed", {"name": "transformer", "weights": "pretrained"}),
        ("given", {"name": "transformer", "weights": "pretrained"}),
        ("file", {"name": "transformer", "weights": "random"}),
        # Neither would be held to the spec's seed, nor to what random weights can do.
        ("given", {"name": "mlp"}),
        ("file", {"name": "cnn"}),
        ("code", {"name": "mlp"}),
        ("code", {"name": "transformers", "weights": "pretrained"}),
    ],
)
def test_an_origin_that_the_model_cannot_have_fails(
    origin: str, model: dict[str, str], run: Path
) -> None:
    respecified(run, **model)
    named = {"file": "google/vit", "file_sha256": ANOTHER} if origin == "file" else {}
    header(run, lambda entry: entry["initial"].update(origin=origin, **named))
    finding = found(run)
    assert finding.verdict is Verdict.FAIL
    assert "but the spec's model starts from" in finding.measurement


# Made again by the engine.


def again(run: Path, **changes: Any) -> Replay:
    """A replay that makes the run's own start again, but for changes."""
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines()]
    start = RecomputedStart(
        broadcast_sha256=ledger[0]["initial"]["broadcast_sha256"],
        parameters=sent(run),
        tensors_sha256=ledger[0]["tensors_sha256"],
        file_sha256=None,
        differences=(),
    )
    return Replay(
        count=1,
        seed=bytes(32),
        drawn_by="a test",
        rounds=lambda drawn, last: iter(()),
        start=lambda: replace(start, **changes),
    )


def sent(run: Path) -> Any:
    """The weights of the first broadcast."""
    path = min((run / "evidence").glob("upload-00000*.npz"))
    with np.load(path) as file:
        message = file["broadcast"].tobytes()
    return read_tensors(message)["parameters"].astype(np.float32)


def test_weights_that_are_made_again_are_said_to_be(run: Path) -> None:
    finding = found(run, again(run))
    assert (finding.verdict, finding.details["made_again"]) == (Verdict.PASS, True)
    assert "rebuilt from there, they are the same bit for bit" in finding.measurement


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"broadcast_sha256": ANOTHER}, "on the same processor with the same versions"),
        ({"tensors_sha256": ANOTHER}, "in the numbers of one that is not trained"),
        ({"file_sha256": ANOTHER}, "not those of the digest that the header names"),
    ],
)
def test_what_is_made_again_otherwise_fails(changes: dict[str, Any], says: str, run: Path) -> None:
    finding = found(run, again(run, **changes))
    assert finding.verdict is Verdict.FAIL
    assert says in finding.measurement


@pytest.mark.parametrize(("off", "verdict"), [(0.0, Verdict.NOT_VERIFIED), (1.0, Verdict.FAIL)])
def test_on_another_machine_only_weights_that_are_far_off_fail(
    off: float, verdict: Verdict, run: Path
) -> None:
    other = {"broadcast_sha256": ANOTHER, "differences": ("another processor",)}
    finding = found(run, again(run, parameters=sent(run) + np.float32(off), **other))
    assert finding.verdict is verdict
    said = "on this machine that proves nothing (another processor)" if not off else "any machine's"
    assert said in finding.measurement


OWN = np.array([3.0, -4.0, 12.0], np.float32)


@pytest.mark.parametrize(
    ("values", "places", "verdict"),
    [
        (OWN, None, Verdict.NOT_VERIFIED),
        # The machine's own are 13 long; a thousandth of that is any machine's rounding.
        (OWN + np.array([0.0128, 0, 0]), None, Verdict.NOT_VERIFIED),
        (OWN + np.array([0.0132, 0, 0]), None, Verdict.FAIL),
        (OWN - np.array([0, 0, 0.0132]), None, Verdict.FAIL),
        (-OWN, None, Verdict.FAIL),
        (OWN[:2], None, Verdict.FAIL),
        # Of some coordinates alone, of which the own are 5 long.
        ([-4.0, 3.0], [1, 0], Verdict.NOT_VERIFIED),
        ([-4.0, 3.0048], [1, 0], Verdict.NOT_VERIFIED),
        ([-4.0, 3.0052], [1, 0], Verdict.FAIL),
        ([-4.0, 12.0], [1, 0], Verdict.FAIL),
    ],
)
def test_on_another_machine_weights_may_be_off_by_a_thousandth_of_their_length(
    values: Any, places: Any, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build_run(tmp_path / "run", Settings(rounds=2))
    recorded = (np.asarray(values, float), places)
    monkeypatch.setattr(initial_weights, "_recorded", lambda *_: recorded)
    other = {"broadcast_sha256": ANOTHER, "differences": ("another processor",)}
    assert found(run, again(run, parameters=OWN, **other)).verdict is verdict


def test_on_another_machine_another_frozen_tensor_is_no_proof(run: Path) -> None:
    replay = again(run, tensors_sha256=ANOTHER, differences=("another processor",))
    finding = found(run, replay)
    assert (finding.verdict, finding.details["made_again"]) == (Verdict.NOT_VERIFIED, False)
    assert "one that is not trained; on this machine" in finding.measurement


# By the test accuracy before the first round.


def measured(run: Path, accuracy: object, classes: object) -> Finding:
    last = {"round": 2, "test_accuracy": 0.9, "test_classes": classes}
    lines = [{"round": 0, "test_accuracy": accuracy}, last]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return found(run)


TEN = [[36, 30]] * 10


@pytest.mark.parametrize(
    ("accuracy", "classes", "verdict"),
    [
        (0.95, TEN, Verdict.FAIL),
        (0.88, TEN, Verdict.FAIL),
        (0.86, TEN, Verdict.PASS),
        (0.2, TEN, Verdict.PASS),
        # One class has nearly all records.
        (0.95, [[342, 340], *[[2, 0]] * 9], Verdict.PASS),
        # Of two classes random weights may tell each: half of all do, where they lie apart.
        (1.0, [[100, 100]] * 2, Verdict.PASS),
        (1.0, [[1, 1]] * _MOST_CLASSES, Verdict.FAIL),
        (1.0, [[1, 1]] * (_MOST_CLASSES + 1), Verdict.PASS),
        (None, TEN, Verdict.PASS),
        (0.95, "none", Verdict.PASS),
        (0.95, [[0, 0]] * 10, Verdict.PASS),
        (0.95, [], Verdict.PASS),
    ],
)
def test_an_accuracy_that_random_weights_do_not_have_fails(
    accuracy: object, classes: object, verdict: Verdict, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", Settings(rounds=2))
    finding = measured(run, accuracy, classes)
    assert finding.verdict is verdict
    if verdict is Verdict.FAIL:
        assert "of the test records were classified correctly: random" in finding.measurement
        respecified(run, name="of-a-plug-in")
        header(run, lambda entry: entry["initial"].update(origin="code"))
        assert found(run).verdict is Verdict.PASS, "weights of code may be trained"


@pytest.mark.parametrize("many", [3, 5, 6])
def test_the_chance_bounds_that_of_every_permutation(many: int) -> None:
    """Against all k! permutations of the outputs, whatever the outputs win of the classes."""
    rng = np.random.default_rng(many)
    for apart in (0.0, 0.5, 0.9, 1.0):
        records = rng.integers(5, 40, many)
        won = apart * np.eye(many) + (1.0 - apart) * rng.dirichlet(np.ones(many), many)
        shares = records / records.sum()
        every = np.array(
            [
                (shares * won[np.arange(many), list(order)]).sum()
                for order in itertools.permutations(range(many))
            ]
        )
        for accuracy in np.unique(every):
            exact = float(np.mean(every >= accuracy - 1e-12))
            assert exact <= chance_of(float(accuracy), records.tolist()) * (1.0 + 1e-9)


def test_the_chance_of_naming_every_class_is_that_of_one_permutation() -> None:
    """The bound is no looser than it must be: 1 in 10! where all is right."""
    assert chance_of(1.0, [7] * 10) == pytest.approx(1.0 / 3628800, rel=1e-3)
    assert chance_of(0.1, [7] * 10) == 1.0
    assert chance_of(0.88, [7] * 10) < FALSE_ALARMS < chance_of(0.86, [7] * 10)
