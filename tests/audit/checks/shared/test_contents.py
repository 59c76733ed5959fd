"""What lies under clients' rows is what the header committed to before training."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.reading.bundle import Bundle
from audit.reading.evidence import Records, Seen
from tests.audit.checks.opened import changed, says

NAME = "partition"
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
    verdict, text = says(told(bundle), NAME)
    assert verdict == "PASS", text
    assert "records, one of each batch, are those that the header committed to" in text
    # As every run was before; its verdict stays.
    verdict, text = says(bundle, NAME)
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
        verdict, text = says(told(bundle, held=change), NAME)
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

    verdict, text = says(told(bundle, seen=other), NAME)
    assert verdict == "FAIL"
    assert "under 1 of its rows in round 2" in text

    def strange_row(index: int, seen: Seen) -> Seen:
        return replace(seen, rows=seen.rows + 10**6 * (index == 1))

    assert "in round 1" in says(told(bundle, seen=strange_row), NAME)[1]

    def absent(index: int, seen: Seen) -> Seen:
        return replace(seen, clients=seen.clients + 1000 * (index == 1))

    assert says(told(bundle, seen=absent), NAME) == (
        "FAIL", "round 1: contents are recorded of a client that took no part",
    )  # fmt: skip


@KINDS
def test_another_table_than_was_committed_to_fails(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    verdict, text = says(told(bundle, committed="0" * 64), NAME)
    assert verdict == "FAIL"
    assert text.startswith("evidence/records.npz: the contents under its rows are not those")


@KINDS
def test_contents_that_are_promised_and_not_recorded_are_not_verified(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    verdict, text = says(told(bundle, seen=lambda index, seen: seen if index else None), NAME)
    assert (verdict, text) == (
        "NOT VERIFIED", "round 0: no contents of its batches are recorded",
    )  # fmt: skip
    verdict, text = says(told(bundle, held=lambda _: None), NAME)
    assert (verdict, "not recorded" in text) == ("NOT VERIFIED", True)


def test_a_round_that_used_records_shows_one_of_them(of_records: Bundle) -> None:
    def nothing(index: int, seen: Seen) -> Seen:
        none = slice(0, 0 if index == 1 else None)
        return Seen(seen.clients[none], None, seen.rows[none], seen.contents[none])

    assert says(told(of_records, seen=nothing), NAME) == (
        "NOT VERIFIED", "round 1: no contents of its batches are recorded",
    )  # fmt: skip
