"""Flower's messages, and a shard's SuperNode as a thread, for tests without processes."""

from __future__ import annotations

import threading

import numpy as np

MODEL = {"weights": ((64, 10), "float32"), "bias": ((10,), "float32")}
VALUES = {
    "weights": np.random.default_rng(1).normal(size=(64, 10)).astype(np.float32),
    "bias": np.arange(10, dtype=np.float32),
}


def message(kind="train", reply_to="", error=None, run=7, **records):
    """A message with some records, or an error in place of them."""
    from flwr.app import Message, RecordDict
    from flwr.app.metadata import Metadata

    about = Metadata(
        run_id=run, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id=reply_to,
        group_id="1", created_at=1.8e9, ttl=3600.0, message_type=kind,
    )  # fmt: skip
    if error is not None:
        made = Message(error, metadata=about)
    else:
        made = Message(RecordDict(records), metadata=about)
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


def honest(**changes):
    """The model's arrays, some of them changed."""
    from flwr.app import Array, ArrayRecord

    arrays = {**VALUES, **changes}
    return ArrayRecord({name: Array(one) for name, one in arrays.items() if one is not None})


def cut(made):
    """A message's name and its objects."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    nested = get_all_nested_objects(made)
    return made.object_id, {name: one.deflate() for name, one in nested.items()}


def question(kind="train", **records):
    """What the server asks, as the link to the SuperLink gives it."""
    from flwr.app import ConfigRecord
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto import run_pb2
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    from dpfedadamw.extensions.gate.flower.shards import Question

    made = message(kind, **(records or {"arrays": honest(), "config": ConfigRecord({"lr": 0.1})}))
    name, contents = cut(made)
    return Question(
        name=name, run=7, message=message_to_proto(remove_content_from_message(made)),
        tree=get_object_tree(made), contents=contents,
        about=(run_pb2.GetRunResponse(), run_pb2.GetRunResponse()),
    )  # fmt: skip


class Node:
    """A shard's SuperNode in a thread of this process, in place of a cell."""

    def __init__(self, place, answers):
        self.socket, self._answers = place, answers
        self.shard, self.runs = None, False

    def start(self):
        from flwr.proto import fleet_pb2

        self._ended, self.runs = threading.Event(), True
        me = fleet_pb2.ActivateNodeRequest()
        self.call("activate-node", me, fleet_pb2.ActivateNodeResponse)
        self._thread = threading.Thread(target=self._serve, args=(self._ended,), daemon=True)
        self._thread.start()

    def end(self):
        if self.runs:
            self._ended.set()
            self.runs = False

    def call(self, path, request, kind):
        found = self.shard.respond(f"/v1/fleet/{path}", request.SerializeToString())
        return kind.FromString(found)

    def _serve(self, ended):
        from flwr.proto import fleet_pb2

        while not ended.is_set():
            asked = self.call(
                "pull-messages", fleet_pb2.PullMessagesRequest(), fleet_pb2.PullMessagesResponse
            )
            if asked.messages_list and not ended.is_set():
                made = self._answers(asked.messages_list[0].metadata.message_id)
                if made is not None:
                    self.answer(made)

    def answer(self, made):
        """Push a message as Flower's SuperNode does."""
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto import fleet_pb2, message_pb2
        from flwr.supercore.inflatable.inflatable_object import get_object_tree

        _, contents = cut(made)
        head = remove_content_from_message(made) if made.has_content() else made
        taken = self.call(
            "push-messages",
            fleet_pb2.PushMessagesRequest(
                messages_list=[message_to_proto(head)], message_object_trees=[get_object_tree(made)]
            ),
            fleet_pb2.PushMessagesResponse,
        )
        for one in taken.objects_to_push:
            pushed = message_pb2.PushObjectRequest(object_id=one, object_content=contents[one])
            if not self.call("push-object", pushed, message_pb2.PushObjectResponse).stored:
                return
