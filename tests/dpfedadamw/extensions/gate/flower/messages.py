"""Flower's messages, for tests without processes."""

from __future__ import annotations

import numpy as np

from dpfedadamw.extensions.gate.settings import Form

MODEL = {"weights": Form((64, 10), "float32"), "bias": Form((10,), "float32")}
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


def asked(kind="train", fab=b"", **records):
    """What the server asks, as the link to the SuperLink gives it."""
    from flwr.app import ConfigRecord
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto import fab_pb2, run_pb2

    from dpfedadamw.extensions.gate.flower.link import Asked

    made = message(kind, **(records or {"arrays": honest(), "config": ConfigRecord({"lr": 0.1})}))
    name, contents = cut(made)
    run = run_pb2.GetRunResponse(run=run_pb2.Run(run_id=7))
    return Asked(
        name=name, run=7, message=message_to_proto(remove_content_from_message(made)),
        contents=contents, about=(run, fab_pb2.GetFabResponse(fab=fab_pb2.Fab(content=fab))),
    )  # fmt: skip
