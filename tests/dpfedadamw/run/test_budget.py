"""Whole runs on one budget: reserved before they begin, settled when they end, and audited."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from audit.verdict import Verdict
from dpfedadamw import spec as specs
from dpfedadamw.budget import reservations
from dpfedadamw.budget.charges import epsilon_of, reserved
from dpfedadamw.budget.database import BudgetError
from dpfedadamw.errors import SpecError
from dpfedadamw.experiment import RunError
from dpfedadamw.federation import rounds
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import budget as budget_of_run
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import RunDirectory, open_existing
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_run import rewrite_ledger
from tests.runs import attest, begin, call, failing, small_spec, train


def spec_of(folder, epsilon=4.0, algorithm="dp-fedavg", overrides=(), **more):
    budget = f"budget={{file: {folder / 'budget.sqlite'}, epsilon: {epsilon}, delta: 1.0e-5}}"
    return small_spec(algorithm, overrides=(budget, *overrides), **more)


def standing(folder):
    (found,) = reservations.standings(folder / "budget.sqlite")
    return found


def audited(training):
    filing.attest_training(training.run, filing.load_signers(None, None))
    return filing.audit(training.run).to_json()


def test_a_run_is_settled_says_so_and_passes_and_its_report_tells_what_is_left(tmp_path):
    training, outcome = train(spec_of(tmp_path, rounds=2), tmp_path / "runs")
    header = training.ledger.entries[0]
    assert header["budget"].keys() == {"epsilon", "delta", "reservation"}
    found = standing(tmp_path)
    # One run alone: the budget holds what its claim says of the worst client, or a little more.
    assert found.spent == found.epsilon == outcome.claim["budget"]["charged"]
    assert outcome.claim["server"]["epsilon"]["pld"] <= found.spent <= 4.0
    findings = audited(training)
    assert findings["verdict"] == "PASS", failing(findings)
    filing.file_report(training.run, filing.audit(training.run), _auditor())
    internal = json.loads((training.run.path / "report.json").read_text())
    assert "was left." in internal["mechanism"]["statement"]
    assert call("report", str(training.run.path), "--audience", "public") == 0
    public = json.loads((training.run.path / "report-public.json").read_text())
    assert "kept to a budget of ε = 4" in public["mechanism"]["statement"]
    assert "was left" not in public["mechanism"]["statement"]


def _auditor():
    return filing.load_signers(None, None).auditor


def test_a_run_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path):
    engine_run.train(begin(spec_of(tmp_path, epsilon=1.9), tmp_path / "runs"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BudgetError, match=r"is left, and \d+ rounds? would fit instead of 4"):
        begin(spec_of(tmp_path, epsilon=1.9), tmp_path / "runs")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_start_that_fails_gives_back_what_it_reserved(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_setup, "begin", full)
    with pytest.raises(OSError, match="No space"):
        begin(spec_of(tmp_path), tmp_path / "runs")
    assert standing(tmp_path).epsilon == 0.0


def stopped_after(spec, parent, monkeypatch, after):
    training = begin(spec, parent)
    answer, answered = rounds.Worker.take_part, 0

    def failing_once(self, *arguments):
        nonlocal answered
        answered += 1
        if answered == after:
            raise KeyboardInterrupt
        return answer(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(rounds.Worker, "take_part", failing_once)
        with pytest.raises(KeyboardInterrupt):
            engine_run.train(training)
    return training


def test_a_run_that_is_cut_off_goes_on_within_the_budget(tmp_path, monkeypatch):
    spec = spec_of(tmp_path, rounds=3, clients_per_round=5)
    cut = stopped_after(spec, tmp_path / "runs", monkeypatch, 8)
    most = epsilon_of([reserved(cut.experiment.plan)], 1e-5)
    assert standing(tmp_path).epsilon == most
    resumed = engine_setup.resume(open_existing(cut.run.path), torch.device("cpu"))
    # The second round was charged and is charged again.
    assert standing(tmp_path).epsilon > most
    outcome = engine_run.train(resumed)
    assert outcome.claim["budget"]["charged"] == standing(tmp_path).spent <= 4.0
    attest(resumed)
    findings = filing.audit(resumed.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)


def test_a_cut_off_run_that_was_settled_meanwhile_asks_again_and_may_be_refused(
    tmp_path, monkeypatch
):
    spec = spec_of(tmp_path, epsilon=2.2)
    cut = stopped_after(spec, tmp_path / "runs", monkeypatch, 3)
    small = spec_of(tmp_path, epsilon=2.2, rounds=2)
    engine_run.train(begin(small, tmp_path / "runs"))
    assert [str(condition) for _, condition in standing(tmp_path).reservations] == ["settled"] * 2
    engine_run.train(begin(small, tmp_path / "runs"))
    lines = cut.run.ledger.read_bytes()
    with pytest.raises(BudgetError, match="is left"):
        engine_setup.resume(open_existing(cut.run.path), torch.device("cpu"))
    assert cut.run.ledger.read_bytes() == lines
    assert standing(tmp_path).epsilon <= 2.2


def test_clients_are_protected_together_only_where_they_hold_the_same_records(tmp_path):
    def spec(*overrides):
        return spec_of(tmp_path, 8.0, "fed-smp", overrides=overrides, rounds=2)

    training, outcome = train(spec(), tmp_path / "runs")
    assert standing(tmp_path).account.unit == "client"
    findings = audited(training)
    assert findings["verdict"] == "PASS", failing(findings)
    assert outcome.claim["budget"]["charged"] <= 8.0
    engine_run.train(begin(spec("algorithm.learning_rate=0.2"), tmp_path / "runs"))
    with pytest.raises(BudgetError, match=r"data\.partition: divides the records differently"):
        begin(spec("data.partition.alpha=0.5"), tmp_path / "runs")
    with pytest.raises(BudgetError, match=r"privacy\.unit: is record"):
        begin(spec_of(tmp_path, epsilon=8.0), tmp_path / "runs")


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("budget.file=b.sqlite", "budget.epsilon", "missing, but budget.file"),
        ("budget={epsilon: 3, delta: 1.0e-5}", "budget.file", "missing, but budget.epsilon"),
    ],
)
def test_a_budget_has_all_of_its_keys(override, path, words):
    with pytest.raises(SpecError) as caught:
        small_spec(overrides=(override,))
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert words in found[path]


def test_a_run_without_privacy_takes_no_part_in_a_budget():
    text = specs.dump(small_spec("fedavg"))
    with pytest.raises(SpecError, match="would spend without limit on data"):
        specs.loads(text, overrides=("budget={file: b.sqlite, epsilon: 3, delta: 1.0e-5}",))


def _another(entries):
    entries[0]["budget"]["epsilon"] = 40.0


def _none(entries):
    del entries[0]["budget"]


def _less(entries):
    entries[-1]["budget"]["charged"] = 0.5


def _more(entries):
    entries[-1]["budget"]["charged"] = 4.5


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A run that ended within its budget, and the folder that the budget is in."""
    folder = tmp_path_factory.mktemp("settled")
    return train(spec_of(folder), folder / "runs")[0].run, folder


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (_another, "budget: the ledger's is not the spec's"),
        (_none, "budget: only one of spec and ledger names one"),
        (_less, "less than this run cost"),
        (_more, "more than the 4"),
    ],
)
def test_a_ledger_that_contradicts_its_budget_fails(lie, words, settled, tmp_path):
    shutil.copytree(settled[0].path, tmp_path / "run")
    assert finding_of(tmp_path / "run", "promise").verdict is Verdict.PASS
    rewrite_ledger(tmp_path / "run", lie)
    found = finding_of(tmp_path / "run", "promise")
    assert found.verdict is Verdict.FAIL
    assert words in found.measurement


def test_a_budget_is_shown_and_a_file_that_is_none_is_one_line(settled, tmp_path, capsys):
    run, folder = settled
    path = str(folder / "budget.sqlite")
    capsys.readouterr()
    assert call("budget", "show", path) == 0
    shown = capsys.readouterr().out
    assert "left" in shown
    assert run.identifier in shown
    assert call("budget", "show", path, "--json") == 0
    told = json.loads(capsys.readouterr().out)["budgets"][0]
    assert told["epsilon"] == 4.0
    assert told["left"] == pytest.approx(4.0 - told["charged"])
    assert told["runs"][0]["state"] == "settled"
    for wrong in (str(run.spec), str(tmp_path / "none.sqlite")):
        assert call("budget", "show", wrong) == 2
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1
        assert wrong in error
    assert not (tmp_path / "none.sqlite").exists()


def test_the_resolved_spec_names_the_budget_as_it_was_given(tmp_path):
    training = begin(spec_of(tmp_path), tmp_path / "runs")
    written = yaml.safe_load(training.run.spec.read_text())["budget"]
    assert written == {"file": str(tmp_path / "budget.sqlite"), "epsilon": 4.0, "delta": 1e-5}
    training.lock.release()


class Noted:
    """Stands where reservations are: notes what is asked of it, and fails where it is told to."""

    def __init__(self, failing=()):
        self.calls, self.failing = [], failing

    def __getattr__(self, name):
        def call(*given):
            self.calls.append((name, *given))
            if name in self.failing:
                raise BudgetError("gone")
            return SimpleNamespace(epsilon=0.75) if name == "settle" else "reserved as 7"

        return call


OWNERS = np.array([0, 1, 1, 2], dtype=np.int16)


@dataclass(frozen=True)
class Plan:
    """What of a plan a budget looks at."""

    rounds: int
    unit: object
    adjacency: str = "add-remove"


def experiment_of(file="b.sqlite", noises_updates=False, rounds=4):
    """What of an experiment its budget looks at; its plan costs a number for each round."""
    unit = SimpleNamespace(name="record", noises_updates=noises_updates, of_people=False)
    plan = Plan(rounds, unit)
    return SimpleNamespace(
        spec=SimpleNamespace(
            budget=SimpleNamespace(file=file, epsilon=4, delta=1e-5),
            data=SimpleNamespace(dataset="digits"),
        ),
        plan=plan,
        dataset=SimpleNamespace(sha256="d" * 64),
        owner=OWNERS,
    )


@pytest.fixture
def noted(monkeypatch):
    """Reservations that are noted, and costs that say what they were asked for."""
    found = Noted()
    monkeypatch.setattr(budget_of_run, "reservations", found)
    monkeypatch.setattr(
        budget_of_run.charges,
        "reserved",
        lambda plan, entries=(), completed=0: ("cost", plan.rounds, tuple(entries), completed),
    )
    monkeypatch.setattr(budget_of_run.charges, "charged", lambda entries: ("spent", *entries))
    return found


def run_at(folder):
    return RunDirectory(folder / "small-1")


@pytest.mark.parametrize(
    ("noises_updates", "held"),
    [
        (False, None),
        # Who holds which record, as little-endian numbers of eight bytes.
        (True, hashlib.sha256(b"".join(int(one).to_bytes(8, "little") for one in OWNERS))),
    ],
)
def test_what_is_reserved_for_a_new_run_is_the_most_that_it_can_cost(
    noises_updates, held, noted, tmp_path
):
    experiment, run = experiment_of(noises_updates=noises_updates), run_at(tmp_path)
    with budget_of_run.reserving(experiment) as one:
        assert one.reserve(run) == {"epsilon": 4.0, "delta": 1e-5, "reservation": "reserved as 7"}
    (name, file, request), confirmed = noted.calls
    assert (name, file) == ("reserve", Path("b.sqlite"))
    assert confirmed == ("confirm", Path("b.sqlite"), "reserved as 7")
    assert asdict(request.account) == {
        "data_sha256": "d" * 64,
        "dataset": "digits",
        "unit": "record",
        "adjacency": "add-remove",
        "partition_sha256": held and held.hexdigest(),
        "epsilon": 4.0,
        "delta": 1e-5,
    }
    assert (request.run, request.directory) == ("small-1", run.path)
    assert request.cost == ("cost", 4, (), 0)
    # With how many rounds it would fit is asked round by round.
    assert request.cost_of_rounds(3) == ("cost", 3, (), 0)
    assert request.most_rounds == 4


def test_without_a_budget_nothing_is_reserved_confirmed_or_settled(noted, tmp_path):
    experiment = experiment_of(file=None)
    with budget_of_run.reserving(experiment) as one:
        assert one.reserve(run_at(tmp_path)) is None
    budget_of_run.reserve_resumed(experiment, run_at(tmp_path), [{}], 2)
    assert budget_of_run.settle(experiment, [{}]) == {}
    with pytest.raises(KeyError), budget_of_run.reserving(experiment) as one:
        raise KeyError
    assert noted.calls == []


@pytest.mark.parametrize("failing", [(), ("settle",)])
def test_a_start_that_fails_gives_back_and_tells_what_failed(failing, noted, tmp_path):
    noted.failing = failing

    def begin_and_stop():
        with budget_of_run.reserving(experiment_of()) as one:
            one.reserve(run_at(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin_and_stop()
    assert [call[0] for call in noted.calls] == ["reserve", "settle"]
    assert noted.calls[1] == ("settle", Path("b.sqlite"), "reserved as 7", ())


def test_a_reservation_that_is_gone_ends_the_start(noted, tmp_path):
    noted.failing = ("confirm",)
    with pytest.raises(BudgetError, match="gone"), budget_of_run.reserving(experiment_of()) as one:
        one.reserve(run_at(tmp_path))
    assert [call[0] for call in noted.calls] == ["reserve", "confirm"]


def test_a_run_that_goes_on_reserves_what_it_spent_and_what_is_left(noted, tmp_path):
    entries = [{"budget": {"reservation": "reserved as 7"}}, {"kind": "spend"}]
    budget_of_run.reserve_resumed(experiment_of(), run_at(tmp_path), entries, 2)
    ((name, file, identifier, request),) = noted.calls
    assert (name, file, identifier) == ("reserve_again", Path("b.sqlite"), "reserved as 7")
    assert request.cost == ("cost", 4, tuple(entries), 2)
    assert request.spent == ("spent", *entries)
    assert request.cost_of_rounds is None


@pytest.mark.parametrize(
    ("file", "entry"), [("b.sqlite", {}), (None, {"budget": {"reservation": "7"}})]
)
def test_spec_and_ledger_name_the_same_budget_or_the_run_does_not_go_on(
    file, entry, noted, tmp_path
):
    with pytest.raises(RunError, match="do not name the same budget"):
        budget_of_run.reserve_resumed(experiment_of(file=file), run_at(tmp_path), [entry], 2)
    assert noted.calls == []


@pytest.mark.parametrize(("failing", "charged"), [((), 0.75), (("settle",), None)])
def test_the_claim_says_what_is_charged_or_that_it_could_not_be_settled(failing, charged, noted):
    noted.failing = failing
    entries = [{"budget": {"epsilon": 3.0, "delta": 1e-6, "reservation": "7"}}, {"kind": "spend"}]
    assert budget_of_run.settle(experiment_of(), entries) == {
        "budget": {"epsilon": 3.0, "delta": 1e-6, "charged": charged}
    }
    assert noted.calls == [("settle", Path("b.sqlite"), "7", entries)]
