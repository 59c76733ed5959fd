"""How long the server waits, whom it asks when, and which answers it takes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment import server
from dpfedadamw.extensions.deployment.client import statement
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts
from dpfedadamw.extensions.deployment.identity import (
    INTRODUCTION,
    PIN,
    UPLOAD,
    make_key,
    read_key,
    sign,
)
from dpfedadamw.extensions.deployment.server import Patience, RemoteClients, meet
from dpfedadamw.federation.arrivals import ArrivalError, Likeness
from dpfedadamw.federation.links import Reply
from dpfedadamw.federation.participation import Participation
from dpfedadamw.vectors.packing import packed

SPEC = "5e" * 32
MESSAGE = b"the broadcast"
HISTORY = bytes(range(32))
SENT = packed({"parameters": torch.ones(4)})
COMMITMENT = bytes(range(1, 33))


class Clock:
    """Seconds that pass only where somebody rests."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def rest(self, seconds):
        self.now += seconds

    @property
    def passed(self):
        return round(self.now - 1000.0, 3)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The clients' keys, of which the third is nobody's."""
    folder = tmp_path_factory.mktemp("keys")
    made = [make_key(folder / str(one)) for one in range(3)]
    return SimpleNamespace(
        public=tuple(made[:2]), private=[read_key(folder / str(one)) for one in range(3)]
    )


def facts_of(keys):
    return Facts(
        records=(1, 1), stored=(2, 4), kind="uint8", classes=2, data_sha256="", salt_sha256="",
        keys=keys.public,
    )  # fmt: skip


class Nodes:
    """Carries messages to nodes, each of which is a function of what it is sent and how often."""

    def __init__(self, clock, nodes):
        self.clock, self.behind = clock, nodes
        self.asked, self.waiting, self.values = {node: [] for node in nodes}, {}, {}
        self.most = set()

    def nodes(self):
        return sorted(self.behind)

    def send(self, node, values, message):
        self.asked[node].append(self.clock.passed)
        self.values[node] = values, message
        found = self.behind[node](values, len(self.asked[node]))
        if found == "not taken":
            return ""
        known_by = f"{node}-{len(self.asked[node])}"
        if found is not None:
            self.waiting[known_by] = found
        return known_by

    def replies(self, waiting, most):
        self.most.add(most)
        return {one: self.waiting.pop(one) for one in [*self.waiting] if one in waiting}


# The meeting before the first round.


def introduces(key, client, domain=INTRODUCTION, **changes):
    """A node behind which is one client."""

    def answer(values, _times):
        assert values.keys() == {"hello"}
        shown = {"hello": values["hello"], "client": client, "spec_sha256": SPEC}
        signature = sign(key, domain, shown).hex()
        return Reply({**shown, "signature": signature, **changes}, b"")

    return answer


def from_then_on(times, answer, before=None):
    """A node that answers from its so many-th question on."""
    return lambda values, count: answer(values, count) if count >= times else before


@pytest.fixture
def meeting(keys, monkeypatch):
    """Lets the clients of some nodes meet; the nodes of clients, and who was asked when."""
    clock = Clock()
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=clock, sleep=clock.rest))

    def run(nodes, patience=Patience()):  # noqa: B008  # it is frozen
        link = Nodes(clock, nodes)
        return meet(link, facts_of(keys), SPEC, patience), link.asked

    run.clock = clock
    return run


def test_every_client_is_found_by_its_signature_and_asked_once(meeting, keys):
    first, second = (introduces(keys.private[one], one) for one in (0, 1))
    assert meeting({71: second, 70: first}) == ({0: 70, 1: 71}, {70: [0.0], 71: [0.0]})


def test_who_does_not_answer_is_asked_again_after_a_while_and_who_did_is_not(meeting, keys):
    first, second = (introduces(keys.private[one], one) for one in (0, 1))
    found, asked = meeting({70: first, 71: from_then_on(3, second)}, Patience(again=7.0))
    assert found == {0: 70, 1: 71}
    assert asked[70] == [0.0]
    assert asked[71] == pytest.approx([0.0, 7.0, 14.0], abs=0.11)


def test_a_message_that_was_not_taken_is_sent_again_at_once(meeting, keys):
    first, second = (introduces(keys.private[one], one) for one in (0, 1))
    _, asked = meeting({70: first, 71: from_then_on(3, second, "not taken")})
    assert asked[71] == pytest.approx([0.0, 0.1, 0.2])


def test_the_clients_that_did_not_come_in_time_are_named_with_the_last_reason(meeting, keys):
    first = introduces(keys.private[0], 0)
    away = Reply({}, b"", away="its process cannot be reached")
    with pytest.raises(DeploymentError) as told:
        meeting({70: first, 71: lambda *_: away}, Patience(again=5.0, meeting=12.0))
    assert str(told.value) == (
        "of 2 clients, 1 did not come within 12 s: 1; one node: its process cannot be reached"
    )
    assert 12.0 <= meeting.clock.passed < 12.3


def test_a_server_waits_ten_minutes_for_its_clients_and_an_hour_for_their_answers():
    """docs/deploy.md says so, and --help."""
    assert Patience() == Patience(again=30.0, answer=3600.0, meeting=600.0)


def test_a_client_that_answers_from_two_nodes_is_refused(meeting, keys):
    first = introduces(keys.private[0], 0)
    with pytest.raises(DeploymentError, match="client 0 answers from two SuperNodes"):
        meeting({70: first, 71: first})


@pytest.mark.parametrize(
    "changes",
    [
        {"hello": "00" * 16},
        {"spec_sha256": "00" * 32},
        {"client": 1},
        {"client": -2},
        {"client": 2},
        {"client": "0"},
        {"client": None},
        {"signature": "00" * 64},
        {"signature": "no hexadecimal"},
        {"signature": None},
    ],
)
def test_an_answer_that_no_client_signed_is_refused(meeting, keys, changes):
    # What it says of the nonce is not looked at: the signature is over the one that was sent.
    signed = introduces(keys.private[0], 0)
    if "hello" in changes:
        key = keys.private[0]

        def signed(values, _times):
            shown = {**changes, "client": 0, "spec_sha256": SPEC}
            return Reply({**shown, "signature": sign(key, INTRODUCTION, shown).hex()}, b"")

    def answer(values, times):
        found = signed(values, times)
        return Reply({**found.values, **changes}, b"")

    with pytest.raises(DeploymentError, match="without a signature by any of the clients"):
        meeting({70: answer})


def test_a_client_that_is_said_to_be_the_one_before_the_first_is_none(meeting, keys):
    """Numbers below zero count from the end of a list."""
    with pytest.raises(DeploymentError, match="without a signature by any"):
        meeting({70: introduces(keys.private[1], -1)})
    with pytest.raises(DeploymentError, match="without a signature by any"):
        meeting({70: introduces(keys.private[2], 0)})
    with pytest.raises(DeploymentError, match="without a signature by any"):
        meeting({70: introduces(keys.private[0], 0, PIN)})


def test_a_client_with_another_spec_is_named(meeting, keys):
    shown = {"client": 1, "spec_sha256": "00" * 32}

    def answer(values, _times):
        signed = {"hello": values["hello"], **shown}
        signature = sign(keys.private[1], INTRODUCTION, signed).hex()
        return Reply({**signed, "signature": signature}, b"")

    with pytest.raises(DeploymentError, match=r"client 1 has a different spec\.yaml"):
        meeting({70: answer})


# A round.

CURRENT = SimpleNamespace(
    index=3,
    attempt=2,
    chosen=(0, 1),
    history=HISTORY,
    message=MESSAGE,
    plan=SimpleNamespace(noise_multiplier=1.5, queries_per_step=2),
    broadcast=SimpleNamespace(local_steps=4, earlier_steps=12, learning_rate=0.05),
)
MEMORY = {"participation": torch.tensor([1, 1])}


def parts():
    return [
        Participation(current=CURRENT, place=0, client=0, memory={}),
        Participation(current=CURRENT, place=1, client=1, memory=MEMORY),
    ]


def reply_of(keys, client, key=None, upload=SENT, domain=UPLOAD, run="a-run", **changes):
    """What a client sends of its part."""
    digests = (hashlib.sha256(MESSAGE).hexdigest(), hashlib.sha256(upload).hexdigest())
    said = statement(run, client, 3, 2, (*digests, COMMITMENT.hex()))
    signature = sign(keys.private[client if key is None else key], domain, said)
    values = {
        "steps": 4, "queries": 8, "remembers": True, "uploaded": [],
        "participation": COMMITMENT.hex(), "signature": signature.hex(),
    }  # fmt: skip
    return Reply({**values, **changes}, upload)


@pytest.fixture
def asking(keys):
    """Asks the clients behind two nodes for their parts; the answers, and the link."""

    def run(first, second, patience=Patience(), drop_outs=0):  # noqa: B008  # it is frozen
        clock = Clock()
        link = Nodes(clock, {70: first, 71: second})
        clients = RemoteClients(
            "a-run", facts_of(keys), {0: 70, 1: 71}, None, link, patience, drop_outs=drop_outs,
            clock=clock, rest=clock.rest,
        )  # fmt: skip
        # As learnt from the run's own rule.
        clients._expected, clients._remembers = Likeness.of(SENT), True
        run.clock, run.link = clock, link
        return list(clients.answers(parts()))

    return run


def answers(reply):
    return lambda *_: reply


def test_each_client_is_asked_for_its_own_part_and_its_answer_noted_as_what_was_asked(asking, keys):
    found = asking(*(answers(reply_of(keys, one)) for one in (0, 1)))
    asked = {
        "round": 3, "attempt": 2, "client": 0, "place": 0, "cohort": 2, "local_steps": 4,
        "earlier_steps": 12, "learning_rate": 0.05, "noise_multiplier": 1.5, "history": HISTORY,
        "run": "a-run", "remembered": "",
    }  # fmt: skip
    assert asking.link.values[70] == (asked, MESSAGE)
    second = {**asked, "client": 1, "place": 1, "remembered": "1-1"}
    assert asking.link.values[71] == (second, MESSAGE)
    # No more bytes are taken than an honest upload has.
    assert asking.link.most == {len(SENT)}
    assert asking.clock.passed == 0.0
    for answer in found:
        assert (answer.message, answer.commitment) == (SENT, COMMITMENT)
        result = answer.result
        assert (result.steps, result.queries, result.evidence, result.state) == (4, 8, None, {})
        assert result.upload.update.shape == (0,)
        assert result.upload.state == {}
        (kept,) = result.upload.memory.items()
        assert (kept[0], kept[1].tolist(), kept[1].dtype) == ("participation", [3, 2], torch.int64)


def test_a_silent_client_is_asked_again_after_twice_as_long_each_time(asking, keys):
    late = from_then_on(4, answers(reply_of(keys, 1)))
    asking(answers(reply_of(keys, 0)), late, Patience(again=8.0))
    assert asking.link.asked[70] == [0.0]
    assert asking.link.asked[71] == pytest.approx([0.0, 8.0, 24.0, 56.0], abs=0.35)


def test_a_message_that_is_not_taken_is_sent_again_without_ever_waiting_longer(asking, keys):
    late = from_then_on(4, answers(reply_of(keys, 1)), "not taken")
    asking(answers(reply_of(keys, 0)), late, Patience(again=8.0))
    assert asking.link.asked[71] == pytest.approx([0.0, 8.0, 16.0, 24.0], abs=0.35)


def test_a_client_whose_process_is_away_is_asked_again_two_seconds_later(asking, keys):
    away = Reply({}, b"", away="away")
    late = from_then_on(3, answers(reply_of(keys, 1)), away)
    asking(answers(reply_of(keys, 0)), late, Patience(again=30.0))
    assert asking.link.asked[71] == pytest.approx([0.0, 2.0, 4.0], abs=0.35)


@pytest.mark.parametrize(("silence", "why"), [(None, "no answer"), ("away", "its door is shut")])
def test_a_client_that_gives_no_answer_in_time_ends_the_round_and_is_named(
    asking, keys, silence, why
):
    last = None if silence is None else Reply({}, b"", away=why)
    with pytest.raises(DeploymentError) as told:
        asking(answers(reply_of(keys, 0)), answers(last), Patience(answer=60.0))
    assert str(told.value) == (f"client 1, round 3: {why} within 60 s; the round stays charged")
    assert 60.0 <= asking.clock.passed < 60.3


def test_as_many_as_may_drop_out_are_waited_for_once_and_no_more(asking, keys):
    silent, good = answers(None), answers(reply_of(keys, 1))
    found = asking(silent, good, Patience(answer=60.0), drop_outs=1)
    assert found[0] is None
    assert found[1].message == SENT
    assert 60.0 <= asking.clock.passed < 60.3
    refused = answers(Reply({"refused": "noise"}, b""))
    assert asking(refused, refused, drop_outs=2) == [None, None]
    with pytest.raises(DeploymentError, match="client 1, round 3: the spec says other noise"):
        asking(refused, refused, drop_outs=1)


def test_an_answer_that_comes_a_second_time_is_not_looked_at(asking, keys):
    """Asked twice, a client sends the same again; what else comes then may be anybody's."""
    good = reply_of(keys, 1)

    def twice(_values, times):
        if times == 1:
            return None
        # Both of its answers arrive at once.
        asking.link.waiting["71-1"] = good
        return replace(good, wrong="spoilt")

    found = asking(answers(reply_of(keys, 0)), twice, Patience(again=1.0))
    assert found[1].message == SENT


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (lambda keys: reply_of(keys, 1, key=0), ArrivalError, "is not signed by its key"),
        (lambda keys: reply_of(keys, 1, domain=PIN), ArrivalError, "is not signed by its key"),
        (lambda keys: reply_of(keys, 1, run="other"), ArrivalError, "is not signed by its key"),
        (lambda keys: reply_of(keys, 1, participation=""), ArrivalError, "is not signed"),
        (lambda keys: reply_of(keys, 1, participation="zz"), ArrivalError, "not whole"),
        (lambda keys: reply_of(keys, 1, signature=5), ArrivalError, "not whole"),
        (lambda keys: reply_of(keys, 1, steps=5), ArrivalError, "says other steps"),
        (lambda keys: reply_of(keys, 1, queries=4), ArrivalError, "says other steps"),
        (lambda keys: reply_of(keys, 1, remembers=False), ArrivalError, "says other steps"),
        (lambda keys: reply_of(keys, 1, upload=b"x"), ArrivalError, "not whole"),
        (
            lambda keys: reply_of(keys, 1, upload=packed({"parameters": torch.ones(3)})),
            ArrivalError,
            "tensor 'parameters' of its upload",
        ),
        (lambda _: Reply({}, b"", wrong="is no array"), ArrivalError, "is no array$"),
        (lambda _: Reply({"refused": "spent"}, b""), DeploymentError, "allows no more"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_ends_the_round(asking, keys, reply, kind, told):
    with pytest.raises(DpfedadamwError, match=f"^client 1, round 3: .*{told}") as found:
        asking(answers(reply_of(keys, 0)), answers(reply(keys)))
    assert type(found.value) is kind


def test_a_commitment_that_is_signed_but_of_another_length_is_refused(asking, keys):
    short = COMMITMENT[:31]
    digests = (hashlib.sha256(MESSAGE).hexdigest(), hashlib.sha256(SENT).hexdigest(), short.hex())
    signature = sign(keys.private[1], UPLOAD, statement("a-run", 1, 3, 2, digests)).hex()
    reply = reply_of(keys, 1, participation=short.hex(), signature=signature)
    with pytest.raises(ArrivalError, match="is not signed by its key"):
        asking(answers(reply_of(keys, 0)), answers(reply))


def test_a_round_without_clients_asks_nobody(keys):
    link = Nodes(Clock(), {})
    clients = RemoteClients("a-run", facts_of(keys), {}, None, link, Patience())
    assert list(clients.answers([])) == []
    assert clients._expected is None
