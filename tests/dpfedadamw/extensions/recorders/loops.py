"""Small training loops around Opacus: correct ones, and ones with the mistakes of published loops.

Each is a function of a recorder's folder; `CORRECT` and `BROKEN` name them. A broken loop differs
from a correct one in one thing, and names the check that must say so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfedadamw.extensions.recorders.opacus import Recorder

RECORDS, BATCH, EPOCHS, DELTA = 192, 24, 2, 1e-5


@dataclass
class Parts:
    """What `make_private` returned, and the engine."""

    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any
    criterion: Any


def network(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), *between, nn.Linear(12, 3))


def data() -> TensorDataset:
    inputs = 3.0 * torch.randn(RECORDS, 6)
    return TensorDataset(inputs, torch.randint(0, 3, (RECORDS,)))


def private(
    *,
    mode: str = "hooks",
    adam: bool = False,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    dataset: TensorDataset | None = None,
    engine: PrivacyEngine | None = None,
    noise: float = 1.0,
    generator: torch.Generator | None = None,
    **further: Any,
) -> Parts:
    """A model, its optimiser and loader, made private."""
    warnings.filterwarnings("ignore", module="opacus|torch")
    model = network() if model is None else model
    dataset = data() if dataset is None else dataset
    if optimizer is None and adam:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    elif optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    engine = engine or PrivacyEngine(accountant="rdp")
    criterion: Any = nn.CrossEntropyLoss()
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=BATCH, shuffle=True, generator=generator),
        noise_multiplier=noise,
        max_grad_norm=0.5,
        grad_sample_mode=mode,
        criterion=criterion,
        **further,
    )
    if mode == "ghost":
        model, private_optimizer, criterion, loader = made
    else:
        model, private_optimizer, loader = made
    return Parts(engine, model, private_optimizer, loader, criterion)


def as_class(parts: Parts, kind: type[DPOptimizer]) -> Parts:
    """The optimiser with the methods of a broken one, as if its author had written that."""
    parts.optimizer.__class__ = kind
    return parts


def epoch(parts: Parts, loader: Any = None) -> None:
    for inputs, labels in parts.loader if loader is None else loader:
        parts.optimizer.zero_grad()
        parts.criterion(parts.model(inputs), labels).backward()
        parts.optimizer.step()


def recorded(folder: Path, parts: Parts, train: Callable[[], None] | None = None) -> Path:
    """Record a loop of a few epochs."""
    recorder = Recorder(folder, delta=DELTA)
    recorder.attach(parts.optimizer, parts.loader, parts.model)
    if train is None:
        for _ in range(EPOCHS):
            epoch(parts)
    else:
        train()
    return recorder.close()


# Correct loops.


def hooks(folder: Path) -> Path:
    parts = private()

    def train() -> None:
        for _ in range(EPOCHS):
            parts.model.train()
            epoch(parts)
            # On records of its own, and closed in this mode.
            parts.model.eval()
            parts.model(torch.randn(50, 6))

    return recorded(folder, parts, train)


def ghost_clipping(folder: Path) -> Path:
    return recorded(folder, private(mode="ghost"))


def functorch(folder: Path) -> Path:
    return recorded(folder, private(mode="functorch"))


def adam(folder: Path) -> Path:
    return recorded(folder, private(adam=True))


def virtual_steps(folder: Path) -> Path:
    parts = private()

    def train() -> None:
        for _ in range(EPOCHS):
            with BatchMemoryManager(
                data_loader=parts.loader, max_physical_batch_size=7, optimizer=parts.optimizer
            ) as loader:
                epoch(parts, loader)

    return recorded(folder, parts, train)


def noise_that_changes(folder: Path) -> Path:
    parts = private(noise=1.5)
    schedule = ExponentialNoise(parts.optimizer, gamma=0.8)

    def train() -> None:
        for _ in range(EPOCHS):
            epoch(parts)
            schedule.step()

    return recorded(folder, parts, train)


def several_rounds(folder: Path) -> Path:
    """A federated client: made private anew each round, with one engine for all of them."""
    return _rounds(folder, PrivacyEngine(accountant="rdp"))


def _rounds(folder: Path, engine: PrivacyEngine | None) -> Path:
    recorder, dataset, model = Recorder(folder, delta=DELTA), data(), network()
    for _ in range(3):
        # A server's average replaces the parameters between two rounds.
        parts = private(model=model, dataset=dataset, engine=engine)
        recorder.attach(parts.optimizer, parts.loader, parts.model)
        epoch(parts)
        model = anew(parts)
    return recorder.close()


def federated_client(
    folder: Path, *, keeps_its_accountant: bool = True, knows_its_last_round: bool = True
) -> Path:
    """A client whose rounds are processes: nothing lasts from one to the next but its files."""
    dataset, state, history = data(), network().state_dict(), None
    for place in range(3):
        model = network()
        model.load_state_dict(state)
        engine = PrivacyEngine(accountant="rdp")
        if history is not None and keeps_its_accountant:
            engine.accountant.load_state_dict(history)
        parts = private(model=model, dataset=dataset, engine=engine)
        recorder = Recorder(folder, delta=DELTA, continued=True)
        recorder.attach(parts.optimizer, parts.loader, parts.model)
        epoch(parts)
        history, state = engine.accountant.state_dict(), parts.model._module.state_dict()
        last = knows_its_last_round and place == 2
        run = recorder.close() if last else recorder.pause()
    return run


def forgetful_federated_client(folder: Path) -> Path:
    """Makes an engine in every fit(), and reports what that says."""
    return federated_client(folder, keeps_its_accountant=False)


def evaluation_between_rounds(folder: Path) -> Path:
    """A client that says how accurate it is on its own training records, after its round."""
    recorder, dataset, model = Recorder(folder, delta=DELTA), data(), network()
    engine = PrivacyEngine(accountant="rdp")
    for _ in range(2):
        parts = private(model=model, dataset=dataset, engine=engine)
        recorder.attach(parts.optimizer, parts.loader, parts.model)
        epoch(parts)
        for inputs, _labels in parts.loader:
            parts.model(inputs)
        model = anew(parts)
    return recorder.close()


def anew(parts: Parts) -> nn.Module:
    """Another model with the same parameters, without Opacus' hooks."""
    model = network()
    model.load_state_dict(parts.model._module.state_dict())
    return model


# Broken ones.


class _BatchMean(DPOptimizer):
    """Clips the batch's mean, as torch.nn.utils.clip_grad_norm_ does."""

    def clip_and_accumulate(self) -> None:
        sums = [one.sum(0) for one in self.grad_samples]
        length = torch.stack([one.norm() for one in sums]).norm()
        count = max(1, len(self.grad_samples[0]))
        factor = count * self.max_grad_norm / (length + 1e-6)
        for one, total in zip(self.params, sums, strict=True):
            one.summed_grad = total * min(1.0, float(factor))


class _KeepsSums(DPOptimizer):
    """Never clears the clipped sums of earlier steps."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        for one in self.params:
            one.grad_sample = None
            if one.summed_grad is not None:
                one.summed_grad = one.summed_grad.clone()
        self.original_optimizer.zero_grad(set_to_none)


class _NoiseOnEach(DPOptimizer):
    """Adds noise to every microbatch, and none to the sum that is released."""

    def clip_and_accumulate(self) -> None:
        super().clip_and_accumulate()
        for one in self.params:
            deviation = self.noise_multiplier * self.max_grad_norm
            one.summed_grad = one.summed_grad + deviation * torch.randn_like(one.summed_grad)

    def add_noise(self) -> None:
        for one in self.params:
            one.grad = one.summed_grad.view_as(one).clone()


class _OwnSensitivity(DPOptimizer):
    """Makes noise for a sensitivity that is a setting of its own."""

    def add_noise(self) -> None:
        for one in self.params:
            one.grad = one.summed_grad + 0.1 * self.noise_multiplier * torch.randn_like(one)


class _HeadAlone(DPOptimizer):
    """Leaves the first layer, which was frozen once, out of every record's norm."""

    def clip_and_accumulate(self) -> None:
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in self.grad_samples[2:]], 1)
        factor = (self.max_grad_norm / (norms.norm(dim=1) + 1e-6)).clamp(max=1.0)
        for one in self.params:
            one.summed_grad = torch.einsum("i,i...", factor, self._get_flat_grad_sample(one))


def batch_mean_clipped(folder: Path) -> Path:
    return recorded(folder, as_class(private(), _BatchMean))


def missing_zero_grad(folder: Path) -> Path:
    return recorded(folder, as_class(private(), _KeepsSums))


def virtual_steps_counted_twice(folder: Path) -> Path:
    parts = private()
    accountant = parts.engine.accountant
    billed = accountant.get_optimizer_hook_fn(sample_rate=parts.loader.sample_rate)
    parts.optimizer.attach_step_hook(billed)

    def train() -> None:
        with BatchMemoryManager(
            data_loader=parts.loader, max_physical_batch_size=7, optimizer=parts.optimizer
        ) as loader:
            for inputs, labels in loader:
                parts.optimizer.zero_grad()
                parts.criterion(parts.model(inputs), labels).backward()
                if parts.optimizer._step_skip_queue[:1] == [True]:
                    billed(parts.optimizer)
                parts.optimizer.step()

    return recorded(folder, parts, train)


def shuffled_billed_as_poisson(folder: Path) -> Path:
    return recorded(folder, private(poisson_sampling=False))


def noise_per_microbatch(folder: Path) -> Path:
    parts = as_class(private(), _NoiseOnEach)

    def train() -> None:
        with BatchMemoryManager(
            data_loader=parts.loader, max_physical_batch_size=7, optimizer=parts.optimizer
        ) as loader:
            epoch(parts, loader)

    return recorded(folder, parts, train)


def accountant_made_anew_each_round(folder: Path) -> Path:
    return _rounds(folder, None)


def sensitivity_apart_from_the_clipping_norm(folder: Path) -> Path:
    return recorded(folder, as_class(private(), _OwnSensitivity))


def classical_gaussian_formula(folder: Path) -> Path:
    """Its ε holds for ε up to 1, and says too little beyond; composed by hand."""
    dataset = data()
    loader = DataLoader(dataset, batch_size=RECORDS)
    model = network()
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, _ = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        data_loader=loader,
        noise_multiplier=0.3,
        max_grad_norm=0.5,
        poisson_sampling=False,
    )
    parts = Parts(engine, model, optimizer, loader, nn.CrossEntropyLoss())
    recorder = Recorder(folder, delta=DELTA)
    recorder.attach(parts.optimizer, parts.loader, parts.model)
    epoch(parts)
    classical = math.sqrt(2.0 * math.log(1.25 / DELTA)) / optimizer.noise_multiplier
    return recorder.close(epsilon=classical, accountant="classical")


def frozen_parameters_left_out_of_the_norm(folder: Path) -> Path:
    return recorded(folder, as_class(private(), _HeadAlone))


def stale_parameters(folder: Path) -> Path:
    """The optimiser holds the parameters of the model as it was before it was copied."""
    dataset = data()
    kept, parts = private(dataset=dataset), private(dataset=dataset)
    recorder = Recorder(folder, delta=DELTA)
    recorder.attach(kept.optimizer, kept.loader, parts.model)
    for inputs, labels in kept.loader:
        kept.optimizer.zero_grad()
        parts.optimizer.zero_grad()
        parts.criterion(parts.model(inputs), labels).backward()
        for old, new in zip(kept.model.parameters(), parts.model.parameters(), strict=True):
            old.grad_sample = new.grad_sample
        kept.optimizer.step()
    return recorder.close()


def batch_norm_swapped_back_in(folder: Path) -> Path:
    parts = private(model=network(nn.Identity()))
    parts.model._module[2] = nn.BatchNorm1d(12, affine=False)
    return recorded(folder, parts)


def evaluation_through_the_private_loader(folder: Path) -> Path:
    parts = private()

    def train() -> None:
        for _ in range(EPOCHS):
            epoch(parts)
            with torch.no_grad():
                for inputs, _labels in parts.loader:
                    parts.model(inputs).argmax(1)

    return recorded(folder, parts, train)


def last_short_batch_dropped(folder: Path) -> Path:
    parts = private()

    def train() -> None:
        for _ in range(EPOCHS):
            epoch(parts, (one for one in parts.loader if len(one[0]) >= BATCH))

    return recorded(folder, parts, train)


def sampler_with_a_fixed_seed(folder: Path) -> Path:
    """The loader is made anew each epoch, with the same generator for reproducible batches."""
    recorder, dataset, model = Recorder(folder, delta=DELTA), data(), network()
    engine = PrivacyEngine(accountant="rdp")
    for _ in range(EPOCHS):
        generator = torch.Generator().manual_seed(8_675_309)
        parts = private(model=model, dataset=dataset, engine=engine, generator=generator)
        recorder.attach(parts.optimizer, parts.loader, parts.model)
        epoch(parts)
        model = anew(parts)
    return recorder.close()


def accumulation_without_noise(folder: Path) -> Path:
    """Every other batch is stepped on with its clipped sum alone."""
    parts = private()

    def train() -> None:
        for place, (inputs, labels) in enumerate(parts.loader):
            parts.optimizer.zero_grad()
            parts.criterion(parts.model(inputs), labels).backward()
            if place % 2:
                parts.optimizer.clip_and_accumulate()
                for one in parts.optimizer.params:
                    one.grad = one.summed_grad / BATCH
                parts.optimizer.original_optimizer.step()
            else:
                parts.optimizer.step()

    return recorded(folder, parts, train)


CORRECT = (
    hooks,
    ghost_clipping,
    functorch,
    adam,
    virtual_steps,
    noise_that_changes,
    several_rounds,
    federated_client,
)
BROKEN = {
    batch_mean_clipped: "sensitivity",
    missing_zero_grad: "sensitivity",
    virtual_steps_counted_twice: "accounting",
    shuffled_billed_as_poisson: "sampling",
    noise_per_microbatch: "noise-scale",
    accountant_made_anew_each_round: "accounting",
    sensitivity_apart_from_the_clipping_norm: "noise-scale",
    classical_gaussian_formula: "accounting",
    frozen_parameters_left_out_of_the_norm: "sensitivity",
    stale_parameters: "steps",
    batch_norm_swapped_back_in: "sensitivity",
    evaluation_through_the_private_loader: "sampling",
    last_short_batch_dropped: "sampling",
    forgetful_federated_client: "accounting",
    evaluation_between_rounds: "sampling",
    sampler_with_a_fixed_seed: "sampling",
    accumulation_without_noise: "steps",
}
