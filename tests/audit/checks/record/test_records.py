"""Checks on the records themselves, and on what is told outside the evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.checks.randomness import obvious_commitments
from audit.reading.leaks import LEDGER, METRICS, unknown_fields
from audit.statistics.moments import Floor, floor_faults
from audit.verdict import Verdict
from tests.audit.corruptions import audit_attested as audit_run
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, pack, rewrite_ledger, rewrite_round, save


@pytest.fixture(scope="module", params=["record", "client"])
def _built_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "record":
        return build_run(folder / "run", Settings())
    return build_client_run(folder / "run", ClientSettings())


@pytest.fixture
def run(_built_runs: Path, tmp_path: Path) -> Path:
    """A correct run that the test may change."""
    return Path(shutil.copytree(_built_runs, tmp_path / "run"))


def failing(run: Path) -> set[str]:
    return {one.name for one in audit_run(run).findings if one.verdict is Verdict.FAIL}


def change_arrays(run: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    with np.load(run / "evidence" / name) as file:
        arrays = {key: file[key].copy() for key in file.files}
    change(arrays)
    save(run / "evidence" / name, arrays)


def test_a_record_that_two_clients_work_on_is_found(run: Path) -> None:
    change_arrays(run, "partition.npz", lambda a: a["held"].__setitem__(-1, a["held"][0]))
    assert failing(run) == {"partition"}
    said = finding_of(run, "partition")
    assert "held by two clients" in said.measurement
    assert said.private["held_by_two"] == 1


def test_a_record_that_a_client_holds_twice_is_found(run: Path) -> None:
    change_arrays(run, "partition.npz", lambda a: a["held"].__setitem__(0, a["held"][1]))
    assert failing(run) == {"partition"}
    assert "holds a record twice" in finding_of(run, "partition").measurement


def test_clients_that_work_on_more_records_than_declared_are_found(run: Path) -> None:
    def borrow(arrays: dict[str, Any]) -> None:
        arrays["held_offsets"][1] += 1

    change_arrays(run, "partition.npz", borrow)
    assert failing(run) == {"partition"}


def test_clients_that_have_exchanged_their_records_are_found(run: Path) -> None:
    def exchange(arrays: dict[str, Any]) -> None:
        held, cut = arrays["held"], arrays["held_offsets"][1]
        held[0], held[cut] = held[cut], held[0]

    change_arrays(run, "partition.npz", exchange)
    said = finding_of(run, "partition")
    assert said.verdict is Verdict.FAIL
    assert "client 0 works on other records than the partition gives it" in said.measurement


def test_rounds_that_used_other_rows_are_found(run: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["rows_sha256"][0, 0] ^= 1

    change_arrays(run, "round-00001.npz", change)
    said = finding_of(run, "partition")
    assert said.verdict is Verdict.FAIL
    assert "round 1: client" in said.measurement
    assert "used other rows than its own" in said.measurement
    change_arrays(run, "round-00001.npz", lambda arrays: arrays.pop("rows_sha256"))
    assert finding_of(run, "partition").verdict is Verdict.NOT_VERIFIED


def test_a_run_without_its_records_is_not_verified(run: Path) -> None:
    (run / "evidence" / "records.npz").unlink()
    found = audit_run(run)
    assert {one.name for one in found.findings if one.verdict is Verdict.NOT_VERIFIED} >= {
        "partition",
        "outside-budget",
    }


def test_equal_records_are_counted_and_what_they_mean_is_said_in_private(run: Path) -> None:
    def repeat(arrays: dict[str, Any]) -> None:
        arrays["contents"][:3] = arrays["contents"][0]

    change_arrays(run, "records.npz", repeat)
    said = finding_of(run, "partition")
    assert said.verdict is Verdict.PASS
    assert said.private["most_equal_records"] == said.private["records_with_an_equal"] == 3
    assert "with 3 equal records is protected less" in str(said.private["group_privacy"])
    assert "3" not in said.limits + str(said.details.get("group_privacy", ""))


@pytest.mark.parametrize(("tested", "verdict"), [(1, Verdict.PASS), (20, Verdict.FAIL)])
def test_test_records_that_were_trained_on_are_found(
    run: Path, tested: int, verdict: Verdict
) -> None:
    def borrow(arrays: dict[str, Any]) -> None:
        arrays["test_contents"][:tested] = arrays["contents"][:tested]

    change_arrays(run, "records.npz", borrow)
    said = finding_of(run, "outside-budget")
    assert said.verdict is verdict
    assert said.private["test_records_in_training"] == tested
    assert ("were also used for training: the published" in said.measurement) == (
        verdict is Verdict.FAIL
    )


def test_equal_records_of_a_small_table_are_no_test_on_training_records(run: Path) -> None:
    def alike(arrays: dict[str, Any]) -> None:
        arrays["contents"][:, :2] %= 4
        arrays["test_contents"][:] = arrays["contents"][:40]

    change_arrays(run, "records.npz", alike)
    said = finding_of(run, "outside-budget")
    assert said.verdict is Verdict.PASS
    assert said.private["test_records_in_training"] == 40


def reach(run: Path, **changes: Any) -> None:
    """How far numbers reach: by default continuous ones without ends that scaling makes."""

    def apply(arrays: dict[str, Any]) -> None:
        rows = len(arrays["numbers"])
        usual = {"least": -2.5, "greatest": 3.1, "lowest": 1, "highest": 1}
        usual |= {"continuous": 10, "spanning": 0}
        for name, value in (usual | changes).items():
            own, together = value if isinstance(value, tuple) else (value, value)
            arrays[name] = np.array([*[own] * (rows - 1), together])

    change_arrays(run, "inputs.npz", apply)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, False),
        ({"spanning": 10}, True),
        ({"spanning": 9}, False),
        ({"spanning": (10, 0)}, True),
        ({"least": 0.0, "greatest": 1.0}, True),
        ({"least": -1.0, "greatest": 1.0}, True),
        # Numbers that are cut off reach their ends often, and grey levels are not continuous.
        ({"least": 0.0, "greatest": 1.0, "lowest": 3}, False),
        ({"least": 0.0, "greatest": 1.0, "continuous": 0}, False),
        ({"least": 0.0, "greatest": 0.99}, False),
    ],
)
def test_continuous_records_between_their_own_extremes_are_found(
    run: Path, changes: dict[str, Any], found: bool
) -> None:
    reach(run, **changes)
    said = finding_of(run, "outside-budget")
    assert said.verdict is (Verdict.FAIL if found else Verdict.PASS)
    assert ("minimum and maximum" in said.measurement) == found


def scale(run: Path, mean: Any, deviation: Any) -> None:
    def apply(arrays: dict[str, Any]) -> None:
        arrays["mean"][:] = mean
        arrays["deviation"][:] = deviation

    change_arrays(run, "inputs.npz", apply)


def test_records_scaled_by_their_own_statistics_are_found(run: Path) -> None:
    scale(run, 1e-7, 1.0 - 1e-7)
    assert failing(run) == {"outside-budget"}


def test_records_of_all_clients_scaled_together_are_found(run: Path) -> None:
    # Clients differ; only all of them together have mean 0 and deviation 1.
    def apply(arrays: dict[str, Any]) -> None:
        arrays["mean"][-1], arrays["deviation"][-1] = 0.0, 1.0

    change_arrays(run, "inputs.npz", apply)
    assert failing(run) == {"outside-budget"}


def test_columns_scaled_one_by_one_are_found_where_some_are_constant(run: Path) -> None:
    # 60 of 64 columns vary.
    scale(run, 0.0, np.sqrt(60 / 64))
    assert failing(run) == {"outside-budget"}


@pytest.mark.parametrize("clients_scaled", [0, 1])
def test_a_single_client_with_such_moments_proves_nothing(run: Path, clients_scaled: int) -> None:
    def apply(arrays: dict[str, Any]) -> None:
        arrays["mean"][:clients_scaled], arrays["deviation"][:clients_scaled] = 0.0, 1.0

    change_arrays(run, "inputs.npz", apply)
    assert failing(run) == set()


def test_records_scaled_by_constants_from_elsewhere_pass(run: Path) -> None:
    for mean, deviation in ((0.0, 1.02), (1e-4, 1.0), (0.0, 1.0 + 1e-4)):
        scale(run, mean, deviation)
        assert failing(run) == set()


def test_tokens_have_no_moments_and_the_check_says_so(run: Path) -> None:
    change_arrays(run, "inputs.npz", lambda a: (a["numbers"].fill(0), a["varying"].fill(0)))
    found = audit_run(run)
    assert found.verdict is Verdict.PASS
    assert "was not measured" in found.named("outside-budget").measurement


def test_a_claim_that_is_silent_about_tuning_is_found(run: Path) -> None:
    rewrite_ledger(
        run,
        lambda entries: entries[-1].update(
            assumptions=[one for one in entries[-1]["assumptions"] if "parameters" not in one]
        ),
    )
    assert failing(run) == {"outside-budget"}


def add_metric(run: Path, **more: object) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= more
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("name", ["train_loss", "gradient_norm", "batch_size", "clients"])
def test_private_numbers_in_public_metrics_are_found(run: Path, name: str) -> None:
    add_metric(run, **{name: 0.71})
    assert failing(run) == {"disclosure"}
    assert name in finding_of(run, "disclosure").measurement


@pytest.mark.parametrize(
    "more", [{"test_loss": ["a loss", 0.7]}, {"test_classes": [[3, 2, 9]]}, {"test_classes": "x"}]
)
def test_more_than_numbers_in_public_metrics_is_found(run: Path, more: dict[str, Any]) -> None:
    add_metric(run, **more)
    assert failing(run) == {"disclosure"}


def test_counts_by_class_are_public(run: Path) -> None:
    add_metric(run, test_classes=[[30, 21], [28, 28]])
    assert failing(run) == set()


def test_a_learning_rate_that_is_another_number_is_found(run: Path) -> None:
    add_metric(run, round=1, learning_rate=0.4711)
    assert failing(run) == {"disclosure"}


def test_a_further_field_of_the_ledger_is_found(run: Path) -> None:
    rewrite_ledger(run, lambda entries: entries[2].update(mean_norm=0.4))
    assert failing(run) == {"disclosure"}


def test_a_field_inside_the_claim_is_found(run: Path) -> None:
    rewrite_ledger(run, lambda entries: entries[-1]["third_party"].update(loss=0.4))
    assert failing(run) == {"disclosure", "views"}


@pytest.mark.parametrize("name", ["layer-0.running_mean", "more"])
def test_a_tensor_that_was_not_trained_is_found(run: Path, name: str) -> None:
    raw = (run / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    numbers = np.frombuffer(raw[8 + length :], "<f4")
    tensors = {
        key: numbers[entry["data_offsets"][0] // 4 : entry["data_offsets"][1] // 4]
        for key, entry in header.items()
    }
    (run / "model.safetensors").write_bytes(pack({**tensors, name: np.ones(3, np.float32)}))
    assert failing(run) == {"disclosure", "weights"}


@pytest.mark.parametrize(
    "name", ["losses.csv", ".unfinished/losses.csv", "evidence/exp_avg.npz", "evidence/more/one"]
)
def test_a_file_that_no_run_writes_is_not_judged_and_said(run: Path, name: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("0.7")
    found = audit_run(run)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert name.removesuffix("/one") in found.named("disclosure").measurement


@pytest.mark.parametrize("name", ["optimizer.pt", "state-00002.safetensors"])
def test_a_checkpoint_in_a_finished_run_fails(run: Path, name: str) -> None:
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / name).write_text("0.7")
    assert failing(run) == {"disclosure"}
    assert f"'checkpoint/{name}'" in finding_of(run, "disclosure").measurement


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_finished_run_keeps_no_checkpoint_of_any_kind(run: Path, kind: str) -> None:
    path = run / "checkpoint"
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        path.symlink_to(run / "evidence", target_is_directory=True)
    else:
        path.mkdir()
    assert "'checkpoint'" in finding_of(run, "disclosure").measurement


def test_a_run_that_did_not_finish_may_have_what_it_goes_on_from(run: Path) -> None:
    rewrite_ledger(run, lambda entries: entries.pop())
    (run / "checkpoint").mkdir()
    for name in ("spec.yaml", "paid", "state-00001.safetensors", "state-00002.safetensors"):
        (run / "checkpoint" / name).write_text("")
    assert "no run writes" not in finding_of(run, "disclosure").measurement
    (run / "checkpoint" / "state.safetensors").write_text("")
    assert "checkpoint/state.safetensors" in finding_of(run, "disclosure").measurement


def test_unknown_fields_are_named_once_and_in_place() -> None:
    line = {"server": {"clients": [{"client": 1, "loss": 1.0}, {"client": 2, "loss": 2.0}]}}
    assert list(unknown_fields(line, LEDGER["claim"])) == ["server.clients.loss"]
    assert list(unknown_fields({"round": 1, "x": {"y": 1}}, METRICS)) == ["x"]
    assert list(unknown_fields(3, METRICS)) == []


def test_a_key_that_anybody_would_try_first_is_found(run: Path) -> None:
    import hashlib

    key = hashlib.sha256(b"42").digest()
    commitment = hashlib.sha256(b"dpfedadamw release key commitment 1\x00" + key).hexdigest()
    assert commitment in obvious_commitments()
    rewrite_ledger(run, lambda entries: entries[0].update(commitment=commitment))
    assert failing(run) == {"randomness"}


SIZES = np.asarray([100.0, 10.0])


@pytest.mark.parametrize(
    ("floor", "corrected", "floored", "right"),
    [
        (Floor(1.0, None, False), [1.0, 1.5], [95, 9], True),
        (Floor(1.0, None, False), [1.0, 1.5], [50, 2], True),  # just what Markov's bound leaves
        (Floor(1.0, None, False), [1.0, 1.5], [40, 9], False),
        (Floor(1.0, None, False), [1.0, 1.5], [101, 9], False),
        (Floor(None, 0.5, False), [9.0, 9.0], [0, 0], True),
        (Floor(0.0, None, False), [9.0, 9.0], [0, 0], True),
        (Floor(0.0, None, False), [1.0, 1.5], [50, 5], False),
        (Floor(1.0, None, True), [1.5, 2.5], [100, 0], True),
        (Floor(1.0, None, True), [1.5, 2.5], [0, 0], False),
        (Floor(1.0, None, True), [1.5, 2.5], [100, 10], False),
    ],
)
def test_coordinates_at_the_floor_are_as_many_as_the_mean_allows(
    floor: Floor, corrected: list[float], floored: list[int], right: bool
) -> None:
    found = floor_faults(np.asarray([corrected]), np.asarray([floored]), SIZES, 1.0, floor)
    assert (not found) is right


def test_markovs_bound_holds_for_any_law_of_coordinates() -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        values = rng.gamma(rng.uniform(0.05, 5.0), rng.uniform(0.1, 3.0), 1000)
        floor = Floor(float(rng.uniform(0.1, 3.0)), None, False)
        floored = np.asarray([[int(np.sum(values - 1.0 < floor.value(1.0)))]])
        mean = np.asarray([[values.mean()]])
        assert floor_faults(mean, floored, np.asarray([1000.0]), 1.0, floor) == []


def test_a_run_whose_rule_has_no_floor_is_found(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    for index in range(4):
        rewrite_round(run, index, lambda arrays: arrays["floored"].fill(0))
    assert failing(run) == {"second-moment"}
