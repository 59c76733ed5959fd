"""Lines of a ledger: each field is read into its place, and refused beyond its limits."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest

from audit.errors import UnverifiedError
from audit.reading.ledger import Ledger, read_ledger
from audit.reading.ledger_lines import Adaptation, Decay, SpendingBound, promised
from audit.untrusted.fields import FieldError
from tests.audit.synthetic_run import chain

Line = dict[str, Any]


def digest(number: int) -> str:
    """A digest that is no other's."""
    return f"{number:064x}"


HEADER: Line = {
    "kind": "header", "format": 1, "run": "run-1", "spec_sha256": digest(1), "unit": "record",
    "adjacency": "add-remove", "delta": 1e-5, "rounds": 4, "local_steps": 3, "clients": 5,
    "clients_per_round": 2, "client_sampling": "fixed", "records": [10, 11, 12, 13, 14],
    "sampling": "poisson", "expected_batch_size": 4.5, "sampling_rate": 0.25,
    "rate_assumption": "an estimate", "clipping_norm": 0.5, "noise_multiplier": 1.25,
    "randomness": "release", "commitment": "a commitment", "seed": 7, "parameters": 340,
    "max_epsilon": 3.5, "seconds": "whole", "tensors_sha256": digest(2),
    "selection_sha256": digest(3), "frozen_sha256": digest(4), "contents_sha256": digest(5),
    "people_sha256": digest(6),
    "sparsification": {"kind": "random", "size": 340, "kept": 17, "seed": 8},
    "adaptation": {
        "most_local_steps": 6, "step_limit": 22, "follows_releases": True,
        "decay": {"factor": 0.75, "patience": 2, "floor": 0.125},
    },
    "canaries": {"count": 9, "kind": "input", "audited": "run-0"},
    "budget": {"epsilon": 8.5, "delta": 2e-5},
    "grid": {"update": 16, "vectors": 17, "summaries": 20, "weights": 18},
    "public_coin": {
        "run": "run-2", "intent_sha256": digest(7), "challenge_sha256": digest(8),
        "nonce": digest(9), "root": digest(10),
        "intents": {"of_trainer": 4, "for_data": 3, "dropped": 2, "dropped_of_trainer": 1},
    },
    "tuning": {"trial": 2, "trials": 30, "commitment": digest(11)},
    "sites": {"keys": [digest(12), digest(13)], "drop_outs": 1},
    "column_queries": {"columns": ["age", "dose"], "bins": [40, 24], "noise_multiplier": 6.5},
    "initial": {
        "broadcast_sha256": digest(14), "origin": "file", "file": "weights.safetensors",
        "file_sha256": digest(15),
    },
}  # fmt: skip
OF_PEOPLE: Line = {
    **HEADER, "unit": "person", "rows": [20, 21, 22, 23, 24], "records_per_person": 3,
    "clients_per_person": 2,
}  # fmt: skip
OF_CLIENTS: Line = {**HEADER, "unit": "client", "participation": 0.4, "noise_added_by": "clients"}
OF_A_LOOP: Line = {
    **HEADER,
    "producer": {
        "name": "opacus", "version": "1.5", "mode": "hooks", "optimizer": "AdamW",
        "generator": "Philox", "secure": True, "mechanism": "laplace",
    },
}  # fmt: skip
SPEND: Line = {
    "kind": "spend", "round": 1, "client": 3, "attempt": 2, "records": 100, "sampling": "poisson",
    "sampling_rate": 0.1, "expected_batch_size": 10.5, "clipping_norm": 0.5,
    "noise_multiplier": 1.25, "steps": 5, "queries_per_step": 2, "rate_stated": True,
}  # fmt: skip
ROUND_SPEND: Line = {
    "kind": "spend", "unit": "client", "round": 1, "attempt": 2, "sampling": "poisson",
    "sampling_rate": 0.1, "expected_clients": 3.5, "clipping_norm": 0.5, "noise_multiplier": 1.25,
    "noise_added_by": "clients", "clients": [0, 3], "upload_noise_multiplier": 0.75,
}  # fmt: skip
ROUND: Line = {
    "kind": "round", "round": 1, "clients": [1, 3], "steps": [5, 6], "queries": [10, 12],
    "dropped": [4], "broadcast_sha256": digest(1), "uploads_sha256": digest(2),
    "released_sha256": digest(3), "state_sha256": digest(4), "parameters_sha256": digest(5),
    "participations_sha256": digest(6), "frozen_sha256": digest(7), "released": {"slope": 0.5},
    "pieces": {"broadcast": digest(8), "uploads": digest(9), "vectors": 12, "heads": 900},
}  # fmt: skip
RESUME: Line = {"kind": "resume", "round": 2, "commitment": "another commitment"}
LIMITED: Line = {"kind": "claim", "stopped": {"rounds": 3, "max_epsilon": 2.5}}
AT_ITS_TARGET: Line = {
    "kind": "claim", "stopped": {"rounds": 3, "target_epsilon": 1.5}, "diverged": {"rounds": 2},
}  # fmt: skip
QUERY: Line = {
    "kind": "query", "client": 3, "attempt": 2, "records": 100, "columns": ["age", "dose"],
    "bins": [40, 24], "sensitivity": 1.5, "noise_multiplier": 6.5,
}  # fmt: skip
BOUNDS: Line = {
    "kind": "bounds", "noised_sha256": digest(1),
    "columns": [
        {"column": "age", "place": 2, "bins": 40, "first": 5, "last": 31, "low": 10.0, "high": 62.0}
    ],
}  # fmt: skip
LINES: dict[str, Line] = {
    "records": HEADER, "people": OF_PEOPLE, "clients": OF_CLIENTS, "loop": OF_A_LOOP,
    "spend": SPEND, "round spend": ROUND_SPEND, "round": ROUND, "resume": RESUME,
    "limited": LIMITED, "at its target": AT_ITS_TARGET, "query": QUERY, "bounds": BOUNDS,
}  # fmt: skip

EXACT = 2**53
MANY = 10_000_000
SHARE = (0.0, 1.0)
ABOVE_ZERO = (0.0, 1e300)
# Least and greatest number of each field; of those that are not whole, the least is refused too.
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "records": {
        "format": (1, 1), "delta": SHARE, "rounds": (1, MANY), "local_steps": (1, MANY),
        "clients_per_round": (1, 5), "records.2": (0, EXACT), "expected_batch_size": ABOVE_ZERO,
        "sampling_rate": SHARE, "clipping_norm": ABOVE_ZERO, "noise_multiplier": ABOVE_ZERO,
        "seed": (-(2**63), EXACT), "parameters": (1, 10**11), "max_epsilon": ABOVE_ZERO,
        "sparsification.size": (17, 10**11), "sparsification.kept": (1, 340),
        "sparsification.seed": (-(2**63), 2**63), "adaptation.most_local_steps": (1, MANY),
        "adaptation.step_limit": (1, MANY), "adaptation.decay.factor": SHARE,
        "adaptation.decay.patience": (1, MANY), "adaptation.decay.floor": SHARE,
        "canaries.count": (1, 100_000), "budget.epsilon": ABOVE_ZERO, "budget.delta": SHARE,
        "grid.update": (1, 53), "grid.vectors": (1, 53), "grid.summaries": (1, 53),
        "grid.weights": (1, 53), "public_coin.intents.of_trainer": (0, EXACT),
        "public_coin.intents.for_data": (0, EXACT), "public_coin.intents.dropped": (0, EXACT),
        "public_coin.intents.dropped_of_trainer": (0, EXACT), "tuning.trial": (1, EXACT),
        "tuning.trials": (1, EXACT), "sites.drop_outs": (0, EXACT),
        "column_queries.bins.0": (1, 4096), "column_queries.noise_multiplier": ABOVE_ZERO,
    },
    "people": {
        "rows.4": (0, EXACT), "records_per_person": (1, EXACT), "clients_per_person": (1, 5),
    },
    "clients": {"participation": SHARE},
    "spend": {
        "round": (0, EXACT), "client": (0, EXACT), "attempt": (1, 1_000_000),
        "records": (1, EXACT), "sampling_rate": SHARE, "expected_batch_size": ABOVE_ZERO,
        "clipping_norm": ABOVE_ZERO, "noise_multiplier": ABOVE_ZERO, "steps": (1, MANY),
        "queries_per_step": (1, 1000),
    },
    "round spend": {
        "round": (0, EXACT), "attempt": (1, 1_000_000), "sampling_rate": SHARE,
        "expected_clients": ABOVE_ZERO, "clipping_norm": ABOVE_ZERO,
        "noise_multiplier": ABOVE_ZERO, "clients.0": (0, EXACT),
        "upload_noise_multiplier": ABOVE_ZERO,
    },
    "round": {
        "round": (0, EXACT), "clients.0": (0, EXACT), "steps.0": (0, EXACT),
        "queries.1": (0, EXACT), "dropped.0": (0, EXACT), "pieces.vectors": (1, 10**9),
        "pieces.heads": (0, 10**12),
    },
    "resume": {"round": (0, EXACT)},
    "limited": {"stopped.rounds": (0, EXACT), "stopped.max_epsilon": ABOVE_ZERO},
    "at its target": {"stopped.target_epsilon": ABOVE_ZERO, "diverged.rounds": (1, EXACT)},
    "query": {
        "client": (0, EXACT), "attempt": (1, 1_000_000), "records": (0, EXACT),
        "bins.1": (1, 4096), "sensitivity": ABOVE_ZERO, "noise_multiplier": ABOVE_ZERO,
    },
    "bounds": {
        "columns.0.place": (0, EXACT), "columns.0.bins": (31, 4096), "columns.0.first": (0, 30),
        "columns.0.last": (6, 40),
    },
}  # fmt: skip
BOUNDED = [(name, path) for name, paths in LIMITS.items() for path in paths]
# Whose absence says something: that a rule, a limit or a noted digest is not there.
LEFT_OUT = {
    "records": "sampling_rate rate_assumption commitment seed max_epsilon seconds tensors_sha256 "
    "selection_sha256 frozen_sha256 contents_sha256 people_sha256 sparsification adaptation "
    "canaries budget grid public_coin tuning sites column_queries initial adaptation.step_limit "
    "adaptation.decay canaries.audited",
    "people": "seed commitment",
    "clients": "expected_batch_size",
    "loop": "producer producer.mechanism rounds local_steps",
    "spend": "rate_stated",
    "round spend": "upload_noise_multiplier",
    "round": "dropped broadcast_sha256 uploads_sha256 released_sha256 state_sha256 "
    "parameters_sha256 participations_sha256 frozen_sha256 released pieces",
    "resume": "commitment",
    "limited": "stopped",
    "at its target": "stopped diverged",
    "query": "",
    "bounds": "",
}


def put(line: Line, path: str, value: Any) -> Line:
    """The line with another value at a dotted path."""
    changed = copy.deepcopy(line)
    part: Any = changed
    *outer, last = path.split(".")
    for key in outer:
        part = part[int(key) if isinstance(part, list) else key]
    part[int(last) if isinstance(part, list) else last] = value
    return changed


def without(line: Line, path: str) -> Line:
    """The line without what stands at a dotted path."""
    changed = copy.deepcopy(line)
    part: Any = changed
    *outer, last = path.split(".")
    for key in outer:
        part = part[int(key) if isinstance(part, list) else key]
    del part[last]
    return changed


def read(line: Line) -> Ledger:
    return read_ledger(chain([line]))


def faults(line: Line) -> list[str]:
    """What is wrong with a line but for its place in a ledger."""
    return [fault.what for fault in read(line).faults]


def paths_of(part: Any, prefix: str = "") -> list[str]:
    """Dotted paths of all fields, those of sections too."""
    found = []
    for key, value in part.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict) and key != "released":
            found += paths_of(value, f"{prefix}{key}.")
        if isinstance(value, list) and isinstance(value[0], dict):
            found += paths_of(value[0], f"{prefix}{key}.0.")
    return found


@pytest.mark.parametrize("name", LINES)
def test_a_line_with_every_field_is_read(name: str) -> None:
    assert faults(LINES[name]) == []


@pytest.mark.parametrize(("name", "path"), BOUNDED)
def test_a_number_is_read_at_its_limits_and_refused_beyond_them(name: str, path: str) -> None:
    line, (least, most) = LINES[name], LIMITS[name][path]
    if isinstance(most, int):
        taken, refused = [least, most], [least - 1, most + 1]
    else:
        taken, refused = [5e-324, most], [least, -5e-324, 1.0000000000000002 * most]
    for value in taken:
        assert faults(put(line, path, value)) == [], value
    # Neither a truth value nor a text is a number, and a whole number has no fraction.
    odd: list[Any] = [True, "1", None, *([1.5] if isinstance(most, int) else [])]
    may_be_absent = path in LEFT_OUT[name].split()
    for value in [*refused, *(one for one in odd if one is not None or not may_be_absent)]:
        assert len(faults(put(line, path, value))) == 1, value


@pytest.mark.parametrize("name", LINES)
def test_a_field_is_missed_unless_its_absence_says_something(name: str) -> None:
    optional = LEFT_OUT[name].split()
    if name in ("people", "clients", "loop"):
        optional += LEFT_OUT["records"].split()
    for path in paths_of(LINES[name]):
        if path in ("kind", "unit"):
            continue
        found = faults(without(LINES[name], path))
        assert bool(found) is (path not in optional), (path, found)
        assert all("is missing" in one for one in found), (path, found)


DUE_OF_HEADER: dict[str, Any] = {
    "unit": "record", "mechanism": "gaussian", "of_clients": False, "whole_seconds": True,
    "drop_outs": 1, "producer": None, "participation": None, "noise_added_by": None, "rows": None,
    "records_per_person": None, "clients_per_person": 1,
    "tensors": digest(2), "selection": digest(3), "frozen": digest(4), "contents": digest(5),
    "people": digest(6), "sites": (digest(12), digest(13)),
    "public_coin": {**HEADER["public_coin"], "nonce": bytes.fromhex(digest(9))},
    "initial": {
        "broadcast": digest(14), "origin": "file", "file": "weights.safetensors",
        "file_sha256": digest(15),
    },
    "column_queries": {"columns": ("age", "dose"), "bins": (40, 24), "noise_multiplier": 6.5},
}  # fmt: skip


def due_of_header(line: Line, **others: Any) -> dict[str, Any]:
    """What a header is read as: its fields by their names, and those that have another."""
    renamed = ("kind", "format", "seconds")
    names = {key for key in line if key not in renamed and not key.endswith("_sha256")}
    due = {key: tuple(line[key]) if isinstance(line[key], list) else line[key] for key in names} | {
        "spec_sha256": line["spec_sha256"]
    }
    return {**due, **DUE_OF_HEADER, **others}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("records", {}),
        (
            "people",
            {
                "unit": "person", "rows": (20, 21, 22, 23, 24), "records_per_person": 3,
                "clients_per_person": 2,
            },
        ),
        ("clients", {"unit": "client", "participation": 0.4, "noise_added_by": "clients"}),
        # How long a loop is its files tell, and here there are none.
        (
            "loop",
            {
                "unit": "loop", "mechanism": "laplace", "rounds": 1, "local_steps": 1,
                "producer": OF_A_LOOP["producer"],
            },
        ),
    ],
)  # fmt: skip
def test_each_field_of_a_header_is_read_into_its_place(name: str, others: dict[str, Any]) -> None:
    header = read(LINES[name]).header
    assert header is not None
    found = {
        **asdict(header), "unit": header.unit.name, "mechanism": header.mechanism,
    }  # fmt: skip
    assert found == due_of_header(LINES[name], **others)


def test_each_field_of_another_line_is_read_into_its_place() -> None:
    bare = {name: {**line, "line": 1} for name, line in LINES.items()}
    for line in bare.values():
        line.pop("kind")
        line.pop("unit", None)
    (spend,) = read(SPEND).spends
    assert asdict(spend) == bare["spend"]
    assert (spend.stated_rate, read(put(SPEND, "rate_stated", False)).spends[0].stated_rate) == (
        0.1,
        None,
    )
    (round_spend,) = read(ROUND_SPEND).round_spends
    assert asdict(round_spend) == {**bare["round spend"], "clients": (0, 3)}
    (item,) = read(ROUND).rounds
    assert asdict(item) == {
        "line": 1, "round": 1, "clients": (1, 3), "steps": (5, 6), "queries": (10, 12),
        "dropped": (4,), "broadcast": digest(1), "exchanged": digest(2), "parameters": digest(5),
        "released": {"slope": 0.5},
        "digests": {key: value for key, value in ROUND.items() if key.endswith("_sha256")},
        "pieces": {
            **ROUND["pieces"],
            "broadcast": bytes.fromhex(digest(8)),
            "uploads": bytes.fromhex(digest(9)),
        },
    }  # fmt: skip
    assert item.asked == (1, 3, 4)
    # Where whole clients are protected the released mean takes the place of the uploads.
    assert read(without(ROUND, "uploads_sha256")).rounds[0].exchanged == digest(3)
    assert asdict(read(RESUME).resumes[0]) == bare["resume"]
    stopped = read(LIMITED).stopped
    assert stopped is not None
    assert asdict(stopped) == {"rounds": 3, "max_epsilon": 2.5, "target_epsilon": None}
    ended = read(AT_ITS_TARGET)
    assert ended.stopped is not None
    assert asdict(ended.stopped) == {"rounds": 3, "max_epsilon": None, "target_epsilon": 1.5}
    assert ended.diverged == 2
    both = {"columns": ("age", "dose"), "bins": (40, 24)}
    assert asdict(read(QUERY).queries[0]) == {**bare["query"], **both}
    assert asdict(read(BOUNDS).answers[0]) == {
        "line": 1, "noised": digest(1), "columns": (BOUNDS["columns"][0],),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("records", "records", [10, 11, 12, 13]),
        ("records", "clients", 6),
        ("records", "clients", 0),
        ("people", "rows", [20, 21, 22, 23]),
        ("people", "clients_per_person", 6),
        ("loop", "unit", "person"),
        ("records", "unit", "house"),
        ("records", "randomness", "none"),
        ("records", "seconds", "half"),
        ("records", "run", "-run"),
        ("records", "run", "r" * 201),
        ("records", "spec_sha256", digest(1).upper().replace("0", "A")),
        ("records", "spec_sha256", digest(1)[1:]),
        ("records", "sparsification.kind", "top"),
        ("records", "canaries.kind", "text"),
        ("records", "initial.origin", "home"),
        ("records", "sites.keys", [digest(12), "0"]),
        ("records", "adaptation.follows_releases", 1),
        ("loop", "producer.secure", 1),
        ("loop", "producer.name", ""),
        ("loop", "producer.mode", "m" * 201),
        ("loop", "producer.mechanism", "Laplace"),
        ("clients", "noise_added_by", "somebody"),
        ("spend", "unit", "person"),
        ("spend", "rate_stated", 1),
        ("round spend", "noise_added_by", "nobody"),
        ("round spend", "clients", [3, 3]),
        ("round", "clients", [3, 3]),
        ("round", "clients", [0]),
        ("round", "steps", [5]),
        ("round", "queries", [10, 12, 12]),
        ("round", "dropped", [3]),
        ("round", "dropped", [4, 4]),
        ("round", "state_sha256", "0"),
        ("query", "columns", ["age", "age"]),
        ("query", "columns", ["age", "c" * 201]),
        ("query", "columns", ["age", ""]),
        ("query", "columns", ["age", 3]),
        ("query", "columns", ["age"]),
        ("bounds", "columns.0.column", ""),
        ("bounds", "columns.0.column", "c" * 201),
        ("bounds", "columns.0.first", 31),
        ("bounds", "columns.0.low", "low"),
    ],
)
def test_what_no_writer_notes_is_refused(name: str, path: str, value: Any) -> None:
    assert len(faults(put(LINES[name], path, value))) == 1


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("records", "run", "r" * 200),
        ("loop", "producer.mode", "m" * 200),
        ("query", "columns", ["age", "c" * 200]),
        ("bounds", "columns.0.column", "c" * 200),
        ("spend", "unit", "record"),
    ],
)
def test_names_may_be_as_long_as_writers_make_them(name: str, path: str, value: Any) -> None:
    assert faults(put(LINES[name], path, value)) == []


def value_at(line: Line, path: str) -> Any:
    """What stands at a dotted path."""
    part: Any = line
    for key in path.split("."):
        part = part[int(key) if isinstance(part, list) else key]
    return part


@pytest.mark.parametrize("name", LINES)
def test_a_digest_is_64_hexadecimal_digits_wherever_one_stands(name: str) -> None:
    line = LINES[name]
    for path in paths_of(line):
        value = value_at(line, path)
        if not isinstance(value, str) or len(value) != 64:
            continue
        assert faults(put(line, path, "f" * 64)) == [], path
        for wrong in ("f" * 63, "f" * 65, "F" * 64, "g" * 64, "", 7):
            assert len(faults(put(line, path, wrong))) == 1, (path, wrong)


WORDS = {
    "records unit": "record none",
    "records randomness": "release reproducible",
    "records sparsification.kind": "random released-top local-top",
    "records canaries.kind": "gradient input secret label",
    "records initial.origin": "seed file code given",
    "clients noise_added_by": "server clients",
    "round spend noise_added_by": "server clients",
}


@pytest.mark.parametrize("field", WORDS)
def test_each_word_of_a_field_that_has_few_is_read(field: str) -> None:
    name, _, path = field.rpartition(" ")
    for word in WORDS[field].split():
        assert faults(put(LINES[name], path, word)) == [], word
        assert len(faults(put(LINES[name], path, f"{word}s"))) == 1, word


def test_only_weights_from_a_file_have_its_name_and_digest() -> None:
    header = read(put(HEADER, "initial.origin", "seed")).header
    assert header is not None
    assert header.initial is not None
    assert asdict(header.initial) == {
        "broadcast": digest(14), "origin": "seed", "file": None, "file_sha256": None,
    }  # fmt: skip


def test_a_run_has_100_000_clients_at_most() -> None:
    many = {**HEADER, "records": [1] * 100_000, "clients": 100_000}
    assert faults(many) == []
    assert len(faults({**many, "records": [1] * 100_001, "clients": 100_001})) == 1


def test_a_header_declares_nothing_that_it_does_not_say() -> None:
    line = HEADER
    for path in LEFT_OUT["records"].split():
        if "." not in path:
            line = without(line, path)
    header = read(line).header
    assert header is not None
    found = {key: value for key, value in asdict(header).items() if key not in HEADER}
    assert {key: value for key, value in found.items() if value is not None} == {
        "of_clients": False, "drop_outs": 0, "whole_seconds": False,
        "clients_per_person": 1,
    }  # fmt: skip
    assert (header.sites, header.mechanism) == ((), "gaussian")
    assert header.training_records == header.records
    people = read(OF_PEOPLE).header
    assert people is not None
    assert people.training_records == (20, 21, 22, 23, 24)


def test_a_ledger_ends_with_the_end_of_a_line() -> None:
    whole = chain([HEADER, SPEND, RESUME])
    assert read_ledger(whole).faults == ()
    cut = read_ledger(whole[:-1])
    assert [(fault.line, fault.what[:12]) for fault in cut.faults] == [(0, "does not end")]
    assert [(position, kind) for position, kind in cut.kinds] == [
        (1, "header"), (2, "spend"), (3, "resume"),
    ]  # fmt: skip
    assert (cut.spends[0].line, cut.resumes[0].line) == (2, 3)
    assert [fault.line for fault in read_ledger(whole + b"\n").faults] == [4]


def test_a_line_of_an_unknown_kind_is_named_and_the_others_are_read() -> None:
    odd = chain([HEADER, {"kind": "gift"}, RESUME])
    found = read_ledger(odd)
    assert [fault.line for fault in found.faults] == [2]
    assert "unknown kind" in found.faults[0].what
    assert found.kinds == ((1, "header"), (2, "gift"), (3, "resume"))
    lines = chain([HEADER, RESUME]).splitlines(keepends=True)
    broken = read_ledger(lines[0] + b"{\n" + lines[1])
    assert [fault.line for fault in broken.faults] == [2, 3]
    assert broken.resumes[0].line == 3


def test_a_spec_promises_sparse_updates_within_its_limits() -> None:
    def spec(fraction: Any = 0.05, seed: Any = 3, kind: Any = "random") -> dict[str, Any]:
        section = {"fraction": fraction, "kind": kind}
        return {"data": {"seed": seed}, "algorithm": {"sparsification": section}}

    assert promised({"data": {}, "algorithm": {}}, 340) is None
    due = {"kind": "random", "size": 340, "kept": 17, "seed": 3}
    found = promised(spec(), 340)
    assert found is not None
    assert asdict(found) == due
    # At least one coordinate stays, and at most all.
    kept = {share: promised(spec(share), 340) for share in (1e-9, 1.0)}
    assert [one.kept for one in kept.values() if one] == [1, 340]
    for seed in (-(2**63), 0, 2**53 - 1, 2**63):
        assert promised(spec(seed=seed), 340) is not None
    for wrong in (
        spec(0.0), spec(1.0000000000000002), spec(seed=2**63 + 1), spec(seed=-(2**63) - 1),
        spec(seed=True), spec(kind="top"),
    ):  # fmt: skip
        with pytest.raises(FieldError):
            promised(wrong, 340)


@pytest.mark.parametrize("patience", [1, 2, 4])
@pytest.mark.parametrize(
    ("factor", "floor"), [(0.9, 0.5), (0.5, 0.5), (0.999, 0.9), (1.0, 0.5), (0.8, 1.0), (0.7, 0.01)]
)
def test_the_levels_of_falling_noise_are_those_of_its_rounds(
    factor: float, floor: float, patience: int
) -> None:
    bound = SpendingBound(60, 3, 1.5, Adaptation(3, None, True, Decay(factor, patience, floor)))
    for rounds in range(61):
        due = Counter(map(bound.least_noise, range(rounds)))
        assert bound.noise_levels(rounds) == due
    assert replace(bound, adaptation=None).noise_levels(7) == {1.5: 7}
    assert replace(bound, adaptation=None).noise_levels(0) == {}


def test_a_header_may_let_the_noise_fall_to_1_024_levels() -> None:
    """Each costs time to compose, and three numbers of a header ask for one a round."""
    adaptation = Adaptation(1, None, True, Decay(1.0 - 1e-7, 1, 0.1))
    bound = SpendingBound(10_000_000, 1, 5.0, adaptation)
    # Two rounds have the first.
    assert len(bound.noise_levels(1025)) == 1024
    for rounds in (1026, 10_000_000):
        with pytest.raises(UnverifiedError, match="fall to more than 1,024 levels"):
            bound.noise_levels(rounds)
    slow = replace(bound, adaptation=Adaptation(1, None, True, Decay(1.0, 1, 0.1)))
    assert slow.noise_levels(10_000_000) == {5.0: 10_000_000}
