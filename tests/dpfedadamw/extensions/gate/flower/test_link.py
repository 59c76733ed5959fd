"""A gate and a SuperLink with TLS, which knows its SuperNodes by their keys."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from dpfedadamw.extensions.deployment.certificates import make_node_key
from dpfedadamw.extensions.gate.flower.link import Address, connected
from tests.dpfedadamw.extensions.gate.flower.superlink import machines, seconds_of_a_message
from tests.dpfedadamw.extensions.gate.processes import needs_cells, shards_of

pytestmark = pytest.mark.flower

SHARDS = 2


def test_a_site_is_known_by_its_key_over_tls_and_another_key_or_authority_is_rejected(
    tmp_path, digits
):
    import httpx

    needs_cells(tmp_path)
    site = tmp_path / "site"
    shards_of(site / "data", *(one[:200] for one in digits), SHARDS)
    with machines(tmp_path / "m", secure=True) as m:
        settings, seconds = m.begin(site, 1, SHARDS), seconds_of_a_message(SHARDS)
        options = ("--reply-after", seconds, "--at-once", SHARDS)
        m.supernode("gate", settings, site / "data", *options, key=m.register("site.key"))
        m.joined("gate")
        m.run("job", ["train honest"], 1)
        ((reply,),) = [step["replies"] for step in m.found("job")["steps"]]
        make_node_key(other := tmp_path / "other")
        mine = {"superlink": m.address, "key": other}
        for address, error, text in (
            (
                Address(**mine, authority=m.authority),
                httpx.HTTPStatusError,
                "412 Precondition Failed",
            ),
            (Address(**mine), httpx.ConnectError, "CERTIFICATE_VERIFY_FAILED"),
            (Address(**mine, insecure=True), httpx.TransportError, None),
        ):
            with pytest.raises(error, match=text), connected(address, 1000):
                raise AssertionError
    assert "records" in reply
