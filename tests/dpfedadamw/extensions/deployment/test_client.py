"""One client: what it charges, what it sends again, and what it refuses."""

from __future__ import annotations

import json
import math
import shutil
import stat
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import cosine_learning_rate
from dpfedadamw.errors import DpfedadamwError, ModelError
from dpfedadamw.extensions.deployment.client import Client, statement
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.identity import INTRODUCTION, PIN, UPLOAD, is_signed
from dpfedadamw.extensions.deployment.listening import answered
from dpfedadamw.extensions.deployment.project import Project
from dpfedadamw.extensions.deployment.refusals import RefusalError, Refusals
from dpfedadamw.extensions.deployment.site import Site, read_noted
from dpfedadamw.federation.flower.arrays import wires_of
from dpfedadamw.federation.flower.frames import Frame
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.worker import RecordingOracle
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.loops import made
from tests.runs import small_spec


def test_a_client_runs_no_code_that_the_server_s_spec_names(fresh, tmp_path, monkeypatch):
    """The spec in its folder is the server's word, and so is whatever else was put there."""
    site, canary = fresh.site(0), tmp_path / "somebody-else-was-here"
    mapping = specs.load(site.spec).to_mapping()
    mapping["model"] = {"name": "python", "target": "code_of_the_server:Net"}
    site.spec.write_text(specs.dump(specs.from_mapping(mapping)))
    (site.path / "code_of_the_server.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.chdir(site.path)
    with pytest.raises(ModelError, match=r"code_of_the_server:Net is code named in this file"):
        Client(site)
    with (
        allowing(["code_of_the_server"]),
        pytest.raises(ModelError, match=r"a client's folder are never run"),
    ):
        Client(site)
    assert not canary.exists()


@pytest.fixture
def client(fresh):
    one = Client(fresh.site(0))
    yield one
    one.close()


@pytest.fixture(scope="module")
def refusing(unused, tmp_path_factory):
    """One for all that it refuses: it stays as it was begun."""
    place = tmp_path_factory.mktemp("refusing") / "project"
    shutil.copytree(unused.path, place)
    one = Client(Project(place, unused.clients).site(0))
    yield one
    one.close()


def asked(**changes):
    """What the server asks client 0, in the first round unless a change says another."""
    index = changes.get("round", 0)
    plain = Asked(
        round=0,
        attempt=1,
        client=0,
        place=0,
        cohort=3,
        local_steps=3,
        earlier_steps=0,
        learning_rate=cosine_learning_rate(0.1, index, SPEC.federation.rounds),
        noise_multiplier=2.0,
        history=NO_HISTORY,
    )
    return replace(plain, **changes)


def broadcast(client):
    experiment = client._experiment
    state = experiment.algorithm.server.start(client._station.worker.flat.vector)
    return pack(state.parameters, state.state)


def kinds(client):
    lines = client._site.ledger.read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


def test_it_pays_before_it_sends_and_sends_the_same_again_for_nothing(client):
    message = broadcast(client)
    first = client.take_part("run", asked(), message, "")
    assert kinds(client) == ["pin", "spend", "upload"]
    assert client.take_part("run", asked(), message, "") == first
    assert kinds(client) == ["pin", "spend", "upload"]


def test_what_was_sent_is_sent_again_after_a_restart(client, fresh):
    message = broadcast(client)
    first = client.take_part("run", asked(), message, "")
    client.close()
    again = Client(Site(fresh.site(0).path))
    assert again.take_part("run", asked(), message, "") == first
    assert kinds(again) == ["pin", "spend", "upload"]
    again.close()


def test_cut_off_before_it_sends_it_pays_again_for_the_identical_noise(client, monkeypatch):
    message, real = broadcast(client), Station.answer

    def cut_off(self, *arguments):
        real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Station, "answer", cut_off)
        with pytest.raises(KeyboardInterrupt):
            client.take_part("run", asked(), message, "")
    assert kinds(client) == ["pin", "spend"]
    sent = client.take_part("run", asked(), message, "")
    assert kinds(client) == ["pin", "spend", "spend", "upload"]
    assert [one["repetition"] for one in client.ledger.of_kind("spend")] == [1, 2]
    # In reproducible mode the next attempt has the same noise too.
    assert client.take_part("run", asked(attempt=2), message, "").upload == sent.upload


def test_what_a_participation_noted_that_failed_is_no_part_of_the_next_one(client, monkeypatch):
    message, real = broadcast(client), RecordingOracle.gradient
    left = iter([True])

    def short_of_memory(self, parameters):
        found = real(self, parameters)
        if next(left, False):
            raise MemoryError
        return found

    monkeypatch.setattr(RecordingOracle, "gradient", short_of_memory)
    with pytest.raises(MemoryError):
        client.take_part("run", asked(), message, "")
    client.take_part("run", asked(attempt=2), message, "")
    noted = read_noted(client._site.noted(0, 2))
    assert len(noted["noise_sample"]) == 3
    assert noted["shared.squares"].sum() == pytest.approx(noted["noise_sum_squares"].sum())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"noise_multiplier": 1.0}, "a noise multiplier of 1; the spec says 3 and 2"),
        ({"local_steps": 4}, "asks for 4 steps"),
        ({"client": 1}, "meant for client 1"),
        ({"round": 2}, "the spec has rounds 0 to 1"),
        ({"cohort": 4}, "it has 3 clients"),
        ({"place": 3}, "it has 3 clients"),
    ],
)
def test_it_refuses_what_its_spec_does_not_say_and_pays_nothing(refusing, changes, told):
    with pytest.raises(DeploymentError, match=told):
        refusing.take_part("run", asked(**changes), broadcast(refusing), "")
    assert kinds(refusing) == ["pin"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learning_rate": 1e9}, "noise"),
        ({"learning_rate": 0.2}, "noise"),
        ({"earlier_steps": 10**9}, "noise"),
        ({"cohort": 1, "place": 0}, "round"),
        ({"attempt": 0}, "round"),
        ({"attempt": 10**9}, "round"),
        ({"attempt": 2**31 - 1}, "round"),
    ],
)
def test_what_would_only_waste_what_is_paid_is_refused_too(refusing, changes, reason):
    with pytest.raises(RefusalError) as told:
        refusing.take_part("run", asked(**changes), broadcast(refusing), "")
    assert told.value.reason == reason
    assert kinds(refusing) == ["pin"]


def test_rounds_go_on_and_one_back_at_most_and_each_attempt_has_a_higher_number(tmp_path):
    spec = small_spec("dp-scaffold", 5, 3, overrides=("data.clients=3",))
    client = Client(made(spec, tmp_path / "p").site(0))
    message = broadcast(client)

    def ask(index, attempt, remembered=""):
        one = replace(asked(), round=index, attempt=attempt, learning_rate=client._rate(index))
        return client.take_part("run", one, message, remembered)

    def refused(reason, *arguments):
        paid = client.ledger.size
        with pytest.raises(RefusalError) as told:
            ask(*arguments)
        assert told.value.reason == reason
        assert client.ledger.size == paid

    ask(0, 1)
    ask(1, 1)
    ask(2, 1, "1-1")
    refused("order", 0, 2)
    # A server that lost its last state begins with the one before.
    ask(1, 2)
    ask(2, 3, "1-2")
    refused("order", 2, 2)
    for remembered in ("2-4", "3-1", "0-9", "-", "1", "0-1 ", "٠-1", "../../key", "1-1-1", "00-1"):
        refused("memory", 3, 1, remembered)
    ask(3, 1, "0-1")
    refused("order", 1, 3)
    client.close()


def test_a_round_is_paid_for_a_few_times_at_most(client):
    message = broadcast(client)
    for attempt in (1, 2, 3):
        client.take_part("run", asked(attempt=attempt), message, "")
    with pytest.raises(RefusalError) as told:
        client.take_part("run", asked(attempt=4), message, "")
    assert told.value.reason == "attempts"
    # What is left of the reserve is for the other round.
    client.take_part("run", asked(round=1), message, "")
    with pytest.raises(RefusalError) as told:
        client.take_part("run", asked(round=1, attempt=2), message, "")
    assert told.value.reason == "spent"


def test_who_it_is_and_what_it_sends_are_signed_as_different_things(client):
    """A server that draws a statement as its nonce has no upload signed."""
    digests = ("00" * 32, "11" * 32, "22" * 32)
    wanted = statement("run", 0, 0, 1, digests)
    public, nonce = client._facts.keys[0], json.dumps(wanted)
    found = client.introduce(nonce)
    signature = bytes.fromhex(found["signature"])
    shown = {name: found[name] for name in ("hello", "client", "spec_sha256")}
    assert is_signed(public, signature, INTRODUCTION, shown)
    for domain in (UPLOAD, PIN):
        assert not is_signed(public, signature, domain, shown)
        assert not is_signed(public, signature, domain, wanted)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one | {"parameters": one["parameters"] * math.nan},
        lambda one: one | {"parameters": one["parameters"] + 1e30},
        lambda one: one | {"parameters": one["parameters"][:-1]},
        lambda one: one | {"parameters": one["parameters"].double()},
        lambda one: one | {"more": torch.zeros(3)},
        lambda one: {"parameters": one["parameters"]},
        lambda one: one | {"second_moment": torch.full((1,), math.inf)},
    ],
)
def test_a_broadcast_that_the_specs_server_does_not_send_is_not_paid_for(refusing, change):
    tensors = {k.removeprefix("state."): v for k, v in load(broadcast(refusing)).items()}
    changed = change(tensors)
    message = pack(changed.pop("parameters"), changed)
    with pytest.raises(RefusalError) as told:
        refusing.take_part("run", asked(), message, "")
    assert told.value.reason == "broadcast"
    assert kinds(refusing) == ["pin"]


def test_no_refusal_tells_the_server_what_the_client_has(client, monkeypatch):
    """Neither paths nor numbers of records, nor what an error of the computation says."""
    refusals = Refusals(client._site.refusals)
    values = {**asdict(asked()), "run": "run", "remembered": ""}

    def broken(self, *_arguments):
        raise ValueError(f"record 17 of {client._site.path} has label 3")

    monkeypatch.setattr(Station, "answer", broken)
    wires = wires_of(broadcast(client))
    assert answered(client, refusals, Frame(values, wires)) == Frame({"refused": "failed"})
    client._site.share.unlink()
    assert answered(client, refusals, Frame({"hello": 5})) == Frame({"refused": "message"})


def test_after_a_full_disk_the_ledger_is_read_again_and_goes_on_where_it_was(client, monkeypatch):
    refusals = Refusals(client._site.refusals)
    frame = Frame({**asdict(asked()), "run": "run", "remembered": ""}, wires_of(broadcast(client)))

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dpfedadamw.privacy.ledger.append", full)
        assert answered(client, refusals, frame) == Frame({"refused": "failed"})
    assert kinds(client) == ["pin"]
    assert "signature" in answered(client, refusals, frame).values
    assert kinds(client) == ["pin", "spend", "upload"]
    client.close()
    Client(Site(client._site.path)).close()


def test_it_takes_part_in_one_run_alone(client):
    client.take_part("run", asked(), broadcast(client), "")
    with pytest.raises(DeploymentError, match="another run"):
        client.take_part("other", asked(round=1), broadcast(client), "")


def test_it_answers_another_broadcast_of_the_same_attempt_with_a_refusal(client):
    message = broadcast(client)
    client.take_part("run", asked(), message, "")
    with pytest.raises(DeploymentError, match="another broadcast"):
        client.take_part("run", asked(), message[:-4] + b"\1\1\1\1", "")


def test_it_pays_no_more_often_than_its_owner_allows(fresh):
    path = fresh.site(0).path / "site.json"
    path.write_text(json.dumps({"client": 0, "most_charges": 1}))
    client = Client(fresh.site(0))
    client.take_part("run", asked(), broadcast(client), "")
    with pytest.raises(DeploymentError, match="as many as its owner allows"):
        client.take_part("run", asked(round=1), broadcast(client), "")
    client.close()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("key", b"00" * 32, "is not the key that federation.json names"),
        ("salt", bytes(32), "is not the one whose digest"),
        ("share.npz", b"no archive", "holds no records"),
        ("site.json", b"{}", "is not a client's folder"),
        ("federation.json", b"{}", "does not describe a federation"),
    ],
)
def test_a_folder_that_is_not_as_the_facts_say_is_refused_in_one_line(fresh, name, content, told):
    (fresh.site(0).path / name).write_bytes(content)
    with pytest.raises(DeploymentError, match=told):
        Client(fresh.site(0))


def test_two_processes_cannot_have_one_folder(client, fresh):
    with pytest.raises(DpfedadamwError, match="another process"):
        Client(fresh.site(0))


def test_its_supernodes_user_cannot_read_its_ledger(client, fresh):
    """That user may enter the client's folder, where the socket is."""
    assert stat.S_IMODE(fresh.site(0).ledger.stat().st_mode) == 0o600
