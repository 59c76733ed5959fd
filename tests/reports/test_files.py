"""Files of a run as reports read them: what is refused and how, and texts that a page can show."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import files
from reports.errors import ReportError, SourceError, local
from reports.files import (
    OversizeError,
    Snapshot,
    clean,
    integer,
    mapping,
    number,
    parse_json,
    parse_json_lines,
    parse_yaml,
    read_bytes,
    sequence,
    sha256_file,
    write_atomic,
)


@pytest.mark.parametrize(
    ("value", "limit", "shown"),
    [
        (None, 10, ""),
        (0, 10, "0"),
        (True, 10, "True"),
        ([1], 10, "[1]"),
        ("  a  b ", 10, "a b"),
        (" a b ", 10, "a b"),
        ("a\tb\rc", 10, "a b c"),
        ("a \n  b", 10, "a\nb"),
        ("\n\na\n", 10, "a"),
        ("a\u2028b\u2029c\u00a0d\u3000e", 20, "a b c d e"),
        ("a\x00b\x1bc\x85", 10, "a\ufffdb\ufffdc\ufffd"),
        ("a\ud800b\ue000c\u0378", 10, "a\ufffdb\ufffdc\ufffd"),
        # What reorders a line or has no width is dropped, but for the joiners of some scripts.
        ("a\u202eb\u200bc\ufeffd", 10, "abcd"),
        ("\u0646\u200c\u0627\u200d", 10, "\u0646\u200c\u0627\u200d"),
        ("e\u0301", 10, "\u00e9"),
        ("abcde", 5, "abcde"),
        ("abcdef", 5, "abcd…"),
        ("äbcde", 5, "äbcde"),
        ("äbcdef", 5, "äbcd…"),
        ("ab  cd", 5, "ab cd"),
    ],
)
def test_a_text_is_shown_without_what_steers_a_page_and_at_most_so_long(
    value: Any, limit: int, shown: str
) -> None:
    assert clean(value, limit) == shown


@given(st.text(), st.integers(1, 12))
def test_no_text_is_longer_than_its_limit_or_has_room_to_spare(text: str, limit: int) -> None:
    shown = clean(text, limit)
    assert len(shown) <= limit
    assert "  " not in shown
    assert shown == shown.strip()


def test_texts_have_four_thousand_letters_at_most() -> None:
    assert len(clean("a" * 4_000)) == 4_000
    assert clean("a" * 4_001) == "a" * 3_999 + "…"


@pytest.mark.parametrize(
    ("value", "as_number", "as_integer"),
    [
        (3, 3.0, 3),
        (-0.5, -0.5, None),
        (True, None, None),
        (False, None, None),
        ("3", None, None),
        (None, None, None),
        (math.nan, None, None),
        (math.inf, None, None),
        (10**400, None, None),
        (2**63 - 1, float(2**63), 2**63 - 1),
        (2**63, float(2**63), None),
        (-(2**63) + 1, -float(2**63), -(2**63) + 1),
        (-(2**63), -float(2**63), None),
    ],
)
def test_only_numbers_that_can_be_shown_are_numbers(
    value: Any, as_number: float | None, as_integer: int | None
) -> None:
    assert number(value) == as_number
    assert integer(value) == as_integer
    assert type(integer(value)) is type(as_integer)


def test_whatever_is_no_mapping_or_list_is_an_empty_one() -> None:
    assert mapping({"a": 1}) == {"a": 1}
    assert sequence([1]) == [1]
    for other in (None, 1, "text", (1, 2)):
        assert mapping(other) == {}
        assert sequence(other) == []
    assert mapping([1]) == {}
    assert sequence({"a": 1}) == []


def test_json_is_parsed_line_by_line_and_the_line_that_is_wrong_is_named() -> None:
    assert parse_json(b'{"a": [1]}', "x") == {"a": [1]}
    assert parse_json_lines(b'{"a":1}\n\n  \n{"b":2}', "x") == [{"a": 1}, {"b": 2}]
    assert parse_json_lines(b"", "x") == []
    for raw, said in (
        (b'{"a":1}\n\n[]\n', "x, line 3: a JSON object is needed"),
        (b"{}\n{", "x, line 2: not valid JSON ("),
        (b"[" * 40 + b"]" * 40, "x, line 1: nested too deeply"),
    ):
        with pytest.raises(SourceError) as refusal:
            parse_json_lines(raw, "x")
        assert str(refusal.value).startswith(said)
    with pytest.raises(SourceError, match=r"^y: not valid JSON \("):
        parse_json(b'{"a":1,"a":2}', "y")


def test_yaml_is_a_mapping_or_refused_in_one_line() -> None:
    assert parse_yaml(b"a: {b: 1}", "spec.yaml") == {"a": {"b": 1}}
    for raw, said in (
        (b"- 1", "spec.yaml: a YAML mapping is needed"),
        (b"", "spec.yaml: a YAML mapping is needed"),
        (b"a: &x 1", "spec.yaml: not valid YAML ("),
        (b"a: [\n", "spec.yaml: not valid YAML ("),
        (b"a: " + b"[" * 40 + b"]" * 40, "spec.yaml: nested too deeply"),
    ):
        with pytest.raises(SourceError) as refusal:
            parse_yaml(raw, "spec.yaml")
        assert str(refusal.value).startswith(said)


def test_a_file_is_read_up_to_its_limit_and_every_other_thing_is_refused_by_name(
    tmp_path: Path,
) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(plain)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert read_bytes(plain, 5) == b"12345"
    assert sha256_file(plain) == hashlib.sha256(b"12345").hexdigest()
    with pytest.raises(OversizeError, match=r"^plain: larger than the accepted 4 bytes$"):
        read_bytes(plain, 4)
    for name, said in (
        ("none", f"none: missing in {tmp_path}"),
        ("link", "link: is a link; a regular file is needed"),
        ("folder", "folder: is not a regular file"),
        ("pipe", "pipe: is not a regular file"),
    ):
        for reader in (read_bytes, sha256_file):
            with pytest.raises(SourceError) as refusal:
                reader(tmp_path / name)
            assert str(refusal.value) == said
            assert not isinstance(refusal.value, OversizeError)
    assert local(ReportError(f"none: missing in {tmp_path}"), tmp_path) == "none: missing"


def test_a_snapshot_keeps_what_it_read_first_and_also_that_it_could_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    found = Snapshot(tmp_path)
    assert found.folder == tmp_path
    assert (found.holds("a"), found.holds("dangling"), found.holds("b")) == (True, True, False)
    assert found.read("a") == b"first"
    with pytest.raises(SourceError, match="missing"):
        found.read("b")
    (tmp_path / "a").write_bytes(b"later")
    (tmp_path / "b").write_bytes(b"later")
    assert found.read("a") == b"first"
    assert found.read("a", 5) == b"first"
    assert found.sha256("a") == hashlib.sha256(b"first").hexdigest()
    with pytest.raises(OversizeError, match=r"^a: larger than the accepted 4 bytes$"):
        found.read("a", 4)
    with pytest.raises(SourceError, match="missing"):
        found.read("b")
    with pytest.raises(SourceError, match="missing"):
        found.sha256("b")


def test_a_file_too_large_to_be_kept_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FILE_LIMIT", 4)
    monkeypatch.setattr(files.read_bytes, "__defaults__", (4,))
    (tmp_path / "large").write_bytes(b"12345")
    found = Snapshot(tmp_path)
    digest = hashlib.sha256(b"12345").hexdigest()
    assert found.sha256("large") == digest
    (tmp_path / "large").write_bytes(b"54321")
    assert found.sha256("large") == digest


def test_a_file_is_written_with_its_mode_or_the_reason_is_told(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for name, given, mode in (("a", {}, 0o644), ("b", {"mode": 0o600}, 0o600)):
            write_atomic(tmp_path / name, b"1", **given)
            assert (tmp_path / name).read_bytes() == b"1"
            assert (tmp_path / name).stat().st_mode & 0o777 == mode
    finally:
        os.umask(old)
    with pytest.raises(SourceError):
        write_atomic(tmp_path / "none" / "a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
