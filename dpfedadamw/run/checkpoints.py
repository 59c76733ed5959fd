"""Checkpoints after each round, the final weights, and what a resumed run must forget."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor, nn

from dpfedadamw.algorithms.base import ServerRule, ServerState
from dpfedadamw.rundir import RunDirectoryError, write_atomically

_PARAMETERS = "parameters"


def write(directory: Path, state: ServerState, completed: int) -> None:
    """Write what is carried from round to round; all of it follows from released values."""
    directory.mkdir(exist_ok=True)
    tensors = {_PARAMETERS: state.parameters}
    tensors |= {f"state.{name}": value for name, value in state.state.items()}
    for client, memory in state.memories.items():
        tensors |= {f"client.{client}.{name}": value for name, value in memory.items()}
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = save(whole, metadata={"completed_rounds": str(completed)})
    write_atomically(directory / "state.safetensors", content)


def read(directory: Path, server: ServerRule, parameters: Tensor) -> tuple[ServerState, int]:
    """The state to continue from: the last checkpoint, or the start where there is none yet.

    Raises:
        RunDirectoryError: If the checkpoint does not fit the model.
    """
    path = directory / "state.safetensors"
    fresh = server.start(parameters)
    if not path.exists():
        return fresh, 0
    content = path.read_bytes()
    try:
        tensors = {name: value.to(parameters.device) for name, value in load(content).items()}
        length = int.from_bytes(content[:8], "little")
        completed = int(json.loads(content[8 : 8 + length])["__metadata__"]["completed_rounds"])
        vector = tensors.pop(_PARAMETERS)
        memories: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in tensors if name.startswith("client.")]:
            _, client, key = name.split(".", 2)
            memories.setdefault(int(client), {})[key] = tensors.pop(name)
        state = {name.removeprefix("state."): value for name, value in tensors.items()}
    except Exception as error:
        raise RunDirectoryError(f"{path}: not a readable checkpoint ({error})") from None
    if vector.shape != parameters.shape or set(state) != set(fresh.state):
        raise RunDirectoryError(f"{path}: this checkpoint belongs to another model or algorithm")
    return ServerState(vector, state, memories), completed


def forget_later_metrics(path: Path, completed: int) -> None:
    """Drop metrics of rounds after the checkpoint; they will be run again."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith(b"\n") and _round_of(line) <= completed]
    write_atomically(path, b"".join(kept))


def _round_of(line: bytes) -> int:
    return int(json.loads(line)["round"])


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors as safetensors.

    Tensors that come unchanged from pinned, published weights (``model.fetched``) are left out:
    beside a frozen backbone, only its low-rank pairs and the head are written.
    """
    fetched: frozenset[str] = getattr(model, "fetched", frozenset())
    tensors = {
        name: value.detach().cpu().clone()
        for name, value in model.state_dict().items()
        if name not in fetched
    }
    # One entry only: safetensors writes several in no fixed order, and the bytes would differ.
    write_atomically(path, save(tensors, metadata={"format": "pt"}))


def read_weights(path: Path, model: nn.Module) -> None:
    """Read the tensors that `write_weights` wrote into a model of the same make.

    Raises:
        RunDirectoryError: If the file cannot be read, or does not fit the model.
    """
    try:
        tensors = load(path.read_bytes())
    except Exception as error:
        raise RunDirectoryError(f"{path}: not a readable safetensors file ({error})") from None
    expected = {
        name: value.shape
        for name, value in model.state_dict().items()
        if name not in getattr(model, "fetched", frozenset())
    }
    if {name: value.shape for name, value in tensors.items()} != expected:
        raise RunDirectoryError(f"{path}: its tensors are not those of the model in model.json")
    model.load_state_dict(tensors, strict=False)
