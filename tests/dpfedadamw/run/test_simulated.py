"""The same run in this process and by Flower's simulation; `tox run -e flower` runs this."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.flower import required
from dpfedadamw.federation.flower.required import FlowerError
from dpfedadamw.run import training as engine_run
from tests.dpfedadamw.cli.texts import folder as texts  # noqa: F401  # a fixture
from tests.runs import begin, call, small_spec

flower = pytest.importorskip(
    "flwr.app", reason="Flower has an environment of its own: tox run -e flower"
)

pytestmark = pytest.mark.flower

Array, ArrayRecord = flower.Array, flower.ArrayRecord

_OF_ONE_RUN = {
    "digest",
    "previous",
    "created",
    "run",
    "spec_sha256",
    "selection_sha256",
    "contents_sha256",
}


def content(run):
    """The model's digest, and what the ledger says of header, spends, rounds and claim."""
    own = {*_OF_ONE_RUN, "participations_sha256"}
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    model = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    return model, [{k: v for k, v in line.items() if k not in own} for line in lines]


def pickled():
    """An array of objects as NumPy writes it, which only a pickle can read."""
    content = io.BytesIO()
    np.save(content, np.asarray([{}], dtype=object), allow_pickle=True)
    return content.getvalue()


def spec_of(kind, request, tmp_path):
    from dpfedadamw import spec as specs

    if kind == "lora":
        place = request.getfixturevalue("texts")
        return place / "texts.yaml", ("federation.rounds=3", "randomness={mode: reproducible}")
    changes = ()
    if kind == "client":
        changes = ("privacy.noise_added_by=clients", "federation.client_sampling=poisson")
    algorithm = {"record": "dp-fedadamw", "client": "blur"}[kind]
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(algorithm, rounds=3, overrides=changes)))
    return path, ()


@pytest.mark.parametrize("kind", ["record", "client", "lora"])
def test_flower_gives_the_same_model_to_the_last_bit_the_same_charges_and_a_signed_report(
    kind, request, tmp_path, capsys
):
    path, changes = spec_of(kind, request, tmp_path)
    sets = [part for change in changes for part in ("--set", change)]
    found = {}
    for engine in ("inline", "flower"):
        out = tmp_path / engine
        arguments = ("run", path, "--engine", engine, "--out", out, *sets, "--json")
        assert call(*map(str, arguments)) == 0, capsys.readouterr()
        assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
        found[engine] = (out / "latest").resolve()
        assert call("verify", str(found[engine])) == 0
        capsys.readouterr()
    assert content(found["flower"]) == content(found["inline"])
    names = {one.name for one in (found["inline"] / "evidence").iterdir()}
    assert {one.name for one in (found["flower"] / "evidence").iterdir()} == names
    assert "stations" not in names


def test_a_process_that_fails_ends_the_run_in_one_line_and_what_was_charged_stays_charged(
    tmp_path, capsys
):
    training = begin(small_spec(rounds=2, overrides=("federation.engine=flower",)), tmp_path)
    salt = training.run.evidence / "salt"
    kept = salt.read_bytes()
    salt.unlink()
    with training.lock, pytest.raises(FlowerError, match="FileNotFoundError in its process"):
        engine_run.train(training)
    spends = [entry for entry in training.ledger.entries if entry["kind"] == "spend"]
    assert [entry["round"] for entry in spends] == [0] * 4
    assert not training.ledger.of_kind("round")
    assert not training.run.stations.exists()
    salt.write_bytes(kept)
    assert call("run", "--resume", str(training.run.path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
    attempts = [
        json.loads(line).get("attempt") for line in training.run.ledger.read_text().splitlines()
    ]
    assert attempts.count(2) == 4


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"parameters": Array(np.ones(10_000, np.float64))}, "longer than"),
        ({f"state {n}": Array(np.ones(90, np.float64)) for n in range(200)}, "longer than"),
        ({"parameters": Array("float32", (2,), "numpy.ndarray", b"no array")}, "no array"),
        ({"parameters": Array("O", (1,), "numpy.ndarray", pickled())}, "no array"),
        ({"parameters": Array("float32", (1,), "cloudpickle", b"x")}, "no array"),
    ],
)
def test_a_record_that_is_too_long_or_no_array_of_numbers_is_refused_and_never_unpickled(
    record, told
):
    from dpfedadamw.federation.flower.records import message_of

    with pytest.raises(ArrivalError, match=told):
        message_of(ArrayRecord(record), most=1000)


def stood(message, _context):
    """A ClientApp that answers at once."""
    return flower.Message(flower.RecordDict(), reply_to=message)


def test_nobody_without_the_runs_token_is_answered_by_rays_processes_or_finds_its_sockets():
    required.require(simulation=True)
    import grpc
    import psutil

    from dpfedadamw.federation.flower.simulation import Simulation

    # One method of each of Ray's services; any would do, they ask for the token before the rest.
    methods = ("NodeInfoGcsService/GetClusterId", "NodeManagerService/GetNodeStats",
               "CoreWorkerService/PushTask")  # fmt: skip
    with Simulation(stood, nodes=1, processes=1) as simulation:
        list(simulation.ask([flower.RecordDict()], "1"))
        ports = {
            (one.laddr.ip.replace("::", "127.0.0.1"), one.laddr.port)
            for process in psutil.Process().children(recursive=True)
            for one in process.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        }
        refused = 0
        for host, port in ports:
            with grpc.insecure_channel(f"{host}:{port}") as channel:
                for method in methods:
                    with pytest.raises(grpc.RpcError) as found:
                        channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=10.0)
                    refused += found.value.code() is grpc.StatusCode.UNAUTHENTICATED
        # The GCS, the raylet and each worker have a service that one of the methods is of.
        assert refused >= 3
        folder = Path(simulation._scratch.name)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(folder.glob("r/session_*/sockets/raylet"))
    assert not folder.exists()


def test_a_ray_that_asks_for_no_token_is_not_used():
    code = (
        "import ray\n"
        "from dpfedadamw.federation.flower.required import FlowerError, require\n"
        "require(simulation=True)\n"
        "from dpfedadamw.federation.flower.simulation import Simulation\n"
        "try:\n    Simulation(print, nodes=1, processes=1).__enter__()\n"
        "except FlowerError as error:\n    print(error)\n"
    )
    plain = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, timeout=120
    )
    assert "start the run in a separate process" in ended.stdout


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def cluster():
    """Two nodes of a Ray cluster: the environment of a run on them, and the raylet of the second.

    Each node has one processor; their temporary folder has a short name, for Ray's sockets.
    """
    psutil = pytest.importorskip("psutil")
    required.require(simulation=True)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **token, "RAY_ADDRESS": f"127.0.0.1:{free_port()}"}
    scratch = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    nodes = []

    def node(*where):
        log = Path(scratch.name) / f"log{len(nodes)}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        with log.open("w") as file:
            started = subprocess.Popen(
                [*command, "--node-ip-address=127.0.0.1", *where],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        nodes.append(psutil.Process(started.pid))
        while "Ray runtime started" not in log.read_text():
            assert started.poll() is None, log.read_text()
            time.sleep(0.1)

    try:
        address = environment["RAY_ADDRESS"]
        node("--head", f"--port={address[10:]}", f"--temp-dir={scratch.name}/r",
             "--include-dashboard=false")  # fmt: skip
        node(f"--address={address}")
        (raylet,) = (one for one in nodes[1].children() if one.name() == "raylet")
        yield environment, raylet
    finally:
        alive = [one for one in nodes if one.is_running()]
        ours = [*alive, *(one for node in alive for one in node.children(recursive=True))]
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(ours, timeout=10)[1]:
            process.kill()
        scratch.cleanup()


# How many machines the cluster has by its own account.
_ALIVE = (
    "import logging, ray\n"
    "ray.init(logging_level=logging.CRITICAL, log_to_driver=False)\n"
    "print(sum(node['Alive'] for node in ray.nodes()))\n"
)


def test_a_run_on_two_nodes_that_loses_one_keeps_its_charges_and_ends_with_the_bits_of_one_process(
    tmp_path, cluster, capsys
):
    from dpfedadamw import spec as specs

    environment, raylet = cluster
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(rounds=30)))
    assert call("run", str(path), "--out", str(tmp_path / "inline"), "--json") == 0

    def begin(*arguments):
        command = [sys.executable, "-m", "dpfedadamw", "run", *arguments, "--json"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with begin(path, "--engine", "flower", "--out", tmp_path / "two") as run:
        # Clients of the first round have been computed.
        while not any(
            '"kind":"round"' in ledger.read_text()
            for ledger in (tmp_path / "two").glob("*/ledger.jsonl")
        ):
            assert run.poll() is None
            time.sleep(0.02)
        clients = [one for one in raylet.children() if "ClientAppActor" in " ".join(one.cmdline())]
        # What is lost with a machine.
        for process in (raylet, *clients):
            process.kill()
        told = json.loads(run.communicate(timeout=120)[0])
    assert len(clients) == 1
    assert "its machine is lost" in told["error"]["messages"][0]
    while subprocess.check_output([sys.executable, "-c", _ALIVE], env=environment) != b"1\n":
        pass
    (there,), (here,) = ((tmp_path / name).glob("small-*") for name in ("two", "inline"))
    with begin("--resume", there) as run:
        assert json.loads(run.communicate(timeout=120)[0])["verdict"] == "PASS"
    model, lines = content(there)
    assert model == content(here)[0]
    # The round that was cut off is charged twice.
    assert sum(line["kind"] == "spend" for line in lines) == 31 * 4
    # A run that goes on notes where it does.
    names = [
        {one.name for one in (run / "evidence").iterdir() if "environment-" not in one.name}
        for run in (there, here)
    ]
    assert names[0] == names[1]
