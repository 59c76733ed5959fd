"""Whole runs through the engine: same seeds same bytes, crash and resume, what is on disk when."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import stat
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.experiment import RunError, prepare
from dpfedadamw.federation import rounds
from dpfedadamw.federation.flower import required
from dpfedadamw.filing import after_training as filing
from dpfedadamw.measures import FINAL
from dpfedadamw.models.registry import build
from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, ReproducibleRandomness
from dpfedadamw.profiling import profiled
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.computing import determinism
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import open_existing
from dpfedadamw.storage.disk import UNFINISHED
from dpfedadamw.storage.lock import RunLock
from tests.runs import begin, probed, small_spec, train

CPU = torch.device("cpu")


def weights(training) -> bytes:
    return training.run.weights.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training of the small spec that nothing cut off, and its outcome."""
    return train(small_spec(), tmp_path_factory.mktemp("whole"))


def test_two_reproducible_runs_give_byte_identical_models(whole, tmp_path):
    second, _ = train(small_spec(), tmp_path)
    other, _ = train(small_spec(seed=2), tmp_path)
    assert weights(whole[0]) == weights(second)
    assert weights(whole[0]) != weights(other)


def test_two_release_runs_differ(tmp_path):
    first, _ = train(small_spec(mode="release", rounds=1), tmp_path)
    second, _ = train(small_spec(mode="release", rounds=1), tmp_path)
    assert weights(first) != weights(second)


def test_the_weights_rebuild_the_model_from_the_run_alone(whole):
    training, _ = whole
    config = json.loads(training.run.model_config.read_text())
    model = build(training.experiment.spec.model, config["input_shape"], config["classes"], seed=0)
    model.load_state_dict(load_file(training.run.weights))
    for mine, theirs in zip(
        model.parameters(), training.experiment.model.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_in_either_precision_passes_its_audit_and_says_which_it_was(precision, tmp_path):
    spec = small_spec(overrides=(f"compute.precision={precision}",))
    training, outcome = train(spec, tmp_path)
    assert training.ledger.of_kind("header")[0]["precision"] == precision
    assert ("bfloat16" in outcome.engine) == (precision == "bfloat16")
    filing.attest_training(training.run, filing.load_signers(None, None))
    assert filing.audit(training.run).to_json()["verdict"] == "PASS"


class PowerCutError(Exception):
    """The power goes."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("after", [5, 0, 1, 7])
def test_a_run_cut_off_anywhere_and_resumed_equals_one_that_was_not(
    after, whole, tmp_path, monkeypatch
):
    uncut, outcome = whole
    cut = begin(small_spec(), tmp_path)
    answered = 0
    answer = rounds.Worker.take_part

    def failing(self, *arguments):
        nonlocal answered
        if answered == after:
            raise PowerCutError
        answered += 1
        return answer(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(rounds.Worker, "take_part", failing)
        with pytest.raises(PowerCutError):
            engine_run.train(cut)
    resumed = engine_setup.resume(open_existing(cut.run.path), torch.device("cpu"))
    completed, epsilon_after = resumed.completed, resumed.experiment.plan.epsilon_after
    continued = engine_run.train(resumed)
    assert weights(resumed) == weights(uncut)
    lines = [json.loads(line) for line in cut.run.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(5))
    # Each line after the cut tells what the round that was begun twice has cost, too.
    told = [line["epsilon"] for line in lines]
    assert told == [epsilon_after(number, int(number > completed)) for number in range(5)]
    # The round that was cut off is charged twice: never too little.
    assert continued.claim["server"]["epsilon"]["pld"] > outcome.claim["server"]["epsilon"]["pld"]


def test_the_run_that_is_taken_up_again_is_the_latest(tmp_path):
    cut = begin(small_spec(rounds=1), tmp_path)
    cut.lock.release()
    other = begin(small_spec(rounds=1), tmp_path)
    assert (tmp_path / "latest").resolve() == other.run.path
    engine_setup.resume(open_existing(cut.run.path), torch.device("cpu")).lock.release()
    assert (tmp_path / "latest").resolve() == cut.run.path


@pytest.mark.parametrize("ends", ["whole", "cut off"])
def test_whoever_runs_the_clients_is_let_go_of_however_a_training_ends(ends, tmp_path):
    training = begin(small_spec(rounds=1), tmp_path)
    closed = []

    class Runner:
        def answers(self, parts):
            if ends == "cut off":
                raise PowerCutError
            yield from inline(parts)

        def close(self):
            closed.append(True)

    inline = training.federation.runner.answers
    training.federation = dataclasses.replace(training.federation, elsewhere=Runner())
    if ends == "whole":
        engine_run.train(training)
    else:
        with pytest.raises(PowerCutError):
            engine_run.train(training)
    assert closed == [True]


def test_the_last_line_of_metrics_is_measured_on_the_model_that_is_published(whole):
    training, _ = whole
    lines = [json.loads(line) for line in training.run.metrics.read_text().splitlines()]
    config = json.loads(training.run.model_config.read_text())
    model = build(training.experiment.spec.model, config["input_shape"], config["classes"], seed=0)
    model.load_state_dict(load_file(training.run.weights))
    test = training.experiment.dataset.test
    with torch.no_grad():
        outputs = model(test.inputs[:])
    targets = torch.as_tensor(test.labels)
    loss = torch.nn.functional.cross_entropy(outputs.double(), targets.long())
    assert lines[-1]["test_loss"] == pytest.approx(float(loss), rel=1e-5)
    hits = (outputs.argmax(1) == targets).double().mean()
    assert lines[-1]["test_accuracy"] == pytest.approx(float(hits), abs=1e-9)


def test_the_coins_of_canaries_are_drawn_of_a_stream_of_their_own():
    asked = []

    class Source:
        def stream(self, *purpose):
            asked.append(purpose)
            return np.random.default_rng(1)

    experiment = prepare(small_spec(), torch.device("cpu"))
    with contextlib.suppress(TypeError, AttributeError):
        engine_setup._drawn_canaries(experiment, CanaryOrder(8), Source())
    assert asked == [("canary coins", -1, -1)]


def test_a_resumed_round_draws_fresh_noise_in_release_mode(tmp_path, monkeypatch):
    cut = begin(small_spec(mode="release"), tmp_path)
    seen = []
    add = oracle.add_gaussian_noise

    def watching(total, deviation, *rest, **more):
        noisy = add(total, deviation, *rest, **more)
        seen.append((noisy - total.double())[:8].tolist())
        if len(seen) == 2:
            raise PowerCutError
        return noisy

    monkeypatch.setattr(oracle, "add_gaussian_noise", watching)
    with pytest.raises(PowerCutError):
        engine_run.train(cut)
    engine_run.train(engine_setup.resume(open_existing(cut.run.path), torch.device("cpu")))
    assert len({tuple(noise) for noise in seen}) == len(seen)
    ledger = [json.loads(line) for line in cut.run.ledger.read_text().splitlines()]
    commitments = [e["commitment"] for e in ledger if e["kind"] in ("header", "resume")]
    assert len(set(commitments)) == 2


def test_the_ledger_is_on_disk_before_noise_is_drawn(tmp_path, monkeypatch):
    training = begin(small_spec(rounds=2), tmp_path)
    add = oracle.add_gaussian_noise
    missing = []

    def checking(total, deviation, *rest, **more):
        on_disk = [json.loads(line) for line in training.run.ledger.read_text().splitlines()]
        charged = {(e["round"], e["client"]) for e in on_disk if e["kind"] == "spend"}
        if len(charged) != 4 * (training.completed + 1):
            missing.append(training.completed)
        return add(total, deviation, *rest, **more)

    monkeypatch.setattr(oracle, "add_gaussian_noise", checking)
    engine_run.train(training)
    assert missing == []


def test_a_start_that_fails_once_the_run_is_there_names_the_command_that_goes_on(
    tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(engine_setup, "write_partition", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        begin(small_spec(), tmp_path)
    run = (tmp_path / "latest").resolve()
    assert caught.value.__notes__ == [f"continue with: dpfedadamw run --resume {run}"]
    assert caught.value.filename == str(run)
    assert not (run / UNFINISHED).exists()


@pytest.fixture(scope="module")
def after_a_round(tmp_path_factory):
    """The path of a run that was cut off after the first of its two rounds."""

    def cut(*_):
        raise KeyboardInterrupt

    training = begin(small_spec(rounds=2), tmp_path_factory.mktemp("cut"))
    with pytest.raises(KeyboardInterrupt):
        engine_run.train(training, on_round=cut)
    return training.run.path


@pytest.mark.parametrize(
    "spoil", [lambda found: found[0, 0], lambda found: found.astype("<U60"), lambda found: found.T]
)
def test_second_moments_that_are_none_are_refused_when_a_run_goes_on(
    spoil, after_a_round, tmp_path
):
    run = open_existing(shutil.copytree(after_a_round, tmp_path / after_a_round.name))
    path = run.evidence / "round-00000.npz"
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "v_clean": spoil(arrays["v_clean"])})
    with pytest.raises(DpfedadamwError, match=r"round-00000\.npz: has no second moments"):
        engine_setup.resume(run, CPU)


def test_a_finished_run_cannot_be_resumed(whole):
    training, _ = whole
    with pytest.raises(DpfedadamwError, match="this run is finished"):
        engine_setup.resume(open_existing(training.run.path), torch.device("cpu"))


def test_evidence_is_for_its_owner_alone(whole):
    training, _ = whole
    folder = training.run.evidence
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}


def test_the_header_binds_the_ledger_to_the_spec(whole):
    training, _ = whole
    header = json.loads(training.run.ledger.read_text().splitlines()[0])
    assert header["spec_sha256"] == hashlib.sha256(training.run.spec.read_bytes()).hexdigest()


def test_recorded_noise_has_the_scale_of_the_plan(tmp_path):
    training, _ = train(small_spec(rounds=6), tmp_path)
    total, count = 0.0, 0
    for file in training.run.evidence.glob("round-*.npz"):
        with np.load(file) as arrays:
            total += float(arrays["noise_sum_squares"].sum())
            count += arrays["noise_sum_squares"].shape[0] * 3 * 650
    # 46,800 draws: the ratio's standard deviation is sqrt(2/46800) = 0.65 %; five of them.
    assert total / count == pytest.approx(4.0, rel=0.033)


def test_without_privacy_nothing_is_claimed_charged_or_collected(tmp_path):
    training, outcome = train(small_spec("fedadamw"), tmp_path)
    assert outcome.claim == {"view_headline": "none"}
    kinds = {json.loads(line)["kind"] for line in training.run.ledger.read_text().splitlines()}
    assert kinds == {"header", "round", "claim"}
    assert list(training.run.evidence.glob("round-*.npz")) == []


def test_a_target_epsilon_is_met_from_below(tmp_path):
    spec = small_spec(
        overrides=(
            "privacy={unit: record, clipping_norm: 1, target_epsilon: 4, delta: 1.0e-5, "
            "sampling: {kind: poisson, expected_batch_size: 24}}",
        )
    )
    experiment = prepare(spec, torch.device("cpu"))
    claim = experiment.plan.expected_claim()
    assert 3.98 <= claim["server_worst_case"]["epsilon"]["pld"] <= 4.0


def test_a_batch_larger_than_the_smallest_client_is_refused(tmp_path):
    spec = small_spec(overrides=("privacy.sampling.expected_batch_size=2000",))
    with pytest.raises(PrivacyError, match="whose sampling rate would exceed 1"):
        prepare(spec, torch.device("cpu"))


def test_a_delta_that_permits_publishing_a_record_is_refused():
    spec = small_spec(overrides=("privacy.delta=0.01",))
    with pytest.raises(PrivacyError, match="publishes one record outright would satisfy this"):
        prepare(spec, torch.device("cpu"))


def test_metrics_hold_nothing_measured_on_training_records(whole):
    training, _ = whole
    keys = {
        key for line in training.run.metrics.read_text().splitlines() for key in json.loads(line)
    }
    assert keys == {
        "round",
        "learning_rate",
        "test_accuracy",
        "test_loss",
        "validation_accuracy",
        "bytes_up",
        "bytes_down",
        "seconds",
        "epsilon",
        "test_classes",
        "test_confusion",
        *(f"test_{name}" for name in FINAL),
    }


def test_the_classes_of_the_last_line_add_up_to_its_accuracy(whole):
    training, outcome = whole
    lines = [json.loads(line) for line in training.run.metrics.read_text().splitlines()]
    assert all("test_classes" not in line for line in lines[:-1])
    classes = lines[-1]["test_classes"]
    labels = training.experiment.dataset.test.labels
    assert [records for records, _ in classes] == [int((labels == c).sum()) for c in range(10)]
    assert sum(right for _, right in classes) / len(labels) == outcome.accuracy


@pytest.mark.parametrize(("mode", "said"), [("reproducible", True), ("release", False)])
def test_what_a_known_seed_means_stands_on_ledger_and_model_config(mode, said, whole, tmp_path):
    training, _ = whole if said else train(small_spec(mode=mode, rounds=1), tmp_path)
    for path in (training.run.ledger, training.run.model_config):
        assert (b"anyone who knows the seed" in path.read_bytes()) == said


def test_the_engine_vmap_is_refused_for_dropout_before_anything_is_written(tmp_path):
    spec = small_spec(overrides=("model={name: vit-tiny}",))
    with pytest.raises(RunError, match="--engine vmap: it hides the records"):
        begin(spec, tmp_path / "runs", engine="vmap")
    assert not (tmp_path / "runs").exists()


# What a run tells of itself while it goes on, what it is refused for, and what it lets go of.


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run of two rounds with all that it calls back, and what it comes to."""
    folder = tmp_path_factory.mktemp("told")
    heard = {"rounds": [], "clients": [], "before": [], "epsilons": [], "waits": []}
    waits, wait = [], os.fsync
    made = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    training = engine_setup.start(
        prepare(small_spec(rounds=2), CPU), folder, options=StartOptions(created=made)
    )
    heard["epsilons"].append(training.epsilon)

    def on_round(result, evaluation):
        heard["rounds"].append((result.completed, evaluation))
        heard["epsilons"].append(training.epsilon)
        heard["waits"].append(len(waits))
        waits.clear()

    def before_claim(one):
        heard["before"].append((one, training.run.weights.is_file(), training.journal.claim))
        probed(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: waits.append(file) or wait(file))
        outcome = engine_run.train(
            training, on_round, lambda *of: heard["clients"].append(of), before_claim
        )
    yield training, outcome, heard
    training.lock.release()


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_calls_back_after_each_client_each_round_and_before_its_claim(told):
    training, _, heard = told
    assert [completed for completed, _ in heard["rounds"]] == [1, 2]
    assert heard["clients"] == [(done, 4) for _ in range(2) for done in range(1, 5)]
    assert heard["before"] == [(training, True, None)]
    plan = training.experiment.plan
    assert heard["epsilons"] == [plan.epsilon_after(rounds, 0) for rounds in range(3)]
    assert heard["epsilons"][0] == 0.0 < heard["epsilons"][1] < heard["epsilons"][2]
    assert (training.completed, training.repeated, training.note) == (2, 0, None)


def test_a_round_waits_for_the_disk_five_times_and_once_for_each_file_of_evidence(told):
    _, _, heard = told
    # Four participations, the round, its coordinates and the state after it. No evidence keeps the
    # last state, so that the name of its file is waited for too.
    assert heard["waits"] == [5 + 7, 5 + 7 + 1]


def test_the_outcome_is_the_last_evaluation_the_claim_and_how_sums_were_computed(told):
    training, outcome, heard = told
    last = heard["rounds"][-1][1]
    assert outcome.run is training.run
    assert (outcome.accuracy, outcome.loss) == (last.accuracy, last.loss)
    assert outcome.measures == {f"test_{name}": one for name, one in last.measures.items()}
    line = lines_of(training.run.ledger)[-1]
    assert line["kind"] == "claim"
    assert outcome.claim.items() <= line.items()
    assert set(line) - set(outcome.claim) == {"kind", "previous", "digest"}
    assert outcome.engine == training.federation.unit.explain(
        training.engine, training.experiment.plan
    )
    assert training.journal.claim is not None


def test_a_run_is_named_by_its_time_and_has_a_salt_of_thirty_two_bytes_for_its_owner(told):
    training, _, _ = told
    assert training.run.path.name.startswith("small-20260304T050607Z-")
    assert lines_of(training.run.ledger)[0]["created"] == "2026-03-04T05:06:07Z"
    salt = training.run.evidence / "salt"
    assert (len(salt.read_bytes()), stat.S_IMODE(salt.stat().st_mode)) == (32, 0o600)


def test_metrics_begin_before_the_first_round_and_have_a_line_for_each(told):
    training, _, heard = told
    first, *others = lines_of(training.run.metrics)
    assert (first["round"], first["epsilon"]) == (0, 0.0)
    assert first["seconds"] in (None, 0)
    assert [line["round"] for line in others] == [1, 2]
    assert [line["epsilon"] for line in others] == heard["epsilons"][1:]
    assert [line["test_accuracy"] for line in others] == [
        evaluation.accuracy for _, evaluation in heard["rounds"]
    ]


def test_states_are_kept_by_round_where_something_is_claimed(told, tmp_path):
    training, _, _ = told
    assert training.keeper is not None
    kept = [path.name for path in training.run.evidence.glob("state-*")]
    assert kept == [] or min(kept) >= "state-00000.safetensors"
    open_to_all = begin(small_spec("fedavg", rounds=1), tmp_path)
    assert open_to_all.keeper is None
    open_to_all.lock.release()


def cut_off(tmp_path, *overrides):
    training = begin(small_spec(rounds=1, overrides=overrides), tmp_path)
    training.lock.release()
    return training.run


def rewritten(run, **fields):
    """The ledger's header with other fields, and its chain anew."""
    header = {**lines_of(run.ledger)[0], **fields}
    for name in ("kind", "previous", "digest"):
        header.pop(name)
    run.ledger.unlink()
    Ledger(run.ledger).append("header", header)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"canaries": {"count": 1}}, "an audit run cannot be resumed; start a new one"),
        (
            {"sites": {}},
            r"clients hold their own records; .*flower superlink SERVER",
        ),
        ({"data_sha256": "0" * 64}, "the data set has changed since the run began; start a new"),
    ],
)
def test_a_run_that_cannot_be_continued_says_why_and_is_let_go_of(fields, said, tmp_path):
    run = cut_off(tmp_path)
    rewritten(run, **fields)
    with pytest.raises(DpfedadamwError, match=said):
        engine_setup.resume(open_existing(run.path), CPU)
    # Nobody holds it any more.
    RunLock(run.path).release()


def test_a_run_taken_up_again_is_charged_so_in_its_ledger_by_its_new_key(tmp_path):
    training = begin(small_spec(rounds=1, mode="release"), tmp_path)
    training.lock.release()
    resumed = engine_setup.resume(open_existing(training.run.path), CPU)
    header, resume = lines_of(training.run.ledger)
    assert (resume["kind"], resume["round"]) == ("resume", 0)
    assert resume["commitment"] == resumed.federation.worker.randomness.commitment
    assert resume["commitment"] != header["commitment"]
    # No round had been charged yet, so none was begun again.
    assert (resumed.completed, resumed.repeated) == (0, 0)
    resumed.lock.release()


def test_a_training_that_fails_lets_go_of_its_run(tmp_path):
    training = begin(small_spec(rounds=1), tmp_path)

    def failing(*_):
        raise PowerCutError

    with pytest.raises(PowerCutError):
        engine_run.train(training, on_round=failing)
    RunLock(training.run.path).release()
    # Whoever ends well goes on to hold it.
    whole, _ = begin(small_spec(rounds=1), tmp_path), None
    engine_run.train(whole)
    with pytest.raises(DpfedadamwError):
        RunLock(whole.run.path)
    whole.lock.release()


def test_flower_is_asked_for_before_anything_is_written(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(required, "require", lambda **how: asked.append(how))
    here = prepare(small_spec(rounds=1), CPU)
    engine_setup._check_engine(here)
    assert asked == []
    there = prepare(small_spec(rounds=1, overrides=("federation.engine=flower",)), CPU)
    engine_setup._check_engine(there)
    assert asked == [{"simulation": True}]


@pytest.mark.parametrize(("mode", "seed"), [("reproducible", 7), ("reproducible", 0)])
def test_a_published_seed_is_the_one_of_the_spec(mode, seed):
    found = engine_setup._randomness(small_spec(mode=mode, seed=seed))
    wanted = ReproducibleRandomness(seed)
    assert type(found) is ReproducibleRandomness
    assert found.commitment == wanted.commitment
    drawn, again = (one.stream("noise", 0, 0).integers(2**62, 4) for one in (found, wanted))
    assert list(drawn) == list(again)
    assert type(engine_setup._randomness(small_spec(mode="release"))) is ReleaseRandomness


def test_only_a_release_has_a_key_to_keep():
    release = ReleaseRandomness()
    assert engine_setup._with_a_key(release) is release
    with pytest.raises(RunError, match="--escrow: only randomness: release has a key to save"):
        engine_setup._with_a_key(ReproducibleRandomness(1))


def test_a_spec_without_a_claim_has_nothing_that_canaries_could_contradict():
    experiment = prepare(small_spec("fedavg"), CPU)
    with pytest.raises(RunError, match="--canaries: this spec claims no privacy"):
        engine_setup._drawn_canaries(experiment, CanaryOrder(8), ReleaseRandomness())


def test_a_key_that_is_added_to_an_escrow_follows_those_that_the_ledger_knows(
    tmp_path, monkeypatch
):
    added = []
    monkeypatch.setattr(
        ReleaseRandomness, "add_to_escrow", lambda self, path, known: added.append((path, known))
    )
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"commitment": "first"})
    ledger.append("resume", {"commitment": "second", "round": 1})
    ledger.append("round", {"commitment": "not one"})
    course = SimpleNamespace(header=ledger.entries[0], ledger=ledger)
    experiment = SimpleNamespace(spec=small_spec(mode="release"))
    drawn = engine_setup._new_randomness(experiment, course, tmp_path / "key")
    assert type(drawn) is ReleaseRandomness
    assert added == [(tmp_path / "key", {"first", "second"})]
    assert type(engine_setup._new_randomness(experiment, course, None)) is ReleaseRandomness
    assert len(added) == 1


def test_a_private_run_notes_its_records_and_keeps_each_state_under_the_round_it_ends(
    tmp_path, monkeypatch
):
    kept, noted = [], []
    monkeypatch.setattr(
        engine_run.StateKeeper, "keep", lambda self, number, *_: bool(kept.append(number))
    )
    monkeypatch.setattr(engine_setup, "write_records", lambda folder, *_: noted.append(folder))
    training, _ = train(small_spec(rounds=3), tmp_path)
    assert kept == [0, 1, 2]
    assert noted == [training.run.evidence]


@pytest.mark.parametrize(("mode", "while_training"), [("reproducible", 1), ("release", 0)])
def test_only_a_reproducible_run_asks_for_kernels_that_give_the_same_bits(mode, while_training):
    before = torch.get_deterministic_debug_mode()
    with determinism(small_spec(mode=mode)):
        assert torch.get_deterministic_debug_mode() == (while_training or before)
    assert torch.get_deterministic_debug_mode() == before


def test_a_rounds_time_is_told_unless_it_would_tell_how_many_took_part(told, tmp_path):
    training, _, _ = told
    first, *others = [line["seconds"] for line in lines_of(training.run.metrics)]
    assert (first, others[0]) == (0, 1)
    assert {type(seconds) for seconds in others} == {int}
    hidden, _ = train(
        small_spec(rounds=1, overrides=("federation.client_sampling=poisson",)), tmp_path
    )
    assert hidden.experiment.plan.participants_hidden
    assert {line["seconds"] for line in lines_of(hidden.run.metrics)} == {None}


def test_a_profile_names_the_parts_of_a_training(tmp_path):
    with profiled() as found:
        train(small_spec(rounds=1), tmp_path)
    assert set(found.seconds) == {
        "checkpoints",
        "clipped sum",
        "data",
        "evaluation",
        "evidence",
        "ledger",
        "local rule",
        "messages",
        "noise",
        "other",
        "probe",
        "sampling",
        "server",
    }
