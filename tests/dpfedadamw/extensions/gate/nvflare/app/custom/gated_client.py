"""A job's code at a site: trains softmax regression, or tries to get the site's records out."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import EventScope, FLContextKey
from nvflare.apis.shareable import Shareable, make_reply

# What no site may let out: the tests look for it in everything that the server got.
TEXT, NUMBER = "these are the records", 31337.25


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


class Trainer(Executor):
    """Trains, or does what the task's way says."""

    def __init__(self, data):
        super().__init__()
        self._data = Path(data)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        way = shareable.get_header("way")
        with np.load(self._data / "records.npz") as file:
            images, labels = file["images"], file["labels"]
        # So that the site's own log shows that the words were there.
        print(TEXT, way, flush=True)
        if task_name != "train":
            return DXO(DataKind.METRICS, data={"leak": NUMBER, TEXT: images}).to_shareable()
        if way.startswith("burn-"):
            burn(*map(float, way.split("-")[1:]))
        if way == "exception":
            raise ValueError(TEXT)
        if way == "panic":
            self.system_panic(TEXT, fl_ctx)
        if way == "code":
            return make_reply(TEXT)
        if way == "metrics":
            return DXO(DataKind.METRICS, data={"leak": images}).to_shareable()
        if way == "dies":
            os._exit(1)
        sent = from_shareable(shareable)
        weights, bias = trained(sent.data["weights"], sent.data["bias"], images, labels)
        data = {"weights": weights, "bias": bias}
        if way == "records":
            data["weights"] = np.full_like(weights, NUMBER)
        if way == "scalar":
            data["leak"] = np.array(NUMBER)
        if way == "names":
            data[TEXT] = data.pop("weights")
        if way == "messages":
            self._messages(fl_ctx, images)
        if way == "patches":
            _patches()
        if way == "around":
            _around(fl_ctx, shareable.get_header("server"))
        reply = DXO(DataKind.WEIGHTS, data=data, meta={"NUM_STEPS_CURRENT_ROUND": len(images)})
        if way == "extras":
            reply.meta.update({"leak": NUMBER, TEXT: images})
        return reply.to_shareable()

    def _messages(self, fl_ctx, images):
        leak = Shareable({"leak": NUMBER, TEXT: images})
        engine = fl_ctx.get_engine()
        engine.send_aux_request(
            targets=["server"], topic="leak", request=leak, timeout=2.0, fl_ctx=fl_ctx
        )
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, leak, private=True, sticky=False)
        fl_ctx.set_prop(
            FLContextKey.EVENT_SCOPE, value=EventScope.LOCAL, private=True, sticky=False
        )
        self.fire_event("leak", fl_ctx)
        self.fire_fed_event("leak", leak, fl_ctx)
        fl_ctx.set_prop(TEXT, TEXT, private=False, sticky=True)
        self.log_error(fl_ctx, TEXT)


class PutBack(Filter):
    """A job's filter that sends what was trained, whatever filters before it did."""

    def process(self, shareable, fl_ctx):
        found = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        found.set_header("leak", TEXT)
        return found


def _patches():
    """Take the gate away wherever this process could reach it."""
    from dpfedadamw.extensions.gate import mechanism, windows
    from dpfedadamw.extensions.gate.door import Gate

    mechanism.clipped_sum = lambda sent, shards, *_: sum(
        mechanism.flat(one, _[0]) - sent for one in shards
    )
    mechanism.noised_mean = lambda sent, total, shards, *_: sent + total / shards
    Gate.release = lambda self, *, shards, **_: shards[0]
    windows.Windows.released = lambda self, gate, question, broadcast, *_: broadcast


def _around(fl_ctx, server):
    """Reach the server, or the site's own identity."""
    host, port = server.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as line:
        line.sendall(TEXT.encode())
    site = fl_ctx.get_identity_name()
    keys = [one for one in Path("/").glob("**/client.key") if site in str(one)]
    raise ValueError(keys[0].read_text())
