"""The job's server: does the steps of a plan, and writes down everything that the sites send."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable


class Steps(Controller):
    """Each step is a task's name and a way; `PLAN` says "train honest,validate x"."""

    def __init__(self, plan, out, server=""):
        super().__init__()
        self._plan, self._out, self._server = plan, Path(out), server
        self._said, self._steps, self._replies = [], [], []
        self._model = {"weights": np.zeros((64, 10), "f4"), "bias": np.zeros(10, "f4")}

    def start_controller(self, fl_ctx):
        fl_ctx.get_engine().register_aux_message_handler("leak", self._aux)

    def _aux(self, topic, request, fl_ctx):
        self._said.append(["aux", topic, plain(dict(request))])
        return Shareable()

    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type.startswith("fed.") or event_type == "leak":
            data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            self._said.append(["event", event_type, plain(data)])

    def control_flow(self, abort_signal, fl_ctx):
        for step in self._plan.split(","):
            name, way = step.split()
            self._replies = []
            data = dict(self._model)
            if way == "other-model":
                data["weights"] = np.zeros((32, 10), "f4")
            sent = DXO(DataKind.WEIGHTS, data=data).to_shareable()
            sent.set_header("way", way)
            sent.set_header("server", self._server)
            task = Task(name, sent, timeout=600, result_received_cb=self._received)
            started = time.time()
            self.broadcast_and_wait(
                task, fl_ctx, min_responses=0, wait_time_after_min_received=0,
                abort_signal=abort_signal,
            )  # fmt: skip
            good = [one["arrays"] for one in self._replies if "weights" in one.get("arrays", ())]
            if name == "train" and good:
                self._model = {
                    key: np.mean([one[key] for one in good], axis=0).astype("f4")
                    for key in self._model
                }
            seconds = time.time() - started
            self._steps.append({"step": step, "seconds": seconds, "replies": self._replies})
            self._write()
        self._out.with_suffix(".done").touch()

    def stop_controller(self, fl_ctx):
        self._write()

    def process_result_of_unknown_task(self, client, task_name, client_task_id, result, fl_ctx):
        self._said.append(["late", task_name, plain(dict(result))])

    def _received(self, client_task, fl_ctx):
        result = client_task.result
        peer = fl_ctx.get_peer_context()
        told = {
            "client": client_task.client.name, "code": result.get_return_code(),
            "whole": plain(dict(result)), "peer": plain(peer.get_all_public_props()),
        }  # fmt: skip
        if result.get_return_code() == "OK":
            found = from_shareable(result)
            told |= {
                "kind": found.data_kind,
                "meta": plain(found.meta),
                "arrays": {key: np.asarray(value).tolist() for key, value in found.data.items()},
            }
        self._replies.append(told)
        client_task.result = None

    def _write(self):
        part = self._out.with_suffix(".part")
        model = {key: one.tolist() for key, one in self._model.items()}
        found = {"steps": self._steps, "said": self._said, "model": model}
        part.write_text(json.dumps(found))
        part.rename(self._out)


def plain(value):
    """As JSON has it; all else as its text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else str(value)
