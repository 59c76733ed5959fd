"""Folders of runs: which is the newest, and what is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpfedadamw.rundir import (
    RunDirectory,
    RunDirectoryError,
    holds_a_run,
    newest,
    open_existing,
    point_latest,
)

EARLY, LATE = "20260101T235959Z", "20260102T000000Z"


def run_named(parent: Path, name: str, modified: int = 1_000) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "spec.yaml").touch()
    os.utime(folder, ns=(modified, modified))
    return folder


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (f"z-{EARLY}-ffffffff", f"a-{LATE}-00000000"),
        (f"a-{EARLY}-00000000", f"z-{LATE}-ffffffff"),
        (f"same-{EARLY}-ffffffff", f"same-{LATE}-00000000"),
        (f"of-{LATE}-things-{EARLY}-ffffffff", f"of-things-{LATE}-00000000"),
    ],
)
def test_the_newest_run_is_that_of_the_latest_time_in_its_name(
    first: str, last: str, tmp_path: Path
) -> None:
    run_named(tmp_path, last, modified=1_000)
    run_named(tmp_path, first, modified=2_000)
    assert newest(tmp_path).path == tmp_path / last


@pytest.mark.parametrize("last", ["a", "b"])
def test_of_runs_of_the_same_second_the_newest_is_that_which_was_changed_last(
    last: str, tmp_path: Path
) -> None:
    for name in "ab":
        run_named(tmp_path, f"{name}-{EARLY}-00000000", 2_000 if name == last else 1_000)
    assert newest(tmp_path).path.name.startswith(last)


def test_what_is_no_run_is_never_the_newest(tmp_path: Path) -> None:
    run = run_named(tmp_path, f"run-{EARLY}-0123abcd")
    for name in (
        f"run-{LATE}-0123ABCD",
        f"run-{LATE}-0123abcde",
        f"run-{LATE}",
        f"{LATE}-0123abcd",
    ):
        run_named(tmp_path, name)
    (tmp_path / f"file-{LATE}-0123abcd").touch()
    (tmp_path / f"link-{LATE}-0123abcd").symlink_to(run)
    assert newest(tmp_path).path == run


def test_without_a_newest_run_it_is_said_how_to_get_or_name_one(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunDirectoryError, match="holds no run yet"):
            newest(parent)
    (run_named(tmp_path, "renamed") / "ledger.jsonl").touch()
    with pytest.raises(RunDirectoryError, match=f"renamed.* such as {tmp_path / 'renamed'}"):
        newest(tmp_path)


def test_a_run_is_opened_by_its_ledger_or_its_spec_and_nothing_else_is(tmp_path: Path) -> None:
    for name in ("ledger.jsonl", "spec.yaml"):
        (tmp_path / name.partition(".")[0]).mkdir()
        (tmp_path / name.partition(".")[0] / name).touch()
        assert open_existing(tmp_path / name.partition(".")[0]).path.name in name
    (tmp_path / "link").symlink_to("ledger")
    assert open_existing(tmp_path / "link").path == tmp_path / "ledger"
    (tmp_path / "empty").mkdir()
    (tmp_path / "gone").symlink_to("nowhere")
    for name, said in (
        ("empty", "neither ledger"),
        ("absent", "no such directory"),
        ("ledger/ledger.jsonl", "no such directory"),
        ("gone", "points to nowhere"),
    ):
        with pytest.raises(RunDirectoryError, match=said):
            open_existing(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "holds"),
    [
        (("ledger.jsonl",), True),
        (("attestation.json",), True),
        (("model.json", "model.safetensors"), True),
        (("federation.json", "spec.yaml"), True),
        (("model.json",), False),
        (("model.safetensors", "spec.yaml"), False),
        (("federation.json", "model.json"), False),
        ((), False),
    ],
)
def test_a_folder_that_was_made_of_a_run_is_known_by_its_files(
    names: tuple[str, ...], holds: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert holds_a_run(tmp_path) is holds


def test_latest_follows_the_last_run_and_takes_nobody_s_place(tmp_path: Path) -> None:
    runs = [run_named(tmp_path, f"run-{EARLY}-0000000{at}") for at in range(2)]
    link, stray = tmp_path / "latest", tmp_path / ".latest-0123"
    stray.symlink_to("nowhere")
    for run in runs:
        point_latest(RunDirectory(run))
        assert link.resolve() == run
        assert not Path(os.readlink(link)).is_absolute()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", *(r.name for r in runs)]
    link.unlink()
    link.mkdir()
    point_latest(RunDirectory(runs[0]))
    assert not link.is_symlink()
    assert list(link.iterdir()) == []
