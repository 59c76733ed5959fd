"""What a client agreed to at its first start holds after every other one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment import pins
from dpfedadamw.extensions.deployment.client import Client
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Share
from dpfedadamw.extensions.deployment.identity import make_key, read_key
from dpfedadamw.extensions.deployment.site import reserve
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
