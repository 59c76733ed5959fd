"""What a shard's cell answers to a message, by the ClientApp of the job's app, without a cell."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from flwr.app import ConfigRecord

from dpfedadamw.extensions.gate.exchange import exactly
from tests.dpfedadamw.extensions.gate.flower.messages import MODEL, VALUES, asked, honest

pytestmark = pytest.mark.flower

PROJECT = """
[project]
name = "job"
version = "1.0.0"
description = "Trains."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
clientapp = "job:app"
serverapp = "job:app"
[tool.flwr.app.config]
step = 2.0
"""
JOB = """
import os, threading, time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
SAYS = "these are the records"

@app.train()
def train(message, context):
    way = message.content["config"]["way"]
    by = context.run_config["step"] * context.node_config["times"]
    arrays = {key: one.numpy() + np.float32(by) for key, one in message.content["arrays"].items()}
    records = {"metrics": MetricRecord({"leak": 31337.25}), "config": ConfigRecord({"leak": SAYS})}
    if way == "raises":
        raise ValueError(SAYS)
    if way == "ends":
        os._exit(0)
    if way == "an error":
        return Message(Error(2, SAYS), reply_to=message)
    if way == "an array more":
        arrays["leak"] = np.ones(3)
    if way == "other names":
        arrays[SAYS] = arrays.pop("bias")
    if way == "another shape":
        arrays["bias"] = np.ones(11, np.float32)
    if way == "another type":
        arrays["bias"] = np.ones(10)
    if way == "two records":
        records["more"] = ArrayRecord([np.ones(3)])
    if way == "goes on":
        threading.Thread(target=time.sleep, args=(600,)).start()
    if way == "by column":
        arrays["weights"] = np.asfortranarray(arrays["weights"])
    records["any name"] = ArrayRecord({key: Array(one) for key, one in arrays.items()})
    return Message(RecordDict(records), reply_to=message)
"""


def fab():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("pyproject.toml", PROJECT)
        file.writestr("job.py", JOB)
    return made.getvalue()


def answered(way, folder):
    """What the program of a cell sends back, and its exit code."""
    message = asked(fab=fab(), arrays=honest(), config=ConfigRecord({"way": way}))
    program = (
        "import sys; from dpfedadamw.extensions.gate.flower.trainer import run; run(sys.argv[1:])"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "gate"))
        listener.listen()
        command = [sys.executable, "-c", program, str(folder / "gate"), "times=3"]
        with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder)}) as process:
            line, _ = listener.accept()
            with line:
                line.sendall(message.question(MODEL).to_bytes())
                try:
                    found = exactly(line, sum(one.nbytes for one in VALUES.values()))
                except (EOFError, ConnectionResetError):
                    found = None
            return found, process.wait(60)


@pytest.mark.parametrize("way", ["honest", "goes on", "by column"])
def test_a_job_answers_its_numbers_alone_and_nothing_of_it_goes_on(way, tmp_path):
    found, code = answered(way, tmp_path)
    assert code == 0
    assert found == b"".join((one + np.float32(6)).tobytes() for one in VALUES.values())


@pytest.mark.parametrize(
    "way",
    [
        "raises", "ends", "an error", "an array more", "other names", "another shape",
        "another type", "two records",
    ],
)  # fmt: skip
def test_a_job_that_replies_anything_else_has_no_answer(way, tmp_path):
    assert answered(way, tmp_path)[0] is None
