"""Tasks: what a model's outputs are held against, by which loss of a record, and how it is scored.

Every loss here is a function of one record's outputs and targets alone: clipping bounds nothing
where a record's loss moves with who shares its batch. Targets come as arrays and tensors whose
first dimension is the records':

| task | targets | outputs |
|---|---|---|
| classification | int64 [n], a class | [b, classes] |
| regression | float32 [n, K] | [b, K] |
| multi_label | float32 [n, K], each 0 or 1 | [b, K], logits |
| token_classification | int64 [n, length], a class or the ignored label | [b, length, classes] |
| causal_lm | int64 [n, length], the next token or the ignored label | [b, up to length, tokens] |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.spec.task_section import (
    CLASSIFICATION,
    LANGUAGE,
    MULTI_LABEL,
    REGRESSION,
    TOKENS,
    ClassificationTask,
    TaskSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

# What metrics.jsonl has in addition to accuracy and loss, in the order of reporting: for tasks
# other than classification after each round, and for the finished model (`measures.final`).
MEASURES = (
    "test_rmse",
    "test_mae",
    "test_r2",
    "test_micro_f1",
    "test_perplexity",
    "test_majority_rate",
    "test_auc",
    "test_average_precision",
    "test_f1",
    "test_balanced_accuracy",
    "test_log_loss",
    "test_calibration_error",
)
# Made-up targets that are told apart, where targets are no classes.
_MADE_UP = 4
# What stands where no token is predicted: the rest of a batch's longest record, a question.
IGNORED = -100


@dataclass(frozen=True)
class Score:
    """How well a model does on some records.

    Attributes:
        accuracy: Share of classes, of token classes, or of whole sets of labels that are right, in
            [0, 1]; None of a regression.
        measures: Further measures by name: "rmse", "mae" and, where targets vary, "r2" of a
            regression; "micro_f1" of several labels; "perplexity" of a language model.
        right: Of a classification, whether each record's class is right, bool [n].
    """

    accuracy: float | None
    measures: Mapping[str, float] = field(default_factory=dict)
    right: NDArray[np.bool_] | None = None


class Tally(Protocol):
    """Gathers answers, a batch at a time."""

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take note of the answers to b records."""
        ...

    def score(self) -> Score:
        """What all of them come to; at least one record must have been added."""
        ...


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each record, [b], of scores [b, classes] and its class [b].

    Code that gets this very function as a loss may use its known gradient.
    """
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Task:
    """A task, as a spec states it.

    Attributes:
        spec: The spec's section ``task``.
    """

    spec: TaskSpec

    @property
    def kind(self) -> str:
        """What it is called."""
        return self.spec.kind

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, [b].

        Raises:
            ValueError: If outputs and targets are not of the shapes above.
        """
        from torch.nn import functional

        match self.kind:
            case "regression":
                _same_shape(outputs, targets)
                wanted = targets.to(outputs.dtype)
                if self.spec.loss == "huber":
                    delta = self.spec.huber_delta
                    assert delta is not None
                    each = functional.huber_loss(outputs, wanted, reduction="none", delta=delta)
                else:
                    each = functional.mse_loss(outputs, wanted, reduction="none")
                return each.mean(1)
            case "multi_label":
                _same_shape(outputs, targets)
                each = functional.binary_cross_entropy_with_logits(
                    outputs, targets.to(outputs.dtype), reduction="none"
                )
                return each.mean(1)
            case "token_classification":
                _same_shape(outputs[..., 0], targets)
                return self._of_tokens(outputs, targets)
            case "causal_lm":
                return self._of_tokens(outputs, within(outputs, targets), targets)
            case _:
                return self._of_classes(outputs, targets)

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is `cross_entropy` as it stands."""
        return isinstance(self.spec, ClassificationTask) and self.spec.is_plain

    def _of_classes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = cross_entropy(outputs, targets)
        if self.spec.loss == "focal":
            assert self.spec.focal_gamma is not None
            # 1 - p, where p = exp(-loss), without the digits that a p near 1 would lose.
            each = (-(-each).expm1()).pow(self.spec.focal_gamma) * each
        if self.spec.class_weights:
            each = each * outputs.new_tensor(self.spec.class_weights)[targets]
        return each

    @property
    def ignored(self) -> int:
        """The target of tokens that do not count."""
        own = self.spec.ignore_index
        return IGNORED if own is None else own

    def _of_tokens(
        self, outputs: Tensor, targets: Tensor, all_targets: Tensor | None = None
    ) -> Tensor:
        from torch.nn import functional

        each = functional.cross_entropy(
            outputs.transpose(1, 2), targets, reduction="none", ignore_index=self.ignored
        )
        if self.spec.reduction == "sum":
            return each.sum(1)
        # Of the record's own tokens; a record of only padding has the loss 0. A mean over the
        # tokens of the batch would let a long record change the weight of all others.
        counted = targets if all_targets is None else all_targets
        return each.sum(1) / (counted != self.ignored).sum(1).clamp(min=1)

    def refuses(self, shape: Sequence[int], outputs: int) -> str | None:
        """What an answer to one record must be, in words, where its shape is not that."""
        shape = tuple(shape)
        if self.kind in (TOKENS, LANGUAGE):
            if len(shape) == 3 and shape[0] == 1 and shape[2] == outputs:
                return None
            return f"(1, length, {outputs}): a score for each class of each token"
        if shape == (1, outputs):
            return None
        each = {REGRESSION: "number", MULTI_LABEL: "logit for each label"}
        return f"(1, {outputs}): a {each.get(self.kind, 'score for each class')}"

    def kinds_made_up(self, outputs: int) -> int:
        """How many different targets `made_up` tells apart, at least 1."""
        return outputs if self.kind in (CLASSIFICATION, TOKENS, LANGUAGE) else _MADE_UP

    def made_up(self, numbers: NDArray[np.int64], like: NDArray[Any], outputs: int) -> NDArray[Any]:
        """Targets of this task that follow from whole numbers, for made-up records.

        Args:
            numbers: [n], each from 0 to `kinds_made_up` - 1.
            like: Targets of the data set, [m, …], for their type and shape alone.
            outputs: Numbers that the model answers with, of a record or a token.
        """
        if self.kind == CLASSIFICATION:
            return numbers
        shape = (len(numbers), *like.shape[1:])
        places = np.arange(math.prod(shape[1:])).reshape(1, *shape[1:])
        spread = numbers.reshape(-1, *(1 for _ in shape[1:]))
        if self.kind in (TOKENS, LANGUAGE):
            found = (spread + places) % outputs
        elif self.kind == MULTI_LABEL:
            found = (spread >> (places % 2)) & 1
        else:
            found = np.array([-2.0, -0.5, 1.0, 3.0])[(spread + places) % _MADE_UP]
        return np.asarray(found, like.dtype)

    def tally(self) -> Tally:
        """What gathers answers, empty."""
        match self.kind:
            case "regression":
                return _Errors()
            case "multi_label":
                return _Labels()
            case "token_classification":
                return _Tokens(self.ignored)
            case "causal_lm":
                return _NextTokens(self.ignored)
            case _:
                return _Classes()


CLASSES = Task(ClassificationTask())
"""One class a record: the task of specs that name none."""


def _same_shape(outputs: Tensor, targets: Tensor) -> None:
    # Without this, [b, 1] against [b, K] would be broadcast, and mean something else.
    if outputs.shape != targets.shape:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}"
        )


def within(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets [b, length] of the places that outputs [b, up to length, tokens] answer.

    A language model leaves out the end that no record of the batch reaches.
    """
    places = outputs.shape[1]
    if outputs.dim() != 3 or len(outputs) != len(targets) or places > targets.shape[1]:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}"
        )
    return targets[:, :places]


class _Classes:
    """Whether each record's class is right."""

    def __init__(self) -> None:
        self._right: list[NDArray[np.bool_]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._right.append((outputs.argmax(1) == targets).cpu().numpy())

    def score(self) -> Score:
        right = np.concatenate(self._right)
        return Score(int(right.sum()) / len(right), {}, right)


class _Tokens:
    """How many of the tokens that count have the right class."""

    def __init__(self, ignored: int) -> None:
        self._ignored = ignored
        self._right = self._tokens = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        counts = targets != self._ignored
        self._right += int(((outputs.argmax(2) == targets) & counts).sum())
        self._tokens += int(counts.sum())

    def score(self) -> Score:
        return Score(self._right / self._tokens if self._tokens else None)


class _NextTokens:
    """Tokens that are foreseen, and how unlikely the right ones are held to be."""

    def __init__(self, ignored: int) -> None:
        self._ignored = ignored
        self._right = self._tokens = 0
        self._nats = 0.0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        from torch.nn import functional

        targets = within(outputs, targets)
        counts = targets != self._ignored
        chosen, right = outputs[counts], targets[counts]
        self._right += int((chosen.argmax(1) == right).sum())
        self._tokens += len(right)
        self._nats += float(functional.cross_entropy(chosen.float(), right, reduction="sum"))

    def score(self) -> Score:
        if not self._tokens:
            return Score(None)
        mean = self._nats / self._tokens
        # Above exp(700) a float is infinite, and no measure.
        found = {"perplexity": math.exp(mean)} if mean < 700.0 else {}
        return Score(self._right / self._tokens, found)


class _Labels:
    """Sets of labels that are right as a whole, and F1 over all labels together."""

    def __init__(self) -> None:
        self._records = self._exact = self._found = self._said = self._there = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        said, there = outputs > 0, targets > 0.5
        self._records += len(targets)
        self._exact += int((said == there).all(1).sum())
        self._found += int((said & there).sum())
        self._said += int(said.sum())
        self._there += int(there.sum())

    def score(self) -> Score:
        both = self._said + self._there
        # Where no label is there and none is said, nothing is wrong.
        f1 = 2 * self._found / both if both else 1.0
        return Score(self._exact / self._records, {"micro_f1": f1})


class _Errors:
    """Errors of numbers: root mean square, mean size, and the share of variance explained."""

    def __init__(self) -> None:
        self._answers: list[NDArray[np.float64]] = []
        self._targets: list[NDArray[np.float64]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._answers.append(outputs.double().cpu().numpy())
        self._targets.append(targets.double().cpu().numpy())

    def score(self) -> Score:
        answers, targets = np.concatenate(self._answers), np.concatenate(self._targets)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = answers - targets
            found = {
                "rmse": float(np.sqrt(np.mean(errors**2))),
                "mae": float(np.mean(np.abs(errors))),
            }
            spread = np.sum((targets - targets.mean(0)) ** 2, axis=0)
            if bool((spread > 0).all()):
                found["r2"] = float(np.mean(1.0 - np.sum(errors**2, axis=0) / spread))
        return Score(None, {name: one for name, one in found.items() if math.isfinite(one)})
