"""What all of a federation know, and records that are of it or not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts, Share, experiment_of
from dpfedadamw.extensions.deployment.people import PeopleFacts, Whose

PEOPLE = PeopleFacts(
    sha256="aa", shares_sha256=("b0", "b1"), of_clients=(2, 1), most_records=None,
    clients_per_person=2,
)  # fmt: skip
FACTS = Facts(
    records=(3, 2), stored=(6, 2), kind="uint8", classes=4, data_sha256="da", salt_sha256="5a",
    keys=("k0", "k1"),
)  # fmt: skip
PLAIN = {
    "format": 1, "records": [3, 2], "stored": [6, 2], "kind": "uint8", "classes": 4,
    "data_sha256": "da", "salt_sha256": "5a", "keys": ["k0", "k1"],
}  # fmt: skip
OF_PEOPLE = {
    "sha256": "aa", "shares_sha256": ["b0", "b1"], "of_clients": [2, 1], "most_records": None,
    "clients_per_person": 2,
}  # fmt: skip


def test_facts_are_a_file_that_is_read_again_as_it_was_written(tmp_path):
    path = tmp_path / "federation.json"
    for facts, plain in (
        (FACTS, PLAIN),
        (replace(FACTS, people=PEOPLE), {**PLAIN, "people": OF_PEOPLE}),
    ):
        facts.write(path)
        assert json.loads(path.read_text()) == plain
        assert Facts.read(path) == facts


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {**PLAIN, "format": 2},
        {name: value for name, value in PLAIN.items() if name != "format"},
        {name: value for name, value in PLAIN.items() if name != "classes"},
        {name: value for name, value in PLAIN.items() if name != "keys"},
        {**PLAIN, "more": 1},
        {**PLAIN, "records": 5},
        {**PLAIN, "people": []},
        {**PLAIN, "people": {}},
        {**PLAIN, "people": {**OF_PEOPLE, "more": 1}},
        *({**PLAIN, "people": {**OF_PEOPLE, "of_clients": bad}} for bad in ([2, 0], [2, 1.0], 7)),
        *({**PLAIN, "people": {**OF_PEOPLE, "most_records": bad}} for bad in (0, True, "3", 1.5)),
        *({**PLAIN, "people": {**OF_PEOPLE, "clients_per_person": bad}} for bad in (0, None, 2.0)),
    ],
)
def test_what_does_not_describe_a_federation_is_refused_in_one_line(content, tmp_path):
    path = tmp_path / "federation.json"
    if content is not None:
        path.write_text(json.dumps(content))
    with pytest.raises(DeploymentError, match="does not describe a federation"):
        Facts.read(path)


@pytest.mark.parametrize(
    "changes",
    [{}, {"of_clients": None}, {"most_records": 1}, {"of_clients": [1], "clients_per_person": 1}],
)
def test_counts_of_people_are_whole_numbers_above_zero_or_not_said(changes):
    found = PeopleFacts.read({**OF_PEOPLE, **changes})
    wanted = {**OF_PEOPLE, **changes}
    of_clients = wanted["of_clients"]
    assert found.of_clients == (None if of_clients is None else tuple(of_clients))
    assert (found.most_records, found.clients_per_person) == (
        wanted["most_records"], wanted["clients_per_person"],
    )  # fmt: skip


def test_a_ledgers_header_names_the_keys_and_commits_to_salt_and_people():
    sites = {"keys": ["k0", "k1"], "drop_outs": 2}
    assert FACTS.header(2) == {"selection_sha256": "5a", "sites": sites}
    assert replace(FACTS, people=PEOPLE).header(2) == {
        "selection_sha256": "5a",
        "people_sha256": "aa",
        "sites": sites,
    }


def share_of(**changes):
    plain = {
        "places": np.array([0, 4]),
        "rows": np.array([5, 0]),
        "values": np.array([[1, 2], [3, 4]], np.uint8),
        "labels": np.array([3, 0]),
    }
    return Share(**{**plain, **changes})


def whose_of(*rows):
    return Whose(rows=np.array(rows), digests=np.zeros((len(rows), 16), np.uint8))


NAMED = replace(FACTS, people=PEOPLE)
OUTSIDE = "that the federation does not have"


def test_records_of_a_federation_are_taken_up_to_its_bounds():
    share_of().check(FACTS)
    empty = np.zeros(0, np.int64)
    share_of(places=empty, rows=empty, labels=empty, values=np.zeros((0, 2), np.uint8)).check(FACTS)
    share_of(whose=whose_of(0, 3, 5)).check(NAMED)


@pytest.mark.parametrize(
    ("facts", "changes", "told"),
    [
        (FACTS, {"values": np.zeros((2, 3), np.uint8)}, r"are uint8 \[3\], and .* uint8 \[2\]"),
        (FACTS, {"values": np.zeros((2, 2), np.int8)}, r"are int8 \[2\], and .* uint8 \[2\]"),
        (FACTS, {"rows": np.array([6, 0])}, f"have row numbers {OUTSIDE}"),
        (FACTS, {"rows": np.array([5, -1])}, f"have row numbers {OUTSIDE}"),
        (FACTS, {"places": np.array([0, 5])}, f"have places {OUTSIDE}"),
        (FACTS, {"places": np.array([-1, 4])}, f"have places {OUTSIDE}"),
        (FACTS, {"labels": np.array([4, 0])}, f"have labels {OUTSIDE}"),
        (FACTS, {"labels": np.array([3, -1])}, f"have labels {OUTSIDE}"),
        (NAMED, {"whose": whose_of(0, 5, 6)}, f"have people's rows {OUTSIDE}"),
        (NAMED, {"whose": whose_of(0, 5, -1)}, f"have people's rows {OUTSIDE}"),
        (NAMED, {}, "disagree on whether people are named"),
        (FACTS, {"whose": whose_of(0, 5)}, "disagree on whether people are named"),
        (NAMED, {"whose": whose_of(0, 3)}, "does not say whom each record is about"),
    ],
)
def test_records_beyond_the_bounds_are_named(facts, changes, told):
    with pytest.raises(DeploymentError, match=f"^client 1's records.* {told}"):
        share_of(**changes).check(facts, "client 1's records")


def test_a_share_is_read_again_as_it_was_written(tmp_path):
    path = tmp_path / "share.npz"
    for whose in (None, whose_of(0, 3, 5)):
        share_of(whose=whose).write(path)
        found = Share.read(path)
        for name in ("places", "rows", "values", "labels"):
            assert np.array_equal(getattr(found, name), getattr(share_of(), name))
        if whose is None:
            assert found.whose is None
        else:
            assert found.whose.rows.tolist() == [0, 3, 5]
            assert found.whose.digests.shape == (3, 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"places": None},
        {"labels": np.array([3])},
        {"rows": np.array([[5, 0]])},
        {"places": np.array([0.0, 4.0])},
        {"labels": np.array([3, 0], np.uint8)},
        {"people": np.zeros((2, 16), np.uint8)},
        {"people": np.zeros((2, 15), np.uint8), "people_rows": np.array([5, 0])},
        {"people": np.zeros((2, 16), np.int8), "people_rows": np.array([5, 0])},
        {"people": np.zeros((2, 16), np.uint8), "people_rows": np.array([5, 5])},
        {"people": np.zeros((2, 16), np.uint8), "people_rows": np.array([5.0, 0.0])},
        {"people": np.zeros((2, 16), np.uint8), "people_rows": np.array([[5, 0]])},
    ],
)
def test_a_file_that_holds_no_records_is_refused_in_one_line(changes, tmp_path):
    share = share_of()
    arrays = {name: getattr(share, name) for name in ("places", "rows", "values", "labels")}
    kept = {name: one for name, one in {**arrays, **changes}.items() if one is not None}
    np.savez(tmp_path / "share.npz", **kept)
    with pytest.raises(DeploymentError, match="holds no records"):
        Share.read(tmp_path / "share.npz")


@pytest.mark.parametrize("facts", [replace(FACTS, records=(5,)), replace(FACTS, keys=("k0",))])
def test_a_spec_of_another_number_of_clients_is_refused(facts):
    spec = SimpleNamespace(data=SimpleNamespace(clients=2))
    with pytest.raises(DeploymentError, match="its spec 2"):
        experiment_of(spec, facts, None, {})
