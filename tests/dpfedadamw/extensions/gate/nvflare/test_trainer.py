"""What a shard's cell answers, by NVFlare's own runner of a job's client, without a cell."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare has an environment of its own: tox run -e nvflare")

pytestmark = pytest.mark.nvflare

# A script as NVFlare's Client API has it.
SCRIPT = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    params = {name: value + model.current_round for name, value in model.params.items()}
    flare.send(flare.FLModel(params=params, metrics={"loss": 31337.25}))
"""
# NVFlare runs in a process of its own, which it leaves with threads.
RUN = """
import os, sys
from pathlib import Path
import numpy as np
from dpfedadamw.extensions.gate.exchange import Question
from dpfedadamw.extensions.gate.nvflare.trainer import trained

told = {"job": "j1", "site": "s1", "task": "train", "request": "r", "meta": {},
        "headers": {"current_round": 3},
        "arrays": [["weight", "float32", [3, 2]], ["bias", "float64", [2]]]}
parts = [np.full((3, 2), 0.5, np.float32).tobytes(), bytes(16)]
app, home, out = map(Path, sys.argv[1:])
out.write_bytes(trained(Question(told, parts), app, home))
os._exit(0)
"""


@pytest.mark.parametrize("way", ["FULL", "DIFF"])
def test_a_script_of_the_client_api_answers_the_parameters_after_training(way, tmp_path):
    app = tmp_path / "app"
    for name in ("config", "custom"):
        (app / name).mkdir(parents=True)
    (app / "custom" / "train.py").write_text(SCRIPT)
    path = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"
    args = {
        "execution_mode": "in_process", "task_script_path": "train.py",
        "params_transfer_type": way,
    }  # fmt: skip
    executor = {"tasks": ["train"], "executor": {"path": path, "args": args}}
    (app / "config" / "config_fed_client.json").write_text(
        json.dumps({"format_version": 2, "executors": [executor]})
    )
    command = [sys.executable, "-c", RUN, str(app), str(tmp_path / "home"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = (tmp_path / "out").read_bytes()
    np.testing.assert_array_equal(np.frombuffer(found[:24], np.float32), np.full(6, 3.5))
    np.testing.assert_array_equal(np.frombuffer(found[24:], np.float64), np.full(2, 3.0))
