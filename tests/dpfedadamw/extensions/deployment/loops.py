"""A federation in one process: the server's messages go straight to the clients, without Flower."""

from __future__ import annotations

import hashlib
import json

import torch

from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.deployment.client import Client, plain
from dpfedadamw.extensions.deployment.collect import collect
from dpfedadamw.extensions.deployment.leading import led_run, open_led, train_led
from dpfedadamw.extensions.deployment.project import Addresses, make_project
from dpfedadamw.extensions.deployment.refusals import RefusalError
from dpfedadamw.extensions.deployment.server import Patience
from dpfedadamw.federation.links import Reply
from dpfedadamw.federation.stations import Asked
from dpfedadamw.filing import after_training
from tests.audit.corruptions import finding_of

_OF_ONE_RUN = {
    "digest", "previous", "created", "run", "spec_sha256", "selection_sha256", "contents_sha256",
    "sites",
    "participations_sha256", "people_sha256",
}  # fmt: skip
NO_PATIENCE = Patience(again=0.0, answer=5.0, meeting=5.0)


class LoopLink:
    """Answers at once; ``spoil`` may change a reply before the server has it."""

    def __init__(self, clients, spoil=None):
        self.clients, self.spoil, self.sent = clients, spoil, []
        self._waiting = {}

    def nodes(self):
        return sorted(self.clients)

    def send(self, node, values, message):
        self.sent.append((node, dict(values)))
        known_by = str(len(self.sent))
        client, values = self.clients[node], dict(values)
        if "hello" in values:
            reply = Reply(client.introduce(values["hello"]), b"")
        else:
            run, remembered = values.pop("run"), values.pop("remembered")
            try:
                found = client.take_part(run, Asked(**values), message, remembered)
                reply = Reply(plain(found), found.upload)
            except RefusalError as error:
                reply = Reply({"refused": error.reason}, b"")
        if self.spoil is not None and "hello" not in dict(self.sent[-1][1]):
            reply = self.spoil(node, reply)
        self._waiting[known_by] = reply
        return known_by

    def replies(self, waiting, _most):
        return {one: self._waiting.pop(one) for one in waiting if one in self._waiting}


def made(spec, path, addresses=Addresses()):  # noqa: B008  # it is frozen
    """A project for a spec."""
    return make_project(prepare(spec, torch.device("cpu")), path, addresses)


def opened(project):
    """All clients of a project, by a number that stands for their node."""
    return {100 + one: Client(project.site(one)) for one in range(project.clients)}


def led(project, clients, spoil=None, patience=NO_PATIENCE):
    """Lead the project's run to its claim; the link."""
    link = LoopLink(clients, spoil)
    training = open_led(project.server, link, patience)
    with training.lock:
        train_led(training)
    return link


def judged(project, out, sites=None):
    """Collect what all clients, or some sites, hand in."""
    every = [project.site(one).path for one in range(project.clients)]
    return collect(led_run(project.server), project.server, sites or every, out)


def content(run):
    """The model and the ledger of a run, but for what differs between runs of one spec."""
    model = hashlib.sha256((run.path / "model.safetensors").read_bytes()).hexdigest()
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    return model, [{k: v for k, v in line.items() if k not in _OF_ONE_RUN} for line in lines]


def audited(run):
    """The verdict of an audit, and its checks by name."""
    after_training.attest_training(run, after_training.load_signers(None, None), None)
    found = after_training.audit(run).to_json()
    return found["verdict"], {one["name"]: one for one in found["checks"]}


def found(run, name):
    """What one check finds of a run that is signed now: its verdict in words, its measurement."""
    after_training.attest_training(run, after_training.load_signers(None, None), None)
    finding = finding_of(run.path, name)
    return finding.verdict.value, finding.measurement
