"""A gate that is killed between a charge and its reply, twenty times, by a real SuperLink."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from safetensors.numpy import load_file

from tests.dpfedadamw.extensions.gate.flower.superlink import machines, seconds_of_a_message
from tests.dpfedadamw.extensions.gate.processes import needs_cells, shards_of

pytestmark = pytest.mark.flower

KILLS, SHARDS = 20, 2


def lines(settings, kind):
    """The whole lines of one kind in a ledger."""
    ledger = (settings.parent / "ledger" / "ledger.jsonl").read_text().splitlines(keepends=True)
    found = [json.loads(one) for one in ledger if one.endswith("\n")]
    return [one for one in found if one["kind"] == kind]


def test_each_of_twenty_kills_between_charge_and_reply_costs_a_release_and_sends_nothing(
    tmp_path, digits
):
    needs_cells(tmp_path)
    site = tmp_path / "site"
    shards_of(site / "data", *(one[:200] for one in digits), SHARDS)
    with machines(tmp_path / "m") as m:
        settings = m.begin(site, KILLS + 1, SHARDS)
        seconds = 10.0 + 2.0 * seconds_of_a_message(SHARDS)
        m.run("kills", ["ask honest"] * (KILLS + 1), 0)
        for number in range(KILLS + 1):
            m.supernode(
                "gate", settings, site / "data", "--reply-after", seconds, "--at-once", SHARDS
            )
            m.joined("gate", number + 1)
            # Every second kill comes after the reply was stored, up to a second after.
            before, kind = len(lines(settings, "reply")), ("spend", "reply")[number % 2]
            wanted = number + 1 if kind == "spend" else before + 1
            last = time.monotonic() + seconds + 60.0
            while len(lines(settings, kind)) < wanted:
                assert time.monotonic() < last, m.log("gate")[-3000:]
                time.sleep(0.001)
            if number < KILLS:
                time.sleep(0.1 * (number // 2) if kind == "reply" else 0.0)
                m.kill("gate")
        found = m.found("kills", 300.0 + seconds)
        sent = m.log("superlink").count("[Fleet.PushMessages]")
        m.end()
        assert "DOES NOT HOLD" not in m.gate("verify", settings)
    charges = lines(settings, "spend")
    assert len(charges) == len({one["request"] for one in charges}) == KILLS + 1
    # Some were killed before their noise was stored, and some after.
    assert KILLS // 2 < len(lines(settings, "reply")) < KILLS + 1
    assert sent == 1
    (reply,) = [one["records"]["arrays"] for one in found["late"] if "records" in one]
    assert len(found["late"]) == KILLS + 1
    files = sorted((settings.parent / "ledger" / "replies").glob("*.safetensors"))
    released = [load_file(one)["released.weights"].tobytes() for one in files]
    assert len(set(released)) == len(released)
    assert np.array(reply["weights"][2], "<f4").tobytes() == released[-1]
