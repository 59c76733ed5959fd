"""Class scores from the mean over a text's tokens, where the published classifier looks at one.

Classifiers of transformers read the first token. An encoder of sentences was trained for the mean
of its last layer instead (Reimers and Gurevych 2019): what stands at its first token tells little,
and a fresh head starts from little.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpfedadamw.errors import ModelError

MEAN = "mean"
# Architectures whose head is one layer over one vector a record.
_TAKES_A_VECTOR = ("albert", "bert")


def check(kind: str) -> None:
    """Refuse what has no mean.

    Raises:
        ModelError: If the head of such an architecture is not known to take one.
    """
    if kind not in _TAKES_A_VECTOR:
        raise ModelError(
            f"model.pooling: mean works for {' and '.join(_TAKES_A_VECTOR)}, not for a {kind}; "
            "leave it at published"
        )


def scores_of_mean(network: nn.Module, arguments: dict[str, Tensor]) -> Tensor:
    """Class scores [b, classes] of texts, from the mean over each one's tokens.

    Args:
        network: A classifier of transformers, wrapped by peft or not.
        arguments: Its ``input_ids`` and ``attention_mask`` [b, length], and what else it takes.
    """
    wrapped: Any = network
    classifier = wrapped.get_base_model() if hasattr(wrapped, "peft_config") else wrapped
    body = getattr(classifier, classifier.base_model_prefix)
    hidden: Tensor = body(**arguments).last_hidden_state
    mask = arguments["attention_mask"][:, :, None].to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0)
    scores: Tensor = classifier.classifier(mean)
    return scores
