"""A SuperLink with two gated sites, all real: honest training, attacks, a budget that is spent."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from safetensors.numpy import load_file

from dpfedadamw.extensions.gate.errors import REFUSAL
from dpfedadamw.extensions.gate.flower import relay
from tests.dpfedadamw.extensions.gate.flower.superlink import machines, seconds_of_a_message
from tests.dpfedadamw.extensions.gate.processes import free_port, needs_cells, shards_of

pytestmark = pytest.mark.flower

TEXT = "these are the records"
SHARDS, SITES = 2, 2
HONEST = 2
ATTACKS = ("exception", "extras", "scalar", "second-record", "record-name", "around")
LEFT = 1
ALLOWED = HONEST + len(ATTACKS) + LEFT


@pytest.fixture(scope="module")
def gated(tmp_path_factory, digits):
    """Two gated sites, an honest job that then attacks, and two jobs at once for what is left."""
    place = tmp_path_factory.mktemp("gated")
    needs_cells(place)
    images, labels = digits
    reply_after = seconds_of_a_message(SHARDS * SITES)
    with machines(place / "m") as m:
        for site in range(SITES):
            folder = place / f"site-{site}"
            mine = slice(site, 1400, SITES)
            shards_of(folder / "data", images[mine], labels[mine], SHARDS)
            m.supernode(
                f"site-{site}", m.begin(folder, ALLOWED, SHARDS), folder / "data", "--reply-after",
                reply_after, "--at-once", SHARDS, "--logs", place / f"logs-{site}",
            )  # fmt: skip
        for site in range(SITES):
            m.joined(f"site-{site}")
        steps = [*["train honest"] * HONEST, "query x", "evaluate x", "train other-model"]
        steps += [f"train {way}" for way in ATTACKS]
        m.run("first", steps, SITES)
        first = m.found("first", 1800.0)
        for name in ("left", "right"):
            m.run(name, ["train honest"], SITES)
        both = [m.found(name) for name in ("left", "right")]
        yield place, first, both, m


def test_honest_training_is_as_good_as_its_noise_allows(gated, digits):
    _, first, _, _ = gated
    # A model of the first rounds' mean is the step before the attacks'; each has its replies.
    images, labels = (one[1400:] for one in digits)
    replies = first["steps"][HONEST - 1]["replies"]
    assert len(replies) == SITES
    values = {
        name: np.mean([np.array(one["records"]["arrays"][name][2]) for one in replies], axis=0)
        for name in ("weights", "bias")
    }
    right = (images @ values["weights"] + values["bias"]).argmax(axis=1) == labels
    assert right.mean() > 0.5


def test_the_server_gets_the_models_arrays_and_one_constant_whatever_the_job_tries(gated):
    _, first, _, _ = gated
    charged = [one for one in first["steps"] if one["step"].split()[1] in ("honest", *ATTACKS)]
    assert len(charged) == HONEST + len(ATTACKS)
    for step in charged:
        assert len(step["replies"]) == SITES, step["step"]
        for reply in step["replies"]:
            assert set(reply) == {"metadata", "records"}, step["step"]
            records = reply["records"]
            assert set(records) == {"arrays", "metrics"}
            assert records["metrics"] == {"num-examples": 1}
            shapes = {name: one[:2] for name, one in records["arrays"].items()}
            assert shapes == {"weights": ["float32", [64, 10]], "bias": ["float32", [10]]}
            assert reply["metadata"]["group_id"] == "1"
            assert reply["metadata"]["message_type"] == "train"
            # Flower's own: what is left of the question's twelve hours.
            assert reply["metadata"]["ttl"] == pytest.approx(43_200, abs=600)


def test_each_release_has_noise_of_its_own(gated):
    place, first, _, _ = gated
    settings = (place / "site-0" / "gate" / "gate.yaml").read_text()
    multiplier = float(re.search(r"noise_multiplier: ([\d.]+)", settings)[1])
    received = {
        np.array(reply["records"]["arrays"]["weights"][2], "<f4").tobytes()
        for step in first["steps"] if "records" in step["replies"][0]
        for reply in step["replies"]
    }  # fmt: skip
    assert len(received) == SITES * (HONEST + len(ATTACKS))
    # A broadcast carries the noise of earlier releases, so each is taken off its own release.
    kept = [load_file(one) for one in place.glob("site-*/gate/ledger/replies/*.safetensors")]
    assert received <= {one["released.weights"].tobytes() for one in kept}
    moved = [one["released.weights"] - one["broadcast.weights"] for one in kept]
    for number, one in enumerate(moved):
        for other in moved[:number]:
            # Each has noise of 2Cσ/K; two of them at least √2 times that, less what chance does.
            # Below 1.2 times it, one pair of 640 numbers lies once in ten million times.
            assert np.std(one - other) > 1.2 * 2 * multiplier / SHARDS


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("query x", relay.NOT_TRAIN),
        ("evaluate x", relay.NOT_TRAIN),
        ("train other-model", relay.NOT_MODEL),
    ],
)
def test_other_messages_get_a_fixed_refusal(step, text, gated):
    _, first, _, _ = gated
    (found,) = [one for one in first["steps"] if one["step"] == step]
    assert [reply["error"][1] for reply in found["replies"]] == [text] * SITES


def test_no_word_of_a_record_reaches_the_server_and_no_node_joins_around_the_gate(gated):
    place, first, both, m = gated
    assert TEXT not in json.dumps([first, both])
    assert TEXT not in m.log("superlink")
    # The words did exist at the sites, or the test would show nothing.
    logs = "".join(one.read_text() for one in place.glob("logs-*/*.log"))
    assert TEXT in logs
    assert {one["nodes"] for one in first["steps"]} == {SITES}


def test_two_jobs_at_once_share_what_is_left_and_each_site_refuses_exactly_one_release(gated):
    _, _, both, _ = gated
    replies = [reply for job in both for step in job["steps"] for reply in step["replies"]]
    assert len(replies) == 2 * SITES
    assert sum("records" in one for one in replies) == LEFT * SITES
    assert [one["error"][1] for one in replies if "error" in one] == [REFUSAL] * SITES


def test_the_same_job_gets_the_records_out_of_a_supernode_without_the_gate(tmp_path, digits):
    images, labels = digits
    shards_of(tmp_path / "data", images[:50], labels[:50], 1)
    steps = ["query x", "train extras", "train exception", "train around"]
    with machines(tmp_path / "m") as m:
        m.start(
            "supernode", "flower-supernode", "--insecure", "--superlink", m.address, "--port",
            str(free_port()), "--node-config", f'data="{tmp_path / "data" / "0000"}"',
        )  # fmt: skip
        m.run("bare", steps, 1)
        found = m.found("bare")
    query, extras, exception, around = (one["replies"][0] for one in found["steps"])
    ((_, _, raw),) = query["records"]["raw"].values()
    np.testing.assert_array_equal(raw, images[:50])
    assert extras["records"]["metrics"]["leak"][0] == 31337.25
    assert extras["records"]["config"] == {"leak": TEXT}
    assert TEXT in exception["error"][1]
    assert around["records"]["metrics"] == {"num-examples": 50}
    assert found["steps"][-1]["nodes"] == 2
