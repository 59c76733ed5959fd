"""The check "partition" by hand: whose records are used, and which division a seed draws.

What lies under clients' rows is what the header committed to before training.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks import partition
from audit.checks.partition import (
    _drawn_again,
    _equal_contents,
    _given,
    _held,
    _rows_digest,
    _works_on_its_own,
)
from audit.checks.shared import drawn_partition
from audit.checks.shared.drawn_partition import _levelled, _shards, drawn, training_rows
from audit.reading.bundle import Bundle
from audit.reading.evidence import Holdings, Records, Seen
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed, judged, says

NAME = "partition"


@pytest.fixture(params=["of_records", "of_clients"])
def run(request: pytest.FixtureRequest) -> Bundle:
    """A correct run of either unit."""
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


def divided(owners: list[int], clients: int = 3) -> tuple[Holdings, Records]:
    """A division of rows 10, 11, …, each client of which works on what it was given."""
    owner, rows = np.array(owners, np.int64), np.arange(len(owners)) + 10
    held = np.concatenate([rows[owner == client] for client in range(clients)])
    counts = np.bincount(owner, minlength=clients)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    records = Records(len(owners), rows, np.zeros(len(owners), np.int64), None, None)
    return Holdings(owner, held, offsets), records


def test_rows_are_noted_in_rising_order_as_whole_numbers_of_eight_bytes() -> None:
    salt, rows = b"salt", np.array([7, 3, 300], np.int32)
    text = b"dpfedadamw rows 1\x00salt"
    text += b"".join(number.to_bytes(8, "little") for number in (3, 7, 300))
    assert _rows_digest(salt, rows) == hashlib.sha256(text).digest()


def test_a_participation_of_a_client_that_holds_nothing_used_other_rows(run: Bundle) -> None:
    clients = run.evidence_of_round(1, run.header.unit).clients.copy()
    for stranger in (run.header.clients, run.header.clients + 3):
        clients[-1] = stranger
        verdict, text = says(changed(run, evidence={1: {"clients": clients}}), NAME)
        assert verdict == "FAIL"
        assert f"round 1: client {stranger} used other rows than its own" in text


def test_a_client_that_there_is_not_has_no_rows_whatever_its_digest_is_of(
    of_clients: Bundle,
) -> None:
    place = next(item.round for item in of_clients.readable_ledger.rounds if len(item.clients) > 2)
    evidence = of_clients.update_round(place)
    assert evidence.rows_sha256 is not None
    clients, digests = evidence.clients.copy(), evidence.rows_sha256.copy()
    strangers = [of_clients.header.clients, of_clients.header.clients + 1]
    clients[:2] = strangers
    for held in (0, 1):
        rows = of_clients.holdings().held[:held]
        digests[:2] = list(_rows_digest(of_clients.salt(), rows))
        run = changed(of_clients, evidence={place: {"clients": clients, "rows_sha256": digests}})
        assert says(run, NAME)[1] == "; ".join(
            f"round {place}: client {client} used other rows than its own" for client in strangers
        )


def test_whether_other_records_were_drawn_is_told_where_records_are(
    of_records: Bundle, of_clients: Bundle
) -> None:
    for bundle, beside in ((of_records, True), (of_clients, False)):
        digests = bundle.evidence_of_round(1, bundle.header.unit).rows_sha256
        assert digests is not None
        other = digests.copy()
        other[0, 0] ^= 1
        text = says(changed(bundle, evidence={1: {"rows_sha256": other}}), NAME)[1]
        client = bundle.readable_ledger.rounds[1].clients[0]
        said = f"round 1: client {client} used other rows than its own"
        assert text == said + (", or rows that were not drawn" if beside else "")


@pytest.mark.parametrize("times", [13, 2**53])
def test_a_record_is_in_no_more_batches_than_there_are(of_records: Bundle, times: int) -> None:
    """Rows are listed as often as they were used, so that a few bytes could ask for any memory."""
    evidence = of_records.round_evidence(1)
    assert evidence.batch_size.shape[1] < 13
    used = evidence.inclusions.copy()
    used[0] = times
    run = changed(of_records, evidence={1: {"inclusions": used}})
    client = evidence.clients[0]
    assert says(run, NAME) == (
        "FAIL",
        f"round 1: client {client} used other rows than its own, or rows that were not drawn",
    )


def test_more_uses_of_rows_than_can_be_listed_are_not_verified(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = max(
        int(of_records.round_evidence(item.round).inclusions.sum())
        for item in of_records.readable_ledger.rounds
    )
    monkeypatch.setattr(partition, "_MOST_USES", most)
    assert says(of_records, NAME)[0] == "PASS"
    monkeypatch.setattr(partition, "_MOST_USES", 3)
    verdict, text = says(of_records, NAME)
    assert verdict == "NOT VERIFIED"
    assert "used more than 3 rows, which are too many to list" in text


def test_each_client_works_on_what_it_was_given_in_any_order() -> None:
    def said(holdings: Holdings, records: Records) -> list[str]:
        reasons: list[str] = []
        _works_on_its_own(holdings, records, Header(3, (2, 2, 1)), reasons)
        return reasons

    holdings, records = divided([0, 1, 2, 1, 0])
    assert said(holdings, records) == []
    turned = replace(holdings, held=holdings.held[[1, 0, 3, 2, 4]])
    assert said(turned, records) == []
    swapped = replace(holdings, held=holdings.held[[2, 1, 0, 3, 4]])
    assert said(swapped, records) == [
        f"client {client} works on other records than the partition gives it" for client in (0, 1)
    ]
    other = "evidence/partition.npz: it does not cover the training records"
    assert said(holdings, replace(records, rows=records.rows[1:])) == [other]
    assert said(replace(holdings, offsets=holdings.offsets[1:]), records) == [other]


class Header:
    """What is asked of a header: how many clients there are, and how many records each has."""

    def __init__(self, clients: int, records: tuple[int, ...]) -> None:
        self.clients = clients
        self.records = self.training_records = records


def test_counts_are_those_declared_and_nobody_else_has_any() -> None:
    holdings, _ = divided([0, 1, 2, 1, 0])

    def said(*records: int) -> list[str]:
        reasons: list[str] = []
        _given(holdings, Header(len(records), records), reasons)  # type: ignore[arg-type] # stands in
        return reasons

    assert said(2, 2, 1) == said(2, 2, 1, 0) == []
    given = "evidence/partition.npz: client {} was not given the declared number of records"
    assert said(2, 3, 0) == [given.format(1), given.format(2)]
    nobody = "evidence/partition.npz: a record belongs to a client that does not exist"
    assert said(2, 3) == [nobody]
    assert said(5) == [nobody]


def test_a_row_that_is_held_again_is_between_two_or_of_one() -> None:
    holdings, _ = divided([0, 0, 1, 1, 2])

    def counted(held: list[int]) -> tuple[list[str], dict[str, object]]:
        reasons: list[str] = []
        header: Any = Header(3, (2, 2, 1))
        return reasons, _held(replace(holdings, held=np.array(held)), header, reasons)

    assert counted([10, 11, 12, 13, 14]) == ([], {"held_by_two": 0, "held_twice": 0})
    reasons, found = counted([10, 10, 12, 13, 14])
    assert (len(reasons), found) == (1, {"held_by_two": 0, "held_twice": 1})
    assert reasons[0].startswith("a client holds a record twice")
    reasons, found = counted([10, 11, 11, 13, 14])
    assert (len(reasons), found) == (1, {"held_by_two": 1, "held_twice": 0})
    assert reasons[0].startswith("a record is held by two clients")


def test_a_row_that_many_hold_is_counted_once_for_each_further_client() -> None:
    """Of three clients with forty copies each two are further ones, and the rest held again."""
    rows = np.repeat(np.arange(5), 8)
    turned = [rows, rows[::-1], np.random.default_rng(0).permutation(rows)]
    holdings = Holdings(np.zeros(0, np.int64), np.concatenate(turned), np.arange(4) * 40)
    header: Any = Header(3, (40, 40, 40))
    assert _held(holdings, header, []) == {"held_by_two": 5 * 2, "held_twice": 5 * 3 * 7}


def test_a_division_is_the_one_that_the_seed_draws_or_the_data_name_it() -> None:
    spec: dict[str, Any] = {
        "data": {
            "clients": 3, "seed": 4, "test_fraction": None,
            "partition": {"kind": "iid", "minimum_records": 1},
        }
    }  # fmt: skip
    owners = drawn(spec, np.zeros(12, np.int64))
    assert owners is not None
    holdings, records = divided(owners.tolist())
    reasons: list[str] = []
    said = "the partition is the one that the spec's seed draws"
    assert _drawn_again(spec, holdings, records, reasons) == said
    assert reasons == []
    other = replace(holdings, client_of_record=owners[::-1])
    assert _drawn_again(spec, other, records, reasons) == said
    assert reasons == ["the partition is not the one that the spec's seed draws"]
    spec["data"]["partition"]["kind"] = "column"
    named = "the data name each record's client"
    assert _drawn_again(spec, other, records, []) == named


def test_contents_that_do_not_speak_of_all_records_are_not_counted() -> None:
    holdings, records = divided([0, 1, 2, 1])
    contents = np.arange(4 * 16).reshape(4, 16)
    found = _equal_contents(holdings, replace(records, contents=contents))
    assert found == {
        "records_with_an_equal": 0, "most_equal_records": 1, "most_equal_records_of_one_client": 1,
    }  # fmt: skip
    assert _equal_contents(holdings, replace(records, contents=contents[1:])) == {}
    # Equal records of two clients are not counted as one client's.
    twice = contents[[0, 0, 2, 3]]
    found = _equal_contents(holdings, replace(records, contents=twice))
    assert found["records_with_an_equal"] == 2
    assert found["most_equal_records_of_one_client"] == 1
    assert "protected less than one with a single record" in str(found["group_privacy"])


def test_contents_of_two_clients_are_never_taken_for_those_of_one() -> None:
    def most(owners: list[int], contents: list[int]) -> object:
        holdings, records = divided(owners, clients=max(owners) + 1)
        told = np.array(contents)[:, None] * np.ones(16, np.int64)
        found = _equal_contents(holdings, replace(records, contents=told))
        return found["most_equal_records_of_one_client"]

    # The last content of the first client, and the first one of another.
    for clients in range(1, 5):
        assert most([0, clients], [9, 1]) == 1
        assert most([0, clients, 0], [9, 1, 5]) == 1
    assert most([0, 1, 1, 0], [9, 1, 1, 9]) == 2
    assert most([1, 1, 1, 0], [4, 4, 4, 4]) == 3


def test_without_records_none_has_an_equal() -> None:
    holdings, records = divided([])
    none = np.zeros((0, 16), np.int64)
    assert _equal_contents(holdings, replace(records, contents=none)) == {
        "records_with_an_equal": 0, "most_equal_records": 1, "most_equal_records_of_one_client": 1,
    }  # fmt: skip
    reasons: list[str] = []
    header: Any = Header(3, (0, 0, 0))
    _given(holdings, header, reasons)
    assert (_held(holdings, header, reasons), reasons) == ({"held_by_two": 0, "held_twice": 0}, [])


def test_a_row_is_used_as_often_as_it_was_drawn(of_records: Bundle) -> None:
    """A participation's digest is of the rows that its batches held, each as often as they did."""
    holdings, evidence = of_records.holdings(), of_records.round_evidence(2)
    assert evidence.inclusions is not None
    assert evidence.rows_sha256 is not None
    start = 0
    for client, digest in zip(evidence.clients.tolist(), evidence.rows_sha256, strict=True):
        own = holdings.of(client)
        used = []
        for row, times in zip(own, evidence.inclusions[start : start + len(own)], strict=True):
            used += [int(row)] * int(times)
        start += len(own)
        text = b"dpfedadamw rows 1\x00" + of_records.salt()
        text += b"".join(number.to_bytes(8, "little") for number in sorted(used))
        assert hashlib.sha256(text).digest() == bytes(digest.tolist())
    # One use more of the first record of each client in turn is another digest.
    counts = [len(holdings.of(client)) for client in evidence.clients.tolist()]
    for place, client in enumerate(evidence.clients.tolist()):
        more = evidence.inclusions.copy()
        more[sum(counts[:place])] += 1
        assert says(changed(of_records, evidence={2: {"inclusions": more}}), NAME) == (
            "FAIL",
            f"round 2: client {client} used other rows than its own, or rows that were not drawn",
        )


def test_a_fault_of_the_division_ends_the_comparison_with_the_seed_and_the_rounds(
    run: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = run.header.clients
    records = (run.header.records[0] + 1, *run.header.records[1:])
    other = changed(run, header={"records": records}, evidence={1: {"rows_sha256": None}})
    found = judged(other, NAME)
    assert found.verdict.value == "FAIL"
    assert found.measurement.count(";") == 1
    assert found.details == {"records": sum(records), "clients": many}
    assert set(found.private) >= {"held_by_two", "held_twice", "records_with_an_equal"}


def test_a_damaged_spec_fails_and_what_cannot_be_read_is_not_verified(run: Bundle) -> None:
    broken = changed(run, spec=lambda s: s["data"]["partition"].update(kind=7))
    verdict, text = says(broken, NAME)
    assert (verdict, text[:10]) == ("FAIL", "spec.yaml:")
    assert judged(run, NAME).measurement.startswith(f"{sum(run.header.records)} training records")


# Divisions, drawn again without an engine.


def test_records_are_held_out_from_the_start_of_the_seeds_order() -> None:
    spec = {"data": {"test_fraction": 0.25, "seed": 3}}
    order = np.random.default_rng(3).permutation(10)
    # A quarter of ten is rounded to the even two.
    assert np.array_equal(training_rows(spec, 10), order[2:])


def test_shards_are_equal_but_for_one_record_and_the_first_are_longer() -> None:
    classes = [np.arange(5), np.arange(5, 11)]
    for clients, each in ((2, 2), (3, 3), (11, 1), (1, 1)):
        size, longer = divmod(11, clients * each)
        generator = np.random.default_rng(1)
        owner = _shards(np.random.default_rng(1), classes, clients, each)
        order = np.concatenate([generator.permutation(members) for members in classes])
        holders = generator.permutation(np.arange(clients * each) % clients)
        expected = np.zeros(11, np.int64)
        start = 0
        for shard, holder in enumerate(holders):
            stop = start + size + (1 if shard < longer else 0)
            expected[order[start:stop]] = holder
            start = stop
        assert start == 11
        assert np.array_equal(owner, expected)
    with pytest.raises(FieldError, match="more shards than records"):
        _shards(np.random.default_rng(1), classes, 12, 1)


@pytest.mark.parametrize(
    ("sizes", "least", "after"),
    [
        ([6, 6, 1], 3, [5, 5, 3]),
        ([7, 2, 1], 3, [4, 3, 3]),
        ([9, 4, 0], 2, [7, 4, 2]),
        ([4, 4, 4], 3, [4, 4, 4]),
    ],
)
def test_records_are_moved_from_the_largest_clients_to_those_that_lack_some(
    sizes: list[int], least: int, after: list[int]
) -> None:
    owner = np.repeat(np.arange(3), sizes)
    found = _levelled(np.random.default_rng(0), owner, 3, least)
    assert np.bincount(found, minlength=3).tolist() == after
    # Nobody's record is taken who has no more than is left to the largest.
    moved = found != owner
    assert all(sizes[one] > least for one in owner[moved])


def test_no_division_gives_every_client_more_records_than_there_are(run: Bundle) -> None:
    def said(least: int) -> tuple[str, str]:
        section = {"kind": "iid", "minimum_records": least}
        return says(changed(run, spec=lambda s: s["data"].update(seed=0, partition=section)), NAME)

    most = sum(run.header.records) // run.header.clients
    assert said(most)[1].startswith("the partition is not the one that")
    assert said(most + 1) == (
        "FAIL",
        "spec.yaml: data.partition: minimum_records asks for more records than there are",
    )


@pytest.mark.parametrize(("most", "dealt", "draws"), [(7, 1000, 7), (7, 35, 3), (7, 5, 1)])
def test_a_division_with_too_few_records_is_drawn_again_so_many_times(
    most: int, dealt: int, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn_partition, "_TRIES", most)
    monkeypatch.setattr(drawn_partition, "_DEALT", dealt)
    made: list[int] = []

    def dirichlet(generator: Any, classes: Any, clients: int, alpha: float) -> np.ndarray:
        made.append(clients)
        return np.repeat([0, 1], [9, 1])

    monkeypatch.setattr(drawn_partition, "_dirichlet", dirichlet)
    section = {"kind": "dirichlet", "alpha": 0.5, "minimum_records": 2}
    data = {"clients": 2, "seed": 0, "partition": section}
    owner = drawn({"data": data}, np.zeros(10, np.int64))
    assert owner is not None
    assert (np.bincount(owner).tolist(), len(made)) == ([8, 2], draws)
    # As many as are asked for are enough.
    made.clear()
    section["minimum_records"] = 1
    drawn({"data": data}, np.zeros(10, np.int64))
    assert len(made) == 1


def test_the_seed_of_the_partition_goes_before_that_of_the_data() -> None:
    def owners(**seeds: Any) -> list[int]:
        section = {"kind": "iid", "minimum_records": 0, "seed": seeds.get("own")}
        data = {"clients": 4, "seed": 1, "partition": section}
        found = drawn({"data": data}, np.zeros(20, np.int64))
        assert found is not None
        return list(found.tolist())

    generator = np.random.default_rng([1, 1])
    assert owners() == generator.permutation(np.arange(20) % 4).tolist()
    assert owners(own=1) == owners()
    assert owners(own=2) != owners()


CONTENTS = "partition"
KINDS = pytest.mark.parametrize("kind", ["of_records", "of_clients"])


def commitment(salt: bytes, records: Records) -> str:
    assert records.contents is not None
    content = records.rows.astype("<i8").tobytes() + records.contents.astype(np.uint8).tobytes()
    return hashlib.sha256(b"dpfedadamw contents 1\x00" + salt + content).hexdigest()


def told(bundle: Bundle, **changes: Any) -> Bundle:
    """The run as one that commits to contents, with one record seen of each client and round."""
    holdings, records = bundle.holdings(), bundle.records()
    assert records.contents is not None
    place = {row: index for index, row in enumerate(records.rows.tolist())}
    contents = records.contents[[place[row] for row in holdings.held.tolist()]]
    rounds = {}
    for index in range(bundle.header.rounds):
        clients = bundle.evidence_of_round(index, bundle.header.unit).clients
        rows = np.asarray([holdings.of(client)[0] for client in clients.tolist()], np.int64)
        seen = Seen(clients, None, rows, records.contents[[place[row] for row in rows.tolist()]])
        rounds[index] = {"seen": changes.get("seen", lambda _, one: one)(index, seen)}
    held = replace(holdings, contents=changes.get("held", lambda one: one)(contents.copy()))
    header = {"contents": changes.get("committed", commitment(bundle.salt(), records))}
    return changed(bundle, header=header, evidence=rounds, files={"holdings": held})


@KINDS
def test_contents_that_are_committed_to_pass_and_are_told(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    verdict, text = says(told(bundle), CONTENTS)
    assert verdict == "PASS", text
    assert "records, one of each batch, are those that the header committed to" in text
    # As every run was before; its verdict stays.
    verdict, text = says(bundle, CONTENTS)
    assert (verdict, text.endswith("nothing commits to the contents of these rows")) == (
        "PASS", True,
    )  # fmt: skip


@KINDS
def test_what_a_client_holds_from_the_beginning_is_compared(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    offsets = bundle.holdings().offsets

    def theirs(contents: Any) -> Any:
        contents[offsets[1]] = contents[0]
        return contents

    def own(contents: Any) -> Any:
        contents[offsets[1] + 1] = contents[offsets[1]]
        return contents

    def nobodys(contents: Any) -> Any:
        contents[offsets[1] : offsets[1] + 2] = 77
        return contents

    said = "client 1 has other contents than the header committed to under {} of its rows from"
    for change, number, whose in (
        (theirs, 1, ": those of a record of client 0"),
        (own, 1, ": those of another record of its own"),
        (nobodys, 2, "the beginning"),
    ):
        verdict, text = says(told(bundle, held=change), CONTENTS)
        assert (verdict, text.startswith(said.format(number)), text.endswith(whose)) == (
            "FAIL", True, True,
        ), text  # fmt: skip


@KINDS
def test_one_record_of_a_batch_that_holds_something_else_is_seen(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)

    def other(index: int, seen: Seen) -> Seen:
        if index != 2:
            return seen
        contents = seen.contents.copy()
        contents[0, 3] ^= 1
        return replace(seen, contents=contents)

    verdict, text = says(told(bundle, seen=other), CONTENTS)
    assert verdict == "FAIL"
    assert "under 1 of its rows in round 2" in text

    def strange_row(index: int, seen: Seen) -> Seen:
        return replace(seen, rows=seen.rows + 10**6 * (index == 1))

    assert "in round 1" in says(told(bundle, seen=strange_row), CONTENTS)[1]

    def absent(index: int, seen: Seen) -> Seen:
        return replace(seen, clients=seen.clients + 1000 * (index == 1))

    assert says(told(bundle, seen=absent), CONTENTS) == (
        "FAIL", "round 1: contents are recorded for a client that did not take part",
    )  # fmt: skip


@KINDS
def test_another_table_than_was_committed_to_fails(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    verdict, text = says(told(bundle, committed="0" * 64), CONTENTS)
    assert verdict == "FAIL"
    assert text.startswith("evidence/records.npz: the contents under its rows are not those")


@KINDS
def test_contents_that_are_promised_and_not_recorded_are_not_verified(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    verdict, text = says(told(bundle, seen=lambda index, seen: seen if index else None), CONTENTS)
    assert (verdict, text) == (
        "NOT VERIFIED", "round 0: no contents of its batches are recorded",
    )  # fmt: skip
    verdict, text = says(told(bundle, held=lambda _: None), CONTENTS)
    assert (verdict, "not recorded" in text) == ("NOT VERIFIED", True)


def test_a_round_that_used_records_shows_one_of_them(of_records: Bundle) -> None:
    def nothing(index: int, seen: Seen) -> Seen:
        none = slice(0, 0 if index == 1 else None)
        return Seen(seen.clients[none], None, seen.rows[none], seen.contents[none])

    assert says(told(of_records, seen=nothing), CONTENTS) == (
        "NOT VERIFIED", "round 1: no contents of its batches are recorded",
    )  # fmt: skip
