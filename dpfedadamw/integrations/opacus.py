"""Records a training loop that uses Opacus, so that the auditor can judge it.

    recorder = Recorder("runs/my-loop", delta=1e-5)
    recorder.attach(optimizer, data_loader, model)   # after make_private, before training
    recorder.close()                                 # after training

``dpfedadamw sign``, ``audit`` and ``report`` then take the folder as any other run. Nothing of the
loop is changed: methods of the optimiser are wrapped for as long as it is recorded, and the data
loader's sampler is listened to. What is noted is private and stays in ``evidence/``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import opacus
import torch
from numpy.typing import NDArray
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.filing import after_training
from dpfedadamw.integrations.evidence import (
    MODULUS,
    SETTINGS,
    Charge,
    EvidenceWriter,
    Loop,
    Stated,
    Step,
)
from dpfedadamw.integrations.opacus_probe import LoopProbe
from dpfedadamw.run.checkpoints import tensor_list, write_weights
from dpfedadamw.rundir import RunDirectory

_RULES = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
_OTHER_FORMS = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")


class RecorderError(DpfedadamwError):
    """A loop cannot be recorded."""


@dataclass
class _Drawn:
    """A batch that the loader's sampler drew.

    Attributes:
        rows: Its records, [b].
        forwards: Passes through the model before it was drawn.
        iteration: Which pass over the loader drew it.
    """

    rows: NDArray[np.int64]
    forwards: int
    iteration: int


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


class Recorder:
    """Notes what a loop does, from the first `attach` to `close`.

    Args:
        run_dir: A folder that is new or empty; the run is named after it.
        delta: δ of the guarantee, in (0, 1) and below one over the number of records.
        continued: Whether to go on with what an earlier process recorded there and paused: a
            federated client has one folder for all of its rounds.
    """

    def __init__(self, run_dir: str | Path, delta: float, *, continued: bool = False) -> None:
        self._path = Path(run_dir)
        self._delta = delta
        self._continued = continued
        self._left = (0, 0)
        self._writer: EvidenceWriter | None = None
        self._attached: _Attachment | None = None
        self._squares = torch.zeros(0)
        self._accountants: list[Any] = []

    def attach(
        self,
        optimizer: DPOptimizer,
        data_loader: DataLoader[Any],
        model: nn.Module,
        *,
        privacy_engine: Any = None,
        criterion: Callable[..., Tensor] | None = None,
    ) -> None:
        """Begin to record; again for each further optimiser that the same training goes on with.

        Args:
            optimizer: What ``make_private`` returned.
            data_loader: The same.
            model: The same, or the module that it wraps.
            privacy_engine: The engine, whose accountant states ε; found by the optimiser's own
                step hook if left out.
            criterion: The loss function, for the probe; cross-entropy if left out.

        Raises:
            RecorderError: If such a loop cannot be recorded; the reason says why.
            DpfedadamwError: If the folder cannot be used.
        """
        self.detach()
        _refuse(optimizer, data_loader, model)
        inner = _inner(model)
        accountant = getattr(privacy_engine, "accountant", None) or _accountant_of(optimizer)
        if accountant is not None and not any(accountant is one for one in self._accountants):
            self._accountants.append(accountant)
        loop = _declared(optimizer, data_loader, inner, self._delta)
        if self._writer is None:
            self._writer = EvidenceWriter(self._path, loop, continued=self._continued)
            self._squares = torch.from_numpy(self._writer.squares.copy())
        elif (loop.tensors, loop.records) != (self._writer.loop.tensors, self._writer.loop.records):
            raise RecorderError(
                "the model's parameters or the number of records are others than at the first "
                "attach; record another training into another folder"
            )
        self._attached = _Attachment(
            self._writer, optimizer, data_loader, model, inner, criterion, self._squares
        )

    def detach(self) -> None:
        """Stop recording until the next `attach`; the loop's objects are as they were."""
        if self._attached is not None and self._attached.release():
            unused, skipped = self._attached.left_over()
            self._left = (self._left[0] + unused, self._left[1] + skipped)

    def pause(self, epsilon: float | None = None, accountant: str = "stated") -> Path:
        """Write down what was seen, for a later process that goes on (``continued=True``).

        Nobody needs to know which pause is the last: ``dpfedadamw evidence close`` ends a paused
        recording by what is said here.

        Args:
            epsilon: ε as the loop prints it by now; what its accountant says if left out.
            accountant: By what that was computed, such as "prv" or "classical".

        Returns:
            The run directory, which has no claim until it is closed.

        Raises:
            RecorderError: If nothing was attached.
        """
        attached, writer = self._attached, self._writer
        if attached is None or writer is None:
            raise RecorderError("nothing was attached: call attach before training, and pause once")
        self.detach()
        if writer.in_stretch:
            stated = self._stated(epsilon, accountant)
            fingerprint, digest = self._finish(attached, writer)
            writer.pause(
                stated, digest, fingerprint=fingerprint,
                unused=self._left[0], skipped=self._left[1],
            )  # fmt: skip
        else:
            writer.pause(unused=self._left[0], skipped=self._left[1])
        self._attached, self._writer = None, None
        return writer.path

    def close(self, epsilon: float | None = None, accountant: str = "stated") -> Path:
        """End the recording: probe the model, write it, and state what the loop prints.

        Args:
            epsilon: ε as the loop prints it; what its accountant says if left out.
            accountant: By what that was computed, such as "prv" or "classical".

        Returns:
            The run directory.

        Raises:
            RecorderError: If nothing was attached.
            DpfedadamwError: If no step was recorded, or the folder cannot be written to.
        """
        attached, writer = self._attached, self._writer
        if attached is None or writer is None:
            raise RecorderError("nothing was attached: call attach before training, and close once")
        self.detach()
        stated = self._stated(epsilon, accountant)
        fingerprint, digest = self._finish(attached, writer)
        writer.close(
            stated, digest, fingerprint=fingerprint, unused=self._left[0], skipped=self._left[1]
        )
        self._attached = None
        return writer.path

    def _finish(self, attached: _Attachment, writer: EvidenceWriter) -> tuple[int, str]:
        """Write the model and what it answers to made-up records; its checksum and digest."""
        inner = attached.inner
        fingerprint = _fingerprint(attached.parameters)
        run = RunDirectory(writer.path)
        write_weights(run.weights, inner)
        try:
            with attached.undisturbed():
                after_training.record_probe(run, attached.probe())
        except Exception as error:
            # Whatever a stranger's model answers to synthetic records: without results the check
            # "sensitivity" says that there are none.
            (run.evidence / "probe.npz").unlink(missing_ok=True)
            cause = error.__cause__ or error
            warnings.warn(
                "the model could not be asked with made-up records, so that whether it clips is "
                f"NOT VERIFIED ({type(cause).__name__}: {cause})",
                stacklevel=3,
            )
        return fingerprint, _digest(attached.parameters)

    def _stated(self, epsilon: float | None, accountant: str) -> Stated:
        """What the loop prints: as it was handed over, or as its accountant says."""
        # What accountants of earlier processes counted is not known here.
        history = None if self._continued else _history(self._accountants)
        if epsilon is None:
            return self._of_the_accountant(history)
        return Stated(epsilon=epsilon, accountant=accountant, history=history)

    def _of_the_accountant(self, history: Sequence[tuple[float, float, int]] | None) -> Stated:
        """What the accountant says that was attached last, which is what a loop prints."""
        if not self._accountants:
            return Stated(epsilon=None, accountant="unstated", history=history)
        last = self._accountants[-1]
        try:
            found: float | None = float(last.get_epsilon(self._delta))
        except Exception:
            # An accountant that fails states nothing, and the auditor says so.
            found = None
        return Stated(epsilon=found, accountant=str(last.mechanism()), history=_history([last]))


class _Attachment:
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
        self.parameters = [one for one in inner.parameters() if one.requires_grad]
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._places = _places(self.parameters, writer.sample)
        self._summed = _places(self.parameters, writer.summed)
        self._drawn: deque[_Drawn] = deque()
        self._forwards = self._iterations = 0
        self._gathered = _Gathered()
        self._pending: _Pending | None = None
        self._template: tuple[tuple[int, ...], str | None] | None = None
        self._modes: list[tuple[nn.Module, bool]] = []
        self._undo: list[Callable[[], None]] = []
        writer.attach(self._groups())
        self._listen()

    def __deepcopy__(self, _: dict[int, Any]) -> _Attachment:
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
        shape, keyword = self._template or (None, None)
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
        )

    def left_over(self) -> tuple[int, int]:
        """Batches since the last step that went through the model, and that were passed over."""
        return self._set_aside(list(self._drawn), ended=True)

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
        self._undo.append(_listen_to(self._loader.batch_sampler, self._draw, self._begin_iteration))

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
        self._forwards += 1
        if self._template is None:
            # Labels beside it are whole numbers, and of one dimension.
            given = [(None, one) for one in args] + [*keywords.items()]
            read = [(name, one) for name, one in given if isinstance(one, Tensor) and one.dim() > 1]
            if len(read) == 1 and read[0][1].is_floating_point() and len(args) <= 1:
                # Its shape alone is kept.
                self._template = tuple(read[0][1].shape[1:]), read[0][0]

    def _begin_iteration(self) -> None:
        self._iterations += 1

    def _draw(self, rows: Sequence[int]) -> None:
        kept = np.asarray(rows, np.int64)
        self._drawn.append(_Drawn(kept, self._forwards, self._iterations))

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
        before, fingerprint = self._values(), _fingerprint(self.parameters)
        settings = self._settings()
        answer = update()
        rows, unused, skipped = self._batch(gathered.records)
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
                after_fingerprint=_fingerprint(self.parameters),
                settings=settings,
                unused=unused,
                skipped=skipped,
            ),
            self._squares.numpy(),
        )
        return answer

    def _batch(self, records: int) -> tuple[NDArray[np.int64] | None, int, int]:
        """The records of a step of so many gradients, and batches drawn before and not used."""
        if not self._drawn:
            return None, 0, 0
        ahead = getattr(self._loader, "num_workers", 0) > 0
        used: list[_Drawn] = []
        while self._drawn and (not used or sum(len(one.rows) for one in used) < records):
            # Worker processes draw ahead, so that the oldest batch is the one that came.
            used.append(self._drawn.popleft() if ahead else self._drawn.pop())
        rest: list[_Drawn] = [] if ahead else list(self._drawn)
        if not ahead:
            self._drawn.clear()
        ordered = used if ahead else used[::-1]
        unused, skipped = self._set_aside([*rest, *([] if ahead else ordered[:1])])
        return np.concatenate([one.rows for one in ordered]), unused, skipped

    def _set_aside(self, drawn: list[_Drawn], ended: bool = False) -> tuple[int, int]:
        """Count batches without a step: looked at, and passed over. The last one given was used.

        A batch that the end of a pass over the loader left undone is neither.
        """
        if getattr(self._loader, "num_workers", 0) > 0:
            return 0, 0
        unused = skipped = 0
        ends = [(one.forwards, one.iteration) for one in drawn[1:]]
        if ended:
            ends.append((self._forwards, self._iterations + 1))
        for one, (forwards, iteration) in zip(drawn, ends, strict=False):
            if forwards > one.forwards:
                unused += 1
            elif iteration == one.iteration:
                skipped += 1
        return unused, skipped

    def _charge(self) -> Charge:
        optimizer = self._optimizer
        accumulated = max(1, int(optimizer.accumulated_iterations))
        rate = min(1.0, _sampling_rate(self._loader) * accumulated)
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


def _settings_of(group: dict[str, Any]) -> list[float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    found = {
        "learning_rate": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        **{name: group.get(name, 0.0) for name in SETTINGS if name in group},
    }
    return [float(found.get(name, 0.0)) for name in SETTINGS]


def _refuse(optimizer: Any, loader: Any, model: Any) -> None:
    """Refuse what cannot be recorded, with the reason."""
    if not isinstance(optimizer, DPOptimizer):
        raise RecorderError(
            f"{type(optimizer).__name__} is no optimiser of Opacus; attach what "
            "PrivacyEngine.make_private returned"
        )
    if isinstance(optimizer, DistributedDPOptimizer) or "Distributed" in type(optimizer).__name__:
        raise RecorderError(
            "a distributed loop is not recorded: each process sees its share of the sum and of the "
            "noise alone, and no one of them what was released; record a loop of one process"
        )
    if isinstance(optimizer, DPPerLayerOptimizer | AdaClipDPOptimizer) or not isinstance(
        optimizer.max_grad_norm, int | float
    ):
        raise RecorderError(
            "clipping per layer, or by a norm that adapts, is not recorded: the auditor judges one "
            'norm over all parameters; use clipping="flat"'
        )
    if not optimizer.noise_multiplier > 0.0:
        raise RecorderError(
            "the noise multiplier is 0: nothing is private and there is nothing to record; give "
            "make_private one above 0"
        )
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        raise RecorderError("the data loader draws no batches; attach what make_private returned")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise RecorderError("a distributed model is not recorded; record a loop of one process")
    if not isinstance(model, nn.Module):
        raise RecorderError(
            f"{type(model).__name__} is no module; attach the model that is trained"
        )
    if not isinstance(loader.batch_sampler, Sampler):
        raise RecorderError(
            f"the data loader takes its batches from a {type(loader.batch_sampler).__name__}, "
            "which cannot be listened to; use a sampler of torch, as make_private does"
        )
    ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
    if ghost and not hasattr(model, "get_norm_sample"):
        raise RecorderError(
            "ghost clipping of a model that is not wrapped is not recorded, for its wrapper alone "
            "knows the records' norms; leave out wrap_model=False, and attach what make_private "
            "returned"
        )


def _declared(
    optimizer: DPOptimizer, loader: DataLoader[Any], inner: nn.Module, delta: float
) -> Loop:
    original = optimizer.original_optimizer
    rule = _RULES.get(type(original), type(original).__name__)
    if any(group.get(name) for group in original.param_groups for name in _OTHER_FORMS) and (
        rule != "adamw"
    ):
        rule = f"{rule} in another form"
    named = [(name, one) for name, one in inner.named_parameters() if one.requires_grad]
    mode = "ghost" if isinstance(optimizer, DPOptimizerFastGradientClipping) else "per-sample"
    secure = bool(optimizer.secure_mode)
    return Loop(
        producer="opacus",
        version=str(opacus.__version__),
        mode=mode,
        generator="cryptographic (secure_mode)" if secure else "torch's default generator",
        secure=secure,
        optimizer=rule,
        records=len(loader.dataset),  # type: ignore[arg-type]
        delta=delta,
        tensors=tuple((name, one.numel()) for name, one in named),
        model_tensors=tuple(tensor_list(inner)),
    )


def _inner(model: nn.Module) -> nn.Module:
    """The module that Opacus wraps."""
    inner = getattr(model, "_module", model)
    assert isinstance(inner, nn.Module)
    return inner


def _accountant_of(optimizer: DPOptimizer) -> Any:
    """The accountant that the optimiser's step hook tells of each step; None if there is none."""
    for cell in getattr(optimizer.step_hook, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "get_epsilon"):
            return cell.cell_contents
    return None


def _history(accountants: Sequence[Any]) -> list[tuple[float, float, int]] | None:
    found = [list(getattr(one, "history", [])) for one in accountants]
    if not found:
        return None
    return [(float(noise), float(rate), int(steps)) for one in found for noise, rate, steps in one]


def _sampling_rate(loader: DataLoader[Any]) -> float:
    """What Opacus bills: the sampler's own rate, else one over the number of batches."""
    sampler = loader.batch_sampler
    if isinstance(sampler, UniformWithReplacementSampler):
        return float(sampler.sample_rate)
    return 1.0 / max(1, len(loader))


def _listen_to(
    sampler: Any, drawn: Callable[[Sequence[int]], None], begun: Callable[[], None]
) -> Callable[[], None]:
    """Hear of every batch that a sampler draws; returns what undoes it."""
    kind = type(sampler)

    def listened(self: Any) -> Iterator[Any]:
        begun()
        for batch in kind.__iter__(self):
            drawn(batch)
            yield batch

    # Iteration is looked up on the class, and the loader may hand the sampler itself to others.
    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": listened})

    def undo() -> None:
        sampler.__class__ = kind

    return undo


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


@torch.no_grad()
def _fingerprint(parameters: Sequence[Tensor]) -> int:
    """A checksum of all parameters, as `evidence.fingerprint` has it."""
    total = 0
    for one in parameters:
        flat = one.detach().float().contiguous().reshape(-1)
        total += int(flat.view(torch.int32).sum(dtype=torch.int64))
    return total % MODULUS


def _digest(parameters: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for one in parameters:
        digest.update(one.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()
