"""What trainer and auditor exchange: handles of data, new files, and what a draw is for."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from audit.reexecution import Participation
from dpfedadamw.cli import challenge, challenge_files
from dpfedadamw.cli.challenge_files import FinishedRun, data_handle
from dpfedadamw.errors import FilingError
from dpfedadamw.rundir import RunDirectory
from reports.signatures.challenges import Draw, Seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key folder, which is not there yet."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "new" / "keys"))
    return tmp_path / "new" / "keys"


DATA, OTHER = "ab" * 32, "cd" * 32


def test_a_data_set_has_one_handle_that_only_its_trainer_can_make(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = data_handle(DATA)
    salt = folder / "data.salt"
    assert handle == hmac.new(salt.read_bytes(), bytes.fromhex(DATA), "sha256").hexdigest()
    assert (data_handle(DATA), data_handle(OTHER) == handle) == (handle, False)
    assert stat.S_IMODE(salt.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "another"))
    assert data_handle(DATA) != handle


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_salt_that_was_cut_or_lengthened_makes_no_handle(size: int, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (folder / "data.salt").write_bytes(bytes(size))
    with pytest.raises(FilingError, match=r"data\.salt: does not have 32 bytes"):
        data_handle(DATA)


def test_a_salt_that_cannot_be_written_is_one_line(folder: Path) -> None:
    folder.parent.mkdir()
    folder.touch()
    with pytest.raises(FilingError, match=r"data\.salt: cannot be written \(File exists\)"):
        data_handle(DATA)


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_file_is_new_whole_and_as_private_as_it_must_be(
    private: bool, mode: int, tmp_path: Path
) -> None:
    path = tmp_path / "draw.json"
    challenge_files.write_new(path, b"content", private)
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with pytest.raises(FilingError, match=r"draw\.json: cannot be written"):
        challenge_files.write_new(path, b"other")
    assert path.read_bytes() == b"content"


def test_timestamp_and_proof_lie_beside_their_envelope() -> None:
    path = Path("there/intent.json")
    assert challenge_files.stamp_of(path) == Path("there/intent.json.tsr")
    assert challenge_files.proof_of(path) == Path("there/intent.json.tlog")


def test_a_file_that_is_missing_or_none_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FilingError, match=f"{path}: "):
            challenge_files.read_file(path)


def test_names_that_are_taken_are_refused_links_to_nowhere_too(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "link").symlink_to("nowhere")
    challenge._refuse_existing(tmp_path / "a", tmp_path / "b")
    for name in ("taken", "link"):
        with pytest.raises(typer.Exit) as ended:
            challenge._refuse_existing(tmp_path / "a", tmp_path / name)
        assert ended.value.exit_code == 2


@pytest.mark.parametrize(
    ("of_trainer", "for_data", "dropped", "dropped_of_trainer", "words"),
    [
        (1, 1, 0, 0, "the first for these data"),
        (
            3,
            1,
            0,
            2,
            "the first for these data (number 3 of this trainer, 2 of which came to nothing)",
        ),
        (4, 4, 3, 3, "number 4 for these data, 3 of which came to nothing"),
        (
            5,
            4,
            3,
            1,
            "number 4 for these data, 3 of which came to nothing (number 5 of this trainer, 1 of "
            "which came to nothing)",
        ),
    ],
)
def test_how_many_intents_were_seen_is_told_of_the_data_and_of_the_trainer(
    of_trainer: int, for_data: int, dropped: int, dropped_of_trainer: int, words: str
) -> None:
    seen = Seen(
        of_trainer=of_trainer,
        for_data=for_data,
        dropped=dropped,
        dropped_of_trainer=dropped_of_trainer,
    )
    assert challenge.seen_in_words(seen) == words


PLACES = tuple(Participation(round, client, 0) for round in range(3) for client in (0, 2, 4))


def finished(*, commits: bool) -> FinishedRun:
    """A run of three rounds of three clients each."""
    return FinishedRun(
        run=RunDirectory(Path("runs/a-run")),
        challenge=cast(
            "Any", SimpleNamespace(intent=SimpleNamespace(promised=SimpleNamespace(run="a-run")))
        ),
        ledger_sha256="ab" * 32,
        attestation_sha256="cd" * 32,
        participations=PLACES,
        commits_to_start=commits,
    )


def draw(**more: Any) -> Draw:
    drawn = {"run": "a-run", "ledger_sha256": "ab" * 32, "nonce": bytes(32), "participations": 1}
    return cast("Draw", SimpleNamespace(**{**drawn, **more}))


def test_one_of_the_first_round_is_drawn_in_addition_where_the_start_is_committed_to() -> None:
    nonces = [bytes([number]) * 32 for number in range(40)]
    sizes = set()
    for nonce in nonces:
        alone = finished(commits=False).drawn(draw(nonce=nonce))
        also = finished(commits=True).drawn(draw(nonce=nonce))
        assert len(alone) == 1
        assert set(alone) <= set(also) <= set(PLACES)
        of_first = [one for one in also if one.round == 0]
        assert len(of_first) == 1
        assert len(also) == (1 if alone[0].round == 0 else 2)
        sizes.add(len(also))
    assert sizes == {1, 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run": "other"}, "is for the run other, not a-run"),
        ({"ledger_sha256": "ef" * 32}, "efefefefefef…, and the one here is abababababab…"),
    ],
)
def test_a_draw_for_another_run_or_ledger_chooses_nothing(
    changes: dict[str, str], said: str
) -> None:
    with pytest.raises(FilingError, match=said):
        finished(commits=True).drawn(draw(**changes))
