"""The auditor draws a spec's partition again, and finds the engine's, record by record.

And a partition that is drawn by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from audit.checks.shared import drawn_partition
from audit.checks.shared.drawn_partition import _levelled, _shards, drawn, training_rows
from audit.untrusted.fields import FieldError
from dpfedadamw import experiment
from tests.runs import small_spec

DIVISIONS = (
    "{kind: iid}",
    "{kind: iid, minimum_records: 287}",
    "{kind: shards, shards_per_client: 3}",
    "{kind: dirichlet, alpha: 1.0, minimum_records: 100}",
    # So uneven that no draw gives every client enough: the last one is levelled.
    "{kind: dirichlet, alpha: 0.02, minimum_records: 280}",
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("seed", [0, 5])
def test_the_partition_of_the_engine_is_drawn_again(division: str, seed: int) -> None:
    spec = small_spec(overrides=(f"data.partition={division}", f"data.seed={seed}"))
    dataset, owner = experiment.divide(spec)
    mapping = spec.to_mapping()
    assert np.array_equal(drawn(mapping, dataset.train.labels), owner)
    inputs = dataset.train.inputs
    assert np.array_equal(training_rows(mapping, len(inputs.values)), inputs.rows)
    other = {**mapping, "data": {**mapping["data"], "seed": seed + 1}}
    assert not np.array_equal(drawn(other, dataset.train.labels), owner)
    assert not np.array_equal(training_rows(other, len(inputs.values)), inputs.rows)


def test_what_the_data_name_themselves_is_not_drawn() -> None:
    data = {"clients": 3, "seed": 0, "test_fraction": None, "partition": {"kind": "column"}}
    assert drawn({"data": data}, np.zeros(9, np.int64)) is None
    assert training_rows({"data": data}, 9) is None


@pytest.mark.parametrize("missing", ["clients", "seed", "partition"])
def test_a_spec_without_what_is_needed_is_refused(missing: str) -> None:
    data = {"clients": 3, "seed": 0, "partition": {"kind": "iid", "minimum_records": 1}}
    del data[missing]
    with pytest.raises(FieldError, match=missing):
        drawn({"data": data}, np.zeros(9, np.int64))


# Labels of 60 records, in no order; 7 occurs once.
LABELS = np.array([(number * number + number // 7) % 4 for number in range(59)] + [7])
Owner = list[int]


def classes_of(labels: Any) -> list[list[int]]:
    return [
        [row for row, label in enumerate(labels) if label == one] for one in sorted(set(labels))
    ]


def dealt(generator: np.random.Generator, clients: int, alpha: float) -> Owner:
    owner = [-1] * len(LABELS)
    for members in classes_of(LABELS.tolist()):
        rows = generator.permutation(members).tolist()
        shares = generator.dirichlet([alpha] * clients).tolist()
        ends = [round(sum(shares[: client + 1]) * len(rows)) for client in range(clients - 1)]
        for place, row in enumerate(rows):
            owner[row] = sum(place >= end for end in ends)
    return owner


def sharded(generator: np.random.Generator, clients: int, each: int) -> Owner:
    rows = [
        row
        for members in classes_of(LABELS.tolist())
        for row in generator.permutation(members).tolist()
    ]
    holders = generator.permutation([shard % clients for shard in range(clients * each)]).tolist()
    size, longer = len(rows) // len(holders), len(rows) % len(holders)
    owner = [-1] * len(rows)
    for shard, holder in enumerate(holders):
        for _ in range(size + (shard < longer)):
            owner[rows.pop(0)] = holder
    return owner


def levelled(generator: np.random.Generator, owner: Owner, clients: int, least: int) -> Owner:
    sizes = [owner.count(client) for client in range(clients)]
    takers = [client for client in range(clients) for _ in range(least - sizes[client])]
    level = max(sizes)
    while sum(max(size - level, 0) for size in sizes) < len(takers):
        level -= 1
    shuffled = generator.permutation(len(owner)).tolist()
    movable = []
    for client in range(clients):
        mine = [row for row in shuffled if owner[row] == client]
        movable += mine[: max(sizes[client] - level, 0)]
    found = list(owner)
    for row, client in zip(movable, takers, strict=False):
        found[row] = client
    return found


def spec(clients: int = 4, seed: int = 3, **partition: Any) -> dict[str, Any]:
    section = {"minimum_records": 0, **partition}
    return {"data": {"clients": clients, "seed": seed, "partition": section}}


def found(labels: Any = LABELS, **given: Any) -> Owner:
    owner = drawn(spec(**given), labels)
    assert owner is not None
    return owner.tolist()


@pytest.mark.parametrize("seed", [0, 3])
def test_records_are_dealt_out_in_turn_whatever_their_labels(seed: int) -> None:
    for clients in (1, 4, 7):
        turns = [row % clients for row in range(60)]
        expected = np.random.default_rng([seed, 1]).permutation(turns).tolist()
        assert found(clients=clients, seed=seed, kind="iid") == expected


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_each_class_is_dealt_out_by_its_own_shares(seed: int, alpha: float) -> None:
    for clients in (1, 2, 5):
        expected = dealt(np.random.default_rng([seed, 1]), clients, alpha)
        assert found(clients=clients, seed=seed, kind="dirichlet", alpha=alpha) == expected


@pytest.mark.parametrize(("clients", "each"), [(4, 3), (3, 1), (7, 2), (60, 1), (20, 3), (1, 1)])
def test_sorted_records_are_cut_into_shards(clients: int, each: int) -> None:
    expected = sharded(np.random.default_rng([3, 1]), clients, each)
    assert found(clients=clients, kind="shards", shards_per_client=each) == expected


def test_a_draw_that_leaves_a_client_too_few_is_made_again() -> None:
    generator = np.random.default_rng([3, 1])
    tries = 1
    while min(map((expected := dealt(generator, 4, 0.6)).count, range(4))) < 11:
        tries += 1
    assert 2 <= tries < 1000
    assert found(kind="dirichlet", alpha=0.6, minimum_records=11) == expected
    # As many as are asked for are enough.
    first = np.random.default_rng([3, 1]).permutation([row % 4 for row in range(60)]).tolist()
    assert found(kind="iid", minimum_records=15) == first


def test_after_a_thousand_draws_or_four_million_records_the_last_is_levelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Never does the fifth client get anything.
    uneven = [0] * 30 + [1] * 20 + [2] * 7 + [3] * 3
    made: list[int] = []

    def never(generator: Any, classes: Any, clients: int, alpha: float) -> Any:
        made.append(clients)
        return np.array(uneven)

    monkeypatch.setattr(drawn_partition, "_dirichlet", never)
    expected = levelled(np.random.default_rng([3, 1]), uneven, 5, 6)
    asked = {"clients": 5, "kind": "dirichlet", "alpha": 1.0, "minimum_records": 6}
    assert found(**asked) == expected
    assert len(made) == 1000
    for dealt_out, tries in ((600, 10), (659, 10), (60, 1), (120, 2), (59, 1), (1, 1)):
        made.clear()
        monkeypatch.setattr(drawn_partition, "_DEALT", dealt_out)
        assert found(**asked) == expected
        assert len(made) == tries


@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        ([5, 5, 0], 1),
        # Above a level of 4 there are just enough.
        ([5, 5, 0], 2),
        ([9, 1, 0, 0], 2),
        ([9, 8, 7, 0], 6),
        ([9, 1, 9, 1], 5),
        ([40, 3, 2, 1, 0], 9),
        ([4, 2, 0], 2),
        ([3, 0, 0], 1),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_largest_clients_give_to_those_that_lack_some(
    sizes: list[int], least: int, seed: int
) -> None:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    owner = np.random.default_rng(9).permutation(owner)
    given = owner.copy()
    result = _levelled(np.random.default_rng(seed), owner, len(sizes), least)
    expected = levelled(np.random.default_rng(seed), owner.tolist(), len(sizes), least)
    assert result.tolist() == expected
    assert np.bincount(result, minlength=len(sizes)).min() >= least
    assert np.array_equal(owner, given)


def test_a_thousand_records_of_a_class_keep_their_order_before_they_are_shuffled() -> None:
    labels = np.arange(1000) % 2
    classes = [np.arange(0, 1000, 2), np.arange(1, 1000, 2)]
    expected = _shards(np.random.default_rng([3, 1]), classes, 4, 5)
    assert found(labels, kind="shards", shards_per_client=5) == expected.tolist()
    # The last shuffle is sorted by clients, and stays in its own order otherwise.
    many = np.random.default_rng(1).permutation(np.repeat(np.arange(3), [600, 400, 0]))
    result = _levelled(np.random.default_rng(2), many, 3, 100)
    assert result.tolist() == levelled(np.random.default_rng(2), many.tolist(), 3, 100)


def test_a_partition_s_own_seed_goes_before_that_of_the_data() -> None:
    assert found(kind="iid", seed=8) != found(kind="iid", seed=3)
    own = drawn({"data": {**spec(kind="iid")["data"], "seed": 8,
                          "partition": {"kind": "iid", "minimum_records": 0, "seed": 3}}},
                LABELS)  # fmt: skip
    assert own is not None
    assert own.tolist() == found(kind="iid", seed=3)
    nothing = drawn({"data": {"clients": 4, "seed": 3,
                              "partition": {"kind": "iid", "minimum_records": 0, "seed": None}}},
                    LABELS)  # fmt: skip
    assert nothing is not None
    assert nothing.tolist() == found(kind="iid", seed=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 0, "kind": "iid"}, "clients is not a whole number from 1 to 1000000"),
        ({"clients": 1_000_001, "kind": "iid"}, "clients is not a whole number from 1 to 1000000"),
        ({"kind": "iid", "minimum_records": 16}, "minimum_records asks for more records than"),
        ({"kind": "iid", "minimum_records": -1}, "minimum_records is not a whole number from 0"),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha is not above 0"),
        ({"kind": "dirichlet"}, "alpha is missing"),
        ({"kind": "shards", "shards_per_client": 0}, "shards_per_client is not a whole number"),
        ({"kind": "shards"}, "shards_per_client is missing"),
        ({"kind": "shards", "shards_per_client": 16}, "there are more shards than records"),
        ({"clients": 61, "kind": "shards", "shards_per_client": 1}, "there are more shards than"),
        ({"kind": 7}, "kind is not a text"),
    ],
)
def test_a_partition_that_cannot_be_drawn_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        drawn(spec(**changes), LABELS)


def test_a_million_clients_and_no_record_are_still_a_partition() -> None:
    assert found(np.zeros(0, np.int64), clients=3, kind="iid") == []
    assert found(np.zeros(2, np.int64), clients=1_000_000, kind="iid") is not None
    assert drawn(spec(kind="column"), LABELS) is None


@pytest.mark.parametrize(
    ("fraction", "held_out"), [(0.25, 5), (1.0, 20), (0.024, 0), (0.026, 1), (1e-9, 0)]
)
def test_records_that_are_held_out_come_first_in_a_shuffle(fraction: float, held_out: int) -> None:
    data = {"data": {"test_fraction": fraction, "seed": 4}}
    shuffled = np.random.default_rng(4).permutation(20)
    rows = training_rows(data, 20)
    assert rows is not None
    assert rows.tolist() == shuffled.tolist()[held_out:]


@pytest.mark.parametrize("fraction", [0.0, -0.1, float(np.nextafter(1.0, 2.0)), 1.5, "a tenth"])
def test_a_share_of_the_records_lies_above_nothing_and_up_to_all(fraction: Any) -> None:
    with pytest.raises(FieldError, match="test_fraction"):
        training_rows({"data": {"test_fraction": fraction, "seed": 4}}, 20)
    with pytest.raises(FieldError, match="seed is missing"):
        training_rows({"data": {"test_fraction": 0.5}}, 20)
