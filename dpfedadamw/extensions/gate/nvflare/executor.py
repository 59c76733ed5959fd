"""The one component of the gate's process for a job: answers the server's training tasks.

All that leaves the site is made here: the arrays that the gate released with one constant number of
steps, or one of the fixed refusals. What NVFlare itself logs or reports goes to the server, so
nothing of the site is ever told to it: the operator's lines go to the standard error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, make_reply

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import mechanism
from dpfedadamw.extensions.gate.errors import REFUSAL
from dpfedadamw.extensions.gate.exchange import Question
from dpfedadamw.extensions.gate.nvflare.options import read_options
from dpfedadamw.extensions.gate.nvflare.start import opened
from dpfedadamw.extensions.gate.windows import FAILED, Windows

if TYPE_CHECKING:
    from dpfedadamw.extensions.gate.door import Gate

NOT_TRAIN = f"{REFUSAL}: it answers training tasks only"
NOT_MODEL = (
    f"{REFUSAL}: a task must hold weights, of exactly the names, shapes and types that it allows"
)
TEXT = "gate"
"""The header of a refusal that has its text."""
_CODES = {NOT_TRAIN: ReturnCode.TASK_UNSUPPORTED, NOT_MODEL: ReturnCode.BAD_TASK_DATA}


class GateExecutor(Executor):
    """Answers each task by asking the shards, or refuses it.

    Args:
        options: Path of a file of `Options`.
        app: The job's app, as it was submitted.
        site: The site's startup kit, which no job may see.
    """

    def __init__(self, options: str, app: str, site: str) -> None:
        super().__init__()
        self._options, self._app, self._site = Path(options), Path(app), Path(site)
        self._opened: tuple[Gate, Windows] | None = None
        self._stack = ExitStack()
        # A server may send tasks at once; each has all windows to itself.
        self._turn = threading.Lock()

    def handle_event(self, event_type: str, _: Any) -> None:
        """Open the gate when the job starts, and close it when it ends."""
        if event_type == EventType.START_RUN:
            try:
                options = read_options(self._options)
                context = opened(options, self._site, self._app)
                self._opened = self._stack.enter_context(context)
            except Exception as error:
                _tell(error if isinstance(error, DpfedadamwError) else type(error).__name__)
        elif event_type == EventType.END_RUN:
            with self._turn:
                self._opened = None
                self._stack.close()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, _: Any) -> Any:
        """NVFlare's reply to a task."""
        try:
            with self._turn:
                found = self._answer(task_name, shareable, fl_ctx)
        except Exception as error:
            # NVFlare would tell its words to the server.
            _tell(type(error).__name__)
            found = FAILED
        return reply_to(found)

    def _answer(self, task_name: str, task: Any, context: Any) -> Mapping[str, Any] | str:
        if self._opened is None:
            return FAILED
        gate, windows = self._opened
        options = read_options(self._options)
        if task_name != options.task:
            return NOT_TRAIN
        request = str(task.get_header(ReservedHeaderKey.TASK_ID))
        job = f"nvflare-{context.get_job_id()}"
        told = {
            "task": task_name, "request": request, "job": context.get_job_id(),
            "site": context.get_identity_name(),
            "headers": plain(task.get(ReservedHeaderKey.HEADERS)),
        }  # fmt: skip
        try:
            sent = from_shareable(task)
            if sent.data_kind != DataKind.WEIGHTS or mechanism.flat(sent.data, gate.model) is None:
                return NOT_MODEL
            arrays = {name: sent.data[name] for name in gate.model}
            told |= {
                "meta": plain(sent.meta),
                "arrays": [[name, str(one.dtype), one.shape] for name, one in arrays.items()],
            }
            question = Question(told, [one.tobytes() for one in arrays.values()]).to_bytes()
        except (ValueError, TypeError):
            return NOT_MODEL
        return windows.released(gate, question, arrays, (job, request), options.reply_after, _tell)


def reply_to(found: Mapping[str, Any] | str) -> Any:
    """NVFlare's reply to the server."""
    if isinstance(found, str):
        refusal = make_reply(_CODES.get(found, ReturnCode.SERVICE_UNAVAILABLE))
        refusal.set_header(TEXT, found)
        return refusal
    # NVFlare weighs sites by this number; the true one is a fact about the records.
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    return DXO(DataKind.WEIGHTS, data=dict(found), meta=meta).to_shareable()


def plain(value: Any) -> dict[str, Any]:
    """Of a mapping what JSON has; all else is left out, whatever it is."""
    if not isinstance(value, Mapping):
        return {}
    kept = {key: _kept(one) for key, one in value.items() if isinstance(key, str)}
    return {key: one for key, one in kept.items() if one is not None}


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_kept(one) for one in value]
    return value if type(value) in (str, int, float, bool) else None


def _tell(line: object) -> None:
    print(f"gate: {line}", file=sys.stderr, flush=True)
