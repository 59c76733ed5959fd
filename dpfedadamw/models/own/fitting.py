"""Modules that nobody here wrote, made fit for training by record: looked through, and mended.

What is found here holds for any `torch.nn.Module`: dropout that a batch's neighbours move, running
statistics, numbers drawn in the forward pass, outputs of another shape. How a module's clipped sums
are formed is not asked here.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import math
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfedadamw.errors import ModelError
from dpfedadamw.models.registry import synthetic_records, vocabulary_of
from dpfedadamw.spec.task_section import CLASSIFICATION, TOKENS
from dpfedadamw.tasks import CLASSES, Task

GROUP_NORM = "group_norm"
_MOST_GROUPS = 32
# A record's answer in a batch may be rounded differently from its answer alone, by this share.
_MIXED = 1e-3
_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class BatchNormError(ModelError):
    """A layer normalises over the batch, and nobody asked for it to be replaced."""


@dataclass(frozen=True)
class Mended:
    """What was changed of a module before it is trained.

    Attributes:
        name: Of the layer.
        before: What it was.
        after: What it is, and why.
    """

    name: str
    before: str
    after: str


Loss = Callable[[Tensor, Tensor], Tensor]
_given: ContextVar[nn.Module | None] = ContextVar("module passed from Python", default=None)
_given_loss: ContextVar[Loss | None] = ContextVar("loss passed from Python", default=None)


@contextlib.contextmanager
def handed_over(module: nn.Module | None, loss: Loss | None = None) -> Iterator[None]:
    """Let specs of `model: {name: module}` mean this module, for as long as this lasts.

    Args:
        module: The module; None for none.
        loss: What it is trained by, where that is no cross-entropy.
    """
    tokens = _given.set(module), _given_loss.set(loss)
    try:
        yield
    finally:
        _given.reset(tokens[0])
        _given_loss.reset(tokens[1])


def given_loss() -> Loss | None:
    """The loss passed from Python with a module; None for cross-entropy."""
    return _given_loss.get()


def is_given() -> bool:
    """Whether a module was handed over."""
    return _given.get() is not None


def given() -> nn.Module:
    """A copy of the module passed from Python, on the CPU, in training mode.

    Raises:
        ModelError: If none was.
    """
    module = _given.get()
    if module is None:
        raise ModelError(
            "model.name: module means a module passed from Python, which no file can build; pass "
            "it: api.run(spec, model=net), api.resume(folder, model=net), api.Run(folder, "
            "model=net) or api.load_model(folder, model=net)"
        )
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise ModelError(
            f"model: the module cannot be copied ({type(error).__name__}); give one whose outputs "
            "were not kept in it"
        ) from error
    return copied.cpu().train()


def weights_digest(module: nn.Module) -> str:
    """Sha256 (hexadecimal) of all tensors of a module: names, types, shapes and numbers."""
    whole = hashlib.sha256()
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        if nn.parameter.is_lazy(value):
            raise ModelError(f"model: {name} has no shape yet; run the module on one batch first")
        plain = value.detach().cpu().contiguous()
        whole.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        whole.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def code_digest(module: nn.Module) -> str:
    """Sha256 (hexadecimal) of what a module is made of: its layers, and the source of its classes.

    Classes of torch are known by their names. A class whose source nobody has kept is, too.
    """
    classes = {type(one) for one in module.modules()}
    parts = sorted(classes, key=lambda each: (each.__module__, each.__qualname__))
    return hashlib.sha256("\n".join([repr(module), *map(_source_text, parts)]).encode()).hexdigest()


def loss_digest(loss: Loss) -> str:
    """Sha256 (hexadecimal) of the source of a loss, or of its name where nobody has kept that."""
    return hashlib.sha256(_source_text(loss).encode()).hexdigest()


def _source_text(part: Any) -> str:
    place = getattr(part, "__module__", None) or type(part).__module__
    text = f"{place}.{getattr(part, '__qualname__', type(part).__qualname__)}"
    if place.partition(".")[0] != "torch":
        # A file that changed since, or lines of something else, have no source that can be read.
        with contextlib.suppress(OSError, TypeError, SyntaxError, tokenize.TokenError):
            text += "\n" + inspect.getsource(part)
    return text


def fit(
    module: nn.Module,
    place: str,
    input_shape: Sequence[int],
    outputs: int,
    batch_norm: str,
    vocabulary: int = 0,
    loss: Loss | None = None,
    task: Task = CLASSES,
) -> nn.Module:
    """Make a module fit for training by record, or refuse it with the reason.

    Dropout is put out, and layers over the batch are replaced where that is asked for. What was
    changed stands in the module's ``mended``.

    Args:
        module: Is changed in place.
        place: What to call it in messages.
        input_shape: Shape of one record.
        outputs: Numbers that it must answer a record with.
        batch_norm: `GROUP_NORM`, or anything else to refuse such layers.
        vocabulary: How many tokens it knows, where it reads tokens; it is given them as int64
            [b, length]. 0 where it reads numbers.
        loss: Outputs [b, outputs] and labels [b] (or what the task has) to one loss a record; None
            for the task's.
        task: What it is trained for.

    Raises:
        ModelError: If it cannot be trained so; the message says what would be right.
    """
    module.train()
    mended = [*_without_dropout(module), *_normed_by_group(module, batch_norm)]
    module.mended = tuple(mended)  # type: ignore[assignment]  # a note that is no parameter
    if not any(one.requires_grad for one in module.parameters()):
        raise ModelError(f"{place}: has no trainable parameter; unfreeze at least its head")
    wrong = [name for name, one in module.named_parameters() if not one.is_floating_point()]
    if wrong:
        raise ModelError(f"{place}: the parameter {wrong[0]} does not hold real numbers")
    _refuse_batch_norm(module, place)
    module.record_vocabulary = vocabulary  # type: ignore[assignment]  # a note as well
    if vocabulary:
        module.register_forward_pre_hook(_tokens)
    answered = _try_out(module, place, input_shape, outputs, task)
    # Lazy layers have their parameters only now.
    _refuse_shared_memory(module, place)
    _refuse_mixing(module, place, input_shape, vocabulary)
    if loss is not None:
        if task.kind == CLASSIFICATION and not task.is_cross_entropy:
            raise ModelError(
                "model.loss: the model has its own loss, but task.loss or task.class_weights ask "
                "for another; leave one of them out"
            )
        _try_loss(loss, outputs, answered, task)
        module.own_record_loss = loss  # type: ignore[assignment]  # a note as well
    return module


def _refuse_mixing(
    module: nn.Module, place: str, input_shape: Sequence[int], vocabulary: int
) -> None:
    """Refuse a module whose answer to a short record changes with a longer one in its batch."""
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(2, *input_shape, generator=generator)
    if vocabulary:
        records = torch.randint(
            1, vocabulary, records.shape, generator=generator, dtype=torch.int32
        )
        records[:, 1] = 0
    shorter = torch.zeros_like(records[:1])
    kept = (slice(None), *(slice(max(1, side // 2)) for side in input_shape))
    shorter[kept] = records[:1][kept]
    try:
        with torch.no_grad():
            alone, together = (
                module(part)[:1].double() for part in (shorter, torch.cat([shorter, records[1:]]))
            )
    except Exception as error:
        # Whether its answers mix is then not known, and the rehearsal and the probe ask the same.
        raise ModelError(
            f"{place}: its forward fails on two made-up records of shape {tuple(input_shape)}, of "
            f"which one is zeros in its second half ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}); records of any numbers must be answered"
        ) from error
    finite = bool(torch.isfinite(alone).all())
    if finite and float((together - alone).abs().amax()) > _MIXED * float(alone.abs().amax()):
        raise ModelError(
            f"{place}: its answer to a record depends on the other records of the batch, so "
            "clipping would bound nothing. If it cuts or pads a batch to its longest record, "
            "exclude padding from attention and means"
        )


def _try_loss(loss: Loss, outputs: int, answered: Sequence[int], task: Task) -> None:
    """Compute a loss for made-up answers: it must give one value per record, for any batch."""
    shape = (3, *answered[1:])
    answers = torch.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape).requires_grad_()
    labels = made_up_targets(task, 3, outputs, answered)
    try:
        together = loss(answers, labels)
        apart = [loss(answers[one : one + 1], labels[one : one + 1]) for one in range(3)]
    except Exception as error:
        raise ModelError(
            f"model.loss: fails on outputs of shape {shape} and labels of shape "
            f"{tuple(labels.shape)} ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        ) from error
    if not isinstance(together, Tensor) or together.shape != (3,):
        found = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
        raise ModelError(
            f"model.loss: gives {found} for 3 records; it must give one value per record, shape "
            "(3,) "
            '(reduction="none")'
        )
    if not together.requires_grad:
        raise ModelError(
            "model.loss: has no gradient; compute it from the outputs with torch operations only"
        )
    if not torch.allclose(together, torch.cat([one.reshape(1) for one in apart])):
        raise ModelError(
            "model.loss: a record's loss depends on the other records of the batch, so clipping "
            "would bound nothing; compute it from each record alone"
        )


def _refuse_shared_memory(module: nn.Module, place: str) -> None:
    """Refuse two parameters with one memory, which training would pull apart.

    One parameter with two names is fine: its gradient is that of both uses together.
    """
    spans = sorted(
        (one.data_ptr(), one.data_ptr() + _bytes_spanned(one), number, name)
        for number, (name, one) in enumerate(module.named_parameters())
        if one.numel()
    )
    for (_, end, first, owner), (begin, _, second, name) in pairwise(spans):
        if begin < end:
            names = (owner, name) if first < second else (name, owner)
            raise ModelError(
                f"{place}: {names[0]} and {names[1]} share their memory but are two parameters; "
                "tie them by giving both modules the same one, or give each its own"
            )


def _bytes_spanned(tensor: Tensor) -> int:
    """From the first byte of a tensor to behind its last; it has a number at least."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _refuse_batch_norm(module: nn.Module, place: str) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise BatchNormError(
                f"{place}: layer {name!r} ({type(layer).__name__}) normalises over the batch, so a "
                "record changes the gradients of all others and clipping bounds nothing; set "
                "model.replace_batch_norm: group_norm to replace it by GroupNorm"
            )


def _tokens(_module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Token numbers int64 [b, length] of records [b, 2, length]; their second row is types."""
    records, *others = given
    return (records[:, 0].long(), *others)


def _scores(_module: nn.Module, _inputs: object, answer: object) -> object:
    """The scores of an answer that has further fields, as those of transformers do."""
    return getattr(answer, "logits", answer)


def _without_dropout(module: nn.Module) -> Iterator[Mended]:
    """Put out dropout: its masks move with who shares the batch; clipping would bound nothing."""
    why = "off: its masks would depend on the other records of the batch"
    for name, layer in module.named_modules():
        if isinstance(layer, _DROPOUTS) and layer.p:
            before = f"{type(layer).__name__}({layer.p:g})"
            layer.p = 0.0
            yield Mended(name, before, why)
        elif isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout:
            before = f"{type(layer).__name__}, dropout {layer.dropout:g}"
            layer.dropout = 0.0
            yield Mended(name, before, f"dropout {why}")


def _normed_by_group(module: nn.Module, batch_norm: str) -> Iterator[Mended]:
    """Replace normalisation over the batch by that over groups of a record's own channels."""
    if batch_norm != GROUP_NORM:
        return
    for name, layer in list(module.named_modules()):
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or isinstance(
            layer, nn.modules.lazy.LazyModuleMixin
        ):
            continue
        groups = groups_of(layer.num_features)
        new = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
        if layer.affine:
            new.weight, new.bias = layer.weight, layer.bias
        parent, _, own = name.rpartition(".")
        if not own:
            raise ModelError("model: a module that is one BatchNorm layer has nothing to train")
        setattr(module.get_submodule(parent), own, new)
        after = f"GroupNorm({groups} groups): over a record's own channels"
        yield Mended(name, f"{type(layer).__name__}({layer.num_features})", after)


def groups_of(channels: int) -> int:
    """Into how many groups channels are cut: at most 32, of two channels or more each."""
    fitting = range(1, min(_MOST_GROUPS, channels // 2) + 1)
    return max((groups for groups in fitting if channels % groups == 0), default=1)


def made_up_targets(task: Task, count: int, outputs: int, answered: Sequence[int]) -> Tensor:
    """Targets [count, …] for a model that answers one record with a shape."""
    kind, shape = (np.int64, ()) if task.kind == CLASSIFICATION else (np.float32, (outputs,))
    if task.kind == TOKENS:
        kind, shape = np.int64, (answered[1],)
    numbers = np.arange(count) % task.kinds_made_up(outputs)
    return torch.from_numpy(task.made_up(numbers, np.zeros((0, *shape), kind), outputs))


def _try_out(
    module: nn.Module, place: str, input_shape: Sequence[int], outputs: int, task: Task
) -> Sequence[int]:
    """Ask it for a record of zeros, in training and in evaluation, and look at what that left.

    Returns:
        The shape of its answer to one record, [1, …].
    """
    record = torch.zeros(1, *input_shape)
    if module.record_vocabulary:
        record = record.int()
    # The engine is rehearsed on such records, and the auditor asks the private step for them.
    drawn = torch.randn(3, *input_shape, generator=torch.Generator().manual_seed(0))
    made_up = synthetic_records(module, drawn)
    before = {name: value.clone() for name, value in module.named_buffers()}
    answers = []
    try:
        with torch.no_grad():
            if hasattr(module(record), "logits"):
                module.register_forward_hook(_scores)
            answers = [module(record), module(record)]
            module.eval()
            answers.append(module(record))
            module(made_up)
    except Exception as error:
        found = "a record" if len(answers) < 3 else "three made-up records of any numbers, each"
        known = "" if vocabulary_of(module) else (
            "; set model.vocabulary for a model that reads whole numbers"
        )  # fmt: skip
        raise ModelError(
            f"{place}: its forward fails on {found} of shape {tuple(input_shape)} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}); records come as "
            f"[batch, {', '.join(map(str, input_shape))}]{known}"
        ) from error
    finally:
        module.train()
    first, again, _ = answers
    for answer in answers:
        right = task.refuses(answer.shape if isinstance(answer, Tensor) else (), outputs)
        if right is not None:
            found = (
                f"shape {tuple(answer.shape)}"
                if isinstance(answer, Tensor)
                else type(answer).__name__
            )
            raise ModelError(
                f"{place}: answers one record with {found}; it must be a tensor of shape {right}"
            )
    if not torch.equal(first, again):
        raise ModelError(
            f"{place}: answers the same record differently each time in training, because its "
            "random draws depend on the batch; remove functional dropout"
        )
    for name, value in module.named_buffers():
        if not torch.equal(before[name], value):
            raise ModelError(
                f"{place}: its buffer {name} changes in the forward pass, and whatever private "
                "records leave there would be released without noise; keep it fixed, or remove it"
            )
    return tuple(first.shape)
