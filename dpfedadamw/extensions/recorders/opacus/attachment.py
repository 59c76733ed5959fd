"""One stretch of a loop: its objects, listened to while gradients are clipped, noised and used."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpfedadamw.extensions.recorders.evidence import MODULUS, SETTINGS, Charge, EvidenceWriter, Step
from dpfedadamw.extensions.recorders.opacus.batches import Batches
from dpfedadamw.extensions.recorders.opacus.declaration import sampling_rate, trained
from dpfedadamw.extensions.recorders.opacus.probe import LoopProbe


@dataclass
class _Pending:
    """A step between its noise and the update."""

    noise_sum_squares: NDArray[np.float64]
    clean_sum_squares: NDArray[np.float64]
    silent: int
    largest: float
    noise: NDArray[np.float32]
    clean: NDArray[np.float32]


@dataclass
class _Gathered:
    """What was seen of a step before its noise, virtual steps together."""

    norms: list[NDArray[np.float32]] = field(default_factory=list)
    expected: NDArray[np.float64] | None = None

    @property
    def records(self) -> int:
        return sum(map(len, self.norms))


class Attachment:
    """One stretch of a loop: its objects, listened to.

    Args:
        writer: Gets what is seen.
        optimizer: Opacus' optimiser.
        data_loader: The loader of private records.
        model: The model as it is called.
        inner: The module with the parameters.
        criterion: The loss function, for the probe.
        squares: Where squared noise is added up over all stretches, [k].
    """

    def __init__(
        self,
        writer: EvidenceWriter,
        optimizer: DPOptimizer,
        data_loader: DataLoader[Any],
        model: nn.Module,
        inner: nn.Module,
        criterion: Callable[..., Tensor] | None,
        squares: Tensor,
    ) -> None:
        self._writer = writer
        self._squares = squares
        self._optimizer = optimizer
        self._loader = data_loader
        self._model = model
        self.inner = inner
        self._criterion = criterion
        self.parameters = [one for _, one in trained(optimizer, inner)]
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._places = _places(self.parameters, writer.sample)
        self._summed = _places(self.parameters, writer.summed)
        self._batches = Batches(data_loader)
        self._gathered = _Gathered()
        self._pending: _Pending | None = None
        self._template: tuple[tuple[int, ...], str | None, bool] | None = None
        self._modes: list[tuple[nn.Module, bool]] = []
        self._undo: list[Callable[[], None]] = []
        writer.attach(self._groups())
        self._listen()

    def __deepcopy__(self, _: dict[int, Any]) -> Attachment:
        """A copy of the model hangs on this listener too; there is one recording."""
        return self

    def release(self) -> bool:
        """Take all wrappers off again; returns whether there were any."""
        listening = bool(self._undo)
        while self._undo:
            self._undo.pop()()
        return listening

    def probe(self) -> LoopProbe:
        """The loop's own step, to be asked with synthetic records."""
        shape, keyword, tokens = self._template or (None, None, False)
        # As in training, whatever was evaluated since.
        for module, training in self._modes:
            module.training = training
        return LoopProbe(
            self._model,
            self.inner,
            self._optimizer,
            self.parameters,
            shape,
            self._criterion,
            keyword,
            tokens=tokens,
        )

    def left_over(self) -> tuple[int, int]:
        """Batches since the last step that went through the model, and that were passed over."""
        return self._batches.left_over()

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Leave model, optimiser and torch's generator afterwards as they were before."""
        kept = [
            {name: getattr(one, name) for name in ("grad", "grad_sample", "summed_grad")
             if hasattr(one, name)}
            for one in self.parameters
        ]  # fmt: skip
        values = [one.detach().clone() for one in self.parameters]
        buffers = [one.detach().clone() for one in self.inner.buffers()]
        modes = [(one, one.training) for one in self._model.modules()]
        skipped = self._optimizer._is_last_step_skipped
        queue = list(self._optimizer._step_skip_queue)
        try:
            with torch.random.fork_rng():
                yield
        finally:
            with torch.no_grad():
                for one, value in zip(self.parameters, values, strict=True):
                    one.copy_(value)
                for buffer, value in zip(self.inner.buffers(), buffers, strict=True):
                    buffer.copy_(value)
            for one, attributes in zip(self.parameters, kept, strict=True):
                for name, value in attributes.items():
                    setattr(one, name, value)
            for module, training in modes:
                module.training = training
            self._optimizer._is_last_step_skipped = skipped
            self._optimizer._step_skip_queue[:] = queue

    def _listen(self) -> None:
        optimizer = self._optimizer
        self._wrap(optimizer, "add_noise", self._around_noise)
        if self._ghost:
            self._wrap(optimizer, "accumulate", self._around_accumulation)
            self._wrap(self._model, "get_norm_sample", self._around_norms)
        else:
            self._wrap(optimizer, "clip_and_accumulate", self._around_clipping)
        self._wrap(optimizer.original_optimizer, "step", self._around_update)
        handle = self._model.register_forward_pre_hook(self._forward, with_kwargs=True)
        self._undo.append(handle.remove)
        self._undo.append(self._batches.listen())

    def _wrap(self, target: Any, name: str, around: Callable[[Callable[..., Any]], Any]) -> None:
        """Put a wrapper around a method of one object."""
        method, own = getattr(target, name), vars(target).get(name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(functools.partial(method, *args, **kwargs))

        def undo() -> None:
            if own is not None:
                setattr(target, name, own)
            else:
                delattr(target, name)

        setattr(target, name, wrapped)
        self._undo.append(undo)

    def _forward(self, _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._batches.forward()
        if self._template is None:
            # Its labels are whole numbers, in one dimension.
            given = [(None, one) for one in args] + [*keywords.items()]
            read = [(name, one) for name, one in given if isinstance(one, Tensor) and one.dim() > 1]
            ids = keywords.get("input_ids")
            if not args and isinstance(ids, Tensor) and ids.dim() == 2:
                # A model of transformers makes up the masks that it is not given.
                read = [("input_ids", ids)]
            if len(read) == 1 and len(args) <= 1:
                # Its shape alone is kept.
                name, one = read[0]
                self._template = tuple(one.shape[1:]), name, not one.is_floating_point()

    @torch.no_grad()
    def _around_clipping(self, clip: Callable[[], Any]) -> Any:
        """Norms of every record's gradient, and the sum that clipping should make of them."""
        parts = [
            (place, _by_record(getattr(one, "grad_sample", None)))
            for one, place in zip(self.parameters, self._places, strict=True)
        ]
        for piece in range(max((len(found) for _, found in parts), default=0)):
            here = [(place, found[piece]) for place, found in parts if piece < len(found)]
            squares = torch.stack(
                [torch.linalg.vector_norm(found, dim=1).square() for _, found in here]
            )
            norms = squares.sum(0).sqrt()
            factors = (float(self._optimizer.max_grad_norm) / (norms + 1e-6)).clamp(max=1.0)
            sampled = [
                (factors[:, None] * found[piece][:, place]).sum(0).double().cpu()
                if piece < len(found)
                else torch.zeros(len(place), dtype=torch.float64)
                for place, found in parts
            ]
            self._expect(torch.cat(sampled).numpy(), norms.cpu().numpy())
        return clip()

    def _expect(self, expected: NDArray[np.float64], norms: NDArray[np.float32] | None) -> None:
        gathered = self._gathered
        gathered.expected = expected if gathered.expected is None else gathered.expected + expected
        if norms is not None:
            gathered.norms.append(norms.astype(np.float32))

    def _around_norms(self, find: Callable[[], Tensor]) -> Tensor:
        norms = find()
        self._gathered.norms.append(norms.detach().float().cpu().numpy())
        return norms

    def _around_accumulation(self, accumulate: Callable[[], Any]) -> Any:
        gradients = [one.grad for one in self.parameters]
        self._expect(self._at_sample(gradients, self._places), None)
        return accumulate()

    def _around_noise(self, draw: Callable[[], Any]) -> Any:
        self._writer.charge(self._charge())
        self._modes = [(module, module.training) for module in self._model.modules()]
        clean = self._at_sample([_sum_of(one) for one in self.parameters], self._places)
        answer = draw()
        self._pending = self._look(clean)
        return answer

    @torch.no_grad()
    def _look(self, clean: NDArray[np.float64]) -> _Pending:
        """What lies between the sums before and after noise, tensor by tensor."""
        noise_squares, clean_squares, silent, largest = [], [], 0, 0.0
        sampled, summed = [], []
        for one, place, added in zip(self.parameters, self._places, self._summed, strict=True):
            before = _sum_of(one)
            if one.grad is None:
                noise = torch.zeros(one.numel())
            else:
                noise = one.grad.detach().reshape(-1)
                noise = noise - before.reshape(-1) if before is not None else noise
            noise_squares.append(_square_sum(noise))
            clean_squares.append(0.0 if before is None else _square_sum(before.reshape(-1)))
            silent += noise.numel() - int(torch.count_nonzero(noise))
            # Without a copy of it.
            least, most = noise.aminmax()
            largest = max(largest, float(most), -float(least))
            sampled.append(noise[place].float().cpu())
            summed.append(noise[added].float().cpu())
        scale = float(self._optimizer.noise_multiplier * self._optimizer.max_grad_norm)
        # In units of the variance that is charged, whatever was drawn.
        self._squares += (torch.cat(summed) / scale).square()
        return _Pending(
            np.asarray(noise_squares), np.asarray(clean_squares), silent, largest,
            torch.cat(sampled).numpy(), clean.astype(np.float32),
        )  # fmt: skip

    def _around_update(self, update: Callable[[], Any]) -> Any:
        """The optimiser's own step. One without noise before it shows in the next checksum."""
        pending, self._pending = self._pending, None
        if pending is None:
            return update()
        gathered, self._gathered = self._gathered, _Gathered()
        released = self._at_sample([one.grad for one in self.parameters], self._places)
        before, fingerprint = self._values(), fingerprint_of(self.parameters)
        settings = self._settings()
        answer = update()
        rows, unused, skipped = self._batches.of_step(gathered.records)
        norms = np.concatenate([np.zeros(0, np.float32), *gathered.norms])
        expected = gathered.expected
        self._writer.step(
            Step(
                rows=rows,
                raw_norms=norms,
                noise_sum_squares=pending.noise_sum_squares,
                clean_sum_squares=pending.clean_sum_squares,
                noise_silent=pending.silent,
                noise_largest=pending.largest,
                noise_sample=pending.noise,
                clean_sample=pending.clean,
                expected_sample=np.zeros(len(before), np.float32)
                if expected is None
                else expected.astype(np.float32),
                released_sample=released.astype(np.float32),
                before_sample=before,
                after_sample=self._values(),
                before_fingerprint=fingerprint,
                after_fingerprint=fingerprint_of(self.parameters),
                settings=settings,
                unused=unused,
                skipped=skipped,
            ),
            self._squares.numpy(),
        )
        return answer

    def _charge(self) -> Charge:
        optimizer = self._optimizer
        accumulated = max(1, int(optimizer.accumulated_iterations))
        rate = min(1.0, sampling_rate(self._loader) * accumulated)
        divisor = float(optimizer.expected_batch_size or 1) * accumulated
        if optimizer.loss_reduction == "sum":
            divisor = 1.0
        return Charge(
            sampling_rate=rate,
            expected_batch_size=divisor,
            clipping_norm=float(optimizer.max_grad_norm),
            noise_multiplier=float(optimizer.noise_multiplier),
        )

    def _at_sample(
        self, values: Sequence[Tensor | None], places: Sequence[Tensor]
    ) -> NDArray[np.float64]:
        found = [
            torch.zeros(len(place))
            if value is None
            else value.detach().reshape(-1)[place].float().cpu()
            for value, place in zip(values, places, strict=True)
        ]
        return torch.cat(found).double().numpy()

    def _values(self) -> NDArray[np.float32]:
        return self._at_sample(self.parameters, self._places).astype(np.float32)

    def _groups(self) -> NDArray[np.int64]:
        """Parameter group of each sampled coordinate; 0 for what the optimiser does not have."""
        group = {
            id(one): index
            for index, entry in enumerate(self._optimizer.param_groups)
            for one in entry["params"]
        }
        return np.concatenate(
            [
                np.full(len(place), group.get(id(one), 0), np.int64)
                for one, place in zip(self.parameters, self._places, strict=True)
            ]
        )

    def _settings(self) -> NDArray[np.float64]:
        return np.asarray(
            [_settings_of(group) for group in self._optimizer.param_groups], np.float64
        )


@torch.no_grad()
def fingerprint_of(parameters: Sequence[Tensor]) -> int:
    """A checksum of all parameters, as `evidence.fingerprint` has it."""
    total = 0
    for one in parameters:
        flat = one.detach().float().contiguous().reshape(-1)
        total += int(flat.view(torch.int32).sum(dtype=torch.int64))
    return total % MODULUS


def digest_of(parameters: Sequence[Tensor]) -> str:
    """Sha256 (hex) of all parameters as one vector of float32."""
    digest = hashlib.sha256()
    for one in parameters:
        digest.update(one.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def _settings_of(group: dict[str, Any]) -> list[float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    found = {
        "learning_rate": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        **{name: group[name] for name in SETTINGS if name in group},
    }
    return [float(found.get(name, 0.0)) for name in SETTINGS]


def _places(parameters: Sequence[Tensor], chosen: NDArray[np.int64]) -> list[Tensor]:
    """Chosen coordinates of the whole vector as places in each parameter."""
    stops = np.cumsum([one.numel() for one in parameters])
    starts = stops - [one.numel() for one in parameters]
    return [
        torch.from_numpy(chosen[(chosen >= start) & (chosen < stop)] - start).to(one.device)
        for one, start, stop in zip(parameters, starts.tolist(), stops.tolist(), strict=True)
    ]


def _by_record(value: Any) -> list[Tensor]:
    """Gradients of single records, one row each, [b, size] for each backward pass."""
    if value is None:
        return []
    parts = list(value) if isinstance(value, list) else [value]
    return [one.reshape(len(one), math.prod(one.shape[1:])) for one in parts]


def _sum_of(parameter: Tensor) -> Tensor | None:
    found: Tensor | None = getattr(parameter, "summed_grad", None)
    return found


def _square_sum(values: Tensor) -> float:
    """Sum of squares; the float32 dot product is exact enough below a few millions of terms."""
    return float(torch.dot(values.float(), values.float()))
