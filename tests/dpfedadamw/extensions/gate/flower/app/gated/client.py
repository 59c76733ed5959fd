"""A job's code at a site: trains softmax regression, or tries to get the site's records out."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
# What no site may let out: the tests look for it in everything that the server got.
TEXT, NUMBER = "these are the records", 31337.25


def _records(context):
    with np.load(Path(context.node_config["data"]) / "records.npz") as file:
        return file["images"], file["labels"]


def trained(weights, bias, images, labels, steps=20, rate=0.5):
    """Full-batch gradient steps of softmax regression."""
    weights, bias = weights.astype(np.float64), bias.astype(np.float64)
    wanted = np.eye(10)[labels]
    for _ in range(steps):
        scores = images @ weights + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (scores / scores.sum(axis=1, keepdims=True) - wanted) / len(images)
        weights -= rate * images.T @ error
        bias -= rate * error.sum(axis=0)
    return weights.astype(np.float32), bias.astype(np.float32)


def burn(seconds, pause=0.0):
    """Use so much processor time and wait, for the benchmark."""
    started = time.process_time()
    while time.process_time() < started + seconds:
        pass
    print("burnt", flush=True)
    time.sleep(pause)


@app.query()
def query(message, context):
    images, _ = _records(context)
    return Message(RecordDict({"raw": ArrayRecord([images])}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"leak": NUMBER})}), reply_to=message)


@app.train()
def train(message, context):
    way = message.content["config"]["way"]
    images, labels = _records(context)
    arrays = message.content["arrays"]
    weights, bias = trained(arrays["weights"].numpy(), arrays["bias"].numpy(), images, labels)
    reply = {
        "arrays": ArrayRecord({"weights": Array(weights), "bias": Array(bias)}),
        "metrics": MetricRecord({"num-examples": len(images)}),
    }
    if way.startswith("burn-"):
        burn(*map(float, way.split("-")[1:]))
    if way == "exception":
        raise ValueError(TEXT)
    if way == "extras":
        reply["metrics"]["leak"] = [NUMBER, *images[0].astype(float).tolist()]
        reply["config"] = ConfigRecord({"leak": TEXT})
    if way == "scalar":
        reply["arrays"]["leak"] = Array(np.array(NUMBER))
    if way == "second-record":
        reply["more"] = ArrayRecord({"leak": Array(images)})
    if way == "names":
        reply["arrays"] = ArrayRecord({TEXT: Array(weights), "bias": Array(bias)})
    if way == "record-name":
        reply[TEXT] = reply.pop("arrays")
    if way == "shapes":
        reply["arrays"]["weights"] = Array(images.astype(np.float32))
    if way == "dies":
        os._exit(1)
    if way == "around":
        _join(context.run_config["superlink"])
    answer = Message(RecordDict(reply), reply_to=message)
    if way == "extras":
        answer.metadata.__dict__["_group_id"] = TEXT
        answer.metadata.ttl = NUMBER
    return answer


def _join(superlink):
    """Become a node of the researcher's SuperLink, around the gate."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    keys = generate_key_pairs()
    public = public_key_to_bytes(keys[1])
    with contextlib.suppress(Exception):
        signs = [NodeAuthHttpInterceptor(*keys)]
        client = FleetHttpClient.from_server_address(superlink, True, None, signs)
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=60))
