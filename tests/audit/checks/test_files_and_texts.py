"""Public files and weights: what is compared, and what each fault says."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from audit.checks import disclosure, weights
from audit.checks.weights import _proportional
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_run import canonical

# What public metrics tell of who took part.


@pytest.mark.parametrize(
    ("values", "counts", "told"),
    [
        ([2.0, 4.0, 6.0], [1, 2, 3], True),
        ([2.0, 4.0, 6.0 * (1 + 0.9e-9)], [1, 2, 3], True),
        ([2.0, 4.0, 6.0 * (1 + 4e-9)], [1, 2, 3], False),
        ([2.0, 2.0, 2.0], [1, 1, 1], False),
        ([0.0, 0.0], [1, 2], False),
        ([0.0, 1.0], [0, 3], True),
        ([-1.0, -2.0], [1, 2], True),
        ([1.0, 1.0], [1, 2], False),
    ],
)
def test_a_number_tells_of_participants_that_is_a_multiple_of_them(
    values: list[float], counts: list[int], told: bool
) -> None:
    assert _proportional(values, counts) is told


def metrics(bundle: Bundle, lines: list[Any], monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The run with other lines of metrics.jsonl."""
    raw = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for module in (weights, disclosure):
        read = module.read_bytes

        def instead(root: Any, name: str, limit: int, read: Any = read) -> bytes:
            found: bytes = raw if name == "metrics.jsonl" else read(root, name, limit)
            return found

        monkeypatch.setattr(module, "read_bytes", instead)
    return bundle


def test_traffic_is_the_same_in_every_round(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bytes_up", "bytes_down"):
        lines = [{"round": index, name: 10 + (index == 3)} for index in range(25)]
        assert says(metrics(of_clients, lines, monkeypatch), "publication") == (
            "FAIL",
            f"traffic in metrics.jsonl ({name}) varies with how many clients took part",
        )
        monkeypatch.undo()
        # What was sent before the first round is no round's.
        start = [{"round": index, name: 10 if index else 0} for index in range(25)]
        found = judged(metrics(of_clients, start, monkeypatch), "publication")
        assert found.verdict.value == "PASS"
        assert found.details == {"lines": 24}
        monkeypatch.undo()


@pytest.mark.parametrize("line", [{"test_loss": 1.0}, {"round": "1"}, {"round": 1.0}, [1], 3])
def test_metrics_with_a_line_without_a_round_are_not_verified(
    of_clients: Bundle, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = metrics(of_clients, [{"round": 1}, line], monkeypatch)
    assert says(run, "publication") == (
        "NOT VERIFIED",
        "metrics.jsonl has a line without a round",
    )


@pytest.mark.parametrize("raw", [None, b"{"])
def test_metrics_that_cannot_be_read_are_not_verified(
    of_clients: Bundle, raw: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def instead(root: Any, name: str, limit: int) -> bytes:
        if raw is None:
            raise UntrustedFileError("metrics.jsonl", "is not there")
        return raw

    for module in (weights, disclosure):
        monkeypatch.setattr(module, "read_bytes", instead)
    assert says(of_clients, "publication") == (
        "NOT VERIFIED",
        "metrics.jsonl cannot be read, so not judged",
    )
    assert "metrics.jsonl cannot be read, so not judged" in says(of_clients, "disclosure")[1]


@pytest.mark.parametrize("name", ["test_accuracy", "validation_accuracy", "learning_rate"])
def test_a_share_or_a_schedule_is_a_multiple_by_chance_below_four_numbers_of_clients(
    of_clients: Bundle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [len(item.clients) for item in of_clients.readable_ledger.rounds]

    def verdict(different: int, called: str) -> str:
        chosen = sorted(set(counts))[:different]
        lines = [
            {"round": at + 1, called: 0.01 * count}
            for at, count in enumerate(counts)
            if count in chosen
        ]
        found = says(metrics(of_clients, lines, monkeypatch), "publication")[0]
        monkeypatch.undo()
        return found

    assert len(set(counts)) >= 4
    assert (verdict(3, name), verdict(4, name)) == ("PASS", "FAIL")
    # Any other number is one too many of them.
    assert (verdict(1, "people"), verdict(2, "people")) == ("PASS", "FAIL")


def test_a_multiple_is_exact_to_one_part_in_a_thousand_million_of_the_largest() -> None:
    """One of two values that is off by x lies x·(1 − its share of the participants) off."""
    # Of 1 and 3 participants: a factor of (1 + 3(1 + x))/4, and 0.75x beside a largest of 3.
    for off, told in ((3.9e-9, True), (4.1e-9, False), (-3.9e-9, True), (-4.1e-9, False)):
        assert _proportional([1.0 + off, 3.0], [1, 3]) is told
    for off, told in ((3.9e-9, True), (4.1e-9, False)):
        assert _proportional([1e6 * (1.0 + off), 3e6], [1, 3]) is told
        assert _proportional([1e-6 * (1.0 + off), 3e-6], [1, 3]) is told
    # Two numbers of participants are enough, and a round without any has the number 0.
    assert _proportional([0.0, 5.0, 5.0], [0, 1, 1]) is True
    assert _proportional([0.0, 5.0, 4.0], [0, 1, 1]) is False
    assert _proportional([10**6, 3 * 10**6], [1, 3]) is True


def test_a_difference_of_all_that_is_allowed_is_still_a_multiple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A factor of 2 leaves 1 at either value, of which the larger is 4.
    monkeypatch.setattr(weights, "_EXACT", 0.25)
    assert _proportional([1.0, 3.0], [1, 1]) is False
    assert _proportional([4.0, 4.0, 4.0], [1, 2, 3]) is False
    monkeypatch.setattr(weights, "_EXACT", 0.5)
    assert _proportional([4.0, 4.0, 4.0], [1, 2, 3]) is True
    monkeypatch.setattr(weights, "_EXACT", 0.4999)
    assert _proportional([4.0, 4.0, 4.0], [1, 2, 3]) is False


def test_empty_lines_and_further_names_change_nothing_of_the_traffic(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(raw: bytes) -> Bundle:
        read = weights.read_bytes

        def instead(root: Any, name: str, limit: int) -> bytes:
            return raw if name == "metrics.jsonl" else read(root, name, limit)

        monkeypatch.setattr(weights, "read_bytes", instead)
        return of_clients

    text = b'{"round":1,"bytes_up":5,"bytes_down":5,"zebras":1}\n\n  \n'
    found = judged(lines(text + b'{"round":2,"bytes_up":6,"bytes_down":7}\n'), "publication")
    assert (found.verdict.value, found.details) == ("FAIL", {"lines": 2})
    # All of them are told, in the order of their names.
    said = "traffic in metrics.jsonl ({}) varies with how many clients took part"
    assert found.measurement == f"{said.format('bytes_down')}; {said.format('bytes_up')}"
    assert judged(lines(text), "publication").details == {"lines": 1}


def test_a_number_of_the_round_itself_is_not_asked(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds whose numbers are those of their participants are a coincidence."""
    rounds = [
        replace(item, clients=tuple(range(item.round + 1)))
        for item in of_clients.readable_ledger.rounds
    ]
    run = changed(of_clients, ledger={"rounds": tuple(rounds)})
    lines = [{"round": item.round + 1} for item in rounds]
    assert says(metrics(run, lines, monkeypatch), "publication")[0] == "PASS"
    monkeypatch.undo()
    lines = [{"round": item.round + 1, "people": item.round + 1} for item in rounds]
    assert says(metrics(run, lines, monkeypatch), "publication")[0] == "FAIL"


def test_where_every_round_has_the_same_clients_nothing_is_told(of_records: Bundle) -> None:
    assert judged(of_records, "publication").verdict.value == "NOT APPLICABLE"


def test_words_and_rounds_that_there_are_not_are_no_numbers(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [len(item.clients) for item in of_clients.readable_ledger.rounds]
    people = [{"round": at + 1, "people": 2.0 * count} for at, count in enumerate(counts)]
    said = "a number in metrics.jsonl (people) reveals how many clients took part"
    for more in ([], [{"round": 99, "people": 5.0}], [{"round": 1, "people": "many"}]):
        run = metrics(of_clients, [*people, *more], monkeypatch)
        assert says(run, "publication") == ("FAIL", said)
        monkeypatch.undo()


# What may stand outside the evidence.


def test_a_line_of_metrics_is_an_object_of_public_numbers(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = [{"round": 0}, 5, {"round": 1, "train_loss": 0.5}]
    found = judged(metrics(of_records, lines, monkeypatch), "disclosure")
    assert found.measurement == (
        "metrics.jsonl:2: is not a line of metrics; metrics.jsonl holds 'train_loss', which is not "
        "a public metric"
    )
    assert found.details == {"lines_of_metrics": 3}


def test_a_learning_rate_is_the_schedules_to_the_last_digit(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cosine over four rounds: after two of them the third began with this.
    rates = [0.02 * 0.5 * (1 + math.cos(math.pi * index / 4)) for index in range(4)]

    def said(completed: Any, rate: Any) -> str:
        run = metrics(of_records, [{"round": completed, "learning_rate": rate}], monkeypatch)
        verdict, text = says(run, "disclosure")
        monkeypatch.undo()
        return text if verdict == "FAIL" else verdict

    wrong = "metrics.jsonl:1: its learning rate is not the schedule's"
    assert [said(index + 1, rate) for index, rate in enumerate(rates)] == ["PASS"] * 4
    assert said(1, rates[1]) == wrong
    assert said(4, rates[3] * (1 + 1.1e-9)) == wrong
    assert said(1, None) == "PASS"


def test_a_schedule_that_cannot_be_read_leaves_metrics_unjudged(of_records: Bundle) -> None:
    run = changed(of_records, spec=lambda s: s["algorithm"].update(learning_rate="fast"))
    verdict, text = says(run, "disclosure")
    assert verdict == "NOT VERIFIED"
    assert text.startswith("spec.yaml: learning_rate is not a number")


@pytest.mark.parametrize(
    ("texts", "more", "said"),
    [
        ({"format": "pt"}, {}, None),
        ({"loss": "0.7"}, {}, "model.safetensors holds texts in addition to its tensors"),
        ({}, {"layer.running_mean": True}, "model.safetensors holds 'layer.running_mean'"),
        ({}, {"running_var": False}, "model.safetensors holds 'running_var'"),
        ({}, {"num_batches_tracked": False}, "model.safetensors holds 'num_batches_tracked'"),
        ({}, {"more": True}, "model.safetensors holds 'more', which is not a trained parameter"),
        # Whole numbers are tables, and a name may hold the words.
        ({}, {"positions": False}, None),
        ({}, {"my_running_mean": False}, None),
    ],
)
def test_a_model_holds_trained_tensors_and_no_statistics(
    of_records: Bundle,
    texts: dict[str, str],
    more: dict[str, bool],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = disclosure.read_names

    def names(raw: bytes) -> tuple[dict[str, bool], dict[str, str]]:
        found, _ = read(raw)
        return {**found, **more}, texts

    monkeypatch.setattr(disclosure, "read_names", names)
    verdict, text = says(of_records, "disclosure")
    assert (verdict == "PASS") == (said is None)
    assert said is None or text.startswith(said)


def test_what_a_model_s_description_says_besides_is_named(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = disclosure.read_bytes

    def more(root: Any, name: str, limit: int) -> bytes:
        found: bytes = read(root, name, limit)
        if name == "model.json":
            found = json.dumps({**json.loads(found), "patients": 7}).encode()
        return found

    monkeypatch.setattr(disclosure, "read_bytes", more)
    verdict, text = says(of_records, "disclosure")
    assert verdict == "FAIL"
    assert text.startswith("model.json holds 'patients', which is unknown")


@pytest.mark.parametrize("instead", [b"[]", b"7", b'"model"', b"[{}]"])
def test_a_model_s_description_that_is_no_object_is_no_crash_of_this_check(
    of_records: Bundle, instead: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = disclosure.read_bytes

    def other(root: Any, name: str, limit: int) -> bytes:
        return instead if name == "model.json" else read(root, name, limit)

    monkeypatch.setattr(disclosure, "read_bytes", other)
    said = "model.json does not say how many parameters the model has"
    assert says(of_records, "disclosure") == ("FAIL", said)


def test_a_run_is_over_once_its_ledger_has_the_claim(of_records: Bundle) -> None:
    assert disclosure._finished(of_records)
    kinds = tuple(one for one in of_records.readable_ledger.kinds if one[1] != "claim")
    assert not disclosure._finished(changed(of_records, ledger={"kinds": kinds}))
    assert disclosure._left_over(of_records, "checkpoint/state")
    assert not disclosure._left_over(of_records, "elsewhere/state")


# The published weights.


def listed(bundle: Bundle, change: Callable[[list[dict[str, Any]]], object]) -> Bundle:
    """The run whose header names another list of tensors, with that list."""
    config = json.loads((bundle.root / "model.json").read_bytes())
    change(config["tensors"])
    run = changed(
        bundle, header={"tensors": hashlib.sha256(canonical(config["tensors"])).hexdigest()}
    )
    run.listed = json.dumps(config).encode()
    return run


@pytest.fixture
def read_list(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bundle], tuple[str, str]]:
    """What the check says of a run with a list of its own."""
    read = weights.read_bytes

    def judge(run: Bundle) -> tuple[str, str]:
        def instead(root: Any, name: str, limit: int) -> bytes:
            found: bytes = run.listed if name == "model.json" else read(root, name, limit)
            return found

        monkeypatch.setattr(weights, "read_bytes", instead)
        return says(run, "weights")

    return judge


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t[0].update(name="another"), "its trained tensors are not those of the"),
        (lambda t: t[0].update(shape=[120, 2]), "has 'layer-0' in a different shape or type"),
        (lambda t: t[0].update(dtype="F16"), "has 'layer-0' in a different shape or type"),
        (
            lambda t: t[0].update(shape=[241]),
            "its trained tensors are not as many numbers as were trained",
        ),
        (
            lambda t: t[2].update(trained=False, sha256="0" * 64),
            "'layer-2' was not to be trained, but is not what the run began with",
        ),
        (
            lambda t: t.append({**t[2], "name": "head", "trained": False, "sha256": "0" * 64}),
            "model.safetensors lacks the tensor 'head'",
        ),
    ],
)
def test_a_model_is_made_of_what_was_written_down_before_training(
    of_records: Bundle,
    change: Callable[[list[dict[str, Any]]], object],
    said: str,
    read_list: Callable[[Bundle], tuple[str, str]],
) -> None:
    assert read_list(listed(of_records, lambda _: None))[0] == "PASS"
    verdict, text = read_list(listed(of_records, change))
    assert verdict == "FAIL"
    assert said in text


def test_a_model_is_the_one_that_the_last_account_of_the_last_round_left(
    of_records: Bundle,
) -> None:
    rounds = of_records.readable_ledger.rounds

    def said(*later: Any) -> tuple[str, str]:
        return says(changed(of_records, ledger={"rounds": (*rounds[:-1], *later)}), "weights")

    right = rounds[-1]
    other = replace(right, parameters="0" * 64)
    assert said(other, right)[0] == "PASS"
    wrong = ("FAIL", "model.safetensors is not the model after the last round")
    assert said(right, other) == wrong
    assert said(replace(right, parameters=None)) == (
        "FAIL",
        "the ledger does not note the result of the last round",
    )
    assert said() == ("NOT VERIFIED", "the ledger does not have every round")
