"""The second verifier's rules, each by itself: what a ledger may hold, arrays, costs, keys."""

from __future__ import annotations

import base64
import copy
import io
import itertools
import json
import math
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reports.content.assurance import Facts, level_of
from tests.audit.synthetic_run import chain
from tests.conformance.test_conformance import second

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None, reason="the second verifier needs Node"
)
Lines = list[dict[str, Any]]
Change = Callable[[Lines], object]
DIGEST = "ab" * 32


def _header(**more: Any) -> dict[str, Any]:
    return {
        "kind": "header", "format": 1, "run": "a-run", "spec_sha256": DIGEST, "unit": "record",
        "clients": 3, "clients_per_round": 2, "records": [40, 50, 60], "parameters": 7,
        "randomness": "release", "client_sampling": "fixed-size", **more,
    }  # fmt: skip


def _spend(number: int, client: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "spend", "round": number, "client": client, "attempt": 1, "records": 40,
        "sampling": "poisson", "sampling_rate": 0.5, "expected_batch_size": 20.0, "steps": 4,
        "clipping_norm": 1.0, "noise_multiplier": 2.0, "queries_per_step": 2, **more,
    }  # fmt: skip


def _round(number: int, clients: list[int], **more: Any) -> dict[str, Any]:
    each = len(clients)
    return {
        "kind": "round", "round": number, "clients": clients, "steps": [4] * each,
        "queries": [8] * each, **more,
    }  # fmt: skip


_CLAIM = {"kind": "claim", "delta": 1e-5}
_RECORDS = [
    _header(), _spend(0, 0), _spend(0, 1), _round(0, [0, 1]), _spend(1, 1), _spend(1, 2),
    _round(1, [1, 2]), _CLAIM,
]  # fmt: skip
_OF_CLIENTS = {
    "unit": "client",
    "clients": [0, 2],
    "expected_clients": 2,
    "noise_added_by": "server",
}
_CLIENTS = [
    _header(unit="client", client_sampling="poisson"),
    _spend(0, 0, **_OF_CLIENTS), _round(0, [0, 2]),
    _spend(1, 0, **{**_OF_CLIENTS, "clients": []}), _round(1, []), _CLAIM,
]  # fmt: skip
_PRODUCER = _header(producer={"name": "x"}, clients=1, clients_per_round=1, records=[40])
_STEP = {"steps": 1, "queries_per_step": 1}
_RECORDED = [
    _PRODUCER, _spend(0, 0, **_STEP), _spend(0, 0, **_STEP),
    _round(0, [0], steps=[2], queries=[2]), _CLAIM,
]  # fmt: skip
_QUERY = {
    "kind": "query", "attempt": 1, "records": 40, "columns": ["a", "b"], "bins": [9, 9],
    "sensitivity": 1.0, "noise_multiplier": 5.0,
}  # fmt: skip
_BOUNDS = {"kind": "bounds", "columns": [{}], "noised_sha256": DIGEST}
_LEARNT = [
    _RECORDS[0], *({**_QUERY, "client": one} for one in range(3)), _BOUNDS, *_RECORDS[1:],
]  # fmt: skip
_NONE = [_header(unit="none"), _round(0, [0, 1]), {"kind": "claim"}]
_CUT = [
    *_RECORDS[:6], {"kind": "resume", "round": 1}, _spend(1, 1, attempt=2),
    _spend(1, 2, attempt=2), *_RECORDS[6:],
]  # fmt: skip
GOOD = {
    "records": _RECORDS, "clients": _CLIENTS, "recorded": _RECORDED, "learnt": _LEARNT,
    "none": _NONE, "cut": _CUT,
}  # fmt: skip


def _ledgers(given: list[Lines]) -> list[Any]:
    return second("ledgers", [chain(lines).decode() for lines in given])


def _set(place: int, **values: Any) -> Change:
    return lambda lines: lines[place].update(values)


def _move(before: int, after: int) -> Change:
    return lambda lines: lines.insert(after, lines.pop(before))


def _add(place: int, line: dict[str, Any]) -> Change:
    return lambda lines: lines.insert(place, line)


def _remove(*places: int) -> Change:
    return lambda lines: [lines.pop(place) for place in sorted(places, reverse=True)]


# A ledger, what is done to it, and how many rules it then breaks.
ORDERS: dict[str, tuple[str, Change, int]] = {
    "a line before the header": ("records", _move(0, 1), 1),
    "a second header": ("records", _add(1, _header()), 1),
    "a line behind the claim": ("records", _move(7, 6), 1),
    "sizes of more clients": ("records", _set(0, records=[40, 50, 60, 70]), 1),
    "more clients a round than clients": (
        "clients", _set(0, clients_per_round=4), 1,
    ),
    "a round twice": ("none", _add(2, _round(0, [0, 1])), 1),
    "a round left out": ("none", _set(1, round=1), 1),
    "a client twice": ("none", _set(1, clients=[1, 1]), 1),
    "a client dropped and asked": ("none", _set(1, dropped=[1]), 1),
    "steps of another number of clients": ("records", _set(3, steps=[4]), 1),
    "queries of another number of clients": ("records", _set(3, queries=[8]), 1),
    "a client that there is not": ("none", _set(1, clients=[0, 3]), 1),
    "a client less": (
        "records", lambda lines: (_remove(2)(lines), _set(2, **_round(0, [0]))(lines)), 1,
    ),
    "a client less that dropped out": (
        "records", _set(3, **_round(0, [0]), dropped=[1]), 0,
    ),
    "a client less where chance decides": (
        "records",
        lambda lines: (_set(0, client_sampling="poisson")(lines), _remove(2)(lines),
                       _set(2, **_round(0, [0]))(lines)), 0,
    ),
    "a charge less": ("records", _remove(2), 1),
    "a charge more": ("records", _add(1, _spend(0, 2)), 1),
    "a charge of another client": ("records", _set(1, client=2), 1),
    "one client charged twice": ("records", _set(1, client=1), 1),
    "a charge of an empty round less": ("clients", _remove(3), 0),
    "clients charged less": ("clients", _set(1, clients=[0]), 1),
    "charges without privacy": (
        "none", _add(1, _spend(0, 0)), 1,
    ),
    "more queries than charged": ("records", _set(3, queries=[9, 8]), 1),
    "as many queries, of fewer a step": ("records", _set(1, queries_per_step=1), 1),
    "more steps than charged": ("records", _set(3, steps=[5, 4]), 1),
    "a charge behind its round": ("none", _add(2, _spend(0, 0)), 1),
    "a second attempt that no cut explains": ("records", _set(1, attempt=2), 2),
    "attempt 0 after a cut": ("cut", lambda lines: (_set(7, attempt=1)(lines)), 2),
    "a third attempt after one cut": (
        "cut", lambda lines: (_set(7, attempt=3)(lines), _set(8, attempt=3)(lines)), 2,
    ),
    "a round that was cut off and not charged again": ("cut", _remove(7, 8), 1),
    "a resume at another round": ("records", _add(7, {"kind": "resume", "round": 3}), 1),
    "a resume two rounds back": ("records", _add(7, {"kind": "resume", "round": 0}), 1),
    "a resume at the round before": ("records", _add(7, {"kind": "resume", "round": 1}), 0),
    "a resume at the next round": ("records", _add(7, {"kind": "resume", "round": 2}), 0),
    "a charge of another unit": ("records", _set(1, **{**_OF_CLIENTS, "clients": [0]}), 1),
    "a charge of a record among clients": (
        "clients", _set(1, unit="record", client=0), 1,
    ),
    "a recorded step less": ("recorded", _remove(1), 1),
    "a recorded query less": ("recorded", _set(3, queries=[1]), 1),
    "a recorded client that there is not": (
        "recorded", _set(3, clients=[1]), 2,
    ),
    "a recorded step of two": ("recorded", _set(1, steps=2), 1),
    "a recorded step of two queries": ("recorded", _set(1, queries_per_step=2), 1),
    "a recorded step of another client": ("recorded", _set(1, client=1), 1),
    "a recorded step without its end": ("recorded", _set(2, round=1), 2),
    "a client without a histogram": ("learnt", _remove(1), 1),
    "a client with two histograms": ("learnt", _set(1, client=1), 1),
    "a histogram of a client that there is not": ("learnt", _set(1, client=3), 1),
    "no bounds": ("learnt", _remove(4), 1),
    "bounds twice": ("learnt", _add(5, _BOUNDS), 1),
    "bounds before their charge": ("learnt", _move(4, 3), 1),
    "bounds behind a charge": ("learnt", _move(4, 5), 1),
    "bounds of people": ("learnt", _set(0, unit="person"), 1),
    "histograms of a recording": (
        "recorded",
        lambda lines: (_add(1, {**_QUERY, "client": 0})(lines), _add(2, _BOUNDS)(lines)), 1,
    ),
}  # fmt: skip


def test_a_ledger_in_order_breaks_no_rule() -> None:
    assert _ledgers([*GOOD.values()]) == [[]] * len(GOOD)


def test_each_rule_of_a_ledgers_order_is_seen_by_itself() -> None:
    made = []
    for name, change, _ in ORDERS.values():
        lines = copy.deepcopy(GOOD[name])
        change(lines)
        made.append(lines)
    found = dict(zip(ORDERS, _ledgers(made), strict=True))
    assert {name: len(faults) for name, faults in found.items()} == {
        name: count for name, (_, _, count) in ORDERS.items()
    }, found


# A ledger, the place of a line, and for each field values that it must not have.
FIELDS: list[tuple[str, int, dict[str, list[Any]]]] = [
    ("records", 0, {
        "format": [2], "run": ["", "-a", "a" * 201], "spec_sha256": ["ab", DIGEST + "a"],
        "unit": ["people"], "clients": [0, 2.5], "clients_per_round": [0], "records": [3, [-1]],
        "parameters": [0], "randomness": ["none"],
    }),
    ("records", 1, {
        "round": [-1], "attempt": [0], "sampling": [3], "sampling_rate": [0.0, 1.5],
        "clipping_norm": [0.0, 1e301], "noise_multiplier": [0.0, "2"], "client": [-1],
        "records": [0], "expected_batch_size": [0.0], "steps": [0], "queries_per_step": [0],
    }),
    ("records", 3, {"round": [-1], "clients": [[-1]], "steps": [3], "queries": [["a"]]}),
    ("records", 7, {"delta": [0.0, 1.5, "x"]}),
    ("clients", 1, {
        "clients": [[0, 0], [-1]], "expected_clients": [0], "noise_added_by": ["nobody"],
    }),
    ("cut", 6, {"round": [-1]}),
    ("learnt", 1, {
        "client": [-1], "attempt": [0], "records": [-1], "columns": [[], [3]], "bins": [[0]],
        "sensitivity": [0.0], "noise_multiplier": [0.0],
    }),
    ("learnt", 4, {"columns": [[3], [None]], "noised_sha256": ["ab", 3]}),
]  # fmt: skip


def test_each_field_of_a_ledger_is_refused_where_it_is_missing_or_out_of_range() -> None:
    made, names = [], []
    for name, place, fields in FIELDS:
        for field, wrong in fields.items():
            for value in (None, *wrong):
                lines = copy.deepcopy(GOOD[name])
                lines[place][field] = value
                made.append(lines)
                names.append((name, place, field, value))
    found = [json.dumps(one) for one in _ledgers(made)]
    told = [
        f"{GOOD[name][place]['kind']}: {field} is missing or out of range" in one
        or f"has no {GOOD[name][place]['kind']} that can be read" in one
        for (name, place, field, _), one in zip(names, found, strict=True)
    ]
    assert [name for name, seen in zip(names, told, strict=True) if not seen] == []


def test_numbers_at_the_ends_of_their_ranges_are_accepted() -> None:
    made = []
    for place, values in (
        (0, {"run": "a" * 200, "records": [0, 1, 2]}),
        (1, {"sampling_rate": 1.0, "clipping_norm": 1e300, "records": 1, "attempt": 1}),
        (7, {"delta": 1.0}),
    ):
        lines = copy.deepcopy(_RECORDS)
        lines[place].update(values)
        made.append(lines)
    assert _ledgers(made) == [[], [], []]


def test_a_line_that_was_changed_is_told_from_a_chain_that_is_broken() -> None:
    text = chain(_RECORDS).decode()
    lines = text.splitlines()
    made = {
        "as it is": (text, 0),
        "without its end": (text[:-1], 1),
        "one field changed": (text.replace('"round":0,"s', '"round":9,"s', 1), 3),
        "no canonical form": (text.replace('{"attempt"', '{ "attempt"', 1), 2),
        "a line left out": ("\n".join([*lines[:2], *lines[3:], ""]), 2),
        "an array": (text.replace(lines[4], "[]"), 3),
        "a number": (text.replace(lines[4], "7"), 3),
        "nothing": (text.replace(lines[4], "null"), 3),
        "a line of more than a MiB": (text.replace(lines[4], '"' + "a" * (1 << 20) + '"'), 3),
        "an unknown kind": (text.replace('"kind":"round"', '"kind":"other"', 1), 4),
    }
    found = dict(zip(made, second("ledgers", [one for one, _ in made.values()]), strict=True))
    assert {name: len(one) for name, one in found.items()} == {
        name: count for name, (_, count) in made.items()
    }, found


def test_what_has_no_header_or_no_claim_is_refused() -> None:
    found = _ledgers([_RECORDS[1:], _RECORDS[:-1], []])
    assert ["refused" in one for one in found] == [True] * 3


def _zipped(compressed: bool = False, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def test_it_reads_the_arrays_that_numpy_wrote() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
        "b": np.array([1e300, -2.5]),
        "c": np.array([-(2**40), 3], dtype=np.int64),
        "d": np.array([[[-9]]], dtype=np.int32),
        "e": np.array([0, 255], dtype=np.uint8),
        "f": np.array([65535, 256], dtype=np.uint16),
        "g": np.array([4294967295], dtype=np.uint32),
        "h": np.array(2.5),
        "i": np.zeros((0, 4)),
    }  # fmt: skip
    (found,) = second("arrays", [base64.b64encode(_zipped(**arrays)).decode()])
    assert found == {name: [list(one.shape), one.ravel().tolist()] for name, one in arrays.items()}


def test_it_reads_arrays_with_heads_of_the_second_version() -> None:
    """Numpy writes one where a head is long; its length has four bytes."""
    buffer, archive = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(3.0), version=(2, 0))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npy", buffer.getvalue())
        file.writestr("b.npy", buffer.getvalue())
    (found,) = second("arrays", [base64.b64encode(archive.getvalue()).decode()])
    assert found == {"a": [[3], [0.0, 1.0, 2.0]], "b": [[3], [0.0, 1.0, 2.0]]}


def test_it_refuses_an_archive_that_is_damaged_or_compressed_or_holds_no_numbers() -> None:
    good = _zipped(a=np.arange(9.0))
    directory = good.rindex(b"PK\x01\x02")
    local_size = good[:directory]
    made = {
        "nothing": b"",
        "no archive": b"a" * 100,
        "cut": good[:-1],
        "cut in front": good[8:],
        "compressed": _zipped(True, a=np.zeros(900)),
        "no directory": good.replace(b"PK\x01\x02", b"PK\x01\x03"),
        "texts": _zipped(a=np.array(["ab"])),
        "booleans": _zipped(a=np.array([True])),
        "a longer shape": good.replace(b"'shape': (9,)", b"'shape': (8,)"),
        "no shape": good.replace(b"'shape'", b"'shade'"),
        "no type": good.replace(b"'descr'", b"'descs'"),
        "a larger size": local_size
        + good[directory : directory + 20]
        + (2**31).to_bytes(4, "little") * 2
        + good[directory + 28 :],
    }
    found = second("arrays", [base64.b64encode(one).decode() for one in made.values()])
    assert [name for name, one in zip(made, found, strict=True) if "refused" not in one] == []


def test_a_charge_costs_what_its_sampler_costs() -> None:
    base = {"noise_multiplier": 3.0, "expected_batch_size": 20, "records": 50, "steps": 7}
    given = [
        {**base, "sampling": "poisson"},
        {**base, "sampling": "poisson", "sampling_rate": 0.6},
        {**base, "sampling": "poisson", "sampling_rate": 0.1},
        {**base, "sampling": "poisson", "sampling_rate": 0.1, "rate_stated": True},
        {**base, "sampling": "poisson", "records": 10, "queries_per_step": 4},
        {**base, "sampling": "fixed-size"},
        {**base, "sampling": "fixed-size", "sampling_rate": 0.5},
        {**base, "sampling": "fixed-size", "records": 20},
        {**base, "sampling": "fixed-size", "records": 10},
        {**base, "sampling": "shuffled"},
        {**base, "sampling": "shuffled", "records": 20, "queries_per_step": 9},
        {**base, "sampling": "by hand"},
    ]
    poisson = {"sigma": 3.0, "steps": 7}
    fixed = {"sigma": 1.5, "steps": 7}
    assert second("costs", given) == [
        {**poisson, "rate": 0.4},
        {**poisson, "rate": 0.6},
        {**poisson, "rate": 0.4},
        {**poisson, "rate": 0.1},
        {**poisson, "rate": 1, "sigma": 1.5},
        {**fixed, "rate": 0.4, "fixed": True},
        {**fixed, "rate": 0.5, "fixed": True},
        {**fixed, "rate": 1, "fixed": False},
        {**fixed, "rate": 1, "fixed": False},
        {"rate": 1, "sigma": 1.5, "steps": math.ceil(7 / 3)},
        {"rate": 1, "sigma": 0.5, "steps": 7},
        {"refused": "the sampler by hand has no accounting here"},
    ]


def test_a_level_needs_what_it_says() -> None:
    """As `reports.content.assurance` computes it; whom the reader trusts is not asked here."""
    one, other = {"fingerprint": "a"}, {"fingerprint": "b"}
    cases, due = [[None, {}]], [None]
    for verdict, agrees, coin in itertools.product(("PASS", "FAIL"), (True, False), (True, False)):
        said = {"verdict": verdict, "agrees": agrees, "public_coin": coin}
        for auditor in (one, other):
            for challenger in (None, "a", "b", "c"):
                cases.append([said, {"trainer": one, "auditor": auditor}, challenger])
                known = coin and challenger == auditor["fingerprint"]
                facts = Facts(verdict, agrees, None, known)
                due.append(level_of(facts, another_key=auditor is other))
        cases.append([said, {"auditor": other}, "b"])
        due.append(min(due[-1], 2) if due[-1] else None)
    found = second("levels", cases)
    for case, level, wanted in zip(cases, found, due, strict=True):
        assert level == wanted, case


def test_it_reads_specs_of_every_form_and_refuses_what_is_none() -> None:
    good = {
        "a: 1\nb:\n  c: [1, 2.5, x]\n  d: {e: null, f: true}\n": {
            "a": 1, "b": {"c": [1, 2.5, "x"], "d": {"e": None, "f": True}},
        },
        "# a remark\n\na:\n  - 1\n  - {b: -2e-3}\n": {"a": [1, {"b": -0.002}]},
        "a:\n  b:\n    - x y\n  c: false\n": {"a": {"b": ["x y"], "c": False}},
        'a: "x: \\x41\\U0001f600\\n"\n"b c": []\n': {"a": "x: A\U0001f600\n", "b c": []},
        "a: {}\nb: .5\nc: +1.\nd: 1e5x\n": {"a": {}, "b": 0.5, "c": 1, "d": "1e5x"},
        "a: [[1], [2, [3]]]\n": {"a": [[1], [2, [3]]]},
    }  # fmt: skip
    bad = [
        "a", "a: 1\na: 2\n", "a: 1\n  b: 2\n", " a: 1\n", "- 1\n", "a:\n  - 1\n  b: 2\n",
        "a: [1\n", "a: {b}\n", "a: {b: 1\n", "a: ]x[\nb: [1]]\n", "a: \"x\n",
        "a: \n", "a: [,]\n", "a: " + "[" * 40 + "]" * 40 + "\n", "a:\n    b: 1\n",
        "a: [1]2\n", "a:\n- 1\nb: 1\n- 2\n",
    ]  # fmt: skip
    found = second("specs", [*good, *bad])
    assert found[: len(good)] == [*good.values()]
    refused = ["refused" in one for one in found[len(good) :]]
    assert [one for one, seen in zip(bad, refused, strict=True) if not seen] == []
