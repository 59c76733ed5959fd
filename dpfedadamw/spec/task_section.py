"""The section `task` of a spec: what a model's outputs are held against, and by which loss."""

from __future__ import annotations

from typing import Annotated, Literal

from dpfedadamw.spec.section import (
    AbsentInteger,
    AbsentNumber,
    AbsentNumbers,
    AbsentText,
    Section,
    key,
    one_of,
)

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTI_LABEL, TOKENS = "multi_label", "token_classification"
LANGUAGE = "causal_lm"


class TaskSpec(Section, title="Task"):
    """What the model is trained to tell of a record."""

    kind: str = key(
        "classification",
        "What the model is trained to predict about a record: {names}. Clipping bounds a record's "
        "whole gradient for any of these losses, because each is a function of that record alone.",
        title="Task",
    )
    loss: AbsentText = None
    huber_delta: AbsentNumber = None
    reduction: AbsentText = None
    ignore_index: AbsentInteger = None
    focal_gamma: AbsentNumber = None
    class_weights: AbsentNumbers = ()
    sequences: AbsentInteger = None
    format: AbsentText = None
    loss_on: AbsentText = None


_Weight = Annotated[float, key(..., "Weight of a class.", gt=0, le=1_000_000, examples=(1.0, 9.0))]


class ClassificationTask(TaskSpec, title="Classification"):
    """One class a record, by cross-entropy.

    Weights and focal loss multiply a record's loss by a number of its own. Its gradient is clipped
    after that, so that what a record can change, and ε, stay what they are.
    """

    kind: Literal["classification"] = "classification"
    loss: Literal["cross_entropy", "focal"] = key(
        "cross_entropy",
        "Loss of a record: cross_entropy, or focal (Lin et al. 2017), which multiplies it by "
        "(1 - p)^focal_gamma, where p is the probability that the model gives the right class.",
        examples=("cross_entropy", "focal"),
    )
    focal_gamma: float = key(
        2.0,
        "How strongly the focal loss reduces the weight of records that the model is sure of; "
        "unused by cross_entropy.",
        title="Focal exponent",
        ge=1,
        le=20,
        examples=(2.0, 1.0),
    )
    class_weights: tuple[_Weight, ...] = key(
        (),
        "Weight of each class in the loss, in the classes' order; empty weights all equally. "
        "Declare constants known without the records, such as a prevalence from the literature. "
        "Clipping limits the effect of a weight above 1, so lower the weights of frequent classes. "
        "Weights computed from private records would be a release that no budget covers.",
        title="Class weights",
        max_length=10_000,
        examples=((), (0.1, 1.0)),
    )

    @property
    def is_plain(self) -> bool:
        """Whether the loss of a record is its cross-entropy as it stands."""
        return self.loss == "cross_entropy" and not self.class_weights


class RegressionTask(TaskSpec, title="Regression"):
    """One or more numbers a record."""

    kind: Literal["regression"] = "regression"
    loss: Literal["mean_squared_error", "huber"] = key(
        "mean_squared_error",
        "Loss of a record, the mean over its targets: mean_squared_error, or huber (Huber 1964), "
        "which is half the square of an error up to huber_delta and linear beyond.",
        examples=("mean_squared_error", "huber"),
    )
    huber_delta: float = key(
        1.0,
        "Error at which huber changes from quadratic to linear, in the targets' unit.",
        title="Huber's delta",
        gt=0,
        le=1_000_000_000,
        examples=(1.0, 0.5),
    )


class MultiLabelTask(TaskSpec, title="Several labels"):
    """Any of several labels a record, each there or not, by binary cross-entropy with logits.

    A record's loss is the mean over its labels; a logit above 0 says that its label is there.
    """

    kind: Literal["multi_label"] = "multi_label"


class TokenTask(TaskSpec, title="Token classification"):
    """One class a token, by cross-entropy; the model answers [b, length, classes]."""

    kind: Literal["token_classification"] = "token_classification"
    reduction: Literal["mean", "sum"] = key(
        "mean",
        "How the losses of a record's own tokens are combined: mean or sum. A mean over the tokens "
        "of a batch is not available, because one record would change the weight of all others.",
        examples=("mean", "sum"),
    )
    ignore_index: int = key(
        -100,
        "Label of tokens that are ignored, such as padding.",
        title="Ignored label",
        unit="none",
        ge=-1_000_000,
        le=-1,
        examples=(-100, -1),
    )


class LanguageTask(TaskSpec, title="Language model"):
    """The next token of a text, by cross-entropy, for a causal model of transformers.

    A record's loss is the mean over the tokens that are predicted in it, in all of its sequences.
    It depends on that record alone: padding is masked, and no sequence holds two records.
    """

    kind: Literal["causal_lm"] = "causal_lm"
    sequences: int = key(
        4,
        "Most sequences of model.length tokens that one record has. A longer text continues in the "
        "next sequence of the same record, so that it is clipped once; what is beyond the last is "
        "cut. Attention does not cross from one sequence to another.",
        unit="sequences",
        ge=1,
        le=64,
        examples=(4, 1),
    )
    format: Literal["plain", "chat"] = key(
        "plain",
        "plain: the text as it is, and an end token. chat: messages, by the tokeniser's chat "
        "template. Two columns are a question and its answer; one column holds a JSON list of "
        "messages with role and content.",
        title="Format of texts",
        examples=("plain", "chat"),
    )
    loss_on: Literal["text", "answer"] = key(
        "text",
        "Which tokens are predicted: those of the whole text, or those of the answer alone: the "
        "second column of text, or with format chat what the assistant says.",
        title="Predicted tokens",
        examples=("text", "answer"),
    )


TASK = one_of(
    "kind",
    ClassificationTask,
    RegressionTask,
    MultiLabelTask,
    TokenTask,
    LanguageTask,
    short_form=True,
)
