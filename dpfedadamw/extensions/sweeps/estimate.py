"""How long a cell may take on a GPU, from what its model computes: nothing is measured.

A record in a step passes forwards, backwards through the activations, and backwards to the weights
that are trained: of the forward pass's operations once, once, and as large a share as is trained.
The forward pass is counted by torch on a model without values. Time is operations over a rate that
the caller states; noise, evaluation, evidence and audit are left out. Small models do not fill a
GPU and take longer.
"""

from __future__ import annotations

from typing import Any

from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.data.registry import DATASETS, Contents
from dpfedadamw.errors import ModelError
from dpfedadamw.models import registry as models
from dpfedadamw.models.registry import MODELS
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.sections import Spec


class Estimator:
    """Counts a model's operations once, however many cells train it."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, tuple[int, ...], int], float | None] = {}

    def operations(self, spec: Spec) -> float | None:
        """Floating-point operations of a cell's training, at most; None where nobody can tell.

        A run that ends at a budget, or whose local steps adapt, may do less.
        """
        entry = DATASETS[spec.data.dataset]
        contents = entry.contents(spec.data) if entry.contents is not None else None
        if contents is None:
            return None
        key = (repr(spec.model), contents.shape, contents.classes)
        if key not in self._counted:
            self._counted[key] = _of_a_record(spec.model, contents)
        each = self._counted[key]
        return None if each is None else each * _passes(spec, contents)


def _passes(spec: Spec, contents: Contents) -> float:
    """How often records pass through the model and back."""
    federation, sampling = spec.federation, spec.privacy.sampling
    share = contents.train / spec.data.clients
    batch = sampling.expected_batch_size or sampling.batch_size or share
    if sampling.rate is not None:
        batch = sampling.rate * share
    steps = federation.local_steps
    adapting = getattr(spec.algorithm, "local_iterations", None)
    if adapting is not None:
        steps = adapting.maximum
    queries = ALGORITHMS[spec.algorithm.name].queries_per_step
    return federation.rounds * federation.clients_per_round * steps * batch * queries


def _of_a_record(keys: ModelSpec, contents: Contents) -> float | None:
    """Operations of one record's forward and backward pass."""
    import torch

    plain: Any = MODELS[keys.name].without_weights(keys)
    source = type(plain).model_fields.get("source")
    if source is not None and not source.is_required():
        # What is published under the name; its files need not be here.
        plain = plain.replace(source=None, revision=None)
    try:
        form = models.preprocessing(plain)
        shape = contents.shape or (2, getattr(plain, "length", None) or 128)
        if isinstance(form, ImagePreprocessing) and form.size is not None:
            shape = (shape[0], form.size, form.size)
        try:
            with torch.device("meta"):
                return _counted(plain, shape, contents.classes)
        except (NotImplementedError, RuntimeError):
            # Some models look at the values of their records.
            return _counted(plain, shape, contents.classes)
    except ModelError:
        return None


def _counted(keys: ModelSpec, shape: tuple[int, ...], classes: int) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = models.build(keys, shape, classes, 0).eval()
    tokens = models.vocabulary_of(model)
    record = torch.zeros((1, *shape), dtype=torch.int32 if tokens else torch.float32)
    if tokens:
        record[:, 0] = 5
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(record)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, wanted in sizes if wanted) / sum(size for size, _ in sizes)
    return float(counter.get_total_flops()) * (2 + trained)
