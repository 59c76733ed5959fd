"""The section `task` of a spec: what a model's outputs are held against, and by which loss."""

from __future__ import annotations

from typing import Literal

from dpfedadamw.spec.section import AbsentInteger, AbsentNumber, AbsentText, Section, key, one_of

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTI_LABEL, TOKENS = "multi_label", "token_classification"


class TaskSpec(Section, title="Task"):
    """What the model is trained to tell of a record."""

    kind: str = key(
        "classification",
        "What the model is trained to tell of a record: {names}. Clipping bounds a record's whole "
        "gradient whatever the loss is: each is a function of that record alone.",
        title="Task",
    )
    loss: AbsentText = None
    huber_delta: AbsentNumber = None
    reduction: AbsentText = None
    ignore_index: AbsentInteger = None


class ClassificationTask(TaskSpec, title="Classification"):
    """One class a record, by cross-entropy."""

    kind: Literal["classification"] = "classification"


class RegressionTask(TaskSpec, title="Regression"):
    """One or more numbers a record."""

    kind: Literal["regression"] = "regression"
    loss: Literal["mean_squared_error", "huber"] = key(
        "mean_squared_error",
        "Loss of a record, the mean over its targets: mean_squared_error, or huber (Huber 1964), "
        "which is half the square of an error up to huber_delta and grows in a line beyond.",
        examples=("mean_squared_error", "huber"),
    )
    huber_delta: float = key(
        1.0,
        "Error at which huber turns from a square into a line, in the targets' unit.",
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
        "How the losses of a record's own tokens become the record's: mean or sum. Never a mean "
        "over the tokens of a batch, in which a record would change the weight of all others.",
        examples=("mean", "sum"),
    )
    ignore_index: int = key(
        -100,
        "Label of tokens that count for nothing, as of padding.",
        title="Ignored label",
        unit="none",
        ge=-1_000_000,
        le=-1,
        examples=(-100, -1),
    )


TASK = one_of(
    "kind", ClassificationTask, RegressionTask, MultiLabelTask, TokenTask, short_form=True
)
