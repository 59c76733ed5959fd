"""A gate and a SuperLink with TLS, which knows its SuperNodes by their keys; and one that lies."""

from __future__ import annotations

import gzip
import http.server
import threading

import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from dpfedadamw.extensions.deployment.certificates import make_node_key
from dpfedadamw.extensions.gate.flower import link
from dpfedadamw.extensions.gate.flower.link import Address, connected
from tests.dpfedadamw.extensions.gate.flower.superlink import machines, seconds_of_a_message
from tests.dpfedadamw.extensions.gate.processes import needs_cells, shards_of
from tests.dpfedadamw.federation.flower.lying import Lying

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


@pytest.fixture
def lying():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lying)
    server.asked, server.address = [], f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_superlink_cannot_have_the_gate_ask_elsewhere(lying, status):
    import httpx

    where = f"http://{lying.address}/inside-the-site-s-network"
    lying.answer = status, {"location": where}, b""
    with (
        pytest.raises(httpx.HTTPStatusError, match=f"'{status} "),
        connected(Address(superlink=lying.address, insecure=True), 1 << 20),
    ):
        raise AssertionError
    assert lying.asked == ["/v1/fleet/register-node"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"x" * (link._MOST_RESPONSE + 1)),
        ({"content-encoding": "gzip"}, gzip.compress(bytes(1 << 20))),
    ],
)
def test_the_gate_reads_no_response_that_is_long_or_could_become_so(lying, headers, body):
    lying.answer = 200, headers, body
    with (
        pytest.raises(ValueError, match="a response is"),
        connected(Address(superlink=lying.address, insecure=True), 1 << 20),
    ):
        raise AssertionError


def test_the_largest_app_that_flower_takes_fits_into_a_response():
    from flwr.common.constant import FAB_MAX_SIZE

    assert FAB_MAX_SIZE + (1 << 20) <= link._MOST_RESPONSE
