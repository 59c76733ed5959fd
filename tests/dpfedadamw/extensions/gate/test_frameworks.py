"""A site with both frameworks at once, each in an environment of its own, on one budget."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("nvflare", reason="NVFlare has an environment of its own: tox run -e nvflare")

from dpfedadamw.extensions.gate.errors import REFUSAL
from tests.dpfedadamw.extensions.gate.flower import superlink
from tests.dpfedadamw.extensions.gate.nvflare import poc
from tests.dpfedadamw.extensions.gate.processes import needs_cells, shards_of

pytestmark = pytest.mark.nvflare

SHARDS, ALLOWED = 2, 3


@pytest.mark.skipif("FLOWER_PYTHON" not in os.environ, reason="names the Python that has Flower")
def test_of_two_jobs_of_two_frameworks_exactly_one_is_refused_when_the_budget_ends(
    tmp_path, digits
):
    needs_cells(tmp_path)
    site = tmp_path / "site"
    shards_of(site / "data", *(one[:200] for one in digits), SHARDS)
    options = ("--data", site / "data", "--at-once", SHARDS, "--logs", site / "logs")
    with (
        poc.machines(tmp_path / "nvflare", 1) as nvflare,
        superlink.machines(tmp_path / "flower", os.environ["FLOWER_PYTHON"]) as flower,
    ):
        settings = nvflare.begin(site, ALLOWED, SHARDS)
        kit = nvflare.kits / "site-1"
        nvflare.gate("nvflare", settings, kit, "--reply-after", 40, *options)
        nvflare.up()
        flower.environment["DPFEDADAMW_KEYS"] = nvflare.environment["DPFEDADAMW_KEYS"]
        flower.supernode("gate", settings, site / "data", "--reply-after", 20, "--at-once", SHARDS)
        flower.joined("gate")
        flower.run("first", ["train honest"], 1)
        nvflare.submit("both", ["train honest", "train burn-5"])
        # While NVFlare's shards train for the last release, Flower's job asks for it too.
        log = site / "logs" / "shard-0000.log"
        nvflare.wait(lambda: log.exists() and "burn-5" in log.read_text(), "site-1")
        flower.run("last", ["train honest"], 1)
        replies = [flower.found(name)["steps"][0]["replies"][0] for name in ("first", "last")]
        released = [one.get("error", [0, "released"])[1] for one in replies]
        for step in nvflare.found("both")["steps"]:
            (reply,) = step["replies"]
            released.append(reply["whole"]["__headers__"].get("gate", "released"))
        assert "DOES NOT HOLD" not in nvflare.gate("verify", settings)
    assert sorted(released) == [REFUSAL, *["released"] * ALLOWED]
    assert released[0] == released[2] == "released"
    ledger = (site / "gate" / "ledger" / "ledger.jsonl").read_text().splitlines()
    charges = [json.loads(one) for one in ledger if '"spend"' in one]
    assert len(charges) == ALLOWED
    assert {one["framework"] for one in charges} == {"flower", "nvflare"}
