"""Whole clients, computed again beside an honest run: every difference has its sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.reading.bundle import Bundle
from audit.recomputed import RecomputedParticipation, RecomputedUpdate
from tests.audit.checks.opened import changed
from tests.audit.checks.shared.computed_again import ROUND, Change, computed, judge


def _update(bundle: Bundle, row: int) -> RecomputedUpdate:
    """A client's update that fits its norm, clipped to C and noised where its client does that."""
    evidence, clip = bundle.update_round(ROUND), bundle.header.clipping_norm or 0.0
    noted = float(evidence.raw_norms[row])
    update = np.zeros(4, np.float32)
    update[:2] = noted * np.array([0.6, 0.8])
    taken = update.astype(np.float64)
    norm = float(np.linalg.norm(taken[np.isfinite(taken)]))
    finite = bool(np.isfinite(noted))
    clipped = update * np.float32(min(1.0, clip * (1.0 - 2.0**-22) / norm)) if finite else 0 * taken
    clipped = np.where(np.isfinite(update), clipped, 0.0).astype(np.float32)
    upload, noise = clipped, None
    squares = evidence.upload_noise_sum_squares
    if squares is not None:
        noise = np.array([0.0, 0.0, np.sqrt(float(np.sum(squares[row]))), 0.0])
        noise[2] = np.float32(noise[2])
        upload = (clipped.astype(np.float64) + noise).astype(np.float32)
    return RecomputedUpdate(
        update=update,
        reference=update.astype(np.float64),
        bound=1e-9,
        moved=lambda: 0.0,
        taken=update,
        clipped=clipped,
        noise=noise,
        upload=upload,
        spacing=0.0,
        bits=None,
    )


def _squared(bundle: Bundle, row: int) -> dict[str, Any]:
    """The evidence's squares of a client's noise, as float32 noise has them."""
    own = bundle.update_round(ROUND).upload_noise_sum_squares
    if own is None:
        return {}
    squares = own.copy()
    for one in range(len(squares)):
        made = _update(bundle, one)
        due = np.sum(np.square(made.upload.astype(np.float64) - made.clipped))
        squares[one] = [due, *[0.0] * (squares.shape[1] - 1)]
    return {"upload_noise_sum_squares": squares}


def _client_round(bundle: Bundle) -> Bundle:
    """The run with norms of float32 in the round that is judged, all of them finite."""
    evidence = bundle.update_round(ROUND)
    many = len(evidence.clients)
    norms = np.linspace(0.3, 0.9, many).astype(np.float32).astype(np.float64)
    return changed(bundle, evidence={ROUND: {"raw_norms": norms}})


@pytest.fixture(params=["server", "clients"])
def whole(request: pytest.FixtureRequest, of_clients: Bundle, noised_by_clients: Bundle) -> Bundle:
    """A run of whole clients whose evidence is that of updates that tests can make."""
    bundle = _client_round(of_clients if request.param == "server" else noised_by_clients)
    return changed(bundle, evidence={ROUND: _squared(bundle, 0)})


def _local(bundle: Bundle, update: Change = lambda one: one) -> list[RecomputedParticipation]:
    clients = bundle.update_round(ROUND).clients.tolist()
    made = [_update(bundle, row) for row in range(len(clients))]
    made[-1] = update(made[-1])
    return [
        RecomputedParticipation(
            client=client,
            batches=(),
            records=0,
            upload=b"",
            queries=lambda: iter(()),
            update=lambda one=one: one,
        )
        for client, one in zip(clients, made, strict=True)
    ]


def test_whole_clients_that_come_out_the_same_are_counted(whole: Bundle) -> None:
    tally = judge(whole, computed(whole, _local(whole)))
    assert tally.reasons == []
    many = len(whole.update_round(ROUND).clients)
    assert many >= 2
    assert (tally.participations, tally.queries, tally.rounds) == (many, many, 1)


def _off(amount: float, **more: Any) -> Change:
    def change(one: RecomputedUpdate) -> RecomputedUpdate:
        moved = one.reference.copy()
        moved[3] += amount
        return replace(one, reference=moved, **more)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_off(1e-3), "its local training: differs by"),
        (_off(1e-3, moved=lambda: 1e-5), "its local training: differs by"),
        (
            lambda one: replace(one, taken=one.taken * np.float32(1.001)),
            "the norm noted is not that of its update",
        ),
    ],
)
def test_each_difference_of_a_whole_client_is_named(
    whole: Bundle, change: Change, said: str
) -> None:
    tally = judge(whole, computed(whole, _local(whole, change)))
    client = whole.update_round(ROUND).clients.tolist()[-1]
    assert f"round 2, client {client}: {said}" in tally.reasons[0]
    assert tally.participations == len(whole.update_round(ROUND).clients) - 1


def test_a_kink_may_move_a_local_training_by_as_much_as_it_is_wide(whole: Bundle) -> None:
    for change in (_off(1e-3, moved=lambda: 1e-3), _off(0.9e-9)):
        assert judge(whole, computed(whole, _local(whole, change))).reasons == []


def test_what_an_update_is_off_by_counts_as_much_as_clipping_leaves_of_it(whole: Bundle) -> None:
    # The last update is 0.9 long and clipped to 0.5.
    tally = judge(whole, computed(whole, _local(whole, _off(1e-3))))
    assert f"differs by {1e-3 * 0.5 / 0.9 / 0.5:.2g} C" in tally.reasons[0]
    assert f"explains only {1e-9 * 0.5 / 0.9 / 0.5:.2g} C" in tally.reasons[0]
    # An update of nothing is not scaled at all.
    nothing = np.zeros(4, np.float32)

    def still(one: RecomputedUpdate) -> RecomputedUpdate:
        made = replace(one, update=nothing, taken=nothing, clipped=nothing, reference=nothing + 0.0)
        return _off(1e-3)(made)

    tally = judge(whole, computed(whole, _local(whole, still)))
    assert f"differs by {1e-3 / 0.5:.2g} C" in tally.reasons[0]


def test_noise_noted_of_an_upload_must_be_the_keys(noised_by_clients: Bundle) -> None:
    bundle = _client_round(noised_by_clients)
    right = _squared(bundle, 0)["upload_noise_sum_squares"]

    def reasons(squares: np.ndarray | None) -> list[str]:
        run = changed(bundle, evidence={ROUND: {"upload_noise_sum_squares": right}})
        parts = _local(run)
        noted = changed(run, evidence={ROUND: {"upload_noise_sum_squares": squares}})
        return judge(noted, computed(noted, parts[:1])).reasons

    client = bundle.update_round(ROUND).clients.tolist()[0]
    wrong = [f"round 2, client {client}: the noise noted of its upload is not what the key gives"]
    assert reasons(right) == reasons(right * (1.0 + 0.9e-9)) == []
    assert reasons(right * (1.0 + 1.1e-9)) == wrong
    assert reasons(right * (1.0 - 1.1e-9)) == wrong
    assert reasons(None) == wrong


def test_an_update_that_is_not_clipped_fails_with_its_client(whole: Bundle) -> None:
    tally = judge(
        whole, computed(whole, _local(whole, lambda one: replace(one, clipped=one.taken)))
    )
    assert any("was not clipped to the clipping norm" in reason for reason in tally.reasons)


def test_an_update_within_the_norm_is_not_scaled_and_a_kink_counts_twice(whole: Bundle) -> None:
    # The first update is 0.3 long, and C is 0.5.
    clients = whole.update_round(ROUND).clients.tolist()

    def first(moved: float) -> list[str]:
        made = replace(_off(1e-3)(_update(whole, 0)), moved=lambda: moved)
        part = replace(_local(whole)[0], client=clients[0], update=lambda: made)
        return judge(whole, computed(whole, [part])).reasons

    assert first(0.51e-3) == []
    assert "differs by 0.002 C" in first(0.49e-3)[0]


def test_a_local_training_that_is_off_by_its_bound_needs_no_kink(whole: Bundle) -> None:
    off = 2.0**-10
    # It takes long, and nothing here needs it.
    change = _off(off, bound=off, moved=lambda: pytest.fail("was asked what kinks move"))
    assert judge(whole, computed(whole, _local(whole, change))).reasons == []


def test_a_client_that_learnt_nothing_has_a_norm_of_nothing(of_clients: Bundle) -> None:
    norms = np.array(_client_round(of_clients).update_round(ROUND).raw_norms)
    norms[-1] = 0.0
    run = changed(of_clients, evidence={ROUND: {"raw_norms": norms}})
    none = np.zeros(4, np.float32)
    parts = _local(_client_round(of_clients))
    still = replace(
        _update(_client_round(of_clients), 0),
        update=none, reference=none.astype(np.float64), taken=none, clipped=none, upload=none,
    )  # fmt: skip
    parts[-1] = replace(parts[-1], update=lambda: still)
    assert judge(run, computed(run, parts)).reasons == []
