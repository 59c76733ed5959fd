"""What a client refuses is counted and logged, and a flood of it fills nothing."""

from __future__ import annotations

import json
import os
import stat

import pytest

from dpfedadamw.extensions.deployment.refusals import REASONS, Refusals, read_counts, told


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_flood_is_counted_whole_and_logged_in_a_few_lines(tmp_path):
    clock, lines = Clock(), []
    refusals = Refusals(tmp_path / "refusals.json", lines.append, clock)
    for _ in range(10_000):
        clock.now += 0.001
        refusals.note("noise", "x" * 5000)
    refusals.write(now=True)
    assert read_counts(tmp_path / "refusals.json") == {"noise": 10_000}
    assert 10 <= len(lines) <= 12
    assert max(map(len, lines)) < 400
    # An hour later there is one more, and it tells how many went before.
    clock.now += 3600.0
    refusals.note("noise", "again")
    assert lines[-1].startswith("refused (noise): again (")
    assert lines[-1].endswith(" lines before it were left out)")


def test_the_counts_are_written_once_a_second_at_most(tmp_path):
    clock = Clock()
    path = tmp_path / "refusals.json"
    refusals = Refusals(path, None, clock)
    refusals.note("spent", "")
    first = path.stat().st_ino
    for _ in range(100):
        clock.now += 0.005
        refusals.note("spent", "")
    assert path.stat().st_ino == first
    assert refusals.unwritten
    clock.now += 1.0
    refusals.write()
    assert read_counts(path) == {"spent": 101}
    # The next process goes on from there.
    assert Refusals(path).counts == {"spent": 101}


def test_no_line_of_the_log_has_an_escape_sequence(tmp_path):
    lines = []
    Refusals(tmp_path / "refusals.json", lines.append).note("message", "a\x1b[2J\nb\u202e")
    assert lines == ["refused (message): a?[2J?b?"]


def test_a_full_disk_ends_nothing(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpfedadamw.extensions.deployment.refusals.write_atomically", full)
    refusals = Refusals(tmp_path / "refusals.json")
    refusals.note("noise", "")
    assert refusals.unwritten


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"5", b"{}", b'{"refused": []}', b'{"refused": {"noise": "9"}}', b"[" * 60_000,
        b'{"refused": {"noise": -1, "spent": true, "order": 1e9, "run": 99999999999999999999}}',
        b'{"refused": {"\\u001b[2J": 3}}', b"\xff" * 70_000, b'{"refused": null}',
    ],
)  # fmt: skip
def test_a_file_that_was_handed_in_and_says_something_else_says_nothing(tmp_path, content):
    path = tmp_path / "refusals.json"
    path.write_bytes(content)
    assert read_counts(path) == {}


def test_a_link_or_a_pipe_in_its_place_is_not_opened(tmp_path):
    (tmp_path / "real").write_text(json.dumps({"refused": {"noise": 3}}))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "nothing"):
        assert read_counts(tmp_path / name) == {}


def test_a_server_says_its_own_words_whatever_a_client_sends():
    assert told("noise") == REASONS["noise"]
    for sent in ("\x1b[2J", "x" * 10_000, 5, None, ["noise"], {}):
        assert told(sent) == "the client refuses, in words of its own"


def test_ten_lines_are_logged_at_once_and_then_one_in_six_seconds(tmp_path):
    clock, lines = Clock(), []
    refusals = Refusals(tmp_path / "refusals.json", lines.append, clock)

    def noted(seconds, times=1):
        """How many more lines there are after so many notes, so many seconds later."""
        clock.now, before = clock.now + seconds, len(lines)
        for _ in range(times):
            refusals.note("noise", "x")
        return len(lines) - before

    assert noted(0.0, 13) == 10
    assert noted(5.5) == 0
    assert noted(0.75) == 1
    assert lines[-1] == "refused (noise): x (4 lines before it were left out)"
    assert noted(5.0) == 0
    assert noted(12.25, 5) == 2
    # However long nobody asked for anything, no more than ten.
    assert noted(10_000.0, 13) == 10
    assert lines[-1] == "refused (noise): x"
    assert refusals.counts == {"noise": 34}


def test_counts_are_on_the_disk_a_second_later_and_their_owners_alone(tmp_path):
    clock, path = Clock(), tmp_path / "refusals.json"
    refusals = Refusals(path, None, clock)
    refusals.write(now=True)
    assert not path.exists()
    refusals.note("run", "")
    assert json.loads(path.read_text()).items() >= {"format": 1, "refused": {"run": 1}}.items()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not refusals.unwritten
    clock.now += 0.75
    refusals.note("run", "")
    assert (read_counts(path), refusals.unwritten) == ({"run": 1}, True)
    clock.now += 0.25
    refusals.write()
    assert (read_counts(path), refusals.unwritten) == ({"run": 2}, False)
    clock.now += 0.25
    refusals.note("noise", "")
    refusals.write(now=True)
    assert read_counts(path) == {"run": 2, "noise": 1}


def test_counts_reach_what_a_float_counts_to_and_no_further(tmp_path):
    path = tmp_path / "refusals.json"
    most = 2**53
    path.write_text(json.dumps({"refused": {"noise": most, "run": most + 1, "spent": 0}}))
    assert read_counts(path) == {"noise": most}
    refusals = Refusals(path)
    refusals.note("noise", "")
    refusals.note("spent", "")
    assert refusals.counts == {"noise": most, "spent": 1}


def test_of_a_long_line_the_first_three_hundred_characters_are_logged(tmp_path):
    lines = []
    Refusals(tmp_path / "refusals.json", lines.append).note("run", "x" * 1000)
    assert lines == ["refused (run): " + "x" * 285]
