"""SuperLink, SuperNodes and clients as processes of this machine; `tox run -e flower` runs this."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.deployment.leading import led_run
from dpfedadamw.extensions.deployment.processes import Federation, local_addresses
from dpfedadamw.extensions.deployment.project import make_project
from dpfedadamw.filing import after_training
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import RunDirectory
from tests.dpfedadamw.cli.texts import folder as texts  # noqa: F401  # a fixture
from tests.dpfedadamw.extensions.deployment import loops
from tests.dpfedadamw.extensions.deployment.loops import judged
from tests.people import people_spec
from tests.runs import begin, call, small_spec

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

pytestmark = pytest.mark.flower

KILLS = 20
HOOKED = "tests.dpfedadamw.extensions.deployment.hooked"


def content(run):
    """The model's digest, and what the ledger says of header, spends, rounds and claim."""
    return loops.content(RunDirectory(run))


def spec_of(kind, request, tmp_path):
    if kind == "lora":
        place = request.getfixturevalue("texts")
        return place / "texts.yaml", ("federation.rounds=2", "randomness={mode: reproducible}")
    path, changes = tmp_path / "spec.yaml", ("data.clients=3",)
    if kind == "person":
        path.write_text(specs.dump(people_spec()))
        return path, ()
    if kind == "client":
        changes += ("privacy.noise_added_by=clients", "federation.client_sampling=poisson")
    algorithm = {"record": "dp-fedadamw", "client": "blur"}[kind]
    spec = small_spec(algorithm, rounds=3, clients_per_round=3 if kind == "record" else 2,
                      overrides=changes)  # fmt: skip
    path.write_text(specs.dump(spec))
    return path, ()


@pytest.mark.parametrize("kind", ["record", "person", "client", "lora"])
def test_four_ways_to_run_clients_give_one_model_to_the_last_bit_one_bill_and_a_signed_report(
    kind, request, tmp_path, capsys
):
    path, changes = spec_of(kind, request, tmp_path)
    sets = [part for change in changes for part in ("--set", change)]
    ways = {
        "inline": ("run", path, "--engine", "inline"),
        "workers": ("run", path, "--set", "federation.workers=2"),
        "simulation": ("run", path, "--engine", "flower"),
        "supernodes": ("flower", "poc", path),
    }
    found = {}
    for way, command in ways.items():
        out = tmp_path / way
        assert call(*map(str, (*command, "--out", out, *sets, "--json"))) == 0, capsys.readouterr()
        told = json.loads(capsys.readouterr().out)
        assert told["verdict"] == "PASS"
        run = Path(told["directory"])
        assert call("verify", str(run)) == 0
        assert (run / "report.pdf").is_file()
        capsys.readouterr()
        found[way] = content(run)
    for way in ways:
        assert found[way] == found["inline"], way


class Running:
    """A federation whose clients count, in a file, how often they drew noise."""

    def __init__(self, tmp_path, spec, again=5.0, halved=None):
        addresses = local_addresses()
        experiment = prepare(spec, torch.device("cpu"))
        self.project = make_project(experiment, tmp_path / "p", addresses)
        self._halved = halved
        options = ("--again-seconds", str(again))
        self.federation = Federation(self.project, addresses, self._command, options)

    def _command(self, client):
        site, truth = self.project.site(client).path, self.truth_of(client)
        mode = "halved" if client == self._halved else "honest"
        return (
            sys.executable,
            "-m",
            "tests.dpfedadamw.extensions.deployment.hooked",
            site,
            truth,
            mode,
        )

    def truth_of(self, client):
        return self.project.path / f"truth-{client}"

    def drawn(self, client):
        """How often a client drew noise."""
        path = self.truth_of(client)
        return path.stat().st_size if path.exists() else 0

    def charged(self, client):
        """How often its own ledger says that it paid."""
        lines = self.project.site(client).ledger.read_text().splitlines()
        return sum(json.loads(line)["kind"] == "spend" for line in lines)

    def kill(self, client, what):
        """Kill a client's processes and all that they started; they are started again."""
        for one in what:
            name = f"{one}-{client:02d}"
            if self.federation.started[name].process.poll() is None:
                self.federation.kill(name)


def audited(run):
    after_training.attest_training(run, after_training.load_signers(None, None), None)
    found = after_training.audit(run).to_json()
    return found["verdict"], {one["name"]: one for one in found["checks"]}


def inline(spec, place):
    training = begin(spec, place)
    with training.lock:
        engine_run.train(training)
    return content(training.run.path)


def wait_until(true, seconds=120.0):
    last = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < last
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))


def test_a_client_killed_while_it_computes_and_started_again_changes_nothing_but_its_own_bill(
    tmp_path,
):
    spec = small_spec(rounds=3, clients_per_round=3, overrides=("data.clients=3",))
    running = Running(tmp_path, spec)
    with running.federation as federation:
        thread = threading.Thread(target=federation.run)
        thread.start()
        # Noise is drawn and nothing is sent yet: the hook waits a second there.
        wait_until(lambda: running.drawn(1))
        running.kill(1, ("supernode", "client"))
        thread.join()
    assert running.charged(1) == running.drawn(1) == 4
    assert running.charged(0) == running.drawn(0) == 3
    run = judged(running.project, tmp_path / "out").run
    assert content(run.path) == inline(spec, tmp_path / "inline")
    assert audited(run)[0] == "PASS"


def test_clients_killed_twenty_times_at_random_end_their_training_and_paid_for_all_they_drew(
    tmp_path,
):
    rounds, chance = 10, random.Random(18)
    spec = small_spec(rounds=rounds, clients_per_round=3, overrides=("data.clients=3",))
    running = Running(tmp_path, spec)
    for client in range(3):
        # Their owners allow for what is about to happen.
        running.project.site(client).allow(client, rounds + KILLS)
    told, kills = {}, []
    with running.federation as federation:
        thread = threading.Thread(target=federation.run, args=(told.update,))
        thread.start()
        wait_until(lambda: told.get("state") == "training")
        while thread.is_alive() and len(kills) < KILLS:
            time.sleep(chance.uniform(1.0, 4.0))
            client = chance.randrange(3)
            # One that is not back yet cannot be killed again.
            if federation.started[f"supernode-{client:02d}"].process.poll() is None:
                what = chance.choice([("supernode",), ("supernode", "client")])
                if "client" in what:
                    # Where it hurts: noise is drawn, and nothing is sent yet.
                    before, last = running.drawn(client), time.monotonic() + 20.0
                    while running.drawn(client) == before and time.monotonic() < last:
                        time.sleep(0.1)
                kills.append((client, what, told.get("completed")))
                running.kill(client, what)
        thread.join()
    assert told["state"] == "finished"
    assert len(kills) == KILLS
    assert sum(map(running.drawn, range(3))) > 3 * rounds
    for client in range(3):
        print(client, "drawn", running.drawn(client), "charged", running.charged(client))
        assert running.charged(client) >= running.drawn(client) >= rounds
    print(kills)
    run = judged(running.project, tmp_path / "out").run
    assert content(run.path) == inline(spec, tmp_path / "inline")
    assert audited(run)[0] == "PASS"


def test_the_superlink_killed_and_started_again_goes_on_with_the_run(tmp_path):
    spec = small_spec(rounds=6, clients_per_round=3, overrides=("data.clients=3",))
    running, told = Running(tmp_path, spec), {}
    with running.federation as federation:
        status = running.project.server / "status.json"
        wait_until(lambda: b'"training"' in read(status) and b'"completed": 0' not in read(status))
        federation.kill("superlink")
        federation.start_superlink()
        federation.run(told.update)
    assert told["state"] == "finished"
    run = judged(running.project, tmp_path / "out").run
    assert content(run.path)[0] == inline(spec, tmp_path / "inline")[0]
    # The round in which it was killed may have been paid for once more.
    assert all(running.charged(one) in (6, 7) for one in range(3))
    assert audited(run)[0] == "PASS"


def test_a_client_that_draws_half_its_noise_is_caught_and_without_its_evidence_named(tmp_path):
    spec = small_spec(rounds=2, clients_per_round=3, overrides=("data.clients=3",))
    running = Running(tmp_path, spec, halved=2)
    with running.federation as federation:
        federation.run()
    verdict, checks = audited(judged(running.project, tmp_path / "out").run)
    assert (verdict, checks["noise-scale"]["verdict"]) == ("FAIL", "FAIL")
    assert "client 2" in checks["noise-scale"]["measurement"]
    sites = [running.project.site(one).path for one in (0, 1)]
    verdict, checks = audited(judged(running.project, tmp_path / "without", sites).run)
    assert verdict == "NOT VERIFIED"
    assert "client 2 handed in no ledger" in checks["integrity"]["measurement"]
    assert led_run(running.project.server).path.is_dir()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_poc_leaves_no_process_when_it_is_stopped(how, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        specs.dump(small_spec(rounds=50, clients_per_round=3, overrides=("data.clients=3",)))
    )
    place = tmp_path / "p"
    command = [sys.executable, "-m", "dpfedadamw", "flower", "poc", path, "--clients", "3"]
    one = subprocess.Popen(
        [*command, "--project", place, "--out", tmp_path / "out"],
        # A shell that starts tests in the background has them and their children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until((place / "server" / "runs").exists, 240.0)
    one.send_signal(how)
    assert one.wait(60.0) == 128 + how
    time.sleep(1.0)
    left = [
        cmdline
        for process in Path("/proc").glob("[0-9]*/cmdline")
        if str(place).encode() in (cmdline := read(process))
    ]
    assert left == []


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
