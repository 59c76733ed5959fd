"""What a client agreed to at its first start holds after every other one."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment import pins
from dpfedadamw.extensions.deployment.client import Client
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Share
from dpfedadamw.extensions.deployment.identity import PIN, UPLOAD, make_key, read_key, sign
from dpfedadamw.extensions.deployment.site import Site, reserve
from dpfedadamw.privacy.ledger import Ledger
from tests.dpfedadamw.extensions.deployment.test_client import asked, broadcast, kinds
from tests.runs import call


def start(site, **options):
    """Start a client and end it; what its owner was told."""
    client = Client(site, **options)
    client.close()
    return client


def pinned(site):
    lines = [json.loads(line) for line in site.ledger.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "pin"]


@pytest.fixture
def site(fresh):
    """A client's folder that was started once."""
    start(fresh.site(0))
    return fresh.site(0)


def change_spec(site, before, after):
    text = site.spec.read_text()
    assert before in text
    site.spec.write_text(text.replace(before, after))


def change_settings(site, **changes):
    path = site.path / "site.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def other_records(site):
    share = Share.read(site.share)
    values = np.array(share.values)
    values[0] = 255 - values[0]
    Share(places=share.places, rows=share.rows, values=values, labels=share.labels).write(
        site.share
    )


def another_federation(site):
    facts = json.loads(site.facts.read_bytes())
    facts["records"][2] += 1
    site.facts.write_text(json.dumps(facts))


def test_the_first_start_pins_and_others_add_nothing(fresh):
    site = fresh.site(0)
    start(site)
    content = site.ledger.read_bytes()
    (pin,) = pinned(site)
    assert (pin["noise_multiplier"], pin["rounds"], pin["most_charges"]) == (2.0, 2, 2 + reserve(2))
    start(site)
    assert site.ledger.read_bytes() == content


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda site: change_spec(site, "noise_multiplier: 2.0", "noise_multiplier: 0.02"),
            r"spec.yaml \(noise multiplier was 2.0, is 0.02\)",
        ),
        (
            lambda site: change_spec(site, "clipping_norm: 1.0", "clipping_norm: 100.0"),
            r"spec.yaml \(clipping norm was 1.0, is 100.0\)",
        ),
        (lambda site: change_spec(site, "rounds: 2", "rounds: 900"), "rounds was 2, is 900"),
        (lambda site: change_spec(site, "expected_batch_size: 24", "expected_batch_size: 9"),
         "spec.yaml"),
        (lambda site: change_settings(site, most_charges=10**9), "first start pinned 4"),
        (lambda site: change_settings(site, most_charges=5), "first start pinned 4"),
        (lambda site: change_settings(site, client=1), "is not the key"),
        (lambda site: change_settings(site, most_charges="4"), "is not a client's folder"),
        (lambda site: change_settings(site, most_charges=True), "is not a client's folder"),
        (other_records, "share.npz"),
        (another_federation, "federation.json"),
        (lambda site: make_key(site.key), "is not the key that federation.json names"),
    ],
)  # fmt: skip
def test_a_folder_that_changed_since_its_first_start_is_refused_in_one_line(
    site, change, told, capsys
):
    ledger = site.ledger.read_bytes()
    change(site)
    with pytest.raises(DeploymentError, match=told):
        Client(site)
    assert site.ledger.read_bytes() == ledger
    assert call("flower", "client", str(site.path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


FILES = {
    "spec_sha256": "spec.yaml",
    "facts_sha256": "federation.json",
    "share_seal": "share.npz",
    "salt_sha256": "salt",
    "key": "key",
}


def test_each_pinned_file_is_the_one_whose_content_is_pinned(fresh):
    site, key = fresh.site(0), read_key(fresh.site(0).key)
    before = pins.of_files(site, 0, key)
    assert before.keys() == {"client", *FILES}
    for name, file in FILES.items():
        if name != "key":
            path = site.path / file
            kept = path.read_bytes()
            path.write_bytes(kept + b"\n")
            now = pins.of_files(site, 0, key)
            path.write_bytes(kept)
            assert [one for one in before if now[one] != before[one]] == [name]
    make_key(site.key)
    now = pins.of_files(site, 0, read_key(site.key))
    # Records are sealed by it.
    assert [one for one in before if now[one] != before[one]] == ["key", "share_seal"]


@pytest.mark.parametrize("names", [*([name] for name in FILES), [*FILES]], ids=len)
def test_a_changed_file_is_told_by_its_name_and_a_changed_number_with_both_values(names, unused):
    pinned = {**dict.fromkeys(FILES, "a"), "local_steps": 3}
    now = {**pinned, **dict.fromkeys(names, "b")}
    files = ", ".join(FILES[name] for name in names)
    assert changed(unused.site(0), pinned, now) == files
    now["local_steps"] = 5
    assert changed(unused.site(0), pinned, now) == f"{files}, local steps (was 3, is 5)"


def changed(site, pinned, now):
    """What a refusal names, between its first words and its advice."""
    with pytest.raises(DeploymentError) as told:
        pins.check(site, pinned, now)
    return str(told.value).partition("first start: ")[2].partition("; restore")[0]


def test_a_weaker_spec_is_refused_after_participations_too(fresh):
    client = Client(fresh.site(0))
    client.take_part("run", asked(), broadcast(client), "")
    client.close()
    change_spec(fresh.site(0), "noise_multiplier: 2.0", "noise_multiplier: 0.02")
    with pytest.raises(DeploymentError, match="changed since this client's first start"):
        Client(fresh.site(0))


def test_a_pin_that_somebody_else_wrote_is_refused(site):
    lines = [json.loads(line) for line in site.ledger.read_text().splitlines()]
    site.ledger.unlink()
    again = Ledger(site.ledger)
    for line in lines:
        again.append(line["kind"], {**line, "most_charges": 10**9})
    change_settings(site, most_charges=10**9)
    with pytest.raises(DeploymentError, match="not signed by its key"):
        Client(site)


def test_a_ledger_that_lost_its_charges_is_refused(fresh):
    client = Client(fresh.site(0))
    client.take_part("run", asked(), broadcast(client), "")
    client.close()
    site = fresh.site(0)
    (first, *_) = site.ledger.read_bytes().splitlines(keepends=True)
    for content in (first, b""):
        site.ledger.write_bytes(content)
        with pytest.raises(DeploymentError, match=r"does not charge round 0, attempt 1"):
            Client(site)
    site.ledger.unlink()
    with pytest.raises(DeploymentError, match=r"does not charge round 0, attempt 1"):
        Client(site)


def test_a_restored_ledger_is_refused_however_high_the_attempt_that_it_lost(fresh):
    """Of a process that took attempts of more than nine digits."""
    site = fresh.site(0)
    Client(site).close()
    site.evidence.mkdir(exist_ok=True)
    (site.evidence / "participation-00000-2147483647.npz").write_bytes(b"")
    with pytest.raises(DeploymentError, match=r"does not charge round 0, attempt 2147483647"):
        Client(site)


def test_the_owner_alone_allows_more_and_by_name(site):
    client = start(site, most_charges=7)
    assert client.most_charges == 7
    assert "its owner now allows 7 participations; before it was 4" in client.notes
    assert [one["most_charges"] for one in pinned(site)] == [4, 7]
    # It stays so.
    assert start(site).most_charges == 7
    assert start(site, most_charges=7).most_charges == 7
    assert len(pinned(site)) == 2
    # Fewer can be said in the file too: that spends nothing.
    change_settings(site, most_charges=3)
    assert start(site).most_charges == 3


def test_a_folder_from_before_there_were_pins_is_pinned_if_its_charges_fit(fresh):
    site = fresh.site(0)
    client = Client(site)
    client.take_part("run", asked(), broadcast(client), "")
    client.close()
    without_pin(site)
    kept = site.path.parent / "kept"
    shutil.copytree(site.path, kept)
    client = Client(site)
    assert kinds(client) == ["spend", "upload", "pin"]
    assert "was used before anything was pinned. Its 1 charges fit spec.yaml" in client.notes[0]
    client.close()
    shutil.rmtree(site.path)
    kept.rename(site.path)
    change_spec(site, "noise_multiplier: 2.0", "noise_multiplier: 0.02")
    with pytest.raises(DeploymentError, match="charged round 0 at a noise multiplier of 2,"):
        Client(site)


def without_pin(site):
    lines = [json.loads(line) for line in site.ledger.read_text().splitlines()]
    site.ledger.unlink()
    again = Ledger(site.ledger)
    for line in lines:
        if line["kind"] != "pin":
            again.append(line["kind"], line)


def test_a_first_start_that_no_epsilon_bounds_is_refused_and_pins_nothing(fresh):
    site = fresh.site(0)
    change_settings(site, most_charges=10**9)
    with pytest.raises(DpfedadamwError, match="1000000000 participations: "):
        Client(site)
    assert not site.ledger.exists()


def plan_of(unit="record", **changes):
    """A plan of three rounds, whose client 1 pays at a rate of its own."""
    plain = SimpleNamespace(
        unit=SimpleNamespace(name=unit, of_people=unit == "person"),
        adjacency="add-remove",
        delta=1e-5,
        noise_multiplier=2.0,
        noise_added_by="clients",
        clipping_norm=1.5,
        rounds=3,
        local_steps=4,
        queries_per_step=2,
        records=(10, 20),
        sampling=SimpleNamespace(event_kind="poisson"),
        sampling_rate=lambda client: (0.5, 0.25)[client],
        divisor=lambda client: (5.0, 6.0)[client],
        clients_per_round=1,
        client_sampling="fixed-size",
        participation=0.75,
        records_per_person=3,
        clients_per_person=7,
        adaptation=None,
        spending_bound=SimpleNamespace(
            noise_multiplier_of=lambda index: 2.0 * 0.5**index, most_local_steps=5
        ),
    )
    return SimpleNamespace(**{**vars(plain), **changes})


def test_every_number_that_a_promise_rests_on_is_pinned():
    pinned = {
        "unit": "record", "adjacency": "add-remove", "delta": 1e-5, "noise_multiplier": 2.0,
        "noise_added_by": "clients", "clipping_norm": 1.5, "rounds": 3, "local_steps": 4,
        "queries_per_step": 2, "records": 20, "sampling": "poisson", "sampling_rate": 0.25,
        "expected_batch_size": 6.0, "clients": 2, "clients_per_round": 1,
        "client_sampling": "fixed-size",
    }  # fmt: skip
    assert pins.of_plan(plan_of(), 1) == pinned
    assert pins.of_plan(plan_of("person"), 1) == {
        **pinned, "unit": "person", "records_per_person": 3, "clients_per_person": 7,
    }  # fmt: skip


def spend(**changes):
    plain = {
        "round": 1, "noise_multiplier": 2.0, "clipping_norm": 1.5, "sampling_rate": 0.25,
        "steps": 4, "client": 1,
    }  # fmt: skip
    return {name: one for name, one in {**plain, **changes}.items() if one is not None}


OF_CLIENTS = {"sampling_rate": 0.75, "steps": None, "client": None}
FALLS = {"adaptation": "falling noise"}


@pytest.mark.parametrize(
    ("plan", "good", "bad"),
    [
        ({}, {}, {"noise_multiplier": 1.9}),
        ({}, {"round": 0}, {"round": -1}),
        ({}, {"round": 2}, {"round": 3}),
        ({}, {"steps": 1}, {"steps": 0}),
        ({}, {"steps": 5}, {"steps": 6}),
        ({}, {}, {"noise_multiplier": 2.1}),
        ({}, {}, {"clipping_norm": 1.6}),
        ({}, {}, {"sampling_rate": 0.5}),
        ({}, {}, {"client": 0}),
        # Where noise falls, a round's least is what it may not go below.
        (FALLS, {"noise_multiplier": 1.0}, {"noise_multiplier": 0.999}),
        (FALLS, {"noise_multiplier": 1.0 - 1e-13}, {"round": 0, "noise_multiplier": 1.0}),
        (FALLS, {"noise_multiplier": 9.0}, {"clipping_norm": 9.0}),
        ({"unit": "client"}, OF_CLIENTS, {**OF_CLIENTS, "sampling_rate": 0.25}),
        ({"unit": "client"}, {**OF_CLIENTS, "round": 2}, {**OF_CLIENTS, "round": 3}),
        ({"unit": "client"}, OF_CLIENTS, {**OF_CLIENTS, "noise_multiplier": 3.0}),
    ],
)
def test_a_folder_that_was_used_before_is_pinned_if_all_its_charges_fit(plan, good, bad):
    site, plan = SimpleNamespace(ledger="ledger.jsonl"), plan_of(**plan)
    pins.check_spends(site, plan, 1, [])
    pins.check_spends(site, plan, 1, [spend(**good)] * 2)
    with pytest.raises(DeploymentError, match=f"charged round {bad.get('round', 1)} at a noise"):
        pins.check_spends(site, plan, 1, [spend(**good), spend(**bad)])


def test_the_last_pin_that_the_clients_key_signed_holds(tmp_path):
    site = Site(tmp_path)
    for name in ("key", "other"):
        make_key(tmp_path / name)
    key, other = read_key(site.key), read_key(tmp_path / "other")

    def pin(key=key, domain=PIN, **fields):
        signature = sign(key, domain, fields).hex()
        chain = {"kind": "pin", "previous": "00", "digest": "11"}
        return {**fields, **chain, "signature": signature}

    spent = {"kind": "spend", "most_charges": 9}
    assert pins.last([], key, site) is None
    assert pins.last([spent], key, site) is None
    four, seven = pin(most_charges=4, rounds=2), pin(most_charges=7, rounds=2)
    assert pins.last([four, spent], key, site) == {"most_charges": 4, "rounds": 2}
    assert pins.last([four, spent, seven, spent], key, site) == {"most_charges": 7, "rounds": 2}
    assert pins.signed(key, {"most_charges": 4, "rounds": 2}) == {
        "most_charges": 4, "rounds": 2, "signature": four["signature"],
    }  # fmt: skip
    for refused in (
        pin(other, most_charges=7),
        pin(domain=UPLOAD, most_charges=7),
        pin(most_charges=True),
        pin(most_charges=7.0),
        pin(rounds=2),
        {**four, "rounds": 3},
        {**four, "signature": "zz"},
        {**four, "signature": 5},
        {name: one for name, one in four.items() if name != "signature"},
    ):
        with pytest.raises(DeploymentError, match="are not signed by its key"):
            pins.last([refused, seven], key, site)


def test_evidence_of_what_was_not_paid_for_is_named_by_round_and_attempt(tmp_path):
    site = Site(tmp_path)
    pins.check_evidence(site, [])
    site.evidence.mkdir()
    names = ["participation-00007-2.npz", "upload-00007-2.safetensors", "upload-7.safetensors",
             "participation-00001-1.npz.part", "notes"]  # fmt: skip
    for name in names:
        (site.evidence / name).touch()
    paid = [{"round": 7, "attempt": 2}, {"round": 7, "attempt": 3}]
    pins.check_evidence(site, paid)
    for spends in ([], [{"round": 7, "attempt": 1}], [{"round": 2, "attempt": 7}]):
        with pytest.raises(DeploymentError, match="does not charge round 7, attempt 2, for which"):
            pins.check_evidence(site, spends)
    (site.evidence / "upload-00008-1.safetensors").touch()
    with pytest.raises(DeploymentError, match="does not charge round 8, attempt 1, for which"):
        pins.check_evidence(site, paid)
