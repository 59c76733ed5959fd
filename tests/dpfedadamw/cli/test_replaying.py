"""Runs of other models and other data, all of whose participations are computed again."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from audit.recomputed import RecomputedRound
from audit.verdict import Finding, Verdict
from dpfedadamw import spec as specs
from dpfedadamw.cli.replaying import order_of
from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training, replaying
from dpfedadamw.filing.replaying import replay_of
from dpfedadamw.reexecution.history import ReexecutionError
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory
from tests.runs import call, probed, small_spec, train

CPU, EVERYTHING = torch.device("cpu"), 1000


def reexecuted(run: RunDirectory, count: int = EVERYTHING, **keys: Any) -> Finding:
    """What comes of computing participations of a run again."""
    order = order_of(run, count, **keys)
    rerun = Rerun(run, order.keys, CPU)
    return after_training.audit(run, replay=replay_of(rerun, order)).named("reexecution")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        # Norms from Gram matrices, which are lengthened by what rounding may hide of them.
        ("model={name: cnn, channels: [16, 32], groups: 4}",),
        ("data.augmentation=[flip, crop]",),
        ("privacy.sampling={kind: fixed, batch_size: 20}", "privacy.adjacency=replace-one"),
    ],
    ids=["convolutions", "random views", "batches of fixed size"],
)
def test_an_honest_run_passes(changes: tuple[str, ...], tmp_path: Path) -> None:
    short = ("federation.local_steps=2",)
    spec = small_spec(rounds=2, clients_per_round=2, overrides=(*changes, *short))
    found = reexecuted(train(spec, tmp_path)[0].run)
    assert (found.verdict, found.details["drawn"]) == (Verdict.PASS, 4), found.measurement
    assert found.details["published_parameters"]


def test_a_run_that_claims_no_privacy_is_refused_and_told_what_can_be_done(tmp_path: Path) -> None:
    run = train(small_spec("fedavg", rounds=1), tmp_path)[0].run
    with pytest.raises(ReexecutionError, match=r"claims no privacy.*dpfedadamw replay RUN_DIR"):
        order_of(run, 3)


class CutOffError(Exception):
    """Ends a run after a round."""


def cut_off(*_: object) -> None:
    raise CutOffError


@pytest.fixture(scope="module")
def taken_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Path]:
    """A run that was cut off after its first round and taken up again, and its escrow."""
    folder = tmp_path_factory.mktemp("cut")
    spec, kept = small_spec(rounds=3, clients_per_round=2, mode="release"), folder / "key"
    training = engine_setup.start(prepare(spec, CPU), folder, options=StartOptions(escrow=kept))
    with pytest.raises(CutOffError):
        engine_run.train(training, on_round=cut_off)
    shutil.copy(kept, folder / "first")
    training = engine_setup.resume(training.run, CPU, escrow=kept)
    with training.lock:
        engine_run.train(training, before_claim=probed)
    return training.run, kept


def test_with_all_keys_in_escrow_a_run_that_was_cut_off_is_computed_again(
    taken_up: tuple[RunDirectory, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, kept = taken_up
    found = reexecuted(run, escrow=[kept])
    assert (found.verdict, found.details["rounds_run_again"]) == (Verdict.PASS, 3)
    assert call("replay", str(run.path), "--escrow", str(kept)) == 0
    assert "DIFFERS" not in capsys.readouterr().out


def test_without_the_further_key_it_is_said_what_cannot_be_computed(
    taken_up: tuple[RunDirectory, Path],
) -> None:
    run, kept = taken_up
    found = reexecuted(run, escrow=[kept.with_name("first")])
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "2 of 6 drawn participations could be recomputed" in found.measurement
    assert "run --resume RUN_DIR --escrow FILE" in found.measurement


def test_a_round_s_vectors_are_let_go_of_before_the_next_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(small_spec(rounds=3, clients_per_round=1), tmp_path)[0].run
    run_round, seen, held = Rerun.run_round, list[weakref.ref[RecomputedRound]](), list[int]()

    def watched(self: Rerun, *given: Any) -> Any:
        held.append(sum(one() is not None for one in seen))
        found = run_round(self, *given)
        seen.append(weakref.ref(found[1]))
        return found

    monkeypatch.setattr(Rerun, "run_round", watched)
    assert reexecuted(run).verdict is Verdict.PASS
    assert held == [0, 0, 0]


@pytest.fixture
def _by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "BY_DEFAULT", 20)


def level(spec: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> int:
    """The level of a run's verdict, by the command."""
    assert call("run", spec, "--out", str(folder), "--json", *more) == 0
    return int(json.loads(capsys.readouterr().out)["level"])


@pytest.mark.usefixtures("_by_default")
def test_a_run_computes_participations_again_unasked_unless_it_would_take_long_or_is_told_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(rounds=1, clients_per_round=1, mode="release")))
    assert level(str(path), tmp_path, capsys) == 2
    assert level(str(path), tmp_path, capsys, "--replay", "0") == 1
    monkeypatch.setattr(replaying, "AT_MOST_SECONDS", 0.0)
    assert level(str(path), tmp_path, capsys) == 1


@pytest.mark.usefixtures("_by_default")
def test_where_nothing_can_be_computed_again_the_run_ends_as_ever_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ReexecutionError("the data are gone")

    monkeypatch.setattr(replaying, "after_training", gone)
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(rounds=1, clients_per_round=1)))
    assert call("run", str(path), "--out", str(tmp_path)) == 0
    assert "nothing was recomputed: the data are gone" in capsys.readouterr().err
