"""``keys``: what is made, replaced and revoked, and what of it is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dpfedadamw.cli import keys as command
from dpfedadamw.cli import terminal
from reports.signatures.keys import fingerprint, load_public
from tests.runs import call


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPFEDADAMW_PASSPHRASE", raising=False)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert call("keys", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_keys_that_are_made_and_replaced_are_told_by_their_files_and_fingerprints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--role", "trainer", "--directory", str(tmp_path))
    found = [told(capsys, "new", *where), told(capsys, "rotate", *where)]
    for name, one in zip(("trainer", "trainer-2"), found, strict=True):
        assert one == {
            "private": str(tmp_path / f"{name}.key"),
            "public": str(tmp_path / f"{name}.pub"),
            "fingerprint": fingerprint(load_public(tmp_path / f"{name}.pub")),
        }
    shown = told(capsys, "show", "--directory", str(tmp_path))
    assert [(one["name"], one["state"], one["follows"]) for one in shown] == [
        ("trainer", "replaced", None), ("trainer-2", "in use", found[0]["fingerprint"]),
    ]  # fmt: skip
    assert call("keys", "show", "--directory", str(tmp_path)) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == str(tmp_path)
    heads = [line.split("  ") for line in lines if line.startswith("trainer")]
    assert heads == [["trainer", "replaced"], ["trainer-2", "in use"]]
    follows = [line.split() for line in lines if line.startswith("follows")]
    assert follows == [["follows", found[0]["fingerprint"]]]
    assert not any(line.startswith("revoked") for line in lines)


def test_a_revocation_is_told_with_its_moment_its_reason_and_the_list_to_give_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--directory", str(tmp_path))
    made = told(capsys, "new", "--role", "auditor", *where)
    since = ("--since", "2026-01-02T03:30:00.25+02:00")
    why = ("--reason", "cessation-of-operation", "--yes")
    found = told(capsys, "revoke", "--role", "auditor", *why, *since, *where)
    assert found == {
        "fingerprint": made["fingerprint"],
        "since": "2026-01-02T01:30:00Z",
        "reason": "cessation-of-operation",
        "list": str(tmp_path / "auditor.revocations.json"),
    }
    (shown,) = told(capsys, "show", *where)
    assert shown["state"] == "revoked"
    assert "2026-01-02T01:30:00Z" in shown["revoked"]


def test_a_key_that_is_named_is_revoked_and_the_present_one_signs_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--role", "auditor", "--directory", str(tmp_path))
    first = told(capsys, "new", *where)
    told(capsys, "rotate", *where)
    named = ("--key", str(tmp_path / "auditor.pub"), "--reason", "superseded", "--yes")
    assert call("keys", "revoke", *where, *named) == 0
    shown = capsys.readouterr()
    rows = {name: " ".join(more) for name, *more in (line.split() for line in
            shown.out.splitlines() if line.strip())}  # fmt: skip
    assert rows["fingerprint"] == first["fingerprint"]
    assert rows["reason"] == "superseded"
    assert "auditor.revocations.json" in shown.err
    states = [one["state"] for one in told(capsys, "show", "--directory", str(tmp_path))]
    assert states == ["revoked", "in use"]


def test_without_a_yes_nothing_is_revoked_and_what_would_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--role", "auditor", "--directory", str(tmp_path))
    told(capsys, "new", *where)
    for named, said in (((), "the present auditor key"), (("--key", "a.pub"), "a.pub")):
        assert call("keys", "revoke", *where, "--reason", "unspecified", *named) == 2
        assert f"revoke {said} of {tmp_path}" in " ".join(capsys.readouterr().err.split())
    assert [one["state"] for one in told(capsys, "show", "--directory", str(tmp_path))] == [
        "in use"
    ]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (None, None),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21T09:30:00Z", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21T09:30:00.9", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21T00:30:00+01:00", datetime(2026, 11, 20, 23, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_of_utc_where_nothing_else_is_said_and_has_whole_seconds(
    text: str | None, moment: datetime | None
) -> None:
    assert command._moment(text) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "is not a date; write 2026-11-21"),
        # In UTC it would lie before the first and after the last day that there is.
        ("0001-01-01T00:00:00+14:00", "is not a date; write 2026-11-21"),
        ("9999-12-31T23:59:59-14:00", "is not a date; write 2026-11-21"),
        ("0001-01-01", "is before 1970, when there were no such keys"),
    ],
)
def test_a_moment_that_no_list_can_hold_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(terminal.Stop) as caught:
        command._moment(text)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"--since: '{text}' {said}")


@pytest.mark.parametrize(
    ("protect", "environment", "asked"),
    [(False, "", 0), (True, "", 1), (False, "phrase", 0), (True, "phrase", 0)],
)
def test_a_key_is_encrypted_with_the_environment_s_passphrase_or_one_that_is_asked_for(
    protect: bool,
    environment: str,
    asked: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts: list[dict[str, Any]] = []

    def prompt(_text: str, **how: Any) -> str:
        prompts.append(how)
        return "typed"

    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setenv("DPFEDADAMW_PASSPHRASE", environment)
    flags = ("--passphrase",) if protect else ()
    assert call("keys", "new", "--role", "trainer", "--directory", str(tmp_path), *flags) == 0
    encrypted = b"ENCRYPTED" in (tmp_path / "trainer.key").read_bytes()
    assert encrypted == (protect or bool(environment))
    assert len(prompts) == asked
    # What is typed is not shown, and is typed twice.
    for how in prompts:
        assert (how["hide_input"], how["confirmation_prompt"], how["err"]) == (True, True, True)


def test_the_files_of_a_key_that_was_made_say_what_to_keep_and_what_to_give_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal.out, "_width", 1000)
    assert call("keys", "new", "--role", "auditor", "--directory", str(tmp_path)) == 0
    rows = dict(
        line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.strip()
    )
    assert rows["private key"].split() == [str(tmp_path / "auditor.key"), "keep", "it"]
    assert rows["public key"].split() == [str(tmp_path / "auditor.pub"), "give", "it", "away"]
