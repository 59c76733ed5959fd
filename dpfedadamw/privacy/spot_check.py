"""Records drawn at random are computed again by the plain form while a run trains.

Engines that compute clipped sums quickly lie outside the trusted core. Each is held to the plain
form before its first batch, on made-up records (`clipping.rehearsal`). This holds it to the plain
form while it runs, on the records themselves: the norm of one record of a batch is computed again,
and the clipped sum of that record and one other is compared as a vector. A difference beyond
rounding ends the run before anything of the participation is released.

The first batch of a process is checked, and from then on as many as fit into a fiftieth of the time
that clipped sums take: of large models one in nearly every participation, of small ones, where a
call costs as much as many records, one in tens. Which batch and which record is drawn by the
operating system, so the streams of a run that can be repeated stay as they are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.clipped_sum import ClippedSum, ClippedSumEngine, Clipping, Loss, summed
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.vectors.precision import FLOAT32

# Of a record's norm, between two ways of computing one gradient in float32. Rounding left 4 % of it
# at most; a record that is mistaken for another is off by about 1. An engine that is off by less
# adds at most this share of C to what a record can move.
_ROUNDING = {FLOAT32: 2e-3}
# In bfloat16 every product has 8 significant bits.
_ROUNDING_OF_SHORT_NUMBERS = 2.0**-4
# Of the time that clipped sums take, what the check may take; and one in so many batches, then.
_SHARE_OF_TIME, _ONE_IN = 0.02, 4
# Rounding may decide on which side of zero a rectifier's input lies, or which of two equal numbers
# is a maximum, and so whether a path counts in the gradient. Before a difference is taken for a
# mistake, the plain form is asked again with its layers' inputs moved, each time by so many units
# of float32's rounding. Those of bfloat16 are not small, and what is allowed there covers kinks.
MOVES = 8 * (2.0, 8.0, 32.0)
# Close to its dtype's largest number a gradient is finite in one form and not in the other.
_NEAR_OVERFLOW = 1e-3


class SpotCheckError(PrivacyError):
    """An engine's clipped gradient is not that of the plain form."""


class SpotCheck:
    """Compares an engine with the plain form, on one record and its neighbour.

    Args:
        model: The model, which the engine computes with too.
        loss: Outputs and targets to one loss a record.
        clipping: C and the rule.
        precision: What layers multiply in.

    Attributes:
        made: How many checks were made.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, clipping: Clipping, precision: str = FLOAT32
    ) -> None:
        self._model = model
        self._clipping = clipping
        self._plain = LoopEngine(model, loss, clipping, precision)
        self.made = 0
        self._credit = 0.0
        self._share = _ROUNDING.get(precision, _ROUNDING_OF_SHORT_NUMBERS)
        self._moves = MOVES if precision == FLOAT32 else ()

    def due(self, seconds: float) -> bool:
        """Whether a record of a batch is to be compared, whose clipped sum took so long.

        Args:
            seconds: What the engine took for the batch.
        """
        self._credit += _SHARE_OF_TIME * seconds
        # Once there is time for one, a batch drawn at random: steps that recur would else never be
        # looked at.
        return self._credit >= 0.0 and (self.made == 0 or secrets.randbelow(_ONE_IN) == 0)

    def __call__(
        self,
        engine: ClippedSumEngine,
        inputs: Tensor,
        targets: Tensor,
        norms: Tensor,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Compare the engine's answer on a batch with the plain form of one of its records.

        Args:
            engine: What computed the sum, at the model's current parameters.
            inputs: Two records of the batch, or one where it has no more, [n, …]; drawn at random.
            targets: Theirs, [n].
            norms: Their norms before clipping as the engine found them in the batch, [n].
            sizes: How many of the records each of n people has, who take their place; None where
                records stand for themselves.

        Raises:
            SpotCheckError: If they differ by more than rounding. No number of the records is told.
        """
        began = time.perf_counter()
        self._compare(engine, inputs, targets, norms, sizes)
        self.made += 1
        self._credit -= time.perf_counter() - began

    def _compare(
        self,
        engine: ClippedSumEngine,
        inputs: Tensor,
        targets: Tensor,
        norms: Tensor,
        sizes: Sequence[int] | None,
    ) -> None:
        each = [1] * len(targets) if sizes is None else list(sizes)
        people = list(zip(torch.split(inputs, each), torch.split(targets, each), each, strict=True))
        before = _random_state(inputs.device)
        first = self._plain_form(people[0])
        chancy = not torch.equal(before, _random_state(inputs.device))
        if chancy:
            # Dropout: the batch's own draw cannot be repeated, so that it is left out here.
            _restore(before, inputs.device)
        with _without_dropout(self._model) if chancy else nullcontext():
            if chancy:
                first = self._plain_form(people[0])
            together = summed(engine, inputs, targets, sizes).total.double()
            same_norm = chancy or self._same_norm(norms[:1], first.raw_norms)
            same_sum = self._same_sum(together, first, people[1:])
            for units in self._moves:
                if same_norm and same_sum:
                    return
                with moved(self._model, units):
                    first = self._plain_form(people[0])
                    same_norm = same_norm or self._same_norm(norms[:1], first.raw_norms)
                    same_sum = same_sum or self._same_sum(together, first, people[1:])
        if not (same_norm and same_sum):
            self._refuse(engine)

    def _plain_form(self, person: tuple[Tensor, Tensor, int]) -> ClippedSum:
        return self._plain.of_people(*person[:2], person[2:])

    def _same_sum(
        self, together: Tensor, first: ClippedSum, others: Sequence[tuple[Tensor, Tensor, int]]
    ) -> bool:
        total = first.total.double()
        for person in others:
            total += self._plain_form(person).total
        error = float((together - total).norm())
        return error <= self._share * (1 + len(others)) * self._clipping.norm

    def _same_norm(self, found: Tensor, right: Tensor) -> bool:
        limit = torch.finfo(torch.float32).max * _NEAR_OVERFLOW
        one, other = float(found[0]), float(right[0])
        if not (one < limit and other < limit):
            # Neither form has a gradient that counts, or the other's is close to where none does.
            return not (one < limit or other < limit)
        # For gradients far below C, an error that is small relative to C must be allowed.
        return abs(one - other) <= self._share * max(one, other) + 1e-5 * self._clipping.norm

    def _refuse(self, engine: ClippedSumEngine) -> None:
        raise SpotCheckError(
            f"the clipping engine {engine.name} computed a clipped gradient that differs from the "
            "plain form's, for a record drawn at random; the run ends here. Nothing of this "
            "participation was released, and it stays charged; use --engine loop, and please "
            "report this"
        )


def drawn(size: int) -> list[int]:
    """Places of two different records of a batch, or of its only one, at random."""
    first = secrets.randbelow(size)
    return [first] if size == 1 else [first, (first + 1 + secrets.randbelow(size - 1)) % size]


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state(device)])
    return torch.get_rng_state()


def _restore(state: Tensor, device: torch.device) -> None:
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[size:], device)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def moved(model: nn.Module, units: float) -> Iterator[None]:
    """What each layer is given is moved at random, by about what rounding can move it.

    Args:
        model: The model.
        units: By how many units of float32's rounding, of the root mean square of all that a layer
            is given.
    """

    def stream(device: torch.device) -> torch.Generator:
        # Of its own: the streams of a run that can be repeated stay as they are.
        generator = torch.Generator(device)
        generator.seed()
        return generator

    def near(given: object) -> object:
        if not (isinstance(given, Tensor) and given.is_floating_point()):
            return given
        size = given.detach().square().mean().sqrt() * (units * torch.finfo(torch.float32).eps)
        return given + size * torch.empty_like(given).normal_(generator=stream(given.device))

    layers = [module for module in model.modules() if not any(module.children())]
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: tuple(near(one) for one in given))
        for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
