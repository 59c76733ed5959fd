"""What runs in a shard's cell: one message of the job, by the ClientApp of its app.

The job's app is unpacked and loaded here and nowhere else at the site.
`link.Asked.question` makes what it reads.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_fab_config, get_fused_config_from_fab, parse_config_args
from flwr.common.serde import run_from_proto
from flwr.proto.run_pb2 import Run
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_ref import load_app

from dpfedadamw.extensions.gate.exchange import Question, answer


def run(words: Sequence[str]) -> None:
    """Answer one question.

    Args:
        words: The gate's socket, and Flower's node configuration.
    """
    place, node_config = words
    answer(place, lambda question: trained(question, node_config, Path(mkdtemp())))


def trained(question: Question, node_config: str, app: Path) -> bytes:
    """The arrays of the job's reply, one after the other.

    Args:
        question: The message, its run and its app.
        node_config: Flower's node configuration.
        app: A folder for the app.

    Raises:
        ValueError: If the reply has not exactly one record of exactly the model's arrays.
    """
    about, fab, *objects = question.parts
    run = run_from_proto(Run.FromString(about))
    with zipfile.ZipFile(BytesIO(fab)) as file:
        file.extractall(app)
    named = {hashlib.sha256(one).hexdigest(): one for one in objects}
    name = question.told["message"]
    message: Any = inflate_object_from_contents(name, named)
    # A message does not hold its own name.
    message.metadata.__dict__["_message_id"] = name
    context = Context(
        run_id=run.run_id,
        node_id=message.metadata.dst_node_id,
        node_config=parse_config_args([node_config]),
        # Each message finds a fresh one.
        state=RecordDict(),
        run_config=get_fused_config_from_fab(fab, run),
    )
    place = get_fab_config(fab)["tool"]["flwr"]["app"]["components"]["clientapp"]
    reply = load_app(place, LoadClientAppError, app)(message=message, context=context)
    (record,) = reply.content.array_records.values()
    arrays = {key: one.numpy() for key, one in record.items()}
    return as_bytes(arrays, question.told["arrays"])


def as_bytes(arrays: Mapping[str, Any], model: Sequence[tuple[str, str, Sequence[int]]]) -> bytes:
    """The arrays' numbers, in the model's order.

    Args:
        arrays: By name.
        model: Name, type and shape of each.

    Raises:
        ValueError: If they are not exactly these.
    """
    forms = {name: (np.dtype(kind), tuple(shape)) for name, kind, shape in model}
    if {name: (one.dtype, one.shape) for name, one in arrays.items()} != forms:
        raise ValueError("the job's arrays are not those that the gate allows")
    return b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in forms)
