"""NVFlare's server with two gated sites, all real: training, attacks, a budget that is spent."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare has an environment of its own: tox run -e nvflare")

from safetensors.numpy import load_file

from dpfedadamw.extensions.gate.door import Gate, Refused
from dpfedadamw.extensions.gate.errors import REFUSAL
from dpfedadamw.extensions.gate.nvflare import executor
from tests.dpfedadamw.extensions.gate.nvflare.poc import APP, machines
from tests.dpfedadamw.extensions.gate.processes import needs_cells, seconds_of, shards_of

pytestmark = pytest.mark.nvflare

TEXT, NUMBER = "these are the records", "31337.25"
SHARDS, SITES = 2, 2
HONEST = 2
ATTACKS = (
    "exception", "panic", "code", "metrics", "records", "scalar", "names", "extras", "messages",
    "patches", "around", "dies",
)  # fmt: skip
KILLS = 3
# NVFlare's Client API with a trainer that is another process than the job's.
OUTSIDE = ("external_process", "attach")
LEFT = 1
ALLOWED = HONEST + len(ATTACKS) + len(OUTSIDE) + KILLS + LEFT


def seconds_of_a_task():
    """What a task takes: each shard imports NVFlare for it."""
    module = "nvflare.private.fed.simulator.simulator_app_runner"
    return 5.0 + 4.0 * seconds_of([sys.executable, "-c", f"import {module}"], SHARDS * SITES)


@pytest.fixture(scope="module")
def gated(tmp_path_factory, digits):
    """Two gated sites: honest training, refusals and attacks, kills, and the last release."""
    place = tmp_path_factory.mktemp("gated")
    needs_cells(place)
    images, labels = digits
    reply_after = seconds_of_a_task()
    with machines(place / "m", SITES) as m:
        for number, site in enumerate(m.sites):
            mine = slice(number, 1400, SITES)
            shards_of(place / site / "data", images[mine], labels[mine], SHARDS)
            m.begin(place / site, ALLOWED, SHARDS)
            m.gate(
                "nvflare", settings(place, site), m.kits / site, "--data", place / site / "data",
                "--reply-after", reply_after, "--at-once", SHARDS, "--logs",
                place / f"logs-{site}",
            )  # fmt: skip
        m.up()
        m.reply_after = reply_after
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("DPFEDADAMW_KEYS", m.environment["DPFEDADAMW_KEYS"])
            yield place, m


def settings(place, site):
    return place / site / "gate" / "gate.yaml"


def charges(place, site):
    ledger = (place / site / "gate" / "ledger" / "ledger.jsonl").read_text()
    return [json.loads(one) for one in ledger.splitlines() if '"spend"' in one]


@pytest.fixture(scope="module")
def first(gated):
    """The honest rounds, tasks that are refused, and the attacks."""
    _, m = gated
    steps = [*["train honest"] * HONEST, "validate x", "submit_model x", "train other-model"]
    # Another scope of the site's privacy settings than the one that it has by default.
    m.submit("first", steps + [f"train {way}" for way in ATTACKS], scope="public")
    return m.found("first", 200 + (HONEST + len(ATTACKS)) * (m.reply_after + 30))


def replies(found, step):
    (made,) = [one["replies"] for one in found["steps"] if one["step"] == step]
    assert len(made) == SITES
    return made


def test_honest_training_is_as_good_as_its_noise_allows(first, digits):
    images, labels = (one[1400:] for one in digits)
    made = first["steps"][HONEST - 1]["replies"]
    assert len(made) == SITES
    values = {
        name: np.mean([one["arrays"][name] for one in made], axis=0) for name in ("weights", "bias")
    }
    right = (images @ values["weights"] + values["bias"]).argmax(axis=1) == labels
    assert right.mean() > 0.5


@pytest.mark.parametrize("way", ["honest", *ATTACKS])
def test_whatever_a_job_does_the_server_gets_the_released_arrays_and_one_constant(
    way, first, gated
):
    place, _ = gated
    made = [one for step in first["steps"] if step["step"] == f"train {way}"
            for one in step["replies"]]  # fmt: skip
    assert len(made) == SITES * (HONEST if way == "honest" else 1)
    for one in made:
        assert (one["code"], one["kind"]) == ("OK", "WEIGHTS")
        assert one["meta"] == {"NUM_STEPS_CURRENT_ROUND": 1}
        assert set(one["whole"]) == {"DXO", "__headers__"}
        kept = [
            load_file(file)
            for file in (place / one["client"] / "gate/ledger/replies").glob("*.safetensors")
        ]
        released = [file["released.weights"].tobytes() for file in kept]
        # The gate keeps its newest replies.
        if way not in ("honest", *ATTACKS[:2]):
            assert np.array(one["arrays"]["weights"], "f4").tobytes() in released


def test_a_failed_shard_is_an_update_of_zero_and_a_raw_one_is_clipped(first, gated):
    place, _ = gated
    multiplier = float(
        re.search(r"noise_multiplier: ([\d.]+)", settings(place, "site-1").read_text())[1]
    )
    means = {
        one["step"]: np.mean([reply["arrays"]["weights"] for reply in one["replies"]], axis=0)
        for one in first["steps"]
        if one["step"] in ("train metrics", "train records", "train scalar", "train names")
    }
    noise = 2 * multiplier / SHARDS / np.sqrt(SITES)
    # What a step broadcasts is the mean of the replies to the step before. All shards fail here:
    assert np.abs(means["train names"] - means["train scalar"]).max() < 6 * noise
    # Here all send their records' number as each of 640 weights; the clip leaves a norm of 1.
    moved = means["train records"] - means["train metrics"]
    assert 0.9 < np.linalg.norm(moved) < 1 + 2 * noise * np.sqrt(moved.size)


@pytest.mark.parametrize(
    ("step", "code", "text"),
    [
        ("validate x", "TASK_UNSUPPORTED", executor.NOT_TRAIN),
        ("submit_model x", "TASK_UNSUPPORTED", executor.NOT_TRAIN),
        ("train other-model", "BAD_TASK_DATA", executor.NOT_MODEL),
    ],
)
def test_other_tasks_get_a_fixed_refusal(step, code, text, first):
    for one in replies(first, step):
        assert (one["code"], one["whole"]["__headers__"]["gate"]) == (code, text)
        assert set(one["whole"]) == {"__headers__"}


def test_no_word_of_a_record_reaches_the_server_by_any_way(first, gated):
    place, m = gated
    whole = json.dumps(first)
    assert TEXT not in whole
    assert NUMBER not in whole
    assert first["said"] == []
    for folder in ("server", "admin@nvidia.com"):
        for file in (m.kits / folder).rglob("*"):
            if file.is_file() and "custom" not in file.parts and "jobs-storage" not in str(file):
                assert TEXT.encode() not in file.read_bytes(), file
    assert TEXT not in m.log("server")
    # The words did exist in the shards, or the test would show nothing.
    for site in m.sites:
        told = "".join(one.read_text() for one in place.glob(f"logs-{site}/*.log"))
        assert {way for way in ATTACKS if f"{TEXT} {way}" in told} == set(ATTACKS)
        # Nor did they reach the site's own folder, which the server can ask for.
        for file in (m.kits / site).rglob("*"):
            if file.is_file() and "custom" not in file.parts:
                assert TEXT.encode() not in file.read_bytes(), file


def test_replies_take_the_same_time_whatever_the_shards_do(first, gated):
    _, m = gated
    for one in first["steps"][1:]:
        if one["step"].startswith("train") and "other" not in one["step"]:
            assert m.reply_after <= one["seconds"] < m.reply_after + 20


def test_the_server_can_read_no_file_of_the_sites_machine(gated):
    _, m = gated
    note = m.kits / "site-1" / "note.txt"
    note.write_text(TEXT)
    found = m.admin("cat_target", "site-1", None, "note.txt", code=None)
    note.unlink()
    assert found
    assert TEXT not in found


@pytest.mark.parametrize("mode", OUTSIDE)
def test_a_trainer_that_is_another_process_is_not_asked_and_released_arrays_leave(
    mode, first, gated
):
    place, m = gated
    assert first
    more = {"command": "python custom/train.py"} if mode == "external_process" else {}
    path = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"
    args = {"execution_mode": mode, "train_task_name": "train", **more}
    client = {
        "format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": [],
        "executors": [{"tasks": ["train"], "executor": {"path": path, "args": args}}],
    }  # fmt: skip
    before = len(charges(place, "site-1"))
    m.submit(mode, ["train honest"], client=client)
    (step,) = m.found(mode, 200 + m.reply_after)["steps"]
    assert [one["code"] for one in step["replies"]] == ["OK"] * SITES
    assert {one["kind"] for one in step["replies"]} == {"WEIGHTS"}
    assert len(charges(place, "site-1")) == before + 1


def process_of(m, site, job):
    """The gate's process for a job, by its command line."""
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes().split(b"\0")
        except OSError:
            continue
        if job.encode() in words and site.encode() in words and b"-P" in words:
            return int(one.parent.name)
    return None


def test_a_kill_between_charge_and_reply_costs_a_release_and_sends_nothing(first, gated):
    place, m = gated
    assert first
    for number in range(KILLS):
        before = len(charges(place, "site-1"))
        job = m.submit(f"kill-{number}", ["train honest"])
        last = time.monotonic() + 120 + m.reply_after
        while len(charges(place, "site-1")) == before:
            assert time.monotonic() < last
            time.sleep(0.01)
        os.kill(process_of(m, "site-1", job), signal.SIGKILL)
        while '"status": "FINISHED' not in m.admin("get_job_meta", job):
            assert time.monotonic() < last + 120
            time.sleep(0.5)
        found = m.place / f"kill-{number}.json"
        told = json.loads(found.read_text()) if found.exists() else {"steps": []}
        assert "site-1" not in json.dumps(told["steps"])
        assert len(charges(place, "site-1")) == before + 1
        # The other site may have had its turn or not; its ledger counts what it did.
        while len(charges(place, "site-2")) < before + 1:
            Gate.open(settings(place, "site-2"), "other").release(
                job="fills", request=f"{number}", broadcast=zeros(), shards=[zeros()] * SHARDS
            )
    assert "holds" in m.gate("verify", settings(place, "site-1"))


def zeros():
    return {"weights": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}


def test_of_two_frameworks_at_once_one_gets_the_last_release_and_no_more_leaves(first, gated):
    place, m = gated
    assert first
    assert [len(charges(place, site)) for site in m.sites] == [ALLOWED - LEFT] * SITES
    m.submit("last", ["train honest", "train honest"])
    # While the shards of site-1 train for NVFlare, Flower's gate of the same site releases.
    log = place / "logs-site-1" / "shard-0000.log"
    honest = log.read_text().count(f"{TEXT} honest")
    m.wait(lambda: log.read_text().count(f"{TEXT} honest") > honest, "site-1")
    other = Gate.open(settings(place, "site-1"), "flower")
    both, refused = zeros(), []
    for request in ("1", "2"):
        try:
            other.release(job="flower-1", request=request, broadcast=both, shards=[both] * SHARDS)
        except Refused as error:
            refused.append(error.kind)
    found = m.found("last", 200 + 2 * m.reply_after)
    one, two = found["steps"]
    got = {reply["client"]: reply["code"] for reply in one["replies"]}
    assert got["site-2"] == "OK"
    framework = [entry["framework"] for entry in charges(place, "site-1")][-1]
    assert (framework, got["site-1"]) in (("flower", "SERVICE_UNAVAILABLE"), ("nvflare", "OK"))
    assert refused == ["budget"] * (1 if framework == "flower" else 2)
    for reply in two["replies"]:
        assert reply["code"] == "SERVICE_UNAVAILABLE"
        assert reply["whole"]["__headers__"]["gate"] == REFUSAL
    for site in m.sites:
        assert len(charges(place, site)) == ALLOWED
        told = m.gate("verify", settings(place, site))
        assert "DOES NOT HOLD" not in told


def test_the_same_job_gets_the_records_out_of_a_site_without_the_gate(tmp_path, digits):
    images, labels = digits
    shards_of(tmp_path / "data", images[:50], labels[:50], 1)
    client = json.loads((APP / "config" / "config_fed_client.json").read_text())
    client["executors"][0]["executor"]["args"]["data"] = str(tmp_path / "data" / "0000")
    with machines(tmp_path / "m", 1) as m:
        (m.kits / "site-1" / "note.txt").write_text(TEXT)
        m.up()
        steps = ["validate x", "train metrics", "train extras", "train messages", "train code"]
        m.submit("bare", steps, client=client)
        found = m.found("bare")
        assert TEXT in m.admin("cat_target", "site-1", None, "note.txt")
    validate, metrics, extras, _, code = (one["replies"][0] for one in found["steps"])
    assert validate["arrays"]["leak"] == float(NUMBER)
    np.testing.assert_array_equal(metrics["arrays"]["leak"], images[:50])
    assert TEXT in extras["meta"]
    assert code["code"] == TEXT
    assert {one[0] for one in found["said"]} == {"aux", "event"}
    assert NUMBER in json.dumps(found["said"])
