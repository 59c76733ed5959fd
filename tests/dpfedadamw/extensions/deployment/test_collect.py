"""From folders that clients hand in to one run directory, which the auditor judges."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from audit.checks.shared import sites
from dpfedadamw.evidence.states import state_file
from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.deployment.collect import _digests, _noted_digests, collect
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.leading import led_run
from dpfedadamw.extensions.deployment.people import Whose
from dpfedadamw.extensions.deployment.refusals import Refusals
from dpfedadamw.extensions.deployment.server_rounds import Received
from dpfedadamw.extensions.deployment.site import Site
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.run import training as engine_run
from dpfedadamw.vectors.flat import FlatParameters
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.loops import (
    audited,
    content,
    found,
    judged,
    led,
    made,
    opened,
)
from tests.runs import begin, small_spec


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))


def test_a_federation_has_the_model_and_the_charges_of_a_run_in_one_process_and_passes(
    finished, tmp_path
):
    collected = judged(finished, tmp_path / "out")
    assert collected.missing == ()
    training = begin(SPEC, tmp_path / "inline")
    with training.lock:
        engine_run.train(training)
    assert content(collected.run) == content(training.run)
    verdict, checks = audited(collected.run)
    assert (verdict, checks["integrity"]["verdict"]) == ("PASS", "PASS")


def test_an_auditor_without_cryptography_says_that_signatures_were_not_checked(
    finished, tmp_path, monkeypatch
):
    run = judged(finished, tmp_path / "out").run
    monkeypatch.setattr(sites, "find_spec", lambda name: None)
    verdict, checks = audited(run)
    assert (verdict, checks["integrity"]["verdict"]) == ("NOT VERIFIED", "NOT VERIFIED")
    assert "the auditor needs the package cryptography" in checks["integrity"]["measurement"]


def test_what_clients_keep_from_round_to_round_stays_with_them_and_changes_nothing(tmp_path):
    spec = small_spec("dp-scaffold", 3, 2, overrides=("data.clients=3",))
    project = made(spec, tmp_path / "project")
    clients = opened(project)
    led(project, clients)
    run = judged(project, tmp_path / "out").run
    training = begin(spec, tmp_path / "inline")
    with training.lock:
        engine_run.train(training)
    assert content(run)[0] == content(training.run)[0]
    # The server keeps in their place which participation a client goes on from.
    states = sorted(led_run(project.server).evidence.glob("state-*.safetensors"))
    kept = {name: one for name, one in load_file(states[-1]).items() if name.startswith("client.")}
    assert kept
    assert {tuple(one.shape) for one in kept.values()} == {(2,)}
    for client in clients.values():
        client.close()


def test_records_that_are_not_handed_in_are_named_and_noise_is_judged_without_them(
    copied, tmp_path
):
    copied.site(1).share.unlink()
    collected = judged(copied, tmp_path / "out")
    assert collected.missing == ("client 1: its records were not handed in",)
    verdict, checks = audited(collected.run)
    assert verdict == "NOT VERIFIED"
    assert checks["noise-scale"]["verdict"] == "PASS"
    assert checks["partition"]["verdict"] == "NOT VERIFIED"


def test_a_client_whose_noise_was_half_of_what_it_charged_is_caught(copied, tmp_path):
    site = copied.site(1)
    for index in (0, 1):
        path = site.noted(index, 1)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        arrays["noise_sample"] = arrays["noise_sample"] / 2
        arrays["noise_sum_squares"] = arrays["noise_sum_squares"] / 4
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        np.savez(path, **arrays)
        rewrite(site.ledger, before, hashlib.sha256(path.read_bytes()).hexdigest())
    verdict, measurement = found(judged(copied, tmp_path / "out").run, "noise-scale")
    assert verdict == "FAIL"
    assert "client 1" in measurement


def spoilt(site, index, change):
    """Change what a client noted of a round, and its ledger so that it names the change."""
    path = site.noted(index, 1)
    with np.load(path) as file:
        arrays = change({name: file[name] for name in file.files})
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    np.savez(path, **arrays)
    rewrite(site.ledger, before, hashlib.sha256(path.read_bytes()).hexdigest())


def without(name):
    return lambda arrays: {one: value for one, value in arrays.items() if one != name}


def with_array(name, change):
    return lambda arrays: {**arrays, name: change(arrays[name])}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without("shared.squares"), "shared.squares: is missing"),
        (with_array("shared.squares", lambda one: one[:-1]), "shared.squares: has the shape"),
        (with_array("shared.squares", lambda one: one * np.nan), "not finite"),
        (with_array("shared.squares", lambda one: one.astype(">f4")), "has the type"),
        (with_array("shared.squares", lambda one: one.astype(str)), "has the type"),
        (with_array("memory", lambda one: np.frombuffer(packed_list(), np.uint8)), "no tensors"),
        (with_array("noise_sample", lambda one: one[:, :-1]), "noise_sample: has the shape"),
        (with_array("noise_sample", lambda one: one[:-1]), "noise_sample: has the shape"),
        (with_array("counts", lambda one: one + 1), "counts: says other steps"),
        (with_array("raw_norms", lambda one: one[:-1]), "raw_norms: has the shape"),
        (with_array("participation", lambda one: one[:-1]), "participation: has the shape"),
        (with_array("moment.numbers", lambda one: one * 1e300), "is too large"),
        (without("moment.floored"), "moment.floored: is missing"),
        (without("seen_rows"), "seen_rows: is missing"),
    ],
)
def test_what_no_client_notes_is_told_in_one_line_that_names_the_client(
    copied, tmp_path, change, told
):
    spoilt(copied.site(1), 1, change)
    (line,) = judged(copied, tmp_path / "out").missing
    assert line.startswith("round 1 and all after it: what client 1 noted is not whole: ")
    assert told in line


def packed_list():
    """Bytes that are laid out as serialised tensors are, around a list."""
    return (2).to_bytes(8, "little") + b"[]"


def test_evidence_that_a_line_outside_the_chain_names_is_not_taken(copied, tmp_path):
    site = copied.site(0)
    path = site.noted(1, 1)
    path.write_bytes(site.noted(0, 1).read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    line = {"kind": "upload", "round": 1, "attempt": 1, "evidence_sha256": digest}
    with site.ledger.open("a") as file:
        file.write(json.dumps(line) + "\n")
    (told,) = judged(copied, tmp_path / "out").missing
    assert told.startswith("round 1 and all after it: what client 0 noted is not what its ledger")


def rewrite(ledger, before, after):
    """Put one text in another's place, and chain the ledger anew."""
    lines = [json.loads(line) for line in ledger.read_text().replace(before, after).splitlines()]
    ledger.unlink()
    again = Ledger(ledger)
    for line in lines:
        again.append(
            line["kind"], {k: v for k, v in line.items() if k not in ("digest", "previous")}
        )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            '"kind":"spend","noise_multiplier":2.0',
            '"kind":"spend","noise_multiplier":1.0',
            "charges a different noise",
        ),
        ('"most_charges":4', '"most_charges":40', "line 1 is not signed by the key of client 1"),
        ('"kind":"upload"', '"kind":"spend"', "says that it sent nothing"),
        ('"signature":"', '"signature":"00', "signature"),
        ('"repetition":1,"round":1', '"repetition":1,"round":7', "has no charge for it"),
    ],
)
def test_a_clients_ledger_that_says_something_else_fails(copied, tmp_path, before, after, told):
    collected = judged(copied, tmp_path / "out")
    ledger = collected.run.evidence / "client-00001.jsonl"
    rewrite(ledger, before, after)
    verdict, measurement = found(collected.run, "integrity")
    assert verdict == "FAIL"
    assert told in measurement


def test_a_server_that_asks_for_more_than_its_ledger_says_is_found_out(tmp_path):
    """Each further upload costs privacy; a claim that counts rounds alone would leave it out."""
    project = made(SPEC, tmp_path / "project")
    clients = opened(project)
    link = led(project, clients)
    client = clients[101]
    (values, *_) = (dict(one) for node, one in link.sent if node == 101 and "hello" not in one)
    run, remembered = values.pop("run"), values.pop("remembered")
    experiment = prepare(SPEC, torch.device("cpu"))
    state = experiment.algorithm.server.start(FlatParameters(experiment.model).vector)
    message = pack(state.parameters, state.state)
    client.take_part(run, Asked(**{**values, "attempt": 2}), message, remembered)
    for one in clients.values():
        one.close()
    verdict, measurement = found(judged(project, tmp_path / "out").run, "integrity")
    assert verdict == "FAIL"
    told = "client 1: it was charged for round 0, attempt 2, but the run's ledger does not say so"
    assert told in measurement


def test_a_client_that_was_cut_off_is_claimed_at_what_the_server_asked_for(tmp_path, monkeypatch):
    """Each attempt that the server charged is in the claim; what never left a client is not."""
    project = made(SPEC, tmp_path / "project")
    clients, answers = opened(project), Station.answer

    def cut_off(self, *arguments):
        monkeypatch.setattr(Station, "answer", answers)
        raise KeyboardInterrupt

    monkeypatch.setattr(Station, "answer", cut_off)
    with pytest.raises(KeyboardInterrupt):
        led(project, clients)
    led(project, clients)
    for one in clients.values():
        one.close()
    run = judged(project, tmp_path / "out").run
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    assert audited(run)[0] == "PASS"
    paid = [line["client"] for line in lines if line["kind"] == "spend"]
    (claim,) = (line for line in lines if line["kind"] == "claim")
    for one in claim["server"]["clients"]:
        assert one["participations"] == paid.count(one["client"]) == 3


def test_a_round_that_is_run_again_since_its_state_was_lost_passes_as_it_ended_last(
    tmp_path, monkeypatch
):
    """Noise is drawn afresh, for other clients mostly; the next round was begun in between."""
    spec = small_spec("dp-fedavg", rounds=3, clients_per_round=2, mode="release")
    project, answer = made(spec, tmp_path / "project"), Station.answer
    clients = opened(project)

    def cut_off(self, asked, *arguments):
        if asked.round == 2:
            raise KeyboardInterrupt
        return answer(self, asked, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Station, "answer", cut_off)
        with pytest.raises(KeyboardInterrupt):
            led(project, clients)
    run = led_run(project.server)
    for state in (run.checkpoint / "state-00002.safetensors", run.evidence / state_file(1)):
        state.unlink(missing_ok=True)
    led(project, clients)
    for one in clients.values():
        one.close()
    assert [one["round"] for one in Ledger(run.ledger).of_kind("round")] == [0, 1, 1, 2]
    collected = judged(project, tmp_path / "out")
    assert collected.missing == ()
    _, checks = audited(collected.run)
    assert checks["integrity"]["verdict"] == "PASS"
    assert checks["noise-scale"]["verdict"] != "NOT VERIFIED"


def test_what_clients_refused_is_told(copied, tmp_path):
    refusals = Refusals(copied.site(1).refusals)
    for _ in range(3):
        refusals.note("noise", "")
    refusals.write(now=True)
    collected = judged(copied, tmp_path / "out")
    (line,) = collected.refused
    assert line.startswith("client 1 refused 3 messages: the spec says other noise")


def test_a_run_that_declares_no_drop_outs_may_have_none(copied, tmp_path):
    collected = judged(copied, tmp_path / "out")
    lines = [json.loads(line) for line in collected.run.ledger.read_text().splitlines()]
    (first, *_) = (line for line in lines if line["kind"] == "round")
    names = ("clients", "steps", "queries")
    left = {name: first[name][:2] for name in names} | {"dropped": first["clients"][2:]}
    chain = ("digest", "previous", "kind")
    collected.run.ledger.unlink()
    again = Ledger(collected.run.ledger)
    for line in lines:
        changed = {**line, **left} if line is first else line
        again.append(line["kind"], {k: v for k, v in changed.items() if k not in chain})
    verdict, measurement = found(collected.run, "integrity")
    assert verdict == "FAIL"
    assert "the run declares at most 0" in measurement


def test_evidence_that_was_changed_after_it_was_named_is_not_taken(copied, tmp_path):
    path = copied.site(0).noted(1, 1)
    path.write_bytes(copied.site(0).noted(0, 1).read_bytes() + b"x")
    collected = judged(copied, tmp_path / "out")
    assert "round 1 and all after it" in collected.missing[0]


def test_folders_of_another_federation_are_refused(finished, unused, tmp_path):
    with pytest.raises(DeploymentError, match="belongs to another federation"):
        judged(finished, tmp_path / "out", [unused.site(0).path])
    with pytest.raises(DeploymentError, match="handed in twice"):
        judged(finished, tmp_path / "out", [finished.site(0).path] * 2)


def without_the_end(project):
    ledger = led_run(project.server).ledger
    *lines, claim = ledger.read_text().splitlines(keepends=True)
    assert '"claim"' in claim
    ledger.write_text("".join(lines))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda one: one.site(0).salt.write_bytes(bytes(32)), "salt is not the one"),
        (lambda one: (led_run(one.server).path / "model.json").unlink(), "json: is missing"),
        (without_the_end, "is not finished"),
    ],
)
def test_what_is_not_of_the_run_is_refused_and_nothing_is_written(copied, tmp_path, spoil, told):
    spoil(copied)
    with pytest.raises(DeploymentError, match=told):
        judged(copied, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))
    assert not list(tmp_path.glob("out/.*"))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda one: one.site(1).ledger.unlink(), "client 1: its ledger was not handed in"),
        (lambda one: one.site(1).noted(0, 1).unlink(), "round 0 and all after it: "),
        (lambda one: received(one).upload(1, 2).unlink(), "round 1 and all after it: "),
        (lambda one: received(one).broadcast(1).write_bytes(b"x"), "round 0 and all after it: "),
    ],
)
def test_what_is_missing_or_damaged_is_named_and_the_rest_is_collected(
    copied, tmp_path, spoil, told
):
    spoil(copied)
    missing = judged(copied, tmp_path / "out").missing
    assert missing[0].startswith(told)
    assert [one for one in missing if one.startswith("round")][1:] == []


def received(project):
    return Received.of(led_run(project.server).evidence)


@pytest.mark.parametrize("name", ["training.attestation.json", "attestation.json"])
def test_a_collection_without_both_signatures_cannot_be_replaced(finished, tmp_path, name):
    first = judged(finished, tmp_path / "first").run
    for one in {"training.attestation.json", "attestation.json"} - {name}:
        (first.path / one).write_text("{}")
    run, sites = led_run(finished.server), [finished.site(one).path for one in range(3)]
    with pytest.raises(DeploymentError, match=f"{name}: is missing; nothing was signed there"):
        collect(run, finished.server, sites, tmp_path / "second", first.path)
    (first.path / name).write_text("{}")
    second = collect(run, finished.server, sites, tmp_path / "second", first.path).run
    assert (second.path / name).read_text() == "{}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "spoil", "told"),
    [
        ("places", lambda one: one + 10**6, "not the ones that were divided"),
        ("places", np.zeros_like, "not the ones that were divided"),
        ("places", lambda one: one.astype(np.float64), "holds no records"),
        ("rows", lambda one: one - 10**6, "client 0's records have row numbers"),
        ("labels", lambda one: one + 10, "client 0's records have labels"),
        ("labels", lambda one: one.reshape(-1, 1), "holds no records"),
        ("values", lambda one: one[..., :3], "client 0's records are"),
    ],
)
def test_records_that_are_none_of_the_federation_are_refused(copied, tmp_path, name, spoil, told):
    path = copied.site(0).share
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, name: spoil(arrays[name])})
    with pytest.raises(DeploymentError, match=told):
        judged(copied, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_a_ledger_names_evidence_as_far_as_its_chain_holds_and_once_for_each_attempt(tmp_path):
    site = Site(tmp_path)
    assert _noted_digests(site) == {}
    ledger = Ledger(site.ledger)

    def upload(index, attempt, digest):
        entry = {"round": index, "attempt": attempt, "evidence_sha256": digest}
        ledger.append("upload", entry)

    upload(0, 1, "aa")
    ledger.append("spend", {"round": 7, "attempt": 1, "evidence_sha256": "bb"})
    upload(0, 2, "cc")
    upload(0, 1, "dd")
    upload(3, 1, "ee")
    whole = {(0, 1): "aa", (0, 2): "cc", (3, 1): "ee"}
    assert _noted_digests(site) == whole
    lines = site.ledger.read_bytes().splitlines(keepends=True)
    for spoilt in (
        lines[4].replace(b'"ee"', b'"ff"'),
        lines[4].replace(b'"round":3', b'"round":"x"'),
        b"[]\n",
        b"no json\n",
        lines[2],
    ):
        site.ledger.write_bytes(b"".join([*lines[:4], spoilt, lines[4]]))
        assert _noted_digests(site) == {(0, 1): "aa", (0, 2): "cc"}
    # Nor does one that leaves out the first line.
    site.ledger.write_bytes(b"".join(lines[1:]))
    assert _noted_digests(site) == {}


def test_whom_a_record_is_about_is_what_anyone_says_of_it_within_the_records_there_are():
    def said(rows, *persons):
        digests = np.repeat(np.array(persons, np.uint8)[:, None], 16, axis=1)
        return Whose(rows=np.array(rows), digests=digests)

    found = _digests([said([3, 0], 7, 8), None, said([1, 4, 9], 9, 5, 6)], 4)
    assert (found.shape, found.dtype) == ((4, 16), np.uint8)
    assert [set(row) for row in found.tolist()] == [{8}, {9}, {0}, {7}]
