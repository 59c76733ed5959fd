"""People in a federation of machines: the run, its claim and its audit are those of one process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedadamw.extensions.deployment import project as making
from dpfedadamw.extensions.deployment.client import Client
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Share
from dpfedadamw.extensions.deployment.people import PeopleFacts, Whose, counts_of
from dpfedadamw.extensions.deployment.project import Project
from dpfedadamw.filing import after_training
from tests.dpfedadamw.extensions.deployment.loops import (
    audited,
    content,
    found,
    judged,
    led,
    made,
    opened,
)
from tests.people import BY_HOSPITAL, RECORDS, people_spec, write_people
from tests.runs import train

_NAME = "Zoe-7f3a-"
_CLIENTS = "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"
_MOST = "data.most_records_per_person=3"
_ONE_ROUND = "federation.rounds=1"


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose people have names that nothing else has."""
    return write_people(tmp_path_factory.mktemp("people") / "visits.csv", _NAME)


def spec_of(table, s=3, overrides=(), **more):
    overrides = (_ONE_ROUND, *overrides)
    return people_spec(
        "dp-fedavg", BY_HOSPITAL, clients=8, s=s, table=table, overrides=overrides, **more
    )


@pytest.fixture(scope="module")
def unused_people(table):
    """A project that nobody has used; nobody may change it."""
    return made(spec_of(table), table.parent / "project")


@pytest.fixture
def project(unused_people, tmp_path):
    """A copy of it to use."""
    place = tmp_path / "project"
    shutil.copytree(unused_people.path, place)
    return Project(place, unused_people.clients)


@pytest.fixture(scope="module")
def finished_people(unused_people, table):
    """A copy whose run is led to its claim; nobody may change it."""
    place = table.parent / "finished"
    shutil.copytree(unused_people.path, place)
    return finished(Project(place, unused_people.clients))


@pytest.fixture
def afterwards(finished_people, tmp_path):
    """A copy of it to change after the training."""
    place = tmp_path / "finished"
    shutil.copytree(finished_people.path, place)
    return Project(place, finished_people.clients)


def finished(project):
    """The project, whose run is led to its claim."""
    clients = opened(project)
    led(project, clients)
    for client in clients.values():
        client.close()
    return project


def changed_share(site, change):
    """Write a client's share with other people."""
    arrays = dict(np.load(site.share))
    change(arrays)
    np.savez(site.share, **arrays)


def split_one_person(arrays):
    """Say of the first person with two training records that they are two people."""
    digests = arrays["people"]
    _, first, times = np.unique(digests, axis=0, return_index=True, return_counts=True)
    digests[first[times > 1][0]] ^= 1


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "dp-fedsam", "partition": BY_HOSPITAL, "clients": 8, "s": 3},
        pytest.param({}, marks=pytest.mark.slow),
        {"unit": RECORDS, "partition": BY_HOSPITAL, "clients": 8, "overrides": (_MOST,)},
        pytest.param({"unit": RECORDS, "overrides": (_MOST,)}, marks=pytest.mark.slow),
        pytest.param({"unit": RECORDS}, marks=pytest.mark.slow),
        pytest.param({"overrides": ("data.test_path={tested}",)}, marks=pytest.mark.slow),
        {"overrides": (_CLIENTS,)},
    ],
    ids=["people at three hospitals", "people at one client", "three records a person, by hospital",
         "three records a person", "records", "a test table of its own", "clients"],
)  # fmt: skip
def test_a_federation_has_the_model_the_claim_and_the_verdicts_of_a_run_in_one_process(
    given, table, tmp_path
):
    tested = tmp_path / "tested.csv"
    # Other visits of the same people.
    lines = table.read_text().splitlines()[:200]
    tested.write_text("\n".join([lines[0], *(line.replace(".", ".9") for line in lines[1:])]))
    changes = tuple(one.replace("{tested}", str(tested)) for one in given.get("overrides", ()))
    changes = (_ONE_ROUND, *changes)
    spec = people_spec(**{**given, "overrides": changes}, table=table)
    collected = judged(finished(made(spec, tmp_path / "project")), tmp_path / "out")
    assert collected.missing == ()
    alone, _ = train(spec, tmp_path / "inline")
    assert content(collected.run) == content(alone.run)
    verdict, checks = audited(collected.run)
    assert verdict == "PASS"
    told = {name: check["verdict"] for name, check in checks.items()}
    assert told == {name: check["verdict"] for name, check in audited(alone.run)[1].items()}


def test_nothing_anywhere_has_an_identifier_and_the_server_tells_nobody_apart(
    unused_people, finished_people, tmp_path
):
    run = judged(finished_people, tmp_path / "out").run
    after_training.attest_training(run, after_training.load_signers(None, None), None)
    files = [path for root in (finished_people.path, run.path) for path in root.rglob("*")]
    assert len(files) > 100
    assert not [path for path in files if path.is_file() and _NAME.encode() in path.read_bytes()]
    shares = [Share.read(unused_people.site(one).share) for one in range(8)]
    digests = {one.tobytes() for share in shares for one in share.whose.digests}
    known = b"".join(path.read_bytes() for path in unused_people.server.rglob("*.*"))
    assert not [one for one in digests if one in known or one.hex().encode() in known]


def test_a_client_knows_of_its_own_records_alone_whom_they_are_about(unused_people):
    shares = [Share.read(unused_people.site(one).share) for one in range(8)]
    for share in shares:
        assert np.array_equal(np.sort(share.rows), share.whose.rows)
    tested = Share.read(unused_people.server / "test.npz").whose
    rows = np.concatenate([*(share.whose.rows for share in shares), tested.rows])
    assert np.array_equal(np.sort(rows), np.arange(len(rows)))


def test_records_beyond_the_bound_stay_with_the_hospital_that_has_them(
    table, tmp_path, monkeypatch
):
    """Elsewhere they would say how many records of a person other hospitals have."""
    # What clients agree to takes longer than the division.
    monkeypatch.setattr(making, "sentences", lambda *_: [])
    lines = [line.split(",") for line in table.read_text().splitlines()]
    place = lines[0].index("hospital")
    hospital = np.array([line[place] for line in lines[1:]])
    bounded = made(spec_of(table, 1, unit=RECORDS, overrides=(_MOST,)), tmp_path / "project")
    shares = [Share.read(bounded.site(one).share) for one in range(8)]
    assert sum(len(share.whose.rows) - len(share.rows) for share in shares) > 100
    for share in shares:
        assert len(set(hospital[share.whose.rows])) == 1


@pytest.mark.parametrize("change", [split_one_person, lambda arrays: arrays.pop("people")])
def test_a_client_whose_people_are_not_those_it_was_given_does_not_start(project, change):
    changed_share(project.site(1), change)
    with pytest.raises(DeploymentError, match=r"01/share\.npz|people are named") as told:
        Client(project.site(1))
    assert _NAME not in str(told.value)


def test_one_person_under_two_digests_fails(project, tmp_path, monkeypatch):
    """A client of somebody else's making draws them twice, at twice the rate that is charged."""
    changed_share(project.site(1), split_one_person)
    monkeypatch.setattr(PeopleFacts, "check_share", lambda *_: None)
    collected = judged(finished(project), tmp_path / "out")
    (line,) = collected.missing
    assert line.startswith("client 1: its share.npz does not say whom")
    verdict, measurement = found(collected.run, "partition")
    assert verdict == "FAIL"
    assert "is not what the ledger's header committed to" in measurement


def test_a_client_that_changes_its_people_after_training_fails(afterwards, tmp_path):
    changed_share(afterwards.site(1), split_one_person)
    verdict, checks = audited(judged(afterwards, tmp_path / "out").run)
    assert (verdict, checks["partition"]["verdict"]) == ("FAIL", "FAIL")


def test_more_records_of_a_person_in_a_batch_than_the_bound_fail(project, tmp_path, monkeypatch):
    honest = Whose.of
    monkeypatch.setattr(Whose, "of", lambda self, rows, most: honest(self, rows, 2 * most))
    verdict, measurement = found(judged(finished(project), tmp_path / "out").run, "partition")
    assert verdict == "FAIL"
    assert "more records of a person are in a batch than 3" in measurement


def rewritten(project, before, after, facts):
    """Put another text into every spec.yaml, and other people's facts into federation.json."""
    for folder in (project.server, *(project.site(one).path for one in range(project.clients))):
        spec = (folder / "spec.yaml").read_text()
        assert before in spec
        (folder / "spec.yaml").write_text(spec.replace(before, after))
        known = json.loads((folder / "federation.json").read_text())
        known["people"] |= facts
        (folder / "federation.json").write_text(json.dumps(known))


def test_a_claim_on_people_at_fewer_clients_than_were_counted_is_refused(project):
    rewritten(project, "clients_per_person: 3", "clients_per_person: 1", {})
    with pytest.raises(DeploymentError, match=r"clients_per_person: is 1, but .* under 3"):
        Client(project.site(0))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        # Fewer people than there are would be drawn at a higher rate than is charged.
        ({"of_clients": [30] * 8}, "people, but federation.json says 30 for client 0"),
        ({"of_clients": [10**6] * 8}, "counts more people than records"),
        ({"of_clients": [30] * 7}, "of other clients"),
        ({"shares_sha256": []}, "of other clients"),
        ({"of_clients": None}, "privacy.unit: is person, but"),
        ({"clients_per_person": 0}, "does not describe a federation"),
    ],
)
def test_counts_that_are_not_those_of_the_division_are_refused(project, facts, said):
    rewritten(project, "clients_per_person: 3", "clients_per_person: 3", facts)
    with pytest.raises(DeploymentError, match=said):
        Client(project.site(0))


def test_people_at_more_clients_than_claimed_fail(project, tmp_path):
    """The person who divides the data can also forge the count; the shares show it."""
    facts = {"clients_per_person": 1}
    rewritten(project, "clients_per_person: 3", "clients_per_person: 1", facts)
    verdict, measurement = found(judged(finished(project), tmp_path / "out").run, "partition")
    assert verdict == "FAIL"
    assert "at more clients than the 1 that" in measurement


@pytest.mark.slow
def test_more_training_records_of_a_person_than_the_bound_are_refused_and_fail(
    table, tmp_path, monkeypatch
):
    nine = spec_of(table, 1, unit=RECORDS, overrides=("data.most_records_per_person=9",))
    project = made(nine, tmp_path / "project")
    bound = "most_records_per_person: 9", "most_records_per_person: 3"
    rewritten(project, *bound, {"most_records": 3})
    with pytest.raises(DeploymentError, match=r"training records of one person, but .* says 3"):
        opened(project)
    monkeypatch.setattr(PeopleFacts, "check_share", lambda *_: None)
    verdict, checks = audited(judged(finished(project), tmp_path / "out").run)
    assert (verdict, checks["partition"]["verdict"]) == ("FAIL", "FAIL")


def test_without_one_client_s_records_nobody_says_whom_they_are_about(afterwards, tmp_path):
    afterwards.site(1).share.unlink()
    collected = judged(afterwards, tmp_path / "out")
    assert collected.missing == ("client 1: its records were not handed in",)
    verdict, checks = audited(collected.run)
    assert (verdict, checks["partition"]["verdict"]) == ("NOT VERIFIED", "NOT VERIFIED")
    assert {check["verdict"] for check in checks.values()} <= {
        "PASS",
        "NOT VERIFIED",
        "NOT APPLICABLE",
        "NOT RUN",
    }


SALT = bytes(range(32))


def whose_of(rows, persons):
    """Records of people, each of whom has one number as the digest."""
    digests = np.repeat(np.array(persons, np.uint8)[:, None], 16, axis=1)
    return Whose(rows=np.array(rows), digests=digests)


def test_what_commits_to_people_depends_on_each_of_them_on_the_salt_and_on_no_order():
    one = whose_of([4, 1, 9], [7, 8, 7])
    same = whose_of([9, 4, 1], [7, 7, 8])
    assert one.commitment(SALT) == same.commitment(SALT)
    assert len(bytes.fromhex(one.commitment(SALT))) == 32
    others = [
        one.commitment(bytes(32)),
        whose_of([4, 1, 9], [7, 7, 7]).commitment(SALT),
        whose_of([4, 1, 8], [7, 8, 7]).commitment(SALT),
        whose_of([4, 1], [7, 8]).commitment(SALT),
    ]
    assert len({one.commitment(SALT), *others}) == 5


def test_batches_are_drawn_of_the_people_of_the_records_that_are_trained_on():
    whose = whose_of([4, 1, 9, 2, 6], [7, 8, 7, 5, 8])
    # People are numbered as they are met in the client's own order.
    found = whose.of(np.array([9, 6, 4, 1]), 2)
    assert (found.persons.tolist(), found.most) == ([0, 1, 0, 1], 2)
    assert whose.of(np.array([2]), 9).persons.tolist() == [0]


COUNTED = PeopleFacts(
    sha256="aa", shares_sha256=("b0", "b1"), of_clients=(2, 3), most_records=None,
    clients_per_person=2,
)  # fmt: skip
UNCOUNTED = replace(COUNTED, of_clients=None, most_records=3)


def promised(unit="person", at=2, person="id", **data):
    """A spec as far as people are concerned."""
    return SimpleNamespace(
        privacy=SimpleNamespace(unit=unit),
        federation=SimpleNamespace(clients_per_person=at),
        data=SimpleNamespace(person=person, **data),
    )


def test_a_plan_counts_people_where_they_are_protected_and_records_elsewhere():
    found = counts_of(promised(person=None, unit="record"), (4, 5), None)
    assert (found.units, found.most_records) == ((4, 5), None)
    found = counts_of(promised(), (2, 3), COUNTED)
    assert (found.units, found.most_records) == ((2, 3), None)
    found = counts_of(promised("record"), (4, 5), UNCOUNTED)
    assert (found.units, found.most_records) == ((4, 5), 3)


@pytest.mark.parametrize(
    ("spec", "records", "people", "told"),
    [
        (promised(person=None), (4, 5), COUNTED, "disagree on whether the data name people"),
        (promised(), (4, 5), None, "disagree on whether the data name people"),
        (promised("record"), (4, 5), COUNTED, "privacy.unit: is record"),
        (promised(), (4, 5), UNCOUNTED, "privacy.unit: is person"),
        (promised(), (4, 5, 6), COUNTED, "are of other clients"),
        (promised("record"), (4, 5, 6), UNCOUNTED, "are of other clients"),
        (promised(), (4, 5), replace(COUNTED, of_clients=(2,)), "are of other clients"),
        (promised(), (4, 5), replace(COUNTED, shares_sha256=("b0",)), "are of other clients"),
        (promised(), (2, 2), COUNTED, "more people than records"),
        (promised(), (1, 3), COUNTED, "more people than records"),
        (promised(at=1), (4, 5), COUNTED, "clients_per_person: is 1, but .* under 2"),
        (
            promised("record", most_records_per_person=2),
            (4, 5),
            UNCOUNTED,
            "most_records_per_person: is 2, but .* under 3",
        ),
    ],
)
def test_what_is_promised_of_people_is_no_more_than_was_counted(spec, records, people, told):
    with pytest.raises(DeploymentError, match=told):
        counts_of(spec, records, people)


def test_what_is_promised_may_be_less_or_not_be_said():
    counts_of(promised(at=3), (4, 5), COUNTED)
    counts_of(promised(at=None), (4, 5), COUNTED)
    counts_of(promised("record", most_records_per_person=3), (4, 5), UNCOUNTED)
    counts_of(promised("record", most_records_per_person=None), (4, 5), UNCOUNTED)
    # Nobody counted them.
    uncounted = replace(UNCOUNTED, most_records=None)
    counts_of(promised("record", most_records_per_person=1), (4, 5), uncounted)


def test_a_clients_people_are_those_that_were_counted():
    one, other = whose_of([4, 1, 9], [7, 8, 7]), whose_of([2], [5])
    digests = (other.commitment(SALT), one.commitment(SALT))
    facts = replace(COUNTED, shares_sha256=digests, of_clients=(1, 2), most_records=2)
    rows = np.array([4, 1, 9])
    facts.check_share(one, rows, 1, SALT)
    facts.check_share(one, np.array([9, 1]), 1, SALT)
    replace(facts, of_clients=None, most_records=None).check_share(one, rows[:1], 1, SALT)
    for client, salt in ((0, SALT), (2, SALT), (-1, SALT), (1, bytes(32))):
        with pytest.raises(DeploymentError, match="is not what the federation was made with"):
            facts.check_share(one, rows, client, salt)
    with pytest.raises(DeploymentError, match=r"has 1 people, but federation.json says 2 for"):
        facts.check_share(one, np.array([9, 4]), 1, SALT)
    with pytest.raises(DeploymentError, match=r"has 2 training records of one person, but .* 1 at"):
        replace(facts, most_records=1).check_share(one, rows, 1, SALT)
