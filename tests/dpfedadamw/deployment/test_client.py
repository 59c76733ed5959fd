"""One client: what it charges, what it sends again, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dpfedadamw.deployment.client import Client
from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.site import Site
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY


@pytest.fixture
def client(fresh):
    one = Client(fresh.site(0))
    yield one
    one.close()


def asked(**changes):
    """What the server asks client 0 in the first round."""
    plain = Asked(
        round=0,
        attempt=1,
        client=0,
        place=0,
        cohort=3,
        local_steps=3,
        earlier_steps=0,
        learning_rate=0.1,
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
    assert kinds(client) == ["spend", "upload"]
    assert client.take_part("run", asked(), message, "") == first
    assert kinds(client) == ["spend", "upload"]


def test_what_was_sent_is_sent_again_after_a_restart(client, fresh):
    message = broadcast(client)
    first = client.take_part("run", asked(), message, "")
    client.close()
    again = Client(Site(fresh.site(0).path))
    assert again.take_part("run", asked(), message, "") == first
    assert kinds(again) == ["spend", "upload"]
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
    assert kinds(client) == ["spend"]
    sent = client.take_part("run", asked(), message, "")
    assert kinds(client) == ["spend", "spend", "upload"]
    assert [one["repetition"] for one in client.ledger.of_kind("spend")] == [1, 2]
    # In reproducible mode the next attempt has the same noise too.
    assert client.take_part("run", asked(attempt=2), message, "").upload == sent.upload


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"noise_multiplier": 1.0}, "a noise multiplier of 1; the spec says 3 and 2"),
        ({"local_steps": 4}, "asks for 4 steps"),
        ({"client": 1}, "meant for client 1"),
        ({"round": 2}, "the spec has rounds 0 to 1"),
        ({"cohort": 4}, "it has 4 clients"),
        ({"place": 3}, "it has 3 clients"),
    ],
)
def test_it_refuses_what_its_spec_does_not_say_and_pays_nothing(client, changes, told):
    with pytest.raises(DeploymentError, match=told):
        client.take_part("run", asked(**changes), broadcast(client), "")
    assert kinds(client) == []


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
        ("site.json", b"{}", "is no client's folder"),
        ("federation.json", b"{}", "says nothing of a federation"),
    ],
)
def test_a_folder_that_is_not_as_the_facts_say_is_refused_in_one_line(fresh, name, content, told):
    (fresh.site(0).path / name).write_bytes(content)
    with pytest.raises(DeploymentError, match=told):
        Client(fresh.site(0))


def test_two_processes_cannot_have_one_folder(client, fresh):
    with pytest.raises(DpfedadamwError, match="another process"):
        Client(fresh.site(0))
