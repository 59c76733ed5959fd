"""What the terminal shows, asks and refuses, in a pipe and where somebody sits before it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text

from dpfedadamw.cli import display, terminal
from dpfedadamw.cli.terminal import Stop


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(terminal.answer, "given", False)


STEERING = "a\x1b[2Jb\u202ec\u2028d\xade"


def test_json_says_the_same_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"ε": [STEERING, 'quoted "', None]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"ε": [STEERING, 'quoted "', None]}
    assert shown.splitlines()[1] == '  "ε": ['
    assert not any(character in shown for character in "\x1b\u202e\u2028\xad")
    assert terminal.answer.given


@pytest.mark.parametrize(("encoding", "escaped"), [("UTF-8", False), ("latin-1", True)])
def test_json_escapes_what_the_stream_cannot_hold(
    encoding: str, escaped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    terminal.print_json("ε")
    sys.stdout.flush()
    assert raw.getvalue() == (b'"\\u03b5"\n' if escaped else '"ε"\n'.encode())


def test_texts_and_documents_of_strangers_steer_no_terminal(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    terminal.out.print(Text(STEERING))
    assert capsysbinary.readouterr().out == b"a?[2Jb?c?d?e\n"
    terminal.print_document(f"name: {STEERING}\nε: 1\n")
    assert capsysbinary.readouterr().out == "name: a?[2Jb?c?d?e\nε: 1\n".encode()


def test_a_document_follows_what_was_printed_before_it_also_where_there_are_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        sys.stdout.write("first, ")
        terminal.print_document("ε\n")
        assert raw.getvalue() == "first, ε\n".encode()
    text = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", text)
        terminal.print_document("\x07ε")
    assert text.getvalue() == "?ε"


def test_in_a_pipe_a_long_word_is_whole_and_the_next_text_folded_as_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prose = "word " * 40
    terminal.out.print(Text("a/" * 150))
    terminal.out.print(Text(prose))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "a/" * 150
    assert max(map(len, rest)) <= 80 < len(prose)
    monkeypatch.setenv("COLUMNS", "40")
    terminal.out.print(Text("a/" * 150))
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_a_table_in_a_pipe_has_a_line_a_row_unless_a_width_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = display.grid(("name", "text"), [("one", "word " * 40), ("two", "word")])
    terminal.print_whole(table)
    whole = [line for line in capsys.readouterr().out.splitlines() if "word" in line]
    assert len(whole) == 2
    monkeypatch.setenv("COLUMNS", "60")
    terminal.print_whole(table)
    assert len([line for line in capsys.readouterr().out.splitlines() if "word" in line]) > 2


def test_a_path_is_shown_from_here_unless_here_is_the_root_or_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert terminal.relative(tmp_path / "here" / "runs" / "a") == Path("runs/a")
    assert terminal.relative(tmp_path / "there") == tmp_path / "there"
    monkeypatch.chdir("/")
    assert terminal.relative(tmp_path / "here") == tmp_path / "here"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("PASS", 0), ("NO CLAIM", 0), ("FAIL", 1), ("NOT VERIFIED", 1), ("NOT DETERMINABLE", 1)],
)
def test_a_verdict_that_is_no_pass_ends_with_1(verdict: str, code: int) -> None:
    ends = pytest.raises(typer.Exit) if code else contextlib.nullcontext()
    with ends as ended:
        terminal.exit_by(verdict)
    assert (ended.value.exit_code if ended is not None else 0) == code


class _Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "refused"), [("y\n", False), ("n\n", True), ("\n", True)])
def test_what_cannot_be_undone_is_done_after_a_yes_alone(
    typed: str,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", _Keyboard(typed))
    with pytest.raises(Stop) if refused else contextlib.nullcontext() as ended:
        terminal.ask("revoke the key")
    assert (ended is not None and ended.value.exit_code == 2) == refused
    shown = capsys.readouterr()
    # Standard output is for what a command answers.
    assert shown.out.strip() == ""
    assert shown.err.startswith("revoke the key?")


def test_without_a_terminal_nothing_is_asked_and_nothing_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(Stop) as ended:
        terminal.ask("revoke the key")
    assert ended.value.exit_code == 2
    assert "revoke the key" in ended.value.message
    assert "--yes" in ended.value.message
    assert capsys.readouterr() == ("", "")


def test_a_missing_timestamp_ends_with_2_and_the_command_that_adds_it() -> None:
    terminal.refuse_unstamped(None, Path("runs/a"))
    with pytest.raises(Stop) as ended:
        terminal.refuse_unstamped("no answer", Path("runs/a"))
    assert ended.value.exit_code == 2
    assert ended.value.message.startswith("error: no answer; ")
    assert ended.value.message.endswith("dpfedadamw sign runs/a --timestamp URL")


@pytest.mark.parametrize(("escrow", "end"), [(True, " --escrow FILE"), (False, "")])
def test_the_command_that_continues_a_run_asks_for_its_key_where_that_is_in_a_file(
    escrow: bool, end: str
) -> None:
    with (
        pytest.raises(ValueError, match="of ours") as caught,
        terminal.resumable(Path("runs/a"), escrow),
    ):
        raise ValueError("of ours")
    (note,) = caught.value.__notes__
    assert re.fullmatch(rf".*dpfedadamw run --resume runs/a{end}", note)


@pytest.mark.parametrize("quiet", [True, False])
def test_what_is_happening_is_shown_on_a_terminal_alone(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for on_terminal in (False, True):
        monkeypatch.setattr(terminal.err, "_force_terminal", on_terminal)
        monkeypatch.setattr(terminal.err, "is_interactive", on_terminal)
        with terminal.status("reading the data", quiet):
            pass
        with terminal.progress_bar(quiet) as bar:
            bar.add_task("training", total=3)
            bar.refresh()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert bool(shown.err) == (on_terminal and not quiet)
        for text in ("training", "reading the data"):
            assert (text in shown.err) == (on_terminal and not quiet)
