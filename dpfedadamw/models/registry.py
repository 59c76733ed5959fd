"""The registry of models: what is known of each name, and how one is built from a spec.

Each family's file registers its names with their keys; other packages do the same under the entry
points' group ``dpfedadamw.models``. A file is read together with the first spec that names its
model, whose vocabulary is made of its keys; so it imports torch, and the networks, where it uses
them.
"""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedadamw.errors import DpfedadamwError, ModelError
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing
from dpfedadamw.registration import Registry
from dpfedadamw.spec.model_section import ModelSpec, RegisteredModel
from dpfedadamw.tasks import CLASSES, Task, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn

_PACKAGE = Path(__file__).resolve().parents[1]
_Keys = TypeVar("_Keys", bound=ModelSpec)


def _as_they_are(keys: ModelSpec) -> Preprocessing:
    del keys
    return ImagePreprocessing()


def _unchanged(keys: Any) -> Any:
    return keys


def _none_named(keys: ModelSpec) -> str | None:
    del keys
    return None


@dataclass(frozen=True, kw_only=True)
class ModelEntry(RegisteredModel[_Keys]):
    """What is known about a model, in addition to what a spec uses.

    Attributes:
        source: Paper or publisher.
        build: Builds it with fresh weights, or published ones and a fresh head, for records of a
            shape and a number of classes, or of other outputs that a task asks for. Random
            weights come from torch's generator. A module that reads tokens has ``vocabulary``,
            their number; ``parameter_roles`` tells where heads are.
        build_for: The same, for an entry that must know the task; used in place of build.
        reads: Refuses records of a shape that it cannot read, before it is built; None where only
            building it tells.
        preprocessing: Returns what it needs of its records before they are tensors.
        preprocessing_for: The same, for an entry that must know the task; used in place of it.
        without_weights: Returns the keys of the same architecture for which nothing is read.
        small: Returns the keys of a stand-in of few parameters that reads the same records, for a
            trial run; what it has to read is written into the folder. None where it is small.
        write: Writes a trained one into an empty folder as its library reads it, and returns
            "adapters" or "whole" and whether a backbone was written to ``base/``; None where it
            is written as tensors and `model.json`.
        pin: Returns the keys with the digest of what they name filled in, and refuses them where
            they pin another.
        made_of: Digests of the source that builds it, by name, for who asks what has changed.
        names_code: Returns the code that builds it where that is named by the spec, and so runs
            only where the user allows it; None where a spec names none.
        on_meta: Whether it can be built on torch's device "meta", which takes no memory.
        rebuilt: Whether the keys are enough to build it again.
    """

    source: str
    build: Callable[[_Keys, Sequence[int], int], nn.Module]
    build_for: Callable[[_Keys, Sequence[int], int, Task], nn.Module] | None = None
    reads: Callable[[_Keys, Sequence[int]], None] | None = None
    preprocessing: Callable[[_Keys], Preprocessing] = _as_they_are
    preprocessing_for: Callable[[_Keys, Task], Preprocessing] | None = None
    without_weights: Callable[[_Keys], _Keys] = _unchanged
    small: Callable[[_Keys, Path], ModelSpec] | None = None
    write: Callable[[_Keys, nn.Module, Path], tuple[str, bool]] | None = None
    pin: Callable[[_Keys], _Keys] = _unchanged
    made_of: Callable[[_Keys], Mapping[str, str]] | None = None
    names_code: Callable[[_Keys], str | None] = _none_named
    on_meta: bool = True
    rebuilt: bool = True


# What each file registers, in the order of lists: a spec loads the file of its model alone.
_FILES = {
    "mlp": ("mlp",),
    "cnn": ("cnn", "simple-cnn", "resnet18"),
    "vit": ("vit", "vit-tiny"),
    "published_transformers": (
        "vit-base",
        "swin-tiny",
        "swin-base",
        "roberta-base",
        "transformers",
    ),
    "own_modules": ("python", "module"),
}
MODELS: Registry[ModelEntry[Any]] = Registry("model", "dpfedadamw.models", ModelEntry, files=_FILES)
register = MODELS.register


def preprocessing(spec: ModelSpec, task: Task = CLASSES) -> Preprocessing:
    """What a model needs of its records before they are tensors.

    Args:
        spec: The spec's section ``model``.
        task: What it is trained for.

    Raises:
        ModelError: If files that say so are missing.
    """
    entry = MODELS[spec.name]
    if entry.preprocessing_for is not None:
        return entry.preprocessing_for(spec, task)
    return entry.preprocessing(spec)


def build(
    spec: ModelSpec, input_shape: Sequence[int], classes: int, seed: int, task: Task = CLASSES
) -> nn.Module:
    """Build a model with fresh weights, or a published one with a fresh head.

    Args:
        spec: The spec's section ``model``.
        input_shape: Shape of one record.
        classes: Number of classes, or of other outputs of a record or a token.
        seed: Seed of the weights' initialisation. The initial weights do not depend on any record,
            so this seed is no secret.
        task: What it is trained for.

    Raises:
        ModelError: If the model cannot read records of this shape, or its files are missing.
    """
    import torch

    entry = MODELS[spec.name]
    if entry.reads is not None:
        entry.reads(spec, input_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if entry.build_for is not None:
            model = entry.build_for(spec, input_shape, classes, task)
        else:
            model = entry.build(spec, input_shape, classes)
    model.record_task = task  # type: ignore[assignment]  # a note that is no parameter
    return model


def synthetic_records(model: nn.Module, values: Tensor) -> Tensor:
    """Records that a model can read, made of arbitrary numbers record by record.

    Args:
        model: As `build` returns it.
        values: float32 [b, *input_shape], anything.

    Returns:
        The values themselves where the model reads numbers. Where it reads tokens, token numbers
        that follow from the values' bits, padding for 0 alone, and types of 0.
    """
    import torch

    vocabulary = vocabulary_of(model)
    if not vocabulary:
        return values
    bits = values.contiguous().view(torch.int32).long() & 0x7FFFFFFF
    # That of a module of somebody else is 0, whatever it calls padding.
    padding: int = 0 if hasattr(model, "record_vocabulary") else getattr(model, "padding", 0)
    tokens = (bits * 2654435761 % 2**31 % max(1, vocabulary - 1)).to(torch.int32)
    tokens += tokens >= padding
    tokens[values == 0] = padding
    marks = getattr(model, "made_up_marks", None)
    tokens[:, 1] = 0 if marks is None else marks(values)
    return tokens


def vocabulary_of(model: nn.Module) -> int:
    """How many tokens a model knows; 0 where it reads numbers."""
    # A module of somebody else may call something of its own ``vocabulary``.
    found: int = getattr(model, "record_vocabulary", getattr(model, "vocabulary", 0))
    return found


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """What a model is trained by: outputs [b, …] and labels [b, …] to the loss of each record, [b].

    That of its task, cross-entropy by default, unless the model came with a loss of its own.
    """
    for name in ("own_record_loss", "record_loss_in_pieces"):
        own: Callable[[Tensor, Tensor], Tensor] | None = getattr(model, name, None)
        if own is not None:
            return own
    task = task_of(model)
    # A function that is known by name: small models have its gradient written out.
    return cross_entropy if task.is_cross_entropy else task.loss


def scored(model: nn.Module, answers: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What the task holds against each other, of a model's answers [b, …] and labels [b, …].

    The answers themselves, unless the model leaves the scores of a long vocabulary to be formed
    some tokens at a time.
    """
    own = getattr(model, "record_scores", None)
    yield from ((answers, targets),) if own is None else own(answers, targets)


def is_in_nats(model: nn.Module) -> bool:
    """Whether the loss that a model is trained by is a plain cross-entropy."""
    return getattr(model, "own_record_loss", None) is None and task_of(model).is_cross_entropy


def task_of(model: nn.Module) -> Task:
    """What a model is trained for; one class a record where nothing says otherwise."""
    found: Task = getattr(model, "record_task", CLASSES)
    return found


@contextlib.contextmanager
def own_code(keys: ModelSpec) -> Iterator[None]:
    """Turn what the code of a model of one's own raises into a line without a record.

    An exception may quote what it stumbled over, and a message ends up in logs.

    Args:
        keys: The spec's section ``model``; of the package's own models nothing is changed.

    Raises:
        ModelError: With the place and the kind of what was raised.
    """
    try:
        yield
    except (DpfedadamwError, OSError, MemoryError):
        raise
    except Exception as error:
        place = None if MODELS[keys.name].on_meta else _place(error)
        if place is None:
            raise
        raise ModelError(
            f"model: its own code failed on records, the run's or made-up ones, at {place} "
            f"({type(error).__name__}; its text is not shown because it may quote a record). Fix "
            "the code, and start a new run"
        ) from None


def _place(error: BaseException) -> str | None:
    """The last line of code that is neither this package's nor installed, if any is on the way."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        known = [_PACKAGE, *installed]
        if not any(path.is_relative_to(folder) for folder in known) and "torch" not in path.parts:
            return f"{path.name}:{frame.lineno} in {frame.name}"
    return None


def any_shape(_keys: ModelSpec, _input_shape: Sequence[int]) -> None:
    """Records of any shape can be read."""


def images(keys: ModelSpec, input_shape: Sequence[int]) -> None:
    """Images of any size can be read.

    Raises:
        ModelError: If records are no images.
    """
    require_images(keys.name, input_shape)


def require_images(name: str, input_shape: Sequence[int], least: int = 1) -> None:
    """Refuse records that are no images, or smaller ones than a model can read.

    Raises:
        ModelError: If they are; the message names a model that reads them.
    """
    if len(input_shape) != 3:
        raise ModelError(
            f"model.name: {name} needs images (channels, height, width), but records have shape "
            f"{tuple(input_shape)}; use mlp"
        )
    if min(input_shape[1:]) < least:
        raise ModelError(
            f"model.name: {name} needs images of at least {least} pixels a side, but records have "
            f"shape {tuple(input_shape)}; use cnn"
        )
