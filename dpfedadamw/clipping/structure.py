"""Whether a model is still made as it was when it was last looked through.

To find where all parameters of a transformer are used, and that no layer mixes records, takes as
long as several of its layers compute. Between two batches nothing of it changes as a rule; this
says whether it did.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch import nn


class Structure:
    """A model's modules, parameters and buffers, by identity, and their modes.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = tuple(model.modules())
        # Held, so that nothing new can take the place of what is gone.
        self._seen = tuple(self._look())

    def unchanged(self) -> bool:
        """Whether modules, parameters, what is trained, and modes are what they were."""
        now = tuple(self._look())
        return len(now) == len(self._seen) and all(map(operator.is_, now, self._seen))

    def _look(self) -> Iterator[object]:
        for module in self._modules:
            own = vars(module)
            yield from own["_modules"].values()
            yield from own["_buffers"].values()
            for parameter in own["_parameters"].values():
                yield parameter
                yield parameter is not None and parameter.requires_grad
            yield own["training"]
            yield own.get("track_running_stats")
            yield "forward" in own
            yield type(module).forward
