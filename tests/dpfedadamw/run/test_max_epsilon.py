"""Whole runs under a limit on ε: they end in time, say why, and pass their audit.

The limit is `federation.max_epsilon`, or the target of a run that was cut off.
"""

from __future__ import annotations

import functools
import json
import shutil

import pytest

from audit.verdict import Verdict
from dpfedadamw import spec as specs
from dpfedadamw.cli import display
from dpfedadamw.errors import PrivacyError, SpecError
from dpfedadamw.experiment import RunError
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import training as training_of_run
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_run import rewrite_ledger
from tests.dpfedadamw.run.test_adaptive_runs import cut_off_and_resumed
from tests.runs import attest, begin, failing, small_spec, train

ENDS = {
    "fixed": ("dp-fedavg", ("federation.max_epsilon=1.5",)),
    "some": ("dp-fedavg", ("federation.max_epsilon=1.5", "federation.clients_per_round=2")),
    "poisson": (
        "dp-fedavg",
        ("federation.max_epsilon=1.5", "federation.client_sampling=poisson"),
    ),
    "iterations": ("ali-dpfl", ("federation.max_epsilon=1.5",)),
    "decay": (
        "adap-dpfl",
        ("federation.max_epsilon=1.5", "algorithm.noise_decay.patience=1"),
    ),
    "client": ("fed-smp", ("federation.max_epsilon=2.5",)),
}


def spec_of(case, **more):
    algorithm, overrides = ENDS[case]
    return small_spec(algorithm, rounds=12, overrides=overrides, **more)


def headline(claim):
    view = claim["server"] if claim["view_headline"] == "server" else claim["third_party"]
    return view["epsilon"]["pld"]


def audited(training):
    attest(training)
    return filing.audit(training.run).to_json()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The signed training of a case that its limit ended, and its outcome; trained once."""

    @functools.cache
    def ended_one(case):
        training, outcome = train(spec_of(case), tmp_path_factory.mktemp(case))
        attest(training)
        return training, outcome

    return ended_one


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", ENDS)
def test_a_run_ends_before_its_limit_says_so_and_passes(case, ended):
    training, outcome = ended(case)
    limit = training.experiment.plan.max_epsilon
    assert 1 <= training.completed < 12
    assert outcome.claim["stopped"] == {"rounds": training.completed, "max_epsilon": limit}
    assert headline(outcome.claim) <= limit
    assert outcome.claim["third_party"]["epsilon"]["pld"] <= limit
    # The last round that there is was tested like any last round.
    last = json.loads(training.run.metrics.read_text().splitlines()[-1])
    assert last["round"] == training.completed
    assert last["test_classes"]
    findings = filing.audit(training.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path):
    spec = small_spec(rounds=2, overrides=("federation.max_epsilon=50",))
    training, outcome = train(spec, tmp_path)
    assert training.completed == 2
    assert "stopped" not in outcome.claim
    findings = audited(training)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["fixed", "poisson", "client"])
def test_a_repeated_round_is_paid_out_of_the_same_limit(case, ended, tmp_path, monkeypatch):
    whole, _ = ended(case)
    resumed, outcome = cut_off_and_resumed(spec_of(case), tmp_path, monkeypatch, 6)
    assert resumed.completed < whole.completed
    assert headline(outcome.claim) <= resumed.experiment.plan.max_epsilon
    findings = audited(resumed)
    assert findings["verdict"] == "PASS", failing(findings)


TARGETS = {
    "every client": ("dp-fedavg", ("federation.clients_per_round=5",)),
    "some": ("dp-fedavg", ("federation.clients_per_round=2",)),
    "poisson": ("dp-fedavg", ("federation.client_sampling=poisson",)),
    "decay": ("adap-dpfl", ("federation.clients_per_round=5",)),
    "iterations": ("ali-dpfl", ()),
    "client": ("fed-smp", ()),
}


def with_target(case, **more):
    algorithm, overrides = TARGETS[case]
    # Local iterations have theirs, which limits their steps.
    target = () if case == "iterations" else ("privacy.target_epsilon=2",)
    return small_spec(algorithm, overrides=(*overrides, *target), **more)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The training of a case with a target that nothing cut off; trained once."""

    @functools.cache
    def uncut_one(case):
        training = begin(with_target(case), tmp_path_factory.mktemp(case))
        with training.lock:
            training_of_run.train(training)
        return training

    return uncut_one


# Two of 24 in every test run: other places of other kinds.
@pytest.mark.sampled(17)
@pytest.mark.parametrize("place", ["first client", "second round", "last round", "last client"])
@pytest.mark.parametrize("case", sorted(TARGETS))
def test_a_run_with_a_target_that_is_cut_off_keeps_to_it_and_passes(
    case, place, uncut, tmp_path, monkeypatch
):
    """Also where it is cut off in its last round, before which no end was in sight."""
    spec = with_target(case)
    each = {"every client": 5, "decay": 5, "some": 2}.get(case, 4)
    whole = uncut(case)
    planned = whole.experiment.plan.target_epsilon
    places = {"second round": each + 1, "last round": 3 * each + 1, "last client": 4 * each}
    after = places.get(place, 1)
    if case == "poisson":
        # How many take part in a round is drawn.
        after = min(after, 6)
    resumed, outcome = cut_off_and_resumed(spec, tmp_path, monkeypatch, after)
    assert headline(outcome.claim) <= planned
    findings = audited(resumed)
    assert findings["verdict"] == "PASS", failing(findings)
    if case in ("every client", "decay", "poisson", "client"):
        assert resumed.completed == whole.completed - 1
        assert outcome.claim["stopped"] == {"rounds": resumed.completed, "target_epsilon": 2.0}
        shown = dict(display._early_end(outcome.claim))["ended early"]
        assert shown == (
            "after 3 rounds: a further one could exceed target_epsilon 2, as the run was cut off "
            "and a round charged again"
        )
    else:
        assert "stopped" not in outcome.claim


@pytest.mark.parametrize("case", ["every client", "client"])
def test_a_run_that_is_cut_off_keeps_to_a_target_below_its_limit(case, tmp_path, monkeypatch):
    """It went on to its limit, and its audit failed: the target is a promise of the spec."""
    spec = specs.loads(specs.dump(with_target(case)), overrides=("federation.max_epsilon=4",))
    resumed, outcome = cut_off_and_resumed(spec, tmp_path, monkeypatch, 6)
    assert headline(outcome.claim) <= 2.0
    assert outcome.claim["stopped"] == {"rounds": 3, "target_epsilon": 2.0}
    findings = audited(resumed)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", ["every client", "poisson", "client"])
def test_a_run_that_is_cut_off_fits_a_budget_of_just_its_target(case, tmp_path, monkeypatch):
    spec = with_target(case)
    delta = spec.privacy.delta
    budget = (f"budget.file={tmp_path / 'spent.db'}", "budget.epsilon=2", f"budget.delta={delta}")
    spec = specs.loads(specs.dump(spec), overrides=budget)
    resumed, outcome = cut_off_and_resumed(spec, tmp_path, monkeypatch, 6)
    assert outcome.claim["stopped"] == {"rounds": 3, "target_epsilon": 2.0}
    assert headline(outcome.claim) <= outcome.claim["budget"]["charged"] + 1e-9 <= 2.0 + 1e-9
    findings = audited(resumed)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.parametrize("limit", ["privacy.target_epsilon=2", "federation.max_epsilon=2"])
def test_a_run_that_is_cut_off_in_the_only_round_that_fits_is_not_taken_up_again(
    limit, tmp_path, monkeypatch
):
    overrides = ("privacy.target_epsilon=2", limit, "federation.clients_per_round=5")
    spec = small_spec("dp-fedavg", rounds=1, overrides=overrides)
    with pytest.raises(RunError, match="cut off in its first round; with that round charged twice"):
        cut_off_and_resumed(spec, tmp_path, monkeypatch, 1)
    (ledger,) = tmp_path.glob("small-*/ledger.jsonl")
    assert "resume" not in ledger.read_text()


def test_the_expected_claim_is_that_of_the_rounds_that_fit(tmp_path):
    training, outcome = train(spec_of("fixed", clients_per_round=5), tmp_path)
    expected = training.experiment.plan.expected_claim()
    assert headline(expected) == headline(outcome.claim)


@pytest.mark.parametrize("case", ["fixed", "client"])
def test_a_limit_that_no_round_keeps_to_is_refused_before_anything_is_written(case, tmp_path):
    algorithm, _ = ENDS[case]
    spec = small_spec(algorithm, overrides=("federation.max_epsilon=0.01",))
    with pytest.raises(PrivacyError, match="max_epsilon: a single round already costs more"):
        begin(spec, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_limit_without_privacy_is_refused():
    with pytest.raises(SpecError, match="there is no epsilon to limit"):
        specs.loads(specs.dump(small_spec("fedavg")), overrides=("federation.max_epsilon=2",))


@pytest.fixture(scope="module", params=["fixed", "poisson", "client"])
def limited(request, ended):
    """The path of a run that its limit ended, and the limit."""
    training, _ = ended(request.param)
    return training.run.path, training.experiment.plan.max_epsilon


def _earlier(entries):
    """As if the run had ended a round before it did, charges and all."""
    last = max(entry["round"] for entry in entries if entry["kind"] == "round")
    entries[:] = [entry for entry in entries if entry.get("round") != last]
    entries[-1]["stopped"]["rounds"] = last


def _another_limit(entries):
    entries[-1]["stopped"]["max_epsilon"] = 2.25


def _no_limit(entries):
    del entries[0]["max_epsilon"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (_earlier, "although a further one would have kept to max_epsilon"),
        (_another_limit, "another limit on epsilon"),
        (_no_limit, "max_epsilon: the spec says {limit}"),
    ],
)
def test_an_end_that_the_limit_does_not_explain_fails(limited, lie, words, tmp_path):
    run, limit = limited
    shutil.copytree(run, tmp_path / "run")
    rewrite_ledger(tmp_path / "run", lie)
    found = finding_of(tmp_path / "run", "promise")
    assert found.verdict is Verdict.FAIL
    assert words.format(limit=limit) in found.measurement
