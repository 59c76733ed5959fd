"""What a run directory holds, and why a name in it is not accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.untrusted.files import FileError, Refusal
from reports.errors import SourceError
from reports.signatures import inventory
from reports.signatures.inventory import evidence_digests, has_evidence, list_run


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Refusal.MISSING, "missing"),
        (Refusal.LINK, "is a link; a run holds regular files only"),
        (Refusal.NOT_PLAIN, "is not a regular file"),
        (Refusal.TOO_LARGE, "larger than the accepted 12 bytes"),
        (Refusal.WRONG_SIZE, "12 bytes are needed"),
        (Refusal.CANNOT_OPEN, "12; a regular file is needed"),
        (Refusal.CANNOT_LIST, "cannot be listed (12)"),
        (Refusal.TOO_DEEP, "lies too deep"),
        (Refusal.UNUSUAL_NAME, "has a name with unusual characters"),
        # Others are told as the reader of hostile files puts them.
        (Refusal.TOO_MANY, "has more than 12 files"),
    ],
)
def test_each_refusal_is_told_with_its_bound(refusal: Refusal, said: str) -> None:
    found = inventory._problem(FileError("a name", refusal, 12))
    assert (found.file, found.reason, str(found)) == ("a name", said, f"a name: {said}")


def test_a_run_is_listed_without_evidence_checkpoint_and_writes_that_go_on(tmp_path: Path) -> None:
    for name in ("b", "a/c", "evidence/x", "checkpoint/y", ".unfinished/z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to("b")
    names, problems = list_run(tmp_path)
    assert names == ("a/c", "b")
    assert [str(problem) for problem in problems] == [
        "link: is a link; a run holds regular files only"
    ]
    with pytest.raises(SourceError):
        list_run(tmp_path / "none")


def test_evidence_is_a_folder_with_a_salt_and_a_link_to_one_is_refused(tmp_path: Path) -> None:
    assert not has_evidence(tmp_path)
    with pytest.raises(SourceError, match="evidence: a folder is needed, not a link"):
        evidence_digests(tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "evidence").symlink_to(away)
    assert has_evidence(tmp_path)
    with pytest.raises(SourceError, match="evidence: a folder is needed, not a link"):
        evidence_digests(tmp_path)
    (tmp_path / "evidence").unlink()
    (tmp_path / "evidence").write_bytes(b"")
    with pytest.raises(SourceError, match="evidence: a folder is needed, not a link"):
        evidence_digests(tmp_path)
    (tmp_path / "evidence").unlink()
    (tmp_path / "evidence").mkdir()
    with pytest.raises(SourceError, match="salt"):
        evidence_digests(tmp_path)


def test_the_trainers_digest_is_of_all_evidence_but_the_findings_under_its_salt(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()

    def digests(name: str, content: bytes) -> tuple[str, str]:
        (folder / name).write_bytes(content)
        found = evidence_digests(tmp_path)
        return found.trained, found.judged

    (folder / "salt").write_bytes(bytes(32))
    alone = digests("round.npz", b"numbers")
    assert alone[0] == alone[1]
    found = digests("findings.json", b"{}")
    assert found[0] == alone[0]
    assert found[1] != alone[1]
    for name, content in (("round.npz", b"others"), ("salt", bytes(range(32)))):
        changed = digests(name, content)
        assert changed[0] != found[0]
        assert changed[1] != found[1]
        found = changed
