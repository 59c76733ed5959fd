"""The check "disclosure": which files a run directory may hold, and what public files may say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.checks import disclosure
from audit.checks.disclosure import _finished, _left_over, _strange_files
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.units import LOOP
from audit.replay.participation import learning_rate
from tests.audit.checks.opened import changed, judged, says

NAME = "disclosure"
LINES = {"lines_of_metrics": 1}


def unfinished(bundle: Bundle) -> Bundle:
    """The run before its claim."""
    kinds = tuple(one for one in bundle.readable_ledger.kinds if one[1] != "claim")
    return changed(bundle, ledger={"kinds": kinds})


# Files.


def lying(bundle: Bundle, folder: Path, *names: str, over: bool = True) -> list[str]:
    """The strange files of a run directory that holds these; a name that ends in / is a folder."""
    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(b"")
    return _strange_files(replace(bundle if over else unfinished(bundle), root=folder))


def test_what_a_run_writes_is_not_strange(of_records: Bundle, tmp_path: Path) -> None:
    assert lying(
        of_records, tmp_path, "spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.json",
        "report.pdf", "evidence/salt", "evidence/round-00003.npz", "evidence/layout.json",
        ".unfinished/lock",
    ) == []  # fmt: skip


def test_other_files_are_strange_in_order_of_their_names(
    of_records: Bundle, tmp_path: Path
) -> None:
    assert lying(
        of_records, tmp_path, "z.txt", "a.txt", "evidence/notes.txt", "evidence/inner/",
        ".unfinished/metrics.jsonl", "spec.yaml", "spec.yaml.bak", "further/",
    ) == [
        ".unfinished/metrics.jsonl", "a.txt", "evidence/inner", "evidence/notes.txt", "further",
        "spec.yaml.bak", "z.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["evidence", ".unfinished"])
def test_a_folder_of_the_run_is_a_folder_of_its_own(
    of_records: Bundle, name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").mkdir()
    assert lying(of_records, tmp_path / "file", name) == [name]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / name).symlink_to(tmp_path / "elsewhere")
    assert lying(of_records, tmp_path / "link") == [name]
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / name).symlink_to(tmp_path / "nowhere")
    assert lying(of_records, tmp_path / "dangling") == [name]


def test_a_checkpoint_is_an_unfinished_runs_own(of_records: Bundle, tmp_path: Path) -> None:
    state = "checkpoint/state-00002.safetensors"
    own = [state, "checkpoint/paid", "checkpoint/spec.yaml"]
    assert lying(of_records, tmp_path, *own, over=False) == []
    assert lying(of_records, tmp_path, over=True) == sorted(own)
    more = lying(of_records, tmp_path, "checkpoint/notes", "notes", over=False)
    assert more == ["checkpoint/notes", "notes"]


def test_an_empty_checkpoint_is_one_that_a_finished_run_does_not_keep(
    of_records: Bundle, tmp_path: Path
) -> None:
    assert lying(of_records, tmp_path, "checkpoint/", over=False) == []
    assert lying(of_records, tmp_path, over=True) == ["checkpoint"]


def test_a_checkpoint_elsewhere_is_strange(of_records: Bundle, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "paid").write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    for over in (True, False):
        assert lying(of_records, tmp_path / "run", over=over) == ["checkpoint"]
    (tmp_path / "file").mkdir()
    assert lying(of_records, tmp_path / "file", "checkpoint", over=False) == ["checkpoint"]


def test_a_directory_that_cannot_be_listed_is_not_verified(
    of_records: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(UnverifiedError, match="the run directory cannot be listed"):
        lying(replace(of_records), tmp_path / "nowhere")


def test_a_run_without_a_ledger_is_not_over(of_records: Bundle) -> None:
    without = replace(of_records, ledger=None)
    assert _finished(of_records) is True
    assert _finished(without) is False
    assert _left_over(without, "checkpoint/paid") is False
    assert _left_over(of_records, "checkpoint") is True


@pytest.mark.parametrize(
    ("names", "verdict", "said"),
    [
        (
            ["b", "a"],
            "NOT VERIFIED",
            "no run writes 'b', 'a': its content was not judged; move it out of the run directory",
        ),
        (
            ["a", "b", "c"],
            "NOT VERIFIED",
            "no run writes 'a', 'b', 'c': its content was not judged; move it out of the run "
            "directory",
        ),
        (
            ["a", "b", "c", "d"],
            "NOT VERIFIED",
            "no run writes 'a', 'b', 'c' and others: its content was not judged; move it out of "
            "the run directory",
        ),
        (
            ["checkpoint/1", "checkpoint/2", "checkpoint/3", "checkpoint/4", "x"],
            "FAIL",
            "a finished run must keep no checkpoint, which holds what clients remember, but there "
            "is 'checkpoint/1', 'checkpoint/2', 'checkpoint/3'",
        ),
    ],
)
def test_strange_files_are_named_and_those_of_a_checkpoint_apart(
    of_records: Bundle, names: list[str], verdict: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disclosure, "_strange_files", lambda _: names)
    assert says(of_records, NAME) == (verdict, said)


def test_left_overs_do_not_stand_among_strange_files(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disclosure, "_strange_files", lambda _: ["a", "checkpoint/1"])
    seen: list[Any] = []

    def concluded(passed: str, reasons: list[str], unjudged: list[str], **rest: Any) -> Any:
        seen.append((reasons, unjudged, rest))
        return SimpleNamespace()

    monkeypatch.setattr(disclosure, "conclude", concluded)
    disclosure._judge(of_records)
    ((reasons, unjudged, rest),) = seen
    assert reasons == [
        "a finished run must keep no checkpoint, which holds what clients remember, but there is "
        "'checkpoint/1'"
    ]
    assert unjudged == [
        "no run writes 'a': its content was not judged; move it out of the run directory"
    ]
    assert rest == {"details": LINES}


# What files say.


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a file hold something else."""

    def instead(name: str, content: bytes | Exception) -> None:
        read = disclosure.read_bytes

        def reads(root: Any, asked: str, limit: int) -> bytes:
            if asked != name:
                return read(root, asked, limit)
            if isinstance(content, Exception):
                raise content
            return content

        monkeypatch.setattr(disclosure, "read_bytes", reads)

    return instead


def test_empty_lines_of_metrics_may_hide_something(
    of_records: Bundle, holding: Callable[..., None]
) -> None:
    for raw in (b'\n{"round":0}\n{"round":1}\n', b'{"round":0}\n  \n', b'{"round":0}\n\n'):
        holding("metrics.jsonl", raw)
        assert says(of_records, NAME) == ("FAIL", "metrics.jsonl has empty lines")
    for raw in (b"", b'{"round":0}', b'{"round":0}\n{"round":1}\n'):
        holding("metrics.jsonl", raw)
        found = judged(of_records, NAME)
        assert (found.verdict.value, found.details) == (
            "PASS",
            {"lines_of_metrics": raw.count(b"r")},
        )


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        (
            "metrics.jsonl",
            b'{"round":0,"test_loss":0.' + b"1" * 50_000 + b"}\n",
            "metrics.jsonl:1: has",
        ),
        (
            "metrics.jsonl",
            b'{"round":0}\n{"round":1, "seconds":2}\n',
            "metrics.jsonl:2: has digits",
        ),
        ("metrics.jsonl", b'{"round":0}\r\n', "metrics.jsonl:1: has digits or white space"),
        ("metrics.jsonl", b'{"round":0}  \n', "metrics.jsonl:1: has digits or white space"),
        (
            "model.json",
            b'{"format": 1, "parameters": 340}' + b" \t" * 20_000,
            "model.json has digits",
        ),
        ("model.json", b'{"format": 1,\n\t"parameters": 340}', "model.json has digits or white"),
    ],
)
def test_digits_and_white_space_that_no_writer_makes_may_hide_something(
    of_records: Bundle, name: str, raw: bytes, said: str, holding: Callable[..., None]
) -> None:
    holding(name, raw)
    verdict, text = says(of_records, NAME)
    assert (verdict, text.startswith(said)) == ("FAIL", True), text


@pytest.mark.parametrize(
    "line",
    [{"round": 0, "test_loss": "a word"}, {"test_loss": "a word", "round": 0}],
)
def test_one_word_among_numbers_is_more_than_numbers(
    of_records: Bundle, line: Any, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", json.dumps(line).encode())
    assert says(of_records, NAME) == ("FAIL", "metrics.jsonl:1: holds more than numbers")


def public(spec: dict[str, Any]) -> None:
    """Declare test records public."""
    spec["evaluation"] = {"public_test": True}


@pytest.mark.parametrize(
    "line",
    [
        {"test_confusion": [[3, 1], [0, 2]]},
        {"test_own": {"cost": 3.5}},
    ],
)
def test_what_shows_single_test_records_is_told_where_the_spec_declares_them_public(
    of_records: Bundle, line: Any, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", json.dumps({"round": 0, **line}).encode())
    verdict, said = says(of_records, NAME)
    assert (verdict, f"holds {next(iter(line))}, which reveals single" in said) == ("FAIL", True)
    assert says(changed(of_records, spec=public), NAME)[0] == "PASS"


@pytest.mark.parametrize(
    "line",
    [
        {"test_confusion": [[3, 1], [0]]},
        {"test_confusion": [[3.5]]},
        {"test_confusion": 3},
        {"test_own": {"cost": "a word"}},
        {"test_own": {"a word": 3}},
        {"test_own": [3]},
        {"test_own": {"cost": True}},
    ],
)
def test_matrices_hold_counts_and_metrics_numbers_alone(
    of_records: Bundle, line: Any, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", json.dumps({"round": 0, **line}).encode())
    found = says(changed(of_records, spec=public), NAME)
    assert found == ("FAIL", "metrics.jsonl:1: holds more than numbers")


@pytest.mark.parametrize(
    "seconds", ["0.2305", "2.0", "-1", "10000001", "10.0", "true", "4611686018427387904"]
)
def test_a_time_that_is_no_whole_number_of_seconds_could_be_anything(
    of_records: Bundle, seconds: str, holding: Callable[..., None]
) -> None:
    """A training loss in the digits of a time passed, when times had four of them."""
    holding("metrics.jsonl", f'{{"round":0}}\n{{"round":1,"seconds":{seconds}}}'.encode())
    promised = changed(of_records, header={"whole_seconds": True})
    assert says(promised, NAME) == (
        "FAIL",
        "metrics.jsonl:2: its time is not a whole number of seconds",
    )
    # Anybody may pose as an earlier version, which promised nothing.
    earlier = changed(of_records, header={"whole_seconds": False})
    assert says(earlier, NAME) == ("NOT VERIFIED", disclosure.DIGITS_OF_TIMES)


@pytest.mark.parametrize("seconds", ["0", "3", "10000000", "null"])
@pytest.mark.parametrize("promised", [True, False])
def test_whole_seconds_and_no_time_at_all_say_nothing_else(
    of_records: Bundle, seconds: str, promised: bool, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", f'{{"round":1,"seconds":{seconds}}}'.encode())
    assert says(changed(of_records, header={"whole_seconds": promised}), NAME)[0] == "PASS"


def test_metrics_that_cannot_be_read_are_counted_as_none(
    of_records: Bundle, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", UntrustedFileError("metrics.jsonl", "is not there"))
    found = judged(of_records, NAME)
    assert (found.verdict.value, found.measurement) == (
        "NOT VERIFIED",
        "metrics.jsonl cannot be read, so not judged",
    )
    assert found.details == {"lines_of_metrics": 0}


def test_a_loop_publishes_no_schedule(of_records: Bundle) -> None:
    assert disclosure._learning_rates(of_records) is not None
    assert disclosure._learning_rates(changed(of_records, header={"unit": LOOP})) is None


def test_rates_of_ten_million_rounds_are_not_kept(
    of_records: Bundle, holding: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(algorithm: Mapping[str, Any], index: int, rounds: int) -> float:
        asked.append(index)
        return learning_rate(algorithm, index, rounds)

    monkeypatch.setattr(disclosure, "learning_rate", counted)
    holding("metrics.jsonl", b'{"round":0}\n{"round":9,"learning_rate":7}')
    many = changed(of_records, header={"rounds": 10_000})
    assert says(many, NAME)[1] == "metrics.jsonl:2: its learning rate is not the schedule's"
    assert asked == [0, 8]


@pytest.mark.parametrize("index", ["-1", "5", "1000001", "[1]", '"1"', "true", "1.0", "null"])
def test_a_line_is_about_a_round_of_the_run(
    of_records: Bundle, index: str, holding: Callable[..., None]
) -> None:
    """With a round that the run has not, any number would pass for a learning rate."""
    holding("metrics.jsonl", f'{{"round":{index},"learning_rate":0.123456}}'.encode())
    verdict, said = says(of_records, NAME)
    assert verdict == "FAIL"
    assert "metrics.jsonl:1: its round is none of the run's" in said
    holding("metrics.jsonl", b'{"learning_rate":0.123456}')
    assert "its round is none of the run's" in says(of_records, NAME)[1]


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        ('{"round":0}', True),
        ('{"round":0,"learning_rate":null}', True),
        ('{"round":4,"learning_rate":null}', True),
        # Before the first round there is none.
        ('{"round":0,"learning_rate":0.123456}', False),
        ('{"round":0,"learning_rate":0}', False),
        ('{"round":4,"learning_rate":0.123456}', False),
        ('{"round":4,"learning_rate":true}', False),
    ],
)
def test_a_learning_rate_is_that_of_its_round(
    of_records: Bundle, line: str, passes: bool, holding: Callable[..., None]
) -> None:
    holding("metrics.jsonl", line.encode())
    said = "metrics.jsonl:1: its learning rate is not the schedule's"
    assert says(of_records, NAME)[0] == "PASS" if passes else says(of_records, NAME)[1] == said


def test_a_field_of_the_ledger_that_is_not_known_is_named_with_its_kind(
    of_records: Bundle, holding: Callable[..., None]
) -> None:
    lines = (of_records.root / "ledger.jsonl").read_bytes().splitlines()
    header = {**json.loads(lines[0]), "patients": 7}
    others = [b'{"kind":"another","patients":7}', b"[1]", b"7"]
    holding("ledger.jsonl", b"\n".join([json.dumps(header).encode(), *lines[1:], *others]))
    assert says(of_records, NAME) == (
        "FAIL",
        "the ledger's lines of kind header hold 'patients', which is unknown",
    )


def test_a_ledger_that_cannot_be_read_is_not_judged_and_the_rest_is(
    of_records: Bundle, holding: Callable[..., None]
) -> None:
    holding("ledger.jsonl", b"{")
    holding("metrics.jsonl", b'{"round":0,"train_loss":1}')
    assert says(of_records, NAME)[0] == "FAIL"
    holding("metrics.jsonl", b'{"round":0}')
    assert says(of_records, NAME) == (
        "NOT VERIFIED",
        "ledger.jsonl cannot be read, so not judged",
    )


def test_a_description_of_the_model_has_sixteen_mebibytes_at_most(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = disclosure.read_bytes
    limits: dict[str, int] = {}

    def noting(root: Any, name: str, limit: int) -> bytes:
        limits[name] = limit
        found: bytes = read(root, name, limit)
        return found

    monkeypatch.setattr(disclosure, "read_bytes", noting)
    assert says(of_records, NAME)[0] == "PASS"
    assert limits["model.json"] == 16 * 1024 * 1024
    assert set(limits) == {"model.json", "metrics.jsonl", "ledger.jsonl"}


def test_a_model_that_cannot_be_read_is_not_judged(
    of_records: Bundle, holding: Callable[..., None]
) -> None:
    holding("model.json", UntrustedFileError("model.json", "is not there"))
    assert says(of_records, NAME) == (
        "NOT VERIFIED",
        "the model's files cannot be read (model.json: is not there)",
    )


@pytest.mark.parametrize(
    ("parameters", "tensors", "said"),
    [
        (340, {"more": True}, "model.safetensors holds 'more', which is not a trained parameter"),
        # Of a model that is trained in part the other tensors are frozen.
        (341, {"more": True}, None),
        # Without the number nobody could tell which it is.
        (None, {"more": True}, "model.json does not say how many parameters the model has"),
        (None, {}, "model.json does not say how many parameters the model has"),
        (340, {"more": False}, None),
        # Running statistics are none of a model that is trained in part either.
        (341, {"bn.running_var": True}, "model.safetensors holds 'bn.running_var'"),
    ],
)
def test_a_further_tensor_is_one_that_was_never_noised_where_all_are_trained(
    of_records: Bundle,
    parameters: int | None,
    tensors: dict[str, bool],
    said: str | None,
    holding: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = json.loads((of_records.root / "model.json").read_bytes())
    config.pop("parameters", None)
    if parameters is not None:
        config["parameters"] = parameters
    holding("model.json", json.dumps(config).encode())
    read = disclosure.read_names
    monkeypatch.setattr(disclosure, "read_names", lambda raw: ({**read(raw)[0], **tensors}, {}))
    verdict, text = says(of_records, NAME)
    assert (verdict == "PASS") is (said is None)
    assert said is None or text.startswith(said)


def test_a_model_of_which_no_tensor_is_trained_is_for_another_check(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disclosure, "read_names", lambda raw: ({"other": True}, {}))
    assert says(of_records, NAME)[0] == "PASS"


def test_a_private_number_that_a_file_shows_is_told_without_it(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    leak = SimpleNamespace(file="report.json", array="raw_norms", round=2)
    monkeypatch.setattr(disclosure.leaks, "search_bundle", lambda _: [leak])
    assert says(of_records, NAME) == (
        "FAIL",
        "report.json shows a number of the private evidence (raw_norms, round 2)",
    )
