"""The server: what it takes of clients' answers, and how long it waits for them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.experiment import RunError
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.leading import is_finished, led_run, open_led
from dpfedadamw.extensions.deployment.server import Patience
from dpfedadamw.federation.links import Reply
from dpfedadamw.filing import after_training
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.vectors.packing import packed, views
from tests.dpfedadamw.extensions.deployment.loops import LoopLink, judged, led, made, opened
from tests.runs import small_spec

SHORT = Patience(again=0.0, answer=0.3, meeting=0.3)


@pytest.fixture
def clients(fresh):
    found = opened(fresh)
    yield found
    for one in found.values():
        one.close()


def with_upload(reply, change):
    """The reply with another upload."""
    tensors = {name: one.clone() for name, one in views(reply.upload).items()}
    return replace(reply, upload=packed(change(tensors)))


def spoilt(node, change):
    def spoil(at, reply):
        return change(reply) if at == node else reply

    return spoil


def saying(**values):
    """What changes a reply's plain values, of which the signature covers none but the digests."""
    return lambda reply: replace(reply, values={**reply.values, **values})


def nan(tensors):
    tensors["parameters"][0] = torch.nan
    return tensors


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda reply: with_upload(
                reply, lambda one: {**one, "parameters": one["parameters"] * 2}
            ),
            "not signed by its key",
        ),
        (lambda reply: with_upload(reply, lambda one: {**one, "x": one["parameters"]}), "further"),
        (
            lambda reply: with_upload(reply, lambda one: {**one, "parameters": torch.zeros(3)}),
            r"float32 \[3\]",
        ),
        (saying(steps="x"), "says other steps, gradients or memory than it was asked for"),
        (lambda reply: with_upload(reply, nan), "not finite"),
        (saying(steps=2, queries=2), "says other steps, gradients or memory than it was asked for"),
        (saying(steps=10**9), "says other steps, gradients or memory than it was asked for"),
        (saying(steps=math.inf), "says other steps, gradients or memory than it was asked for"),
        (saying(queries=4), "says other steps, gradients or memory than it was asked for"),
        (saying(remembers=True), "says other steps, gradients or memory than it was asked for"),
        (lambda reply: replace(reply, values={"steps": 3, "queries": 3}), "not whole"),
        (lambda reply: replace(reply, wrong="its upload holds what is no array"), "no array"),
        (lambda _: Reply({}, b"", away="away"), "client 1, round 0: away within 0.3 s"),
        (lambda _: Reply({"refused": "noise"}, b""), "the spec says other noise"),
        # A client that lies may put anything there, for anyone who reads the server's terminal.
        (lambda _: Reply({"refused": "\x1b]0;not today\x07"}, b""), "in words of its own$"),
    ],
)
def test_a_wrong_answer_ends_the_run_in_one_line_charged_and_with_nothing_released(
    fresh, clients, change, told
):
    with pytest.raises(DpfedadamwError, match=told):
        led(fresh, clients, spoilt(101, change), SHORT)
    (run,) = (one for one in (fresh.server / "runs").iterdir() if not one.is_symlink())
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in lines] == ["header"] + ["spend"] * 3


def test_a_run_that_failed_goes_on_and_pays_again(fresh, clients):
    with pytest.raises(DpfedadamwError, match="away"):
        led(fresh, clients, spoilt(102, lambda _: Reply({}, b"", away="away")), SHORT)
    led(fresh, clients)
    lines = [json.loads(line) for line in led_run(fresh.server).ledger.read_text().splitlines()]
    assert [one["attempt"] for one in lines if one["kind"] == "spend"] == [1] * 3 + [2] * 3 + [
        1
    ] * 3
    assert lines[-1]["kind"] == "claim"
    for one in clients.values():
        spends = one.ledger.of_kind("spend")
        assert [(each["round"], each["attempt"]) for each in spends] == [(0, 1), (0, 2), (1, 1)]


@pytest.mark.thorough
def test_who_does_not_answer_is_asked_again_and_what_comes_late_changes_nothing(fresh, clients):
    away = iter([True, True])

    def slow(node, reply):
        return Reply({}, b"", away="away") if node == 101 and next(away, False) else reply

    link = led(fresh, clients, slow, Patience(again=0.0, answer=30.0, meeting=5.0))
    asked = [node for node, values in link.sent if values.get("round") == 0]
    assert asked.count(101) >= 3
    # Asked three times, it paid once.
    assert len(clients[101].ledger.of_kind("spend")) == 2


def test_a_missing_client_is_named_before_anything_is_written(fresh, clients):
    del clients[102]
    with pytest.raises(DeploymentError, match=r"of 3 clients, 1 did not come within 0\.3 s: 2"):
        led(fresh, clients, patience=SHORT)
    runs = fresh.server / "runs"
    assert not list(runs.iterdir() if runs.exists() else ())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].unit != "none"])
def test_clients_take_every_broadcast_of_an_honest_server_whatever_the_algorithm(name, tmp_path):
    per_round = 3 if ALGORITHMS[name].unit == "record" else 2
    project = made(small_spec(name, 2, per_round, overrides=("data.clients=3",)), tmp_path / "p")
    clients = opened(project)
    led(project, clients)
    assert is_finished(led_run(project.server))
    for client in clients.values():
        client.close()


def test_a_client_with_another_spec_is_refused(fresh, clients):
    spec = fresh.server / "spec.yaml"
    spec.write_text(spec.read_text() + "\n# another\n")
    with pytest.raises(DeploymentError, match=r"different spec\.yaml"):
        led(fresh, clients)


def test_the_server_keeps_no_key_no_salt_of_the_clients_and_no_clean_value(finished):
    salt = finished.site(0).salt.read_bytes()
    key = finished.site(0).key.read_bytes().strip()
    noted = {path.suffix for path in (finished.server / "runs").rglob("*") if path.is_file()}
    assert noted <= {"", ".yaml", ".json", ".jsonl", ".npz", ".safetensors"}
    for path in finished.server.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert salt not in content
            assert key not in content
    evidence = led_run(finished.server).evidence
    names = {path.name.split("-")[0] for path in evidence.iterdir()}
    assert names == {"salt", "environment", "probe.npz", "received", "state"}


def may_drop_out(tmp_path, *changes, algorithm="dp-fedadamw"):
    overrides = ("data.clients=3", "federation.drop_outs=1", *changes)
    spec = small_spec(algorithm, rounds=2, clients_per_round=3, overrides=overrides)
    return made(spec, tmp_path / "project")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("dp-fedadamw", ()), ("blur", ("privacy.noise_added_by=server",))],
)
def test_a_round_goes_on_without_a_client_that_stays_charged_and_the_audit_passes(
    algorithm, changes, tmp_path, monkeypatch
):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    project = may_drop_out(tmp_path, *changes, algorithm=algorithm)
    clients, rounds = opened(project), []

    def spoil(node, reply):
        rounds.append(node)
        # In its first round, client 1 sends what cannot be used.
        return with_upload(reply, nan) if node == 101 and rounds.count(101) == 1 else reply

    led(project, clients, spoil)
    lines = [json.loads(line) for line in led_run(project.server).ledger.read_text().splitlines()]
    over = [(one["clients"], one.get("dropped", [])) for one in lines if one["kind"] == "round"]
    assert over == [([0, 2], [1]), ([0, 1, 2], [])]
    paid = [one.get("client", one.get("clients")) for one in lines if one["kind"] == "spend"]
    assert paid == ([0, 1, 2] * 2 if algorithm == "dp-fedadamw" else [[0, 1, 2]] * 2)
    collected = judged(project, tmp_path / "out")
    assert collected.missing == ()
    after_training.attest_training(collected.run, after_training.load_signers(None, None), None)
    found = after_training.audit(collected.run).to_json()
    assert found["verdict"] == "PASS"
    for one in clients.values():
        one.close()


def test_more_clients_than_may_drop_out_end_the_run(tmp_path):
    project = may_drop_out(tmp_path)
    clients = opened(project)

    def spoil(node, reply):
        return with_upload(reply, nan) if node in (101, 102) else reply

    with pytest.raises(DpfedadamwError, match=r"client 2, round 0: .* not finite"):
        led(project, clients, spoil)
    for one in clients.values():
        one.close()


@pytest.mark.parametrize(
    ("content", "over"),
    [
        (b"", False),
        (b"\n", False),
        (b'{"kind":"claim"}', False),
        (b'{"kind":"claim"}\n', True),
        (b'{"kind":"round"}\n{"kind":"claim"}\n', True),
        (b'{"kind":"claim"}\n{"kind":"round"}\n', False),
    ],
)
def test_a_run_is_finished_once_its_last_whole_line_is_a_claim(content, over, tmp_path):
    run = RunDirectory(tmp_path)
    run.ledger.write_bytes(content)
    assert is_finished(run) is over


def test_a_finished_run_is_not_led_again_and_no_client_is_asked(finished):
    link = LoopLink({})
    with pytest.raises(RunError, match="make a new project for another run"):
        open_led(finished.server, link, SHORT)
    assert link.sent == []
