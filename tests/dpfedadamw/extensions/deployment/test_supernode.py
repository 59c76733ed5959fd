"""A SuperNode before a lying server, which speaks TLS with the server's certificate and key."""

from __future__ import annotations

import gzip
import http.server
import ssl
import threading

import pytest

from dpfedadamw.extensions.deployment import supernode
from dpfedadamw.extensions.deployment.certificates import LOCAL, Authority, make_node_key
from dpfedadamw.extensions.deployment.supernode import NodeFolder, _connected, _keys, serve
from tests.dpfedadamw.federation.flower.lying import Lying

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")
import httpx  # it is Flower's

pytestmark = pytest.mark.flower


@pytest.fixture
def lying(tmp_path):
    authority = Authority.new()
    authority.certify(LOCAL, tmp_path / "crt", tmp_path / "crt.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lying)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "crt.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.asked, server.address = [], f"127.0.0.1:{server.server_port}"
    folder = NodeFolder(tmp_path / "node")
    folder.path.mkdir()
    authority.write(folder.authority)
    make_node_key(folder.key)
    folder.write_settings(server.address, "socket", 1 << 20)
    server.folder = folder
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def asked(server):
    folder = server.folder
    with _connected(server.address, folder.authority, _keys(folder.key)):
        raise AssertionError


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_is_not_followed(lying, status):
    where = f"https://{lying.address}/inside-the-clients-network"
    lying.answer = status, {"location": where}, b""
    with pytest.raises(httpx.HTTPStatusError):
        asked(lying)
    assert lying.asked == ["/v1/fleet/activate-node"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"x" * (supernode._MOST_RESPONSE + 1)),
        ({"content-encoding": "gzip"}, gzip.compress(bytes(1 << 20))),
    ],
)
def test_a_response_that_is_long_or_could_become_so_is_not_read(lying, headers, body):
    lying.answer = 200, headers, body
    with pytest.raises(ValueError, match="a response is"):
        asked(lying)


class EndedError(BaseException):
    """Ends what has no end."""


HOSTILE = [b"[" * 100_000, b'{"code": 1' + b"0" * 5000 + b"}", b'{"code": 1' + b"0" * 4000 + b"}"]


@pytest.mark.parametrize("body", [*HOSTILE, b"\xff\x00"])
def test_a_refusal_that_is_no_flower_s_is_told_by_its_status(body):
    assert supernode._refusal(httpx.Response(403, content=body)) == "HTTP 403"


def test_a_refusal_of_flower_s_is_told_by_its_code():
    content = b'{"code": 7, "detail": "x"}'
    assert supernode._refusal(httpx.Response(403, content=content)) == "Flower's 7"
    content = b'{"code": 1' + b"0" * 4000 + b', "detail": "x"}'
    assert supernode._refusal(httpx.Response(403, content=content)) == "HTTP 403"


@pytest.mark.parametrize("body", HOSTILE)
def test_no_refusal_ends_the_process(lying, monkeypatch, body):
    lying.answer, said, tries = (403, {}, body), [], iter(range(2))

    def rest(_seconds):
        if next(tries, None) is None:
            raise EndedError

    monkeypatch.setattr(supernode.time, "sleep", rest)
    with pytest.raises(EndedError):
        serve(lying.folder, tell=said.append)
    assert len(lying.asked) >= 3
    assert len(said) == 1
