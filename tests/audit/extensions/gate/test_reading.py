"""A gate's files as the auditor reads them: every field held to its form, and no byte trusted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.errors import UntrustedFileError
from audit.extensions.gate import judge_gate
from audit.extensions.gate.judgement import _surprise
from audit.extensions.gate.reading import Charge, Header, read_ledger, read_reply
from audit.verdict import Verdict
from tests.audit.synthetic_run import chain

HEADER: dict[str, Any] = {
    "kind": "gate", "format": 1, "unit": "record", "epsilon": 3.0, "delta": 1e-5,
    "key": "SHA256:abc",
}  # fmt: skip
CHARGE: dict[str, Any] = {
    "kind": "spend", "release": 1, "time": "2026-11-21T09:21:27Z", "framework": "flower",
    "job": "job-1", "request": "r:1", "shards": 40, "clip": 0.5, "sensitivity": 1.0,
    "noise_multiplier": 20.0, "broadcast_sha256": "a" * 64,
}  # fmt: skip
REPLY: dict[str, Any] = {"kind": "reply", "release": 1, "sha256": "b" * 64}


def faults_of(*entries: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one.line, one.what) for one in read_ledger(chain(list(entries))).faults]


def test_a_ledger_is_read_into_its_header_charges_and_replies() -> None:
    raw = chain([HEADER, CHARGE, REPLY, CHARGE | {"release": 2}])
    lines = raw.splitlines(keepends=True)
    found = read_ledger(raw + b'{"kind"')
    assert found.faults == ()
    assert found.header == Header(unit="record", epsilon=3.0, delta=1e-5, key="SHA256:abc")
    first = Charge(
        release=1, time="2026-11-21T09:21:27Z", framework="flower", job="job-1", request="r:1",
        shards=40, clip=0.5, sensitivity=1.0, noise_multiplier=20.0, broadcast="a" * 64, line=2,
    )  # fmt: skip
    assert found.charges[0] == first
    assert [(one.release, one.line) for one in found.charges] == [(1, 2), (2, 4)]
    assert found.replies == {1: "b" * 64}
    assert found.ends == tuple(np.cumsum([len(line) for line in lines]).tolist())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": 2}, "format is not a whole number from 1 to 1"),
        ({"unit": "client"}, "unit is not one of record, person, site"),
        ({"epsilon": 0.0}, "epsilon is not above 0"),
        ({"delta": 0.0}, "delta is not above 0"),
        ({"delta": 0.51}, "delta is not a number from 0 to 0.5"),
        ({"key": ""}, "key is not a text of the expected form"),
        ({"key": "SHA256:a\nverdict  PASS"}, "key is not a text of the expected form"),
        ({"key": "SHA256:\x1b[2J"}, "key is not a text of the expected form"),
        ({"key": "a" * 129}, "key is not a text of the expected form"),
    ],
)
def test_a_header_of_another_form_is_a_fault(change: dict[str, Any], what: str) -> None:
    assert faults_of(HEADER | change) == [(1, what)]
    assert read_ledger(chain([HEADER | change])).header is None


def test_the_edges_of_a_header_are_read() -> None:
    edges = {"delta": 0.5, "key": "~" * 128, "unit": "site", "epsilon": 1e9}
    assert faults_of(HEADER | edges) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"release": 2}, "is not release 1, which is next"),
        ({"release": 0}, "is not release 1, which is next"),
        ({"time": "2026-11-21T09:21:27"}, "time is not a text of the expected form"),
        ({"time": "2026-13-21T09:21:27Z"}, "time is no time (month must be in 1..12)"),
        ({"framework": "a b"}, "framework is not a text of the expected form"),
        ({"job": ""}, "job is not a text of the expected form"),
        ({"request": "r" * 129}, "request is not a text of the expected form"),
        ({"shards": 0}, "shards is not a whole number from 1 to 4096"),
        ({"shards": 4097}, "shards is not a whole number from 1 to 4096"),
        ({"clip": 0.0}, "clip is not above 0"),
        ({"sensitivity": -1.0}, "sensitivity is not a number from 0 to 1e+300"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is not above 0"),
        ({"broadcast_sha256": "A" * 64}, "broadcast_sha256 is not a text of the expected form"),
        ({"kind": "refund"}, "is of an unknown kind"),
        ({"kind": "gate"}, "the header is not the one first line"),
    ],
)
def test_a_charge_of_another_form_is_a_fault_and_no_charge(
    change: dict[str, Any], what: str
) -> None:
    assert faults_of(HEADER, CHARGE | change) == [(2, what)]
    assert read_ledger(chain([HEADER, CHARGE | change])).charges == ()


@pytest.mark.parametrize("shards", [1, 4096])
def test_the_fewest_and_the_most_shards_are_read(shards: int) -> None:
    assert faults_of(HEADER, CHARGE | {"shards": shards, "request": "r" * 128}) == []


def test_a_reply_is_to_a_release_that_was_charged_before_and_there_is_one() -> None:
    release = "release is not a whole number from 1 to"
    assert faults_of(HEADER, REPLY) == [(2, f"{release} 0")]
    assert faults_of(HEADER, CHARGE, REPLY | {"release": 2}) == [(3, f"{release} 1")]
    assert faults_of(HEADER, CHARGE, REPLY | {"release": 0}) == [(3, f"{release} 1")]
    assert faults_of(HEADER, CHARGE, REPLY, REPLY) == [(4, "release 1 has two replies")]
    wrong = REPLY | {"sha256": "b" * 63}
    assert faults_of(HEADER, CHARGE, wrong) == [(3, "sha256 is not a text of the expected form")]
    assert faults_of(CHARGE) == [(1, "the header is not the one first line")]


def test_a_line_that_is_no_entry_is_a_fault_and_those_after_it_are_read() -> None:
    lines = chain([HEADER, CHARGE]).splitlines(keepends=True)
    found = read_ledger(lines[0] + b"[]\n" + lines[1])
    assert [one.line for one in found.faults] == [2, 3]
    assert len(found.charges) == 1
    assert found.charges[0].line == 3


def stored(arrays: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """Arrays in safetensors' layout."""
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        raw = array.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


BEFORE = np.array([[1.0, 2.0]], dtype=np.float32)
AFTER = np.array([[1.5, -2.0]], dtype=np.float32)
WIDE = np.array([4.0])


def test_a_reply_is_what_left_minus_what_was_sent_in_the_order_of_the_names() -> None:
    found = read_reply(
        stored(
            {
                "released.z": ("F64", WIDE + 1.0),
                "broadcast.z": ("F64", WIDE),
                "released.a": ("F32", AFTER),
                "broadcast.a": ("F32", BEFORE),
            }
        ),
        "it",
    )
    assert found.moved.tolist() == [0.5, -4.0, 1.0]
    assert found.moved.dtype == np.float64
    # The distance to the next float32 above 1.5 and 2, and the next float64 above 5.
    assert found.rounding.tolist() == [2.0**-23, 2.0**-22, 2.0**-50]
    sent = BEFORE.tobytes() + WIDE.tobytes()
    assert found.broadcast_sha256 == hashlib.sha256(sent).hexdigest()


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({}, "holds other arrays than what was sent and what left"),
        ({"broadcast.a": ("F32", BEFORE)}, "broadcast.a did not come back in its form"),
        (
            {"broadcast.a": ("F32", BEFORE), "released.a": ("F32", AFTER.T)},
            "broadcast.a did not come back in its form",
        ),
        (
            {"broadcast.a": ("F64", WIDE), "released.a": ("F32", WIDE.astype(np.float32))},
            "broadcast.a did not come back in its form",
        ),
        (
            {"broadcast.a": ("I64", WIDE.astype(np.int64)),
             "released.a": ("I64", WIDE.astype(np.int64))},
            "dtype is not one of F32, F64",
        ),
        (
            {"broadcast.a": ("F64", WIDE), "released.a": ("F64", WIDE), "more": ("F64", WIDE)},
            "holds other arrays than what was sent and what left",
        ),
    ],
)  # fmt: skip
def test_a_reply_of_another_form_is_refused_by_its_name(arrays: Any, what: str) -> None:
    with pytest.raises(UntrustedFileError) as refusal:
        read_reply(stored(arrays), "replies/1")
    assert str(refusal.value) == f"replies/1: {what}"


@pytest.mark.parametrize(
    ("count", "of", "surprise"),
    [
        # Chernoff's bound: of·KL(share ‖ 1/2), which is of·ln 2 where all moved little.
        (50, 100, 0.0),
        (0, 100, 0.0),
        (100, 100, 100 * 0.6931471805599453),
        (75, 100, 75 * 0.4054651081081644 - 25 * 0.6931471805599453),
    ],
)
def test_how_surprising_small_moves_are_is_chernoffs_bound(
    count: int, of: int, surprise: float
) -> None:
    assert _surprise(count, of) == pytest.approx(surprise, rel=1e-12, abs=1e-12)


def test_a_folder_without_a_ledger_is_judged_and_never_passes(tmp_path: Path) -> None:
    found = judge_gate(tmp_path)
    assert (found.run, found.unit, found.verdict) == ("gate", None, Verdict.NOT_VERIFIED)
    assert [one.name for one in found.findings] == [
        "chain", "signature", "sensitivity", "noise", "budget",
    ]  # fmt: skip
    assert {one.verdict for one in found.findings} == {Verdict.NOT_VERIFIED}


def judged(folder: Path, *entries: dict[str, Any]) -> dict[str, tuple[Verdict, str]]:
    """What the checks that need no other file say of a ledger."""
    (folder / "ledger.jsonl").write_bytes(chain(list(entries)))
    found = judge_gate(folder)
    return {one.name: (one.verdict, one.measurement) for one in found.findings}


def test_a_gate_that_released_nothing_has_spent_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, HEADER)
    assert found["chain"] == (Verdict.PASS, "1 lines, 0 releases in order")
    assert found["sensitivity"] == (Verdict.PASS, "2C in each of 0 charges")
    assert found["noise"] == (Verdict.NOT_APPLICABLE, "nothing was released")
    assert found["budget"] == (Verdict.PASS, "ε = 0 at δ = 1e-05, of a budget of 3")
    assert found["signature"][0] is Verdict.NOT_VERIFIED


def test_one_release_costs_what_one_gaussian_answer_costs(tmp_path: Path) -> None:
    # σ = 1 at δ = 1e-5 is ε = 4.3775 by the exact curve of Balle & Wang 2018.
    once = CHARGE | {"noise_multiplier": 1.0}
    for budget, verdict in ((4.3, Verdict.FAIL), (4.4, Verdict.PASS)):
        found = judged(tmp_path, HEADER | {"epsilon": budget}, once)
        assert found["budget"][0] is verdict
        over = "overspent: " if verdict is Verdict.FAIL else ""
        assert found["budget"][1] == f"{over}ε = 4.378 at δ = 1e-05, of a budget of {budget}"
    assert found["noise"] == (
        Verdict.NOT_VERIFIED, "the ledger notes no reply to any of the newest releases",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "change", "verdict", "said"),
    [
        ("record", {}, Verdict.PASS, "2C in each of 1 charges"),
        (
            "record", {"sensitivity": 0.5}, Verdict.FAIL,
            "ledger.jsonl:2: states a sensitivity of 0.5, where one unit's data move the sum by "
            "up to 2C = 1",
        ),
        ("site", {}, Verdict.FAIL, "ledger.jsonl:2: a site is in all 40 shards"),
        ("site", {"shards": 1}, Verdict.PASS, "2C in each of 1 charges"),
    ],
)  # fmt: skip
def test_the_noise_must_be_scaled_to_all_that_one_unit_can_move(
    unit: str, change: dict[str, Any], verdict: Verdict, said: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, HEADER | {"unit": unit}, CHARGE | change)
    assert found["sensitivity"] == (verdict, said)


def test_at_most_six_faults_of_a_ledger_are_told_by_their_lines(tmp_path: Path) -> None:
    found = judged(tmp_path, HEADER, *[CHARGE | {"kind": "x"}] * 7)
    told = [f"ledger.jsonl:{line}: is of an unknown kind" for line in range(2, 8)]
    assert found["chain"] == (Verdict.FAIL, "; ".join(told))
    assert found["budget"][0] is Verdict.NOT_VERIFIED
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    first = judge_gate(tmp_path).findings[0]
    assert (first.verdict, first.measurement) == (Verdict.FAIL, "ledger.jsonl: has no header")
