"""One client: what it charges, what it sends again, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import stat
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import cosine_learning_rate
from dpfedadamw.errors import DpfedadamwError, ModelError, PrivacyError
from dpfedadamw.extensions.deployment.client import Client, plain, shared_of, statement
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


def test_what_is_asked_may_differ_by_rounding_and_reach_the_bounds_of_its_spec(refusing):
    rate = cosine_learning_rate(0.1, 1, SPEC.federation.rounds)
    second = {"round": 1, "learning_rate": rate}
    for changes in (
        {**second, "learning_rate": rate * (1 + 5e-10)},
        {**second, "learning_rate": rate * (1 - 5e-10)},
        {**second, "earlier_steps": 3},
        {**second, "earlier_steps": 0},
    ):
        refusing._check_cost(asked(**changes))
    for changes in (
        {**second, "learning_rate": rate * (1 + 3e-9)},
        {**second, "learning_rate": rate * (1 - 3e-9)},
        {**second, "earlier_steps": 4},
        {**second, "earlier_steps": -1},
        {"earlier_steps": 1},
    ):
        with pytest.raises(RefusalError, match="it asks for a learning rate") as told:
            refusing._check_cost(asked(**changes))
        assert told.value.reason == "noise"
    for changes in ({"attempt": 10**9 - 1}, {"round": 1}, {"place": 2}):
        refusing._check_whose("run", asked(**changes))
    for changes in ({"round": -1}, {"place": -1}, {"cohort": 2}, {"attempt": -1}):
        with pytest.raises(RefusalError) as told:
            refusing._check_whose("run", asked(**changes))
        assert told.value.reason == "round"


def test_a_message_of_its_server_may_be_as_large_as_the_first_broadcast(refusing):
    message, limits = broadcast(refusing), refusing.limits
    assert limits.head == 1 << 16
    assert limits.arrays == len(load(message))
    sent = sum(len(content) for _, _, _, content in wires_of(message).values())
    assert sent <= limits.content < 2 * len(message) + (1 << 16)


def test_a_client_sends_plain_values_beside_its_upload(client):
    message = broadcast(client)
    sent = client.take_part("run", asked(), message, "")
    values = plain(sent)
    assert values == {
        "steps": 3, "queries": 3, "uploaded": list(sent.uploaded), "remembers": False,
        "participation": sent.participation, "signature": sent.signature.hex(),
    }  # fmt: skip
    assert len(bytes.fromhex(values["participation"])) == 32
    (charge,) = client.ledger.of_kind("spend")
    assert charge.items() >= {
        "client": 0, "run": "run", "round": 0, "attempt": 1, "repetition": 1, "steps": 3,
        "noise_multiplier": 2.0,
    }.items()  # fmt: skip
    (uploaded,) = client.ledger.of_kind("upload")
    digests = hashlib.sha256(message), hashlib.sha256(sent.upload)
    shown = statement("run", 0, 0, 1, (*(one.hexdigest() for one in digests), sent.participation))
    assert uploaded.items() >= shown.items()
    assert is_signed(client._facts.keys[0], sent.signature, UPLOAD, shown)
    noted = client._site.noted(0, 1).read_bytes()
    assert uploaded["evidence_sha256"] == hashlib.sha256(noted).hexdigest()


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


def test_a_statement_names_what_a_server_could_hold_against_a_client():
    assert statement("run", 2, 5, 3, ("aa", "bb", "cc")) == {
        "run": "run", "client": 2, "round": 5, "attempt": 3, "broadcast_sha256": "aa",
        "upload_sha256": "bb", "participation": "cc",
    }  # fmt: skip


def test_of_what_a_client_noted_the_sums_over_all_clients_are_shared():
    noted = {"shared.squares": 1, "norms": 2, "shared.more.": 3, "not.shared.": 4}
    assert shared_of(noted) == {"squares": 1, "more.": 3}


def holding(spends=(), most_charges=4, steps=None, **plan):
    """What a client's checks look at, of a spec with three rounds: it has paid for some."""
    plain = {
        "rounds": 3, "client_sampling": "fixed-size", "clients_per_round": 2, "records": (9,) * 5,
        "local_steps": 3, "noise_multiplier": 2.0,
    }  # fmt: skip
    paid = [
        {"run": "run", "round": index, "attempt": attempt, **({} if steps is None else steps)}
        for index, attempt in spends
    ]
    return SimpleNamespace(
        number=0,
        most_charges=most_charges,
        _spends=lambda: paid,
        _where=lambda _: "it",
        _rate=lambda _: 0.1,
        _experiment=SimpleNamespace(
            plan=SimpleNamespace(**plain | plan), algorithm=SimpleNamespace(round_schedule=None)
        ),
    )


def refused_for(check, *arguments):
    """The word of a refusal; none where there is none."""
    try:
        check(*arguments)
    except RefusalError as error:
        return error.reason
    return ""


@pytest.mark.parametrize(
    ("plan", "changes", "reason"),
    [
        ({}, {"cohort": 2}, ""),
        ({}, {"cohort": 2, "place": 1}, ""),
        ({}, {"cohort": 1}, "round"),
        ({}, {"cohort": 3}, "round"),
        # Where each takes part by chance, all may, and one alone.
        ({"client_sampling": "poisson"}, {"cohort": 1}, ""),
        ({"client_sampling": "poisson"}, {"cohort": 5, "place": 4}, ""),
        ({"client_sampling": "poisson"}, {"cohort": 6}, "round"),
        ({"client_sampling": "poisson"}, {"cohort": 2, "place": 2}, "round"),
        ({}, {"cohort": 2, "round": 2}, ""),
        ({}, {"cohort": 2, "round": 3}, "round"),
        ({}, {"cohort": 2, "client": 1}, "client"),
    ],
)
def test_a_rounds_clients_are_as_many_as_the_spec_has_of_them(plan, changes, reason):
    assert refused_for(Client._check_whose, holding(**plan), "run", asked(**changes)) == reason


def test_a_folder_belongs_to_the_run_that_it_paid_for_last():
    held = holding([(0, 1), (1, 1)])
    assert refused_for(Client._check_whose, held, "run", asked(cohort=2)) == ""
    assert refused_for(Client._check_whose, held, "other", asked(cohort=2)) == "run"
    held._spends()[0]["run"] = "other"
    assert refused_for(Client._check_whose, held, "run", asked(cohort=2)) == ""


@pytest.mark.parametrize(
    ("spends", "most_charges", "part", "reason"),
    [
        ([], 4, (0, 1), ""),
        ([], 4, (2, 7), ""),
        ([(0, 1), (1, 1)], 4, (0, 2), ""),
        ([(0, 1), (1, 1)], 4, (0, 1), ""),
        ([(0, 1), (2, 1)], 4, (1, 1), ""),
        ([(0, 1), (2, 1)], 4, (0, 2), "order"),
        ([(2, 1), (0, 1)], 4, (0, 2), "order"),
        ([(1, 2)], 4, (1, 2), ""),
        ([(1, 2)], 4, (1, 3), ""),
        ([(1, 2)], 4, (1, 1), "order"),
        ([(0, 9), (1, 2)], 4, (1, 3), ""),
        # One round may take all of the reserve, and one attempt more in any case.
        ([(1, 1), (1, 2)], 4, (1, 3), "attempts"),
        ([(1, 1), (1, 2)], 4, (2, 1), ""),
        ([(1, 1), (1, 2)], 5, (1, 3), ""),
        ([(1, 1), (1, 2)], 5, (1, 1), "order"),
        ([(1, 1), (1, 2), (1, 3)], 5, (1, 4), "attempts"),
        ([(1, 1)], 1, (1, 2), ""),
        ([(1, 1), (1, 2)], 1, (1, 3), "attempts"),
    ],
)
def test_a_round_is_asked_for_in_the_order_of_an_honest_server(spends, most_charges, part, reason):
    held = holding(spends, most_charges)
    one = asked(round=part[0], attempt=part[1])
    assert refused_for(Client._check_order, held, one) == reason


def test_where_steps_and_noise_adapt_their_bound_is_asked_with_the_steps_that_were_taken():
    calls = []

    def check(*given):
        calls.append(given)
        if given[1] > 4:
            raise PrivacyError("too many steps")

    held = holding([(0, 1), (1, 1)], 4, {"steps": 5})
    held._spends().append({"run": "run", "round": 1, "attempt": 2})
    held._experiment.algorithm.round_schedule = "adapts"
    held._experiment.plan.spending_bound = SimpleNamespace(check=check, most_local_steps=4)
    one = asked(round=2, local_steps=4, noise_multiplier=1.5, earlier_steps=8, learning_rate=0.1)
    assert refused_for(Client._check_cost, held, one) == ""
    assert refused_for(Client._check_cost, held, replace(one, local_steps=5)) == "noise"
    assert calls == [(2, 4, 1.5, 10), (2, 5, 1.5, 10)]
    assert refused_for(Client._check_cost, held, replace(one, earlier_steps=9)) == "noise"


def test_a_client_pays_for_as_many_participations_as_are_allowed():
    one = asked(round=2, earlier_steps=6, learning_rate=0.1)
    for paid, reason in ((3, ""), (4, "spent"), (5, "spent")):
        held = holding([(0, 1)] * paid)
        held._experiment.plan.spending_bound = SimpleNamespace(most_local_steps=3)
        assert refused_for(Client._check_cost, held, one) == reason
