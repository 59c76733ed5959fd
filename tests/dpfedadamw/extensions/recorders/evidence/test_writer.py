"""What a writer leaves on the disk, in which order, and what it refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedadamw.extensions.recorders.evidence import (
    EvidenceError,
    EvidenceWriter,
    Stated,
    close_paused,
)
from dpfedadamw.storage.lock import LockedError
from tests.dpfedadamw.extensions.recorders.evidence.small_loop import (
    TENSORS,
    charge_of,
    loop_of,
    step_of,
)

STATED = Stated(epsilon=3.0, accountant="rdp", history=[(2.0, 0.25, 3)])
VIEW = {"accountant": "rdp", "epsilon": {"rdp": 3.0}}


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    """The ledger's lines of a kind, without what chains them."""
    found = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    chain = ("digest", "previous", "kind")
    return [{k: v for k, v in one.items() if k not in chain} for one in found
            if one["kind"] == kind]  # fmt: skip


def arrays(run: Path, name: str) -> dict[str, Any]:
    with np.load(run / "evidence" / name) as file:
        return {one: file[one].tolist() for one in file.files}


def make(writer: EvidenceWriter, steps: int = 1, squares: Any = None, **charge: float) -> None:
    for _ in range(steps):
        writer.charge(charge_of(**charge))
        writer.step(step_of(), squares)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("sampling_rate", (1e-300, 1.0), (0.0, -0.1, 1.0000001, float("nan"))),
        ("expected_batch_size", (1e-300, 9e299), (0.0, -1.0, 1e300, float("inf"))),
        ("clipping_norm", (1e-30, 9e299), (0.0, -1.0, 1e300, float("nan"))),
        ("noise_multiplier", (1e-300, 9e299), (0.0, -1.0, 1e300, float("inf"))),
    ],
)
def test_a_charge_out_of_range_is_refused_by_its_name_and_written_nowhere(
    name: str, good: tuple[float, ...], bad: tuple[float, ...], tmp_path: Path
) -> None:
    writer = EvidenceWriter(tmp_path / "run", loop_of())
    for value in bad:
        with pytest.raises(EvidenceError, match=f"^{name} is ") as told:
            writer.charge(charge_of(**{name: value}))
        assert ("at most 1" in str(told.value)) == (name == "sampling_rate")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    for value in good:
        make(writer, **{name: value})
    assert [one[name] for one in lines(tmp_path / "run", "spend")] == [*good]
    writer.release()


def test_a_recording_has_the_files_of_the_format_and_each_says_what_was_recorded(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    writer = EvidenceWriter(run, loop_of())
    assert (writer.path, writer.steps, writer.in_stretch) == (run.resolve(), 0, 0)
    assert writer.squares.tolist() == [0.0, 0.0, 0.0]
    make(writer, 2, np.array([0.01, 0.0, 0.09], np.float32))
    assert (writer.steps, writer.in_stretch) == (2, 2)
    closed = writer.close(STATED, "ab" * 32, fingerprint=23, unused=4, skipped=5)
    assert closed.path == run.resolve()
    names = {str(one.relative_to(run)) for one in run.rglob("*") if one.is_file()}
    assert names - {"run.lock", ".lock"} == {
        "spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.json", "evidence/layout.json",
        "evidence/salt", "evidence/round-00000.npz", "evidence/coordinates.npz",
        "evidence/end.npz",
    }  # fmt: skip
    for name in ("spec.yaml", "metrics.jsonl", "model.json"):
        assert stat.S_IMODE((run / name).stat().st_mode) == 0o644
    assert (run / "metrics.jsonl").read_bytes() == b""
    assert len((run / "evidence" / "salt").read_bytes()) == 32
    assert json.loads((run / "model.json").read_text()) == {
        "format": 1, "parameters": 9, "tensors": [*TENSORS], "qualifications": [],
    }  # fmt: skip
    assert json.loads((run / "evidence" / "layout.json").read_text()) == {
        "format": 1,
        "unit": "loop",
        "parameters": 3,
        "blocks": {
            "kind": "tensor",
            "names": ["a", "b"],
            "sizes": [2, 1],
            "runs": [
                {"name": "a", "stop": 2, "blocks": [0]},
                {"name": "b", "stop": 3, "blocks": [1]},
            ],
        },
        "beta2": None,
        "sample_coordinates": [0, 1, 2],
        "per_round_files": 1,
    }
    sums = arrays(run, "coordinates.npz")
    assert (sums["rounds"], sums["chosen"]) == (1, [0, 1, 2])
    assert sums["squares"] == pytest.approx([0.01, 0.0, 0.09])
    assert arrays(run, "end.npz") == {"fingerprint": 23, "unused": 4, "skipped": 5}
    (header,) = lines(run, "header")
    assert header["run"].startswith("run-2")
    assert len(header["spec_sha256"]) == 64
    assert [one["round"] for one in lines(run, "spend")] == [0, 0]
    assert lines(run, "round") == [
        {"round": 0, "clients": [0], "steps": [2], "queries": [2], "parameters_sha256": "ab" * 32}
    ]
    (claim,) = lines(run, "claim")
    assert claim.items() >= {
        "delta": 1e-3, "adjacency": "add-remove", "server": VIEW,
        "accountant_history": [[2.0, 0.25, 3]],
    }.items()  # fmt: skip
    with pytest.raises(EvidenceError, match="is closed; a new recording needs a new folder"):
        writer.charge(charge_of())
    assert len(lines(run, "spend")) == 2


def test_a_file_has_sixty_four_steps_at_most_all_of_one_charge_and_of_one_stretch(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    writer = EvidenceWriter(run, loop_of())
    writer.attach()
    make(writer, 65)
    make(writer, 2, noise_multiplier=3.0)
    writer.attach(np.array([0, 1, 1]))
    assert (writer.steps, writer.in_stretch) == (67, 0)
    make(writer, noise_multiplier=3.0)
    assert (writer.steps, writer.in_stretch) == (68, 1)
    writer.close(STATED, "ab" * 32)
    files = [arrays(run, f"round-0000{index}.npz") for index in range(4)]
    assert [len(one["settings"]) for one in files] == [64, 1, 2, 1]
    assert [one["attachment"] for one in files] == [1, 1, 1, 2]
    assert [one["group"] for one in files] == [[0, 0, 0]] * 3 + [[0, 1, 1]]
    assert [one["round"] for one in lines(run, "spend")] == [0] * 64 + [1, 2, 2, 3]
    over = lines(run, "round")
    assert [(one["round"], one["steps"], one["queries"]) for one in over] == [
        (0, [64], [64]), (1, [1], [1]), (2, [2], [2]), (3, [1], [1]),
    ]  # fmt: skip
    # Parameters are known at the end alone.
    assert ["parameters_sha256" in one for one in over] == [False, False, False, True]
    assert json.loads((run / "evidence" / "layout.json").read_text())["per_round_files"] == 4
    # Nobody added up squares, or took a checksum.
    assert not (run / "evidence" / "coordinates.npz").exists()
    assert arrays(run, "end.npz") == {"fingerprint": -1, "unused": 0, "skipped": 0}


def test_steps_and_charges_come_in_turns(tmp_path: Path) -> None:
    writer = EvidenceWriter(tmp_path / "run", loop_of())
    with pytest.raises(EvidenceError, match="without a charge"):
        writer.step(step_of())
    with pytest.raises(EvidenceError, match="no step was recorded"):
        writer.close(STATED, None)
    make(writer)
    with pytest.raises(EvidenceError, match="without a charge"):
        writer.step(step_of())
    writer.attach()
    writer.charge(charge_of())
    with pytest.raises(EvidenceError, match="no step followed"):
        writer.close(STATED, None)
    writer.release()


def test_of_a_large_model_some_coordinates_are_drawn_anew_for_each_recording(
    tmp_path: Path,
) -> None:
    size = (1 << 18) + 9
    one, other = (
        EvidenceWriter(tmp_path / name, loop_of(tensors=(("a", size),))) for name in ("a", "b")
    )
    for writer in (one, other):
        for chosen, most in ((writer.sample, 256), (writer.summed, 1 << 18)):
            assert (len(chosen), chosen.dtype) == (most, np.int64)
            assert 0 <= chosen[0] < chosen[-1] < size
            assert (np.diff(chosen) > 0).all()
        assert len(writer.squares) == 1 << 18
        writer.release()
    assert one.sample.tolist() != other.sample.tolist()
    assert one.summed.tolist() != other.summed.tolist()
    whole = EvidenceWriter(tmp_path / "c", loop_of(tensors=(("a", 256),)))
    assert whole.sample.tolist() == [*range(256)]
    whole.release()


# What a paused recording goes on from.


def paused(run: Path, **changes: Any) -> None:
    """A first process's part: two steps, of which the squares and a checksum are known."""
    writer = EvidenceWriter(run, loop_of(**changes), continued=True)
    writer.attach()
    make(writer, 2, np.array([0.01, 0.0, 0.09], np.float32))
    writer.pause(STATED, "ab" * 32, fingerprint=23, unused=4, skipped=5)


def test_a_recording_goes_on_where_the_process_before_paused_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paused(run)
    kept = run / "evidence" / "paused.json"
    assert json.loads(kept.read_text()) == {
        "epsilon": 3.0, "accountant": "rdp", "history": [[2.0, 0.25, 3]],
    }  # fmt: skip
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert lines(run, "claim") == []
    writer = EvidenceWriter(run, loop_of(), continued=True)
    assert (writer.steps, writer.in_stretch) == (2, 0)
    assert writer.sample.tolist() == writer.summed.tolist() == [0, 1, 2]
    assert writer.squares.tolist() == pytest.approx([0.01, 0.0, 0.09])
    writer.attach()
    make(writer, 1, np.array([0.02, 0.0, 0.1], np.float32))
    writer.close(Stated(epsilon=4.0, accountant="prv"), "cd" * 32, unused=1, skipped=2)
    assert not kept.exists()
    assert [one["round"] for one in lines(run, "spend")] == [0, 0, 1]
    assert [one["parameters_sha256"] for one in lines(run, "round")] == ["ab" * 32, "cd" * 32]
    first, second = (arrays(run, f"round-0000{index}.npz")["attachment"] for index in (0, 1))
    assert first < second
    # What was left over is added up, and there is no checksum of the last parameters.
    assert arrays(run, "end.npz") == {"fingerprint": -1, "unused": 5, "skipped": 7}
    assert arrays(run, "coordinates.npz")["rounds"] == 2
    (claim,) = lines(run, "claim")
    assert claim["server"] == {"accountant": "prv", "epsilon": {"prv": 4.0}}


def test_a_pause_without_a_step_leaves_what_was_said_and_known_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paused(run)
    kept = (run / "evidence" / "paused.json").read_bytes()
    writer = EvidenceWriter(run, loop_of(), continued=True)
    writer.attach()
    writer.pause(unused=1, skipped=1)
    assert (run / "evidence" / "paused.json").read_bytes() == kept
    assert arrays(run, "end.npz") == {"fingerprint": 23, "unused": 5, "skipped": 6}
    # A recording whose first process made no step is none.
    writer = EvidenceWriter(tmp_path / "other", loop_of(), continued=True)
    writer.attach()
    writer.pause(STATED, fingerprint=7)
    assert [one.name for one in (tmp_path / "other").iterdir() if "lock" not in one.name] == []
    paused(tmp_path / "other")


@pytest.mark.parametrize(
    "changes",
    [{"tensors": (("a", 3), ("b", 1))}, {"records": 41}, {"delta": 2e-3}, {"unit": "client"}],
)
def test_a_recording_of_another_loop_is_not_gone_on_with(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    paused(tmp_path / "run")
    with pytest.raises(EvidenceError, match="a recording of a different loop"):
        EvidenceWriter(tmp_path / "run", loop_of(**changes), continued=True)
    # The folder is free for the right one.
    EvidenceWriter(tmp_path / "run", loop_of(), continued=True).release()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("layout.json", b"[]"),
        ("layout.json", b"{}"),
        ("layout.json", None),
        ("coordinates.npz", b"none"),
        ("end.npz", None),
    ],
)
def test_what_was_not_paused_whole_is_not_gone_on_with(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    paused(tmp_path / "run")
    path = tmp_path / "run" / "evidence" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(EvidenceError, match="was not paused and cannot be continued"):
        EvidenceWriter(tmp_path / "run", loop_of(), continued=True)


def test_steps_that_were_charged_and_have_no_evidence_are_counted_and_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paused(run)
    writer = EvidenceWriter(run, loop_of(), continued=True)
    writer.attach()
    make(writer, 3)
    # As by a process that was killed.
    writer.release()
    with pytest.raises(EvidenceError, match=": 3 steps were charged but have no evidence"):
        EvidenceWriter(run, loop_of(), continued=True)


def test_a_closed_recording_is_neither_gone_on_with_nor_recorded_over(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = EvidenceWriter(run, loop_of())
    make(writer)
    with pytest.raises(LockedError):
        EvidenceWriter(run, loop_of(), continued=True)
    writer.close(STATED, None)
    with pytest.raises(EvidenceError, match="is closed; a new recording needs a new folder"):
        EvidenceWriter(run, loop_of(), continued=True)
    with pytest.raises(EvidenceError, match="exists already"):
        EvidenceWriter(run, loop_of())


# Who ends what nobody goes on with.


@pytest.mark.parametrize(
    ("changes", "adjacency", "whom"),
    [
        ({}, "add-remove", "one record"),
        ({"unit": "client", "sampling": "fixed-size"}, "replace-one", "one client"),
    ],
)
def test_a_paused_recording_is_closed_by_what_was_said_at_its_pause(
    changes: dict[str, Any], adjacency: str, whom: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    paused(run, **changes)
    assert close_paused(str(run)).path == run.resolve()
    (claim,) = lines(run, "claim")
    assert (claim["delta"], claim["adjacency"], claim["server"]) == (1e-3, adjacency, VIEW)
    assert claim["accountant_history"] == [[2.0, 0.25, 3]]
    assert any(whom in one for one in claim["assumptions"])
    assert not (run / "evidence" / "paused.json").exists()
    with pytest.raises(EvidenceError, match="is closed already"):
        close_paused(run)


def test_a_recording_that_was_never_paused_or_is_in_use_is_not_closed(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="holds no recording"):
        close_paused(tmp_path)
    run = tmp_path / "run"
    paused(run)
    writer = EvidenceWriter(run, loop_of(), continued=True)
    with pytest.raises(LockedError):
        close_paused(run)
    writer.release()
    for content in (b"[]", b"{}", b'{"epsilon": 3.0, "accountant": "rdp", "more": 1}', None):
        path = run / "evidence" / "paused.json"
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(EvidenceError, match="was not paused, so the statements"):
            close_paused(run)
    assert lines(run, "claim") == []


# Where a recording may lie.


@pytest.mark.parametrize("name", ["a", "9", "A.b_c-d", "a" * 150])
def test_a_recording_is_named_after_its_folder(name: str, tmp_path: Path) -> None:
    writer = EvidenceWriter(tmp_path / "new" / name, loop_of())
    make(writer)
    (header,) = lines(tmp_path / "new" / name, "header")
    assert header["run"].startswith(f"{name}-2")
    writer.release()


@pytest.mark.parametrize("name", [".a", "_a", "-a", "a b", "a" * 151, "ä", "a\n"])
def test_a_folder_whose_name_is_no_name_of_a_run_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="the run is named after its folder"):
        EvidenceWriter(tmp_path / "new" / name, loop_of())
    assert not (tmp_path / "new").exists()


def test_what_is_no_new_or_empty_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "mine").write_text("kept")
    for name in ("link", "nowhere", "file", "held"):
        with pytest.raises(EvidenceError, match=f"{name}: exists already"):
            EvidenceWriter(tmp_path / name, loop_of())
    with pytest.raises(EvidenceError, match="cannot be made"):
        EvidenceWriter(tmp_path / "file" / "run", loop_of())
    assert [one.name for one in (tmp_path / "held").iterdir()] == ["mine"]
    assert (tmp_path / "file").read_text() == "kept"
    assert not [*(tmp_path / "empty").iterdir()]
    EvidenceWriter(tmp_path / "empty", loop_of()).release()
