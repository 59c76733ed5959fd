"""Planted records go through the real clipping rule and change nothing else of a clipped sum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dpfedadamw.canaries.engine import (
    MOST_CANARIES,
    Canaries,
    CanaryEngine,
    CanaryOrder,
    _marked,
    draw_canaries,
    draw_canary_people,
    spread,
)
from dpfedadamw.clipping.engines import choose
from dpfedadamw.errors import PrivacyError
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness

CLIPPING_NORM = 0.5
LABELS = (np.arange(30) % 4, np.arange(12) % 4, np.arange(50) % 4)
PARAMETERS = 24


def drawn(count=30, kind="gradient", opposed=False, seed=1):
    coins = ReproducibleRandomness(seed).stream("canary coins", -1, -1)
    sizes = [len(own) for own in LABELS]
    return draw_canaries(CanaryOrder(count, kind), sizes, PARAMETERS, opposed, coins)


def engine(canaries):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4))
    inner = choose(model, record_loss, CLIPPING_NORM, engine="loop")
    return inner, CanaryEngine(inner, canaries, CLIPPING_NORM)


def batch(canaries, client=0):
    inputs = torch.randn(len(LABELS[client]), 5, generator=torch.Generator().manual_seed(2))
    labels = torch.from_numpy(LABELS[client])
    return inputs, labels, canaries.marked(client, labels)


CLASSES = torch.arange(5)
TOKENS = torch.tensor([[-100, 3, -100], [0, 50_256, -100]])
MEASURED = torch.tensor([[-1e30, 2.5], [0.0, 1e30]])


@pytest.mark.parametrize(
    "targets",
    [CLASSES, TOKENS, MEASURED, MEASURED.double()],
    ids=["classes", "tokens", "numbers", "numbers in float64"],
)
def test_the_place_of_each_of_the_most_canaries_is_told_from_targets_and_from_all_others(targets):
    planted, nothing = np.arange(MOST_CANARIES), np.zeros(MOST_CANARIES, np.int64)
    canaries = Canaries(
        kind="input", client=nothing, row=planted, included=nothing > 0, opposed=False,
        coordinate=nothing, label=nothing,
    )  # fmt: skip
    labels = torch.cat([targets[:1].expand(MOST_CANARIES, *targets.shape[1:]), targets])
    found, numbers = _marked(canaries.marked(0, labels))
    assert found[:MOST_CANARIES].all()
    assert not found[MOST_CANARIES:].any()
    assert numbers.tolist() == planted.tolist()


def test_canaries_are_spread_evenly_as_far_as_clients_have_records():
    assert spread(9, [30, 12, 50]) == [3, 3, 3]
    assert spread(10, [1, 3, 50]) == [1, 3, 6]
    assert spread(54, [1, 3, 50]) == [1, 3, 50]
    assert sum(spread(40, [30, 12, 50])) == 40


def test_each_canary_has_a_record_and_a_direction_of_its_own():
    canaries = drawn(24)
    places = set(zip(canaries.client.tolist(), canaries.row.tolist(), strict=True))
    assert len(places) == 24
    assert sorted(canaries.coordinate) == list(range(24))
    for client, labels in enumerate(LABELS):
        own = canaries.of_client(client)
        assert set(canaries.client[own]) == {client}
        assert canaries.row[own].max() < len(labels)


def test_coins_are_fair():
    """20,000 coins; false alarm 1e-6."""
    coins = ReproducibleRandomness(3).stream("canary coins", -1, -1)
    found = draw_canaries(CanaryOrder(20_000), [30_000], 40_000, False, coins).included.sum()
    assert abs(found - 10_000) < 4.9 * np.sqrt(20_000) / 2


@pytest.mark.parametrize("count", [0, 93])
def test_more_canaries_than_records_are_refused(count):
    with pytest.raises(PrivacyError, match="plant 1 to 92"):
        drawn(count)


def test_more_canaries_than_directions_are_refused():
    with pytest.raises(PrivacyError, match="as many coordinates, and the model has 24"):
        drawn(90)


def test_included_canaries_add_exactly_the_clipping_norm_in_their_directions():
    canaries = drawn()
    inner, planted = engine(canaries)
    inputs, labels, marked = batch(canaries)
    own = canaries.of_client(0)
    real = torch.ones(len(labels), dtype=torch.bool)
    real[torch.from_numpy(canaries.row[own])] = False
    rest = inner(inputs[real], labels[real])
    found = planted(inputs, marked)
    expected = rest.total.clone()
    for index in range(own.start, own.stop):
        if canaries.included[index]:
            expected[canaries.coordinate[index]] += CLIPPING_NORM
    torch.testing.assert_close(found.total, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(planted.others, rest.total)
    included = canaries.included[own]
    assert included.any()
    assert not included.all()
    norms = found.clipped_norms[torch.from_numpy(canaries.row[own])].numpy()
    np.testing.assert_allclose(norms, CLIPPING_NORM * included, rtol=1e-6)
    assert float(norms.max()) <= CLIPPING_NORM
    raw = found.raw_norms[torch.from_numpy(canaries.row[own])].numpy()
    np.testing.assert_allclose(raw, 10.0 * CLIPPING_NORM * included)
    torch.testing.assert_close(found.raw_norms[real], rest.raw_norms)


def test_under_replace_one_the_other_record_of_the_pair_points_the_other_way():
    canaries = drawn(opposed=True)
    _, planted = engine(canaries)
    inputs, _, marked = batch(canaries)
    found = planted(inputs, marked).total - planted.others
    own = canaries.of_client(0)
    for index in range(own.start, own.stop):
        sign = 1.0 if canaries.included[index] else -1.0
        assert float(found[canaries.coordinate[index]]) == pytest.approx(sign * CLIPPING_NORM)


def test_crafted_records_share_the_call_of_the_engine_with_their_batch():
    canaries = dataclasses.replace(drawn(kind="input"), label=np.arange(30) % 4)
    inner, planted = engine(canaries)
    inputs, labels, marked = batch(canaries)
    own = canaries.of_client(0)
    keep = torch.ones(len(labels), dtype=torch.bool)
    real = keep.clone()
    changed = labels.clone()
    for index in range(own.start, own.stop):
        row = int(canaries.row[index])
        changed[row] = int(canaries.label[index])
        keep[row] = bool(canaries.included[index])
        real[row] = False
    expected = inner(inputs[keep], changed[keep])
    found = planted(inputs, marked)
    assert torch.equal(found.total, expected.total)
    torch.testing.assert_close(found.clipped_norms[keep], expected.clipped_norms)
    assert not found.clipped_norms[~keep].any()
    torch.testing.assert_close(planted.others, inner(inputs[real], labels[real]).total)


def test_a_retired_kind_names_what_replaces_it():
    with pytest.raises(PrivacyError, match="did not detect a run without noise; use input"):
        drawn(kind="label")


def test_crafted_inputs_that_fill_the_memory_are_refused():
    coins = ReproducibleRandomness(1).stream("canary coins", -1, -1)
    with pytest.raises(PrivacyError, match="plant fewer, or use the kind gradient"):
        draw_canaries(CanaryOrder(30, "input"), [30], 10_000_000, False, coins)


def test_batches_without_canaries_or_without_records_are_the_engines_own():
    canaries = drawn()
    inner, planted = engine(canaries)
    inputs, labels, marked = batch(canaries)
    torch.testing.assert_close(planted(inputs, labels).total, inner(inputs, labels).total)
    assert not planted(inputs[:0], labels[:0]).total.any()
    own = torch.from_numpy(canaries.row[canaries.of_client(0)])
    planted.forget()
    alone = planted(inputs[own], marked[own])
    assert len(alone.raw_norms) == len(own)
    assert not planted.others.any()


def test_what_others_put_in_adds_up_over_the_parts_of_a_batch():
    canaries = drawn()
    _, planted = engine(canaries)
    inputs, _, marked = batch(canaries)
    planted(inputs, marked)
    whole = planted.others
    planted.forget()
    assert planted.others is None
    planted(inputs[:13], marked[:13])
    planted(inputs[13:], marked[13:])
    torch.testing.assert_close(planted.others, whole)


# Person p has p % 4 + 1 records at client 0; every fifth has as many again at client 1.
PEOPLE = np.repeat(np.arange(20), np.arange(20) % 4 + 1)
HELD = np.concatenate([PEOPLE, PEOPLE[PEOPLE % 5 == 0]])
OWNER = np.repeat([0, 1], [len(PEOPLE), len(HELD) - len(PEOPLE)])


def drawn_people(count=7, kind="gradient"):
    coins = ReproducibleRandomness(1).stream("canary coins", -1, -1)
    order = CanaryOrder(count, kind)
    return draw_canary_people(order, HELD, OWNER, PARAMETERS, False, coins)


def test_canary_people_take_the_places_of_those_at_most_clients_and_with_most_records():
    canaries = drawn_people()
    # Four are at two clients; of the others those with four records.
    assert np.bincount(canaries.person).tolist().count(2) == 4
    assert len(canaries.client) == 4 + 7
    for client in (0, 1):
        own = canaries.of_client(client)
        rows, parts = canaries.rows(own)
        theirs = HELD[client == OWNER]
        for part in range(own.start, own.stop):
            (whose,) = set(theirs[rows[parts == part]])
            assert np.count_nonzero(parts == part) == np.count_nonzero(theirs == whose)
            assert whose % 5 == 0 or whose % 4 == 3
    for person in range(7):
        assert len(set(canaries.included[canaries.person == person])) == 1


@pytest.mark.parametrize("count", [0, 21])
def test_more_canary_people_than_people_are_refused(count):
    with pytest.raises(PrivacyError, match="plant 1 to 20"):
        drawn_people(count)


def people_batch(canaries):
    """All people of client 0, one after another, with labels and marks."""
    inputs = torch.randn(len(PEOPLE), 5, generator=torch.Generator().manual_seed(2))
    labels = torch.from_numpy(PEOPLE % 4)
    sizes = np.bincount(PEOPLE).tolist()
    whose = np.full(20, -1)
    rows, parts = canaries.rows(canaries.of_client(0))
    whose[PEOPLE[rows]] = parts
    return inputs, labels, canaries.marked(0, labels), sizes, whose


def test_a_canary_person_adds_the_clipping_norm_once_whatever_their_number_of_records():
    canaries = drawn_people(16)
    inner, planted = engine(canaries)
    inputs, labels, marked, sizes, whose = people_batch(canaries)
    real = torch.from_numpy(whose[PEOPLE] < 0)
    others = [size for size, part in zip(sizes, whose, strict=True) if part < 0]
    rest = inner.of_people(inputs[real], labels[real], others)
    found = planted.of_people(inputs, marked, sizes)
    expected = rest.total.clone()
    there = [part for part in whose if part >= 0 and canaries.included[part]]
    assert 0 < len(there) < 16
    for part in there:
        expected[canaries.coordinate[part]] += CLIPPING_NORM
    torch.testing.assert_close(found.total, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(planted.others, rest.total)
    assert len(found.clipped_norms) == 20
    np.testing.assert_allclose(
        found.clipped_norms[torch.from_numpy(whose >= 0)].numpy(),
        CLIPPING_NORM * canaries.included[whose[whose >= 0]],
        rtol=1e-6,
    )
    # An engine that clips records one by one lets each of them add as much.
    planted.forget()
    one_by_one = planted.of_people(inputs, marked, [1] * len(marked)).total - planted.others
    for part in there:
        records = sizes[int(np.flatnonzero(whose == part)[0])]
        moved = float(one_by_one[canaries.coordinate[part]])
        assert moved == pytest.approx(records * CLIPPING_NORM, rel=1e-5)


def test_crafted_people_share_the_call_of_the_engine_with_their_batch():
    canaries = drawn_people(16, "input")
    canaries = dataclasses.replace(canaries, label=np.arange(len(canaries.client)) % 4)
    inner, planted = engine(canaries)
    inputs, labels, marked, sizes, whose = people_batch(canaries)
    keep = torch.from_numpy((whose < 0) | canaries.included[whose])
    rows = keep[torch.from_numpy(PEOPLE)]
    changed = labels.clone()
    chosen = whose[PEOPLE] >= 0
    changed[torch.from_numpy(chosen)] = torch.from_numpy(canaries.label[whose[PEOPLE[chosen]]])
    own = [size for size, kept in zip(sizes, keep.tolist(), strict=True) if kept]
    expected = inner.of_people(inputs[rows], changed[rows], own)
    found = planted.of_people(inputs, marked, sizes)
    assert torch.equal(found.total, expected.total)
    torch.testing.assert_close(found.clipped_norms[keep], expected.clipped_norms)
    assert not found.clipped_norms[~keep].any()
