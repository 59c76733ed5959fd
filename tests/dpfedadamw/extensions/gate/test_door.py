"""What leaves was charged before, up to the budget, and a request is answered once."""

from __future__ import annotations

import hashlib
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import load

from dpfedadamw.extensions.gate import book, mechanism, spending
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.verification import charges_of
from tests.dpfedadamw.extensions.gate.replies import as_bytes, ask, filled, has_scale


def lines(gate):
    return (gate.settings.ledger / "ledger.jsonl").read_text("utf-8").splitlines()


def charges(gate):
    return charges_of(gate.settings)


def test_a_release_has_the_models_form(gate):
    found = ask(gate)
    assert {name: (one.shape, str(one.dtype)) for name, one in found.items()} == {
        "weight": ((3, 2), "float32"), "bias": ((2,), "float64"),
    }  # fmt: skip


def test_the_mean_of_clipped_updates_is_what_is_noised(begin):
    # A unit in the last place of noise, so that the mean shows: ε is then enormous.
    gate = begin(noise_multiplier=0.01, budget={"epsilon": 1e6, "delta": 1e-5})
    sent, far = filled(gate, 3.0), filled(gate, 1e9)
    found = gate.release(job="j", request="r", broadcast=sent, shards=[far, far, None, sent])
    # Two of four updates, each C/√8 in every coordinate; noise of 2·0.01·C/4 = 0.0025.
    expected = 3.0 + 2 * 0.5 / np.sqrt(8) / 4
    assert abs(found["bias"] - expected).max() < 0.0025 * 6


def test_what_is_released_carries_the_noise_that_its_charge_states(begin):
    gate = begin(model={"w": "float64[20000]"})
    noise = ask(gate)["w"] * gate.shards
    (charge,) = charges(gate)
    deviation = charge.sensitivity * charge.noise_multiplier
    assert deviation == 2 * 0.5 * 4.0
    assert has_scale(noise, deviation)
    assert not has_scale(noise, deviation * 2 / 3)
    assert not has_scale(noise, deviation * 3 / 2)


def test_the_budget_is_spent_to_its_end_and_not_beyond(gate):
    for round_index in range(3):
        gate.check()
        ask(gate, str(round_index))
    with pytest.raises(Refused) as early:
        gate.check()
    with pytest.raises(Refused) as error:
        ask(gate, "3")
    assert str(error.value) == str(early.value) == REFUSAL
    assert len(charges(gate)) == 3
    assert spending.epsilon_of([4.0] * 3, 1e-5) <= 1.8 < spending.epsilon_of([4.0] * 4, 1e-5)


def test_a_release_may_use_the_budget_to_its_last_bit(begin):
    gate = begin(budget={"epsilon": spending.epsilon_of([4.0], 1e-5), "delta": 1e-5})
    ask(gate, "1")
    with pytest.raises(Refused):
        ask(gate, "2")


def test_the_charge_says_who_asked_for_what_and_of_which_broadcast(gate):
    sent = filled(gate, 1.5)
    with Gate.open(gate.settings.path, "flower") as own:
        own.release(job="a.b:c_d-1", request="x" * 128, broadcast=sent, shards=[None] * 4)
    (charge,) = charges(gate)
    told = charge.framework, charge.job, charge.request, charge.release, charge.shards
    assert told == ("flower", "a.b:c_d-1", "x" * 128, 1, 4)
    assert (charge.clip, charge.sensitivity, charge.noise_multiplier) == (0.5, 1.0, 4.0)
    content = sent["bias"].tobytes() + sent["weight"].tobytes()
    assert charge.broadcast == hashlib.sha256(content).hexdigest()
    kept = load((gate.settings.ledger / "replies" / "000001.safetensors").read_bytes())
    assert sorted(kept) == [
        "broadcast.bias", "broadcast.weight", "released.bias", "released.weight",
    ]  # fmt: skip
    assert np.array_equal(kept["broadcast.bias"], sent["bias"])


def test_a_gate_that_is_not_named_serves_another_framework(gate):
    ask(gate)
    assert charges(gate)[0].framework == "other"


def test_refusals_are_counted_by_their_reason(gate):
    with pytest.raises(Refused):
        gate.release(job="j", request="r", broadcast={}, shards=[None] * 4)
    with pytest.raises(Refused):
        gate.release(job="j", request="r", broadcast=filled(gate, 0.0), shards=[None])
    for number in range(3):
        ask(gate, str(number))
    for asked in (gate.check, lambda: ask(gate, "4")):
        with pytest.raises(Refused) as error:
            asked()
        assert error.value.reason == "the budget of ε = 1.8 allows no further release"
    (counted,) = book.refusals(gate.settings).values()
    assert counted == {"form": 2, "budget": 2}
    # What was released before is sent again after the budget's end, too.
    assert ask(gate, "1") is not None


def test_jobs_and_gates_share_one_budget(gate):
    other = Gate.open(gate.settings.path)
    ask(gate, "1", job="one")
    ask(other, "1", job="two")
    ask(gate, "2", job="one")
    with pytest.raises(Refused):
        ask(other, "2", job="two")


def test_of_two_jobs_at_once_exactly_one_gets_the_last_release(gate):
    ask(gate, "1")
    ask(gate, "2")
    ends, ready = [], threading.Barrier(2)

    def job(name):
        own = Gate.open(gate.settings.path)
        ready.wait()
        try:
            ends.append(bool(ask(own, "last", job=name)))
        except Refused:
            ends.append(False)

    threads = [threading.Thread(target=job, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == [False, True]
    assert len(charges(gate)) == 3


def test_gates_of_one_ledger_do_not_ask_their_shards_at_once(gate):
    others = [Gate.open(gate.settings.path) for _ in range(3)]
    inside, seen = [], []

    def asks(one):
        with one.alone():
            inside.append(one)
            seen.append(len(inside))
            time.sleep(0.05)
            inside.remove(one)

    threads = [threading.Thread(target=asks, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1, 1, 1]


def test_a_release_may_take_twice_its_time_and_a_second_at_least(gate, begin, monkeypatch):
    assert gate.release_seconds() == 1.0
    real = mechanism.clipped_sum

    def slow(*given):
        time.sleep(0.2)
        return real(*given)

    monkeypatch.setattr(mechanism, "clipped_sum", slow)
    # Of four shards, each of which takes 0.2 s.
    assert 1.6 <= gate.release_seconds() < 2.4


def test_a_charge_is_signed_on_disk_before_noise_is_drawn(gate, monkeypatch):
    def look(*_arguments):
        public = book.load_key().private.public_key()
        content = (gate.settings.ledger / "ledger.jsonl").read_bytes()
        assert content.splitlines()[-1].count(b'"kind":"spend"') == 1
        for head in (gate.settings.ledger / "head.json", gate.settings.anchor):
            assert book.read_head(head, public).size == len(content)
        raise Stop

    class Stop(Exception):  # noqa: N818
        pass

    monkeypatch.setattr(mechanism, "noised_mean", look)
    with pytest.raises(Stop):
        ask(gate)
    assert len(charges(gate)) == 1


def test_a_request_that_is_asked_again_gets_the_same_bytes_and_costs_nothing(gate):
    first = ask(gate, "7")
    again = Gate.open(gate.settings.path)
    assert as_bytes(ask(again, "7")) == as_bytes(first)
    assert as_bytes(again.released(job="job", request="7")) == as_bytes(first)
    assert again.released(job="job", request="8") is None
    assert len(charges(gate)) == 1


def test_a_stored_reply_that_was_changed_is_not_sent(gate):
    first = ask(gate, "7")
    (path,) = (gate.settings.ledger / "replies").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert as_bytes(ask(gate, "7")) != as_bytes(first)
    assert len(charges(gate)) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job": ""}, "job's identifier"),
        ({"job": "a b"}, "job's identifier"),
        ({"request": "x" * 129}, "request's identifier"),
        ({"request": 5}, "request's identifier"),
        ({"shards": []}, "0 replies of 4 shards"),
        ({"broadcast": {}}, "the broadcast's arrays"),
    ],
)
def test_what_is_not_in_its_form_is_refused_by_the_fixed_text_and_costs_nothing(
    gate, changes, reason
):
    zero = filled(gate, 0.0)
    asked = {"job": "j", "request": "r", "broadcast": zero, "shards": [zero] * 4, **changes}
    with pytest.raises(Refused) as error:
        gate.release(**asked)
    assert str(error.value) == REFUSAL
    assert reason in error.value.reason
    assert charges(gate) == ()


@pytest.mark.parametrize("hostile", ["nan", "names", "shape", "none", "text"])
def test_hostile_replies_of_shards_are_charged_and_answered_like_any_other(gate, hostile):
    zero = filled(gate, 0.0)
    replies = {
        "nan": filled(gate, np.nan),
        "names": {**zero, "raw records": np.ones(3)},
        "shape": {**zero, "bias": np.ones(3)},
        "none": None,
        "text": {**zero, "bias": "raw records"},
    }
    found = gate.release(
        job="j", request="r", broadcast=zero, shards=[replies[hostile], zero, zero, zero]
    )
    assert sorted(found) == ["bias", "weight"]
    assert all(np.isfinite(one).all() for one in found.values())
    assert len(charges(gate)) == 1


def test_a_ledger_that_cannot_be_used_refuses_by_the_fixed_text(gate):
    gate.settings.anchor.unlink()
    with pytest.raises(Refused) as error:
        ask(gate)
    assert str(error.value) == REFUSAL
    assert "the signed head cannot be read" in error.value.reason
