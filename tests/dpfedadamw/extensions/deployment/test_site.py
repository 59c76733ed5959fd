"""Folders of a client, of its SuperNode and of the server: what lies where, and what is refused."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import threading
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpfedadamw.extensions.deployment import supernode
from dpfedadamw.extensions.deployment.certificates import make_node_key
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.leading import finished, led_run
from dpfedadamw.extensions.deployment.server_rounds import (
    Received,
    ServerRecordRounds,
    server_rounds,
)
from dpfedadamw.extensions.deployment.site import (
    Settings,
    Site,
    fill_site,
    make_site,
    read_noted,
    reserve,
)
from dpfedadamw.extensions.deployment.supernode import NodeFolder, _asked, _keys
from dpfedadamw.federation.flower.frames import Frame, receive, send


def test_a_clients_folder_has_its_files_where_its_owner_is_told_they_are():
    """docs/deploy.md names them."""
    site = Site(Path("/c"))
    names = ("spec", "facts", "share", "key", "salt", "ledger", "evidence", "socket", "refusals")
    assert [str(getattr(site, name)) for name in names] == [
        "/c/spec.yaml", "/c/federation.json", "/c/share.npz", "/c/key", "/c/salt",
        "/c/ledger.jsonl", "/c/evidence", "/c/door/socket", "/c/refusals.json",
    ]  # fmt: skip
    assert str(site.noted(7, 2)) == "/c/evidence/participation-00007-2.npz"
    assert str(site.sent(7, 2)) == "/c/evidence/upload-00007-2.safetensors"


def test_a_new_folder_has_a_key_the_salt_and_a_reserve_of_participations(tmp_path):
    site, public = make_site(tmp_path / "c" / "03", 3, 50, bytes(range(32)))
    assert site.settings() == Settings(client=3, most_charges=60)
    assert reserve(50) == 10
    assert site.salt.read_bytes() == bytes(range(32))
    assert len(public) == 64
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in site.path.iterdir()}
    assert modes == {
        "door": 0o700, "evidence": 0o700, "key": 0o600, "salt": 0o600, "site.json": 0o644,
    }  # fmt: skip
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o700
    fill_site(site, b"a spec", SimpleNamespace(write=lambda path: path.write_text("facts")), None)
    assert site.spec.read_bytes() == b"a spec"
    assert site.facts.read_text() == "facts"
    assert not site.share.exists()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"client": 0}',
        '{"most_charges": 4}',
        '{"client": -1, "most_charges": 4}',
        '{"client": 0, "most_charges": -1}',
        '{"client": 0, "most_charges": 4.0}',
        '{"client": "0", "most_charges": 4}',
        '{"client": false, "most_charges": 4}',
    ],
)
def test_settings_that_say_nothing_of_a_client_are_refused_in_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "site.json").write_text(content)
    with pytest.raises(DeploymentError, match=r"its site\.json cannot be read"):
        Site(tmp_path).settings()


def test_an_owner_may_allow_none_and_any_number(tmp_path):
    for client, most in ((0, 0), (7, 10**6)):
        Site(tmp_path).allow(client, most)
        assert Site(tmp_path).settings() == Settings(client, most)


def test_what_a_client_noted_and_nobody_can_read_is_told(tmp_path):
    for content in (None, b"no archive"):
        if content is not None:
            (tmp_path / "noted.npz").write_bytes(content)
        with pytest.raises(DeploymentError, match=r"noted\.npz: cannot be read"):
            read_noted(tmp_path / "noted.npz")


# A SuperNode's folder.


def test_a_supernodes_settings_name_the_socket_from_its_own_folder(tmp_path):
    node = NodeFolder(tmp_path / "c" / "supernode")
    node.path.mkdir(parents=True)
    node.write_settings("link:9092", "../door/socket", 77)
    assert node.settings() == ("link:9092", tmp_path.resolve() / "c" / "door" / "socket", 77)
    assert [one.name for one in (node.key, node.public, node.authority)] == [
        "key", "key.pub", "ca.crt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        None,
        "[]",
        "{}",
        '{"superlink": "a:1", "socket": "s"}',
        '{"superlink": "a:1", "most_bytes": 1}',
        '{"socket": "s", "most_bytes": 1}',
        '{"superlink": "a:1", "socket": "s\\u0000", "most_bytes": 1}',
        '{"superlink": "a:1", "socket": "s", "most_bytes": "many"}',
        '{"superlink": "a:1", "socket": "s", "most_bytes": []}',
    ],
)
def test_what_is_no_supernodes_folder_is_refused_in_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "supernode.json").write_text(content)
    with pytest.raises(DeploymentError, match=r"its supernode\.json cannot be read"):
        NodeFolder(tmp_path).settings()


def test_a_supernodes_key_is_one_on_an_elliptic_curve(tmp_path):
    make_node_key(tmp_path / "key")
    private, public = _keys(tmp_path / "key")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert public == private.public_key()
    form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(*form)
    (tmp_path / "other").write_bytes(other)
    with pytest.raises(DeploymentError, match="is not a key on an elliptic curve"):
        _keys(tmp_path / "other")
    (tmp_path / "none").write_bytes(b"none")
    for name in ("none", "missing"):
        with pytest.raises(DeploymentError, match=f"{name}: cannot be read as a key"):
            _keys(tmp_path / name)


@pytest.fixture
def door(monkeypatch):
    """A socket's place with a short name, and seconds that pass where somebody rests."""
    folder, clock = Path(tempfile.mkdtemp(prefix="n-", dir="/tmp")), SimpleNamespace(now=0.0)

    def rest(seconds):
        clock.now += seconds
        clock.rested(clock.now)

    clock.rested = lambda _: None
    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=rest)
    monkeypatch.setattr(supernode, "time", fake)
    yield folder / "socket", clock
    shutil.rmtree(folder)


def test_a_clients_process_that_is_starting_is_waited_for(door):
    place, clock = door
    question, heard, threads = Frame({"round": 3}), [], []

    def listens(now):
        if threads or now < 1.0:
            return
        listener = Listener(str(place), family="AF_UNIX")

        def answer():
            with listener, listener.accept() as connection:
                heard.append(receive(connection))
                send(connection, Frame({"steps": 4}))

        threads.append(threading.Thread(target=answer))
        threads[0].start()

    clock.rested = listens
    assert _asked(place, question) == Frame({"steps": 4})
    threads[0].join()
    assert heard == [question]


def test_a_clients_process_that_is_away_is_waited_for_twenty_seconds(door):
    place, clock = door
    with pytest.raises(OSError, match="No such file"):
        _asked(place, Frame({}))
    assert 20.0 <= clock.now < 20.5


# The server's.


def run_in(folder, name="a-20240203T040506Z-00112233", claimed=False):
    run = folder / name
    run.mkdir(parents=True)
    (run / "ledger.jsonl").write_text('{"kind":"claim"}\n' if claimed else '{"kind":"round"}\n')
    return run


def test_the_run_of_a_server_is_the_newest_of_its_folder_or_the_folder_itself(tmp_path):
    with pytest.raises(DeploymentError, match="holds no run of a federation"):
        led_run(tmp_path)
    (tmp_path / "runs").mkdir()
    # Neither a file nor a link is a run.
    (tmp_path / "runs" / "notes").write_text("")
    (tmp_path / "runs" / "latest").symlink_to(tmp_path)
    with pytest.raises(DeploymentError, match="holds no run of a federation"):
        led_run(tmp_path)
    assert finished(tmp_path) is None
    earlier = run_in(tmp_path / "runs", claimed=True)
    assert finished(tmp_path) == led_run(tmp_path).path == earlier.resolve()
    later = run_in(tmp_path / "runs", "a-20250203T040506Z-00112233")
    assert led_run(tmp_path).path == later.resolve()
    assert finished(tmp_path) is None
    assert led_run(earlier).path == earlier.resolve()
    (tmp_path / "plain").write_text("")
    with pytest.raises(DeploymentError, match="holds no run of a federation"):
        led_run(tmp_path / "plain")


def test_what_the_server_received_lies_where_a_collection_looks_for_it(tmp_path):
    received = Received.of(tmp_path)
    names = [received.broadcast(3), received.upload(3, 12), received.release(3)]
    assert [str(one.relative_to(tmp_path)) for one in names] == [
        "received/broadcast-00003.safetensors",
        "received/upload-00003-00012.safetensors",
        "received/release-00003.npz",
    ]
    received.write(names[0], b"a message")
    received.write(names[0], b"another")
    assert names[0].read_bytes() == b"another"
    assert stat.S_IMODE(names[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(received.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("hidden", "answers", "due"),
    [
        # Who dropped out is not published: all that were asked count.
        (False, 2, (21, 15)),
        (False, 0, (0, 0)),
        (True, 2, (28, 20)),
        (True, 0, (None, 20)),
    ],
)
def test_the_traffic_of_a_round_tells_nobody_who_dropped_out(hidden, answers, due):
    current = SimpleNamespace(
        plan=SimpleNamespace(participants_hidden=hidden, clients_per_round=4),
        answers=(SimpleNamespace(message=b"7 bytes"),) * answers,
        chosen=(0, 2),
        dropped=(1,),
        message=b"5 of ",
    )
    assert ServerRecordRounds.traffic(current) == due


def test_a_run_that_protects_nothing_has_no_server(tmp_path):
    plan = SimpleNamespace(unit=None)
    setup = SimpleNamespace(experiment=SimpleNamespace(plan=plan))
    with pytest.raises(DeploymentError, match=r"privacy\.unit: none"):
        server_rounds(setup)


def test_settings_are_one_line_that_others_may_read(tmp_path):
    Site(tmp_path).allow(3, 9)
    assert json.loads((tmp_path / "site.json").read_text()) == {"client": 3, "most_charges": 9}
    assert stat.S_IMODE((tmp_path / "site.json").stat().st_mode) == 0o644
