"""The state between two rounds as bytes, and the final weights as a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, nn

from dpfedadamw.algorithms.base import ServerRule, ServerState
from dpfedadamw.profiling import part
from dpfedadamw.rundir import RunDirectoryError
from dpfedadamw.storage.disk import DISK, write_atomically
from dpfedadamw.vectors.packing import packed

_PARAMETERS = "parameters"


@dataclass(frozen=True)
class RoundNumbers:
    """What metrics tell of a round besides the model's: kept with the state that it led to.

    Attributes:
        learning_rate: η of the round.
        bytes_up: Of all uploads, as published.
        bytes_down: Of all broadcasts, as published.
        last: Whether no round follows.
    """

    learning_rate: float
    bytes_up: int | None
    bytes_down: int | None
    last: bool


@part("checkpoints")
def pack_state(state: ServerState, numbers: RoundNumbers) -> bytes:
    """What is carried from round to round, as safetensors: it all follows from released values."""
    tensors = {_PARAMETERS: state.parameters}
    tensors |= {f"state.{name}": value for name, value in state.state.items()}
    for client, memory in state.memories.items():
        tensors |= {f"client.{client}.{name}": value for name, value in memory.items()}
    return packed(tensors, {"round": json.dumps(asdict(numbers), sort_keys=True)})


def largest_state(state: ServerState, clients: int) -> int:
    """Bytes of a state's tensors once every one of so many clients keeps something."""
    own = [state.parameters, *state.state.values()]
    memories = [_bytes(memory.values()) for memory in state.memories.values()]
    return _bytes(own) + clients * max(memories, default=0)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def unpack_state(
    content: bytes, server: ServerRule, parameters: Tensor
) -> tuple[ServerState, RoundNumbers]:
    """Read what `pack_state` wrote of a run with the same model and algorithm.

    Raises:
        RunDirectoryError: If it belongs to another.
    """
    fresh = server.start(parameters)
    try:
        tensors = {name: value.to(parameters.device) for name, value in load(content).items()}
        length = int.from_bytes(content[:8], "little")
        noted = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["round"])
        numbers = RoundNumbers(**noted)
        vector = tensors.pop(_PARAMETERS)
        memories: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in tensors if name.startswith("client.")]:
            _, client, key = name.split(".", 2)
            memories.setdefault(int(client), {})[key] = tensors.pop(name)
        state = {name.removeprefix("state."): value for name, value in tensors.items()}
    except Exception as error:
        raise RunDirectoryError(f"checkpoint: not a readable state ({error})") from None
    if vector.shape != parameters.shape or set(state) != set(fresh.state):
        raise RunDirectoryError("checkpoint: this state belongs to another model or algorithm")
    return ServerState(vector, state, memories), numbers


@part("checkpoints")
def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors as safetensors.

    Tensors that come unchanged from pinned, published weights (``model.fetched``) are left out:
    with a frozen backbone, only its low-rank pairs and the head are written.
    """
    tensors = {name: value.detach().cpu().clone() for name, value in _written(model).items()}
    # One entry only: safetensors writes several in no fixed order, and the bytes would differ.
    write_atomically(path, save(tensors, metadata={"format": "pt"}))


def read_weights(path: Path, model: nn.Module, content: bytes | None = None) -> None:
    """Read the tensors that `write_weights` wrote into a model of the same make.

    Args:
        path: The file.
        model: Gets the tensors.
        content: The file's bytes, where they were read already.

    Raises:
        RunDirectoryError: If the file cannot be read, or does not fit the model.
    """
    tensors = fitting_tensors(path, model, DISK.read(path) if content is None else content)
    model.load_state_dict(tensors, strict=False)


def fitting_tensors(path: Path, model: nn.Module, content: bytes) -> dict[str, Tensor]:
    """The tensors in a file's bytes, if they have the names and shapes of a model's.

    Args:
        path: The file.
        model: The model, also on the device "meta".
        content: The file's bytes.

    Raises:
        RunDirectoryError: If the bytes cannot be read, or do not fit the model.
    """
    try:
        tensors = load(content)
    except Exception as error:
        raise RunDirectoryError(f"{path}: not a readable safetensors file ({error})") from None
    expected = {name: value.shape for name, value in _written(model).items()}
    # Files of earlier versions have them.
    for name in _second_names(model):
        tensors.pop(name, None)
    found = {name: value.shape for name, value in tensors.items()}
    for name in sorted({*found, *expected}):
        here, there = (_shape(one.get(name)) for one in (expected, found))
        if here != there:
            raise RunDirectoryError(
                f"{path}: its tensors are not those of the model: {name} is {there} in the file, "
                f"and {here} in the model"
            )
    return tensors


def check_weights(path: Path, listed: Any, content: bytes | None = None) -> None:
    """Check that a file holds the tensors that `tensor_list` named, without a model.

    Args:
        path: The file.
        listed: What `tensor_list` said.
        content: The file's bytes, where they were read already.

    Raises:
        RunDirectoryError: If it cannot be read, or holds others.
    """
    try:
        tensors = load(DISK.read(path) if content is None else content)
        found = {name: list(value.shape) for name, value in tensors.items()}
        expected = {one["name"]: list(one["shape"]) for one in listed}
    except Exception as error:
        raise RunDirectoryError(f"{path}: not a readable safetensors file ({error})") from None
    if found != expected:
        raise RunDirectoryError(f"{path}: its tensors are not those that model.json names")


def tensor_list(model: nn.Module, trained: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """What `write_weights` will write, tensor by tensor, said before training begins.

    Trained tensors stand in the order of the flat vector, all others after them with the sha256 of
    their numbers, which training must not change.

    Args:
        model: The model.
        trained: Names of its trained parameters, in their order; all that require gradients if left
            out.

    Returns:
        By tensor its name, shape and type as safetensors call it, and whether it is trained.
    """
    written = _written(model)
    if trained is None:
        trained = [name for name, one in model.named_parameters() if one.requires_grad]
    # A view of a trained tensor changes with it.
    moving = {written[name].data_ptr() for name in trained if written[name].numel()}
    listed = []
    for name in [*trained, *sorted(set(written) - set(trained))]:
        value = written[name].detach().cpu().contiguous()
        kind = json.loads(save({"one": value.reshape(-1)[:0].clone()})[8:])["one"]["dtype"]
        entry = {
            "name": name,
            "shape": list(value.shape),
            "dtype": kind,
            "trained": name in trained,
        }
        if not entry["trained"] and written[name].data_ptr() not in moving:
            entry["sha256"] = _content_digest(value)
        listed.append(entry)
    return listed


def _written(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that its file of weights holds."""
    # A module of somebody else may call something of its own ``fetched``.
    theirs = hasattr(model, "record_vocabulary")
    fetched = () if theirs else getattr(model, "fetched", ())
    left_out = {*fetched, *_second_names(model)}
    return {name: value for name, value in model.state_dict().items() if name not in left_out}


def _second_names(model: nn.Module) -> set[str]:
    """Names of parameters that have another name already: tied weights are written once."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - {name for name, _ in model.named_parameters()}


def _shape(found: Sequence[int] | None) -> str:
    return "not there" if found is None else f"of shape {tuple(found)}"


def _content_digest(value: Tensor) -> str:
    """Sha256 (hex) of a tensor's numbers as safetensors has them."""
    content = save({"one": value})
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()
