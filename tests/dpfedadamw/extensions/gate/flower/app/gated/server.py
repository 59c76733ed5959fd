"""The job's server: does the steps of a plan, and writes down everything that the sites answer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    told = context.run_config
    place = Path(told["out"])
    while len(nodes := sorted(grid.get_node_ids())) < told["sites"]:
        time.sleep(0.2)
    model = {"weights": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    steps, waited = [], {}
    for step in told["plan"].split(","):
        kind, way = step.split()
        if kind == "ask":
            waited |= _ask(grid, model, way, known=waited.values())
            continue
        sent = dict(model)
        if way == "other-model":
            sent["weights"] = np.zeros((32, 10), np.float32)
        asked = [_asked(sent, kind, way, node) for node in nodes]
        started = time.time()
        replies = list(grid.send_and_receive(asked, timeout=900))
        seconds = time.time() - started
        good = [one for one in replies if one.has_content()]
        if kind == "train" and good:
            arrays = [one.content["arrays"] for one in good]
            model = {
                name: np.mean([one[name].numpy() for one in arrays], axis=0, dtype=np.float32)
                for name in model
            }
        answers = [_plain(one) for one in replies]
        nodes_now = len(list(grid.get_node_ids()))
        steps.append({"step": step, "seconds": seconds, "replies": answers, "nodes": nodes_now})
        _write(place, {"steps": steps})
    late = []
    while waited:
        for reply in grid.pull_messages(waited):
            del waited[reply.metadata.reply_to_message_id]
            late.append(_plain(reply))
        time.sleep(0.2)
    _write(place, {"steps": steps, "late": late})
    place.with_suffix(".done").touch()


def _ask(grid, model, way, known):
    """Ask a node as soon as it joins, and wait for no reply; the node by the message's name."""
    while not (new := set(grid.get_node_ids()) - set(known)):
        time.sleep(0.2)
    node = new.pop()
    (name,) = grid.push_messages([_asked(model, "train", way, node)])
    return {name: node}


def _write(place, found):
    place.with_suffix(".part").write_text(json.dumps(found))
    place.with_suffix(".part").rename(place)


def _asked(model, kind, way, node):
    arrays = ArrayRecord({name: Array(value) for name, value in model.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"way": way, "lr": 0.5})})
    return Message(content, message_type=kind, dst_node_id=node, group_id="1")


def _plain(reply):
    """Everything in a reply as JSON has it."""
    told = {key: getattr(reply.metadata, key) for key in ("group_id", "ttl", "message_type")}
    if reply.has_error():
        return {"metadata": told, "error": [reply.error.code, reply.error.reason]}
    return {
        "metadata": told,
        "records": {
            name: {
                key: [str(one.dtype), list(one.shape), one.numpy().tolist()]
                if isinstance(one, Array) else one
                for key, one in record.items()
            }
            for name, record in reply.content.items()
        },
    }  # fmt: skip
